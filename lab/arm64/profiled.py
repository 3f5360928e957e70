"""The same training with a line of Stepscope in its loop."""

from __future__ import annotations

from lab.arm64.script import model, step

import stepscope

with stepscope.profile(model, out="profiles") as run:
    for _ in range(24):
        run.step(loss=step(), samples=16)
