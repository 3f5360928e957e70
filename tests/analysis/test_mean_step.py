"""Energy of a step and of a sample: as unsure as the power and the mean length of the steps are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.analysis.powered import STEP_S, TX2, powered, rail, times, total

from stepscope.analysis.compare import compare
from stepscope.analysis.metrics import throughput
from stepscope.analysis.run import Run

_BUCKETS = np.random.default_rng(7).choice([0.5, 1.0, 2.2], 1000)  # lengths of sequences, in some order


def _bucketed(out: Path, first: int) -> Run:
    """A training whose steps differ in length, at one power throughout."""
    t_ns = times(900, before_s=1)
    lengths = {"noise": 0.0, "stretch": lambda step: float(_BUCKETS[first + step])}
    return powered(out, rail("VDD_IN", 10, t_ns), steps=203, device=TX2, recorded=lambda _: False, **lengths)


def test_the_energy_of_a_step_is_as_unsure_as_the_mean_length_of_the_steps(tmp_path: Path) -> None:
    run = _bucketed(tmp_path, 0)
    row, lengths = total(run), (run.steps["t1_ns"] - run.steps["t0_ns"]).to_numpy()[3:]
    stretches = lengths.reshape(20, 10).mean(axis=1)  # neighbours may be alike: no step is an observation of its own
    half = 2.093 * stretches.std(ddof=1) / np.sqrt(20) / lengths.mean()
    for part in ("joules_per_step", "joules_per_sample"):
        assert row[f"{part}_high"] / row[part] - 1 == pytest.approx(half, rel=0.01)
        assert 1 - row[f"{part}_low"] / row[part] == pytest.approx(half, rel=0.01)


def test_the_energy_of_a_step_of_a_run_that_drifts_is_as_unsure_as_its_throughput(tmp_path: Path) -> None:
    slower = {"noise": 0.01, "stretch": lambda step: 1 + 0.3 * step / 403}
    t_ns = times(600, before_s=1)
    run = powered(tmp_path, rail("VDD_IN", 10, t_ns), steps=403, device=TX2, recorded=lambda _: False, **slower)
    (rate,) = (entry for entry in throughput(run) if entry.metric == "throughput")
    assert rate.value is not None
    assert rate.high is not None
    row = total(run)
    for part in ("joules_per_step", "joules_per_sample"):
        assert row[f"{part}_high"] / row[part] - 1 == pytest.approx(rate.high / rate.value - 1, rel=0.05)
        assert row[f"{part}_high"] / row[part] - 1 > 0.03


def test_the_energy_of_few_steps_has_no_interval(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", 10, times(8)), steps=8, device=TX2)
    row = total(run)
    assert row["joules_per_step"] == pytest.approx(10 * STEP_S)
    assert (row["joules_per_step_low"], row["joules_per_sample_high"]) == (None, None)
    (measured,) = run.metrics().filter(metric="energy_per_step", scope="total").to_dicts()
    assert "too few steps for an interval" in measured["note"]


def test_trainings_whose_steps_differ_in_length_by_chance_differ_by_no_energy(tmp_path: Path) -> None:
    pair = compare([_bucketed(tmp_path / str(first), first) for first in (0, 600)])
    rows = pair.quantities.filter(pl.col("metric").is_in(["energy_per_step", "energy_per_sample"]), side=1)
    assert (rows["ratio"] - 1).abs().min() > 0.01
    assert set(rows["difference"]) == {"none seen"}
