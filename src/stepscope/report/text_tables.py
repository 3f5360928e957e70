"""The tables and lines of the text report: phases, modules, operators, energy; speed, utilisation, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from stepscope.analysis.caveats import NotMeasured
from stepscope.analysis.energy.tables import ESTIMATED, NO_INTERVAL
from stepscope.analysis.memory.headroom import Peak, which_fit
from stepscope.analysis.memory.limits import fit_command
from stepscope.analysis.processes import ALL, CHILDREN, LAUNCHER, RANK, WATCHED
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD
from stepscope.analysis.time.tables import largest_difference, mean_differs_from_median
from stepscope.quantities import find
from stepscope.runfolder import AUTOGRAD_NODE
from stepscope.units import (
    NOT_MEASURED,
    bracketed,
    bytes_,
    component_label,
    cut_in_the_middle,
    distinct_width,
    duration,
    estimate,
    number,
    percent,
    plural,
    row_label,
    si,
)

_BARS = (24, 8)  # cells, on a wide and on a narrow terminal
_TOP = 6
WIDTH = 100
_NAMES = 18  # characters of a name that tell it apart
_PADDING = 2
SHARED = "~ "  # of a time that is a share, by elements, of updates that serve many layers
_MARK = "* "  # of a share that its time contradicts
OPERATOR_WIDTH = 40  # of an operator, with which aten::max_pool2d_with_indices is told from its backward
_WIDTHS = {"forward": 8, "backward": 8, "of step": 8, "rate": 12, "median": 8}
_MODEL_PHASES = ("forward", "backward", "optimizer")
_LOOP_PHASES = ("data", "communication", "other")


def phase_table(phases: pl.DataFrame, whole: bool = True) -> list[RenderableType]:
    """Return the step by phase, or what was profiled of it; with bars; framework overhead is the last of them."""
    if phases.is_empty():
        return []
    tables = tuple(_phases(phases, width, whole) for width in _BARS)
    return [Text(""), Constrain(Fitting(tables, len(row_label(FRAMEWORK_OVERHEAD))), WIDTH)]


def _phases(phases: pl.DataFrame, bar: int, whole: bool) -> Table:
    on_device = phases["device_ns"].is_not_null().any()
    table = new_table(
        "where the step goes" if whole else "in the parts profiled", "time", "95 % CI", "of step", *_device(on_device)
    )
    table.add_column(width=bar)
    for row in phases.iter_rows(named=True):
        between = "" if row["low_ns"] is None else bracketed(duration(row["low_ns"]), duration(row["high_ns"]))
        device = [duration(row["device_ns"])] if on_device else []
        cells = [row_label(row["phase"]), duration(row["ns"]), between, _share_cell(row, "ns"), *device]
        add_row(table, *cells, _bar(row["share"], bar))
    return table


def module_table(modules: pl.DataFrame) -> list[RenderableType]:
    """The modules with the most self time; that of modules inside them is not counted."""
    named = modules.filter(
        pl.col("module").is_not_null() & (pl.col("module") != FRAMEWORK_OVERHEAD), pl.col("share") > 0
    )
    if named.is_empty():
        return []
    order = "device_ns" if named["device_ns"].is_not_null().any() else "share"
    shown = named.sort(order, "module", descending=[True, False], nulls_last=True).head(_TOP)
    title = f"top modules of {len(named)}"
    lines = shown["source"].is_not_null().any()
    kinds = ((True, lines), (False, lines), (False, False))
    tables = tuple(_modules(shown, title, with_type=kind, with_line=line) for kind, line in kinds)
    return [Text(""), Constrain(Fitting(tables, distinct_width(shown["module"].to_list())), WIDTH)]


def _modules(shown: pl.DataFrame, title: str, *, with_type: bool, with_line: bool) -> Table:
    on_device = shown["device_ns"].is_not_null().any()
    table = new_table(title, *(["type"] if with_type else []), *_MODEL_PHASES, "of step", *_device(on_device))
    if with_line:
        table.add_column("called at", no_wrap=True)
    names = tuple(row or "(the model)" for row in shown["module"])
    for name, row in zip(names, shown.iter_rows(named=True), strict=True):
        times = [duration(row[f"{phase}_ns"]) for phase in _MODEL_PHASES]
        if row["optimizer_shared"]:
            times[-1] = f"{SHARED}{times[-1]}"
        device = [duration(row["device_ns"])] if on_device else []
        kind = [row["type"] or ""] if with_type else []
        line = [short_source(row["source"])] if with_line else []
        table.add_row(CutName(name, names), *map(Text, (*kind, *times, _share_cell(row), *device, *line)))
    return table


def short_source(source: str | None) -> str:
    """Return a line of code by the name of its file: "gpt2/model.py:12" is "model.py:12"."""
    return NOT_MEASURED if source is None else source.rpartition("/")[2]


@dataclass(frozen=True)
class CutName:
    """A name in a table that gives way in its middle, so that it stays different from the others there."""

    name: str
    among: tuple[str, ...]

    def __str__(self) -> str:
        return self.name

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_NAMES, cell_len(self.name)), cell_len(self.name))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cut = cut_in_the_middle(self.among, options.max_width)
        yield Text(cut[self.among.index(self.name)], no_wrap=True, overflow="ellipsis")


def operator_table(kinds: pl.DataFrame) -> list[RenderableType]:
    """The operators with the most self time, on the CPU and on accelerators."""
    named = kinds.filter(pl.col("name") != FRAMEWORK_OVERHEAD)
    if named.is_empty():
        return []
    shown, title = named.head(_TOP), f"top ops of {len(named)}"
    lines = [{"with_line": True}] if shown["source"].is_not_null().any() else []
    tables = (
        _operators(shown, title),
        *(_operators_by_phase(shown, title, with_rate=True, **line) for line in lines),
        *(_operators_by_phase(shown, title, with_rate=False, **line) for line in lines),
        _operators_by_phase(shown, title, with_rate=True),
        _operators_by_phase(shown, title, with_rate=False),
    )
    return [Text(""), Constrain(Fitting(tables, OPERATOR_WIDTH), WIDTH)]


def _operators(kinds: pl.DataFrame, title: str) -> Table:
    """A column a phase, so that a row adds up; those of the loop only where one of these rows has time there."""
    on_device = (kinds["device"] != CPU).any()
    loop = [phase for phase in _LOOP_PHASES if (kinds[f"{phase}_ns"] > 0).any()]
    phases = [*_MODEL_PHASES, *loop]
    table = new_table(title, "calls", *phases, "of step", "rate", *(["device"] if on_device else []))
    if kinds["source"].is_not_null().any():
        table.add_column("most at", no_wrap=True)
    names = tuple(map(operator_name, kinds.iter_rows(named=True)))
    for row in kinds.iter_rows(named=True):
        times = [duration(row[f"{phase}_ns"]) for phase in phases]
        rate = si(row["flops_per_s"], "FLOP/s")
        cells = [number(row["count"]), *times, _share_cell(row), rate, *([row["device"]] if on_device else [])]
        line = [short_source(row["source"])] if len(table.columns) > len(cells) + 1 else []
        add_row(table, CutName(operator_name(row), names), *cells, *line)
    return table


def _operators_by_phase(kinds: pl.DataFrame, title: str, *, with_rate: bool, with_line: bool = False) -> Table:
    """The same in fewer columns: the whole time, and the phases that it lies in, longest first."""
    on_device = (kinds["device"] != CPU).any()
    rates = ["rate"] if with_rate else []
    calls = ["calls"] if with_rate else []
    table = new_table(title, *calls, "time", "phase", "of step", *rates, *(["device"] if on_device else []))
    if with_line:
        table.add_column("most at", no_wrap=True)
    names = tuple(map(operator_name, kinds.iter_rows(named=True)))
    for row in kinds.iter_rows(named=True):
        spent = {phase: row[f"{phase}_ns"] or 0.0 for phase in (*_MODEL_PHASES, *_LOOP_PHASES)}
        longest, *others = sorted((phase for phase in spent if spent[phase] > 0), key=lambda phase: -spent[phase]) or [
            ""
        ]
        phase = f"{longest}, ..." if others else longest
        cells = [duration(row["total_ns"]), phase, _share_cell(row)]
        if with_rate:
            cells = [number(row["count"]), *cells, si(row["flops_per_s"], "FLOP/s")]
        line = [short_source(row["source"])] if with_line else []
        add_row(table, CutName(operator_name(row), names), *cells, *([row["device"]] if on_device else []), *line)
    return table


def _share_cell(row: dict[str, Any], median: str = "total_ns") -> str:
    """The share of the step, marked where interruptions made the mean of what was recorded another."""
    return f"{_MARK}{percent(row['share'])}" if mean_differs_from_median(row, median) else percent(row["share"])


def shares_note(phases: pl.DataFrame, modules: pl.DataFrame, kinds: pl.DataFrame) -> list[RenderableType]:
    """Return what a mark says, where there is one: by how much interruptions changed the mean of what was recorded."""
    ops = kinds.filter(pl.col("name") != FRAMEWORK_OVERHEAD).head(_TOP).iter_rows(named=True)
    named = modules.filter(pl.col("module").is_not_null()).iter_rows(named=True)
    worst = largest_difference(ops) or largest_difference(named)
    phase = largest_difference(phases.iter_rows(named=True), "ns")
    shared: list[RenderableType] = []
    if _any_shared(modules):
        shared.append(Constrain(Text(f"{SHARED}{SHARED_UPDATES}", style="dim"), WIDTH))
    if phase is None and worst is None:
        return shared
    said = f"{_MARK}single steps lay far off, and are not in the times and shares"
    if worst is not None:
        name = row_label(worst.get("name") or worst.get("module") or "the model")
        said += f" ({name}: {duration(worst['total_ns'])}, with them {duration(worst['mean_ns'])})"
    elif phase is not None:
        said += f" ({row_label(phase['phase'])}: {duration(phase['ns'])}, with them {duration(phase['mean_ns'])})"
    return [*shared, Constrain(Text(said, style="dim"), WIDTH)]


SHARED_UPDATES = "one kernel updates many layers: its time is shared out by their parameters"


def _any_shared(modules: pl.DataFrame) -> bool:
    return bool(modules.select((pl.col("optimizer_shared") & (pl.col("optimizer_ns") > 0)).any()).item())


def operator_name(row: dict[str, Any]) -> str:
    """Return the name of an operator as the terminal's tables have it."""
    return row_label(str(row["name"])).replace(AUTOGRAD_NODE, "engine: ")


