"""The cheapest way to train within a limit: combinations of changes, each simulated, priced by measured steps.

First what gives the same update (smaller passes, recomputation, allocator); only where none of that fits, what changes
the training (precision, optimizer, fewer layers that learn). Seconds come from real steps with few samples, as a
line in the batch; recomputation costs as many times more as it has FLOPs more, an allocator what it took on other
models.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl

from stepscope.analysis.memory.limits import ALLOCATORS, NO_FIT, VERDICTS, ProcessPeak, worst_verdict
from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint import transforms
from stepscope.footprint.prediction import JobQuestion, unsure_of
from stepscope.footprint.savings import chosen_segments
from stepscope.footprint.simulator import Simulator, live_peak
from stepscope.footprint.transforms import CHANGES, Settings
from stepscope.record.allocators import child_environment
from stepscope.record.dry.allocator_costs import StepCost
from stepscope.record.dry.dry_run import DryRun, DryRunStopped

_PARTS = (1, 2, 4, 8, 16)
_DEFAULT = ALLOCATORS["default"]
_MOST_S = 60.0  # of processor time for the dry runs


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step as a line in the batch, through real steps with so few samples: least, median and most."""

    samples: tuple[int, int]
    small_s: tuple[float, float, float]
    large_s: tuple[float, float, float]

    def of(self, batch: int, parts: int) -> tuple[float, float]:
        """Least and most seconds of an update made of so many passes: the farther from the two, the less is known."""
        small, large = self.samples
        weight = (batch / parts - small) / (large - small)
        least = max(self.small_s[0], self.large_s[0]) if weight > 1 else 0.0  # more samples take no less
        ends = (sorted(part * cost[end] for end in (0, 2)) for part, cost in self._parts(weight))
        low, high = (sum(pair) for pair in zip(*ends, strict=True))
        return parts * max(low, least), parts * max(high, least)

    def _parts(self, weight: float) -> tuple[tuple[float, tuple[float, float, float]], ...]:
        return (1 - weight, self.small_s), (weight, self.large_s)


@dataclass(frozen=True)
class Candidate:
    """One combination and what it takes: the process in B by the account that decides, seconds of an update."""

    settings: Settings
    process: ProcessPeak
    verdict: str
    compute: float  # FLOPs against those of the present step
    seconds: tuple[float, float] | None

    @property
    def price(self) -> float:
        """Return the sort key of the price: seconds, or FLOPs where nothing was measured."""
        low, high = self.seconds or ALLOCATORS.get(self.settings.allocator, _DEFAULT).time
        return (low + high) / 2 * (1.0 if self.seconds else self.compute * (1 + 0.02 * (self.settings.parts - 1)))


