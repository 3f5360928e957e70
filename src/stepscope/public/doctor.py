"""`stepscope.doctor`: what can be measured here, as `stepscope doctor --json` says it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError
from stepscope.record.diagnosis import characterised, diagnosis
from stepscope.simulate.rooted import rooted


def doctor(
    root: str | Path | None = None, *, simulate: str | None = None, characterise: bool = False
) -> dict[str, Any]:
    """What can be measured on this machine, what cannot, and the command that would enable it, as plain data.

    root: the top of a saved /proc and /sys ($STEPSCOPE_ROOT, else this machine). simulate: look at a simulated board
    instead. characterise: also measure refresh, step and filter of each power sensor, which loads all cores for some
    seconds and is kept for the runs to come. Keys: device, now, channels (quantity, scope, unit, refresh_ns,
    step_size, read_cost_ns, ...), missing (sensor, reason, detail, remedy), power, characterised, perf, torch, proc,
    root, simulated; null is "not known". Raises UsageError.
    """
    if simulate is not None and characterise:
        raise UsageError("a simulated board follows a training: it cannot be characterised", "leave out one of them")
    with rooted(simulate, str(root or os.environ.get("STEPSCOPE_ROOT") or "/")) as chosen:
        top = Path(chosen.root or "/")
        measure = (lambda seen, target: characterised(seen, target, top)[1]) if characterise else None
        return diagnosis(top, simulate, measure)[0]
