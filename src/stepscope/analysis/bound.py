"""What a step is bound by: its time by the sort of work that it goes to, and the rule that names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from stepscope.analysis.accelerator import accelerator_utilisation
from stepscope.analysis.metrics import process_cpu_utilisation
from stepscope.analysis.own_time import CPU
from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import MODULE_CALL

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

Bound = Literal["data", "optimizer", "dispatch", "compute", "memory", "waiting", "mixed", "unknown"]
DATA_SHARE, DISPATCH_SHARE, COMPUTE_SHARE = 0.3, 0.5, 0.5
OPTIMIZER_SHARE, MEMORY_SHARE = 0.4, 0.5
OUTSIDE_SHARE, ASLEEP_SHARE = 0.3, 0.5
ACCELERATOR_BUSY, ACCELERATOR_IDLE = 0.8, 0.5
_COMPUTE = re.compile(
    r"conv|(?:^|[^a-z])(?:add|b|baddb|s)?mm|matmul|linear|lstm|gru|rnn|attention|gemm|cutlass|winograd|einsum"
)
_ASKING = re.compile(r"^autograd::engine::|Backward\d*$|^Optimizer\.|AccumulateGrad$|^torch::autograd::")


@dataclass(frozen=True)
class WorkShares:
    """Shares of the summed step time. data, dispatch, compute and memory add up to 1; optimizer lies across them.

    dispatch: nothing on the CPU, Python, modules, autograd, and ops whose own time is below 10 us; compute:
    convolutions and matrix products; memory: all other ops. `accelerator` is its utilisation, null without one.
    """

    data: float
    dispatch: float
    compute: float
    memory: float
    optimizer: float
    accelerator: float | None
    device_compute: float | None  # convolutions and matrix products, of the kernels' time
    outside: float = 0.0  # of the step, in which no operation ran: the loop's own Python, or nothing at all
    trainer_cores: float | None = None  # that the trainer kept busy on average, null where not sampled


def work_shares(run: Run) -> WorkShares | None:
    """Where the recorded steady steps go by sort of work; None where no ops were recorded."""
    steps, table = recorded_steps(run), run.own_times
    if steps.is_empty() or table.is_empty():
        return None
    total = float(steps["length_ns"].sum())
    sums = _sorted_sums(table.filter(pl.col("device") == CPU))
    kernels = _sorted_sums(table.filter(pl.col("device") != CPU))
    data, compute, memory = (sums.get(sort, 0.0) / total for sort in ("data", "compute", "memory"))
    updates = table.filter((pl.col("phase") == "optimizer") & (pl.col("device") == CPU))
    busiest = max((row.value or 0.0 for row in accelerator_utilisation(run)), default=None)
    return WorkShares(
        data=data,
        dispatch=1 - data - compute - memory,
        compute=compute,
        memory=memory,
        optimizer=float(updates["self_ns"].sum()) / total,
        accelerator=busiest,
        device_compute=kernels.get("compute", 0.0) / sum(kernels.values()) if kernels else None,
        outside=1 - float(table.filter(pl.col("device") == CPU)["self_ns"].sum()) / total,
        trainer_cores=next((row.value for row in process_cpu_utilisation(run) if row.scope == "process"), None),
    )


def _sorted_sums(table: pl.DataFrame) -> dict[str, float]:
    """Own time by sort of work, ns; tiny instances are dispatch whatever they are called."""
    names = table["name"].unique().to_list()
    sorts = pl.DataFrame(
        {"name": names, "sort": [_sort(name) for name in names]}, schema={"name": pl.String, "sort": pl.String}
    )
    sort = pl.when(pl.col("phase") == "data").then(pl.lit("data")).otherwise("sort").alias("sort")
    asked = pl.when(pl.col("sort").is_in(["data", "dispatch"]) | (pl.col("device") != CPU)).then(0).otherwise("tiny_ns")
    work = table.join(sorts, on="name").with_columns(sort).group_by("sort").agg((pl.col("self_ns") - asked).sum())
    return {name: float(ns) for name, ns in work.iter_rows()}


def _sort(name: str) -> str:
    if name.startswith(MODULE_CALL) or _ASKING.search(name):
        return "dispatch"
    return "compute" if _COMPUTE.search(name.lower()) else "memory"


def bound_of(shares: WorkShares) -> Bound:
    """The name of the limit: the first rule that holds."""
    if shares.data > DATA_SHARE:
        return "data"
    if _waits(shares):
        return "waiting"
    if shares.accelerator is not None:
        return _bound_with_accelerator(shares, shares.accelerator)
    if shares.optimizer > OPTIMIZER_SHARE:
        return "optimizer"
    if shares.dispatch > DISPATCH_SHARE:
        return "dispatch"
    if shares.compute > COMPUTE_SHARE:
        return "compute"
    return "memory" if shares.memory > MEMORY_SHARE else "mixed"


def _waits(shares: WorkShares) -> bool:
    """Long stretches without an operation in which the trainer does not even compute: it sleeps, reads or waits."""
    cores, outside = shares.trainer_cores, shares.outside
    if shares.accelerator is not None or cores is None:
        return False
    return outside > OUTSIDE_SHARE and cores < 1 - ASLEEP_SHARE * outside


def _bound_with_accelerator(shares: WorkShares, busy: float) -> Bound:
    """The CPU only asks here: a busy accelerator computes or moves data, an idle one waits to be asked."""
    if busy > ACCELERATOR_BUSY:
        return "compute" if (shares.device_compute or 0.0) > COMPUTE_SHARE else "memory"
    return "dispatch" if busy < ACCELERATOR_IDLE else "mixed"
