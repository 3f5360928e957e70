"""The peak of a log of storages with its holders, by the analysis that real runs have too."""

from __future__ import annotations

import polars as pl

from stepscope.analysis.memory_events import peak
from stepscope.analysis.memory_model import ALWAYS_MAPPED
from stepscope.record.recorders.storage_log import Storage, StorageLog, peak_of
from stepscope.studies.fit.code import code_seen
from stepscope.studies.fit.result import Holder, LivePeak

_LISTED = 20


def live_peak(log: StorageLog) -> LivePeak:
    """The first moment with the most live bytes; ValueError where nothing was ever alive."""
    found = peak(log.frame())
    if found is None:
        raise ValueError("a step without a tensor has no peak")
    tensors = found.tensors
    by_module = tensors.drop_nulls("module").group_by("module").agg(pl.col("bytes").sum())
    largest = tensors.head(_LISTED).select("bytes", "category", "module", "op", "shape")
    return LivePeak(
        found.bytes,
        peak_of(log, "low"),
        peak_of(log, "high"),
        _mapped(log),
        found.op or "",
        found.module,
        found.phase or "",
        found.step,
        _sums(found.categories, "category"),
        _sums(by_module, "module"),
        tuple(Holder(*row) for row in largest.rows()),
        code_seen(log),
        _largest_hole(log),
        peak_of(log, _in_heap),
    )


def _mapped(log: StorageLog) -> int:
    """What is resident at the peak of blocks that glibc maps one by one, B."""
    alive = most = mapped = at_peak = 0
    for _, _, number, sign in log.events:
        storage = log.storages[number]
        alive += sign * storage.bytes
        mapped += sign * storage.high if storage.bytes >= ALWAYS_MAPPED else 0
        if alive > most:
            most, at_peak = alive, mapped
    return at_peak


def _largest_hole(log: StorageLog) -> int:
    """The largest block that comes and goes in glibc's heap, B; one that is not all written to costs less."""
    ended = (log.storages[number] for _, _, number, sign in log.events if sign < 0)
    whole = (storage.bytes for storage in ended if storage.high == storage.bytes < ALWAYS_MAPPED)
    return max(whole, default=0)


def _in_heap(storage: Storage) -> int:
    return storage.bytes if storage.bytes < ALWAYS_MAPPED else storage.high


def _sums(frame: pl.DataFrame, by: str) -> dict[str, int]:
    rows = frame.filter(pl.col("bytes") > 0).sort("bytes", descending=True).select(by, "bytes").rows()
    return {str(name): int(size) for name, size in rows}
