"""The line of the training's code that calls each layer and operator."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.record.loops import record
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import stepscope
from stepscope.analysis.run import Run
from stepscope.analysis.time.layers import with_sources
from stepscope.record.ops import source_lines
from stepscope.runfolder import RunReader


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2  # the helper

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shared(self.scaled(x))  # the first call
        x = functional.relu(x)  # a function
        out: torch.Tensor = self.shared(x)  # the second call
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.recomputed = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)  # the stem
        for block in self.blocks:
            x = x + block(x)  # the loop
        return checkpoint(self.recomputed, x, use_reentrant=False)  # the checkpoint


def criterion(out: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(out, torch.zeros_like(out))  # the loss


def line(comment: str) -> str:
    """The line of this file that ends with a comment, as reports name it."""
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    number = next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {comment}"))
    return f"test_sources.py:{number}"


def recorded(folder: Path) -> Run:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Any) -> None:
        for _ in range(4):
            optimizer.zero_grad()  # the reset
            loss = criterion(model(torch.randn(4, 8)))  # the model
            loss.backward()  # type: ignore[no-untyped-call]  # the pass
            optimizer.step()  # the update
            step()

    return Run(record(loop, folder, model).path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return recorded(tmp_path_factory.mktemp("runs"))


def called_at(run: Run, phase: str, module: str | None, name: str) -> list[str | None]:
    """Files without their folders."""
    rows = run.sources.filter(pl.col("phase") == phase, pl.col("module").eq_missing(module), pl.col("name") == name)
    return [None if source is None else source.rpartition("/")[2] for source in rows["source"]]


@pytest.mark.parametrize(
    ("phase", "module", "name", "wanted"),
    [
        ("forward", "", "nn.Net", ["the model"]),
        ("forward", "stem.0", "nn.Linear", ["the stem"]),
        ("forward", "blocks.1", "nn.Block", ["the loop"]),
        ("forward", "blocks.0.shared", "aten::addmm", ["the first call", "the second call"]),
        ("backward", "blocks.0.shared", "AddmmBackward0", ["the second call", "the first call"]),
        ("forward", "blocks.0", "aten::mul", ["the helper"]),
        ("forward", "blocks.0", "aten::relu", ["a function"]),
        ("backward", "blocks.0", "ReluBackward0", ["a function"]),
        ("forward", "", "aten::add", ["the loop"]),
        ("forward", "recomputed", "aten::linear", ["the checkpoint"]),
        ("forward", None, "aten::mse_loss", ["the loss"]),
        ("backward", None, "MseLossBackward0", ["the loss"]),
        ("optimizer", None, "Optimizer.zero_grad#SGD.zero_grad", ["the reset"]),
        ("optimizer", None, "Optimizer.step#SGD.step", ["the update"]),
        ("optimizer", "stem.0", "aten::add_", ["the update"]),
    ],
)
def test_layers_and_operators_know_the_line_that_calls_them(
    run: Run, phase: str, module: str | None, name: str, wanted: list[str]
) -> None:
    assert called_at(run, phase, module, name) == [line(comment) for comment in wanted]


def test_tables_and_the_timeline_have_the_lines(run: Run) -> None:
    modules = {row["module"]: row["source"] or "" for row in run.modules().iter_rows(named=True)}
    assert modules["blocks.1"].endswith(line("the loop"))
    assert modules["blocks.1.shared"].endswith(line("the first call") + ", +1")
    operators = {row["name"]: row["source"] or "" for row in run.operators().iter_rows(named=True)}
    assert operators["aten::mse_loss"].endswith(line("the loss"))
    relu = run.anatomy().filter(pl.col("name").cast(pl.String) == "aten::relu")
    assert all(source.endswith(line("a function")) for source in relu["source"])


def test_of_a_step_of_very_many_calls_the_layers_and_the_update_have_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_lines, "MOST_ROWS", 10)
    run = recorded(tmp_path)
    modules = {row["module"]: row["source"] or "" for row in run.modules().iter_rows(named=True)}
    assert modules["blocks.1"].endswith(line("the loop"))
    assert modules["blocks.1.shared"].endswith(line("the first call") + ", +1")
    assert called_at(run, "optimizer", None, "Optimizer.step#SGD.step") == [line("the update")]
    assert set(run.sources["name"]) == {"nn.Net", "nn.Sequential", "nn.Linear", "nn.Tanh", "nn.Block",
                                        "Optimizer.step#SGD.step"}  # fmt: skip


def test_lines_are_of_a_step_however_long_its_window_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "MOST_ROWS", 400)
    run = recorded(tmp_path)
    per_step = run.ops.filter(pl.col("step") == 1).height
    assert per_step <= 400 < run.ops.height
    assert called_at(run, "forward", "blocks.0", "aten::relu") == [line("a function")]


def test_lines_are_of_a_later_step_where_a_pause_has_cut_the_first_window(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepscope.profile(model, out=tmp_path, record="all") as scope:
        for _ in range(4):
            scope.pause()
            scope.resume()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            scope.step()
    assert {row["module"] for row in RunReader(scope.path).sources.iter_rows(named=True)} >= {""}


def test_nothing_is_listened_to_after_the_step_and_runs_without_lines_open(run: Run) -> None:
    assert vars(nn.Module)["__call__"] is nn.Module._wrapped_call_impl
    none = with_sources(run.ops, run.sources.clear())
    assert none["source"].null_count() == len(none)


def test_a_library_whose_name_begins_like_that_of_torch_is_a_library() -> None:
    installed = Path(torch.__file__).parents[1]
    kinds = {name: source_lines._code_origin(str(installed / name / "models.py")) for name in ("torch", "torchvision")}
    assert kinds == {"torch": source_lines._PASSED_OVER, "torchvision": source_lines._LIBRARY}
