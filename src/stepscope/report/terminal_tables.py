"""The tables and lines of the text report: phases, modules, operators, energy; speed, utilisation, memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import polars as pl
from rich.console import RenderableType
from rich.constrain import Constrain
from rich.text import Text

from stepscope.analysis.caveats import NotMeasured
from stepscope.analysis.energy.tables import ESTIMATED, NO_INTERVAL
from stepscope.analysis.memory.headroom import ResidentPeak, size_verdicts_text
from stepscope.analysis.memory.limits import fit_command
from stepscope.analysis.process_scopes import ALL, CHILDREN, LAUNCHER, RANK, WATCHED
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD
from stepscope.analysis.time.tables import largest_difference
from stepscope.quantities import find_quantity
from stepscope.report.table import MARK, Column, FittedTable, Row, Table, labels, number_column, share_cell, text_column
from stepscope.runfolder import AUTOGRAD_NODE
from stepscope.units import (
    NOT_MEASURED,
    bytes_,
    component_label,
    count,
    distinct_width,
    duration,
    estimate,
    join_interval,
    number,
    percent,
    plural,
    row_label,
)

_BARS = (24, 8)  # cells, on a wide and on a narrow terminal
_TOP = 6
WIDTH = 100
SHARED = "~ "  # of a time that is a share, by elements, of updates that serve many layers
_WHOLE_MODEL = "(the model)"
OPERATOR_WIDTH = 40  # of an operator, with which aten::max_pool2d_with_indices is told from its backward
PHASE_WIDTHS = {"forward": 8, "backward": 8}
_MODEL_PHASES = ("forward", "backward", "optimizer")
_LOOP_PHASES = ("data", "communication", "other")


def phase_table(phases: pl.DataFrame, whole: bool = True) -> list[RenderableType]:
    """Return the step by phase, or what was profiled of it; with bars; framework overhead is the last of them."""
    if phases.is_empty():
        return []
    heading = "where the step goes" if whole else "in the parts profiled"
    columns = [
        text_column("phase", "phase", row_label),
        number_column("time", "ns", duration),
        Column("95 % CI", of=_time_interval_text),
        share_column("ns"),
        *device_time_column(phases),
        *(Column("", False, of=partial(_share_bar, width=width), key=f"{width} cells", wide=width) for width in _BARS),
    ]
    table = Table.from_rows("phases", columns, phases.iter_rows(named=True))
    others = [column.key or column.title for column in columns[1:-2]]
    choices = [(*others, columns[-2].key), (*others, columns[-1].key), others]
    return [Text(""), Constrain(FittedTable(table, choices, heading, len(row_label(FRAMEWORK_OVERHEAD))), WIDTH)]


def _time_interval_text(row: Row) -> str:
    return "" if row["low_ns"] is None else join_interval(duration(row["low_ns"]), duration(row["high_ns"]))


def _share_bar(row: Row, width: int) -> str:
    return "█" * round(width * min(max(row["share"] or 0.0, 0.0), 1.0))


def share_column(median: str = "total_ns") -> Column:
    """Return the column of shares, marked where interruptions made the mean of what was recorded another."""
    return Column("of step", of=lambda row: share_cell(row, median), key="share", wide=8)


def device_time_column(rows: pl.DataFrame) -> list[Column]:
    """Return the column of the time on an accelerator, where there is one."""
    return [number_column("on device", "device_ns", duration)] if rows["device_ns"].is_not_null().any() else []


def line_column(title: str, rows: pl.DataFrame) -> list[Column]:
    """Return the column of the lines of code, where any is known."""
    has_lines = rows["source"].is_not_null().any()
    return [text_column(title, "source", short_source, missing=NOT_MEASURED)] if has_lines else []


def module_table(modules: pl.DataFrame) -> list[RenderableType]:
    """The modules with the most self time; that of modules inside them is not counted."""
    named = modules.filter(
        pl.col("module").is_not_null() & (pl.col("module") != FRAMEWORK_OVERHEAD), pl.col("share") > 0
    )
    if named.is_empty():
        return []
    order = "device_ns" if named["device_ns"].is_not_null().any() else "share"
    largest = named.sort(order, "module", descending=[True, False], nulls_last=True).head(_TOP)
    columns = [
        Column("module", False, of=lambda row: row["module"] or _WHOLE_MODEL, names=True),
        text_column("type", "type"),
        *(number_column(phase, f"{phase}_ns", duration, wide=PHASE_WIDTHS[phase]) for phase in PHASE_WIDTHS),
        Column("optimizer", of=lambda row: f"{SHARED * row['optimizer_shared']}{duration(row['optimizer_ns'])}"),
        share_column(),
        *device_time_column(largest),
        *line_column("called at", largest),
    ]
    every = [column.title for column in columns[1:]]
    choices = [[title for title in every if title not in hidden] for hidden in ((), ("type",), ("type", "called at"))]
    table = Table.from_rows("modules", columns, largest.iter_rows(named=True))
    heading = f"layers ({_shown_of(named)})"
    names = max(distinct_width(largest["module"].to_list()), len(heading), len(_WHOLE_MODEL))
    return [Text(""), Constrain(FittedTable(table, choices, heading, names), WIDTH)]


def _shown_of(rows: pl.DataFrame) -> str:
    """Return how many rows there are, and how many of them are shown."""
    return f"{_TOP} of {len(rows)}" if len(rows) > _TOP else f"{len(rows)}"


def short_source(source: str | None) -> str:
    """Return a line of code by the name of its file: "gpt2/model.py:12" is "model.py:12"."""
    return NOT_MEASURED if source is None else source.rpartition("/")[2]


def operator_table(kinds: pl.DataFrame) -> list[RenderableType]:
    """The operators with the most self time: a column a phase, so that a row adds up, or the longest phase alone."""
    named = kinds.filter(pl.col("name") != FRAMEWORK_OVERHEAD)
    if named.is_empty():
        return []
    largest = named.head(_TOP)
    phases = [*_MODEL_PHASES, *(phase for phase in _LOOP_PHASES if (largest[f"{phase}_ns"] > 0).any())]
    columns = [
        Column("op", False, of=operator_name, names=True),
        number_column("calls", "count", count),
        *(number_column(phase, f"{phase}_ns", duration, wide=PHASE_WIDTHS.get(phase)) for phase in phases),
        number_column("time", "total_ns", duration),
        Column("phase", False, of=_longest_phase),
        share_column(),
        number_column("rate", "flops_per_s", "FLOP/s", wide=12),
        *([text_column("device", "device")] if (largest["device"] != CPU).any() else []),
        *line_column("most at", largest),
    ]
    ends_ = ["of step", "device", "most at"]
    widest = ["calls", *phases, *ends_, "rate"]
    short = [["calls", "time", "phase", "rate", *ends_], ["time", "phase", *ends_]]
    choices = [widest, *short, *([titles[:-1] for titles in short] if columns[-1].title == "most at" else [])]
    table = Table.from_rows("operators", columns, largest.iter_rows(named=True))
    return [Text(""), Constrain(FittedTable(table, choices, f"operators ({_shown_of(named)})", OPERATOR_WIDTH), WIDTH)]


def _longest_phase(row: Row) -> str:
    """Return the phase in which an operator spends the most time, with a sign that there are others."""
    spent = {phase: row[f"{phase}_ns"] or 0.0 for phase in (*_MODEL_PHASES, *_LOOP_PHASES)}
    phases = sorted((phase for phase in spent if spent[phase] > 0), key=lambda phase: -spent[phase])
    return "".join(phases[:1]) + ", ..." * (len(phases) > 1)


def shares_note(phases: pl.DataFrame, modules: pl.DataFrame, kinds: pl.DataFrame) -> list[RenderableType]:
    """Return what a mark says, where there is one: by how much interruptions changed the mean of what was recorded."""
    ops = kinds.filter(pl.col("name") != FRAMEWORK_OVERHEAD).head(_TOP).iter_rows(named=True)
    named = modules.filter(pl.col("module").is_not_null()).iter_rows(named=True)
    worst = largest_difference(ops) or largest_difference(named)
    phase = largest_difference(phases.iter_rows(named=True), "ns")
    shared: list[RenderableType] = []
    if modules.select((pl.col("optimizer_shared") & (pl.col("optimizer_ns") > 0)).any()).item():
        shared.append(Constrain(Text(f"{SHARED}{SHARED_UPDATES}", style="dim"), WIDTH))
    if phase is None and worst is None:
        return shared
    text = f"{MARK}outlying single steps are not in the times and shares"
    if worst is not None:
        name = row_label(worst.get("name") or worst.get("module") or "the model")
        text += f" ({name}: {duration(worst['total_ns'])}, with them {duration(worst['mean_ns'])})"
    elif phase is not None:
        text += f" ({row_label(phase['phase'])}: {duration(phase['ns'])}, with them {duration(phase['mean_ns'])})"
    return [*shared, Constrain(Text(text, style="dim"), WIDTH)]


SHARED_UPDATES = "one kernel updates many layers: its time is shared out by their parameters"


def operator_name(row: dict[str, Any]) -> str:
    """Return the name of an operator as the terminal's tables have it."""
    return row_label(str(row["name"])).replace(AUTOGRAD_NODE, "engine: ")


