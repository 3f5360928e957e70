"""Lines of step time, power, memory and clock over the time of a run, to lay several runs over each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.processes import WATCHED
from stepscope.arrays import Floats

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

QUANTITIES = {"step time": "ms", "power": "W", "memory": "MB", "clock": "GHz"}  # in the order of the page
MOST_POINTS = 400  # a line
_FREQUENCIES = ("core_frequency", "frequency")


@dataclass(frozen=True)
class Line:
    """One quantity of a run: `t_s` since its first step and `step` (not whole between two), `values` in `unit`.

    All are (n,); NaN in `values` is a gap. kind: "measured", "estimated" or "simulated".
    """

    quantity: str
    unit: str
    kind: str
    t_s: Floats
    step: Floats
    values: Floats


def lines_over_time(run: Run) -> list[Line]:
    """Return a line for each of QUANTITIES that the run has; none where it has no step."""
    steps = run.steps
    if steps.is_empty():
        return []
    return list(_lines(run, steps))


def _lines(run: Run, steps: pl.DataFrame) -> Iterator[Line]:
    t0, t1, number = (steps[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns", "step"))
    known = t1 > t0
    found = [("step time", "measured", t0[known], (t1 - t0)[known] / 1e6)]
    found += [
        (quantity, kind, (frame["t0_ns"].to_numpy() + frame["t1_ns"].to_numpy()) / 2, _values(frame) / scale)
        for quantity, kind, frame, scale in (*_power(run, int(t0[0]), int(t1[-1])), *_memory(run), *_clock(run))
    ]
    for quantity, kind, at, values in found:
        inside = (at >= t0[0]) & (at <= t1[-1])
        order = np.argsort(at[inside], kind="stable")
        at, values = _thinned(at[inside][order]), _thinned(values[inside][order])
        if np.isfinite(values).any():
            place = np.interp(at, np.append(t0, t1[-1]), np.append(number, number[-1] + 1))
            yield Line(quantity, QUANTITIES[quantity], kind, (at - t0[0]) / 1e9, place, values)


def _values(frame: pl.DataFrame) -> Floats:
    values: Floats = frame["value"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return values


def _power(run: Run, start_ns: int, end_ns: int) -> Iterator[tuple[str, str, pl.DataFrame, float]]:
    totals = run.energy_totals()
    if totals.is_empty():
        return
    main = totals.row(0, named=True)
    windows = run.power_timeline(start_ns, end_ns).filter(pl.col("rail") == main["rail"])
    yield "power", str(main["kind"]), windows.rename({"watts": "value"}), 1.0


def _memory(run: Run) -> Iterator[tuple[str, str, pl.DataFrame, float]]:
    """Resident memory of the training process."""
    frame = run.samples("rss").filter(pl.col("scope") == WATCHED)
    if not frame.is_empty():
        yield "memory", "measured", frame, 1e6


def _clock(run: Run) -> Iterator[tuple[str, str, pl.DataFrame, float]]:
    """Mean of the cores; of an accelerator where no core's is known."""
    for quantity in _FREQUENCIES:
        frame = run.samples(quantity)
        if not frame.is_empty():
            mean = frame.group_by("t0_ns", maintain_order=True).agg(pl.col("t1_ns").max(), pl.col("value").mean())
            yield "clock", "measured" if run.simulated is None else "simulated", mean, 1e9
            return


def _thinned(values: Floats) -> Floats:
    """Medians of so many neighbours that few enough points are left; of neighbours with a gap, a gap."""
    width = -(-len(values) // MOST_POINTS)
    if width <= 1:
        return values
    whole = len(values) // width * width
    thin = np.median(values[:whole].reshape(-1, width), axis=1)
    rest = values[whole:]
    thinned: Floats = np.append(thin, np.median(rest)) if len(rest) else thin
    return thinned
