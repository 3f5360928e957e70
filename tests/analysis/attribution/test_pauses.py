"""An evaluation between two steps is work of another kind than what the loop does between any two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.analysis.attribution.powered_run import GAP_W, PAUSE_W, Apart, pauses_of, powered_run, true_joules

from stepscope.analysis.energy import fit_span
from stepscope.analysis.energy.fit_inputs import BETWEEN, PAUSES
from stepscope.analysis.energy.operators import energy_by
from stepscope.analysis.run import Run

APART = Apart(gap_s=0.004, pause_s=0.35, every=15)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(powered_run(tmp_path_factory.mktemp("pauses"), steps=300, apart=APART))


def _joules(run: Run, name: str) -> tuple[float, float, float]:
    """Energy of a row over all steps after warm-up, J, and its interval."""
    rows = run.energy(by="kind").filter(name=name)
    steps = len(run.steps) - run.warmup_steps
    return tuple(rows[column][0] * steps for column in ("joules_per_step", "low", "high"))


def test_pauses_have_a_row_and_a_power_of_their_own(run: Run) -> None:
    seconds = float(np.diff(pauses_of(run), axis=1).sum()) / 1e9
    joules, low, high = _joules(run, PAUSES)
    assert low <= PAUSE_W * seconds <= high
    assert joules == pytest.approx(PAUSE_W * seconds, rel=0.01)


def test_the_loop_between_two_steps_keeps_its_own(run: Run) -> None:
    short = len(run.steps) - run.warmup_steps - 1 - len(pauses_of(run))
    joules, low, high = _joules(run, BETWEEN)
    assert low <= GAP_W * short * APART.gap_s <= high
    assert joules < 1.5 * GAP_W * short * APART.gap_s


def test_ops_are_as_right_as_without_pauses(run: Run) -> None:
    true = true_joules(run.path)
    found = {name: _joules(run, name)[0] for name in true}
    off = sum(abs(found[name] - joules) for name, joules in true.items())
    assert off <= 0.03 * sum(true.values())


def test_ops_of_a_long_run_lose_nothing_for_the_pauses_in_the_stretch_that_they_are_fitted_to(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_span, "MOST_READINGS", 800)
    long = Run(run.path)
    assert long.attributed_rails[0].ops.timeline.steps < 250
    found = energy_by(long.attributed_rails, "kind").filter(~pl.col("name").str.starts_with("("))
    true = sum(true_joules(run.path).values()) / (len(run.steps) - run.warmup_steps)
    assert found["joules_per_step"].sum() == pytest.approx(true, rel=0.06)


def test_a_run_without_pauses_says_nothing_of_them(tmp_path: Path) -> None:
    run = Run(powered_run(tmp_path, steps=60))
    assert PAUSES not in run.energy(by="kind")["name"].to_list()
