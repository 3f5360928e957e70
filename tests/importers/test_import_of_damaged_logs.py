"""Logs with a repeated hour, quoted cells, named columns or a damaged line: what is read, and what is said."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from tests.importers.test_import_of_sensor_logs import BEGIN, profile
from tests.store.command_line import exit_code

from stepscope.analysis.run import Run
from stepscope.importers import import_file
from stepscope.importers.sensor_logs import KINDS, Clock, SensorLog
from stepscope.record.log_times import UnknownUnit
from stepscope.record.meter_csv import read_log_text

LINE = "{} RAM 2541/7764MB (lfb 4x4MB) CPU [10%@1190] GR3D_FREQ 3%@1122 CPU@42C VDD_IN {}/5000mW"
FORMS = {
    "tegrastats": ("", "%m-%d-%Y %H:%M:%S", LINE),
    "nvidia-smi": ("timestamp, index, power.draw [W]\n", "%Y/%m/%d %H:%M:%S.250", "{}, 0, {} W"),
    "jetson-stats": ("time,uptime,CPU1,Power TOT\n", "%Y-%m-%d %H:%M:%S.100000", "{},1000,0,{}"),
    "meter-csv": ("time,power_w\n", "%Y-%m-%d %H:%M:%S", "{},{}"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(kind: str, text: str, zone: ZoneInfo | None = None) -> list[SensorLog]:
    Path("a.log").write_text(text)
    found = next(of for of in KINDS if of.name == kind)
    return found.read(read_log_text(Path("a.log")), "a.log", Clock(zone=zone))


def autumn(kind: str, zone: ZoneInfo) -> str:
    head, stamp, line = FORMS[kind]
    begin = datetime(2026, 10, 25, 0, 30, tzinfo=timezone.utc)
    times = [(begin + timedelta(seconds=20 * i)).astimezone(zone) for i in range(270)]
    return head + "".join(line.format(t.strftime(stamp), 5 + i % 9) + "\n" for i, t in enumerate(times))


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("by_machine", [False, True])
def test_the_hour_that_autumn_repeats_is_read_twice(
    kind: str, by_machine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    if by_machine:
        monkeypatch.setenv("TZ", "Europe/Berlin")
        time.tzset()
    try:
        (log,) = read(kind, autumn(kind, berlin), None if by_machine else berlin)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert set(np.diff(log.t0_ns).tolist()) == {20_000_000_000}
    assert (len(log.t0_ns), log.moved, log.skipped) == (270, 0, 0)


@pytest.mark.parametrize("kind", FORMS)
def test_another_step_back_and_unread_lines_are_warned_of(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    head, stamp, line = FORMS[kind]
    seconds = [*range(10), *range(3, 13)]
    times = [datetime(2026, 11, 20, 10, 0, second) for second in seconds]
    text = head + "".join(line.format(t.strftime(stamp), 5) + "\n" for t in times)
    Path("a.log").write_text(text + "damaged\n" + text.removeprefix(head).splitlines()[-1] + "\n")
    assert exit_code(["import", "a.log", "--utc-offset", "+00:00"]) == 0
    warnings = [said for said in capsys.readouterr().err.splitlines() if said.startswith("warning: ")]
    assert len(warnings) == 1
    assert "1 line could not be read; the clock went back 1 time," in warnings[0]


@pytest.mark.parametrize("row", ['{},"x, y",{}', '{}, "x, y", {}', '"{}","x, y","{}"'])
def test_a_quoted_cell_may_hold_the_separator(row: str) -> None:
    rows = "".join(row.format(f"2026-11-20T10:00:0{i}", f"{i}.5") + "\n" for i in range(5))
    (log,) = read("meter-csv", "time,note,power_w\n" + rows)
    assert list(log.columns[0]) == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_naming_a_column_implies_a_meter_csv_also_beside_a_trace() -> None:
    rows = "".join(f"{BEGIN.replace(tzinfo=timezone.utc).timestamp() + i / 10},{i}.5\n" for i in range(50))
    Path("m.csv").write_text("when,load\n" + rows)
    named = ["--time-column", "when", "--power-column", "load"]
    assert exit_code(["import", "m.csv", *named]) == 0
    profile(Path("p.json"))
    assert exit_code(["import", "p.json", "--with", "m.csv", *named]) == 0


def test_a_mark_of_the_encoding_costs_no_reading() -> None:
    text = "".join(LINE.format(f"11-20-2026 10:00:0{i}", 5) + "\n" for i in range(5))
    assert len(read("tegrastats", "\ufeff" + text)[0].t0_ns) == 5


def test_a_line_of_tegrastats_that_is_cut_is_not_read() -> None:
    lines = [LINE.format(f"11-20-2026 10:00:0{i}", 5) for i in range(9)]
    lines[4] = lines[4].partition("122 CPU@")[0]
    (log,) = read("tegrastats", "\n".join(lines) + "\n")
    assert (len(log.t0_ns), log.skipped) == (8, 1)
    clock = next(
        values for of, values in zip(log.channels, log.columns, strict=True) if of.scope == "gpu:0" and of.unit == "Hz"
    )
    assert set(clock) == {1122e6}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("year", [1, 1969, 2262, 2926, 9999])
def test_one_stamp_that_no_log_has_costs_its_line_alone(kind: str, year: int) -> None:
    head, stamp, line = FORMS[kind]
    times = [datetime(2026, 11, 20, 10, 0, second) for second in range(8)]
    text = "".join(line.format(t.strftime(stamp), 5 + t.second) + "\n" for t in times)
    form = stamp.replace("%Y", f"{year:04d}")
    text += line.format(times[-1].strftime(form), 7) + "\n"
    (log,) = read(kind, head + text, ZoneInfo("Europe/Berlin"))
    assert (len(log.t0_ns), log.skipped) == (8, 1)


def test_one_stamp_of_powermetrics_and_one_number_of_a_meter_that_are_no_times_cost_their_readings_alone() -> None:
    block = "*** Sampled system activity (Sat Nov 21 12:00:{:02d} {} +0100) (1000.00ms elapsed) ***\nCPU Power: 9 mW\n"
    years = [2026, 2026, 2026, 9026, 2026]
    (log,) = read("powermetrics", "".join(block.format(second, year) for second, year in enumerate(years)) + "\n")
    assert (len(log.t0_ns), log.skipped) == (4, 1)
    seconds = [*range(1_790_000_000, 1_790_000_008), 9_790_000_000]
    (log,) = read("meter-csv", "time,power_w\n" + "".join(f"{t},5.5\n" for t in seconds))
    assert (len(log.t0_ns), log.skipped) == (8, 1)


def test_one_damaged_cell_of_a_powersensor_costs_its_line_alone() -> None:
    rows = [f"S {s / 10} 100 {5 + s}.5 3.0\n" for s in range(8)]
    text = "marker time dt_micro power_total power0\n" + "".join([*rows, "S 0.9 100 5.x 3.0\n", "S 1e99 100 5.5 3.0\n"])
    Path("a.log").write_text(text)
    found = next(of for of in KINDS if of.name == "powersensor3")
    (log,) = found.read(text, "a.log", Clock(started=datetime(2026, 1, 31, 12)))
    assert (len(log.t0_ns), log.skipped) == (8, 2)


def test_a_start_in_a_year_that_no_log_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.log").write_text("time,power\n" + "".join(f"{s},5.5\n" for s in range(9)))
    assert exit_code(["import", "a.log", "--started", "2300-01-01"]) == 2
    assert "no log began in the year 2300" in capsys.readouterr().err


def test_volts_and_amperes_of_the_mains_are_no_watts_and_those_of_a_supply_are() -> None:
    def table(volts: str, head: str = "time,voltage (V),current (A)") -> str:
        return head + "\n" + "".join(f"2026-11-20T10:00:0{i},{volts},0.5\n" for i in range(5))

    assert list(read("meter-csv", table("19.0"))[0].columns[0]) == [9.5] * 5
    for text in (table("230.0"), table("230000", "time,voltage (mV),current (A)")):
        with pytest.raises(UnknownUnit, match="volt-amperes of the mains, not watts"):
            read("meter-csv", text)
    Path("a.log").write_text(table("230.0"))
    assert exit_code(["import", "a.log"]) == 2


def test_a_meter_whose_file_has_a_very_long_name_loses_no_channel() -> None:
    path = Path(f"{'x' * 230}.csv")
    path.write_text("time,power\n2026-11-21T11:49:45Z,5\n2026-11-21T11:49:46Z,6\n", encoding="utf-8")
    run = Run(import_file(path))
    assert run.samples("power")["value"].to_list() == [5.0, 6.0]
    assert run.damaged == []
