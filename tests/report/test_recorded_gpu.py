"""Trainings that an H100 ran (torch 2.11, 16 cores): LeNet, and a script with two workers; as written but for paths."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from stepscope.analysis.device.occupancy import occupancy
from stepscope.analysis.run import Run, open_run
from stepscope.analysis.suggested_changes import what_to_change
from stepscope.analysis.time.dependencies import _units_of_step, earliest_end_ns, replay_tasks
from stepscope.analysis.time.schedule import schedule
from stepscope.report.brief import brief
from stepscope.report.first_screen import render

RECORDED = Path(__file__).parent / "recorded"


def unpacked(name: str, folder: Path) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(RECORDED / f"{name}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return open_run(str(next(folder.iterdir())))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return unpacked("h100-lenet", tmp_path_factory.mktemp("runs"))


def test_no_call_of_cuda_and_no_copy_of_a_scope_is_an_operator(run: Run) -> None:
    ops = run.ops.with_columns(pl.col("name").cast(pl.Utf8), pl.col("device").cast(pl.Utf8))
    assert ops.filter(pl.col("name").str.contains("^cuda|^cu[A-Z]|Buffer")).is_empty()
    of_gpu = set(ops.filter(pl.col("device") == "cuda:0")["name"])
    assert of_gpu
    assert not of_gpu & set(ops.filter(pl.col("device") == "cpu")["name"])


def test_nearly_all_kernels_belong_to_the_operator_and_phase_that_launched_them(run: Run) -> None:
    kernels = run.ops.filter(pl.col("device").cast(pl.Utf8) == "cuda:0")
    assert kernels.filter(pl.col("parent") >= 0).height > 0.99 * kernels.height
    assert set(kernels["phase"].cast(pl.Utf8)) >= {"forward", "backward", "optimizer"}


def test_convolutions_and_products_have_their_flops(run: Run) -> None:
    flops = run.operators().group_by("name").agg(pl.col("flops").sum())
    known = dict(flops.select(pl.col("name").cast(pl.Utf8), "flops").iter_rows())
    forward = known["aten::cudnn_convolution"] + known["aten::addmm"]
    assert forward == pytest.approx(64 * 961_000, rel=0.02)  # a step, by the layers' sizes


def test_phases_add_up_to_the_step_and_kernels_to_less(run: Run) -> None:
    phases = run.phases()
    assert phases["share"].sum() == pytest.approx(1, abs=0.02)
    assert 0 < phases["device_ns"].sum() < phases["ns"].sum()


def test_the_first_screen_names_the_gpu_and_both_memories(run: Run) -> None:
    console = Console(width=120, file=io.StringIO())
    console.print(render(run))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "NVIDIA H100 80GB HBM3 (cuda)" in said
    assert "host peak 1.35 GB of 135 GB" in said
    assert "GPU peak 902 MB of 85 GB" in said
    assert "Overhead bound" in said


def test_what_the_processor_of_the_host_gained_is_not_shown_for_its_gpu(tmp_path: Path) -> None:
    seen = unpacked("h100-lenet", tmp_path / "here" / "runs")
    kept = {"study": "tune", "answer": "threads: 20 % less time.", "command": "stepscope tune lenet", "tables": [],
            "settings": {"target": "lenet", "batch": 64}, "device": seen.device["cpu"]}  # fmt: skip
    beside = tmp_path / "here" / "studies" / "20261127T000000-tune-lenet" / "findings.json"
    beside.parent.mkdir(parents=True)
    beside.write_text(json.dumps(kept))
    assert what_to_change(seen).sentence.startswith("Not measured yet")
    beside.write_text(json.dumps({**kept, "device": "NVIDIA H100 80GB HBM3 (cuda)"}))
    assert what_to_change(open_run(str(seen.path))).sentence == "threads: 20 % less time."


def test_changes_would_be_tried_on_the_gpu(run: Run) -> None:
    assert what_to_change(run).command == "stepscope tune lenet --batch 64 --device cuda"
    assert "GPU peak 902 MB" in brief(run)


def test_a_replay_of_each_step_with_its_lanes_takes_the_time_that_was_recorded(run: Run) -> None:
    for step in run.ops["step"].unique():
        units = _units_of_step(run, step)
        assert units is not None
        tasks, of_unit = replay_tasks(units)
        again = schedule(tasks, dict.fromkeys(tasks.lane, 1))
        assert again.end[of_unit] == pytest.approx(units.t1, abs=1)
        assert earliest_end_ns(replay_tasks(units)[0]) == pytest.approx(units.length_ns)


def test_waiting_for_the_thread_of_backward_is_no_waiting_for_a_core(tmp_path: Path) -> None:
    seen = unpacked("h100-cnn", tmp_path)
    occupied = occupancy(seen)
    assert occupied.waits["lock"].value > 0.25  # forward's thread, for the thread in which autograd serves the GPU
    assert occupied.background_cores is not None
    assert occupied.background_cores.value > 0.3  # what a load is told from
    assert [cause.bound for cause in seen.verdict().causes] == ["overhead"]
