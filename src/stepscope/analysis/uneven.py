"""Whether a median time and a share of the summed time tell the same of a row: one long step moves the second alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

APART = 0.25  # of the larger of mean and median
_LEAST_SHARE = 0.005  # below, nobody reads the row for its share


def uneven(row: Mapping[str, Any], median: str = "total_ns") -> bool:
    """Whether mean and median of a row of phases, modules or kinds of op lie a quarter or more apart."""
    middle, mean, share = row[median], row["mean_ns"], row["share"]
    if middle is None or mean is None or share is None or abs(share) < _LEAST_SHARE:
        return False
    return bool(abs(mean - middle) >= APART * max(abs(mean), abs(middle)))


def most_uneven(rows: Iterable[Mapping[str, Any]], median: str = "total_ns") -> Mapping[str, Any] | None:
    """Of these rows the one whose mean and median lie furthest apart; None where none is uneven."""
    found = [row for row in rows if uneven(row, median)]
    return max(found, key=lambda row: abs(row["mean_ns"] - row[median]), default=None)
