"""The delay and window of a gauge under which its readings are likeliest whatever the powers, and how sure they are.

A descent weighs the best powers alone, which are shrunk: with few readings for each power it ends beside the window, by
some 0.4 % of it behind a GPU's sensor, and the energies of operators were off by 4 to 8 % for that alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from scipy.optimize import minimize  # type: ignore[import-untyped]

from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.regression import ANY_SPREAD, log_evidence, regress
from stepscope.analysis.energy.scaled_rows import (
    FEWEST,
    UNFILTERED,
    RegressionRows,
    has_coarse_steps,
    scaled_rows,
    update_time_sd,
)
from stepscope.analysis.energy.sensor_model import SHORTEST_RC, SensorModel, design, fully_covered_flags, slow_gain
from stepscope.analysis.energy.timeline import Timeline
from stepscope.arrays import Floats

_MOST_READINGS, _MOST_TRIED = 3_000, 40  # more readings decide by themselves; models that are tried
_OF_WINDOW, _FINE = 1 / 300, (2e-5, 3e-4)  # first step of the search, of the window, and its bounds, s
_ROUNDS = 3  # each with the weights that show where the one before has ended
_REACH = 8  # such steps that readings must cover
_SHORTEST = 5e-5  # s, of a window
_BLUNTED = 0.25  # of what the curvature says: updates that walk off their clock err together
_STEP_ROUNDS, _RISES = 4, (0.3, 3.0)  # of a step over which the logarithm changes by about 1
_MOST_UNSEEN_RC, _HALVINGS = 5e-3, 5  # s
_FLAT = 1e-6  # curvature below which nothing is told


@dataclass(frozen=True)
class LikeliestWindow:
    """A model, and standard deviations of centre, width (None: not free) and time constant (None: not looked at), s."""

    model: SensorModel
    sd_centre: float
    sd_width: float | None
    sd_rc: float | None


def likeliest_sensor(
    timeline: Timeline, readings: Readings, start: SensorModel, free_width: bool, free_rc: bool
) -> tuple[SensorModel, LikeliestWindow | None]:
    """The likeliest model near a start, with the errors of the updates' times, and the search that ended there, if any.

    A fast filter is dropped where the readings are hardly less likely without: few of them are fitted as well by one
    that is not there, and the energies of short operators are then far off.
    """
    model, best = _likeliest_with_time_errors(timeline, readings, start, free_width, free_rc)
    if best is None or not free_rc or not SHORTEST_RC < model.rc <= UNFILTERED:
        return model, best
    without = replace(start, lag=start.lag + start.rc, rc=0.0)
    sharp, own = _likeliest_with_time_errors(timeline, readings, without, free_width, free_rc)
    reach = replace(model, smear=max(model.smear, sharp.smear))
    covered = [fully_covered_flags(timeline, readings, other) for other in (reach, sharp)]
    unlikely = _make_likelihood_cost(timeline, readings.select(np.all(covered, axis=0)), sharp)
    return (sharp, own) if own is not None and unlikely(sharp) < unlikely(model) + _FILTER_SEEN else (model, best)


_FILTER_SEEN = 4.0  # natural logarithm: by how much likelier readings must be behind a fast filter than without one


def _likeliest_with_time_errors(
    timeline: Timeline, readings: Readings, model: SensorModel, free_width: bool, free_rc: bool
) -> tuple[SensorModel, LikeliestWindow | None]:
    """The window first: its error would be taken for errors of times, which then blur the window."""
    best = None
    for _ in range(2):
        better = likeliest_window(timeline, readings, model, free_width, free_rc)
        best, model = (best, model) if better is None else (better, better.model)
        smear = update_time_sd(timeline, readings, model)
        if smear == model.smear:
            break
        model = replace(model, smear=smear)
    return model, best


def likeliest_window(
    timeline: Timeline, readings: Readings, start: SensorModel, free_width: bool, free_rc: bool
) -> LikeliestWindow | None:
    """The likeliest delay and width near a start; None where there are too many readings to gain, or too few.

    The filter stays as it is; behind a slow one nothing is changed, since its window and its curve would be confused,
    nor where readings come in coarse steps.
    """
    if (
        readings.count > _MOST_READINGS
        or readings.mix is not None
        or start.rc > UNFILTERED
        or has_coarse_steps(readings)
    ):
        return None
    fine = float(np.clip(np.median(start.windows(readings)[1]) * _OF_WINDOW, *_FINE))
    count = 2 if free_width and start.width is not None else 1
    ends = [_shifted_model(start, fine * sign * _REACH * side) for side in np.eye(count) for sign in (-1, 1)]
    readings = readings.select(np.all([fully_covered_flags(timeline, readings, model) for model in ends], axis=0))
    if readings.count < FEWEST:
        return None
    simplex = np.vstack([np.zeros(count), np.eye(count)])
    options = {"initial_simplex": simplex, "xatol": 0.05, "fatol": 0.1, "maxfev": _MOST_TRIED}
    for attempt in range(_ROUNDS):
        unlikely, begin = _make_likelihood_cost(timeline, readings, start), start

        def cost(by: Floats, unlikely: _Cost = unlikely, begin: SensorModel = begin) -> float:
            return unlikely(_shifted_model(begin, fine * by))

        best = minimize(cost, np.zeros(count), method="Nelder-Mead", options=options)
        start = _shifted_model(begin, fine * best.x)
        if np.abs(best.x).max() < 1 or attempt == _ROUNDS - 1:
            break
    least = float(best.fun)
    sd = _parameter_sd(cost, best.x, least) * fine
    unseen = free_rc and count == 2 and start.rc <= SHORTEST_RC
    sd_rc = _slowest_filter(lambda rc: unlikely(replace(start, lag=start.lag - rc, rc=rc)), least) if unseen else None
    return LikeliestWindow(start, float(sd[0]), float(sd[1]) if count == 2 else None, sd_rc)


_Cost = Callable[[SensorModel], float]


def _shifted_model(model: SensorModel, by: Floats) -> SensorModel:
    """The model with its centre, and its width where that is given too, moved by so much, s."""
    if model.width is None or len(by) == 1:
        return replace(model, lag=model.lag + float(by[0]))
    width = max(model.width + float(by[1]), _SHORTEST)
    return replace(model, lag=model.lag + float(by[0]) - (width - model.width) / 2, width=width)


def _make_likelihood_cost(timeline: Timeline, readings: Readings, start: SensorModel) -> _Cost:
    """The negative logarithm of how likely the readings are under a model, with the weights of the start.

    Gains are each model's own, and strays have their full weight: else those of a wrong window would speak for it.
    """
    rows, first = scaled_rows(timeline, readings, start, ANY_SPREAD)
    target = rows.watts if rows.trust is None else rows.watts / rows.trust
    weight = target / np.where(readings.watts != 0, readings.watts, 1.0)
    power, near = float(readings.watts.mean()), [first]

    def of(model: SensorModel) -> float:
        plain = sparse.diags(weight) @ design(timeline, readings, model)
        fit = regress(
            RegressionRows(plain, weight, target, rows.theta).moments(power), first.hierarchy, near[0], ANY_SPREAD
        )
        gain = slow_gain(readings.at, target, plain @ fit.watts, timeline.step_length)
        moments = RegressionRows(sparse.diags(gain) @ plain, gain * weight, target, rows.theta).moments(power)
        near[0] = regress(moments, first.hierarchy, fit, ANY_SPREAD)
        return -log_evidence(moments, near[0])

    return of


def _parameter_sd(cost: Callable[[Floats], float], at: Floats, least: float) -> Floats:
    """Standard deviations of parameters (K,) from the curvature of a negative logarithm of likelihood at its least."""
    sides = np.eye(len(at))
    curvature = np.zeros((len(at), len(at)))
    for place in range(len(at)):
        for _ in range(_STEP_ROUNDS):
            rise = (cost(at + sides[place]) + cost(at - sides[place])) / 2 - least
            if _RISES[0] < rise < _RISES[1]:
                break
            sides[place] *= float(np.clip(1 / np.sqrt(max(rise, 1e-9)), 0.05, 4.0))
        curvature[place, place] = cost(at + sides[place]) + cost(at - sides[place]) - 2 * least
    if len(at) == 2:
        along, across = sides[0] + sides[1], sides[0] - sides[1]
        apart = (cost(at + along) + cost(at - along) - cost(at + across) - cost(at - across)) / 4
        curvature[0, 1] = curvature[1, 0] = apart
    eigenvalues, axes = np.linalg.eigh(_BLUNTED * curvature)
    variance = np.diag(axes @ np.diag(1 / np.maximum(eigenvalues, _FLAT)) @ axes.T)
    return np.asarray(np.sqrt(variance) * np.diag(sides))


def _slowest_filter(cost: Callable[[float], float], least: float) -> float:
    """The time constant, s, that is off by a standard deviation where none was found; cost: of a time constant."""
    low, high = SHORTEST_RC, _MOST_UNSEEN_RC
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if _BLUNTED * (cost(middle) - least) < 0.5 else (low, middle)
    return float(np.sqrt(low * high))
