"""Times of layers from steps in which nothing else was profiled: nearly as long as any other step.

Of a layer such a step has the time in forward and in backward, of the optimizer its update, of data loaders what they
take; operators it does not know.
`correction` takes the time of a layer from here, and from profiled steps how it is divided among its operators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.estimate import mean_intervals
from stepscope.analysis.time.operators import ENGINE_NS, OUTSIDE, PerStep, per_step, replace_outliers_by_median
from stepscope.analysis.time.steps import layer_timed_steps, steps_after_warmup
from stepscope.arrays import Flags, Floats, Ints
from stepscope.runfolder import AUTOGRAD_NODE, DATA_LOADER, MODULE_CALL, RunReader

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

GROUP = ("phase", "module")
UPDATE = "optimizer"  # this phase is one group: its operators belong to layers, its range to none
_DATA = "data"  # what data loaders do in no layer is one group, too; an epoch's end takes more of it, in some steps
_PHASES = (_DATA, "forward", "backward", UPDATE)
_UPDATE = "Optimizer.step#"
_RANGES = (_UPDATE, DATA_LOADER)
WORKLOAD_DATA = "#stepscope.data"  # the range in which a workload of ours takes its batch: nothing else times that
_RESET = ("Optimizer.zero_grad", "aten::zero_", "aten::_foreach_zero_", "aten::fill_")  # in its phase, but not of it
_FEWEST = 4
_ELASTIC = 0.5  # standard deviation of how far a layer lengthens with the step, where 1 is as much as the step does
_LOOSE = 0.5  # the same of the update and of what is in no layer, in parts of what the step lengthens: they vary most
_LEAST_SPREAD = 0.002  # of a layer's time from step to step, relative: a handful of steps may agree by chance
_WAITED = 0.25  # so much longer than in its shortest step, relative: the layer waited for a core meanwhile
_STRETCH_DOUBT = 0.025  # standard deviation of how much longer waits make a layer, relative
_NORMAL = 1.96


@dataclass(frozen=True)
class LayerTimes:
    """Time of each layer in forward and backward, of the update and of loading, (steps, groups), ns; `keys` as GROUP.

    cost_ns: of the looks at the clock and of the events, which was taken off; length_ns: of each of these steps.
    doubt_ns: half width of the 95 % CI of each group, and of all else, on account of the step's length (groups + 1).
    """

    keys: pl.DataFrame
    ns: Floats
    cost_ns: Floats
    length_ns: Floats
    doubt_ns: Floats

    def scaled_to_step(self, step_ns: float) -> LayerTimes:
        """Return the same for a step that takes `step_ns`, where these took longer, or less, than their looks cost.

        A layer lengthens with the step by as much as its times in these steps tell; one that they tell nothing of does
        so as the step does. Of the update, of data loaders and of what is in no layer that is not taken to be likely:
        framework overhead lengthens further than its part of the step. What all of it leaves over or lacks is divided
        by how little is known of each.
        """
        lengths = np.maximum(self.length_ns - self.cost_ns.sum(axis=1), 1.0)
        outside = np.maximum(lengths - self.ns.sum(axis=1), 0.0)
        values = replace_outliers_by_median(np.column_stack([self.ns, outside]))
        lengths = values.sum(axis=1)
        mean, beyond = values.mean(axis=0), lengths - lengths.mean()
        even = mean / lengths.mean()  # growth of each with the step's, where all grow alike
        squares = float((beyond**2).sum())
        slope = beyond @ (values - mean) / squares if squares else even
        residual = values - mean - beyond[:, None] * slope
        free = max(len(values) - 2, 1)
        noise = np.maximum((residual**2).sum(axis=0) / free, (_LEAST_SPREAD * mean) ** 2)
        noise *= (special.stdtrit(free, 0.975) / _NORMAL) ** 2  # of few steps it is itself hardly known
        loose = np.append(self.keys["phase"].is_in([UPDATE, _DATA]).to_numpy(), True)
        before = (_ELASTIC * even) ** 2 + np.where(loose, _LOOSE**2, 0.0)
        noise_ratio = noise / squares if squares else np.full(len(mean), np.inf)
        weight = before / np.maximum(before + noise_ratio, 1e-30)
        slope = weight * slope + (1 - weight) * even
        variance = (lengths.mean() - step_ns) ** 2 * before * (1 - weight)
        scaled = values - (lengths - step_ns)[:, None] * slope
        lacking = step_ns - scaled.mean(axis=0).sum()
        if variance.sum() > 0:
            scaled += lacking * variance / variance.sum()
            variance = variance * (1 - variance / variance.sum())
        doubt: Floats = _NORMAL * np.sqrt(variance)
        return replace(self, ns=np.maximum(scaled[:, :-1], 1.0), doubt_ns=doubt)

    def scaled_to_starved_step(self, step_ns: float, stretch: float) -> LayerTimes:
        """Return the same for a step that waits for a core: each layer takes `stretch` times its CPU time.

        In these few steps the waits fall on this layer or that one, on a short one hardly ever. So a layer counts with
        its times without a wait, stretched; one that waited in most steps has none such, and what the step lacks or
        has too much is laid on those. Loading mostly sleeps, which no load lengthens: it counts as it was in them.
        """
        loads, smooth, values = self._without_waits()
        count = smooth.sum(axis=0)
        own = np.where(smooth, values, 0.0).sum(axis=0) / count
        values = np.where(smooth, values, own)
        stretched = np.where(loads, 1.0, stretch)
        scaled = own * stretched
        variance = (_STRETCH_DOUBT * scaled) ** 2 + stretched**2 * values.var(axis=0) / count
        variance = np.where(count > len(values) / 2, variance, variance + ((scaled - own) / 2) ** 2)
        scaled += (step_ns - scaled.sum()) * variance / variance.sum()
        scaled = np.maximum(scaled, own)
        scaled *= step_ns / scaled.sum()
        doubt: Floats = _NORMAL * np.sqrt(variance * (1 - variance / variance.sum()) + (_STRETCH_DOUBT * scaled) ** 2)
        values *= scaled / own
        return replace(self, ns=np.maximum(values[:, :-1], 1.0), doubt_ns=doubt)

    def with_loading_up_to(self, most_ns: float) -> LayerTimes:
        """Return the same where loading took no more than so much in the mean: one of few steps begins an epoch."""
        loads = (self.keys["phase"] == _DATA).to_numpy()
        loading = float(self.ns[:, loads].sum(axis=1).mean())
        if loading <= most_ns:
            return self
        return replace(self, ns=np.where(loads, self.ns * most_ns / loading, self.ns))

    def least_stretch(self, step_ns: float) -> float:
        """Return how many times longer than without a wait all but loading is in a step that takes `step_ns`."""
        loads, smooth, values = self._without_waits()
        own = np.where(smooth, values, 0.0).sum(axis=0) / smooth.sum(axis=0)
        return float((step_ns - own[loads].sum()) / own[~loads].sum())

    def _without_waits(self) -> tuple[Flags, Flags, Floats]:
        """Which of the groups and all else load (k + 1,), in which steps each did not wait (n, k + 1), and its times.

        Loading counts as if it never did.
        """
        lengths = np.maximum(self.length_ns - self.cost_ns.sum(axis=1), 1.0)
        outside = np.maximum(lengths - self.ns.sum(axis=1), 0.0)
        values = np.maximum(np.column_stack([self.ns, outside]), 1.0)
        loads = np.append((self.keys["phase"] == _DATA).to_numpy(), False)
        return loads, loads | (values <= (1 + _WAITED) * values.min(axis=0)), values

    def for_steps(self, count: int, room_ns: Floats) -> tuple[Floats, Floats]:
        """Return times for so many profiled steps, (count, groups): each has the mean of its part of these steps.

        So the mean over all of them is the same, and their spread tells how well it is known: of fewer steps than were
        profiled it is widened to what Student says of these, as far as times stay above 0 and their sum within the room
        of a step, (count,). Half of the 95 % CI that lacks then, (groups,), is the second.
        """
        parts = np.array([self.ns[place::count].mean(axis=0) for place in range(min(count, len(self.ns)))])
        if len(parts) == count:
            return np.maximum(parts, 1.0), np.zeros(parts.shape[1])
        mean = np.maximum(parts.mean(axis=0), 1.0)
        away = parts[np.arange(count) % len(parts)]
        away = away - away.mean(axis=0)
        halves, there = (mean_intervals(part)[2] - part.mean(axis=0) for part in (parts, away))
        factor = np.minimum(halves / np.maximum(there, 1e-9), (mean - 1) / np.maximum(-away.min(axis=0), 1e-9))
        spare = np.maximum(room_ns - mean.sum(), 1e-9)
        factor /= max(1.0, float(((factor * away).sum(axis=1) / spare).max()))
        return mean + factor * away, np.sqrt(np.maximum(halves**2 - (factor * there) ** 2, 0.0))


def layer_times(run: Run, cells: PerStep) -> LayerTimes | None:
    """Return them for the layers that `cells` of profiled steps have with as many calls and nodes; None without any."""
    rows = _rows_after_warmup(run)
    if rows.is_empty():
        return None
    cost = (run.meta.get("overhead") or {}).get("layer") or {}
    event = (run.meta.get("overhead") or {}).get("event") or {}
    inside, outside = (float(cost.get(f"call_{where}_ns") or 0.0) for where in ("inside", "outside"))
    node = cost.get("node_ns")
    node_ns = float(event.get("op_inside_ns", 0.0) + event.get("op_outside_ns", 0.0) if node is None else node)
    is_call = pl.col("name").str.starts_with(MODULE_CALL)
    is_node = pl.col("name").str.starts_with(AUTOGRAD_NODE)
    rows = rows.with_columns(
        row=pl.int_range(pl.len(), dtype=pl.Int32).over("step"),
        own=pl.when(is_call).then(inside).when(is_node).then(node_ns).otherwise(0.0),
    )
    below = rows.filter(is_call, pl.col("parent").is_not_null()).group_by("step", "parent").agg(pl.len() * outside)
    rows = rows.join(below, left_on=["step", "row"], right_on=["step", "parent"], how="left")
    rows = rows.with_columns(
        cost=pl.col("own") + pl.col("len").fill_null(0.0), kind=is_call.cast(pl.Int8) + 2 * is_node
    )
    grouped = (
        rows.filter((pl.col("kind") > 0) | pl.any_horizontal(pl.col("name").str.starts_with(x) for x in _RANGES))
        .group_by("step", *GROUP)
        .agg(
            pl.col("self_ns").sum().cast(pl.Float64),
            pl.col("cost").sum(),
            count=pl.len().cast(pl.Int64),
        )
    )
    if _has_closures(rows):
        grouped = grouped.filter(pl.col("phase") != UPDATE)
    steps = rows["step"].unique(maintain_order=True)
    return _groups_with_equal_counts(grouped, steps, _lengths(run, steps), cells, run)


def _has_closures(rows: pl.DataFrame) -> bool:
    """Return whether passes run within an update, whose self time then holds the loss and Python between them."""
    updates = rows.filter(pl.col("name").str.starts_with(_UPDATE)).select("step", "row")
    return not rows.join(updates, left_on=["step", "parent"], right_on=["step", "row"], how="semi").is_empty()


def _rows_after_warmup(run: RunReader) -> pl.DataFrame:
    """Rows of the steps after the warm-up, without the first of each block, whose time between nodes is the node's."""
    timed = set(layer_timed_steps(run).to_list())
    numbers = [step for step in steps_after_warmup(run)["step"].to_list() if step in timed and step - 1 in timed]
    rows = run.layer_calls.filter(pl.col("step").is_in(numbers))
    if len(numbers) < _FEWEST:
        return rows.clear()
    return rows.with_columns(
        pl.col("step").cast(pl.Int64),
        pl.col("name", "phase").cast(pl.String),
        pl.col("module").cast(pl.String).fill_null(OUTSIDE),
        self_ns=pl.col("self_ns") + ENGINE_NS,
    )


