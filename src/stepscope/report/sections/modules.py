"""Time by module: the tree as an icicle, and every module in a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.summary import module_quantities
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD, OUTSIDE
from stepscope.report.page.parts import (
    SHARE_MEANING,
    Cell,
    Column,
    Icicle,
    Layer,
    Section,
    Table,
    share_cell,
    shares_sentence,
)
from stepscope.report.page.reading import count, milliseconds, name
from stepscope.report.text_tables import SHARED, SHARED_UPDATES
from stepscope.units import plural, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Modules"
ORDER = 40
FIGURES = ("modules",)

_MOST_CELLS = 4_000
_MOST_ROWS = 1_200
_CAPTION = (
    "From left to right, a module and what it is made of; height is what was chosen. A click makes a module the whole "
    "picture, a click on it again leads back. The stripe at the left of a cell divides it by phase; the deeper the "
    "tint, the larger the part of the model."
)
_FIELDS = ("name", "type", "parent", "parameters", "calls", "low", "high")
_VALUES = ("total", "forward", "backward", "optimizer", "own")
_TITLES = {"time": "Time", "energy": "Energy", "memory": "Memory", "flops": "FLOPs"}


def build(run: Run) -> Section:
    """Icicle and table of `run.modules()`."""
    modules = run.modules()
    timed = modules.filter(pl.col("total_ns").is_not_null())
    if timed.is_empty():
        return Section("No operator was recorded after the warm-up, so time cannot be split by module.")
    inside = modules.filter(pl.col("module").is_not_null() & (pl.col("module") != FRAMEWORK_OVERHEAD))
    lede = f"{plural(len(inside), 'module')}, forward and backward, in ms a step as it runs without the profiler."
    if inside["optimizer_ns"].null_count() == len(inside):
        lede += " The optimizer's updates could not be led back to single modules."
    elif inside["optimizer_shared"].any():
        lede += f" Of the optimizer, {SHARED_UPDATES}."
    return Section(lede, (_icicle(run, inside), _table(modules)) if len(inside) else (_table(modules),))


def _icicle(run: Run, inside: pl.DataFrame) -> Icicle:
    """The dearest subtrees; a parent is never cheaper than its child, so none is orphaned."""
    kept = inside
    if len(inside) > _MOST_CELLS:
        least = inside["tree_total_ns"].sort(descending=True)[_MOST_CELLS]
        kept = inside.filter(pl.col("tree_total_ns") > least)
    place = {name: index for index, name in enumerate(kept["module"])}
    rows = [_icicle_row(row, place) for row in kept.iter_rows(named=True)]
    left_out = len(inside) - len(kept)
    caption = f"{_CAPTION} The {left_out:,} smallest modules are not drawn." if left_out else _CAPTION
    return Icicle(_FIELDS, rows, tuple(_layers(module_quantities(run), place)), caption, FIGURES[0])


def _icicle_row(row: dict[str, Any], place: dict[str, int]) -> list[Any]:
    ends = [None if row[name] is None else round(row[name]) for name in ("tree_low_ns", "tree_high_ns")]
    parent = place.get(row["parent"]) if row["parent"] is not None else None
    return [name(row["module"]), row["type"], parent, row["parameters"], row["calls"], *ends]


def _layers(quantities: pl.DataFrame, place: dict[str, int]) -> Iterator[Layer]:
    """A layer for each quantity that the run has, its rows in the order of the icicle's."""
    for (key, unit), rows in quantities.group_by(["quantity", "unit"], maintain_order=True):
        if float(rows["total"].fill_null(0).sum()) <= 0:
            continue
        found: list[list[float | None] | None] = [None] * len(place)
        for row in rows.filter(pl.col("module").is_in(list(place))).iter_rows(named=True):
            found[place[row["module"]]] = [_rounded(row[field]) for field in _VALUES]
        yield Layer(str(key), _TITLES[str(key)], str(unit), rows["source"][0], found)


def _rounded(value: float | None) -> float | None:
    """Five digits are what a tooltip shows, and more."""
    return None if value is None else float(f"{value:.5g}")


def _table(modules: pl.DataFrame) -> Table:
    columns = (
        Column("Module", numeric=False),
        Column("Type", numeric=False),
        Column("Called at", numeric=False, meaning="File and line of your code, as noted in one profiled step"),
        Column("Self", meaning="Time of the module itself, without the modules in it"),
        Column("95 % CI"),
        Column("Share", meaning=SHARE_MEANING),
        Column("Forward"),
        Column("Backward"),
        Column("Optimizer"),
        Column("Total"),
        Column("Parameters"),
        Column("Calls"),
        Column("FLOP", meaning="Floating-point operations a step, forward and backward, of its own operators"),
    )
    ordered = modules.sort("total_ns", descending=True, nulls_last=True, maintain_order=True)
    rows = [_row(row) for row in ordered.head(_MOST_ROWS).iter_rows(named=True)]
    caption = (
        "In ms a step. Self times, with the time outside any module and the framework overhead, add up to the step."
    )
    caption += shares_sentence(modules.iter_rows(named=True))
    if len(ordered) > _MOST_ROWS:
        rest = ordered.slice(_MOST_ROWS)["total_ns"].to_numpy().sum()
        caption += f" {len(ordered) - _MOST_ROWS:,} smaller modules, {milliseconds(rest)} ms together, are not listed."
    return Table("modules", columns, rows, caption)


def _row(row: dict[str, Any]) -> tuple[Cell, ...]:
    said = {None: OUTSIDE, "": "the model itself"}.get(row["module"], row["module"])
    kind = row["type"] if row["module"] is not None else None
    between = "-" if row["low_ns"] is None else f"[{milliseconds(row['low_ns'])}, {milliseconds(row['high_ns'])}]"
    times = ("forward_ns", "backward_ns")
    optimizer = milliseconds(row["optimizer_ns"])
    return (
        Cell(name(said), name(row["module"] or "")),
        Cell(kind or "", kind),
        Cell(row["source"] or "-", row["source"]),
        Cell(milliseconds(row["total_ns"]), row["total_ns"]),
        Cell(between, row["low_ns"]),
        share_cell(row),
        *(Cell(milliseconds(row[time]), row[time]) for time in times),
        Cell(f"{SHARED}{optimizer}" if row["optimizer_shared"] else optimizer, row["optimizer_ns"]),
        Cell(milliseconds(row["tree_total_ns"]), row["tree_total_ns"]),
        Cell(count(row["parameters"]), row["parameters"]),
        Cell(count(row["calls"]), row["calls"]),
        Cell(si(row["flops"], ""), row["flops"]),
    )
