"""The question of this study: does a training fit, at which batch at most, and what would make it fit?"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from stepscope.analysis.memory_model import ALLOCATORS, MARGIN, Limit, ProcessPeak, verdict
from stepscope.errors import StepscopeError, UsageError
from stepscope.record.dry_run import DryRun, DryRunStopped
from stepscope.record.job import Job
from stepscope.record.workspaces import Platform, this_platform
from stepscope.studies.fit import result as words
from stepscope.studies.fit.kept import Kept
from stepscope.studies.fit.largest import largest_batch
from stepscope.studies.fit.live_peak import live_peak
from stepscope.studies.fit.measured import Line, measured_line
from stepscope.studies.fit.options import Way, ways, worth_a_line
from stepscope.studies.fit.result import FitResult, LivePeak, Option
from stepscope.studies.fit.simulator import Simulator


@dataclass(frozen=True)
class Question:
    """What is asked of a job: the batch, the limit, the allocator, and how far to go."""

    job: Job
    batch: int
    limit: Limit | None = None
    allocator: str = "default"
    platform: Platform = field(default_factory=this_platform)
    kept: Kept = field(default_factory=Kept)
    has_bf16: bool | None = None  # None: as this machine
    options: bool = True
    largest: bool = True


def answer(question: Question) -> FitResult:
    """The answer by dry runs; where fake tensors stop, by two small batches for real, and it says so."""
    if question.batch < 1:
        raise UsageError(f"a batch of {question.batch} samples cannot be trained", "use --batch 1 or more")
    began = time.perf_counter()
    asked = Simulator(question.platform, question.kept, question.allocator)
    try:
        plain = asked.run(question.job, question.batch)
    except DryRunStopped as stop:
        found = _measured_answer(question, asked, stop)
    else:
        found = _dry_answer(question, asked, plain)
    return replace(found, seconds=time.perf_counter() - began)


def _dry_answer(question: Question, asked: Simulator, plain: DryRun) -> FitResult:
    job, limit = question.job, question.limit
    live = live_peak(plain.log)
    process = asked.process(live)
    not_modelled = {name: count for name, count in asked.workspaces.not_modelled.items() if count}
    slope = _slope(asked, job, question.batch, live)
    sure, likely = asked.largest(job, limit, question.batch) if limit is not None and question.largest else (None, None)
    found = tuple(_options(question, asked, plain, live)) if question.options else ()
    return FitResult(
        job.name, question.batch, words.DRY_RUN, live, process, asked.allocator.name, question.platform.name, limit,
        None if limit is None else verdict(process, limit), sure, slope, found,
        likely_batch=likely, not_modelled=not_modelled,
        notes=tuple(_notes(question, plain, live)), ops=plain.log.ops, events=plain.events(),
    )  # fmt: skip


def _measured_answer(question: Question, asked: Simulator, stop: DryRunStopped) -> FitResult:
    line = _really_measured(question.job)
    live = line.at(question.batch)
    process = asked.process(live)
    limit = question.limit
    notes = ("kernels' workspaces are not in it", "no options: they are simulated by dry runs")
    return FitResult(
        question.job.name, question.batch, words.SMALL_BATCHES, live, process, asked.allocator.name,
        question.platform.name, limit, None if limit is None else verdict(process, limit),
        None if limit is None else _largest_on(line, asked, limit), round(line.bytes_per_sample),
        stopped=str(stop), notes=notes,
    )  # fmt: skip


def _really_measured(job: Job) -> Line:
    try:
        return measured_line(job)
    except StepscopeError:
        raise
    except Exception as error:  # a user's model or batch maker may raise anything
        said = f"{type(error).__name__}: {error}"
        raise StepscopeError(f"{job.name} fails on real tensors too: {said}", "run a step of it by itself") from error


def _largest_on(line: Line, asked: Simulator, limit: Limit) -> int:
    def peak(batch: int) -> int:
        return asked.process(line.at(batch)).high

    return largest_batch(peak, limit.bytes * (1 - MARGIN), line.large[0])


def _options(question: Question, asked: Simulator, plain: DryRun, as_it_is: LivePeak) -> list[Option]:
    before = asked.process(as_it_is).middle
    found = [
        _of_allocator(question, asked, as_it_is, before, name) for name in ALLOCATORS if name != asked.allocator.name
    ]
    has_bf16 = question.platform.native_bf16 if question.has_bf16 is None else question.has_bf16
    for way in ways(question.job, question.batch, plain, has_bf16):
        try:
            option = _simulated(question, asked, plain, as_it_is, way)
        except DryRunStopped:
            continue  # this model cannot be changed so: an activation in place that backward needs, for example
        if worth_a_line(before, option.process.middle):
            found.append(option)
    return sorted((option for option in found if option.gain > 0), key=lambda option: -option.gain)


def _simulated(question: Question, asked: Simulator, plain: DryRun, as_it_is: LivePeak, way: Way) -> Option:
    run = asked.run(way.job, way.batch, way.change)
    live = live_peak(run.log)
    process = asked.process(live, plain=as_it_is)
    compute = run.flops / plain.flops if plain.flops else 1.0
    return _option(way.name, live, process, asked.process(as_it_is).middle, way.price, compute, question.limit)


def _of_allocator(question: Question, asked: Simulator, live: LivePeak, before: int, name: str) -> Option:
    process = asked.process(live, ALLOCATORS[name])
    low, high = ALLOCATORS[name].time
    price = f"{low:g} to {high:g} times the CPU time; {ALLOCATORS[name].how}"
    return _option(f"allocator: {name}", live, process, before, price, 1.0, question.limit)


def _option(
    name: str, live: LivePeak, process: ProcessPeak, before: int, price: str, compute: float, limit: Limit | None
) -> Option:
    said = None if limit is None else verdict(process, limit)
    gain = before - process.middle
    return Option(name, live.bytes, process, said, gain, gain / before, price, compute)


def _slope(asked: Simulator, job: Job, batch: int, live: LivePeak) -> int | None:
    """Live bytes that one more sample takes, near this batch."""
    more = max(batch + 1, round(batch * 1.25))
    try:
        return round((live_peak(asked.run(job, more).log).bytes - live.bytes) / (more - batch))
    except DryRunStopped:
        return None


def _notes(question: Question, plain: DryRun, live: LivePeak) -> list[str]:
    notes = []
    if plain.log.looks:
        notes.append(f"the loop asks for {plain.log.looks} numbers outside the model; it was told a made-up one")
    parameters = sum(s.bytes for s in plain.log.storages if s.category == "parameter")
    limit = question.limit
    if limit is not None and parameters > limit.bytes:
        notes.append("the parameters alone are larger than the limit: no batch can fit")
    if question.platform.kind == "cuda":
        notes.append(
            "CUDA: dispatched as on the CPU; cuDNN's workspaces are an interval, the CUDA context is not in it"
        )
    return notes
