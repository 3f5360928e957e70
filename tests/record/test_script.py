"""Unmodified training scripts: measured, and left as they are."""

from __future__ import annotations

import fcntl
import os
import py_compile
import signal
import subprocess
import sys
import termios
import zipapp
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.conftest import CommandLine
from tests.patience import HANG_S
from tests.warm_python import WarmPython

import stepscope
from stepscope.errors import UsageError
from stepscope.files import read_json
from stepscope.record.script import interpreter_options, run_script
from stepscope.record.settings import Settings
from stepscope.record.signals import signals_passed_on
from stepscope.report.live.growing_files import status_from_header
from stepscope.runfolder import RunReader, RunWriter

TRAIN = """
import argparse, sys, torch
from torch import nn
arguments = argparse.ArgumentParser()
arguments.add_argument("--epochs", type=int, default=1)
arguments.add_argument("--end", default="")
options = arguments.parse_args()
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.zeros(64, dtype=torch.long))
loader = torch.utils.data.DataLoader(data, batch_size=16)
model, loss = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
if __name__ == "__main__":
    for epoch in range(options.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    if options.end == "raise":
        raise ValueError("the script's own")
    if options.end:
        sys.exit(int(options.end) if options.end.isdigit() else options.end)
"""
TWICE = """
import os, runpy
other = os.fork()
try:
    runpy.run_module("stepscope", run_name="__main__", alter_sys=True)
finally:
    assert other == 0 or os.waitpid(other, 0)[1] == 0
"""

