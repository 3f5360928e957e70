"""The model of a power sensor, and the share of each reading's window that each key has under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse, special  # type: ignore[import-untyped]

from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.timeline import Lane, Timeline
from stepscope.arrays import Flags, Floats, Ints

_SHARPEST = 1e-7  # s
SHORTEST_RC = 2e-5  # s; a filter faster than this changes nothing that an op stamp could show
_TAILS = 7.0  # time constants after which exp(-x) no longer counts
_WHOLE_TAIL = 20.0  # time constants after which nothing of it is left
_ENTRIES = 8192  # of the table of a kernel: linear between them, within 2e-5 of a reading's weight
# Points of a unit normal and their weights: the stamps' noise blurs the kernel (a Berkson error, so no bias is left).
# Where the kernel is smooth, Gauss's rule of three points does; ops can be as short as that noise, and a box is not.
_SMOOTH = ((-(3**0.5), 1 / 6), (0.0, 2 / 3), (3**0.5, 1 / 6))
_EDGES = np.append(np.sqrt(2) * special.ndtri(np.arange(1, 15) / 15), np.inf)  # fifteen parts of the unit normal
_PARTS = np.diff(special.ndtr(_EDGES), prepend=0.0)
_MEANS = -np.diff(np.exp(-(_EDGES**2) / 2) / np.sqrt(2 * np.pi), prepend=0.0) / _PARTS
_SHARP = tuple(zip(_MEANS.tolist(), _PARTS.tolist(), strict=True))
BLUR_SIGMAS = 4.0  # as far as blurred pieces are looked for

_FAR, _A_UNIT = 9, 512  # of the table of a blurred ramp: to so many standard deviations, in so many parts of one
_AT = np.linspace(-_FAR, _FAR, 2 * _FAR * _A_UNIT + 1)
# What the blurred ramp has over the sharp one, as a share of the standard deviation; and its growth to the next entry.
_OVER = _AT * special.ndtr(_AT) + np.exp(-_AT * _AT / 2) / np.sqrt(2 * np.pi) - np.maximum(_AT, 0.0)
_RISE = np.append(np.diff(_OVER), 0.0)
_NORMAL = special.ndtr(_AT)
_NORMAL_RISE = np.append(np.diff(_NORMAL), 0.0)
_FASTER = 0.5  # of the blur: a filter faster than this is blurred beyond telling its curve


@dataclass(frozen=True)
class SensorModel:
    """Seconds: the box ends `lag` before the stamp and is `width` long (None: each reading has its own);
    `rc` is the time constant of the supply or filter; `smear` the standard deviation of the stamps. A register that is
    read at times unknown to its clock shows a box that is up to `hold` older, at any age alike: together a trapezoid.
    """

    lag: float
    width: float | None
    rc: float = 0.0
    smear: float = 0.0
    hold: float = 0.0

    def windows(self, readings: Readings) -> tuple[Floats, Floats]:
        """End and width of each window of the readings."""
        end = readings.stamp - self.lag
        if readings.width is not None:
            return end, readings.width
        assert self.width is not None, "a gauge has one width"
        return end, np.full(len(end), self.width)

    @property
    def is_box(self) -> bool:
        """Is its kernel a box, but for the smear?"""
        return not self.hold and self.rc <= SHORTEST_RC

    @property
    def nodes(self) -> tuple[tuple[float, float], ...]:
        """Points of a unit normal, and weights, by which errors of time are averaged over."""
        return _SHARP if self.is_box else _SMOOTH

    @property
    def tail(self) -> float:
        """Return how far the kernel reaches back beyond its box, s."""
        return self.hold + (_TAILS * self.rc if self.rc > SHORTEST_RC else 0.0)

    @property
    def reach(self) -> float:
        """Return what the smear adds on either side, s."""
        return BLUR_SIGMAS * self.smear

    def sd_of_blurred(self, blur: Floats) -> Floats:
        """Standard deviation, s, of a piece's place in the kernel whose times have one of `blur`."""
        return np.asarray(np.sqrt(blur**2 + self.smear**2 + self.hold**2 / 12 + _SHARPEST**2))

    def weight_since(self, age: Floats, width: Floats, sd: Floats | None = None) -> Floats:
        """Share of the kernel's weight that lies within `age` before the end of the box: 0 at 0, 1 long before.

        sd: as `sd_of_blurred` gives it for pieces whose times are not exact, as long as `age`.
        """
        if sd is not None:
            return self._blurred(age - self.hold / 2, width, sd)
        if self.is_box and self.smear:
            return self._blurred(age, width, np.full(len(age), max(self.smear, _SHARPEST)))
        if self.is_box:
            box: Floats = np.clip(age / width, 0.0, 1.0)
            return box
        share: Floats = (self._step_integral(age) - self._step_integral(age - width)) / width
        return share

    def _blurred(self, age: Floats, width: Floats, sd: Floats) -> Floats:
        share: Floats = (self._blurred_integral(age, sd) - self._blurred_integral(age - width, sd)) / width
        return share

    def _blurred_integral(self, age: Floats, sd: Floats) -> Floats:
        """Integral of a step behind the filter, blurred: of a filter within the blur as if that were wider and later.

        Of an exponential that a normal distribution blurs: Grushka, Anal. Chem. 44 (1972) 1733.
        """
        if self.rc <= SHORTEST_RC:
            return _blurred_step_integral(age, sd)
        if self.rc < _FASTER * float(sd.max(initial=0.0)):
            return _blurred_step_integral(age - self.rc, np.sqrt(sd**2 + self.rc**2))
        by_rc = sd / self.rc
        place = age / sd
        left = np.exp(by_rc**2 / 2 - np.maximum(age, -_FAR * sd) / self.rc) * _normal(place - by_rc)
        integral: Floats = _blurred_step_integral(age, sd) - self.rc * (_normal(place) - left)
        return integral

    def _step_integral(self, age: Floats) -> Floats:
        """Integral of a step behind hold, filter and smear; of many from a table, each from the function itself."""
        if len(age) <= _ENTRIES:
            return self._exact_step_integral(age)
        low, high = -self.reach, self.hold + _WHOLE_TAIL * self.rc + self.reach
        table = self._exact_step_integral(np.linspace(low, high, _ENTRIES + 1))
        place = np.clip((age - low) * (_ENTRIES / (high - low)), 0, _ENTRIES)
        below = place.astype(np.int32)
        place -= below
        place *= np.append(np.diff(table), 0.0)[below]
        place += table[below]
        place += np.maximum(age - high, 0.0)
        return place

    def _exact_step_integral(self, age: Floats) -> Floats:
        total = np.zeros(len(age))
        for node, weight in self.nodes if self.smear else ((0.0, 1.0),):
            moved = age + node * self.smear
            if self.hold:
                total += weight / self.hold * (self._ramp_integral(moved) - self._ramp_integral(moved - self.hold))
            else:
                total += weight * self._filtered(moved)
        return total

    def _ramp_integral(self, age: Floats) -> Floats:
        """Integral of the filtered ramp."""
        past = np.maximum(age, 0.0)
        if self.rc <= SHORTEST_RC:
            return past * past / 2
        curve: Floats = past * past / 2 - self.rc * past - self.rc**2 * np.expm1(-past / self.rc)
        return curve

    def _filtered(self, age: Floats) -> Floats:
        past = np.maximum(age, 0.0)
        ramp: Floats = past + self.rc * np.expm1(-past / self.rc)
        return ramp


