"""Times of a step as it runs without us: the profiling overhead taken out op by op, the rest calibrated away.

1. An event costs the op that it stamps a little, and whatever called that op more: both were measured on the device in
   the run (`overhead.event` of run.json), and are taken from the self times of the op and of its caller.
2. What a profiled step then still takes longer than the unprofiled steps around it is divided between the events
   (which cost more among many than in the measurement) and everything alike (caches, clocks), by how far each is off
   what is likely.
3. Where steps were recorded in which layers alone were timed (`layers`), the time of a layer in forward and backward,
   and of the update, is what those say; profiled steps say how it is divided among operators.
4. Each profiled step is scaled to the headline, the step time that the report states: so phases, layers and operators
   sum to it, and agree with one another, since all of them are sums of the same cells. Steps of several kinds, which
   run other operators for much of their time, keep their lengths: all are scaled by one factor, and only by that.

A cell is an operator of a layer in a phase. Of a cell that ran equally often in every profiled step, a time far above
the others (the process was interrupted) counts as the median of the others. The run folder keeps what was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.estimate import mean_intervals, median_over_time
from stepscope.analysis.time.layers import WORKLOAD_DATA, LayerTimes, group_of_cells, layer_times
from stepscope.analysis.time.operators import CPU, PerStep, replace_outliers_by_median, sum_columns_per_step
from stepscope.analysis.time.steps import (
    FEW,
    are_steps_whole,
    layer_timed_steps,
    shown_steps,
    steps_after_warmup,
    timed_steps,
)
from stepscope.arrays import Flags, Floats

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_CELL = ("phase", "module", "name", "device")
_EVENT_DOUBT, _EVEN_DOUBT = 0.3, 0.05  # standard deviation of the events' cost, and of what slows everything, relative
_UNEVEN = 0.5  # of what slows everything may be elsewhere than it is taken to be (95 %); all, where no cost is known
_STARVED = 1.05  # times its CPU time: from here on, waits for a core are more than the odd interruption of a step
_HELD = 0.05  # of the time without a core: from here on, layers without a wait tell how much longer one makes them
_NEAR = 10  # unprofiled steps on either side of a profiled one tell how long it would have taken
_UNLIKE = 0.05  # of the operators' time: where what not every step runs as often differs by more, steps are unlike
_LEAST_OF_OTHERS = 0.5  # of what is in no layer stays at least, whatever the layers say
_BESIDE_LAYERS = 0.25  # of a time: where more of it lies outside of the layers, these say nothing of its spread
_NORMAL = 1.96


@dataclass(frozen=True)
class StepTimes:
    """Self times of a step as it runs unprofiled: `table` as `Run.self_times`, with `profiling_ns` taken out.

    framework_ns: framework overhead of each profiled step; step_ns: what a step's cells and that overhead sum to.
    """

    steps: pl.Series
    table: pl.DataFrame
    framework_ns: Floats
    framework_profiling_ns: Floats
    framework_recorded_ns: Floats
    framework_doubt_ns: Floats
    step_ns: float
    step_doubt: float = 0.0  # half width of the 95 % CI of the headline, relative
    event_doubt: float = 0.0  # half width of the 95 % CI of the events' cost, relative
    cost_share: float = 0.0  # of the events' cost in a step
    calibration_doubt: float = (
        0.0  # half width of the 95 % CI of a cell on account of what was calibrated away, relative
    )
    layers: LayerTimes | None = None  # that it was taken from

    @property
    def is_empty(self) -> bool:
        """Return whether no op of a profiled step is known."""
        return self.table.is_empty() or len(self.steps) == 0

    @property
    def outside_layers_ns(self) -> Floats | None:
        """Time of a step outside its layers, ns, in each step in which these alone were timed; None without such."""
        return None if self.layers is None else self.step_ns - self.layers.ns.sum(axis=1)

    def means_with_intervals(
        self, values: Floats, profiling: Floats, doubt: Floats, of_layers: Floats | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Mean of each column with its 95 % CI, ns: (k,) each; NaN for the CI of fewer than 6 steps.

        values, profiling, doubt: (steps, k), times, the recorder's cost in them, and what is not known of how they
        lengthen with the step. The CI holds the spread from step to step, that of the headline, and what is not known
        of the correction; it ends where a step does.
        of_layers: (steps in which layers alone were timed, k), the part of a column that these know. Where fewer than 6
        steps were profiled the spread is theirs, and of the rest of a column nothing is known.
        """
        mean, low, _ = mean_intervals(values)
        spread = mean - low
        if len(values) < FEW:
            spread = np.full(mean.shape, np.nan) if of_layers is None else _spread_of_layers(mean, of_layers)
        share = mean / max(self.step_ns, 1.0)
        parts = [
            spread,
            self.step_doubt * mean,
            self.event_doubt * (profiling.mean(axis=0) - self.cost_share * mean),
            self.calibration_doubt * mean * ((1 - share).clip(0) if self.cost_share else 1.0),
            doubt.mean(axis=0),
        ]
        half = np.sqrt(np.sum(np.square(parts), axis=0))
        most = np.maximum(mean, self.step_ns * (1 + self.step_doubt))  # kernels side by side may take more than a step
        return mean, np.maximum(mean - half, 0.0), np.minimum(mean + half, most)


