"""The headline numbers of several runs side by side: each with its interval, and its ratio to the first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats, known, mean_interval
from stepscope.analysis.measured import Measured
from stepscope.analysis.run import Run
from stepscope.analysis.steady import timed_steps

LOWER, HIGHER = "lower", "higher"
_KINDS = ("", "simulated_", "estimated_")
# metric: (label, what is better: None where it depends)
QUANTITIES: dict[str, tuple[str, str | None]] = {
    "step_time": ("Step time", LOWER),
    "throughput": ("Throughput", HIGHER),
    **{f"{kind}energy_per_step": (f"{kind[:-1]} energy per step".strip().capitalize(), LOWER) for kind in _KINDS},
    **{f"{kind}energy_per_sample": (f"{kind[:-1]} energy per sample".strip().capitalize(), LOWER) for kind in _KINDS},
    **{f"{kind}mean_power": (f"{kind[:-1]} mean power".strip().capitalize(), None) for kind in _KINDS},
    "live_peak": ("Peak of live tensors", LOWER),
    "peak_memory": ("Peak memory of the process", LOWER),
    "resident_memory": ("Resident memory, steady", LOWER),
    "mean_cpu_utilisation": ("CPU utilisation, all cores", None),
    "process_cpu_utilisation": ("Cores kept busy", None),
    "accelerator_utilisation": ("Accelerator utilisation", None),
}
SCHEMA = {
    **dict.fromkeys(("metric", "scope", "unit"), pl.String),
    "side": pl.Int64,
    **dict.fromkeys(("value", "low", "high"), pl.Float64),
    **{"runs": pl.Int64, "interval_of": pl.String, "source": pl.String},
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), pl.Float64),
    "difference": pl.String,
}
_PROPORTIONAL = "pss"
_BLOCKS, _LEAST_IN_BLOCK = 10, 4


@dataclass(frozen=True)
class Ratio:
    """other / first with its 95 % interval; None where one of the two has none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> str:
        """larger, smaller, none seen (the interval holds 1), or no interval."""
        if self.low is None or self.high is None:
            return "no interval"
        if self.low == self.high == 1:
            return "none"
        return "larger" if self.low > 1 else "smaller" if self.high < 1 else "none seen"


def quantities(sides: Sequence[Sequence[Run]]) -> pl.DataFrame:
    """A row a metric, scope and side (number from 0): value and 95 % interval, ratio to side 0. Columns as `SCHEMA`.

    Of a single run the interval is the one within it (`interval_of` "steps"); of repeats, the one between them.
    """
    values = [pooled(runs) for runs in sides]
    keys = list(dict.fromkeys(key for side in values for key in side))
    order = list(QUANTITIES)
    keys.sort(key=lambda key: order.index(key[0]))
    rows = []
    for key in keys:
        first = values[0].get(key)
        for number, side in enumerate(values):
            if (measured := side.get(key)) is not None:
                rows.append({"side": number, **_row(measured, len(sides[number]), first if number else None)})
    return pl.DataFrame(rows, schema=SCHEMA)


def pooled(runs: Sequence[Run]) -> dict[tuple[str, str], Measured]:
    """The quantities of repeats, by metric and scope; one that not every repeat has is left out."""
    each = [{(row.metric, row.scope): row for row in measured_of(run)} for run in runs]
    shared = [key for key in each[0] if all(key in one for one in each[1:])]
    return {key: _over_repeats([one[key] for one in each]) for key in shared}


def measured_of(run: Run) -> list[Measured]:
    """The headline metrics of a run that have a value, and the peak of its live tensors where it was recorded."""
    rows = [Measured(**row) for row in run.metrics().iter_rows(named=True)]
    kept = [row for row in rows if row.metric in QUANTITIES and row.value is not None and _of_the_trainer(row)]
    kept = [_with_drift(run, row) if row.metric in ("step_time", "throughput") else row for row in kept]
    peak = run.peak()
    if peak is not None:
        exact = float(peak.bytes)
        kept.append(Measured("live_peak", peak.device, exact, "B", exact, exact, 1, "allocations", "counted, exact"))
    return kept


