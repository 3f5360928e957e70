"""`stepscope suite`: measure a device over real training workloads, and compare it with others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.api.requests import SuiteExportRequest, SuiteListRequest, SuiteShowRequest
from stepscope.cli._options import (
    AsJson,
    check_page_options,
    make_command,
    print_json,
    print_wide,
    print_written,
    with_privacy_options,
)
from stepscope.errors import UsageError
from stepscope.experiments.suite import SuiteRun
from stepscope.units import escape_control_characters

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from stepscope.experiments.suite.results import Results


_PAGE = 140  # columns, where nobody has a terminal


def suite() -> None:
    """Measure a device over real training workloads, and compare it with others."""


def _run(
    request: SuiteRun,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead, as suite show --json.")] = False,
) -> None:
    """Run the sweep, with the line to go on with where it is interrupted, and print its table."""
    from stepscope.api.suite import run_sweep, sweep_path

    folder = sweep_path(request)
    try:
        run_sweep(request, folder, not quiet, lambda line: typer.echo(escape_control_characters(line), err=True))
    except KeyboardInterrupt:
        on, end = (f" --fleet {request.fleet}", "; the devices end what they are at") if request.fleet else ("", "")
        sys.stderr.write(f"interrupted{end}; go on with: stepscope suite run{on} --resume --out {folder}\n")
        raise
    if json or not quiet:
        _show_sweep(SuiteShowRequest(folder), json)


def _show_sweep(
    request: SuiteShowRequest,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Write one self-contained page instead.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where the page goes. Default: suite.html in the sweep.")] = None,
) -> None:
    from stepscope.api.suite import default_page, write_page
    from stepscope.experiments.suite.plan import find_sweep
    from stepscope.experiments.suite.results import read_results

    path, against, models = find_sweep(request.path), request.against, request.models
    check_page_options(html, json, out)
    if (path / "fleet.json").exists():
        print_fleet_results(path, against, models, json, html)
        return
    results = read_results(path)
    if html:
        typer.echo(str(write_page(results, against, models, out or default_page(path))))
    elif json:
        print_json(results_json(results, against))
    else:
        print_wide(*render_results(results, against, models), width=_PAGE)


def _export(request: SuiteExportRequest, as_json: AsJson = False) -> None:
    from stepscope.api.suite import export

    print_written(export(request.path, request.to, request.out, request.runs), as_json)


def _list(
    request: SuiteListRequest,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    from rich.console import Console

    from stepscope.api.suite import listed

    contents = listed(request.below)
    if json:
        print_json(contents)
    else:
        Console(highlight=False).print(*contents_text(contents), sep="\n")


SUBCOMMANDS = {
    "run": with_privacy_options(make_command(SuiteRun, _run, "run")),
    "show": make_command(SuiteShowRequest, _show_sweep, "show"),
    "export": with_privacy_options(make_command(SuiteExportRequest, _export, "export")),
    "list": make_command(SuiteListRequest, _list, "list"),
}


_MOST_NOTES = 30


def render_results(results: Results, against: str | None, models: bool) -> list[RenderableType]:
    """The parts of the page, from the top."""
    from rich.text import Text

    from stepscope.api.suite import result_scores, results_heading, score_line
    from stepscope.experiments.suite.best_changes import changes_table
    from stepscope.experiments.suite.results import published_figure_rows, settings_table
    from stepscope.report.suite_report import model_table, results_table, score_table, setting_notes

    frame = settings_table(results)
    parts: list[RenderableType] = [*(Text(line) for line in results_heading(results)), Text(""), results_table(frame)]
    notes = setting_notes(frame)
    more = [f"... and {len(notes) - _MOST_NOTES} more (see suite export)"] if len(notes) > _MOST_NOTES else []
    parts += [Text(f"- {line}", style="dim", overflow="fold") for line in [*notes[:_MOST_NOTES], *more]]
    tuned = changes_table(results)
    if len(tuned):
        parts += [Text(""), Text("What to change, measured for each setting:"), *render_changes(tuned)]
    for score in result_scores(results, against):
        parts += [Text(""), Text(score_line(score), style="bold")]
        if against is not None:
            parts.append(score_table(score.parts))
    if models:
        parts += [Text(""), model_table(published_figure_rows(results))]
    return parts


def render_changes(tuned: pl.DataFrame) -> list[RenderableType]:
    """The table of what helps, and what is to be said of settings without a gain."""
    from rich.text import Text

    from stepscope.report.suite_report import change_notes, changes_table

    notes = change_notes(tuned)
    return [changes_table(tuned), *(Text(f"- {note}", style="dim", overflow="fold") for note in notes[:_MOST_NOTES])]


def results_json(results: Results, against: str | None) -> dict[str, Any]:
    """Everything that `show` says, for scripts."""
    from stepscope.api.suite import result_scores
    from stepscope.experiments.suite.best_changes import changes_table
    from stepscope.experiments.suite.results import published_figure_rows, settings_table

    return {
        **{key: results.content[key] for key in ("name", "created", "tier", "rules", "limits", "device", "versions")},
        "settings": settings_table(results).to_dicts(),
        "changes": changes_table(results).to_dicts(),
        "scores": [{**vars(score), "parts": score.parts.to_dicts()} for score in result_scores(results, against)],
        "models": published_figure_rows(results),
    }


def contents_text(contents: dict[str, Any]) -> list[str]:
    """Return the contents as text for the terminal."""
    lines = [f"{tier} ({len(names)}): {', '.join(names)}" for tier, names in contents["tiers"].items()]
    lines += [""] + [_sweep_text(sweep) for sweep in contents["sweeps"]]
    return [*lines, f"reference devices: {', '.join(contents['reference_devices']) or 'none'}"]


def _sweep_text(sweep: dict[str, Any]) -> str:
    if "unreadable" in sweep:
        return f"{sweep['path']}: cannot be read: {sweep['unreadable']}"
    return f"{sweep['path']}: {sweep['ended']} of {sweep['runs']} runs"


def print_fleet_results(path: Path, against: str | None, models: bool, json: bool, html: bool) -> None:
    """The table of all boards; pages, scores and the table of models are of one board."""
    from rich.text import Text

    from stepscope.experiments.fleet.scheduling import FleetFolder, fleet_changes, fleet_results
    from stepscope.report.suite_report import results_table, setting_notes

    folder = FleetFolder(path)
    if against is not None or models or html:
        board_path = next(iter(folder.boards.values())).path
        raise UsageError(
            "--against, --models and --html are of one board", f"for example stepscope suite show {board_path}"
        )
    frame, tuned = fleet_results(folder), fleet_changes(folder)
    if json:
        print_json({"boards": list(folder.boards), "settings": frame.to_dicts(), "changes": tuned.to_dicts()})
        return
    notes = [f"- {board}: {line}" for board in folder.boards for line in setting_notes(frame.filter(board=board))]
    heading = Text(f"{path.name}: {len(folder.boards)} boards")
    more = [Text(""), Text("What to change:"), *render_changes(tuned)] if len(tuned) else []
    print_wide(heading, results_table(frame), *(Text(note, style="dim") for note in notes), *more, width=_PAGE)
