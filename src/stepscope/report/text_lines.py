"""The lines of the text report: speed, utilisation, memory, own cost, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.analysis.fit_command import fit_command
from stepscope.analysis.not_measured import NotMeasured
from stepscope.units import NOT_MEASURED, bytes_, duration, number, percent, plural

_LABEL_WIDTH = 13
_MOST_CORES = 12
_MOST_NOTES = 3
_MOST_MISSING = 7
_FEW_MISSING = 4
_CORES_A_LINE = 2
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
    said = []
    for row in _rows(metrics, "step_time"):
        between = _between(duration(row["low"]), duration(row["high"]))
        said.append(f"{duration(row['value'])} a step{between}, {row['note']} ({row['n']})")
    for row in _rows(metrics, "throughput"):
        between = _between(number(row["low"], 4), number(row["high"], 4))
        said.append(f"{number(row['value'], 4)} samples/s{between}")
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
    """Busy share of every core, their mean, the trainer's own use, accelerators."""
    lines = []
    cores = _rows(metrics, "core_utilisation")
    if cores:
        shown = [_core(row) for row in cores[:_MOST_CORES]]
        lines += ["   ".join(shown[first : first + _CORES_A_LINE]) for first in range(0, len(shown), _CORES_A_LINE)]
        if len(cores) > _MOST_CORES:
            lines.append(f"and {plural(len(cores) - _MOST_CORES, 'more core')}")
    summary = [f"mean of all cores {_share(row, 1)}" for row in _rows(metrics, "mean_cpu_utilisation")]
    summary += [f"{row['scope']} uses {_cores(row)}" for row in _rows(metrics, "process_cpu_utilisation")]
    idle = [
        f"{row['scope'].removeprefix('core:')}: {percent(row['value'], 0)}"
        for row in _rows(metrics, "idle_state_ratio")
    ]
    lines += ["; ".join(summary)] if summary else []
    lines += [f"{row['scope']} {_share(row, 1)}" for row in _rows(metrics, "accelerator_utilisation")]
    lines += [f"idle state ratio by core  {'  '.join(idle[:_MOST_CORES])}"] if idle else []
    return [labelled("utilisation", *lines)] if lines else []


def memory(metrics: pl.DataFrame, meta: dict[str, Any]) -> list[RenderableType]:
    """The numbers that are called memory, each by its own name, and what foretells that of the training alone."""
    peaks = [f"{_whose(row)}peak {bytes_(row['value'])} ({row['source']})" for row in _rows(metrics, "peak_memory")]
    held = [
        f"{_whose(row)}median {bytes_(row['value'])} ({row['source']})" for row in _rows(metrics, "resident_memory")
    ]
    command = fit_command(meta) if peaks else None
    foretold = f"recording included; of the training alone, without running it: {command}" if command else ""
    said = [", ".join(peaks), ", ".join(held), foretold]
    return [labelled("memory", *(text for text in said if text))] if peaks or held else []


def energy_notes(notes: Sequence[str]) -> list[RenderableType]:
    """What to know of power and energy, the first few; the page and --json have all."""
    return [labelled("on energy", *notes[:_MOST_NOTES])] if notes else []


def own_cost(overhead: pl.DataFrame) -> list[RenderableType]:
    """What measuring cost, where it could be found out."""
    values = {row["metric"]: row for row in overhead.iter_rows(named=True) if row["value"] is not None}
    said = []
    if "recorded_step_overhead" in values:
        step, share = values["recorded_step_overhead"], values["recorded_step_overhead_share"]
        small = "too small to tell: " if step["value"] <= 0 else ""  # a cost below 0 is the noise around a small one
        said.append(f"{small}{duration(step['value'])} a recorded step, {_share(share, 1)}")
        said.append(f"{_share(values['run_overhead_share'], 1)} over the whole run")
    if "sampler_cpu_share" in values:
        said.append(f"sampler {_share(values['sampler_cpu_share'], 2)} of a core")
    return [labelled("own cost", *said)] if said else []


def missing(entries: list[NotMeasured]) -> list[RenderableType]:
    """What was not measured, and why, a line for those that have the same reason; of many, all names before."""
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
    """Rows of a metric; children that there were not, or too briefly to be read, are not worth a line."""
    idle = (pl.col("scope") == "children") & (pl.col("value").fill_null(0.0) == 0)
    return metrics.filter((pl.col("metric") == name) & ~idle).to_dicts()


def _between(low: str, high: str) -> str:
    return "" if NOT_MEASURED in (low, high) else f" ({low} to {high})"


def _share(row: dict[str, Any], digits: int = 0) -> str:
    return f"{percent(row['value'], digits)}{_between(percent(row['low'], digits), percent(row['high'], digits))}"


def _core(row: dict[str, Any]) -> str:
    name = row["scope"].removeprefix("core:")
    if row["value"] is None:
        return f"{name} {NOT_MEASURED}"
    return f"{name} {_BLOCKS[round(row['value'] * (len(_BLOCKS) - 1))]} {_share(row, 1)}"


def _cores(row: dict[str, Any]) -> str:
    value = number(row["value"])
    return f"{value} {'core' if value == '1' else 'cores'}{_between(number(row['low']), number(row['high']))}"


def _whose(row: dict[str, Any]) -> str:
    return "" if row["scope"] == "process" else f"{row['scope']} "
