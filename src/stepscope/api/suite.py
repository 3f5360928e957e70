"""A device over real training workloads, compared with others: the functions of `stepscope suite`.

`run` measures and returns the folder of the sweep; `results`, `table`, `scores`, `page` and `export` take such a
folder, finished or not, "last" for the newest in suites/, or a result file that travelled; `listed` names the tiers,
sweeps and stored devices.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.api.study import fleet_progress, sweep_progress
from stepscope.errors import MissingDependency, StepscopeError, UnknownName, UsageError
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.suite.best_changes import changes_table
from stepscope.experiments.suite.plan import find_sweep
from stepscope.experiments.suite.results import Results, read_results, runs_table
from stepscope.experiments.suite.results import settings_table as table_of
from stepscope.privacy import VARIABLE, withheld_kinds
from stepscope.units import bytes_, escape_control_characters, estimate, percent, plural

if TYPE_CHECKING:
    from stepscope.experiments.fleet.hosts import SchedulerAddress
    from stepscope.experiments.suite.results import Score

__all__ = ["changes", "export", "listed", "page", "results", "run", "scores", "table"]


def run(tier: str | SuiteRun | None = None, *, progress: bool = False, **settings: Any) -> Path:
    """Run a sweep, every run in a fresh process, and return its folder: suites/<time>-<tier> unless `out` says.

    tier: smoke (by default), paper-2019, paper-low-power, edge or all; or a request, `stepscope.requests.SuiteRun`.
    settings: its fields, which are the options of `stepscope suite run`: workloads, batch, optimizers, precisions,
    threads, device, repeats, steps, seconds, interval, cooldown, memory, time_limit, tune, seed, out; with a fleet also
    boards, tls and wait. An amount is an SI number or a text: interval 0.02 or "2%", memory 8e9 or "8GB", time_limit
    900 or "15min"; cooldown is "45C" or "30s". resume=True: go on with the sweep in `out`, or the newest; nothing that
    has ended is run again. progress: on stderr. Raises UnknownName, UsageError, OutputNotWritable, FleetError;
    KeyboardInterrupt leaves a folder to resume.
    """
    if isinstance(tier, SuiteRun):
        if settings:
            raise UsageError("a request has its settings already", "give the request, or its settings")
        request = tier
    else:
        request = SuiteRun.from_settings({"tier": tier, **settings}, "suite run")
    folder = sweep_path(request)
    run_sweep(request, folder, progress, _print_to_stderr if progress else lambda line: None)
    return folder


def sweep_path(request: SuiteRun) -> Path:
    """The folder of a sweep: the one given, the newest to go on with, or a new one."""
    from stepscope.experiments.suite.plan import default_out, last_sweep

    if request.out is not None:
        return request.out
    if request.resume:
        if request.fleet is not None:
            raise UsageError("to go on with a fleet's sweep takes its folder", "name it: --resume --out DIR")
        return last_sweep()
    return default_out(f"{request.tier_name or 'sweep'}-fleet" if request.fleet is not None else request.tier_name)


def run_sweep(request: SuiteRun, out: Path, progress: bool, says: Callable[[str], None]) -> None:
    """Begin a sweep in a folder or go on with it, here or on the boards of a fleet. says: told what is no progress."""
    from stepscope.experiments.suite.plan import new_sweep, resume_sweep
    from stepscope.experiments.suite.sweep import run_missing_points

    if request.fleet is not None:
        _run_on_fleet(request, out, progress, says)
        return
    folder = resume_sweep(request, out) if request.resume else new_sweep(request, out, says)
    if progress:
        _print_to_stderr(f"sweep of {len(folder.order)} runs in {folder.path}")
    with sweep_progress(folder, progress) as watch:
        run_missing_points(folder, watch=watch)


def results(path: str | Path) -> Results:
    """A sweep as it is compared: device, versions, rules and every run's numbers. Raises RunNotFound, RunDamaged."""
    return read_results(find_sweep(Path(path)))


def table(path: str | Path, runs: bool = False) -> pl.DataFrame:
    """A row for each setting, over its repeats, or for each run; of a fleet's sweep the settings of all boards.

    Units stand in the names, intervals are of 95 % (`_low`, `_high`); null is "not measured". Raises RunNotFound and
    RunDamaged.
    """
    folder = find_sweep(Path(path))
    if (folder / "fleet.json").exists():
        from stepscope.experiments.fleet.scheduling import FleetFolder, fleet_results

        if runs:
            raise UsageError("the runs of a fleet are of its boards", f"for example {folder / 'boards'}")
        return fleet_results(FleetFolder(folder))
    return runs_table(read_results(folder)) if runs else table_of(read_results(folder))


