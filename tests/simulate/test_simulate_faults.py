"""Faults on demand: they come and go at their times, and the energy behind them goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulate.boards_in_hand import MS, QUIET, Hand, S, board_in_hand

from stepscope.errors import UnknownName, UsageError
from stepscope.simulate.boards import Fault, parse_options

ENERGY = "sys/class/powercap/intel-rapl:0/energy_uj"
Look = Callable[[Hand], bytes | None]


def content(board: Hand) -> bytes | None:
    path = board.root / ENERGY
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize(("kind", "during"), [("empty", b""), ("lost", None), ("garbage", b"\xff\x00not a number\n")])
def test_a_file_fails_for_its_time_and_then_answers_again(kind: str, during: bytes | None, tmp_path: Path) -> None:
    fault = Fault(kind, 1.0, 0.5)  # type: ignore[arg-type]
    with board_in_hand("laptop-rapl", tmp_path, faults=(fault,), **QUIET) as laptop:
        laptop.go(900 * MS)
        before = laptop.number(ENERGY)
        laptop.go(200 * MS)
        assert content(laptop) == during
        laptop.go(400 * MS)
        assert laptop.number(ENERGY) > before


def test_who_has_a_lost_file_open_reads_nothing_more(tmp_path: Path) -> None:
    with board_in_hand("laptop-rapl", tmp_path, faults=(Fault("lost", 1.0),), **QUIET) as laptop:
        with (laptop.root / ENERGY).open("rb", buffering=0) as kept:
            laptop.go(1200 * MS)
            assert kept.read() == b""
        assert not (laptop.root / ENERGY).exists()


def test_a_stuck_counter_has_not_forgotten_what_it_counted(tmp_path: Path) -> None:
    with board_in_hand("laptop-rapl", tmp_path, faults=(Fault("stuck", 1.0, 1.0),), **QUIET) as laptop:
        laptop.go(1100 * MS)
        stuck = laptop.number(ENERGY)
        laptop.go(700 * MS)
        assert laptop.number(ENERGY) == stuck
        laptop.go(400 * MS)
        assert laptop.number(ENERGY) - stuck == pytest.approx(2.5e6 * 1.15, rel=0.1)


def test_a_fault_can_hit_one_rail_alone(tmp_path: Path) -> None:
    fault = Fault("empty", 0.5, None, "*intel-rapl:0/energy_uj")
    with board_in_hand("laptop-rapl", tmp_path, faults=(fault,), **QUIET) as laptop:
        laptop.go(S)
        assert content(laptop) == b""
        assert laptop.number("sys/class/powercap/intel-rapl:1/energy_uj") > 0


def test_a_reset_counter_starts_from_0(tmp_path: Path) -> None:
    with board_in_hand("laptop-rapl", tmp_path, faults=(Fault("reset", 1.0),), **QUIET) as laptop:
        laptop.go(S)
        laptop.go(100 * MS)
        assert laptop.number(ENERGY) < 1_000_000


@pytest.mark.parametrize(
    ("name", "file", "link"),
    [
        ("jetson-orin-nano", "sys/class/hwmon/hwmon{}/curr1_input", "sys/class/hwmon"),
        ("jetson-tx2", "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device{}/ui_input_0", "sys/bus/iio/devices"),
    ],
)
def test_a_renumbered_chip_answers_under_its_new_number_only(name: str, file: str, link: str, tmp_path: Path) -> None:
    with board_in_hand(name, tmp_path, faults=(Fault("renumbered", 0.5),), **QUIET) as board:
        old = board.root / file.format(1)
        with old.open("rb", buffering=0) as kept:
            board.go(S)
            assert kept.read() == b""
        assert not old.exists()
        assert board.text(file.format(4))
        assert all(path.exists() for path in (board.root / link).iterdir())


def test_a_plugged_battery_charges_and_says_so(tmp_path: Path) -> None:
    with board_in_hand("laptop-battery", tmp_path, faults=(Fault("plugged", 2.0, 2.0),), **QUIET) as laptop:
        laptop.go(3 * S)
        assert laptop.text("sys/class/power_supply/BAT0/status") == "Charging"
        assert laptop.number("sys/class/power_supply/AC/online") == 1
        laptop.go(2 * S)
        assert laptop.text("sys/class/power_supply/BAT0/status") == "Discharging"


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": -0.1},
        {"samples": 63},
        {"counter_range_uj": 10},
        {"refresh_ns": 10},
        {"drift_tau_s": 0},
        {"noise": "much"},
        {"faults": [{"kind": "stuck"}]},
    ],
)
def test_options_that_cannot_be_simulated_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        parse_options(wrong)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as option:
        parse_options({"throttel": 0.5})
    assert "throttle" in str(option.value.hint)
    with pytest.raises(UnknownName) as fault:
        parse_options({"faults": [{"kind": "stuk", "at_s": 1.0}]})
    assert "stuck" in str(fault.value.hint)
