"""Live bytes of a real step at its peak, by every allocation and free that torch's profiler sees."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def measured(step: Callable[[], None]) -> int:
    """Return the peak beyond what is there before, B."""
    gc.collect()  # what ends within the profile must have begun in it
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    moves = sorted((e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]")
    now = most = 0
    for _, _, size in moves:
        now += size
        most = max(most, now)
    return most
