"""Dry runs of one question, and what their live bytes mean for a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepscope.analysis.memory_model import (
    EMPTY_ELSEWHERE,
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
from stepscope.studies.fit.code import code_bytes
from stepscope.studies.fit.kept import Kept
from stepscope.studies.fit.largest import largest_batch
from stepscope.studies.fit.live_peak import live_peak
from stepscope.studies.fit.result import LivePeak

_PARTLY_TOUCHED = 1.02  # of what is resident lies in a heap: so much of it is never written to that holes cost little
_FEWER_HOLES = 0.06  # of a heap: what is freed early leaves room, which may be used again
_HOLES_OF_SAVING = 0.9  # of a heap of which a share is saved by running forward again, so much more at the least


class Simulator:
    """Dry runs of one question, and what their live bytes mean for a process."""

    def __init__(self, platform: Platform, kept: Kept, allocator: str) -> None:
        self.allocator = allocator_of(allocator)
        self.workspaces = Workspaces(platform, kept.probed)
        self._kept = kept

    def run(self, job: Job, batch: int, change: Change | None = None) -> DryRun:
        """A dry run; DryRunStopped where it cannot be made."""
        return dry_run(job, batch, self.workspaces, change)

    def process(self, live: LivePeak, allocator: Allocator | None = None, plain: LivePeak | None = None) -> ProcessPeak:
        """Peak of the process of these live bytes, corrected by what probes of this device have shown.

        `plain`: the same training where nothing runs forward again; its heap bounds that of one where something does.
        """
        by = allocator or self.allocator
        if by.holes and live.code is not None and live.code.recomputes:
            by = _recomputing(by, live, plain)
        most = max(live.high, live.high_in_heap) if by.holes else live.high
        if most > _PARTLY_TOUCHED * live.high:
            by = replace(by, low=1.0)
        low, high = self._kept.corrected(live.low, most)
        platform = self.workspaces.platform
        code = code_bytes(live.code, platform)
        empty = self._kept.empty_process or (EMPTY_PROCESS if platform.block else EMPTY_ELSEWHERE)
        return process_peak((low, high), live.mapped, by, empty, code, live.largest_hole)

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


def _recomputing(by: Allocator, live: LivePeak, plain: LivePeak | None) -> Allocator:
    """What is kept for the second forward lies between what comes and goes: the heap hardly gets smaller for it."""
    low = by.low - _FEWER_HOLES
    if plain is None:
        return replace(by, low=low, high=by.high_recomputed)
    saved = max(0.0, 1 - live.bytes / plain.bytes)
    as_before = by.high * plain.bytes / live.bytes
    return replace(by, low=low + _HOLES_OF_SAVING * saved, high=max(by.high, min(by.high_recomputed, as_before)))


def _largest(peak: Callable[[int], ProcessPeak], limit: Limit, start: int, smallest: int) -> tuple[int, int]:
    sure = largest_batch(lambda batch: peak(batch).high, limit.bytes * (1 - MARGIN), start, smallest)
    likely = largest_batch(lambda batch: peak(batch).middle, limit.bytes, max(start, sure), smallest)
    return sure, max(sure, likely)
