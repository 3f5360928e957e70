"""Each rail of a run fitted to its ops, and the energy of groups of ops with 95 % CIs and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import sparse, special  # type: ignore[import-untyped]

from stepscope.analysis.energy.alternative_models import model_words
from stepscope.analysis.energy.attribution import Attribution, FitOptions, attribute_energy, reason_nothing_told
from stepscope.analysis.energy.calibration_store import SensorCalibration, store_calibrations, stored_calibrations
from stepscope.analysis.energy.fit_inputs import RunTimeline, RunTimelines, run_readings
from stepscope.analysis.energy.fit_span import scale_to_whole_run, slice_to_fit
from stepscope.analysis.energy.measured_energy import (
    Energy,
    UnreadPhase,
    energy_over,
    find_unread_phase,
    idle_stretch,
    training_stretches,
)
from stepscope.analysis.energy.power_sources import cut_off_sentence
from stepscope.analysis.energy.rails import UNUSED, WHOLE_DEVICE, MeasuredRail, RailTree
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.timeline import Lane, Timeline
from stepscope.analysis.result_cache import ResultCache
from stepscope.analysis.time.steps import count_after_warmup, profiled_steps, steps_after_warmup
from stepscope.arrays import Flags, Floats
from stepscope.runfolder import RunReader
from stepscope.units import percent

FEWEST_READINGS = 2  # readings that the simpler ways need


@dataclass(frozen=True)
class RailFit:
    """A rail, what explains it, what was read of it, and the fit (None where it was not possible: `reason` says why).

    idle_w: its power before the training began, None where that was not seen; make, chip: what the channel says of its
    sensor, and which chip it is a channel of; stuck_s: for how long it stood still, which is excluded; of_stretch: of
    a long run a stretch was fitted, which grows no longer with the run.
    """

    line: MeasuredRail
    ops: RunTimeline
    readings: Readings
    fit: Attribution | None
    reason: str
    idle_w: float | None
    make: tuple[object, ...] = ()
    chip: str = ""
    stuck_s: float = 0.0
    measured: Energy | None = None  # over the steps, as the totals have it
    unread: UnreadPhase | None = None  # what of every step its readings leave out
    of_stretch: bool = False

    @property
    def lag(self) -> float:
        """Return the delay of the readings, s; 0 where no fit has given it."""
        return self.fit.calibration.model.lag if self.fit is not None else 0.0

    def total_ends(self, joules: float, span_s: float) -> tuple[float, float]:
        """Return the ends of the 95 % CI of the energy of so long, J: no narrower than the report's first lines.

        joules: as the fit has it, else as it was measured.
        """
        half = 0.0 if self.fit is None else Z_95 * float(np.hypot(self.fit.total.sd, self.fit.floor * span_s))
        measured = self.measured
        if measured is not None and measured.low_w is not None and measured.high_w is not None:
            half = max(half, (measured.high_w - measured.low_w) / 2 * span_s)
        low, high = joules - half, joules + half
        if self.unread is not None:
            low, high = min(low, self.unread.low_w * span_s), max(high, self.unread.high_w * span_s)
        return max(low, 0.0), high

    @property
    def reason_total_unknown(self) -> str:
        """Return that too little was read of the steps, or of the power, to tell the rest; empty where enough was."""
        measured, cut_off = self.measured, self.line.best.cut_off_w
        if cut_off is not None:
            return cut_off_sentence(cut_off)
        if measured is None or measured.low_w is not None:
            return ""
        share = measured.covered_s / max(measured.covered_s + measured.gap_s, 1e-9)
        return f"this rail was read in {percent(share)} of the time of the steps, which does not tell the rest"


def fit_rails(
    run: RunReader,
    tree: RailTree,
    timelines: RunTimelines | None = None,
    results: ResultCache | None = None,
    until: str | None = None,
) -> list[RailFit]:
    """Each rail that was sampled while ops were recorded; estimates too, which the caller keeps apart.

    until: key of the rail after which no other is fitted: it is known without those that start from what it tells. Then
    nothing is fitted either that no claim could follow from.
    """
    if profiled_steps(run).is_empty() or steps_after_warmup(run).is_empty() or not tree.lines:
        return []
    of = timelines or RunTimelines(run)
    read = [
        _rail_inputs(of.run, line, ops, of.origin_ns)
        for line in tree.lines
        if line.component != UNUSED and (ops := of.for_component(line.component)) is not None
    ]
    results = results or ResultCache(run)
    stored = stored_calibrations(results, "calibration-rails")
    fits: dict[str, RailFit] = {}
    calibrations: dict[str, SensorCalibration] = {}
    # The strongest signal first: the other channels of its chip, and other chips of its make, start from what it tells.
    for rail in sorted(read, key=lambda rail: -rail.strength):
        source = rail.line.best.id
        options = replace(rail.options, known=stored.get(source), **_similar_source(rail, calibrations, fits))
        fits[source] = _fit_rail(run, rail, options, claimed_alone=until is not None)
        if (fit := fits[source].fit) is not None:
            calibrations[source] = fit.known
        if rail.line.key == until:
            break
    if calibrations and calibrations.keys() - stored.keys():
        store_calibrations(results, "calibration-rails", {**stored, **calibrations})
    return [fits[rail.line.best.id] for rail in read if rail.line.best.id in fits]


def whole_device_rail(run: RunReader, tree: RailTree) -> str | None:
    """Return the key of the measured rail that stands for the whole device: that of the total, or of most power."""
    lines = [line for line in tree.lines if not line.estimated and line.component != UNUSED]
    whole = [line for line in lines if line.component in WHOLE_DEVICE]
    spans = training_stretches(run)
    if not lines or not len(spans):
        return None
    return max(whole or lines, key=lambda line: energy_over(line.best, spans).watts or 0.0).key


@dataclass(frozen=True)
class _RailInputs:
    """A rail before it is fitted; chip: where the source says which one it is a channel of."""

    line: MeasuredRail
    ops: RunTimeline
    readings: Readings
    options: FitOptions
    make: tuple[object, ...]
    chip: str

    @property
    def strength(self) -> float:
        """Return the noise of the readings, W: the channels of a make have about the same."""
        watts = self.readings.watts
        return float(watts.std()) if len(watts) and not self.line.estimated else 0.0


def _rail_inputs(run: RunReader, line: MeasuredRail, ops: RunTimeline, origin_ns: int) -> _RailInputs:
    readings, options = run_readings(run, line.best, origin_ns)
    channel = line.best.channel or {}
    make = tuple(channel.get(name) for name in ("sensor", "kind", "filter", "refresh_ns", "window_ns"))
    return _RailInputs(line, ops, readings, options, make, str(channel.get("source") or "").rpartition("/")[0])


def _similar_source(
    rail: _RailInputs, calibrations: dict[str, SensorCalibration], fits: dict[str, RailFit]
) -> dict[str, Any]:
    """Return the sensor model of a rail of the same make that has a filter: of the same chip where there is one."""
    alike = [other for source, other in fits.items() if source in calibrations and other.make == rail.make]
    if not alike:
        return {}
    nearest = next((other for other in alike if rail.chip and other.chip == rail.chip), alike[0])
    return {"near": calibrations[nearest.line.best.id], "same_chip": nearest.chip == rail.chip != ""}


def _fit_rail(run: RunReader, rail: _RailInputs, options: FitOptions, claimed_alone: bool) -> RailFit:
    line, ops, readings = rail.line, rail.ops, rail.readings
    inside = readings.select((readings.at >= ops.timeline.begin) & (readings.at <= ops.timeline.end))
    idle = idle_stretch(run, [line.best])
    idle_w = energy_over(line.best, idle).watts if len(idle) else None
    spans = training_stretches(run)
    measured = energy_over(line.best, spans) if len(spans) else None
    unread = find_unread_phase(run, line.best)
    whole = RailFit(line, ops, inside, None, "", idle_w, rail.make, rail.chip, options.stuck_s, measured, unread)
    if line.estimated:
        return replace(whole, reason="an estimate is handed out, not fitted")
    if inside.count < FEWEST_READINGS:
        return replace(whole, reason=f"{inside.count} readings of this rail fall into the steps: train longer")
    if ops.reason_not_divided:
        return replace(whole, reason=ops.reason_not_divided)
    if claimed_alone and (reason := reason_nothing_told(ops.timeline)):
        return replace(whole, reason=reason)
    fit = attribute_energy(ops.timeline, readings, options)
    if fit is None:
        return replace(whole, reason=_reason_not_fitted(inside))
    fit = replace(fit, misfit=replace(fit.misfit, fatal=whole.reason_total_unknown or fit.misfit.fatal))
    stretch = slice_to_fit(run)
    if stretch is not run:
        here, everywhere = _step_joules(line, stretch), _step_joules(line, run)
        longer = _step_seconds(run) / _step_seconds(stretch)
        fit = scale_to_whole_run(fit, everywhere / here, longer) if here and everywhere else fit
    return replace(whole, fit=fit, of_stretch=stretch is not run)


def _step_joules(line: MeasuredRail, run: RunReader) -> float | None:
    """The energy of a step without the pauses between steps, J; None where nothing was read."""
    watts = energy_over(line.best, training_stretches(run)).watts
    return None if watts is None else watts * _step_seconds(run)


def _step_seconds(run: RunReader) -> float:
    """Mean time of a step with what follows it, without the pauses between steps, s."""
    return float(np.diff(training_stretches(run)).sum()) / 1e9 / count_after_warmup(run)


def _reason_not_fitted(readings: Readings) -> str:
    if readings.still:
        return f"the sensor gave {readings.watts[0]:.3g} W throughout: it stands still, or its resolution is too low"
    if readings.watts.mean() <= 0:
        return f"the sensor gave {readings.watts.mean():.3g} W on average, of which operators have no share"
    return f"{readings.count} readings are too few to tell ops apart: train more steps"


Z_95 = float(special.ndtri(0.975))
CLAIM = float(special.ndtri(0.995)) / Z_95  # a table claims many parts at once: each is held to its 99 % CI
_AS_DECIDED = 1.5  # standard deviations: the most that the coarser fit's disagreement adds
_MADE_SMALLER = 0.25  # of the variance before any reading, below which the readings must bring that of a claim
_ALWAYS = 0.01  # of a part's energy: what no term below sees, as power that is not the same all through an operator


@dataclass(frozen=True)
class GroupEnergies:
    """Energies of groups over the run, J (G,): with intervals; `statistical` is the part of the sd that steps cure."""

    joules: Floats
    sd: Floats
    statistical: Floats
    seconds: Floats
    correlation: Floats
    meanwhile: Floats  # J, that went through the rail while each ran, if what was found filters the rail
    supposed: Flags  # whose variance the readings did not make much smaller than it was before any of them

    @property
    def half_width(self) -> Floats:
        """Half of the 95 % CI of the energies, J (G,)."""
        half: Floats = Z_95 * self.sd
        return half

    @property
    def during(self) -> tuple[Floats, Floats]:
        """Ends of the 95 % CI of what goes through the rail while each runs, J (G,).

        Readings do not tell whether a rise is the sensor's, and then nothing outlasts its cause, or the rail's own.
        """
        low, high = np.minimum(self.joules, self.meanwhile), np.maximum(self.joules, self.meanwhile)
        return np.maximum(low - self.half_width, 0.0), high + self.half_width

    @property
    def relative(self) -> Floats:
        """Half of the 99 % CI as a share of its lower end (G,), which claims go by; infinite where that is 0 J.

        What came out too large by chance would look the better known for it. Infinite too where not the readings, but
        what is supposed of every operator, made the interval narrow.
        """
        half = CLAIM * self.half_width
        least = self.joules - half
        with np.errstate(invalid="ignore", divide="ignore"):
            share: Floats = np.where((least > 0) & ~self.supposed, half / least, np.inf)
        return share

    def resolved(self, within: float = 0.10) -> Flags:
        """Groups whose 99 % CI is within so much of the energy."""
        return np.asarray(self.relative <= within)


def group_energies(attribution: Attribution, gather: Any) -> GroupEnergies:
    """Energies of groups; gather: (G, P) sparse, the share of each key that belongs to each group."""
    joules, seconds = gather @ attribution.joules, gather @ attribution.seconds
    spread = np.asarray(gather @ (gather @ attribution.covariance).T)
    own = np.asarray(gather @ (gather @ attribution.statistical).T)
    variance = np.maximum(np.diag(spread), 0)
    # Where the readings decide a place by themselves, that it differs from its like is a finding and not an error. Of
    # two fits that may either be right, each is half of what they differ by from the middle.
    most = _AS_DECIDED * np.sqrt(variance)
    apart = np.clip(gather @ (attribution.coarser - attribution.joules), -most, most) / 2
    blunt = gather @ (attribution.sharper - attribution.joules) / 2
    meanwhile = joules if attribution.meanwhile is None else gather @ attribution.meanwhile
    sd = np.sqrt(variance + apart**2 + blunt**2 + (_ALWAYS * joules) ** 2 + (attribution.floor * seconds) ** 2)
    from_readings = np.maximum(np.diag(own), 0)
    before = sparse.csr_matrix(gather) @ attribution.before
    supposed = np.asarray(from_readings > _MADE_SMALLER * np.asarray(before.multiply(before).sum(axis=1)).ravel())
    return GroupEnergies(
        joules, sd, np.sqrt(np.minimum(from_readings, variance)), seconds, _correlation(spread), meanwhile, supposed
    )


def _correlation(spread: Floats) -> Floats:
    """Correlations of a covariance (G, G) that rounding may have left without variance, or below 0; (G, G), 0 there."""
    variance = np.diag(spread)
    scale = np.sqrt(np.maximum(variance, 0.0))
    has_variance = variance > np.finfo(np.float64).eps * np.max(variance, initial=0.0)
    between = np.zeros_like(spread)
    np.divide(spread, np.outer(scale, scale), out=between, where=np.outer(has_variance, has_variance))
    return np.clip(between, -1.0, 1.0)


RESOLVED, COARSE = 0.10, 0.30  # half of the 99 % CI as a share of its lower end
STAMP_RATIO = 20.0  # ops must be so much longer than their stamps' error
_TOGETHER = -0.5  # correlation from which two parts are told apart by the prior alone
_POSSIBLE, _OTHER_ENERGIES = 0.05, 0.05  # of another sensor model: its probability, and the energy that it would move
_LIKELY = 0.5  # probability that a part of power is seen later, from which the sensor is another than was found
_DISTRUST = 0.03  # of the total: parts that missed it by more before they were made to add up
_FASTER = 0.8  # the interval of a part shrinks as steps ** -0.4: errors within a step are not independent
_MOST_FACTOR = 1000.0

PartVerdict = Literal["resolved", "coarse", "not identifiable"]


@dataclass(frozen=True)
class PartVerdicts:
    """A verdict for each part, with the reason where it is not within 10 % ("" where it is)."""

    verdict: list[PartVerdict]
    reason: list[str]


@dataclass(frozen=True)
class Identifiability:
    """Resolution of a rail with the steps at hand.

    shortest_op: s, from which most places are within 10 %, None where none is; share: of the energy in parts within 10
    %;
    more_steps: to add until 90 % of the energy is within 10 %, 0 if it is, None where no number is known to do;
    expected_error: what the energy-weighted error is likely to be.
    """

    shortest_op: float | None
    share: float
    more_steps: int | None
    expected_error: float
    trouble: str  # why nothing is called resolved; empty where nothing stands against it


def reason_unresolvable(attribution: Attribution) -> str:
    """Return why nothing of this rail can be called resolved; empty where nothing stands against it."""
    if attribution.phase.wide:
        return (
            attribution.phase.locked_by_source
            if attribution.phase.locked and attribution.readings.has_update_times
            else attribution.phase.sentence
        )
    if attribution.misfit.fatal:
        return attribution.misfit.fatal
    timeline = attribution.timeline
    length = timeline.piece_seconds
    has_length = ~np.isnan(length)
    if timeline.stamp_sd and has_length.any():
        typical = _weighted_median(length[has_length], timeline.seconds[has_length])
        if typical < STAMP_RATIO * timeline.stamp_sd:
            return (
                f"ops of {typical * 1e6:.0f} us are too short for stamps that are {timeline.stamp_sd * 1e6:.2g} us off"
            )
    if sum(other.probability for other in attribution.others if other.later) > _LIKELY:
        best = max((other for other in attribution.others if other.later), key=lambda other: other.probability)
        return (
            "the sensor does not see power through the window and filter that were fitted: the readings are likelier "
            f"if {best.later:.0%} of it comes {best.rc_later * 1e3:.2g} ms later"
        )
    for other in attribution.others:
        if other.probability > _POSSIBLE and other.disagrees > _OTHER_ENERGIES:
            return (
                f"two sensor models explain the readings alike ({model_words(attribution.calibration.model)}; "
                f"{other.words}) and give other energies: train with another batch size"
            )
    if attribution.negative > _DISTRUST:
        return f"{attribution.negative:.0%} of the energy came out below 0: how the sensor sees the past was not found"
    if abs(attribution.gap_before) > _DISTRUST:
        return (
            f"the parts missed the measured total by {abs(attribution.gap_before):.1%} before they were made to add up"
        )
    return ""


def total_verdict(joules: float, half_width: float) -> tuple[PartVerdict, str]:
    """Verdict of a rail's total, as of a part, and the reason where it is not within 10 %.

    half_width: half of its 95 % CI, J.
    """
    half = CLAIM * half_width
    least = joules - half
    if half <= RESOLVED * least:
        return "resolved", ""
    reason = f"half of its 99 % CI is {half / least:.0%} of its lower end" if least > 0 else "it may be 0 J"
    return "coarse" if half <= COARSE * least else "not identifiable", reason


def part_verdicts(attribution: Attribution, whole: GroupEnergies, names: Sequence[str]) -> PartVerdicts:
    """Verdict of each part by its interval, unless something stands against the whole rail."""
    against, relative = reason_unresolvable(attribution), whole.relative
    verdict: list[PartVerdict] = []
    reason: list[str] = []
    for index in range(len(whole.joules)):
        if not against and relative[index] <= RESOLVED:
            verdict.append("resolved")
            reason.append("")
            continue
        coarse = not against and relative[index] <= COARSE
        verdict.append("coarse" if coarse else "not identifiable")
        reason.append(against or _reason_for_wide_interval(attribution, whole, index, names))
    return PartVerdicts(verdict, reason)


def _reason_for_wide_interval(attribution: Attribution, whole: GroupEnergies, index: int, names: Sequence[str]) -> str:
    """The likeliest reason for a wide interval: always beside another part, or too short for the sensor."""
    if whole.joules[index] <= 0:
        return "no energy differs clearly from 0"
    if whole.supposed[index]:
        return "the readings hardly tell more of it than is supposed of every operator: train more steps"
    if attribution.floor * whole.seconds[index] > 0.5 * whole.sd[index]:
        return "the sensor's resolution is too low for so little power"
    others = np.where(np.arange(len(names)) == index, 0.0, whole.correlation[index])
    partner = int(np.argmin(others))
    if others[partner] < _TOGETHER:
        pair = [index, partner]
        spread = whole.correlation[np.ix_(pair, pair)] * np.outer(whole.sd[pair], whole.sd[pair])
        half = Z_95 * float(np.sqrt(max(spread.sum(), 0.0))) / float(whole.joules[pair].sum())
        return f"always beside {names[partner]}; the two together are known to {half:.0%}"
    step_s = whole.seconds[index] / attribution.timeline.steps
    _, width = attribution.calibration.model.windows(attribution.readings)
    return f"{step_s * 1e3:.3g} ms a step, seen through windows of {float(np.median(width)) * 1e3:.3g} ms: more steps"


def identifiability(attribution: Attribution, whole: GroupEnergies) -> Identifiability:
    """Report of a rail, from the parts that a reader asks for first (kinds)."""
    energy = max(float(whole.joules.sum()), 1e-30)
    against = reason_unresolvable(attribution)
    share = 0.0 if against else float(whole.joules[whole.resolved(RESOLVED)].sum()) / energy
    error = float(np.sqrt(2 / np.pi) * whole.sd.sum()) / energy
    return Identifiability(
        _shortest_resolved(attribution) if not against else None,
        share,
        None if against else _steps_needed(attribution, whole),
        error,
        against,
    )


def _shortest_resolved(attribution: Attribution) -> float | None:
    """Shortest length from which at least half of the places are within 10 %, weighted by their energy, s."""
    single = group_energies(attribution, sparse.identity(attribution.timeline.keys.count, format="csr"))
    length = attribution.timeline.piece_seconds
    has_length = ~np.isnan(length)
    order = np.argsort(-length[has_length])
    energy, good = single.joules[has_length][order], single.resolved(RESOLVED)[has_length][order]
    longest_first = np.cumsum(energy * good) >= 0.5 * np.cumsum(energy)
    if not len(order) or not good.any() or not longest_first[good].any():
        return None
    return float(length[has_length][order][good & longest_first][-1])


def _steps_needed(attribution: Attribution, whole: GroupEnergies) -> int | None:
    """Steps to add; the part of the error that no step cures stays."""
    energy = np.maximum(whole.joules, 1e-30)
    hidden = (attribution.floor * whole.seconds) ** 2
    fixed = np.maximum(whole.sd**2 - whole.statistical**2 - hidden, 0.0)
    steps = attribution.timeline.steps
    for factor in np.geomspace(1.0, _MOST_FACTOR, 61):
        sd = np.sqrt(whole.statistical**2 / factor**_FASTER + fixed / np.sqrt(factor) + hidden)
        half = CLAIM * Z_95 * sd / energy
        if float(energy[half <= RESOLVED / (1 + RESOLVED)].sum()) >= 0.9 * float(energy.sum()):
            return int(np.ceil(steps * (factor - 1)))
    return None


def _weighted_median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def energy_by_nearest_reading(timeline: Timeline, readings: Readings) -> Floats:
    """Energy of each key (P,), J: each piece is given the reading nearest to its middle, times its length.

    The way of the published measurements on a Jetson TX2, with true stamps. The gap gets what is left of mean x time.
    """
    at = readings.at
    joules = np.zeros(timeline.keys.count)
    for lane in timeline.lanes:
        middle = (lane.t0 + lane.t1) / 2
        after = np.clip(np.searchsorted(at, middle), 1, len(at) - 1)
        place = np.where(middle - at[after - 1] < at[after] - middle, after - 1, after)
        joules += np.bincount(lane.key, readings.watts[place] * (lane.t1 - lane.t0), timeline.keys.count)
    whole = float(np.average(readings.watts, weights=readings.weight)) * (timeline.end - timeline.begin)
    joules[timeline.keys.gap] += whole - joules.sum()
    return joules


def energy_by_overlap(timeline: Timeline, readings: Readings, lag: float) -> Floats:
    """Energy of each key (P,), J: power held between readings, integrated over each piece. lag: of the stamps, s.

    Where lanes overlap, each piece is given all of the power: the sum is then above the total.
    """
    at = readings.at - lag
    edges = np.concatenate([[min(timeline.begin, at[0]) - 1.0], at, [max(timeline.end, at[-1]) + 1.0]])
    watts = np.append(readings.watts, readings.watts[-1])
    energy = np.append(0.0, np.cumsum(watts * np.diff(edges)))
    joules = np.zeros(timeline.keys.count)
    for lane in timeline.lanes:
        joules += _mean_power_between(lane, edges, energy, timeline.keys.count)
    first = _mean_power_between(timeline.lanes[0], edges, energy, timeline.keys.count).sum()
    whole = np.diff(np.interp([timeline.begin, timeline.end], edges, energy))[0]
    joules[timeline.keys.gap] += whole - first
    return joules


def _mean_power_between(lane: Lane, edges: Floats, energy: Floats, count: int) -> Floats:
    own = np.interp(lane.t1, edges, energy) - np.interp(lane.t0, edges, energy)
    return np.asarray(np.bincount(lane.key, own, count))
