"""What a script writes, deletes and saves while it is followed: nothing of the user's changes."""

from __future__ import annotations

import io
import json
import logging
import os
import pathlib
import random
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.fit.test_script import HEAD, followed
from tests.patience import HANG_S
from torch import nn

from stepscope.errors import StepscopeError
from stepscope.footprint import script_files, script_overlay
from stepscope.footprint.script import dry_run_script
from stepscope.footprint.script_files import make_restorer
from stepscope.footprint.script_programs import first_acting_program
from stepscope.footprint.script_progress import Progress
from stepscope.record.dry.storage_log import StorageLog, nothing_hidden, peak_of

BEFORE = b"before" * 2
TWO = "update(*data[:8])\nupdate(*data[:8])\n"


def test_what_is_written_without_pythons_open_changes_no_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py")
    import numpy

    for name in ("model.pt", "own.pt", "all.tar", "plain", "array", "kept"):
        (tmp_path / name).write_bytes(BEFORE)
    with h5py.File(tmp_path / "table.h5", "w") as table:
        table["x"] = numpy.arange(3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    body = """
import os, shutil, sys, tarfile
import numpy
if "keras" not in sys.modules: sys.modules.pop("h5py", None)  # else HDF5 refuses its types a second time
import h5py
with tarfile.open("all.tar", "w") as packed:
    packed.add("train.py")
os.write(os.open("plain", os.O_WRONLY | os.O_TRUNC), b"after")
assert open("plain").read() == "after"
array = numpy.memmap("array", dtype="uint8", shape=(12,))
array[:] = 0
array.flush()
shutil.copy("kept", "copy")
os.symlink("kept", "link")
open("copy", "w").write("after")
assert open("kept").read() == "beforebefore" and open("copy").read() == "after"
with h5py.File("table.h5", "r+") as table:
    table["y"] = numpy.arange(3)
with h5py.File("table.h5") as table:
    assert len(table["y"]) == 3
os.truncate("kept", 0)
os.system("rm kept")
os.makedirs("runs/one")
open("runs/one/log", "w").write("some")
assert os.path.isfile("runs/one/log") and os.path.getsize("runs/one/log") == 4 and os.path.isdir("runs")
shutil.rmtree("runs")
assert not os.path.exists("runs/one/log")
update(*data[:8])
update(*data[:8])
"""
    watched = followed(tmp_path, monkeypatch, body)
    assert watched.stopped is None, watched.stopped
    assert watched.missed == ("what os.system runs: it is not run",)
    (tmp_path / "train.py").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_library_that_opens_files_may_be_imported_by_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports itself from within, before all of it is there; relative imports within others have names like its."""
    (tmp_path / "h5py").mkdir()
    (tmp_path / "h5py/__init__.py").write_text("import h5py\nfrom . import cv2\nfrom h5py.files import File\n")
    (tmp_path / "h5py/cv2.py").write_text("")
    (tmp_path / "h5py/files.py").write_text(
        "class File:\n    def __init__(self, name, mode='r'):\n        open(name)\n"
    )
    (tmp_path / "cv2.py").write_text("")
    for name in ("h5py", "h5py.cv2", "h5py.files", "cv2"):
        monkeypatch.setitem(sys.modules, name, None)  # after the test what was there is back
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    body = "import cv2, h5py\nopen('table.h5', 'w').close()\nh5py.File('table.h5', 'a')\n"
    watched = followed(tmp_path, monkeypatch, body + TWO)
    assert (watched.stopped, watched.missed) == (None, ())
    assert not (tmp_path / "table.h5").exists()


FOLDERS = """
import glob, os, shutil
from pathlib import Path
folder = Path("checkpoints")
folder.mkdir(exist_ok=True)
assert sorted(folder.glob("*.pt")) == list(folder.iterdir()) == os.listdir("checkpoints") == []
for epoch in range(3):
    update(*data[:8])
    (folder / f"step-{epoch}").mkdir()
    torch.save(model.state_dict(), folder / f"step-{epoch}" / "model.pt")
assert [path.name for path in sorted(folder.glob("step-*"))] == ["step-0", "step-1", "step-2"]
assert len(list(folder.rglob("*.pt"))) == len(glob.glob("checkpoints/*/*.pt")) == 3
assert glob.glob("checkpoints/step-1/model.pt") == ["checkpoints/step-1/model.pt"]
assert [len(files) for _, _, files in os.walk("checkpoints")] == [0, 1, 1, 1]
with os.scandir("checkpoints") as entries:
    assert all(entry.is_dir() and os.listdir(entry) == ["model.pt"] for entry in entries)
shutil.rmtree(folder / "step-0")
assert len(list(folder.iterdir())) == 2 and sorted(path.name for path in Path("own").iterdir()) == ["kept"]
Path("own/added").write_text("some")
assert {path.name: path.stat().st_size for path in Path("own").iterdir()} == {"kept": 12, "added": 4}
for path in ("nothing", Path("nothing")):
    try:
        os.listdir(path)
    except FileNotFoundError:
        path = None
    assert path is None
os.makedirs("out")
assert shutil.copy("train.py", "out") == "out/train.py"
assert os.path.isdir("out") and open("out/train.py").read() == open("train.py").read()
"""


def test_folders_that_the_script_makes_are_listed_with_what_it_has_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/kept").write_bytes(BEFORE)
    watched = followed(tmp_path, monkeypatch, FOLDERS)
    assert (watched.stopped, watched.missed) == (None, ())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "own", "train.py"]


TEMPORARY = """
import os, shutil, tempfile
from pathlib import Path
with tempfile.NamedTemporaryFile("w") as file:
    assert os.path.isdir(tempfile.gettempdir())
assert not os.path.exists(file.name)
os.makedirs("made")
for folder in (".", "made"):
    number, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(number, "wb") as file:
        torch.save(model.state_dict(), file)
    os.replace(name, f"{folder}/final.pt")
    assert not os.path.exists(name)
    assert torch.load(f"{folder}/final.pt").keys() == model.state_dict().keys()
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
    file.write("some")
shutil.copy(file.name, "copy")
os.remove(file.name)
assert Path("copy").read_text() == "some" and not os.path.exists(file.name)
tempfile.mkstemp(dir=".")
"""


def test_files_of_tempfile_are_moved_and_removed_and_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = followed(tmp_path, monkeypatch, TEMPORARY + TWO)
    assert (watched.stopped, watched.missed) == (None, ())
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_pathlib_writes_by_itself_changes_no_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.10 keeps io.open and os.scandir from before the script is followed."""
    accessor = SimpleNamespace(open=io.open, scandir=os.scandir)
    monkeypatch.setattr(pathlib, "_NormalAccessor", accessor, raising=False)
    (tmp_path / "kept").write_bytes(BEFORE)
    with script_files.ScriptFiles(Progress(StorageLog()), alone=False).intercept():
        with accessor.open(tmp_path / "kept", "w", -1, None, None, None) as file:
            file.write("after")
        (tmp_path / "added").write_text("some")
        assert sorted(entry.name for entry in accessor.scandir(tmp_path)) == ["added", "kept"]
        assert (tmp_path / "kept").read_text() == "after"
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [BEFORE]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_model_of_torch_script_is_saved_in_the_folder_that_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jit: Any = torch.jit
    model: Any = jit.script(nn.Linear(3, 2))
    with script_files.ScriptFiles(Progress(StorageLog()), alone=False).intercept():
        jit.save(model, "one.pt")
        model.save("two.pt")
        assert [jit.load(name).weight.shape for name in ("one.pt", "two.pt")] == [(2, 3), (2, 3)]
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_is_not_copied_to_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_overlay, "MOST_COPIED", 4)
    (tmp_path / "large").write_bytes(BEFORE)
    body = 'file = open("large", "r+b")\nassert file.read(6) == b"before" and not file.writable()\nfile.close()\n'
    watched = followed(tmp_path, monkeypatch, body + "update(*data[:8])\nupdate(*data[:8])\n")
    assert watched.missed == ("what is written to large, which is too large to be copied",)
    assert (tmp_path / "large").read_bytes() == BEFORE


