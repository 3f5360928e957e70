"""What does a step cost that is not profiled? `python -m benchmarks.unprofiled_step [--batch 128] [--threads 2]`.

A LeNet-like training in one process under `stepscope.profile`. Blocks of steps go as they are, with our hooks taken
back and the sampling process stopped, or both, in pairs in random order within a second: a clock, a neighbour or a
heap that changes meets both. Between processes the same step differs by 10 to 50 %, for what glibc's heap happens to
give back to the kernel after each step (up to 1,600 page faults), so that no such comparison shows 1 %.

| what is switched | what it shows |
| --- | --- |
| hooks and sampling process | the whole cost of a step that is not profiled |
| sampling process | its part: it takes a core, or the caches, from the training |

Mean step of a block; profiled steps and their neighbours do not count. The interval is the bootstrap's, of the mean
logarithm of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch
from torch import nn

import stepscope
from stepscope.clock import monotonic_ns
from stepscope.record.session import SESSIONS, Session
from stepscope.record.torch_hooks import TorchHooks
from stepscope.record.torch_recorder import TorchRecorder

WARM_STEPS = 300  # the first blocks of profiled steps lie in them
SETTLING = 4  # steps at the beginning of each block that do not count


def training(batch: int = 64) -> Callable[[], None]:
    """One step of it: so many digits' worth of noise through LeNet's layers, and an update."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), nn.CrossEntropyLoss()
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def sampler_of(pid: int) -> int:
    """The process that samples this one."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"stepscope.record.sampler" in words and str(pid).encode() in words:
                return int(entry.name)
    raise SystemExit("the sampling process was not found: is STEPSCOPE_DISABLE set?")


def _hooks(session: Session) -> TorchHooks:
    recorder = session._recorder
    assert isinstance(recorder, TorchRecorder)
    return recorder.hooks


def watched(session: Session) -> bool:
    """Whether the step is profiled, or its layers are timed."""
    recorder = session._recorder
    assert isinstance(recorder, TorchRecorder)
    ops = recorder._ops
    return session.profiled or (ops is not None and ops.layers.open is not None)


@contextlib.contextmanager
def without(session: Session | None, sampler: int) -> Iterator[None]:
    """As if Stepscope were not there: no hooks (of a session), no sampling, no allowance that grows."""
    os.kill(sampler, signal.SIGSTOP)
    began_ns = monotonic_ns()
    if session is not None:
        _hooks(session).remove()
    try:
        yield
    finally:
        if session is not None:
            session._began_ns += monotonic_ns() - began_ns
            _hooks(session).install()
        os.kill(sampler, signal.SIGCONT)


def block(step: Callable[[], None], steps: int, session: Session) -> float:
    """Mean step of a block, ns, of those that neither are profiled nor come right before or after one that is."""
    took: list[int] = []
    profiled = [watched(session)]
    for _ in range(SETTLING + steps):
        began = time.perf_counter_ns()
        step()
        took.append(time.perf_counter_ns() - began)
        profiled.append(watched(session))
    near = [any(profiled[max(0, place - 1) : place + 3]) for place in range(len(took))]
    kept = [length for length, skipped in zip(took[SETTLING:], near[SETTLING:], strict=True) if not skipped]
    return fmean(kept) if kept else math.nan


def compared(step: Callable[[], None], sampler: int, session: Session, hooks: bool, pairs: int, steps: int) -> str:
    """With against without, as a line."""
    logs: list[float] = []
    alone: list[float] = []
    while len(logs) < pairs:
        with_first = random.random() < 0.5
        ours = block(step, steps, session) if with_first else 0.0
        while watched(session):  # a profiled step ends before the hooks are taken back
            step()
        with without(session if hooks else None, sampler):
            bare = block(step, steps, session)
        ours = ours or block(step, steps, session)
        if math.isfinite(ours) and math.isfinite(bare):
            logs.append(math.log(ours / bare))
            alone.append(bare)
    values = np.array(logs)
    means = np.random.default_rng(0).choice(values, (4000, pairs)).mean(axis=1)
    middle, (low, high) = np.exp(values.mean()), np.exp(np.quantile(means, [0.025, 0.975]))
    bare_ms = median(alone) / 1e6
    return f"{middle:.4f} x [{low:.4f}, {high:.4f}], {(middle - 1) * bare_ms * 1e3:.0f} us of {bare_ms:.3f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=20, help="steps of a block")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--period", default="10ms", help="between two samples")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    step = training(options.batch)
    with (
        tempfile.TemporaryDirectory() as folder,
        stepscope.profile(out=folder, steps="optimizer", period=options.period),
    ):
        for _ in range(WARM_STEPS):
            step()
        (session,), sampler = SESSIONS, sampler_of(os.getpid())
        for name, hooks in (("all of Stepscope", True), ("its sampling process", False)):
            line = compared(step, sampler, session, hooks, options.pairs, options.steps)
            sys.stdout.write(f"{name}, batch {options.batch}, {options.threads} threads: {line} (bar: 1.01)\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
