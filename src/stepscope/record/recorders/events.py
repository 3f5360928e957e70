"""Raw Kineto events to columns: one pass an attribute, no Python object kept an event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.record.recorders.tree import Ints

BACKWARD_NODE = 1  # RecordScope::BACKWARD_FUNCTION
_ROW_KINDS = {"cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", ""}


@dataclass
class Names:
    """Names as small integers, the same over all windows of a run."""

    ids: dict[str, int] = field(default_factory=dict)

    def intern(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids))

    def texts(self) -> list[str]:
        return list(self.ids)


@dataclass
class Events:
    """The events of one window as columns; times in Unix ns, `link` joins a kernel to the op that launched it."""

    name: Ints
    t0: Ints
    t1: Ints
    thread: Ints
    scope: Ints
    sequence: Ints
    forward_thread: Ints
    gpu: Ints  # -1 on the CPU, else the device's index
    correlation: Ints
    link: Ints
    raw: list[Any]

    def take(self, rows: Ints) -> Events:
        """The same columns with other rows."""
        picked = {name: column[rows] for name, column in vars(self).items() if name != "raw"}
        return Events(**picked, raw=[self.raw[row] for row in rows] if self.raw else [])


def columns(raw: list[Any], names: Names, cuda: bool, keep_raw: bool = False) -> Events:
    """Read the attributes that rows need; `keep_raw` keeps the events for their shapes."""
    if cuda:
        raw = [event for event in raw if _is_row(event)]
    kind = type(raw[0]) if raw else object
    ids = names.ids
    name = np.fromiter((ids.setdefault(n, len(ids)) for n in map(_method(kind, "name"), raw)), np.int64, len(raw))
    t0 = _column(raw, _method(kind, "start_ns"))
    scope = _column(raw, _method(kind, "scope"))
    sequence = _column(raw, _method(kind, "sequence_nr"))
    forward_thread = np.zeros(len(raw), dtype=np.int64)
    nodes = np.flatnonzero(scope == BACKWARD_NODE)
    forward_thread[nodes] = [raw[row].fwd_thread_id() for row in nodes]
    none = np.full(len(raw), -1, dtype=np.int64)
    return Events(
        name=name,
        t0=t0,
        t1=t0 + _column(raw, _method(kind, "duration_ns")),
        thread=_column(raw, _method(kind, "start_thread_id")),
        scope=scope,
        sequence=sequence,
        forward_thread=forward_thread,
        gpu=_column(raw, _gpu_index) if cuda else none,
        correlation=_column(raw, _method(kind, "correlation_id")) if cuda else none,
        link=_column(raw, _method(kind, "linked_correlation_id")) if cuda else none,
        raw=raw if keep_raw else [],
    )


def _method(kind: type, name: str) -> Callable[[Any], Any]:
    """The unbound method: mapping it over events spares a Python frame an event."""
    return getattr(kind, name, lambda _: 0)


def _column(raw: list[Any], read: Callable[[Any], Any]) -> Ints:
    return np.fromiter(map(read, raw), np.int64, len(raw))


def _gpu_index(event: Any) -> int:
    on_gpu = getattr(event.device_type(), "name", str(event.device_type())).endswith("CUDA")
    return int(event.device_index()) if on_gpu else -1


def _is_row(event: Any) -> bool:
    """Ops, scopes, kernels and copies; not CUDA runtime calls, nor the GPU's copies of our scopes."""
    kind = event.activity_type() if hasattr(event, "activity_type") else ""
    if kind == "user_annotation" and _gpu_index(event) >= 0:
        return False
    return kind in _ROW_KINDS