def _spread_of_layers(mean: Floats, of_layers: Floats) -> Floats:
    """Half width of the 95 % CI of each mean; NaN where these steps are few, or know too little of it."""
    mean_of_layers, low, _ = mean_intervals(of_layers)
    beside = np.abs(mean - mean_of_layers)
    sure = (len(of_layers) >= FEW) & (beside <= _BESIDE_LAYERS * mean)
    half: Floats = np.where(sure, np.hypot(mean_of_layers - low, beside), np.nan)
    return half


def step_times(run: Run) -> StepTimes:
    """Corrected self times of the profiled steps; of parts of steps, without a headline, as they were recorded."""
    table, steps = run.self_times, shown_steps(run)
    number = steps["step"]
    if table.is_empty() or steps.is_empty():
        nothing = np.zeros(len(steps))
        return StepTimes(number, table, nothing, nothing, nothing, nothing, 0.0)
    on_cpu = table.filter(pl.col("device") == CPU)
    cells, count, profiling = sum_columns_per_step(on_cpu, number, _CELL, ("self_ns", "count", "profiling_ns"))
    lengths = steps["length_ns"].to_numpy().astype(np.float64)
    gap_ns = lengths - cells.values.sum(axis=1)
    gap_ns = np.where(gap_ns < 0, max(float(np.median(gap_ns)), 0.0), gap_ns)  # below 0 where threads overlap
    outside, below = sum_columns_per_step(on_cpu, number, ("device",), ("outside_ns", "below_ns"))
    framework_cost = np.maximum((outside.values - below.values).sum(axis=1), 0.0)
    regular = (count.values == count.values[0]).all(axis=0)
    unlike = _are_unlike(cells, regular)
    interrupted = gap_ns[:, None] if unlike else replace_outliers_by_median(gap_ns[:, None])
    raw = np.column_stack([replace_outliers_by_median(cells.values, regular), interrupted])
    cost = np.column_stack([profiling.values, framework_cost])
    headline = _StatedStepTime.of(run, steps, unlike)
    more, event_doubt, calibration_doubt = _divide_slowdown(raw.sum(axis=1), cost.sum(axis=1), headline.near_ns)
    bare = np.maximum(raw - (1 + more) * cost, 0.0)
    bare = _limit_loading_time(run, cells, _scale_to_step_time(bare, headline.step_ns, unlike))
    doubt = np.zeros_like(bare)
    layers = _layers_in_step(run, cells, headline)
    if layers is not None:
        bare, cost, doubt = _add_layer_times(bare, cost, count, layers, headline.step_ns)
        cells_cost = PerStep(cells.keys, cost[:, :-1])
        rows, columns = cells_cost.cells_of(on_cpu, number)
        on_cpu = on_cpu.with_columns(profiling_ns=pl.Series(cost[rows, columns]))
        framework_cost = cost[:, -1]
    uncleaned = np.column_stack([cells.values, gap_ns]) * (headline.step_ns / lengths.mean())
    rows, columns = cells.cells_of(on_cpu, number)
    cell_columns = {"self_ns": bare, "recorded_ns": uncleaned, "doubt_ns": doubt}
    corrected = on_cpu.with_columns(pl.Series(name, part[rows, columns]) for name, part in cell_columns.items())
    own = pl.col("self_ns").cast(pl.Float64)
    device = table.filter(pl.col("device") != CPU).with_columns(own, recorded_ns=own, doubt_ns=pl.lit(0.0))
    return StepTimes(
        number,
        pl.concat([corrected, device]),
        bare[:, -1],
        framework_cost,
        uncleaned[:, -1],
        doubt[:, -1],
        headline.step_ns,
        headline.doubt,
        event_doubt,
        float(cost.sum() / max(bare.sum(), 1.0)),
        calibration_doubt,
        layers,
    )


