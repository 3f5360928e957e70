"""Tests whether the readings support a fit, by what it leaves of them.

A failing test widens every interval by what it shows, or takes all claims back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.timeline import Timeline
from stepscope.arrays import Flags, Floats, Ints

_A_BIN, _BINS = 20, (4, 40)  # readings in a part of the step at the least; parts
_SIGMAS = 3.5  # of chance, from which a test has failed
_OFF_PHASE = 1.5  # excess by phase of the step from which nothing is claimed: the sensor is another than was found
_EXACT = 0.999  # of the readings' variance: where so much is explained, what is left moves no power by much
_MOST = 5.0  # that a test widens intervals by
_FEWEST_STEPS, _MOST_CORRELATION = 12, 0.8
_FAR = 3.5  # robust standard deviations: a reading further off fits nothing that ran
_STRAY, _ASTRAY = 0.01, 0.05  # share of such readings from which they are trusted less, and nothing is claimed
_NEAR = 2.5  # robust standard deviations up to which a reading has its full weight
_FEWEST = 8  # readings of which a spread is taken
_QUIET = 0.02  # of the standard deviation of the readings: a spread below it is taken as this
_FOLLOWED = 0.2  # of the readings' variance, that operators must explain
_TESTED = 100  # readings; the tests cannot fail with fewer


_PHASE = "what the fit leaves follows the phase of the step"


@dataclass(frozen=True)
class Misfit:
    """By how much every standard deviation grows (1 where nothing failed), what failed, and what forbids any claim."""

    factor: float = 1.0
    failed: tuple[str, ...] = ()
    fatal: str = ""


NOTHING_FAILED = Misfit()


def check_residuals(
    timeline: Timeline, readings: Readings, at: Floats, residuals: Floats, bare: Floats, explained: float
) -> Misfit:
    """Test residuals by phase of the step, by halves of the run, from step to step, and for strays.

    at: (M,) middle of each reading's window, s; residuals: (M,) readings less the fit, whitened and weighted; bare:
    without what strays are trusted less; explained: share of the readings' variance that is explained, each parameter
    counted.
    """
    step = timeline.step_of(at)
    phase = (at - timeline.step_t0[step]) / np.maximum(timeline.step_t1[step] - timeline.step_t0[step], 1e-12)
    tests = {
        _PHASE: _excess_of_bins(phase, residuals, np.ones(len(residuals), dtype=bool)),
        "the halves of the run disagree": _excess_of_halves(
            phase, residuals, np.arange(len(residuals)) < len(residuals) // 2
        ),
        "what the fit leaves goes on from step to step": _step_correlation_factor(step, residuals),
    }
    failed = {name: min(excess, _MOST) for name, excess in tests.items() if excess > 1}
    fatal = ""
    off = _robust_distance(bare, timeline.step_kind_at(at), float((readings.watts * readings.weight).std()))
    profiled = timeline.recorded[step]  # in filled-in steps operators are at times far from where they are put
    judged = profiled if profiled.sum() >= _TESTED else np.ones(len(off), dtype=bool)
    stray = float((off > _FAR)[judged].mean()) if judged.any() else 0.0
    beyond = float(((off > _FAR) & (np.abs(bare) > readings.resolution))[judged].mean()) if judged.any() else 0.0
    if stray > _ASTRAY and readings.is_gauge and beyond < stray / 2:
        fatal = f"power rests between the sensor's steps of {readings.resolution:.2g} W, which hide how it differs"
    elif stray > _ASTRAY:
        fatal = (
            f"{stray:.0%} of the readings fit nothing that ran: power of another program, values given out late or "
            "twice, or stamps that are off"
        )
    elif len(residuals) < _TESTED:
        fatal = f"{len(residuals)} readings are too few to test whether the fit is right: train more steps"
    elif failed.get(_PHASE, 1.0) > _OFF_PHASE and explained < _EXACT:
        fatal = f"{_PHASE}: how the sensor sees the past was not found"
    elif explained < _FOLLOWED:
        fatal = f"the operators explain {max(explained, 0):.0%} of how the readings move: train with another batch size"
    return Misfit(float(np.prod(list(failed.values()))), tuple(failed), fatal)


def outlier_weights(residuals: Floats, group: Ints, moves: float) -> Floats:
    """Weight of each reading (M,): below 1 for strays, where there are more of them than noise makes.

    group: (M,) as `Timeline.step_kind_at`; each has a noise of its own: a pause is quieter than what operators do.
    moves: standard deviation of the readings, in the unit of the residuals.
    """
    off = _robust_distance(residuals, group, moves)
    if len(residuals) < _BINS[1] or float((off > _FAR).mean()) < _STRAY:
        return np.ones(len(residuals))
    return np.asarray(np.minimum(1.0, _NEAR / np.maximum(off, 1e-12)))


def _robust_distance(residuals: Floats, group: Ints, moves: float) -> Floats:
    """Distance of each from its group's median, in standard deviations that strays do not move.

    What is small beside `moves`, by how much the readings move at all, is never far: a quiet group has no strays.
    """
    off = np.zeros(len(residuals))
    for number in np.unique(group):
        chosen = group == number
        if chosen.sum() >= _FEWEST:
            away = np.abs(residuals[chosen] - np.median(residuals[chosen]))
            scale = max(1.4826 * float(np.median(away)), _QUIET * moves)
            off[chosen] = away / scale if scale > 0 else 0.0
    return off


def _bin_count(readings: int) -> int:
    return int(np.clip(readings // _A_BIN, *_BINS))


def _excess_of_bins(phase: Floats, residuals: Floats, chosen: Flags) -> float:
    """Root of the excess of the bins' means over chance; 1 where there is none."""
    bins = _bin_count(int(chosen.sum()))
    place = np.clip((phase * bins).astype(np.int64), 0, bins - 1)[chosen]
    size, total = np.bincount(place, minlength=bins), np.bincount(place, residuals[chosen] - residuals.mean(), bins)
    return _excess_over_chance(total[size > 0] ** 2 / size[size > 0], float(residuals.var()))


