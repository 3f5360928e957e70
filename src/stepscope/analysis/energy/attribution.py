"""Energy of each key from readings of one power source, with its covariance: the whole way, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse, special  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from stepscope.analysis.energy.alternative_models import COMPARED, AlternativeModel, other_models
from stepscope.analysis.energy.calibration import (
    FEW_KEYS,
    TEMPER,
    Calibration,
    fit_sensor_model,
    refit_sensor_model,
)
from stepscope.analysis.energy.calibration_error import (
    CalibrationErrorEffect,
    FilterShape,
    calibration_error_effect,
    filter_shape,
    rounding_error_effect,
    template_error_effect,
)
from stepscope.analysis.energy.calibration_readings import readings_near_profiled
from stepscope.analysis.energy.calibration_store import SensorCalibration
from stepscope.analysis.energy.coarse_search import Prior
from stepscope.analysis.energy.misfit import (
    NOTHING_FAILED,
    Misfit,
    check_residuals,
    reason_too_many_kinds,
    reason_window_too_wide,
)
from stepscope.analysis.energy.readings import (
    Readings,
    move_to_conversions,
    move_to_updates,
    prediction_errors,
    readings_by_clock,
)
from stepscope.analysis.energy.regression import (
    ANY_SPREAD,
    FULL_TIME,
    MeasuredTotal,
    RidgeFit,
    SamplePhaseCheck,
    adjust_to_total,
    check_sample_phase,
    measured_total,
    regress,
    sandwich,
)
from stepscope.analysis.energy.scaled_rows import FEWEST, noise_over_blur, scaled_rows
from stepscope.analysis.energy.sensor_model import (
    SHORTEST_RC,
    SensorModel,
    energy_through_rail,
    fully_covered_flags,
    predict_readings,
)
from stepscope.analysis.energy.timeline import (
    Level,
    Timeline,
    condense,
    condensed_keys,
    hierarchy,
    join_uncertain_pieces,
)
from stepscope.analysis.energy.update_clocks import (
    NEAR_STATED,
    UpdateClock,
    fit_clock_to_residuals,
    is_best_clock_clear,
    search_clock,
    undelayed_stamps,
)
from stepscope.analysis.time.steps import FEW
from stepscope.arrays import Floats
from stepscope.units import plural

_BLURRED = 0.5  # of its refresh: a gauge that sees so wide a window is one whose conversions come at unknown times
_MOST_HOLD = 1.0  # s
_WORSE = 1.25  # times the noise without a clock: more than chance makes of a right one
_CLOCKS_TRIED = 2  # other sensor models from which an unseen clock is looked for


@dataclass(frozen=True)
class FitOptions:
    """`periodic`: the source has a clock of its own and late stamps. `width`: its window where that is certain, s.

    `refresh`: time between the updates of the source, s; `stated`: its averaging window as the channel has it. `step`:
    of the source's numbers, W, as stated; `floor`: what they hide of every power, W. `known`: what was found before of
    the very same readings, used as it is; `near`: of another source of the same make, to start from; `same_chip`: it
    has this one's clock too. `weight_sd`: of the weight of a conversion in a running average, as a share. `stuck_s`:
    for how long the source stood still; its readings of that time are excluded.
    """

    periodic: bool = False
    width: float | None = None
    refresh: float | None = None
    stated: float | None = None
    step: float = 0.0
    floor: float = 0.0
    known: SensorCalibration | None = None
    near: SensorCalibration | None = None
    same_chip: bool = False
    lowest: Level = "place"
    stuck_s: float = 0.0
    weight_sd: float = 0.0

    def prior(self, hold: float) -> Prior:
        """Return what a calibration starts from; hold: how old a value can be beyond its own delay, s."""
        return Prior(self.width, self.refresh, self.stated, hold)


@dataclass(frozen=True)
class Attribution:
    """Energies over all steps, J: of each key (P,), their covariance, and what else is known of their errors.

    `coarser` and `sharper` (P,) are those by the coarser fit and without smear: how far they differ is an error too.
    `statistical` (P, P) is the part of the covariance that more steps make smaller.
    """

    timeline: Timeline
    readings: Readings
    joules: Floats
    covariance: Floats
    statistical: Floats
    before: Any  # (P, D), J, sparse: its product with itself is the covariance before any reading
    coarser: Floats
    sharper: Floats
    total: MeasuredTotal
    gap_before: float  # share of the total that the parts missed before they were made to add up
    known: SensorCalibration
    phase: SamplePhaseCheck
    explained: float  # share of the readings' variance
    negative: float  # energy that came out below 0, as a share of the total; it was set to 0
    others: tuple[
        AlternativeModel, ...
    ] = ()  # sensor models that the readings do not exclude, and what they would give
    misfit: Misfit = NOTHING_FAILED  # what tests of the residuals show
    meanwhile: Floats | None = None  # energy that went through the rail while each key ran, J (P,), if it is the rail
    floor: float = 0.0  # standard deviation of every power that no reading could show, W
    time_factor: float = 1.0  # length of a step of the run that the energies are of, over that of the timeline's

    @property
    def unexplained_share(self) -> float:
        """Share of the readings' variance that the fit leaves."""
        return max(1 - self.explained, 1e-12)

    @property
    def calibration(self) -> Calibration:
        """Return the sensor model of the source."""
        return self.known.last

    @property
    def seconds(self) -> Floats:
        """Time of each key over all steps (P,), as long as the steps are that the energies are of."""
        return self.timeline.seconds * self.time_factor

    @property
    def watts(self) -> Floats:
        """Mean power of each key while it runs (P,); NaN where it never does."""
        seconds = self.seconds
        with np.errstate(invalid="ignore", divide="ignore"):
            power: Floats = np.where(seconds > 0, self.joules / seconds, np.nan)
        return power