FORKS_WHILE_A_LOCK_IS_HELD = """
import ctypes, os, signal, sys, threading, time, torch
library, ours, others = ctypes.CDLL(None), ctypes.c_void_p(8), ctypes.c_void_p(16)
nothing = ctypes.cast(library.getpid, ctypes.c_void_p)
for _ in range(100_000):
    library.__cxa_atexit(nothing, None, others)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
over = threading.Event()
def hold():  # the C library's lock of what is called at the exit, nearly always
    while not over.is_set():
        library.__cxa_finalize(ours)
thread = threading.Thread(target=hold)
thread.start()
time.sleep(0.05)
for number in range(8):
    child = os.fork()
    if child == 0:
        os._exit(number)
    waited_since = time.monotonic()
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > waited_since + float(sys.argv[1]):
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    print(ended[1] >> 8 if ended[1] & 127 == 0 else "killed")
over.set()
thread.join()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def test_steps_and_batch_size_are_found_without_a_change_to_the_script(script: Path, tmp_path: Path) -> None:
    path, code = run_script(str(script), ["--epochs", "3"], Settings(out=tmp_path / "runs"))
    run = RunReader(path)
    assert code == 0
    assert run.status == "ok"
    assert run.steps.height == 12
    assert run.steps["samples"].to_list() == [16] * 12
    assert run.meta["workload"]["name"] == "train"
    assert {"0", "2", "CrossEntropyLoss"} <= set(run.model["module"])


def test_a_script_from_stdin_is_run_as_python_runs_it(script: Path, tmp_path: Path) -> None:
    text = TRAIN + "print(sys.argv, sys.path[0], __file__, repr(__loader__), sorted(vars()), sys.stdin.read())\n"
    script.write_text(text)
    ended = []
    for before in (["-"], ["-m", "stepscope", "run", "-q", "--no-ceilings", "--out", str(tmp_path / "runs"), "-"]):
        with script.open("rb") as given:
            words = [sys.executable, *before, "--epochs", "2", "--end", "3"]
            ended.append(subprocess.run(words, stdin=given, capture_output=True, timeout=HANG_S, check=False))
    assert [end.returncode for end in ended] == [3, 3]
    assert ended[0].stdout == ended[1].stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert RunReader(run).steps.height == 8
    assert RunReader(run).meta["workload"]["name"] == "stdin"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's lock")
def test_a_child_that_is_forked_while_a_thread_holds_the_lock_of_exit_functions_leaves(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORKS_WHILE_A_LOCK_IS_HELD)
    words = [sys.executable, "-W", "ignore", "-m", "stepscope", "run", "-q", "--no-ceilings"]
    words += ["--out", str(tmp_path / "runs"), "train.py", "--", str(HANG_S / 4)]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=HANG_S, check=True, text=True)
    assert ended.stdout.split() == [str(number) for number in range(8)]


def test_the_batch_size_can_be_said_instead(script: Path, tmp_path: Path) -> None:
    path, _ = run_script(str(script), [], Settings(out=tmp_path / "runs", samples_per_step=160))
    assert RunReader(path).steps["samples"].to_list() == [160] * 4


def test_several_updates_can_be_one_step(script: Path, tmp_path: Path) -> None:
    path, _ = run_script(str(script), [], Settings(out=tmp_path / "runs", optimizer_steps_per_step=2))
    assert RunReader(path).steps["samples"].to_list() == [32, 32]


@pytest.mark.parametrize("archive", [False, True])
def test_a_folder_or_an_archive_with_a_main_is_run_as_python_runs_it(
    archive: bool, script: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "__main__.py").write_text(f"import sys\nsys.argv[1:] = ['--end', '4']\n{TRAIN}")
    target = folder
    if archive:
        target = tmp_path / "program.pyz"
        zipapp.create_archive(folder, target)
    path, code = run_script(str(target), [], Settings(out=tmp_path / "runs"))
    assert code == 4
    assert RunReader(path).steps["samples"].to_list() == [16] * 4


def test_the_exit_code_of_the_script_is_passed_on(script: Path, tmp_path: Path) -> None:
    path, code = run_script(str(script), ["--end", "7"], Settings(out=tmp_path / "runs"))
    assert code == 7
    assert RunReader(path).status == "failed"


def test_the_exit_code_is_passed_on_where_ended_children_are_not_kept(script: Path, tmp_path: Path) -> None:
    """Perl programs and some supervisors start others with SIGCHLD ignored, so that the kernel keeps no exit code."""
    words = [sys.executable, "-m", "stepscope", "run", "--out", str(tmp_path / "runs"), str(script), "--end", "3"]
    code = subprocess.run(
        words, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN), check=False
    ).returncode
    assert code == 3


def test_a_script_that_raises_shows_its_own_traceback_and_none_of_ours(
    script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, code = run_script(str(script), ["--end", "raise"], Settings(out=tmp_path / "runs"))
    error = capfd.readouterr().err
    assert code == 1
    assert "ValueError: the script's own" in error
    assert "stepscope" not in error
    assert "runpy" not in error
    assert RunReader(path).meta["reason"] == "ValueError: the script's own"


def test_a_folder_that_raises_shows_the_traceback_that_python_shows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "__main__.py").write_text("raise ValueError")
    bare = subprocess.run([sys.executable, str(folder)], capture_output=True, text=True, check=False).stderr
    run_script(str(folder), [], Settings(out=tmp_path / "runs"))
    assert "runpy" in bare
    assert capfd.readouterr().err == bare


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of exceptions came with Python 3.11")
def test_causes_and_members_of_a_group_are_shown_without_our_frames(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "group.py"
    script.write_text(
        "from torch import nn\n"
        "class Model(nn.Module):\n"
        "    def forward(self):\n"
        "        raise ValueError('within')\n"
        "def fails():\n"
        "    try:\n"
        "        Model()()\n"
        "    except ValueError as error:\n"
        "        raise KeyError('then') from error\n"
        "try:\n"
        "    fails()\n"
        "except KeyError as error:\n"
        "    raise ExceptionGroup('all of them', [error, OSError('another')])\n"
    )
    run_script(str(script), [], Settings(out=tmp_path / "runs"))
    error = capfd.readouterr().err
    assert "ValueError: within" in error
    assert "all of them" in error
    assert str(Path(stepscope.__file__).parent) not in error


def test_descriptors_that_were_handed_over_are_the_scripts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    os.write(write, b"from somewhere else")
    os.close(write)
    script = tmp_path / "reads.py"
    script.write_text("import sys; print(open(sys.argv[1]).read())")
    _, code = run_script(str(script), [f"/dev/fd/{read}"], Settings(out=tmp_path / "runs"))
    os.close(read)
    assert code == 0
    assert capfd.readouterr().out == "from somewhere else\n"


def test_the_scripts_settings_of_the_interpreter_are_put_back(script: Path, tmp_path: Path) -> None:
    before = (list(sys.argv), list(sys.path))
    run_script(str(script), [], Settings(out=tmp_path / "runs"))
    assert (sys.argv, sys.path) == before


def test_a_script_that_never_steps_says_so(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("print('no training here')\n")
    path, code = run_script(str(script), [], Settings(out=tmp_path / "runs"))
    assert code == 0
    assert [event["kind"] for event in RunReader(path).events] == ["no-steps"]


def test_a_script_that_makes_the_folder_of_its_run_itself_is_said_to_need_another(
    script: Path, tmp_path: Path, stepscope_cli: CommandLine
) -> None:
    script.write_text("import torch, os\nos.makedirs('runs')\n")
    ended = stepscope_cli("run", "-q", str(script))
    assert ended.returncode == 1
    assert "this run is in 'runs', which the script makes itself: put it elsewhere with --out DIR" in ended.stderr
    script.write_text("import os\nos.makedirs('other')\nraise FileExistsError\n")
    assert "--out" not in stepscope_cli("run", "-q", str(script)).stderr


def test_a_script_that_is_not_there_is_refused_and_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no script"):
        run_script("nowhere.py", [], Settings(out=tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_a_script_that_leaves_through_os_exit_leaves_a_readable_run(
    script: Path, tmp_path: Path, stepscope_cli: CommandLine
) -> None:
    script.write_text(TRAIN + "    import os\n    os._exit(5)\n")
    ended = stepscope_cli("run", "--out", "runs", str(script))
    assert ended.returncode == 5, ended.stderr
    run = RunReader(next((tmp_path / "runs").iterdir()))
    assert run.status == "interrupted"


def test_two_runs_at_once_keep_apart(script: Path, tmp_path: Path, warm_python: WarmPython) -> None:
    ended = warm_python.run(["-c", TWICE, "run", "-q", "--out", "runs", str(script)], tmp_path)
    assert ended.returncode == 0, ended.stderr
    runs = [RunReader(path) for path in (tmp_path / "runs").iterdir()]
    assert [run.steps.height for run in runs] == [4, 4]
    assert [run.status for run in runs] == ["ok", "ok"]


def test_a_quiet_script_is_not_made_to_wait_for_the_import_of_the_analysis(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "stepscope", "run", "-q", "--no-ceilings", "--out", "runs"]
    ended = subprocess.run([*command, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "stepscope.runfolder" in ended.stderr
    assert "stepscope.analysis" not in ended.stderr


def test_options_of_a_workload_are_refused_for_a_script(
    script: Path, tmp_path: Path, stepscope_cli: CommandLine
) -> None:
    ended = stepscope_cli("run", "--steps", "5", "--out", "runs", str(script))
    assert ended.returncode == 2
    assert "--steps" in ended.stderr
    assert "--" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_a_loop_that_never_calls_step_is_warned_about(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="scope.step"), stepscope.profile(out=tmp_path):
        pass


def test_output_that_is_closed_or_full_changes_no_exit_code(script: Path, tmp_path: Path) -> None:
    for way in (">&-", "2>/dev/full", "2>&- >&-"):
        command = f"{sys.executable} -m stepscope run --no-ceilings {script} {way}"
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (way, done.stderr)


def test_a_quiet_script_on_a_full_disk_ends_as_it_would_and_says_once_what_is_missing(
    script: Path, tmp_path: Path
) -> None:
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))\n"
    script.write_text(full + TRAIN)
    command = [sys.executable, "-m", "stepscope", "run", "--quiet", "--no-ceilings", str(script)]
    command += ["--epochs", "100", "--end", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if "missing" in line]
    (path,) = (tmp_path / "runs").iterdir()
    run = RunReader(path)
    assert run.meta["steps_lost"] == 400 - run.steps.height > 0
    assert f"{run.meta['steps_lost']} steps and {run.meta['recorder']['lost_windows']} profiling windows" in line


def test_a_compiled_script_is_run_as_python_runs_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "hello.py"
    script.write_text("print('hello', __file__.rpartition('.')[2])")
    compiled = tmp_path / "hello.pyc"
    py_compile.compile(str(script), cfile=str(compiled))
    _, code = run_script(str(compiled), [], Settings(out=tmp_path / "runs"))
    assert code == 0
    assert capfd.readouterr().out == "hello pyc\n"


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ("-m stepscope run x.py", []),
        ("-X dev -Im stepscope -q", ["-Xdev", "-I"]),
        ("-Wignore -W error -BOOu -c pass -b", ["-Wignore", "-Werror", "-BOOu"]),
        ("--check-hash-based-pycs always -i -bi stepscope", ["--check-hash-based-pycs", "always", "-b"]),
        ("stepscope -m", []),
        ("- -b", []),
        ("", []),
    ],
)
def test_the_script_gets_the_options_that_this_python_was_given(typed: str, options: list[str]) -> None:
    assert interpreter_options(typed.split()) == options


def test_what_the_environment_says_to_python_is_not_said_twice(tmp_path: Path) -> None:
    script = tmp_path / "shows.py"
    script.write_text("import sys; print(sys.warnoptions, sys._xoptions, sys.flags)")
    environ = {**os.environ, "PYTHONDEVMODE": "1", "PYTHONWARNINGS": "ignore", "PYTHONOPTIMIZE": "1"}
    shown = {
        subprocess.run(
            [sys.executable, *words, script], cwd=tmp_path, env=environ, capture_output=True, check=True
        ).stdout
        for words in ([], ["-m", "stepscope", "run", "-q"])
    }
    assert len(shown) == 1


@pytest.mark.parametrize("number", [signal.SIGWINCH, signal.SIGALRM, signal.SIGRTMIN + 3])
def test_a_signal_for_this_process_reaches_the_script(number: int, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        f"import signal, sys, time\nsignal.signal({int(number)}, lambda *of: sys.exit(9))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-m", "stepscope", "run", "-q", str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, start_new_session=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        started.send_signal(number)
        assert started.wait(HANG_S) == 9


COUNTS = """
import os, signal, sys, time
came = []
numbers = [signal.Signals(int(word)) for word in sys.argv[1:]]
for number in numbers:
    signal.signal(number, lambda number, frame: came.append(number))
