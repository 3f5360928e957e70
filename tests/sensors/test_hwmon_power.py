"""Power meters of hwmon: chips, labels, renumbering and faults."""

from __future__ import annotations

import errno
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sensors.pc_trees import by_id, found, hwmon, missing, refuse_opening, refuse_reading, watching, write

from stepscope.record import diagnosis
from stepscope.record.sensors import hwmon as meters
from stepscope.record.sensors.contract import Channel

INA219 = {"in0_input": "5\n", "in1_input": "5040\n", "curr1_input": "812\n", "power1_input": "4092000\n"}


def one_channel(root: Path) -> Channel:
    sensor = found(meters.discover_hwmon(root, watching()))
    sensor.close()
    (channel,) = sensor.channels
    return channel


def test_an_ina219_beside_the_board_gives_watts(tmp_path: Path) -> None:
    sensor = found(meters.discover_hwmon(hwmon(tmp_path, 2, "ina219", "1-0040", INA219), watching()))
    assert by_id(sensor) == {"rail.ina219-1-0040/power1.power": 4.092}
    sensor.close()
    assert sensor.channels[0].parent_scope == "board"
    assert sensor.channels[0].rail == "ina219-1-0040/power1"


@pytest.mark.parametrize("chip", ["ina219", "ina226", "ina230", "ina231", "ina260", "ina2xx"])
def test_without_a_power_register_an_ina_gives_volts_times_amperes(chip: str, tmp_path: Path) -> None:
    files = {"in1_input": "5000\n", "curr1_input": "-800\n", "in1_label": "VIN\n"}
    sensor = found(meters.discover_hwmon(hwmon(tmp_path, 0, chip, "1-0041", files), watching()))
    assert by_id(sensor) == {f"rail.{chip}-1-0041/VIN.power": -4.0}
    sensor.close()
    assert " x " in sensor.channels[0].source
    assert sensor.channels[0].rail == "VIN"


def test_the_update_interval_is_the_window_of_an_ina226(tmp_path: Path) -> None:
    channel = one_channel(hwmon(tmp_path, 0, "ina226", "1-0040", {**INA219, "update_interval": "34\n"}))
    assert (channel.refresh_ns, channel.window_ns, channel.filter) == (34_000_000, 34_000_000, "block average")


def test_the_power_of_a_graphics_card_is_named_by_its_bus_address(tmp_path: Path) -> None:
    files = {"power1_average": "35000000\n", "power1_label": "PPT\n", "power1_cap": "200000000\n"}
    sensor = found(meters.discover_hwmon(hwmon(tmp_path, 4, "amdgpu", "0000:03:00.0", files), watching()))
    assert by_id(sensor) == {"gpu.0000.03.00.0.power": 35.0}
    sensor.close()
    assert (sensor.channels[0].scope, sensor.channels[0].rail) == ("gpu:0000:03:00.0", "PPT")


def test_a_graphics_card_that_sleeps_is_not_woken_by_a_read_and_is_read_when_it_is_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"power1_average": "35000000\n", "power1_label": "PPT\n", "temp1_input": "41000\n"}
    hwmon(tmp_path, 4, "amdgpu", "0000:03:00.0", files)
    state = "sys/devices/bus/0000:03:00.0/power/runtime_status"
    write(tmp_path, {state: "suspended\n"})
    with monkeypatch.context() as asleep:
        refuse_reading(asleep, "hwmon4/", errno.EIO)
        sensors = [found(look(tmp_path, watching())) for look in (meters.discover_hwmon, meters.discover_temperatures)]
        assert all(math.isnan(value) for sensor in sensors for value in sensor.read())
    assert sensors[0].blocking
    write(tmp_path, {state: "active\n"})
    assert [list(sensor.read()) for sensor in sensors] == [[35.0], [41.0]]
    write(tmp_path, {state: "suspending\n"})
    assert all(math.isnan(value) for sensor in sensors for value in sensor.read())
    for sensor in sensors:
        sensor.close()


def test_the_power_of_an_apu_is_that_of_its_package_and_a_card_beside_it_has_its_own(tmp_path: Path) -> None:
    ppt = {"power1_average": "35000000\n", "power1_label": "PPT\n"}
    apu = {**ppt, "in1_label": "vddnb\n", "power2_average": "36000000\n", "power2_label": "fastPPT\n"}
    hwmon(tmp_path, 4, "amdgpu", "0000:03:00.0", ppt)
    sensor = found(meters.discover_hwmon(hwmon(tmp_path, 5, "amdgpu", "0000:08:00.0", apu), watching()))
    sensor.close()
    assert [(channel.scope, channel.rail) for channel in sensor.channels] == [
        ("gpu:0000:03:00.0", "PPT"),
        ("rapl:package-0", "package-0"),
        ("rapl:package-0/fastPPT", "fastPPT"),
    ]


def test_momentary_power_goes_before_the_average(tmp_path: Path) -> None:
    files = {"power1_average": "35000000\n", "power1_input": "36000000\n", "power1_average_interval": "1000\n"}
    assert one_channel(hwmon(tmp_path, 0, "amdgpu", "0000:03:00.0", files)).source.endswith("power1_input")


