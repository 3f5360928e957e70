"""AMD GPUs: what the sensor makes of cards that answer all, "N/A", and an energy counter that lies."""

from __future__ import annotations

import enum
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sensors.pc_trees import write

from stepscope.record.access import graphics_cards
from stepscope.record.sensors import amdsmi
from stepscope.record.sensors.contract import ASLEEP, NoSensor, OpenSensor, Target

ROOT = Path("/")
RESOLUTION_UJ = 15.3
NOW_S = [1000.0]  # goes on where somebody sleeps


class AmdSmiException(Exception):
    """amdsmi's own error."""


class Kind(enum.IntEnum):
    """All enumerations of the library that are asked for."""

    EDGE = 0
    HOTSPOT = 1
    CURRENT = 2
    GFX = 3
    MEM = 4
    VRAM = 5


class Board(ModuleType):
    """The test's board, in place of the module amdsmi: one dictionary of answers a GPU."""

    AmdSmiException = AmdSmiException
    AmdSmiTemperatureType = AmdSmiTemperatureMetric = AmdSmiClkType = AmdSmiMemoryType = Kind

    def __init__(self, *gpus: dict[str, Any], broken: str = "") -> None:
        super().__init__("amdsmi")
        self.gpus, self.broken, self.open = list(gpus), broken, 0
        self.counted_w = 100.0

    def amdsmi_init(self) -> None:
        if self.broken:
            raise AmdSmiException(self.broken)
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[dict[str, Any]]:
        return self.gpus

    def amdsmi_get_energy_count(self, gpu: dict[str, Any]) -> dict[str, float]:
        if "energy" not in gpu:
            raise AmdSmiException("not supported")
        ticks = NOW_S[0] * self.counted_w * 1e6 / RESOLUTION_UJ
        return {"energy_accumulator": int(ticks), "counter_resolution": RESOLUTION_UJ, "timestamp": 1}

    def amdsmi_get_temp_metric(self, gpu: dict[str, Any], kind: Kind, _: Kind) -> Any:
        return self.answer(gpu, f"temperature {kind.name}")

    def amdsmi_get_clock_info(self, gpu: dict[str, Any], kind: Kind) -> Any:
        return self.answer(gpu, f"clock {kind.name}")

    def amdsmi_get_gpu_memory_usage(self, gpu: dict[str, Any], _: Kind) -> Any:
        return self.answer(gpu, "vram")

    def amdsmi_get_power_info(self, gpu: dict[str, Any]) -> Any:
        return self.answer(gpu, "power")

    def amdsmi_get_gpu_activity(self, gpu: dict[str, Any]) -> Any:
        return self.answer(gpu, "activity")

    def answer(self, gpu: dict[str, Any], name: str) -> Any:
        if name not in gpu:
            raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
        return gpu[name]


NAVI: dict[str, Any] = {
    "power": {"current_socket_power": "N/A", "average_socket_power": 100, "socket_power": "N/A"},
    "activity": {"gfx_activity": 80, "umc_activity": "N/A"},
    "vram": 2 << 30,
    "temperature EDGE": 61,
    "temperature HOTSPOT": 80,
    "clock GFX": {"clk": 2400},
    "clock MEM": {"cur_clk": 1000},
    "energy": True,
}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        NOW_S[0] += seconds

    monkeypatch.setattr(amdsmi, "time", SimpleNamespace(monotonic=lambda: NOW_S[0], sleep=sleep))


def discover(monkeypatch: pytest.MonkeyPatch, board: ModuleType | None) -> OpenSensor | NoSensor:
    monkeypatch.setitem(sys.modules, "amdsmi", board)
    return amdsmi.discover(ROOT, Target(1))


def values(sensor: OpenSensor | NoSensor) -> dict[str, float]:
    assert isinstance(sensor, OpenSensor), sensor
    return dict(zip([channel.id for channel in sensor.channels], sensor.read(), strict=True))


def test_a_card_is_read_in_si_units_and_what_is_not_available_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(NAVI)
    sensor = discover(monkeypatch, board)
    read = values(sensor)
    assert read.pop("gpu.amd0.energy") == pytest.approx(NOW_S[0] * 100)
    assert read == {
        "gpu.amd0.power": 100.0,
        "gpu.amd0.utilisation": 0.8,
        "gpu.amd0.memory_used": 2 << 30,
        "gpu.amd0.temperature": 61.0,
        "gpu.amd0.frequency": 2.4e9,
        "gpu.amd0.memory_frequency": 1e9,
    }
    assert isinstance(sensor, OpenSensor)
    power = next(channel for channel in sensor.channels if channel.quantity == "power")
    assert "average" in str(power.filter)
    sensor.close()
    assert board.open == 0


