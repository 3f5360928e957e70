"""The clock of a meter beside the machine, aligned to a run by what both have seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special  # type: ignore[import-untyped]  # scipy.stats takes half a second to import

from stepscope.analysis.channels import Series, core_busy_time, series_of
from stepscope.arrays import Floats
from stepscope.errors import UsageError
from stepscope.runfolder import RunReader

# The run's activity is the busy time of cores and of the training process, or, without those, its steps. The shift
# with the highest correlation is refined on segments of the log; a line through the segments' shifts gives offset and
# drift (Student's t, 95 %). Quartz clocks drift by less than 200 ppm; more is not believed.

LEAST_CORRELATION = 0.5
_LEAST_OF_SEGMENT = 0.4
_AMBIGUOUS = 0.95  # another shift that fits as well as this: it cannot be told which is right
_LEAST_OVERLAP_S = 2.0
_MOST_GRID = 400_000
_WALL_SEARCH_S = 120.0  # how wrong a clock that claims to know the time may be
_MOST_PPM = 200.0
_SEGMENTS = 12
_SHIFTS_A_PERIOD = 20  # shifts tried for each period of the meter


@dataclass(frozen=True)
class Alignment:
    """run s = offset_s + t + drift x (t - reference_s), for t on the meter's clock; bounds are 95 %."""

    method: str  # "cross-correlation"
    offset_s: float
    offset_low_s: float
    offset_high_s: float
    drift_ppm: float | None  # None: below what can be seen, taken as 0 within +-200 ppm
    drift_low_ppm: float | None
    drift_high_ppm: float | None
    reference_s: float
    correlation: float
    segments: int

    def monotonic_ns(self, t_s: Sequence[float]) -> tuple[list[int], list[int]]:
        """Earliest and latest time of each reading on the run's clock, ns."""
        away = np.asarray(t_s, dtype=np.float64) - self.reference_s
        middle = self.offset_s + self.reference_s + away * (1 + (self.drift_ppm or 0.0) * 1e-6)
        has_drift = self.drift_low_ppm is not None and self.drift_high_ppm is not None
        drift = ((self.drift_high_ppm or 0.0) - (self.drift_low_ppm or 0.0)) / 2 if has_drift else _MOST_PPM
        half = np.hypot((self.offset_high_s - self.offset_low_s) / 2, np.abs(away) * drift * 1e-6)
        bounds = (np.rint((middle + sign * half) * 1e9).astype(np.int64).tolist() for sign in (-1, 1))
        low, high = bounds
        return low, high

    def facts(self) -> dict[str, Any]:
        """All fields, for the run's events."""
        return asdict(self)

    def words(self) -> str:
        """The alignment in a sentence."""
        half = (self.offset_high_s - self.offset_low_s) / 2
        drift = "drift below sensor resolution" if self.drift_ppm is None else f"drift {self.drift_ppm:.0f} ppm"
        return f"aligned within +-{half:.3g} s by {self.method} ({self.correlation:.2f}); {drift}"


@dataclass(frozen=True)
class _Activity:
    """Activity of the run over time: its integral (activity x s) at times, s; linear between."""

    t_s: Floats
    integral: Floats
    resolution_s: float  # how far apart its readings are

    def mean(self, t_s: Floats, width_s: float) -> Floats:
        """Mean activity around each time; NaN outside the run's record."""
        edges = np.interp(t_s + width_s / 2, self.t_s, self.integral)
        value = (edges - np.interp(t_s - width_s / 2, self.t_s, self.integral)) / width_s
        outside = (t_s < self.t_s[0]) | (t_s > self.t_s[-1])
        return np.where(outside, np.nan, value)


def align_meter_to_run(run: RunReader, t_s: Sequence[float], power_w: Sequence[float], unix: bool) -> Alignment:
    """Fit a meter's clock to a run; raises UsageError where the two cannot be laid over one another."""
    times, power = np.asarray(t_s, dtype=np.float64), np.asarray(power_w, dtype=np.float64)
    good = np.isfinite(times) & np.isfinite(power)
    times, power = times[good], power[good]
    activity = _run_activity(run)
    if activity is None:
        raise _cannot_align("the run recorded neither CPU use nor steps")
    if len(times) < 8 or float(np.ptp(power)) == 0.0:
        raise _cannot_align("the meter's log has fewer than 8 different readings")
    period = max(float(np.median(np.diff(times))), 1e-3)
    guess = _wall_offset_s(run) if unix else None
    offset, correlation = _coarse_fit(activity, times, power, period, guess)
    if correlation < LEAST_CORRELATION:
        raise _cannot_align(f"its power does not follow what the run did (best correlation {correlation:.2f})")
    return _fine_fit(activity, times, power, period, offset)


