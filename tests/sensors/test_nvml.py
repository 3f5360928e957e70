"""NVIDIA GPUs: what the sensor makes of boards that answer all, some and nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stepscope.record.access import graphics_cards
from stepscope.record.run_facts import _card_identity
from stepscope.record.sensors import nvml
from stepscope.record.sensors.contract import ASLEEP, NoSensor, OpenSensor, Target

ROOT = Path("/")
NOT_SUPPORTED, NOT_FOUND, LOST = 3, 6, 15


class NVMLError(Exception):
    """NVML's error: its code is `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML code {value}")
        self.value = value


@dataclass
class Card:
    """A GPU as NVML shows it; a quantity that is not in `answers` is NotSupported."""

    answers: dict[str, Any]
    name: str = "NVIDIA RTX 4090"
    mig: list[Card | None] = field(default_factory=list)


EVERYTHING: dict[str, Any] = {
    "TotalEnergyConsumption": 12_345_678,
    "PowerUsage": 61_000,
    "FieldValues": 64_500,
    "UtilizationRates": SimpleNamespace(gpu=37, memory=12),
    "MemoryInfo": SimpleNamespace(used=3 << 30),
    "ClockInfo": 1410,
    "Temperature": 54,
    "CurrentClocksEventReasons": 4,
    "ComputeRunningProcesses": [SimpleNamespace(pid=4711, usedGpuMemory=1 << 30)],
    "Architecture": 8,
}


class Board(ModuleType):
    """The test's board, in place of the module pynvml."""

    NVMLError = NVMLError

    def __init__(self, cards: list[Card], init_error: int | None = None) -> None:
        super().__init__("pynvml")
        self.cards, self.init_error, self.open, self.calls = cards, init_error, 0, dict[str, int]()

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self.cards[index]

    def nvmlDeviceGetName(self, card: Card) -> str:  # noqa: N802
        return card.name

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:  # noqa: N802
        return [1, 1] if card.mig else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802
        return len(card.mig)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, place: int) -> Card:  # noqa: N802
        device = card.mig[place]
        if device is None:
            raise NVMLError(NOT_FOUND)
        return device

    def nvmlDeviceGetFieldValues(self, card: Card, fields: list[int]) -> list[Any]:  # noqa: N802
        value = card.answers.get("FieldValues")
        code = NOT_SUPPORTED if value is None else 0
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=value or 0)) for _ in fields]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvmlDeviceGet") or name.endswith("ThrottleReasons"):
            raise AttributeError(name)

        def ask(card: Card, *_: int) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            answer = card.answers.get(name.removeprefix("nvmlDeviceGet"))
            if answer is None:
                raise NVMLError(NOT_SUPPORTED)
            return answer

        return ask