def attribute_energy(timeline: Timeline, readings: Readings, options: FitOptions | None = None) -> Attribution | None:
    """Fit the powers of all keys. None where there are too few readings over the steps, or all are the same."""
    with threadpool_limits(limits=1, user_api="blas"):  # many small products: threads would wait for one another
        return _attribute_by_best_clock(timeline, readings, options or FitOptions())


_TWO_CLOCKS = (
    "two clocks of the sensor's updates explain the readings alike: train more steps, or steps of a different length"
)
_TOLD_APART = 6.0  # log odds by which one clock must explain the readings better


def _attribute_by_best_clock(timeline: Timeline, readings: Readings, options: FitOptions) -> Attribution | None:
    """The fit under the clock that explains the readings best, of those that explain which of them repeat."""
    ways = (replace(readings, also=()), *readings.also)
    if options.known is not None or len(ways) == 1:
        place = min(options.known.place, len(ways) - 1) if options.known is not None else 0
        return _attribute(timeline, ways[place], options)
    fits = [(place, fit) for place, way in enumerate(ways) if (fit := _attribute(timeline, way, options)) is not None]
    if not fits:
        return None
    fits.sort(key=lambda entry: entry[1].unexplained_share)
    place, best = fits[0]
    odds = [
        TEMPER / 2 * best.readings.count * np.log(other.unexplained_share / best.unexplained_share)
        for _, other in fits[1:]
    ]
    tied = bool(odds and min(odds) < _TOLD_APART)
    attribution = replace(best, known=replace(best.known, place=place, tied=tied))
    return (
        replace(attribution, misfit=replace(attribution.misfit, fatal=attribution.misfit.fatal or _TWO_CLOCKS))
        if tied
        else attribution
    )


