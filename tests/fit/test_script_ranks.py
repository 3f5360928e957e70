"""A training that a script starts in processes of its own: the first is followed, the others are said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.fit.test_script import answered, followed

from stepscope.errors import StepscopeError, UsageError

TRAIN = """
import os
from torch import multiprocessing as mp
import torch.distributed as dist
def main(rank, batches, world=None):
    if world is not None:
        dist.init_process_group("gloo", rank=rank, world_size=world)
        assert dist.get_world_size() == world
    for _ in range(batches):
        update(*data[: 8 if world is None else 8 * dist.get_world_size()])
        if dist.is_initialized():
            dist.all_reduce(torch.ones(1))
    raise SystemExit
"""
STARTER = "what the process takes that starts the training in another"


@pytest.mark.parametrize(
    "start",
    [
        "job = mp.Process(target=main, args=(0,), kwargs={'batches': 20})\njob.start()\njob.join()\n"
        "assert (job.exitcode, job.is_alive()) == (0, False)\njob.close()",
        "mp.spawn(main, args=(20,))",
        "class Trains(mp.get_context('spawn').Process):\n    def run(self): main(0, 20)\njob = Trains()\njob.start()",
    ],
)
def test_a_training_in_a_process_that_the_script_starts_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    found = answered(tmp_path, monkeypatch, f"{TRAIN}{start}\n")
    assert found.verdict == "likely fits"
    assert found.unsure == (f"not followed: {STARTER}",)
    assert "training" in {scene.name for scene in found.scenes}


def test_of_several_that_train_alike_one_is_followed_and_it_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answered(tmp_path, monkeypatch, f"{TRAIN}mp.spawn(main, args=(20, 3), nprocs=3)\n")
    assert (found.verdict, found.at_least) == ("cannot tell", True)
    assert any("2 other members of its process group" in why for why in found.unsure)
    assert any("each takes as much again" in why for why in found.unsure)
    assert not torch.distributed.is_initialized()


def test_a_process_that_trains_nothing_is_started_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
from multiprocessing import get_context
def write(connection): connection.send(7)
mine, other = get_context("fork").Pipe()
job = get_context("fork").Process(target=write, args=(other,))
job.start()
assert mine.recv() == 7
job.join()
for _ in range(3):
    update(*data[:8])
"""
    assert followed(tmp_path, monkeypatch, body).missed == ()


@pytest.mark.parametrize("command", ["[sys.executable, *sys.argv, '--child']", "['torchrun', '--nproc', '2', 'x.py']"])
def test_a_script_that_starts_itself_anew_trains_nothing_for_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    body = f"import subprocess, sys\nif '--child' not in sys.argv:\n    sys.exit(subprocess.call({command}))\n"
    with pytest.raises(UsageError, match="it starts itself, or a training, in another process"):
        followed(tmp_path, monkeypatch, f"{body}open('ran', 'w')\n")


def test_a_script_for_a_launcher_is_said_to_want_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    body = "import os\nrank = int(os.environ['LOCAL_RANK'])\nfor _ in range(3):\n    update(*data[:8])\n"
    with pytest.raises(StepscopeError, match="LOCAL_RANK") as refused:
        followed(tmp_path, monkeypatch, body)
    assert str(refused.value.hint).startswith("it is for a launcher: RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 stepscope fit")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert followed(tmp_path, monkeypatch, body).missed == ()
