"""The bottleneck of a run: the bound of its step, the numbers that prove it, the roofline, and what to try next.

Roofline: Williams et al., 2009.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from stepscope.analysis.metrics import (
    accelerator_utilisation,
    background_cpu_load,
    background_warning,
    core_utilisation,
    process_cpu_utilisation,
    step_time,
)
from stepscope.analysis.processes import OWN
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD
from stepscope.analysis.time.ranks import last_rank
from stepscope.analysis.time.steps import FEW, profiled_steps, steps_after_warmup, whole_steps
from stepscope.quantities import simulated_badge
from stepscope.runfolder import COMMUNICATION, MODULE_CALL
from stepscope.units import duration, number, percent, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


SLOWDOWN_LIMIT = 1.2  # times slower

_NEXT: dict[Bound, tuple[str, ...]] = {
    "data": (
        "load ahead of the step: DataLoader(num_workers=2, persistent_workers=True), or keep a small set in memory",
        "move decoding and augmentation out of the loop: store the data the way the model takes it",
    ),
    "communication": (
        "overlap more of it: DistributedDataParallel sends a bucket while backward goes on (bucket_cap_mb is its size)",
        "communicate less: accumulate gradients under no_sync(), or raise the batch size of each rank",
    ),
    "dispatch": (
        "raise the batch size: the same calls then do more work (compare samples/s, not ms a step)",
        "merge small operators: torch.compile(model), or an optimizer with foreach=True or fused=True",
    ),
    "compute": (
        "try a lower precision (torch.autocast, bfloat16) or channels_last where the device has instructions for it",
        "freeze the layers that need not learn: their weight gradients are then not computed",
    ),
    "memory": (
        "merge elementwise and normalisation layers with what is before them: torch.compile(model)",
        "use in-place activations and a smaller data type: these operators are bound by memory bandwidth, not by "
        "arithmetic",
    ),
    "optimizer": (
        "use an optimizer with fused=True or foreach=True, or one with less state (SGD instead of Adam)",
        "accumulate gradients over several batches: fewer updates a sample",
    ),
    "waiting": (
        "look at what the loop does outside operators: sleeping, logging, reading files, preparing data in Python",
        "let DataLoader workers prepare the data, and write logs and checkpoints less often",
    ),
    "mixed": ("look at the most expensive module and op below: no single limit explains this step",),
    "unknown": ("record more: run again for at least 30 steps, and with --record adaptive or all",),
}
_UNEQUAL_RANKS = (
    "find out what the last rank does before it arrives: more or longer samples, a slower or shared device",
)
_IN_PARTS = "A step is too large to be profiled whole: shares are of parts of it."
_FEW_STEPS = ("first run longer, or with --record all: so few profiled steps may mislead",)
_NO_STEPS = (
    "check that a step is seen: a script calls optimizer.step(), a loop under profile() calls scope.step(); "
    "then run at least 30 steps",
)


@dataclass(frozen=True)
class Verdict:
    """Bottleneck of a run; `evidence` is the shares that it was judged by."""

    bound: Bound
    sentence: str
    evidence: WorkShares | None
    next: tuple[str, ...]


def verdict(run: Run) -> Verdict:
    """Return what dominates the step and what it is bound by, with numbers; "unknown" where no ops were recorded."""
    shares = work_shares(run)
    if shares is None:
        return Verdict(
            "unknown", f"{_without_ops(run)}{_simulated(run)}", None, _NEXT["unknown"] if len(run.steps) else _NO_STEPS
        )
    bound = bound_of(shares)
    last = last_rank(run.rank_table()) if bound == "communication" else None
    of_last = "" if last is None else f" Rank {last.rank} arrives last in {percent(last.share, 0)} of the steps."
    proof, dominant = _proof(bound, shares), _dominant(run)
    if not whole_steps(run):  # which phase takes most is not told by parts of phases
        proof, dominant = proof.replace("of the step is", "of its profiled parts is"), _IN_PARTS
    said = f"{proof}{of_last} {dominant}{_profiling(run)}{_background(run)}{_simulated(run)}"
    few = int(run.own_times["step"].n_unique()) < FEW
    unequal = _UNEQUAL_RANKS if last is not None and last.explains else ()
    return Verdict(bound, said, shares, (*(_FEW_STEPS if few else ()), *unequal, *_NEXT[bound]))


def _simulated(run: Run) -> str:
    """Return a note that sensors were simulated, where they were: no power or energy is then one of this machine."""
    badge = simulated_badge(run.simulated)
    return badge and f" {badge}. Power and energy are of a simulated board, not of this machine."


def _profiling(run: Run) -> str:
    """Return a note on what the sentence rests on, where that is little."""
    count = int(run.own_times["step"].n_unique())
    said = f" (From {plural(count, 'profiled step')} only.)" if count < FEW else ""
    slower = _profiled_slowdown(run)
    return said + (f" (Profiled steps are {number(slower, 2)}x slower: shares include that.)" if slower else "")


def _profiled_slowdown(run: Run) -> float | None:
    """Return how much slower a profiled step is than others, where it is so much that it bends the picture."""
    steps = steps_after_warmup(run)
    recorded, bare = (steps.filter(pl.col("recorded") == which)["length_ns"].median() for which in (True, False))
    if not isinstance(recorded, float) or not isinstance(bare, float) or recorded <= SLOWDOWN_LIMIT * bare:
        return None
    return recorded / bare


def _background(run: Run) -> str:
    if run.part_folders:
        return ""  # what the other ranks use is no other program's
    return background_warning(background_cpu_load([*core_utilisation(run), *process_cpu_utilisation(run)]))


def _without_ops(run: Run) -> str:
    taken = step_time(run)
    if taken:
        return f"A step takes {duration(taken[0].value)}; no operator was recorded, so what it is bound by is unknown."
    count = len(run.steps)
    if count == 0:
        return "No training step was recorded: the run ended before its first step did."
    steps = "1 step, which was" if count == 1 else f"{count} steps, all of them"
    return f"The run has {steps} warm-up: too few to measure (the first {run.warmup_steps} are excluded)."


def _proof(bound: Bound, shares: WorkShares) -> str:
    busy = f"the accelerator is busy {percent(shares.accelerator, 0)} of the time"
    on_device = shares.accelerator is not None
    return {
        "data": f"Input bound: {percent(shares.data, 0)} of the step is spent on loading data.",
        "communication": f"Communication bound: {percent(shares.communication, 0)} of the step is collectives that "
        "nothing overlaps.",
        "dispatch": f"Overhead bound: {busy}; the framework does not feed it fast enough."
        if on_device
        else f"Overhead bound: {percent(shares.dispatch, 0)} of the step is dispatch and framework overhead.",
        "compute": f"Compute bound: {busy}, {percent(shares.device_compute, 0)} of that with matrix products."
        if on_device
        else f"Compute bound: {percent(shares.compute, 0)} of the step is convolutions and matrix products.",
        "memory": f"Memory-bandwidth bound: {busy}, mostly with elementwise work and normalisation."
        if on_device
        else f"Memory-bandwidth bound: {percent(shares.memory, 0)} of the step is elementwise work and copies.",
        "waiting": f"Idle: no operator runs in {percent(shares.outside, 0)} of the step, and the CPU utilisation "
        f"of the training process is only {number(shares.process_cores, 2)} cores.",
        "optimizer": f"Optimizer bound: {percent(shares.optimizer, 0)} of the step updates weights.",
        "mixed": f"No single bottleneck: {percent(shares.compute, 0)} arithmetic, {percent(shares.memory, 0)} memory, "
        f"{percent(shares.dispatch, 0)} dispatch and framework overhead, {percent(shares.data, 0)} data"
        + (f"; {busy}." if on_device else "."),
        "unknown": "",
    }[bound]


def _dominant(run: Run) -> str:
    """The longest phase, and the dearest type of module: on an accelerator, by its kernels' time."""
    phase = run.phases().filter(pl.col("phase") != FRAMEWORK_OVERHEAD).sort("share", descending=True).row(0, named=True)
    said = f"{phase['phase'].capitalize()} takes {percent(phase['share'], 0)}"
    named = run.modules().filter(pl.col("module").is_not_null() & pl.col("type").is_not_null())
    if named["device_ns"].is_not_null().any():
        kernels = run.own_times.filter(pl.col("device") != CPU)["self_ns"].sum() / len(profiled_steps(run))
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


