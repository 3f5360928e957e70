"""The peak of the process taken apart: an empty training process, live tensors, and what the allocator adds to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

SCHEMA = {"part": pl.String, "bytes": pl.Int64, "source": pl.String}
EMPTY, TENSORS, REST, PEAK = "empty process", "live tensors", "allocator and the rest", "process peak"


def process_parts(run: Run) -> pl.DataFrame:
    """Parts of the process's peak resident memory, B, the whole last: part, bytes, source.

    The whole is at least the largest reading; the live tensors are those on the CPU at their own peak in the recorded
    steps. The rest is the difference: what malloc holds beyond the tensors, kernels' scratch, this recorder. Empty
    where the peak, the tensors or the empty process (see `stepscope fit`) were not measured.
    """
    peaks = run.metrics().filter((pl.col("metric") == "peak_memory") & (pl.col("scope") == "process"))
    resident = peaks.filter(pl.col("source").is_in(["peak_rss", "rss"]))["value"].drop_nulls()
    empty = (run.meta.get("malloc") or {}).get("empty_process_bytes")
    live = run.peak("cpu")
    if resident.is_empty() or empty is None or live is None:
        return pl.DataFrame(schema=SCHEMA)
    whole = int(resident[0])
    rows = [
        (EMPTY, int(empty), "measured once on this device"),
        (TENSORS, live.bytes, "allocations of the recorded steps"),
        (REST, whole - int(empty) - live.bytes, "difference"),
        (PEAK, whole, "resident memory of the process"),
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def reserved(run: Run) -> dict[str, int]:
    """The most that the allocator of each device was seen to hold, B: on the CPU glibc's malloc at few instants."""
    stated = (run.meta.get("recorder") or {}).get("reserved_bytes") or {}
    return {str(device): int(size) for device, size in stated.items() if isinstance(size, int) and size > 0}


def memory_facts(run: Run) -> dict[str, Any] | None:
    """What summary.json says of the step's memory; None where no allocation was recorded. Sizes in B."""
    peak = run.peak()
    if peak is None:
        return None
    return {
        "device": peak.device,
        "live_peak_bytes": peak.bytes,
        "step": peak.step,
        "op": peak.op,
        "module": peak.module,
        "phase": peak.phase,
        "categories": dict(peak.categories.select("category", "bytes").iter_rows()),
        "residual_bytes": peak.residual_bytes,
        "reserved_bytes": reserved(run),
        "malloc": run.meta.get("malloc"),
        "process": process_parts(run).to_dicts(),
    }
