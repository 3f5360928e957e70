"""What a Chrome export says of its run beside the events, so that `stepscope import` can make a run of it again."""

from __future__ import annotations

from typing import Any

from stepscope import __version__
from stepscope.report.exports._excerpt import Excerpt

_META = ("workload", "clock", "threads", "seed", "simulated")
_OF_THE_WHOLE = ("overhead", "result")
_DEVICE = ("board", "cpu", "machine", "cores", "clusters", "memory_bytes", "os", "accelerators")


def origin(excerpt: Excerpt, zero_ns: int) -> dict[str, Any]:
    """The run, its times' zero (CLOCK_MONOTONIC, ns), its setting, its device and the tree of its modules."""
    run = excerpt.run
    stated = (*_META, *(_OF_THE_WHOLE if excerpt.whole else ()))
    before = 0 if excerpt.steps.is_empty() else int(excerpt.steps["step"][0])
    return {
        "stepscope": __version__,
        "run": run.id,
        "zero_ns": zero_ns,
        "meta": {
            **{name: run.meta[name] for name in stated if name in run.meta},
            "warmup_steps": max(run.warmup_steps - before, 0),
        },
        "device": {name: run.device[name] for name in _DEVICE if name in run.device},
        "modules": run.model.to_dicts(),
    }