def _blurred_step_integral(age: Floats, sd: Floats) -> Floats:
    """Integral of a step that is blurred by a normal distribution; from a table, within 2e-7 standard deviations."""
    integral = _from_table(age / sd, _OVER, _RISE)
    integral *= sd
    integral += np.maximum(age, 0.0)
    return integral


def _normal(place: Floats) -> Floats:
    """The normal distribution up to each place, in standard deviations; from a table, within 2e-7. Changes `place`."""
    return _from_table(place, _NORMAL, _NORMAL_RISE)


def _from_table(place: Floats, values: Floats, rises: Floats) -> Floats:
    """Values of a table at each place, in standard deviations, which is overwritten."""
    np.maximum(place, -_FAR, out=place)  # np.clip takes twice as long
    np.minimum(place, _FAR, out=place)
    place += _FAR
    place *= _A_UNIT
    below = place.astype(np.intp)
    place -= below
    place *= rises.take(below, mode="clip")
    place += values.take(below, mode="clip")
    return place


BLOCK_PIECES = 400_000  # pieces that are looked at together: keeps memory flat
_BLURRED_PIECES = 50_000  # the same of blurred ones: what is computed of them stays in the processor's cache


def fully_covered_flags(timeline: Timeline, readings: Readings, model: SensorModel) -> Flags:
    """Readings whose whole kernel lies within the steps (M,)."""
    end, width = model.windows(readings)
    back = width + model.tail + model.reach
    inside = (end + model.reach <= timeline.end) & (end - back >= timeline.begin)
    if readings.mix is None:
        return np.asarray(inside)
    outside = readings.mix @ (~inside).astype(np.float64)
    return np.asarray(outside == 0)


