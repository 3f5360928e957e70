"""`stepscope forecast`: time, energy, battery and temperature of a whole training from a few measured steps."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.api.requests import ForecastRequest
from stepscope.cli._options import make_command, print_json
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.analysis.forecast import Forecast
    from stepscope.analysis.metrics import Measured


def _forecast(
    request: ForecastRequest,
    as_json: Annotated[bool, typer.Option("--json", help="Print the forecast as JSON.")] = False,
) -> None:
    """Predict from a run, from one that is measured now, or along one that is made now; print it."""
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    folder, code = _run_folder_of_target(request.target, request.out), 0
    if request.watch:
        prediction, code = _follow_run(console, folder, request)
    else:
        from stepscope.analysis.run import Run
        from stepscope.api.run_reports import forecast_of

        prediction = forecast_of(Run(folder or _measure_run(request)), request)
    _print_forecast(console, prediction)
    if as_json:
        print_json(asdict(prediction))
    if code:
        raise typer.Exit(code)


forecast = make_command(ForecastRequest, _forecast, "forecast")


def _steps_of_workload(request: ForecastRequest) -> int:
    from stepscope import workloads

    workload = workloads.find(request.target)
    if request.steps is not None:
        return request.steps
    size = workload.data.load().facts.train_size
    return max(1, round((request.epochs or 1.0) * (size // (request.batch or workload.default_batch))))


def _run_folder_of_target(target: str, out: Path) -> Path | None:
    """The run folder that is meant; None where the target is a workload."""
    from stepscope.run_paths import NEWEST, find_run

    if Path(target).is_file():
        hint = f"measure some of its steps: stepscope run {target}, then: stepscope forecast last --steps N"
        raise UsageError(f"'{target}' is a script: a forecast of it needs a run", hint)
    is_run = target == NEWEST or Path(target).is_dir() or (out / target).is_dir()
    return find_run(Path(target), out) if is_run else None


def _measure_run(request: ForecastRequest) -> Path:
    """Train a few steps now; their run folder. The command ends, with the run's code, where they broke off."""
    from stepscope import workloads
    from stepscope.cli.run import faults_of_training, progress_bar

    workload = workloads.find(request.target)  # refuses an unknown one before anything heavy is imported
    from stepscope.record.settings import Settings
    from stepscope.record.train import TrainingChoices, train_workload

    with progress_bar(workload.name, request.measure, quiet=False) as advance, faults_of_training(workload.name):
        path, code = train_workload(
            workload, request.measure, Settings(out=request.out), TrainingChoices(request.batch), progress=advance,
            evaluate=False,
        )  # fmt: skip
    if code:
        _print_early_end(path)
        raise typer.Exit(code)
    return path


def _print_early_end(folder: Path) -> None:
    from stepscope.cli._script import print_to_stderr
    from stepscope.runfolder import RunReader

    run = RunReader(folder)
    reason = run.meta.get("reason")
    print_to_stderr(f"the training did not end well: {run.status}{f', {reason}' if reason else ''}")


def _follow_run(console: Console, folder: Path | None, request: ForecastRequest) -> tuple[Forecast, int]:
    """(forecast after the last block, exit code of the training that was started for it); 0 for a run that was there.

    StepscopeError where nothing was measured.
    """
    from stepscope.analysis.run import Run
    from stepscope.api.run_reports import requested_steps
    from stepscope.cli._forecast_watch import follow_forecasts, measured_totals, start_training

    process = None
    if folder is None:
        steps = _steps_of_workload(request)
        sized = [] if request.batch is None else ["--batch", str(request.batch)]
        process, folder = start_training([request.target, "--steps", str(steps), *sized], request.out)
    else:
        steps = requested_steps(Run(folder), request)
    update = None
    try:
        for update in follow_forecasts(folder, steps, request.battery, request.carbon):
            totals = ", ".join(f"{total.metric} {_amount_text(total)}" for total in update.forecast.totals)
            console.print(f"after {update.made} steps: {totals}")
    except KeyboardInterrupt:
        if process is not None:
            process.terminate()
        raise
    code = 0 if process is None else process.wait()
    if code:
        _print_early_end(folder)
    if update is None and code:
        raise typer.Exit(code)
    if update is None:
        raise UsageError("the run ended before 20 steps were measured", "leave out --watch")
    _print_check(console, update.forecast, measured_totals(folder))
    return update.forecast, code


def _print_check(console: Console, forecast: Forecast, took: list[Measured]) -> None:
    """Beside what the run really took, where it ran to its end."""
    for total in took:
        predicted = forecast.value(total.metric)
        if predicted is None or predicted.value is None or not total.value:
            continue
        if total.n < forecast.steps * 0.98 - 5:
            console.print(f"the run made {total.n} of {forecast.steps} steps: the forecast cannot be checked")
            return
        per_step, predicted_per_step = total.value / total.n, predicted.value / forecast.steps
        off = predicted_per_step / per_step - 1
        verdict = "it has no interval"
        if predicted.low is not None and predicted.high is not None:
            holds = predicted.low / forecast.steps <= per_step <= predicted.high / forecast.steps
            verdict = f"its interval {'holds' if holds else 'does NOT hold'}"
        console.print(f"measured: the forecast of {total.metric} was off by {off:+.2%}, {verdict}")


def _print_forecast(console: Console, forecast: Forecast) -> None:
    from stepscope.report.terminal_tables import labelled
    from stepscope.units import plural

    console.print(f"{plural(forecast.steps, 'step')}, predicted from {plural(forecast.measured_steps, 'measured one')}")
    names_by_note: dict[str, list[str]] = {}
    for total in forecast.totals:
        has_value = total.value is not None
        of = f", {total.scope}" if has_value and total.metric.endswith(("energy", "battery", "carbon")) else ""
        kind = "simulated " if total.metric.startswith("simulated_") else ""
        name = total.metric.removeprefix("simulated_").removeprefix("estimated_")
        console.print(labelled(name, f"{kind}{_amount_text(total)}{of}" if has_value else f"{total.note}"))
        if has_value and total.note:
            names_by_note.setdefault(total.note, []).append(name)
    for note, names in names_by_note.items():
        console.print(f"- {', '.join(names)}: {note}", style="dim")
    for note in (*forecast.notes, *([forecast.condition] if forecast.condition else [])):
        console.print(f"- {note}", style="dim", markup=False)


def _amount_text(total: Measured) -> str:
    from stepscope.analysis.forecast import AT_LEAST, J_PER_WH
    from stepscope.units import estimate

    scale, unit = (J_PER_WH, "Wh") if total.unit == "J" and (total.value or 0) >= J_PER_WH else (1.0, total.unit)
    value, low, high = (None if end is None else end / scale for end in (total.value, total.low, total.high))
    if AT_LEAST in (total.note or ""):
        return f"at least {estimate(value if low is None else low, None, None, unit)}"
    return estimate(value, low, high, unit)
