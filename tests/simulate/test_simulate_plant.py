"""The power model: known, repeatable, and integrated without error."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.arrays import Ints
from stepscope.simulate.boards import BOARDS, Options
from stepscope.simulate.marks import FIXED, IDLE, State
from stepscope.simulate.power import PowerSimulator, PowerTable, Segments

TX2 = BOARDS["jetson-tx2"]
KINDS = [State(f"Kind{number}", "forward", "place", "shape") for number in range(200)]
DRAWN = Options(computed=False)
S = 1_000_000_000


def table(options: Options | None = None, seed: int = 0) -> PowerTable:
    powers = PowerTable(TX2, options or DRAWN, seed)
    powers.add([*FIXED, *KINDS])
    return powers


def times(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def total_w(powers: PowerTable, state: State) -> float:
    powers.add([state])
    return float(powers.above_idle_w[-1, list(TX2.rails).index("VDD_IN")])


def test_a_state_has_the_same_power_in_every_run_of_a_seed_and_another_with_another_seed() -> None:
    assert np.array_equal(table().above_idle_w, table().above_idle_w)
    assert not np.allclose(table().above_idle_w[4:], table(seed=1).above_idle_w[4:])


def test_kinds_spread_from_3_to_10_watts_and_idle_is_idle() -> None:
    powers = table()
    column = list(TX2.rails).index("VDD_IN")
    watts = powers.idle_w[column] + powers.above_idle_w[len(FIXED) :, column]
    assert watts.min() < 4 < 9 < watts.max() < 13
    assert not powers.above_idle_w[IDLE].any()


def test_a_signature_changes_power_more_than_a_place_and_less_than_a_kind() -> None:
    powers = table()
    shapes = np.log([total_w(powers, State("Kind0", "forward", "place", f"{n}")) for n in range(100)])
    places = np.log([total_w(powers, State("Kind0", "forward", f"{n}", "shape")) for n in range(100)])
    kinds = np.log([total_w(powers, State(f"K{n}", "forward", "place", "shape")) for n in range(100)])
    assert shapes.std() == pytest.approx(0.08, rel=0.3)
    assert places.std() == pytest.approx(0.02, rel=0.3)
    assert kinds.std() > 0.3


def test_the_named_rails_lie_inside_the_total_with_a_rest() -> None:
    powers = table()
    rails = list(TX2.rails)
    named = [rails.index(name) for name in rails if name != "VDD_IN"]
    assert (powers.above_idle_w[4:, named].sum(axis=1) < powers.above_idle_w[4:, rails.index("VDD_IN")]).all()


def test_energy_is_the_sum_of_watts_times_seconds_whatever_the_ticks() -> None:
    whole, kept = [], list[Segments]()
    for ticks in ([2 * S], [S // 3, S, 2 * S], list(range(0, 2 * S + 1, S // 10))[1:]):
        kept.clear()
        plant = PowerSimulator(table(), Options(computed=False, noise=0, drift=0), 0, 0, kept.append)
        marks, states = times(S // 2, S, S + S // 2), times(5, 6, 7)
        for before, until in zip([0, *ticks], ticks, strict=False):
            inside = (marks > before) & (marks <= until)
            stretch = plant.advance(until, marks[inside], states[inside])
        whole.append(stretch.joules[-1])
    watts = table().idle_w + table().above_idle_w[[IDLE, 5, 6, 7]]
    assert np.allclose(whole, watts.sum(axis=0) / 2)


def test_marks_of_later_wait_and_marks_that_come_late_begin_now() -> None:
    kept: list[Segments] = []
    plant = PowerSimulator(table(), Options(computed=False, noise=0, drift=0), 0, 0, kept.append)
    plant.advance(S, times(2 * S), times(5))
    assert [part["state"].tolist() for part in kept] == [[IDLE]]
    plant.advance(3 * S, times(S // 2), times(6))
    assert kept[-1]["t_ns"].tolist() == [S, 2 * S, 2 * S]  # heat is followed, then the waiting mark, then the late one
    assert kept[-1]["state"].tolist() == [IDLE, 5, 6]


def test_a_throttle_takes_its_share_of_the_power_above_idle() -> None:
    kept: list[Segments] = []
    plant = PowerSimulator(
        table(), Options(computed=False, noise=0, drift=0, throttle_at_s=1, throttle=0.5), 0, 0, kept.append
    )
    plant.advance(S, times(0), times(5))
    before = plant.advance(S + S // 2, times(), times()).watts[-1]
    after = plant.advance(2 * S, times(), times()).watts[-1]
    powers = table()
    assert np.allclose(before, powers.idle_w + 0.5 * powers.above_idle_w[5])
    assert np.allclose(after, before)


def test_heat_raises_power_by_the_drift_in_the_long_run() -> None:
    plant = PowerSimulator(table(), Options(computed=False, noise=0, drift=0.1, drift_tau_s=1), 0, 0, lambda _: None)
    plant.advance(S // 10, times(0), times(5))
    for second in range(1, 11):
        stretch = plant.advance(second * S, times(), times())
    powers = table()
    assert np.allclose(stretch.watts[-1], powers.idle_w + 1.1 * powers.above_idle_w[5], rtol=1e-3)
