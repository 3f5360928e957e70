"""The peak of a log of storages, with its holders."""

from __future__ import annotations

from stepscope.analysis.memory_model import ALWAYS_MAPPED
from stepscope.record.recorders.storage_log import Storage, StorageLog, peak_of
from stepscope.studies.fit.result import Holder, LivePeak

_LISTED = 20


def live_peak(log: StorageLog) -> LivePeak:
    """The first moment with the most live bytes."""
    end, most = _highest(log)
    alive: dict[int, Storage] = {}
    for _, _, number, sign in log.events[: end + 1]:
        if sign > 0:
            alive[number] = log.storages[number]
        else:
            alive.pop(number, None)
    step, _, last, _ = log.events[end]
    reached = log.storages[last]
    largest = sorted(alive.values(), key=lambda storage: -storage.bytes)
    return LivePeak(
        most,
        peak_of(log, "low"),
        peak_of(log, "high"),
        sum(storage.bytes for storage in largest if storage.bytes >= ALWAYS_MAPPED),
        reached.op,
        reached.module,
        reached.phase,
        step,
        _sums(largest, "category"),
        _sums([storage for storage in largest if storage.module is not None], "module"),
        tuple(Holder(s.bytes, s.category or "temporary", s.module, s.op, s.shape) for s in largest[:_LISTED]),
    )


def _highest(log: StorageLog) -> tuple[int, int]:
    """(index of the event that reached the peak, B)."""
    now = most = end = 0
    for index, (_, _, number, sign) in enumerate(log.events):
        now += sign * log.storages[number].bytes
        if now > most:
            most, end = now, index
    return end, most


def _sums(storages: list[Storage], by: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for storage in storages:
        key = getattr(storage, by)
        sums["temporary" if key is None else key] = sums.get("temporary" if key is None else key, 0) + storage.bytes
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
