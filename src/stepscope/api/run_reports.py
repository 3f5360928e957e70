"""Stored runs and this machine, without torch: text, page, export, live, log, forecast, meter, doctor.

`stepscope.figure`, `figures` and `view`: charts as pictures and runs as web pages, with the extra `report`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stepscope
from stepscope.analysis import forecast as extrapolated
from stepscope.analysis.bottleneck.causes import SYSTEM
from stepscope.analysis.compare import Comparison
from stepscope.analysis.compare.regression_check import Check
from stepscope.analysis.energy import learned_power
from stepscope.analysis.energy.alignment import align_meter_to_run
from stepscope.analysis.results import Findings
from stepscope.analysis.run import open_run
from stepscope.analysis.verdict import TITLES
from stepscope.api.requests import DoctorRequest, ForecastRequest
from stepscope.errors import UnknownName, UsageError
from stepscope.fault_isolation import wrap_analysis_faults
from stepscope.integrations import logger
from stepscope.record.ceilings import ceilings as measured
from stepscope.record.diagnosis import diagnose, measure_and_save_power_sensors
from stepscope.record.meter_log import import_csv
from stepscope.report.exports._excerpt import plan_export, write_export
from stepscope.report.html import refuse_without_libraries
from stepscope.report.live.run_state import Now, RunWatcher
from stepscope.report.live.screen import poll_states
from stepscope.report.view.access import is_loopback
from stepscope.report.view.server import DEFAULT_PORT, BoundedServer, make_server
from stepscope.run_paths import find_run
from stepscope.runfolder import RunReader
from stepscope.simulate import sensor_root

if TYPE_CHECKING:
    from stepscope import Run
    from stepscope.analysis.forecast import Forecast


@wrap_analysis_faults
def text(
    shown: str | Path | Run | Comparison | Check | Findings = "last", width: int = 100, *, verbose: bool = False
) -> str:
    """A report as text for a terminal of so many columns, as the commands print it.

    shown: a run (a Run, the path of its folder, its name in `runs`, or "last"), or what `compare`, `check` or `study`
    gave. verbose: of a run all tables, as `stepscope report -v`, in place of one screen. Raises RunError where a run
    cannot be read.
    """
    from rich.console import Console

    console = Console(width=width, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(*_renderables(shown, verbose), sep="\n")
    return captured.get()


@wrap_analysis_faults
def brief(run: str | Path | Run = "last") -> str:
    """Return a run in few words, for a script or an assistant: findings, evidence, numbers with CI, what is unknown.

    run: a Run, the path of its folder, its name in `runs`, or "last". At most 1,500 tokens of plain text, a fact a
    line; names of the run are quoted and cut. Raises RunError where the run cannot be read.
    """
    from stepscope.report.brief import brief as briefly

    return briefly(open_run(run))


@wrap_analysis_faults
def page(
    shown: str | Path | Run | Comparison = "last", path: str | Path | None = None, *, attribution: str = "fit"
) -> Path:
    """Write one self-contained HTML page of a run or a comparison and return its path.

    shown: a Run, the path of its folder, its name in `runs`, "last", or what `compare` gave. path: report.html in the
    run folder, compare.html here, by default. attribution: of a run that is opened by this, as of `Run`. Raises
    RunError where a run cannot be read, MissingDependency without the extra `report`, OutputNotWritable.
    """
    if isinstance(shown, Comparison):
        from stepscope.report import compare_page

        return compare_page.write(shown, "compare.html" if path is None else path)
    from stepscope.report import html

    run = open_run(shown, attribution)
    return html.write(run, run.path / "report.html" if path is None else path)


def _renderables(result: str | Path | Run | Comparison | Check | Findings, verbose: bool) -> list[Any]:
    if isinstance(result, Comparison):
        from stepscope.report.comparison import render as compared

        return [compared(result)]
    if isinstance(result, Check):
        from stepscope.report.comparison import render_check as checked

        return [checked(result)]
    if isinstance(result, Findings):
        from stepscope.report.study_results import text as found

        return list(found(result))
    from stepscope.report import first_screen
    from stepscope.report import terminal_report as details

    run = open_run(result)
    return [details.render(run) if verbose else first_screen.render(run)]


def export(
    run: str | Path | Run = "last", to: str = "perfetto", out: str | Path | None = None, steps: str = "all"
) -> Path:
    """Write a run for another tool and return the path: a file, or for csv and parquet a folder of tables.

    run: a Run, the path of its folder, its name in `runs`, or "last". to: perfetto, chrome, csv, parquet, speedscope,
    json, latex or an export of a plug-in. out: a file or folder; default: in the run folder. steps: "10:20" (10 to 19),
    "first:50" or "all". Raises UnknownName, UsageError, RunError and OutputNotWritable; nothing is left half written.
    """
    return write_export(plan_export(run, to, steps, None if out is None else Path(out)))


def live(run: str | Path | Run = "last", every_s: float = 0.5) -> Iterator[Now]:
    """Look at a run every `every_s` seconds until it has ended: step, pace, time left, load, power, memory, heat.

    run: a Run, the path of its folder, its name in `runs`, or "last". The last look is the one that finds it ended;
    of a run that had ended before, it knows the status alone. Only the folder is read: the training does not notice.
    Shares are of one, power is in W, memory in bytes, time left in s; None is "not known". Raises RunError where there
    is no run.
    """
    folder = (run if isinstance(run, RunReader) else RunReader(run)).path
    with contextlib.closing(RunWatcher(folder)) as watch:
        yield from poll_states(watch, watch.read_state(), every_s, time.sleep)


def log(run: str | Path | Run = "last", to: str = "tensorboard", out: str | Path | None = None, **options: Any) -> Any:
    """Hand a run to a tool and return where it went.

    run: a Run, the path of its folder, its name in `runs`, or "last". to: mlflow, wandb, tensorboard, prometheus,
    codecarbon or a logger of a plug-in. out: file, folder or tracking address; default: that tool's own.
    options: of that tool, such as page=False, experiment=, project=, carbon_intensity= (g of CO2 a kWh). Raises
    UnknownName for a tool or an option that is not there, MissingDependency, RunError and OutputNotWritable.
    """
    chosen = logger(to)
    option_names = [name for name in inspect.signature(chosen.log_run).parameters if name not in ("run", "out")]
    for name in options:
        if name not in option_names:
            raise UnknownName(f"option of '{to}'", name, option_names)
    return chosen.log_run(open_run(run), None if out is None else str(out), **options)


def forecast(
    run: str | Path | Run = "last",
    *,
    steps: int | None = None,
    epochs: float | None = None,
    battery: float | str | None = None,
    carbon: float | str | None = None,
    battery_wh: float | None = None,
    carbon_g_per_kwh: float | None = None,
) -> Forecast:
    """Predict a training of so many steps or epochs from a run: time, energy, battery, carbon, end temperature.

    run: a Run, the path of its folder, its name in `runs`, or "last"; measure a workload first with
    `stepscope.measure`. battery: J, or a text such as "50Wh"; carbon: g a J, or a text such as "400g/kWh"; battery_wh
    and carbon_g_per_kwh are their old names. Totals in s, J, shares of the battery, g and degC, each with a 95
    % CI; what needs energy is absent where none was measured. Raises UsageError where too few steps were measured,
    or where the steps of an epoch are not known; RunError where the run cannot be read.
    """
    if battery_wh is not None or carbon_g_per_kwh is not None:
        sentence = 'battery_wh and carbon_g_per_kwh are battery="50Wh" and carbon="400g/kWh" now'
        warnings.warn(sentence, DeprecationWarning, stacklevel=2)
    request = ForecastRequest.from_settings({
        "target": str(run), "steps": steps, "epochs": epochs,
        "battery": battery if battery_wh is None else f"{battery_wh}Wh",
        "carbon": carbon if carbon_g_per_kwh is None else f"{carbon_g_per_kwh}g/kWh",
    })  # fmt: skip
    return forecast_of(open_run(run), request)


def forecast_of(run: Run, request: ForecastRequest) -> Forecast:
    """The forecast that a request asks of a run, with a note where the machine held its steps up."""
    prediction = extrapolated.forecast(run, requested_steps(run, request), request.battery, request.carbon)
    first = next(iter(run.verdict().causes), None)
    if first is None or first.bound not in SYSTEM:
        return prediction
    held_up = f"measured while {TITLES[first.bound]} ({first.name}): without that, the training takes less time"
    return replace(prediction, notes=(*prediction.notes, held_up))


def requested_steps(run: Run, request: ForecastRequest) -> int:
    """Return how long the training is, in steps; of epochs, from the size of the data and of a batch."""
    return request.steps if request.steps is not None else extrapolated.steps_of(run, request.epochs or 1.0)


def learn_power_model(*runs: str | Path | Run) -> str:
    """Return the power model of the device that these runs measured, for `power_model` of later runs without a meter.

    runs: at least three, of different workloads or batch sizes. The text has W at rest and busy, the 95 % CI of a run
    that is none of them (each is predicted by the others), and the CPU use that was seen:
    `cpu=2.1W..14W+-8%at30%..95%`.
    Raises UsageError for too few runs, of several devices, simulated, or without a measured total.
    """
    paths = [run.path if isinstance(run, RunReader) else find_run(run) for run in runs]
    return str(learned_power.learn_power_model(paths))


def meter(run: str | Path | Run, log: str | Path) -> Run:
    """Add the CSV log of a meter (a column of times, one of watts) to a run; the run, opened anew.

    run: a Run, the path of its folder, its name in `runs`, or "last". The meter's clock is aligned by what both have
    seen. Raises UsageError for a log that is not there, cannot be read or does not belong to the run.
    """
    folder = (run if isinstance(run, RunReader) else RunReader(run)).path
    add_meter_log(folder, Path(log))
    return stepscope.Run(folder)


def add_meter_log(run: Path, log: Path) -> tuple[str, int]:
    """Add the log to the run and return the name of its channel, and how many of its rows were skipped."""
    if not log.is_file():
        raise UsageError(f"there is no meter log '{log}'", "give the path of its CSV file")
    channel = import_csv(run, log, align_meter_to_run)
    noted = [event for event in RunReader(run).events if event.get("kind") == "meter-imported"]
    return channel.id, int(noted[-1]["skipped"])


def doctor(
    root: str | Path | None = None,
    *,
    simulate: str | None = None,
    characterise: bool = False,
    ceilings: bool = False,
    threads: int | None = None,
    precision: str | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Return what can be measured on this machine, what cannot, and the command that would enable it, as plain data.

    root: the top of a saved /proc and /sys ($STEPSCOPE_ROOT, else this machine). simulate: look at a simulated board
    instead. characterise: also measure refresh, step and filter of each power sensor, which loads all cores for some
    seconds and is kept for the runs to come. ceilings: also measure what a device ("cpu", "cuda:1") can reach with so
    many threads and in this precision, "fp32" or "bf16" (seconds, kept as well): arithmetic (FLOP/s), bandwidth (B/s),
    dispatch (ns); null where it cannot be measured. Keys: ceilings where asked for, device, now, channels (quantity,
    scope, unit, refresh_ns, step_size, read_cost_ns, ...), missing (sensor, reason, detail, remedy), power,
    characterised, perf, torch, proc, root, simulated; null is "not known". Raises UsageError.
    """
    request = DoctorRequest(characterise, None, ceilings, threads, precision, device, simulate)
    with sensor_root(request.simulate, str(root or os.environ.get("STEPSCOPE_ROOT") or "/")) as chosen:
        top = Path(chosen.root or "/")
        measure = (
            (lambda survey, target: measure_and_save_power_sensors(survey, target, top)[1]) if characterise else None
        )
        answer = diagnose(top, request.simulate, measure)[0]
    if not ceilings:
        return answer
    limits = measured(request.device or "cpu", request.precision or "fp32", threads=request.threads, again=True)
    return {**answer, "ceilings": limits}


