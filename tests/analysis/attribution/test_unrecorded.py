"""Steps without recorded ops take the shape of the median step of their length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.analysis.attribution.powered_run import powered_run
from tests.analysis.attribution.simulated import execute, resnet_step, thinned
from tests.fabricate import fabricate_run

from stepscope.analysis.energy.attribution import _errors_of_times
from stepscope.analysis.energy.calibration_readings import readings_near_profiled
from stepscope.analysis.energy.fit_inputs import RunTimelines
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.timeline import Lane, Timeline, fill_unprofiled
from stepscope.analysis.run import Run
from stepscope.arrays import Floats, Ints


def test_every_step_has_its_ops_after_filling_and_recorded_ones_are_untouched() -> None:
    run = execute(resnet_step(0), 20, 1)
    part, kept = thinned(run, 5)
    lane, scatter = fill_unprofiled(part.lanes[0], part.step_t0, part.step_t1, part.recorded)
    whole = run.timeline.lanes[0]
    assert len(lane.t0) == len(whole.t0)
    assert (lane.key == whole.key).all()
    n = run.program.places
    rows = (kept[:, None] * n + np.arange(n)).ravel()
    assert lane.t0[rows] == pytest.approx(whole.t0[rows])
    assert np.median(np.abs(lane.t0 - whole.t0)) < 0.005
    assert (lane.t1[:-1] <= lane.t0[1:] + 1e-4).all()  # stamps are 5 us off
    assert scatter is not None
    off = np.abs(lane.t0 - whole.t0)[~np.isin(np.arange(len(lane.t0)), rows)]
    assert 0.2 < np.median(off) / np.median(scatter.sd[scatter.sd > 0]) < 2
    assert scatter.sd_at(part.step_t0) == pytest.approx(np.zeros(20), abs=1e-4)


def test_a_short_step_is_filled_from_short_ones() -> None:
    step_t0 = np.array([0.0, 1.0, 11.0, 12.0, 22.0])
    step_t1 = np.array([1.0, 11.0, 12.0, 22.0, 23.0])
    lane = Lane(np.array([0.2, 3.0]), np.array([0.8, 9.0]), np.array([0, 1]))
    done, _ = fill_unprofiled(lane, step_t0, step_t1, np.array([True, True, False, False, False]))
    assert done.key.tolist() == [0, 1, 0, 1, 0]
    assert done.t0 == pytest.approx([0.2, 3.0, 11.2, 14.0, 22.2])
    assert done.t1 == pytest.approx([0.8, 9.0, 11.8, 20.0, 22.8])


def test_nothing_recorded_is_nothing_to_fill_from() -> None:
    lane = Lane(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))
    done, scatter = fill_unprofiled(lane, np.array([0.0]), np.array([1.0]), np.array([False]))
    assert len(done.t0) == 0
    assert scatter is None


def test_one_profiled_step_among_many_claims_no_energy_and_says_why(tmp_path: Path) -> None:
    run = Run(powered_run(tmp_path, steps=200, keep_every=150))
    assert run.steps.slice(run.warmup_steps)["recorded"].sum() == 1
    kinds = run.energy(by="kind")
    assert kinds["joules_per_step"].is_not_null().all()
    assert kinds["low"].is_null().all()
    assert set(kinds["verdict"]) == {"not identifiable"}
    assert kinds["reason"].str.contains("1 profiled step cannot tell").all()


def test_operators_of_the_same_power_share_energy_as_unsurely_as_they_share_time() -> None:
    run = execute(resnet_step(0), 12, 1)
    part = replace(run.timeline, recorded=np.arange(12) < 6)
    lane, length, gap = part.lanes[0], part.step_t1 - part.step_t0, part.keys.gap
    spent = np.zeros((12, part.keys.count))
    np.add.at(spent, (part.step_of((lane.t0 + lane.t1) / 2), lane.key), lane.t1 - lane.t0)
    spent[:, gap] = length - spent.sum(axis=1)
    sd_of_mean = (spent / length[:, None])[:6].std(axis=0, ddof=1) / np.sqrt(6)
    joules = _errors_of_times(part, np.full(part.keys.count, 5.0)) * part.seconds
    assert joules.sum(axis=1) == pytest.approx(np.zeros(6), abs=1e-9)
    student = 4.032 / 2.576  # of 6 steps over the normal one, at 99 %
    assert np.sqrt((joules**2).sum(axis=0)) == pytest.approx(5 * sd_of_mean * length[6:].sum() * student, rel=2e-3)


def test_the_profiling_overhead_in_the_times_of_operators_is_an_error_of_their_energies(tmp_path: Path) -> None:
    costs = {f"{kind}_{where}_ns": 60_000.0 for kind in ("op", "call") for where in ("inside", "outside")}
    header = {"overhead": {"event": costs}}
    run = Run(fabricate_run(tmp_path, steps=60, recorded=lambda step: step % 5 == 0, overhead=0.15, header=header))
    made = RunTimelines(run, lambda: run.step_times).for_component("total")
    assert made is not None
    errors, timeline = made.timeline.share_errors, made.timeline
    assert errors is not None
    assert errors.sum() == pytest.approx(0, abs=1e-9)
    bare = run.step_times.table.group_by("phase", "name").agg(pl.col("self_ns").sum())
    whole = len(run.step_times.steps) * run.step_times.step_ns
    found = made.ops.with_columns(seconds=pl.Series(made.seconds)).filter(pl.col("phase").is_not_null())
    by_name = found.group_by("phase", "name").agg("key", pl.col("seconds").sum())
    off = []
    for row in by_name.join(bare, on=["phase", "name"]).iter_rows(named=True):
        share = row["seconds"] / (timeline.end - timeline.begin)
        off.append(share - row["self_ns"] / whole)
        assert share + errors[np.unique(row["key"])].sum() == pytest.approx(row["self_ns"] / whole, rel=0.02, abs=1e-5)
    assert max(np.abs(off)) > 0.002
    row = _errors_of_times(timeline, np.full(timeline.keys.count, 5.0))[-1] * timeline.seconds
    filled = float((timeline.step_t1 - timeline.step_t0)[~timeline.recorded].sum())
    assert row == pytest.approx(5 * errors * filled, rel=1e-6, abs=1e-9)


def test_a_sensor_is_learnt_from_profiled_steps_and_from_as_many_beside_them() -> None:
    run = execute(resnet_step(0), 100, 1)
    part, kept = thinned(run, 20)
    lane, scatter = fill_unprofiled(part.lanes[0], part.step_t0, part.step_t1, part.recorded)
    filled = replace(part, lanes=(lane,), scatter=scatter)
    stamp = np.arange(filled.begin, filled.end, filled.step_length / 40)
    chosen = readings_near_profiled(filled, Readings(stamp, np.ones(len(stamp))))
    steps, count = np.unique(filled.step_of(chosen.stamp), return_counts=True)
    assert set(kept) <= set(steps)
    assert 2 * len(kept) <= len(steps) <= 2 * len(kept) + 2
    assert np.abs(steps[:, None] - kept).min(axis=1).max() == 1  # the nearest ones
    assert count.min() > 30
    many = np.arange(filled.begin, filled.end, filled.step_length / 100)
    alone = readings_near_profiled(filled, Readings(many, np.ones(len(many))))
    assert set(filled.step_of(alone.stamp)) == set(kept)


def test_draws_of_a_template_are_off_by_as_much_as_the_template_is() -> None:
    off, drawn = [], []
    for seed in range(6):
        run = execute(resnet_step(0), 120, seed)
        part, kept = thinned(run, 15)
        n = run.program.places
        lane, scatter = fill_unprofiled(part.lanes[0], part.step_t0, part.step_t1, part.recorded)
        assert scatter is not None
        bare = np.setdiff1d(np.arange(120), kept)

        def shares(t: Floats, of: Timeline = part, among: Ints = bare, places: int = n) -> Floats:
            """Begins of the steps that were not profiled, as shares of the step, in the middle of all of them."""
            begin, length = of.step_t0[:, None], (of.step_t1 - of.step_t0)[:, None]
            return np.asarray(np.median(((t.reshape(-1, places) - begin) / length)[among], axis=0))

        off.append(shares(lane.t0) - shares(run.timeline.lanes[0].t0))
        moved = [scatter.moved_lane(lane, draw) for draw in range(len(scatter.shifts))]
        drawn.append([shares(other.t0) - shares(lane.t0) for other in moved])
        rows = (kept[:, None] * n + np.arange(n)).ravel()
        assert all(other.t0[rows] == pytest.approx(lane.t0[rows], abs=2e-5) for other in moved)  # stamps leave the step
        assert all((np.diff(other.t0) >= -1e-9).all() for other in moved)
    ratio = np.sqrt(np.mean(np.square(drawn))) / np.sqrt(np.mean(np.square(off)))
    assert 0.6 < ratio < 1.7