@dataclass(frozen=True)
class _StatedStepTime:
    """The step time that is stated, ns, the relative half width of its CI, and the unprofiled steps' near ours, ns."""

    step_ns: float
    doubt: float
    near_ns: float | None

    @classmethod
    def of(cls, run: Run, steps: pl.DataFrame, unlike: bool) -> _StatedStepTime:
        timed, which = timed_steps(run)
        if timed.is_empty() or not are_steps_whole(run):
            return cls(float(steps["length_ns"].to_numpy().mean()), 0.0, None)
        stated = median_over_time(timed["length_ns"].to_numpy().astype(np.float64))
        assert stated is not None
        median, low, high = stated.row
        doubt = 0.0 if low is None or high is None else max(high - median, median - low) / median
        return cls(median, doubt, _nearby_unprofiled_ns(run) if which == "unprofiled steps" and not unlike else None)


def _layers_in_step(run: Run, cells: PerStep, headline: _StatedStepTime) -> LayerTimes | None:
    """The times of layers in a step of the stated length; None where no step tells them."""
    layers = layer_times(run, cells) if headline.near_ns is not None else None
    if layers is None:
        return None
    most = max_loading_time(run)
    layers = layers if most is None else layers.with_loading_up_to(most)
    stretch = _core_wait_factor(run, layers, headline.step_ns)
    starved = stretch > _STARVED
    return (
        layers.scaled_to_starved_step(headline.step_ns, stretch) if starved else layers.scaled_to_step(headline.step_ns)
    )


def _are_unlike(cells: PerStep, regular: Flags) -> bool:
    """Return whether the steps are of several kinds; loading, which an epoch's end does twice, makes none."""
    sometimes = ~regular & (cells.keys["phase"] != "data").to_numpy()
    apart = cells.values[:, sometimes] - np.median(cells.values[:, sometimes], axis=0)
    return bool(np.abs(apart).sum() > _UNLIKE * cells.values.sum())


def _scale_to_step_time(bare: Floats, step_ns: float, unlike: bool) -> Floats:
    """Return times whose steps take this long, ns: each of them, or the mean of steps of several kinds."""
    whole = np.maximum(bare.sum(axis=1, keepdims=True), 1.0)
    scaled: Floats = bare * (step_ns / (whole.mean() if unlike else whole))
    return scaled


def _limit_loading_time(run: Run, cells: PerStep, bare: Floats) -> Floats:
    """Cells and what is in no cell with no more loading in a step than all data loaders took of the run.

    What they took is known of every step, where a few profiled ones may hold the first batches of epochs, or were made
    when less else ran: the rest of a step lengthens with background load, sleep does not.
    """
    loads = np.append((cells.keys["phase"] == "data").to_numpy(), False)
    loading, most = bare[:, loads].sum(axis=1).mean(), max_loading_time(run)
    if most is None or loading <= most or WORKLOAD_DATA in cells.keys["name"]:
        return bare
    limited = np.where(loads, bare * most / loading, bare)
    freed, others = (bare - np.where(loads, limited, 0.0)).sum(axis=1), limited[:, ~loads].sum(axis=1)
    limited[:, ~loads] *= (freed / np.maximum(others, 1.0))[:, None]
    return limited


def max_loading_time(run: Run) -> float | None:
    """Time that all data loaders took, ns a step of the run; None where that is not known, or none gave a batch."""
    loading_ns = (run.meta.get("recorder") or {}).get("loading_ns")
    return loading_ns / (run.steps["step"][-1] + 1) if loading_ns else None


