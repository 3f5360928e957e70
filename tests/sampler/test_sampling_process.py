"""The sampling process, run for real: its rows, its end, its cost to nobody."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from stepscope.errors import SamplerFailed
from stepscope.record.sampling import Sampler, pin_away, start_sampler
from stepscope.runfolder import RunReader

TRAINER = """
import os, sys
from stepscope.record.sampling import start_sampler
sampler = start_sampler(sys.argv[1], 5_000_000)
print(sampler.pid, flush=True)
child = os.fork() if sys.argv[2] == "fork" else 1
sys.stdin.readline()
os._exit(0)
"""
DUTY = """
import resource, sys, time
sys.stdin.readline()
first, began = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), time.monotonic_ns()
for tick in range(100):
    until = time.thread_time_ns() + 4_000_000
    while time.thread_time_ns() < until:
        pass
    time.sleep(max(0.0, (began + (tick + 1) * 10_000_000 - time.monotonic_ns()) / 1e9))
ended = time.monotonic_ns()
print(began, ended, sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - first, flush=True)
sys.stdin.readline()
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
    for _ in range(200):
        if RunReader(run).sensor(sensor).height >= rows:
            return
        select.select([], [], [], 0.02)
    pytest.fail(f"{sensor} gave no {rows} rows")


def gone(pid: int) -> bool:
    """Wait until a process that is not our child has ended."""
    watch = os.pidfd_open(pid)
    try:
        return bool(select.select([watch], [], [], 5.0)[0])
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
def test_stop_ends_the_sampler_while_a_forked_worker_holds_its_pipe(run: Path, sampler: Sampler) -> None:
    worker = subprocess.Popen(["sleep", "20"], pass_fds=[sampler._process.stdin.fileno()])  # type: ignore[union-attr]
    try:
        assert sampler.stop().exit_code == 0
    finally:
        worker.kill()
        worker.wait()


@linux
def test_a_sampler_that_was_killed_is_reported_as_died_early(run: Path, sampler: Sampler) -> None:
    wait_for_rows(run, "process_memory", 5)
    os.kill(sampler.pid, signal.SIGKILL)
    sampler._process.wait()
    assert not sampler.alive()
    end = sampler.stop()
    assert (end.exit_code, end.died_early) == (-signal.SIGKILL, True)
    assert RunReader(run).sensor("process_memory").height >= 5


@linux
def test_sigterm_flushes_and_ctrl_c_is_left_to_the_trainer(run: Path, sampler: Sampler) -> None:
    os.kill(sampler.pid, signal.SIGINT)
    wait_for_rows(run, "process_memory", 10)
    os.kill(sampler.pid, signal.SIGTERM)
    assert sampler._process.wait(5) == 0
    assert sampler.stop().exit_code == 0


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


def test_the_sampler_imports_only_the_standard_library() -> None:
    script = (
        "import sys, stepscope.record.sampler.loop, stepscope.record.sensors as s; s.load();"
        "print([m for m in ('numpy', 'polars', 'torch', 'scipy', 'psutil', 'rich') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


@linux
def test_cpu_time_of_a_process_that_is_busy_forty_percent_is_right_within_two_points(run: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DUTY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        command = [sys.executable, "-m", "stepscope.record.sampler", "--run", str(run), "--pid", str(trainer.pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sampling:
            assert sampling.stdout is not None
            assert sampling.stdin is not None
            assert sampling.stdout.readline() == b"ready\n"
            trainer.stdin.write(b"go\n")
            trainer.stdin.flush()
            began, ended, used_s = (float(word) for word in trainer.stdout.readline().split())
            sampling.stdin.close()
            assert sampling.wait(5) == 0
        trainer.stdin.close()
    frame = RunReader(run).sensor("process_cpu").filter((began < pl.col("t0_ns")) & (pl.col("t1_ns") < ended))
    span_ns = frame["t0_ns"][-1] - frame["t0_ns"][0]
    measured = (frame["process.cpu_time"][-1] - frame["process.cpu_time"][0]) / span_ns
    assert measured == pytest.approx(used_s * 1e9 / (ended - began), abs=0.02)
    assert 0.1 < measured < 0.5  # a crowded machine stretches the 10 ms of a round


def test_two_cores_leave_no_core_for_the_sampler_and_more_give_the_last_or_a_little_one(tmp_path: Path) -> None:
    assert pin_away(tmp_path, {0, 1}) is None
    assert pin_away(tmp_path, {0, 1, 2, 3}) == 3
    for core, capacity in enumerate((446, 446, 1024, 1024)):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}"
        folder.mkdir(parents=True)
        (folder / "cpu_capacity").write_text(f"{capacity}\n")
    assert pin_away(tmp_path, {0, 1, 2, 3}) == 1
