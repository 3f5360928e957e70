"""Write the recorded training step of the benchmarks as a program of power: FLOPs a second over the time of a step.

The step is slowed down, since registers are written in milliseconds: what stays is its shape.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from benchmarks.hostile.structures import recorded

SECONDS, PARTS = 8.0, 16


def program() -> list[tuple[float, float]]:
    """Return (lasts s, share of the highest) for each part of the step."""
    step = recorded("convolution-attention")
    flops = np.array(step.columns["flops"], dtype=np.float64)
    middle = (np.array(step.columns["t0_ns"]) + np.array(step.columns["t1_ns"])) / 2
    worked, _ = np.histogram(middle, PARTS, (0.0, step.length_ns), weights=np.maximum(flops, 0.0))
    return [(SECONDS / PARTS, round(float(share), 3)) for share in worked / worked.max()]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(program()), encoding="utf-8")
