"""Pieces of self time in lanes, each with a key, and the steps around them. All times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from stepscope.arrays import Flags, Floats, Ints


@dataclass(frozen=True)
class Keys:
    """Meaning of each key: `kind` and `signature` (P,) number its op and its (op, shapes); the last key is the gap.

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

    @cached_property
    def has_pauses(self) -> Flags:
        """Flags of the pieces that end before the next one begins (n,)."""
        return np.append(self.t1[:-1] != self.t0[1:], np.zeros(min(len(self.t1), 1), dtype=bool))


@dataclass(frozen=True)
class PieceUncertainty:
    """Uncertainty of pieces in steps that were filled in: sd (K,) at the instants `at` (K,), even between, s.

    What is unsure of a typical piece is off in every step alike: `shifts` (D, 1 + T) are draws of how far the T typical
    begins may be off, as shares of the step, the first 0; `place` (K,) and `length` (K,), s, say which of them, and how
    long a step, an instant belongs to.
    """

    at: Floats
    sd: Floats
    shifts: Floats
    place: Ints
    length: Floats

    def sd_at(self, t: Floats) -> Floats:
        """The standard deviation at each instant, s; 0 in steps that were recorded."""
        sd: Floats = np.interp(t, self.at, self.sd)
        return sd

    def moved_lane(self, lane: Lane, draw: int) -> Lane:
        """The lane with its pieces where a draw has them; those of steps that were recorded stay."""
        shift = self.shifts[draw][self.place] * self.length
        t0, t1 = (t + np.interp(t, self.at, shift) for t in (lane.t0, lane.t1))
        return Lane(t0, t1, lane.key)


@dataclass(frozen=True)
class Timeline:
    """The steps after warm-up of a run. The first lane is the one that always draws power, also between its pieces.

    share_errors: (P,) by how much the share of a step that each key was recorded with differs from the corrected one.
    """

    lanes: tuple[Lane, ...]
    keys: Keys
    step_t0: Floats
    step_t1: Floats
    recorded: Flags  # (S,): False where the pieces of the step were filled in from other steps
    stamp_sd: float = 0.0  # of the begin and end of a piece
    scatter: PieceUncertainty | None = None
    share_errors: Floats | None = None

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

    def step_kind_at(self, t: Floats) -> Ints:
        """Return 0 for an instant outside all steps, 1 in a profiled step, 2 in one whose operators were filled in."""
        step = self.step_of(t)
        inside = (t >= self.step_t0[step]) & (t <= self.step_t1[step])
        return np.where(inside, np.where(self.recorded[step], 1, 2), 0)

    def time_sd_at(self, t: Floats) -> Floats | None:
        """Return the uncertainty of the pieces around each instant, s; None where all of them were profiled."""
        if self.scatter is None:
            return None
        off = self.scatter.sd_at(t)
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
        add(np.arange(keys.count), PLACE, ops & _shared_keys(keys.signature, np.arange(keys.count), ops))
    add(keys.signature, SIGNATURE, ops & _shared_keys(keys.kind, keys.signature, ops))
    add(keys.kind, KIND, ops & ~keys.beside)
    add(keys.kind, BESIDE, ops & keys.beside)
    if keys.rate is not None and (keys.rate[ops] > 0).any():
        # Power that grows with a rate (bytes a second) is a line through all keys; scaled to 1 at the mean.
        columns.append((keys.rate / keys.rate[keys.rate > 0].mean())[:, None] * ops[:, None])
        levels.append(np.array([RATE]))
    return Hierarchy(np.column_stack(columns), np.concatenate(levels))


def _shared_keys(above: Ints, own: Ints, among: Flags) -> Flags:
    """Keys (P,) beside which another of the same number `above` has another one of its `own`."""
    pairs = np.unique(np.stack([above, own])[:, among], axis=1)
    names, count = np.unique(pairs[0], return_counts=True)
    shared: Flags = np.isin(above, names[count > 1])
    return shared


_TOUCH = 1e-9  # s: pieces that follow at once


def condense(timeline: Timeline, kinds: int, signatures: int) -> Timeline:
    """Keys of the kinds and signatures with most time, at most so many; the rest of a kind, and all else, as one each.

    Neighbours that are given the same key become one piece. The gap stays the last key, the other lanes' keys apart.
    """
    new, numbered = condensed_keys(timeline, kinds, signatures)
    if numbered.count == timeline.keys.count:
        return timeline
    lanes = tuple(_join_keys(lane, new) for lane in timeline.lanes)
    return replace(timeline, lanes=lanes, keys=numbered)