def _attribute(timeline: Timeline, readings: Readings, options: FitOptions) -> Attribution | None:
    if options.periodic and readings.is_gauge:
        readings = replace(readings, stamp=undelayed_stamps(readings.stamp))
    readings = _readings_near_steps(timeline, readings)
    if readings.count < FEWEST or readings.still:
        return None
    readings, sensor = _calibrate_source(timeline, readings, options)
    calibration = sensor.last
    readings = readings.select(fully_covered_flags(timeline, readings, calibration.model))
    if readings.count < FEWEST:
        return None
    rows, coarse = scaled_rows(timeline, readings, calibration.model)
    fit = regress(rows.moments(float(readings.watts.mean())), hierarchy(timeline.keys, options.lowest), coarse)
    residuals = rows.residuals(fit)
    spread = sandwich(fit, rows.matrix, residuals, rows.theta, timeline.step_of(readings.at - calibration.model.lag))
    errors = calibration_error_effect(timeline, readings, fit, rows.matrix, rows.scale, rows.theta, calibration)
    shape = None
    if calibration.model.rc > SHORTEST_RC:
        parts = rows.matrix, rows.scale, rows.theta, residuals
        shape = filter_shape(timeline, readings, fit, *parts, calibration.model)
        errors = replace(errors, moved=shape.moved)
    others = other_models(timeline, readings, calibration)
    of_times = _errors_of_times(timeline, fit.watts)
    of_weight = _errors_of_weight(timeline, readings, calibration.model, options.weight_sd)
    rivals = (np.sqrt(other.probability) * other.moved for other in others)
    of_steps = rounding_error_effect(
        timeline, readings, fit, rows.matrix, rows.scale, residuals, calibration, options.step
    )
    of_template = template_error_effect(timeline, readings, fit, rows, calibration.model)
    errors = replace(errors, moved=np.vstack([errors.moved, *rivals, of_times, of_weight, of_steps, of_template]))
    _, width = calibration.model.windows(readings)
    middle = readings.at - calibration.model.lag - (float(np.median(width)) + calibration.model.hold) / 2
    bare = residuals / (np.ones(len(residuals)) if rows.theta or rows.trust is None else rows.trust)
    varies = max(float((readings.watts * readings.weight).var()), 1e-30)
    tested = check_residuals(timeline, readings, middle, residuals, bare, 1 - fit.noise / varies)
    tested = replace(tested, fatal=tested.fatal or reason_nothing_told(timeline))
    tested = replace(tested, fatal=tested.fatal or _reason_filter_unknown(readings, sensor, options, shape))
    tested = replace(tested, fatal=tested.fatal or reason_window_too_wide(timeline, readings, fit.watts))
    spread = spread * tested.factor**2
    errors = replace(errors, moved=errors.moved * tested.factor)
    whole = _assemble_attribution(timeline, readings, sensor, fit, coarse, spread, errors, residuals)
    if whole is None:
        return None
    meanwhile = energy_through_rail(timeline, np.nan_to_num(whole.watts), calibration.model.rc)
    return replace(whole, floor=options.floor, others=others, misfit=tested, meanwhile=meanwhile)


def reason_nothing_told(timeline: Timeline) -> str:
    """Return why no readings could tell the energy of operators; empty where some could."""
    return reason_too_many_kinds(timeline, FEW_KEYS[0]) or _reason_few_profiled(timeline)


def _reason_few_profiled(timeline: Timeline) -> str:
    """Return why the times of operators in unprofiled steps are not known; empty where they are, or none is so."""
    profiled = int(timeline.recorded.sum())
    if profiled == timeline.steps or profiled >= FEW:
        return ""
    return (
        f"{plural(profiled, 'profiled step')} cannot tell how long operators took in {timeline.steps - profiled:,} "
        f"unprofiled: profile {FEW} or more (--record every:10)"
    )