def changes(path: str | Path) -> pl.DataFrame:
    """Of a sweep with `tune`: a row for each setting with what helps, its code, its gain, and why where none is known.

    Columns: the setting, changes (names joined by " + ", "none", or null), as_is_ms, step_ms, gain_percent with _low
    and _high (95 %), checked (yes, not confirmed, no), answer, code; of a fleet's sweep also board.
    """
    folder = find_sweep(Path(path))
    if (folder / "fleet.json").exists():
        from stepscope.experiments.fleet.scheduling import FleetFolder, fleet_changes

        return fleet_changes(FleetFolder(folder))
    return changes_table(read_results(folder))


def scores(path: str | Path, against: str | None = None) -> list[Score]:
    """Geometric means of reference / here: speed, and energy a sample where both measured it; 2 is twice as good.

    against: a stored device of `listed()` or a result file; the first stored device by default.
    """
    return result_scores(results(path), against)


def page(path: str | Path, out: str | Path | None = None, *, against: str | None = None, models: bool = False) -> Path:
    """Write one self-contained HTML page and return its path: suite.html in the sweep, or beside a result file.

    models: also what papers print of the models, corrected. Raises RunNotFound, MissingDependency without the extra
    `report`, OutputNotWritable.
    """
    folder = find_sweep(Path(path))
    return write_page(read_results(folder), against, models, default_page(folder) if out is None else Path(out))


def export(path: str | Path, to: str = "result", out: str | Path | None = None, runs: bool = False) -> Path:
    """Write the results for others and return the path: beside the sweep by default.

    to: csv, parquet, markdown, mlperf, or result, a file that travels and that every function here reads. runs: a row
    a run in csv and parquet. Raises UnknownName, UsageError, RunNotFound and OutputNotWritable.
    """
    refuse_export(to, runs)
    folder = find_sweep(Path(path))
    return write_export(read_results(folder), to, default_export(folder, to) if out is None else Path(out), runs)


def listed(below: str | Path = "suites") -> dict[str, Any]:
    """The tiers with their workloads, the sweeps in a folder with how far they are, and the stored devices."""
    from stepscope.experiments.engine.sweep_points import workload_tiers
    from stepscope.experiments.suite.results import reference_names

    by_tier: dict[str, list[str]] = {}
    with contextlib.suppress(MissingDependency):  # without torch sweeps can still be looked at
        for name, tiers in workload_tiers().items():
            for tier in tiers:
                by_tier.setdefault(tier, []).append(name)
    return {"tiers": by_tier, "sweeps": list(_sweeps(Path(below))), "reference_devices": reference_names()}


def _run_on_fleet(request: SuiteRun, out: Path, progress: bool, says: Callable[[str], None]) -> None:
    from stepscope.experiments.engine.engine import CHILD
    from stepscope.experiments.fleet.hosts import require_libraries, scheduler_address
    from stepscope.experiments.fleet.scheduling import new_fleet, resume_fleet, run_fleet_sweep

    require_libraries()
    where = scheduler_address(str(request.fleet), request.tls)
    _refuse_to_withhold_here_alone(where)
    folder = resume_fleet(request, out) if request.resume else new_fleet(request, out, where, says)
    if progress:
        runs = sum(len(sweep.order) for sweep in folder.boards.values())
        _print_to_stderr(f"sweep of {runs} runs on {len(folder.boards)} boards in {folder.path}")
    with fleet_progress(folder, progress) as watch:
        run_fleet_sweep(folder, where, CHILD[1:], watch, request.wait)


def _refuse_to_withhold_here_alone(where: SchedulerAddress) -> None:
    """Raise UsageError where something is to be omitted that the boards would write all the same."""
    kinds = withheld_kinds()
    hosts = () if where.hosts is None else where.hosts.hosts
    if kinds and not (hosts and all(kinds <= withheld_kinds(host.environment) for host in hosts)):
        raise UsageError(
            "--no-argv and --no-names (STEPSCOPE_PRIVATE) do not reach the boards of a fleet",
            f'add environment = {{ {VARIABLE} = "{",".join(sorted(kinds))}" }} to each [[host]] of hosts.toml, '
            "and call fleet down and fleet up",
        )


def _print_to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


FORMATS = ("csv", "parquet", "markdown", "mlperf", "result")
_ENDINGS = {"markdown": ".md", "mlperf": ".log", "result": ".json"}
_RULES: dict[str, Callable[[Any], str]] = {
    "steps": lambda value: f"at most {value} steps",
    "seconds": lambda value: f"at most {value:g} s of steps",
    "interval": lambda value: f"until ms a step is known within {percent(value, 0)}",
    "cool_to_celsius": lambda value: f"from {value:g} degC or less",
    "pause_s": lambda value: f"after a pause of {value:g} s",
    "memory_bytes": lambda value: f"with {bytes_(value)} of memory",
    "time_limit_s": lambda value: f"ended after {value:g} s",
    "tune_s": lambda value: f"changes tried for {value:g} s on each setting",
}


