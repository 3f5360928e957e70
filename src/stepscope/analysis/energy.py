"""Energy from power samples; without a power channel there is none, and nothing is invented."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.analysis.intervals import known, mean_interval
from stepscope.analysis.measured import Measured
from stepscope.analysis.steady import span_ns
from stepscope.analysis.windows import Series, resolved_ns, series_of, windows
from stepscope.runfolder import RunReader

_MOST_WINDOWS = 200


def energy(run: RunReader) -> list[Measured]:
    """Energy of each rail over the steady steps, J (Eq. 4): power samples times their interval, by trapezoids.

    Rails may contain one another, so they are not added up. Gaps are left out and reported.
    """
    span = span_ns(run)
    return [] if span is None else [_energy(series, *span) for series in series_of(run, "power")]


def _energy(power: Series, t0_ns: int, t1_ns: int) -> Measured:
    steps = np.diff(power.t_ns) * (power.values[1:] + power.values[:-1]) / 2
    spent = replace(power, values=np.concatenate([[0.0], np.cumsum(steps)]))
    parts = windows(spent, t0_ns, t1_ns, max(resolved_ns(power), (t1_ns - t0_ns) / _MOST_WINDOWS))
    watts, low, high = mean_interval(parts.rates)
    seconds = (t1_ns - t0_ns - parts.uncovered_ns) / 1e9
    missed = f"; {parts.uncovered_ns / 1e9:.3g} s not covered" if parts.uncovered_ns else ""
    joules = [known(float(value * seconds)) for value in (watts, low, high)]
    seen = int((~np.isnan(parts.rates)).sum())
    note = f"over {seconds:.3g} s{missed}"
    return Measured("energy", power.scope, joules[0], "J", joules[1], joules[2], seen, power.source, note)