def _lengths(run: RunReader, steps: pl.Series) -> Floats:
    rows = steps_after_warmup(run).filter(pl.col("step").is_in(steps.to_list())).sort("step")
    lengths: Floats = rows["length_ns"].to_numpy().astype(np.float64)
    return lengths


def _groups_with_equal_counts(
    grouped: pl.DataFrame, steps: pl.Series, lengths: Floats, cells: PerStep, run: Run
) -> LayerTimes | None:
    """The groups with as many calls of modules, backward nodes and updates in each step as in each profiled step.

    Of data loaders that is not asked: a step in which an epoch ends asks twice.
    """
    self_ns, cost, count = (per_step(grouped, steps, GROUP, name) for name in ("self_ns", "cost", "count"))
    starts = (pl.col("name").str.starts_with(name) for name in (MODULE_CALL, AUTOGRAD_NODE, *_RANGES))
    events = run.self_times.filter(pl.any_horizontal(*starts))
    profiled = per_step(events, run.self_times["step"].unique().sort(), GROUP, "count")
    place = profiled.column_of()
    in_cells = {
        (phase, OUTSIDE if phase == UPDATE else module) for phase, module in cells.keys.select(GROUP).iter_rows()
    }
    apart = {(_DATA, OUTSIDE)} if WORKLOAD_DATA in cells.keys["name"] else set()
    columns = []
    for column, key in enumerate(self_ns.keys.iter_rows()):
        other = profiled.values[:, place[key]] if key in place else np.zeros(len(profiled.values))
        mine = count.values[:, column]
        same = (other > 0).all() if key == (_DATA, OUTSIDE) else (mine == mine[0]).all() and (other == mine[0]).all()
        if key in in_cells and same and key[0] in _PHASES and key not in apart:
            columns.append(column)
    if not columns:
        return None
    ns = np.maximum(self_ns.values - cost.values, 1.0)[:, columns]
    return LayerTimes(self_ns.keys[columns], ns, cost.values[:, columns], lengths, np.zeros(len(columns) + 1))


