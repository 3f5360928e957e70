"""Rails of Jetson boards: trees of both drivers, what they state of the chip, and every way in which they fail."""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sensors.jetson_trees import (
    BOARDS,
    CONTINUOUS_64,
    JP4_DRIVER,
    ORIN_DRIVER,
    TX2_40,
    agx_orin,
    configured,
    hwmon,
    iio,
    nano,
    orin_nano,
    refusing,
    tx2,
    xavier_nx,
)

from stepscope.record.access import natural, signed
from stepscope.record.sampler.rows import EventLog, RowFile
from stepscope.record.sampler.stream import Stream
from stepscope.record.sensors import ina3221
from stepscope.record.sensors.contract import NoSensor, OpenSensor, Target
from stepscope.record.sensors.ina3221 import configured_timing, max_milliampere, stated_timing

MS, SECOND = 1_000_000, 1_000_000_000
WATTS = {
    "tx2": {"VDD_SYS_GPU": 0.152768, "VDD_SYS_SOC": 0.687456, "VDD_4V0_WIFI": 0.0}
    | {"VDD_IN": 3.05536, "VDD_SYS_CPU": 0.152768, "VDD_SYS_DDR": 0.8832},
    "nano": {"POM_5V_IN": 1.75, "POM_5V_GPU": 0.0, "POM_5V_CPU": 0.36},
    "xavier_nx": {"VDD_IN": 3.9, "VDD_CPU_GPU_CV": 1.33, "VDD_SOC": 0.995},
    "agx_xavier": {"GPU": 0.463488, "CPU": 0.308992, "SOC": 0.86904, "CV": 0.0, "VDDRQ": 0.135184, "SYS5V": 1.892576},
    "orin_nano": {"VDD_IN": 4.7616, "VDD_CPU_GPU_CV": 0.51584, "VDD_SOC": 1.42848},
    "agx_orin": {"VDD_GPU_SOC": 3.36224, "VDD_CPU_CV": 0.48032, "VIN_SYS_5V0": 4.86864, "VDDQ_VDD2_1V8AO": 0.39744},
    "thor": {"VDD_GPU": 7.7056, "VDD_CPU_SOC_MSS": 11.5584, "VIN_SYS_5V0": 8.85312},
}


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = SECOND

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened() -> Iterator[list[OpenSensor]]:
    """Sensors that are closed after the test."""
    sensors: list[OpenSensor] = []
    yield sensors
    for sensor in sensors:
        sensor.close()


Discover = Callable[[Path], OpenSensor]


@pytest.fixture
def discover(clock: Clock, opened: list[OpenSensor]) -> Discover:
    """Discover the sensor, which has to be there."""

    def look(root: Path) -> OpenSensor:
        answer = ina3221.discover(root, Target(1, clock=clock))
        assert isinstance(answer, OpenSensor), answer
        opened.append(answer)
        return answer

    return look


def read(sensor: OpenSensor, quantity: str = "power") -> dict[str, float]:
    """One read, by rail name."""
    pairs = zip(sensor.channels, sensor.read(), strict=True)
    return {channel.scope.removeprefix("rail:"): value for channel, value in pairs if channel.quantity == quantity}


@pytest.mark.parametrize("board", BOARDS)
def test_each_board_shows_its_rails_by_name_with_their_power(board: str, tmp_path: Path, discover: Discover) -> None:
    sensor = discover(BOARDS[board](tmp_path))
    assert read(sensor) == pytest.approx(WATTS[board])
    assert all(channel.parent_scope == "board" and channel.sensor == "ina3221" for channel in sensor.channels)
    assert len({channel.id for channel in sensor.channels}) == len(sensor.channels)


def test_voltage_and_current_come_with_the_power_where_they_cost_no_read(tmp_path: Path, discover: Discover) -> None:
    both = discover(tx2(tmp_path / "tx2"))
    assert read(both, "voltage")["VDD_IN"] == 19.096
    assert read(both, "current")["VDD_IN"] == 0.16
    assert {channel.quantity for channel in discover(xavier_nx(tmp_path / "nx")).channels} == {"power"}
    assert {channel.quantity for channel in discover(agx_orin(tmp_path / "orin")).channels} == {"power", "current"}


