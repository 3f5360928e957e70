"""The sampling process, run for real: its rows, its end, its cost to nobody."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.patience import HANG_S, until

from stepscope.errors import SamplerFailed
from stepscope.record.sampler.process import STDERR, Sampler, SamplerEnd, choose_sampler_core, start_sampler
from stepscope.record.sensors.contract import Meter
from stepscope.record.settings import Metering
from stepscope.runfolder import RunReader

TRAINER = """
import os, sys
from stepscope.record.sampler.process import start_sampler
sampler = start_sampler(sys.argv[1], 5_000_000)
print(sampler.pid, flush=True)
child = os.fork() if sys.argv[2] == "fork" else 1
sys.stdin.readline()
os._exit(0)
"""
DUTY = """
import itertools, json, resource, select, sys, time
sys.stdin.readline()
began, marks = time.monotonic_ns(), []
for tick in itertools.count():
    marks.append((time.monotonic_ns(), sum(resource.getrusage(resource.RUSAGE_SELF)[:2])))
    until = time.thread_time_ns() + 4_000_000
    while time.thread_time_ns() < until:
        pass
    time.sleep(max(0.0, (began + (tick + 1) * 10_000_000 - time.monotonic_ns()) / 1e9))
    if tick >= 100 and select.select([sys.stdin], [], [], 0)[0]:
        break
print(json.dumps(marks), flush=True)
sys.stdin.read()
"""
linux = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text('{"schema": 1, "id": "x", "status": "ok"}')
    return tmp_path


@pytest.fixture
def sampler(run: Path) -> Iterator[Sampler]:
    running = start_sampler(run, 5_000_000)
    yield running
    running.stop()


def wait_for_rows(run: Path, sensor: str, rows: int) -> None:
    """Until so many rows are on disk."""
    until(lambda: RunReader(run).sensor(sensor).height >= rows, f"{rows} rows of {sensor}")


def gone(pid: int, seconds: float = HANG_S) -> bool:
    """Wait until a process that is not our child has ended."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watch], [], [], seconds)[0])
    finally:
        os.close(watch)


@linux
def test_the_rows_of_every_sensor_can_be_read_while_it_samples_and_after(run: Path, sampler: Sampler) -> None:
    wait_for_rows(run, "process_memory", 20)
    assert sampler.alive()
    end = sampler.stop()
    assert (end.exit_code, end.died_early) == (0, False)
    reader = RunReader(run)
    for name in {channel["sensor"] for channel in reader.channels}:
        frame = reader.sensor(name)
        assert frame.height > 0, name
        assert (frame["t1_ns"] >= frame["t0_ns"]).all()
        assert frame["t0_ns"].is_sorted()
    resident = reader.samples("rss").filter(scope="process")["value"]
    assert resident.null_count() == 0
    assert resident.min() > 1e6  # type: ignore[operator]
    assert reader.samples("sampler_cpu_time")["value"].is_sorted()


@linux
def test_channels_json_says_what_is_sampled_and_what_is_missing_and_why(run: Path, sampler: Sampler) -> None:
    table = json.loads((run / "channels.json").read_text())
    assert table["period_ns"] == 5_000_000
    assert {"id", "quantity", "unit", "kind", "scope", "source", "read_cost_ns"} <= set(table["channels"][0])
    assert all(why["reason"] in ("absent", "denied", "unsupported", "failed") for why in table["missing"])


