"""Ops of a run as pieces of self time, thread by thread, and lanes that run beside one another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.analysis.attribution.scores import grouping
from tests.analysis.attribution.simulated import Device, execute, resnet_step, sampled
from tests.fabricate import STEP, Op, fabricate_run, walk

from stepscope.analysis.energy.attribution import FitOptions, attribute_energy
from stepscope.analysis.energy.fit_inputs import run_pieces, run_timeline
from stepscope.analysis.energy.operators import energy_by
from stepscope.analysis.energy.rail_fits import fit_rails, group_energies
from stepscope.analysis.energy.timeline import Keys, Lane
from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD, Track, join_tracks
from stepscope.analysis.time.spans import overlay


def test_each_op_has_its_own_time_and_its_children_theirs(tmp_path: Path) -> None:
    pieces, _ = run_pieces(Run(fabricate_run(tmp_path, steps=10, recorded=lambda _: True)))
    (track,) = pieces.tracks
    spent = np.bincount(track.op, track.t1 - track.t0) / 7
    assert set(pieces.ops["part"]) == {0, 2}  # before and after the one op that it calls
    whole = pieces.ops.with_columns(seconds=spent).group_by("name", "module", "phase", "turn")
    for name, seconds in whole.agg(pl.col("seconds").sum()).select("name", "seconds").iter_rows():
        own = [op.self_us for op in walk() if op.name == name]
        assert any(seconds == pytest.approx(us * 1e-6, abs=2e-9) for us in own)
    assert spent.sum() == pytest.approx(0.015)
    assert (track.t0[1:] >= track.t1[:-1] - 1e-12).all()


def test_kernels_explain_the_gpu_rail_and_ops_of_the_cpu_the_others(tmp_path: Path) -> None:
    kernel = Op("gemm", "fc", "forward", 800, device="cuda:0", thread=7)
    ops = (*STEP, Op("aten::x", "fc", "other", 1000, (kernel,)))
    run = Run(fabricate_run(tmp_path, steps=10, recorded=lambda _: True, ops=ops))
    pieces, origin = run_pieces(run)
    gpu, cpu, whole = (run_timeline(run, pieces, origin, component) for component in ("gpu", "cpu", "total"))
    assert gpu is not None
    assert cpu is not None
    assert whole is not None
    assert [len(lanes.timeline.lanes) for lanes in (gpu, cpu, whole)] == [1, 1, 2]
    assert gpu.seconds[gpu.ops["name"].to_list().index("gemm")] == pytest.approx(7 * 800e-6)
    assert whole.timeline.keys.beside.sum() == 1
    for lanes in (gpu, cpu):
        assert lanes.timeline.seconds.sum() == pytest.approx(lanes.timeline.end - lanes.timeline.begin)


def test_a_thread_that_works_while_the_other_waits_joins_its_lane() -> None:
    main = Track("cpu", np.array([0.0, 3.0]), np.array([1.0, 4.0]), np.array([0, 1]), np.zeros(2, int))
    backward = Track("cpu", np.array([1.0]), np.array([2.9]), np.array([2]), np.zeros(1, int))
    loader = Track("cpu", np.array([0.5]), np.array([3.5]), np.array([3]), np.zeros(1, int))
    lanes = join_tracks([main, backward, loader])
    assert [lane.op.tolist() for lane in lanes] == [[0, 2, 1], [3]]
    assert lanes[0].seconds == pytest.approx(3.9)


def test_a_long_operator_goes_on_behind_a_short_one_of_another_thread() -> None:
    main = Track("cpu", np.array([0.0, 50.0]), np.array([50.0, 60.0]), np.array([0, 1]), np.array([0, 2]))
    other = Track("cpu", np.array([1.0, 70.0]), np.array([1.1, 72.0]), np.array([2, 3]), np.array([1, 0]))
    (lane,) = join_tracks([main, other])
    assert lane.op.tolist() == [0, 2, 0, 1, 3]
    assert lane.part.tolist() == [0, 1, 0, 2, 0]
    assert lane.t0.tolist() == [0, 1, 1.1, 50, 70]
    assert lane.t1.tolist() == [1, 1.1, 50, 60, 72]


def test_laid_over_each_other_two_rows_of_pieces_lose_no_time_and_never_run_at_once() -> None:
    random = np.random.default_rng(0)
    for fill in (False, True):
        for _ in range(50):
            rows = [np.sort(random.choice(60, 2 * int(random.integers(0, 8)), replace=False)) for _ in range(2)]
            lower, upper = ((row[::2].astype(float), row[1::2].astype(float)) for row in rows)
            t0, t1, number = overlay(lower, upper, fill)
            at = np.arange(60) + 0.5
            spans = [*zip(*lower, strict=True), *zip(*upper, strict=True)]
            for instant in at.tolist():
                there = [place for place, (begin, end) in enumerate(spans) if begin < instant < end]
                best = sorted(there, key=lambda place: (spans[place][0], place))[-1:]
                best = there[:1] if fill else best
                assert number[(t0 < instant) & (instant < t1)].tolist() == best
            assert (t0[1:] >= t1[:-1]).all()


def test_a_lane_beside_the_first_is_told_apart_from_it() -> None:
    run = execute(resnet_step(0), 100, 1)
    random = np.random.default_rng(3)
    begin = run.timeline.step_t0 + 0.15 * random.random(run.timeline.steps)
    end = begin + 0.03 * np.exp(random.normal(0, 0.1, len(begin)))
    end = np.minimum(end, np.append(begin[1:], run.timeline.end) - 1e-3)
    busy = np.append(0.0, np.cumsum(np.stack([end - begin, np.zeros(len(begin))], 1).ravel()))[:-1]
    edges = np.stack([begin, end], 1).ravel()
    both = replace(run, joules=run.joules + 3.0 * np.interp(run.at, edges, busy))
    keys, lane = run.timeline.keys, run.timeline.lanes[0]
    count = keys.count + 1
    key = np.where(lane.key == keys.gap, count - 1, lane.key)
    wider = Keys(
        np.insert(keys.kind, keys.gap, keys.kind.max() + 1),
        np.insert(keys.signature, keys.gap, keys.signature.max() + 1),
        np.insert(keys.beside, keys.gap, True),
    )
    lanes = (Lane(lane.t0, lane.t1, key), Lane(begin, end, np.full(len(begin), keys.gap)))
    timeline = replace(run.timeline, lanes=lanes, keys=wider)
    found = attribute_energy(timeline, sampled(both, 0, Device(width=0.0011)), FitOptions(periodic=True))
    assert found is not None
    assert found.watts[keys.gap] == pytest.approx(3.0, rel=0.1)
    group = np.where(np.arange(count) == keys.gap, 1, 0)
    assert group_energies(found, grouping(group, 2)).joules[0] == pytest.approx(run.truth.sum(), rel=0.03)


def test_a_step_without_pieces_is_filled_in_like_one_that_was_not_profiled(tmp_path: Path) -> None:
    apart = {"recorder": {"steps_apart": [8, 9]}}  # profiled with shapes or allocations
    path = fabricate_run(tmp_path, steps=20, recorded=lambda _: True, header=apart)
    for part in (path / "ops").glob("*.parquet"):
        pl.read_parquet(part).filter(pl.col("step") != 12).write_parquet(part)  # lost with the process
    run = Run(path)
    pieces, origin = run_pieces(run)
    whole = run_timeline(run, pieces, origin, "total")
    assert whole is not None
    assert np.flatnonzero(~whole.timeline.recorded).tolist() == [5, 6, 9]
    waits = whole.seconds[(whole.ops["name"] == FRAMEWORK_OVERHEAD).to_numpy()].sum()
    assert waits == pytest.approx(17 * 0.001, rel=0.01)


def test_what_runs_beside_other_work_has_no_idle_power_of_its_own(tmp_path: Path) -> None:
    kernel = Op("gemm", "fc", "forward", 800, device="cuda:0", thread=7)
    ops = (*STEP, Op("aten::x", "fc", "other", 1000, (kernel,)))
    run = Run(fabricate_run(tmp_path, steps=60, recorded=lambda _: True, ops=ops, power_w=5.0))
    (rail,) = fit_rails(run, run.rails)
    rail = replace(rail, idle_w=2.0)
    whole, kinds = (energy_by([rail], by, "nearest") for by in ("component", "kind"))
    assert kinds["above_idle"].sum() == pytest.approx(whole["above_idle"].sum())
    beside = kinds.filter(name="gemm")
    assert beside["above_idle"].item() == beside["joules_per_step"].item() > 0


def test_time_after_an_op_is_told_apart_from_time_after_another_and_named_alike(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=10, recorded=lambda _: True))
    pieces, origin = run_pieces(run)
    whole = run_timeline(run, pieces, origin, "total")
    assert whole is not None
    rest = whole.ops.filter(pl.col("name") == FRAMEWORK_OVERHEAD)
    assert len(rest) > 1
    assert rest["key"].n_unique() == len(rest)
    assert rest["phase"].is_null().all()
    seconds = whole.timeline.seconds
    assert seconds.sum() == pytest.approx(whole.timeline.end - whole.timeline.begin)
    assert seconds[rest["key"].to_list()[:-1]].min() > 0
