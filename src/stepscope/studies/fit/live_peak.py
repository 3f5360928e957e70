"""The peak of a log of storages with its holders, by the analysis that real runs have too."""

from __future__ import annotations

import polars as pl

from stepscope.analysis.memory_events import peak
from stepscope.analysis.memory_model import ALWAYS_MAPPED
from stepscope.record.recorders.storage_log import Storage, StorageLog, peak_of
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
        int(tensors.filter(pl.col("bytes") >= ALWAYS_MAPPED)["bytes"].sum()),
        found.op or "",
        found.module,
        found.phase or "",
        found.step,
        _sums(found.categories, "category"),
        _sums(by_module, "module"),
        tuple(Holder(*row) for row in largest.rows()),
        peak_of(log, _in_heap),
    )


def _in_heap(storage: Storage) -> int:
    return storage.bytes if storage.bytes < ALWAYS_MAPPED else storage.high


def _sums(frame: pl.DataFrame, by: str) -> dict[str, int]:
    rows = frame.filter(pl.col("bytes") > 0).sort("bytes", descending=True).select(by, "bytes").rows()
    return {str(name): int(size) for name, size in rows}
