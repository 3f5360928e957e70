"""The contract of an observation: claims as numbers with intervals against stated limits, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.units import estimate

if TYPE_CHECKING:
    from stepscope.experiments.observations._evidence import Evidence

Outcome = Literal["holds", "does not hold", "cannot be judged"]
HOLDS: Outcome = "holds"
FAILS: Outcome = "does not hold"
UNKNOWN: Outcome = "cannot be judged"
AS_THE_PAPER = "as the paper"
FEWEST = 3  # runs, models or seeds: of two, Student's interval is hardly ever shorter than what it is to decide


@dataclass(frozen=True)
class Interval:
    """A number with its bounds of 95 %; NaN where it is not known."""

    value: float
    low: float = math.nan
    high: float = math.nan


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
    found: Interval | None
    why: str


@dataclass(frozen=True)
class Part:
    """One claim of an observation: the test, the effect with its interval, the limits, and what follows.

    models: the same claim for each model where it is one about all of them; it holds only if it holds for each.
    """

    claim: str
    test: str
    effect: str  # what the number is, with its unit
    found: Interval | None
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
    parts: tuple[Part, ...]

    @property
    def deciding(self) -> Part:
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


def part(claim: str, test: str, effect: str, found: Interval, limits: Limits, of: str) -> Part:
    """A claim judged: it holds where the whole interval lies within the limits, and not where none of it does."""
    facts = (claim, test, effect, found, limits, of)
    if math.isnan(found.value):
        return Part(*facts, UNKNOWN, f"nothing to take it from: {of}")
    if math.isnan(found.low) or math.isnan(found.high):
        return Part(*facts, UNKNOWN, f"too few for an interval: {of}; make more repeats")
    if found.low > limits.least and found.high < limits.most:
        return Part(*facts, HOLDS, f"{interval_text(found)}, {limits}")
    if found.high <= limits.least or found.low >= limits.most:
        return Part(*facts, FAILS, f"{interval_text(found)}, not {limits}")
    return Part(
        *facts, UNKNOWN, f"{interval_text(found)} spans the limit ({limits}), more or longer runs would tell: {of}"
    )


def unjudged(claim: str, test: str, why: str) -> Part:
    """A claim that nothing here can decide."""
    return Part(claim, test, "", None, None, "", UNKNOWN, why)


def verdict(observation: Observation, parts: list[Part], reading: str = AS_THE_PAPER) -> Verdict:
    """All parts must hold; one that does not is enough against the whole."""
    outcomes = [result.outcome for result in parts]
    outcome = FAILS if FAILS in outcomes else UNKNOWN if UNKNOWN in outcomes else HOLDS
    decisive = [result for result in parts if result.outcome == outcome]
    why = "; ".join(dict.fromkeys(f"{result.claim}: {result.why}" for result in decisive))
    return Verdict(observation.number, observation.claim, reading, outcome, why, tuple(parts))


def interval_text(found: Interval) -> str:
    if found.low == found.high:
        return f"{found.value:.3g} exactly"
    return estimate(found.value, found.low, found.high, "")