SAVED = """
import os
for fold in range(20):
    large = nn.Linear(1000, 500)
    with open("part.pt", "wb") as file:
        torch.save(large.state_dict(), file)
    os.replace("part.pt", f"fold{fold}.pt")
    update(*data[:8])
again = torch.load("fold0.pt")
large.load_state_dict(again)
assert again["weight"].shape == (500, 1000) and os.path.exists("fold19.pt")
"""


def test_what_was_saved_takes_no_memory_and_comes_back_from_where_it_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = followed(tmp_path, monkeypatch, SAVED)
    assert (watched.stopped, watched.missed) == (None, ())
    assert peak_of(watched.log) < 3.2 * 1000 * 500 * 4  # two models as one follows another, and what is on its way


def test_tensors_that_share_a_storage_share_one_when_they_are_loaded_and_small_ones_keep_their_numbers() -> None:
    weight = nn.Parameter(torch.ones(300, 2))
    content = {"a": weight.detach(), "b": weight.detach().t(), "p": weight, "step": torch.tensor(7.0), "epoch": 3}
    again = make_restorer(content)()
    assert again["a"].data_ptr() == again["b"].data_ptr() != weight.data_ptr()
    assert (again["b"].shape, again["step"].item(), again["epoch"]) == ((2, 300), 7.0, 3)
    assert isinstance(again["p"], nn.Parameter)
    assert again["p"].requires_grad