def design(timeline: Timeline, readings: Readings, model: SensorModel) -> Any:
    """Weights (M, P) as a sparse matrix. Rows sum to 1 over the first lane and the gap; other lanes come on top."""
    end, width = model.windows(readings)
    blur = timeline.time_sd_at(end)
    exact, blurred = _rows_by_blur(blur, len(end))
    whole = _rows_of_all_lanes(timeline, end[exact], width[exact], model, None)
    if blur is not None:
        more = _rows_of_all_lanes(timeline, end[blurred], width[blurred], model, blur[blurred])
        whole = sparse.vstack([whole, more], format="csr")[np.argsort(np.concatenate([exact, blurred]))]
    return whole if readings.mix is None else (readings.mix @ whole).tocsr()


def _rows_by_blur(blur: Floats | None, count: int) -> tuple[Ints, Ints]:
    """Readings of profiled steps, which see the kernel itself, and of those with uncertain pieces."""
    return (np.arange(count), np.arange(0)) if blur is None else (np.flatnonzero(blur == 0), np.flatnonzero(blur))


def _rows_of_all_lanes(timeline: Timeline, end: Floats, width: Floats, model: SensorModel, blur: Floats | None) -> Any:
    count = timeline.keys.count
    lanes = [
        _lane_rows(lane, end, width, model, blur, count, tiled=number == 0)
        for number, lane in enumerate(timeline.lanes)
    ]
    return sum(lanes[1:], start=lanes[0])


def predict_readings(timeline: Timeline, readings: Readings, model: SensorModel, watts: Floats) -> Floats:
    """Return the readings (M,) if each key drew so much (P,); never builds the matrix."""
    return predict_for_models(timeline, readings, [model], watts)[0]


def predict_for_models(
    timeline: Timeline, readings: Readings, models: Sequence[SensorModel], watts: Floats
) -> list[Floats]:
    """The same as each of several models would see it; sums over the pieces are made once for all."""
    windows = [model.windows(readings) for model in models]
    predictions = [np.full(len(end), watts[timeline.keys.gap]) for end, _ in windows]
    for number, lane in enumerate(timeline.lanes):
        # In the first lane a piece takes the place of the gap; in the others its power comes on top.
        extra = watts - watts[timeline.keys.gap] if number == 0 else watts
        predictions = [
            total + part
            for total, part in zip(
                predictions, _power_added_by_lane(timeline, lane, models, windows, extra), strict=True
            )
        ]
    return predictions if readings.mix is None else [readings.mix @ values for values in predictions]


