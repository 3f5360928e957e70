"""A board in its own process, beside a training in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.energy import CASES, measure
from stepscope import simulate
from stepscope.errors import StepscopeError, UnknownName, UsageError
from stepscope.simulate.truth import TRUTH_FILE

TRAINER = """
import sys, time
from stepscope import simulate
board = simulate.start("laptop-rapl", folder=sys.argv[1])
print(board.root, flush=True)
time.sleep(60)
"""


def train(seconds: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        model(torch.ones(32, 64)).sum().backward()
    return model


def gone(path: Path, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not path.exists()


def test_a_board_lives_beside_a_training_and_leaves_nothing_but_the_truth(tmp_path: Path) -> None:
    with simulate.start("laptop-rapl", train(0), folder=tmp_path) as board:
        file = board.root / "sys/class/powercap/intel-rapl:0/energy_uj"
        first = int(file.read_bytes())
        t0_ns = time.monotonic_ns()
        train(0.2)
        t1_ns = time.monotonic_ns()
        assert int(file.read_bytes()) != first
        assert board.failure is None
        with pytest.raises(StepscopeError, match="stop it first"):
            board.truth()
    truth = board.truth()
    mean_w = float(truth.energy_between("package-0", t0_ns, t1_ns)) / ((t1_ns - t0_ns) * 1e-9)
    assert mean_w > truth.idle_w[0]
    assert truth.lost_marks == 0
    assert {state.kind for state in truth.states} >= {"Linear", "ReLU"}
    assert not board.root.exists()
    assert [path.name for path in tmp_path.iterdir()] == [TRUTH_FILE]


def test_the_simulating_process_is_no_child_of_the_trainer() -> None:
    with simulate.start("laptop-battery"):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert not [command for command in commands if b"stepscope.simulate" in command]


def test_stopping_twice_is_stopping_once() -> None:
    board = simulate.start("laptop-battery")
    board.stop()
    board.stop()
    assert board.truth().board == "laptop-battery"


def test_the_truth_of_a_process_that_was_killed_is_not_known() -> None:
    board = simulate.start("laptop-battery")
    os.kill(board.pid, signal.SIGKILL)
    board.stop()
    assert not board.root.exists()
    with pytest.raises(StepscopeError, match="ended early"):
        board.truth()


def test_when_the_trainer_is_killed_the_board_ends_clears_up_and_keeps_the_truth(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        root = Path(trainer.stdout.readline().strip())
        assert root.is_dir()
        trainer.kill()
    assert gone(root.parent)
    assert (tmp_path / TRUTH_FILE).exists()


def test_what_cannot_be_simulated_is_refused_before_anything_starts() -> None:
    with pytest.raises(UnknownName) as board:
        simulate.start("jetson-tx3")
    assert "jetson-tx2" in str(board.value.hint)
    with pytest.raises(UsageError):
        simulate.start("jetson-tx2", samples=5)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StepscopeError):
        simulate.start("laptop-battery", folder=tmp_path / "file")


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=lambda case: case.board)
def test_measured_energy_is_near_the_truth_even_over_a_second(case: object) -> None:
    row = measure(case, seconds=0.8, settle_s=0.3)  # type: ignore[arg-type]
    assert row.lost_marks == 0
    assert abs(row.error) < 0.05
