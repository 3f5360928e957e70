"""Learn about this device what a dry run cannot know: workspaces of single ops, and the empty training process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

from stepscope.errors import StepscopeError
from stepscope.record.dry_run import dry_run
from stepscope.record.job import Job
from stepscope.record.workspaces import Workspaces, this_platform
from stepscope.record.workspaces.probes import CallBook, probe_all
from stepscope.studies.fit.kept import Kept

_SAMPLES = 13  # a batch that no layer has as its number of channels, so that it is known again in shapes
_SPREAD = 0.02  # of the measured empty process, from run to run
_EMPTY = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
optimizer = torch.optim.Adam(model.parameters())
nn.functional.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([0, 1])).backward()
optimizer.step()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS:")))
"""


def calibrated(kept: Kept, job: Job, progress: Callable[[int, int], None] = lambda done, of: None) -> Kept:
    """What was kept, with the ops of this job and the empty process as they are on this device."""
    book = CallBook(Workspaces(this_platform()), _SAMPLES)
    dry_run(job, _SAMPLES, book, steps=1)
    probed = probe_all(book.calls, progress)
    size = empty_process_bytes()
    return replace(
        kept, probed={**kept.probed, **probed}, empty_process=(round(size * (1 - _SPREAD)), round(size * (1 + _SPREAD)))
    )


def empty_process_bytes() -> int:
    """Resident bytes of a fresh process after one tiny training step, B."""
    done = subprocess.run([sys.executable, "-c", _EMPTY], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise StepscopeError(f"the empty training process failed: {last}", "run it without --calibrate")
    return int(done.stdout.split()[-1]) * 1024