def _errors_of_times(timeline: Timeline, watts: Floats) -> Floats:
    """Errors of the powers (E, P) that stand for those of the times: only some steps were profiled.

    Times add up to the steps' lengths, which are known; a key's share of them is not, and its energy errs with it: by
    its own power, or by the mean power where it is so short that readings tell only how much more than that it took.
    The total is measured: by what the errors leave of it, all powers differ alike.
    """
    recorded = np.flatnonzero(timeline.recorded)
    if len(recorded) == timeline.steps or len(recorded) < 2:
        return np.zeros((0, len(watts)))
    count = timeline.keys.count
    place = np.full(timeline.steps, -1)
    place[recorded] = np.arange(len(recorded))
    spent = np.zeros((len(recorded), count))
    for lane in timeline.lanes:
        row = place[timeline.step_of((lane.t0 + lane.t1) / 2)]
        in_row = row >= 0
        np.add.at(spent, (row[in_row], lane.key[in_row]), (lane.t1 - lane.t0)[in_row])
    length = (timeline.step_t1 - timeline.step_t0)[recorded]
    first = ~timeline.keys.beside
    spent[:, timeline.keys.gap] += np.maximum(length - spent[:, first].sum(axis=1), 0.0)
    share = spent / length[:, None]
    filled = float((timeline.step_t1 - timeline.step_t0)[~timeline.recorded].sum())
    # Deviations of each profiled step, as rows whose products sum to the covariance of the mean. So few steps know
    # their spread badly: Student's factor over the normal one, both of the 99 % CI that claims go by.
    student = float(special.stdtrit(len(recorded) - 1, 0.995) / special.ndtri(0.995))
    deviation = (share - share.mean(axis=0)) * student / np.sqrt(len(recorded) * (len(recorded) - 1))
    if timeline.share_errors is not None:
        deviation = np.vstack([deviation, timeline.share_errors])
    mean = float(watts @ timeline.seconds) / max(float(timeline.seconds.sum()), 1e-30)
    errors = deviation * filled * np.maximum(watts, mean)
    joules = np.maximum(watts * timeline.seconds, 0.0)
    errors -= errors.sum(axis=1, keepdims=True) * joules / max(float(joules.sum()), 1e-30)
    return np.asarray(errors / np.maximum(timeline.seconds, 1e-12))


_FAR_WIDER = 3.0  # than one conversion: a blur that is not the sensor's


def _reason_filter_unknown(
    readings: Readings, sensor: SensorCalibration, options: FitOptions, shape: FilterShape | None
) -> str:
    """Return why it is not known how the sensor sees the past; empty where it is. shape: of its filter, if any."""
    if sensor.tied:
        return _TWO_CLOCKS
    model = sensor.last.model
    if shape is not None and shape.contradicted:
        return (
            f"the sensor follows power within {model.rc * 1e3:.2g} ms, and what the fit leaves shows that it does so "
            "along another curve than the one that was fitted"
        )
    if readings.register is not None:
        return "the clock of the conversions behind this running average was not found: train more steps"
    width = sensor.last.model.width
    if readings.conversions is not None and options.stated and width and width > _FAR_WIDER * options.stated:
        return (
            f"each conversion seems to see {width * 1e3:.2g} ms where it takes {options.stated * 1e3:.2g} ms: power "
            "follows its cause late, and a running average does not tell how"
        )
    return ""


_NUDGE = 0.05  # of the weight of a conversion


def _errors_of_weight(timeline: Timeline, readings: Readings, model: SensorModel, sd: float) -> Floats:
    """Errors of the powers (1, P), W, from that of the weight of a conversion; (0, P) where the source has none."""
    if not sd or (readings.conversions is None and readings.register is None):
        return np.zeros((0, timeline.keys.count))
    new, _ = condensed_keys(timeline, *FEW_KEYS)
    few = condense(timeline, *FEW_KEYS)
    powers = []
    for factor in (1 - _NUDGE, 1 + _NUDGE):
        other = _readings_near_steps(timeline, readings.reweighted(factor))
        other = other.select(fully_covered_flags(few, other, model)).first(COMPARED)
        cut = few.until(float(other.stamp[-1]) + 0.3)
        powers.append(scaled_rows(cut, other, model)[1].watts)
    return np.asarray((powers[1] - powers[0])[new][None, :] * sd / (2 * _NUDGE))


def _readings_near_steps(timeline: Timeline, readings: Readings) -> Readings:
    """Readings stamped within the steps, give or take the latest lag that is looked for."""
    slack = max(0.1, 2 * readings.period)
    at = readings.at
    return readings.select((at >= timeline.begin) & (at <= timeline.end + slack))


