"""The tables of the text report: phases, modules and kinds of op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.table import Column, Table
from rich.text import Text

from stepscope.analysis.energy_rows import ESTIMATED, NO_INTERVAL
from stepscope.analysis.own_time import CPU, RESIDUAL
from stepscope.analysis.uneven import most_uneven, uneven
from stepscope.units import duration, number, percent, si, si_within

_BARS = (24, 8)  # cells, on a wide and on a narrow terminal
_TOP = 6
_WIDTH = 100
_NAMES = 18  # characters of a name that tell it apart
_PADDING = 2
_MARK = "* "  # of a share that its time contradicts
OP_NAMES = 40  # of an operation, with which aten::max_pool2d_with_indices is told from its backward
_KEPT = {"forward": 8, "backward": 8, "share": 8, "rate": 12, "median": 8}
_MODEL_PHASES = ("forward", "backward", "optimizer")
_LOOP_PHASES = ("data", "other")
ENGINE = "autograd::engine::evaluate_function: "


def phase_table(phases: pl.DataFrame) -> list[RenderableType]:
    """Where the step goes by phase, with bars; the residual is the last of them."""
    if phases.is_empty():
        return []
    tables = tuple(_phases(phases, width) for width in _BARS)
    return [Text(""), Constrain(Fitting(tables, len(RESIDUAL)), _WIDTH)]


def _phases(phases: pl.DataFrame, bar: int) -> Table:
    on_device = phases["device_ns"].is_not_null().any()
    table = new_table("where the step goes", "median", "interval", "share", *_device(on_device))
    table.add_column(width=bar)
    for row in phases.iter_rows(named=True):
        between = "" if row["low_ns"] is None else f"{duration(row['low_ns'])} to {duration(row['high_ns'])}"
        device = [duration(row["device_ns"])] if on_device else []
        cells = [row["phase"], duration(row["ns"]), between, _share(row, "ns"), *device]
        add_row(table, *cells, _bar(row["share"], bar))
    return table


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
        add_row(table, row["module"] or "(the model)", row["type"] or "", *times, _share(row), *device)
    return [Text(""), Constrain(table, _WIDTH)]


def op_table(kinds: pl.DataFrame) -> list[RenderableType]:
    """The kinds of op with the most own time, on the CPU and on accelerators."""
    named = kinds.filter(pl.col("name") != RESIDUAL)
    if named.is_empty():
        return []
    shown, title = named.head(_TOP), f"top ops of {len(named)}"
    tables = (
        _ops(shown, title),
        _ops_by_phase(shown, title, with_rate=True),
        _ops_by_phase(shown, title, with_rate=False),
    )
    return [Text(""), Constrain(Fitting(tables, OP_NAMES), _WIDTH)]


def _ops(kinds: pl.DataFrame, title: str) -> Table:
    """A column a phase, so that a row adds up; those of the loop only where one of these rows has time there."""
    on_device = (kinds["device"] != CPU).any()
    loop = [phase for phase in _LOOP_PHASES if (kinds[f"{phase}_ns"] > 0).any()]
    phases = [*_MODEL_PHASES, *loop]
    table = new_table(title, "calls", *phases, "share", "rate", *(["device"] if on_device else []))
    for row in kinds.iter_rows(named=True):
        times = [duration(row[f"{phase}_ns"]) for phase in phases]
        rate = si(row["flops_per_s"], "FLOP/s")
        cells = [number(row["count"]), *times, _share(row), rate, *([row["device"]] if on_device else [])]
        add_row(table, _op_name(row), *cells)
    return table


def _ops_by_phase(kinds: pl.DataFrame, title: str, *, with_rate: bool) -> Table:
    """The same in fewer columns: the whole time, and the phases that it lies in, longest first."""
    on_device = (kinds["device"] != CPU).any()
    rates = ["rate"] if with_rate else []
    calls = ["calls"] if with_rate else []
    table = new_table(title, *calls, "median", "phase", "share", *rates, *(["device"] if on_device else []))
    for row in kinds.iter_rows(named=True):
        spent = {phase: row[f"{phase}_ns"] or 0.0 for phase in (*_MODEL_PHASES, *_LOOP_PHASES)}
        longest, *others = sorted((phase for phase in spent if spent[phase] > 0), key=lambda phase: -spent[phase]) or [
            ""
        ]
        phase = f"{longest}, ..." if others else longest
        cells = [duration(row["total_ns"]), phase, _share(row)]
        if with_rate:
            cells = [number(row["count"]), *cells, si(row["flops_per_s"], "FLOP/s")]
        add_row(table, _op_name(row), *cells, *([row["device"]] if on_device else []))
    return table


def _share(row: dict[str, Any], median: str = "total_ns") -> str:
    """The share of the summed time, marked where the median beside it tells something else."""
    return f"{_MARK}{percent(row['share'])}" if uneven(row, median) else percent(row["share"])


def shares_note(phases: pl.DataFrame, modules: pl.DataFrame, kinds: pl.DataFrame) -> list[RenderableType]:
    """Where a share is marked: what times and shares are of, and by how much the two differ."""
    ops = kinds.filter(pl.col("name") != RESIDUAL).head(_TOP).iter_rows(named=True)
    named = modules.filter(pl.col("module").is_not_null()).iter_rows(named=True)
    worst = most_uneven(ops) or most_uneven(named)
    phase = most_uneven(phases.iter_rows(named=True), "ns")
    if phase is None and worst is None:
        return []
    said = f"{_MARK}times are medians of the recorded steps, shares are of their summed time: single steps lay far off"
    if worst is not None:
        name = worst.get("name") or worst.get("module") or "the model"
        said += f" ({name}: median {duration(worst['total_ns'])}, mean {duration(worst['mean_ns'])})"
    elif phase is not None:
        said += f" ({phase['phase']}: median {duration(phase['ns'])}, mean {duration(phase['mean_ns'])})"
    return [Constrain(Text(said, style="dim"), _WIDTH)]


def _op_name(row: dict[str, Any]) -> str:
    return str(row["name"]).replace(ENGINE, "engine: ")


def energy_table(totals: pl.DataFrame) -> list[RenderableType]:
    """Power and energy of each component with intervals; what is not measured is called by its name."""
    if totals.is_empty():
        return []
    tables = (_energy(totals, with_total=True), _energy(totals, with_total=False))
    return [Text(""), Constrain(Fitting(tables), _WIDTH)]


def _energy(totals: pl.DataFrame, *, with_total: bool) -> Table:
    kinds = ["kind"] if (totals["kind"] != "measured").any() else []
    gaps = ["not covered"] if (totals["gap_s"] > 0).any() else []
    table = new_table("energy", *kinds, "power", "a step", *(["steady steps"] if with_total else []), *gaps)
    for row in totals.iter_rows(named=True):
        cells = [row["component"], *([row["kind"].upper()] if kinds and row["kind"] != "measured" else kinds and [""])]
        sure = f" ({NO_INTERVAL})" if row["kind"] == ESTIMATED else ""
        cells.append(si_within(row["watts_mean"], row["watts_low"], row["watts_high"], "W") + sure)
        cells.append(si(row["joules_per_step"], "J"))
        cells += [si_within(row["joules"], row["low"], row["high"], "J")] if with_total else []
        cells += [f"{number(row['gap_s'])} s" if row["gap_s"] else ""] if gaps else []
        add_row(table, *cells)
    return table


def _device(present: bool) -> list[str]:
    return ["on device"] if present else []


@dataclass(frozen=True)
class Fitting:
    """Of several tables that say the same, widest first, the first whose numbers are whole at the width there is."""

    tables: tuple[Table, ...]
    names: int = _NAMES  # characters of a name that are wanted whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fits = (table for table in self.tables if _needed(table, self.names) <= options.max_width)
        yield next(fits, self.tables[-1])


def _needed(table: Table, wanted: int) -> int:
    """Columns of a terminal with which no number is cut, and of the names in the first column only their ends."""
    widths = [_widest(column) for column in table.columns]
    names, *numbers = widths
    return min(names, wanted) + sum(numbers) + _PADDING * len(widths)


def _widest(column: Column) -> int:
    cells = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
    return max(cells, column.width or 0, column.min_width or 0)


def new_table(first: str, *others: str) -> Table:
    """A table whose first column gives way on narrow terminals."""
    table = Table(box=None, padding=(0, _PADDING, 0, 0), header_style="cyan", show_edge=False, expand=True)
    table.add_column(first, no_wrap=True, ratio=1, overflow="ellipsis")
    for name in others:
        left = name in ("type", "phase", "device", "kind", "verdict")
        # A width that is kept: on a narrow terminal the names in the first column give way, not the numbers.
        table.add_column(name, justify="left" if left else "right", no_wrap=True, min_width=_KEPT.get(name, len(name)))
    return table


def add_row(table: Table, *cells: str) -> None:
    """Cells as plain text: a name may hold what rich takes for markup."""
    table.add_row(*(Text(cell) for cell in cells))


def _bar(share: float | None, width: int) -> str:
    return "█" * round(width * min(max(share or 0.0, 0.0), 1.0))