def test_unconnected_inputs_sums_and_disabled_inputs_are_no_rails(tmp_path: Path, discover: Discover) -> None:
    folder = hwmon(tmp_path, "1-0040", 2, [("VDD_IN", 5000, 100), ("NC", 0, 0), ("VDD_SOC", 5000, 10)])
    (folder / "in3_enable").write_text("0\n")
    assert list(read(discover(tmp_path))) == ["VDD_IN"]
    iio(tmp_path / "old", "7-0040", 0, [("(null)", 0, 0), ("NC", 0, 0), ("VDD_SOC", 5000, 10)])
    assert read(discover(tmp_path / "old")) == {"VDD_SOC": 0.05}


def test_rails_of_the_same_name_stay_apart(tmp_path: Path, discover: Discover) -> None:
    iio(tmp_path, "0-0040", 0, [("VDD_MUX", 19000, 10), ("VDD_IN", 19000, 20)])
    iio(tmp_path, "0-0042", 1, [("VDD_MUX", 19000, 30)])
    sensor = discover(tmp_path)
    assert read(sensor) == pytest.approx({"VDD_MUX@0-0040.0": 0.19, "VDD_IN": 0.38, "VDD_MUX@0-0042.0": 0.57})
    assert {channel.rail for channel in sensor.channels} == {"VDD_MUX", "VDD_IN"}


def test_a_rail_without_a_label_is_named_by_its_place(tmp_path: Path, discover: Discover) -> None:
    folder = hwmon(tmp_path, "1-0040", 2, [("VDD_IN", 5000, 100), ("x", 5000, 10)])
    (folder / "in2_label").unlink()
    assert list(read(discover(tmp_path))) == ["VDD_IN", "1-0040.2"]


def test_a_tree_without_the_links_of_the_bus_is_found_by_class_or_device(tmp_path: Path, discover: Discover) -> None:
    agx_orin(tmp_path / "orin")
    saved = tmp_path / "saved/sys/class/hwmon/hwmon3"
    shutil.copytree(tmp_path / "orin" / ORIN_DRIVER / "1-0040/hwmon/hwmon3", saved)
    assert read(discover(tmp_path / "saved"))["VDD_CPU_CV"] == pytest.approx(0.48032)
    device = tmp_path / "device/sys/devices/platform/c240000.i2c/i2c-1/1-0040/hwmon/hwmon3"
    shutil.copytree(saved, device)
    bus = tmp_path / "device" / ORIN_DRIVER
    bus.mkdir(parents=True)
    (bus / "1-0040").symlink_to(device.parents[1])
    assert len(discover(tmp_path / "device").channels) == 6  # once, though two ways lead there


def test_what_the_hwmon_driver_states_of_filter_and_steps_is_in_the_channels(
    tmp_path: Path, discover: Discover
) -> None:
    hwmon(tmp_path, "1-0040", 3, [("VDD_GPU_SOC", 20000, 280)], microohm=2000, samples=64, ms=422)
    power, current = discover(tmp_path).channels
    assert power.filter == "running average of 64 conversions"
    assert power.window_ns == 422 * MS
    assert power.refresh_ns == round(422 * MS / 64)
    assert current.step_size == pytest.approx(0.02)
    assert power.step_size == pytest.approx(0.4)


def test_what_the_device_tree_of_jetpack_4_states_is_in_the_channels(tmp_path: Path, discover: Discover) -> None:
    iio(tmp_path, "0-0040", 0, TX2_40)
    unknown = discover(tmp_path).channels[0]
    assert (unknown.filter, unknown.window_ns, unknown.refresh_ns, unknown.step_size) == (None, None, None, None)
    configured(tmp_path, "0-0040", CONTINUOUS_64, [10, 10, 10])
    power, voltage, current = discover(tmp_path).channels[:3]
    assert power.window_ns == 422_400_000
    assert power.refresh_ns == 6_600_000
    assert (voltage.step_size, current.step_size) == (0.008, 0.004)
    assert power.step_size == pytest.approx(0.004 * 19.096)


