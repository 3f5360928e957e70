"""Runs that every first screen must answer: of a simulated board, failed, empty, of two ranks, large."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.analysis.parts import Row, call, join, mm, reduce, write_part
from tests.fabricate import MODEL, STEP, Op, Sampled, fabricate_run

from stepscope.runfolder import RunWriter

READ = {"refresh_ns": 1_000, "source": "synthetic"}
POWER = {"sensor": "ina3221", "quantity": "power", "unit": "W", "kind": "gauge", "parent_scope": "board", **READ}


def simulated_board(out: Path) -> Path:
    """Return a run with five rails of a board that was simulated, and a zone that grows warm."""
    t_ns = np.arange(-10_000_000, 1_000_000_000, 10_000_000, dtype=np.int64)
    rails = [("VDD_IN", 6.0), ("VDD_SYS_CPU", 2.0), ("VDD_SYS_GPU", 0.2),
             ("VDD_SYS_DDR", 1.2), ("VDD_SYS_SOC", 0.9)]  # fmt: skip
    rows = [({"id": f"rail.{name}.power", "scope": f"rail:{name}", "rail": name}, watts) for name, watts in rails]
    sampled = [Sampled({**POWER, **channel}, t_ns, 0 * t_ns + watts) for channel, watts in rows]
    zone = {"sensor": "temperature", "id": "zone0", "quantity": "temperature", "unit": "degC", "scope": "zone:CPU"}
    sampled.append(Sampled({**zone, "kind": "gauge", **READ}, t_ns, np.linspace(40.0, 61.5, len(t_ns))))
    header = {"simulated": "jetson-tx2"}
    device = {
        "board": "quill",
        "compatible": "nvidia,quill nvidia,tegra186",
        "cpu": "AMD EPYC",
        "memory_bytes": 8_000_000_000,
    }
    return fabricate_run(out, steps=60, header=header, device=device, sampled=tuple(sampled), noise=0.02)


def failed(out: Path) -> Path:
    path = fabricate_run(out, status=None)
    RunWriter(path, json.loads((path / "run.json").read_text())).close("failed", "ValueError: boom")
    return path


def two_ranks(out: Path) -> Path:
    """Rank 1 arrives 50 ms after rank 0, which waits for it."""
    update = Row("aten::add_", "optimizer", 80_000, 1e5)
    first = [mm(0, 20_000), call(20_000, 20_100), reduce(20_100, 80_000), update]
    second = [mm(50_000, 70_000), call(70_000, 70_100), reduce(70_100, 80_000), update]
    part = write_part(out, step=lambda _: second, length_us=100_000, rank=1)
    return join(write_part(out, step=lambda _: first, length_us=100_000), part)


def many_layers(out: Path) -> Path:
    names = [f"encoder.layers.{number}.attention.projection" for number in range(40)]
    ops = (*STEP, *(Op("aten::addmm", name, "forward", 300, flops=1_000_000, bytes=8_000) for name in names))
    model = (*MODEL, *((name, "NonDynamicallyQuantizableLinear", "", 10) for name in names))
    return fabricate_run(out, steps=40, ops=ops, model=model, noise=0.3, overhead=0.6)


RUNS: dict[str, Callable[[Path], Path]] = {
    "without sensors": lambda out: fabricate_run(out, steps=60, noise=0.02, overhead=0.05),
    "with power": lambda out: fabricate_run(out, steps=60, power_w=5.0),
    "of a simulated board": simulated_board,
    "failed": failed,
    "empty": lambda out: fabricate_run(out, steps=0, ops=(), samples=False),
    "warm-up alone": lambda out: fabricate_run(out, steps=3),
    "without operators": lambda out: fabricate_run(out, steps=20, recorded=lambda step: False),
    "of two ranks": two_ranks,
    "of many layers": many_layers,
}