def _excess_of_halves(phase: Floats, residuals: Floats, first: Flags) -> float:
    """The same of the difference between two halves."""
    bins = _bin_count(len(residuals) // 2)
    place = np.clip((phase * bins).astype(np.int64), 0, bins - 1)
    size = [np.bincount(place[half], minlength=bins) for half in (first, ~first)]
    both = (size[0] > 0) & (size[1] > 0)
    if not both.any():
        return 1.0
    means = [
        np.bincount(place[half], residuals[half], bins)[both] / n[both]
        for half, n in zip((first, ~first), size, strict=True)
    ]
    chance = 1 / size[0][both] + 1 / size[1][both]
    return _excess_over_chance((means[0] - means[1]) ** 2 / chance, float(residuals.var()))


def _excess_over_chance(squares: Floats, variance: float) -> float:
    if variance <= 0 or not len(squares):
        return 1.0
    ratio = float(squares.mean()) / variance
    return float(np.sqrt(ratio)) if ratio > 1 + _SIGMAS * np.sqrt(2 / len(squares)) else 1.0


def _step_correlation_factor(step: Ints, residuals: Floats) -> float:
    """Growth of the error of means by errors of steps that go on in the next."""
    names, place, size = np.unique(step, return_inverse=True, return_counts=True)
    if len(names) < _FEWEST_STEPS:
        return 1.0
    mean = np.bincount(place.reshape(-1), residuals) / size
    mean -= mean.mean()
    varies = float(mean @ mean)
    rho = float(mean[1:] @ mean[:-1]) / varies if varies > 0 else 0.0
    if rho < _SIGMAS / np.sqrt(len(names)):
        return 1.0
    rho = min(rho, _MOST_CORRELATION)
    return float(np.sqrt((1 + rho) / (1 - rho)))


_TOLD_BY = 0.75  # of the operators' time: kinds with less of it do not tell how a source sees the past


def reason_too_many_kinds(timeline: Timeline, most: int) -> str:
    """Return why the sensor model is not known, whose fit tells so many kinds apart; empty where they suffice.

    With a power for each of hundreds of kinds that come once or twice a step, every delay explains the readings.
    """
    keys = timeline.keys
    spent = np.bincount(keys.kind, np.where(np.arange(keys.count) != keys.gap, timeline.seconds, 0.0))
    if np.sort(spent)[::-1][:most].sum() >= _TOLD_BY * spent.sum():
        return ""
    return (
        f"{np.count_nonzero(spent):,} kinds of operators share the time evenly: any delay of the sensor would explain "
        "the readings"
    )


_MOST_AMPLIFIED = 20.0  # a window's shape is known to half a percent, and a claim is of a tenth


def reason_window_too_wide(timeline: Timeline, readings: Readings, watts: Floats) -> str:
    """Return why a blindly found window tells nothing: it averages over nearly whole steps; empty where it does not.

    watts: (P,) as fitted. What is left of their motion in the readings then depends on the window's least detail.
    """
    if not readings.is_gauge:
        return ""
    share = timeline.seconds / max(float(timeline.seconds.sum()), 1e-30)
    moves = float(np.sqrt(share @ (watts - share @ watts) ** 2))
    spread = float(readings.watts.std())
    if moves <= _MOST_AMPLIFIED * spread:
        return ""
    return (
        f"the sensor averages over nearly whole steps: readings move {moves / max(spread, 1e-30):.0f} times less than "
        "power would; train with steps of a different length (another batch size)"
    )