def test_an_average_states_its_window(tmp_path: Path) -> None:
    files = {"power1_average": "35000000\n", "power1_average_interval": "1000\n"}
    channel = one_channel(hwmon(tmp_path, 0, "power_meter", "ACPI000D:00", files))
    assert channel.window_ns == 1_000_000_000
    assert channel.filter == "average over power1_average_interval"


def test_energies_are_counters_and_the_package_of_a_card_lies_in_it(tmp_path: Path) -> None:
    files = {"energy1_input": "5000000\n", "energy1_label": "card\n", "energy2_input": "2000000\n"}
    hwmon(tmp_path, 0, "xe", "0000:00:02.0", {**files, "energy2_label": "pkg\n"})
    sensor = found(meters.discover_hwmon(tmp_path, watching()))
    assert by_id(sensor) == {"gpu.0000.00.02.0.energy": 5.0, "gpu.0000.00.02.0/pkg.energy": 2.0}
    sensor.close()
    assert [(c.kind, c.unit, c.parent_scope) for c in sensor.channels] == [
        ("counter", "J", "system"),
        ("counter", "J", "gpu:0000:00:02.0"),
    ]


def test_the_tiles_of_an_intel_card_lie_in_it_and_are_not_read_while_it_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("i915", "i915_gt0", "i915_gt1")):
        hwmon(tmp_path, number, name, "0000:3a:00.0", {"energy1_input": "5000000\n"})
    write(tmp_path, {"sys/devices/bus/0000:3a:00.0/power/runtime_status": "suspended\n"})
    refuse_reading(monkeypatch, "energy1_input", errno.EIO)
    sensor = found(meters.discover_hwmon(tmp_path, watching()))
    assert all(math.isnan(value) for value in sensor.read())
    sensor.close()
    assert [(channel.scope, channel.parent_scope) for channel in sensor.channels] == [
        ("gpu:0000:3a:00.0", "system"),
        ("gpu:0000:3a:00.0/gt0", "gpu:0000:3a:00.0"),
        ("gpu:0000:3a:00.0/gt1", "gpu:0000:3a:00.0"),
    ]


def test_cores_of_amd_energy_lie_in_their_socket(tmp_path: Path) -> None:
    files = {f"energy{n}_input": f"{n}000000\n" for n in (1, 2, 10)}
    files |= {"energy1_label": "Ecore000\n", "energy2_label": "Ecore001\n", "energy10_label": "Esocket0\n"}
    hwmon(tmp_path, 0, "amd_energy", "amd_energy.0", files)
    sensor = found(meters.discover_hwmon(tmp_path, watching()))
    sensor.close()
    assert [c.rail for c in sensor.channels] == ["Ecore000", "Ecore001", "Esocket0"]
    assert sensor.channels[0].parent_scope == sensor.channels[2].scope
    assert sensor.channels[2].parent_scope == "board"


@pytest.mark.parametrize("name", ["ina3221", "ina238", "BAT0", "BATT", "ACAD", "", "coretemp"])
def test_chips_of_other_sensors_and_without_power_are_left_alone(name: str, tmp_path: Path) -> None:
    files = INA219 if name != "coretemp" else {"temp1_input": "40000\n"}
    hwmon(tmp_path, 0, name, "1-0040", files)
    assert missing(meters.discover_hwmon(tmp_path, watching())).reason == "absent"


def test_the_copy_of_a_battery_under_any_name_is_left_alone(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "sbs_5_000b", "5-000b", INA219)
    write(tmp_path, {"sys/devices/bus/5-000b/uevent": "OF_NAME=x\nPOWER_SUPPLY_NAME=sbs-5-000b\n"})
    assert missing(meters.discover_hwmon(tmp_path, watching())).reason == "absent"


def test_a_chip_that_gets_another_number_is_found_again_under_its_id(tmp_path: Path) -> None:
    now = [0]
    hwmon(tmp_path, 2, "ina219", "1-0040", INA219)
    hwmon(tmp_path, 3, "ina219", "1-0041", {**INA219, "power1_input": "1000000\n"})
    sensor = found(meters.discover_hwmon(tmp_path, watching(lambda: now[0])))
    ids = [channel.id for channel in sensor.channels]
    for path in (tmp_path / "sys/devices/bus/1-0040/hwmon/hwmon2").iterdir():
        path.unlink()
    (tmp_path / "sys/class/hwmon/hwmon2").unlink()
    gone = sensor.read()
    hwmon(tmp_path, 7, "ina219", "1-0040", {**INA219, "power1_input": "6000000\n"})
    now[0] += 1_000_000_000
    back = sensor.read()
    sensor.close()
    again = found(meters.discover_hwmon(tmp_path, watching()))
    again.close()
    assert math.isnan(gone[0])
    assert gone[1] == back[1] == 1.0
    assert back[0] == 6.0
    assert {channel.id for channel in again.channels} == set(ids)


