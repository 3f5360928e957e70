"""Rows of profiled steps, against what the model is known to do and against independent counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.record.loops import counts, last_step, record, simple_loop
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


class DispatchCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every op that reaches the dispatcher below autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[f"aten::{func.overloadpacket.__name__}"] += 1
        return func(*args, **(kwargs or {}))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def test_ops_of_a_step_are_those_that_an_independent_dispatch_count_sees(tmp_path: Path) -> None:
    model, x, y = convolutional(), torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loop(step: Any) -> None:
        for _ in range(5):
            train_once(model, optimizer, x, y)
            step()

    recorded = counts(last_step(record(loop, tmp_path, model)))
    with DispatchCount() as independent:
        train_once(model, optimizer, x, y)
    leaves = {
        "aten::convolution",
        "aten::convolution_backward",
        "aten::native_batch_norm",
        "aten::native_batch_norm_backward",
        "aten::addmm",
        "aten::mm",
        "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward",
        "aten::threshold_backward",
        "aten::_log_softmax",
        "aten::nll_loss_forward",
        "aten::nll_loss_backward",
    }
    assert leaves <= set(independent.seen)
    assert {name: recorded.get(name) for name in leaves} == {name: independent.seen[name] for name in leaves}


def test_self_times_and_the_residual_add_up_to_the_step(tmp_path: Path) -> None:
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Any) -> None:
        for _ in range(6):
            train_once(model, optimizer, torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
            step()

    run = record(loop, tmp_path, model)
    rows = last_step(run)
    span = run.steps.row(-1, named=True)
    top = rows.filter(pl.col("parent").is_null())
    residual = span["t1_ns"] - span["t0_ns"] - (top["t1_ns"] - top["t0_ns"]).sum()
    assert residual >= 0
    assert rows["self_ns"].sum() + residual == pytest.approx(span["t1_ns"] - span["t0_ns"], rel=1e-3)
    assert rows["t0_ns"].min() >= span["t0_ns"] - 5_000
    assert rows["t1_ns"].max() <= span["t1_ns"]


def test_backward_ops_carry_the_module_whose_forward_made_them(tmp_path: Path) -> None:
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Any) -> None:
        for _ in range(4):
            train_once(model, optimizer, torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
            step()

    backward = last_step(record(loop, tmp_path, model)).filter(pl.col("phase") == "backward")
    owner = dict(backward.select("name", "module").iter_rows())
    assert owner["ConvolutionBackward0"] == "0"
    assert owner["aten::native_batch_norm_backward"] == "1"
    assert owner["aten::threshold_backward"] == "2"
    assert owner["aten::mm"] == "5"
    assert backward.filter(pl.col("name") == "torch::autograd::AccumulateGrad")["module"].to_list() == [
        "5", "5", "1", "1", "0", "0",
    ]  # fmt: skip


def test_optimizer_ops_carry_the_module_whose_parameter_they_update(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    rows = last_step(record(simple_loop(model, 4), tmp_path, model))
    updates = rows.filter((pl.col("phase") == "optimizer") & (pl.col("name") == "aten::add_"))
    assert updates["module"].to_list() == ["0", "0", "2", "2"]


def test_foreach_updates_belong_to_no_single_module(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def loop(step: Any) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            step()

    updates = last_step(record(loop, tmp_path, model)).filter(pl.col("name").str.contains("_foreach"))
    assert updates.height > 0
    assert updates["module"].null_count() == updates.height


class CallsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.alias = self.a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.alias(self.a(x))
        return out


def test_a_module_called_twice_is_recorded_twice_under_its_first_name(tmp_path: Path) -> None:
    model = CallsTwice()
    rows = last_step(record(simple_loop(model, 4), tmp_path, model))
    assert counts(rows, module="a", phase="forward")["nn.Linear"] == 2
    assert counts(rows, module="a", phase="backward")["AddmmBackward0"] == 2
    assert "alias" not in rows["module"].to_list()


class CallsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        out: torch.Tensor = self.a(x) if depth == 0 else self(x, depth - 1)
        return out


def test_a_module_that_calls_itself_does_not_break_the_training(tmp_path: Path) -> None:
    model = CallsItself()
    run = record(simple_loop(model, 4), tmp_path, model)
    assert run.steps.height == 4
    assert counts(last_step(run), module="a")["aten::addmm"] == 1


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant))
        return out


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_forward_of_a_checkpoint_is_backward_time_of_its_module(tmp_path: Path, reentrant: bool) -> None:
    model = Checkpointed(reentrant)
    rows = last_step(record(simple_loop(model, 4), tmp_path, model))
    inner = rows.filter(pl.col("module") == "inner")
    assert counts(inner, phase="forward")["aten::addmm"] == 1
    assert counts(inner, phase="backward")["aten::addmm"] == 1
    assert counts(inner, phase="backward")["AddmmBackward0"] == 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


class UsesCustomFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Doubled.apply(self.a(x))  # type: ignore[no-untyped-call]
        return out


def test_a_custom_autograd_function_is_placed_in_its_module_forward_and_backward(tmp_path: Path) -> None:
    model = nn.Sequential(UsesCustomFunction())
    rows = last_step(record(simple_loop(model, 4), tmp_path, model))
    place = {(name, phase): module for name, phase, module in rows.select("name", "phase", "module").iter_rows()}
    assert place["Doubled", "forward"] == "0"
    assert place["DoubledBackward", "backward"] == "0"


def equation(model: nn.Module) -> torch.Tensor:
    """A loss with a derivative of what the model says, as physics-informed networks have it."""
    x = torch.randn(4, 8, requires_grad=True)
    said = model(x)
    (slope,) = torch.autograd.grad(said.sum(), x, create_graph=True)
    return torch.as_tensor((slope.sum(dim=1) - said[:, 0]).pow(2).mean())


def penalty(model: nn.Module) -> torch.Tensor:
    """The loss of a critic whose slope is kept near 1 between what is real and what is made up (WGAN-GP)."""
    real, made_up = torch.randn(4, 8), torch.randn(4, 8)
    between = (0.3 * real + 0.7 * made_up).requires_grad_()
    (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
    return torch.as_tensor(model(made_up).mean() - model(real).mean() + (slope.norm(dim=1) - 1).pow(2).mean())


@pytest.mark.parametrize("loss", [equation, penalty])
def test_a_backward_pass_through_a_backward_pass_has_the_layers_of_the_first(loss: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Any) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
            step()

    rows = last_step(record(loop, tmp_path, model))
    second = rows.filter(pl.col("name").is_in(["MmBackward0", "TanhBackwardBackward0"]))
    assert second.sort("t0_ns")["module"].to_list() == ["0", "1", "2"]
    assert rows.filter(pl.col("name") == "aten::mm", pl.col("module").is_null()).is_empty()


def test_functional_code_without_any_module_is_forward_where_backward_came_back_to_it(tmp_path: Path) -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def loop(step: Any) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            (torch.randn(4, 8) @ weight).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step()

    rows = last_step(record(loop, tmp_path))
    assert counts(rows, phase="forward")["aten::mm"] == 1
    assert counts(rows, phase="other")["aten::randn"] == 1


def test_what_an_op_of_functional_code_calls_is_forward_as_it_is(tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def loop(step: Any) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            with torch.profiler.record_function("my step"):
                pictures = torch.randn(2, 3, 8, 8)
                nn.functional.conv2d(pictures, weight).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step()

    rows = last_step(record(loop, tmp_path))
    forward = counts(rows, phase="forward")
    assert forward["aten::conv2d"] == forward["aten::convolution"] == forward["aten::_convolution"] == 1
    assert not any("convolution" in name for name in counts(rows, phase="other"))
    assert counts(rows, phase="other")["aten::randn"] == 1


def test_a_data_loader_is_the_data_phase(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data: Any = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4)  # type: ignore[arg-type]

    def loop(step: Any) -> None:
        for x in data:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            step()

    rows = last_step(record(loop, tmp_path, model))
    assert counts(rows, phase="data")["aten::select"] == 4
    assert rows.filter(pl.col("phase") == "data")["module"].null_count() == (rows["phase"] == "data").sum()


def test_flops_are_known_where_the_shapes_were_seen_and_null_where_they_were_not(tmp_path: Path) -> None:
    model = nn.Linear(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Any) -> None:
        for batch in (4, 4, 4, 4, 6):
            optimizer.zero_grad()
            model(torch.randn(batch, 8)).sum().backward()
            optimizer.step()
            step()

    ops = record(loop, tmp_path, model).ops.filter(pl.col("name").cast(pl.String) == "aten::addmm")
    assert ops.filter(pl.col("step") == 3)["flops"].to_list() == [2 * 4 * 8 * 16]
    assert ops.filter(pl.col("step") == 4)["flops"].to_list() == [None]


def test_compiled_models_keep_the_step_and_say_what_is_lost(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    compiled: Any = torch.compile(model, backend="eager")
    run = record(simple_loop(compiled, 5), tmp_path, compiled, record="every:2")
    assert run.steps.height == 5
    assert [event["kind"] for event in run.events] == ["compiled"]
    assert counts(last_step(run), phase="backward")["AddmmBackward0"] == 1