def _calibrate_source(
    timeline: Timeline, readings: Readings, options: FitOptions
) -> tuple[Readings, SensorCalibration]:
    """Return the sensor model of a source, fitted anew or from what is known; and the readings by its unseen clock."""
    if options.known is not None:
        return _align_readings_to_clock(timeline, readings, options.known.clock), options.known
    near = options.near
    # A running average sees many steps at once: where single operators lay in them hardly shows.
    sharp = readings if readings.register is not None else readings_near_profiled(timeline, readings)
    if near is not None and near.clock is None:
        last = refit_sensor_model(timeline, sharp, near.last)
        return readings, SensorCalibration(last, None, last)
    hold = _max_value_age_s(readings, options)
    first = near.first if near is not None else fit_sensor_model(timeline, sharp, options.prior(hold))
    shared = near.clock if near is not None and options.same_chip else None
    likely = [first.model, *(rival.model for rival in first.rivals[:_CLOCKS_TRIED])]
    clocks = (_infer_update_clock(timeline, readings, model, options, shared) for model in likely)
    clock = next((clock for clock in clocks if clock is not None), None)
    ticked = _align_readings_to_clock(timeline, readings, clock)
    if clock is not None and ticked.count >= FEWEST:
        of_updates = _readings_of_updates(timeline, ticked, first.model, options)
        last = (
            fit_sensor_model(timeline, of_updates, options.prior(0.0))
            if near is None
            else refit_sensor_model(timeline, of_updates, near.last)
        )
        if not readings.is_gauge or _noise_w2(timeline, ticked, last) <= _WORSE * _noise_w2(timeline, readings, first):
            return ticked, SensorCalibration(first, clock, last)
    own = first if near is None else refit_sensor_model(timeline, sharp, first)
    return readings, SensorCalibration(own, None, own)


def _readings_of_updates(timeline: Timeline, ticked: Readings, model: SensorModel, options: FitOptions) -> Readings:
    """Return the readings that the sensor behind a clock is calibrated by; model: as a first fit without it found it.

    What a running average tells of single conversions is so noisy that errors of the template hardly show beside it.
    """
    if ticked.mix is None or timeline.scatter is None:
        return readings_near_profiled(timeline, ticked)
    few = join_uncertain_pieces(condense(timeline, *FEW_KEYS))
    window = options.stated or CONVERSION * ticked.period
    noise = noise_over_blur(few, ticked, replace(model, width=window, hold=0.0))
    return readings_near_profiled(timeline, ticked, noise)


def _noise_w2(timeline: Timeline, readings: Readings, calibration: Calibration) -> float:
    """Variance of a reading about a first fit, W^2: a clock that is none leaves more than no clock does."""
    timeline = join_uncertain_pieces(condense(timeline, *FEW_KEYS))
    inside = readings.select(fully_covered_flags(timeline, readings, calibration.model))
    return scaled_rows(timeline, inside, calibration.model, ANY_SPREAD)[1].noise if inside.count >= FEWEST else np.inf


def _max_value_age_s(readings: Readings, options: FitOptions) -> float:
    """By how much older than its delay a value can be, s: of a gauge that is read on its updates, not at all."""
    if not readings.is_gauge or options.periodic or readings.has_update_times:
        return 0.0
    return min(options.refresh or readings.period, _MOST_HOLD)


def _align_readings_to_clock(timeline: Timeline, readings: Readings, clock: UpdateClock | None) -> Readings:
    """The readings as what the updates of an unseen clock tell; as they are without one."""
    if clock is None:
        return readings
    if readings.register is not None:
        return _readings_near_steps(timeline, readings_by_clock(readings.register, clock))
    return move_to_conversions(readings, clock) if readings.width is None else move_to_updates(readings, clock)