def _cannot_align(why: str) -> UsageError:
    hint = "let the meter log idle seconds before and after the training, with at least a reading a second"
    return UsageError(f"the meter's clock cannot be aligned with the run: {why}", hint)


def _run_activity(run: RunReader) -> _Activity | None:
    """Busy time of the cores, else of the training process, else one over steps and zero between; None without any."""
    cores = core_busy_time(run) or series_of(run, "process_cpu_time")
    return _counter_activity(cores) if cores else _step_activity(run)


def _counter_activity(cores: Sequence[Series]) -> _Activity:
    """The sum of busy-time counters, in core seconds."""
    grid = np.unique(np.concatenate([series.t_ns for series in cores]))
    total = sum((np.interp(grid, series.t_ns, series.values) for series in cores), np.zeros(len(grid)))
    return _Activity(grid / 1e9, total / 1e9, min(series.period_ns for series in cores) / 1e9)


def _step_activity(run: RunReader) -> _Activity | None:
    steps = run.steps
    if len(steps) < 2:
        return None
    begin, end = steps["t0_ns"].to_numpy() / 1e9, steps["t1_ns"].to_numpy() / 1e9
    margin = max(5.0, 0.5 * float(end[-1] - begin[0]))  # before and after the first and last step nothing is trained
    edges = np.column_stack([begin, end]).ravel()
    work = np.column_stack([np.cumsum(end - begin) - (end - begin), np.cumsum(end - begin)]).ravel()
    t_s = np.concatenate([[edges[0] - margin], edges, [edges[-1] + margin]])
    return _Activity(t_s, np.concatenate([[0.0], work, [work[-1]]]), 0.0)


def _wall_offset_s(run: RunReader) -> float | None:
    """Monotonic less unix time at the start of the run, s; None where the run does not say."""
    clock = run.meta.get("clock")
    if not isinstance(clock, dict) or not {"monotonic_ns", "unix_ns"} <= set(clock):
        return None
    return (int(clock["monotonic_ns"]) - int(clock["unix_ns"])) / 1e9


def _coarse_fit(
    activity: _Activity, times: Floats, power: Floats, period: float, guess: float | None
) -> tuple[float, float]:
    """The shift, s, with the highest correlation on a grid of the meter's period; raises UsageError if two fit."""
    span = max(float(np.ptp(times)), float(np.ptp(activity.t_s)))
    step = max(period, 0.02, 2 * span / _MOST_GRID)
    meter_t = np.arange(times[0], times[-1] + step / 2, step)
    run_t = np.arange(activity.t_s[0], activity.t_s[-1] + step / 2, step)
    meter, work = np.interp(meter_t, times, power), activity.mean(run_t, step)
    least = max(8, int(_LEAST_OVERLAP_S / step), min(len(meter_t), len(run_t)) // 2)
    scores = _sliding_correlation(np.nan_to_num(work), meter, least)
    offsets = (run_t[0] - meter_t[0]) + (np.arange(len(scores)) - (len(meter_t) - 1)) * step
    if guess is not None:
        scores = np.where(np.abs(offsets - guess) <= _WALL_SEARCH_S, scores, -1.0)
    best = int(np.argmax(scores))
    rival = float(np.max(np.delete(scores, _peak_around(scores, best)), initial=-1.0))
    if scores[best] >= LEAST_CORRELATION and rival > _AMBIGUOUS * scores[best]:
        raise _cannot_align(f"several shifts fit equally well ({scores[best]:.2f} and {rival:.2f})")
    return float(offsets[best]), float(scores[best])


def _peak_around(scores: Floats, best: int) -> slice:
    """The shifts around the best that are joined to it without a dip below nine tenths of its score."""
    low = np.flatnonzero(scores < 0.9 * scores[best])
    before, after = low[low < best], low[low > best]
    return slice(int(before[-1]) + 1 if len(before) else 0, int(after[0]) if len(after) else len(scores))


def _sliding_correlation(run: Floats, meter: Floats, least: int) -> Floats:
    """Pearson's correlation of the overlap for each shift of `meter` along `run`; -1 where it is shorter than `least`.

    Sums over the overlap by fast Fourier transform; shift k puts meter[0] on run[k - len(meter) + 1].
    """
    run, meter = run - run.mean(), meter - meter.mean()

    size = len(run) + len(meter) - 1

    def over(a: Floats, b: Floats) -> Floats:
        return np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b[::-1], size), size)

    ones_run, ones_meter = np.ones(len(run)), np.ones(len(meter))
    count = np.rint(over(ones_run, ones_meter))
    sum_run, sum_meter = over(run, ones_meter), over(ones_run, meter)
    with np.errstate(divide="ignore", invalid="ignore"):
        both = over(run, meter) - sum_run * sum_meter / count
        spread = (over(run**2, ones_meter) - sum_run**2 / count) * (over(ones_run, meter**2) - sum_meter**2 / count)
        score = both / np.sqrt(spread)
    flat = spread <= 1e-9 * float(np.max(spread, initial=0.0))
    return np.where((count < least) | flat | ~np.isfinite(score), -1.0, np.clip(score, -1.0, 1.0))