def energy_table(totals: pl.DataFrame) -> list[RenderableType]:
    """Power and energy of each component with intervals; what is not measured is called by its name."""
    if totals.is_empty():
        return []
    has_gaps = (totals["gap_s"] > 0).any()
    gaps = [number_column("not covered", "gap_s", lambda gap: f"{number(gap)} s" if gap else "")] if has_gaps else []
    columns = [
        text_column("component", "component", component_label),
        *(
            [text_column("kind", "kind", lambda kind: "" if kind == "measured" else kind.upper())]
            if (totals["kind"] != "measured").any()
            else []
        ),
        Column("power", of=_power),
        number_column("a step", "joules_per_step", "J"),
        Column("after warm-up", of=lambda row: estimate(row["joules"], row["low"], row["high"], "J")),
        *gaps,
    ]
    every = [column.title for column in columns[1:]]
    choices = [every, [title for title in every if title != "after warm-up"]]
    table = Table.from_rows("energy", columns, totals.iter_rows(named=True))
    return [Text(""), Constrain(FittedTable(table, choices, "energy"), WIDTH)]


def _power(row: Row) -> str:
    sure = f" ({NO_INTERVAL})" if row["kind"] == ESTIMATED and row["watts_low"] is None else ""
    return estimate(row["watts_mean"], row["watts_low"], row["watts_high"], "W") + sure