def write_page(results: Results, against: str | None, models: bool, out: Path) -> Path:
    """Write the sweep as a page; return its path."""
    from stepscope.experiments.suite.results import published_figure_rows, settings_table
    from stepscope.report.html import write_text
    from stepscope.report.suite_report import render, setting_notes

    frame = settings_table(results)
    facts = [("Sweep", results_heading(results)[0]), *(("", line) for line in results_heading(results)[1:])]
    score_sentences = [(score_line(result), result.parts) for result in result_scores(results, against)]
    figure_rows = published_figure_rows(results) if models else ()
    page = render(
        results.name, facts, frame, setting_notes(frame), score_sentences, figure_rows, changes_table(results)
    )
    return write_text(out, page)


def results_heading(results: Results) -> list[str]:
    """Return what was measured on what, and by which rules."""
    content, device = results.content, results.device
    name = device.get("board") or "unnamed board"
    cores = len(device.get("cores") or [])
    rules = [form(value) for key, form in _RULES.items() if (value := content["rules"].get(key))]
    text = ", ".join([*rules, f"seed {content['rules']['seed']}"])
    limited = [f"memory limit: {content['limits']['memory']}"] if content["limits"]["memory"] else []
    lines = [
        f"{results.name}: {name}, {device.get('cpu') or device.get('machine')}, {plural(cores, 'core')}",
        f"{', '.join(f'{key} {value}' for key, value in content['versions'].items())}",
        f"rules: {text}",
        *limited,
    ]
    return [escape_control_characters(" ".join(line.split())) for line in lines]  # a device of a fleet can say anything


def result_scores(results: Results, against: str | None) -> list[Score]:
    """Speed, and energy where both measured it; against the first stored device unless another is named."""
    from stepscope.experiments.suite.results import read_reference, reference_names, score

    name = against or next(iter(reference_names()), None)
    if name is None:
        return []
    other = read_reference(name)
    speed_and_energy = [score(results, other), score(results, other, "energy_per_sample_j")]
    return [
        result
        for result in speed_and_energy
        if result.value is not None or (against is not None and result is speed_and_energy[0])
    ]


def score_line(result: Score) -> str:
    """The score in a sentence."""
    what = {"step_time_ms": "speed", "energy_per_sample_j": "energy"}[result.column]
    if result.value is None:
        return f"no {what} score against {result.reference}: no part was measured by both"
    other = result.parts.drop_nulls("ratio")["remark"].drop_nulls().len()
    parts = f"{result.counted} of {len(result.parts)} parts{f', {other} of them on other data' if other else ''}"
    return f"{what} score {estimate(result.value, result.low, result.high, '')} against {result.reference}, {parts}"


def refuse_export(to: str, runs: bool) -> None:
    """UnknownName and UsageError for what no export holds."""
    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS)
    if runs and to not in ("csv", "parquet"):
        raise UsageError(f"--runs: {to} holds what it holds", "use it with --to csv or --to parquet")


def default_export(path: Path, to: str) -> Path:
    """Beside the folder of a sweep, or beside a result file."""
    return path.parent / f"{path.stem if path.is_file() else path.name}{_ENDINGS.get(to, f'.{to}')}"


def default_page(path: Path) -> Path:
    """Return where the page goes: in the folder of a sweep, or beside a result file."""
    return path / "suite.html" if path.is_dir() else default_export(path, "html")


def write_export(results: Results, to: str, out: Path, runs: bool) -> Path:
    """Write one export; OutputNotWritable where the disk refuses."""
    from stepscope.experiments.engine.folder import translate_sweep_write_errors
    from stepscope.experiments.suite.results import runs_table, save_results, settings_table
    from stepscope.report.exports.csv import without_formulas
    from stepscope.report.suite_report import markdown, mlperf_log_lines

    if to == "result":
        save_results(results, out)
        return out
    with translate_sweep_write_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        frame = runs_table(results) if runs else settings_table(results)
        if to == "csv":
            without_formulas(frame).write_csv(out)
        elif to == "parquet":
            frame.write_parquet(out)
        elif to == "markdown":
            text = markdown(frame, results.name, results_heading(results), changes_table(results))
            out.write_text(text, encoding="utf-8")
        else:
            lines = mlperf_log_lines(results.runs, results.device, results.content["versions"])
            out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return out


def _sweeps(below: Path) -> Iterator[dict[str, Any]]:
    from stepscope.experiments.engine.folder import SweepFolder

    for plan in sorted([*below.glob("*/sweep.json"), *below.glob("*/boards/*/sweep.json")]):
        try:
            folder = SweepFolder(plan.parent)
        except StepscopeError as error:  # of a newer Stepscope, or damaged
            yield {"path": str(plan.parent), "unreadable": str(error)}
            continue
        ended = folder.results()
        runs = folder.order
        yield {"path": str(folder.path), "runs": len(runs), "ended": sum(point.id in ended for point in runs)}
