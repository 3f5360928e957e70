"""Runs with power sensors whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.fabricate import STEP, Sampled, fabricate_run

from stepscope.analysis.run import Run

STEP_S = 0.016  # of a fabricated step
WARM_UP = 3
TX2 = {"compatible": "nvidia,p2597-0000+p3310-1000 nvidia,tegra186", "board": "quill"}


def seconds(steps: int) -> float:
    """How long the steps after warm-up of a run take, s."""
    return (steps - WARM_UP) * STEP_S


def times(steps: int, period_ms: float = 10.0, before_s: float = 0.0) -> np.ndarray:
    """Times of readings from a little before the first step to after the last, ns since the first."""
    period = period_ms * 1e6
    return np.arange(-before_s * 1e9 - period, steps * STEP_S * 1e9 + 2 * period, period)


def channel(name: str, quantity: str, scope: str, **facts: Any) -> dict[str, Any]:
    """A channel as channels.json has it."""
    unit, kind = {"power": ("W", "gauge"), "energy": ("J", "counter")}.get(quantity, ("1", "gauge"))
    shared = {"sensor": "ina3221", "unit": unit, "kind": kind, "source": "synthetic", "refresh_ns": None}
    return {"id": name, "quantity": quantity, "scope": scope, **shared, **facts}


def rail(name: str, watts: Any, t_ns: np.ndarray, **facts: Any) -> Sampled:
    """A power gauge of a board's rail."""
    values = np.broadcast_to(np.asarray(watts, dtype=np.float64), t_ns.shape)
    stated = {"rail": name, "parent_scope": "board", **facts}
    identity = f"{stated.get('sensor', 'ina3221')}.{name}.power"
    return Sampled(channel(identity, "power", f"rail:{name}", **stated), t_ns, values)


def rapl(
    domain: str, watts: float, t_ns: np.ndarray, start_j: float = 1000.0, full_j: float = 262_143.32885, **facts: Any
) -> Sampled:
    """An energy counter of a RAPL domain that wraps."""
    values = (watts * (t_ns - t_ns[0]) / 1e9 + start_j) % full_j
    stated: dict[str, Any] = {"sensor": "rapl", "rail": domain.rpartition("/")[2], "refresh_ns": 1_000_000}
    stated |= {"counter_range": full_j, "most_per_s": 1000.0, "step_size": 6.1e-5, **facts}
    return Sampled(channel(f"rapl.{domain}.energy", "energy", f"rapl:{domain}", **stated), t_ns, values)


def powered(out: Path, *sampled: Sampled, steps: int = 100, **more: Any) -> Run:
    """A run with these channels."""
    more.setdefault("ops", STEP[:1])
    more.setdefault("residual_us", 15_000)
    return Run(fabricate_run(out, steps=steps, sampled=sampled, **more))


def total(run: Run, component: str = "total", kind: str | None = None) -> dict[str, Any]:
    """The one row of a component."""
    rows = [row for row in run.energy_totals().to_dicts() if row["component"] == component]
    (row,) = [row for row in rows if kind is None or row["kind"] == kind]
    return row
