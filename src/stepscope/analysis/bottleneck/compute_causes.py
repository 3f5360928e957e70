"""Causes in what a training does while it runs: overhead, or kernels beside the measured ceilings of the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.bottleneck.causes import (
    LARGEST,
    NOTABLE,
    Bound,
    Cause,
    Evidence,
    evidence_above,
    notable_cause,
    rate_evidence,
)
from stepscope.analysis.device.ceilings import (
    BEYOND,
    Ceilings,
    attainable_times,
    ceilings_of,
    ceilings_remedy,
    in_other_format,
    why_no_ceilings,
)
from stepscope.analysis.device.occupancy import NOTHING, Occupancy
from stepscope.analysis.estimate import Estimate, mean_interval
from stepscope.analysis.metrics import accelerator_utilisation
from stepscope.analysis.time.accelerators import AcceleratorWithoutKernels, launched_kernels
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD
from stepscope.analysis.time.steps import profiled_steps
from stepscope.analysis.time.tables import steps_with_costs
from stepscope.runfolder import COMMUNICATION, MODULE_CALL
from stepscope.runfolder.schema import calls_in_other_formats, main_computation
from stepscope.units import duration, number, percent, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

WORKS_ELSEWHERE = frozenset({"jax"})  # whose operators run in threads of their own, while the training's waits for them
_REACHED = 0.4  # of its ceiling, before a limit is called reached
_DOUBTFUL = 0.2  # of the time of an operator; a run that was off by more named another bound than six like it
_BUSY, _IDLE = 0.8, 0.5  # of an accelerator
_LAUNCHING = 0.15  # of the step in operators that launch kernels: with less, an accelerator is no part of the training
_DOUBTED = 0.4  # of the operators' time faster than its ceilings: from here on these are of other work
_RECORD_AGAIN = "record it again: a run states now what it computes in, and is held against ceilings of that"
_WITHOUT_KERNELS = (
    "find out why torch.profiler records no kernels of the accelerator: CUPTI needs the right to read performance "
    "counters, which containers and shared servers withhold; of MPS it has none",
)


@dataclass(frozen=True)
class _TimesByLimit:
    """Time of a step, ns, by what limits the operators that took it; each with what it could take at the ceilings."""

    step_ns: float
    dispatch: float
    python: float
    arithmetic: float
    memory: float
    shares: dict[str, Estimate]  # of the step in operators of each limit
    arithmetic_best: float
    memory_best: float
    unknown: float
    beyond: float  # in operators that are clearly faster than their ceilings
    calls: float
    farthest: tuple[str, float, float] | None  # operator with the most to gain, its time, and at the ceilings
    doubt: float  # of the time of an operator: what was calibrated away without a known cause, relative


def causes_while_computing(
    run: Run,
    usage: Occupancy,
    phases: dict[str, Estimate],
    busiest: float | None,
    without_kernels: AcceleratorWithoutKernels | None = None,
) -> tuple[list[Cause], str, tuple[str, ...]]:
    """Return what the time is spent on in which the training runs; else why that cannot be told, and what would.

    busiest: share of the steps in which the busiest accelerator runs kernels; without_kernels: one without kernels.
    """
    if run.step_times.is_empty:
        return [], "no operator was profiled", ("profile steps: --record adaptive or all, for at least 30 steps",)
    if without_kernels is not None:
        return [], _without_kernels_sentence(without_kernels), _WITHOUT_KERNELS
    limits = ceilings_of(run)
    outside = phases.get(FRAMEWORK_OVERHEAD, NOTHING)
    asleep = 0.0 if usage.runs is None else max(usage.asleep - phases.get("data", NOTHING).value, 0.0)
    if run.framework in WORKS_ELSEWHERE:  # it sleeps while operators run
        asleep = max(asleep - (1 - outside.value), 0.0)
    python = Estimate(max(outside.value - asleep - (usage.run_queue_share or NOTHING).value * outside.value, 0.0))
    if busiest is not None and not (busiest < _IDLE and _computes_on_cpu(run)):
        if busiest < _IDLE:
            return _idle_accelerator_causes(usage, phases, python, busiest)
        return _busy_accelerator_causes(run, limits)
    if limits is None or limits.place != CPU:
        ran = evidence_above("the training thread ran {} of the time", usage.runs, "schedstat", 0.6)
        idle = evidence_above("no operator ran in {} of the profiled steps", outside, "operators")
        causes = [*notable_cause("overhead", "Python", python, idle, ran, least=LARGEST)]
        if run.framework != "torch":
            return causes, why_no_ceilings(run), ()
        return causes, why_no_ceilings(run), (ceilings_remedy(run),)
    sums = _times_by_limit(run, limits, python.value)
    if sums.beyond > _DOUBTED * max(sums.arithmetic + sums.memory, 1.0):
        why = f"operators compute more than {number(BEYOND)} times as fast as the ceilings of this device were measured"
        return [], f"{why}: these are of another number format, or other kernels", (ceilings_remedy(run),)
    reached = [*_device_limit_causes(sums)]
    causes = [*_overhead_cause(sums, limits), *reached, *(() if reached else _slow_kernel_cause(sums, usage))]
    kernels = (sums.arithmetic + sums.memory + sums.unknown) / sums.step_ns
    best = (sums.arithmetic_best + sums.memory_best) / sums.step_ns
    if sums.unknown > 0.5 * sums.step_ns:
        unknown = percent(sums.unknown / sums.step_ns, 0)
        formats = "in another number format than most FLOPs, or " if calls_in_other_formats(run.meta) else ""
        return causes, f"operators {formats}whose FLOPs and bytes are not known take {unknown} of the step", ()
    why = (
        f"operators take {percent(kernels, 0)} of the step, and the device could do their arithmetic and traffic "
        f"in {percent(best, 0)} of it: no one limit takes {percent(LARGEST, 0)} of the step"
    )
    return causes, why, ("the roofline and the operators' share of the attainable show which are far from it",)


def _times_by_limit(run: Run, limits: Ceilings, python: float) -> _TimesByLimit:
    rows = attainable_times(run, limits).filter(~pl.col("phase").is_in(["data", COMMUNICATION]))
    step_ns = run.step_times.step_ns
    in_python = pl.col("name").str.starts_with(MODULE_CALL) | pl.col("name").str.starts_with("Optimizer.")

    def total(column: str, *where: pl.Expr) -> float:
        return float(rows.filter(*where)[column].sum())

    dispatch, arithmetic, memory = (pl.col("limit") == name for name in ("dispatch", "arithmetic", "memory"))
    return _TimesByLimit(
        step_ns=max(step_ns, 1.0),
        dispatch=total("self_ns", dispatch, ~in_python),
        python=total("self_ns", dispatch, in_python) + python * step_ns,
        arithmetic=total("self_ns", arithmetic),
        memory=total("self_ns", memory),
        shares=_step_shares_by_limit(run, rows),
        arithmetic_best=total("attainable_ns", arithmetic),
        memory_best=total("attainable_ns", memory),
        unknown=total("self_ns", pl.col("limit").is_null()),
        beyond=total("self_ns", pl.col("is_beyond")),
        calls=total("calls"),
        farthest=_op_with_most_to_save(rows),
        doubt=np.inf if (run.meta.get("recorder") or {}).get("other_shapes") else 2 * run.step_times.calibration_doubt,
    )


def _step_shares_by_limit(run: Run, rows: pl.DataFrame) -> dict[str, Estimate]:
    """Share of the profiled steps in operators of each limit, with Student's interval over the steps."""
    times = run.step_times
    steps = pl.DataFrame({"step": times.steps.cast(pl.Int64)})
    limits = rows.select("phase", "module", "name", "limit").drop_nulls("limit")
    table = times.table.filter(pl.col("device") == CPU).join(limits, on=["phase", "module", "name"])
    shares = {}
    for (limit,), part in table.group_by("limit"):
        summed = steps.join(part.group_by("step").agg(pl.col("self_ns").sum()), on="step", how="left").fill_null(0)
        step_share = summed["self_ns"].to_numpy() / max(times.step_ns, 1.0)
        mean, low, high = mean_interval(step_share)
        shares[str(limit)] = Estimate(mean) if np.isnan(low) else Estimate(mean, low, high).clipped()
    return shares