def energy_table(totals: pl.DataFrame) -> list[RenderableType]:
    """Power and energy of each component with intervals; what is not measured is called by its name."""
    if totals.is_empty():
        return []
    tables = (_energy(totals, with_total=True), _energy(totals, with_total=False))
    return [Text(""), Constrain(Fitting(tables), WIDTH)]


def _energy(totals: pl.DataFrame, *, with_total: bool) -> Table:
    kinds = ["kind"] if (totals["kind"] != "measured").any() else []
    gaps = ["not covered"] if (totals["gap_s"] > 0).any() else []
    table = new_table("energy", *kinds, "power", "a step", *(["after warm-up"] if with_total else []), *gaps)
    for row in totals.iter_rows(named=True):
        cells = [
            component_label(row["component"]),
            *([row["kind"].upper()] if kinds and row["kind"] != "measured" else kinds and [""]),
        ]
        sure = f" ({NO_INTERVAL})" if row["kind"] == ESTIMATED else ""
        cells.append(estimate(row["watts_mean"], row["watts_low"], row["watts_high"], "W") + sure)
        cells.append(si(row["joules_per_step"], "J"))
        cells += [estimate(row["joules"], row["low"], row["high"], "J")] if with_total else []
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
        left = name in ("type", "phase", "device", "kind", "verdict", "status")
        # A width that is kept: on a narrow terminal the names in the first column give way, not the numbers.
        table.add_column(
            name, justify="left" if left else "right", no_wrap=True, min_width=_WIDTHS.get(name, len(name))
        )
    return table


