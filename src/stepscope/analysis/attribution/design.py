"""Which share of each reading's window each key has: the rows of the regression, O(pieces touched + readings)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.attribution.filtered_energy import energy_held, energy_until
from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.attribution.sensor_model import NODES, SHORTEST_RC, SensorModel
from stepscope.analysis.attribution.timeline import Flags, Ints, Lane, Timeline
from stepscope.analysis.intervals import Floats

BLOCK_PIECES = 400_000  # pieces that are looked at together: keeps memory flat
_SIGMAS = 4.0  # as far as blurred pieces are looked for
DENSE_FROM = 0.12  # share of non-zero weights from which a product of full blocks is the faster one


def covered(timeline: Timeline, readings: Readings, model: SensorModel) -> Flags:
    """Readings whose whole kernel lies within the steps (M,)."""
    end, width = model.windows(readings)
    inside = (end + model.reach <= timeline.end) & (end - width - model.tail / 2 - model.reach >= timeline.begin)
    if readings.mix is None:
        return np.asarray(inside)
    outside = readings.mix @ (~inside).astype(np.float64)
    return np.asarray(outside == 0)


def design(timeline: Timeline, readings: Readings, model: SensorModel) -> Any:
    """Weights (M, P) as a sparse matrix. Rows sum to 1 over the first lane and the gap; other lanes come on top."""
    end, width = model.windows(readings)
    count = timeline.keys.count
    blur = timeline.blur(end)
    blocks = [
        _rows(lane, end, width, model, blur, count, tiled=number == 0) for number, lane in enumerate(timeline.lanes)
    ]
    whole = blocks[0]
    for more in blocks[1:]:
        whole = whole + more
    return whole if readings.mix is None else (readings.mix @ whole).tocsr()


def predicted(timeline: Timeline, readings: Readings, model: SensorModel, watts: Floats) -> Floats:
    """What the readings would be (M,) if each key drew so much (P,); never builds the matrix."""
    end, width = model.windows(readings)
    seen, blur = np.full(len(end), watts[timeline.keys.gap]), timeline.blur(end)
    for number, lane in enumerate(timeline.lanes):
        # In the first lane a piece takes the place of the gap; in the others its power comes on top.
        extra = watts - watts[timeline.keys.gap] if number == 0 else watts
        if blur is None and len(lane.t0):
            seen += _passed(lane, extra[lane.key], end, width, model)
            continue
        for rows, row, key, weight, _ in _blocks(lane, end, width, model, blur):
            seen[rows] += np.bincount(row, weight * extra[key], rows.stop - rows.start)
    mixed: Floats = seen if readings.mix is None else readings.mix @ seen
    return mixed


def _passed(lane: Lane, watts: Floats, end: Floats, width: Floats, model: SensorModel) -> Floats:
    """Mean power of one lane in each window, W, as the kernel weighs it; watts: of each piece."""
    nodes = NODES if model.smear else ((0.0, 1.0),)
    at = np.concatenate([end + node * model.smear - back for node, _ in nodes for back in (0.0, width)])
    energy = energy_until(lane, watts, at)
    if model.rc > SHORTEST_RC:
        energy -= energy_held(lane, watts, at, model.rc)
    edges = energy.reshape(len(nodes), 2, len(end))
    share = np.array([weight for _, weight in nodes])
    mean: Floats = share @ (edges[:, 0] - edges[:, 1]) / width
    return mean


def _rows(
    lane: Lane, end: Floats, width: Floats, model: SensorModel, blur: Floats | None, count: int, tiled: bool
) -> Any:
    """One lane's weights; a tiled lane gives what is left of each row to the gap, as its last entry."""
    data, keys, sizes = [], [], []
    for rows, row, key, weight, size in _blocks(lane, end, width, model, blur):
        if tiled:
            rest = 1.0 - np.bincount(row, weight, rows.stop - rows.start)
            last = np.cumsum(size)
            weight, key = np.insert(weight, last, rest), np.insert(key, last, count - 1)
            size = size + 1
        data.append(weight)
        keys.append(key)
        sizes.append(size)
    starts = np.append(0, np.cumsum(np.concatenate(sizes)))
    return sparse.csr_matrix((np.concatenate(data), np.concatenate(keys), starts), shape=(len(end), count))


def _blocks(
    lane: Lane, end: Floats, width: Floats, model: SensorModel, blur: Floats | None
) -> Iterator[tuple[slice, Ints, Ints, Floats, Ints]]:
    """Rows, and for each piece in their windows its row in the block, key and weight; and pieces of each row."""
    reach = model.reach if blur is None else model.reach + _SIGMAS * blur
    first = np.searchsorted(lane.t1, end - width - model.tail - reach, side="right")
    size = np.maximum(np.searchsorted(lane.t0, end + reach, side="left") - first, 0)
    before = np.append(0, np.cumsum(size))
    start, rows = 0, len(end)
    while start < rows or start == rows == 0:
        stop = max(int(np.searchsorted(before, before[start] + BLOCK_PIECES, side="right")) - 1, start + 1)
        stop = min(stop, rows)
        n = size[start:stop]
        row = np.repeat(np.arange(stop - start), n)
        piece = np.arange(len(row)) + np.repeat(first[start:stop] - (before[start:stop] - before[start]), n)
        at, box = end[start:stop][row], width[start:stop][row]
        off = None if blur is None else blur[start:stop][row]
        until = model.seen_since(at - lane.t0[piece], box, off)
        weight = until - _seen_after(lane, piece, row, until, at, box, off, model)
        yield slice(start, stop), row, lane.key[piece], weight, n
        if rows == 0:
            return
        start = stop


def _seen_after(
    lane: Lane, piece: Ints, row: Ints, until: Floats, at: Floats, box: Floats, off: Floats | None, model: SensorModel
) -> Floats:
    """What is seen since the end of each piece: where the next one of the row follows at once, since its begin."""
    after = np.append(until[1:], 0.0)
    follows = (row[1:] == row[:-1]) & (lane.t1[piece[:-1]] == lane.t0[piece[1:]])
    apart = np.flatnonzero(~np.append(follows, np.zeros(min(len(piece), 1), dtype=bool)))
    after = after[: len(piece)]
    gone = None if off is None else off[apart]
    after[apart] = model.seen_since(at[apart] - lane.t1[piece[apart]], box[apart], gone)
    return after


def gram(matrix: Any) -> Floats:
    """A'A as a full matrix (P, P)."""
    rows, columns = matrix.shape
    if not sparse.issparse(matrix):
        full: Floats = matrix.T @ matrix
        return full
    if matrix.nnz < DENSE_FROM * rows * columns:
        return np.asarray((matrix.T @ matrix).todense())
    total = np.zeros((columns, columns))
    for start in range(0, rows, 4096):
        block = matrix[start : start + 4096].toarray()
        total += block.T @ block
    return total
