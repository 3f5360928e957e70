"""Forecast of a whole training from a few measured steps: time, energy, battery, carbon and temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from stepscope.analysis.channels import series_of
from stepscope.analysis.energy.power_model import power_model_gaps
from stepscope.analysis.energy.rails import MeasuredRail, rail_tree
from stepscope.analysis.estimate import LevelChange, change_points
from stepscope.analysis.metrics import Measured
from stepscope.analysis.pauses import StepsAndPauses, steps_and_pauses
from stepscope.analysis.projection import project_level, project_sum
from stepscope.analysis.result_cache import cached_per_run
from stepscope.analysis.time.steps import all_timed_steps, steps_after_warmup
from stepscope.arrays import Flags, Floats
from stepscope.errors import UsageError
from stepscope.fault_isolation import wrap_analysis_faults
from stepscope.quantities import SIMULATED_MEANS, simulated_badge
from stepscope.runfolder import RunReader
from stepscope.units import duration, percent, plural

J_PER_WH = 3600.0
_FEWEST_STEPS, _FEWEST_READINGS = 10, 40
_MUCH = 0.01  # of the time: what does not count is named from here on
_THROTTLED = 2 / 3  # of the clock: what a condition names as an example
AT_LEAST = "a lower bound"  # in the note of a total that counts a part of the device alone
_DOCTOR = (
    "`stepscope doctor` shows which sensor can be opened; or `stepscope run` with a plug or meter (--plug, "
    "--meter-command, --meter-csv)"
)
_FEW_READINGS = f"no temperature: fewer than {_FEWEST_READINGS} readings do not tell how far it rises; measure longer"
_MODEL = " or an estimate (--power-model cpu=2W..15W)"
_rails = cached_per_run(rail_tree)
StepFilter = Callable[[Floats], Flags]  # of the numbers of all steps, those that may be looked at


@dataclass(frozen=True)
class Forecast:
    """Totals over `steps` steps; `changes` are changes of the step time among those already made.

    `condition` is what the intervals take for granted and no measurement can tell; None where all steps were made.
    """

    steps: int
    measured_steps: int
    totals: tuple[Measured, ...]
    changes: tuple[LevelChange, ...]
    notes: tuple[str, ...] = field(default=())
    condition: str | None = None

    def value(self, metric: str) -> Measured | None:
        """A total by its name: time, energy, battery, carbon, temperature.

        "estimated_energy" of a power model, "simulated_energy" of simulated sensors; None where there is none.
        """
        return next((total for total in self.totals if total.metric == metric), None)


def all_steps(numbers: Floats) -> Flags:
    """Every step that was made counts."""
    return np.ones(len(numbers), dtype=bool)


@wrap_analysis_faults
def forecast(
    run: RunReader,
    steps: int,
    battery_j: float | None = None,
    carbon_g_per_j: float | None = None,
    chosen: StepFilter = all_steps,
    upto: int | None = None,
) -> Forecast:
    """Extrapolate a run to `steps` training steps. Raises UsageError where too few steps were measured.

    Intervals are of 95 %; they hold what the measured steps show: their spread, stalls, drift, one lasting change and
    what comes and goes. Pauses between steps (evaluation, saving) count at the rate at which they came. A throttle or a
    pause that has not come yet is in no interval: `condition` says so. Energy is absent where
    no sensor measured it, and a note says what to do; battery and carbon, if asked for, are null then.
    What follows from the run's power model is `estimated_energy` and so on, with the model's CI. Battery and carbon are
    of a meter of the whole device, the battery of its own gauge first; where none was read they are lower bounds,
    without an upper end. `upto`: as if only so many steps after the warm-up had been made.
    """
    run_steps = steps_after_warmup(run).head(upto if upto is not None else run.steps.height)
    numbers = run_steps["step"].to_numpy().astype(np.float64) - (run_steps["step"][0] if len(run_steps) else 0)
    flags = chosen(numbers) if len(run_steps) else np.empty(0, dtype=bool)
    if flags.sum() < _FEWEST_STEPS:
        raise UsageError(
            f"{flags.sum()} steps after the warm-up are too few to forecast {steps}",
            f"measure at least {_FEWEST_STEPS + run.warmup_steps} steps",
        )
    plain, between = _unprofiled_flags(run, run_steps), steps_and_pauses(run, run_steps)
    series, spans = _Series(numbers, flags, plain, steps, between), between.spans
    is_regular, changes = series.kept(flags), tuple(_changes(run_steps.filter(pl.Series(plain))))
    time = series.total("time", "s", "training", (spans["t1_ns"] - spans["t0_ns"]).to_numpy() / 1e9)
    totals, notes = [time], [*_change_notes(changes), *_pause_notes(between)]
    energy = step_energy(run, spans)
    total = series.total_energy(energy)
    if energy is None or total is None:
        notes.append(_no_energy(run, energy))
    else:
        totals.append(total)
        notes += [energy.note, *power_model_gaps(run)] if energy.note else []
    questions = (
        ("battery", "1", 1 / battery_j if battery_j else None, f"of {(battery_j or 0) / J_PER_WH:g} Wh"),
        ("carbon", "g", carbon_g_per_j, f"at {(carbon_g_per_j or 0) * 1e3 * J_PER_WH:g} g a kWh"),
    )
    for metric, unit, factor, note in questions:
        if factor:
            device = next(filter(None, map(series.total_energy, device_energies(run, spans, metric))), None)
            totals.append(_amount_from_energy(device, total, metric, factor, unit, note))
    warm = _temperature_forecast(run, float(run_steps["t0_ns"][0]), (time.value or 0.0))
    notes += () if warm or not series_of(run, "temperature") else (_FEW_READINGS,)
    condition = _assumption_text(steps, int(numbers[is_regular][-1]) + 1, time, between)
    badge = simulated_badge(run.meta.get("simulated"))
    notes[:0] = [f"{badge}: {SIMULATED_MEANS}"] if badge else []
    named = [time, *(with_simulated_name(run, total) for total in (*totals[1:], *warm))]
    return Forecast(steps, int(is_regular.sum()), tuple(named), changes, tuple(notes), condition)


def with_simulated_name(run: RunReader, total: Measured) -> Measured:
    """Return what sensors said under its name: of simulated ones never that of a measurement."""
    return total if run.meta.get("simulated") is None else replace(total, metric=f"simulated_{total.metric}")


def steps_of(run: RunReader, epochs: float) -> int:
    """Steps of so many epochs, from the size of the data and of a batch; UsageError where a size is not known."""
    workload = run.meta.get("workload", {})
    size, batch = (workload.get("data") or {}).get("train_size"), workload.get("batch_size")
    if not size or not batch:
        raise UsageError("how many steps an epoch of this run has is not known", "give --steps instead of --epochs")
    return max(1, round(epochs * (int(size) // int(batch))))


def _unprofiled_flags(run: RunReader, steps: pl.DataFrame) -> Flags:
    """Profiled steps are slower than those of a training that nobody watches."""
    plain: Flags = steps["step"].is_in(all_timed_steps(run)[0]["step"].implode()).to_numpy()
    return plain if plain.sum() >= _FEWEST_STEPS else np.ones(len(steps), dtype=bool)


def _changes(steps: pl.DataFrame) -> Iterator[LevelChange]:
    """Yield the lasting changes of the step time, by the numbers of steps in the run."""
    number, last = steps["step"].to_list(), len(steps) - 1
    for change in change_points(steps["length_ns"].to_numpy() / 1e9):
        yield replace(change, step=number[min(change.step, last)], noticed=number[min(change.noticed, last)])


def _assumption_text(steps: int, count: int, time: Measured, between: StepsAndPauses) -> str | None:
    """What a forecast takes for granted of the steps after the first `count`, with what it would cost if it failed."""
    ahead = steps - count
    if ahead <= 0:
        return None
    later = (time.value or 0.0) * ahead / steps * (1 / _THROTTLED - 1)
    unseen = "; pauses between steps (evaluation, saving), since none was recorded apart from long steps, which count"
    pauses = "" if len(between.at) else unseen
    return (
        f"not in the CI: throttling that has not begun (at two thirds of the clock, the other {plural(ahead, 'step')} "
        f"would take {duration(later * 1e9)} longer){pauses}"
    )


def _pause_notes(between: StepsAndPauses) -> Iterator[str]:
    """Say which pauses count, and which cannot."""
    lengths = between.pauses["length_ns"]
    if len(lengths):
        yield (
            f"{plural(len(lengths), 'pause')} between steps (evaluation, saving), {duration(float(lengths.sum()))} in "
            "all: the forecast goes on with as many"
        )
    elif between.unknown_share > _MUCH:
        yield (
            f"{percent(between.unknown_share)} of the time lay between steps next to profiled ones: it is not counted, "
            "because it is not known how much of it the profiler took"
        )


@dataclass(frozen=True)
class _Series:
    """Numbers of the steps made, those of them that may be looked at (n,), and how many steps there will be.

    plain: those that are as long as a step that nobody profiles (n,); the others count where these are too few.
    """

    numbers: Floats
    chosen: Flags
    plain: Flags
    steps: int
    between: StepsAndPauses

    def kept(self, is_known: Flags) -> Flags:
        """Return the best of the known steps: unprofiled ones, and of these the ones whose whole length is known."""
        for flags in (is_known & self.plain & self.between.is_boundary, is_known & self.plain):
            if flags.sum() >= _FEWEST_STEPS:
                return flags
        return is_known

    def total(self, metric: str, unit: str, scope: str, amounts: Floats) -> Measured:
        """Project amounts of the steps and pauses, (n + m,), NaN where not known."""
        values, pauses = amounts[: len(self.numbers)], self.between.fill_unknown(amounts[len(self.numbers) :])
        is_regular = self.kept(self.chosen & ~np.isnan(values))
        projection = project_sum(self.numbers[is_regular], values[is_regular], self.steps)
        more, half, measured = self.between.project(pauses, self.steps)
        value = projection.total + more
        low = max(value - math.hypot(projection.total - projection.low, half), projection.low + measured)
        high = value + math.hypot(projection.high - projection.total, half)
        return Measured(metric, scope, value, unit, low, high, projection.measured, "forecast", projection.method)

    def total_energy(self, energy: StepEnergy | None) -> Measured | None:
        """The energy of all steps, J, of an estimate with the CI of its model; None where too few could be read."""
        count = len(self.numbers)
        if energy is None or (self.chosen & ~np.isnan(energy.values[:count])).sum() < _FEWEST_STEPS:
            return None
        if count < len(energy.values) and np.isnan(energy.values[count:]).all():
            return None
        total = self.total(energy.metric, "J", energy.scope, energy.values)
        if energy.metric == "energy":
            return total
        value, share = total.value or 0.0, energy.uncertainty
        if share is None:
            return replace(total, low=None, high=None)
        below, above = (math.hypot(share * value, (end or 0.0) - value) for end in (total.low, total.high))
        return replace(total, low=max(value - below, 0.0), high=value + above)


def _no_energy(run: RunReader, energy: StepEnergy | None) -> str:
    """Say why there is no energy, and what to do."""
    gaps = list(power_model_gaps(run))
    if energy is not None:
        why = f"its sensor could be read through fewer than {_FEWEST_STEPS} of these steps, or in none of their pauses"
    elif gaps:
        why = "; ".join(gaps)
    elif _rails(run).lines:
        why = "what this run measured is not the power of the whole device"
    else:
        why = "no sensor of this run measured power"
    return f"no energy: {why}. {_DOCTOR}{'' if run.meta.get('power_model') else _MODEL}, and forecast from that run"


def _amount_from_energy(
    device: Measured | None, energy: Measured | None, metric: str, factor: float, unit: str, note: str
) -> Measured:
    """What follows from the energy of the device; a lower bound, from a part of it; null, not silence, without any."""
    energies = device or energy
    if energies is None:
        return Measured(metric, "run", None, unit, None, None, 0, "forecast", "not known: it needs the energy")
    value, low, high = (None if x is None else x * factor for x in (energies.value, energies.low, energies.high))
    if device is None:
        note, high = f"{note}; {AT_LEAST}: the energy is not that of the whole device", None
    name = energies.metric.replace("energy", metric)
    return Measured(name, energies.scope, value, unit, low, high, energies.n, "forecast", note)


def _temperature_forecast(run: RunReader, t0_ns: float, seconds: float) -> list[Measured]:
    """The hottest zone at the end of the training, which lasts `seconds` from `t0_ns` on."""
    zones = [series for series in series_of(run, "temperature") if len(series.values) >= _FEWEST_READINGS]
    if not zones:
        return []
    zone = max(zones, key=lambda series: float(series.values[-1]))
    apart = float(np.median(np.diff(zone.t_ns))) or 1.0
    end = (t0_ns + seconds * 1e9 - zone.t_ns[0]) / apart
    projection = project_level((zone.t_ns - zone.t_ns[0]) / apart, zone.values, end)
    bounds = projection.low, projection.high
    note = f"of the hottest zone at the end: {projection.method}"
    return [
        Measured("temperature", zone.scope, projection.total, "degC", *bounds, projection.measured, "forecast", note)
    ]


def _change_notes(changes: tuple[LevelChange, ...]) -> list[str]:
    return [
        f"the step time changed by {change.ratio - 1:+.0%} at step {change.step} (noticed at step {change.noticed})"
        for change in changes
    ]


# A single value may lie below what the sensor resolves (`Run.step_energy` leaves such out); sums of them do not.


@dataclass(frozen=True)
class StepEnergy:
    """J of each step (n,), NaN where a gap touches it; the scope that it is the energy of, and what to know of it.

    `note` is of an estimate alone, and so is `uncertainty`: half of its 95 % CI over its value, None where not known.
    """

    values: Floats
    scope: str
    note: str | None = None
    uncertainty: float | None = None

    @property
    def metric(self) -> str:
        """The name that it has in results: an estimate has one of its own."""
        return "estimated_energy" if self.note else "energy"


def step_energy(run: RunReader, steps: pl.DataFrame) -> StepEnergy | None:
    """The energy of these steps from the lines that make the board's total, else by the run's power model."""
    tree = _rails(run)
    lines = tree.total or tuple(line for line in tree.lines if line.component == "total")
    if lines:
        return StepEnergy(_sum_of_lines(lines, steps), tree.covers or lines[0].name)
    lines = tuple(line for line in tree.lines if line.estimated)
    if not lines:
        return None
    shares = [line.best.uncertainty for line in lines]
    share = None if None in shares else max(filter(None, shares))
    sure = "no CI: the model that was given states none" if share is None else f"the CI is its own, +-{percent(share)}"
    notes = dict.fromkeys(note for line in lines for note in line.best.notes)
    scope = f"{' and '.join(line.component for line in lines)}, estimated by the power model"
    note = "; ".join(("energy is estimated by the power model, not measured", sure, *notes))
    return StepEnergy(_sum_of_lines(lines, steps), scope, note, share)


def device_energies(run: RunReader, steps: pl.DataFrame, of: str) -> Iterator[StepEnergy]:
    """Energies of these steps from meters of the whole device, best first; of "battery", its own gauge goes first."""
    tree = _rails(run)
    batteries = [line for line in tree.lines if of == "battery" and line.scope.startswith("battery:")]
    chosen = next((lines for _, lines in tree.components() if lines[0].component == "device"), ())
    for lines in (batteries, chosen):
        if lines:
            entry = lines[0].entry
            yield StepEnergy(_sum_of_lines(lines, steps), entry.meaning if entry else lines[0].name)


def _sum_of_lines(lines: Sequence[MeasuredRail], steps: pl.DataFrame) -> Floats:
    t0_ns, t1_ns = (steps[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns"))
    joules: Floats = np.sum([line.best.growth.between(t0_ns, t1_ns) for line in lines], axis=0)
    return joules
