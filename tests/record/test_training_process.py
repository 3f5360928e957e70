"""What the training process is made to hold for us: no polars, no descriptor, nothing of torch that was not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.patience import HANG_S
from torch import nn

from stepscope.record import run_facts
from stepscope.record.ops.modules import ModuleRegistry

IMPORTS = """
import sys
import stepscope, stepscope.record.session, stepscope.record.profile, stepscope.record.recorder, stepscope.record.script
import stepscope.runfolder.pack
print(*sorted({"polars", "scipy", "altair", "rich", "typer"} & set(sys.modules)))
"""
TRAINS = """
import os, sys, torch
import stepscope
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.Adam(model.parameters())
def train():
    optimizer.zero_grad(); model(torch.randn(2, 4)).sum().backward(); optimizer.step()
def held():
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(link) for link in links if os.path.exists(link))
for _ in range(3):
    train()
before = held()
with stepscope.profile(model, out=sys.argv[1], record="all", memory="all") as scope:
    for _ in range(12):
        train(); scope.step()
    within = [file for file in held() if sys.argv[1] in file]
after = held()
names = [name for name in os.listdir(f"{scope.path}/ops") if name[0] != "."]
print("polars" in sys.modules, within, [file for file in after if file not in before], len(names) > 0)
"""


def printed(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_a_training_imports_of_us_leaves_polars_out() -> None:
    assert printed(IMPORTS) == ""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_profiled_loop_never_imports_polars_and_holds_no_file_of_the_run(tmp_path: Path) -> None:
    assert printed(TRAINS, str(tmp_path)) == "False [] [] True"


# facts


def modules_of(model: nn.Module) -> dict[str, dict[str, Any]]:
    book = ModuleRegistry()
    book.add_root(model, "")
    return {row["module"]: row for row in run_facts.model_json_rows(book, {}, {})}


def test_a_lazy_module_has_no_parameters_yet_and_its_neighbours_do() -> None:
    rows = modules_of(nn.Sequential(nn.LazyLinear(3), nn.Linear(2, 2)))
    assert [rows[name]["parameters"] for name in ("", "0", "1")] == [None, None, 6]
    assert [rows[name]["bytes"] for name in ("", "0", "1")] == [None, None, 24]


class Raising(nn.Linear):
    """A layer that answers no question about its parameters."""

    def parameters(self, recurse: bool = True) -> Any:
        raise LookupError("not for you")


class Odd(nn.Parameter):
    """A parameter that answers no question at all."""

    @classmethod
    def __torch_function__(cls, *_arguments: Any, **_options: Any) -> Any:
        raise LookupError("nor for you")

    def numel(self) -> int:
        raise LookupError("nor here")


def test_modules_and_parameters_that_raise_are_counted_by_what_torch_keeps_of_them() -> None:
    model = nn.Sequential(Raising(2, 2), nn.Linear(2, 2, bias=False))
    model[1]._parameters["weight"] = Odd(torch.zeros(2, 2))
    rows = modules_of(model)
    assert [rows[name]["parameters"] for name in ("", "0", "1")] == [10, 6, 4]


class Ring(nn.Module):
    """A module that holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.owner = self


def test_a_ring_of_modules_counts_each_parameter_once_and_a_shared_one_too() -> None:
    ring = Ring()
    ring.again = ring.layer
    assert modules_of(ring)[""]["parameters"] == 6


def test_what_is_no_tensor_any_more_is_null() -> None:
    layer = nn.Linear(2, 2)
    layer._parameters["weight"] = object()  # type: ignore[assignment]
    assert modules_of(layer)[""]["parameters"] is None


def test_frozen_and_scripted_modules_are_counted_as_well() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert modules_of(frozen)[""]["trainable"] is False
    with pytest.warns(DeprecationWarning, match="jit.script"):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    assert modules_of(scripted)[""]["parameters"] == 6


def test_facts_ask_nothing_that_would_initialise_a_gpu_or_set_up_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> Any:
        raise AssertionError("it would initialise the driver, or the threads")

    for name in ("is_available", "device_count", "current_device"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    monkeypatch.setattr(torch, "get_num_threads", refuse)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    (tmp_path / "device.json").write_text('{"board": "a board"}')
    assert run_facts.device_json(None)["accelerators_torch"] == []
    assert run_facts.device_json(None, tmp_path)["board"] == "a board"
    assert "threads" not in run_facts.process_facts()


def test_gpus_are_named_at_the_end_where_the_training_has_initialised_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Properties:
        name, total_memory = "a GPU", 8_000

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: Properties)
    found = run_facts.device_json(None, tmp_path)  # device.json is gone as well
    assert found["accelerators_torch"] == [{"index": 0, "name": "a GPU", "memory_bytes": 8_000}]
    assert {"board", "at_end"} <= set(found)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda index: {"reserved_bytes.all.allocated": 2_097_152 * index})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cards = run_facts.device_json(None, tmp_path)["accelerators_torch"]
    assert [card["used"] for card in cards] == [False, True]


def test_a_working_directory_that_was_removed_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run_facts.process_facts()["cwd"] is None
    monkeypatch.chdir(tmp_path)
    versions = run_facts.process_facts()["versions"]
    assert versions["polars"]
    assert versions["torch"] == torch.__version__
