"""Temperatures of hwmon chips: which are read, how they are named, and chips that go and come back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.sensors.pc_trees import by_id, found, hwmon, missing, watching, write

from stepscope.record.sensors import hwmon as chips
from stepscope.record.sensors import load_sensors

LM75 = {"temp1_input": "45500\n", "temp1_max": "80000\n", "update_interval": "300\n"}


def test_an_lm75_on_the_board_gives_degrees_celsius(tmp_path: Path) -> None:
    sensor = found(chips.discover_temperatures(hwmon(tmp_path, 2, "lm75", "0-0048", LM75), watching()))
    assert by_id(sensor) == {"zone.lm75-0-0048/temp1.temperature": 45.5}
    sensor.close()
    (channel,) = sensor.channels
    assert (channel.quantity, channel.unit, channel.parent_scope) == ("temperature", "degC", "system")


def test_labels_name_the_inputs_of_a_processor_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    files = {"temp1_input": "50000\n", "temp1_label": "Package id 0\n", "temp10_input": "48000\n"}
    files |= {"temp10_label": "Core 8\n", "temp2_input": "47000\n", "temp2_label": "Core 0\n"}
    sensor = found(chips.discover_temperatures(hwmon(tmp_path, 0, "coretemp", "coretemp.0", files), watching()))
    sensor.close()
    assert [channel.scope for channel in sensor.channels] == [
        "zone:coretemp-coretemp.0/Package id 0",
        "zone:coretemp-coretemp.0/Core 0",
        "zone:coretemp-coretemp.0/Core 8",
    ]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("ina238", "0-0045"), ("ina226", "0-0044"), ("ina3221", "0-0040"), ("nvme", "nvme0"), ("BAT0", "BAT0"),
        ("nct6798", "nct6775.656"), ("iwlwifi_1", "phy0"), ("cpu_thermal", "thermal_zone0"),
    ],
)  # fmt: skip
def test_power_chips_drives_open_inputs_and_copies_of_zones_are_left_alone(
    name: str, device: str, tmp_path: Path
) -> None:
    answer = missing(chips.discover_temperatures(hwmon(tmp_path, 0, name, device, LM75), watching()))
    assert answer.reason == "absent"


def test_an_input_that_its_driver_states_to_be_faulty_is_excluded(tmp_path: Path) -> None:
    files = LM75 | {"temp2_input": "127000\n", "temp2_fault": "1\n"}
    sensor = found(chips.discover_temperatures(hwmon(tmp_path, 0, "lm90", "0-004c", files), watching()))
    sensor.close()
    assert [channel.scope for channel in sensor.channels] == ["zone:lm90-0-004c/temp1"]


@pytest.mark.parametrize(("text", "celsius"), [("-5000\n", -5.0), ("-256000\n", None), ("n/a\n", None), ("", None)])
def test_a_chip_reads_degrees_or_nothing(text: str, celsius: float | None, tmp_path: Path) -> None:
    sensor = found(chips.discover_temperatures(hwmon(tmp_path, 0, "lm75", "0-0048", {"temp1_input": text}), watching()))
    value = sensor.read()[0]
    sensor.close()
    assert math.isnan(value) if celsius is None else value == celsius


def test_a_chip_that_is_unbound_is_lost_and_one_that_comes_back_under_another_number_is_read(tmp_path: Path) -> None:
    now = [0]
    sensor = found(chips.discover_temperatures(hwmon(tmp_path, 2, "lm75", "0-0048", LM75), watching(lambda: now[0])))
    for path in (tmp_path / "sys/devices/bus/0-0048/hwmon/hwmon2").iterdir():
        path.unlink()
    (tmp_path / "sys/class/hwmon/hwmon2").unlink()
    with pytest.raises(OSError, match="No such device"):
        sensor.read()
    hwmon(tmp_path, 7, "lm75", "0-0048", {"temp1_input": "51000\n"})
    now[0] += 1_000_000_000
    assert list(sensor.read()) == [51.0]
    sensor.close()


def test_the_sensor_is_in_the_registry_and_says_what_would_be_read(tmp_path: Path) -> None:
    write(tmp_path, {"sys/class/hwmon/readme": ""})
    assert "LM75" in missing(load_sensors()["hwmon_temperature"].discover(tmp_path, watching())).detail
