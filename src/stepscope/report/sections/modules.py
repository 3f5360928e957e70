"""Every layer once, with time, energy, memory and FLOPs: as bars, as a tree, and with every number in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.summary import energy_kinds, memory_is_computed, module_quantities
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD, OUTSIDE
from stepscope.report.page.parts import Bars, Icicle, Layer, Part, Section, TabbedViews
from stepscope.report.table import (
    SHARE_MEANING,
    Cell,
    Column,
    Row,
    Table,
    interval_column,
    number_column,
    share_cell,
    shares_sentence,
    text_column,
)
from stepscope.report.terminal_tables import SHARED, SHARED_UPDATES
from stepscope.units import NOT_MEASURED, capitalize_first, count, milliseconds, page_name, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Layers"
ORDER = 12
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
_TITLES = {"time": "Time", "memory": "Memory", "flops": "FLOPs"}


def build(run: Run) -> Section:
    """Bars of `run.layers()`, icicle and table of `run.modules()`."""
    modules = run.modules()
    timed = modules.filter(pl.col("total_ns").is_not_null())
    if timed.is_empty():
        return Section("no operator was recorded after the warm-up")
    inside = modules.filter(pl.col("module").is_not_null() & (pl.col("module") != FRAMEWORK_OVERHEAD))
    parts = []
    if inside["optimizer_ns"].null_count() == len(inside):
        parts.append("Time of the optimizer could not be divided by layer.")
    elif inside["optimizer_shared"].any():
        parts.append(f"{capitalize_first(SHARED_UPDATES)}.")
    table = _table(run, modules)
    views: list[tuple[str, Part]] = []
    if len(inside):
        bars, tree = _bars(run), _icicle(run, inside)
        views += [("Bars", bars)] if bars.data["metrics"] else []
        views += [("Tree", tree)] if tree.layers_data else []
    return Section(" ".join(parts), (TabbedViews((*views, ("Table", table))),))


def _bars(run: Run) -> Bars:
    """A bar a layer for each quantity that was measured: self time and energy by phase, memory, rates."""
    every = run.layers()
    layers = every.head(_MOST_ROWS)
    metrics = [metric for metric in _metrics(run, layers) if any(row is not None for row in metric["rows"])]
    facts = ("layer", "type", "source", "parameters", "share")
    rows = [[page_name(row[0] or "(the model)"), *row[1:]] for row in layers.select(facts).iter_rows()]
    caption = "Self time of each layer: layers inside it have bars of their own."
    if len(every) > _MOST_ROWS:
        caption += f" The {len(every) - _MOST_ROWS:,} with the least time are not listed."
    return Bars({"rows": rows, "metrics": metrics}, caption)


_Quantity = tuple[str, str, str, str, list[str], tuple[str, ...]]  # name, title, unit, column, parts, ends of its CI


def _metrics(run: Run, layers: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Each quantity with its rows: value, the parts of it by phase, and the ends of its CI."""
    phases = ("forward", "backward", "optimizer")
    times, joules = [f"{phase}_ns" for phase in phases], [f"joules_{phase}" for phase in phases]
    on_device = bool(layers["device_ns"].sum())  # what the step waits for, so it comes first
    of_cpu: _Quantity = ("time", "CPU time" if on_device else "Time", "ns", "total_ns", times, ("low_ns", "high_ns"))
    of_device: _Quantity = ("kernels", "Kernels", "ns", "device_ns", [], ())
    quantities: tuple[_Quantity, ...] = (
        *((of_device, of_cpu) if on_device else (of_cpu,)),
        ("energy", _energy_title(run), "J", "joules", joules, ("joules_low", "joules_high")),
        ("memory", f"Memory at peak{_computed(run)}", "B", "live_bytes", [], ()),
        ("rate", "FLOP/s", "FLOP/s", "flops_per_s", [], ()),
        ("attained", "Of attainable", "1", "attained", [], ()),
    )
    for key, title, unit, column, parts, bounds in quantities:
        columns = layers.select(column, *parts, *bounds)
        rows = [
            None
            if not row[0] or row[0] < 0
            else [
                _round_to_five_digits(row[0]),
                [*map(_round_to_five_digits, row[1 : 1 + len(parts)])],
                _rounded_interval(row[1 + len(parts) :]),
            ]
            for row in columns.iter_rows()
        ]
        yield {"key": key, "title": title, "unit": unit, "rows": rows}


def _energy_title(run: Run) -> str:
    return capitalize_first(" ".join([*energy_kinds(run), "energy"]))


def _computed(run: Run) -> str:
    return ", computed" if memory_is_computed(run) else ""


def _rounded_interval(values: Sequence[float | None]) -> list[float | None] | None:
    return [*map(_round_to_five_digits, values)] if values and values[0] is not None else None


