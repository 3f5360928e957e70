"""Stretches of a run in which clocks or counters cannot be followed: the machine slept, or its clock jumped."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.intervals import Floats
from stepscope.runfolder import RunReader

_WORDS = ("suspend", "jump", "slept")
_NOTICED_WITHIN_NS = 500_000_000  # the sampler looks for it a few times a second


def interruptions_ns(run: RunReader) -> Floats:
    """Begin and end of each, (m, 2) ns: from when all was still well to when it was noticed."""
    spans = []
    for event in run.events:
        if any(word in str(event.get("kind", "")) for word in _WORDS) and isinstance(event.get("t_ns"), int | float):
            noticed = float(event["t_ns"])
            since = event.get("since_ns")
            spans.append((float(since) if isinstance(since, int | float) else noticed - _NOTICED_WITHIN_NS, noticed))
    return np.array(spans, dtype=np.float64).reshape(-1, 2)
