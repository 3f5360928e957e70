"""What a training computes in is written into its run: the FLOPs of its profiled steps by device and number format."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stepscope
from stepscope.record.ops.costs import FlopsByFormat, float32_format, gpus_of_ops
from stepscope.runfolder import RunReader
from stepscope.runfolder.schema import Computation, calls_in_other_formats, main_computation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_format_with_most_flops_is_that_of_the_autocast_that_a_loop_runs_under(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with stepscope.profile(model, out=tmp_path, record="all") as scope:
        for _ in range(6):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                loss = model(torch.randn(16, 32)).float().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scope.step()
    run = RunReader(scope.path)
    assert main_computation(run.meta) == Computation("cpu", str(dtype).removeprefix("torch."))
    assert not run.damaged


def test_flops_are_of_the_gpu_that_runs_the_kernels_below_an_operator() -> None:
    # aten::linear > aten::addmm > kernel on GPU 1; aten::mm on the CPU; aten::add > kernel on GPU 0
    parent = np.array([-1, 0, 1, -1, -1, 4])
    gpu = np.array([-1, -1, 1, -1, -1, 0])
    assert gpus_of_ops(parent, gpu).tolist() == [1, 1, 1, -1, 0, 0]
    raw: list[Any] = [SimpleNamespace(dtypes=lambda name=name: ["", name]) for name in ("c10::BFloat16", "double")]
    counted = FlopsByFormat()
    counted.add(raw, np.array([90, 7]), np.array([1, -1]), ["aten::mm", "aten::mm"], np.array([0, 1]))
    assert counted.facts() == {"cuda:1": {"bfloat16": 90}, "cpu": {"float64": 7}}
    assert counted.other_formats(["a", "b"]) == [], "on another device"
    assert main_computation({"recorder": {"flops_by_format": counted.facts()}}) == Computation("cuda:1", "bfloat16")


def test_what_computes_in_another_format_than_most_flops_is_written_by_operator_and_layer(tmp_path: Path) -> None:
    model = nn.ModuleDict({"body": nn.Linear(32, 64), "head": nn.Linear(64, 8)})
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with stepscope.profile(model, out=tmp_path, record="all") as scope:
        for _ in range(6):
            with torch.autocast("cpu", torch.bfloat16):
                x = model["body"](torch.randn(16, 32))
            (model["head"](x.float()) @ torch.ones(8, 1)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            scope.step()
    run = RunReader(scope.path)
    assert main_computation(run.meta) == Computation("cpu", "bfloat16")
    calls = calls_in_other_formats(run.meta)
    assert {module for _, module in calls} == {"head", None}
    assert all(name.startswith("aten::") for name, _ in calls)
    assert not run.damaged


@pytest.mark.parametrize("stated", [None, 3, [3, [], {}], {"aten::mm": ["fc"]}])
def test_a_run_that_states_no_other_formats_has_none(stated: object) -> None:
    assert calls_in_other_formats({"recorder": {"other_formats": stated}}) == []
    assert calls_in_other_formats({"recorder": stated}) == []


def test_float32_is_named_by_the_switches_that_let_its_products_round() -> None:
    mode, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("highest")
        assert (float32_format("cpu"), float32_format("cuda:0")) == ("float32", "float32")
        torch.backends.cudnn.allow_tf32 = False
        assert (float32_format("cpu"), float32_format("cuda:0")) == ("float32", "float32-ieee")
        torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("medium")
        assert (float32_format("cpu"), float32_format("cuda:0")) == ("float32-medium", "float32-high")
    finally:
        torch.set_float32_matmul_precision(mode)
        torch.backends.cudnn.allow_tf32 = convolutions


def test_the_switches_of_an_older_torch_name_float32_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = SimpleNamespace(allow_tf32=True)
    older = SimpleNamespace(mkldnn=SimpleNamespace(), cuda=SimpleNamespace(matmul=switch), cudnn=switch)
    monkeypatch.setattr(torch, "backends", older)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert (float32_format("cpu"), float32_format("cuda:0")) == ("float32-high", "float32-high")


@pytest.mark.parametrize("stated", [None, [], {"cpu": 3}, {"cpu": {"float32": "much"}}, {"cpu": {"float32": 0}}])
def test_a_run_that_states_no_flops_has_no_computation(stated: object) -> None:
    assert main_computation({"recorder": {"flops_by_format": stated}}) is None
    assert main_computation({"recorder": stated}) is None
