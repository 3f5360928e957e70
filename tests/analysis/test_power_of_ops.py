"""Power from op to op of a step, on a run whose power follows its ops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.analysis.attribution.powered_run import GAP_W, OTHER_W, WATTS, powered_run
from tests.fabricate import fabricate_run

from stepscope.analysis.energy.fit_span import slice_to_fit
from stepscope.analysis.energy.tables import POWER_SCHEMA, _thin_power_curve, operator_power
from stepscope.analysis.run import Run
from stepscope.analysis.time.tracks import OPERATOR_POWER, step_tracks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(powered_run(tmp_path_factory.mktemp("powered")))


def test_the_pieces_follow_one_another_and_make_up_the_step(run: Run) -> None:
    frame = run.power_of_ops()
    (step,) = frame["step"].unique()
    length = run.steps.filter(pl.col("step") == step).select(pl.col("t1_ns") - pl.col("t0_ns")).item()
    assert frame.schema == pl.Schema(POWER_SCHEMA)
    assert frame["start_ns"][0] == 0
    assert frame["end_ns"][-1] == length
    assert frame["end_ns"][:-1].to_list() == frame["start_ns"][1:].to_list()


def test_what_runs_has_the_power_that_its_kind_drew(run: Run) -> None:
    frame = run.power_of_ops()
    widths = (frame["end_ns"] - frame["start_ns"]).to_numpy()
    levels = sorted({GAP_W, OTHER_W, *WATTS.values()})
    for watts, width, known in zip(frame["power_w"], widths, frame["known"], strict=True):
        if known and width > 100_000:
            assert min(abs(watts - level) / level for level in levels) < 0.1


def test_its_mean_is_the_energy_of_a_step(run: Run) -> None:
    frame, whole = run.power_of_ops(), run.energy("component")
    spent = (frame["power_w"] * (frame["end_ns"] - frame["start_ns"]) / 1e9).sum()
    assert spent == pytest.approx(whole["joules_per_step"][0], rel=0.1)


def test_of_a_long_run_the_power_is_of_the_step_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.analysis.energy.fit_span.MOST_READINGS", 150)
    path = powered_run(tmp_path)
    for part in [path / "steps.parquet", *sorted((path / "ops").glob("*.parquet"))]:
        frame, late = pl.read_parquet(part), pl.col("step") >= 200
        frame = frame.with_columns(recorded=late) if "recorded" in frame.columns else frame.filter(late)
        frame.write_parquet(part)
    long = Run(path)
    steps = slice_to_fit(long).steps["step"]
    assert steps[0] >= 200
    frame = operator_power(long, long.attributed_rails, int(steps[5]))
    spent = (frame["power_w"] * (frame["end_ns"] - frame["start_ns"])).sum() / frame["end_ns"][-1]
    assert spent == pytest.approx(long.energy("component")["watts"][0], rel=0.1)
    assert len(frame) > 10
    assert operator_power(long, long.attributed_rails, 5).is_empty()


def test_a_second_reader_does_not_fit_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.power_of_ops()
    monkeypatch.setattr("stepscope.analysis.energy.rail_fits.attribute_energy", lambda *_: pytest.fail("fitted again"))
    assert Run(run.path).power_of_ops().equals(before)


def test_the_tracks_of_the_step_have_it_beside_what_was_read(run: Run) -> None:
    step = int(run.anatomy()["step"][0])
    tracks = step_tracks(run, step).filter(pl.col("track") == OPERATOR_POWER)
    assert tracks["value"].to_list() == run.power_of_ops()["power_w"].to_list()
    other = next(number for number in run.steps["step"] if number not in (step, 0))
    assert step_tracks(run, other).filter(pl.col("track") == OPERATOR_POWER).is_empty()


def test_without_power_there_is_none(tmp_path: Path) -> None:
    bare = Run(fabricate_run(tmp_path, steps=10))
    assert bare.power_of_ops().is_empty()
    assert operator_power(bare, [], 5).schema == pl.Schema(POWER_SCHEMA)


def test_too_many_pieces_become_windows_of_the_same_energy() -> None:
    edges = np.cumsum(np.append(0.0, np.random.default_rng(0).uniform(1e-6, 5e-5, 20_000)))
    watts = np.random.default_rng(1).uniform(1, 9, 20_000)
    at, means, sure = _thin_power_curve(edges, watts, np.ones(20_000, dtype=bool))
    assert len(means) < 2_000
    assert float(means @ np.diff(at)) == pytest.approx(float(watts @ np.diff(edges)))
    assert sure.all()
