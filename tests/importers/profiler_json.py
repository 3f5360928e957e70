"""Small torch.profiler files for tests: real ones from torch.profiler, and events written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
FIRST_US = 4_404_759_000_000.0  # 2026-11-21 11:49:45 UTC with the base


def record_profile(path: Path, steps: int = 4, mark: bool = True, **options: Any) -> Path:
    """A file that torch.profiler writes of so many marked steps of a small network."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profiler:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            if mark:
                profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


def op(name: str, t0_us: float, dur_us: float, cat: str = "cpu_op", tid: int = 7, args: Any = None) -> dict[str, Any]:
    """An event of a file, `t0_us` after its begin."""
    where = {"pid": 1, "tid": tid, "ts": FIRST_US + t0_us, "dur": dur_us}
    return {"ph": "X", "cat": cat, "name": name, **where, "args": args or {}}


def step(number: int, t0_us: float, dur_us: float) -> dict[str, Any]:
    """The profiler's mark of a step."""
    return op(f"ProfilerStep#{number}", t0_us, dur_us, "user_annotation")


def write(path: Path, events: list[dict[str, Any]], **facts: Any) -> Path:
    """A file of these events."""
    content = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, "traceName": "x", **facts}
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path
