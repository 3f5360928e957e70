"""Which share of each reading's window each key has: the rows of the regression, O(pieces touched + readings)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    return predicted_each(timeline, readings, [model], watts)[0]


def predicted_each(
    timeline: Timeline, readings: Readings, models: Sequence[SensorModel], watts: Floats
) -> list[Floats]:
    """The same as each of several models would see it; sums over the pieces are made once for all."""
    windows = [model.windows(readings) for model in models]
    seen = [np.full(len(end), watts[timeline.keys.gap]) for end, _ in windows]
    for number, lane in enumerate(timeline.lanes):
        # In the first lane a piece takes the place of the gap; in the others its power comes on top.
        extra = watts - watts[timeline.keys.gap] if number == 0 else watts
        seen = [total + part for total, part in zip(seen, _added(timeline, lane, models, windows, extra), strict=True)]
    return seen if readings.mix is None else [readings.mix @ one for one in seen]


def _added(
    timeline: Timeline, lane: Lane, models: Sequence[SensorModel], windows: list[tuple[Floats, Floats]], extra: Floats
) -> list[Floats]:
    """Mean power that one lane adds in each window, W, a model each; extra: of each key (P,)."""
    blurs = [timeline.blur(end) for end, _ in windows]
    if models and len(lane.t0) and all(blur is None for blur in blurs):
        return _passed(lane, extra[lane.key], windows, models)
    parts = []
    for (end, width), model, blur in zip(windows, models, blurs, strict=True):
        part = np.zeros(len(end))
        for rows, row, key, weight, _ in _blocks(lane, end, width, model, blur):
            part[rows] += np.bincount(row, weight * extra[key], rows.stop - rows.start)
        parts.append(part)
    return parts


def _passed(
    lane: Lane, watts: Floats, windows: list[tuple[Floats, Floats]], models: Sequence[SensorModel]
) -> list[Floats]:
    """Mean power of one lane in each window, W, as the kernels weigh it; watts: of each piece."""
    edges = [_edges(end, width, model) for (end, width), model in zip(windows, models, strict=True)]
    energy = np.split(energy_until(lane, watts, np.concatenate(edges)), np.cumsum([len(at) for at in edges])[:-1])
    for rc in {model.rc for model in models if model.rc > SHORTEST_RC}:
        filtered = [place for place, model in enumerate(models) if model.rc == rc]
        held = energy_held(lane, watts, np.concatenate([edges[place] for place in filtered]), rc)
        for place in filtered:
            energy[place] = energy[place] - held[: len(edges[place])]
            held = held[len(edges[place]) :]
    return [_mean(own, width, model) for own, (_, width), model in zip(energy, windows, models, strict=True)]


def _nodes(model: SensorModel) -> tuple[tuple[float, float], ...]:
    return NODES if model.smear else ((0.0, 1.0),)


def _edges(end: Floats, width: Floats, model: SensorModel) -> Floats:
    """Both edges of each window, for each node of the smear."""
    return np.concatenate([end + node * model.smear - back for node, _ in _nodes(model) for back in (0.0, width)])


def _mean(energy: Floats, width: Floats, model: SensorModel) -> Floats:
    """Of the energy until the edges of windows: what came between, over the width."""
    between = energy.reshape(-1, 2, len(width))
    mean: Floats = np.array([weight for _, weight in _nodes(model)]) @ (between[:, 0] - between[:, 1]) / width
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
