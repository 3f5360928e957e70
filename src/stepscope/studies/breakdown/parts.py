"""The parts of one run by family of operation: ms and joules of a step, each adding up to the whole of the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from stepscope.analysis.memory_events import peak
from stepscope.analysis.run import Run
from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import PHASES
from stepscope.studies.breakdown.families import OPTIMIZER, family

_WHOLE = ("total", "device")  # components that stand for the whole board


@dataclass(frozen=True)
class Joules:
    """Energy of a step by family, J, of one component, with how far each can be off (half of 90 %)."""

    component: str
    joules: Mapping[str, float]
    half: Mapping[str, float | None]


def milliseconds(run: Run) -> dict[str, float]:
    """ms of a step on the CPU by family; what lies between operations is one of them. Empty: no ops were recorded."""
    kinds, steps = run.op_kinds(), recorded_steps(run)
    step_ms = float(steps["length_ns"].to_numpy().mean()) / 1e6 if len(steps) else 0.0
    found: dict[str, float] = defaultdict(float)
    for row in kinds.filter(pl.col("device") == "cpu").iter_rows(named=True):
        spent = (row["share"] or 0.0) * step_ms
        updating = _share_of_optimizer(row)
        found[OPTIMIZER] += spent * updating
        found[family(row["name"])] += spent * (1 - updating)
    return {name: ms for name, ms in found.items() if ms > 0}


def joules(run: Run) -> Joules | None:
    """Energy by family of the component that stands for the whole board, else of the one that took most."""
    frame = run.energy("op")
    known = frame.filter(pl.col("joules_per_step").is_not_null() & (pl.col("name") != "(whole)"))
    if known.is_empty():
        return None
    component = next((name for name in _WHOLE if name in set(known["component"])), None)
    if component is None:
        totals = known.group_by("component").agg(pl.col("joules_per_step").sum())
        component = str(totals.sort("joules_per_step", descending=True)["component"][0])
    found: dict[str, float] = defaultdict(float)
    half: dict[str, float | None] = {}
    rows = known.filter(pl.col("component") == component)
    for row in rows.filter(pl.col("rail") == rows["rail"][0]).iter_rows(named=True):  # two meters are not added
        name = OPTIMIZER if row["phase"] == "optimizer" else family(row["name"])
        found[name] += row["joules_per_step"]
        own = _half(row)
        before = half.get(name, 0.0)
        half[name] = None if own is None or before is None else before + own
    return Joules(component, dict(found), half)


def bytes_at_peak(events: pl.DataFrame) -> dict[tuple[str, str], int]:
    """Live bytes at the peak of a dry run by (who holds them, family of the op that made them)."""
    reached = peak(events)
    found: dict[tuple[str, str], int] = defaultdict(int)
    if reached is not None:
        for row in reached.tensors.iter_rows(named=True):
            made = family(row["op"]) if row["category"] in ("saved", "temporary", "workspace") else ""
            found[row["category"], made] += row["bytes"]
    return dict(found)


def _half(row: Mapping[str, float | None]) -> float | None:
    """The wider side of the interval: an end below 0 was cut off. Null where there is none."""
    value, low, high = row["joules_per_step"], row["low"], row["high"]
    return None if value is None or low is None or high is None else max(high - value, value - low)


def _share_of_optimizer(row: Mapping[str, float | None]) -> float:
    phases = {phase: row.get(f"{phase}_ns") or 0.0 for phase in PHASES}
    whole = sum(phases.values())
    return phases["optimizer"] / whole if whole else 0.0