def _overhead_cause(sums: _TimesByLimit, limits: Ceilings) -> Iterator[Cause]:
    """Time in calls that compute nothing: how many there are and cost here, and how little the rest would need."""
    calls_take = sums.shares.get("dispatch", NOTHING)
    outside = max((sums.dispatch + sums.python) / sums.step_ns - calls_take.value, 0.0)
    bounds = (None if end is None else end + outside for end in (calls_take.low, calls_take.high))
    share = Estimate(calls_take.value + outside, *bounds).clipped()
    name = "dispatch" if sums.dispatch >= sums.python else "Python"
    least_ns = sums.calls * limits.op_ns
    calls = Evidence(
        f"a step makes {number(sums.calls)} calls, and one costs {duration(limits.op_ns)} at least on this device: "
        f"{duration(least_ns)} of {duration(sums.step_ns)}",
        least_ns / sums.step_ns, source="operators, ceilings",
    )  # fmt: skip
    needed = (sums.arithmetic_best + sums.memory_best) / sums.step_ns
    little = Evidence(
        f"the device could do the arithmetic and traffic of the step in {percent(needed, 0)} of its time",
        needed, source="ceilings",
    )  # fmt: skip
    spent = evidence_above("dispatch, autograd and Python take {} of the profiled steps", share, "operators")
    if needed < 0.5:
        yield from notable_cause("overhead", name, share, spent, calls, little, least=LARGEST)