_LABEL_WIDTH = 13
_MOST_CORES, _CORES_A_LINE = 12, 2
_MOST_NOTES = 3
_MOST_MISSING, _FEW_MISSING = 7, 4
TRAINING = "training process"
_NAMES_OF_CHANNELS = {WATCHED: TRAINING, CHILDREN: "child processes", ALL: "all processes"}
_SHARED_PAGES = {"rss": "shared pages in each", "pss": "shared pages once"}
_BLOCKS = " ▁▂▃▄▅▆▇█"


def labelled(label: str, *texts: str | Text) -> RenderableType:
    """A line with its label on the left; what does not fit goes on below the text, not below the label."""
    line = labels(_LABEL_WIDTH, gap=1)
    for row, text in enumerate(texts):
        line.add_row(Text(label if row == 0 else ""), text if isinstance(text, Text) else Text(text))
    return line


def speed_lines(metrics: pl.DataFrame, meta: dict[str, Any]) -> list[RenderableType]:
    """Time of a step, samples and an emulator's frames a second, and the accuracy that was reached."""
    parts = [f"{_estimate_text(row)} a step, {row['note']} ({row['n']})" for row in _metric_rows(metrics, "step_time")]
    rates = [_estimate_text(row) for row in _metric_rows(metrics, "throughput")]
    rates += [f"{number(row['value'])} steps/s" for row in _metric_rows(metrics, "step_rate")]
    parts += [f"{', '.join(rates)} achieved"] if rates else []
    result: dict[str, Any] = meta.get("result") or {}
    counters = result.get("counters") or {}
    if counters.get("frames_per_s") is not None:
        parts.append(
            f"{number(counters['frames_per_s'])} frames/s of the emulator, {counters['frames']:,} frames played"
        )
    if result.get("accuracy") is not None:
        data = (meta.get("workload") or {}).get("data") or {}
        origin = " ".join(str(data[key]) for key in ("name", "kind") if data.get(key)) or "its data"
        parts.append(f"accuracy {percent(result['accuracy'])} on {origin}")
    return [labelled("speed", *parts)] if parts else []