def figure(
    name: str,
    run: str | Path | Run | Sequence[str | Path | Run] = "last",
    out: str | Path = ".",
    *,
    form: str = "png",
    width_mm: float = 170.0,
) -> Path:
    """Write one chart of a run into the folder `out`, which is made, and return the path of the picture.

    name: one of `stepscope.figures()`. run: a Run, the path of its folder, its name in `runs`, or "last"; several where
    the figure draws several in one picture (layer-bars, energy-breakdown, energy-by-model, memory-stack, step-ecdf,
    trade-off). form: png, svg, pdf or vega. width_mm: on paper, 60 to 420; 85 fills one column, 170 two. Raises
    UnknownName, UsageError, StepscopeError with the reason where the run has nothing to draw, MissingDependency without
    the extra `report`,
    OutputNotWritable.
    """
    refuse_without_libraries()
    from stepscope.report import figures as drawn

    drawn.check(name, [form], width_mm)
    runs = list(run) if isinstance(run, Sequence) and not isinstance(run, str) else [run]
    if len(runs) != 1 and not (runs and drawn.is_multi_run_figure(name)):
        raise UsageError(f"'{name}' draws one run, and {len(runs)} were given", "call figure for each of them")
    if drawn.is_multi_run_figure(name):
        return drawn.write_multi_run_figure(name, [open_run(folder) for folder in runs], Path(out), form, width_mm)
    return drawn.write(name, open_run(runs[0]), Path(out), form, width_mm)


def figures() -> dict[str, str]:
    """The charts that `figure` can draw: their names, in the order of the page, and the section each is of.

    Raises MissingDependency without the extra `report`.
    """
    refuse_without_libraries()
    from stepscope.report import figures as drawn

    return {entry.name: entry.title for entry in drawn.entries()}


def view(
    folder: str | Path = "runs", *, host: str = "127.0.0.1", port: int = DEFAULT_PORT, token: str | None = None
) -> BoundedServer:
    """A server that shows a folder of runs at its `address`: call `serve_forever()`, `server_close()` ends it.

    port: 0 takes any free one. token: what visitors need; beyond this machine the default is a new one, and it is
    part of the address. Nothing is written and nothing outside the folder is shown. Raises RunNotFound, UsageError, and
    MissingDependency without the extra `report`.
    """
    needed = token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)
    return make_server(folder, host, port, needed)
