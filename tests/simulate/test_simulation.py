"""A board in its own process, beside a training in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from tests.patience import until
from torch import nn

import stepscope
from stepscope import simulate
from stepscope.errors import StepscopeError, UnknownName, UsageError
from stepscope.runfolder import RunReader, RunWriter
from stepscope.simulate.marks import StateLog, create_ring
from stepscope.simulate.power import TRUTH_FILE
from stepscope.simulate.process import RING_FILE, STATES_FILE


def train(seconds: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    end, left = time.monotonic() + seconds, 100 if seconds else 0  # on a busy machine, a few more rounds
    while time.monotonic() < end or left > 0:
        model(torch.ones(32, 64)).sum().backward()
        left -= 1
    return model


def test_a_board_lives_beside_a_training_and_leaves_nothing_but_the_truth(tmp_path: Path) -> None:
    with simulate.start("laptop-rapl", train(0), folder=tmp_path) as board:
        file = board.root / "sys/class/powercap/intel-rapl:0/energy_uj"
        first = int(file.read_bytes())
        t0_ns = time.monotonic_ns()
        train(0.2)
        t1_ns = time.monotonic_ns()
        until(lambda: int(file.read_bytes()) != first, "a new reading")
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


def test_a_run_says_where_its_board_did_not_follow_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunWriter.create(tmp_path, "lenet")
    with simulate.start("laptop-battery", train(0)) as board:
        board._marker.failure = "OSError: no room"
    monkeypatch.setattr(board, "_truth", replace(board.truth(), lost_marks=7))
    board.save_truth(run)
    stopped, lost = RunReader(run.path).events
    assert (stopped["kind"], lost["kind"]) == ("simulation-stopped", "marks-lost")
    assert "OSError: no room; its energy is not that of this training" in stopped["message"]
    assert "missed 7 changes" in lost["message"]
    assert (run.path / TRUTH_FILE).is_file()


def test_when_the_trainer_is_killed_the_board_ends_clears_up_and_keeps_the_truth(tmp_path: Path) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    for folder in (home, kept):
        folder.mkdir()
    create_ring(home / RING_FILE)
    StateLog(home / STATES_FILE).close()
    command = [sys.executable, "-m", "stepscope.simulate.process", "--home", str(home), "--truth", str(kept)]
    with subprocess.Popen(["sleep", "60"]) as trainer:
        command += ["--board", "laptop-rapl", "--pid", str(trainer.pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as board:
            assert board.stdout is not None
            assert board.stdout.readline().startswith(b"ready")
            assert (home / "root/sys/class/powercap").is_dir()
            trainer.kill()
            until(lambda: not home.exists(), "the end of the board")
    assert (kept / TRUTH_FILE).exists()


def test_a_recorded_run_has_rails_to_read_and_a_true_energy_for_each_of_its_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with simulate.start("jetson-tx2", model) as board:
        monkeypatch.setenv("STEPSCOPE_ROOT", str(board.root))
        with stepscope.profile(model, out=tmp_path, record="all") as scope:
            for _ in range(20):
                optimizer.zero_grad()
                model(torch.ones(64, 256)).sum().backward()
                optimizer.step()
                scope.step()
    run, truth = scope.run, board.truth()
    assert {channel["rail"] for channel in run.channels if channel["quantity"] == "power"} == set(truth.rails)
    ops = run.ops
    step, t0_ns, t1_ns = (ops[name].cast(pl.Int64).to_numpy() for name in ("step", "t0_ns", "t1_ns"))
    parent = ops["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
    own = truth.self_energy("VDD_IN", t0_ns, t1_ns, parent, step)
    whole = truth.energy_between("VDD_IN", run.steps["t0_ns"].to_numpy(), run.steps["t1_ns"].to_numpy())
    assert own.min() > -1e-9
    assert 0.05 * whole.sum() < own.sum() < whole.sum()
    assert own[(ops["name"].cast(pl.String) == "aten::addmm").to_numpy()].sum() > 0


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