Bound = Literal["data", "communication", "optimizer", "dispatch", "compute", "memory", "waiting", "mixed", "unknown"]
DATA_SHARE, DISPATCH_SHARE, COMPUTE_SHARE = 0.3, 0.5, 0.5
OPTIMIZER_SHARE, MEMORY_SHARE = 0.4, 0.5
COMMUNICATION_SHARE = 0.3
OUTSIDE_SHARE, ASLEEP_SHARE = 0.3, 0.5
ACCELERATOR_BUSY, ACCELERATOR_IDLE = 0.8, 0.5
_COMPUTE = re.compile(
    r"conv|(?:^|[^a-z])(?:add|b|baddb|s)?mm|matmul|linear|lstm|gru|rnn|attention|gemm|cutlass|winograd|einsum"
)
_DISPATCH = re.compile(r"^autograd::engine::|Backward\d*$|^Optimizer\.|AccumulateGrad$|^torch::autograd::")


@dataclass(frozen=True)
class WorkShares:
    """Shares of the summed step time. data, communication, dispatch, compute and memory add up to 1.

    dispatch: nothing on the CPU, Python, modules, autograd, and ops whose self time is below 10 us; compute:
    convolutions and matrix products; memory: all other ops; communication: exposed. optimizer lies across them.
    `accelerator` is its utilisation, null without one.
    """

    data: float
    dispatch: float
    compute: float
    memory: float
    optimizer: float
    accelerator: float | None
    device_compute: float | None  # convolutions and matrix products, of the kernels' time
    outside: float = 0.0  # of the step, in which no operator ran: the loop's own Python, or nothing at all
    communication: float = 0.0
    process_cores: float | None = None  # mean CPU utilisation of the process, null where not sampled


