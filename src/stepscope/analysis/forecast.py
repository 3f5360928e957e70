"""Forecast of a whole training from a few measured steps: time, energy, battery, carbon and temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.channels import series_of
from stepscope.analysis.energy.rails import rail_tree
from stepscope.analysis.estimate import CONFIDENCE, Change, change_points, null_if_nan
from stepscope.analysis.metrics import Measured
from stepscope.analysis.time.steps import steps_after_warmup
from stepscope.arrays import Flags, Floats
from stepscope.errors import UsageError
from stepscope.runfolder import RunReader

J_PER_WH, KWH_PER_J = 3600.0, 1 / 3_600_000
WATCHED, WATCH_EVERY = 20, 500  # steps measured of every so many: 4 % of the run holds the forecast to 0.3 %
_FEWEST_STEPS = 10
_UNSEEN_TIME, _UNSEEN_ENERGY = 0.02, 0.05  # drift by heat and clocks that steps not yet run may bring
_UNSEEN_CELSIUS = 5.0
_ENABLE = (
    "`stepscope doctor` shows which sensor can be opened; `stepscope run` takes a plug or a meter (--plug, "
    "--meter-command, --meter-csv) or estimates (--power-model cpu=2W..15W), and the forecast of that run has energy"
)
StepFilter = Callable[[Floats], Flags]  # of the numbers of all steps, those that may be looked at


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


def all_steps(numbers: Floats) -> Flags:
    """Every step that was made counts."""
    return np.ones(len(numbers), dtype=bool)


def watched_steps(numbers: Floats) -> Flags:
    """20 steps of every 500, as `--watch` measures."""
    chosen: Flags = (numbers - numbers[0]) % WATCH_EVERY < WATCHED
    return chosen


def forecast(
    run: RunReader,
    steps: int,
    battery_j: float | None = None,
    carbon_g_per_j: float | None = None,
    chosen: StepFilter = all_steps,
    upto: int | None = None,
) -> Forecast:
    """Extrapolate a run to `steps` training steps. Raises UsageError where too few steps were measured.

    Intervals are of 95 %; they hold what the measured steps show and an allowance for heat and clocks in the steps
    that nobody has seen yet. Energy is absent where no sensor measured it, and a note says what to do; battery and
    carbon, if asked for, are null then. `upto`: as if only so many steps after the warm-up had been made.
    """
    made = steps_after_warmup(run).head(upto if upto is not None else run.steps.height)
    if len(made) < _FEWEST_STEPS:
        raise UsageError(
            f"{len(made)} steps after the warm-up are too few to forecast {steps}",
            f"measure at least {_FEWEST_STEPS + run.warmup_steps} steps",
        )
    numbers = (made["step"].to_numpy() - made["step"][0]).astype(np.float64)
    lengths = made["length_ns"].to_numpy() / 1e9
    kept = chosen(numbers) & _unprofiled(made["recorded"].to_numpy())
    changes = tuple(change_points(lengths))
    time = _total("time", "s", "training", numbers[kept], lengths[kept], steps, _UNSEEN_TIME)
    totals, notes = [time], _change_notes(changes)
    joules = step_energy(run, made)
    energies: list[Measured] = []
    if joules is not None:
        energies = _energies(numbers, joules.values, joules.scope, chosen(numbers), steps, battery_j, carbon_g_per_j)
        notes += [joules.note] if joules.note else []
    if not energies:
        notes.append(f"no energy: {_why_no_energy(run, joules)}. {_ENABLE}")
        energies = [_energy_missing(*asked) for asked in (("battery", "1", battery_j), ("carbon", "g", carbon_g_per_j))
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


def _unprofiled(recorded: Flags) -> Flags:
    """Profiled steps are slower than those of a training that nobody watches."""
    plain: Flags = ~recorded.astype(bool)
    return plain if plain.sum() >= _FEWEST_STEPS else np.ones(len(recorded), dtype=bool)


def _total(metric: str, unit: str, scope: str, at: Floats, values: Floats, steps: int, unseen: float) -> Measured:
    seen = project(at, values, steps, unseen)
    return Measured(metric, scope, seen.total, unit, seen.low, seen.high, seen.measured, "forecast", seen.method)


def _energies(
    numbers: Floats,
    joules: Floats,
    scope: str,
    chosen: Flags,
    steps: int,
    battery_j: float | None,
    carbon_g_per_j: float | None,
) -> list[Measured]:
    kept = chosen & ~np.isnan(joules)
    if kept.sum() < _FEWEST_STEPS:
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
        return f"its sensor could be read through fewer than {_FEWEST_STEPS} of these steps"
    if rail_tree(run).lines:
        return "what this run measured is not the power of the whole device"
    return "no sensor of this run measured power"


def _energy_missing(metric: str, unit: str, _: float | None) -> Measured:
    """Yield what was requested and follows from the energy, where there is none: not measured is not silence."""
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
    low, high = null_if_nan(settled - half), null_if_nan(settled + half)
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


def _change_notes(changes: tuple[Change, ...]) -> list[str]:
    return [
        f"the step time changed by {change.ratio - 1:+.0%} at step {change.step} (noticed at step {change.noticed})"
        for change in changes
    ]


BLOCK_STEPS = 20  # steps whose mean is one observation
_TAUS = np.geomspace(50, 20_000, 24)  # steps: time constants of warming up that are tried
_Z = float(special.ndtri((1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class Projection:
    """The sum over `steps` steps, its 95 % CI, and how it was reached."""

    steps: int
    measured: int
    total: float
    low: float
    high: float
    method: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class _Blocks:
    centre: Floats  # step numbers
    mean: Floats
    error: Floats  # standard errors of the means
    count: Floats


def project(at: Floats, values: Floats, steps: int, unseen: float) -> Projection:
    """Sum over steps 0 .. steps - 1 from the values measured at the steps `at` (n,), in order; without NaN.

    Between measured blocks the level is interpolated, after the last it stays (or goes on warming up, where that is
    what the blocks show). `unseen` is the drift that may come where nobody measured, as a share of the level: it
    widens the interval in proportion to the steps that lie after the last measured one.
    """
    blocks = _blocks(at, values)
    measured = float(values.sum())
    changes = tuple(change_points(values)) if len(values) >= 2 * BLOCK_STEPS else ()
    curve, method = _level(blocks, at, steps, changes)
    rest = np.ones(steps, dtype=bool)
    rest[at[at < steps].astype(int)] = False
    total = float(values[at < steps].sum() + curve[rest].sum())
    half = _Z * np.sqrt(_variance(blocks, steps, int(rest.sum()))) + _unseen_share(at, steps, unseen) * abs(total)
    return Projection(steps, len(values), total, max(total - half, min(measured, total)), total + half, method, changes)


def _blocks(at: Floats, values: Floats) -> _Blocks:
    """Means of up to BLOCK neighbouring steps; a hole in the numbers ends a block."""
    cuts = np.flatnonzero(np.diff(at) > BLOCK_STEPS) + 1
    parts = [
        piece
        for run in np.split(np.arange(len(at)), cuts)
        for piece in np.array_split(run, max(1, len(run) // BLOCK_STEPS))
        if len(piece)
    ]
    spread = float(np.median([values[p].std(ddof=1) for p in parts if len(p) > 1] or [0.0]))
    return _Blocks(
        np.array([at[p].mean() for p in parts]),
        np.array([values[p].mean() for p in parts]),
        np.array([max(_standard_error(values[p]), spread / np.sqrt(len(p))) for p in parts]),
        np.array([float(len(p)) for p in parts]),
    )


def _standard_error(values: Floats) -> float:
    """Standard error of a mean of steps that resemble their neighbours."""
    if len(values) < 3:
        return 0.0
    away = values - values.mean()
    power = float((away**2).sum())
    likeness = float((away[1:] * away[:-1]).sum() / power) if power else 0.0
    inflated = (1 + max(likeness, 0.0)) / (1 - min(max(likeness, 0.0), 0.9))
    return float(np.sqrt(power / (len(values) - 1) / len(values) * inflated))


def _level(blocks: _Blocks, at: Floats, steps: int, changes: tuple[Change, ...]) -> tuple[Floats, str]:
    """The expected value at every step, and in words how."""
    grid = np.arange(steps, dtype=np.float64)
    last_change = float(at[min(changes[-1].step, len(at) - 1)]) if changes else -1.0
    recent = blocks.centre >= last_change
    if not recent.any():
        recent = blocks.centre >= blocks.centre[-1]
    curve = np.interp(grid, blocks.centre, blocks.mean)
    beyond = grid > blocks.centre[-1]
    warming = _warming(blocks) if not changes else None
    if warming is not None:
        settled, rise, tau = warming
        curve[beyond] = settled + rise * np.exp(-grid[beyond] / tau)
        return curve, "level of the measured blocks, warming up as they show"
    spread_out = bool((np.diff(blocks.centre) > 2 * BLOCK_STEPS).any())
    near = recent & (blocks.centre >= blocks.centre[-1] - (steps - blocks.centre[-1])) if spread_out else recent
    weights = blocks.count[near]
    curve[beyond] = float((blocks.mean[near] * weights).sum() / weights.sum())
    return curve, "level of the measured blocks" + (" after the last change" if changes else "")


def _warming(blocks: _Blocks) -> tuple[float, float, float] | None:
    """(settled level, rise, time constant in steps) where an exponential explains the blocks far better."""
    if len(blocks.mean) < 5:
        return None
    weights = 1 / np.maximum(blocks.error, 1e-12)
    flat = np.average(blocks.mean, weights=weights**2)
    best = float((((blocks.mean - flat) * weights) ** 2).sum()) - 12.0  # two parameters more must earn their keep
    found = None
    for tau in _TAUS[2 * (blocks.centre[-1] - blocks.centre[0]) + 50 > _TAUS]:
        design = np.stack([np.ones_like(blocks.centre), np.exp(-blocks.centre / tau)], axis=1)
        solved = np.linalg.lstsq(design * weights[:, None], blocks.mean * weights, rcond=None)[0]
        left = float((((blocks.mean - design @ solved) * weights) ** 2).sum())
        if left < best and abs(solved[1]) < abs(solved[0]):
            best, found = left, (float(solved[0]), float(solved[1]), float(tau))
    return found


def _variance(blocks: _Blocks, steps: int, unmeasured: int) -> float:
    """Of the sum over the unmeasured steps: errors of the block means, and wandering between and after them."""
    shares = blocks.count / blocks.count.sum()
    sampling = unmeasured**2 * float(((shares * blocks.error) ** 2).sum())
    apart = np.diff(blocks.centre)
    wander = 0.0
    if len(apart):
        excess = np.diff(blocks.mean) ** 2 - blocks.error[1:] ** 2 - blocks.error[:-1] ** 2
        wander = max(0.0, float((excess / apart).mean()))
    after = max(0.0, steps - float(blocks.centre[-1]))
    return sampling + wander * (float((apart**3).sum()) / 12 + after**3 / 3)


def _unseen_share(at: Floats, steps: int, unseen: float) -> float:
    """The share of the total that unseen drift may move."""
    return unseen * max(0.0, steps - 1 - float(at[-1])) / max(steps, 1)


# A single value may lie below what the sensor resolves (`Run.step_energy` leaves such out); sums of them do not.


@dataclass(frozen=True)
class StepEnergy:
    """J of each step (n,), NaN where a gap touches it; the scope that it is the energy of, and what to know of it."""

    values: Floats
    scope: str
    note: str | None = None


def step_energy(run: RunReader, steps: pl.DataFrame) -> StepEnergy | None:
    """The energy of these steps from the lines that make the board's total; None where nothing makes one."""
    tree = rail_tree(run)
    lines = tree.total or tuple(line for line in tree.lines if line.component == "total")
    if not lines:
        return None
    t0_ns, t1_ns = (steps[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns"))
    joules = np.sum([line.best.growth.between(t0_ns, t1_ns) for line in lines], axis=0)
    estimated = "estimated by the power model, not measured" if any(line.estimated for line in lines) else None
    return StepEnergy(joules, tree.covers or lines[0].name, estimated)
