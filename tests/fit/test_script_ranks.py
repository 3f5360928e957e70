"""A training that a script starts in processes or threads of its own: one is followed, the others are said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.fit.test_script import HEAD, answered, followed
from tests.patience import HANG_S

from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint import time_limit

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


ROUNDS = """
import os, threading
import concurrent.futures as futures
def main(n):
    for _ in range(500):
        update(*data[:8])
    done.append(n)
    return n
class Trains(threading.Thread):
    def run(self):
        main(0)
done = []
"""


@pytest.mark.parametrize(
    "start",
    [
        "job = threading.Thread(target=main, args=(0,))\njob.start()\njob.join()\nassert not job.is_alive()",
        "job = Trains()\njob.start()\njob.join()",
        "with futures.ThreadPoolExecutor(2) as pool: assert list(pool.map(main, [0])) == [0]",
    ],
)
def test_a_training_in_a_thread_is_followed_and_trains_nothing_for_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    watched = followed(tmp_path, monkeypatch, f"{ROUNDS}{start}\nassert done == [0]\n")
    assert watched.missed == ("what its threads take that train at the same time as others",)
    assert watched.log.step == 4  # rounds: the first three, and the last
    assert watched.log.ops > 0


@pytest.mark.parametrize(
    "start",
    [
        "with futures.ProcessPoolExecutor(2) as pool: assert list(pool.map(main, [0, 1])) == [0, 1]",
        "from multiprocessing import get_context\nmain(0)\n"
        "with get_context('fork').Pool(1) as pool: assert pool.map(main, [1]) == [1]",
        "main(0)\nchild = os.fork()\nif child == 0:\n    main(1)\n    os._exit(0)\nos.waitpid(child, 0)",
    ],
)
def test_of_trainings_in_processes_of_a_pool_the_most_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    watched = followed(tmp_path, monkeypatch, f"{ROUNDS}{start}\n")
    assert watched.missed == ("other processes that train as the first one does: each takes as much again",)
    assert watched.rest_unknown


def test_a_script_that_trains_in_a_fork_alone_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"{ROUNDS}child = os.fork()\nif child == 0:\n    main(1)\n    os._exit(0)\nos.waitpid(child, 0)\n"
    with pytest.raises(UsageError, match="it trains in other processes alone"):
        followed(tmp_path, monkeypatch, body)


def test_a_child_that_leaves_the_script_answers_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"{HEAD}import os, sys\nif os.fork() == 0:\n    sys.exit(3)\nassert os.wait()[1] >> 8 == 3\n"
        "update(*data[:8])\nupdate(*data[:8])\n"
    )
    follow = "from stepscope.footprint.script import dry_run_script\n"
    follow += "from stepscope.record.dry.storage_log import nothing_hidden\n"
    follow += "try:\n    dry_run_script('train.py', [], nothing_hidden)\nfinally:\n    print('left')\n"
    done = subprocess.run(
        [sys.executable, "-c", follow], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert done.stdout == "left\n"


def test_environments_in_processes_are_no_trainings_and_may_wait_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limit, "_IDLE_S", 0.0)
    monkeypatch.setattr(time_limit, "_IDLE_CPU_S", 1e-9)
    body = """
from multiprocessing import get_context
class Environment:
    def step(self, action): return action + 1
def work(connection):
    environment = Environment()
    while True:
        connection.send(environment.step(connection.recv()))
mine, other = get_context("fork").Pipe()
job = get_context("fork").Process(target=work, args=(other,), daemon=True)
job.start()
for n in range(3):
    mine.send(n)
    assert mine.recv() == n + 1
    update(*data[:8])
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert watched.missed == ("what processes take that it starts",)


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