def _icicle(run: Run, inside: pl.DataFrame) -> Icicle:
    """The dearest subtrees; a parent is never cheaper than its child, so none is orphaned."""
    visible = inside
    if len(inside) > _MOST_CELLS:
        least = inside["tree_total_ns"].sort(descending=True)[_MOST_CELLS]
        visible = inside.filter(pl.col("tree_total_ns") > least)
    place = {name: index for index, name in enumerate(visible["module"])}
    rows = [_icicle_row(row, place) for row in visible.iter_rows(named=True)]
    excluded = len(inside) - len(visible)
    caption = f"{_CAPTION} The {excluded:,} smallest modules are not drawn." if excluded else _CAPTION
    return Icicle(_FIELDS, rows, tuple(_layers(run, place)), caption, FIGURES[0])


def _icicle_row(row: dict[str, Any], place: dict[str, int]) -> list[Any]:
    ends = [None if row[name] is None else round(row[name]) for name in ("tree_low_ns", "tree_high_ns")]
    parent = place.get(row["parent"]) if row["parent"] is not None else None
    return [page_name(row["module"]), row["type"], parent, row["parameters"], row["calls"], *ends]


def _layers(run: Run, place: dict[str, int]) -> Iterator[Layer]:
    """A layer for each quantity that the run has, its rows in the order of the icicle's."""
    titles = {**_TITLES, "energy": _energy_title(run)}
    for (key, unit), rows in module_quantities(run).group_by(["quantity", "unit"], maintain_order=True):
        if float(rows["total"].fill_null(0).sum()) <= 0:
            continue
        values: list[list[float | None] | None] = [None] * len(place)
        for row in rows.filter(pl.col("module").is_in(list(place))).iter_rows(named=True):
            values[place[row["module"]]] = [_round_to_five_digits(row[field]) for field in _VALUES]
        yield Layer(str(key), titles[str(key)], str(unit), rows["source"][0], values)


def _round_to_five_digits(value: float | None) -> float | None:
    """Five digits are what a tooltip shows, and more."""
    return None if value is None else float(f"{value:.5g}")


def _table(run: Run, modules: pl.DataFrame) -> Table:
    layers = run.layers()
    computed = _computed(run)
    titles = {"joules": _energy_title(run), "live_bytes": f"At peak{computed}", "most_bytes": f"Most at once{computed}"}
    meanings = ("File and line of your code, as noted in one profiled step",
                "Time of the layer itself, without the layers in it",
                "Floating-point operations a step, forward and backward, of its own operators")  # fmt: skip
    columns = [
        Column("Layer", False, of=_layer_cell),
        Column("Type", False, of=lambda row: "" if row["module"] is None else row["type"] or ""),
        text_column("Called at", "source", missing=NOT_MEASURED, meaning=meanings[0]),
        number_column("Self, ms", "total_ns", milliseconds, meaning=meanings[1]),
        interval_column("low_ns", "high_ns", milliseconds, missing=NOT_MEASURED),
        Column("Share", meaning=SHARE_MEANING, of=share_cell),
        *(number_column(phase.capitalize(), f"{phase}_ns", milliseconds) for phase in ("forward", "backward")),
        Column("Optimizer", of=_optimizer_cell),
        number_column("Total, ms", "tree_total_ns", milliseconds),
        number_column("Parameters", "parameters", count),
        number_column("Calls", "calls", count),
        number_column("FLOP", "flops", lambda flops: si(flops, ""), meaning=meanings[2]),
        *(
            number_column(titles.get(key, title), key, unit, meaning=end)
            for title, key, unit, end in _MORE
            if layers[key].is_not_null().any()
        ),
    ]
    more = layers.select(module="layer", **{key: key for _, key, _, _ in _MORE})
    ordered = modules.sort("total_ns", descending=True, nulls_last=True, maintain_order=True)
    rows = ordered.head(_MOST_ROWS).join(more, on="module", how="left", maintain_order="left")
    caption = "Of a step. Self times, with the time outside any layer and the framework overhead, add up to it."
    caption += shares_sentence(modules.iter_rows(named=True))
    if len(ordered) > _MOST_ROWS:
        remaining_ns = float(ordered.slice(_MOST_ROWS)["total_ns"].sum())  # a module that is never called has null
        caption += (
            f" {len(ordered) - _MOST_ROWS:,} smaller modules, {milliseconds(remaining_ns)} ms together, are not listed."
        )
    return Table.from_rows("modules", columns, rows.iter_rows(named=True), caption)


_MORE = (  # title, column of `Run.layers`, unit, meaning
    ("Energy", "joules", "J", "Joules a step, of the rail of the whole device"),
    ("low", "joules_low", "J", "Lower end of its CI"),
    ("high", "joules_high", "J", "Upper end of its CI"),
    ("At peak", "live_bytes", "B", "Bytes of its tensors that are live at the peak"),
    ("Most at once", "most_bytes", "B", "Bytes of its tensors at whatever time of the step"),
    ("FLOP/s", "flops_per_s", "FLOP/s", "While the layer itself runs"),
    ("Attained", "attained", "1", "Share of what this device could do"),
)


def _layer_cell(row: Row) -> Cell:
    name = OUTSIDE if row["module"] is None else row["module"] or "(the model)"
    return Cell(page_name(name), page_name(row["module"] or ""))


def _optimizer_cell(row: Row) -> Cell:
    return Cell(f"{SHARED * bool(row['optimizer_shared'])}{milliseconds(row['optimizer_ns'])}", row["optimizer_ns"])
