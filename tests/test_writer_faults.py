"""The writer in a hostile process: forks, closed descriptors, a change of directory, full disks, removed folders."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stepscope import privacy
from stepscope.errors import RunDamaged
from stepscope.files import replace_json
from stepscope.runfolder import PHASES, Part, RunReader, RunWriter
from stepscope.runfolder import writer as writing
from stepscope.runfolder.schema import OPS_COLUMNS, STEP_ROW, TEXT

STEP = (1_000, 2_000, 16, 0.5, True)
linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


def small() -> Part:
    columns = {name: np.zeros(1, dtype=np.int64) for name in OPS_COLUMNS}
    texts = {name: [PHASES[0]] for name, kind in OPS_COLUMNS.items() if kind == TEXT}
    return Part(columns, texts)


def fill(writer: RunWriter, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        writer.append_step(step, *STEP)


def in_a_fork(act: object) -> None:
    """Call it in a forked child, and wait for that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # polars has threads here
        pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            act()  # type: ignore[operator]
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    held = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, held)


# no descriptor between two calls


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@linux
def test_no_file_is_open_between_two_calls(writer: RunWriter) -> None:
    before = descriptors()
    fill(writer, 0, 3)
    writer.flush_steps()
    writer.write_ops(small())
    writer.append_event("note", "x")
    writer.update(seed=1)
    fill(writer, 3, 3)
    assert descriptors() == before


CLOSES = """
import os, sys
from stepscope.runfolder import RunWriter
writer = RunWriter.create(sys.argv[1], "closes")
writer.append_step(0, 1, 2, 16, None, False)
writer.flush_steps()
os.closerange(3, 256)
mine = [open(f"{sys.argv[1]}/mine{number}", "w+b") for number in range(8)]
for file in mine:
    file.write(b"the user's")
    file.flush()
writer.append_step(1, 2, 3, 16, None, False)
writer.flush_steps()
writer.append_event("note", "x")
writer.close("ok")
for file in mine:
    file.seek(0)
    assert file.read() == b"the user's", file.name
print(writer.path)
"""


