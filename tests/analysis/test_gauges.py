"""Gauges: what their own readings tell of them."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.energy.power_sources import cut_off_w, integrate_power, observed_refresh_ns

MS = 1e6
T = (np.arange(300) * 100 * MS).astype(np.float64)


def test_a_gauge_that_moves_once_a_second_is_seen_to() -> None:
    watts = (9.0 + (np.arange(300) + 4) // 10).astype(np.float64)
    assert observed_refresh_ns(T, watts) == 1000 * MS


def test_one_change_alone_tells_the_longer_of_its_two_sides() -> None:
    assert observed_refresh_ns(T, np.where(np.arange(300) < 100, 9.0, 14.0)) == pytest.approx(19_900 * MS)


@pytest.mark.parametrize("watts", [np.full(300, 9.0), np.arange(300) * 0.1, np.arange(300) // 2 * 1.0])
def test_a_gauge_that_never_moves_or_with_nearly_every_reading_tells_nothing(watts: np.ndarray) -> None:
    assert observed_refresh_ns(T, watts) == 0.0


def test_several_readings_under_one_stamp_leave_no_gap_at_the_next_one() -> None:
    growth = integrate_power(np.repeat(T[::10], 4), np.full(120, 9.0))
    assert not growth.gap.any()
    assert growth.known_growth[-1] == pytest.approx(29 * 9.0)


def _power(count: int = 2_000) -> np.ndarray:
    """Power that changes between two kinds of work, to 10 mW, W."""
    random = np.random.default_rng(3)
    return np.round(np.where(np.arange(count) % 7 < 3, 9.0, 5.0) + 0.4 * random.standard_normal(count), 2)


@pytest.mark.parametrize("share", [0.7, 0.9, 0.98])
def test_a_gauge_whose_range_ends_below_the_power_is_seen_to(share: float) -> None:
    watts = _power()
    top = float(np.quantile(watts, share))
    assert cut_off_w(np.minimum(watts, top)) == top


@pytest.mark.parametrize(
    "watts",
    [
        _power(),
        np.round(_power() * 2) / 2,  # steps of 0.5 W
        np.repeat(_power(200), 10),  # held between updates
        np.where(np.arange(2_000) % 2, 9.0, 5.0),
        np.where(np.arange(2_000) % 100 > 90, 12.0, _power()),  # pauses of one power between steps
        np.arange(300) * 0.1,
        np.full(300, 9.0),
        np.empty(0),
    ],
)
def test_a_gauge_that_shows_all_power_is_not_cut_off(watts: np.ndarray) -> None:
    assert cut_off_w(watts) is None
