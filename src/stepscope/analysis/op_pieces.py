"""The recorded ops of a run as pieces of own time: at each instant of a thread, the innermost op that runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analysis.attribution.timeline import Flags, Ints
from stepscope.analysis.intervals import Floats
from stepscope.analysis.own_time import CPU, OUTSIDE
from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import OPS, RunReader

_NONE = -1
UNSTATED = -1  # flops or bytes of an op that states none
_PARTS = _HEAD, _BETWEEN, _TAIL = 0, 1, 2
_PARTED = 0.001  # of all own time: what takes less is not taken apart
FACTS = ("name", "module", "phase", "device", "flops", "bytes")


@dataclass(frozen=True)
class Track:
    """Pieces of one thread or stream, in order and apart: begin and end, s, and the op (row of `OpPieces.ops`).

    part: of the op, as `OpPieces` has it.
    """

    device: str
    t0: Floats
    t1: Floats
    op: Ints
    part: Ints

    @property
    def seconds(self) -> float:
        return float((self.t1 - self.t0).sum())


@dataclass(frozen=True)
class OpPieces:
    """Tracks, longest first; `ops` has a row a kind of instance: FACTS, `turn`, its count within the step, and `part`.

    What an op does before its first callee, between callees and after the last is not the same work: `part` is 0, 1 or
    2 where that takes long, and 0 elsewhere.
    """

    ops: pl.DataFrame
    tracks: tuple[Track, ...]


def op_pieces(run: RunReader, origin_ns: int) -> OpPieces:
    """Pieces of the recorded steady steps; times in s since `origin_ns`."""
    steps = recorded_steps(run)["step"].cast(OPS["step"])
    wanted = ("step", "t0_ns", "t1_ns", "parent", "thread", *FACTS)
    rows = run.scan_ops().select(wanted).join(pl.LazyFrame({"step": steps}), on="step", how="semi").collect()
    rows = rows.with_columns(
        pl.col("name", "module", "phase", "device").cast(pl.String), row=pl.int_range(pl.len()).over("step")
    ).sort("step", "row", maintain_order=True)
    identity = [*FACTS, "turn"]
    rows = rows.with_columns(pl.col("module").fill_null(OUTSIDE), pl.col("flops", "bytes").fill_null(UNSTATED))
    rows = rows.with_columns(turn=pl.int_range(pl.len()).over("step", *FACTS))
    ops = rows.select(identity).unique(maintain_order=True).with_row_index("op")
    rows = rows.join(ops, on=identity, how="left", maintain_order="left")
    tracks = [_track(part, rows, origin_ns) for part in _by_thread(rows)]
    ops, tracks = _parted(ops.drop("op"), tracks)
    return OpPieces(ops, tuple(sorted(tracks, key=lambda track: -track.seconds)))


def _parted(ops: pl.DataFrame, tracks: list[Track]) -> tuple[pl.DataFrame, list[Track]]:
    """A row of its own for each part of the ops whose own time is much; tracks numbered anew."""
    if not tracks:
        return ops.with_columns(part=pl.lit(_HEAD, pl.Int64)), tracks
    spent = np.sum([np.bincount(track.op, track.t1 - track.t0, len(ops)) for track in tracks], axis=0)
    much = spent >= _PARTED * spent.sum()
    named = [track.op * len(_PARTS) + np.where(much[track.op], track.part, 0) for track in tracks]
    distinct = np.unique(np.concatenate(named))
    table = ops[(distinct // len(_PARTS)).tolist()].with_columns(part=pl.Series(distinct % len(_PARTS)))
    return table, [
        replace(track, op=np.searchsorted(distinct, one).astype(np.int64))
        for track, one in zip(tracks, named, strict=True)
    ]


def _by_thread(rows: pl.DataFrame) -> list[Ints]:
    """Rows of each thread of the CPU and of each stream of an accelerator."""
    number = rows.select(pl.struct("device", "thread").rank("dense")).to_series().to_numpy()
    return [np.flatnonzero(number == one) for one in np.unique(number)]


def _track(chosen: Ints, rows: pl.DataFrame, origin_ns: int) -> Track:
    """One thread's pieces: after an op begins it runs, after it ends its caller does."""
    device = str(rows["device"][int(chosen[0])])
    parent = _callers(rows)[chosen] if device == CPU else np.full(len(chosen), _NONE)
    place = np.full(len(rows), _NONE)
    place[chosen] = np.arange(len(chosen))
    parent = np.where(parent == _NONE, _NONE, place[parent])  # a caller in another thread is none here
    depth = _depths(parent)
    t0, t1 = (rows[name].to_numpy()[chosen] for name in ("t0_ns", "t1_ns"))
    lasting = t1 > t0
    t0, t1, depth, own, above = t0[lasting], t1[lasting], depth[lasting], np.flatnonzero(lasting), parent[lasting]
    time = np.concatenate([t0, t1])
    begins = np.append(np.ones(len(t0), dtype=np.int64), np.zeros(len(t1), dtype=np.int64))
    order = np.lexsort((np.append(depth, -depth), begins, time))  # ends before begins, inner ends first
    running, time = np.append(own, above)[order], time[order]
    piece = np.flatnonzero((np.diff(time) > 0) & (running[:-1] != _NONE))
    op = rows["op"].to_numpy()[chosen][running[piece]].astype(np.int64)
    begin, end = ((time[at] - origin_ns) / 1e9 for at in (piece, piece + 1))
    return Track(device, begin, end, op, _part(running[piece], len(chosen)))