def work_shares(run: Run) -> WorkShares | None:
    """Return the shares of the profiled steps after warm-up by sort of work; None where no ops were recorded."""
    steps, table = profiled_steps(run), run.own_times
    if steps.is_empty() or table.is_empty():
        return None
    total = float(steps["length_ns"].sum())
    sums = _sorted_sums(table.filter(pl.col("device") == CPU))
    kernels = _sorted_sums(table.filter(pl.col("device") != CPU))
    sorts = ("data", "compute", "memory", COMMUNICATION)
    data, compute, memory, communication = (sums.get(sort, 0.0) / total for sort in sorts)
    updates = table.filter((pl.col("phase") == "optimizer") & (pl.col("device") == CPU))
    busiest = max((row.value or 0.0 for row in accelerator_utilisation(run)), default=None)
    return WorkShares(
        data=data,
        dispatch=1 - data - compute - memory - communication,
        communication=communication,
        compute=compute,
        memory=memory,
        optimizer=float(updates["self_ns"].sum()) / total,
        accelerator=busiest,
        device_compute=kernels.get("compute", 0.0) / sum(kernels.values()) if kernels else None,
        outside=1 - float(table.filter(pl.col("device") == CPU)["self_ns"].sum()) / total,
        process_cores=next((row.value for row in process_cpu_utilisation(run) if row.scope in OWN), None),
    )


def _sorted_sums(table: pl.DataFrame) -> dict[str, float]:
    """Self time by sort of work, ns; tiny instances are dispatch whatever they are called."""
    names = table["name"].unique().to_list()
    sorts = pl.DataFrame(
        {"name": names, "sort": [_sort_of_work(name) for name in names]}, schema={"name": pl.String, "sort": pl.String}
    )
    by_phase = pl.col("phase").is_in(["data", COMMUNICATION])
    sort = pl.when(by_phase).then("phase").otherwise("sort").alias("sort")
    asked = (
        pl.when(pl.col("sort").is_in(["data", COMMUNICATION, "dispatch"]) | (pl.col("device") != CPU))
        .then(0)
        .otherwise("tiny_ns")
    )
    work = table.join(sorts, on="name").with_columns(sort).group_by("sort").agg((pl.col("self_ns") - asked).sum())
    return {name: float(ns) for name, ns in work.iter_rows()}


