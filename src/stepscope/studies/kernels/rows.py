"""One measured part of a kernel, of this device or of an imported table, and the rates that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.studies.kernels.shapes import Kernel

HERE = "this device"
SCHEMA = {
    "source": pl.String, "op": pl.String, "kernel_id": pl.String, "called": pl.String, "part": pl.String,
    "count": pl.Int64, "ns": pl.Float64, "low_ns": pl.Float64, "high_ns": pl.Float64, "flops": pl.Float64,
    "bytes": pl.Float64, "flops_per_s": pl.Float64, "bytes_per_s": pl.Float64, "ps_per_flop": pl.Float64,
    "axis": pl.String, "at": pl.Float64, "beside": pl.String,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Median ns of one call of a part, with its interval where there is one; useful FLOPs and bytes of the call."""

    source: str
    kernel: Kernel
    part: str
    ns: float
    low_ns: float | None
    high_ns: float | None
    flops: int
    bytes: int

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.ns * 1e9

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.ns * 1e9

    @property
    def ps_per_flop(self) -> float:
        """Time for one useful FLOP, ps."""
        return self.ns * 1e3 / self.flops

    def bound(self, side: str) -> float:
        """ps for one useful FLOP at an end of the interval ("low" or "high"); the median where there is none."""
        ns = self.low_ns if side == "low" else self.high_ns
        return (self.ns if ns is None else ns) * 1e3 / self.flops


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    """A row a measurement, and again for each axis of the sweep that it lies on; columns as SCHEMA."""
    found = []
    for row in rows:
        plain = {
            "source": row.source, "op": row.kernel.op, "kernel_id": row.kernel.id, "called": row.kernel.called,
            "part": row.part, "count": row.kernel.count, "ns": row.ns, "low_ns": row.low_ns, "high_ns": row.high_ns,
            "flops": row.flops, "bytes": row.bytes, "flops_per_s": row.flops_per_s, "bytes_per_s": row.bytes_per_s,
            "ps_per_flop": row.ps_per_flop,
        }  # fmt: skip
        axes = [name for name, at in row.kernel.place.items() if isinstance(at, int)]
        found += [
            {**plain, "axis": axis, "at": row.kernel.place[axis], "beside": beside(row.kernel, axis)} for axis in axes
        ]
        if not axes:
            found.append({**plain, "axis": None, "at": None, "beside": None})
    return pl.DataFrame(found, schema=SCHEMA)


def beside(kernel: Kernel, axis: str) -> str:
    """Where a kernel lies on the other axes."""
    return ", ".join(f"{name} {at}" for name, at in kernel.place.items() if name != axis)
