"""The contract, tried on every file of the folder: adding a sensor adds it here by itself."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.record.sensors import discover_sensor, load_sensors, survey_sensors, with_read_cost
from stepscope.record.sensors.contract import (
    Channel,
    NoSensor,
    OpenSensor,
    Sensor,
    Target,
    as_seen_below,
    no_sensor_from_error,
)

SENSORS = load_sensors()
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("name", SENSORS)
def test_a_sensor_on_an_empty_root_says_why_it_is_missing(name: str, tmp_path: Path) -> None:
    answer = SENSORS[name].discover(tmp_path, Target(os.getpid()))
    if name == "sampler":  # reads itself: there is no machine without it
        assert isinstance(answer, OpenSensor)
    else:
        assert isinstance(answer, NoSensor)
        assert answer.reason == "absent"
        assert str(tmp_path) in answer.detail


def test_paths_of_a_root_are_told_as_the_machine_has_them() -> None:
    assert as_seen_below(Path("/"), "/: no phone was named") == "no phone was named"
    assert as_seen_below(Path("/"), "/sys/class/thermal: no zone") == "/sys/class/thermal: no zone"
    assert as_seen_below(Path("/dev/shm/x"), "/dev/shm/x: not a Mac") == "not a Mac"
    assert as_seen_below(Path("/dev/shm/x"), "/dev/shm/x/proc/stat and /dev/shm/x/sys") == "/proc/stat and /sys"


@pytest.mark.parametrize("name", SENSORS)
def test_a_sensor_on_this_machine_reads_one_float_a_channel(name: str) -> None:
    answer = SENSORS[name].discover(Path("/"), Target(os.getpid()))
    if isinstance(answer, NoSensor):
        assert answer.detail
        return
    assert len(answer.read()) == len(answer.channels) > 0
    assert all(math.isnan(value) or value >= -60 for value in answer.read())
    answer.close()


@pytest.mark.parametrize("name", SENSORS)
def test_a_sensor_leaves_no_descriptor_open_after_close(name: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    answer = SENSORS[name].discover(Path("/"), Target(os.getpid()))
    if isinstance(answer, OpenSensor):
        answer.read()
        answer.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_channel_ids_are_unique_and_name_their_sensor() -> None:
    seen = survey_sensors(Path("/"), Target(os.getpid()))
    channels = [channel for found in seen.sensors.values() for channel in found.channels]
    for found in seen.sensors.values():
        found.close()
    assert len({channel.id for channel in channels}) == len(channels)
    assert {channel.sensor for channel in channels} == set(seen.sensors)
    assert set(seen.sensors) | set(seen.missing) == set(SENSORS)


def test_a_survey_measures_what_a_read_costs() -> None:
    seen = survey_sensors(Path("/"), Target(os.getpid()))
    for found in seen.sensors.values():
        found.close()
        assert all(channel.read_cost_ns and channel.read_cost_ns > 0 for channel in found.channels)


class Broken:
    NAME = "broken"

    def discover(self, root: Path, target: Target) -> OpenSensor | NoSensor:
        raise RuntimeError("the driver is upset")


def test_a_sensor_file_that_raises_is_missing_and_not_a_crash(tmp_path: Path) -> None:
    sensor: Sensor = Broken()
    assert discover_sensor(sensor, tmp_path, Target(1)) == NoSensor("failed", "RuntimeError: the driver is upset")


def test_a_sensor_file_that_cannot_be_imported_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "stepscope.record.sensors.battery", None)  # what import then raises
    sensors = load_sensors()
    assert set(sensors) == set(SENSORS)
    answer = sensors["battery"].discover(tmp_path, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "failed"
    assert "battery.py cannot be imported" in answer.detail


def test_a_sensor_that_is_found_but_cannot_be_read_is_missing() -> None:
    closed = []

    def read() -> list[float]:
        raise OSError(5, "Input/output error")

    channel = Channel("x", "x", "temperature", "degC", "gauge", "zone:x", "x")
    answer = with_read_cost(OpenSensor((channel,), read, lambda: closed.append(True)), Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "failed"
    assert closed == [True]


@pytest.mark.parametrize(
    ("number", "reason"), [(13, "denied"), (1, "denied"), (2, "absent"), (19, "unsupported"), (5, "failed")]
)
def test_an_error_number_becomes_a_typed_reason(number: int, reason: str) -> None:
    answer = no_sensor_from_error(OSError(number, os.strerror(number)), "/sys/x")
    assert answer.reason == reason
    assert (answer.remedy == "sudo chmod a+r /sys/x") == (reason == "denied")


@pytest.mark.parametrize("path", ["/proc/stat", Path("/proc/7/io")])
def test_no_change_of_a_mode_is_advised_where_the_kernel_refuses(path: str | Path) -> None:
    assert no_sensor_from_error(PermissionError(13, "Permission denied"), path).remedy == "run the profiler as root"


def test_the_sensor_of_the_guide_reads_as_the_guide_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "add-a-sensor.md").read_text(encoding="utf-8")
    module: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], module)
    (sensor,) = module["SENSORS"]
    empty = discover_sensor(sensor, tmp_path, Target(1))
    assert isinstance(empty, NoSensor)
    assert empty.reason == "absent"
    for number, level in enumerate(("255\n", "fast\n")):
        folder = tmp_path / f"sys/class/hwmon/hwmon{number}"
        folder.mkdir(parents=True)
        (folder / "pwm1").write_text(level)
    fans = discover_sensor(sensor, tmp_path, Target(1))
    assert isinstance(fans, OpenSensor)
    assert [(channel.scope, channel.quantity) for channel in fans.channels] == [
        ("fan:0", "fan_load"),
        ("fan:1", "fan_load"),
    ]
    full, garbage = fans.read()
    fans.close()
    assert full == 100
    assert math.isnan(garbage)


def test_a_file_may_have_several_sensors_and_all_are_in_the_order_of_their_names() -> None:
    assert {"temperature", "cpu_frequency", "process_memory"} <= set(SENSORS)
    assert list(SENSORS) == sorted(SENSORS)
