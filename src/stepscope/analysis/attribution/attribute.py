"""Energy of each key from readings of one power source, with its covariance: the whole way, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from stepscope.analysis.attribution.calibrate import FEW_KEYS, Calibration, calibrate, recalibrate
from stepscope.analysis.attribution.clock_fit import fitted_clock
from stepscope.analysis.attribution.closure import Total, closed, measured_total
from stepscope.analysis.attribution.condensed import condensed
from stepscope.analysis.attribution.conversion_clock import CONVERSION, NEAR, clock_of_conversions
from stepscope.analysis.attribution.design import covered, design
from stepscope.analysis.attribution.hierarchy import Level, hierarchy
from stepscope.analysis.attribution.known import Known
from stepscope.analysis.attribution.phase_check import PhaseCheck, phase_check
from stepscope.analysis.attribution.posterior import Wobble, sandwich, wobble
from stepscope.analysis.attribution.readings import Readings, converted, relatched
from stepscope.analysis.attribution.register import by_clock, surprises
from stepscope.analysis.attribution.regression import ANY_SPREAD, MOST_OF_KINDS, Fit, Moments, regress
from stepscope.analysis.attribution.sensor_model import SensorModel
from stepscope.analysis.attribution.slow_gain import slow_gain
from stepscope.analysis.attribution.timeline import Timeline
from stepscope.analysis.attribution.update_clock import UpdateClock, clock_of_residuals
from stepscope.analysis.attribution.whitening import shared_error, unwhitened, whitened, whitened_gram
from stepscope.analysis.intervals import Floats

_ENOUGH = 300  # readings in recorded steps
_BLURRED = 0.5  # of its refresh: a gauge that sees so wide a window is one whose conversions come at unknown times
FEWEST = 20  # readings; with fewer there is nothing to fit


@dataclass(frozen=True)
class Options:
    """`periodic`: the source has a clock of its own and late stamps. `width`: its window where that is certain, s.

    `refresh`: time between the updates of the source, s; `spot`: each of them shows a short conversion.
    `floor`: what the source's coarse steps hide of every power, W. `known`: what was found before of the very same
    readings, used as it is; `near`: of another source of the same make, to start from; `same_chip`: it has this one's
    clock too. `stuck_s`: for how long the source stood still; its readings of that time are left out.
    """

    periodic: bool = False
    width: float | None = None
    refresh: float | None = None
    spot: bool = False
    floor: float = 0.0
    known: Known | None = None
    near: Known | None = None
    same_chip: bool = False
    lowest: Level = "place"
    stuck_s: float = 0.0


@dataclass(frozen=True)
class Attribution:
    """Energies over all steps, J: of each key (P,), their covariance, and what else is known of their errors.

    `other_ways` (W, P) are the energies by the coarser fit and without smear: how far they differ is an error too.
    `statistical` (P, P) is the part of the covariance that more steps make smaller.
    """

    timeline: Timeline
    readings: Readings
    joules: Floats
    covariance: Floats
    statistical: Floats
    coarser: Floats
    sharper: Floats
    total: Total
    gap_before: float  # share of the total that the parts missed before they were made to add up
    known: Known
    phase: PhaseCheck
    explained: float  # share of the readings' variance
    negative: float  # energy that came out below 0, as a share of the total; it was set to 0
    floor: float = 0.0  # standard deviation of every power that no reading could show, W

    @property
    def calibration(self) -> Calibration:
        """How the source sees the past."""
        return self.known.last

    @property
    def watts(self) -> Floats:
        """Mean power of each key while it runs (P,); NaN where it never does."""
        seconds = self.timeline.seconds
        with np.errstate(invalid="ignore", divide="ignore"):
            power: Floats = np.where(seconds > 0, self.joules / seconds, np.nan)
        return power


@dataclass(frozen=True)
class Rows:
    """The regression's matrix (M, P), each row scaled by weight and slow gain, and the readings scaled alike.

    `theta` is the filter that makes the readings' errors independent (whitening.py).
    """

    matrix: Any
    scale: Floats
    watts: Floats
    theta: float

    def moments(self, mean_power: float) -> Moments:
        seen = whitened(self.watts, self.theta)
        cross = np.asarray(self.matrix.T @ unwhitened(seen, self.theta))
        return Moments(whitened_gram(self.matrix, self.theta), cross, float(seen @ seen), len(seen), mean_power)

    def left(self, fit: Fit) -> Floats:
        """Readings less the fit, whitened (M,)."""
        return whitened(self.watts - self.matrix @ fit.watts, self.theta)


def attribute(timeline: Timeline, readings: Readings, options: Options | None = None) -> Attribution | None:
    """Fit the powers of all keys. None where there are too few readings over the steps, or all are the same."""
    with threadpool_limits(limits=1, user_api="blas"):  # many small products: threads would wait for one another
        return _attribute(timeline, readings, options or Options())


def _attribute(timeline: Timeline, readings: Readings, options: Options) -> Attribution | None:
    if options.periodic and readings.width is None and readings.mix is None:
        readings = replace(readings, stamp=fitted_clock(readings.stamp))
    readings = _near(timeline, readings)
    if readings.count < FEWEST or readings.still:
        return None
    readings, known = _calibrated(timeline, readings, options)
    found = known.last
    readings = readings.kept(covered(timeline, readings, found.model))
    if readings.count < FEWEST:
        return None
    rows, coarse = _scaled(timeline, readings, found.model)
    fit = regress(rows.moments(float(readings.watts.mean())), hierarchy(timeline.keys, options.lowest), coarse)
    left = rows.left(fit)
    spread = sandwich(fit, rows.matrix, left, rows.theta, timeline.step_of(readings.at - found.model.lag))
    errors = wobble(timeline, readings, fit, rows.matrix, rows.scale, rows.theta, found)
    whole = _assembled(timeline, readings, known, fit, coarse, spread, errors, left)
    return replace(whole, floor=options.floor)


def _near(timeline: Timeline, readings: Readings) -> Readings:
    """Readings stamped within the steps, give or take the latest lag that is looked for."""
    slack = max(0.1, 2 * readings.period)
    at = readings.at
    return readings.kept((at >= timeline.begin) & (at <= timeline.end + slack))


def _calibrated(timeline: Timeline, readings: Readings, options: Options) -> tuple[Readings, Known]:
    """How the source sees the past, found anew or from what is known; and the readings told by its unseen clock."""
    if options.known is not None:
        return _told(timeline, readings, options.known.clock), options.known
    near, sharp = options.near, _sharp(timeline, readings)
    if near is not None and near.clock is None:
        last = recalibrate(timeline, sharp, near.last)
        return readings, Known(last, None, last)
    blind = _blind_width(readings, options)
    first = near.first if near is not None else calibrate(timeline, sharp, blind or options.width)
    shared = near.clock if near is not None and options.same_chip else None
    clock = _unseen_clock(timeline, readings, first.model, options.refresh, shared)
    if clock is None:
        own = first if near is None and not blind else recalibrate(timeline, sharp, first)
        return readings, Known(own, None, own)
    readings = _told(timeline, readings, clock)
    sharp = _sharp(timeline, readings)
    last = calibrate(timeline, sharp, options.width) if near is None else recalibrate(timeline, sharp, near.last)
    return readings, Known(first, clock, last)


def _blind_width(readings: Readings, options: Options) -> float | None:
    """Window, s, that short conversions read at unknown ages look like: a period and one of them; None for others."""
    if not options.spot or options.refresh is None or readings.period < _BLURRED * options.refresh:
        return None
    return options.refresh * (1 + CONVERSION)


def _told(timeline: Timeline, readings: Readings, clock: UpdateClock | None) -> Readings:
    """The readings as what the updates of an unseen clock tell; as they are without one."""
    if clock is None:
        return readings
    if readings.register is not None:
        return _near(timeline, by_clock(readings.register, clock))
    return converted(readings, clock) if readings.width is None else relatched(readings, clock)


def _unseen_clock(
    timeline: Timeline, readings: Readings, model: SensorModel, refresh: float | None, shared: UpdateClock | None
) -> UpdateClock | None:
    """The updates of a source that is read more slowly than it moves, from what a first fit leaves.

    None where the source is none such, or its updates keep to no clock. `shared`: that of another channel of its chip;
    a register that shows each conversion is converted at a phase of its own.
    """
    inside = readings.kept(covered(timeline, readings, model))
    register = readings.register
    gauge = readings.width is None and readings.mix is None
    slow = refresh is not None and (readings.carry > 0 or (gauge and _BLURRED * refresh < float(model.width or 0.0)))
    if inside.count < FEWEST or (register is None and not slow):
        return None
    if shared is not None and not gauge:
        return shared
    timeline = condensed(timeline, *FEW_KEYS)
    rows, fit = _scaled(timeline, inside, model, ANY_SPREAD)
    if gauge:
        assert refresh is not None, "a gauge that is read too slowly has a refresh"
        known = (shared.period, 0.0) if shared is not None else (refresh, NEAR)
        return clock_of_conversions(timeline, inside, model, fit.watts, *known)
    fitted = (rows.matrix @ fit.watts) / inside.weight
    if register is not None:
        surprise, speed = surprises(register, inside.stamp, fitted)
        return clock_of_residuals(inside.stamp, surprise, speed, register.period)
    assert refresh is not None, "a counter's refresh is known here"
    assert inside.width is not None, "a counter has widths"
    surprise = (inside.watts - fitted) * inside.width
    return clock_of_residuals(inside.stamp, surprise, np.full(inside.count, float(inside.watts.mean())), refresh)


def _sharp(timeline: Timeline, readings: Readings) -> Readings:
    """Readings in recorded steps, where there are enough of them to calibrate with."""
    recorded = timeline.recorded[timeline.step_of(readings.at)]
    return readings.kept(recorded) if _ENOUGH <= recorded.sum() < readings.count else readings


def _scaled(
    timeline: Timeline, readings: Readings, model: SensorModel, most: float = MOST_OF_KINDS
) -> tuple[Rows, Fit]:
    """Rows with the slow gain and the weight of each reading in; and the fit by signature."""
    coarse = hierarchy(timeline.keys, "signature")
    mean = float(readings.watts.mean())
    matrix = design(timeline, readings, model)
    plain = _rows(matrix, readings, np.ones(readings.count), 0.0)
    first = regress(plain.moments(mean), coarse, most=most)
    gain = slow_gain(readings.at, readings.watts * readings.weight, plain.matrix @ first.watts, timeline.step_length)
    left = plain.left(first)
    theta = shared_error(left) if readings.carry else 0.0
    rows = _rows(matrix, readings, gain, theta, _trust(timeline, readings, model, left))
    return rows, regress(rows.moments(mean), coarse, first, most)


def _trust(timeline: Timeline, readings: Readings, model: SensorModel, left: Floats) -> Floats:
    """Weight of each reading (M,), mean 1: what was seen of filled-in steps agrees less well with them."""
    recorded = timeline.recorded[timeline.step_of(readings.at - model.lag)]
    if recorded.all() or recorded.sum() < FEWEST or (~recorded).sum() < FEWEST:
        return np.ones(readings.count)
    ratio = float(np.sqrt(left[recorded].var() / max(float(left[~recorded].var()), 1e-30)))
    weight = np.where(recorded, 1.0, min(ratio, 1.0))
    return np.asarray(weight / weight.mean())


def _rows(matrix: Any, readings: Readings, gain: Floats, theta: float, trust: Floats | None = None) -> Rows:
    weight = readings.weight if trust is None else readings.weight * trust
    scale = weight * gain
    return Rows(sparse.diags(scale) @ matrix, scale, readings.watts * weight, theta)


def _assembled(
    timeline: Timeline,
    readings: Readings,
    known: Known,
    fit: Fit,
    coarse: Fit,
    spread: Floats,
    errors: Wobble,
    left: Floats,
) -> Attribution:
    found, seconds = known.last, timeline.seconds
    onto = sparse.diags(seconds) @ sparse.csr_matrix(fit.hierarchy.mixing)
    statistical = np.asarray(onto @ np.asarray(onto @ spread).T)
    moved = errors.moved * seconds
    joules, covariance = seconds * fit.watts, statistical + moved.T @ moved
    _, width = found.model.windows(readings)
    total = measured_total(readings, width, readings.weight, timeline.end - timeline.begin)
    adjusted, covariance_closed = closed(joules, covariance, total)
    coarser, _ = closed(seconds * coarse.watts, covariance, total)
    sharper, _ = closed(joules + seconds * errors.without_smear, covariance, total)
    gap = (total.joules - joules.sum()) / total.joules
    phase = phase_check(timeline, readings, found.model.lag)
    negative = -float(np.minimum(joules, 0).sum()) / total.joules
    explained = 1 - float(left.var()) / max(float(readings.watts.var()), 1e-30)
    return Attribution(
        timeline,
        readings,
        adjusted,
        covariance_closed,
        statistical,
        coarser,
        sharper,
        total,
        gap,
        known,
        phase,
        explained,
        negative,
    )
