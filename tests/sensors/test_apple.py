"""Macs: the cumulative energy of zeus-apple-silicon, and powermetrics as text and as a streaming child."""

from __future__ import annotations

import math
import os
import platform
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import until

from stepscope.record.sensors import apple
from stepscope.record.sensors.apple import parse
from stepscope.record.sensors.contract import NoSensor, OpenSensor, Target

ROOT = Path("/")
LINES = Path(__file__).parent / "lines"
MACOS_12 = (LINES / "powermetrics-macos12-m1.txt").read_text()
MACOS_26 = (LINES / "powermetrics-macos26-m2.txt").read_text()
M1 = {"cpu_total_mj": 5000, "efficiency_cluster_mj": [1000], "performance_cluster_mj": [2500, 1500], "gpu_mj": 0}


@pytest.fixture(autouse=True)
def _a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")


def zeus(monkeypatch: pytest.MonkeyPatch, metrics: SimpleNamespace) -> None:
    """Put a board in place of the module zeus_apple_silicon."""
    module = ModuleType("zeus_apple_silicon")
    module.AppleEnergyMonitor = lambda: SimpleNamespace(get_cumulative_energy=lambda: metrics)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)


def test_each_part_that_the_chip_reports_is_a_counter_in_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = SimpleNamespace(**M1, dram_mj=None)
    zeus(monkeypatch, metrics)
    sensor = apple.discover(ROOT, Target(1))
    assert isinstance(sensor, OpenSensor)
    read = dict(zip([(channel.scope, channel.parent_scope) for channel in sensor.channels], sensor.read(), strict=True))
    assert read == {
        ("apple:cpu", "board"): 5.0,
        ("apple:cpu/efficiency-cluster:0", "apple:cpu"): 1.0,
        ("apple:cpu/performance-cluster:0", "apple:cpu"): 2.5,
        ("apple:cpu/performance-cluster:1", "apple:cpu"): 1.5,
        ("apple:gpu", "board"): 0.0,
    }
    assert {channel.kind for channel in sensor.channels} == {"counter"}
    metrics.gpu_mj = None  # a part that is no longer reported is a gap
    assert math.isnan(sensor.read()[4])


