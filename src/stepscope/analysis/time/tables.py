"""Tables of a step: by phase, by operator, by module, and op by op in the step nearest to the median."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.time.accelerators import accelerator_without_kernels, launched_kernels
from stepscope.analysis.time.layers import UPDATE, sources_of_modules, sources_of_operators, with_sources
from stepscope.analysis.time.operators import (
    CPU,
    FRAMEWORK_OVERHEAD,
    OUTSIDE,
    call_depths,
    callers,
    per_step,
    sum_columns_per_step,
)
from stepscope.analysis.time.overhead_correction import StepTimes
from stepscope.analysis.time.steps import are_steps_whole, shown_steps
from stepscope.arrays import Flags, Floats
from stepscope.runfolder import MODULE_CALL, OPS, PHASES, RunReader

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


OPERATOR_SCHEMA = {
    "name": pl.String,
    "device": pl.String,
    "count": pl.Float64,
    **{f"{phase}_ns": pl.Float64 for phase in PHASES},
    "total_ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
    "mean_ns": pl.Float64,
    "share": pl.Float64,
    "flops": pl.Float64,
    "flops_per_s": pl.Float64,
    "bytes": pl.Float64,
    "source": pl.String,
}


def operator_table(run: Run) -> pl.DataFrame:
    """Self time of each op, ns a step by phase and in total, longest first; framework overhead is the last row.

    Of a step as it runs unprofiled (`correction`): on the CPU, with framework overhead, total_ns adds up to the step
    time, and `share` is of it; kernels of an accelerator have rows of their own. `mean_ns` is the plain mean of what
    was recorded, interruptions included. `count` (of calls), `flops` and `bytes` are means per step, null where
    unknown; `flops_per_s` of what launches kernels is over their time, not over that of the launch; `source` is the
    line of code on which it spends the most time, as one step noted it.
    """
    times = run.step_times
    if times.is_empty:
        return pl.DataFrame(schema=OPERATOR_SCHEMA)
    table, number, keys = times.table, times.steps, ("name", "device")
    spent = parts_of_step(times, table, keys)
    flops = _mean_stated(table, number, spent, "flops")
    kinds = spent.rename({"ns": "total_ns"}).with_columns(
        pl.Series("count", per_step(table, number, keys, "count").values.mean(axis=0)),
        *_phase_columns(table, number, spent),
        flops=pl.Series(flops),
        flops_per_s=pl.Series(_operator_rates(run, spent, flops)),
        bytes=pl.Series(_mean_stated(table, number, spent, "bytes")),
    )
    last = pl.DataFrame({"name": [FRAMEWORK_OVERHEAD], "device": [CPU], **framework_overhead_of_step(times)}).rename(
        {"ns": "total_ns"}
    )
    ordered = kinds.sort("total_ns", "name", descending=[True, False])
    whole = pl.concat([ordered, last], how="diagonal_relaxed")
    sources = sources_of_operators(run, table)
    whole = whole.with_columns(source=pl.Series([sources.get(name) for name in whole["name"]], dtype=pl.String))
    typed = whole.select(pl.col(name).cast(dtype) for name, dtype in OPERATOR_SCHEMA.items()).fill_nan(None)
    return _without_unseen(run, typed, [f"{phase}_ns" for phase in PHASES])


_RECORDED = ("profiling_ns", "doubt_ns", "recorded_ns")


def parts_of_step(times: StepTimes, table: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Return what a step spends by `keys` of a table of `StepTimes`: ns, low_ns, high_ns (95 % CI), mean_ns, share.

    Reports and comparisons have the times of operators and phases from here; of modules by the same sums.
    """
    spent, profiling, doubt, recorded = sum_columns_per_step(table, times.steps, keys, ("self_ns", *_RECORDED))
    of_layers = None
    if times.layers is not None and keys == ("phase",):
        phases = spent.keys["phase"].to_numpy()
        of_layers = times.layers.ns @ (times.layers.keys["phase"].to_numpy()[:, None] == phases)
    value, low, high = times.means_with_intervals(spent.values, profiling.values, doubt.values, of_layers)
    return spent.keys.with_columns(
        ns=pl.Series(value),
        low_ns=pl.Series(low),
        high_ns=pl.Series(high),
        mean_ns=pl.Series(recorded.values.mean(axis=0)),
        share=pl.Series(value / times.step_ns),
    )