@linux
@pytest.mark.parametrize(("hard", "quantity"), [(256, "core_busy_time"), (4096, "core_idle_time")])
def test_many_cores_take_the_files_that_the_hard_limit_allows_and_no_more(
    run: Path, tmp_path: Path, hard: int, quantity: str
) -> None:
    root, cores = tmp_path / "root", 64
    cpus = root / "sys/devices/system/cpu"
    for core in range(cores):
        for file in (*(f"cpuidle/state{state}/time" for state in range(5)), "thermal_throttle/core_throttle_count"):
            (cpus / f"cpu{core}" / file).parent.mkdir(parents=True)
            (cpus / f"cpu{core}" / file).write_text("12345\n")
    (cpus / "online").write_text(f"0-{cores - 1}\n")
    (root / "proc").mkdir()
    lines = "".join(f"cpu{core} 10 1 2 400 7 3 4 9 0 0\n" for core in range(cores))
    (root / "proc/stat").write_text(f"cpu 10 1 2 400 7 3 4 9 0 0\n{lines}intr 1 2 3\n")
    (root / "proc/meminfo").write_text("MemAvailable: 4000 kB\nSwapTotal: 2000 kB\nSwapFree: 1500 kB\n")
    command = [sys.executable, "-m", "stepscope.record.sampler", "--run", str(run), "--pid", str(os.getpid())]
    limited = ["/bin/sh", "-c", f'ulimit -Sn 128; ulimit -Hn {hard}; exec "$0" "$@"', *command, "--root", str(root)]
    with subprocess.Popen(limited, stdout=subprocess.PIPE) as sampling:
        assert sampling.stdout is not None
        assert sampling.stdout.readline() == b"ready\n"
        sampling.terminate()
        assert sampling.wait(HANG_S) == 0
    table = json.loads((run / "channels.json").read_text())
    sampled = {channel["sensor"]: channel["quantity"] for channel in table["channels"]}
    assert sampled["cpu_cores"] == quantity
    assert {"cpu_limits", "system_memory", "system_steal"} <= set(sampled)
    assert not [why for why in table["missing"] if "open files" in why["detail"]]


def test_without_proc_the_sampler_still_runs_and_gives_the_reasons(run: Path, tmp_path: Path) -> None:
    sampler = start_sampler(run, root=tmp_path / "nothing")
    assert sampler.stop().exit_code == 0
    reader = RunReader(run)
    assert {channel["sensor"] for channel in reader.channels} == {"sampler"}
    missing = json.loads((run / "channels.json").read_text())["missing"]
    assert {why["reason"] for why in missing} == {"absent"}
    assert len(missing) >= 6


@linux
@pytest.mark.parametrize("workers", ["alone", "fork"])
def test_a_killed_trainer_takes_the_sampler_with_it_and_leaves_a_readable_run(run: Path, workers: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(run), workers], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as trainer:
        assert trainer.stdout is not None
        sampling_pid = int(trainer.stdout.readline())
        wait_for_rows(run, "process_memory", 5)
        trainer.send_signal(signal.SIGKILL)
        assert gone(sampling_pid)
    assert RunReader(run).sensor("process_memory").height >= 5


@linux
def test_a_sampler_that_was_killed_is_reported_as_died_early(run: Path, sampler: Sampler) -> None:
    wait_for_rows(run, "process_memory", 5)
    os.kill(sampler.pid, signal.SIGKILL)
    assert gone(sampler.pid)
    assert not sampler.alive()
    end = sampler.stop()
    assert (end.exit_code, end.died_early) == (None, True)
    assert end.reason.startswith("it was killed")
    assert RunReader(run).sensor("process_memory").height >= 5


@linux
def test_sigterm_flushes_and_ctrl_c_is_left_to_the_trainer(run: Path, sampler: Sampler) -> None:
    os.kill(sampler.pid, signal.SIGINT)
    wait_for_rows(run, "process_memory", 10)
    os.kill(sampler.pid, signal.SIGTERM)
    assert gone(sampler.pid)
    assert sampler.stop() == SamplerEnd(0, died_early=True)
    assert "SIGTERM" in sampler.stop().reason
    assert [path.name for path in (run / "samples").iterdir() if path.name.startswith(".")] == []


