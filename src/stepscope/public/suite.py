"""A device over real training workloads, compared with others: what `stepscope suite` does.

`run` measures and returns the folder of the sweep; `table`, `scores`, `page` and `export` take such a folder, finished
or not, or a result file that travelled; `listed` says what there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.errors import UsageError
from stepscope.public._asked import asked
from stepscope.studies.suite.results import Results, read, runs_table
from stepscope.studies.suite.results import table as table_of

if TYPE_CHECKING:
    from stepscope.studies.suite.score import Score

__all__ = ["export", "listed", "page", "results", "run", "scores", "table"]

Numbers = Sequence[int] | int | str
Words = Sequence[str] | str


def run(
    tier: str | None = None,
    *,
    workloads: Words | None = None,
    batch: Numbers | None = None,
    optimizers: Words | None = None,
    precisions: Words | None = None,
    threads: Numbers | None = None,
    device: str | None = None,
    repeats: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    interval: str | None = None,
    cooldown: str | None = None,
    memory: str | None = None,
    time_limit: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    fleet: str | Path | None = None,
    boards: Words | None = None,
    tls: str | Path | None = None,
    wait: str | None = None,
    progress: bool = False,
) -> Path:
    """Run a sweep, every run in a fresh process, and return its folder: suites/<time>-<tier> unless `out` says.

    Settings are the options of `stepscope suite run`: tier smoke (unless said), paper-2019, paper-low-power, edge or
    all; interval "2%", cooldown "45C" or "30s", memory "8GB", time_limit "15min"; with a fleet, boards, tls and wait.
    resume: go on with the sweep in `out`, or the newest; nothing that has ended is run again. progress: on stderr.
    Raises UnknownName, UsageError, OutputNotWritable, FleetError; KeyboardInterrupt leaves a folder to resume.
    """
    settings = {name: value for name, value in locals().items() if name not in ("out", "progress")}
    folder = _folder(out, settings)
    given = {name: value for name, value in settings.items() if value not in (None, False)}
    asked(("suite", "run"), {**given, "out": folder}, quiet=not progress)
    return folder


def results(path: str | Path) -> Results:
    """A sweep as it is compared: device, versions, rules and every run's numbers. Raises RunNotFound, RunDamaged."""
    return read(Path(path))


def table(path: str | Path, runs: bool = False) -> pl.DataFrame:
    """A row for each setting, over its repeats, or for each run; of a fleet's sweep the settings of all boards.

    Units stand in the names, intervals are of 95 % (`_low`, `_high`); null is "not measured". Raises RunNotFound and
    RunDamaged.
    """
    folder = Path(path)
    if (folder / "fleet.json").exists():
        from stepscope.studies.fleet.folder import FleetFolder
        from stepscope.studies.fleet.results import fleet_results

        if runs:
            raise UsageError("the runs of a fleet are of its boards", f"for example {folder / 'boards'}")
        return fleet_results(FleetFolder(folder))
    return runs_table(read(folder)) if runs else table_of(read(folder))


def scores(path: str | Path, against: str | None = None) -> list[Score]:
    """Geometric means of reference / here: speed, and energy a sample where both measured it; 2 is twice as good.

    against: a stored device of `listed()` or a result file; the first stored device unless said.
    """
    from stepscope.commands._suite_shown import scores as scored

    return scored(read(Path(path)), against)


def page(path: str | Path, out: str | Path | None = None, *, against: str | None = None, models: bool = False) -> Path:
    """Write one self-contained HTML page and return its path: suite.html in the sweep, or beside a result file.

    models: also what papers print of the models, corrected. Raises RunNotFound, MissingDependency without the extra
    `report`, OutputNotWritable.
    """
    from stepscope.commands._suite_shown import default_page
    from stepscope.commands._suite_shown import page as drawn

    folder = Path(path)
    return drawn(read(folder), against, models, default_page(folder) if out is None else Path(out))


def export(path: str | Path, to: str = "result", out: str | Path | None = None, runs: bool = False) -> Path:
    """Write the results for others and return the path: beside the sweep unless said.

    to: csv, parquet, markdown, mlperf, or result, a file that travels and that every function here reads. runs: a row
    a run in csv and parquet. Raises UnknownName, UsageError, RunNotFound and OutputNotWritable.
    """
    from stepscope.commands._suite_shown import default_export, exported, refuse_export

    refuse_export(to, runs)
    folder = Path(path)
    return exported(read(folder), to, default_export(folder, to) if out is None else Path(out), runs)


def listed(below: str | Path = "suites") -> dict[str, Any]:
    """The tiers with their workloads, the sweeps in a folder with how far they are, and the stored devices."""
    from stepscope.commands._suite_shown import listed as found

    return found(Path(below))


def _folder(out: str | Path | None, settings: dict[str, Any]) -> Path:
    from stepscope.commands._suite_plan import default_out, last_sweep

    if out is not None:
        return Path(out)
    if settings["resume"]:
        if settings["fleet"] is not None:
            raise UsageError("to go on with a fleet's sweep takes its folder", "name it with out=")
        return last_sweep()
    tier = settings["tier"] or ("smoke" if settings["workloads"] is None else None)
    return default_out(f"{tier or 'sweep'}-fleet" if settings["fleet"] is not None else tier)
