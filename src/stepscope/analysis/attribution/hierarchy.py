"""Powers as sums of levels: a kind's power, plus what a signature and a place add to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stepscope.analysis.attribution.timeline import Flags, Ints, Keys
from stepscope.analysis.intervals import Floats

Level = Literal["place", "signature"]
PLACE, SIGNATURE, KIND, GAP, BESIDE, RATE = range(6)
# Start of the prior's standard deviations, as shares of the mean power; the first three are then learnt.
SPREAD = np.array([0.03, 0.08, 0.30, 0.40, 0.30, 0.30])
LEARNT = (PLACE, SIGNATURE, KIND)
_CENTRE = {KIND: 0.85, GAP: 0.40, BESIDE: 0.20}  # prior means, as shares of the mean power


@dataclass(frozen=True)
class Hierarchy:
    """`mixing` (P, D) gives the power of each key from D coefficients; `level` (D,) says which is which."""

    mixing: Floats
    level: Ints

    def prior_mean(self, mean_power: float) -> Floats:
        """Before any reading, W (D,)."""
        centre: Floats = np.array([_CENTRE.get(int(level), 0.0) for level in self.level]) * mean_power
        return centre


def hierarchy(keys: Keys, lowest: Level = "place") -> Hierarchy:
    """Levels down to the place or to the signature, each only where several share the level above: else it is that."""
    ops = np.arange(keys.count) != keys.gap
    gap = np.zeros((keys.count, 1))
    gap[keys.gap] = 1.0
    columns: list[Any] = [gap]
    levels = [np.array([GAP])]

    def add(numbers: Ints, level: int, among: Flags) -> None:
        if not among.any():
            return
        names, place = np.unique(numbers[among], return_inverse=True)
        block = np.zeros((keys.count, len(names)))
        block[np.flatnonzero(among), place] = 1.0
        columns.append(block)
        levels.append(np.full(len(names), level))

    if lowest == "place":
        add(np.arange(keys.count), PLACE, ops & _shared(keys.signature, np.arange(keys.count), ops))
    add(keys.signature, SIGNATURE, ops & _shared(keys.kind, keys.signature, ops))
    add(keys.kind, KIND, ops & ~keys.beside)
    add(keys.kind, BESIDE, ops & keys.beside)
    if keys.rate is not None and (keys.rate[ops] > 0).any():
        # Power that grows with a rate (bytes a second) is a line through all keys; scaled to 1 at the mean.
        columns.append((keys.rate / keys.rate[keys.rate > 0].mean())[:, None] * ops[:, None])
        levels.append(np.array([RATE]))
    return Hierarchy(np.column_stack(columns), np.concatenate(levels))


def _shared(above: Ints, own: Ints, among: Flags) -> Flags:
    """Keys (P,) beside which another of the same number `above` has another one of its `own`."""
    pairs = np.unique(np.stack([above, own])[:, among], axis=1)
    names, count = np.unique(pairs[0], return_counts=True)
    shared: Flags = np.isin(above, names[count > 1])
    return shared