def _power_added_by_lane(
    timeline: Timeline, lane: Lane, models: Sequence[SensorModel], windows: list[tuple[Floats, Floats]], extra: Floats
) -> list[Floats]:
    """Mean power that one lane adds in each window, W, a model each; extra: of each key (P,)."""
    parts = [np.zeros(len(end)) for end, _ in windows]
    if not parts or not len(lane.t0):
        return parts
    blurs = [timeline.time_sd_at(end) for end, _ in windows]
    split = [_rows_by_blur(blur, len(end)) for blur, (end, _) in zip(blurs, windows, strict=True)]
    exact_windows = [(end[exact], width[exact]) for (exact, _), (end, width) in zip(split, windows, strict=True)]
    means = _mean_lane_power(lane, extra[lane.key], exact_windows, models)
    for (end, width), model, blur, part, (exact, blurred), mean in zip(
        windows, models, blurs, parts, split, means, strict=True
    ):
        part[exact] = mean
        if blur is None:
            continue
        for rows, row, key, weight, _ in _row_blocks(lane, end[blurred], width[blurred], model, blur[blurred]):
            part[blurred[rows]] = np.bincount(row, weight * extra[key], rows.stop - rows.start)
    return parts


def _mean_lane_power(
    lane: Lane, watts: Floats, windows: list[tuple[Floats, Floats]], models: Sequence[SensorModel]
) -> list[Floats]:
    """Mean power of one lane in each window, W, as the kernels weigh it; watts: of each piece."""
    edges = [_window_edges(end, width, model) for (end, width), model in zip(windows, models, strict=True)]
    lengths = np.cumsum([len(at) for at in edges])[:-1]
    energy = np.split(energy_until(lane, watts, np.concatenate(edges)), lengths)
    for rc in {model.rc for model in models if model.rc > SHORTEST_RC}:
        filtered = [place for place, model in enumerate(models) if model.rc == rc]
        in_filter = energy_in_filter(lane, watts, np.concatenate([edges[place] for place in filtered]), rc)
        for place in filtered:
            energy[place] = energy[place] - in_filter[: len(edges[place])]
            in_filter = in_filter[len(edges[place]) :]
    steady = float(watts @ (lane.t1 - lane.t0)) / max(float(lane.t1[-1] - lane.t0[0]), 1e-30)
    integral = energy
    if any(model.hold for model in models):
        integral = np.split(integral_of_energy(lane, watts, steady, np.concatenate(edges)), lengths)
    return [
        steady + _window_means(whole - model.rc * own * (model.rc > SHORTEST_RC), width, model)
        if model.hold
        else _window_means(own, width, model)
        for own, whole, (_, width), model in zip(energy, integral, windows, models, strict=True)
    ]


def _smear_nodes(model: SensorModel) -> tuple[tuple[float, float], ...]:
    return model.nodes if model.smear else ((0.0, 1.0),)


def _window_edges(end: Floats, width: Floats, model: SensorModel) -> Floats:
    """Edges of each window's kernel, for each node of the smear: of a box two, of a trapezoid four."""
    ages = (0.0, model.hold) if model.hold else (0.0,)
    return np.concatenate(
        [
            end + node * model.smear - back - older
            for node, _ in _smear_nodes(model)
            for back in (0.0, width)
            for older in ages
        ]
    )


def _window_means(energy: Floats, width: Floats, model: SensorModel) -> Floats:
    """Of the energy until the edges of windows, or its integral: what came between, over the width, and the hold."""
    ages = 2 if model.hold else 1
    edges = energy.reshape(len(_smear_nodes(model)), 2, ages, len(width), *energy.shape[1:])
    until = (edges[:, :, 0] - edges[:, :, 1]) / model.hold if model.hold else edges[:, :, 0]
    weight = np.array([weight for _, weight in _smear_nodes(model)])
    mean: Floats = (np.tensordot(weight, until[:, 0] - until[:, 1], axes=1).T / width).T
    return mean