LAUNCHER = """
import subprocess, sys
from stepscope.record.sampler.process import start_sampler
watched = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
sampler = start_sampler(sys.argv[1], 5_000_000, pid=watched.pid)
print(sampler.pid, flush=True)
sys.stdin.readline()
if sys.argv[2] == "watched":
    watched.kill(); watched.wait()
    sys.stdin.readline()
"""
HOSTILE = """
import os, signal, sys, warnings
from pathlib import Path
from stepscope.record.sampler import process
from stepscope.record.sampler.process import start_sampler
warnings.simplefilter("error")
process.STOP_TIMEOUT_S = 600.0  # a busy machine may take longer than the users are made to wait
def threads_and_files():
    return sorted(os.listdir("/proc/self/task")), sorted(os.listdir("/proc/self/fd"))
before = threads_and_files()
if sys.argv[2] == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if sys.argv[2] == "blocked":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
if sys.argv[2] == "stdio":
    os.closerange(0, 2)
sampler = start_sampler(sys.argv[1], 3_600_000_000_000 if sys.argv[2] == "slow" else 5_000_000)
if sys.argv[2] == "threads":
    assert threads_and_files() == before, threads_and_files()
if sys.argv[2] == "ignored":
    ignored = Path(f"/proc/{sampler.pid}/status").read_text().split("SigIgn:")[1].split()[0]
    assert not int(ignored, 16) >> signal.SIGCHLD - 1 & 1, ignored
if sys.argv[2] == "waits":
    child = os.fork()
    if child == 0:
        assert not sampler.alive()
        sampler.stop()
        os._exit(7)
    assert os.wait() == (child, 7 << 8)
    try:
        os.wait()
        sys.exit("our process is the user's child")
    except ChildProcessError:
        pass
if sys.argv[2] == "closes":
    os.closerange(3, 256)
assert sampler.alive()
end = sampler.stop()  # ends by itself: the slow one does not sleep until its next round in an hour
assert (end.exit_code, end.died_early, end.message) == (0, False, None), end
assert not sampler.alive()
assert sampler.stop() is end
sys.stderr.write("as it should")
"""


@linux
@pytest.mark.parametrize("way", ["threads", "ignored", "blocked", "waits", "closes", "slow", "stdio"])
def test_the_process_that_starts_it_may_do_what_it_likes(run: Path, way: str) -> None:
    command = [sys.executable, "-X", "dev", "-c", HOSTILE, str(run), way]
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": HANG_S}
    done = subprocess.run(command, check=False, **how)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "as it should")
    assert [path.name for path in (run / "samples").iterdir() if path.name.startswith(".")] == []


@linux
@pytest.mark.parametrize("gone_first", ["watched", "launcher"])
def test_a_sampler_that_a_launcher_started_ends_with_either_of_the_two(run: Path, gone_first: str) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(run), gone_first]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdin is not None
        sampling_pid = int(launcher.stdout.readline())
        wait_for_rows(run, "process_memory", 5)
        assert not gone(sampling_pid, 0.0)
        if gone_first == "watched":
            launcher.stdin.write(b"go on\n")
            launcher.stdin.flush()
        else:
            launcher.kill()
        assert gone(sampling_pid)
    assert RunReader(run).sensor("process_memory").height >= 5


@linux
def test_a_sampler_that_does_not_answer_is_killed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.record.sampler.process.STOP_TIMEOUT_S", 0.2)
    sampler = start_sampler(run, 5_000_000)
    os.kill(sampler.pid, signal.SIGSTOP)
    end = sampler.stop()
    assert (end.exit_code, end.died_early) == (None, False)
    assert gone(sampler.pid)


@linux
def test_what_it_wrote_to_stderr_last_is_its_message(run: Path, sampler: Sampler) -> None:
    with (run / "samples" / STDERR).open("a") as stderr:
        stderr.write("Traceback\nValueError: it broke\n")
    assert sampler.stop() == SamplerEnd(0, died_early=False, message="ValueError: it broke")
    assert (run / "samples" / STDERR).exists()


@linux
def test_a_run_folder_that_is_removed_does_not_keep_it_from_stopping(run: Path) -> None:
    folder = run / "inner"
    folder.mkdir()
    sampler = start_sampler(folder, 5_000_000)
    shutil.rmtree(folder)
    assert not sampler.stop().died_early
    assert gone(sampler.pid)


