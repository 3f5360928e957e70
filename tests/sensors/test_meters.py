"""The user's own meters: how they are named, commands that print, and the dialects of a meter's log."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import until

from stepscope.errors import UsageError
from stepscope.record import log_times, meter_csv
from stepscope.record.meters import parse_meters
from stepscope.record.sensors import meter_command
from stepscope.record.sensors.contract import Meter, NoSensor, OpenSensor, Target

ROOT = Path("/")


def test_meters_are_named_by_kind_and_address() -> None:
    meters = parse_meters(["shelly=192.168.1.20", "tasmota=plug.local:80", "adb=R58M", "termux"], ["rig --watts"])
    assert [(meter.kind, meter.address, meter.name) for meter in meters] == [
        ("shelly", "192.168.1.20", "shelly-192.168.1.20"),
        ("tasmota", "plug.local:80", "tasmota-plug.local-80"),
        ("adb", "R58M", "adb-R58M"),
        ("termux", "", "termux"),
        ("command", "rig --watts", "rig"),
    ]


def test_two_commands_of_one_program_have_two_names() -> None:
    assert [meter.name for meter in parse_meters([], ["/opt/rig 1", "/opt/rig 2"])] == ["rig", "rig-2"]


@pytest.mark.parametrize(
    ("plugs", "commands"),
    [
        (["shely=192.168.1.20"], []),
        (["192.168.1.20"], []),
        (["shelly="], []),
        (["shelly=ftp://x"], []),
        (["shelly=user:secret@x"], []),
        (["adb="], []),
        (["adb=a b; reboot"], []),
        (["termux=x"], []),
        (["shelly=a", "shelly=a"], []),
        ([], [""]),
        ([], ["rig 'unclosed"]),
    ],
)
def test_what_names_no_meter_is_refused_with_what_to_do(plugs: list[str], commands: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_meters(plugs, commands)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("5.25", {"power": 5.25}),
        (" 5.25 W ", {"power": 5.25}),
        ("5250mW", {"power": 5.25}),
        ("1700000000.5 5.25", {"meter_clock": 1700000000.5, "power": 5.25}),
        ("1700000000.5,5.25", {"meter_clock": 1700000000.5, "power": 5.25}),
        ("power=5.25 voltage=12 current_ma=437 mood=fine", {"power": 5.25, "voltage": 12.0, "current": 0.437}),
        ("P: 5.25W, energy: 2Wh, t=3", {"power": 5.25, "energy": 7200.0, "meter_clock": 3.0}),
        ("power=5.1 current1=3 L1: 7", {"power": 5.1}),
        ("-0.5", {"power": -0.5}),
        ("0", {"power": 0.0}),
    ],
)
def test_a_line_of_a_meter_command_is_read_in_si_units(line: str, read: dict[str, float]) -> None:
    assert meter_command.parse_reading(line) == pytest.approx(read)


@pytest.mark.parametrize(
    "line", ["", "n/a", "power", "power=", "power=high", "mood=fine", "1 2 3", "5 parsecs", "1e99", "nan", "power=5V"]
)
def test_a_line_that_is_no_reading_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        meter_command.parse_reading(line)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("12,5", {"power": 12.5}),
        ("0,825 W", {"power": 0.825}),
        ("1,5", {"power": 1.5}),
        ("power=12,5", {"power": 12.5}),
        ("power=5250 mW volt=5", {"power": 5.25, "voltage": 5.0}),
        ("power=12,5,voltage=5,1", {"power": 12.5, "voltage": 5.1}),
        ("Power: 5250,5 mW | Voltage: 5 V", {"power": 5.2505, "voltage": 5.0}),
        ("1700000000,5", {"meter_clock": 1700000000.0, "power": 5.0}),
        ("1700000000,5,25", {"meter_clock": 1700000000.0, "power": 5.25}),
        ("1700000000,5; 12,5 W", {"meter_clock": 1700000000.5, "power": 12.5}),
        ("1700000000.5, 5.25", {"meter_clock": 1700000000.5, "power": 5.25}),
    ],
)
def test_a_decimal_comma_and_a_unit_behind_a_space_belong_to_their_number(line: str, read: dict[str, float]) -> None:
    assert meter_command.parse_reading(line) == pytest.approx(read)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1,234 mW", "can be 1.234 or 1234"),
        ("Power: 1,234 mW", "can be 1.234 or 1234"),
        ("1.234,5", "not a number"),
        ("1,234,567", "not a number"),
        ("power=1 234 mW", "not a number"),
        ("power=5 of 10", "not a number"),
        ("3 5.1", "no unix time"),
        ("12, 5", "no unix time"),
    ],
)
def test_a_line_that_can_be_read_in_two_ways_is_no_reading_and_says_why(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        meter_command.parse_reading(line)


@settings(max_examples=100)
@given(st.text(max_size=50) | st.text("0123456789.eE+-= wpowermvVAk,;:t", max_size=30))
def test_no_line_breaks_the_parser_or_makes_it_invent_a_number(line: str) -> None:
    with contextlib.suppress(ValueError):
        read = meter_command.parse_reading(line)
        assert set(read) - {"meter_clock"}
        assert all(math.isfinite(value) for value in read.values())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("rig --port 'a b'", ["rig", "--port", "a b"]),
        ("rig | awk '{print $2}'", ["/bin/sh", "-c", "rig | awk '{print $2}'"]),
        ("awk '{print $2}' log", ["awk", "{print $2}", "log"]),
        ('echo "$HOME"', ["/bin/sh", "-c", 'echo "$HOME"']),
        ("cat *.log", ["/bin/sh", "-c", "cat *.log"]),
    ],
)
def test_a_shell_is_used_only_where_the_signs_need_one(command: str, words: list[str]) -> None:
    assert meter_command.words(command) == words


def commands(*texts: str, clock: Callable[[], int] = time.monotonic_ns) -> Target:
    return Target(1, clock, meters=tuple(Meter("command", text, f"m{n}") for n, text in enumerate(texts)))


def start(*texts: str, clock: Callable[[], int] = time.monotonic_ns) -> OpenSensor:
    sensor = meter_command.discover(ROOT, commands(*texts, clock=clock))
    assert isinstance(sensor, OpenSensor), sensor
    return sensor


def read_until(sensor: OpenSensor, wanted: Callable[[list[float]], bool]) -> list[float]:
    rows: list[list[float]] = []

    def read() -> bool:
        rows.append(list(sensor.read()))
        return wanted(rows[-1])

    until(read)
    return rows[-1]


def test_a_command_that_streams_is_read_as_it_prints() -> None:
    sensor = start("echo 5; sleep 0.05; echo 7; exec sleep 30", clock=lambda: 0)
    assert [channel.id for channel in sensor.channels] == ["meter.m0.power"]
    assert sensor.blocking
    read_until(sensor, lambda values: values == [7.0])
    sensor.close()


def test_lines_that_come_together_are_averaged_and_the_meters_own_clock_is_a_channel() -> None:
    sensor = start("printf '1700000010 2\\n1700000020 4\\n'; exec sleep 30", clock=lambda: 0)
    assert [channel.quantity for channel in sensor.channels] == ["power", "meter_clock"]
    values = list(sensor.read())
    assert values in ([3.0, 1700000015.0], [4.0, 1700000020.0])
    sensor.close()


def test_a_command_that_prints_once_is_run_again_after_a_second(tmp_path: Path) -> None:
    now = [time.monotonic_ns()]
    counter = tmp_path / "n"
    sensor = start(f"echo x >> {counter}; wc -l < {counter}", clock=lambda: now[0])
    assert list(sensor.read()) == [1.0]
    now[0] += 1_100_000_000
    read_until(sensor, lambda values: values == [2.0])
    sensor.close()
    assert counter.read_text() == "x\nx\n"


def test_a_command_that_goes_silent_has_no_reading_after_a_while() -> None:
    now = [time.monotonic_ns()]
    sensor = start("echo 5; exec sleep 30", clock=lambda: now[0])
    assert list(sensor.read()) == [5.0]
    now[0] += 4_000_000_000
    assert math.isnan(sensor.read()[0])
    sensor.close()


def test_a_line_that_cannot_be_read_is_a_gap_and_not_the_value_before_it() -> None:
    sensor = start("echo 5; sleep 0.05; echo overload; exec sleep 30")
    read_until(sensor, lambda values: math.isnan(values[0]))
    sensor.close()


def test_a_command_that_ends_with_an_error_is_lost_and_its_words_are_kept() -> None:
    sensor = start("echo 5; sleep 0.05; echo 'usb unplugged' >&2; exit 4")
    with pytest.raises(OSError, match=r"exit code 4.*usb unplugged"):
        read_until(sensor, lambda values: values == [0.0])
    sensor.close()


def test_a_header_before_the_first_reading_does_not_disturb() -> None:
    sensor = start("echo 'time power'; sleep 0.03; echo 6; exec sleep 30", clock=lambda: 0)
    assert list(sensor.read()) == [6.0]
    sensor.close()


@pytest.mark.parametrize(
    ("command", "reason", "said"),
    [
        ("no-such-meter-program", "failed", "no such command"),
        ("/etc/passwd", "denied", "permission"),
        ("sh -c 'echo broken >&2; exit 7'", "failed", "broken"),
        ("echo hello", "failed", "not a number"),
        ("true", "failed", "printed nothing"),
    ],
)
def test_a_command_that_gives_no_reading_is_missing_with_a_reason(command: str, reason: str, said: str) -> None:
    answer = meter_command.discover(ROOT, commands(command))
    assert isinstance(answer, NoSensor)
    assert (answer.reason, said in answer.detail) == (reason, True), answer


def test_of_two_commands_the_one_that_fails_leaves_a_gap() -> None:
    sensor = start("echo 5; exec sleep 30", "echo what", clock=lambda: 0)
    values = sensor.read()
    sensor.close()
    assert values[0] == 5.0
    assert math.isnan(values[1])


S = 1.7e9  # 2023-11-14 22:13:20 UTC
LOGS: dict[str, tuple[str, list[float], list[float], str]] = {
    "plain": ("0,5.0\n0.5,6.0\n1.0,7.0\n", [0, 0.5, 1], [5, 6, 7], "own"),
    "header and units": ("Time (ms);Power (mW)\n0;5000\n500;6000\n", [0, 0.5], [5, 6], "own"),
    "decimal comma": ("Zeit;Leistung [W]\n0,5;5,25\n1,0;6,5\n", [0.5, 1], [5.25, 6.5], "own"),
    "tab and unix": ("timestamp\tW\n1700000000\t5\n1700000001\t6\n", [1.7e9, 1.7e9 + 1], [5, 6], "unix"),
    "unix ms": ("1700000000000,5\n1700000000500,6\n", [1.7e9, 1.7e9 + 0.5], [5, 6], "unix"),
    "iso, zone": ("time,power\n2023-11-14T22:13:20Z,5\n2023-11-14T23:13:21.5+01:00,6\n", [S, S + 1.5], [5, 6], "unix"),
    "iso": ("time,power\n2023-11-14 22:13:20,5\n2023-11-14 22:13:21.25,6\n", [S, S + 1.25], [5, 6], "own"),
    "german date": ("Datum;Zeit;P\n14.11.2023;22:13:20;5,5\n14.11.2023;22:13:21;6\n", [S, S + 1], [5.5, 6], "own"),
    "midnight": ("time,power\n23:59:59,5\n00:00:01,6\n", [86399, 86401], [5, 6], "h:m:s"),
    "volts and amperes": ("t,voltage_v,current_ma\n0,5,1000\n1,5,1200\n", [0, 1], [5, 6], "own"),
    "preamble": ("# rig 7\nDevice: rig\n\ntime,power\n0,5\n1,6\n", [0, 1], [5, 6], "own"),
    "quotes and others": ('"Time (s)","mood","Power"\n"0","fine","5"\n"1","sad","6"\n', [0, 1], [5, 6], "own"),
    "units in words": ("Time (milliseconds);Power (milliwatts)\n0;5000\n500;6000\n", [0, 0.5], [5, 6], "own"),
    "a micro sign": ("Elapsed (minutes);Voltage [mV];Current [µA]\n0;5e3;1e6\n1;5e3;12e5\n", [0, 60], [5, 6], "own"),
    "a Greek mu": ("time h;power (\u03bcW)\n0;5000000\n1;6000000\n", [0, 3600], [5, 6], "own"),
    "no unit of numbers": ("Time (UTC),power_watts\n2023-11-14T22:13:20Z,5\n2023-11-14T22:13:21Z,6\n",
                           [S, S + 1], [5, 6], "unix"),
    "least and mean": ("t,power_min,power_avg\n0,1,5\n1,2,6\n", [0, 1], [5, 6], "own"),
    "thousands": ("time;power\n0;1,005.5\n1;1,006.0\n", [0, 1], [1005.5, 1006], "own"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_read_in_the_dialect_of_its_meter(name: str) -> None:
    text, t_s, power_w, clock = LOGS[name]
    log = meter_csv.parse_meter_csv(text)
    assert list(log.t_s) == pytest.approx(t_s)
    assert list(log.power_w) == pytest.approx(power_w)
    assert log.clock == clock


def test_other_columns_of_power_are_named_and_not_read() -> None:
    log = meter_csv.parse_meter_csv("time,power,p2 (W),volt (V)\n0,5,8,12\n1,6,9,12\n")
    assert (log.power_column, log.other_columns) == ("power", ("p2 (W)",))
    assert meter_csv.parse_meter_csv("time,power,p2 (W)\n0,5,8\n1,6,9\n", None, "p2 (W)").other_columns == ()


def test_readings_under_one_stamp_are_spread_until_the_next_stamp() -> None:
    rows = [f"10:00:0{second},{watts}" for second in (1, 2, 3, 9) for watts in range(4)]
    log = meter_csv.parse_meter_csv("\n".join(["time,power", *rows]))
    assert log.t_s == tuple(36000 + second + part / 4 for second in (1, 2, 3, 9) for part in range(4))


def test_a_reading_that_is_no_number_is_empty_and_a_row_back_in_time_is_counted() -> None:
    log = meter_csv.parse_meter_csv("time,power\n0,5\n1,overload\n0.5,9\n2,6\nx,7\n")
    assert list(log.t_s) == [0, 1, 2]
    assert math.isnan(log.power_w[1])
    assert log.skipped == 2


@pytest.mark.parametrize(
    ("stamps", "skipped"),
    [
        ([0, 1, 2, 9999, 3, 4, 5], [9999]),
        ([0, 1, 2, 9998, 9999, 3, 4, 5], [9998, 9999]),
        ([900, 0, 1, 2, 3], [900]),
        ([0, 1, 2, 3, 0, 4, 5], [0]),
        ([5, 6, 7, 8, 9, 0, 1, 2], [0, 1, 2]),  # it started anew
        ([0, 0, 1, 1, 2, 2], []),
    ],
)
def test_a_stamp_that_most_others_contradict_costs_its_own_row_and_none_behind_it(
    stamps: list[int], skipped: list[int]
) -> None:
    log = meter_csv.parse_meter_csv("\n".join(["time,power", *(f"{t},{place}" for place, t in enumerate(stamps))]))
    assert log.skipped == len(skipped)
    assert sorted([*(stamps[int(watts)] for watts in log.power_w), *skipped]) == sorted(stamps)


@pytest.mark.parametrize("date", ["2026-10-25 ", ""])
def test_the_hour_that_a_clock_repeats_in_autumn_is_kept_and_a_stamp_that_is_an_hour_wrong_is_not_taken_for_it(
    date: str,
) -> None:
    def rows(seconds: list[int]) -> list[str]:
        return [f"{date}{t // 3600:02d}:{t // 60 % 60:02d}:{t % 60:02d},{place}" for place, t in enumerate(seconds)]

    three = 3 * 3600
    log = meter_csv.parse_meter_csv("\n".join(["time,power", *rows([*range(7000, three), *range(7200, 12000)])]))
    assert (log.skipped, len(log.t_s)) == (0, three - 7000 + 4800)
    assert {later - earlier for earlier, later in zip(log.t_s, log.t_s[1:], strict=False)} == {1.0}
    for wrong_s, skipped in ((3600, 1), (-3600, 0)):
        wrong = [*range(7000, 7100), 7100 + wrong_s, *range(7101, 7200)]
        log = meter_csv.parse_meter_csv("\n".join(["time,power", *rows(wrong)]))
        assert (log.skipped, log.t_s[-1] - log.t_s[0]) == (skipped, 199.0)


@pytest.mark.parametrize(
    ("head", "column"),
    [("time,power (MW)", None), ("time,P [MW]", None), ("time,power_MW", None), ("time,out (MW)", "out (MW)"),
     ("time,power (megawatts)", None)],
)  # fmt: skip
def test_megawatts_are_refused_since_they_may_be_meant_as_milliwatts(head: str, column: str | None) -> None:
    with pytest.raises(log_times.UnknownUnit, match="the unit 'megawatts'"):
        meter_csv.parse_meter_csv(f"{head}\n0,5\n1,6\n", None, column)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "1\n2\n3\n",
        "1,2,3\n4,5,6\n",
        "time,mood\n0,1\n1,2\n",
        "power,mood\n0,1\n1,2\n",
        "time,power\n0,5\n",
    ],
)
def test_a_log_that_holds_no_time_and_power_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]{4}"):
        meter_csv.parse_meter_csv(text)


@pytest.mark.parametrize("head", ["time,power (VA)", "Time (days),power", "t,voltage,current (%)"])
def test_a_unit_that_is_not_known_is_refused_and_not_taken_for_one_of_si(head: str) -> None:
    with pytest.raises(ValueError, match=r"the unit '(va|days|%)' of the column '[a-z]+' is not known; known are "):
        meter_csv.parse_meter_csv("\n".join([head, *(",".join([t, "5", "6"][: head.count(",") + 1]) for t in "012")]))


@pytest.mark.parametrize(
    ("head", "factor"),
    [
        ("time,Power (avg)", 1),
        ("time,Active Power (L1)", 1),
        ("time,P [W RMS]", 1),
        ("time,power (mW DC)", 1e-3),
        ("Time (elapsed),power", 1),
        ("Time (sec.),power", 1),
        ("Seconds (since start),Power [total]", 1),
    ],
)
def test_what_else_a_header_says_in_brackets_is_no_unit(head: str, factor: float) -> None:
    log = meter_csv.parse_meter_csv("\n".join([head, "0,5", "1,6", "2,7"]))
    assert list(log.t_s) == [0, 1, 2]
    assert log.power_w == pytest.approx((5 * factor, 6 * factor, 7 * factor))


def test_naming_one_column_leaves_the_other_to_be_found() -> None:
    assert meter_csv.parse_meter_csv("time,load\n0,5\n1,6\n", None, "load").power_w == (5, 6)
    assert meter_csv.parse_meter_csv("clock,power\n0,5\n1,6\n", "clock").power_w == (5, 6)


def test_a_decimal_comma_that_comes_late_in_a_log_is_one() -> None:
    rows = [f"{n};{'0' if n < 210 else '5,25'}" for n in range(300)]
    assert meter_csv.parse_meter_csv("\n".join(["time;power", *rows])).power_w[205:215] == (0.0,) * 5 + (5.25,) * 5


def test_each_column_has_a_decimal_style_of_its_own() -> None:
    log = meter_csv.parse_meter_csv("time;power\n1700000000.5;999,5\n1700000001.5;1.005,25\n1700000002.5;1.006\n")
    assert log.t_s == (S + 0.5, S + 1.5, S + 2.5)
    assert log.power_w == (999.5, 1005.25, 1006.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("time;power\n0;5,25\n1;5.5\n", "'5.5' and '5,25'"),
        ("time;power\n0;999\n1;1,005\n", "'1,005' can have"),
    ],
)
def test_a_log_whose_decimal_style_cannot_be_told_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        meter_csv.parse_meter_csv(text)


ROWS = st.lists(
    st.text("0123456789.,;:-TZ eE\t", max_size=24) | st.sampled_from(["time,power", "1,2", "0;5,5"]), max_size=12
)


@settings(max_examples=120)
@given(ROWS.map("\n".join) | st.text(max_size=80))
def test_no_log_breaks_the_parser_or_makes_it_invent_a_reading(text: str) -> None:
    with contextlib.suppress(ValueError):
        log = meter_csv.parse_meter_csv(text)
        assert len(log.t_s) == len(log.power_w) <= len(text.splitlines())
        assert all(math.isfinite(t_s) for t_s in log.t_s)
        assert list(log.t_s) == sorted(log.t_s)
        assert all(math.isnan(watts) or abs(watts) <= 1e6 for watts in log.power_w)


@pytest.mark.parametrize("text", ["\u0661\u0662", "1_000", "0x10", "\uff15.\uff10 W", "power=\u0661\u0662"])
def test_digits_of_another_script_and_of_python_are_no_reading(text: str) -> None:
    with pytest.raises(ValueError, match="not a "):
        meter_command.parse_reading(text)
    log = meter_csv.parse_meter_csv(f"time,power\n0,5\n1,{text}\n2,6\n")
    assert log.power_w[0] == 5.0
    assert math.isnan(log.power_w[1])