def test_the_register_of_the_chip_is_read_as_its_data_sheet_says() -> None:
    reset = configured_timing(0x7127)
    assert (reset.refresh_ns, reset.window_ns, reset.filter) == (
        6_600_000,
        None,
        "none: one conversion a round",
    )
    assert stated_timing(None, 7).refresh_ns is None
    assert max_milliampere(0.002) == pytest.approx(81_900)


def test_a_hwmon_voltage_is_read_every_tenth_time_and_the_current_each_time(
    tmp_path: Path, discover: Discover, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = discover(orin_nano(tmp_path))
    pread, reads = os.pread, []

    def counted(file: int, size: int, offset: int) -> bytes:
        reads.append(Path(f"/proc/self/fd/{file}").readlink().name)
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    for _ in range(20):
        sensor.read()
    assert [reads.count(f"curr{n}_input") for n in (1, 2, 3)] == [20, 20, 20]
    assert [reads.count(f"in{n}_input") for n in (1, 2, 3)] == [2, 2, 2]
    voltages = [name.startswith("in") for name in reads]
    assert not any(voltages[at : at + 3].count(True) > 1 for at in range(len(voltages)))  # they take turns


def test_after_a_voltage_that_failed_no_older_one_is_used(
    tmp_path: Path, discover: Discover, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = discover(orin_nano(tmp_path))
    pread = os.pread

    def failing(file: int, size: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{file}").readlink().name == "in1_input":
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    clock.now_ns += SECOND
    assert math.isnan(read(sensor)["VDD_IN"])
    monkeypatch.undo()
    (tmp_path / ORIN_DRIVER / "1-0040/hwmon/hwmon1/in1_input").write_text("5000\n")
    assert read(sensor)["VDD_IN"] == pytest.approx(5.0 * 0.96)


def test_a_voltage_is_never_older_than_a_second(tmp_path: Path, discover: Discover, clock: Clock) -> None:
    sensor = discover(orin_nano(tmp_path))
    file = tmp_path / ORIN_DRIVER / "1-0040/hwmon/hwmon1/in1_input"
    file.write_text("5000\n")
    assert read(sensor)["VDD_IN"] == pytest.approx(4.96 * 0.96)  # the voltage of the read before
    clock.now_ns += SECOND
    assert read(sensor)["VDD_IN"] == pytest.approx(5.0 * 0.96)


@pytest.mark.parametrize("text", ["", "\n", "n/a\n", "1e3\n", "12 13 14\n", "9" * 70, "-99999999\n", "1_0\n"])
def test_what_is_no_plausible_number_loses_that_rail_alone(text: str, tmp_path: Path, discover: Discover) -> None:
    new, old = discover(orin_nano(tmp_path / "new")), discover(nano(tmp_path / "old"))
    alone = discover(xavier_nx(tmp_path / "alone"))
    (tmp_path / "new" / ORIN_DRIVER / "1-0040/hwmon/hwmon1/curr2_input").write_text(text)
    (tmp_path / "old" / JP4_DRIVER / "6-0040/iio:device0/ui_input_1").write_text(text)
    (tmp_path / "alone" / JP4_DRIVER / "7-0040/iio:device0/in_power1_input").write_text(text)
    for sensor in (new, old, alone):
        values = list(read(sensor).values())
        assert math.isnan(values[1])
        assert values[0] > 0
        assert values[2] > 0


def test_a_current_below_zero_is_a_power_below_zero(tmp_path: Path, discover: Discover) -> None:
    new, old = discover(orin_nano(tmp_path / "new")), discover(nano(tmp_path / "old"))
    (tmp_path / "new" / ORIN_DRIVER / "1-0040/hwmon/hwmon1/curr2_input").write_text("-8\n")
    (tmp_path / "old" / JP4_DRIVER / "6-0040/iio:device0/ui_input_1").write_text("5000 -8\n")
    assert list(read(new).values())[1] == pytest.approx(4.96 * -0.008, rel=0.01)
    assert list(read(old).values())[1] == pytest.approx(5.0 * -0.008)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EIO, errno.ENODATA])
def test_an_error_of_one_rail_is_a_gap_of_that_rail_and_ends_with_it(
    number: int, tmp_path: Path, discover: Discover, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = discover(tx2(tmp_path))
    pread = os.pread

    def failing(file: int, size: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{file}").readlink().name == "ui_input_2":
            raise OSError(number, os.strerror(number))
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    values = read(sensor)
    monkeypatch.undo()
    assert [name for name, value in values.items() if math.isnan(value)] == ["VDD_4V0_WIFI", "VDD_SYS_DDR"]
    assert read(sensor) == pytest.approx(WATTS["tx2"])


@pytest.mark.parametrize("power_alone", [False, True])
def test_a_zero_in_trigger_mode_is_not_a_reading_and_a_zero_of_an_awake_chip_is(
    power_alone: bool, tmp_path: Path, discover: Discover
) -> None:
    folder = iio(tmp_path, "0-0040", 0, TX2_40, power_alone)
    sensor = discover(tmp_path)
    assert read(sensor)["VDD_4V0_WIFI"] == 0.0
    (folder / "running_mode").write_text("0\n")
    assert math.isnan(read(sensor)["VDD_4V0_WIFI"])
    assert read(sensor)["VDD_SYS_SOC"] > 0


def test_a_closed_file_is_denied_with_the_command_that_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orin_nano(tmp_path)
    folder = tmp_path / ORIN_DRIVER / "1-0040/hwmon/hwmon1"
    monkeypatch.setattr(os, "open", refusing([folder / "curr1_input"], errno.EACCES))
    answer = ina3221.discover(tmp_path, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "denied"
    assert answer.remedy is not None
    assert answer.remedy.startswith(f"sudo chmod a+r {folder}/curr1_input {folder}/in1_input")


def test_a_chip_that_is_opened_later_joins_the_one_that_was_open(
    tmp_path: Path, discover: Discover, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx2(tmp_path)
    closed = tmp_path / JP4_DRIVER / "0-0041/iio:device1/ui_input_0"
    monkeypatch.setattr(os, "open", refusing([closed], errno.EACCES))
    sensor = discover(tmp_path)
    assert math.isnan(read(sensor)["VDD_IN"])
    assert read(sensor)["VDD_SYS_SOC"] > 0
    monkeypatch.undo()
    clock.now_ns += SECOND
    assert read(sensor)["VDD_IN"] == pytest.approx(WATTS["tx2"]["VDD_IN"])


def test_a_board_whose_rails_give_no_number_is_missing_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    folder = hwmon(tmp_path, "1-0040", 3, [("VDD_IN", 5000, 10)])
    (folder / "curr1_input").write_text("")
    answer = ina3221.discover(tmp_path, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "failed"
    assert str(folder) in answer.detail
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_one_chip_that_is_bound_anew_under_another_number_is_found_again(
    tmp_path: Path, discover: Discover, clock: Clock
) -> None:
    sensor = discover(agx_orin(tmp_path))
    old = tmp_path / ORIN_DRIVER / "1-0041/hwmon/hwmon4"
    shutil.copytree(old, old.with_name("hwmon7"))
    shutil.rmtree(old)
    (old.with_name("hwmon7") / "curr2_input").write_text("100\n")
    for _ in range(ina3221.VOLTAGE_EVERY):
        sensor.read()
    assert math.isnan(read(sensor)["VDDQ_VDD2_1V8AO"])
    assert read(sensor)["VDD_CPU_CV"] > 0
    clock.now_ns += SECOND
    assert read(sensor)["VDDQ_VDD2_1V8AO"] == pytest.approx(4.968 * 0.1)


def test_a_file_that_the_driver_has_let_go_is_not_asked_again_but_found_again(
    tmp_path: Path, discover: Discover, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = discover(agx_orin(tmp_path))
    pread = os.pread

    def gone(file: int, size: int, offset: int) -> bytes:
        if "1-0041" in str(Path(f"/proc/self/fd/{file}").readlink()):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", gone)
    assert math.isnan(read(sensor)["VDDQ_VDD2_1V8AO"])
    monkeypatch.undo()
    assert math.isnan(read(sensor)["VDDQ_VDD2_1V8AO"])
    clock.now_ns += SECOND
    assert read(sensor)["VDDQ_VDD2_1V8AO"] == pytest.approx(0.39744)


def test_silence_counts_only_while_it_lasts(tmp_path: Path, discover: Discover) -> None:
    folder = hwmon(tmp_path, "1-0040", 3, [("VDD_IN", 5000, 10)])
    sensor = discover(tmp_path)
    for _ in range(2):
        (folder / "curr1_input").write_text("")
        for _ in range(ina3221.PATIENCE - 1):
            assert math.isnan(sensor.read()[0])
        (folder / "curr1_input").write_text("20\n")
        assert sensor.read()[0] == pytest.approx(0.1)
    (folder / "curr1_input").write_text("")
    for _ in range(ina3221.PATIENCE - 1):
        sensor.read()
    with pytest.raises(OSError, match="no rail answers"):
        sensor.read()


def stream_over(root: Path, folder: Path, clock: Clock) -> Stream:
    target = Target(1, clock=clock)
    answer = ina3221.discover(root, target)
    assert isinstance(answer, OpenSensor)
    file = RowFile(folder / "ina3221.rows", len(answer.channels))
    return Stream(ina3221, answer, target, root, file, EventLog(folder / "events.jsonl", clock), 10 * MS)


def test_when_all_rails_are_lost_the_stream_says_so_and_finds_them_under_a_new_number(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = orin_nano(tmp_path / "root")
    stream = stream_over(root, tmp_path, clock)
    stream.sample()
    old = root / ORIN_DRIVER / "1-0040/hwmon/hwmon1"
    old.rename(old.with_name("hwmon5"))
    pread = os.pread

    def gone(file: int, size: int, offset: int) -> bytes:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(os, "pread", gone)
    for _ in range(ina3221.PATIENCE + 2):
        clock.now_ns += 10 * MS
        stream.sample()
    monkeypatch.setattr(os, "pread", pread)
    clock.now_ns += 2 * SECOND
    stream.retry()
    stream.sample()
    stream.close()
    events = (tmp_path / "events.jsonl").read_text()
    assert "sensor-lost" in events
    assert "sensor-recovered" in events
    rows = (tmp_path / "ina3221.rows").read_bytes()
    row_bytes = 16 + 8 * 6
    powers = [memoryview(rows[at + 16 : at + row_bytes]).cast("d")[0] for at in range(0, len(rows), row_bytes)]
    assert powers[0] == powers[-1] == pytest.approx(4.7616)
    assert all(math.isnan(power) for power in powers[1:-1])
    assert len(powers) > 3


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=80), which=st.sampled_from(["curr1_input", "in1_input", "samples", "in1_label"]))
def test_no_content_of_a_hwmon_file_crashes_the_sensor_or_invents_a_power(content: bytes, which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = orin_nano(Path(folder))
        (root / ORIN_DRIVER / "1-0040/hwmon/hwmon1" / which).write_bytes(content)
        answer = ina3221.discover(root, Target(1))
        if isinstance(answer, NoSensor):
            return
        values = answer.read()
        answer.close()
    stated = signed(content[:64], -1e9, 1e9) if which == "curr1_input" else natural(content[:64], 1e9)
    if which in ("samples", "in1_label"):
        expected = 4.7616
    else:
        expected = stated / 1000 * (4.96 if which == "curr1_input" else 0.96)
    first = answer.channels[0].scope in ("rail:VDD_IN", f"rail:{content.decode(errors='replace').strip()}")
    assert not first or math.isnan(values[0]) or values[0] == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(content=st.one_of(st.binary(max_size=80), st.from_regex(rb"-?[0-9]{1,6} -?[0-9]{1,6}\n?", fullmatch=True)))
def test_no_content_of_ui_input_crashes_the_sensor_or_invents_a_power(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = nano(Path(folder))
        (root / JP4_DRIVER / "6-0040/iio:device0/ui_input_0").write_bytes(content)
        answer = ina3221.discover(root, Target(1))
        assert isinstance(answer, OpenSensor)
        power = answer.read()[0]
        answer.close()
    words = content[:64].split()
    believed = len(words) == 2 and words[0].isdigit() and words[1].removeprefix(b"-").isdigit()
    assert math.isnan(power) or (believed and power == pytest.approx(int(words[0]) * int(words[1]) / 1e6))
