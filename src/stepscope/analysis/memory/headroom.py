"""The measured peak of a training against common sizes of memory, B: would it fit a smaller one.

The peak of the process is an interval: at most what was seen, at least that without what the recorder held. It was seen
here, with this build of torch; `stepscope fit` predicts it for another device, and knows what a board's system keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.caveats import resident_before_profiling
from stepscope.analysis.memory.limits import FITS, LIKELY_FITS, MARGIN, NO_FIT, TOO_CLOSE
from stepscope.analysis.process_scopes import (
    ALL,
    CHILDREN,
    OWN,
    gauges,
    has_several_processes,
    proportional_of_all,
    resident_of_all,
)
from stepscope.analysis.summary import reserved_bytes
from stepscope.units import bytes_

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

GB = 1_000_000_000
SIZES = (2 * GB, 4 * GB, 8 * GB)
_SAID = {FITS: "fits", LIKELY_FITS: "likely fits", TOO_CLOSE: "too close to tell for", NO_FIT: "does not fit"}


@dataclass(frozen=True)
class ResidentPeak:
    """The most resident memory of a training, B: least and most; held: what of it was the recorder's.

    several: the sum of several processes, in which a page that they share counts once at least, in each at most.
    sure: the kernel's own mark of the highest was read, to the end of the training; else it may have been higher.
    """

    low: int
    high: int
    held: int = 0
    several: bool = False
    sure: bool = True

    def verdict(self, size: int) -> str:
        """Return "fits", "likely fits", "too close" or "does not fit", for a process that may take so many bytes."""
        if self.high <= size * (1 - MARGIN):
            return FITS if self.sure else LIKELY_FITS
        return NO_FIT if self.low > size else TOO_CLOSE


def training_peak(run: Run) -> ResidentPeak | None:
    """Return the peak of the training alone, B; null where memory was not sampled, ran out, or no step was made."""
    metrics = run.metrics()
    if run.status == "oom" or run.steps.is_empty():
        return None
    if has_several_processes(run):
        peaks = _peaks(metrics, (ALL,))
        if not peaks:
            return None
        return ResidentPeak(min(peaks.values()), max(peaks.values()), several=True, sure=False)
    peak = _peak_without_recorder(metrics, run.meta, resident_before_profiling(run))
    if peak is None:
        return None
    workers = gauges(run, "rss").get(CHILDREN)
    if workers is not None and workers.values.any():
        return _peak_with_workers(run, peak)
    return replace(peak, sure=run.status == "ok" and not run.samples("peak_rss").is_empty())


def _peak_with_workers(run: Run, own: ResidentPeak) -> ResidentPeak:
    """Return the peak of a process and of the workers that it starts, which need room as well. own: of it alone."""
    once, in_each = proportional_of_all(run), resident_of_all(run)
    low = int(once.values.max(initial=0)) - own.held if once is not None else 0
    high = int(in_each.values.max(initial=0)) if in_each is not None else 0
    return ResidentPeak(max(own.low, low), max(own.high, high), own.held, several=True, sure=False)


def _peak_without_recorder(metrics: pl.DataFrame, meta: Mapping[str, Any], before: float | None) -> ResidentPeak | None:
    """Return the peak of one process, without what the recorder held in it and what its heap grew by since.

    before: the most that was resident before any step was profiled, B.
    """
    peaks = _peaks(metrics, OWN)
    high = max((peaks[name] for name in ("peak_rss", "rss") if name in peaks), default=None)
    if high is None:
        return None
    recorder = meta.get("recorder") or {}
    recorder_bytes = sum(size for key in ("held_bytes", "modules_bytes") if isinstance(size := recorder.get(key), int))
    if not 0 < recorder_bytes < high:
        return ResidentPeak(high, high)
    without = high - recorder_bytes
    return ResidentPeak(min(without, int(before or without)), high, recorder_bytes)


def _peaks(metrics: pl.DataFrame, scopes: tuple[str, ...]) -> dict[str, int]:
    rows = metrics.filter(
        (pl.col("metric") == "peak_memory") & pl.col("scope").is_in(scopes) & pl.col("value").is_not_null()
    )
    return {source: int(value) for source, value in rows.select("source", "value").iter_rows()}


def fits_sentence(run: Run) -> str | None:
    """Return which common sizes of memory the training fits, and by what measurement; null where it was not sampled."""
    peak = training_peak(run)
    if peak is None:
        return None
    return f"{size_verdicts_text(peak)}: {_measurement_text(run, peak)}"


def size_verdicts_text(peak: ResidentPeak) -> str:
    """Return the verdict on each common size of memory: "does not fit 2 GB; fits 4 and 8 GB"."""
    return "; ".join(_by_verdict(peak))


def _by_verdict(peak: ResidentPeak) -> Iterator[str]:
    for verdict, phrase in _SAID.items():
        sizes = [f"{size // GB}" for size in SIZES if peak.verdict(size) == verdict]
        if sizes:
            listed = sizes[0] if len(sizes) == 1 else f"{', '.join(sizes[:-1])} and {sizes[-1]}"
            yield f"{phrase} {listed} GB"


def _measurement_text(run: Run, peak: ResidentPeak) -> str:
    whose = "its processes" if peak.several else "the process"
    low, high = bytes_(peak.low), bytes_(peak.high)
    if peak.several:
        two = f"{low} at least, {high} with pages that they share counted in each"
    else:
        two = f"{high}, without the profiler at {low} at least"
    beside = [f"{bytes_(size)} on {device}" for device, size in reserved_bytes(run).items() if device != "cpu"]
    also = f", beside {' and '.join(beside)}" if beside else ""
    return f"{whose} peaked at {high if peak.low == peak.high else two}{also}"
