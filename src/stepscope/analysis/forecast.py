"""What the whole training will take, from a few measured steps: time, energy, battery, carbon and temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.analysis.change_points import Change, change_points
from stepscope.analysis.intervals import Floats, known
from stepscope.analysis.measured import Measured
from stepscope.analysis.projection import project
from stepscope.analysis.rails import rail_tree
from stepscope.analysis.steady import steady_steps
from stepscope.analysis.step_energy import StepEnergy, step_energy
from stepscope.analysis.windows import series_of
from stepscope.errors import UsageError
from stepscope.runfolder import RunReader

J_PER_WH, KWH_PER_J = 3600.0, 1 / 3_600_000
WATCHED, WATCH_EVERY = 20, 500  # steps measured of every so many: 4 % of the run holds the forecast to 0.3 %
_FEWEST = 10
_UNSEEN_TIME, _UNSEEN_ENERGY = 0.02, 0.05  # drift by heat and clocks that steps not yet run may bring
_UNSEEN_CELSIUS = 5.0
_ENABLE = (
    "`stepscope doctor` shows which sensor can be opened; `stepscope run` takes a plug or a meter (--plug, "
    "--meter-command, --meter-csv) or estimates (--power-model cpu=2W..15W), and the forecast of that run has energy"
)
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Chosen = Callable[[Floats], Mask]  # of the numbers of all steps, those that may be looked at


@dataclass(frozen=True)
class Forecast:
    """Totals over `steps` steps; `changes` are changes of the step time among those already made."""

    steps: int
    measured_steps: int
    totals: tuple[Measured, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = field(default=())

    def value(self, metric: str) -> Measured | None:
        """A total by its name: time, energy, battery, carbon, temperature."""
        return next((total for total in self.totals if total.metric == metric), None)


def all_steps(numbers: Floats) -> Mask:
    """Every step that was made counts."""
    return np.ones(len(numbers), dtype=bool)


def watched_steps(numbers: Floats) -> Mask:
    """20 steps of every 500, as `--watch` measures."""
    chosen: Mask = (numbers - numbers[0]) % WATCH_EVERY < WATCHED
    return chosen


def forecast(
    run: RunReader,
    steps: int,
    battery_j: float | None = None,
    carbon_g_per_j: float | None = None,
    chosen: Chosen = all_steps,
    upto: int | None = None,
) -> Forecast:
    """Extrapolate a run to `steps` training steps. Raises UsageError where too few steps were measured.

    Intervals are of 95 %; they hold what the measured steps show and an allowance for heat and clocks in the steps
    that nobody has seen yet. Energy is absent where no sensor measured it, and a note says what to do; battery and
    carbon, if asked for, are null then. `upto`: as if only so many steps after the warm-up had been made.
    """
    made = steady_steps(run).head(upto if upto is not None else run.steps.height)
    if len(made) < _FEWEST:
        raise UsageError(
            f"{len(made)} steps after the warm-up are too few to foretell {steps}",
            f"measure at least {_FEWEST + run.warmup_steps} steps",
        )
    numbers = (made["step"].to_numpy() - made["step"][0]).astype(np.float64)
    lengths = made["length_ns"].to_numpy() / 1e9
    kept = chosen(numbers) & _unrecorded(made["recorded"].to_numpy())
    changes = tuple(change_points(lengths))
    time = _total("time", "s", "training", numbers[kept], lengths[kept], steps, _UNSEEN_TIME)
    totals, notes = [time], _said(changes)
    joules = step_energy(run, made)
    energies: list[Measured] = []
    if joules is not None:
        energies = _energies(numbers, joules.values, joules.scope, chosen(numbers), steps, battery_j, carbon_g_per_j)
        notes += [joules.note] if joules.note else []
    if not energies:
        notes.append(f"no energy: {_why_no_energy(run, joules)}. {_ENABLE}")
        energies = [_unknown(*asked) for asked in (("battery", "1", battery_j), ("carbon", "g", carbon_g_per_j))
                    if asked[-1]]  # fmt: skip
    totals += energies
    warm = _temperature(run, float(made["t0_ns"][0]), (time.value or 0.0))
    return Forecast(steps, int(kept.sum()), (*totals, *warm), changes, tuple(notes))


def steps_of(run: RunReader, epochs: float) -> int:
    """Steps of so many epochs, from the size of the data and of a batch; UsageError where a size is not known."""
    workload = run.meta.get("workload", {})
    size, batch = (workload.get("data") or {}).get("train_size"), workload.get("batch_size")
    if not size or not batch:
        raise UsageError("how many steps an epoch of this run has is not known", "give --steps instead of --epochs")
    return max(1, round(epochs * (int(size) // int(batch))))


def _unrecorded(recorded: Mask) -> Mask:
    """Steps whose ops were recorded are slower than those of a training that nobody watches."""
    plain: Mask = ~recorded.astype(bool)
    return plain if plain.sum() >= _FEWEST else np.ones(len(recorded), dtype=bool)


def _total(metric: str, unit: str, scope: str, at: Floats, values: Floats, steps: int, unseen: float) -> Measured:
    seen = project(at, values, steps, unseen)
    return Measured(metric, scope, seen.total, unit, seen.low, seen.high, seen.measured, "forecast", seen.method)


def _energies(
    numbers: Floats,
    joules: Floats,
    scope: str,
    chosen: Mask,
    steps: int,
    battery_j: float | None,
    carbon_g_per_j: float | None,
) -> list[Measured]:
    kept = chosen & ~np.isnan(joules)
    if kept.sum() < _FEWEST:
        return []
    energy = _total("energy", "J", scope, numbers[kept], joules[kept], steps, _UNSEEN_ENERGY)
    derived = []
    if battery_j:
        derived.append(_scaled(energy, "battery", 1 / battery_j, "1", f"of {battery_j / 3600:g} Wh"))
    if carbon_g_per_j:
        derived.append(_scaled(energy, "carbon", carbon_g_per_j, "g", f"at {carbon_g_per_j * 3.6e6:g} g a kWh"))
    return [energy, *derived]


def _why_no_energy(run: RunReader, joules: StepEnergy | None) -> str:
    if joules is not None:
        return f"its sensor could be read through fewer than {_FEWEST} of these steps"
    if rail_tree(run).lines:
        return "what this run measured is not the power of the whole device"
    return "no sensor of this run measured power"


def _unknown(metric: str, unit: str, _: float | None) -> Measured:
    """What was asked for and follows from the energy, where there is none: not measured is not silence."""
    return Measured(metric, "run", None, unit, None, None, 0, "forecast", "not known: it needs the energy")


def _scaled(energy: Measured, metric: str, factor: float, unit: str, note: str) -> Measured:
    value, low, high = ((x or 0.0) * factor for x in (energy.value, energy.low, energy.high))
    return Measured(metric, energy.scope, value, unit, low, high, energy.n, "forecast", note)


def _temperature(run: RunReader, t0_ns: float, seconds: float) -> list[Measured]:
    """The hottest zone at the end: its approach to a settled level, as far as the samples show one."""
    zones = [series for series in series_of(run, "temperature") if len(series.values) >= 8]
    if not zones:
        return []
    zone = max(zones, key=lambda series: float(series.values[-1]))
    at = (zone.t_ns - t0_ns) / 1e9
    settled, spread = _approach(at, zone.values, seconds)
    beyond = max(0.0, 1 - float(at[-1]) / seconds) if seconds else 0.0
    half = 2 * spread + _UNSEEN_CELSIUS * beyond
    low, high = known(settled - half), known(settled + half)
    return [Measured("temperature", zone.scope, settled, "degC", low, high, len(at), "forecast", "of the hottest zone")]


def _approach(at: Floats, values: Floats, end: float) -> tuple[float, float]:
    """(value at the end, spread of the residuals) of the best a + b exp(-t / tau), b within what has been seen."""
    best = (float(values[-max(1, len(values) // 4) :].mean()), float(values.std()), float("inf"))
    span = float(at[-1] - at[0])
    for tau in np.geomspace(max(span / 10, 1e-3), max(span * 2, 1e-2), 12):
        design = np.stack([np.ones_like(at), np.exp(-(at - at[0]) / tau)], axis=1)
        (level, rise), *_ = np.linalg.lstsq(design, values, rcond=None)
        left = values - design @ np.array([level, rise])
        if left.std() < best[2] and abs(rise) <= 3 * max(float(np.ptp(values)), 1e-9):
            best = (float(level + rise * np.exp(-(end - at[0]) / tau)), float(left.std()), float(left.std()))
    return best[0], best[1]


def _said(changes: tuple[Change, ...]) -> list[str]:
    return [
        f"the step time changed by {change.ratio - 1:+.0%} at step {change.step} (noticed at step {change.noticed})"
        for change in changes
    ]