def _infer_update_clock(
    timeline: Timeline, readings: Readings, model: SensorModel, options: FitOptions, shared: UpdateClock | None
) -> UpdateClock | None:
    """The updates of a source that is read more slowly than it moves, from what a first fit leaves.

    None where the source is none such, or its updates keep to no clock. `shared`: that of another channel of its chip;
    a register that shows each conversion is converted at a phase of its own.
    """
    inside = readings.select(fully_covered_flags(timeline, readings, model))
    register, refresh = readings.register, options.refresh
    gauge = readings.is_gauge
    if inside.count < FEWEST or readings.has_update_times or (refresh is None and register is None):
        return None
    blurred = refresh is not None and _BLURRED * refresh < float(model.width or 0.0) + model.hold
    if register is None and readings.carry == 0 and not (gauge and blurred):
        return None
    if shared is not None and not gauge:
        return shared
    timeline = join_uncertain_pieces(condense(timeline, *FEW_KEYS))
    rows, fit = scaled_rows(timeline, inside, model, ANY_SPREAD)
    if gauge:
        assert refresh is not None, "a gauge that is read too slowly has a refresh"
        clock_prior = (shared.period, 0.0) if shared is not None else (refresh, NEAR_STATED)
        window = options.stated or (model.width if model.hold and model.width else CONVERSION * refresh)
        lag = model.lag + (float(model.width or 0.0) - window) / 2  # about the same centre
        return find_conversion_clock(timeline, inside, replace(model, width=window, lag=lag), fit.watts, *clock_prior)
    fitted = (rows.matrix @ fit.watts) / inside.weight
    if register is not None:
        surprise, speed = prediction_errors(register, inside.stamp, fitted)
        return fit_clock_to_residuals(inside.stamp, surprise, speed, register.period)
    assert refresh is not None, "a counter's refresh is known here"
    assert inside.width is not None, "a counter has widths"
    surprise = (inside.watts - fitted) * inside.width
    return fit_clock_to_residuals(inside.stamp, surprise, np.full(inside.count, float(inside.watts.mean())), refresh)


def _assemble_attribution(
    timeline: Timeline,
    readings: Readings,
    sensor: SensorCalibration,
    fit: RidgeFit,
    coarse: RidgeFit,
    spread: Floats,
    errors: CalibrationErrorEffect,
    residuals: Floats,
) -> Attribution | None:
    """The parts made to add up; None where the total is not above 0, and so has no parts."""
    calibration, seconds = sensor.last, timeline.seconds
    onto = sparse.diags(seconds) @ sparse.csr_matrix(fit.hierarchy.mixing)
    statistical = np.asarray(onto @ np.asarray(onto @ spread).T)
    moved = errors.moved * seconds
    joules, covariance = seconds * fit.watts, statistical + moved.T @ moved
    _, width = calibration.model.windows(readings)
    total = measured_total(readings, width, readings.weight, timeline.end - timeline.begin)
    if total.joules <= 0:
        return None
    adjusted, covariance_closed = adjust_to_total(joules, covariance, total)
    coarser, _ = adjust_to_total(seconds * coarse.watts, covariance, total)
    sharper, _ = adjust_to_total(joules + seconds * errors.without_smear, covariance, total)
    gap = (total.joules - joules.sum()) / total.joules
    if total.coverage <= FULL_TIME:  # what it did not look at, the fit knows better; that they differ is an error too
        whole = float(adjusted.sum())
        errors_of_whole = max(float(covariance_closed.sum()), 0.0) ** 0.5, (whole - total.joules) / 2
        total = replace(total, joules=whole, sd=float(np.hypot(*errors_of_whole)))
    phase = check_sample_phase(timeline, readings, calibration.model.lag)
    negative = -float(np.minimum(joules, 0).sum()) / total.joules
    explained = 1 - float(residuals.var()) / max(float(readings.watts.var()), 1e-30)
    return Attribution(
        timeline,
        readings,
        adjusted,
        covariance_closed,
        statistical,
        onto @ sparse.diags(fit.spread),
        coarser,
        sharper,
        total,
        gap,
        sensor,
        phase,
        explained,
        negative,
    )