RESUMES = """
import os, random
import numpy
if os.path.exists("last.pt"):
    last = torch.load("last.pt", weights_only=False)
    model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
    torch.set_rng_state(last["torch"])
    numpy.random.set_state(last["numpy"])
    random.setstate(last["python"])
for _ in range(2):
    update(*data[:8])
    states = {"torch": torch.get_rng_state(), "numpy": numpy.random.get_state(), "python": random.getstate()}
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **states}, "next.pt")
    os.replace("next.pt", "last.pt")
    torch.set_rng_state(torch.load("last.pt", weights_only=False)["torch"])
"""


def test_a_training_that_goes_on_from_a_checkpoint_with_its_states_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = followed(tmp_path, monkeypatch, RESUMES)
    assert (watched.stopped, watched.missed) == (None, ())
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, timeout=HANG_S)
    before = (tmp_path / "last.pt").read_bytes()
    watched = followed(tmp_path, monkeypatch, RESUMES)
    assert (watched.stopped, watched.missed) == (None, ())
    assert (tmp_path / "last.pt").read_bytes() == before


AT_EXIT = """
import atexit, os, threading, time
class Log:
    def __del__(self):
        open("history", "w").write("made up")
log, own = Log(), None
@atexit.register
def leave():
    os.remove("lock")
    torch.save(model.state_dict(), "best.pt")
    os.rename("running", "done")
atexit.register(open, "made", "w")
atexit.register(open, "never", "w")
atexit.unregister(open)
def beat():
    while True:
        open("heart", "w").write("beat")
        time.sleep(0.001)
threading.Thread(target=beat, daemon=True).start()
"""


def test_what_a_script_leaves_for_its_exit_and_to_threads_changes_no_file_of_the_user(tmp_path: Path) -> None:
    names = ("lock", "best.pt", "running", "history", "heart")
    for name in names:
        (tmp_path / name).write_bytes(BEFORE)
    (tmp_path / "train.py").write_text(HEAD + AT_EXIT + TWO)
    command = [sys.executable, "-m", "stepscope", "fit", "train.py", "--memory", "8GB", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unsure"] == []
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", *names}
    assert all((tmp_path / name).read_bytes() == BEFORE for name in names)


def test_a_tensor_that_shares_a_file_changes_none_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept").write_bytes(BEFORE)
    with script_files.ScriptFiles(Progress(StorageLog()), alone=False).intercept():
        shared = torch.from_file("kept", shared=True, size=12, dtype=torch.uint8)
        shared.fill_(1)
        torch.from_file("new", shared=True, size=4, dtype=torch.uint8).fill_(2)
        assert (Path("kept").read_bytes(), Path("new").read_bytes()) == (b"\1" * 12, b"\2" * 4)
        assert bytes(torch.from_file("kept", size=12, dtype=torch.uint8).tolist()) == b"\1" * 12
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"kept": BEFORE}
    watched = followed(tmp_path, monkeypatch, "torch.from_file('kept', shared=True, size=3).fill_(1)\n" + TWO)
    assert (watched.stopped, (tmp_path / "kept").read_bytes()) == (None, BEFORE)


def test_openers_that_modules_have_kept_change_no_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("loss.csv", "loss.csv.gz", "loss.csv.bz2", "loss.csv.xz", "g.bz2", "h.bz2", "pw.zip")
    for name in names:
        (tmp_path / name).write_bytes(BEFORE)
    body = """
import bz2
import numpy
for name in ("loss.csv", "loss.csv.gz", "loss.csv.bz2", "loss.csv.xz"):
    numpy.savetxt(name, numpy.ones(3))
    assert numpy.loadtxt(name).shape == (3,)
with bz2.open("g.bz2", "wt") as file:
    file.write("after")
assert bz2.open("g.bz2", "rt").read() == "after"
bz2.BZ2File("h.bz2", "w").close()
writer = torch._C.PyTorchFileWriter("pw.zip")
writer.write_record("a", b"after", 5)
writer.write_end_of_file()
"""
    watched = followed(tmp_path, monkeypatch, body + TWO)
    assert watched.stopped is None
    assert {name: (tmp_path / name).read_bytes() for name in names} == dict.fromkeys(names, BEFORE)