def _lane_rows(
    lane: Lane, end: Floats, width: Floats, model: SensorModel, blur: Floats | None, count: int, tiled: bool
) -> Any:
    """One lane's weights; a tiled lane gives what is left of each row to the gap, as its last entry."""
    if blur is None and _is_quicker_by_sums(lane, end, width, model, count):
        shares = _shares_by_sums(lane, end, width, model, count)
        shares[:, -1] += 1.0 - shares.sum(axis=1) if tiled else 0.0
        return sparse.csr_matrix(shares)
    data, keys, sizes = [], [], []
    for rows, row, key, weight, size in _row_blocks(lane, end, width, model, blur):
        if tiled:
            remainder = 1.0 - np.bincount(row, weight, rows.stop - rows.start)
            last = np.cumsum(size)
            weight, key = np.insert(weight, last, remainder), np.insert(key, last, count - 1)
            size = size + 1
        data.append(weight)
        keys.append(key)
        sizes.append(size)
    starts = np.append(0, np.cumsum(np.concatenate(sizes)))
    return sparse.csr_matrix((np.concatenate(data), np.concatenate(keys), starts), shape=(len(end), count))


_MOST_SUMS = 4_000_000  # entries of a table of sums
_A_PIECE = 2.0  # sums that cost as much as a piece in a window


def _is_quicker_by_sums(lane: Lane, end: Floats, width: Floats, model: SensorModel, count: int) -> bool:
    """Are there more pieces in the windows than sums at their edges, and has the kernel edges, and no filter's tail?"""
    edges = len(end) * (4 if model.hold else 2) * len(_smear_nodes(model))
    if model.rc > SHORTEST_RC or not len(lane.t0) or edges * count > _MOST_SUMS or (model.smear and model.is_box):
        return False
    first = np.searchsorted(lane.t1, end - width - model.tail - model.reach, side="right")
    pieces = float((np.searchsorted(lane.t0, end + model.reach, side="left") - first).sum())
    return _A_PIECE * pieces > edges * count


def _shares_by_sums(lane: Lane, end: Floats, width: Floats, model: SensorModel, count: int) -> Floats:
    """Share of each key (M, P) in each window, from the time that each has had until the edges of the kernel."""
    t, order = np.unique(_window_edges(end, width, model), return_inverse=True)
    begin = float(lane.t0[0])
    number = np.searchsorted(lane.t1, t, side="right")  # of pieces that ended before each edge
    after = np.repeat(np.arange(len(t)), np.diff(number, prepend=0))  # the first edge behind each of them
    ended = slice(number[-1])
    place, t0, t1 = after * count + lane.key[ended], lane.t0[ended], lane.t1[ended]

    def summed(values: Floats) -> Floats:
        return np.asarray(np.bincount(place, values, len(t) * count).reshape(-1, count), dtype=np.float64)

    here = np.minimum(number, len(lane.t1) - 1)
    part = np.where(number < len(lane.t1), np.maximum(t - lane.t0[here], 0.0), 0.0)
    at = np.arange(len(t)), lane.key[here]
    spent: Floats = np.cumsum(summed(t1 - t0), axis=0)
    integral = np.zeros((0, count))
    if model.hold:
        integral = spent * (t - begin)[:, None] - np.cumsum(summed((t1 - t0) * ((t0 + t1) / 2 - begin)), axis=0)
        integral[at] += part * part / 2
    spent[at] += part
    return _window_means((integral if model.hold else spent)[order], width, model)


