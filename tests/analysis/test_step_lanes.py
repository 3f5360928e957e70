"""One step as lanes, and what was sampled under it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.analysis.powered import powered, rail, times
from tests.fabricate import STEP, Core, Op, every_step, fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.time.tracks import step_lanes, step_tracks

KERNEL = Op("sgemm_kernel", "fc", "forward", 300, device="cuda:0", thread=7)


def _run(folder: Path, **more: object) -> Run:
    return Run(fabricate_run(folder, steps=10, recorded=every_step, **more))  # type: ignore[arg-type]


def test_every_op_of_the_step_has_one_place_and_none_overlap(tmp_path: Path) -> None:
    run = _run(tmp_path, ops=(*STEP, KERNEL))
    lanes = step_lanes(run)
    assert len(lanes) == len(run.anatomy())
    for _, row in lanes.group_by("lane", "level"):
        ordered = row.sort("start_ns")
        assert (ordered["start_ns"][1:] >= ordered["end_ns"][:-1]).all()


def test_threads_come_first_and_streams_have_lanes_of_their_own(tmp_path: Path) -> None:
    lanes = step_lanes(_run(tmp_path, ops=(*STEP, KERNEL)))
    assert lanes.select("lane", "label").unique().sort("lane").rows() == [(0, "thread 1"), (1, "cuda:0 stream 7")]


def test_an_op_lies_one_level_below_what_called_it(tmp_path: Path) -> None:
    lanes = step_lanes(_run(tmp_path))
    levels = dict(lanes.select("name", "level").rows())
    assert [levels[name] for name in ("nn.Net", "nn.Sequential", "nn.Conv2d", "aten::mkldnn_convolution")] == [
        0,
        1,
        2,
        3,
    ]


def test_a_run_without_ops_has_no_lanes(tmp_path: Path) -> None:
    assert step_lanes(_run(tmp_path, ops=())).is_empty()


def test_a_rail_that_is_slower_than_the_step_gives_one_window_about_it(tmp_path: Path) -> None:
    slow = rail("VDD_IN", 5.0, times(20), refresh_ns=100_000_000)
    run = powered(tmp_path, slow, steps=20, ops=STEP, residual_us=1000)
    tracks = step_tracks(run, 10).filter(pl.col("track") == "power")
    (window,) = tracks.to_dicts()
    assert window["value"] == pytest.approx(5.0)
    assert window["end_ns"] - window["start_ns"] >= 200_000_000
    assert window["start_ns"] < 0


def test_time_that_was_not_read_is_null_and_never_0(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=20, period_ns=1_000_000, gap=(0.4, 0.7), cores=(Core(0.5),)))
    values = step_tracks(run, 10).filter(pl.col("track") == "core")["value"]
    assert len(values)
    assert values.null_count() == len(values)


def test_a_step_that_the_run_does_not_have_has_no_tracks(tmp_path: Path) -> None:
    assert step_tracks(_run(tmp_path), 99).is_empty()
