"""How a comparison reads, on the terminal as on the page: letters for operands, values, ratios and differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from stepscope.analysis.compare import QUANTITIES, Comparison
from stepscope.analysis.compare_parts import Explanation
from stepscope.analysis.compare_quantities import HIGHER, LOWER
from stepscope.analysis.compare_sides import setting_of
from stepscope.report.page.reading import interval, quantity
from stepscope.units import NOT_MEASURED, duration, number, percent, plural, si

_UNITS = {"throughput": "samples/s"}
TITLES = {
    "time": "time of a step",
    "kernels": "kernel time of a step",
    "memory": "peak of live memory",
    "energy": "energy of a step",
}


@dataclass(frozen=True)
class QuantityRow:
    """One number of one operand as text; `outcome` is better, worse, none seen, no interval, or ""."""

    label: str
    letter: str
    value: str
    interval: str
    ratio: str
    ratio_interval: str
    outcome: str
    numbers: dict[str, Any]


def letter(side: int) -> str:
    """A, B, C ... of an operand."""
    return chr(ord("A") + side)


def legend(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Letter, name and what it is, of each operand."""
    rows = []
    for side, one in enumerate(comparison.operands):
        about = setting_of(comparison.settings[0].sides[side][0])
        single = len(comparison.settings) == 1
        batch = f"batch {about['batch']}" if about["batch"] is not None else None
        facts = [about[name] for name in ("optimizer", "precision", "device")]
        told = [about["workload"], batch, *facts] if single else [plural(len(comparison.settings), "shared setting")]
        told.append(_board(comparison, side))
        told.append(plural(len(one.runs), "run") if len(one.runs) > 1 else None)
        rows.append((letter(side), one.name, " · ".join(str(fact) for fact in told if fact)))
    return rows


def _board(comparison: Comparison, side: int) -> str | None:
    device = comparison.settings[0].sides[side][0].device
    board = device.get("board") or device.get("cpu")
    name = board.get("name") if isinstance(board, dict) else board
    return None if name is None else str(name)


def quantity_rows(comparison: Comparison, setting: int = 0) -> Iterator[QuantityRow]:
    """The numbers of a setting, those of one metric together."""
    label = comparison.settings[setting].label
    for row in comparison.quantities.filter(pl.col("setting") == label).iter_rows(named=True):
        unit = _UNITS.get(row["metric"], row["unit"])
        title, better = QUANTITIES[row["metric"]]
        scope = f" of {row['scope']}" if "energy" in row["metric"] or "power" in row["metric"] else ""
        yield QuantityRow(
            f"{title}{scope}",
            letter(row["side"]),
            quantity(row["value"], unit),
            "exact" if row["interval_of"] == "exact" else interval(row["low"], row["high"], unit) or NOT_MEASURED,
            "" if row["side"] == 0 else _ratio(row["ratio"]),
            "" if row["ratio_low"] is None else f"{_ratio(row['ratio_low'])} to {_ratio(row['ratio_high'])}",
            outcome(row["difference"], better),
            row,
        )


def outcome(difference: str | None, better: str | None) -> str:
    """What a difference means for a quantity of which less, or more, is better."""
    if difference in ("larger", "smaller") and better is not None:
        good = (better == LOWER) == (difference == "smaller")
        assert better in (LOWER, HIGHER)
        return "better" if good else "worse"
    return difference or ""


def _ratio(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value, 4 if value < 10 else 3)


def amount(value: float | None, unit: str) -> str:
    """A time, size or energy."""
    if value is None:
        return NOT_MEASURED
    return duration(value) if unit == "ns" else si(value, unit)


def change(value: float | None, unit: str) -> str:
    """A difference with its sign."""
    return amount(value, unit) if value is None or value <= 0 else f"+{amount(value, unit)}"


def between(low: float | None, high: float | None, unit: str) -> str:
    """Ends of the interval of a difference."""
    return NOT_MEASURED if low is None or high is None else f"{change(low, unit)} to {change(high, unit)}"


def part_name(row: dict[str, Any], by: str) -> str:
    """A part as it is called; the model itself is a module without a name."""
    return "the model itself" if row["name"] == "" and by == "module" else str(row["name"])


def whole(why: Explanation) -> str:
    """The difference that the parts add up to."""
    said = f"{amount(why.first, why.unit)} to {amount(why.other, why.unit)}: {change(why.difference, why.unit)}"
    return said if why.low is None else f"{said} ({between(why.low, why.high, why.unit)})"


def share(value: float | None) -> str:
    """Part of the whole difference; beyond 100 % where others go the other way."""
    return percent(value, 0)