def _row_blocks(
    lane: Lane, end: Floats, width: Floats, model: SensorModel, blur: Floats | None
) -> Iterator[tuple[slice, Ints, Ints, Floats, Ints]]:
    """Rows, and for each piece in their windows its row in the block, key and weight; and pieces of each row."""
    reach = model.reach if blur is None else model.reach + BLUR_SIGMAS * blur
    first = np.searchsorted(lane.t1, end - width - model.tail - reach, side="right")
    size = np.maximum(np.searchsorted(lane.t0, end + reach, side="left") - first, 0)
    before = np.append(0, np.cumsum(size))
    sd_of_row = None if blur is None else model.sd_of_blurred(blur)
    most = BLOCK_PIECES if blur is None else _BLURRED_PIECES
    start, rows = 0, len(end)
    while start < rows or start == rows == 0:
        stop = max(int(np.searchsorted(before, before[start] + most, side="right")) - 1, start + 1)
        stop = min(stop, rows)
        n = size[start:stop]
        row = np.repeat(np.arange(stop - start), n)
        piece = np.arange(len(row)) + np.repeat(first[start:stop] - (before[start:stop] - before[start]), n)
        at, box = end[start:stop][row], width[start:stop][row]
        sd = None if sd_of_row is None else sd_of_row[start:stop][row]
        until = model.weight_since(at - lane.t0[piece], box, sd)
        weight = until - _weight_after(lane, piece, n, until, at, box, sd, model)
        yield slice(start, stop), row, lane.key[piece], weight, n
        if rows == 0:
            return
        start = stop


def _weight_after(
    lane: Lane, piece: Ints, size: Ints, until: Floats, at: Floats, box: Floats, sd: Floats | None, model: SensorModel
) -> Floats:
    """Return what is seen since the end of each piece: since its begin where the next one of the row follows at
    once. size: pieces of each row.
    """
    after = np.empty_like(until)
    after[:-1] = until[1:]
    is_apart = lane.has_pauses[piece]
    is_apart[np.cumsum(size)[size > 0] - 1] = True
    apart = np.flatnonzero(is_apart)
    sd_apart = None if sd is None else sd[apart]
    after[apart] = model.weight_since(at[apart] - lane.t1[piece[apart]], box[apart], sd_apart)
    return after


_FILTER_BLOCK = 10.0  # time constants in a block: exp(10) still leaves a sum 11 digits
_BLOCKS_BACK = 3  # what is older weighs less than exp(-20)


def energy_until(lane: Lane, watts: Floats, t: Floats) -> Floats:
    """Energy of the pieces before each instant, J; watts: of each piece (n,)."""
    total = np.append(0.0, np.cumsum(watts * (lane.t1 - lane.t0)))
    number = np.searchsorted(lane.t1, t, side="right")
    here = np.minimum(number, len(watts) - 1)
    part = np.where(number < len(watts), np.maximum(t - lane.t0[here], 0.0), 0.0)
    passed: Floats = total[number] + watts[here] * part
    return passed


def integral_of_energy(lane: Lane, watts: Floats, steady: float, t: Floats) -> Floats:
    """Integral over time of the energy until each instant beyond that of a steady power, J s; watts: of each piece.

    Without the steady power (W) it would grow with the square of time, and its differences lose their last digits.
    """
    knots = np.column_stack([lane.t0, lane.t1]).ravel()
    power = np.full(len(knots) + 1, -steady)
    power[1::2] += watts
    length = np.diff(knots)
    energy = np.append(0.0, np.cumsum(power[1:-1] * length))
    whole = np.append(0.0, np.cumsum((energy[:-1] + power[1:-1] * length / 2) * length))
    number = np.searchsorted(knots, t, side="right")
    knot = np.maximum(number - 1, 0)
    since = t - knots[knot]
    total: Floats = whole[knot] + (energy[knot] + power[number] * since / 2) * since
    return total


