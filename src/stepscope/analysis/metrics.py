"""The metrics of the paper, a function each; warm-up steps are left out of all of them but the peak of memory.

Equations: "Performance Analysis and Characterization of Training Deep Learning Models on Mobile Devices", III-A.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.accelerator import accelerator_utilisation
from stepscope.analysis.background import background_cpu_use
from stepscope.analysis.energy_metrics import energy_metrics
from stepscope.analysis.intervals import Floats, known, mean_interval, median_interval, share_interval
from stepscope.analysis.measured import Measured, frame_of
from stepscope.analysis.memory import peak_memory, resident_memory
from stepscope.analysis.steady import span_ns, timed_steps
from stepscope.analysis.utilisation import core_busy_time
from stepscope.analysis.windows import Series, Windows, resolved_ns, series_of, windows
from stepscope.runfolder import RunReader

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_MOST_WINDOWS = 200  # longer windows are less alike than neighbours of a few ms: their spread says more
_ASLEEP = 0.01  # of a window: the kernel's own timers keep an idle core from exactly 0


def metrics(run: Run) -> pl.DataFrame:
    """All metrics, tidy: metric, scope, value, unit, low, high (95 %), n, source, note. What is absent has no row."""
    rows = [*step_time(run), *throughput(run), *core_utilisation(run), *mean_cpu_utilisation(run)]
    rows += [*process_cpu_utilisation(run), *accelerator_utilisation(run), *idle_state_ratio(run)]
    rows += background_cpu_use(rows)
    rows += [*peak_memory(run), *resident_memory(run), *energy_metrics(run.energy_tables)]
    return frame_of(rows)


def step_time(run: RunReader) -> list[Measured]:
    """Time of a step, ns: median, of the unrecorded steps where there are enough of them."""
    steps, which = timed_steps(run)
    return _median("step_time", steps["length_ns"], "ns", which)


def throughput(run: RunReader) -> list[Measured]:
    """Training samples a second (III-A): median over the steps of samples / time of the step."""
    steps, which = timed_steps(run)
    rates = steps.select(pl.col("samples") / pl.col("length_ns") * 1e9).to_series().drop_nulls()
    return _median("throughput", rates, "1/s", which)


def core_utilisation(run: RunReader) -> list[Measured]:
    """Utilisation of each core (Eq. 1): active time of the core / total time."""
    return [_share("core_utilisation", series, run, "1", 1.0) for series in _cores(run)]


def mean_cpu_utilisation(run: RunReader) -> list[Measured]:
    """Mean utilisation of all N cores (Eq. 2): the sum of their utilisations / N."""
    cores = [(series, _covered(run, series)) for series in _cores(run)]
    if not cores or len({len(busy.rates) for _, busy in cores}) > 1:
        return []
    series, busy = cores[0]
    mean = Windows(busy.edges_ns, np.clip(np.mean([busy.rates for _, busy in cores], axis=0), 0, 1))
    return [_of_windows("mean_cpu_utilisation", "cpu", "1", mean, series, 1.0)]


def process_cpu_utilisation(run: RunReader) -> list[Measured]:
    """Cores that the trainer (and apart from it its children) keeps busy on average: its CPU time / total time."""
    if span_ns(run) is None:
        return []
    return [_share("process_cpu_utilisation", series, run, "cores") for series in series_of(run, "process_cpu_time")]


def idle_state_ratio(run: RunReader) -> list[Measured]:
    """Idle state ratio of each core (III-A): share of the time in which its utilisation is 0.

    Windows are as short as the counter resolves; up to half a tick or 1 % of a window counts as 0.
    """
    rows, span = [], span_ns(run)
    for series in _cores(run):
        assert span is not None
        busy = windows(series, *span, resolved_ns(series))
        seen = busy.rates[~np.isnan(busy.rates)]
        length_ns = float(busy.edges_ns[1] - busy.edges_ns[0])
        idle = int((seen <= max(_ASLEEP, series.refresh_ns / 2 / length_ns)).sum())
        share, low, high = (known(value) for value in share_interval(idle, len(seen)))
        note = f"windows of {length_ns / 1e6:.3g} ms"
        rows.append(Measured("idle_state_ratio", series.scope, share, "1", low, high, len(seen), series.source, note))
    return rows


def _median(metric: str, values: pl.Series, unit: str, which: str) -> list[Measured]:
    if values.is_empty():
        return []
    value, low, high = (known(float(x)) for x in median_interval(values.cast(pl.Float64).to_numpy()))
    note = f"median of {which}" if low is not None else f"median of {which}; too few for an interval"
    return [Measured(metric, "run", value, unit, low, high, len(values), "steps", note)]


def _cores(run: RunReader) -> list[Series]:
    return [] if span_ns(run) is None else core_busy_time(run)


def _covered(run: RunReader, series: Series) -> Windows:
    """The windows that utilisation is taken from: at least two ticks each, and not more than there is use for."""
    span = span_ns(run)
    assert span is not None
    return windows(series, *span, max(resolved_ns(series), (span[1] - span[0]) / _MOST_WINDOWS))


def _share(metric: str, series: Series, run: RunReader, unit: str, most: float = np.inf) -> Measured:
    return _of_windows(metric, series.scope, unit, _covered(run, series), series, most)


def _of_windows(metric: str, scope: str, unit: str, busy: Windows, series: Series, most: float) -> Measured:
    """Mean of the covered windows; a tick more or less at either end widens the interval."""
    seen = busy.rates[~np.isnan(busy.rates)]
    value, low, high = mean_interval(seen)
    if len(seen) == 0:
        reason = f"no two ticks of {max(series.refresh_ns / 1e6, 0.001):.3g} ms were read without a gap"
        return Measured(metric, scope, None, unit, source=series.source, note=reason)
    covered_ns = float(np.diff(busy.edges_ns)[~np.isnan(busy.rates)].sum())
    tick = series.refresh_ns / covered_ns
    bounds: Floats = np.clip(np.array([value, low - tick, high + tick]), 0, most)
    missed = f"; {busy.uncovered_ns / 1e9:.3g} s not covered" if busy.uncovered_ns else ""
    note = f"{covered_ns / 1e9:.3g} s in windows of {(busy.edges_ns[1] - busy.edges_ns[0]) / 1e6:.3g} ms{missed}"
    low_, high_ = known(float(bounds[1])), known(float(bounds[2]))
    return Measured(metric, scope, float(bounds[0]), unit, low_, high_, len(seen), series.source, note)
