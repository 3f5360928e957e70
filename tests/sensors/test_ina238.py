"""The supply of a Jetson Thor, and any other board with an INA238."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sensors.jetson_trees import refusing, thor
from tests.sensors.test_sensor_readings import found, write

from stepscope.record.sensors import hwmon
from stepscope.record.sensors.contract import NoSensor, OpenSensor, Target

ME = Target(1)
CHIP = "sys/class/hwmon/hwmon5"


def test_the_supply_of_a_thor_is_vin_in_microwatts(tmp_path: Path) -> None:
    sensor = found(hwmon.discover_ina238(thor(tmp_path), ME))
    assert list(sensor.read()) == [28.47]
    sensor.close()
    assert [(channel.id, channel.rail, channel.unit) for channel in sensor.channels] == [("rail.VIN.power", "VIN", "W")]


def test_without_a_power_file_it_is_bus_voltage_times_current(tmp_path: Path) -> None:
    (thor(tmp_path) / CHIP / "power1_input").unlink()
    sensor = found(hwmon.discover_ina238(tmp_path, ME))
    assert sensor.read()[0] == pytest.approx(20.01 * 1.422)
    sensor.close()


def test_elsewhere_it_bears_the_name_that_the_driver_gives_and_two_stay_apart(tmp_path: Path) -> None:
    for number in (2, 10):
        write(tmp_path / f"sys/class/hwmon/hwmon{number}", {"name": "ina238\n", "power1_input": f"{number}000000\n"})
    write(tmp_path / "sys/class/hwmon/hwmon10", {"in1_label": "12V\n", "update_interval": "100\n"})
    write(tmp_path / "sys/class/hwmon/hwmon0", {"name": "acpitz\n", "power1_input": "1\n"})
    sensor = found(hwmon.discover_ina238(tmp_path, ME))
    assert list(sensor.read()) == [2.0, 10.0]
    sensor.close()
    assert [channel.scope for channel in sensor.channels] == ["rail:ina238", "rail:12V#2"]
    assert [channel.refresh_ns for channel in sensor.channels] == [None, 100_000_000]


def test_a_second_supply_that_may_not_be_read_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (2, 10):
        write(tmp_path / f"sys/class/hwmon/hwmon{number}", {"name": "ina238\n", "power1_input": f"{number}000000\n"})
    monkeypatch.setattr(os, "open", refusing([tmp_path / "sys/class/hwmon/hwmon10/power1_input"], errno.EACCES))
    sensor = found(hwmon.discover_ina238(tmp_path, ME))
    assert list(sensor.read()) == [2.0]
    sensor.close()
    assert [(why.reason, why.remedy is not None) for why in sensor.unread] == [("denied", True)]


@pytest.mark.parametrize("text", ["", "-1\n", "text\n", "9" * 80])
def test_what_is_no_plausible_power_is_not_read(text: str, tmp_path: Path) -> None:
    sensor = found(hwmon.discover_ina238(thor(tmp_path), ME))
    (tmp_path / CHIP / "power1_input").write_text(text)
    assert math.isnan(sensor.read()[0])
    sensor.close()


def test_a_driver_that_is_gone_is_a_lost_sensor_and_one_that_is_busy_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = found(hwmon.discover_ina238(thor(tmp_path), ME))
    numbers = [errno.EAGAIN, errno.ENODEV]

    def failing(file: int, size: int, offset: int) -> bytes:
        number = numbers.pop(0)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", failing)
    assert math.isnan(sensor.read()[0])
    with pytest.raises(OSError, match="No such device"):
        sensor.read()
    sensor.close()


def test_a_closed_file_is_denied_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = thor(tmp_path) / CHIP / "power1_input"
    monkeypatch.setattr(os, "open", refusing([file], errno.EACCES))
    answer = hwmon.discover_ina238(tmp_path, ME)
    assert isinstance(answer, NoSensor)
    assert (answer.reason, answer.remedy) == ("denied", f"sudo chmod a+r {file}")


@settings(max_examples=40, deadline=None)
@given(content=st.binary(max_size=80), which=st.sampled_from(["power1_input", "name", "in1_label", "update_interval"]))
def test_no_content_crashes_the_sensor_or_invents_a_power(content: bytes, which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = thor(Path(folder))
        (root / CHIP / which).write_bytes(content)
        answer = hwmon.discover_ina238(root, ME)
        if isinstance(answer, OpenSensor):
            power = answer.read()[0]
            answer.close()
            stated = content.strip().isdigit() and which == "power1_input"
            assert math.isnan(power) or power == (int(content) / 1e6 if stated else 28.47)