# Each section in a folder of its own: in plain Python, and followed.
_SECTIONS = """
import os, sys, traceback
from pathlib import Path
import torch
from torch import nn
home = os.getcwd()
for name, text in (part.split("\\n", 1) for part in open(sys.argv[1]).read().split("# --- ")[1:]):
    os.chdir(os.path.join(home, name))
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"torch": torch, "nn": nn, "model": model, "optimizer": optimizer, "__name__": "__main__"}
    try:
        exec(compile(text, name, "exec"), {**names, "__file__": os.path.join(home, name, "train.py")})
    except BaseException as error:
        line = traceback.extract_tb(error.__traceback__)[1].lineno
        raise RuntimeError(f"{name}, line {line}: {text.splitlines()[line - 1]}") from error
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""
_USERS = {
    "kept.txt": b"before\n", "data/a.txt": b"a\n", "data/b.txt": b"b\n", "data/deep/c.txt": b"c\n",
    "runs/old/model.pt": b"old", "runs/old/log.csv": b"step,loss\n1,2.0\n", "train.py": b"",
}  # fmt: skip
_HANDLING = Path(__file__).with_name("file_handling.txt")


def _with_files_of_a_user(folder: Path) -> Path:
    sections = [line[6:] for line in _HANDLING.read_text().splitlines() if line.startswith("# --- ")]
    for name, content in ((f"{section}/{name}", content) for section in sections for name, content in _USERS.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "train.py").write_text(_SECTIONS)
    return folder


def test_what_scripts_do_with_files_does_so_in_plain_python(tmp_path: Path) -> None:
    command = [sys.executable, "train.py", str(_HANDLING)]
    done = subprocess.run(command, cwd=_with_files_of_a_user(tmp_path), capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr


def test_a_script_sees_what_it_does_with_files_and_no_file_of_the_user_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(_with_files_of_a_user(tmp_path))
    before = {path: path.stat() for path in tmp_path.rglob("*")}
    watched = dry_run_script("train.py", [str(_HANDLING)], nothing_hidden)
    assert (watched.stopped, watched.missed) == (None, ())
    after = {path: path.stat() for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
    assert after.keys() == before.keys()
    for path, was in before.items():
        now = after[path]
        assert (now.st_mode, now.st_size, now.st_nlink) == (was.st_mode, was.st_size, was.st_nlink), path
        assert path.is_dir() or now.st_mtime_ns == was.st_mtime_ns, path


def test_no_program_is_run_that_ends_the_machine_sends_or_starts_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls = tmp_path / "programs", tmp_path / "calls"
    folder.mkdir()
    for name in ("shutdown", "poweroff", "sudo", "sbatch", "mail", "git", "nvidia-smi"):
        program = folder / name
        program.write_text(f"#!/bin/sh\necho {name} $@ >> {calls}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    body = """
import subprocess, sys
for command in (["shutdown", "-h", "now"], ["sudo", "-n", "poweroff"], ["git", "commit", "-am", "trained"],
                ["git", "rev-parse", "HEAD"], ["nvidia-smi", "-pl", "100"], ["nvidia-smi", "-L"]):
    subprocess.run(command, check=True)
subprocess.run("echo done | mail -s trained me && sbatch next.sh", shell=True, check=True)
for command in ("ls\\nsudo -n poweroff", "echo `shutdown now`", ["sed", "-i", "s/a/b/", "train.py"], ["./own"],
                ["find", ".", "-delete"], [sys.executable, "-c", "open('made', 'w')"]):
    subprocess.run(command, shell=isinstance(command, str), check=True)
"""
    watched = followed(tmp_path, monkeypatch, body + TWO)
    assert calls.read_text().splitlines() == ["git rev-parse HEAD", "nvidia-smi -L"]
    unfollowed = [line.split("'")[1] for line in watched.missed]
    others = ["sed", "own", "find", Path(sys.executable).name]
    assert unfollowed == ["shutdown", "poweroff", "git", "nvidia-smi", "mail", *others]
    assert not (tmp_path / "made").exists()


def test_a_script_goes_on_behind_programs_that_posix_spawn_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").write_bytes(BEFORE)
    body = """