@linux
def test_another_process_of_its_number_is_not_told_to_end(run: Path, sampler: Sampler) -> None:
    other = Sampler(os.getpid(), run)
    other._started = 1  # this process took the number of one that began when the machine did
    assert not other.alive()
    assert other.stop().died_early


def test_a_run_folder_that_is_not_there_is_a_refusal_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(SamplerFailed, match="No such file or directory") as refused:
        start_sampler(tmp_path / "nowhere")
    assert "doctor" in (refused.value.hint or "")


def test_a_module_of_the_users_folder_does_not_shadow_the_standard_library(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "signal.py").write_text("raise SystemExit('not the real one')")
    monkeypatch.chdir(tmp_path)
    assert start_sampler(run).stop().exit_code == 0


def test_the_command_of_a_meter_runs_where_the_user_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meter.sh").write_text("while echo 5; do sleep 0.1; done\n")
    (tmp_path / "signal.py").write_text("raise SystemExit('not the real one')")
    monkeypatch.chdir(tmp_path)
    metering = Metering(meters=(Meter("command", "sh meter.sh", "mine"),), characterise=False)
    sampler = start_sampler(run, 5_000_000, metering=metering, look_again_ns=100_000_000)
    until(lambda: RunReader(run).samples("power").height > 2)
    assert sampler.stop().exit_code == 0
    assert set(RunReader(run).samples("power")["value"].drop_nulls()) == {5.0}


def test_the_sampler_imports_only_the_standard_library() -> None:
    script = (
        "import sys, stepscope.record.sampler.loop, stepscope.record.sensors as s; s.load_sensors();"
        "print([m for m in ('numpy', 'polars', 'torch', 'scipy', 'psutil', 'rich') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


@linux
def test_cpu_time_of_a_process_that_is_busy_forty_percent_is_right_within_two_points(run: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DUTY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        command = [sys.executable, "-m", "stepscope.record.sampler", "--run", str(run), "--pid", str(trainer.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as sampling:
            assert sampling.stdout is not None
            assert sampling.stdout.readline() == b"ready\n"
            trainer.stdin.write(b"go\n")
            trainer.stdin.flush()
            wait_for_rows(run, "process_cpu", RunReader(run).sensor("process_cpu").height + 100)
            trainer.stdin.write(b"enough\n")
            trainer.stdin.flush()
            at_ns, used_s = np.array(json.loads(trainer.stdout.readline())).T  # what the process says of itself
            sampling.terminate()
            assert sampling.wait(HANG_S) == 0
        trainer.stdin.close()
    began, ended = int(at_ns[0]), int(at_ns[-1])
    frame = RunReader(run).sensor("process_cpu").filter((began < pl.col("t0_ns")) & (pl.col("t1_ns") < ended))
    first, last = frame.row(0, named=True), frame.row(-1, named=True)
    after_first, after_last = (int(np.searchsorted(at_ns, row["t1_ns"])) for row in (first, last))
    before_first, before_last = (int(np.searchsorted(at_ns, row["t0_ns"])) - 1 for row in (first, last))
    measured_s = (last["process.cpu_time"] - first["process.cpu_time"]) / 1e9
    two_points_s = 0.02 * (last["t0_ns"] - first["t0_ns"]) / 1e9
    # However a crowded machine stretches a round: what was read lies between what was so before and after the read.
    assert used_s[before_last] - used_s[after_first] - two_points_s < measured_s
    assert measured_s < used_s[after_last] - used_s[before_first] + two_points_s
    assert len(frame) > 20
    assert measured_s > 0


def test_two_cores_leave_no_core_for_the_sampler_and_more_give_the_last_or_a_little_one(tmp_path: Path) -> None:
    assert choose_sampler_core(tmp_path, {0, 1}) is None
    assert choose_sampler_core(tmp_path, {0, 1, 2, 3}) == 3
    for core, capacity in enumerate((446, 446, 1024, 1024)):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}"
        folder.mkdir(parents=True)
        (folder / "cpu_capacity").write_text(f"{capacity}\n")
    assert choose_sampler_core(tmp_path, {0, 1, 2, 3}) == 1