def _sort_of_work(name: str) -> str:
    if name.startswith(MODULE_CALL) or _DISPATCH.search(name):
        return "dispatch"
    return "compute" if _COMPUTE.search(name.lower()) else "memory"


def bound_of(shares: WorkShares) -> Bound:
    """The name of the limit: the first rule that holds."""
    if shares.data > DATA_SHARE:
        return "data"
    if shares.communication > COMMUNICATION_SHARE:
        return "communication"
    if _is_waiting(shares):
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


def _is_waiting(shares: WorkShares) -> bool:
    """Long stretches without an operator in which the process does not even compute: it sleeps, reads or waits."""
    cores, outside = shares.process_cores, shares.outside
    if shares.accelerator is not None or cores is None:
        return False
    return outside > OUTSIDE_SHARE and cores < 1 - ASLEEP_SHARE * outside


def _bound_with_accelerator(shares: WorkShares, busy: float) -> Bound:
    """The CPU only asks here: a busy accelerator computes or moves data, an idle one waits to be asked."""
    if busy > ACCELERATOR_BUSY:
        return "compute" if (shares.device_compute or 0.0) > COMPUTE_SHARE else "memory"
    return "dispatch" if busy < ACCELERATOR_IDLE else "mixed"


# The roofs are what this run itself reached, so they are lower bounds of what the device can do: a device's own limits
# are not known here.

ROOFLINE_SCHEMA = {
    "name": pl.String,
    "device": pl.String,
    "flop_per_byte": pl.Float64,
    "flops_per_s": pl.Float64,
    "bytes_per_s": pl.Float64,
    "share": pl.Float64,  # of the step
    "total_ns": pl.Float64,
    "flops": pl.Float64,  # a step
    "bytes": pl.Float64,  # a step: what goes in and comes out, each tensor once
    "waits_for": pl.String,  # memory or arithmetic: the side of the ridge, where the two roofs of its device meet
}
ROOF_SCHEMA = {"device": pl.String, "roof": pl.String, "value": pl.Float64, "name": pl.String}
_LEAST_SHARE = 0.002  # of the step: what takes less is timed too coarsely to set a roof


def roofline(run: Run) -> pl.DataFrame:
    """Operators that state both FLOPs and bytes, dearest first; a byte in a cache counts like any other."""
    kinds = run.op_kinds().filter((pl.col("flops") > 0) & (pl.col("bytes") > 0) & (pl.col("total_ns") > 0))
    points = kinds.select(
        "name",
        "device",
        (pl.col("flops") / pl.col("bytes")).alias("flop_per_byte"),
        "flops_per_s",
        (pl.col("flops_per_s") / pl.col("flops") * pl.col("bytes")).alias("bytes_per_s"),
        "share",
        "total_ns",
        "flops",
        "bytes",
    )
    ridges = _ridges(roofs(points))
    left = pl.col("flop_per_byte") < pl.col("device").replace_strict(ridges, default=None, return_dtype=pl.Float64)
    judged = points.with_columns(waits_for=pl.when(left).then(pl.lit("memory")).when(~left).then(pl.lit("arithmetic")))
    return judged.select(pl.col(name).cast(dtype) for name, dtype in ROOFLINE_SCHEMA.items())


def _ridges(reached: pl.DataFrame) -> dict[str, float]:
    """FLOP/B at which the two roofs of a device meet."""
    of = {(device, roof): value for device, roof, value, _ in reached.iter_rows()}
    return {device: of[device, "compute"] / of[device, "memory"] for device, roof in of if roof == "compute"}


def roofs(points: pl.DataFrame) -> pl.DataFrame:
    """The highest rates that were reached, a row a device and roof ("compute", FLOP/s; "memory", B/s), and by whom."""
    found = [pl.DataFrame(schema=ROOF_SCHEMA)]
    for (device,), rows in points.filter(pl.col("share") >= _LEAST_SHARE).group_by(["device"], maintain_order=True):
        for roof, column in (("compute", "flops_per_s"), ("memory", "bytes_per_s")):
            top = rows.sort(column, descending=True).row(0, named=True)
            row = {"device": [str(device)], "roof": [roof], "value": [top[column]], "name": [top["name"]]}
            found.append(pl.DataFrame(row, schema=ROOF_SCHEMA))
    return pl.concat(found)
