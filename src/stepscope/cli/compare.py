"""`stepscope compare`: runs, devices or sweeps side by side, and which modules and operators make the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stepscope.api.requests import CompareRequest
from stepscope.cli._options import check_page_options, make_command, print_json, print_wide, show_page
from stepscope.errors import UsageError
from stepscope.run_paths import last_runs

_PAGE = Path("compare.html")
_JSON_BY = ("module", "kind")


def _compare(
    request: CompareRequest,
    top: Annotated[
        int | None, typer.Option(help="Parts listed of a difference on a terminal. Default: 4, with -v 8.", min=1)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every interval, and all differences.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Write one self-contained page instead.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where the page goes. [default: compare.html]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")] = False,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
) -> None:
    check_page_options(html, as_json, out, open_page)
    if html or as_json:
        whole = "a page has all ways to divide" if html else "JSON has all parts"
        _refuse_options({"--by": request.by if html else None, "--top": top}, f"on a terminal; {whole}")
    from stepscope.analysis.compare import WHAT
    from stepscope.analysis.compare import compare as compared

    comparison = compared(request.runs or last_runs(2), request.per, request.attribution)
    if html:
        from stepscope.report import compare_page

        show_page(compare_page.write(comparison, out or _PAGE, request.what or tuple(WHAT)), open_page)
    elif as_json:
        print_json(comparison.to_dict(request.by or _JSON_BY, request.what or tuple(WHAT)))
    else:
        from stepscope.report.comparison import render

        if len(comparison.settings) > 1:
            of_layers = len(comparison.run_groups) > 2
            options = {"--by": request.by, "--what": request.what, "--top": None if of_layers else top}
            _refuse_options(options, "of one setting; a page and JSON explain the differences of each")
        print_wide(render(comparison, request.by, top, request.what, verbose))


compare = make_command(CompareRequest, _compare, "compare")


def _refuse_options(options: dict[str, Any], where: str) -> None:
    """Raise UsageError if options were given that choose nothing here; where: what they are for."""
    names = [name for name, value in options.items() if value is not None]
    if names:
        choose = "chooses" if len(names) == 1 else "choose"
        raise UsageError(f"{' and '.join(names)} {choose} parts {where}", f"leave {' and '.join(names)} away")