def energy_in_filter(lane: Lane, watts: Floats, t: Floats, rc: float) -> Floats:
    """Energy that went in before each instant and has not come out of a first-order filter yet, J.

    The integral of watts(s) exp(-(t - s) / rc): each piece is summed relative to the begin of its block of time, so
    that no exponential grows beyond exp(10).
    """
    origin, span = float(lane.t0[0]), _FILTER_BLOCK * rc
    block = np.floor((lane.t1 - origin) / span)
    since = origin + block * span
    put_in = watts * rc * (np.exp((lane.t1 - since) / rc) - np.exp((lane.t0 - since) / rc))
    total = np.append(0.0, np.cumsum(put_in))
    number = np.searchsorted(lane.t1, t, side="right")
    own = np.floor((t - origin) / span)
    inside, stop = np.zeros(len(t)), number
    for back in range(_BLOCKS_BACK):
        begin = origin + (own - back) * span
        start = np.minimum(np.searchsorted(block, own - back), stop)
        inside += (total[stop] - total[start]) * np.exp(-(t - begin) / rc)
        stop = start
    here = np.minimum(number, len(watts) - 1)
    part = np.where(number < len(watts), np.maximum(t - lane.t0[here], 0.0), 0.0)
    whole: Floats = inside - watts[here] * rc * np.expm1(-part / rc)
    return whole


def energy_through_rail(timeline: Timeline, watts: Floats, rc: float) -> Floats:
    """Energy that goes through the rail while each key runs (P,), J, if power follows its cause with `rc`, s.

    watts: (P,) that each key causes. What outlasts a piece counts by what runs then; lanes beside the first keep their
    own.
    """
    caused: Floats = watts * timeline.seconds
    lane, gap = timeline.lanes[0], timeline.keys.gap
    if rc <= SHORTEST_RC or not len(lane.t0):
        return caused
    extra = watts[lane.key] - watts[gap]
    edges = np.concatenate([lane.t0, lane.t1])
    through = energy_until(lane, extra, edges) - energy_in_filter(lane, extra, edges, rc)
    count = len(lane.t0)
    pieces = through[count:] - through[:count] + watts[gap] * (lane.t1 - lane.t0)
    during = np.bincount(lane.key, pieces, timeline.keys.count)
    first = np.isin(np.arange(timeline.keys.count), lane.key) & ~timeline.keys.beside
    energy = np.where(first, during, caused)
    energy[gap] = caused.sum() - np.delete(energy, gap).sum()
    return energy


SPAN = 4.0  # s: heat is slow, and a shorter span would follow the ops themselves where phases move slowly
_FEWEST, _STEPS = 20, 3


def slow_gain(at: Floats, watts: Floats, fitted: Floats, step_length: float) -> Floats:
    """Readings over fit, each summed over a moving span of at least 4 s, 3 steps and 20 readings; else 1.

    Shrunk to their mean by what the noise of the readings makes of it.
    """
    count = len(watts)
    period = float(np.median(np.diff(at))) if count > 1 else 0.0
    if period <= 0:
        return np.ones(count)
    span = max(_FEWEST, round(max(SPAN, _STEPS * step_length) / period))
    if count < 3 * span:
        return np.ones(count)
    below = _moving_sum(fitted, span)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(below > 0, _moving_sum(watts, span) / below, 1.0)
    gain = np.clip(ratio, 0.2, 5.0)
    mean = float(gain.mean())
    chance = _moving_sum((watts - gain * fitted) ** 2, span) / np.maximum(below, 1e-30) ** 2
    variance = float(((gain - mean) ** 2).mean())
    return np.asarray(mean + max(1.0 - float(chance.mean()) / max(variance, 1e-30), 0.0) * (gain - mean))


def _moving_sum(values: Floats, span: int) -> Floats:
    """Sum over a window centred on each entry; shorter at the ends."""
    total = np.append(0.0, np.cumsum(values))
    place = np.arange(len(values))
    low, high = np.maximum(place - span // 2, 0), np.minimum(place + (span + 1) // 2, len(values))
    summed: Floats = total[high] - total[low]
    return summed