def put(monkeypatch: pytest.MonkeyPatch, board: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", board)


def found(answer: OpenSensor | NoSensor) -> OpenSensor:
    assert isinstance(answer, OpenSensor), answer
    return answer


def missing(answer: OpenSensor | NoSensor) -> NoSensor:
    assert isinstance(answer, NoSensor), answer
    return answer


def values(sensor: OpenSensor) -> dict[str, float]:
    return dict(zip([channel.id for channel in sensor.channels], sensor.read(), strict=True))


def test_every_quantity_of_a_card_is_read_in_si_units(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board([Card(EVERYTHING)])
    put(monkeypatch, board)
    sensor = found(nvml.discover(ROOT, Target(4711)))
    assert values(sensor) == {
        "gpu.0.energy": pytest.approx(12345.678),
        "gpu.0.power": 64.5,
        "gpu.0.power_average": 61.0,
        "gpu.0.utilisation": 0.37,
        "gpu.0.memory_utilisation": 0.12,
        "gpu.0.memory_used": 3 << 30,
        "gpu.0.frequency": 1.41e9,
        "gpu.0.memory_frequency": 1.41e9,
        "gpu.0.temperature": 54.0,
        "gpu.0.throttle_reasons": 4.0,
        "gpu.0.process_memory": 1 << 30,
    }
    kinds = {channel.quantity: channel.kind for channel in sensor.channels}
    assert kinds["energy"] == "counter"
    assert set(kinds.values()) == {"counter", "gauge"}
    assert sensor.blocking
    assert sensor.every_ns >= 20_000_000
    sensor.close()
    assert board.open == 0


def test_what_is_known_of_the_filter_is_stated_for_ampere_and_later_except_ga100(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = [Card(EVERYTHING), Card(EVERYTHING, "NVIDIA A100-SXM4-40GB"), Card({**EVERYTHING, "Architecture": 6})]
    put(monkeypatch, Board(cards))
    sensor = found(nvml.discover(ROOT, Target(1)))
    windows = {channel.scope: channel.window_ns for channel in sensor.channels if channel.quantity == "power_average"}
    assert windows == {"gpu:0": 1_000_000_000, "gpu:1": None, "gpu:2": None}
    energy = next(channel for channel in sensor.channels if channel.quantity == "energy")
    assert (energy.refresh_ns, energy.step_size) == (100_000_000, 0.001)
    sensor.close()


def test_instant_power_of_hopper_is_said_to_be_a_part_of_each_100_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Board([Card({**EVERYTHING, "Architecture": 9}, "NVIDIA H100 80GB HBM3"), Card(EVERYTHING)]))
    sensor = found(nvml.discover(ROOT, Target(1)))
    instant = {c.scope: (c.refresh_ns, c.window_ns) for c in sensor.channels if c.quantity == "power"}
    assert instant == {"gpu:0": (100_000_000, 25_000_000), "gpu:1": (20_000_000, None)}
    sensor.close()


def test_only_quantities_that_answer_become_channels_and_the_drivers_power_then_is_the_power(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(monkeypatch, Board([Card({"PowerUsage": 9_500, "Temperature": 41}, "Quadro P620")]))
    sensor = found(nvml.discover(ROOT, Target(1)))
    assert values(sensor) == {"gpu.0.power": 9.5, "gpu.0.temperature": 41.0}
    sensor.close()


def test_each_of_many_gpus_and_mig_devices_has_a_scope_and_a_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_ = Card({"MemoryInfo": SimpleNamespace(used=5 << 20)}, "NVIDIA H200 MIG 1g.18gb")
    put(monkeypatch, Board([Card(EVERYTHING), Card({"PowerUsage": 1000}, mig=[slice_, None, slice_])]))
    sensor = found(nvml.discover(ROOT, Target(1)))
    scopes = {channel.scope: channel.parent_scope for channel in sensor.channels}
    assert scopes == {"gpu:0": "system", "gpu:1": "system", "gpu:1/mig:0": "gpu:1", "gpu:1/mig:2": "gpu:1"}
    assert len({channel.id for channel in sensor.channels}) == len(sensor.channels)
    assert values(sensor)["gpu.1/mig.2.memory_used"] == 5 << 20
    sensor.close()


def test_an_nvml_that_gives_nothing_is_unsupported_and_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board([Card({}, "Orin (nvgpu)")])
    put(monkeypatch, board)
    answer = missing(nvml.discover(ROOT, Target(1)))
    assert answer.reason == "unsupported"
    assert "Orin (nvgpu)" in answer.detail
    assert board.open == 0


@pytest.mark.parametrize(
    ("code", "reason"), [(9, "absent"), (12, "absent"), (4, "denied"), (18, "failed"), (999, "failed")]
)
@pytest.mark.parametrize("cards", [[], [Path("awake")]])
def test_a_library_without_a_driver_says_why_and_how_to_get_one_where_there_is_a_card(
    code: int, reason: str, cards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, Board([], init_error=code))
    monkeypatch.setattr(nvml, "graphics_cards", lambda root, vendor: cards)
    answer = missing(nvml.discover(ROOT, Target(1)))
    assert answer.reason == reason
    assert str(code) in answer.detail
    assert bool(answer.remedy) == (code != 999 and (reason != "absent" or cards != []))


def test_a_pynvml_of_a_third_party_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, ModuleType("pynvml"))
    answer = missing(nvml.discover(ROOT, Target(1)))
    assert answer.reason == "failed"
    assert "nvidia-ml-py" in str(answer.remedy)


def test_without_the_module_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, None)
    assert missing(nvml.discover(ROOT, Target(1))).reason == "absent"


def test_nvml_is_not_asked_while_all_nvidia_gpus_sleep_since_that_would_wake_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    board = Board([Card(EVERYTHING)])
    put(monkeypatch, board)
    monkeypatch.setattr(nvml, "graphics_cards", lambda root, vendor: graphics_cards(tmp_path, vendor))
    for place, vendor, kind, state in (
        ("01:00.0", "0x10de", "0x030200", "suspended"), ("01:00.1", "0x10de", "0x040300", "active"),
        ("02:00.0", "0x1002", "0x030000", "active"), ("03:00.0", "0x10de", "0x030000", "suspending"),
    ):  # fmt: skip
        card = tmp_path / "sys/bus/pci/devices" / place
        (card / "power").mkdir(parents=True)
        for name, text in (("vendor", vendor), ("class", kind), ("power/runtime_status", state)):
            (card / name).write_text(f"{text}\n")
    answer = missing(nvml.discover(ROOT, Target(1)))
    assert answer.detail.endswith(ASLEEP)
    assert board.open == 0
    (card / "power/runtime_status").write_text("active\n")
    found(nvml.discover(ROOT, Target(1))).close()


def test_a_saved_tree_has_no_nvml_even_where_the_machine_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(monkeypatch, Board([Card(EVERYTHING)]))
    answer = missing(nvml.discover(tmp_path, Target(1)))
    assert answer.reason == "absent"
    assert str(tmp_path) in answer.detail


def test_a_call_that_starts_to_fail_leaves_its_channel_empty_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = Card(dict(EVERYTHING))
    put(monkeypatch, Board([card]))
    now = [0]
    sensor = found(nvml.discover(ROOT, Target(4711, clock=lambda: now[0])))
    sensor.read()
    del card.answers["TotalEnergyConsumption"]
    after = values(sensor)
    assert math.isnan(after["gpu.0.energy"])
    assert after["gpu.0.power"] == 64.5
    card.answers["TotalEnergyConsumption"] = 99_000
    assert values(sensor)["gpu.0.energy"] == 99.0
    sensor.close()


def test_a_gpu_that_is_lost_ends_the_read_and_can_be_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(dict(EVERYTHING))
    board = Board([card])
    put(monkeypatch, board)
    sensor = found(nvml.discover(ROOT, Target(4711)))
    answers, card.answers = card.answers, {}
    with pytest.raises(OSError, match="lost"):
        sensor.read()
    sensor.close()
    card.answers = answers
    again = found(nvml.discover(ROOT, Target(4711)))
    assert again.channels == sensor.channels
    again.close()
    assert board.open == 0


def test_processes_are_listed_once_a_second_and_a_trainer_that_is_not_listed_reads_nan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = Board([Card(EVERYTHING)])
    put(monkeypatch, board)
    now = [0]
    sensor = found(nvml.discover(ROOT, Target(1, clock=lambda: now[0])))
    listed = board.calls["nvmlDeviceGetComputeRunningProcesses"]
    for _ in range(40):  # two seconds at 50 ms
        assert math.isnan(values(sensor)["gpu.0.process_memory"])
        now[0] += 50_000_000
    assert board.calls["nvmlDeviceGetComputeRunningProcesses"] - listed == 2
    sensor.close()


def test_a_trainer_that_is_not_listed_is_no_loss_of_a_gpu_whose_other_calls_are_not_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, board = [0], Board([Card({"ComputeRunningProcesses": []})])

    def slow(_: Card) -> int:
        now[0] += 2_400_000
        return 5_000

    board.nvmlDeviceGetPowerUsage = slow  # type: ignore[attr-defined]
    put(monkeypatch, board)
    sensor = found(nvml.discover(ROOT, Target(1, clock=lambda: now[0])))
    for now[0] in (10_000_000_000, 10_960_000_000, 11_010_000_000):  # in the last read the list alone is due
        assert values(sensor)["gpu.0.power"] == 5.0
    sensor.close()


def test_a_card_is_known_by_its_place_and_number_as_torch_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    place = SimpleNamespace(domain=0, bus=0x65, device=0)
    known = Card({**EVERYTHING, "PciInfo": place, "UUID": b"GPU-0a1b2c3d-1111-2222-3333-444455556666"}, mig=[Card({})])
    put(monkeypatch, Board([known, Card(EVERYTHING)]))
    sensor = found(nvml.discover(ROOT, Target(1)))
    sensor.close()
    assert {channel.card for channel in sensor.channels if channel.scope == "gpu:0"} == {"0000:65:00.0 0a1b2c3d"}
    assert {channel.card for channel in sensor.channels if channel.scope == "gpu:1"} == {None}
    torch_has = SimpleNamespace(
        pci_domain_id=0, pci_bus_id=0x65, pci_device_id=0, uuid="0a1b2c3d-1111-2222-3333-444455556666"
    )
    assert _card_identity(torch_has) == {"card": "0000:65:00.0 0a1b2c3d"}


def test_a_memory_that_the_driver_does_not_know_is_nan_and_not_sixteen_exabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = [SimpleNamespace(pid=1, usedGpuMemory=2**64 - 1)]
    put(monkeypatch, Board([Card({**EVERYTHING, "ComputeRunningProcesses": unknown})]))
    sensor = found(nvml.discover(ROOT, Target(1)))
    assert math.isnan(values(sensor)["gpu.0.process_memory"])
    sensor.close()


def test_a_dear_call_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    board = Board([Card({"PowerUsage": 1000})])
    energies = [0]

    def energy(_: Card) -> int:
        now[0] += 2_400_000
        energies[0] += 1
        return 5_000

    board.nvmlDeviceGetTotalEnergyConsumption = energy  # type: ignore[attr-defined]
    put(monkeypatch, board)
    sensor = found(nvml.discover(ROOT, Target(1, clock=lambda: now[0])))
    tried = energies[0]
    for _ in range(20):
        now[0] += 10_000_000
        assert values(sensor)["gpu.0.energy"] == 5.0
    assert energies[0] - tried <= 3
    sensor.close()
