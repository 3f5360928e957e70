"""How busy cores and accelerator of a run were in common windows, and what follows from comparing the windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats
from stepscope.analysis.own_time import CPU
from stepscope.analysis.run import Run
from stepscope.analysis.steady import recorded_steps, span_ns
from stepscope.analysis.utilisation import core_busy_time
from stepscope.analysis.windows import Series, resolved_ns, series_of, windows

_MOST = 2000
_FEWEST = 16  # windows, for a correlation


@dataclass(frozen=True)
class Use:
    """Shares of time, NaN where not read: cores (cores, n) and accelerator (n,), in windows with edges (n + 1,), ns."""

    edges_ns: Floats
    names: tuple[str, ...]
    cores: Floats
    accelerator: Floats
    source: str  # of the accelerator's use; "" where there is none


def use_of(run: Run) -> Use | None:
    """The steady part of a run in windows that every counter resolves; None where no core's busy time was read."""
    span, cores = span_ns(run), core_busy_time(run)
    if span is None or not cores:
        return None
    gauge = accelerator_gauge(run)
    length = max(*(resolved_ns(core) for core in cores), 2 * gauge.period_ns if gauge else 0.0, 1.0)
    length = max(length, (span[1] - span[0]) / _MOST)
    seen = [windows(core, *span, length) for core in cores]
    edges = seen[0].edges_ns
    busy = np.clip(np.stack([each.rates for each in seen]), 0, 1)
    names = tuple(core.scope for core in cores)
    if gauge is not None:
        return Use(edges, names, busy, _of_gauge(gauge, edges), gauge.source)
    kernels = _of_kernels(run, edges)
    return Use(edges, names, busy, kernels, "" if np.isnan(kernels).all() else "kernels of the recorded steps")


def accelerator_gauge(run: Run) -> Series | None:
    """The first accelerator's own reading of its use."""
    return next((series for series in series_of(run, "utilisation") if series.scope.startswith("gpu")), None)


def correlation(ours: Floats, others: Floats) -> float | None:
    """Pearson's correlation over the windows that both know; None of too few, or where one of them never changes."""
    both = np.isfinite(ours) & np.isfinite(others)
    a, b = ours[both], others[both]
    if len(a) < _FEWEST or a.std() < 1e-9 or b.std() < 1e-9:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def halves(use: Use, count: int) -> tuple[Floats, Floats] | None:
    """Mean use (n,) of the `count` cores that were busiest in the first half and of the others, in the second half.

    Chosen in one half and measured in the other: of cores that are all alike, the busiest would else seem busier.
    """
    middle = use.cores.shape[1] // 2
    first, second = use.cores[:, :middle], use.cores[:, middle:]
    if not 0 < count < len(use.cores) or middle < _FEWEST or np.isnan(first).all(axis=1).any():
        return None
    order = np.argsort(-np.nanmean(first, axis=1), kind="stable")
    return second[order[:count]].mean(axis=0), second[order[count:]].mean(axis=0)


def spread(use: Use) -> float | None:
    """How much busier the busiest core is than the idlest, chosen in the first half and measured in the second."""
    middle = use.cores.shape[1] // 2
    first, second = use.cores[:, :middle], use.cores[:, middle:]
    if (
        len(use.cores) < 2
        or middle < _FEWEST
        or np.isnan(first).all(axis=1).any()
        or np.isnan(second).all(axis=1).any()
    ):
        return None
    means = np.nanmean(first, axis=1)
    return float(np.nanmean(second[int(means.argmax())]) - np.nanmean(second[int(means.argmin())]))


def _of_gauge(gauge: Series, edges: Floats) -> Floats:
    """Mean of the readings in each window; NaN where none fell into it."""
    inside = (gauge.t_ns >= edges[0]) & (gauge.t_ns < edges[-1])
    place = np.searchsorted(edges, gauge.t_ns[inside], side="right") - 1
    size = len(edges) - 1
    counts = np.bincount(place, minlength=size)
    sums = np.bincount(place, gauge.values[inside], minlength=size)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _of_kernels(run: Run, edges: Floats) -> Floats:
    """Share of each window in which a kernel ran; NaN for windows that are not wholly within recorded steps."""
    steps = recorded_steps(run)
    ops = run.scan_ops().select("device", "t0_ns", "t1_ns").filter(pl.col("device") != CPU).sort("t0_ns").collect()
    if ops.is_empty() or steps.is_empty():
        return np.full(len(edges) - 1, np.nan)
    begins, ends = (ops[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns"))
    busy = np.diff(_covered(begins, ends, edges)) / np.diff(edges)
    begins, ends = (steps[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns"))
    recorded = np.diff(_covered(begins, ends, edges)) / np.diff(edges)
    return np.where(recorded > 0.95, np.clip(busy, 0, 1), np.nan)


def _covered(begins: Floats, ends: Floats, at_ns: Floats) -> Floats:
    """Time up to each moment that at least one of the intervals covers; the intervals in order of their begin."""
    until = np.maximum.accumulate(ends)
    start = np.maximum(begins, np.concatenate([[begins[0]], until[:-1]]))
    new = np.maximum(until - start, 0.0)
    done = np.concatenate([[0.0], np.cumsum(new)])
    place = np.searchsorted(start, at_ns, side="right")
    last = np.maximum(place - 1, 0)
    return np.where(place > 0, done[last] + np.clip(at_ns - start[last], 0, new[last]), 0.0)
