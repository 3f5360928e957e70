"""A timeline with few keys: those that matter to how a sensor sees the past, and one each for what is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.analysis.attribution.timeline import Flags, Ints, Keys, Lane, Timeline
from stepscope.analysis.intervals import Floats

_TOUCH = 1e-9  # s: pieces that follow at once


def condensed(timeline: Timeline, kinds: int, signatures: int) -> Timeline:
    """Keys of the kinds and signatures with most time, at most so many; the rest of a kind, and all else, as one each.

    Neighbours that are given the same key become one piece. The gap stays the last key, the other lanes' keys apart.
    """
    keys, seconds = timeline.keys, timeline.seconds
    ops = np.arange(keys.count) != keys.gap
    kind = np.where(_longest(keys.kind, seconds, ops, kinds), keys.kind, -1)
    signature = np.where(_longest(keys.signature, seconds, ops, signatures) & (kind >= 0), keys.signature, -1)
    named = np.stack([~ops, keys.beside, kind, signature], 1).astype(np.int64)  # sorts the gap last
    distinct, new = np.unique(named, axis=0, return_inverse=True)
    if len(distinct) == keys.count:
        return timeline
    new = new.reshape(-1)
    apart = np.arange(len(distinct))
    numbered = Keys(
        np.unique(distinct[:, [0, 2]], axis=0, return_inverse=True)[1].reshape(-1), apart, distinct[:, 1].astype(bool)
    )
    lanes = tuple(_joined(lane, new) for lane in timeline.lanes)
    return replace(timeline, lanes=lanes, keys=numbered)


def _longest(group: Ints, seconds: Floats, ops: Flags, most: int) -> Flags:
    """Keys of the groups with most time."""
    names, place = np.unique(group, return_inverse=True)
    spent = np.bincount(place, np.where(ops, seconds, 0.0), len(names))
    kept = np.zeros(len(names), dtype=bool)
    kept[np.argsort(-spent, kind="stable")[:most]] = True
    chosen: Flags = kept[place]
    return chosen


def _joined(lane: Lane, new: Ints) -> Lane:
    key = new[lane.key]
    begins = np.append(True, (key[1:] != key[:-1]) | (lane.t0[1:] - lane.t1[:-1] > _TOUCH))[: len(key)]
    first = np.flatnonzero(begins)
    return Lane(lane.t0[first], lane.t1[np.append(first[1:], len(key)) - 1], key[first])
