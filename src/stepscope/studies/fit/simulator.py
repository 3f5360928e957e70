"""Dry runs of one question, and what their live bytes mean for a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepscope.analysis.memory_model import (
    EMPTY_PROCESS,
    MARGIN,
    Allocator,
    Limit,
    ProcessPeak,
    allocator_of,
    process_peak,
)
from stepscope.record.dry_run import Change, DryRun, DryRunStopped, dry_run
from stepscope.record.job import Job
from stepscope.record.workspaces import Platform, Workspaces
from stepscope.studies.fit.kept import Kept
from stepscope.studies.fit.largest import largest_batch
from stepscope.studies.fit.live_peak import live_peak
from stepscope.studies.fit.result import LivePeak

_CHECKPOINTED_HEAP = 2.1  # resident bytes for each live one that glibc's heap was seen to take with checkpoints


class Simulator:
    """Dry runs of one question, and what their live bytes mean for a process."""

    def __init__(self, platform: Platform, kept: Kept, allocator: str) -> None:
        self.allocator = allocator_of(allocator)
        self.workspaces = Workspaces(platform, kept.probed)
        self._kept = kept

    def run(self, job: Job, batch: int, change: Change | None = None) -> DryRun:
        """A dry run; DryRunStopped where it cannot be made."""
        return dry_run(job, batch, self.workspaces, change)

    def process(self, live: LivePeak, allocator: Allocator | None = None, checkpointed: bool = False) -> ProcessPeak:
        """Peak of the process of these live bytes, corrected by what probes of this device have shown."""
        by = allocator or self.allocator
        if checkpointed and by.name == "default":
            by = replace(by, high=_CHECKPOINTED_HEAP)
        most = max(live.high, live.high_in_heap) if by.holes else live.high
        low, high = self._kept.corrected(live.low, most)
        return process_peak((low, high), live.mapped, by, self._kept.empty_process or EMPTY_PROCESS)

    def largest(self, job: Job, limit: Limit, start: int) -> tuple[int, int]:
        """The largest batches that surely and that likely fit: the interval's upper end with a margin, its middle."""
        known: dict[int, ProcessPeak] = {}

        def peak(batch: int) -> ProcessPeak:
            if batch not in known:
                known[batch] = self.process(live_peak(self.run(job, batch).log))
            return known[batch]

        try:
            return _largest(peak, limit, start, 1)
        except DryRunStopped:  # batch statistics of a single pixel need two samples
            return _largest(peak, limit, start, 2)


def _largest(peak: Callable[[int], ProcessPeak], limit: Limit, start: int, smallest: int) -> tuple[int, int]:
    sure = largest_batch(lambda batch: peak(batch).high, limit.bytes * (1 - MARGIN), start, smallest)
    likely = largest_batch(lambda batch: peak(batch).middle, limit.bytes, max(start, sure), smallest)
    return sure, max(sure, likely)
