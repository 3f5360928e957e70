"""Measured memory of jobs in a process of its own: `python -m benchmarks.memory_truth JSON ...`, a line of JSON each.

{"workload": "lenet", "batch": 4, "optimizer": "adam", "variant": "", "what": "live" (or "process", with
"allocator": "pinned" or "default")}
"live" is the peak of c10's own allocations (torch.profiler) plus what was there before: many may be asked of one
process. "process" is the kernel's high-water mark (VmHWM), reset before the first step, with glibc's mmap threshold as
asked: it takes a process of its own.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from stepscope import workloads
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.transforms import VARIANTS
from stepscope.record.dry import Job

_MMAP_THRESHOLD, _PINNED = -3, 65_536  # mallopt(3)
_STEPS = 3


def live_peak(step: Any, model: nn.Module, batch: Any) -> int:
    """Peak of live bytes over the steps, B, by replaying every allocation and free."""
    held: dict[int, int] = {}
    for tensor in [*model.parameters(), *model.buffers(), *tree_leaves(batch)]:
        if isinstance(tensor, Tensor):
            storage = tensor.untyped_storage()
            held[storage._cdata] = storage.nbytes()
    return sum(held.values()) + peak_of_allocations(step, _STEPS - 1)


def peak_of_allocations(step: Callable[[], Any], steps: int = 1) -> int:
    """Peak beyond what is there before, B, by every allocation and free that torch's profiler sees."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(steps):
            step()
    events = profiler.profiler.kineto_results.events()
    moves = sorted((e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]")
    now = most = 0
    for _, _, size in moves:
        now += size
        most = max(most, now)
    return most


def process_peak(step: Any) -> dict[str, int]:
    """Peak of the whole process over the steps, B, and what it had before the model was made."""
    for _ in range(_STEPS):
        step()
    return {"peak": status_bytes("VmHWM")}


def status_bytes(name: str) -> int:
    """A line of this process's /proc/self/status in B."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {name} in /proc/self/status")


def warm_up() -> None:
    """One tiny step of everything that brings code and primitives in."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
    optimizer = torch.optim.Adam(model.parameters())
    nn.functional.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([0, 1])).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def measured(asked: dict[str, Any]) -> dict[str, int]:
    """The measurement that was asked for, in this process."""
    torch.manual_seed(0)
    gc.collect()  # what ends within the profile must have begun in it
    job: Job = workload_job(workloads.find(asked["workload"]), asked["optimizer"])
    if asked["what"] == "process":
        warm_up()
        if asked["allocator"] == "pinned":
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _PINNED)
        base = status_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
    model, optimizers = job.build()
    if asked.get("variant"):
        optimizers = VARIANTS[asked["variant"]](model, optimizers)
    batch = job.batch(asked["batch"])

    def step() -> None:
        job.step(model, optimizers, batch)

    if asked["what"] == "live":
        return {"peak": live_peak(step, model, batch)}
    return {**process_peak(step), "base": base}


def main() -> None:
    torch.set_num_threads(1)
    for each in sys.argv[1:]:
        print(json.dumps(measured(json.loads(each))), flush=True)


if __name__ == "__main__":
    main()