def framework_overhead_of_step(times: StepTimes) -> dict[str, list[float]]:
    """Return the same columns of framework overhead, one row."""
    outside, profiling, doubt = (
        part[:, None] for part in (times.framework_ns, times.framework_profiling_ns, times.framework_doubt_ns)
    )
    beside = None if times.outside_layers_ns is None else times.outside_layers_ns[:, None]
    value, low, high = times.means_with_intervals(outside, profiling, doubt, beside)
    recorded, share = [float(times.framework_recorded_ns.mean())], [float(value[0]) / times.step_ns]
    return {"ns": value.tolist(), "low_ns": low.tolist(), "high_ns": high.tolist(), "mean_ns": recorded, "share": share}


def _phase_columns(table: pl.DataFrame, steps: pl.Series, total: pl.DataFrame) -> list[pl.Series]:
    """Mean ns a step of each operator in each phase, in the order of `total`."""
    split = per_step(table, steps, ("name", "device", "phase"), "self_ns")
    means = dict(zip(split.keys.iter_rows(), split.values.mean(axis=0).tolist(), strict=True))
    kinds = list(total.select("name", "device").iter_rows())
    return [pl.Series(f"{phase}_ns", [means.get((*kind, phase), 0.0) for kind in kinds]) for phase in PHASES]


