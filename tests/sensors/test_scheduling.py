"""Waits, quotas and pressure of a training process, from trees that are written here."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from stepscope.record.sensors import cgroup, scheduling
from stepscope.record.sensors.contract import OpenSensor, Target

_PID = 4711


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _quota(root: Path, throttled: int) -> None:
    _write(root / "sys/fs/cgroup/job/cpu.stat", f"nr_throttled {throttled}\nthrottled_usec {throttled}000\n")


def test_a_quota_of_a_group_above_is_counted_from_the_first_read(tmp_path: Path) -> None:
    _write(tmp_path / "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    _write(tmp_path / f"proc/{_PID}/cgroup", "0::/job/step\n")
    _write(tmp_path / "sys/fs/cgroup/job/cpu.max", "40000 100000\n")
    _quota(tmp_path, 2)
    found = cgroup.CgroupCpu().discover(tmp_path, Target(_PID))
    assert isinstance(found, OpenSensor)
    names = [channel.quantity for channel in found.channels]
    assert dict(zip(names, found.read(), strict=True))["cpu_quota"] == 0.4
    _quota(tmp_path, 7)
    read = dict(zip(names, found.read(), strict=True))
    assert (read["throttled_time"], read["throttled_periods"], read["quota_periods"]) == (5e6, 5, 0)


def test_a_quota_that_a_group_is_given_is_seen_within_ten_seconds(tmp_path: Path) -> None:
    now_ns = 0
    _write(tmp_path / "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    _write(tmp_path / f"proc/{_PID}/cgroup", "0::/job\n")
    found = cgroup.CgroupCpu().discover(tmp_path, Target(_PID, clock=lambda: now_ns))
    assert isinstance(found, OpenSensor)
    _write(tmp_path / "sys/fs/cgroup/job/cpu.max", "40000 100000\n")
    assert math.isnan(found.read()[-1])
    now_ns = 10_000_000_000
    assert found.read()[-1] == 0.4
    found.close()


def test_a_process_that_moves_into_a_group_of_version_1_is_followed(tmp_path: Path) -> None:
    groups = tmp_path / "sys/fs/cgroup"
    _write(tmp_path / f"proc/{_PID}/cgroup", "2:cpu,cpuacct:/\n1:memory:/\n")
    (groups / "cpu").mkdir(parents=True)
    found = cgroup.CgroupCpu().discover(tmp_path, Target(_PID))
    assert isinstance(found, OpenSensor)
    assert math.isnan(found.read()[-1])
    _write(groups / "cpu/job/cpu.cfs_quota_us", "50000")
    _write(groups / "cpu/job/cpu.cfs_period_us", "100000")
    _write(groups / "cpu/job/cpu.stat", "nr_periods 4\nnr_throttled 1\nthrottled_time 3000\n")
    _write(tmp_path / f"proc/{_PID}/cgroup", "2:cpu,cpuacct:/job\n1:memory:/\n")
    assert found.read()[-1] == 0.5
    _write(groups / "cpu/job/cpu.stat", "nr_periods 6\nnr_throttled 2\nthrottled_time 9000\n")
    assert list(found.read()[:3]) == [6000, 1, 2]


@pytest.mark.parametrize("local", [True, False])
def test_a_hit_of_the_memory_limit_is_counted_once_however_deep_the_group_lies(tmp_path: Path, local: bool) -> None:
    groups = tmp_path / "sys/fs/cgroup"
    _write(groups / "cgroup.controllers", "cpu memory\n")
    _write(tmp_path / f"proc/{_PID}/cgroup", "0::/slice/job/step\n")

    def hit(times: int) -> None:
        for group in ("slice", "slice/job", "slice/job/step"):
            _write(groups / group / "memory.events", f"low 0\nhigh 0\nmax {times}\noom 0\n")
            if local:
                own = times if group.endswith("step") else 0
                _write(groups / group / "memory.events.local", f"low 0\nhigh 0\nmax {own}\noom 0\n")

    hit(0)
    found = cgroup.CgroupCpu().discover(tmp_path, Target(_PID))
    assert isinstance(found, OpenSensor)
    hit(3)
    assert found.read()[3] == 3
    found.close()


def test_each_memory_group_of_version_1_is_counted_once(tmp_path: Path) -> None:
    groups = tmp_path / "sys/fs/cgroup"
    _write(tmp_path / f"proc/{_PID}/cgroup", "2:cpu,cpuacct:/a/b\n1:memory:/job/step\n")
    (groups / "cpu").mkdir(parents=True)
    places = [groups / "memory" / place / "memory.failcnt" for place in ("", "job", "job/step")]
    for place in places:
        _write(place, "0\n")
    found = cgroup.CgroupCpu().discover(tmp_path, Target(_PID))
    assert isinstance(found, OpenSensor)
    for hits, place in zip((1, 20, 300), places, strict=True):
        _write(place, f"{hits}\n")
    assert found.read()[3] == 321
    found.close()


@pytest.mark.parametrize(
    ("call", "kernel", "wait"),
    [
        ("202 0x5 0x89 0x0 0x7ffe3e17ade0 0x0 0xffffffff 0x7 0x7\n", "futex_do_wait", "interpreter"),
        ("202 0x5 0x80 0x2 0x0 0x0 0x0 0x7 0x7\n", "futex_do_wait", "lock"),
        ("202 0x5 0x189 0x0 0x0 0x0 0xffffffff 0x7 0x7\n", "futex_do_wait", "lock"),
        ("230 0x0 0x0 0x7 0x7 0x0 0x0 0x7 0x7\n", "hrtimer_nanosleep", "timer"),
        ("23 0x0 0x0 0x0 0x0 0x7ffe3e17ade0 0x0 0x7 0x7\n", "do_select", "timer"),
        ("270 0x0 0x0 0x0 0x0 0x7ffe3e17ade0 0x0 0x7 0x7\n", "do_select", "timer"),
        ("270 0x4 0x7ffe3e17ade0 0x0 0x0 0x0 0x0 0x7 0x7\n", "do_select", "process"),
        ("0 0x3 0x7 0x10 0x0 0x0 0x0 0x7 0x7\n", "anon_pipe_read", "process"),
        ("999 0x0 0x0 0x0 0x0 0x0 0x0 0x7 0x7\n", "do_poll", "process"),
        ("", "folio_wait_bit_common", "disk"),
        ("running\n", "0", None),
    ],
)
def test_what_a_thread_sleeps_in_is_told_by_its_system_call_or_the_kernel_function(
    tmp_path: Path, call: str, kernel: str, wait: str | None
) -> None:
    files = []
    for name, text in (("syscall", call), ("wchan", kernel)):
        (tmp_path / name).write_text(text)
        files.append(os.open(tmp_path / name, os.O_RDONLY))
    try:
        calls = {str(number).encode(): name for number, name in scheduling._SYSTEM_CALLS["x86_64"].items()}
        assert scheduling._classify_wait(scheduling._waiting_in(files, calls), calls) == wait
    finally:
        for file in files:
            os.close(file)


def test_the_main_thread_of_this_process_has_run_and_never_runs_back(tmp_path: Path) -> None:
    found = scheduling.TrainingThread().discover(Path("/"), Target(os.getpid()))
    if not isinstance(found, OpenSensor):
        pytest.skip(found.detail)
    before = found.read()
    after = found.read()
    found.close()
    assert after[0] >= before[0] > 0
    assert after[1] >= before[1]


def test_pressure_is_the_total_of_some_and_of_all(tmp_path: Path) -> None:
    text = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
    assert scheduling._parse_stall_totals(("some", "full"), text) == [12_000, 5_000]
    assert math.isnan(scheduling._parse_stall_totals(("full",), text.split(b"\n")[0])[0])


def _cooling(root: Path, *devices: tuple[str, int, int]) -> dict[str, dict[str, float]]:
    """What is read of cooling devices (type, state, highest state): values by scope, by quantity."""
    for number, (kind, now, most) in enumerate(devices):
        place = root / f"sys/class/thermal/cooling_device{number}"
        for name, value in (("type", kind), ("cur_state", now), ("max_state", most)):
            _write(place / name, f"{value}\n")
    (sensor,) = (sensor for sensor in scheduling.SENSORS if sensor.NAME == "cpu_limits")
    found = sensor.discover(root, Target(_PID))
    assert isinstance(found, OpenSensor)
    read: dict[str, dict[str, float]] = {}
    for channel, reading in zip(found.channels, found.read(), strict=True):
        read.setdefault(channel.quantity, {})[channel.scope.removeprefix("cooling:")] = float(reading)
    found.close()
    return read


def test_a_fan_tells_its_level_and_is_no_throttling(tmp_path: Path) -> None:
    read = _cooling(tmp_path, ("pwm-fan", 3, 6), ("cpufreq-cpu0", 2, 9), ("fan-of-none", 1, 0))
    assert read["cooling_state"] == {"cpufreq-cpu0": 2.0}
    assert read["fan_level"] == {"pwm-fan": 0.5}, "and what has no highest level is none"


def test_cooling_that_takes_no_clock_away_is_no_throttling(tmp_path: Path) -> None:
    takes = ("Processor", "cpufreq-cpu0", "thermal-cpufreq-0", "thermal-devfreq-1", "devfreq-17000000.gpu",
             "gpu-balanced", "intel_powerclamp", "thermal-idle-0", "cpu-throttle-alert", "heavy")  # fmt: skip
    others = ("TCC Offset", "LCD", "iwlwifi_1", "acpi_video0", "backlight", "wlan", "battery")
    read = _cooling(tmp_path, *((kind, 1, 9) for kind in (*takes, *others)))
    assert set(read) == {"cooling_state"}
    assert set(read["cooling_state"]) == set(takes)
