"""Memory of a step by layer for a run in which no step's allocations were profiled: computed, and marked so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.files import replaced
from stepscope.footprint.jobs import workload_job

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


def write_computed_memory(run: Path, workload: Workload, optimizer: str | None = None, precision: str = "fp32") -> None:
    """Write the allocations of a step on tensors without data into a run that has ended on a CPU.

    Nothing is written where allocations were profiled or not wanted, or where fake tensors cannot run the step. Never
    raises on account of the run or of the disk.
    """
    import polars as pl

    from stepscope.record.dry.dry_run import DryRunStopped, dry_run
    from stepscope.record.precision import in_precision
    from stepscope.runfolder import MEMORY, RunReader

    try:
        reader = RunReader(run)
        recorder: dict[str, Any] = reader.meta.get("recorder") or {}
        about: dict[str, Any] = reader.meta.get("workload") or {}
        wanted = recorder.get("memory") == "auto" and recorder.get("mode") != "none" and not reader.steps.is_empty()
        if not wanted or about.get("device") != "cpu" or not reader.memory_events.is_empty():
            return
        job = workload_job(in_precision(workload, precision, "cpu"), optimizer)
        as_profiled = pl.col("op").str.replace(r"^(\w+)\.(\w+)\..*$", "${1}::${2}")  # aten.mm.default is aten::mm
        events = dry_run(job, int(about["batch_size"])).events().with_columns(as_profiled)
        (run / "computed").mkdir(exist_ok=True)
        with replaced(run / "computed" / "memory.parquet") as part:
            columns = (pl.col(name).cast(dtype) for name, dtype in MEMORY.items())
            events.select(columns).write_parquet(part, compression="zstd", statistics=False)
    except (StepscopeError, OSError, DryRunStopped, KeyError):
        return
