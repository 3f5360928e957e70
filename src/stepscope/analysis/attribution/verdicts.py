"""Which parts are resolved, and why the others are not; and what it would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.attribution.attribute import Attribution
from stepscope.analysis.attribution.calibrate import SURE
from stepscope.analysis.attribution.parts import Parts, Z, parts
from stepscope.analysis.intervals import Floats

RESOLVED, COARSE = 0.10, 0.30  # half of the 90 % interval as a share of the energy
STAMP_RATIO = 20.0  # ops must be so much longer than their stamps' error
_TOGETHER = -0.5  # correlation from which two parts are told apart by the prior alone
_DISTRUST = 0.03  # of the total: parts that missed it by more before they were made to add up
_FASTER = 0.8  # the interval of a part shrinks as steps ** -0.4: errors within a step are not independent
_MOST_FACTOR = 1000.0

Verdict = Literal["resolved", "coarse", "not identifiable"]


@dataclass(frozen=True)
class Judged:
    """A verdict for each part, with the reason where it is not resolved ("" where it is)."""

    verdict: list[Verdict]
    reason: list[str]


@dataclass(frozen=True)
class Identifiability:
    """What a rail can resolve with the steps at hand.

    shortest_op: s, from which most places are resolved, None where none is; share: of the energy in resolved parts;
    more_steps: to add until 90 % of the energy is resolved, 0 if it is, None where no number of steps would do;
    expected_error: what the energy-weighted error is likely to be.
    """

    shortest_op: float | None
    share: float
    more_steps: int | None
    expected_error: float
    trouble: str  # why nothing is called resolved; empty where nothing stands against it


def trouble(found: Attribution) -> str:
    """Why nothing of this rail can be called resolved; empty where nothing stands against it."""
    if found.phase.wide:
        return found.phase.sentence
    timeline = found.timeline
    length = timeline.piece_seconds
    known = ~np.isnan(length)
    if timeline.stamp_sd and known.any():
        typical = _weighted_median(length[known], timeline.seconds[known])
        if typical < STAMP_RATIO * timeline.stamp_sd:
            return (
                f"ops of {typical * 1e6:.0f} us are too short for stamps that are {timeline.stamp_sd * 1e6:.2g} us off"
            )
    if found.calibration.margin < SURE:
        return "two ways in which the sensor may see the past explain its readings alike: train more steps"
    if found.negative > _DISTRUST:
        return f"{found.negative:.0%} of the energy came out below 0: how the sensor sees the past was not found"
    if abs(found.gap_before) > _DISTRUST:
        return f"the parts missed the measured total by {abs(found.gap_before):.1%} before they were made to add up"
    return ""


def judge(found: Attribution, whole: Parts, names: Sequence[str]) -> Judged:
    """Verdict of each part by its interval, unless something stands against the whole rail."""
    against, relative = trouble(found), whole.relative
    verdict: list[Verdict] = []
    reason: list[str] = []
    for index in range(len(whole.joules)):
        if not against and relative[index] <= RESOLVED:
            verdict.append("resolved")
            reason.append("")
            continue
        coarse = not against and relative[index] <= COARSE
        verdict.append("coarse" if coarse else "not identifiable")
        reason.append(against or _why(found, whole, index, names))
    return Judged(verdict, reason)


def _why(found: Attribution, whole: Parts, index: int, names: Sequence[str]) -> str:
    """The likeliest reason for a wide interval: always beside another part, or too short for the sensor."""
    if whole.joules[index] <= 0:
        return "no energy could be told from 0"
    if found.floor * whole.seconds[index] > 0.5 * whole.sd[index]:
        return "the sensor's steps are too coarse for so little power"
    others = np.where(np.arange(len(names)) == index, 0.0, whole.correlation[index])
    partner = int(np.argmin(others))
    if others[partner] < _TOGETHER:
        pair = [index, partner]
        spread = whole.correlation[np.ix_(pair, pair)] * np.outer(whole.sd[pair], whole.sd[pair])
        half = Z * float(np.sqrt(max(spread.sum(), 0.0))) / float(whole.joules[pair].sum())
        return f"always beside {names[partner]}; the two together are known to {half:.0%}"
    each = whole.seconds[index] / found.timeline.steps
    _, width = found.calibration.model.windows(found.readings)
    return f"{each * 1e3:.3g} ms a step, seen through windows of {float(np.median(width)) * 1e3:.3g} ms: more steps"


def identifiability(found: Attribution, whole: Parts) -> Identifiability:
    """Report of a rail, from the parts that a reader asks for first (kinds)."""
    energy = max(float(whole.joules.sum()), 1e-30)
    against = trouble(found)
    share = 0.0 if against else float(whole.joules[whole.resolved(RESOLVED)].sum()) / energy
    error = float(np.sqrt(2 / np.pi) * whole.sd.sum()) / energy
    return Identifiability(_shortest(found) if not against else None, share, _more_steps(found, whole), error, against)


def _shortest(found: Attribution) -> float | None:
    """Shortest length from which at least half of the places are resolved, weighted by their energy, s."""
    single = parts(found, sparse.identity(found.timeline.keys.count, format="csr"))
    length = found.timeline.piece_seconds
    known = ~np.isnan(length)
    order = np.argsort(-length[known])
    energy, good = single.joules[known][order], single.resolved(RESOLVED)[known][order]
    longest_first = np.cumsum(energy * good) >= 0.5 * np.cumsum(energy)
    if not len(order) or not good.any() or not longest_first[good].any():
        return None
    return float(length[known][order][good & longest_first][-1])


def _more_steps(found: Attribution, whole: Parts, wanted: float = 0.90) -> int | None:
    """Steps to add; the part of the error that no step cures stays."""
    energy = np.maximum(whole.joules, 1e-30)
    hidden = (found.floor * whole.seconds) ** 2
    fixed = np.maximum(whole.sd**2 - whole.statistical**2 - hidden, 0.0)
    steps = found.timeline.steps
    for factor in np.geomspace(1.0, _MOST_FACTOR, 61):
        half = Z * np.sqrt(whole.statistical**2 / factor**_FASTER + fixed / np.sqrt(factor) + hidden) / energy
        if float(energy[half <= RESOLVED].sum()) >= wanted * float(energy.sum()):
            return 0 if factor == 1.0 and not trouble(found) else max(int(np.ceil(steps * (factor - 1))), 1)
    return None


def _weighted_median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
