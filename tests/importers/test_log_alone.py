"""A log of tegrastats without a training shows in report and page what plain arithmetic on its text gives."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import pytest

from stepscope.analysis.run import Run
from stepscope.analysis.sensor_log import CPU, is_sensor_log, log_sentence, log_table
from stepscope.importers import Options, import_file
from stepscope.importers.sensor_logs import Clock
from stepscope.report import first_screen as answer
from stepscope.report import html
from stepscope.report.exports._excerpt import excerpt, raw_tables
from stepscope.runfolder import samples

LINE = (
    "RAM 1004/7852MB (lfb 7x2MB) CPU [{cpu}] EMC_FREQ 17%@40 GR3D_FREQ {gpu}%@114 APE 150 MTS fg 0% bg 0% PLL@34C "
    "PMIC@100C thermal@33.2C VDD_SYS_GPU {gpu_mw}/153 VDD_SYS_SOC 383/383 VDD_4V0_WIFI 0/0 VDD_IN {all_mw}/1876 "
    "VDD_SYS_CPU 229/229 VDD_SYS_DDR 134/134"
)


def text(count: int = 89) -> str:
    lines = []
    for number in range(count):
        busy = number % 8 < 4  # a period of eight readings
        cpu = ",".join(f"{(60 if busy else 0) if core < 2 else core}%@345" for core in range(6))
        gpu = 0 if busy else 90 + number % 3
        lines.append(LINE.format(cpu=cpu, gpu=gpu, gpu_mw=152 + 10 * gpu, all_mw=3000 + 20 * gpu + number))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("log")
    (folder / "tx2.log").write_text(text())
    clock = Clock(interval_ns=1_000_000_000, started=datetime(2024, 1, 1, tzinfo=timezone.utc))
    return Run(import_file(folder / "tx2.log", out=folder / "runs", options=Options(clock=clock)))


def test_every_number_is_that_of_the_text(run: Run) -> None:
    table = log_table(run)
    assert table is not None
    rows = {row[:2]: row for row in table.rows}
    for rail in ("VDD_IN", "VDD_SYS_GPU", "VDD_SYS_CPU", "VDD_SYS_DDR"):
        watts = [int(value) / 1000 for value in re.findall(rail + r" (\d+)/", text())]
        joules = sum((a + b) / 2 for a, b in pairwise(watts))
        count, mean, least, most, energy = rows["power", f"rail:{rail}"][3:8]
        assert (count, least, most) == (89, min(watts), max(watts))
        assert mean == pytest.approx(sum(watts) / 89, rel=1e-12)
        assert energy == pytest.approx(joules, rel=1e-12)
    gpu = [int(value) / 100 for value in re.findall(r"GR3D_FREQ (\d+)%", text())]
    assert rows["utilisation", "gpu:0"][4] == pytest.approx(sum(gpu) / 89)
    assert rows["utilisation", "gpu:0"][8] == gpu.count(0) / 89
    cores = [[int(value) / 100 for value in re.findall(r"(\d+)%@345", line)] for line in text().splitlines()]
    for core in range(6):
        values = [line[core] for line in cores]
        assert rows["utilisation", f"core:{core}"][4] == pytest.approx(sum(values) / 89)
        assert rows["utilisation", f"core:{core}"][8] == values.count(0) / 89
    assert rows["utilisation", CPU][4] == pytest.approx(sum(map(sum, cores)) / 6 / 89)
    assert rows["utilisation", "core:0"][9] == pytest.approx(8.0, rel=0.05)
    assert rows["utilisation", "core:4"][9] is None  # it never changes


def test_report_and_page_show_it_and_name_no_false_cause(run: Run) -> None:
    from rich.console import Console

    from stepscope.report.terminal_report import render

    console = Console(width=150, record=True)
    console.print(answer.render(run))
    short = console.export_text()
    console.print(render(run))
    shown, page = console.export_text(), html.render(run)
    for said in (short, shown, page):
        assert "optimizer.step" not in said
        assert "No training step" not in said
        assert "log of sensors" in said
    for said in (shown, page):
        assert "power VDD_IN" in said
        assert re.search(r"\b3\.9\d W", said)  # the mean, with its unit


def _meter_log(folder: Path, watts: Sequence[float | None], step_s: float = 0.1) -> Run:
    lines = [f"{1.7e9 + number * step_s:.3f},{'' if value is None else value}" for number, value in enumerate(watts)]
    (folder / "meter.csv").write_text("\n".join(["time_s,power_w", *lines]) + "\n")
    return Run(import_file(folder / "meter.csv", out=folder / "runs"))


def test_a_long_log_is_read_as_exactly_as_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "LEAST_BYTES", 1)
    monkeypatch.setattr(samples, "MOST_ROWS", 100)
    run = _meter_log(tmp_path, [0.0, 8.0] * 500)
    assert len(run.sensor(run.coarser_sensors[0])) < 500
    table = log_table(run)
    assert table is not None
    row = table.rows[0]
    assert row[3] == 1000
    assert row[9] == pytest.approx(0.2, rel=0.05)
    assert raw_tables(excerpt(run))["samples"]().height == 1000
    monkeypatch.setattr(samples, "MOST_EXACT", 500)
    table = log_table(Run(run.path))
    assert table is not None
    assert table.rows[0][-2:] == (None, None)


def test_the_energy_of_a_log_with_missing_readings_says_of_what_time_it_is(tmp_path: Path) -> None:
    whole = _meter_log(tmp_path, [6.5] * 41, 1.0)
    assert "260 J from the first reading to the last" in log_sentence(whole)
    holed = _meter_log(tmp_path, [None if number % 5 == 4 else 6.5 for number in range(41)], 1.0)
    assert "156 J in 24 s of the 40 s: in the rest readings are missing" in log_sentence(holed)


def test_lines_that_are_not_there_are_as_missing_as_empty_ones(tmp_path: Path) -> None:
    stamps = [*range(30), *range(90, 121)]
    lines = [f"{1_700_000_000 + second},5.0" for second in stamps]
    (tmp_path / "meter.csv").write_text("\n".join(["time_s,power_w", *lines]) + "\n")
    run = Run(import_file(tmp_path / "meter.csv", out=tmp_path / "runs"))
    assert "295 J in 59 s of the 2 min: in the rest readings are missing" in log_sentence(run)


def test_a_rail_of_which_no_reading_can_be_true_has_no_power_of_0(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(text(20).replace("VDD_IN ", "VDD_IN -"))
    clock = Clock(interval_ns=1_000_000_000, started=datetime(2024, 1, 1, tzinfo=timezone.utc))
    run = Run(import_file(tmp_path / "log.txt", out=tmp_path / "runs", options=Options(clock=clock)))
    assert " 0 W" not in log_sentence(run)


def test_an_imported_training_whose_files_are_damaged_is_no_sensor_log(tmp_path: Path) -> None:
    run = _meter_log(tmp_path, [6.5] * 41, 1.0)
    header = json.loads((run.path / "run.json").read_text())
    header["recorder"] |= {"steps_from": "ProfilerStep", "rows": 450}  # as an imported trace has
    (run.path / "run.json").write_text(json.dumps(header))
    assert not is_sensor_log(Run(run.path))


def test_a_log_whose_readings_are_gone_is_said_so(tmp_path: Path) -> None:
    run = _meter_log(tmp_path, [6.5] * 41, 1.0)
    for file in (run.path / "samples").iterdir():
        file.write_bytes(b"")
    assert "no reading can be read" in log_sentence(Run(run.path))


def test_a_log_in_utf_16_is_read_whole(tmp_path: Path) -> None:
    clock = Clock(interval_ns=1_000_000_000, started=datetime(2024, 1, 1, tzinfo=timezone.utc))
    for name, encoding in (("plain.log", "utf-8"), ("shell.log", "utf-16")):
        (tmp_path / name).write_bytes(text(20).encode(encoding))
        log_run = Run(import_file(tmp_path / name, out=tmp_path / "runs", options=Options(clock=clock)))
        table = log_table(log_run)
        assert table is not None
        assert {row[:2]: row for row in table.rows}["power", "rail:VDD_IN"][3] == 20


def test_energy_of_a_rail_with_a_counter_is_what_that_grew_by(tmp_path: Path) -> None:
    blocks = [
        f"*** Sampled system activity (Mon May  4 10:00:0{end} 2026 +0000) ({elapsed}.00ms elapsed) ***\n"
        f"CPU Power: {power} mW\n"
        for end, elapsed, power in ((1, 1000, 1500), (2, 1000, 2500), (5, 3000, 500))
    ]
    (tmp_path / "pm.txt").write_text("\n".join(blocks))
    table = log_table(Run(import_file(tmp_path / "pm.txt", out=tmp_path / "runs")))
    assert table is not None
    rows = {row[:2]: row for row in table.rows}
    assert rows["power", "apple:cpu"][7] == pytest.approx(2.5 + 1.5)  # after the first block, whose begin is not read
    assert rows["energy", "apple:cpu"][4:8] == (None, None, None, None)
