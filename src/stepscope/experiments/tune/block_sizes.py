"""Sizes of blocks: the steps that warm up and those that are timed, and the batches that may be ready before them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_MOST_STEPS, _MOST_STEPS_OF_POWER = 200, 100_000  # of a block; where its power is read, which takes its time
_MOST_WARMUP = 20
_PREFETCHED = 2  # batches ahead by each worker, torch's default
_BY_AHEAD = 3  # steps of a block for each batch that may have been ready


def batches_ahead(facts: Mapping[str, Any], arguments: Mapping[str, Any]) -> int:
    """Return how many batches workers may have ready from before a block, when nobody waited for them.

    arguments: those of the data loader that changes make other than the training's own.
    """
    loader = facts.get("loader") or {}
    workers = arguments.get("num_workers", loader.get("workers", 0))
    return int(workers) * int(arguments.get("prefetch_factor", loader.get("prefetch") or _PREFETCHED))


def block_size(total_s: float, step_s: float, least_s: float, ahead: int, is_first: bool) -> tuple[int, int]:
    """Return the steps that warm up a block, and those that are timed.

    total_s: of the experiment. least_s: that the block must take, 0 where power is not read. ahead: batches that may
    be ready, which are no gain. is_first: nothing was run in this process with these changes.
    """
    seconds = min(0.5, max(0.04, total_s / 600))
    most = _MOST_STEPS_OF_POWER if least_s else _MOST_STEPS
    steps = min(most, max(2 if step_s < 1 else 1, math.ceil(max(seconds, least_s) / step_s)))
    warmup = min(_MOST_WARMUP, max(2 if step_s < 0.5 else 1, math.ceil(seconds / 3 / step_s)))
    if is_first:
        warmup += max(2, min(10, int(0.5 / step_s)))
    if ahead:
        warmup, steps = max(warmup, ahead + 2), max(steps, min(_MOST_STEPS, _BY_AHEAD * ahead))
    return warmup, steps