def add_row(table: Table, *cells: str | CutName) -> None:
    """Cells as plain text: a name may hold what rich takes for markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def _bar(share: float | None, width: int) -> str:
    return "█" * round(width * min(max(share or 0.0, 0.0), 1.0))


_LABEL_WIDTH = 13
_MOST_CORES = 12
_MOST_NOTES = 3
_MOST_MISSING = 7
_FEW_MISSING = 4
_CORES_A_LINE = 2
TRAINING = "training process"
_NAMES_OF_CHANNELS = {WATCHED: TRAINING, CHILDREN: "child processes", ALL: "all processes"}
_SHARED_PAGES = {"rss": "shared pages in each", "pss": "shared pages once"}
_BLOCKS = " ▁▂▃▄▅▆▇█"


def labelled(label: str, *said: str | Text) -> RenderableType:
    """A line with its label on the left; what does not fit goes on below the text, not below the label."""
    line = Table.grid(padding=(0, 1))
    line.add_column(width=_LABEL_WIDTH, style="cyan", no_wrap=True)
    line.add_column()
    for row, text in enumerate(said):
        line.add_row(Text(label if row == 0 else ""), text if isinstance(text, Text) else Text(text))
    return line


def speed(metrics: pl.DataFrame, meta: dict[str, Any]) -> list[RenderableType]:
    """Time of a step, samples and an emulator's frames a second, and the accuracy that was reached."""
    said = [f"{_estimate(row)} a step, {row['note']} ({row['n']})" for row in _rows(metrics, "step_time")]
    rates = [_estimate(row) for row in _rows(metrics, "throughput")]
    rates += [f"{number(row['value'])} steps/s" for row in _rows(metrics, "step_rate")]
    said += [f"{', '.join(rates)} achieved"] if rates else []
    result: dict[str, Any] = meta.get("result") or {}
    counters = result.get("counters") or {}
    if counters.get("frames_per_s") is not None:
        said.append(
            f"{number(counters['frames_per_s'])} frames/s of the emulator, {counters['frames']:,} frames played"
        )
    if result.get("accuracy") is not None:
        data = (meta.get("workload") or {}).get("data") or {}
        origin = " ".join(str(data[key]) for key in ("name", "kind") if data.get(key)) or "its data"
        said.append(f"accuracy {percent(result['accuracy'])} on {origin}")
    return [labelled("speed", *said)] if said else []