def _device_limit_causes(sums: _TimesByLimit) -> Iterator[Cause]:
    """Operators near a ceiling of the device: their time, and the share of it that the ceiling alone explains.

    Where neither ceiling takes the largest part of the step, but both of them together, both are causes.
    """
    kinds: tuple[tuple[Bound, str, str, float, float], ...] = (
        ("compute", "arithmetic", "arithmetic", sums.arithmetic, sums.arithmetic_best),
        ("memory-bandwidth", "memory traffic", "memory", sums.memory, sums.memory_best),
    )
    at_ceiling = [kind for kind in kinds if kind[4] >= _REACHED * max(kind[3], 1.0)]
    shares = [sums.shares.get(kind[2], NOTHING) for kind in at_ceiling]
    apart = max((share.value for share in shares), default=0.0) >= LARGEST
    least = LARGEST if apart or sum(share.value for share in shares) < LARGEST else NOTABLE
    for (bound, name, _, spent_ns, best_ns), share in zip(at_ceiling, shares, strict=True):
        reached = best_ns / max(spent_ns, 1.0)
        spent = evidence_above(f"operators limited by {name} take {{}} of the profiled steps", share, "operators")
        near = Evidence(
            f"they reach {percent(min(reached, 1.0), 0)} of what this device does with calls of their size",
            min(reached, 1.0), source="ceilings",
        )  # fmt: skip
        clear = sums.doubt <= _DOUBTFUL and reached >= _REACHED * (1 + sums.doubt)
        yield from notable_cause(bound, name, share, spent, near, least=least, clear=clear and least == LARGEST)


def _slow_kernel_cause(sums: _TimesByLimit, usage: Occupancy) -> Iterator[Cause]:
    """Operators that compute, and stay far below the ceilings of calls of their size: other kernels may be faster."""
    shares = [sums.shares[limit] for limit in ("arithmetic", "memory") if limit in sums.shares]
    ends = [(entry.value if entry.low is None else entry.low, entry.value if entry.high is None else entry.high)
            for entry in shares]  # fmt: skip
    share = Estimate(sum(entry.value for entry in shares), sum(low for low, _ in ends), sum(high for _, high in ends))
    best = (sums.arithmetic_best + sums.memory_best) / sums.step_ns
    if sums.farthest is None or best >= _REACHED * share.value:
        return
    name, self_ns, best_ns = sums.farthest
    spent = evidence_above("operators that compute take {} of the profiled steps", share, "operators")
    needed = Evidence(f"at the ceilings of this device they would take {percent(best, 0)}", best, source="ceilings")
    farthest = Evidence(
        f"farthest from it is {name}, {duration(self_ns)} where {duration(best_ns)} is attainable",
        self_ns / best_ns, source="ceilings",
    )  # fmt: skip
    ran = evidence_above("the training thread ran {} of the time", usage.runs, "schedstat", 0.6)
    clear = sums.doubt <= _DOUBTFUL and best * (1 + sums.doubt) <= _REACHED * share.value
    yield from notable_cause(
        "kernels", "far below the ceilings", share.clipped(), spent, needed, farthest, ran, least=LARGEST, clear=clear
    )


def _op_with_most_to_save(rows: pl.DataFrame) -> tuple[str, float, float] | None:
    """The operator with the most to save at the ceilings: its name, and its time measured and attainable, ns a step."""
    computing = rows.filter(pl.col("limit").is_in(["arithmetic", "memory"]) & (pl.col("attainable_ns") > 0))
    sums = computing.group_by("name", maintain_order=True).agg(pl.col("self_ns").sum(), pl.col("attainable_ns").sum())
    if sums.is_empty():
        return None
    name, self_ns, best_ns = sums.sort(pl.col("self_ns") - pl.col("attainable_ns"), descending=True).row(0)
    return str(name), float(self_ns), float(best_ns)


def _without_kernels_sentence(accelerator: AcceleratorWithoutKernels) -> str:
    busy = accelerator.utilisation
    gauge = "" if busy is None else f", which was busy {percent(busy.value, 0)} of the time by its own gauge"
    return (
        f"no kernel of the accelerator {accelerator.name} was recorded{gauge}: times of operators are of their launches"
    )


