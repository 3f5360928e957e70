"""Learn about this device what a dry run cannot know: workspaces of single ops, and the empty training process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepscope.errors import StepscopeError
from stepscope.record.dry_run import dry_run
from stepscope.record.empty_process import measured_empty_process_bytes
from stepscope.record.job import Job
from stepscope.record.workspaces import Workspaces, this_platform
from stepscope.record.workspaces.probes import CallBook, probe_all
from stepscope.studies.fit.kept import Kept

_SAMPLES = 13  # a batch that no layer has as its number of channels, so that it is known again in shapes
SPREAD = 0.01  # of the measured empty process, from run to run


def calibrated(kept: Kept, job: Job, progress: Callable[[int, int], None] = lambda done, of: None) -> Kept:
    """What was kept, with the ops of this job and the empty process as they are on this device."""
    book = CallBook(Workspaces(this_platform()), _SAMPLES)
    dry_run(job, _SAMPLES, book, steps=1)
    probed = probe_all(book.calls, progress)
    size = measured_empty_process_bytes()
    if size is None:
        raise StepscopeError("the empty training process could not be measured", "run it without --calibrate")
    return replace(
        kept, probed={**kept.probed, **probed}, empty_process=(round(size * (1 - SPREAD)), round(size * (1 + SPREAD)))
    )
