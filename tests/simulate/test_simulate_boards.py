"""Simulated boards driven by hand: their files say what such a board's would, and the real sensors find them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.simulate.boards_in_hand import MS, QUIET, Hand, S, board_in_hand

from stepscope.record.sensors import load_sensors
from stepscope.record.sensors.contract import OpenSensor, Target
from stepscope.simulate import BOARDS
from stepscope.simulate.boards import BOARDS as SIMULATED
from stepscope.simulate.layouts import BUILDS

BOARD_RAILS = {name: set(board.rails) for name, board in SIMULATED.items()}
SENSOR_OF = {
    "jetson-tx2": ("ina3221", {"VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_4V0_WIFI", "VDD_IN", "VDD_SYS_CPU", "VDD_SYS_DDR"}),
    "jetson-agx-xavier": ("ina3221", {"GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"}),
    "jetson-orin-nano": ("ina3221", {"VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"}),
    "raspberry-pi-5": ("rpi5_pmic", {*BOARD_RAILS["raspberry-pi-5"], "EXT5V", "BATT"}),
    "laptop-rapl": ("rapl", {"package-0", "core", "uncore", "dram", "psys"}),
    "laptop-battery": ("battery", {"BAT0"}),
    "gpu-counter": ("hwmon_power", {"card"}),
}


@pytest.fixture
def tx2(tmp_path: Path) -> Iterator[Hand]:
    with board_in_hand("jetson-tx2", tmp_path, **QUIET) as board:
        yield board


def discovered(board: Hand, name: str) -> OpenSensor:
    found = load_sensors()[name].discover(board.root, Target(os.getpid()))
    assert isinstance(found, OpenSensor), found
    return found


def test_every_board_has_a_layout_and_a_sensor_that_reads_it() -> None:
    assert set(BOARDS) == set(BUILDS) == set(SENSOR_OF)


@pytest.mark.parametrize("name", BOARDS)
def test_the_real_sensor_reads_every_rail_of_a_board_that_has_just_started(name: str, tmp_path: Path) -> None:
    sensor, rails = SENSOR_OF[name]
    with board_in_hand(name, tmp_path) as board:
        found = discovered(board, sensor)
        values = found.read()
        found.close()
    read = {channel.rail for channel, value in zip(found.channels, values, strict=True) if not math.isnan(value)}
    assert read == rails


@pytest.mark.parametrize("name", BOARDS)
def test_cpu_sensors_go_on_working_below_the_board(name: str, tmp_path: Path) -> None:
    with board_in_hand(name, tmp_path) as board:
        for sensor in ("process_memory", "system_memory", "cpu_cores"):
            found = discovered(board, sensor)
            values = list(found.read())
            found.close()
            assert len(values) == len(found.channels) > 0
            assert any(value >= 0 for value in values), sensor  # not a number: nothing was read


def test_a_board_with_a_device_tree_says_which_it_is(tx2: Hand) -> None:
    assert "nvidia,tegra186" in tx2.text("proc/device-tree/compatible").split("\0")
    assert tx2.text("proc/self/comm")


def test_processes_that_start_later_appear_in_the_boards_proc(tx2: Hand) -> None:
    child = os.posix_spawn("/bin/sleep", ["sleep", "5"], os.environ)
    try:
        tx2.go(600 * MS)
        assert (tx2.root / f"proc/{child}/stat").exists()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    tx2.go(600 * MS)
    assert not (tx2.root / f"proc/{child}").is_symlink()


def test_rails_of_the_ina3221_move_in_their_steps(tx2: Hand) -> None:
    state = tx2.state("Conv2d")
    seen: dict[str, set[int]] = {"1/in_current0": set(), "1/in_current2": set(), "0/in_current1": set()}
    tx2.mark(state)
    for _ in range(200):
        tx2.go(7 * MS)
        for name in seen:
            seen[name].add(tx2.number(f"sys/bus/i2c/drivers/ina3221x/*/iio:device{name}_input"))
    for name, step_ma in (("1/in_current0", 2), ("1/in_current2", 4), ("0/in_current1", 4)):
        steps = np.diff(sorted(seen[name]))
        assert len(steps) > 3
        assert steps.min() == step_ma
        assert not (steps % step_ma).any()


def test_power_of_the_ina3221_is_current_times_voltage_and_both_stand_in_one_file(tx2: Hand) -> None:
    tx2.mark(tx2.state("Conv2d"))
    tx2.go(S)
    folder = "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1"
    millivolt, milliampere = map(int, tx2.text(f"{folder}/ui_input_0").split())
    assert (millivolt, milliampere) == (
        tx2.number(f"{folder}/in_voltage0_input"),
        tx2.number(f"{folder}/in_current0_input"),
    )
    assert tx2.number(f"{folder}/in_power0_input") == millivolt * milliampere // 1000


def test_the_running_average_of_64_has_a_time_constant_of_64_rounds(tx2: Hand) -> None:
    file = "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1/in_current0_input"
    tx2.go(S)
    low = tx2.number(file)
    state = tx2.state("Conv2d")
    tx2.mark(state)
    tx2.go(round(64 * 6.6 * MS))
    after_one = tx2.number(file)
    tx2.go(4 * S)
    high = tx2.number(file)
    assert (after_one - low) / (high - low) == pytest.approx(1 - math.exp(-1), abs=0.03)


def test_a_single_sample_shows_a_load_step_within_one_round(tmp_path: Path) -> None:
    with board_in_hand("jetson-orin-nano", tmp_path, **QUIET) as orin:
        file = "sys/class/hwmon/hwmon1/curr1_input"
        low = orin.number(file)
        orin.mark(orin.state("Conv2d"))
        orin.go(2 * 6_600_000)
        high = orin.number(file)
        orin.go(S)
        assert low < high == orin.number(file)
        assert (
            orin.number("sys/class/hwmon/hwmon1/samples"),
            orin.number("sys/class/hwmon/hwmon1/update_interval"),
        ) == (
            1,
            7,
        )


def test_each_conversion_sees_its_own_millisecond_alone(tmp_path: Path) -> None:
    with board_in_hand("jetson-orin-nano", tmp_path, **QUIET) as orin:
        busy = orin.state("Conv2d")
        seen = set()
        for _ in range(60):
            orin.mark(busy)
            orin.go(3_300_000, 550_000)
            orin.mark(0)
            orin.go(3_400_000, 550_000)
            seen.add(orin.number("sys/class/hwmon/hwmon1/curr1_input"))
        truth = orin.run.truth()
    low, high = truth.idle_w[0] / 5.1 * 1e3, (truth.idle_w[0] + truth.above_idle_w[busy, 0]) / 5.1 * 1e3
    assert min(seen) == pytest.approx(low, rel=0.05)
    assert max(seen) == pytest.approx(high, rel=0.05)


def test_rapl_counts_in_units_of_61_uj_every_ms_and_wraps_at_its_range(tmp_path: Path) -> None:
    with board_in_hand("laptop-rapl", tmp_path, counter_range_uj=5_000_000, **QUIET) as laptop:
        laptop.mark(laptop.state("Conv2d"))
        file = "sys/class/powercap/intel-rapl:0/energy_uj"
        before, grown, wraps = laptop.number(file), 0, 0
        start_ns = laptop.now_ns
        for _ in range(2000):
            laptop.go(MS)
            now = laptop.number(file)
            wraps += now < before
            grown += (now - before) % 5_000_000
            before = now
        latency = 500_000
        true_j = laptop.run.truth().energy_between("package-0", start_ns - latency, laptop.now_ns - latency)
    assert wraps >= 2
    assert grown / 1e6 == pytest.approx(float(true_j), rel=2e-3)


def test_a_counter_shows_each_update_when_it_comes_and_not_when_somebody_looks_in(tmp_path: Path) -> None:
    late_ns = []
    with board_in_hand("laptop-rapl", tmp_path, **QUIET) as laptop:
        laptop.mark(laptop.state("Conv2d"))
        file, first_ns = "sys/class/powercap/intel-rapl:0/energy_uj", 0
        for _ in range(200):
            before = laptop.number(file)
            laptop.go(laptop.run.next_ns(laptop.now_ns) - laptop.now_ns)
            if laptop.number(file) != before:
                first_ns = first_ns or laptop.now_ns
                late_ns.append((laptop.now_ns - first_ns) % MS)
    assert len(late_ns) > 150
    assert set(late_ns) <= {0, 1, MS - 1}


def test_the_cards_counter_stands_for_100_ms_at_a_time(tmp_path: Path) -> None:
    with board_in_hand("gpu-counter", tmp_path, **QUIET) as card:
        values = []
        for _ in range(400):
            card.go(5 * MS)
            values.append(card.number("sys/class/hwmon/hwmon2/energy1_input"))
    moved = np.flatnonzero(np.diff(values))
    assert set(np.diff(moved).tolist()) == {20}
    assert np.diff(values)[moved][1:] == pytest.approx(18.0 * 0.1 * 1e6, rel=2e-3)


def test_the_battery_gauge_shows_the_mean_of_its_last_refresh_and_loses_that_energy(tmp_path: Path) -> None:
    with board_in_hand("laptop-battery", tmp_path, **QUIET) as laptop:
        laptop.mark(laptop.state("Conv2d"))
        laptop.go(60 * S)
        truth = laptop.run.truth()
        lines = laptop.text("sys/class/power_supply/BAT0/uevent").splitlines()
    fields = dict(line.split("=", 1) for line in lines)
    watts = float(truth.energy_between("BAT0", truth.end_ns - S, truth.end_ns))
    assert int(fields["POWER_SUPPLY_POWER_NOW"]) == pytest.approx(watts * 1e6, abs=1_000)
    assert fields["POWER_SUPPLY_STATUS"] == "Discharging"
    assert int(fields["POWER_SUPPLY_ENERGY_NOW"]) % 10_000 == 0


def test_zones_warm_up_under_load(tx2: Hand) -> None:
    before = tx2.number("sys/class/thermal/thermal_zone0/temp")
    tx2.mark(tx2.state("Conv2d"))
    tx2.go(20 * S, 100 * MS)
    assert tx2.number("sys/class/thermal/thermal_zone0/temp") > before + 3000
