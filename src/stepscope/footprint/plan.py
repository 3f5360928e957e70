"""The cheapest way to train within a limit: combinations of changes, each simulated, priced by measured steps.

First what keeps model, optimizer and precision (smaller passes, recomputation, allocator: `Variant.differences` says
where even their update is another one); only where none of that fits, what changes the training (precision, optimizer,
fewer layers that learn). Combinations are ranked by a line in the batch through real steps with few samples;
recomputation costs as many times more as it has FLOPs more, an allocator what it took on other models. A step is no
line in its batch: the cheapest are then run (`with_measured_times`), and it is their seconds that are said.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl
from torch import nn

from stepscope.analysis.memory.limits import (
    ALLOCATORS,
    VERDICTS,
    Allocator,
    Limit,
    ProcessPeak,
    worst_verdict,
)
from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint import transforms
from stepscope.footprint.calibration import is_allocator_installed
from stepscope.footprint.prediction import JobQuestion, reasons_for_doubt
from stepscope.footprint.result import LivePeak
from stepscope.footprint.savings import chosen_segments
from stepscope.footprint.simulator import Simulator, live_peak
from stepscope.footprint.transforms import CHANGES, Variant
from stepscope.record.dry.allocator_costs import StepCost
from stepscope.record.dry.dry_run import DryRunStopped, model_of

_MOST_PARTS = 16
_PASSES = 2  # that are simulated of a step: the second finds gradients of the first, and no later one finds more
_DEFAULT = ALLOCATORS["default"]
_MOST_S = 60.0  # of processor time until something fits
_PICTURE_S = 5.0  # of processor time, after which only what the answer needs is simulated
_BY_FAR = 1.03  # of a limit: beyond it by a line that a peak lies on or below
_RUN = 3  # combinations that are run
_EXPECTED_WITHIN = 0.97  # of a price: recomputation may stop before the last op of a module


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step as a line in the batch, through real steps with so few samples: least, median and most."""

    samples: tuple[int, int]
    small_s: tuple[float, float, float]
    large_s: tuple[float, float, float]

    def of(self, batch: int, parts: int) -> tuple[float, float]:
        """Least and most seconds of an update made of so many passes: the farther from the two, the less is known."""
        small, large = self.samples
        samples = batch / parts
        weight = (samples - small) / (large - small)
        # beyond the two: more samples take no less, and no more than in proportion, because what is fixed is no gain
        least, most = 0.0, math.inf
        if weight > 1:
            least = max(self.small_s[0], self.large_s[0])
            most = max(least, self.large_s[2] * samples / large)
        elif weight < 0:
            least, most = self.small_s[0] * samples / small, self.small_s[2]
        ends = (sorted(part * cost[end] for end in (0, 2)) for part, cost in self._parts(weight))
        low, high = (min(max(sum(pair), least), most) for pair in zip(*ends, strict=True))
        return parts * low, parts * high

    def _parts(self, weight: float) -> tuple[tuple[float, tuple[float, float, float]], ...]:
        return (1 - weight, self.small_s), (weight, self.large_s)


@dataclass(frozen=True)
class Candidate:
    """One combination and what it takes: the process in B by the account that decides, seconds of an update."""

    settings: Variant
    process: ProcessPeak
    verdict: str
    compute: float  # FLOPs against those of the present step
    seconds: tuple[float, float] | None
    timed: bool = False  # seconds are of real steps of this combination, the shortest and the longest

    @property
    def price(self) -> float:
        """Return the sort key of the price: seconds, or FLOPs where nothing was measured."""
        return price_of(self.settings, self.compute, self.seconds)


def price_of(settings: Variant, compute: float, seconds: tuple[float, float] | None) -> float:
    """Return seconds in the middle; where nothing was measured FLOPs, against those of the present step."""
    low, high = seconds or ALLOCATORS.get(settings.allocator, _DEFAULT).time
    return (low + high) / 2 * (1.0 if seconds else compute * (1 + 0.02 * (settings.parts - 1)))