def test_a_chip_that_reports_nothing_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    zeus(monkeypatch, SimpleNamespace(cpu_total_mj=None))
    answer = apple.discover(ROOT, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "unsupported"


def test_a_monitor_that_cannot_start_and_one_that_fails_later_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = SimpleNamespace(**M1)
    state: dict[str, bool] = {"broken": False}

    def cumulative() -> Any:
        if state["broken"]:
            raise RuntimeError("IOReportCreateSamples failed")
        return metrics

    module = ModuleType("zeus_apple_silicon")
    module.AppleEnergyMonitor = lambda: SimpleNamespace(get_cumulative_energy=cumulative)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
    sensor = apple.discover(ROOT, Target(1))
    assert isinstance(sensor, OpenSensor)
    state["broken"] = True
    with pytest.raises(OSError, match="CreateSamples"):
        sensor.read()
    answer = apple.discover(ROOT, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "failed"


def test_a_mac_without_the_library_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    answer = apple.discover(ROOT, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.remedy == "pip install zeus-apple-silicon"


def test_both_blocks_of_macos_12_are_read_whole() -> None:
    report = parse(MACOS_12)
    assert report.machine["Machine model"] == "MacBookAir10,1"
    assert [block.elapsed_ns for block in report.blocks] == [104_510_000, 104_810_000]
    first = report.blocks[0]
    assert first.power_w == pytest.approx(
        {
            "E-Cluster": 0.105,
            "P-Cluster": 0.842,
            "ANE": 0.0,
            "DRAM": 0.220,
            "CPU": 0.947,
            "GPU": 0.153,
            "Package": 1.473,
        }
    )
    assert first.frequency_hz["E-Cluster"] == 1.483e9
    assert first.frequency_hz["CPU 7"] == 2.618e9
    assert first.residency["CPU 3"] == pytest.approx({"idle": 0.9025, "active": 0.0975})
    assert first.at_frequency["CPU 3"][2.064e9] == pytest.approx(0.038)
    assert first.counts["System instructions retired"] == 2.7813e8
    assert not any(block.unknown for block in report.blocks)
    assert not report.unknown


def test_macos_26_has_no_package_and_no_dram_and_they_are_absent_and_not_zero() -> None:
    (block,) = parse(MACOS_26).blocks
    assert block.elapsed_ns == 1_002_900_000
    assert block.power_w == pytest.approx({"CPU": 0.823, "GPU": 0.026, "ANE": 0.323, "Combined": 1.172})
    assert block.words == {"Current pressure level": "Nominal"}
    assert not block.unknown


def test_every_line_of_a_block_finds_a_place_and_an_unknown_one_is_kept() -> None:
    text = MACOS_26 + "Fan: 1203 rpm\nquite new output of macOS 31\n"
    block = parse(text).blocks[0]
    assert block.words["Fan"] == "1203 rpm"
    assert block.unknown == ["quite new output of macOS 31"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(MACOS_12.splitlines()) | st.text(max_size=60), max_size=40))
def test_no_text_breaks_the_parser_or_makes_it_invent_a_number(lines: list[str]) -> None:
    for block in parse("\n".join(lines)).blocks:
        numbers = [*block.power_w.values(), *block.frequency_hz.values(), *block.counts.values()]
        assert all(math.isfinite(number) for number in numbers)
        assert len(block.power_w) <= sum("Power" in line for line in lines)


def a_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A real program called sudo, first on the path."""
    program = tmp_path / "sudo"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def test_a_streaming_powermetrics_gives_power_and_adds_up_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_sudo(tmp_path, monkeypatch, f"cat '{LINES / 'powermetrics-macos12-m1.txt'}'; exec sleep 30")
    sensor = apple.discover_powermetrics(ROOT, Target(1, clock=lambda: 0))
    assert isinstance(sensor, OpenSensor), sensor
    ids = [channel.id for channel in sensor.channels]
    read: dict[str, float] = {}

    def last() -> bool:
        read.update(zip(ids, sensor.read(), strict=True))
        return read["apple.cpu.power"] == pytest.approx(0.420)

    until(last)
    sensor.close()
    assert read["apple.package.power"] == pytest.approx(0.773)
    assert read["apple.cpu.energy"] == pytest.approx(0.947 * 0.10451 + 0.420 * 0.10481)
    assert read["apple.ane.energy"] == 0.0
    parents = {channel.scope: channel.parent_scope for channel in sensor.channels}
    assert parents["apple:dram"] == "apple:package"
    assert sensor.blocking


def test_a_child_that_ends_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_sudo(tmp_path, monkeypatch, f"cat '{LINES / 'powermetrics-macos26-m2.txt'}'; echo killed >&2; exit 3")
    sensor = apple.discover_powermetrics(ROOT, Target(1))
    assert isinstance(sensor, OpenSensor), sensor
    assert [channel.scope for channel in sensor.channels[::2]] == [
        "apple:cpu",
        "apple:gpu",
        "apple:ane",
        "apple:cpu+gpu+ane",
    ]

    def lost() -> bool:
        try:
            sensor.read()
        except OSError as error:
            assert "killed" in str(error)  # noqa: PT017 - whichever read comes after its end
            return True
        return False

    until(lost, "the end of the child")
    sensor.close()


def test_without_a_password_free_sudo_the_reason_is_denied_and_the_remedy_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_sudo(tmp_path, monkeypatch, "echo 'sudo: a password is required' >&2; exit 1")
    answer = apple.discover_powermetrics(ROOT, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "denied"
    assert "NOPASSWD" in str(answer.remedy)


def test_a_powermetrics_that_prints_no_power_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple, "FIRST_BLOCK_S", 0.05)
    a_sudo(tmp_path, monkeypatch, "echo 'Machine model: Mac99,9'; exec sleep 30")
    answer = apple.discover_powermetrics(ROOT, Target(1))
    assert isinstance(answer, NoSensor)
    assert answer.reason == "unsupported"


def test_a_chip_with_two_performance_clusters_and_one_that_sleeps_is_read_whole() -> None:
    report = parse(
        "*** Sampled system activity (Fri Aug 22 09:00:00 2026 -0400) (1002.31ms elapsed) ***\n"
        "E-Cluster Online: 0-3\nE-Cluster HW active frequency: 0 MHz\n"
        "E-Cluster HW active residency:   0.00% (744 MHz:   0% 1044 MHz: 100% 1476 MHz: .78%)\n"
        "P0-Cluster HW active frequency: 4010 MHz\nP1-Cluster HW active frequency: 3990 MHz\n"
        "P1-Cluster idle residency:   0.29%\nCPU Power: 32104 mW\nGPU Power: 21mW\n"
        "Combined Power (CPU + GPU + ANE): 32125 mW\n**** Thermal pressure ****\nCurrent pressure level: Nominal\n"
    )
    (block,) = report.blocks
    assert block.unknown == []
    assert block.power_w == pytest.approx({"CPU": 32.104, "GPU": 0.021, "Combined": 32.125})
    assert "ANE" not in block.power_w
    assert block.frequency_hz == {"E-Cluster": 0.0, "P0-Cluster": 4.010e9, "P1-Cluster": 3.990e9}
    assert block.at_frequency["E-Cluster"][1.476e9] == pytest.approx(0.0078)


def test_digits_of_another_script_are_no_power() -> None:
    report = parse("*** Sampled system activity (x) (100.0ms elapsed) ***\nCPU Power: \u0661\u0662 mW\n")
    assert report.blocks[0].power_w == {}