# A register shows one value until the next: a reading is as old as the time since then, and where that is not known it
# blurs like a window of a whole period more. Under a right clock each reading is explained by the power at its own
# conversion, under a wrong one by nothing: the period and phase that leave least are the clock.

CONVERSION = 1 / 6  # of the period: about what one conversion of a chip with several channels looks at
_AGES, _REACH = 45, 2.5  # grid of ages, over so many periods
_YOUNGEST = 0.5  # periods from the begin of that grid to the youngest reading, as the first fit has it
_DELAYS = 24  # of a period
_CLIP = 6.0  # times the median: a reading further off tells nothing (it came late, or the op did)
_FEWEST = 60


@dataclass(frozen=True)
class _MisfitByReadingAge:
    """Squared error of each reading (ages, M), W^2, were it so old; `since`: stamps from the first on, s."""

    since: Floats
    error: Floats
    step: float

    def of(self, period: float, phase: Floats, count: int, youngest: float) -> Floats:
        """Mean error of the first readings under clocks of one period and several phases (F,).

        youngest: age of what is read right after it came, s from the begin of the grid.
        """
        age = youngest + np.mod(self.since[:count] - phase[:, None], period)
        row = np.minimum((age / self.step).astype(np.int64), len(self.error) - 1)
        mean: Floats = self.error[row, np.arange(count)].mean(axis=1)
        return mean


def find_conversion_clock(
    timeline: Timeline, readings: Readings, model: SensorModel, watts: Floats, nominal: float, near: float = NEAR_STATED
) -> UpdateClock | None:
    """The clock, if one stands out. watts: (P,) of a first fit; model: as then found, a blur of about a period;
    nominal: period, s, and `near` how far it may be off, as a share."""
    if readings.count < _FEWEST:
        return None
    misfits = _misfit_by_reading_age(timeline, readings, model, watts, nominal)
    usual = _YOUNGEST * nominal

    def error(period: float, phase: Floats, count: int) -> Floats:
        return misfits.of(period, phase, count, usual)

    period, phase, least = search_clock(error, misfits.since, nominal, near)
    if not is_best_clock_clear(error, len(misfits.since), nominal, least):
        return None
    phase += _extra_delay_s(misfits, period, phase, usual)
    return UpdateClock.even(float(readings.stamp[0]) + phase, period)


def _extra_delay_s(misfits: _MisfitByReadingAge, period: float, phase: float, usual: float) -> float:
    """By how much later than found the values come, s, with the conversions where they are.

    The first fit knows the mean age only roughly: what came a little before or after a wrong instant would be taken
    for the conversion next to it.
    """
    shifts = np.arange(-_DELAYS // 2, _DELAYS + 1) * period / _DELAYS
    shifts = shifts[usual + shifts >= 0]
    count = len(misfits.since)
    errors = [float(misfits.of(period, np.array([phase + by]), count, usual + by)[0]) for by in shifts]
    return float(shifts[int(np.argmin(errors))])


def _misfit_by_reading_age(
    timeline: Timeline, readings: Readings, model: SensorModel, watts: Floats, nominal: float
) -> _MisfitByReadingAge:
    """Of ages about the mean one, which the first fit has found: a period to either side and some more."""
    assert model.width is not None, "a gauge has one width"
    centre = model.lag + (model.width + model.hold) / 2 + model.rc
    begin = centre - (0.5 + _YOUNGEST) * nominal
    step = _REACH * nominal / _AGES
    window = min(model.width, nominal)
    sharp = [SensorModel(begin + (row + 0.5) * step - window / 2, window) for row in range(_AGES)]
    error = np.array([(readings.watts - predict_readings(timeline, readings, other, watts)) ** 2 for other in sharp])
    usual = float(np.median(error[round((0.5 + _YOUNGEST) / _REACH * _AGES)]))
    return _MisfitByReadingAge(readings.stamp - readings.stamp[0], np.minimum(error, _CLIP * usual), step)