import os, shutil
for words in (["rm", "mine"], ["uname", "-s"]):
    pid = os.posix_spawn(shutil.which(words[0]), words, os.environ)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
written = [(os.POSIX_SPAWN_OPEN, 1, "mine", os.O_WRONLY | os.O_TRUNC, 0o600)]
os.waitpid(os.posix_spawnp("echo", ["echo"], os.environ, file_actions=written), 0)
"""
    watched = followed(tmp_path, monkeypatch, body + TWO)
    assert watched.stopped is None
    assert [line.split("'")[1] for line in watched.missed] == ["rm", ">"]
    assert (tmp_path / "mine").read_bytes() == BEFORE


ANSWERING = """
    git rev-parse HEAD; git -C . describe --tags --dirty; git config user.name; git config --get remote.origin.url
    git branch --show-current; git log -1 --format=%H; git -c safe.directory=* status --porcelain; git stash list
    nvidia-smi; nvidia-smi --query-gpu=name,memory.total --format=csv,noheader; nvidia-smi topo -m; date +%s; git tag
    date -d now; hostname -f; stty size 2>/dev/null; echo "on $(date) at home"; /sbin/ldconfig -p | grep cuda
    gcc --version
    cat /proc/cpuinfo | grep name 2>&1; ls >/dev/null 2>&1; echo late >&2; (git --version); ld -t -o /dev/null -lc
"""
ACTING = """
    git config user.name me; git config --unset user.name; git branch new; git branch --list -D old; git stash
    git log --output=mine; git diff --outp mine; git -c alias.x=!rm x; git mine; git update-ref HEAD x; git tag -d v1
    nvidia-smi --power-limit=100; nvidia-smi -q -f mine; nvidia-smi mig -cgi 9; rocm-smi --setfan 3; date -s 10:00
    hostname new; stty -echo; ldconfig; gcc -v a.c; cc -o prog a.c; sysctl -w a=1; sysctl vm.x=1; file -C -m mine
    sort -o mine mine; tar -xf mine; echo>mine; echo &>> mine; (echo a)>mine; ls 2>mine; echo >| mine; echo > /dev/sda
    echo "$(rm mine)"; echo "`rm mine`"; echo "$(cat "$(rm mine)")"; $PROGRAM; ls | tee mine; sudo A=1 rm mine
"""


def _lines_of(lines: str) -> list[str]:
    return [line.strip() for line in lines.replace("\n", ";").split(";") if line.strip()]


@pytest.mark.parametrize("line", _lines_of(ANSWERING))
def test_a_program_that_is_asked_something_is_run(line: str) -> None:
    assert first_acting_program(line) is None
    assert first_acting_program(["sh", "-c", line]) is None


@pytest.mark.parametrize("line", _lines_of(ACTING))
def test_a_program_that_answers_is_not_run_with_words_by_which_it_writes_or_sets(line: str) -> None:
    assert first_acting_program(line) is not None
    assert first_acting_program([line]) is not None  # with shell=True


def test_what_is_run_in_place_of_the_first_word_counts() -> None:
    assert first_acting_program(["ls"], "/bin/rm") == "rm"
    assert first_acting_program(["ls"], b"/bin/ls") is None
    assert first_acting_program("") is None


@pytest.mark.parametrize(
    "start",
    ["os.posix_spawn('/bin/sh', ['sh', '-c', 'echo > made'], os.environ)",
     "os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'echo > made')"],
)  # fmt: skip
def test_a_program_that_is_started_below_subprocess_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    followed(tmp_path, monkeypatch, f"import os\n{TWO}{start}\n")
    assert not (tmp_path / "made").exists()


def test_a_script_that_needs_what_a_program_makes_is_told_to_run_that_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import subprocess\nsubprocess.run(['python', 'prepare.py'])\nopen('data.bin')\n"
    with pytest.raises(StepscopeError, match=r"data\.bin") as failed:
        followed(tmp_path, monkeypatch, body)
    assert failed.value.hint == "fit does not run 'python': run first what it needs of that"


def test_marks_of_files_and_the_mask_of_new_ones_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").write_bytes(BEFORE)
    (tmp_path / "mine").chmod(0o640)
    mask = os.umask(0o022)
    body = """