def _fine_fit(activity: _Activity, times: Floats, power: Floats, period: float, offset: float) -> Alignment:
    """Offset and drift from the best shift of each segment; from the whole log where too few segments have features."""
    inside = np.isfinite(activity.mean(times + offset, period))
    times, power = times[inside], power[inside]
    whole, correlation = _best_shift(activity, times, power, period, offset)
    reference = float(times.mean())
    parts = np.array_split(np.arange(len(times)), min(_SEGMENTS, max(1, len(times) // 20)))
    shifts = [
        (float(times[part].mean()), *_best_shift(activity, times[part], power[part], period, whole)) for part in parts
    ]
    segments = [
        (t, shift) for t, shift, score in shifts if score >= _LEAST_OF_SEGMENT and abs(shift - whole) < 2 * period
    ]
    fitted = _fit_line(segments, reference)
    if fitted is None:
        return Alignment(
            "cross-correlation",
            whole,
            whole - period,
            whole + period,
            None,
            None,
            None,
            reference,
            correlation,
            len(segments),
        )
    shift, half, drift, drift_half = fitted
    half = max(
        half, period / _SHIFTS_A_PERIOD, activity.resolution_s
    )  # as far apart as the shifts tried, and the run's own readings
    low, high = shift - half, shift + half
    ppm, ppm_half = 1e6 * drift, 1e6 * drift_half
    drifts = (ppm, ppm - ppm_half, ppm + ppm_half)
    return Alignment("cross-correlation", shift, low, high, *drifts, reference, correlation, len(segments))


def _best_shift(activity: _Activity, times: Floats, power: Floats, period: float, around: float) -> tuple[float, float]:
    """The shift within two periods of `around`, s, at the top of the parabola through the best three, and its score."""
    tried = around + np.arange(-2 * _SHIFTS_A_PERIOD, 2 * _SHIFTS_A_PERIOD + 1) * (period / _SHIFTS_A_PERIOD)
    scores = np.array([_correlation(activity.mean(times + shift, period), power) for shift in tried])
    best = int(np.argmax(scores))
    if not 0 < best < len(tried) - 1:
        return float(tried[best]), float(scores[best])
    before, top, after = scores[best - 1 : best + 2]
    bend = before - 2 * top + after
    aside = 0.0 if bend == 0 else float(np.clip(0.5 * (before - after) / bend, -1, 1))
    return float(tried[best]) + aside * period / _SHIFTS_A_PERIOD, float(top)


def _correlation(work: Floats, power: Floats) -> float:
    both = np.isfinite(work)
    if both.sum() < 8 or float(np.std(work[both])) == 0 or float(np.std(power[both])) == 0:
        return -1.0
    return float(np.corrcoef(work[both], power[both])[0, 1])


def _fit_line(points: Sequence[tuple[float, float]], reference: float) -> tuple[float, float, float, float] | None:
    """Shift at the reference and its 95 % half width, s, drift and its half width; None where they resolve no drift."""
    if len(points) < 4:
        return None
    t, shift = np.array(points).T
    away = t - reference
    slope, level = np.polyfit(away, shift, 1)
    residual = shift - level - slope * away
    spread = float(np.sum((away - away.mean()) ** 2))
    if spread == 0.0:
        return None
    deviation = math.sqrt(float(np.sum(residual**2)) / (len(points) - 2))
    student = float(special.stdtrit(len(points) - 2, 0.975))
    drift_half = student * deviation / math.sqrt(spread)
    if max(drift_half, abs(slope) - drift_half) > _MOST_PPM * 1e-6:  # says less than is known of any clock
        return None
    half = student * deviation * math.sqrt(1 / len(points) + float(away.mean()) ** 2 / spread)
    return float(level), half, float(slope), drift_half