def test_two_chips_of_one_name_and_no_device_are_told_apart(tmp_path: Path) -> None:
    for number in (0, 1):
        write(tmp_path, {f"sys/class/hwmon/hwmon{number}/{file}": text for file, text in INA219.items()})
        write(tmp_path, {f"sys/class/hwmon/hwmon{number}/name": "ina219\n"})
    sensor = found(meters.discover_hwmon(tmp_path, watching()))
    sensor.close()
    assert len({channel.id for channel in sensor.channels}) == 2


def test_a_chip_that_may_not_be_read_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hwmon(tmp_path, 0, "ina219", "1-0040", INA219)
    refuse_opening(monkeypatch, "power1_input", errno.EACCES)
    answer = missing(meters.discover_hwmon(tmp_path, watching()))
    assert answer.reason == "denied"
    assert answer.remedy == f"sudo chmod a+r {tmp_path}/sys/class/hwmon/hwmon0/power1_input"


def test_one_meter_that_answers_eagain_is_nan_and_all_of_them_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hwmon(tmp_path, 0, "ina219", "1-0040", INA219)
    hwmon(tmp_path, 1, "ina219", "1-0041", INA219)
    sensor = found(meters.discover_hwmon(tmp_path, watching()))
    with monkeypatch.context() as patch:
        refuse_reading(patch, "1-0041", errno.EAGAIN)
        values = sensor.read()
    assert values[0] == 4.092
    assert math.isnan(values[1])
    with monkeypatch.context() as patch:
        refuse_reading(patch, "power1_input", errno.EAGAIN)
        with pytest.raises(ValueError, match="no power meter answers"):
            sensor.read()
    assert list(sensor.read()) == [4.092, 4.092]
    sensor.close()


def test_a_counter_that_goes_backwards_is_kept_as_read(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "i915", "0000:03:00.0", {"energy1_input": "9000000\n"})
    sensor = found(meters.discover_hwmon(tmp_path, watching()))
    write(tmp_path, {"sys/class/hwmon/hwmon0/energy1_input": "1000000\n"})
    assert list(sensor.read()) == [1.0]
    sensor.close()


@pytest.mark.parametrize(
    "text", [b"", b"what?", b"1_000", b"--5", b"-", b"9" * 90, b"20000000000", b"-200000000", b"1.5"]
)
def test_what_is_no_power_is_not_read(text: bytes) -> None:
    assert math.isnan(meters.watts_or_joules([text], "power1"))


CONTENT = st.binary(max_size=40) | st.integers(-(10**12), 10**25).map(lambda number: f"{number}\n".encode())


@given(st.tuples(CONTENT, CONTENT) | st.tuples(CONTENT), st.sampled_from(["power1", "energy1"]))
def test_no_content_crashes_the_reading_or_invents_a_value(texts: tuple[bytes, ...], stem: str) -> None:
    texts = texts[:1] if stem == "energy1" else texts
    value = meters.watts_or_joules(texts, stem)
    if not math.isnan(value):
        numbers = [int(text) for text in texts]
        assert value == pytest.approx(math.prod(numbers) / 1e6)


@settings(max_examples=40, deadline=None)
@given(
    name=st.binary(max_size=20), label=st.binary(max_size=20), power=st.binary(max_size=20), ms=st.binary(max_size=9)
)
def test_no_file_of_a_chip_crashes_the_discovery(name: bytes, label: bytes, power: bytes, ms: bytes) -> None:
    files: dict[str, str | bytes] = {"power1_input": power, "power1_label": label, "update_interval": ms}
    with tempfile.TemporaryDirectory() as folder:
        root = hwmon(Path(folder), 0, "ina219", "1-0040", INA219)
        hwmon(root, 1, "any", "1-0041", files)
        write(root, {"sys/class/hwmon/hwmon1/name": name})
        sensor = found(meters.discover_hwmon(root, watching()))
        values = sensor.read()
        sensor.close()
    assert values[0] == 4.092
    assert len({channel.id for channel in sensor.channels}) == len(values)


def test_a_part_that_may_not_be_read_is_in_the_list_of_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "_torch", lambda: {})  # importing it takes seconds
    hwmon(tmp_path, 2, "ina219", "1-0040", INA219)
    hwmon(tmp_path, 3, "ina219", "1-0041", INA219)
    hwmon(tmp_path, 4, "lm75", "1-0048", {"temp1_input": "31000\n", "temp2_input": "32000\n"})
    refuse_opening(monkeypatch, "hwmon3/power1_input", errno.EACCES)
    refuse_opening(monkeypatch, "temp2_input", errno.EACCES)
    facts, _ = diagnosis.diagnose(tmp_path)
    parts = {row["sensor"]: row for row in facts["missing"] if row["reason"] == "denied"}
    assert parts.keys() == {"hwmon_power", "hwmon_temperature"}
    assert "hwmon3/power1_input" in parts["hwmon_power"]["detail"]
    assert parts["hwmon_power"]["remedy"].startswith("sudo chmod a+r")
    assert "hwmon_power" in [meter["sensor"] for meter in facts["power"]]
