"""Causes and their evidence: what a cause says, and when a share of the step is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stepscope.analysis.estimate import Estimate
from stepscope.units import amount, bytes_, percent

Bound = Literal[
    "cpu-starved", "throttled", "memory-capacity", "input", "communication", "lock", "idle", "storage",
    "overhead", "compute", "memory-bandwidth", "kernels", "unknown",
]  # fmt: skip
SYSTEM: frozenset[Bound] = frozenset({"cpu-starved", "throttled", "memory-capacity"})
OF_WORK: frozenset[Bound] = frozenset({"overhead", "compute", "memory-bandwidth", "kernels"})
HIGH, MEDIUM = "high", "medium"

NOTABLE = 0.15  # of the step: what takes less is no cause of its length
CLEAR = 0.05  # of the time: evidence that something is there at all
LARGEST = 0.4  # of the step, for what the thread does while it runs


@dataclass(frozen=True)
class Evidence:
    """One observation, as a sentence part with its number: SI units, the 95 % CI where there is one, and the source."""

    text: str
    value: float | None
    low: float | None = None
    high: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Cause:
    """A cause of a share of the step. `name` says which of the causes of a bound; confidence is "high" or "medium".

    share: of the time of the steps, within [low, high] (95 %) where there is an interval.
    """

    bound: Bound
    name: str
    share: float
    low: float | None
    high: float | None
    confidence: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Bottleneck:
    """The causes found, the most important first; where there is none `why` and `would_tell` say what is missing."""

    causes: tuple[Cause, ...]
    why: str = ""
    would_tell: tuple[str, ...] = ()


def notable_cause(
    bound: Bound, name: str, share: Estimate, *evidence: Evidence | None, least: float = NOTABLE, clear: bool = True
) -> Iterator[Cause]:
    """Yield the cause where it takes a notable share; two pieces of evidence at least, else none.

    clear: whether it stays the cause where the times of operators are as far off as they may be.
    """
    present = tuple(entry for entry in evidence if entry is not None)
    if share.value < least or len(present) < 2:
        return
    sure = clear and share.low is not None and share.low >= least / 2
    yield Cause(bound, name, share.value, share.low, share.high, HIGH if sure else MEDIUM, present)


def evidence_above(text: str, share: Estimate | None, source: str, least: float = 0.0) -> Evidence | None:
    """Evidence where it was measured and is at least so much; "{}" is its number as a percentage."""
    if share is None or share.value < least:
        return None
    value, low, high = (percent(ratio, 0) for ratio in (share.value, share.low, share.high))
    between = "" if share.low is None or share.high is None or low == high else f" [{low}, {high}]"
    return Evidence(text.format(f"{value}{between}"), share.value, share.low, share.high, source)


def rate_evidence(text: str, share: Estimate | None, unit: str, source: str, least: float) -> Evidence | None:
    """Return a rate as such a sentence part; "{}" stands for its number with the unit."""
    if share is None or share.value < least:
        return None
    rate = f"{bytes_(share.value)}/s" if unit == "B/s" else amount(share.value, unit)
    return Evidence(text.format(rate), share.value, share.low, share.high, source)
