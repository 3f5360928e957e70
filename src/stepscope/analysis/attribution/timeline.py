"""What ran when: pieces of own time in lanes, each with a key, and the steps around them. All times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepscope.analysis.intervals import Floats

Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Keys:
    """What each key is: `kind` and `signature` (P,) number its op and its (op, shapes); the last key is the gap.

    `beside` (P,) marks keys of the lanes after the first: their power comes on top of what the first lane draws.
    `rate` (P,), where given, is a quantity per second that power follows (bytes moved); 0 where it is unknown.
    """

    kind: Ints
    signature: Ints
    beside: Flags
    rate: Floats | None = None

    @property
    def count(self) -> int:
        return len(self.kind)

    @property
    def gap(self) -> int:
        """The key of the time in which nothing runs in the first lane."""
        return self.count - 1


@dataclass(frozen=True)
class Lane:
    """Pieces that follow one another without overlap (a thread, a stream): begin, end (n,), and their keys."""

    t0: Floats
    t1: Floats
    key: Ints


@dataclass(frozen=True)
class Scatter:
    """How far off pieces may be in steps that were filled in: sd (K,) at the instants `at` (K,), even between, s."""

    at: Floats
    sd: Floats

    def of(self, t: Floats) -> Floats:
        """The standard deviation at each instant, s; 0 in steps that were recorded."""
        sd: Floats = np.interp(t, self.at, self.sd)
        return sd


@dataclass(frozen=True)
class Timeline:
    """The steady steps of a run. The first lane is the one that always draws power, also between its pieces."""

    lanes: tuple[Lane, ...]
    keys: Keys
    step_t0: Floats
    step_t1: Floats
    recorded: Flags  # (S,): False where the pieces of the step were filled in from other steps
    stamp_sd: float = 0.0  # of the begin and end of a piece
    scatter: Scatter | None = None

    @property
    def begin(self) -> float:
        return float(self.step_t0[0])

    @property
    def end(self) -> float:
        return float(self.step_t1[-1])

    @property
    def steps(self) -> int:
        return len(self.step_t0)

    @property
    def step_length(self) -> float:
        """Median distance of two steps' begins, s; the step's own length where there is one alone."""
        return float(np.median(np.diff(self.step_t0))) if self.steps > 1 else self.end - self.begin

    @cached_property
    def seconds(self) -> Floats:
        """Time of each key over all steps (P,); the gap is what the first lane leaves."""
        spent = np.zeros(self.keys.count)
        for lane in self.lanes:
            spent += np.bincount(lane.key, lane.t1 - lane.t0, self.keys.count)
        first = self.lanes[0]
        spent[self.keys.gap] += max(self.end - self.begin - float((first.t1 - first.t0).sum()), 0.0)
        return spent

    @cached_property
    def piece_seconds(self) -> Floats:
        """Mean length of one piece of each key (P,); NaN for the gap and for what never ran."""
        count = np.zeros(self.keys.count)
        for lane in self.lanes:
            count += np.bincount(lane.key, minlength=self.keys.count)
        with np.errstate(invalid="ignore", divide="ignore"):
            length: Floats = np.where(count > 0, self.seconds / count, np.nan)
        length[self.keys.gap] = np.nan
        return length

    def step_of(self, t: Floats) -> Ints:
        """Number of the step that each instant falls in or follows."""
        place: Ints = np.clip(np.searchsorted(self.step_t0, t, side="right") - 1, 0, self.steps - 1)
        return place

    def blur(self, t: Floats) -> Floats | None:
        """How far off the pieces around each instant may be, s; None where all of them were recorded."""
        if self.scatter is None:
            return None
        off = self.scatter.of(t)
        return off if off.any() else None

    def until(self, t: float) -> Timeline:
        """The steps that begin before an instant; at least one."""
        steps = max(int(np.searchsorted(self.step_t0, t)), 1)
        if steps >= self.steps:
            return self
        end = float(self.step_t1[steps - 1])
        cuts = [int(np.searchsorted(lane.t0, end)) for lane in self.lanes]
        lanes = tuple(
            Lane(lane.t0[:cut], lane.t1[:cut], lane.key[:cut]) for lane, cut in zip(self.lanes, cuts, strict=True)
        )
        step_t0, step_t1, recorded = self.step_t0[:steps], self.step_t1[:steps], self.recorded[:steps]
        return Timeline(lanes, self.keys, step_t0, step_t1, recorded, self.stamp_sd, self.scatter)
