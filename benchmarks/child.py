"""One measurement in a process of its own: `python -m benchmarks.child CASE MODE MODEL STEPS`, JSON on stdout."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import stepscope
import stepscope.record.profile
from benchmarks.models import MODELS
from stepscope.runfolder import RunReader

_WARMUP = 5
_WINDOW = 4  # steps a torch.profiler window, as many as ours has in the worst case
Step = Callable[[], None]


def recorded_step(mode: str, model: Any, step: Step, steps: int) -> dict[str, float]:
    """CPU time within steps, s a step, with every step recorded (bare: none)."""
    if mode == "bare":
        return {"step_s": _mean_cpu(step, steps, lambda: None)}
    if mode == "torch":
        return {"step_s": _with_torch_profiler(step, steps)["step_s"]}
    watched = "all" if mode == "memory" else "off"
    with tempfile.TemporaryDirectory() as out, stepscope.profile(model, out=out, record="all", memory=watched) as scope:
        for _ in range(_WARMUP):
            step()
            scope.step()
        return {"step_s": _mean_cpu(step, steps, scope.step)}


def whole_run(mode: str, model: Any, step: Step, steps: int) -> dict[str, float]:
    """CPU time of a run from the first step to the closed run folder, s; the sampler's own apart."""
    began = time.process_time()
    if mode == "bare":
        for _ in range(steps):
            step()
        return {"run_s": time.process_time() - began, "children_s": 0.0}
    with tempfile.TemporaryDirectory() as out:
        with stepscope.profile(model, out=out) as scope:
            for _ in range(steps):
                step()
                scope.step()
        ours = time.process_time() - began
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        recorded = int(RunReader(scope.path).steps["recorded"].sum())
    return {"run_s": ours, "children_s": children.ru_utime + children.ru_stime, "recorded": recorded}


def tables(mode: str, model: Any, step: Step, steps: int) -> dict[str, float]:
    """CPU time from stop to op and module tables, us an event; bytes on disk an event."""
    if mode == "torch":
        return _with_torch_profiler(step, steps)
    with tempfile.TemporaryDirectory() as out:
        with stepscope.profile(model, out=out, record="all") as scope:
            for _ in range(_WARMUP):
                step()
                scope.step()
            paused = 0.0
            for _ in range(steps):
                step()
                before = time.process_time()
                scope.step()
                paused += time.process_time() - before
        run = scope.run
        before = time.process_time()
        run.operators()
        run.modules()
        paused += (time.process_time() - before) * steps / (steps + _WARMUP)
        rows = run.ops.height
        size = sum(part.stat().st_size for part in (Path(scope.path) / "ops").glob("*.part*"))
    return {"event_us": paused / (rows * steps / (steps + _WARMUP)) * 1e6, "event_bytes": size / rows}


def memory(mode: str, model: Any, step: Step, steps: int) -> dict[str, float]:
    """Growth of the trainer's resident memory from step 100 to the end, MB, with every step recorded."""
    with tempfile.TemporaryDirectory() as out, stepscope.profile(model, out=out, record="all") as scope:
        for _ in range(100):
            step()
            scope.step()
        before = _resident_bytes()
        for _ in range(steps):
            step()
            scope.step()
        return {"growth_mb": (_resident_bytes() - before) / 1e6}


def _with_torch_profiler(step: Step, steps: int) -> dict[str, float]:
    in_steps = to_tables = 0.0
    events = 0
    for _ in range(max(1, steps // _WINDOW)):
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        profiler.start()
        in_steps += _mean_cpu(step, _WINDOW, lambda: None) * _WINDOW
        before = time.process_time()
        profiler.stop()
        profiler.key_averages()
        to_tables += time.process_time() - before
        events += len(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]
    windows = max(1, steps // _WINDOW)
    return {"step_s": in_steps / (windows * _WINDOW), "event_us": to_tables / events * 1e6}


def _mean_cpu(step: Step, steps: int, after: Step) -> float:
    spent = 0.0
    for _ in range(steps):
        before = time.process_time()
        step()
        spent += time.process_time() - before
        after()
    return spent / steps


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


CASES = {"recorded-step": recorded_step, "whole-run": whole_run, "tables": tables, "memory": memory}

if __name__ == "__main__":
    case, mode, name, count = sys.argv[1:5]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, one_step = MODELS[name]()
    for _ in range(_WARMUP):
        one_step()
    print(json.dumps(CASES[case](mode, network, one_step, int(count))))
