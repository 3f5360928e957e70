"""The twelve observations of the 2019 paper, judged on the device at hand: their contract, and the request.

A file without a leading underscore names its OBSERVATIONS; the folder is its own registry."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.engine import DEFAULT_TIME_LIMIT_S, SIMULATE, TIME_LIMIT, StudyRequest, check_device
from stepscope.plugins import Discovery, discover
from stepscope.request import option
from stepscope.units import estimate

if TYPE_CHECKING:
    from stepscope.analysis.estimate import Estimate
    from stepscope.experiments.engine.engine import Plan
    from stepscope.experiments.observations._evidence import Evidence

# The contract of an observation: claims as numbers with intervals against stated limits, and the verdict.

Outcome = Literal["holds", "does not hold", "cannot be judged"]
HOLDS: Outcome = "holds"
FAILS: Outcome = "does not hold"
UNKNOWN: Outcome = "cannot be judged"
AS_THE_PAPER = "as the paper"
FEWEST = 3  # runs, models or seeds: of two, Student's interval is hardly ever shorter than what it is to decide


@dataclass(frozen=True)
class Limits:
    """Range of a number if the claim is true: from `least` to `most`."""

    least: float = -math.inf
    most: float = math.inf

    def __str__(self) -> str:
        if math.isinf(self.most):
            return f"above {self.least:g}"
        return f"below {self.most:g}" if math.isinf(self.least) else f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class ModelVerdict:
    """A claim judged for one model (or one pair of them): its number, and why it came out so."""

    model: str
    outcome: Outcome
    interval: Estimate | None
    why: str
    where: str = ""  # which of its batch sizes the number is of, where it is not the claim's own


@dataclass(frozen=True)
class JudgedClaim:
    """One claim of an observation: the test, the effect with its interval, the limits, and what follows.

    models: the same claim for each model where it is one about all of them; it holds only if it holds for each.
    """

    claim: str
    test: str
    effect: str  # what the number is, with its unit
    interval: Estimate | None
    limits: Limits | None
    of: str  # what it was taken from
    outcome: Outcome
    why: str
    models: tuple[ModelVerdict, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """An observation judged; `reading` says what was judged in its place where the device has no accelerator."""

    number: int
    claim: str
    reading: str
    outcome: Outcome
    why: str
    parts: tuple[JudgedClaim, ...]

    @property
    def deciding(self) -> JudgedClaim:
        """The part that made the outcome what it is; the first where all agree."""
        return next((part for part in self.parts if part.outcome == self.outcome), self.parts[0])


@dataclass(frozen=True)
class Observation:
    """One observation of the paper; files of this folder name theirs in OBSERVATIONS."""

    number: int
    claim: str
    paper: str  # what the paper saw
    figure: str  # name of the figure that shows it
    needs: Literal["runs", "memory", "days"]
    judge: Callable[[Evidence], Verdict]


def judge_claim(claim: str, test: str, effect: str, number: Estimate, limits: Limits, of: str) -> JudgedClaim:
    """A claim judged: it holds where the whole interval lies within the limits, and not where none of it does."""
    facts = (claim, test, effect, number, limits, of)
    if math.isnan(number.value):
        return JudgedClaim(*facts, UNKNOWN, f"nothing to take it from: {of}")
    if number.low is None or number.high is None:
        return JudgedClaim(*facts, UNKNOWN, f"too few for an interval: {of}; make more repeats")
    if number.low > limits.least and number.high < limits.most:
        return JudgedClaim(*facts, HOLDS, f"{interval_text(number)}, {limits}")
    if number.high <= limits.least or number.low >= limits.most:
        return JudgedClaim(*facts, FAILS, f"{interval_text(number)}, not {limits}")
    return JudgedClaim(
        *facts, UNKNOWN, f"{interval_text(number)} spans the limit ({limits}), more or longer runs would tell: {of}"
    )


def undecidable_claim(claim: str, test: str, why: str) -> JudgedClaim:
    """A claim that nothing here can decide."""
    return JudgedClaim(claim, test, "", None, None, "", UNKNOWN, why)


def verdict_from_claims(observation: Observation, parts: list[JudgedClaim], reading: str = AS_THE_PAPER) -> Verdict:
    """All parts must hold; one that does not is enough against the whole."""
    outcomes = [result.outcome for result in parts]
    outcome = FAILS if FAILS in outcomes else UNKNOWN if UNKNOWN in outcomes else HOLDS
    decisive = [result for result in parts if result.outcome == outcome]
    why = "; ".join(dict.fromkeys(f"{result.claim}: {result.why}" for result in decisive))
    return Verdict(observation.number, observation.claim, reading, outcome, why, tuple(parts))


def interval_text(number: Estimate) -> str:
    if number.low is not None and number.low == number.high:
        return f"{number.value:.3g} exactly"
    return estimate(number.value, number.low, number.high, "")


ENTRY_POINTS = "stepscope.observations"
_NOT_OBSERVATIONS = frozenset({"study"})


@cache
def discover_observation_files() -> Discovery:
    """Every file of this folder and of plug-ins, and a sentence for each that could not be imported."""
    return discover(sys.modules[__name__], ENTRY_POINTS, skip=_NOT_OBSERVATIONS)


def all_observations() -> list[Observation]:
    """All observations, in order of their numbers."""
    entries: list[object] = [
        entry for module in discover_observation_files().modules for entry in getattr(module, "OBSERVATIONS", ())
    ]
    entries += [
        getattr(module, "OBSERVATION", None) for module in discover_observation_files().modules
    ]  # of a plug-in with one
    return sorted((entry for entry in entries if isinstance(entry, Observation)), key=lambda entry: entry.number)


QUICK_WORKLOADS = ("squeezenet-c32", "inception-v1-narrow-c32", "char-lstm-80", "dqn-2013-84")
PAPER_WORKLOADS = (
    "densenet40-12-c32", "resnet50-c32", "squeezenet-c32", "inception-v1-c32", "dcgan-32", "char-lstm-80", "dqn-2013-84"
)  # fmt: skip
# The paper's DenseNet40 at a third of its width, from weights that ship; LeNet is pre-trained on the spot.
_DAY_DATA: Mapping[str, str] = {"densenet40-4-c32": "fashion-mnist-6k", "lenet": "mnist-5k"}
QUICK_BATCHES, PAPER_BATCHES = (4, 16, 64), (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class DailyScenario:
    """The scenario: pre-trained until its accuracy rises no more (or is `start`), then `images` new ones a day."""

    workload: str
    data: str  # that comes with the package, whatever else is on a machine
    days: int = 17
    images: int = 64
    start: float | None = None
    batches: tuple[int, ...] = (16,)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Observations(StudyRequest):
    """Judge each of the twelve observations of the 2019 paper on this device: holds, does not, or cannot be judged.

    Each has a stated test, an effect with its 95 % CI, and a figure (3 to 10 of the paper from own data).
    Without an accelerator the meaningful counterpart is judged and labelled so; a missing sensor is never a pass.
    It can be interrupted: the same command with the same --out continues where it stopped.
    """

    study: ClassVar[str] = "observations"

    quick: bool = option(False, "Small models and few repeats: minutes on two cores.", stored=False)
    from_: tuple[Path, ...] = option(
        (), "Take the runs of a sweep, or of any folder of runs; may be given again.", separate=True, stated=True
    )
    simulate: str | None = option(None, SIMULATE)
    workloads: tuple[str, ...] = option(
        PAPER_WORKLOADS, "Train these: a,b. Default: the paper's.", stated=True, quick=QUICK_WORKLOADS
    )
    batch: tuple[int, ...] = option(
        PAPER_BATCHES, "Batch sizes. Default: 4,8,...,64.", least=1, example="4", stated=True, quick=QUICK_BATCHES
    )
    repeats: int = option(
        3, "Fresh processes for each setting: 3. One shows nothing of how runs differ.", least=1, example="4"
    )
    seconds: float = option(
        20.0, "Seconds of steps of a run, 12 steps at least: 20 (2).", above=0, unit="s", example="20", quick=2.0
    )
    device: str = option(  # one of them, once it is checked
        None, "cpu or cuda. Default: cuda where torch has it.", choices=("cpu", "cuda")
    )
    threads: int | None = option(
        None, "Threads. Default: on a CPU one core is left free.", least=1, most=1024, example="1"
    )  # fmt: skip
    days: int = option(17, "Days of the daily training: 17 (--quick: 10).", least=1, example="10", quick=10)
    only: tuple[int, ...] = option((), "Judge these alone: 1,3,9.", least=1, example="1,3,9", stated=True)
    seed: int = option(0, "Seed of the order of runs and of the trainings.")
    day_workload: str = option(
        "densenet40-4-c32",
        "Network of the days. Default: densenet40-4-c32 (--quick: lenet).",
        choices=_DAY_DATA,
        quick="lenet",
    )
    day_batches: tuple[int, ...] = option((16, 32, 64), "Batch sizes of the days.", least=1, quick=(16,), typed=False)
    day_seeds: int = option(5, "Daily trainings of each batch size.", least=1, quick=4, typed=False)
    time_limit: float = option(DEFAULT_TIME_LIMIT_S, TIME_LIMIT)

    @property
    def daily(self) -> DailyScenario:
        """Return the trainings of each day."""
        seeds = tuple(range(self.seed, self.seed + self.day_seeds))
        return DailyScenario(
            self.day_workload, _DAY_DATA[self.day_workload], self.days, batches=self.day_batches, seeds=seeds
        )

    @property
    def trainings(self) -> tuple[str, ...]:
        return () if self.from_ else self.workloads

    @property
    def all_of_runs(self) -> bool:
        """Return whether all that runs tell is asked for: the paper's rankings and points belong to no observation."""
        return not self.only or {entry.number for entry in all_observations() if entry.needs == "runs"} <= set(
            self.only
        )

    @property
    def needs(self) -> set[str]:
        """The kinds of measurement: runs, memory, days."""
        return {
            observation.needs for observation in all_observations() if not self.only or observation.number in self.only
        }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("workloads", "batch", "day_batches"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        if not self.workloads or not self.batch:
            raise UsageError("no workload or no batch size was given", "leave --workloads and --batch out for all")
        numbers = [observation.number for observation in all_observations()] if self.only else []
        for number in self.only:
            if number not in numbers:
                raise UnknownName("observation", str(number), map(str, numbers))

    def checked(self) -> StudyRequest:
        """Return where runs are given and no workloads, those of the runs are counted on dry runs."""
        from stepscope import workloads
        from stepscope.experiments.observations._measurements import runs_in
        from stepscope.record.device import usable_cores

        device, runs = check_device(self.device), [run for sweep in self.from_ for run in runs_in(sweep)]
        workload_names = {workload.name for workload in workloads.every()}
        axes: dict[str, Any] = {}
        if self.workloads in (PAPER_WORKLOADS, QUICK_WORKLOADS):
            stated: list[dict[str, Any]] = [run.meta.get("workload") or {} for run in runs]
            names = tuple(dict.fromkeys(str(row.get("name")) for row in stated if row.get("name") in workload_names))
            batches = tuple(sorted({int(row["batch_size"]) for row in stated if row.get("batch_size")}))
            axes = {"workloads": names, "batch": batches} if names and batches else {}
        for name in self.workloads:
            if name not in workload_names:
                raise UnknownName("workload", name, workload_names)
        threads = self.threads
        if threads is None and device == "cpu":  # one core is left, so that the cores that train can be told apart
            threads = max(1, usable_cores() - 1)
        sweeps = tuple(sweep.absolute() for sweep in self.from_)
        return replace(self, device=device, threads=threads, from_=sweeps, **axes)

    def plan(self) -> Plan:
        from stepscope.experiments.observations.study import observation_plan

        return observation_plan(self)