def _of_the_trainer(row: Measured) -> bool:
    """Its children and the proportional size are numbers of their own, which a report has."""
    return row.source != _PROPORTIONAL and row.scope != "children"


def ratio(first: Measured, other: Measured) -> Ratio | None:
    """other / first; the interval from both intervals on a logarithmic scale (MOVER). None: one of them is 0."""
    if not first.value or not other.value or first.value < 0 or other.value < 0:
        return None
    value = other.value / first.value
    if not first.low or not first.high or not other.low or not other.high or min(first.low, other.low) < 0:
        return Ratio(value)
    down = math.hypot(math.log(other.value / other.low), math.log(first.high / first.value))
    up = math.hypot(math.log(other.high / other.value), math.log(first.value / first.low))
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def overall(ratios: Iterable[Ratio]) -> Ratio | None:
    """Geometric mean of the ratios of several settings with the interval of that mean."""
    each = list(ratios)
    if not each:
        return None
    value = math.exp(float(np.mean([math.log(one.value) for one in each])))
    lows, highs = [one.low for one in each], [one.high for one in each]
    if None in lows or None in highs:
        return Ratio(value)
    down = math.hypot(*(math.log(one.value / one.low) for one in each if one.low)) / len(each)
    up = math.hypot(*(math.log(one.high / one.value) for one in each if one.high)) / len(each)
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def _row(measured: Measured, runs: int, first: Measured | None) -> dict[str, object]:
    found = ratio(first, measured) if first is not None else None
    exact = measured.metric == "live_peak"
    of = None if measured.low is None or measured.high is None else "exact" if exact else "steps"
    return {
        **{name: getattr(measured, name) for name in ("metric", "scope", "unit", "value", "low", "high", "source")},
        "runs": runs,
        "interval_of": "repeats" if runs > 1 and of else of,
        "ratio": found.value if found else None,
        "ratio_low": found.low if found else None,
        "ratio_high": found.high if found else None,
        "difference": found.difference if found else None,
    }


def _over_repeats(rows: Sequence[Measured]) -> Measured:
    """Geometric mean of repeats and its Student interval; of a single one, the row as it is."""
    if len(rows) == 1:
        return rows[0]
    values = np.array([row.value for row in rows], dtype=np.float64)
    if values.min() <= 0:
        value, low, high = (known(x) for x in mean_interval(values))
    else:
        value, low, high = (known(math.exp(x)) for x in mean_interval(np.log(values)))
    return replace(rows[0], value=value, low=low, high=high, n=len(rows), note=f"mean of {len(rows)} runs")


def _with_drift(run: Run, row: Measured) -> Measured:
    """The wider of two intervals: neighbouring steps are alike where a machine drifts, which order statistics miss."""
    steps, _ = timed_steps(run)
    lengths = steps["length_ns"].to_numpy().astype(np.float64)
    values = lengths if row.metric == "step_time" else _rates(steps)
    width = _between_blocks(values)
    if width is None or row.value is None or row.low is None or row.high is None:
        return row
    return replace(row, low=min(row.low, row.value / width), high=max(row.high, row.value * width))


def _rates(steps: pl.DataFrame) -> Floats:
    rates = steps.select(pl.col("samples") / pl.col("length_ns") * 1e9).to_series().drop_nulls()
    return np.asarray(rates.to_numpy(), dtype=np.float64)


def _between_blocks(values: Floats) -> float | None:
    """Factor on either side by the Student interval of the medians of consecutive blocks; None: steps too few."""
    if len(values) < _BLOCKS * _LEAST_IN_BLOCK or values.min() <= 0:
        return None
    medians = np.array([np.median(block) for block in np.array_split(values, _BLOCKS)])
    mean, low, _ = mean_interval(np.log(medians))
    return math.exp(mean - low)
