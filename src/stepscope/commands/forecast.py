"""`stepscope forecast`: time, energy, battery and temperature of a whole training from a few measured steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.analysis.forecast import Forecast
    from stepscope.analysis.measured import Measured
    from stepscope.analysis.run import Run


def forecast(
    target: Annotated[str, typer.Argument(help="A run folder (or 'last'), or a workload to measure now.")],
    steps: Annotated[int | None, typer.Option(help="Steps of the whole training.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Or its epochs, where the size of the data is known.")] = None,
    measure: Annotated[int, typer.Option(help="Steps to measure of a workload.")] = 100,
    batch: Annotated[int | None, typer.Option(help="Batch size of a workload.")] = None,
    battery: Annotated[str | None, typer.Option(help="Battery to run on, for example 50Wh.")] = None,
    carbon: Annotated[str | None, typer.Option(help="Carbon of the electricity, for example 400g/kWh.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Train it all, measure 20 steps of every 500, correct the forecast.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the forecast as JSON.")] = False,
) -> None:
    """Foretell a whole training from a few measured steps: time, energy, battery share and end temperature.

    `stepscope forecast last --epochs 10` extrapolates the newest run; `stepscope forecast lenet --steps 5000` measures
    100 steps first. With `--watch` the training is made, and the forecast is corrected as it goes on and then checked.
    """
    from rich.console import Console

    if (steps is None) == (epochs is None):
        raise UsageError("how long is the training?", "give either --steps N or --epochs E")
    if (steps is not None and steps < 1) or (epochs is not None and epochs <= 0):
        raise UsageError("a training has at least one step", "for example --steps 1000")
    joules, grams = amount(battery, "Wh", "--battery"), amount(carbon, "g/kWh", "--carbon")
    console = Console(stderr=as_json, highlight=False)
    folder = _folder(target, out)
    if watch:
        said = _watched(console, folder, target, out, _Length(steps, epochs), batch, joules, grams)
    else:
        from stepscope.analysis.forecast import forecast as extrapolate
        from stepscope.analysis.run import Run

        run = Run(folder or _measured(target, measure, batch, out))
        said = extrapolate(run, _Length(steps, epochs).of(run), joules, grams)
    _show(console, said)
    if as_json:
        _json(said)


class _Length:
    """How long the training is, in steps or in epochs."""

    def __init__(self, steps: int | None, epochs: float | None) -> None:
        self._steps, self._epochs = steps, epochs

    def of(self, run: Run) -> int:
        """In steps, from the size of the data and of a batch."""
        if self._steps is not None:
            return self._steps
        from stepscope.analysis.forecast import steps_of

        return steps_of(run, self._epochs or 1.0)

    def of_workload(self, name: str, batch: int | None) -> int:
        """The same before it has run."""
        from stepscope import workloads

        workload = workloads.find(name)
        if self._steps is not None:
            return self._steps
        size = workload.data.load().facts.train_size
        return max(1, round((self._epochs or 1.0) * (size // (batch or workload.default_batch))))


def amount(text: str | None, unit: str, option: str) -> float | None:
    """A positive amount in J (of Wh) or in g a J (of g/kWh); the unit may be left out."""
    if text is None:
        return None
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*(?:{re.escape(unit)})?", text.strip(), re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{option} {text}: not an amount of {unit}", f"for example {option} 50{unit}")
    from stepscope.analysis.forecast import J_PER_WH, KWH_PER_J

    return float(found[1]) * (J_PER_WH if unit == "Wh" else KWH_PER_J)


def _folder(target: str, out: Path) -> Path | None:
    """The run folder that is meant; None where the target is a workload."""
    from stepscope.which_run import NEWEST, find_run

    known = target == NEWEST or Path(target).is_dir() or (out / target).is_dir()
    return find_run(Path(target), out) if known else None


def _measured(target: str, steps: int, batch: int | None, out: Path) -> Path:
    """Train a few steps now; their run folder."""
    from stepscope import workloads
    from stepscope.commands.run import progress_bar

    workload = workloads.find(target)  # refuses an unknown one before anything heavy is imported
    from stepscope.record.session import Settings
    from stepscope.record.train import train_workload

    with progress_bar(workload.name, steps, quiet=False) as advance:
        path, _ = train_workload(workload, steps, Settings(out=out), batch=batch, progress=advance)
    return path


def _watched(
    console: Console,
    folder: Path | None,
    target: str,
    out: Path,
    length: _Length,
    batch: int | None,
    joules: float | None,
    grams: float | None,
) -> Forecast:
    from stepscope.analysis.run import Run
    from stepscope.studies.watched_forecast import follow, train_aside, truth

    process = None
    if folder is None:
        steps = length.of_workload(target, batch)
        sized = [] if batch is None else ["--batch", str(batch)]
        process, folder = train_aside([target, "--steps", str(steps), *sized], out)
    else:
        steps = length.of(Run(folder))
    said = None
    try:
        for said in follow(folder, steps, joules, grams):
            console.print(f"after {said.made} steps: {_in_a_line(said.forecast)}")
    except KeyboardInterrupt:
        if process is not None:
            process.terminate()
        raise
    if said is None:
        raise UsageError("the run ended before 20 steps were measured", "leave out --watch")
    _check(console, said.forecast, truth(folder))
    return said.forecast


def _in_a_line(said: Forecast) -> str:
    return ", ".join(f"{total.metric} {_amounts(total)}" for total in said.totals)


def _check(console: Console, said: Forecast, took: list[Measured]) -> None:
    """Beside what the run really took, where it ran to its end."""
    for total in took:
        foretold = said.value(total.metric)
        if foretold is None or foretold.value is None or not total.value:
            continue
        if total.n < said.steps * 0.98 - 5:
            console.print(f"the run made {total.n} of {said.steps} steps: the forecast cannot be checked")
            return
        per_step, said_per_step = total.value / total.n, foretold.value / said.steps
        held = (foretold.low or 0) / said.steps <= per_step <= (foretold.high or 0) / said.steps
        off = said_per_step / per_step - 1
        console.print(f"really: {total.metric} off by {off:+.2%}, interval {'holds' if held else 'does NOT hold'}")


def _show(console: Console, said: Forecast) -> None:
    from rich.table import Table

    from stepscope.units import plural

    table = Table(
        title=f"{plural(said.steps, 'step')}, foretold from {plural(said.measured_steps, 'measured one')}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for heading in ("", "expected", "95 % interval", "how"):
        table.add_column(heading)
    for total in said.totals:
        expected, _, interval = _amounts(total).partition(" (")
        table.add_row(total.metric, expected, interval.removesuffix(")"), total.note or "")
    console.print(table)
    for note in said.notes:
        console.print(f"  {note}")


def _amounts(total: Measured) -> str:
    """Value and interval in the units that people use."""
    from stepscope.analysis.forecast import J_PER_WH
    from stepscope.units import duration, percent, si

    def text(value: float | None) -> str:
        if value is None:
            return "-"
        if total.unit == "s":
            return duration(value * 1e9)
        if total.unit == "1":
            return percent(value)
        if total.unit == "J" and value >= J_PER_WH:
            return si(value / J_PER_WH, "Wh")
        return f"{value:.1f} °C" if total.unit == "degC" else si(value, total.unit)

    if total.value is None:
        return text(None)
    return f"{text(total.value)} ({text(total.low)} to {text(total.high)})"


def _json(said: Forecast) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps(asdict(said), indent=1))
