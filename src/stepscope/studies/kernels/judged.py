"""Where time for a useful FLOP is least, where it jumps, and whether a 5x5 and a 3x3 beat a 7x7."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.analysis.intervals import Floats, known, mean_interval
from stepscope.studies.kernels.rows import Row, beside
from stepscope.studies.kernels.shapes import Kernel
from stepscope.studies.kernels.timing import in_turn, median_ratio

JUMP = 1.25  # times as long for a useful FLOP as its neighbour on the axis: a cliff
ROUNDS = 9
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"
_SMALL, _MIDDLE, _LARGE = 3, 5, 7


@dataclass(frozen=True)
class Cliff:
    """From one place of an axis to the next a useful FLOP takes `jump` times as long; `low` is the least it can be."""

    source: str
    op: str
    part: str
    axis: str
    before: int
    after: int
    beside: str
    jump: float
    low: float | None


@dataclass(frozen=True)
class Sweet:
    """The kernel of an op and part that takes least time for a useful FLOP, and the one that takes most."""

    best: Row
    worst: Row
    alike: int  # others whose interval reaches into that of the best
    of: int


def cliffs(rows: Sequence[Row]) -> list[Cliff]:
    """Jumps by JUMP or more between neighbours on an axis that their intervals do not explain, highest first."""
    lines: dict[tuple[str, str, str, str, str], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        for axis, at in row.kernel.place.items():
            if isinstance(at, int):
                lines[row.source, row.kernel.op, row.part, axis, beside(row.kernel, axis)][at] = row
    found = [cliff for key, line in lines.items() for cliff in _along(key, line)]
    return sorted(found, key=lambda cliff: -cliff.jump)


def sweet_spots(rows: Sequence[Row]) -> list[Sweet]:
    """One for each op and part of this device and of every imported source."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.source, row.kernel.op, row.part].append(row)
    return [_sweet(group) for group in groups.values()]


def verdict(ratio: Mapping[str, Any]) -> str:
    """Whether a ratio is surely below 1."""
    if ratio["low"] is None or ratio["high"] is None:
        return OPEN
    return HOLDS if ratio["high"] < 1 else FAILS if ratio["low"] > 1 else OPEN


def measured_five_three(
    calls: Mapping[int, Mapping[str, Callable[[], Any]]], seconds: float
) -> dict[str, dict[str, Any]]:
    """Times of kernels 3, 5 and 7 in turn, and the ratio (5x5 then 3x3) / 7x7, by part."""
    found = {}
    for part in calls[_LARGE]:
        seen = in_turn({str(size): calls[size][part] for size in (_SMALL, _MIDDLE, _LARGE)}, ROUNDS, seconds)
        ratio = median_ratio([seen[str(_MIDDLE)], seen[str(_SMALL)]], seen[str(_LARGE)])
        found[part] = {**ratio, **{f"ms_{size}": float(np.median(times)) * 1e3 for size, times in seen.items()}}
    return found


def imported_five_three(repeats: Mapping[tuple[str, str], Mapping[int, Floats]]) -> Iterator[dict[str, Any]]:
    """The same from imported repeats in ms by (where, part) and size; Student's interval over the repeats."""
    for (where, part), sizes in repeats.items():
        if {_SMALL, _MIDDLE, _LARGE} <= set(sizes):
            count = min(len(sizes[size]) for size in (_SMALL, _MIDDLE, _LARGE))
            three, five, seven = (sizes[size][:count] for size in (_SMALL, _MIDDLE, _LARGE))
            mean, low, high = mean_interval((three + five) / seven)
            times = {"ms_3": float(np.median(three)), "ms_5": float(np.median(five)), "ms_7": float(np.median(seven))}
            yield {"where": where, "part": part, "ratio": mean, "low": known(low), "high": known(high), **times}


def five_three_places(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """Places of a sweep where convolutions of 3, 5 and 7 are asked for."""
    sizes: dict[str, set[int]] = defaultdict(set)
    places: dict[str, dict[str, Any]] = {}
    for kernel in kernels:
        if kernel.op == "conv" and kernel.place:
            where = beside(kernel, "kernel")
            sizes[where].add(kernel.place["kernel"])
            places[where] = {name: at for name, at in kernel.place.items() if name != "kernel"}
    return [places[where] for where, has in sizes.items() if {_SMALL, _MIDDLE, _LARGE} <= has]


def _along(key: tuple[str, str, str, str, str], line: Mapping[int, Row]) -> Iterator[Cliff]:
    source, op, part, axis, others = key
    ordered = sorted(line)
    for before, after in itertools.pairwise(ordered):
        jump = line[after].ps_per_flop / line[before].ps_per_flop
        low = line[after].bound("low") / line[before].bound("high")
        if jump >= JUMP and low > 1:
            has_interval = line[after].low_ns is not None and line[before].high_ns is not None
            yield Cliff(source, op, part, axis, before, after, others, jump, low if has_interval else None)


def _sweet(rows: Sequence[Row]) -> Sweet:
    ordered = sorted(rows, key=lambda row: row.ps_per_flop)
    best = ordered[0]
    alike = sum(row.bound("low") <= best.bound("high") for row in ordered[1:])
    return Sweet(best, ordered[-1], alike, len(ordered))