def group_of_cells(cells: PerStep, layers: LayerTimes) -> Ints:
    """Place of the group in `layers` that each cell belongs to, -1 for none, (cells,)."""
    place = {key: number for number, key in enumerate(layers.keys.iter_rows())}
    groups = [
        -1
        if phase == UPDATE and name.startswith(_RESET)
        else place.get((phase, OUTSIDE if phase == UPDATE else module), -1)
        for phase, module, name in cells.keys.select(*GROUP, "name").iter_rows()
    ]
    return np.array(groups, dtype=np.int64)


_KEYS = ("phase", "module", "name")


def with_sources(ops: pl.DataFrame, sources: pl.DataFrame) -> pl.DataFrame:
    """Op calls in order of step and row with the column `source`: "model.py:12", null where it is not known."""
    if sources.is_empty() or ops.is_empty():
        return ops.with_columns(source=pl.lit(None, pl.String))
    texts = [pl.col(key).cast(pl.String).alias(f"_{key}") for key in _KEYS]
    keyed = ops.with_columns(*texts, _turn=pl.int_range(pl.len()).over("step", *_KEYS))
    renamed = {key: f"_{key}" for key in (*_KEYS, "turn")}
    always = sources.filter(pl.col("turn").is_null()).rename(renamed).select(*(f"_{key}" for key in _KEYS), "source")
    by_turn = sources.filter(pl.col("turn").is_not_null()).rename({**renamed, "source": "_source"})
    on = [f"_{key}" for key in _KEYS]
    joined = keyed.join(always, on=on, how="left", nulls_equal=True, maintain_order="left")
    joined = joined.join(by_turn, on=[*on, "_turn"], how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.coalesce("source", "_source").alias("source")).select(*ops.columns, "source")