import os
opened = os.open("mine", os.O_RDONLY)
os.fchmod(opened, 0o777)
os.setxattr("mine", "user.trained", b"1")
os.mknod("node")
assert open("node").read() == ""
os.umask(0o777)
"""
    try:
        watched = followed(tmp_path, monkeypatch, body + TWO)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(mask)
    assert watched.stopped is None
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o640
    assert os.listxattr(tmp_path / "mine") == []
    assert not (tmp_path / "node").exists()


class _MailServer(socketserver.StreamRequestHandler):
    commands: list[bytes]

    def handle(self) -> None:
        self.wfile.write(b"220 hello\r\n")
        for line in self.rfile:
            self.commands.append(line[:4].upper())
            self.wfile.write(b"221 bye\r\n" if line.startswith(b"quit") else b"250 well\r\n")


def test_no_mail_leaves_a_script_that_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[bytes] = []
    monkeypatch.setattr(_MailServer, "commands", commands, raising=False)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _MailServer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        body = f"""
import smtplib
update(*data[:8])
update(*data[:8])
with smtplib.SMTP("127.0.0.1", {server.server_address[1]}) as opened:
    opened.sendmail("me@here", ["you@there"], "trained")
"""
        watched = followed(tmp_path, monkeypatch, body)
        server.shutdown()
        thread.join()
    assert "it would send something to a mail server (MAIL)" in watched.missed[0]
    assert commands == [b"EHLO", b"QUIT"]


def test_traces_storages_and_files_of_libraries_that_are_imported_by_name_change_no_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("h5py")
    for name in ("trace.json", "table.h5", "storage", "precious.pt"):
        (tmp_path / name).write_bytes(BEFORE)
    body = """
import importlib, os, subprocess, sys
if "keras" not in sys.modules: sys.modules.pop("h5py", None)  # else HDF5 refuses its types a second time
importlib.import_module("h5py").File(name="table.h5", mode="w").close()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    update(*data[:8])
profiler.export_chrome_trace("trace.json")
torch.UntypedStorage.from_file("storage", True, 4096)
os.mkfifo("pipe")
subprocess.run(["rm", "-f", "precious.pt"], check=True)
subprocess.run("git --version && (rm precious.pt)", shell=True, check=True)
"""
    watched = followed(tmp_path, monkeypatch, body + TWO)
    assert watched.missed == ("what 'rm' does: programs that may do more than answer are not run",)
    assert {path.name for path in tmp_path.iterdir()} == {
        "train.py",
        "trace.json",
        "table.h5",
        "storage",
        "precious.pt",
    }
    assert all(path.read_bytes() == BEFORE for path in tmp_path.iterdir() if path.name != "train.py")


def test_what_is_saved_by_the_names_of_its_arguments_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
torch.save(obj=model.state_dict(), f="model.pt")
model.load_state_dict(torch.load(f="model.pt"))
from safetensors.torch import load_file, save_file
save_file(tensors=model.state_dict(), filename="model.safetensors")
model.load_state_dict(load_file(filename="model.safetensors"))
"""
    pytest.importorskip("safetensors")
    watched = followed(tmp_path, monkeypatch, TWO + body)
    assert (watched.stopped, watched.missed, watched.rest_unknown) == (None, (), False)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


LEAVES_SETTINGS = """
import logging, os, random, sys, http.client
import imported_late
os.environ["LEFT_BEHIND"] = os.environ["WANDB_MODE"]
logging.basicConfig(filename="log.txt", force=True)
random.seed(3)
for n in range(300):
    update(*data[:8])
    if n == 100:
        model(torch.randn(80_000, 100))
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
"""


def test_this_process_is_after_a_script_as_it_was_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "imported_late.py").write_text("from builtins import open as opened\nfrom torch import save\n")
    monkeypatch.syspath_prepend(str(library))
    random.seed(7)
    state, handlers, environment = random.getstate(), list(logging.getLogger().handlers), dict(os.environ)
    watched = followed(tmp_path, monkeypatch, LEAVES_SETTINGS)
    assert len(watched.forced) == 1  # the other pass has gradients again
    late = sys.modules.pop("imported_late")
    assert (late.opened, late.save) == (open, torch.save)
    assert (random.getstate(), logging.getLogger().handlers, dict(os.environ)) == (state, handlers, environment)
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)


def test_a_script_sends_nothing_to_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
import http.client
http.client.HTTPConnection("stepscope.invalid").request("POST", "/losses", b"1.0")
"""
    watched = followed(tmp_path, monkeypatch, TWO + body)
    assert watched.missed == ("what comes after 2 updates: it would send something to stepscope.invalid (POST)",)