def utilisation(metrics: pl.DataFrame) -> list[RenderableType]:
    """Busy share of every core, their mean, CPU utilisation of the training process or of all, accelerators."""
    lines = []
    cores = _rows(metrics, "core_utilisation")
    if cores:
        shown = [_core(row) for row in cores[:_MOST_CORES]]
        lines += ["   ".join(shown[first : first + _CORES_A_LINE]) for first in range(0, len(shown), _CORES_A_LINE)]
        if len(cores) > _MOST_CORES:
            lines.append(f"and {plural(len(cores) - _MOST_CORES, 'more core')}")
    summary = [f"mean of all cores {_estimate(row)}" for row in _rows(metrics, "mean_cpu_utilisation")]
    summary += [f"{_who(row)} {_estimate(row)}" for row in _headline(_rows(metrics, "process_cpu_utilisation"))]
    idle = [
        f"{row['scope'].removeprefix('core:')}: {percent(row['value'], 0)}"
        for row in _rows(metrics, "idle_state_ratio")
    ]
    lines += ["; ".join(summary)] if summary else []
    lines += [f"{row['scope']} {_estimate(row)}" for row in _rows(metrics, "accelerator_utilisation")]
    lines += [f"idle residency by core  {'  '.join(idle[:_MOST_CORES])}"] if idle else []
    return [labelled("utilisation", *lines)] if lines else []


def other_quantities(metrics: pl.DataFrame) -> list[RenderableType]:
    """The readings that no other line is made for, under its own name and unit."""
    lines = []
    for row in metrics.filter(pl.col("value").is_not_null()).iter_rows(named=True):
        known = find(row["metric"], row["unit"])
        if known.plain:
            label = f"{known.label_within}, {row['scope'].replace(':', ' ')}"
            lines.append(f"{label}: {_estimate(row)}")
    return [labelled("other", *lines)] if lines else []


def memory(metrics: pl.DataFrame, meta: dict[str, Any], peak: Peak | None = None) -> list[RenderableType]:
    """The numbers that are called memory, each by its own name, and what predicts that of the training alone.

    peak: of the training alone.
    """
    peaks, held = (
        _sizes(metrics, metric, word) for metric, word in (("peak_memory", "peak"), ("resident_memory", "median"))
    )
    command = fit_command(meta) if peaks else None
    if any(row["scope"] == ALL for row in _rows(metrics, "peak_memory")):
        command = None  # predicts one process
    predicted = f"recording included; of the training alone, without running it: {command}" if command else ""
    said = [", ".join(peaks), *_training_alone(peak), ", ".join(held), predicted]
    return [labelled("memory", *(text for text in said if text))] if peaks or held else []


def _training_alone(peak: Peak | None) -> list[str]:
    """The peak without what the recorder held in the training's process, and what its heap grew by since; what fits."""
    if peak is None:
        return []
    alone = f"the training alone peaks at [{bytes_(peak.low)}, {bytes_(peak.high)}]"
    spread = " and it scatters the heap" if peak.low < peak.high - peak.held else ""
    held = [f"up to {bytes_(peak.held)} of it is the profiler's{spread}: {alone}"] if peak.held else []
    return [*held, f"{which_fit(peak)} of free memory"]