def _part(instance: Ints, count: int) -> Ints:
    """Of each piece: is it the first of its instance, one between, or the last of several?"""
    place = np.arange(len(instance))
    first, last = np.full(count, len(instance)), np.full(count, _NONE)
    np.minimum.at(first, instance, place)
    np.maximum.at(last, instance, place)
    return np.where(place == first[instance], _HEAD, np.where(place == last[instance], _TAIL, _BETWEEN))


def _callers(rows: pl.DataFrame) -> Ints:
    """Row of each op's caller in the whole table; `parent` counts within the step."""
    step = rows["step"].to_numpy()
    first = np.append(0, np.flatnonzero(np.diff(step)) + 1)
    size = np.diff(np.append(first, len(step)))
    above = rows["parent"].fill_null(_NONE).to_numpy().astype(np.int64)
    return np.where(above == _NONE, _NONE, above + np.repeat(first, size))


def _depths(parent: Ints) -> Ints:
    """How many callers each row has in its own thread."""
    depth, above = np.zeros(len(parent), dtype=np.int64), parent.copy()
    while (inside := above != _NONE).any():
        depth += inside
        above = np.where(inside, parent[np.where(inside, above, 0)], _NONE)
    return depth


def joined(tracks: list[Track], least_apart: float = 0.95) -> list[Track]:
    """Tracks that hardly ever run at once made one (a backward thread works while its caller waits); longest first."""
    lanes: list[Track] = []
    for track in tracks:
        for number, lane in enumerate(lanes):
            if _together(lane, track) <= (1 - least_apart) * track.seconds:
                lanes[number] = _merged(lane, track)
                break
        else:
            lanes.append(track)
    return lanes


def _together(lane: Track, track: Track) -> float:
    """Time in which both run, s."""
    edges = np.stack([lane.t0, lane.t1], 1).ravel()
    busy = np.cumsum(np.stack([np.zeros(len(lane.t0)), lane.t1 - lane.t0], 1).ravel())
    return float((np.interp(track.t1, edges, busy) - np.interp(track.t0, edges, busy)).sum())


def _merged(lane: Track, track: Track) -> Track:
    """Both in order of time; what still overlaps is cut from the piece that began first."""
    t0, t1, op, part = (
        np.concatenate([getattr(lane, name), getattr(track, name)]) for name in ("t0", "t1", "op", "part")
    )
    order = np.argsort(t0, kind="stable")
    t0, t1, op, part = t0[order], t1[order], op[order], part[order]
    t1 = np.minimum(t1, np.append(t0[1:], np.inf))
    some: Flags = t1 > t0
    return Track(lane.device, t0[some], t1[some], op[some], part[some])
