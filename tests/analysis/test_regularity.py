"""Periods found from samples alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.fabricate import Sampled, fabricate_run

from stepscope.analysis.channels import Series
from stepscope.analysis.periodicity import _first_peak, period_of, regularity
from stepscope.analysis.run import Run


def _samples(period_ns: float, seed: int = 0) -> Series:
    """10 ms samples with jitter of a square wave in noise."""
    rng = np.random.default_rng(seed)
    t_ns = np.arange(2000) * 1e7 + rng.uniform(0, 2e6, 2000)
    values = np.asarray((t_ns % period_ns < 0.4 * period_ns) + rng.normal(0, 0.2, 2000), dtype=np.float64)
    return Series("rail:x", "x", 1, np.asarray(t_ns, dtype=np.float64), values, np.empty((0, 2)))


@pytest.mark.parametrize("step_ns", [1.37e8, 2.5e8])
def test_the_period_of_the_samples_is_that_of_the_steps(step_ns: float) -> None:
    period_ns, likeness = period_of(_samples(step_ns), 0, 2e10, step_ns)
    assert period_ns == pytest.approx(step_ns, rel=0.02)
    assert likeness is not None
    assert likeness > 0.5


def test_noise_has_no_period() -> None:
    rng = np.random.default_rng(1)
    noise = Series("rail:x", "x", 1, np.arange(2000, dtype=np.float64) * 1e7, rng.normal(size=2000), np.empty((0, 2)))
    assert period_of(noise, 0, 2e10, 2e8) == (None, None)


def test_samples_that_are_unlike_themselves_at_every_distance_have_no_period() -> None:
    assert _first_peak(np.array([1.0, -0.5, -0.2, -0.6, -0.3, -0.7])) is None


def test_steps_shorter_than_two_samples_show_no_period() -> None:
    assert period_of(_samples(2.5e8), 0, 2e10, 1.5e7) == (None, None)


def test_a_run_states_the_spread_of_its_step_times(tmp_path: Path) -> None:
    frame = regularity(Run(fabricate_run(tmp_path, steps=40, noise=0.05)))
    row = frame.filter(quantity="step_time").row(0, named=True)
    assert 0 < row["spread"] < 0.2
    assert row["changes"] == 0


def test_a_counter_of_energy_that_wraps_shows_the_power_that_it_counted(tmp_path: Path) -> None:
    t_ns = np.arange(-2, 68) * 10_000_000
    joules = (5.0 + 20.0 * (t_ns + 2e7) / 1e9) % 12.0  # 20 W, and a wrap at 12 J
    about = {"quantity": "energy", "unit": "J", "kind": "counter", "scope": "package-0", "refresh_ns": 1_000_000}
    counter = Sampled({"id": "energy", "sensor": "rapl", "source": "synthetic", **about}, t_ns, joules)
    row = regularity(Run(fabricate_run(tmp_path, steps=40, sampled=(counter,)))).row(
        by_predicate=pl.col("quantity") == "energy", named=True
    )
    assert row["mean"] == pytest.approx(20.0)
    assert row["spread"] < 1e-6
