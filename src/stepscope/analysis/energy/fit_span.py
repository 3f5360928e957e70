"""The stretch of a long run from whose readings the powers of operators are fitted: bounded, around profiled steps.

The fit's cost grows with readings and with pieces of self time, its accuracy hardly any more. What is fitted there is
brought to the energy of the whole run, which comes from all readings; that power may have changed in another way than
in proportion is part of the interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl

from stepscope.analysis.energy.attribution import Attribution
from stepscope.analysis.result_cache import cached_per_run
from stepscope.analysis.time.steps import count_after_warmup, profiled_steps, steps_after_warmup
from stepscope.clock import PERIOD_NS
from stepscope.runfolder import RunReader

MOST_READINGS = 50_000  # of a rail: 8 minutes at 10 ms
MOST_PIECES = 3_000_000  # of self time, filled-in steps among them
_MARGIN_NS = 2_000_000_000  # of readings before the first and after the last step


class RunSlice(RunReader):
    """Some of the steps after warm-up of a run, with what was recorded and read meanwhile, each reading as it is."""

    def __init__(self, run: RunReader, steps: pl.DataFrame) -> None:
        self.__dict__.update({name: value for name, value in run.__dict__.items() if name not in _OF_WHOLE_RUNS})
        self.meta = {**run.meta, "warmup_steps": 0}
        self._run, self._chosen, self._read = run, steps.select(run.steps.columns), dict[str, pl.DataFrame]()

    @property
    def steps(self) -> pl.DataFrame:
        """The chosen steps."""
        return self._chosen

    def sensor(self, name: str) -> pl.DataFrame:
        """The samples of one sensor within the stretch, and some seconds to either side."""
        if name not in self._read:
            begin, end = int(self._chosen["t0_ns"][0]), int(self._chosen["t1_ns"][-1])
            self._read[name] = self._run.sensor_between(name, begin - _MARGIN_NS, end + _MARGIN_NS)
        return self._read[name]


_OF_WHOLE_RUNS = ("steps", "meta", "results")


@cached_per_run
def _chosen_steps(run: RunReader) -> tuple[int, int] | None:
    """The first of the steps after warm-up that are fitted, and how many; None where all are."""
    steps = steps_after_warmup(run)
    profiled = profiled_steps(run)
    if steps.is_empty() or profiled.is_empty():
        return None
    period_ns = float((run.meta.get("sampler") or {}).get("period_ns") or PERIOD_NS)
    rows = int(run.scan_ops().select(pl.len()).collect().item())
    step_ns = max(float((steps["t1_ns"][-1] - steps["t0_ns"][0]) / count_after_warmup(run)), 1.0)
    most = max(min(MOST_READINGS * period_ns / step_ns, MOST_PIECES * len(profiled) / max(rows, 1)), 1.0)
    usable = _whole_stretches(run, steps)
    if len(steps) <= most and usable == [(0, len(steps))]:
        return None
    within = np.append(0, np.cumsum(steps["step"].is_in(profiled["step"].implode()).to_numpy()))
    best = (-1, 0, 0)
    for first, last in usable:
        count = min(int(most), last - first)
        steps_within = within[first + count : last + 1] - within[first : last + 1 - count]
        place = int(np.argmax(steps_within))
        best = max(best, (int(steps_within[place]), count, first + place))
    return best[2], best[1]


def _whole_stretches(run: RunReader, steps: pl.DataFrame) -> list[tuple[int, int]]:
    """The stretches, first step and the one after the last, of which no steps and, if there are such, no samples were
    thinned.
    """
    spans = run.thinned_samples
    if not spans and not run.thinned_steps:
        return [(0, len(steps))]
    begins, ends, numbers = (steps[name].to_numpy() for name in ("t0_ns", "t1_ns", "step"))
    usable = np.ones(len(steps), dtype=bool)
    for t0_ns, t1_ns, _ in spans:
        usable &= (ends < t0_ns - _MARGIN_NS) | (begins > t1_ns + _MARGIN_NS)
    edge = np.ones(len(steps) + 1, dtype=bool)
    edge[1:-1] = (usable[1:] != usable[:-1]) | (np.diff(numbers) != 1)
    edges = np.flatnonzero(edge)
    stretches = [(int(first), int(last)) for first, last in pairwise(edges)]
    return [stretch for stretch in stretches if usable[stretch[0]]] or stretches


@cached_per_run
def slice_to_fit(run: RunReader) -> RunReader:
    """Return what is fitted of a run: the run itself unless it is long."""
    chosen = _chosen_steps(run)
    return run if chosen is None else RunSlice(run, steps_after_warmup(run).slice(*chosen))


def stretch_sentence(run: RunReader) -> str:
    """Return which steps the powers of operators come from; empty where from all."""
    chosen = _chosen_steps(run)
    if chosen is None:
        return ""
    steps = steps_after_warmup(run)
    part = steps.slice(*chosen)
    return (
        f"energy of operators: fitted to steps {part['step'][0]:,} to {part['step'][-1]:,} of {len(steps):,}, "
        "then brought to the energy of all"
    )


def long_run_notes(run: RunReader) -> Iterator[str]:
    """Yield what of a long run was read or fitted in part."""
    if coarser := run.coarser_sensors:
        rows = ", ".join(f"{name} ({len(run.sensor(name)):,} rows)" for name in coarser)
        yield f"samples of a long run: means over short spans, extremes as they were read: {rows}"
    if sentence := stretch_sentence(run):
        yield sentence


def scale_to_whole_run(attribution: Attribution, factor: float, time_factor: float) -> Attribution:
    """The fit of a stretch as the whole run has it, whose steps take so many times its energy and its time.

    Power changes in proportion (clocks) or by the same everywhere (leakage, fans): their difference is an error.
    """
    seconds = attribution.timeline.seconds
    apart = (factor - 1) * (attribution.joules - attribution.total.joules * seconds / seconds.sum())
    meanwhile = None if attribution.meanwhile is None else attribution.meanwhile * factor
    return replace(
        attribution,
        joules=attribution.joules * factor,
        covariance=attribution.covariance * factor**2 + np.outer(apart, apart),
        statistical=attribution.statistical * factor**2,
        before=attribution.before * factor,
        coarser=attribution.coarser * factor,
        sharper=attribution.sharper * factor,
        total=replace(attribution.total, joules=attribution.total.joules * factor, sd=attribution.total.sd * factor),
        meanwhile=meanwhile,
        time_factor=time_factor,
    )
