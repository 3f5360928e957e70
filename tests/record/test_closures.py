"""Trainings that give their optimizer a closure: what runs in it, and the update, are told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.record.loops import Loop, counts, last_step, record
from torch import nn
from torch.nn import functional

from stepscope.record.ops.closures import relabel_phases_in_closures
from stepscope.record.ops.events import BACKWARD, FORWARD, OPTIMIZER, Events, Labels

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "Adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, max_iter=3),
}


def net() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(500, 8), nn.Linear(8, 500))


def loop_of(optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor], steps: int = 4) -> Loop:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def loop(step: Callable[[], None]) -> None:
        for _ in range(steps):
            optimizer.step(closure)  # type: ignore[arg-type]
            step()

    return loop


def loss_of(model: nn.Module) -> torch.Tensor:
    words = torch.arange(16)
    return functional.cross_entropy(model(words), words)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_loss_of_a_closure_is_forward_and_the_update_alone_is_the_optimizers(name: str, tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    rows = last_step(record(loop_of(optimizer, lambda: loss_of(model)), tmp_path, model))
    loss = ["aten::cross_entropy_loss", "aten::log_softmax", "aten::_log_softmax", "aten::nll_loss_forward"]
    assert set(rows.filter(pl.col("name").is_in(loss))["phase"]) == {"forward"}
    update = set(counts(rows, phase="optimizer"))
    assert not update & {*loss, "aten::nll_loss", "aten::ones_like"}
    assert update & {"aten::add_", "aten::_foreach_addcdiv_"}


def test_the_updates_behind_a_closure_belong_to_their_layers(tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    run = record(loop_of(optimizer, lambda: loss_of(model)), tmp_path, model)
    updates = last_step(run).filter(pl.col("phase") == "optimizer", pl.col("name") == "aten::add_")
    assert updates["module"].to_list() == ["0", "1", "1"]
    assert run.model["update_share"].null_count() == len(run.model)


def test_parameters_whose_gradients_come_in_the_closure_have_their_layers(tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    plain = loop_of(optimizer, lambda: loss_of(model))

    def loop(step: Callable[[], None]) -> None:
        def ends() -> None:
            optimizer.zero_grad()
            step()

        plain(ends)

    updates = last_step(record(loop, tmp_path, model)).filter(
        pl.col("phase") == "optimizer", pl.col("name") == "aten::add_"
    )
    assert updates["module"].to_list() == ["0", "1", "1"]


def test_functional_code_in_a_closure_is_forward_with_all_that_it_calls(tmp_path: Path) -> None:
    weight = torch.randn(2, 1, 3, 3, requires_grad=True)

    def convolved() -> torch.Tensor:
        return functional.conv2d(torch.ones(4, 1, 8, 8), weight).pow(2).mean()

    optimizer = OPTIMIZERS["LBFGS"]([weight])
    rows = last_step(record(loop_of(optimizer, convolved), tmp_path))
    forward = counts(rows, phase="forward")
    assert {"aten::conv2d", "aten::convolution", "aten::_convolution", "aten::pow", "aten::mean"} <= set(forward)
    assert not {"aten::_convolution", "aten::mean"} & set(counts(rows, phase="optimizer"))
    assert "aten::dot" not in forward


def test_what_follows_a_module_is_forward_where_another_thread_runs_the_backward_pass() -> None:
    """As with a GPU: its nodes are in the engine's own thread."""
    texts = ["Optimizer.step#SGD.step", "#stepscope.module:0", "loss", "update", "a node"]
    name, parent, none = np.arange(5), np.array([-1, 0, 0, 0, -1]), np.full(5, -1)
    t0, t1 = np.array([0, 10, 20, 60, 40]), np.array([100, 15, 25, 70, 50])
    thread, is_node = np.array([1, 1, 1, 1, 2]), np.array([0, 0, 0, 0, 1])
    events = Events(name, t0, t1, thread, is_node, none, is_node, none, none, none, [])
    labels = Labels(np.array([OPTIMIZER, FORWARD, OPTIMIZER, OPTIMIZER, BACKWARD]), none, none)
    found = relabel_phases_in_closures(events, parent, labels, texts)
    assert found.tolist() == [OPTIMIZER, FORWARD, FORWARD, OPTIMIZER, BACKWARD]