def condensed_keys(timeline: Timeline, kinds: int, signatures: int) -> tuple[Ints, Keys]:
    """The condensed key of each key (P,), and what the condensed keys are; unchanged where none is saved."""
    keys, seconds = timeline.keys, timeline.seconds
    ops = np.arange(keys.count) != keys.gap
    kind = np.where(_longest_keys(keys.kind, seconds, ops, kinds), keys.kind, -1)
    signature = np.where(_longest_keys(keys.signature, seconds, ops, signatures) & (kind >= 0), keys.signature, -1)
    named = np.stack([~ops, keys.beside, kind, signature], 1).astype(np.int64)  # sorts the gap last
    distinct, new = np.unique(named, axis=0, return_inverse=True)
    if len(distinct) == keys.count:
        return np.arange(keys.count), keys
    new = new.reshape(-1)
    apart = np.arange(len(distinct))
    numbered = Keys(
        np.unique(distinct[:, [0, 2]], axis=0, return_inverse=True)[1].reshape(-1), apart, distinct[:, 1].astype(bool)
    )
    return new, numbered


def _longest_keys(group: Ints, seconds: Floats, ops: Flags, most: int) -> Flags:
    """Keys of the groups with most time."""
    names, place = np.unique(group, return_inverse=True)
    spent = np.bincount(place, np.where(ops, seconds, 0.0), len(names))
    is_longest = np.zeros(len(names), dtype=bool)
    is_longest[np.argsort(-spent, kind="stable")[:most]] = True
    chosen: Flags = is_longest[place]
    return chosen


def _join_keys(lane: Lane, new: Ints) -> Lane:
    key = new[lane.key]
    begins = np.append(True, (key[1:] != key[:-1]) | (lane.t0[1:] - lane.t1[:-1] > _TOUCH))[: len(key)]
    first = np.flatnonzero(begins)
    return Lane(lane.t0[first], lane.t1[np.append(first[1:], len(key)) - 1], key[first])


_SHUFFLED = 0.5  # of a piece's own uncertainty: pieces that are nearer have no order; it grows by 1 % for it


def join_uncertain_pieces(timeline: Timeline) -> Timeline:
    """Return it with fewer pieces where steps were filled in: those of a key join within what is uncertain anyway.

    A short step has hundreds of pieces of some us, and where each lies is not known to a tenth of a ms.
    """
    if timeline.scatter is None:
        return timeline
    return replace(
        timeline, lanes=tuple(_join_pieces_of_lane(timeline, lane, timeline.scatter) for lane in timeline.lanes)
    )


def _join_pieces_of_lane(timeline: Timeline, lane: Lane, scatter: PieceUncertainty) -> Lane:
    if not len(lane.key):
        return lane
    step, reach, length = timeline.step_of(lane.t0), _SHUFFLED * scatter.sd_at(lane.t0), lane.t1 - lane.t0
    alone = timeline.recorded[step] | (reach <= length)
    stretch = np.floor(np.cumsum(np.where(alone, 1.0, length / np.where(alone, 1.0, reach))))
    group = np.cumsum(np.append(0, (np.diff(stretch) > 0) | (np.diff(step) > 0) | alone[1:]))
    order = np.lexsort((lane.key, group))
    first = np.flatnonzero(np.append(True, (np.diff(group[order]) > 0) | (np.diff(lane.key[order]) != 0)))
    key, of, spent = lane.key[order][first], group[order][first], np.add.reduceat(length[order], first)
    before = np.append(0.0, np.cumsum(spent))[:-1]
    head = np.searchsorted(of, of)  # the first piece of each one's group
    t0 = lane.t0[np.searchsorted(group, of)] + before - before[head]
    return Lane(t0, t0 + spent, key)


_MOST_TEMPLATES = 64  # structures; what is rarer is left to the gap
_DRAWS = 16  # of the steps that a template is the median of: a bootstrap of its error
_FEWEST, _UNKNOWN = 3, 0.01  # with fewer steps their spread is not known: this share of the step is taken


@dataclass(frozen=True)
class _Template:
    """Pieces of a typical step: begins and ends as shares of its length, keys, and the lengths of such steps, s."""

    t0: Floats
    t1: Floats
    key: Ints
    lengths: Floats
    spread: Floats  # of the begins from step to step, as shares of the length
    shifts: Floats  # (D, pieces): draws of the error of the begins, as shares of the length