def steps_with_costs(table: pl.DataFrame, steps: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """Return the rows and the numbers of the steps whose FLOPs and bytes are known: of some no shapes were seen.

    Those are unknown, and not 0.
    """
    stated = table.filter(pl.any_horizontal(pl.col("flops", "bytes").is_not_null()))["step"].unique()
    costed = steps.filter(steps.is_in(stated.implode()))
    return table.filter(pl.col("step").is_in(costed.implode())), costed


def _operator_rates(run: Run, spent: pl.DataFrame, flops: Floats) -> Floats:
    """FLOP/s of each operator while it computes; NaN where that was on an accelerator whose kernels are not known."""
    if accelerator_without_kernels(run) is not None:
        return np.full(len(spent), np.nan)
    sums = launched_kernels(run).group_by("name").agg(pl.col("flops", "costed_ns").sum())
    rates = {name: stated / ns * 1e9 if ns else np.nan for name, stated, ns in sums.iter_rows()}
    own: Floats = flops / np.maximum(spent["ns"].to_numpy(), 1) * 1e9
    return np.array([rates.get(name, rate) for name, rate in zip(spent["name"], own, strict=True)])


def _mean_stated(table: pl.DataFrame, steps: pl.Series, total: pl.DataFrame, value: str) -> Floats:
    """Mean per step of a quantity that only some ops state; NaN where none does."""
    keys, (stated, costed) = ("name", "device"), steps_with_costs(table, steps)
    if costed.is_empty():
        return np.full(len(total), np.nan)
    by_step = per_step(stated.filter(pl.col(value).is_not_null()), costed, keys, value)
    place, means = by_step.column_of(), by_step.values.mean(axis=0)
    return np.array([means[place[key]] if key in place else np.nan for key in total.select(keys).iter_rows()])


PHASE_SCHEMA = {
    "phase": pl.String,
    "ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
    "mean_ns": pl.Float64,
    "share": pl.Float64,
    "device_ns": pl.Float64,
}


def phase_table(run: Run) -> pl.DataFrame:
    """CPU time of each phase, ns a step as it runs unprofiled (`correction`), and framework overhead.

    `ns` adds up to the step time, and `share` is of it; `mean_ns` is the plain mean of what was recorded; `device_ns`
    is kernel time, null without an accelerator.
    """
    times = run.step_times
    if times.is_empty:
        return pl.DataFrame(schema=PHASE_SCHEMA)
    table, number = times.table, times.steps
    on_cpu = table.filter(pl.col("device") == CPU)
    kernels = per_step(table.filter(pl.col("device") != CPU), number, ("phase",), "self_ns")
    kernel_ns = kernels.keys.with_columns(device_ns=pl.Series(kernels.values.mean(axis=0)))
    phases = parts_of_step(times, on_cpu, ("phase",)).join(kernel_ns, on="phase", how="left")
    ordered = phases.sort(pl.col("phase").replace_strict(list(PHASES), range(len(PHASES)), default=len(PHASES)))
    last = pl.DataFrame({"phase": [FRAMEWORK_OVERHEAD], **framework_overhead_of_step(times)})
    whole = pl.concat([ordered, last], how="diagonal_relaxed")
    return whole.select(pl.col(name).cast(dtype) for name, dtype in PHASE_SCHEMA.items()).fill_nan(None)


UNPROFILED = "unprofiled"  # of a step that was only timed


def phases_by_step(run: Run, most: int) -> pl.DataFrame:
    """Each step after warm-up as it ran, evenly chosen beyond `most`: step, phase, ns, and t0_ns where it begins in it.

    A profiled step is divided by phase and framework overhead, as recorded; any other is one part, UNPROFILED.
    """
    steps = run.steps.slice(run.warmup_steps).select(
        pl.col("step").cast(pl.Int64), length=pl.col("t1_ns") - pl.col("t0_ns")
    )
    spent = run.self_times.filter(pl.col("device") == CPU).group_by("step", "phase").agg(ns=pl.col("self_ns").sum())
    phase_ns = spent.filter(pl.col("step").is_in(steps["step"].to_list()))
    if phase_ns.is_empty():
        return pl.DataFrame(schema={"step": pl.Int64, "phase": pl.String, "ns": pl.Float64, "t0_ns": pl.Float64})
    is_profiled = steps["step"].is_in(phase_ns["step"].unique().to_list())
    profiled = _pick_evenly_spaced_rows(steps.filter(is_profiled), most)
    timed = _pick_evenly_spaced_rows(steps.filter(~is_profiled), most - len(profiled))
    phase_ns = phase_ns.filter(pl.col("step").is_in(profiled["step"].to_list()))
    overhead_ns = pl.col("length") - pl.col("ns")
    unassigned = steps.join(phase_ns.group_by("step").agg(pl.col("ns").sum()), on="step")
    parts = [
        phase_ns.select("step", "phase", pl.col("ns").cast(pl.Float64)),
        unassigned.select("step", phase=pl.lit(FRAMEWORK_OVERHEAD), ns=overhead_ns.clip(0).cast(pl.Float64)),
        timed.select("step", phase=pl.lit(UNPROFILED), ns=pl.col("length").cast(pl.Float64)),
    ]
    order = [*PHASES, FRAMEWORK_OVERHEAD, UNPROFILED]
    whole = pl.concat(parts).sort("step", pl.col("phase").replace_strict(order, range(len(order)), default=len(order)))
    return whole.with_columns(t0_ns=pl.col("ns").cum_sum().over("step") - pl.col("ns"))


def _pick_evenly_spaced_rows(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most so many evenly spaced rows, the first and the last among them."""
    if len(rows) <= most:
        return rows
    chosen: list[int] = np.unique(np.linspace(0, len(rows) - 1, most).astype(np.int64)).tolist()
    return rows[chosen]


_SPLIT = ("forward", "backward", "optimizer")
_TIMES = (*(f"{phase}_ns" for phase in _SPLIT), "total_ns", "low_ns", "high_ns")
MODULE_SCHEMA = {
    "module": pl.String,
    "type": pl.String,
    "parent": pl.String,
    "depth": pl.Int64,
    "parameters": pl.Int64,
    "calls": pl.Float64,
    **dict.fromkeys((*_TIMES, "mean_ns"), pl.Float64),
    "share": pl.Float64,
    **{f"tree_{name}": pl.Float64 for name in (*_TIMES, "mean_ns")},
    "tree_share": pl.Float64,
    "device_ns": pl.Float64,
    "tree_device_ns": pl.Float64,
    "flops": pl.Float64,
    "optimizer_shared": pl.Boolean,
    "source": pl.String,
}


def module_table(run: Run) -> pl.DataFrame:
    """Time of each module, ns a step as it runs unprofiled (`correction`), in the order of the tree.

    Columns are the module's own CPU time, with `tree_` that of its subtree; total_ns has a 95 % CI and covers
    all phases. With the rows for time outside any module (module null) and for framework overhead (module
    FRAMEWORK_OVERHEAD) it adds up to the step time, and `share` is of it; `mean_ns` is the plain mean of what was
    recorded. `device_ns` is kernel time, null without an accelerator; `optimizer_ns` of modules is null where no update
    could be led back to a module, and `optimizer_shared` where it is a share, by elements, of updates that serve many
    modules; `calls` and `flops` (of own ops) are means a step; `source` is the line of code that calls it. Times of a
    module of which no call is seen (it lies in compiled or scripted code, or is never called) are null, as is the
    backward pass of one that is frozen.
    """
    times = run.step_times
    tree = module_tree(run, times.table)
    sources = sources_of_modules(run)
    source_column = {"source": [*(sources.get(module.name) for module in tree), None, None]}
    if times.is_empty:
        return _module_frame({**_identity(tree), **source_column}).head(
            len(tree)
        )  # the tree is known, its times are not
    table, number = times.table, times.steps
    on_cpu, on_device = table.filter(pl.col("device") == CPU), table.filter(pl.col("device") != CPU)
    own = _ModuleTimes.from_self_times(on_cpu, number, tree)
    of_layers = own.layer_timed_values(times, tree)
    calls = _step_matrix(table, number, tree, "calls")
    columns: dict[str, Any] = {
        **_identity(tree),
        **source_column,
        "calls": np.append(calls.mean(axis=0), np.nan),
        **own.columns("", times, of_layers),
        **own.subtrees(tree).columns("tree_", times, None if of_layers is None else _subtree_sums(of_layers, tree)),
        **_device_columns(on_device, number, tree),
        "flops": _module_flops(table, number, tree),
        "optimizer_shared": [*(module.facts.get("update_share") is not None for module in tree), None, None],
    }
    ran = np.append(calls[:, :-1].sum(axis=0) > 0, [True]) | own.seen_flags()
    below = _subtree_sums(ran[None, :].astype(np.float64), tree)[0] > 0
    for prefix, is_known, module_times in (("", ran, own), ("tree_", below, own.subtrees(tree))):
        module_times.null_unseen_columns(columns, prefix, ~is_known)
        columns[f"{prefix}backward_ns"][:-2][~_any_backward(own, tree)] = np.nan
    columns["calls"][:-1][~ran] = np.nan
    split = [f"{prefix}{phase}_ns" for prefix in ("", "tree_") for phase in _SPLIT]
    return _without_unseen(run, _without_unknown_updates(_module_frame(columns)), split)


def _any_backward(own: _ModuleTimes, tree: list[Module]) -> Flags:
    """Return which modules have a backward pass, their own or of modules inside: (modules,)."""
    ran: Flags = own.subtrees(tree).split["backward"].sum(axis=0)[:-1] > 0
    return ran


def _without_unseen(run: Run, frame: pl.DataFrame, split: list[str]) -> pl.DataFrame:
    """Return times by phase; null, not 0, where nothing was seen in a step too large to be profiled whole."""
    return (
        frame if are_steps_whole(run) else frame.with_columns(pl.when(pl.col(name) != 0).then(name) for name in split)
    )


def _module_frame(columns: dict[str, Any]) -> pl.DataFrame:
    """The columns as `SCHEMA` has them; what is not given is null."""
    frame = pl.DataFrame({name: pl.Series(column, strict=False) for name, column in columns.items()})
    present = [pl.col(name) if name in columns else pl.lit(None).alias(name) for name in MODULE_SCHEMA]
    typed = zip(present, MODULE_SCHEMA.values(), strict=True)
    return frame.select(column.cast(dtype) for column, dtype in typed).fill_nan(None)


@dataclass(frozen=True)
class _ModuleTimes:
    """CPU time of each module and of what is outside (steps, modules + 1), by phase and in total, ns."""

    split: dict[str, Floats]
    total: Floats
    profiling: Floats  # profiling overhead in it
    doubt: Floats
    recorded: Floats

    @classmethod
    def from_self_times(cls, table: pl.DataFrame, steps: pl.Series, tree: list[Module]) -> _ModuleTimes:
        split = {
            phase: _step_matrix(table.filter(pl.col("phase") == phase), steps, tree, "self_ns") for phase in _SPLIT
        }
        return cls(split, *_step_matrices(table, steps, tree, ("self_ns", *_RECORDED)))

    def subtrees(self, tree: list[Module]) -> _ModuleTimes:
        split = {phase: _subtree_sums(times, tree) for phase, times in self.split.items()}
        return _ModuleTimes(
            split, *(_subtree_sums(own_ns, tree) for own_ns in (self.total, self.profiling, self.doubt, self.recorded))
        )

    def seen_flags(self) -> Flags:
        """Return of which modules anything was seen in forward or backward, (modules + 1,)."""
        has_time: Flags = sum(self.split[phase].sum(axis=0) for phase in ("forward", "backward")) > 0
        return has_time

    def null_unseen_columns(self, columns: dict[str, Any], prefix: str, unseen: Flags) -> None:
        """Make null what is not known of modules that were not seen: all but their updates."""
        nothing = unseen & (self.total.sum(axis=0) == 0)
        for name in ("forward_ns", "backward_ns", "optimizer_ns", "total_ns", "low_ns", "high_ns", "mean_ns", "share"):
            columns[f"{prefix}{name}"][:-1][unseen if name in ("forward_ns", "backward_ns") else nothing] = np.nan

    def layer_timed_values(self, times: StepTimes, tree: list[Module]) -> Floats | None:
        """Return what the steps whose layers alone were timed know of each module, (those steps, modules + 1), ns."""
        if times.layers is None:
            return None
        place = {module.name: column for column, module in enumerate(tree)} | {OUTSIDE: len(tree)}
        updates = self.split[UPDATE].mean(axis=0)
        parts = np.zeros((len(times.layers.keys), len(tree) + 1))  # of the time of a group, in each module
        for group, (phase, module) in enumerate(times.layers.keys.iter_rows()):
            if phase == UPDATE:
                parts[group] = updates / max(updates.sum(), 1.0)
            else:
                parts[group, place[module]] = 1.0
        module_ns: Floats = times.layers.ns @ parts
        return module_ns

    def columns(self, prefix: str, times: StepTimes, of_layers: Floats | None) -> dict[str, Floats]:
        """Columns of the frame; the last entry of each is the framework overhead, which has no phase."""
        named = {f"{prefix}{phase}_ns": np.append(ns.mean(axis=0), np.nan) for phase, ns in self.split.items()}
        own = (self.total, self.profiling, self.doubt)
        outside = (times.framework_ns, times.framework_profiling_ns, times.framework_doubt_ns)
        if of_layers is not None and times.outside_layers_ns is not None:
            of_layers = np.column_stack([of_layers, times.outside_layers_ns])
        values, profiling, doubt = (np.column_stack(pair) for pair in zip(own, outside, strict=True))
        intervals = times.means_with_intervals(values, profiling, doubt, of_layers)
        totals = dict(zip((f"{prefix}{name}" for name in _TIMES[-3:]), intervals, strict=True))
        recorded = np.append(self.recorded.mean(axis=0), times.framework_recorded_ns.mean())
        shares = totals[f"{prefix}total_ns"] / times.step_ns
        return {**named, **totals, f"{prefix}mean_ns": recorded, f"{prefix}share": shares}


def _step_matrix(table: pl.DataFrame, steps: pl.Series, tree: list[Module], value: str) -> Floats:
    """A quantity by step and module, (steps, modules + 1): the last column is outside any module."""
    return _step_matrices(table, steps, tree, (value,))[0]


def _step_matrices(table: pl.DataFrame, steps: pl.Series, tree: list[Module], values: tuple[str, ...]) -> list[Floats]:
    place = {module.name: column for column, module in enumerate(tree)} | {OUTSIDE: len(tree)}
    matrices: list[Floats] = []
    for by_module in sum_columns_per_step(table, steps, ("module",), values):
        matrix = np.zeros((len(steps), len(tree) + 1))
        matrix[:, [place[name] for name in by_module.keys["module"]]] = by_module.values
        matrices.append(matrix)
    return matrices


def _subtree_sums(own: Floats, tree: list[Module]) -> Floats:
    """Each column plus those below it: children come after their parents, so one pass from the end does."""
    whole: Floats = own.copy()
    for column in range(len(tree) - 1, -1, -1):
        if tree[column].parent >= 0:
            whole[:, tree[column].parent] += whole[:, column]
    return whole


def _identity(tree: list[Module]) -> dict[str, list[object]]:
    outside = Module("", OUTSIDE, -1, 0, {})
    return {
        "module": [*(module.name for module in tree), None, FRAMEWORK_OVERHEAD],
        "type": [*(module.type for module in tree), outside.type, None],
        "parent": [*(tree[module.parent].name if module.parent >= 0 else None for module in tree), None, None],
        "depth": [*(module.depth for module in tree), 0, 0],
        "parameters": [*(module.facts["parameters"] for module in tree), None, None],
    }


def _device_columns(table: pl.DataFrame, steps: pl.Series, tree: list[Module]) -> dict[str, Floats]:
    if table.is_empty():
        nothing = np.full(len(tree) + 2, np.nan)
        return {"device_ns": nothing, "tree_device_ns": nothing}
    own = _step_matrix(table, steps, tree, "self_ns")
    both = {"device_ns": own, "tree_device_ns": _subtree_sums(own, tree)}
    return {name: np.append(times.mean(axis=0), np.nan) for name, times in both.items()}


def _module_flops(table: pl.DataFrame, steps: pl.Series, tree: list[Module]) -> Floats:
    """Floating-point operations of each module's own ops, mean a step; NaN where no op states them."""
    table, steps = steps_with_costs(table, steps)
    if steps.is_empty():
        return np.full(len(tree) + 2, np.nan)
    stated: Floats = _step_matrix(table.filter(pl.col("flops").is_not_null()), steps, tree, "flops").mean(axis=0)
    flops: Floats = np.append(np.where(stated > 0, stated, np.nan), np.nan)
    return flops


def _without_unknown_updates(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the times with null for updates where every update lies outside the modules: unknown, not 0."""
    inside = pl.col("module").is_not_null() & (pl.col("module") != FRAMEWORK_OVERHEAD)
    if float(frame.filter(inside)["optimizer_ns"].fill_null(0).sum()) > 0:
        return frame
    names = ("optimizer_ns", "tree_optimizer_ns")
    return frame.with_columns(pl.when(~inside | pl.col("module").is_null()).then(name).alias(name) for name in names)


@dataclass(frozen=True)
class Module:
    """One module: its qualified name, its type, row of its parent (-1 at the top) and depth in the tree."""

    name: str
    type: str | None
    parent: int
    depth: int
    facts: dict[str, Any]


def module_tree(run: RunReader, table: pl.DataFrame) -> list[Module]:
    """Every module of model.json and of the ops, parents before their children, children together."""
    facts = {row["module"]: row for row in run.model.iter_rows(named=True)}
    types = _module_types(table)
    for name in [*types, *table["module"].unique().sort()]:
        if name != OUTSIDE and name not in facts:
            facts[name] = {"module": name, "type": types.get(name), "parent": None, "parameters": None}
    parents = {name: _parent_of(name, row["parent"], facts) for name, row in facts.items()}
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    return _ordered_tree(children, facts)


def _module_types(table: pl.DataFrame) -> dict[str, str]:
    """Type of each module as its calls name it."""
    calls = table.filter(pl.col("name").str.starts_with(MODULE_CALL)).select("module", "name").unique().sort("module")
    return {module: name[len(MODULE_CALL) :] for module, name in calls.iter_rows()}


def _parent_of(name: str, stated: str | None, facts: dict[str, Any]) -> str | None:
    """The stated parent, else the nearest module that the dots of the name lead to."""
    if stated is not None and stated in facts and stated != name:
        return stated
    while name:
        name = name.rpartition(".")[0]
        if name in facts:
            return name
    return None


def _ordered_tree(children: dict[str | None, list[str]], facts: dict[str, Any]) -> list[Module]:
    tree: dict[str, Module] = {}
    for top in [*children.get(None, []), *facts]:  # those whose stated parents go round in a circle come last
        waiting = [(top, -1, 0)]
        while waiting:
            name, parent, depth = waiting.pop()
            if name not in tree:
                waiting.extend((child, len(tree), depth + 1) for child in reversed(children.get(name, [])))
                tree[name] = Module(name, facts[name]["type"], parent, depth, facts[name])
    return list(tree.values())


def median_step_ops(run: Run) -> pl.DataFrame:
    """The op calls, as recorded, of the profiled step nearest to the step time, columns as `runfolder.OPS`.

    And: source (the line of code that calls it), row (what `parent` counts), depth in the tree of calls, start_ns and
    end_ns from the start of the step.
    """
    steps = shown_steps(run)
    if steps.is_empty():
        return _with_depth_and_offsets(with_sources(pl.DataFrame(schema=OPS), run.sources), 0)
    distance = (pl.col("length_ns") - (run.step_times.step_ns or steps["length_ns"].median())).abs()
    chosen = steps.sort(distance, "step").row(0, named=True)
    ops = with_sources(run.scan_ops().filter(pl.col("step") == chosen["step"]).collect(), run.sources)
    return _with_depth_and_offsets(ops, int(chosen["t0_ns"]))


def _with_depth_and_offsets(ops: pl.DataFrame, t0_ns: int) -> pl.DataFrame:
    depth = pl.Series("depth", call_depths(callers(ops)), dtype=pl.Int64)
    return ops.with_row_index("row").with_columns(
        depth, start_ns=pl.col("t0_ns") - t0_ns, end_ns=pl.col("t1_ns") - t0_ns
    )


MEAN_MEDIAN_GAP = 0.25  # of the mean
_LEAST_SHARE = 0.005  # below, nobody reads the row for its share


def mean_differs_from_median(row: Mapping[str, Any], median: str = "total_ns") -> bool:
    """Return whether interruptions raised the mean of a row of phases, modules or operators by a quarter or more."""
    middle, mean, share = row[median], row["mean_ns"], row["share"]
    if middle is None or mean is None or share is None or abs(share) < _LEAST_SHARE:
        return False
    return bool(mean - middle >= MEAN_MEDIAN_GAP * mean > 0)


def largest_difference(rows: Iterable[Mapping[str, Any]], median: str = "total_ns") -> Mapping[str, Any] | None:
    """Return the row whose mean interruptions moved furthest; None where none is uneven."""
    uneven = [row for row in rows if mean_differs_from_median(row, median)]
    return max(uneven, key=lambda row: abs(row["mean_ns"] - row[median]), default=None)
