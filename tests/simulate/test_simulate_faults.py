"""Faults on demand: they come and go at their times, and the energy behind them goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulate.boards_in_hand import MS, QUIET, Hand, S, board_in_hand

from stepscope.errors import UnknownName, UsageError
from stepscope.simulate.boards import Fault, parse_board, parse_options

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


def test_a_board_is_named_with_what_is_wrong_with_it() -> None:
    assert parse_board("jetson-tx2") == ("jetson-tx2", {})
    name, options = parse_board("jetson-tx2, average=76, gain=-5%, offset=0.3W, conversion=1.5ms, stuck=5s+3s, lost=9s")
    assert (name, options["average"], options["conversion_ns"]) == ("jetson-tx2", 76, 1_500_000)
    assert (options["gain"], options["offset_w"]) == (pytest.approx(0.95), 0.3)
    assert options["faults"] == (Fault("stuck", 5.0, 3.0), Fault("lost", 9.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jetson-tx9,average=76", "jetson-tx2"),
        ("jetson-tx2,avrage=76", "average"),
        ("jetson-tx2,stuk=5s", "stuck"),
        ("jetson-tx2,average", "states no value"),
        ("jetson-tx2,average=many", "not a number"),
        ("jetson-tx2,stuck=5s+long", "not a length of time"),
        ("jetson-tx2,stuck=-3s", "begins before the training"),
        ("jetson-tx2,gain=nan", "for example jetson-tx2,average=76"),
        ("jetson-tx2,repeated=120%", "a share of 1 or more"),
        ("jetson-tx2,", "a comma without a setting"),
        ("jetson-tx2,launch=1ms,launch=2ms", "stated twice"),
    ],
)
def test_a_setting_that_a_board_does_not_have_is_refused_with_what_it_has(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_board(text)
    assert said in f"{refused.value} {refused.value.hint}"


def test_gain_and_offset_are_of_what_the_sensor_shows_and_not_of_the_truth(tmp_path: Path) -> None:
    with board_in_hand("laptop-rapl", tmp_path, gain=0.9, offset_w=0.5, **QUIET) as laptop:
        before = laptop.number(ENERGY)
        laptop.go(2 * S)
        spent = 2 * float(laptop.run.truth().energy_between("package-0", 1000 * S + 500 * MS, 1001 * S + 500 * MS))
        assert laptop.number(ENERGY) - before == pytest.approx(1e6 * (0.9 * spent + 0.5 * 2), rel=0.02)


def test_a_register_averages_over_more_conversions_than_its_driver_states(tmp_path: Path) -> None:
    power = "sys/devices/3160000.i2c/i2c-0/0-0041/iio:device1/in_power0_input"
    reached = []
    for average in (64, 256):
        home = tmp_path / str(average)
        home.mkdir()
        with board_in_hand("jetson-tx2", home, average=average, **QUIET) as board:
            busy = board.state("Conv2d")
            board.go(50 * MS)
            idle = board.number(power)
            board.mark(busy)
            board.go(300 * MS)
            reached.append(board.number(power) - idle)
            assert (board.root / "sys/devices/3160000.i2c/i2c-0/0-0041/of_node").exists()
    assert reached[1] < 0.5 * reached[0]


def test_updates_that_do_not_arrive_leave_the_value_before_or_nothing(tmp_path: Path) -> None:
    with board_in_hand("laptop-rapl", tmp_path, repeated=0.3, unread=0.3, **QUIET) as laptop:
        seen = []
        for _ in range(200):
            laptop.go(1 * MS)
            seen.append((content(laptop) or b"").strip())
        empty = sum(not text for text in seen)
        same = sum(a == b for a, b in itertools.pairwise(seen) if a)
    assert 20 < empty < 150
    assert same > 20


def test_what_a_meter_says_wrongly_heats_no_board(tmp_path: Path) -> None:
    said = {}
    for gain in (1.0, 3.0):
        home = tmp_path / str(gain)
        home.mkdir()
        with board_in_hand("jetson-tx2", home, gain=gain, offset_w=2 * (gain - 1), **QUIET) as board:
            board.go(10 * S, 50 * MS)
            zone = board.number("sys/class/thermal/thermal_zone0/temp")
            said[gain] = zone, board.number("sys/bus/i2c/drivers/ina3221x/0-0041/iio:device*/in_power0_input")
    assert said[1.0][0] == said[3.0][0]
    assert said[3.0][1] > 2 * said[1.0][1]
