"""The run in one sentence: what dominates the step, what it is bound by, the numbers that prove it, what to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stepscope.analysis.background import background_cpu_use, warning
from stepscope.analysis.bound import Bound, WorkShares, bound_of, work_shares
from stepscope.analysis.metrics import core_utilisation, process_cpu_utilisation, step_time
from stepscope.analysis.own_time import CPU, RESIDUAL
from stepscope.analysis.steady import FEW, recorded_steps, steady_steps
from stepscope.units import duration, number, percent, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

BENDS = 1.2  # times as long

_NEXT: dict[Bound, tuple[str, ...]] = {
    "data": (
        "load ahead of the step: DataLoader(num_workers=2, persistent_workers=True), or keep a small set in memory",
        "move decoding and augmentation out of the loop: store the data the way the model takes it",
    ),
    "dispatch": (
        "raise the batch size: the same calls then do more work (compare samples/s, not ms a step)",
        "merge small operations: torch.compile(model), or an optimizer with foreach=True or fused=True",
    ),
    "compute": (
        "try a lower precision (torch.autocast, bfloat16) or channels_last where the device has instructions for it",
        "freeze the layers that need not learn: their weight gradients are then not computed",
    ),
    "memory": (
        "merge elementwise and normalisation layers with what is before them: torch.compile(model)",
        "use in-place activations and a smaller data type: these operations wait for memory, not for arithmetic",
    ),
    "optimizer": (
        "use an optimizer with fused=True or foreach=True, or one with less state (SGD instead of Adam)",
        "accumulate gradients over several batches: fewer updates a sample",
    ),
    "waiting": (
        "look at what the loop does between operations: sleeping, logging, reading files, preparing data in Python",
        "let DataLoader workers prepare the data, and write logs and checkpoints less often",
    ),
    "mixed": ("look at the dearest module and kind of op below: no single limit explains this step",),
    "unknown": ("record more: run again for at least 30 steps, and with --record adaptive or all",),
}
_FEW_STEPS = ("first run longer, or with --record all: what so few recorded steps say may be chance",)
_NO_STEPS = (
    "check that a step is seen: a script calls optimizer.step(), a loop under profile() calls scope.step(); "
    "then run at least 30 steps",
)


@dataclass(frozen=True)
class Verdict:
    """What a run comes down to; `evidence` is the shares that the bound was judged by."""

    bound: Bound
    sentence: str
    evidence: WorkShares | None
    next: tuple[str, ...]


def verdict(run: Run) -> Verdict:
    """What dominates the step and what it is bound by, with numbers; bound is "unknown" where no ops were recorded."""
    shares = work_shares(run)
    if shares is None:
        return Verdict(
            "unknown", f"{_without_ops(run)}{_stamp(run)}", None, _NEXT["unknown"] if len(run.steps) else _NO_STEPS
        )
    bound = bound_of(shares)
    said = f"{_proof(bound, shares)} {_dominant(run)}{_doubt(run)}{_shared(run)}{_stamp(run)}"
    few = int(run.own_times["step"].n_unique()) < FEW
    return Verdict(bound, said, shares, (*(_FEW_STEPS if few else ()), *_NEXT[bound]))


def _stamp(run: Run) -> str:
    """That sensors were simulated, where they were: no number of power or energy is then one of this machine."""
    if run.simulated is None:
        return ""
    return f" SIMULATED sensors of '{run.simulated}': power and energy are of a simulated board, not of this machine."


def _doubt(run: Run) -> str:
    """What the sentence rests on, where that is little."""
    count = int(run.own_times["step"].n_unique())
    said = f" (From {plural(count, 'recorded step')} only.)" if count < FEW else ""
    slower = _slower(run)
    return said + (f" (Recorded steps take {number(slower, 2)} times as long: shares include that.)" if slower else "")


def _slower(run: Run) -> float | None:
    """How much longer a recorded step takes than others, where it is so much that it bends the picture."""
    steps = steady_steps(run)
    recorded, bare = (steps.filter(pl.col("recorded") == which)["length_ns"].median() for which in (True, False))
    if not isinstance(recorded, float) or not isinstance(bare, float) or recorded <= BENDS * bare:
        return None
    return recorded / bare


def _shared(run: Run) -> str:
    return warning(background_cpu_use([*core_utilisation(run), *process_cpu_utilisation(run)]))


def _without_ops(run: Run) -> str:
    taken = step_time(run)
    if taken:
        return f"A step takes {duration(taken[0].value)}; no operation was recorded, so what it is bound by is unknown."
    count = len(run.steps)
    if count == 0:
        return "No training step was recorded: the run ended before its first step did."
    steps = "1 step, which was" if count == 1 else f"{count} steps, all of them"
    return f"The run has {steps} warm-up: too few to measure (the first {run.warmup_steps} are left out)."


def _proof(bound: Bound, shares: WorkShares) -> str:
    busy = f"the accelerator is busy {percent(shares.accelerator, 0)} of the time"
    on_device = shares.accelerator is not None
    return {
        "data": f"Data-bound: {percent(shares.data, 0)} of the step waits for data.",
        "dispatch": f"Dispatch-bound: {busy}, it waits to be asked."
        if on_device
        else f"Dispatch-bound: {percent(shares.dispatch, 0)} of the step is asking for operations, not doing them.",
        "compute": f"Compute-bound: {busy}, {percent(shares.device_compute, 0)} of that with matrix products."
        if on_device
        else f"Compute-bound: {percent(shares.compute, 0)} of the step is convolutions and matrix products.",
        "memory": f"Memory-bound: {busy}, mostly with elementwise work and normalisation."
        if on_device
        else f"Memory-bound: {percent(shares.memory, 0)} of the step is elementwise work, normalisation and copies.",
        "waiting": f"Waiting: in {percent(shares.outside, 0)} of the step no operation runs, and the trainer keeps "
        f"only {number(shares.trainer_cores, 2)} cores busy.",
        "optimizer": f"Optimizer-bound: {percent(shares.optimizer, 0)} of the step updates weights.",
        "mixed": f"Mixed: {percent(shares.compute, 0)} arithmetic, {percent(shares.memory, 0)} memory, "
        f"{percent(shares.dispatch, 0)} dispatch, {percent(shares.data, 0)} data"
        + (f"; {busy}." if on_device else "."),
        "unknown": "",
    }[bound]


def _dominant(run: Run) -> str:
    """The longest phase, and the dearest type of module: on an accelerator, by its kernels' time."""
    phase = run.phases().filter(pl.col("phase") != RESIDUAL).sort("share", descending=True).row(0, named=True)
    said = f"{phase['phase'].capitalize()} takes {percent(phase['share'], 0)}"
    named = run.modules().filter(pl.col("module").is_not_null() & pl.col("type").is_not_null())
    if named["device_ns"].is_not_null().any():
        kernels = run.own_times.filter(pl.col("device") != CPU)["self_ns"].sum() / len(recorded_steps(run))
        named = named.with_columns(share=pl.col("device_ns") / kernels)
    types = named.group_by("type").agg(pl.col("share").sum(), pl.len()).sort("share", "type", descending=[True, False])
    if types.is_empty() or types["share"][0] <= 0:
        return f"{said}."
    kind, share, count = types.row(0)
    one = named.filter(pl.col("type") == kind).row(0, named=True)
    name = f"module '{one['module']}'" if one["module"] else "the model itself"
    which = f"{name} ({kind})" if count == 1 else f"the {count} {kind} modules"
    of = " of the accelerator's time" if one["device_ns"] is not None else ""
    return f"{said}, {which} {percent(share, 0)}{of}."
