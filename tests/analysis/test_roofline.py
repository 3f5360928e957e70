"""The roofline of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fabricate import STEP, Op, every_step, fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.verdict import roofline, roofs


def _run(folder: Path) -> Run:
    copied = Op("aten::add", "fc", "forward", 1_000, flops=1_000, bytes=4_000_000)
    return Run(fabricate_run(folder, steps=10, recorded=every_step, ops=(*STEP, copied)))


def test_a_point_is_what_the_ops_state_over_their_own_time(tmp_path: Path) -> None:
    points = {row["name"]: row for row in roofline(_run(tmp_path)).to_dicts()}
    conv = points["aten::mkldnn_convolution"]
    assert conv["flop_per_byte"] == pytest.approx(6_000_000 / 50_000)
    assert conv["flops_per_s"] == pytest.approx(6_000_000 / 3e-3)
    assert conv["bytes_per_s"] == pytest.approx(50_000 / 3e-3)


def test_kinds_that_state_no_bytes_are_left_out(tmp_path: Path) -> None:
    assert set(roofline(_run(tmp_path))["name"]) == {"aten::mkldnn_convolution", "aten::addmm", "aten::add"}


def test_the_roofs_are_the_highest_rates_of_the_run_and_part_the_kinds(tmp_path: Path) -> None:
    points = roofline(_run(tmp_path))
    highest = {roof: (value, name) for _, roof, value, name in roofs(points).rows()}
    assert highest["compute"] == (pytest.approx(2e9), "aten::mkldnn_convolution")
    assert highest["memory"] == (pytest.approx(4e9), "aten::add")
    waits = dict(points.select("name", "waits_for").rows())
    assert waits == {"aten::mkldnn_convolution": "arithmetic", "aten::addmm": "arithmetic", "aten::add": "memory"}


def test_a_run_whose_ops_state_nothing_has_no_points(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=10, ops=(Op("aten::relu", None, "forward", 100),)))
    assert roofline(run).is_empty()
    assert roofs(roofline(run)).is_empty()