def _add_layer_times(
    bare: Floats, cost: Floats, count: PerStep, layers: LayerTimes, step_ns: float
) -> tuple[Floats, Floats, Floats]:
    """Cells and what is in no cell, (steps, cells + 1), with the times of layers; the recorder's cost in them; doubt.

    A group of cells takes the time of its layer, and its cells their shares of it as they were; all others, with the
    rest, share what is left of the step. `count`: how often each cell ran in each step.
    """
    group = np.append(group_of_cells(count, layers), -1)
    others = bare[:, group < 0].sum(axis=1)
    room = np.maximum(step_ns - _LEAST_OF_OTHERS * others, 0.0)
    layer_ns, lacking = layers.for_steps(len(bare), room)
    layer_ns *= np.minimum(1.0, room / layer_ns.sum(axis=1))[:, None]
    bare, cost = bare.copy(), cost.copy()
    remaining = step_ns - layer_ns.sum(axis=1)
    bare[:, group < 0] *= (remaining / np.maximum(others, 1.0))[:, None]
    doubt = np.zeros_like(bare)
    doubt[:, group < 0] = layers.doubt_ns[-1] * bare[:, group < 0] / np.maximum(remaining, 1.0)[:, None]
    for number in range(len(layers.keys)):
        mine = np.flatnonzero(group == number)
        whole = bare[:, mine].sum(axis=1, keepdims=True)
        ran = count.values[:, mine] > 0
        share = np.where(
            whole > 0, bare[:, mine] / np.maximum(whole, 1e-9), ran / np.maximum(ran.sum(axis=1), 1)[:, None]
        )
        bare[:, mine] = share * layer_ns[:, [number]]
        doubt[:, mine] = share * np.hypot(layers.doubt_ns[number], lacking[number])
        # So the doubt about the cost of events is that of these steps for a layer, of profiled ones for an operator.
        spare = cost[:, mine].sum(axis=1, keepdims=True) - layers.cost_ns[:, number].mean()
        cost[:, mine] -= share * spare
    return bare, cost, doubt


def _core_wait_factor(run: Run, layers: LayerTimes, step_ns: float) -> float:
    """How many times what it takes undisturbed everything takes in a step of this length, as it waits for a core.

    At least what the training thread's CPU time says, and what the layers do where they did not wait: threads that wait
    for one another spin, which is CPU time as well, and a layer may have waited in every step. 1 where nothing tells.
    """
    from stepscope.analysis.device.occupancy import occupancy

    usage = occupancy(run)
    runs, starved = usage.runs, usage.starved
    if runs is None or not runs.value or starved is None:
        return 1.0
    mean_ns = float(steps_after_warmup(run)["length_ns"].to_numpy().mean())
    asleep = max(1 - runs.value - starved.value, 0.0)
    by_cpu_time = 1 + max(step_ns - (runs.value + asleep) * mean_ns, 0.0) / (runs.value * mean_ns)
    return max(by_cpu_time, layers.least_stretch(step_ns) if starved.value > _HELD else 1.0)


def _nearby_unprofiled_ns(run: Run) -> float | None:
    """Median of the unprofiled steps around the profiled ones, without the first after each, on cold caches."""
    every = steps_after_warmup(run)
    timed = every["step"].is_in(layer_timed_steps(run).to_list())
    recorded = (every["recorded"] | timed).to_numpy()
    after = np.append(False, recorded[:-1])
    bare, profiled = np.flatnonzero(~recorded & ~after), np.flatnonzero(recorded)
    if not len(bare) or not len(profiled):
        return None
    later = np.searchsorted(profiled, bare)
    ahead = profiled[np.minimum(later, len(profiled) - 1)] - bare
    behind = bare - profiled[np.maximum(later - 1, 0)]
    near = bare[np.minimum(np.abs(ahead), np.abs(behind)) <= _NEAR]
    lengths = every["length_ns"].to_numpy()[near]
    return float(np.median(lengths)) if len(lengths) >= FEW else None


def _divide_slowdown(profiled_ns: Floats, cost_ns: Floats, bare_ns: float | None) -> tuple[float, float, float]:
    """(How much more than measured the events cost, relative; 95 % half width of that; the same of what is left).

    What a profiled step takes beyond the unprofiled one and the measured cost is more * cost + even * bare: the most
    likely two, given how far each may be off.
    """
    cost, whole = float(cost_ns.mean()), float(np.median(profiled_ns))
    if bare_ns is None or bare_ns <= 0:
        return 0.0, _NORMAL * _EVENT_DOUBT, 0.0
    excess = whole - cost - bare_ns
    by_events, by_all = (cost * _EVENT_DOUBT) ** 2, (bare_ns * _EVEN_DOUBT) ** 2
    more = excess / cost * by_events / (by_events + by_all) if cost else 0.0
    more = float(np.clip(more, -1.0, 2.0))
    even = (excess - more * cost) / bare_ns
    doubt = _EVENT_DOUBT * np.sqrt(by_all / (by_events + by_all))
    return more, float(_NORMAL * doubt), float((_UNEVEN if cost else 1.0) * abs(even))