@linux
def test_after_closerange_the_users_new_files_hold_what_the_user_wrote(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CLOSES, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = RunReader(Path(done.stdout.strip()))
    assert (run.status, run.steps["step"].to_list()) == ("ok", [0, 1])


def test_a_script_that_changes_its_working_directory_keeps_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    writer = RunWriter.create("runs", "moves")
    monkeypatch.chdir(elsewhere)
    fill(writer, 0, 2)
    writer.write_ops(small())
    writer.close("ok")
    run = RunReader(writer.path)
    assert (writer.path.parent, run.steps.height, run.ops.height) == (tmp_path / "runs", 2, 1)
    assert list(elsewhere.iterdir()) == []


# forks


def test_a_forked_child_writes_nothing_of_ours_whatever_it_calls(writer: RunWriter) -> None:
    fill(writer, 0, 2)

    def all_of_it() -> None:
        fill(writer, 2, 2)
        writer.flush_steps()
        writer.write_ops(small())
        writer.append_event("note", "x")
        writer.update(seed=1)
        writer.write_device({"a": 1})
        writer.close("failed", "in the child")

    before = sorted(path.name for path in writer.path.rglob("*"))
    in_a_fork(all_of_it)
    assert sorted(path.name for path in writer.path.rglob("*")) == before
    writer.close("ok")
    run = RunReader(writer.path)
    assert (run.status, run.steps["step"].to_list(), run.events) == ("ok", [0, 1], [])


# going on with a run, and its ranks


def test_another_process_goes_on_with_a_run(writer: RunWriter) -> None:
    writer.write_ops(small())
    fill(writer, 0, 1)
    writer.flush_steps()
    other = RunWriter.attach(writer.path)
    other.update(seed=7)
    other.write_ops(small())
    fill(other, 1, 1)
    other.close("ok")
    writer.update(result={"exit": 0})  # says nothing of what the other one said
    run = RunReader(writer.path)
    assert (run.status, run.meta["seed"], run.meta["result"]) == ("ok", 7, {"exit": 0})
    assert run.steps["step"].to_list() == [0, 1]
    assert sorted(path.name for path in (writer.path / "ops").iterdir()) == ["000000.part", "000001.part"]


def test_what_a_killed_process_left_of_a_step_is_cut_off_by_the_next(writer: RunWriter) -> None:
    fill(writer, 0, 2)
    writer.flush_steps()
    with (writer.path / "steps.rows").open("ab") as file:
        file.write(b"torn")
    fill(writer, 2, 1)
    writer.flush_steps()
    assert RunReader(writer.path).steps["step"].to_list() == [0, 1, 2]


def test_a_folder_that_is_no_run_cannot_be_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RunWriter.attach(tmp_path)
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(RunDamaged):
        RunWriter.attach(tmp_path)


def test_a_rank_has_a_folder_of_its_own_once(writer: RunWriter) -> None:
    rank = RunWriter.create_rank(writer.path, 3)
    rank.write_ops(small())
    fill(rank, 0, 2)
    rank.close("ok")
    run = RunReader(writer.path / "ranks" / "3")
    assert (run.status, run.id.rpartition("/")[2], run.steps.height, run.ops.height) == ("ok", "3", 2, 1)
    with pytest.raises(FileExistsError):
        RunWriter.create_rank(writer.path, 3)
    assert RunReader(writer.path).status == "running"  # the run itself goes on


def test_a_rank_of_a_run_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RunWriter.create_rank(tmp_path / "gone", 0)


# disks


def test_a_file_that_may_not_grow_ends_on_a_whole_row_and_goes_on_later(writer: RunWriter) -> None:
    fill(writer, 0, 100)
    with files_of_at_most(10 * STEP_ROW.itemsize + 7), pytest.raises(OSError, match="too large"):
        writer.flush_steps()
    assert (writer.path / "steps.rows").stat().st_size == 10 * STEP_ROW.itemsize
    writer.flush_steps()
    assert RunReader(writer.path).steps["step"].to_list() == list(range(100))
    assert writer.steps_dropped == 0


def test_steps_that_no_disk_takes_do_not_fill_the_memory(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_WAITING_STEPS", 10)
    with files_of_at_most(0):
        for first in range(0, 40, 20):
            fill(writer, first, 20)
            with pytest.raises(OSError, match="too large"):
                writer.flush_steps()
    writer.flush_steps()
    assert RunReader(writer.path).steps["step"].to_list() == list(range(30, 40))
    assert writer.steps_dropped == 30


def test_a_part_that_does_not_fit_leaves_nothing_behind(writer: RunWriter) -> None:
    with files_of_at_most(50), pytest.raises(OSError, match="too large"):
        writer.write_ops(small())
    assert list((writer.path / "ops").iterdir()) == []
    writer.write_ops(small())
    assert RunReader(writer.path).ops.height == 1


FULL = """
import contextlib, os, sys
from pathlib import Path
from stepscope.runfolder import RunWriter
writer = RunWriter.create(sys.argv[1], "full")
with (Path(sys.argv[1]) / "ballast").open("wb", 0) as ballast, contextlib.suppress(OSError):
    while True:
        ballast.write(os.urandom(4096))
for step in range(200):
    writer.append_step(step, 1, 2, None, None, False)
    with contextlib.suppress(OSError):
        writer.flush_steps()
with contextlib.suppress(OSError):
    writer.append_event("note", "x" * 5000)
writer.close("failed", "RuntimeError: the last word")
print(writer.path)
"""


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=200k", "tmpfs", place], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("may not mount a file system")
    yield place
    subprocess.run(["umount", place], check=True)


def test_the_last_status_still_fits_on_a_full_disk(tiny_disk: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tiny_disk)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = RunReader(Path(done.stdout.strip()))
    assert (run.status, run.meta["reason"]) == ("failed", "RuntimeError: the last word")
    assert run.steps.height == 200  # the reserve had room for them as well


def test_the_reserve_is_given_up_for_the_last_status_alone(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = writer.path / writing.RESERVE
    assert reserve.stat().st_blocks * 512 >= writing.RESERVE_BYTES

    def full(path: Path, content: object, whole: bool) -> None:
        if reserve.exists():
            raise OSError(28, "No space left on device")
        replace_json(path, content, whole=whole)

    monkeypatch.setattr(writing, "replace_json", full)
    with pytest.raises(OSError, match="No space"):
        writer.update(seed=1)
    assert reserve.exists()
    writer.close("oom", "MemoryError")
    assert not reserve.exists()
    assert json.loads((writer.path / "run.json").read_text())["status"] == "oom"


def test_a_run_that_ends_well_leaves_no_reserve(writer: RunWriter) -> None:
    writer.close("ok")
    assert [path.name for path in writer.path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_is_removed_in_mid_run_is_an_oserror_and_nothing_else(writer: RunWriter) -> None:
    shutil.rmtree(writer.path)
    fill(writer, 0, 1)
    for act in (
        writer.flush_steps,
        lambda: writer.write_ops(small()),
        lambda: writer.append_event("a", "b"),
        writer.update,
    ):
        with pytest.raises(OSError, match="No such file"):
            act()
    with pytest.raises(OSError, match="No such file"):
        writer.close("ok")
    assert not writer.path.exists()


def test_a_private_run_says_nothing_of_its_command_line_and_is_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(privacy.VARIABLE, "1")
    private = RunWriter.create(tmp_path, "private")
    private.update(argv=["train.py", "--name", "hunter2"], cwd="/home/hunter2", host="hunter2", seed=7)
    private.close("ok")
    assert "hunter2" not in (private.path / "run.json").read_text()
    assert RunReader(private.path).meta["seed"] == 7
    assert private.path.stat().st_mode & 0o077 == 0


def test_a_run_whose_training_is_still_set_up_is_running(tmp_path: Path) -> None:
    """Loading data can take minutes before the first step, which states the facts of the process."""
    assert RunReader(RunWriter.create(tmp_path, "lenet").path).status == "running"