@dataclass(frozen=True)
class Plan:
    """The cheapest candidate that fits (None: none does), those that nothing beats, and all."""

    batch: int
    chosen: Candidate | None
    front: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    step_time: StepTime | None
    complete: bool  # whether every combination was simulated
    search_s: float  # of processor time, for dry runs after the first
    time_over: bool = False  # before all were simulated that might have been the cheapest
    proof: str | None = None
    failures: tuple[str, ...] = ()  # of combinations whose real steps were tried

    def notes(self, model: nn.Module) -> list[str]:
        """Return what the answer says beside the plan: where its update is another one, and what was not looked at."""
        notes = [] if self.chosen is None else self.chosen.settings.differences(model, self.batch)
        notes += [f"plan: {failure}" for failure in self.failures]
        if self.time_over:
            notes.append("plan: time was over before the search was: another may fit that is cheaper or changes less")
        return notes

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
            "time_over": self.time_over,
            "proof": self.proof,
        }


class NoPlan(StepscopeError):
    """Fake tensors cannot run the step, so that no combination can be simulated."""


class Search:
    """Combinations of one job, batch and allocator: each is simulated once, for every limit that is asked about.

    Of one way to recompute, more and smaller passes never take more memory than two: what takes more than one that
    fails fails too, and most combinations are judged without a dry run. One pass may take less than two, since the
    second finds the gradients of the first: it is always simulated.
    """

    def __init__(self, question: JobQuestion) -> None:
        self.simulator = Simulator(question.platform, question.calibration, question.allocator)
        try:
            self.plain = self.simulator.run(question.job, question.batch)
        except DryRunStopped as stop:
            raise NoPlan(f"no plan: {stop}", "combinations are dry run, which this model cannot be") from stop
        self._question, self._before = question, live_peak(self.plain.log)
        as_it_is = Variant(allocator=question.allocator)
        self._simulated: dict[Variant, tuple[LivePeak, float] | None] = {as_it_is: (self._before, 1.0)}
        self._took_s = {as_it_is: 0.0}

    def simulate(self, settings: Variant) -> tuple[LivePeak, float] | None:
        """Return live peak and FLOPs against the present step; None where fake tensors cannot run it."""
        settings = replace(settings, allocator=self._question.allocator)
        if settings not in self._simulated:
            began = time.process_time()
            self._simulated[settings] = self._run_variant(settings)
            self._took_s[settings] = time.process_time() - began
        return self._simulated[settings]

    @property
    def all_s(self) -> float:
        """Return the processor time of every dry run but the first."""
        return sum(self._took_s.values())

    def took_s(self, settings: Iterable[Variant]) -> float:
        """Return the processor time of the dry runs of these, whenever they were made."""
        runs = {replace(choice, allocator=self._question.allocator) for choice in settings}
        return sum(self._took_s[run] for run in runs)

    def _run_variant(self, settings: Variant) -> tuple[LivePeak, float] | None:
        passes = min(settings.parts, _PASSES)
        job, small = replace(settings, parts=passes).apply(
            self._question.job, passes * self._question.batch // settings.parts
        )
        try:
            run = self.simulator.run(job, small)
        except DryRunStopped:  # batch statistics of a single sample, for example
            return None
        flops = run.flops * settings.parts / passes
        return live_peak(run.log), flops / self.plain.flops if self.plain.flops else 1.0

    def candidate(self, settings: Variant, limit: Limit, step_time: StepTime | None) -> Candidate | None:
        """Return what a combination takes of a limit, and its seconds; None where it cannot be simulated."""
        simulation = self.simulate(settings)
        if simulation is None:
            return None
        _, compute = simulation
        process = functools.partial(self.process, settings)
        sure = not reasons_for_doubt(self._question) and not self.simulator.workspaces.not_modelled
        verdict, decides = worst_verdict(process, limit, sure)
        return Candidate(
            settings, process(decides.account), verdict, compute, self._seconds_of_update(settings, compute, step_time)
        )

    def process(self, settings: Variant, account: str) -> ProcessPeak:
        """Return the process of a combination that can be simulated, by an account."""
        simulated = self.simulate(settings)
        assert simulated is not None  # the caller knows a candidate of it
        return self.simulator.peak_of_process(simulated[0], self.allocators[settings.allocator], self._before, account)

    def deciding_account(self, settings: Variant, limit: Limit) -> str:
        """Return the account by which such a combination is nearest to its limit."""
        return worst_verdict(functools.partial(self.process, settings), limit)[1].account

    def _seconds_of_update(
        self, settings: Variant, compute: float, step_time: StepTime | None
    ) -> tuple[float, float] | None:
        if step_time is None:
            return None
        low, high = step_time.of(self._question.batch, settings.parts)
        factor = self.allocators[settings.allocator].time
        return low * compute * factor[0], high * compute * factor[1]

    def expected_price(self, settings: Variant, step_time: StepTime | None) -> float:
        """Return the price of a combination before its dry run: a recomputed module has its FLOPs once more.

        A change of the training is simulated alone first, unless even that cannot be.
        """
        again = sum(segment.flops for segment in self.plain.segments if segment.module in settings.recomputed)
        alone = self.simulate(Variant(change=settings.change))
        compute = (1.0 if alone is None else alone[1]) + (again / self.plain.flops if self.plain.flops else 0.0)
        return price_of(settings, compute, self._seconds_of_update(settings, compute, step_time))

    @functools.cached_property
    def allocators(self) -> dict[str, Allocator]:
        """Return the allocators of this question that are installed."""
        if self.simulator.on_gpu:
            return {self._question.allocator: self.simulator.allocator}
        own = self._question.allocator
        return {name: by for name, by in ALLOCATORS.items() if name == own or is_allocator_installed(name)}

    def combinations(self, changes: tuple[str, ...]) -> list[Variant]:
        """Return every combination with one of these changes of the training."""
        most = _MOST_PARTS if self._question.job.loss is not None else 1
        parts = [n for n in range(1, most + 1) if self._question.batch % n == 0]
        fields = itertools.product(parts, self._recompute_choices, changes, self.allocators)
        return [Variant(*values) for values in fields]

    @functools.cached_property
    def _recompute_choices(self) -> tuple[tuple[str, ...], ...]:
        plain = self.plain
        root_flops = sum(segment.flops for segment in plain.segments if "." not in segment.module)
        chosen = tuple(chosen_segments(plain.segments, root_flops))
        blocks = tuple(transforms.repeated_blocks(model_of(self._question.job)))
        return tuple(dict.fromkeys(((), chosen, chosen[: len(chosen) // 2], blocks)))

    def smallest(self, change: str) -> list[Variant]:
        """Return the combinations that should take the least, in one pass and in most, with most recomputed."""
        saved = {segment.module: segment.saved_bytes for segment in self.plain.segments}
        combinations = self.combinations((change,))

        def least(settings: Variant) -> int:
            return sum(saved.get(name, 0) for name in settings.recomputed)

        ends = sorted({1, max(settings.parts for settings in combinations)})
        return [max((choice for choice in combinations if choice.parts == parts), key=least) for parts in ends]


def make_plan(question: JobQuestion, step_time: StepTime | None = None, search: Search | None = None) -> Plan:
    """Search the combinations for the cheapest that fits; UsageError without a limit.

    The same training is preferred: what changes it is looked at only where nothing else fits. Raises NoPlan
    where fake tensors cannot run the step as it is. search: one that was made for this question before, whatever
    its limit.
    """
    if question.limit is None:
        raise UsageError("a plan is made for a limit", "give it with --memory, --board or --here")
    search = search or Search(question)
    evaluator = _CandidateEvaluator(search, question.limit, step_time)
    combinations, time_over = list[Variant](), False
    for changes in (("",), changes_of(question)):
        combinations = search.combinations(tuple(change for change in changes if evaluator.possible(change)))
        if combinations and not _finds_cheapest_in_time(evaluator, combinations):
            time_over = True
        if any(candidate is not None and _candidate_fits(candidate) for candidate in evaluator.candidates.values()):
            break
    for settings in sorted(combinations, key=evaluator.expected):  # the trade beside the answer, while there is time
        if evaluator.took_s > _PICTURE_S:
            break
        evaluator.candidate_for(settings)
    candidates = [candidate for candidate in evaluator.candidates.values() if candidate is not None]
    if len(question.limit.all) > 1 and candidates:  # compared by one account
        account = search.deciding_account((_best_candidate(candidates) or candidates[0]).settings, question.limit)
        candidates = [replace(choice, process=search.process(choice.settings, account)) for choice in candidates]
    chosen = _best_candidate(candidates)
    complete = all(settings in evaluator.candidates for settings in combinations)
    return Plan(
        question.batch, chosen, tuple(_pareto_front(candidates)), tuple(candidates), step_time, complete,
        evaluator.took_s, time_over,
    )  # fmt: skip


def with_measured_times(plan: Plan, steps: Callable[[Variant], StepCost]) -> Plan:
    """Return the plan with the seconds of real steps of what is chosen in place of the line's.

    The line is off alike for passes of as many samples: the others of them are corrected by as much. Where another
    combination that fits as surely is cheaper then, it is run too: at most three, of which the cheapest is chosen.
    `steps` raises StepscopeError where the training fails: another is chosen then, and where all of them fail the
    line's seconds stay.
    """
    candidates, run = list(plan.candidates), list[Candidate]()
    failures: dict[Variant, str] = {}
    best = plan.chosen
    while best is not None and not best.timed and len(run) + len(failures) < _RUN:
        try:
            wall_s = steps(best.settings).wall_s
        except StepscopeError as error:
            failures[best.settings] = f"real steps failed here of '{best.settings.words}': {error}"
            best = _best_candidate(choice for choice in candidates if choice.settings not in failures)
            continue
        run.append(replace(best, seconds=(min(wall_s), max(wall_s)), timed=True))
        candidates = [
            run[-1] if other == best else _with_corrected_seconds(other, best, run[-1]) for other in candidates
        ]
        best = _best_candidate(choice for choice in candidates if choice.settings not in failures)
    return replace(
        plan, chosen=_best_candidate(run) or plan.chosen, front=tuple(_pareto_front(candidates)),
        candidates=tuple(candidates), failures=tuple(failures.values()),
    )  # fmt: skip


def _with_corrected_seconds(candidate: Candidate, by_line: Candidate, run: Candidate) -> Candidate:
    """Return a candidate with passes of as many samples as one that was run, off by as much as this one was."""
    if candidate.timed or candidate.seconds is None or candidate.settings.parts != run.settings.parts:
        return candidate
    low, high = candidate.seconds
    factor = run.price / by_line.price if by_line.price else 1.0
    return replace(candidate, seconds=(low * factor, high * factor))


def _best_candidate(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the cheapest of those that fit most surely; one that changes the training only where no other fits."""

    def order(choice: Candidate) -> tuple[bool, int, float]:
        return bool(choice.settings.change), VERDICTS.index(choice.verdict), choice.price

    return min((candidate for candidate in candidates if _candidate_fits(candidate)), key=order, default=None)


class _CandidateEvaluator:
    """Candidates under one limit, as far as they were simulated."""

    def __init__(self, search: Search, limit: Limit, step_time: StepTime | None) -> None:
        self.candidates: dict[Variant, Candidate | None] = {}
        self._search, self._limit, self._step_time = search, limit, step_time

    @property
    def took_s(self) -> float:
        return self._search.took_s(self.candidates)

    def expected(self, settings: Variant) -> float:
        if settings.change:
            self.candidate_for(replace(settings, parts=1, recomputed=()))  # its price is known from that
        return self._search.expected_price(settings, self._step_time)

    def candidate_for(self, settings: Variant) -> Candidate | None:
        """The candidate; the dry run serves every allocator."""
        for name in self._search.allocators:
            same = replace(settings, allocator=name)
            if same not in self.candidates:
                self.candidates[same] = self._search.candidate(same, self._limit, self._step_time)
        return self.candidates[settings]

    def possible(self, change: str) -> bool:
        """Return whether one of the smallest combinations with this change fits under any allocator, or may."""
        allocators = self._search.allocators
        smallest = self._search.smallest(change)
        candidates = [self.candidate_for(replace(choice, allocator=name)) for choice in smallest for name in allocators]
        return any(candidate is None or _candidate_fits(candidate) for candidate in candidates)

    def fits(self, settings: Variant) -> bool:
        candidate = self.candidate_for(settings)
        return candidate is not None and _candidate_fits(candidate)

    def fails(self, settings: Variant) -> bool:
        """Return whether it is known without another dry run that it does not fit."""
        if settings in self.candidates:
            return not self.fits(settings)
        like = replace(settings, parts=1)
        multipass = (choice for choice in self.candidates if choice.parts > 1 and self.candidates[choice] is not None)
        same = [choice for choice in multipass if replace(choice, parts=1) == like]
        if settings.parts == 1:
            return False
        if any(choice.parts >= settings.parts and not self.fits(choice) for choice in same):
            return True
        return any(self._line_is_beyond(single, settings, same) for single in self._limit.all)

    def _line_is_beyond(self, limit: Limit, settings: Variant, same: list[Variant]) -> bool:
        """Whether a line in the samples of a pass, through the nearest that are known, is beyond a limit by far."""
        highs = {1 / choice.parts: self._search.process(choice, limit.account).high for choice in same}
        at = 1 / settings.parts
        below = max((x for x in highs if x < at), default=None)
        above = min((x for x in highs if x > at), default=None)
        if below is None or above is None:
            return False
        between = highs[below] + (highs[above] - highs[below]) * (at - below) / (above - below)
        return between > _BY_FAR * limit.bytes


def _finds_cheapest_in_time(evaluator: _CandidateEvaluator, combinations: list[Variant]) -> bool:
    """Simulate in the order of expected prices until the cheapest that fits is known; False where time is over."""
    best: Candidate | None = None
    smallest = max(settings.parts for settings in combinations)
    for settings in sorted(combinations, key=evaluator.expected):
        if best is not None and evaluator.expected(settings) * _EXPECTED_WITHIN >= best.price:
            break
        if evaluator.took_s > _MOST_S:
            return False
        if settings.parts > 1 and not evaluator.fails(settings):
            # Fails even this, then so do those with fewer, but for one.
            evaluator.candidate_for(replace(settings, parts=smallest))
        candidate = None if evaluator.fails(settings) else evaluator.candidate_for(settings)
        if candidate is not None and _candidate_fits(candidate) and (best is None or candidate.price < best.price):
            best = candidate
    return True


def _candidate_fits(candidate: Candidate) -> bool:
    return VERDICTS.index(candidate.verdict) < VERDICTS.index("too close")


def changes_of(question: JobQuestion) -> tuple[str, ...]:
    """Return the names of the changes of the training that its device can do."""
    has_bf16 = question.platform.native_bf16 if question.has_bf16 is None else question.has_bf16
    return tuple(name for name in CHANGES if name != "bf16" or has_bf16)


def _pareto_front(candidates: list[Candidate]) -> Iterator[Candidate]:
    """Return the combinations that no other beats in both memory and price, smallest first."""
    best = float("inf")
    for candidate in sorted(candidates, key=lambda choice: (choice.process.high, choice.price)):
        if candidate.price < best:
            best = candidate.price
            yield candidate


def measured_step_time(step: Callable[[int], StepCost], batch: int) -> StepTime:
    """Return the line through real steps of two small batches; StepscopeError where they cannot be trained."""
    # batch normalization cannot be trained on one sample
    small, large = max(2, batch // 8), max(4, batch // 4)
    first, second = (sorted(step(samples).wall_s) for samples in (small, large))
    ends = [(times[0], statistics.median(times), times[-1]) for times in (first, second)]
    return StepTime((small, large), ends[0], ends[1])
