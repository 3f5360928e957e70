"""The tables of the text report: phases, modules and kinds of op."""

from __future__ import annotations

import polars as pl
from rich.console import RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from stepscope.analysis.own_time import CPU, RESIDUAL
from stepscope.units import duration, number, percent, si

_BAR = 24
_TOP = 6
_WIDTH = 100
_KEPT = {"forward": 8, "backward": 8, "share": 6, "rate": 12, "time": 8}
ENGINE = "autograd::engine::evaluate_function: "


def phase_table(phases: pl.DataFrame) -> list[RenderableType]:
    """Where the step goes by phase, with bars; the residual is the last of them."""
    if phases.is_empty():
        return []
    on_device = phases["device_ns"].is_not_null().any()
    table = new_table("where the step goes", "time", "interval", "share", *(["on device"] if on_device else []))
    table.add_column(width=_BAR)
    for row in phases.iter_rows(named=True):
        between = "" if row["low_ns"] is None else f"{duration(row['low_ns'])} to {duration(row['high_ns'])}"
        device = [duration(row["device_ns"])] if on_device else []
        add_row(table, row["phase"], duration(row["ns"]), between, percent(row["share"]), *device, _bar(row["share"]))
    return [Text(""), Constrain(table, _WIDTH)]


def module_table(modules: pl.DataFrame) -> list[RenderableType]:
    """The modules with the most own time; that of modules inside them is not counted."""
    named = modules.filter(pl.col("module").is_not_null() & (pl.col("module") != RESIDUAL), pl.col("share") > 0)
    if named.is_empty():
        return []
    on_device = named["device_ns"].is_not_null().any()
    table = new_table(
        f"top modules of {len(named)}", "type", "forward", "backward", "optimizer", "share", *_device(on_device)
    )
    order = "device_ns" if on_device else "share"
    for row in named.sort(order, "module", descending=[True, False], nulls_last=True).head(_TOP).iter_rows(named=True):
        times = [duration(row[f"{phase}_ns"]) for phase in ("forward", "backward", "optimizer")]
        device = [duration(row["device_ns"])] if on_device else []
        add_row(table, row["module"] or "(the model)", row["type"] or "", *times, percent(row["share"]), *device)
    return [Text(""), Constrain(table, _WIDTH)]


def op_table(kinds: pl.DataFrame) -> list[RenderableType]:
    """The kinds of op with the most own time, on the CPU and on accelerators."""
    named = kinds.filter(pl.col("name") != RESIDUAL)
    if named.is_empty():
        return []
    on_device = (named["device"] != CPU).any()
    columns = ["calls", "forward", "backward", "optimizer", "share", "rate", *(["device"] if on_device else [])]
    table = new_table(f"top operations of {len(named)}", *columns)
    for row in named.head(_TOP).iter_rows(named=True):
        times = [duration(row[f"{phase}_ns"]) for phase in ("forward", "backward", "optimizer")]
        rate = si(row["flops_per_s"], "FLOP/s")
        cells = [number(row["count"]), *times, percent(row["share"]), rate, *([row["device"]] if on_device else [])]
        add_row(table, row["name"].replace(ENGINE, "engine: "), *cells)
    return [Text(""), Constrain(table, _WIDTH)]


def energy_table(totals: pl.DataFrame) -> list[RenderableType]:
    """Power and energy of each component with intervals; what is not measured is called by its name."""
    if totals.is_empty():
        return []
    columns = ["power", "a step", "steady steps"]
    kinds = ["kind"] if (totals["kind"] != "measured").any() else []
    gaps = ["not covered"] if (totals["gap_s"] > 0).any() else []
    table = new_table("energy", *kinds, *columns, *gaps)
    table.columns[0].min_width = max(len(name) for name in totals["component"])
    for row in totals.iter_rows(named=True):
        cells = [row["component"], *([row["kind"].upper()] if kinds and row["kind"] != "measured" else kinds and [""])]
        cells.append(_with_interval(row["watts_mean"], row["watts_low"], row["watts_high"], "W"))
        cells.append(si(row["joules_per_step"], "J"))
        cells.append(_with_interval(row["joules"], row["low"], row["high"], "J"))
        cells += [f"{number(row['gap_s'])} s" if row["gap_s"] else ""] if gaps else []
        add_row(table, *cells)
    return [Text(""), Constrain(table, _WIDTH)]


def _with_interval(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    between = "" if low is None or high is None else f" ({number(low)} to {number(high)})"
    return f"{si(value, unit)}{between}"


def _device(present: bool) -> list[str]:
    return ["on device"] if present else []


def new_table(first: str, *others: str) -> Table:
    """A table whose first column gives way on narrow terminals."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan", show_edge=False, expand=True)
    table.add_column(first, no_wrap=True, ratio=1, overflow="ellipsis")
    for name in others:
        left = name in ("type", "device", "kind", "verdict")
        # A width that is kept: on a narrow terminal the names in the first column give way, not the numbers.
        table.add_column(name, justify="left" if left else "right", no_wrap=True, min_width=_KEPT.get(name, len(name)))
    return table


def add_row(table: Table, *cells: str) -> None:
    """Cells as plain text: a name may hold what rich takes for markup."""
    table.add_row(*(Text(cell) for cell in cells))


def _bar(share: float | None) -> str:
    return "█" * round(_BAR * min(max(share or 0.0, 0.0), 1.0))
