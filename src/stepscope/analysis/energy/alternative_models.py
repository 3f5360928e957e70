"""Other models of a sensor that the readings do not exclude, and the powers that they would give.

Those that a calibration came upon, and those that it does not look for: sensors that see a part of power later than the
rest, as one that answers along a logarithm does. Behind steps that repeat, such a part looks like powers that differ
less, so that a wrong window fits nearly as well as the right response, and nothing that the fit leaves gives it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.energy.calibration import COMPARED_KEYS, FEW_KEYS, TEMPER, Calibration
from stepscope.analysis.energy.coarse_search import interpolate_rows, time_by_group
from stepscope.analysis.energy.neighbour_errors import whitened
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.regression import ANY_SPREAD, RidgeFit, log_evidence, regress
from stepscope.analysis.energy.scaled_rows import FEWEST, RegressionRows, scaled_rows
from stepscope.analysis.energy.sensor_model import (
    SensorModel,
    fully_covered_flags,
)
from stepscope.analysis.energy.timeline import Timeline, condense, condensed_keys, hierarchy
from stepscope.arrays import Floats, Ints

COMPARED = 4_000  # readings from which other sensor models' powers are taken
_FEWER = 1_500  # the same of those that see a part later
_LATER = (1.0, 3.0, 9.0)  # of what the found model sees of the past: time constants of the part that is seen later
_SHARES = (0.1, 0.3, 0.5, 0.7)  # of power, that is seen so
_RARE = 0.05  # probability of any such part, before any reading
_STANDS = -12.0  # log odds against the likeliest, below which a model is given up
_FINEST, _ROUGHEST = 1 / 8, 1 / 3  # of the time constant: a grid on which it is filtered
_SETTLING = 2.0  # of the longest time constant: what came before the steps is known only as their mean
_MOST_SETTLING = 0.25  # of the steps


@dataclass(frozen=True)
class AlternativeModel:
    """Another sensor model: its probability, and by how much it moves each power, W (P,), and all energy, a share.

    `later`: share of power that reaches the sensor behind a further filter of `rc_later`, s.
    """

    model: SensorModel
    probability: float
    moved: Floats
    disagrees: float
    later: float = 0.0
    rc_later: float = 0.0

    @property
    def words(self) -> str:
        """The model as a reader sees it."""
        part = f", {self.later:.0%} of power {self.rc_later * 1e3:.2g} ms later" if self.later else ""
        return model_words(self.model) + part


def model_words(model: SensorModel) -> str:
    """A model as a reader sees it."""
    window = "" if model.width is None else f"a window of {model.width * 1e3:.3g} ms, "
    return f"{window}{max(model.lag, 0.0) * 1e3:.2g} ms delay"


@dataclass(frozen=True)
class _Candidate:
    """A model before the probabilities of all are known; moved: W, of each key (P,)."""

    model: SensorModel
    log_odds: float
    moved: Floats
    later: float = 0.0
    rc_later: float = 0.0


def other_models(timeline: Timeline, readings: Readings, calibration: Calibration) -> tuple[AlternativeModel, ...]:
    """The models that the readings do not exclude, with the powers that they would give."""
    all_found = [
        *_rival_candidates(timeline, readings, calibration),
        *_slower_sensor_candidates(timeline, readings, calibration.model),
    ]
    log_odds = np.array([0.0, *(other.log_odds for other in all_found)])
    weight = np.exp(log_odds - log_odds.max())
    whole = max(float(readings.watts.mean()) * (timeline.end - timeline.begin), 1e-30)
    others = []
    for other, probability in zip(all_found, (weight / weight.sum())[1:].tolist(), strict=True):
        if other.log_odds < log_odds.max() + _STANDS:
            continue
        joules = np.abs(np.bincount(timeline.keys.kind, other.moved * timeline.seconds)).sum() / 2
        share = float(joules) / whole
        others.append(AlternativeModel(other.model, probability, other.moved, share, other.later, other.rc_later))
    return tuple(others)


def _rival_candidates(timeline: Timeline, readings: Readings, calibration: Calibration) -> Sequence[_Candidate]:
    """Of the calibration."""
    if not calibration.rivals:
        return ()
    few, cut, new = _reduce_for_comparison(timeline, readings, COMPARED, FEW_KEYS)
    covered = np.all(
        [
            fully_covered_flags(cut, few, model)
            for model in (calibration.model, *(other.model for other in calibration.rivals))
        ],
        axis=0,
    )
    few = few.select(covered) if covered.sum() >= FEWEST else few
    own = scaled_rows(cut, few, calibration.model)[1].watts
    return [
        _Candidate(rival.model, _blunted(rival.log_odds), (scaled_rows(cut, few, rival.model)[1].watts - own)[new])
        for rival in calibration.rivals
    ]


def _blunted(log_odds: float) -> float:
    """Log odds less their own standard deviation: how far readings of one model lie from another's is a chance too.

    A logarithm of odds of L has a standard deviation of the root of 2 L before it is tempered (Vuong, Econometrica 57,
    1989, of normal errors).
    """
    against = max(-log_odds, 0.0)
    return -max(against - float(np.sqrt(2 * TEMPER * against)), 0.0)


def _reduce_for_comparison(
    timeline: Timeline, readings: Readings, most: int, keys: tuple[int, int]
) -> tuple[Readings, Timeline, Ints]:
    """The first readings, the steps until then with fewer keys, and the number of each key (P,) among these."""
    few = readings.first(most)
    cut = timeline.until(float(few.stamp[-1]) + 0.3)
    return few, condense(cut, *keys), condensed_keys(cut, *keys)[0]


def _slower_sensor_candidates(timeline: Timeline, readings: Readings, model: SensorModel) -> Sequence[_Candidate]:
    """Sensors that see a share of power as the found one does, and the rest behind a further filter."""
    recorded = timeline.recorded[timeline.step_of(readings.at)]
    if recorded.sum() < FEWEST:
        return ()
    few, cut, new = _reduce_for_comparison(timeline, readings.select(recorded), _FEWER, COMPARED_KEYS)
    _, width = model.windows(few)
    reach = max(float(np.median(width)) + model.hold, model.rc)
    settled = min(_SETTLING * _LATER[-1] * reach, _MOST_SETTLING * (cut.end - cut.begin))
    few = few.select(fully_covered_flags(cut, few, model) & (few.at - model.lag > cut.begin + settled))
    if few.count < FEWEST + cut.keys.count:
        return ()
    rows, _ = scaled_rows(cut, few, model, ANY_SPREAD)
    own, likely = _fit_powers(rows, rows.matrix.toarray(), cut, few)
    prior = np.log(_RARE / (1 - _RARE) / (len(_LATER) * len(_SHARES)))
    candidates = []
    for factor in _LATER:
        late = _shares_behind_filter(cut, few, model, factor * reach)
        if late is None:
            continue
        late *= rows.scale[:, None]
        for share in _SHARES:
            fit, log = _fit_powers(rows, (1 - share) * rows.matrix + share * late, cut, few)
            moved = (fit.watts - own.watts)[new]
            candidates.append(_Candidate(model, TEMPER * (log - likely) + prior, moved, share, factor * reach))
    return candidates


def _fit_powers(rows: RegressionRows, matrix: Floats, timeline: Timeline, readings: Readings) -> tuple[RidgeFit, float]:
    """Powers from these rows, and the logarithm of how likely the readings are."""
    moments = RegressionRows(np.asarray(matrix), rows.scale, rows.watts, rows.theta).moments(
        float(readings.watts.mean())
    )
    fit = regress(moments, hierarchy(timeline.keys, "signature"), most=ANY_SPREAD)
    return fit, log_evidence(moments, fit)


def _shares_behind_filter(timeline: Timeline, readings: Readings, model: SensorModel, rc: float) -> Floats | None:
    """Share of each key (M, P) in the windows of the model behind a further filter; None where it is too fast.

    Before the begin, keys have had their mean share.
    """
    spent = time_by_group(timeline, np.arange(timeline.keys.count), _FINEST * rc)
    step = float(spent.grid[1] - spent.grid[0])
    if step > _ROUGHEST * rc:
        return None
    stays = float(np.exp(-step / rc))
    rate = np.diff(spent.by, axis=0) / step
    mean = rate.mean(axis=0)
    rate -= mean
    whitened_mean = np.vstack([np.zeros_like(mean), whitened(rate * (rc * (1 - stays)), stays)])
    passed = spent.by - whitened_mean
    end, width = model.windows(readings)
    end = end - model.rc - model.hold / 2
    late, early = (interpolate_rows(spent.grid, passed, t) for t in (end, end - width))
    shares = (late - early) / width[:, None]
    return np.asarray(shares if readings.mix is None else readings.mix @ shares)