print(os.getpid(), flush=True)
for number in numbers:
    while number not in came:
        time.sleep(0.01)
    time.sleep(0.3)
    print(came.count(number), flush=True)
"""
Told = Callable[[int, int, int], None]  # the process that was started, the script's, the signal


def _told_each(started: int, script: int, number: int) -> None:
    """Tell every process that has the script's words, as `pkill -f` does."""
    os.kill(started, number)
    os.kill(script, number)
    for child in Path(f"/proc/{started}/task/{started}/children").read_text().split():
        if int(child) != script and "counts.py" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(int(child), number)


def _times_each_came(folder: Path, numbers: Sequence[int], tell: Told, stdin: int = subprocess.DEVNULL) -> list[int]:
    """Run a script and tell it these signals; how often each reached it."""
    (folder / "counts.py").write_text(COUNTS, encoding="utf-8")
    command = [sys.executable, "-m", "stepscope", "run", "-q", "counts.py", *(str(int(number)) for number in numbers)]
    terminal = None if stdin == subprocess.DEVNULL else lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, start_new_session=True,
        preexec_fn=terminal,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        script, times = int(started.stdout.readline()), []
        for number in numbers:
            tell(started.pid, script, number)
            times.append(int(started.stdout.readline()))
        assert started.wait(HANG_S) == 0
    return times


