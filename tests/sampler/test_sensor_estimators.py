"""What self-characterisation says of synthetic sensors whose truth is known: refresh, step size, filter."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from stepscope.record.sampler.sensor_response import (
    BLOCK,
    NONE,
    RUNNING,
    Load,
    filter_of,
    load_schedule,
    one_reading_per_refresh,
    refresh_period_ns,
    step_size,
)

MS = 1_000_000
LOAD = load_schedule(0, 4.0)
Power = Callable[[int], float]


def watts(t_ns: int) -> float:
    """The plant: 3 W idle, 9 W under load."""
    return 9.0 if any(on <= t_ns < off for on, off in LOAD) else 3.0


def polls(every_ns: int, seconds: float = 4.0, seed: int = 1) -> list[int]:
    """Read times that jitter, with a late one now and then, as under a scheduler."""
    chance = random.Random(seed)
    times, now = [], 0
    while now < seconds * 1e9:
        times.append(now)
        now += int(every_ns * chance.uniform(0.9, 1.1)) + (int(12 * MS) if chance.random() < 0.001 else 0)
    return times


def held(times: list[int], period_ns: int, convert: Power, seed: int = 2) -> list[float]:
    """What a source that converts once a period shows at each read; the moments jitter by 2 %."""
    chance = random.Random(seed)
    at, shown, values = 0, convert(0), []
    for t in times:
        while at + period_ns <= t:
            at += period_ns
            shown = convert(at + int(chance.gauss(0, 0.02 * period_ns)))
        values.append(shown)
    return values


def ina3221(times: list[int], step_w: float = 0.038, noise_w: float = 0.0) -> list[float]:
    """Running average of 64 at rounds of 6.6 ms, whole steps: time constant 64 x 6.6 ms."""
    chance, state = random.Random(3), [3.0]

    def convert(t_ns: int) -> float:
        state[0] += (watts(t_ns) + chance.gauss(0, noise_w) - state[0]) / 64
        return round(state[0] / step_w) * step_w

    return held(times, int(6.6 * MS), convert)


def counter(times: list[int], period_ns: int, unit_j: float, printed_j: float | None = None) -> list[float]:
    """Energy since the start in whole units, printed in another unit perhaps."""
    energy, last = [0.0], [0]

    def convert(t_ns: int) -> float:
        while last[0] < t_ns:
            last[0] += MS // 10
            energy[0] += watts(last[0]) * 1e-4
        counted = int(energy[0] / unit_j) * unit_j
        return counted if printed_j is None else int(counted / printed_j) * printed_j

    return held(times, period_ns, convert)


def block_average(width_ns: int, period_ns: int, noise_w: float = 0.0) -> tuple[list[int], list[float]]:
    """Mean power over the last part of each period, mW as whole numbers."""
    chance = random.Random(4)

    def convert(t_ns: int) -> float:
        parts = [watts(t_ns - width_ns * k // 50) for k in range(50)]
        return round((sum(parts) / 50 + chance.gauss(0, noise_w)) * 1000) / 1000

    times = polls(MS)
    return times, held(times, period_ns, convert)


def test_the_rounds_of_a_running_average_with_38_mw_steps_are_found_within_a_tenth() -> None:
    times = polls(300_000)
    values = ina3221(times)
    assert refresh_period_ns(times, values, counter=False) == pytest.approx(6.6 * MS, rel=0.1)
    assert step_size(values) == pytest.approx(0.038, rel=1e-9)


def test_the_time_constant_of_a_running_average_is_found_within_fifteen_percent() -> None:
    times = polls(300_000)
    for noise_w in (0.0, 1.0):
        values = ina3221(times, noise_w=noise_w)
        found = filter_of(one_reading_per_refresh(times, values, int(6.6 * MS)), LOAD, int(6.6 * MS))
        assert found is not None
        assert found.kind == RUNNING
        assert found.window_ns == pytest.approx(64 * 6.6 * MS, rel=0.15)


@pytest.mark.parametrize("polled_ns", [150_000, 300_000, 600_000])
def test_a_counter_that_moves_every_millisecond_is_found_within_a_tenth(polled_ns: int) -> None:
    times = polls(polled_ns, seconds=2.0)
    values = counter(times, MS, 2.0**-14, 1e-6)
    assert refresh_period_ns(times, values, counter=True) == pytest.approx(MS, rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_polling_that_stalls_again_and_again_shows_the_refresh_or_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for share, surely_known in ((0.02, True), (0.1, False)):
        times, now = list[int](), 0
        while now < 300 * MS:
            times.append(now)
            now += MS // 4 + (rng.randrange(10 * MS) if rng.random() < share else 0)
        found = refresh_period_ns(times, [0.25 * (t // (10 * MS)) for t in times], counter=True)
        assert (found is None and not surely_known) or found == pytest.approx(10 * MS, rel=0.1)


def test_the_energy_unit_behind_printed_microjoules_is_found() -> None:
    times = polls(400_000, seconds=1.0)
    assert step_size(counter(times, MS, 2.0**-14, 1e-6), counter_of_joules=True) == 2.0**-14


def test_a_counter_of_millijoules_that_moves_every_100_ms_is_found() -> None:
    times = polls(MS)
    values = counter(times, 100 * MS, 1e-3)
    assert refresh_period_ns(times, values, counter=True) == pytest.approx(100 * MS, rel=0.1)
    assert step_size(values, counter_of_joules=True) == pytest.approx(1e-3, rel=1e-9)


@pytest.mark.parametrize(("width_ms", "period_ms"), [(25, 100), (100, 100), (60, 20), (300, 50)])
@pytest.mark.parametrize("noise_w", [0.0, 0.05])
def test_the_width_of_a_block_average_is_found_within_fifteen_percent(
    width_ms: int, period_ms: int, noise_w: float
) -> None:
    times, values = block_average(width_ms * MS, period_ms * MS, noise_w)
    refresh_ns = refresh_period_ns(times, values, counter=False)
    assert refresh_ns == pytest.approx(period_ms * MS, rel=0.1)
    found = filter_of(one_reading_per_refresh(times, values, refresh_ns), LOAD, refresh_ns)
    assert found is not None
    assert found.kind == BLOCK
    assert found.window_ns == pytest.approx(width_ms * MS, rel=0.15)


def test_a_spot_reading_is_told_from_an_average() -> None:
    chance = random.Random(5)
    times = polls(300_000)
    values = held(times, 10 * MS, lambda t: round((watts(t) + chance.gauss(0, 0.1)) / 0.02) * 0.02)
    found = filter_of(one_reading_per_refresh(times, values, 10 * MS), LOAD)
    assert found is not None
    assert (found.kind, found.window_ns) == (NONE, None)


def test_a_channel_that_the_load_does_not_move_has_no_known_filter() -> None:
    chance = random.Random(6)
    times = polls(MS)
    values = held(times, 10 * MS, lambda t: round(chance.gauss(5, 0.1), 2))
    assert refresh_period_ns(times, values, counter=False) == pytest.approx(10 * MS, rel=0.1)
    assert filter_of(one_reading_per_refresh(times, values, 10 * MS), LOAD) is None


def test_what_did_not_change_is_not_known() -> None:
    times = polls(MS)
    assert refresh_period_ns(times, [5.0] * len(times), counter=False) is None
    assert step_size([5.0, 5.0]) is None
    assert refresh_period_ns([], [], counter=True) is None
    assert filter_of([], LOAD) is None
    nothing: Load = []
    assert filter_of([(t, 1.0) for t in times], nothing) is None


def test_a_source_that_is_fresh_at_each_read_has_no_refresh_that_could_be_seen() -> None:
    chance = random.Random(7)
    times = polls(MS)
    values = [chance.gauss(5, 1) for _ in times]
    assert refresh_period_ns(times, values, counter=False) is None
    assert step_size(values) is None


def test_a_quantum_that_is_printed_in_whole_milliwatts_is_found_behind_the_rounding() -> None:
    values = [math.floor(n * 76.8) / 1000 for n in (20, 21, 22, 24, 27, 28, 30, 31, 33, 36, 40, 41, 44)]
    found = step_size(values)
    assert found == pytest.approx(0.0768, rel=0.005)
