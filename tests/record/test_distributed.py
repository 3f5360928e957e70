"""Two real gloo ranks: a delay in one is waiting in the other, and no clock time is counted twice.

The machine may be busy, so nothing is compared with the 50 ms that were asked for, but with what each rank saw by its
own clock in the same step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.patience import HANG_S
from tests.record import two_ranks

from stepscope import Run

MODES = ("sync", "ddp")
pytestmark = pytest.mark.slow  # three processes that import torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both modes trained, and the part of rank 1 put where one command would write it."""
    path = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, two_ranks.__file__, str(path)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    for mode in MODES:
        first, second = (next((path / mode / rank).iterdir()) for rank in "01")
        (first / "ranks").mkdir()
        second.rename(first / "ranks" / "1")
        for rank, part in enumerate((first, first / "ranks" / "1")):
            header = json.loads((part / "run.json").read_text(encoding="utf-8"))
            header |= {"rank": rank, "world_size": 2, "local_rank": rank}
            (part / "run.json").write_text(json.dumps(header), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """One of the modes."""
    return str(request.param)


@pytest.fixture(scope="module")
def run(folder: Path, mode: str) -> Run:
    """The run of rank 0."""
    return Run(next((folder / mode / "0").iterdir()))


def _seen(folder: Path, mode: str) -> np.ndarray:
    """Times that the ranks saw, ns: (rank, step, first call and result)."""
    return np.array([json.loads((folder / f"{mode}-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)])


def test_the_delay_of_rank_1_is_exposed_waiting_in_rank_0(run: Run, folder: Path, mode: str) -> None:
    """From its first call until rank 1 makes its own, rank 0 is in operators or exposed; a synchronous call waits."""
    seen, delayed = _seen(folder, mode), 0
    found, exposed = [], []
    for step, length in _lateness(run, seen):
        span = (int(seen[0, step, 0]), int(seen[1, step, 0]))
        own = sum(_clipped(run.ops.filter(_training(step)), span))
        waited = sum(_clipped(_waits(run).filter(pl.col("step") == step), span))
        found.append((own + waited) / length)
        exposed.append(waited / length)
        delayed += length > 0.8 * two_ranks.DELAY_S * 1e9
    assert delayed == len(found) >= 3
    assert np.median(found) == pytest.approx(1, abs=0.1)
    if mode == "sync":  # what backward hides of the delay depends on how busy the machine is
        assert np.median(exposed) > 0.6


def _lateness(run: Run, seen: np.ndarray) -> list[tuple[int, int]]:
    """Profiled steps after warm-up in which rank 1 was later than rank 0 by 20 ms or more, and by how many ns."""
    assert run.collective_time is not None
    late = seen[1, :, 0] - seen[0, :, 0]
    return [(step, int(late[step])) for step in run.collective_time.steps["step"] if late[step] > 20_000_000]


def _training(step: int) -> pl.Expr:
    """The outermost operators of the thread that trains."""
    backend = pl.col("name").cast(pl.String).str.starts_with("gloo:")
    return (pl.col("step") == step) & pl.col("parent").is_null() & ~backend


def _waits(run: Run) -> pl.DataFrame:
    assert run.collective_time is not None
    return run.collective_time.waits


def _clipped(rows: pl.DataFrame, span: tuple[int, int]) -> list[int]:
    """Time of each row within a span, ns."""
    return [max(0, min(t1, span[1]) - max(t0, span[0])) for t0, t1 in rows.select("t0_ns", "t1_ns").iter_rows()]


def test_arrivals_are_as_far_apart_as_both_ranks_saw(run: Run, folder: Path, mode: str) -> None:
    called = [part.collective_time.starts for part in run.ranks if part.collective_time is not None]
    first, second = (dict(frame.group_by("step").agg(pl.col("t_ns").min()).iter_rows()) for frame in called)
    both = first.keys() & second.keys()  # a rank that ran out of its allowance profiles fewer steps
    apart = [(second[step] - first[step]) / late for step, late in _lateness(run, _seen(folder, mode)) if step in both]
    assert np.median(apart) == pytest.approx(1, abs=0.1)
    table, chosen = run.rank_table(), run.skew().filter(~pl.col("after_pause"))
    assert (table["late_ns"][1] or 0) >= 0.5 * float(np.median(chosen["arrivals_apart_ns"]))
    assert (table["waiting_ns"] <= table["exposed_ns"] * 1.5).all()


def test_exposed_time_is_what_the_script_waited_for_its_synchronous_collective(folder: Path) -> None:
    time = Run(next((folder / "sync" / "0").iterdir())).collective_time
    assert time is not None
    seen = _seen(folder, "sync")[0, time.steps["step"].to_numpy()]
    truth = seen[:, 1] - seen[:, 0]
    apart = np.abs(time.steps["exposed_ns"].to_numpy() - truth) / truth
    assert np.median(apart) < 0.1


def test_the_phases_of_each_step_add_up_to_it_and_none_twice(run: Run) -> None:
    for part in run.ranks:
        time = part.collective_time
        assert time is not None
        own = (
            part.self_times.filter(pl.col("device") == "cpu").group_by("step").agg(pl.col("self_ns").sum()).sort("step")
        )
        lengths = time.steps["length_ns"].to_numpy()
        assert (own["self_ns"].to_numpy() <= 1.02 * lengths).all()
        assert (time.steps["total_ns"].to_numpy() <= 1.001 * lengths).all()
        assert part.phases()["share"].sum() == pytest.approx(1)
        exposed = part.self_times.filter(pl.col("phase") == "communication")["self_ns"].sum()
        assert exposed == pytest.approx(time.steps["exposed_ns"].sum(), rel=0.02)


def test_collectives_have_a_phase_of_their_own_and_the_loss_stays_forward(run: Run, mode: str) -> None:
    ops = run.ops.with_columns(pl.col("name", "phase", "module").cast(pl.String))
    by_name = {name: set(part["phase"]) for (name,), part in ops.group_by("name")}
    assert by_name["gloo:all_reduce"] == by_name["c10d::allreduce_"] == {"communication"}
    assert by_name["aten::mean"] == {"forward"}
    assert "backward" in by_name["aten::mm"]
    calls = ops.filter(pl.col("name") == "c10d::allreduce_")
    assert calls["module"].null_count() == len(calls), "a bucket holds gradients of several modules"
    if mode == "ddp":
        threads = set(ops.filter(pl.col("name") == "gloo:all_reduce")["thread"])
        beside = ops.filter(pl.col("thread").is_in(sorted(threads)))
        assert set(beside["phase"]) == {"communication"}


RPC = """
import sys, torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn, optim
from torch.distributed.optim import DistributedOptimizer
where = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{sys.argv[1]}")
rpc.init_rpc("me", rank=0, world_size=1, rpc_backend_options=where)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = DistributedOptimizer(getattr(optim, sys.argv[2]), [rpc.RRef(p) for p in model.parameters()], lr=0.05)
for number in range(14):
    with dist_autograd.context() as context:
        loss = model(torch.randn(5, 8)).pow(2).mean()
        dist_autograd.backward(context, [loss])
        optimizer.step(context)
print(sum(p.double().sum() for p in model.parameters()).item())
rpc.shutdown()
"""


@pytest.mark.parametrize("rule", ["SGD", "ASGD"])  # with functional updates by torch, and by an optimizer of its own
def test_steps_of_distributed_autograd_and_its_optimizer_are_found(rule: str, tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(RPC)
    shown = []
    for words in ([], ["-m", "stepscope", "run", "-q", "--no-ceilings", "--record", "every:3", "--out", "runs"]):
        command = [sys.executable, *words, str(script), str(tmp_path / f"meeting-{len(words)}"), rule]
        shown.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=True))
    assert shown[0].stdout == shown[1].stdout
    run = Run(next((tmp_path / "runs").iterdir()))
    assert run.steps["samples"].to_list() == [5] * 14
    layers = run.modules()
    assert layers.filter(pl.col("module") == "2")["forward_ns"].item() > 0