def test_the_current_power_of_an_mi300_goes_before_the_average(monkeypatch: pytest.MonkeyPatch) -> None:
    power = {"current_socket_power": 140, "average_socket_power": "N/A"}
    read = values(discover(monkeypatch, Board({"power": power}, {"power": {**power, "current_socket_power": 150}})))
    assert read == {"gpu.amd0.power": 140.0, "gpu.amd1.power": 150.0}


@pytest.mark.parametrize("counted_w", [0.0, 5.0, 1500.0])
def test_an_energy_counter_that_disagrees_with_the_power_is_no_channel(
    counted_w: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(NAVI)
    board.counted_w = counted_w
    assert "gpu.amd0.energy" not in values(discover(monkeypatch, board))


def test_an_energy_counter_without_a_power_to_check_it_is_no_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    read = values(discover(monkeypatch, Board({"energy": True, "temperature HOTSPOT": 70})))
    assert read == {"gpu.amd0.temperature": 70.0}


def test_a_card_that_answers_nothing_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board({"power": {"current_socket_power": "N/A", "average_socket_power": 0xFFFF}})
    answer = discover(monkeypatch, board)
    assert isinstance(answer, NoSensor)
    assert answer.reason == "unsupported"
    assert board.open == 0


def test_a_library_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = discover(monkeypatch, Board(broken="AMDSMI_STATUS_DRIVER_NOT_LOADED"))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "failed"
    assert "DRIVER_NOT_LOADED" in answer.detail


def test_amdsmi_is_not_asked_while_all_cards_sleep_since_that_would_wake_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    board, devices = Board(NAVI), "sys/bus/pci/devices"
    monkeypatch.setattr(amdsmi, "graphics_cards", lambda root, vendor: graphics_cards(tmp_path, vendor))
    for place, state in (("03:00.0", "suspended"), ("07:00.0", "suspended"), ("08:00.0", "active")):
        write(tmp_path, {f"{devices}/{place}/vendor": "0x1002\n", f"{devices}/{place}/class": "0x030000\n"})
        write(tmp_path, {f"{devices}/{place}/power/runtime_status": f"{state}\n"})
    built_in = f"{devices}/08:00.0/hwmon/hwmon4"
    write(tmp_path, {f"{built_in}/name": "amdgpu\n", f"{built_in}/in1_label": "vddnb\n"})
    answer = discover(monkeypatch, board)
    assert isinstance(answer, NoSensor)
    assert answer.detail.endswith(ASLEEP)
    assert board.open == 0
    write(tmp_path, {f"{devices}/07:00.0/power/runtime_status": "active\n"})
    values(discover(monkeypatch, board))


def test_without_the_module_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = discover(monkeypatch, None)
    assert isinstance(answer, NoSensor)
    assert answer.reason == "absent"


def test_a_module_whose_library_is_missing_keeps_off_stdout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "amdsmi.py").write_text("print('Unable to find libamd_smi.so')\nraise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    answer = amdsmi.discover(ROOT, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "absent"
    assert "Unable to find libamd_smi.so" in answer.detail
    assert capsys.readouterr().out == ""


def test_a_call_that_starts_to_fail_is_a_gap_and_all_of_them_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = dict(NAVI)
    sensor = discover(monkeypatch, Board(gpu))
    assert isinstance(sensor, OpenSensor)
    del gpu["power"]
    read = values(sensor)
    assert math.isnan(read["gpu.amd0.power"])
    assert read["gpu.amd0.utilisation"] == 0.8
    gpu.clear()
    with pytest.raises(OSError, match="amdsmi"):
        sensor.read()


@given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.booleans(), st.lists(st.integers())))
def test_a_value_of_the_library_is_a_number_or_nothing(value: object) -> None:
    number = amdsmi.number(value)
    assert math.isnan(number) or (isinstance(value, (int, float)) and number == float(value))


def test_a_card_that_tells_its_address_has_the_scope_that_hwmon_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board({"power": {"average_socket_power": 100}})
    board.amdsmi_get_gpu_device_bdf = lambda _: "0000:03:00.0"  # type: ignore[attr-defined]
    found = discover(monkeypatch, board)
    assert isinstance(found, OpenSensor)
    assert {channel.scope for channel in found.channels} == {"gpu:0000:03:00.0"}


def test_the_power_of_an_apu_is_that_of_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path, {f"0000:08:00.0/hwmon/hwmon3/{n}": t for n, t in (("name", "amdgpu\n"), ("in1_label", "vddnb\n"))})
    monkeypatch.setattr(amdsmi, "_PCI_DEVICES", tmp_path)
    board = Board(NAVI)
    board.amdsmi_get_gpu_device_bdf = lambda _: "0000:08:00.0"  # type: ignore[attr-defined]
    found = discover(monkeypatch, board)
    assert isinstance(found, OpenSensor)
    scopes = {channel.quantity: (channel.scope, channel.rail) for channel in found.channels}
    assert scopes["power"] == scopes["energy"] == ("rapl:package-0", "package-0")
    assert scopes["utilisation"] == ("gpu:0000:08:00.0", None)
