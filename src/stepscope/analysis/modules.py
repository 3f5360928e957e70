"""Where the step goes by module: own time and that of the whole subtree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats, median_interval
from stepscope.analysis.module_tree import Module, module_tree
from stepscope.analysis.own_time import CPU, OUTSIDE, RESIDUAL, per_step, residual_ns
from stepscope.analysis.steady import recorded_steps

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_SPLIT = ("forward", "backward", "optimizer")
_TIMES = (*(f"{phase}_ns" for phase in _SPLIT), "total_ns", "low_ns", "high_ns")
SCHEMA = {
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
}


def modules(run: Run) -> pl.DataFrame:
    """Time of each module, ns a step, in the order of the tree: medians of the recorded steady steps.

    Columns are the module's own CPU time, with `tree_` that of its subtree; total_ns has a 95 % interval and covers
    all phases. `share` is of the summed step time, as `mean_ns` is: with the rows for time outside any module (module
    null) and for the residual (module RESIDUAL) it adds up to 1. `device_ns` is kernel time, null without an
    accelerator; `optimizer_ns` of modules is null where no update could be led back to a module; `flops` is of own
    ops, a step.
    """
    steps, table = recorded_steps(run), run.own_times
    tree = module_tree(run, table)
    if steps.is_empty() or table.is_empty():
        return _typed(_identity(tree)).head(len(tree))  # the tree is known, its times are not
    on_cpu, on_device = table.filter(pl.col("device") == CPU), table.filter(pl.col("device") != CPU)
    own = _Times.of(on_cpu, steps["step"], tree)
    step_time = float(steps["length_ns"].sum())
    rest = residual_ns(table, steps)
    columns: dict[str, Any] = {
        **_identity(tree),
        "calls": np.append(np.median(_matrix(table, steps["step"], tree, "calls"), axis=0), np.nan),
        **own.columns("", step_time, rest),
        **own.subtrees(tree).columns("tree_", step_time, rest),
        **_device_columns(on_device, steps["step"], tree),
        "flops": _flops(table, steps["step"], tree),
    }
    return _without_unknown_updates(_typed(columns))


def _typed(columns: dict[str, Any]) -> pl.DataFrame:
    """The columns as `SCHEMA` has them; what is not given is null."""
    frame = pl.DataFrame({name: pl.Series(column, strict=False) for name, column in columns.items()})
    present = [pl.col(name) if name in columns else pl.lit(None).alias(name) for name in SCHEMA]
    typed = zip(present, SCHEMA.values(), strict=True)
    return frame.select(column.cast(dtype) for column, dtype in typed).fill_nan(None)


class _Times:
    """CPU time of each module and of what is outside (steps, modules + 1), by phase and in total, ns."""

    def __init__(self, split: dict[str, Floats], total: Floats) -> None:
        self.split, self.total = split, total

    @classmethod
    def of(cls, table: pl.DataFrame, steps: pl.Series, tree: list[Module]) -> _Times:
        split = {phase: _matrix(table.filter(pl.col("phase") == phase), steps, tree, "self_ns") for phase in _SPLIT}
        return cls(split, _matrix(table, steps, tree, "self_ns"))

    def subtrees(self, tree: list[Module]) -> _Times:
        return _Times(
            {phase: _summed_up(times, tree) for phase, times in self.split.items()}, _summed_up(self.total, tree)
        )

    def columns(self, prefix: str, step_time_ns: float, rest_ns: Floats) -> dict[str, Floats]:
        """Columns of the frame; the last entry of each is the residual, which has no phase."""
        named = {
            f"{prefix}{phase}_ns": np.append(np.median(times, axis=0), np.nan) for phase, times in self.split.items()
        }
        whole = np.column_stack([self.total, rest_ns])
        totals = zip((f"{prefix}{name}" for name in _TIMES[-3:]), median_interval(whole), strict=True)
        shares = {f"{prefix}mean_ns": whole.mean(axis=0), f"{prefix}share": whole.sum(axis=0) / step_time_ns}
        return {**named, **dict(totals), **shares}


def _matrix(table: pl.DataFrame, steps: pl.Series, tree: list[Module], value: str) -> Floats:
    """A quantity by step and module, (steps, modules + 1): the last column is outside any module."""
    known = per_step(table, steps, ("module",), value)
    place = {module.name: column for column, module in enumerate(tree)} | {OUTSIDE: len(tree)}
    matrix = np.zeros((len(steps), len(tree) + 1))
    matrix[:, [place[name] for name in known.keys["module"]]] = known.values
    return matrix


def _summed_up(own: Floats, tree: list[Module]) -> Floats:
    """Each column plus those below it: children come after their parents, so one pass from the end does."""
    whole: Floats = own.copy()
    for column in range(len(tree) - 1, -1, -1):
        if tree[column].parent >= 0:
            whole[:, tree[column].parent] += whole[:, column]
    return whole


def _identity(tree: list[Module]) -> dict[str, list[object]]:
    outside = Module("", OUTSIDE, -1, 0, {})
    return {
        "module": [*(module.name for module in tree), None, RESIDUAL],
        "type": [*(module.type for module in tree), outside.type, None],
        "parent": [*(tree[module.parent].name if module.parent >= 0 else None for module in tree), None, None],
        "depth": [*(module.depth for module in tree), 0, 0],
        "parameters": [*(module.facts["parameters"] for module in tree), None, None],
    }


def _device_columns(table: pl.DataFrame, steps: pl.Series, tree: list[Module]) -> dict[str, Floats]:
    if table.is_empty():
        nothing = np.full(len(tree) + 2, np.nan)
        return {"device_ns": nothing, "tree_device_ns": nothing}
    own = _matrix(table, steps, tree, "self_ns")
    both = {"device_ns": own, "tree_device_ns": _summed_up(own, tree)}
    return {name: np.append(np.median(times, axis=0), np.nan) for name, times in both.items()}


def _flops(table: pl.DataFrame, steps: pl.Series, tree: list[Module]) -> Floats:
    """Floating-point operations of each module's own ops, mean a step; NaN where no op states them."""
    stated: Floats = _matrix(table.filter(pl.col("flops").is_not_null()), steps, tree, "flops").mean(axis=0)
    known: Floats = np.append(np.where(stated > 0, stated, np.nan), np.nan)
    return known


def _without_unknown_updates(frame: pl.DataFrame) -> pl.DataFrame:
    """Where every update lies outside the modules, theirs is not 0 but unknown."""
    inside = pl.col("module").is_not_null() & (pl.col("module") != RESIDUAL)
    if float(frame.filter(inside)["optimizer_ns"].fill_null(0).sum()) > 0:
        return frame
    names = ("optimizer_ns", "tree_optimizer_ns")
    return frame.with_columns(pl.when(~inside | pl.col("module").is_null()).then(name).alias(name) for name in names)
