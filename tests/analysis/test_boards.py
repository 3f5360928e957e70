"""Every board file keeps the contract, every board is known by its device, and no total counts a rail twice."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.analysis.device import (
    all_boards,
    canonical_rail_name,
    core_clusters,
    discover_boards,
    identify,
    matches_pattern,
    rail_of,
)
from stepscope.analysis.device.contract import COMPONENTS, Board

BOARDS = {board.name: board for board in all_boards()}


@pytest.fixture(params=list(BOARDS.values()), ids=list(BOARDS))
def board(request: pytest.FixtureRequest) -> Board:
    found: Board = request.param
    return found


def test_every_file_of_the_folder_holds_boards_with_names_of_their_own() -> None:
    assert not discover_boards().warnings
    files = {module.__name__.rpartition(".")[2]: module for module in discover_boards().modules}
    others = {"ceilings", "occupancy", "throttling"}  # what every device has
    boards = [board.name for name in files.keys() - others for board in files[name].BOARDS]
    assert sorted(boards) == sorted(BOARDS)
    assert len({board.title for board in BOARDS.values()}) == len(BOARDS)


def test_a_board_names_each_rail_once_and_what_it_feeds_with_known_words(board: Board) -> None:
    names = [rail.name for rail in board.rails]
    assert len(set(names)) == len(names)
    for rail in board.rails:
        assert set(rail.component.split("+")) <= set(COMPONENTS)
        assert rail.inside is None or rail.inside in names


def test_containment_is_a_tree(board: Board) -> None:
    inside = {rail.name: rail.inside for rail in board.rails}
    for name in inside:
        seen = [name]
        while (above := inside.get(seen[-1])) is not None:
            assert above not in seen
            seen.append(above)


def test_a_total_adds_rails_that_the_board_has_and_none_that_lies_in_another_of_them(board: Board) -> None:
    inside = {rail.name: rail.inside for rail in board.rails}
    for total in board.totals:
        assert total.covers
        added = (*total.of, *total.also)
        assert set(added) <= set(inside)
        for name in added:
            above = inside[name]
            while above is not None:
                assert above not in added
                above = inside[above]


def test_an_alias_leads_to_a_rail_of_the_board_and_hides_none(board: Board) -> None:
    names = {rail.name for rail in board.rails}
    assert len(dict(board.aliases)) == len(board.aliases)
    for other, name in board.aliases:
        assert name in names
        assert other not in names


def test_traps_are_sentences_and_sizes_are_bytes(board: Board) -> None:
    for trap in board.traps:
        assert trap[0].isupper()
        assert trap.endswith(".")
    for size in board.memory_bytes:
        assert size >= 1 << 30
        assert board.os_keeps_bytes is not None
        assert board.os_keeps_bytes < size


JETSONS = {
    "jetson_tx2": ("nvidia,quill nvidia,p2597-0000+p3310-1000 nvidia,tegra186", "quill"),
    "jetson_tx2_nx": ("nvidia,p3509-0000+p3636-0001 nvidia,tegra186", "NVIDIA Jetson TX2 NX Developer Kit"),
    "jetson_tx1": ("nvidia,p2371-2180 nvidia,tegra210", "NVIDIA Jetson TX1 Developer Kit"),
    "jetson_nano": ("nvidia,p3449-0000-b00+p3448-0000-b00 nvidia,jetson-nano nvidia,tegra210", "jetson-nano"),
    "jetson_xavier_nx": (
        "nvidia,p3509-0000+p3668-0001 nvidia,tegra194",
        "NVIDIA Jetson Xavier NX Developer Kit",
    ),
    "jetson_agx_xavier": ("nvidia,p2972-0000+p2888-0004 nvidia,tegra194", "Jetson-AGX"),
    "jetson_orin_nano": (
        "nvidia,p3768-0000+p3767-0005-super nvidia,p3767-0005 nvidia,tegra234",
        "NVIDIA Jetson Orin Nano Developer Kit",
    ),
    "jetson_orin_nx": ("nvidia,p3768-0000+p3767-0000 nvidia,p3767-0000 nvidia,tegra234", "NVIDIA Orin NX board"),
    "jetson_agx_orin": ("nvidia,p3737-0000+p3701-0005 nvidia,tegra234", "NVIDIA Jetson AGX Orin Developer Kit"),
    "jetson_thor": ("nvidia,p3971-0000+p3834-0008 nvidia,tegra264", "NVIDIA Jetson AGX Thor Developer Kit"),
    "raspberry_pi_5": ("raspberrypi,5-model-b brcm,bcm2712", "Raspberry Pi 5 Model B Rev 1.0"),
    "raspberry_pi_4": ("raspberrypi,4-model-b brcm,bcm2711", "Raspberry Pi 4 Model B Rev 1.4"),
}


@pytest.mark.parametrize(("name", "said"), JETSONS.items(), ids=JETSONS)
def test_a_board_is_known_by_its_device_tree_and_mostly_by_its_name_alone(name: str, said: tuple[str, str]) -> None:
    gpu = [{"vendor": "nvidia", "model": None, "bus": None}]
    assert identify({"compatible": said[0], "board": said[1], "accelerators": gpu}).name == name
    if name != "jetson_agx_xavier":
        assert identify({"compatible": None, "board": said[1]}).name == name


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ({"cpu": "13th Gen Intel(R) Core(TM) i5-13500", "board": "Acme Desktop"}, "rapl_computer"),
        ({"cpu": "AMD Ryzen 7 5800X 8-Core Processor"}, "rapl_computer"),
        ({"cpu": "AMD Ryzen 7", "accelerators": [{"vendor": "nvidia", "model": "RTX 3050"}]}, "nvidia_computer"),
        ({"cpu": "Apple M2", "board": None, "machine": "arm64"}, "apple"),
        ({"compatible": "xunlong,orangepi-5 rockchip,rk3588", "board": "Orange Pi 5"}, "other_machine"),
        ({}, "other_machine"),
        ({"board": {"name": "test board"}, "accelerators": None, "cores": None}, "other_machine"),
    ],
)
def test_a_machine_without_a_file_of_its_own_is_known_by_its_kind(device: dict[str, Any], name: str) -> None:
    assert identify(device).name == name


def test_in_a_container_a_jetson_is_known_by_its_rails() -> None:
    inside = {"accelerators": [{"vendor": "nvidia"}]}
    assert identify(inside, ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]).name == "jetson_agx_orin"
    assert identify(inside, ["VDD_IN", "VDD_SYS_CPU", "VDD_5V0_DDR"]).name == "jetson_tx2"
    assert identify(inside, ["VDD_IN"]).name == "nvidia_computer"
    assert identify(inside, ["package-0", "gpu:0"]).name == "nvidia_computer"


def test_a_simulated_board_is_taken_by_its_name() -> None:
    device = {"cpu": "Intel(R) Xeon(R)"}
    assert identify(device, simulated="jetson-tx2").name == "jetson_tx2"
    assert identify(device, simulated="no such board").name == "rapl_computer"


def test_rails_of_old_releases_and_of_mainline_have_one_name() -> None:
    tx2 = BOARDS["jetson_tx2"]
    assert [canonical_rail_name(tx2, name) for name in ("VDD_DDR", "VDD_5V0_DDR", "VDD_SYS_DDR")] == ["VDD_SYS_DDR"] * 3
    memory = rail_of(tx2, "VDD_SYS_DDR")
    assert memory is not None
    assert memory.component == "memory"


def test_a_meter_beside_any_board_is_the_device() -> None:
    for scope in ("wall:desk", "battery:BAT0", "meter:bench", "rail:ina226-1-0040/power1"):
        entry = rail_of(BOARDS["raspberry_pi_4"], None, scope)
        assert entry is not None
        assert entry.component == "device"


def test_a_card_and_its_memory_are_told_apart() -> None:
    entries = [rail_of(BOARDS["nvidia_computer"], "NVIDIA RTX", scope) for scope in ("gpu:0", "gpu:0/memory")]
    assert [entry.component for entry in entries if entry] == ["gpu", "memory"]


def test_the_cores_of_a_tx2_have_their_clusters_by_midr() -> None:
    midr = {"a57": "0x00000000411fd073", "denver": "0x000000004e0f0030"}
    kinds = ["a57", "denver", "denver", "a57", "a57", "a57"]
    cores = [{"core": number, "midr": midr[kind]} for number, kind in enumerate(kinds)]
    found = core_clusters({"cores": cores}, BOARDS["jetson_tx2"])
    assert found == {"Cortex-A57": [0, 3, 4, 5], "Denver2": [1, 2]}


def test_clusters_without_a_name_are_big_and_little_by_capacity() -> None:
    cores = [{"core": number, "capacity": 1024 if number > 3 else 446} for number in range(8)]
    assert core_clusters({"cores": cores}, BOARDS["other_machine"]) == {"little": [0, 1, 2, 3], "big": [4, 5, 6, 7]}
    alike = [{"core": number, "capacity": None, "midr": "garbage"} for number in range(2)]
    assert core_clusters({"cores": alike}, BOARDS["other_machine"]) == {"cores": [0, 1]}
    assert core_clusters({"cores": alike}, BOARDS["raspberry_pi_5"]) == {"Cortex-A76": [0, 1]}
    assert core_clusters({}, BOARDS["other_machine"]) == {}


def test_patterns_do_not_care_for_case() -> None:
    assert matches_pattern("package-*", "Package-1")
    assert not matches_pattern("core", "core-1")
