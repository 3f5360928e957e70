"""The accelerators that a training computed on: the kernels of each operator, and one whose kernels were not recorded.

Of the latter what there is are launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.channels import series_of
from stepscope.analysis.estimate import Estimate, mean_of_stretches
from stepscope.analysis.result_cache import cached_per_run
from stepscope.analysis.time.operators import CPU, OUTSIDE, callers
from stepscope.analysis.time.steps import shown_steps, span_ns
from stepscope.analysis.unused_cards import is_of_unused_card
from stepscope.runfolder import OPS, RunReader

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_TOP = -1  # the caller of what nothing called
KEYS = ("phase", "module", "name", "device")
_MOST_LEVELS = 200  # of operators in operators: callers of a damaged run may form a circle
LAUNCHED_SCHEMA = {
    **dict.fromkeys(KEYS, pl.String),  # of the operator that launched; device: where its kernels ran
    **dict.fromkeys(("kernel_ns", "costed_ns", "flops", "bytes"), pl.Float64),
}
_BUSY = 0.3  # of the steps, by its own gauge: more than a screen takes
_IDLE = 0.02  # a card that torch had memory of, and that did nothing
_NOT_ACCELERATORS = ("", CPU, "meta")


@dataclass(frozen=True)
class AcceleratorWithoutKernels:
    """An accelerator by the name that torch or its sensor has for it, and its utilisation by its own gauge, a share."""

    name: str
    utilisation: Estimate | None


def accelerator_without_kernels(run: Run) -> AcceleratorWithoutKernels | None:
    """Return the accelerator that a training of torch used and of which no kernel was recorded; None without one.

    CUPTI may not be open to this user, and of some accelerators torch.profiler has no kernels at all (MPS). Operators
    of the CPU then are launches: their times say nothing of what the training computed.
    """
    table = run.self_times
    if run.framework != "torch" or run.simulated is not None or table.is_empty():
        return None
    if not table.filter(pl.col("device") != CPU).is_empty():
        return None
    gauges = _gauges_of_used_cards(run)
    scope, busy = max(gauges, key=lambda gauge: gauge[1].value, default=("", None))
    workload = run.meta.get("workload")
    stated = str((workload if isinstance(workload, dict) else {}).get("device") or "")
    if stated.partition(":")[0] not in _NOT_ACCELERATORS:
        return AcceleratorWithoutKernels(stated, busy)
    used = _device_with_memory(run)
    if used and (busy is None or busy.value > _IDLE):
        return AcceleratorWithoutKernels(used, busy)
    return None if busy is None or busy.value < _BUSY else AcceleratorWithoutKernels(scope, busy)


def _gauges_of_used_cards(run: RunReader) -> list[tuple[str, Estimate]]:
    """Return scope and mean utilisation over the steps of each card that is not known to be another program's."""
    span = span_ns(run)
    if span is None:
        return []
    means = []
    for series in series_of(run, "utilisation"):
        inside = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
        if series.scope.startswith("gpu") and not is_of_unused_card(run, series.scope) and len(inside):
            means.append((series.scope, mean_of_stretches(inside)))
    return means


def _device_with_memory(run: RunReader) -> str:
    """Return the accelerator of which torch's allocator had memory; "" where it had none, or does not tell."""
    reserved = (run.meta.get("recorder") or {}).get("reserved_bytes") or {}
    for device, size in reserved.items():
        if str(device).partition(":")[0] not in _NOT_ACCELERATORS and isinstance(size, int) and size > 0:
            return str(device)
    cards = run.device.get("accelerators_torch")
    used = [card for card in cards if isinstance(card, dict) and card.get("used")] if isinstance(cards, list) else []
    return f"cuda:{used[0].get('index', 0)}" if used else ""


@cached_per_run
def launched_kernels(run: RunReader) -> pl.DataFrame:
    """Kernel time of each operator that launched kernels, ns a profiled step; empty where none was recorded.

    A row a phase, module, name and device. The operator is the one that states the FLOPs of the kernel, at any height
    above it, else the innermost one. costed_ns: of calls that state FLOPs or bytes; flops and bytes are theirs.
    """
    steps = shown_steps(run)["step"].cast(OPS["step"])
    every = run.scan_ops().select("step", "t0_ns", "t1_ns", "parent", *KEYS, "flops", "bytes")
    within = every.join(pl.LazyFrame({"step": steps}), on="step", how="semi", maintain_order="left")
    if within.filter(pl.col("device") != CPU).head(1).collect().is_empty():
        return pl.DataFrame(schema=LAUNCHED_SCHEMA)
    rows = within.collect().with_columns(pl.col(KEYS).cast(pl.String), row=pl.int_range(pl.len()).over("step"))
    rows = rows.sort("step", "row", maintain_order=True)
    above, costed = callers(rows), rows["flops"].is_not_null().to_numpy()
    kernels = np.flatnonzero((rows["device"] != CPU).to_numpy() & (above != _TOP))
    innermost, launcher = above[kernels], above[kernels]
    for _ in range(_MOST_LEVELS):
        higher = np.flatnonzero((launcher != _TOP) & ~costed[launcher])
        if not len(higher):
            break
        launcher[higher] = above[launcher[higher]]
    launcher = np.where(launcher == _TOP, innermost, launcher)
    spent = rows[kernels].select("device", ns=pl.col("t1_ns") - pl.col("t0_ns")).with_columns(launcher=launcher)
    calls = spent.group_by("launcher", "device", maintain_order=True).agg(pl.col("ns").sum())
    launchers = rows.drop("device", "row").with_row_index("launcher").with_columns(pl.col("launcher").cast(pl.Int64))
    calls = calls.join(launchers, on="launcher").with_columns(pl.col("module").fill_null(OUTSIDE))
    states = pl.any_horizontal(pl.col("flops", "bytes").is_not_null())
    sums = calls.group_by(KEYS).agg(
        kernel_ns=pl.col("ns").sum(),
        costed_ns=pl.col("ns").filter(states).sum(),
        flops=pl.col("flops").sum(),
        bytes=pl.col("bytes").sum(),
    )
    counts = sums.with_columns(pl.col("kernel_ns", "costed_ns", "flops", "bytes") / len(steps))
    return counts.sort(KEYS).select(pl.col(name).cast(kind) for name, kind in LAUNCHED_SCHEMA.items())
