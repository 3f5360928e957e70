"""Phones: what Android says of its battery, through Termux and through adb."""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.record.sensors import android
from stepscope.record.sensors.android import parse_battery
from stepscope.record.sensors.contract import Meter, NoSensor, OpenSensor, Target

ROOT = Path("/")
LINES = Path(__file__).parent / "lines"
ON_USB = (LINES / "android-dumpsys-usb.txt").read_text()
DISCHARGING = (LINES / "android-dumpsys-discharging.txt").read_text()
UEVENT = "POWER_SUPPLY_STATUS=Discharging\nPOWER_SUPPLY_VOLTAGE_NOW=3964000\nPOWER_SUPPLY_CURRENT_NOW=-500000\n"
TERMUX = {
    "health": "GOOD",
    "percentage": 85,
    "plugged": "UNPLUGGED",
    "status": "DISCHARGING",
    "temperature": "22.3",
    "voltage": 4000,
    "current": -820000,
    "charge_counter": 3194654,
    "energy": None,
}
PHONE = Target(1, meters=(Meter("adb", "R58M", "adb-R58M"),))


def a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """A real program, alone on the path with the system's own."""
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")


def missing(answer: OpenSensor | NoSensor) -> NoSensor:
    assert isinstance(answer, NoSensor), answer
    return answer


def test_a_phone_on_usb_shows_voltage_and_charge_and_no_power() -> None:
    phone = parse_battery(ON_USB)
    assert phone.discharging is False
    assert phone.power_w is None
    assert phone.voltage_v == pytest.approx(4.352)
    assert phone.charge_c == pytest.approx(3.27 * 3600)
    assert phone.temperature_c == pytest.approx(27.4)


def test_dumpsys_has_no_current_and_the_uevent_beside_it_gives_the_power() -> None:
    assert parse_battery(DISCHARGING).discharging is True
    assert parse_battery(DISCHARGING).power_w is None
    assert parse_battery(DISCHARGING + UEVENT).power_w == pytest.approx(3.964 * 0.5)


def test_the_cable_counts_more_than_a_status_that_lags_behind() -> None:
    plugged_now = DISCHARGING.replace("USB powered: false", "USB powered: true")
    assert parse_battery(plugged_now + UEVENT).power_w is None


def test_termux_is_read_in_its_units() -> None:
    phone = parse_battery(json.dumps(TERMUX))
    assert phone.power_w == pytest.approx(4.0 * 0.82)
    assert phone.charge_c == pytest.approx(3.194654 * 3600)
    assert phone.temperature_c == 22.3
    assert phone.stored_j is None


@pytest.mark.parametrize(
    ("change", "power_w"),
    [
        ({"current": 820000}, 3.28),  # drivers disagree on the sign
        ({"current": -820}, 3.28),  # a driver that states mA
        ({"current": 0}, None),
        ({"current": -2147483648}, None),  # Integer.MIN: no such property
        ({"current": None}, None),
        ({"current": "lots"}, None),
        ({"voltage": 4_000_000}, 3.28),
        ({"voltage": 0}, None),
        ({"plugged": "PLUGGED_USB"}, None),
        ({"plugged": "PLUGGED_AC", "status": "DISCHARGING"}, None),
    ],
)
def test_traps_of_units_sign_and_cable(change: dict[str, object], power_w: float | None) -> None:
    power = parse_battery(json.dumps({**TERMUX, **change})).power_w
    assert power == (None if power_w is None else pytest.approx(power_w))


def test_a_charge_counter_in_milliampere_hours_is_told_by_its_size() -> None:
    assert parse_battery(json.dumps({**TERMUX, "charge_counter": 3194})).charge_c == pytest.approx(3.194 * 3600)


@pytest.mark.parametrize("text", ["", "error: closed", '{"percentage": 8', "{}", '{"API": "error"}', "{" * 50_000])
def test_what_is_no_battery_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="battery"):
        parse_battery(text)


WORDS = st.sampled_from([*DISCHARGING.splitlines(), *UEVENT.splitlines(), *ON_USB.splitlines()])


@settings(max_examples=80)
@given(st.lists(WORDS | st.text(max_size=30), max_size=20).map("\n".join))
def test_no_text_breaks_the_parser_or_makes_it_invent_a_number(text: str) -> None:
    with contextlib.suppress(ValueError):
        for value in astuple(parse_battery(text)):
            assert value is None or math.isfinite(value)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(TERMUX)), st.none() | st.integers() | st.floats() | st.text(max_size=9)))
