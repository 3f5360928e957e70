"""The verdict of a run: its bottleneck with the evidence, the layers that dominate, and what to try next.

Advice follows from evidence alone: none about layers where the system took the time, none that is followed already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.bottleneck import CROWDED, SYSTEM, Bottleneck, Bound, Cause, bottleneck
from stepscope.analysis.bottleneck.causes import NOTABLE
from stepscope.analysis.metrics import (
    background_load_of,
    background_warning,
    step_time,
    throughput,
)
from stepscope.analysis.sensor_log import is_sensor_log, log_sentence
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD
from stepscope.analysis.time.ranks import last_rank
from stepscope.analysis.time.steps import (
    FEW,
    are_steps_whole,
    missing_steps_file,
    profiled_steps,
    steps_after_warmup,
    timed_steps,
)
from stepscope.analysis.time.tracks import drift
from stepscope.quantities import simulated_badge
from stepscope.runfolder.checksums import GONE
from stepscope.units import duration, number, percent, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


SLOWDOWN_LIMIT = 1.2  # times slower
_LONG = 2  # times the median step
_STALL = 50  # unprofiled steps, or median profiled ones, in the time of which a step is no profile
_DRIFTED = 1.25  # times the first steps of a run, or these the last ones
_EVEN = 0.8  # of the mean step, below which the median step stands for little of the run

TITLES: dict[Bound, str] = {
    "cpu-starved": "CPU-starved",
    "throttled": "Throttled",
    "memory-capacity": "Memory-capacity bound",
    "input": "Input bound",
    "communication": "Communication bound",
    "lock": "Lock bound",
    "idle": "Idle",
    "storage": "Storage bound",
    "overhead": "Overhead bound",
    "compute": "Compute bound",
    "memory-bandwidth": "Memory-bandwidth bound",
    "kernels": "Kernel bound",
    "unknown": "Cannot tell what bounds the step",
}
_PREFETCH = "overlap more of it: let FSDP prefetch the next layer's parameters (set_modules_to_forward_prefetch)"
_NEXT: dict[tuple[Bound, str], tuple[str, ...]] = {
    ("cpu-starved", "background load"): ("end the background processes, or measure again when they have ended",),
    ("cpu-starved", CROWDED): (
        "compute with no more threads than cores: torch.set_num_threads(), or OMP_NUM_THREADS; "
        "`stepscope study threads train.py` tries each number",
    ),
    ("cpu-starved", "CPU quota"): ("raise the CPU quota of the container or cgroup, or train with fewer threads",),
    ("cpu-starved", "affinity"): ("allow more cores (taskset, cpuset), or train with as many threads as are allowed",),
    ("cpu-starved", "hypervisor"): ("the host is overcommitted: a machine with cores of its own would tell more",),
    ("throttled", "clock"): (
        "cool the device or choose a higher power mode, and measure again: times at this clock are not the device's",
    ),
    ("throttled", "GPU clock"): (
        "cool the graphics card, look at its power supply, and measure again: times at this clock are not the card's",
    ),
    ("memory-capacity", "swap and reclaim"): (
        "use less memory, or end what else holds it: `stepscope fit` lists what would make the training fit",
    ),
    ("input", "disk"): ("read the data ahead of the step, from a faster disk, or keep it in memory",),
    ("communication", "collectives"): (
        "overlap more of it: DistributedDataParallel sends a bucket while backward goes on (bucket_cap_mb is its size)",
        "communicate less: accumulate gradients under no_sync(), or raise the batch size of each rank",
    ),
    ("lock", "interpreter lock (GIL)"): (
        "move the Python threads beside the training into processes: they hold the interpreter in turns with it",
    ),
    ("lock", "lock"): ("find what else in the process holds the lock that the training thread waits for",),
    ("idle", "sleep"): ("find the sleep in the loop: no operator runs meanwhile, and the thread waits on a timer",),
    ("idle", "wait"): ("find what the loop waits for where no operator runs: a sleep, a connection, another process",),
    ("idle", "another process"): ("find the process or connection that the loop waits for outside its operators",),
    ("storage", "disk"): ("write checkpoints and logs less often, or from another process",),
    ("overhead", "dispatch"): (
        "raise the batch size: the same calls then do more work (compare samples/s, not ms a step)",
    ),
    ("overhead", "Python"): ("look at what the loop and the modules do in Python where no operator runs",),
    ("compute", "arithmetic"): (
        "when fine-tuning, freeze the layers that need not learn: `stepscope study partial` measures what that saves "
        "and costs",
    ),
    ("memory-bandwidth", "memory traffic"): (
        "merge elementwise layers with what is before them, or use in-place activations: less is then read and written",
    ),
    ("kernels", "far below the ceilings"): (
        "another memory format, precision or number of threads runs other kernels: `stepscope tune` measures them",
    ),
}
_EVALUATION = (
    "compute less for each sample: a smaller input or model, or a number format that this device computes faster"
)
_LITTLE_BACKWARD = 0.1  # of the step: most layers are frozen already
_MOSTLY_FORWARD = (
    "keep what frozen layers compute, where the same inputs come again; else compute less for each sample: a smaller "
    "input or model, or a number format that this device computes faster"
)
_UNEQUAL_RANKS = (
    "find out what the last rank does before it arrives: more or longer samples, a slower or shared device",
)
_UNCERTAIN = "What a step is is uncertain (report -v says why): --updates-per-step states it, or scope.step()."
_WAITED = "Times of layers and operators include the waiting for a core."
_IN_PARTS = "A step is too large to be profiled whole: shares are of parts of it."
_LOG_ALONE = ("lay it beside the torch.profiler file of the same time: stepscope import TRACE --with LOG",)
_FEW_STEPS = "first run longer, or with --record all: so few profiled steps may mislead"
_LOST_STEPS = ("bring the file back from a copy of the run folder, or train again",)
_NO_STEPS = (
    "check that a step is seen: a script calls optimizer.step(), a loop under profile() calls scope.step(); "
    "then run at least 30 steps",
)
_ENDED_EARLY = ("fix what ended the script before its first step, then run it again",)
_MOST_CAUSES = 3


@dataclass(frozen=True)
class Verdict:
    """Bottleneck of a run: `bound` and `confidence` ("high", "medium", "none") of the first of its `causes`.

    Without a cause `bound` is "unknown", and `would_tell` says what would tell. `sentence` says all of it at once, and
    ends with the `cautions`: what to know before any number of the run is used.
    """

    bound: Bound
    sentence: str
    confidence: str
    causes: tuple[Cause, ...]
    would_tell: tuple[str, ...]
    next: tuple[str, ...]
    cautions: tuple[str, ...] = ()
    why: str = ""  # there is no cause


def verdict(run: Run) -> Verdict:
    """Return what bounds the step, with its evidence; "unknown" where nothing was measured that tells."""
    if not len(run.steps) or steps_after_warmup(run).is_empty():
        why, cautions = _without_ops(run), (*_damaged_files_caution(run), *_simulated_caution(run))
        none = _LOST_STEPS if missing_steps_file(run) else _ENDED_EARLY if run.status == "failed" else _NO_STEPS
        following = _LOG_ALONE if is_sensor_log(run) else none if not len(run.steps) else (_FEW_STEPS,)
        return Verdict("unknown", " ".join((why, *cautions)), "none", (), (), following, cautions, why)
    result = bottleneck(run)
    first = result.causes[0] if result.causes else None
    profiled = not run.self_times.is_empty()
    starved = first is not None and first.bound in SYSTEM
    by_others = starved and first is not None and first.name != CROWDED
    last = last_rank(run.rank_table()) if first is not None and first.bound == "communication" else None
    of_last = "" if last is None else f" Rank {last.rank} arrives last in {percent(last.share, 0)} of the steps."
    few = profiled and int(run.self_times["step"].n_unique()) < FEW
    parts = [
        _evidence_sentence(first) if first is not None else _cannot_tell(run, result),
        of_last.strip(),
        *_other_causes_sentence(result),
        "" if starved or not profiled else _IN_PARTS if not are_steps_whole(run) else _dominant_phase_and_type(run),
    ]
    cautions = tuple(filter(None, (
        *_damaged_files_caution(run),
        *_event_cautions(run),
        *_stalled_while_profiled(run),
        *_uneven_steps_caution(run),
        *_drift_caution(run),
        *(_profiling_cautions(run) if profiled else ()),
        *((_WAITED,) if profiled and first is not None and first.bound == "cpu-starved" else ()),
        "" if by_others else background_warning(background_load_of(run)).strip(),
        *_simulated_caution(run),
    )))  # fmt: skip
    unequal = _UNEQUAL_RANKS if last is not None and last.explains else ()
    advice = () if first is None else _advice(run, first)
    tell = () if first is not None else result.would_tell
    return Verdict(
        bound="unknown" if first is None else first.bound,
        sentence=" ".join(part for part in (*parts, *cautions) if part),
        confidence="none" if first is None else first.confidence,
        causes=result.causes,
        would_tell=result.would_tell,
        next=(*((_FEW_STEPS,) if few and not starved else ()), *unequal, *advice, *tell),
        cautions=cautions,
        why="" if first is not None else _cannot_tell(run, result),
    )


def _evidence_sentence(cause: Cause) -> str:
    """Return the bound with its evidence and confidence."""
    evidence = "; ".join(entry.text for entry in cause.evidence)
    named = "" if cause.name in ("arithmetic", "memory traffic", "collectives", "clock") else f" ({cause.name})"
    return f"{TITLES[cause.bound]}{named}: {evidence} ({cause.confidence} confidence)."


def _cannot_tell(run: Run, result: Bottleneck) -> str:
    return _without_ops(run) if run.self_times.is_empty() else f"{TITLES['unknown']}: {result.why}."


def _other_causes_sentence(result: Bottleneck) -> list[str]:
    """Return a sentence on the causes beside the first."""
    others = [f"{TITLES[cause.bound].lower()} ({cause.name}, {percent(cause.share, 0)})" for cause in result.causes[1:]]
    return [f"Beside that: {', '.join(others[: _MOST_CAUSES - 1])}."] if others else []


def _advice(run: Run, cause: Cause) -> tuple[str, ...]:
    """Return what follows from the cause, without what the run does already."""
    advice = list(_NEXT.get((cause.bound, cause.name), ()))
    names = set(run.self_times["name"].unique()) if not run.self_times.is_empty() else set()
    if cause.bound == "input" and cause.name == "data loader":
        several = any("MultiProcessing" in name for name in names)
        advice.append(
            "give the loader more workers, or less to do for each sample: those it has do not keep up" if several
            else "load ahead of the step: DataLoader(num_workers=2, persistent_workers=True)"
        )  # fmt: skip
    if cause.bound == "communication" and any("FSDP" in name for name in names):
        advice = [_PREFETCH, *(text for text in advice if "DistributedDataParallel" not in text)]
    backward = float(run.phases().filter(pl.col("phase") == "backward")["share"].sum())
    if cause.bound == "compute" and backward < _LITTLE_BACKWARD:
        advice = [_MOSTLY_FORWARD if backward else _EVALUATION]
    if cause.bound == "overhead":
        updates = run.phases().filter(pl.col("phase") == "optimizer")["share"].sum()
        if (
            run.framework == "torch"
            and updates > 0.2
            and not any("_foreach_" in name or "_fused_" in name for name in names)
        ):
            advice.append("give the optimizer foreach=True or fused=True: it updates tensor by tensor")
        if run.framework == "torch" and not any("Compiled" in name for name in names):
            advice.append("try torch.compile(model): it merges small operators")
    return tuple(advice)


def _damaged_files_caution(run: Run) -> Iterator[str]:
    """Yield a caution where files are damaged: what cannot be trusted at all was excluded."""
    if damaged := run.damaged_files():
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        yield f"Damaged or gone: {damaged[0].removesuffix(f': {GONE}')}{more}."


def _simulated_caution(run: Run) -> Iterator[str]:
    """Yield a caution for simulated sensors: what they show is not of this machine."""
    if run.simulated is not None:
        what = "Power, energy and heat"
        if run.board_computes:
            what = "Power, energy, heat, and the use of GPU, cores and memory controller"
        yield f"{simulated_badge(run.simulated)}. {what} are simulated; time and memory are not."


def _event_cautions(run: Run) -> Iterator[str]:
    """Yield what the recording noted of all numbers: steps that may be others, a loss that is NaN, further models."""
    noted: dict[str, list[Any]] = {}
    for event in run.events:
        noted.setdefault(str(event.get("kind")), []).append(event.get("step"))
    if "steps-uncertain" in noted:
        yield _UNCERTAIN
    if "loss-nan" in noted:
        yield f"The loss of step {noted['loss-nan'][0]} is NaN: the training had diverged."
    if others := noted.get("another-model"):
        which = "Another model was" if len(others) == 1 else "Other models were"
        yield f"{which} used from step {others[0]} on: times and shares are of the steps before and after."


def _profiling_cautions(run: Run) -> Iterator[str]:
    """Yield cautions where few steps were profiled, or profiling slowed them down."""
    count = int(run.self_times["step"].n_unique())
    if count < FEW:
        yield f"From {plural(count, 'profiled step')} only."
    more = run.overhead().row(by_predicate=pl.col("metric") == "recorded_step_overhead_share", named=True)
    if more["value"] is not None and more["low"] and 1 + more["value"] > SLOWDOWN_LIMIT:
        slower = number(1 + more["value"], 2)
        yield f"Profiled steps are {slower}x slower; times and shares are corrected for it."


def _uneven_steps_caution(run: Run) -> Iterator[str]:
    """Yield a caution where a few long steps take much of the time, so that the median step stands for little."""
    rows = {row.metric: row.value for row in (*step_time(run), *throughput(run))}
    median, rate = rows.get("step_time"), rows.get("step_rate")
    if median and rate and median / 1e9 * rate < _EVEN:
        text = f"mean {duration(1e9 / rate)}, median {duration(median)}"
        lengths = timed_steps(run)[0]["length_ns"].to_numpy()
        long = lengths[lengths > _LONG * median]
        of_time = long.sum() / max(lengths.sum(), 1)
        if of_time >= NOTABLE:
            text += f"; {percent(len(long) / len(lengths), 0)} of the steps take more than twice the median, and "
            text += f"{percent(of_time, 0)} of the time"
        yield f"Steps vary: {text}."


def _drift_caution(run: Run) -> Iterator[str]:
    """Yield a caution where steps grew clearly longer or shorter over the run: its typical step is none of either."""
    change = drift(run)
    if change is not None and change.is_clear and max(change.ratio, 1 / change.ratio) >= _DRIFTED:
        then, now = duration(change.first.value), duration(change.last.value)
        grew = "longer" if change.ratio > 1 else "shorter"
        yield f"Steps got {grew}: {now} in the last {change.steps} of the run, {then} in the first {change.steps}."


def _stalled_while_profiled(run: Run) -> Iterator[str]:
    """Yield a caution where a profiled step waited long: the speed is of unprofiled steps, and does not show it."""
    timed, which = timed_steps(run)
    steps = steps_after_warmup(run)
    others = steps.filter("recorded")["length_ns"].to_numpy()
    if which != "unprofiled steps" or not len(others):
        return
    usual = max(
        float(np.median(others)) if len(others) >= FEW else 0.0,
        _STALL * float(np.median(timed["length_ns"].to_numpy())),
    )
    long = others[others > _STALL * usual] if len(others) >= FEW else others[others > usual]
    share = (long.sum() - len(long) * usual) / max(int(steps["length_ns"].sum()), 1)
    if share >= NOTABLE:
        what = "a profiled step of" if len(long) == 1 else f"{len(long)} profiled steps of up to"
        took = f"{duration(float(long.max()))}, {percent(share, 0)} of the time after warm-up"
        yield f"The speed does not count {what} {took}."


def _without_ops(run: Run) -> str:
    times = step_time(run)
    if times:
        return f"A step takes {duration(times[0].value)}; no operator was recorded, so what it is bound by is unknown."
    count = len(run.steps)
    if is_sensor_log(run):
        return log_sentence(run)
    if lost := missing_steps_file(run):
        return f"The steps of this run cannot be read: {lost}."
    if count == 0:
        return "No training step was recorded: the run ended before its first step did."
    steps = "1 step, which was" if count == 1 else f"{count} steps, all of them"
    return f"The run has {steps} warm-up: too few to measure (the first {run.warmup_steps} are excluded)."


def _dominant_phase_and_type(run: Run) -> str:
    """Return the longest phase and the type of module with most time; on an accelerator, by kernel time."""
    phases = run.phases().filter(pl.col("phase") != FRAMEWORK_OVERHEAD).sort("share", descending=True)
    if phases.is_empty():  # kernels alone were recorded
        return ""
    phase = phases.row(0, named=True)
    text = f"{phase['phase'].capitalize()} takes {percent(phase['share'], 0)}"
    named = run.modules().filter(pl.col("module").is_not_null() & pl.col("type").is_not_null())
    kernels = run.self_times.filter(pl.col("device") != CPU)["self_ns"].sum() / max(len(profiled_steps(run)), 1)
    if kernels and named["device_ns"].is_not_null().any():
        named = named.with_columns(share=pl.col("device_ns") / kernels)
    types = named.group_by("type").agg(pl.col("share").sum(), pl.len()).sort("share", "type", descending=[True, False])
    without_times = named["forward_ns"].null_count() == len(named)  # so what they take is not known
    if types.is_empty() or types["share"][0] <= 0 or without_times:
        return f"{text}."
    kind, share, count = types.row(0)
    first = named.filter(pl.col("type") == kind).row(0, named=True)
    name = f"module '{first['module']}'" if first["module"] else "(the model)"
    which = f"{name} ({kind})" if count == 1 else f"the {count} {kind} modules"
    of = " of the accelerator's time" if first["device_ns"] is not None else ""
    return f"{text}, {which} {percent(share, 0)}{of}."
