"""What the index says of a run: from run.json, summary.json, and where that is not yet written the steps.

Null where they do not say.
Measured, simulated and estimated energy have columns of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.step_glance import step_glances
from stepscope.runfolder import RunReader
from stepscope.store.manifest import Fact

FACTS: dict[str, Any] = {
    **{"status": pl.String, "workload": pl.String, "batch_size": pl.Int64, "optimizer": pl.String},
    **{"precision": pl.String, "board": pl.String, "simulated": pl.String, "imported": pl.String},
    **{"stepscope": pl.String, "torch": pl.String, "started_s": pl.Float64, "steps": pl.Int64},
    **{"step_time_ns": pl.Float64, "throughput_per_s": pl.Float64, "energy_per_step_j": pl.Float64},
    **{"simulated_energy_per_step_j": pl.Float64, "estimated_energy_per_step_j": pl.Float64},
    **{"peak_memory_bytes": pl.Float64, "verdict": pl.String},
}
_METRICS = {
    "step_time": "step_time_ns",
    "throughput": "throughput_per_s",
    "energy_per_step": "energy_per_step_j",
    "simulated_energy_per_step": "simulated_energy_per_step_j",
    "estimated_energy_per_step": "estimated_energy_per_step_j",
    "peak_memory": "peak_memory_bytes",
}
_NO_BOARD = "other_machine"  # of a machine that no board file describes
_WHOLE = ("run", "process", "total", "device")
_MOST_BYTES = 64 << 20


def facts_of(run: RunReader) -> dict[str, Fact]:
    """A fact a column of `FACTS`."""
    return facts_of_all([run])[0]


def facts_of_all(runs: Sequence[RunReader]) -> list[dict[str, Fact]]:
    """The same of many runs, their steps read together."""
    facts = [_stated(run) for run in runs]
    without = {run.path: run.warmup_steps for run, known in zip(runs, facts, strict=True) if known["steps"] is None}
    glances = step_glances(without)
    for run, known in zip(runs, facts, strict=True):
        if (glance := glances.get(run.path)) is not None:
            known.update(steps=glance.steps, step_time_ns=glance.step_ns, throughput_per_s=glance.samples_per_s)
    return facts


def _stated(run: RunReader) -> dict[str, Fact]:
    """What the JSON files say."""
    meta, summary = run.meta, _json(run.path / "summary.json")
    workload, versions = _dict(meta.get("workload")), _dict(meta.get("versions"))
    verdict, board, clock = _dict(summary.get("verdict")), _dict(summary.get("board")), _dict(meta.get("clock"))
    started_ns = _number(clock.get("unix_ns"))
    return {
        "status": run.status,
        **{name: _text(workload.get(stated)) for name, stated in (("workload", "name"), ("optimizer", "optimizer"))},
        "precision": _text(workload.get("precision")),
        "batch_size": _whole(workload.get("batch_size")),
        "board": None if board.get("name") == _NO_BOARD else _text(board.get("title")),
        "simulated": _text(meta.get("simulated")),
        "imported": _text(_dict(meta.get("imported")).get("kind")),
        **{name: _text(versions.get(name)) for name in ("stepscope", "torch")},
        "started_s": None if started_ns is None else started_ns / 1e9,
        "steps": _whole(summary.get("steps")),
        "verdict": _text(verdict.get("sentence")),
        **_metrics(summary),
    }


def _metrics(summary: dict[str, Any]) -> dict[str, Fact]:
    values: dict[str, Fact] = dict.fromkeys(_METRICS.values())
    rows = summary.get("metrics")
    for row in rows if isinstance(rows, list) else ():
        about = _dict(row)
        name = _METRICS.get(str(about.get("metric")))
        if name is not None and about.get("scope") in _WHOLE and values[name] is None:
            values[name] = _number(about.get("value"))
    return values


def _json(path: Path) -> dict[str, Any]:
    try:
        return _dict(json.loads(path.read_bytes())) if path.stat().st_size <= _MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:500]


def _number(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and isinstance(value, (int, float)) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None