def energy_notes(notes: Sequence[str]) -> list[RenderableType]:
    """Return what to know of power and energy, the first few; the page and --json have all."""
    return [labelled("on energy", *notes[:_MOST_NOTES])] if notes else []


def profiling_overhead(overhead: pl.DataFrame, profiled: str) -> list[RenderableType]:
    """Return how many steps were profiled, and the profiling overhead, where it is known."""
    values = {row["metric"]: row for row in overhead.iter_rows(named=True) if row["value"] is not None}
    said = []
    if "recorded_step_overhead" in values:
        step, share = values["recorded_step_overhead"], values["recorded_step_overhead_share"]
        if step["value"] > 0:
            said.append(f"a profiled step takes {duration(step['value'])} longer: {_estimate(share)} of a step")
        else:  # a cost below 0 is the noise around a small one
            most = "" if share["high"] is None else f": at most {percent(share['high'])} of a step"
            said.append(f"of a profiled step too small to tell{most}")
    if "run_overhead_share" in values:
        said.append(f"{_estimate(values['run_overhead_share'])} of the whole run: {profiled}")
    elif profiled:
        said.append(profiled)
    if "sampler_cpu_share" in values:
        said.append(f"sampler {percent(values['sampler_cpu_share']['value'], 2)} of a core")
    return [labelled("overhead", *said)] if said else []


def missing(entries: list[NotMeasured]) -> list[RenderableType]:
    """Return what was not measured, and why, a line for those with the same reason; of many, all names before."""
    if not entries:
        return []
    alike: dict[tuple[str, str | None], list[str]] = {}
    for entry in entries:
        alike.setdefault((entry.why, entry.remedy), []).append(entry.what)
    every = Text(", ".join(dict.fromkeys(entry.what for entry in entries)), style="bold")
    lines = [every] if len(alike) > _FEW_MISSING else []
    for (why, remedy), names in list(alike.items())[:_MOST_MISSING]:
        lines.append(Text.assemble((", ".join(names), "bold"), f": {why}{f' -> {remedy}' if remedy else ''}"))
    if len(alike) > _MOST_MISSING:
        lines.append(Text(f"and {len(alike) - _MOST_MISSING} more: stepscope report RUN --json lists them"))
    return [labelled("not measured", *lines)]


def _rows(metrics: pl.DataFrame, name: str) -> list[dict[str, Any]]:
    """Rows of a metric; child processes that there were not, or too briefly to be read, are not worth a line."""
    idle = (pl.col("scope") == CHILDREN) & (pl.col("value").fill_null(0.0) == 0)
    return metrics.filter((pl.col("metric") == name) & ~idle).to_dicts()


def _estimate(row: dict[str, Any]) -> str:
    """The value of a metric's row with its interval."""
    return estimate(row["value"], row["low"], row["high"], find(row["metric"], row["unit"]).shown_unit)


def _core(row: dict[str, Any]) -> str:
    name = row["scope"].replace(":", " ")
    if row["value"] is None:
        return f"{name} {NOT_MEASURED}"
    return f"{name} {_BLOCKS[round(row['value'] * (len(_BLOCKS) - 1))]} {_estimate(row)}"


def _whose(row: dict[str, Any]) -> str:
    return "" if row["scope"] == WATCHED else f"{_NAMES_OF_CHANNELS.get(row['scope'], row['scope'])} "


def _who(row: dict[str, Any]) -> str:
    return _NAMES_OF_CHANNELS.get(row["scope"], str(row["scope"]))


def _headline(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of several processes all together: each has its place in the table of ranks, but the only one that trained."""
    ranks = [row for row in rows if row["scope"].startswith(RANK)]
    alone = len({row["scope"] for row in ranks}) == 1
    kept = [row for row in rows if row not in ranks and row["scope"] != LAUNCHER]
    return [*kept, *({**row, "scope": TRAINING} for row in ranks if alone)]


def _sizes(metrics: pl.DataFrame, metric: str, word: str) -> list[str]:
    """Each size with whose it is, of several processes said once."""
    said: list[str] = []
    for row in _headline(_rows(metrics, metric)):
        again = said and row["scope"] == ALL
        said.append(f"{'' if again else f'{_whose(row)}{word} '}{bytes_(row['value'])} ({_counted(row)})")
    return said


def _counted(row: dict[str, Any]) -> str:
    """The source of a size; of several processes, how often a page is counted that they share."""
    said = _SHARED_PAGES.get(row["source"]) if row["scope"] == ALL else None
    return f"{row['source']}, {said}" if said else str(row["source"])
