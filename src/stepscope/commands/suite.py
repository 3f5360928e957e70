"""`stepscope suite`: measure a device over real training workloads, and compare it with others."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.commands._called import by_program
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.commands._suite_plan import Asked
    from stepscope.studies.suite.state import SweepFolder

_CHILD = (sys.executable, "-m", "stepscope.commands._suite_child")
_LISTED = Path("suites")
_PAGE = 140  # columns, where nobody has a terminal


def suite() -> None:
    """Measure a device over real training workloads, and compare it with others."""


def run(
    tier: Annotated[
        str | None, typer.Option(help="smoke (unless said), paper-2019, paper-low-power, edge or all.")
    ] = None,
    workloads: Annotated[str | None, typer.Option(help="These alone: a,b,path/to/file.py:mine.")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes: 1,2,4,...,256. Unless said: each one's own.")] = None,
    optimizers: Annotated[str | None, typer.Option(help="Optimizers: sgd,adam. Unless said: each one's own.")] = None,
    precisions: Annotated[str | None, typer.Option(help="Precisions: fp32,bf16. Unless said: fp32.")] = None,
    threads: Annotated[str | None, typer.Option(help="Threads: 1,2,4. Unless said: torch's choice.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu (unless said) or cuda.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Fresh processes for each setting: 3 (smoke: 1).")] = None,
    steps: Annotated[int | None, typer.Option(help="Most steps of a run, warm-up included.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Most seconds of steps of a run (6 steps are always made).")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(help="End a run when ms a step is known within this, at 95 %: 2%.")
    ] = None,
    cooldown: Annotated[str | None, typer.Option(help="Before each run: cool down to 45C, or wait 30s.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of each process (RLIMIT_DATA), to ask what a smaller device does: 8GB.")
    ] = None,
    time_limit: Annotated[str | None, typer.Option(help="A run that lasts longer is ended: 15min unless said.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep. Unless said: suites/<time>-<tier>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in --out, or the newest.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the order of runs and of the trainings.")] = None,
    fleet: Annotated[
        str | None, typer.Option(help="On the boards of a fleet: hosts.toml, tcp://host:port or tls://host:port.")
    ] = None,
    boards: Annotated[str | None, typer.Option(help="With --fleet, these boards alone: a,b. Unless said: all.")] = None,
    tls: Annotated[
        Path | None, typer.Option(help="With --fleet tls://...: folder of ca.pem, certificate.pem, key.pem.")
    ] = None,
    wait: Annotated[str, typer.Option(help="With --fleet: how long a board, or the scheduler, may be away.")] = "5min",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
) -> None:
    """Run a sweep: every workload, batch, optimizer, precision and number of threads, in shuffled fresh processes.

    Out of memory, a kill, a crash, a hang and a library that is not installed are results; a batch larger than one
    that did not fit is skipped and says so. Interrupt it as you like: `--resume` repeats nothing that has ended.
    Without --steps, --seconds and --interval a run ends when ms a step is known within 2 %, or after 60 s.
    """
    from stepscope.commands._suite_plan import Asked, default_out, last_sweep
    from stepscope.commands._suite_watch import watching
    from stepscope.studies.suite.sweep import sweep

    asked = Asked(tier, workloads, batch, optimizers, precisions, threads, device, repeats, steps, seconds, interval,
                  cooldown, memory, time_limit, seed)  # fmt: skip
    if fleet is not None:
        from stepscope.commands._suite_fleet import FleetAsked, run_on_fleet

        run_on_fleet(asked, FleetAsked(fleet, boards, tls, wait), out, resume, quiet)
        return
    if boards is not None or tls is not None:
        raise UsageError("--boards and --tls belong to --fleet", "name the fleet: --fleet hosts.toml")
    if resume:
        folder = _resumed(out or last_sweep(), asked)
    else:
        folder = _begun(out or default_out(tier or "smoke" if workloads is None else tier), asked)
    _say(f"sweep of {len(folder.order)} runs in {folder.path}", quiet)
    try:
        with watching(folder, quiet) as watch:
            sweep(folder, _CHILD, watch)
    except KeyboardInterrupt:
        _say(f"interrupted; go on with: stepscope suite run --resume --out {folder.path}", by_program() is not None)
        raise
    if not quiet and by_program() is None:
        show(folder.path)


def show(
    path: Annotated[Path, typer.Argument(help="Folder of a sweep, finished or not, or a result file.")],
    against: Annotated[
        str | None, typer.Option(help="Score against this stored device (see `suite list`) or result file.")
    ] = None,
    models: Annotated[bool, typer.Option("--models", help="Also what papers print of the models, corrected.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Write one self-contained page instead.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where the page goes. Unless said: suite.html in the sweep.")] = None,
) -> None:
    """Show the table of a sweep, its score against a reference device, and what was wrong with runs.

    Values are means over the repeats with half the width of their 95 % interval. The score is the geometric mean of
    reference / here over the settings that both measured: 2 is twice as fast.
    """
    from rich.console import Console

    from stepscope.commands._suite_shown import as_json, default_page, page, shown
    from stepscope.studies.suite.results import read

    if html and json:
        raise UsageError("--html and --json exclude each other", "run the command twice")
    if (path / "fleet.json").exists():
        from stepscope.commands._suite_fleet import show_fleet

        show_fleet(path, against, models, json, html)
        return
    results = read(path)
    if html:
        typer.echo(str(page(results, against, models, out or default_page(path))))
    elif json:
        typer.echo(json_format.dumps(as_json(results, against), indent=1, default=str))
    else:
        width = None if sys.stdout.isatty() else _PAGE
        Console(highlight=False, width=width).print(*shown(results, against, models), sep="\n")


def export(
    path: Annotated[Path, typer.Argument(help="Folder of a sweep, or a result file.")],
    to: Annotated[str, typer.Option(help="csv, parquet, markdown, mlperf, or result: a file that travels.")] = "result",
    out: Annotated[Path | None, typer.Option(help="File to write. Unless said: beside the sweep.")] = None,
    runs: Annotated[bool, typer.Option("--runs", help="CSV and Parquet: a row a run, not a setting.")] = False,
) -> None:
    """Export the results of a sweep as CSV, Parquet, Markdown, MLPerf-style log lines, or one file that travels.

    The result file holds device, versions, settings and every run's numbers, with a hash: `suite show` reads it.
    """
    from stepscope.commands._suite_shown import default_export, exported, refuse_export
    from stepscope.studies.suite.results import read

    refuse_export(to, runs)
    typer.echo(str(exported(read(path), to, out or default_export(path, to), runs)))


def list_(
    below: Annotated[Path, typer.Argument(help="Folder whose sweeps are listed.")] = _LISTED,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """List the tiers with their workloads, the sweeps in a folder, and the devices that scores are made against."""
    from rich.console import Console

    from stepscope.commands._suite_shown import listed, listed_text

    found = listed(below)
    if json:
        typer.echo(json_format.dumps(found, indent=1))
    else:
        Console(highlight=False).print(*listed_text(found), sep="\n")


SUBCOMMANDS = {"run": run, "show": show, "export": export, "list": list_}


def _begun(out: Path, asked: Asked) -> SweepFolder:
    from stepscope.commands._suite_plan import chosen, grid, plan
    from stepscope.studies.suite.state import SweepFolder

    axes, entries = grid(asked), chosen(asked)
    twice = axes.duplicates(entries)
    if twice:
        _say(f"{twice} settings were asked for more than once: each is run once", by_program() is not None)
    return SweepFolder.create(out, plan(asked, entries, axes, out.name), entries)


def _resumed(out: Path, asked: Asked) -> SweepFolder:
    """The sweep as it was begun; refused where a workload has changed or other options are given."""
    from stepscope.commands._suite_entries import entries
    from stepscope.commands._suite_plan import chosen, differences, grid, plan
    from stepscope.studies.suite.state import SweepFolder

    folder = SweepFolder(out)
    if asked.given():
        other = differences(folder.plan, plan(asked, chosen(asked), grid(asked), folder.path.name))
        if other:
            said = f"the sweep in '{out}' was begun otherwise than {' '.join(asked.given())} asks:\n" + "\n".join(other)
            raise UsageError(said, "leave these options out, or begin a new sweep with another --out")
    folder.refuse_changes(entries([name for name in folder.plan["workloads"] if _is_there(name)]))
    return folder


def _is_there(name: str) -> bool:
    from stepscope import workloads

    try:
        workloads.find(name)
    except UsageError:
        return False
    return True


def _say(line: str, quiet: bool) -> None:
    if not quiet:
        sys.stderr.write(f"{line}\n")