def test_no_json_breaks_the_parser_or_makes_it_invent_a_number(stated: dict[str, object]) -> None:
    with contextlib.suppress(ValueError):
        for value in astuple(parse_battery(json.dumps(stated))):
            assert value is None or math.isfinite(value)


def test_a_phone_beside_the_machine_is_read_through_adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answer").write_text(DISCHARGING + UEVENT)
    a_program(tmp_path, monkeypatch, "adb", f'test "$2" = R58M && cat {tmp_path / "answer"}')
    sensor = android.discover(ROOT, PHONE)
    assert isinstance(sensor, OpenSensor), sensor
    read = dict(zip([channel.id for channel in sensor.channels], sensor.read(), strict=True))
    assert read["battery.adb-R58M.power"] == pytest.approx(1.982)
    assert read["battery.adb-R58M.discharging"] == 1.0
    assert sensor.blocking
    (tmp_path / "answer").write_text(ON_USB)  # somebody plugs it in: the power is not read, the voltage is
    read = dict(zip([channel.id for channel in sensor.channels], sensor.read(), strict=True))
    assert math.isnan(read["battery.adb-R58M.power"])
    assert read["battery.adb-R58M.voltage"] == pytest.approx(4.352)
    (tmp_path / "answer").write_text("")
    with pytest.raises(OSError, match="adb"):
        sensor.read()


def test_the_phone_itself_is_found_by_its_termux_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_program(tmp_path, monkeypatch, android.TERMUX, f"echo '{json.dumps(TERMUX)}'")
    sensor = android.discover(ROOT, Target(1))
    assert isinstance(sensor, OpenSensor), sensor
    assert {channel.scope for channel in sensor.channels} == {"battery:phone"}


def test_a_phone_that_nobody_has_named_is_read_every_ten_seconds_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_program(tmp_path, monkeypatch, android.TERMUX, f"echo '{json.dumps(TERMUX)}'")
    for meters, every_ns in (((), 10_000_000_000), ((Meter("termux", "", "termux"),), 500_000_000)):
        sensor = android.discover(ROOT, Target(1, meters=meters))
        assert isinstance(sensor, OpenSensor), sensor
        assert sensor.every_ns == every_ns


@pytest.mark.parametrize(
    ("said", "reason", "remedy"),
    [
        ("error: device unauthorized.", "denied", "unlock"),
        ("adb: device 'R58M' not found", "absent", "adb devices"),
        ("error: device offline", "failed", "reconnect"),
        ("error: no devices/emulators found", "absent", "USB debugging"),
    ],
)
def test_what_adb_complains_of_becomes_a_reason_and_a_remedy(
    said: str, reason: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_program(tmp_path, monkeypatch, "adb", f'echo "{said}" >&2; exit 1')
    answer = missing(android.discover(ROOT, PHONE))
    assert answer.reason == reason
    assert remedy in str(answer.remedy)


def test_without_adb_it_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = missing(android.discover(ROOT, PHONE))
    assert answer.reason == "absent"
    assert "adb" in str(answer.remedy)


def test_an_adb_that_hangs_costs_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(android, "TIMEOUT_S", 0.05)
    a_program(tmp_path, monkeypatch, "adb", "exec sleep 30")
    assert missing(android.discover(ROOT, PHONE)).reason == "failed"


def test_a_phone_that_is_charged_says_how_to_measure_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_program(tmp_path, monkeypatch, "adb", f"cat {LINES / 'android-dumpsys-usb.txt'}")
    answer = missing(android.discover(ROOT, PHONE))
    assert answer.reason == "unsupported"
    assert "adb tcpip" in str(answer.remedy)


@pytest.mark.parametrize("number", ["1_000_000", "\u0663\u0669\u0666\u0664", "0x10", "1e6", "nan", "4182 mV", ""])
def test_a_quoted_number_is_one_only_in_plain_digits(number: str) -> None:
    phone = parse_battery(json.dumps({"percentage": 50, "voltage": number, "current": number, "plugged": "UNPLUGGED"}))
    assert (phone.voltage_v, phone.current_a, phone.power_w) == (None, None, None)