def sources_of_modules(run: RunReader) -> dict[str, str]:
    """Return where each module is first called: "model.py:12", or "model.py:12, +1" with one other place."""
    calls = run.sources.filter(
        pl.col("name").str.starts_with(MODULE_CALL) & pl.col("module").is_not_null() & pl.col("source").is_not_null()
    )
    forward = calls.sort(pl.col("phase") != "forward", maintain_order=True)
    places = forward.group_by("module", maintain_order=True).agg(pl.col("source").unique(maintain_order=True))
    return {
        module: f"{lines[0]}, +{len(lines) - 1}" if len(lines) > 1 else lines[0] for module, lines in places.iter_rows()
    }


def sources_of_operators(run: RunReader, times: pl.DataFrame) -> dict[str, str]:
    """The line on which each operator spends the most time, by its name; `times` as `self_times` gives them."""
    source_rows = run.sources.filter(pl.col("source").is_not_null()).with_columns(pl.col("module").fill_null(OUTSIDE))
    if source_rows.is_empty():
        return {}
    counted = source_rows.group_by(*_KEYS, "source", maintain_order=True).agg(part=pl.len() / 1.0)
    shares = counted.with_columns(pl.col("part") / pl.col("part").sum().over(_KEYS))
    spent = times.group_by(_KEYS).agg(pl.col("self_ns").sum())
    lines = shares.join(spent, on=list(_KEYS)).with_columns(ns=pl.col("part") * pl.col("self_ns"))
    summed = lines.group_by("name", "source").agg(pl.col("ns").sum()).sort("ns", "source", descending=[True, False])
    return dict(summed.unique("name", keep="first", maintain_order=True).select("name", "source").iter_rows())


def slice_names(ops: pl.DataFrame) -> pl.Series:
    """Names of slices of a timeline: "layer2.0.conv1 · aten::mm"; outside of layers the op's name alone."""
    name, module = (pl.col(column).cast(pl.String) for column in ("name", "module"))
    inside = module.is_not_null() & (module != "")
    named = pl.when(inside).then(pl.concat_str(module, pl.lit(" \u00b7 "), name)).otherwise(name)
    return ops.select(named.alias("name")).to_series()