@pytest.mark.parametrize(
    "tell",
    [lambda pid, _, number: os.kill(pid, number), lambda pid, _, number: os.killpg(pid, number), _told_each],
    ids=["this process alone", "its group", "each process by its number"],
)
def test_a_signal_reaches_the_script_once_whoever_is_told(tell: Told, tmp_path: Path) -> None:
    numbers = [signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM, signal.SIGINT]
    assert _times_each_came(tmp_path, numbers, tell) == [1, 1, 1, 1]


def test_ctrl_c_of_a_terminal_reaches_the_script_once(tmp_path: Path) -> None:
    keys, terminal = os.openpty()

    def press(*_: int) -> None:
        os.write(keys, b"\x03")

    assert _times_each_came(tmp_path, [signal.SIGINT], press, terminal) == [1]
    os.close(keys)
    os.close(terminal)


def test_what_a_script_does_at_an_interrupt_of_its_group_is_not_cut_short(tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('saving', flush=True)\n"
        "    time.sleep(0.2)\n"
        "    print('saved')\n"
    )
    command = [sys.executable, "-m", "stepscope", "run", "-q", str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, start_new_session=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        os.killpg(started.pid, signal.SIGINT)
        assert started.communicate(timeout=HANG_S)[0] == b"saving\nsaved\n"
    assert started.returncode == 0


def test_a_sitecustomize_of_the_users_that_prints_does_not_cost_the_samples(script: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/sitecustomize.py").write_text("print('mine', flush=True)")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "lib")}
    command = [sys.executable, "-m", "stepscope", "run", "-q", "--no-ceilings", "--out", "runs", str(script)]
    subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, timeout=HANG_S, check=True)
    (run,) = (RunReader(path) for path in (tmp_path / "runs").iterdir())
    assert run.sensor("process_cpu").height > 0
    assert [event["kind"] for event in run.events if event["kind"].startswith("sampler")] == []


def test_an_interrupt_of_this_process_alone_reaches_the_script(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(9)\n"
    )
    command = [sys.executable, "-m", "stepscope", "run", "-q", str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, start_new_session=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        started.send_signal(signal.SIGINT)
        assert started.wait(HANG_S) == 9


def test_without_room_for_a_witness_a_script_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr("stepscope.record.signals._started_witness", refused)
    script = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(1, flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    with signals_passed_on(child):
        os.kill(os.getpid(), signal.SIGTERM)
        assert child.wait(HANG_S) == 7
    child.communicate()


def test_a_run_whose_training_has_not_begun_yet_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def looked(
        _orders: object, _target: str, _arguments: object, settings: Settings, writer: RunWriter, *_: str
    ) -> int:
        seen.append(
            (RunReader(writer.path).status, status_from_header(read_json(writer.path / "run.json"), writer.path))
        )
        return 0

    monkeypatch.setattr("stepscope.record.script._run_training_script", looked)
    (tmp_path / "train.py").write_text("")
    run_script(str(tmp_path / "train.py"), [], Settings(out=tmp_path / "runs"))
    assert seen == [("running", "running")]