def utilisation_lines(metrics: pl.DataFrame) -> list[RenderableType]:
    """Busy share of every core, their mean, CPU utilisation of the training process or of all, accelerators."""
    lines = []
    cores = _metric_rows(metrics, "core_utilisation")
    if cores:
        cells = [_core_text(row) for row in cores[:_MOST_CORES]]
        lines += ["   ".join(cells[first : first + _CORES_A_LINE]) for first in range(0, len(cells), _CORES_A_LINE)]
        if len(cores) > _MOST_CORES:
            lines.append(f"and {plural(len(cores) - _MOST_CORES, 'more core')}")
    summary = [f"mean of all cores {_estimate_text(row)}" for row in _metric_rows(metrics, "mean_cpu_utilisation")]
    used = _rows_of_all_processes(_metric_rows(metrics, "process_cpu_utilisation"))
    summary += [f"{_channel_name(row)} {_estimate_text(row)}" for row in used]
    idle = [
        f"{row['scope'].removeprefix('core:')}: {percent(row['value'], 0)}"
        for row in _metric_rows(metrics, "idle_state_ratio")
    ]
    lines += ["; ".join(summary)] if summary else []
    lines += [f"{row['scope']} {_estimate_text(row)}" for row in _metric_rows(metrics, "accelerator_utilisation")]
    lines += [f"idle residency by core  {'  '.join(idle[:_MOST_CORES])}"] if idle else []
    return [labelled("utilisation", *lines)] if lines else []


def other_quantities(metrics: pl.DataFrame) -> list[RenderableType]:
    """The readings that no other line is made for, under its own name and unit."""
    lines = []
    for row in metrics.filter(pl.col("value").is_not_null()).iter_rows(named=True):
        definition = find_quantity(row["metric"], row["unit"])
        if definition.plain:
            label = f"{definition.label_within}, {row['scope'].replace(':', ' ')}"
            lines.append(f"{label}: {_estimate_text(row)}")
    return [labelled("other", *lines)] if lines else []


def memory_lines(metrics: pl.DataFrame, meta: dict[str, Any], peak: ResidentPeak | None = None) -> list[RenderableType]:
    """The numbers that are called memory, each by its own name, and what predicts that of the training alone.

    peak: of the training alone.
    """
    peaks, reserved = (
        _size_texts(metrics, metric, word) for metric, word in (("peak_memory", "peak"), ("resident_memory", "median"))
    )
    command = fit_command(meta) if peaks else None
    if any(row["scope"] == ALL for row in _metric_rows(metrics, "peak_memory")):
        command = None  # predicts one process
    predicted = f"recording included; of the training alone, without running it: {command}" if command else ""
    parts = [", ".join([*peaks, *reserved]), *_training_peak_lines(peak), predicted]
    return [labelled("memory", *(text for text in parts if text))] if peaks or reserved else []


def _training_peak_lines(peak: ResidentPeak | None) -> list[str]:
    """The peak without what the recorder held in the training's process, and what its heap grew by since; what fits."""
    if peak is None:
        return []
    fits = f"{size_verdicts_text(peak)} of free memory"
    if peak.several:
        return [f"all processes [{bytes_(peak.low)}, {bytes_(peak.high)}], shared pages once or in each: {fits}"]
    alone = f"the training alone peaks at [{bytes_(peak.low)}, {bytes_(peak.high)}]"
    spread = " and it scatters the heap" if peak.low < peak.high - peak.held else ""
    differs = bytes_(peak.low) != bytes_(peak.high)
    recorder_lines = [f"up to {bytes_(peak.held)} of it is the profiler's{spread}: {alone}"] if differs else []
    return [*recorder_lines, fits]


def energy_notes(notes: Sequence[str]) -> list[RenderableType]:
    """Return what to know of power and energy, the first few; the page and --json have all."""
    return [labelled("on energy", *notes[:_MOST_NOTES])] if notes else []


