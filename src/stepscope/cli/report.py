"""`stepscope report`: a run on one screen, as a page, or as JSON."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._options import check_page_options, print_json, show_page, with_privacy_options
from stepscope.cli._script import print_after_status, status_of_analysis
from stepscope.fault_isolation import result_or_failed_part
from stepscope.run_paths import NEWEST

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


@with_privacy_options
def report(
    run: Annotated[Path, typer.Argument(help="A run folder, the name of one in runs/, or 'last'.")] = Path(NEWEST),
    html: Annotated[bool, typer.Option("--html", help="Write one self-contained page instead.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the page goes. [default: report.html in the run folder]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON instead.")] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Print all tables, the largest rows of each, and with --json each unit of the dependencies.",
        ),
    ] = False,
    attribution: Annotated[
        str, typer.Option(help="How energy is attributed to operators: fit (ours), overlap, nearest (2019) or model.")
    ] = "fit",
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
) -> None:
    """Show a run on one screen: how fast, at what cost, what limits it, what to do next, and where the step goes."""
    check_page_options(html, as_json, out, open_page)
    from stepscope.analysis.run import Run

    opened = Run(run, attribution)
    if html:
        from stepscope.report.html import write

        with status_of_analysis():
            page = write(opened, out or opened.path / "report.html")
        show_page(page, open_page)
    elif as_json:
        print_metrics(opened, verbose)
    else:
        from stepscope.report import first_screen, terminal_report

        print_after_status((terminal_report if verbose else first_screen).render(opened))
    if attribution == "fit":
        _write_missing_summary(opened, html or as_json or verbose)


def _write_missing_summary(run: Run, of_operators: bool) -> None:
    """summary.json of a finished run that has none, or one of other files: lists of runs show what is in it."""
    from stepscope.analysis.summary import is_summary_current, write_summary

    if run.status == "running" or is_summary_current(run, of_operators):
        return
    with suppress(OSError):  # a folder that is only read from is shown all the same
        result_or_failed_part(lambda: write_summary(run, of_operators))


def print_metrics(run: Run, verbose: bool = False) -> None:
    """Print what is known of a run as JSON; verbose: with each unit of the dependencies, of which there are many."""
    from dataclasses import asdict

    from stepscope.analysis.first_screen import headline, setting_facts
    from stepscope.analysis.memory.headroom import SIZES, training_peak
    from stepscope.analysis.summary import energy_facts

    with status_of_analysis():
        peak, waits = training_peak(run), run.dependencies()
        content: dict[str, Any] = {
            "id": run.id,
            "status": run.status,
            "setting": setting_facts(run),
            "simulated": run.simulated,
            "headline": [asdict(row) for row in headline(run)],
            "verdict": asdict(run.verdict()),
            "attained": {by: run.attained(by).to_dicts() for by in ("module", "operator")},
            "phases": run.phases().to_dicts(),
            "layers": run.layers().to_dicts(),
            "operators": run.operators().to_dicts(),
            "metrics": run.metrics().to_dicts(),
            "memory": None if peak is None else {**asdict(peak), "fits": {str(b): peak.verdict(b) for b in SIZES}},
            "overhead": run.overhead().to_dicts(),
            "dependencies": {
                "critical_path_ns": waits.critical_path_ns,
                "work_ns": waits.work_ns,
                **{name: getattr(waits, name).to_dicts() for name in ("units", "overlap", "idle")[not verbose :]},
            },
            "communication": run.communication().to_dicts(),
            "ranks": run.rank_table().to_dicts() if len(run.ranks) > 1 else [],
            "energy_of_ops": energy_facts(run) if run.rails.lines else None,
            "not_measured": [asdict(entry) for entry in run.not_measured()],
        }
    print_json(content)