def fill_unprofiled(
    lane: Lane, step_t0: Floats, step_t1: Floats, recorded: Flags
) -> tuple[Lane, PieceUncertainty | None]:
    """The lane with pieces in every step: recorded ones as they are, the others as the template of nearest length.

    Steps with the same sequence of keys share a template, the median of their shares of the step; so steps of very
    different kinds (sequences of several lengths) are not mixed.
    """
    was = np.asarray(recorded, dtype=bool)
    bare = np.flatnonzero(~was)
    if len(bare) == 0 or not was.any():
        return lane, None
    templates = _templates(lane, step_t0, step_t1, was)
    if not templates:
        return lane, None
    lengths = step_t1 - step_t0
    typical = np.array([np.median(template.lengths) for template in templates])
    chosen = np.argmin(np.abs(np.log(lengths[bare, None] / typical)), axis=1)
    parts, shifts = [lane], [np.zeros((_DRAWS, 1))]
    knots = [np.stack([edge, *np.zeros((3, len(edge)))]) for edge in (step_t0, step_t1)]
    for number in np.unique(chosen):
        template, steps = templates[number], bare[chosen == number]
        begin, length = step_t0[steps, None], lengths[steps, None]
        t0, t1 = begin + template.t0 * length, begin + template.t1 * length
        parts.append(Lane(t0.ravel(), t1.ravel(), np.tile(template.key, len(steps))))
        place = sum(part.shape[1] for part in shifts) + np.arange(len(template.key))
        of_pieces = np.broadcast_arrays(t0, template.spread * length, place, length)
        knots.append(np.stack([values.ravel() for values in of_pieces]))
        shifts.append(template.shifts)
    t0, t1, key = (np.concatenate([getattr(part, name) for part in parts]) for name in ("t0", "t1", "key"))
    order = np.argsort(t0, kind="stable")
    around = np.concatenate(knots, axis=1)
    at, sd, place, length = around[:, np.argsort(around[0], kind="stable")]
    uncertain = PieceUncertainty(at, sd, np.concatenate(shifts, axis=1), place.astype(np.int64), length)
    return Lane(t0[order], t1[order], key[order]), uncertain


def _templates(lane: Lane, step_t0: Floats, step_t1: Floats, recorded: Flags) -> list[_Template]:
    """One for each structure among the profiled steps, the commonest first."""
    step = np.clip(np.searchsorted(step_t0, (lane.t0 + lane.t1) / 2, side="right") - 1, 0, len(step_t0) - 1)
    edges = np.searchsorted(step, np.arange(len(step_t0) + 1))
    groups: dict[bytes, list[int]] = {}
    for number in np.flatnonzero(recorded):
        keys = lane.key[edges[number] : edges[number + 1]]
        if len(keys):
            groups.setdefault(keys.tobytes(), []).append(int(number))
    common = sorted(groups.values(), key=len, reverse=True)[:_MOST_TEMPLATES]
    return [_template_of_steps(lane, np.array(steps), edges, step_t0, step_t1) for steps in common]


def _template_of_steps(lane: Lane, steps: Ints, edges: Ints, step_t0: Floats, step_t1: Floats) -> _Template:
    size = int(edges[steps[0] + 1] - edges[steps[0]])
    rows = edges[steps][:, None] + np.arange(size)
    length = (step_t1 - step_t0)[steps]
    t0, t1 = ((times[rows] - step_t0[steps][:, None]) / length[:, None] for times in (lane.t0, lane.t1))
    begin, end = np.median(t0, axis=0), np.median(t1, axis=0)
    begin = np.maximum.accumulate(begin)
    end = np.clip(end, begin, np.append(begin[1:], max(1.0, float(end[-1]))))
    few = len(steps) < _FEWEST
    # Half of the middle 68 %: one step in which another program held the core would stand for all.
    low, high = np.quantile(t0, [0.16, 0.84], axis=0)
    spread = np.full(size, _UNKNOWN) if few else (high - low) / 2
    drawn = np.random.default_rng(0).integers(len(steps), size=(_DRAWS, len(steps)))
    shifts = np.array([np.maximum.accumulate(np.median(t0[draw], axis=0)) - begin for draw in drawn])
    return _Template(begin, end, lane.key[rows[0]], length, spread, shifts)