def _computes_on_cpu(run: Run) -> bool:
    """Return whether the operators of the CPU take much of the step, and those that launch kernels little of it."""
    keys = ["phase", "module", "name"]
    table = run.step_times.table.filter(pl.col("device") == CPU)
    launching = table.join(launched_kernels(run), on=keys, how="semi")
    own = table.join(launching, on=keys, how="anti").filter(
        pl.col("name").str.starts_with("aten::"), ~pl.col("phase").is_in(["data", COMMUNICATION])
    )
    whole_ns = max(run.step_times.step_ns * len(run.step_times.steps), 1.0)
    return bool(launching["self_ns"].sum() < _LAUNCHING * whole_ns and own["self_ns"].sum() >= LARGEST * whole_ns)


def _idle_accelerator_causes(
    usage: Occupancy, phases: dict[str, Estimate], python: Estimate, busy: float
) -> tuple[list[Cause], str, tuple[str, ...]]:
    """An accelerator that is idle waits for what the host does meanwhile: its operators, or code between them.

    Data and communication are causes of their own.
    """
    used = evidence_above("its kernels run in {} of the profiled steps", Estimate(busy), "operators")
    ran = evidence_above("the training thread ran {} of the time", usage.runs, "schedstat", 0.5)
    ran = ran or rate_evidence("the training used {}", usage.process_cores, "cores", "CPU time", 0.5)
    outside = phases.get(FRAMEWORK_OVERHEAD, NOTHING)
    waits = sum(phases.get(phase, NOTHING).value for phase in ("data", COMMUNICATION))
    operators = max(1 - outside.value - waits, 0.0)
    why = f"the accelerator runs kernels in {percent(busy, 0)} of it, and what the CPU did meanwhile is not known"
    if not phases.keys() - {FRAMEWORK_OVERHEAD}:  # kernels alone were recorded
        return [], why, ()
    idle = Estimate(max(1 - busy - waits, 0.0))
    if python.value > operators:
        between = evidence_above("no operator ran in {} of the profiled steps", outside, "operators")
        return [*notable_cause("overhead", "Python", idle, used, between, ran, least=LARGEST)], why, ()
    return [*notable_cause("overhead", "dispatch", idle, used, ran)], why, ()


def _busy_accelerator_causes(run: Run, limits: Ceilings | None) -> tuple[list[Cause], str, tuple[str, ...]]:
    """The work of an accelerator's kernels beside its own ceilings: the CPU only asks here.

    Of several accelerators, of the one that the ceilings are of; of several number formats, in theirs.
    """
    if limits is None:
        return [], why_no_ceilings(run, "this accelerator"), (ceilings_remedy(run, "cuda"),)
    if limits.place == CPU:
        return [], "the ceilings of this accelerator were not measured", (ceilings_remedy(run, "cuda"),)
    shares = {row.scope: row.value or 0.0 for row in accelerator_utilisation(run) if row.source == "ops"}
    busy, every = shares.get(limits.place, 0.0), launched_kernels(run)
    own = every.filter(pl.col("device") == limits.place)
    used = evidence_above("its kernels run in {} of the profiled steps", Estimate(busy), "operators")
    launching = run.self_times.join(every, on=["phase", "module", "name"], how="semi")
    work, steps = steps_with_costs(launching, run.self_times["step"].unique())
    busy_s = busy * float(profiled_steps(run)["length_ns"].mean() or 1.0) / 1e9  # type: ignore[arg-type]
    causes: list[Cause] = []
    why = "the accelerator's kernels are near neither of its ceilings"
    kinds: tuple[tuple[Bound, str, str, str, float | None], ...] = (
        ("compute", "arithmetic", "flops", "FLOP/s", limits.peak_flops_per_s),
        ("memory-bandwidth", "memory traffic", "bytes", "B/s", limits.peak_bytes_per_s),
    )
    if steps.is_empty() or not busy:
        return [], "the FLOPs and bytes of the accelerator's kernels are not known", ()
    for bound, name, column, unit, peak in kinds:
        if peak is None:
            continue
        done = own.filter(~in_other_format(run)) if column == "flops" else own
        part = float(done[column].sum()) / max(float(every[column].sum()), 1.0)
        reached = part * float(work[column].sum()) / len(steps) / busy_s
        near = Evidence(f"its kernels reach {si(reached, unit)} of {si(peak, unit)}", reached / peak, source="ceilings")
        if reached >= BEYOND * peak:
            remedy = () if main_computation(run.meta) else (_RECORD_AGAIN,)
            return [], f"{near.text}: its ceilings were measured in another number format", remedy
        if reached >= _REACHED * peak:
            causes += notable_cause(bound, name, Estimate(busy), used, near)
            why = f"{near.text} where they run, and they run in {percent(busy, 0)} of the step"
    return (causes if busy >= _BUSY else []), why, ()