def profiling_overhead(overhead: pl.DataFrame, profiled: str) -> list[RenderableType]:
    """Return how many steps were profiled, and the profiling overhead, where it is known."""
    values = {row["metric"]: row for row in overhead.iter_rows(named=True) if row["value"] is not None}
    parts = []
    if "recorded_step_overhead" in values:
        step, share = values["recorded_step_overhead"], values["recorded_step_overhead_share"]
        if step["value"] > 0:
            parts.append(
                f"a profiled step takes {duration(step['value'])} longer: {_estimate_text(share)} of those beside it"
            )
        else:  # a cost below 0 is the noise around a small one
            most = f": at most {percent(share['high'])} of a step" if share["high"] else ""  # 0: its CI was cut there
            parts.append(f"of a profiled step too small to tell{most}")
    if "run_overhead_share" in values:
        parts.append(f"{_estimate_text(values['run_overhead_share'])} of the whole run: {profiled}")
    elif profiled:
        parts.append(profiled)
    if "sampler_cpu_share" in values:
        parts.append(f"sampler {percent(values['sampler_cpu_share']['value'], 2)} of a core")
    return [labelled("overhead", *parts)] if parts else []


def not_measured_lines(entries: list[NotMeasured]) -> list[RenderableType]:
    """Return what was not measured, and why, a line for those with the same reason; of many, all names before."""
    if not entries:
        return []
    alike: dict[tuple[str, str | None], list[str]] = {}
    for entry in entries:
        alike.setdefault((entry.why, entry.remedy), []).append(entry.what.replace("_", " "))
    every = Text(", ".join(dict.fromkeys(name for names in alike.values() for name in names)), style="bold")
    lines = [every] if len(alike) > _FEW_MISSING else []
    for (why, remedy), names in list(alike.items())[:_MOST_MISSING]:
        lines.append(Text.assemble((", ".join(names), "bold"), f": {why}{f' -> {remedy}' if remedy else ''}"))
    if len(alike) > _MOST_MISSING:
        lines.append(Text(f"and {len(alike) - _MOST_MISSING} more: stepscope report RUN --json lists them"))
    return [labelled("not measured", *lines)]


def _metric_rows(metrics: pl.DataFrame, name: str) -> list[dict[str, Any]]:
    """Rows of a metric; child processes that there were not, or too briefly to be read, are not worth a line."""
    idle = (pl.col("scope") == CHILDREN) & (pl.col("value").fill_null(0.0) == 0)
    return metrics.filter((pl.col("metric") == name) & ~idle).to_dicts()


def _estimate_text(row: dict[str, Any]) -> str:
    return estimate(row["value"], row["low"], row["high"], find_quantity(row["metric"], row["unit"]).shown_unit)


def _core_text(row: dict[str, Any]) -> str:
    name = row["scope"].replace(":", " ")
    if row["value"] is None:
        return f"{name} {NOT_MEASURED}"
    return f"{name} {_BLOCKS[round(row['value'] * (len(_BLOCKS) - 1))]} {_estimate_text(row)}"


def _channel_name(row: dict[str, Any]) -> str:
    return _NAMES_OF_CHANNELS.get(row["scope"], str(row["scope"]))


def _rows_of_all_processes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of all processes together; that of a rank only where it alone trained, as "training"."""
    ranks = [row for row in rows if row["scope"].startswith(RANK)]
    alone = len({row["scope"] for row in ranks}) == 1
    others = [row for row in rows if row not in ranks and row["scope"] != LAUNCHER]
    return [*others, *({**row, "scope": TRAINING} for row in ranks if alone)]


def _size_texts(metrics: pl.DataFrame, metric: str, word: str) -> list[str]:
    """Each size with whose it is, of several processes said once."""
    parts: list[str] = []
    for row in _rows_of_all_processes(_metric_rows(metrics, metric)):
        again = parts and row["scope"] == ALL
        of_others = "" if row["scope"] == WATCHED else f"{_channel_name(row)} "
        whose = "" if again else f"{of_others}{word} "
        parts.append(f"{whose}{bytes_(row['value'])} ({_source_of_size(row)})")
    return parts


def _source_of_size(row: dict[str, Any]) -> str:
    """The source of a size; of several processes, how often a page is counted that they share."""
    pages = _SHARED_PAGES.get(row["source"]) if row["scope"] == ALL else None
    return f"{row['source']}, {pages}" if pages else str(row["source"])