@dataclass(frozen=True)
class Plan:
    """The cheapest candidate that fits (None: none does), those that nothing beats, and all."""

    batch: int
    chosen: Candidate | None
    front: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    step_time: StepTime | None
    complete: bool  # whether every combination was simulated
    proof: str | None = None

    def frame(self) -> pl.DataFrame:
        """Return the frame of the chart: words, peak_mb, price (s, or relative FLOPs), verdict, nothing_beats."""
        rows = [
            (plan.settings.words, plan.process.high / 1e6, plan.price, plan.verdict, plan in self.front)
            for plan in self.candidates
        ]
        return pl.DataFrame(rows, schema=["words", "peak_mb", "price", "verdict", "nothing_beats"], orient="row")

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a dictionary for JSON."""

        def row(candidate: Candidate) -> dict[str, Any]:
            return {**asdict(candidate), "words": candidate.settings.words, "high": candidate.process.high}

        return {
            "batch": self.batch,
            "chosen": None if self.chosen is None else row(self.chosen),
            "code": None if self.chosen is None else self.chosen.settings.code(self.batch),
            "front": [row(candidate) for candidate in self.front],
            "candidates": len(self.candidates),
            "step_time": None if self.step_time is None else asdict(self.step_time),
            "complete": self.complete,
            "proof": self.proof,
        }


def make_plan(question: JobQuestion, step_time: StepTime | None = None) -> Plan:
    """Search the combinations for the cheapest that fits; UsageError without a limit.

    The same training is preferred: what changes it is looked at only where nothing else fits. Raises DryRunStopped
    where fake tensors cannot run the step as it is.
    """
    if question.limit is None:
        raise UsageError("a plan is made for a limit", "say it with --memory, --board or --here")
    simulator = Simulator(question.platform, question.kept, question.allocator)
    plain = simulator.run(question.job, question.batch)
    began, complete = time.process_time(), True
    found: list[Candidate] = []
    for changes in (("",), tuple(_changes(question))):
        for settings in _combinations(question, plain, changes):
            if time.process_time() - began > _MOST_S:
                complete = False
                break
            found += _candidates(question, simulator, plain, settings, step_time)
        if any(_fits(candidate) for candidate in found):
            break
    fitting = [candidate for candidate in found if _fits(candidate)]
    chosen = min(fitting, key=lambda choice: (VERDICTS.index(choice.verdict), choice.price), default=None)
    return Plan(question.batch, chosen, tuple(_front(found)), tuple(found), step_time, complete)


def _fits(candidate: Candidate) -> bool:
    return VERDICTS.index(candidate.verdict) < VERDICTS.index("too close")


def _changes(question: JobQuestion) -> Iterator[str]:
    has_bf16 = question.platform.native_bf16 if question.has_bf16 is None else question.has_bf16
    yield from (name for name in CHANGES if name != "bf16" or has_bf16)


def _combinations(question: JobQuestion, plain: DryRun, changes: tuple[str, ...]) -> Iterator[Settings]:
    root_flops = sum(segment.flops for segment in plain.segments if "." not in segment.module)
    chosen = tuple(chosen_segments(plain.segments, root_flops))
    blocks = tuple(transforms.blocks(question.job.build()[0]))
    recomputed = tuple(dict.fromkeys(((), chosen, chosen[: len(chosen) // 2], blocks)))
    parts = [n for n in _PARTS if question.batch % n == 0 and (n == 1 or question.job.loss is not None)]
    for change, again, passes in itertools.product(changes, recomputed, parts):
        yield Settings(passes, again, change, question.allocator)


def _candidates(
    question: JobQuestion, simulator: Simulator, plain: DryRun, settings: Settings, step_time: StepTime | None
) -> Iterator[Candidate]:
    """One dry run, under every allocator that is installed."""
    job, small = settings.apply(question.job, question.batch)
    try:
        run = simulator.run(job, small)
    except DryRunStopped:  # batch statistics of a single sample, for example
        return
    live, before = live_peak(run.log), live_peak(plain.log)
    compute = run.flops / plain.flops if plain.flops else 1.0
    on_gpu = {question.allocator: simulator.allocator} if simulator.on_gpu else None
    for name, allocator in (on_gpu or ALLOCATORS).items():
        if name != question.allocator and not _installed(name):
            continue

        def process(account: str, by: Any = allocator) -> ProcessPeak:
            return simulator.process(live, by, before, account)

        if question.limit is None:
            return
        verdict, decides = worst_verdict(process, question.limit, not unsure_of(question))
        seconds = None
        if step_time is not None:
            low, high = step_time.of(question.batch, settings.parts)
            seconds = low * compute * allocator.time[0], high * compute * allocator.time[1]
        yield Candidate(replace(settings, allocator=name), process(decides.account), verdict, compute, seconds)


def _installed(allocator: str) -> bool:
    try:
        child_environment(allocator)
    except StepscopeError:
        return False
    return True


def _front(found: list[Candidate]) -> Iterator[Candidate]:
    """Return the combinations that no other beats in both memory and price, smallest first."""
    best = float("inf")
    for candidate in sorted(found, key=lambda choice: (choice.process.high, choice.price)):
        if candidate.price < best and candidate.verdict in (*VERDICTS[:-1], NO_FIT):
            best = candidate.price
            yield candidate


def measured_step_time(step: Callable[[int], StepCost], batch: int) -> StepTime | None:
    """The line through real steps of two small batches; None where they cannot be trained."""
    small, large = max(1, batch // 8), max(2, batch // 4)
    try:
        first, second = (sorted(step(samples).wall_s) for samples in (small, large))
    except StepscopeError:
        return None
    ends = [(times[0], statistics.median(times), times[-1]) for times in (first, second)]
    return StepTime((small, large), ends[0], ends[1])
