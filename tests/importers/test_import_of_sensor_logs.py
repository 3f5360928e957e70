"""Logs of sensor tools become channels named as the sensors name theirs, alone or beside a profiler file."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.importers.profiler_json import op, step, write

from stepscope.analysis.run import Run
from stepscope.errors import UsageError
from stepscope.importers import Options, import_file, log_formats
from stepscope.importers.sensor_logs import KINDS, Clock, spread_within_second

UTC = Clock(zone=timezone.utc)
BEGIN = datetime(2026, 11, 21, 11, 49, 45)
TX2 = (
    "RAM 3276/7859MB (lfb 5x4MB) CPU [44%@1421,off,67%@2034] EMC_FREQ 1%@1866 GR3D_FREQ 5%@114 GPU@39.5C Tdiode@-256C "
    "VDD_SYS_GPU 182/182 VDD_SYS_SOC 730/730 VDD_4V0_WIFI 0/0 "
    "VDD_IN 5297/5297 VDD_SYS_CPU 1917/1917 VDD_SYS_DDR 1241/1241"
)
NVIDIA = """timestamp, index, power.draw [W], utilization.gpu [%], memory.used [MiB], temperature.gpu
2026/11/21 11:49:45.100, 0, 31.50 W, 97 %, 2048 MiB, 61
2026/11/21 11:49:45.100, 1, [N/A], 3 %, 10 MiB, 40
2026/11/21 11:49:46.100, 0, 32.50 W, [Not Supported], 2049 MiB, 62
broken line
2026/11/21 11:49:46.100, 1, [N/A], 4 %, 11 MiB, 41
"""
JTOP = """time,uptime,CPU1,CPU2,RAM,EMC,GPU,Temp CPU,Temp cv0,Power VDD_IN,Power TOT,jetson_clocks,nvp model
2026-11-21 11:49:45.250000,1:02:03,12,OFF,0.41,3,55.5,44.5,-256,5299,5299,OFF,15W
2026-11-21 11:49:45.750000,1:02:04,13,OFF,0.42,3,56.5,45.0,-256,5399,5399,OFF,15W
"""
POWERMETRICS = """Machine model: Mac14,2
*** Sampled system activity (Sat Nov 21 12:49:45 2026 +0100) (1000.00ms elapsed) ***
CPU Power: 1000 mW
GPU Power: 200 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 1200 mW
*** Sampled system activity (Sat Nov 21 12:49:46 2026 +0100) (1000.00ms elapsed) ***
CPU Power: 3000 mW
GPU Power: 200 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 3200 mW
"""


def tegrastats_log(path: Path, seconds: int = 4, a_second: int = 2, stamped: bool = True) -> Path:
    """A TX2's log that begins with the second `BEGIN`."""
    times = [BEGIN + timedelta(seconds=second) for second in range(seconds) for _ in range(a_second)]
    path.write_text("".join(f"{t:%m-%d-%Y %H:%M:%S} {TX2}\n" if stamped else f"{TX2}\n" for t in times))
    return path


def run_of(path: Path, *beside: Path, clock: Clock = UTC, **options: Any) -> Run:
    return Run(import_file(path, beside, out=path.parent / "runs", options=Options(clock=clock, **options)))


def text_log(tmp_path: Path, text: str, name: str = "log.txt") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def profile(path: Path) -> Path:
    """Steps over the first three seconds of the logs."""
    events = [
        each for i in range(12) for each in (step(i, i * 250_000, 240_000), op("aten::mm", i * 250_000 + 1000, 200_000))
    ]
    return write(path, events)


def test_a_tegrastats_log_gives_rails_cores_gpu_memory_and_zones(tmp_path: Path) -> None:
    run = run_of(tegrastats_log(tmp_path / "tegra.log"))
    assert run.board.name == "jetson_tx2"
    [power] = run.samples("power").filter(pl.col("scope") == "rail:VDD_IN")["value"].unique().to_list()
    assert power == pytest.approx(5.297)
    cores = run.samples("utilisation").filter(pl.col("scope").str.starts_with("core"))
    assert dict(cores.select("scope", "value").unique().rows()) == {"core:0": 0.44, "core:2": 0.67}
    assert "zone:Tdiode" not in run.samples("temperature")["scope"].to_list()  # powered down in every line


def test_a_log_beside_a_profiler_file_gives_the_joined_table(tmp_path: Path) -> None:
    run = run_of(profile(tmp_path / "p.json"), tegrastats_log(tmp_path / "tegra.log"))
    energy = dict(run.energy_totals().select("component", "joules").rows())
    steady_s = (run.steps["t1_ns"][-1] - run.steps["t0_ns"][run.warmup_steps]) / 1e9
    assert energy["total"] == pytest.approx(5.297 * steady_s, rel=0.02)
    assert run.meta["imported"]["sensors"] == ["tegrastats"]
    assert any("whole seconds" in event["message"] for event in run.events)


def test_a_log_of_another_time_is_refused_and_a_shift_mends_it(tmp_path: Path) -> None:
    file, log = profile(tmp_path / "p.json"), tegrastats_log(tmp_path / "tegra.log")
    elsewhere = timezone(timedelta(hours=5))
    with pytest.raises(UsageError, match="does not overlap the trace") as refused:
        run_of(file, log, clock=Clock(zone=elsewhere))
    assert "--utc-offset" in str(refused.value.hint)
    assert not (tmp_path / "runs").exists()
    shifted = run_of(file, log, clock=Clock(zone=elsewhere, shift_ns=5 * 3600 * 10**9))
    assert len(shifted.energy_totals()) > 0


def test_a_file_whose_times_have_no_date_takes_no_log(tmp_path: Path) -> None:
    import json

    path = text_log(tmp_path, json.dumps([{"ph": "X", "name": "aten::mm", "ts": 5, "dur": 1}]), "p.json")
    with pytest.raises(UsageError, match="do not count from 1970"):
        run_of(path, tegrastats_log(tmp_path / "tegra.log"))


def test_a_log_without_stamps_needs_its_start_and_interval(tmp_path: Path) -> None:
    log = tegrastats_log(tmp_path / "tegra.log", stamped=False)
    with pytest.raises(UsageError, match="no time stamps") as refused:
        run_of(log)
    assert "--started" in str(refused.value.hint)
    run = run_of(log, clock=Clock(timezone.utc, interval_ns=500_000_000, started=BEGIN))
    times = run.sensor("tegrastats").select("t0_ns", "t1_ns")
    assert times.row(1) == (500_000_000, 1_000_000_000)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=8))
@settings(deadline=None)
def test_readings_of_a_second_share_it_in_order(counts: list[int]) -> None:
    stamps = [second * 10**9 for second, count in enumerate(counts) for _ in range(count)]
    t0, t1 = spread_within_second(stamps)
    assert (t0[1:] >= t1[:-1]).all()
    assert [t // 10**9 for t in t0.tolist()] == [stamp // 10**9 for stamp in stamps]


def test_the_first_and_the_last_second_of_a_log_are_as_long_as_their_readings() -> None:
    second = 1_000_000_000
    stamps = [0] * 2 + [second] * 10 + [2 * second] * 10 + [3 * second] * 4
    t0, t1 = spread_within_second(stamps)
    assert (t0[0], t1[1]) == (second * 8 // 10, second)
    assert (t0[-4], t1[-1]) == (3 * second, 3 * second + second * 4 // 10)
    assert (t1 - t0 == second // 10).all()


def test_an_nvidia_smi_log_gives_a_sensor_a_gpu_and_null_where_nothing_was_read(tmp_path: Path) -> None:
    run = run_of(text_log(tmp_path, NVIDIA))
    power = run.samples("power")
    assert power.select("scope", "value").rows() == [("gpu:0", 31.5), ("gpu:0", 32.5)]
    use = run.samples("utilisation").sort("scope", "t0_ns").select("scope", "value").rows()
    assert use == [("gpu:0", 0.97), ("gpu:0", None), ("gpu:1", 0.03), ("gpu:1", 0.04)]
    assert run.samples("memory_used")["value"].max() == 2049 * 1024**2
    assert any("1 lines could not be read" in event["message"] for event in run.events)


def test_units_of_nvidia_smi_come_from_the_header_where_values_have_none() -> None:
    log = log_formats.parse_nvidia_smi(
        ["timestamp, power.draw [W], clocks.sm [MHz]", "2026/11/21 11:49:45.100, 31.5, 1200"]
    )
    assert log.readings[0].values == {"power": 31.5, "frequency": 1.2e9}


def test_a_jetson_stats_csv_is_read_and_what_is_off_is_absent(tmp_path: Path) -> None:
    run = run_of(text_log(tmp_path, JTOP))
    assert run.samples("power").filter(pl.col("scope") == "rail:VDD_IN")["value"].to_list() == [5.299, 5.399]
    assert {c["scope"] for c in run.channels if c["quantity"] == "utilisation"} == {"core:0", "emc", "gpu:0"}
    assert {c["scope"] for c in run.channels if c["quantity"] == "temperature"} == {"zone:CPU"}
    assert run.sensor("jetson_stats")["t0_ns"].to_list() == [250_000_000, 750_000_000]


def test_memory_of_old_jetson_stats_is_kilobytes() -> None:
    log = log_formats.parse_jetson_stats(["time,RAM,power cur", "2026-11-21 11:49:45,2000,4500"])
    assert [(c.scope, c.unit) for c in log.columns] == [("system", "B"), ("rail:TOT", "W")]
    assert log.rows == ((2000 * 1024, 4.5),)


def test_a_powermetrics_log_gives_means_and_their_energy(tmp_path: Path) -> None:
    run = run_of(text_log(tmp_path, POWERMETRICS))
    cpu = run.samples("power").filter(pl.col("scope") == "apple:cpu")["value"].to_list()
    energy = run.samples("energy").filter(pl.col("scope") == "apple:cpu")["value"].to_list()
    assert (cpu, energy) == ([1.0, 3.0], [1.0, 4.0])
    times = run.sensor("powermetrics")["t1_ns"].to_list()
    assert times[1] - times[0] == 1_000_000_000


@pytest.mark.parametrize(
    "text",
    ["timestamp, power.draw [W]\n", "time,uptime,CPU1\n", "*** Sampled system activity (x) (1.0ms elapsed) ***\n"],
)
def test_a_log_without_a_reading_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as refused:
        run_of(text_log(tmp_path, text))
    assert refused.value.hint
    assert not (tmp_path / "runs").exists()


def test_two_logs_of_the_same_tool_are_refused(tmp_path: Path) -> None:
    log = tegrastats_log(tmp_path / "tegra.log")
    with pytest.raises(UsageError, match="two logs of tegrastats"):
        run_of(profile(tmp_path / "p.json"), log, log)


def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        run_of(profile(tmp_path / "p.json"), tmp_path / "none.log")


cells = st.text(alphabet="0123456789.,-/: \nWMiB%[N]AOFabctimestamppower.draw", max_size=200)


@given(text=cells)
@settings(max_examples=80, deadline=None)
def test_whatever_follows_a_header_a_log_is_read_or_refused(text: str) -> None:
    heads = {"nvidia-smi": "timestamp, power.draw [W]\n", "jetson-stats": "time,CPU1,Power TOT\n", "powermetrics": ""}
    for kind in KINDS:
        try:
            logs = kind.read(heads.get(kind.name, "") + text, "log", UTC)
        except (UsageError, ValueError):
            continue
        assert all(len(column) == len(log.t0_ns) for log in logs for column in log.columns)


def test_gpus_of_one_model_are_told_apart_by_their_place_in_each_query(tmp_path: Path) -> None:
    head = "timestamp, name, power.draw [W]\n"
    line = "2026/11/21 11:49:{}.{:03d}, NVIDIA A100, {} W\n"
    lines = [line.format(40 + n, gpu * (3 + n % 4), 100 * (gpu + 1) + n) for n in range(12) for gpu in range(2)]
    cut_off = lines[-1][:20]
    run = run_of(text_log(tmp_path, "".join([head, *lines[:-1], cut_off])))
    found = run.samples("power").group_by("scope", maintain_order=True).agg("value").rows()
    assert sorted(found) == [("gpu:0", [100.0 + n for n in range(12)]), ("gpu:1", [200.0 + n for n in range(11)])]
    with pytest.raises(UsageError, match="several GPUs") as refused:
        run_of(text_log(tmp_path, "".join([head, *lines[:4], *lines[5:]])))
    assert "add index" in str(refused.value.hint)


@pytest.mark.parametrize("apart_ms", [[1000], [100, 140, 90, 600], [10, 2, 3, 40], [0, 1000, 1000, 1000]])
def test_lines_of_one_gpu_remain_one_however_they_follow(tmp_path: Path, apart_ms: list[int]) -> None:
    stamps = [BEGIN + timedelta(milliseconds=1 + sum((apart_ms * 20)[:n])) for n in range(20)]
    lines = [f"{t:%Y/%m/%d %H:%M:%S}.{t.microsecond // 1000:03d}, 30 W\n" for t in stamps]
    run = run_of(text_log(tmp_path, "".join(["timestamp, power.draw [W]\n", *lines])))
    assert run.samples("power")["scope"].to_list() == ["gpu:0"] * 20


def test_a_line_of_nvidia_smi_with_an_open_quote_spoils_no_other(tmp_path: Path) -> None:
    head, *lines = NVIDIA.splitlines(keepends=True)
    text = "".join([head, '2026/11/21 11:49:44.100, 0, "31.50 W\n', "x" * 140_000 + "\n", *lines * 20])
    log = log_formats.parse_nvidia_smi(text.splitlines())
    assert (len(log.readings), log.skipped) == (80, 22)
    board = log_formats.parse_jetson_stats([*JTOP.splitlines(), "x" * 140_000])
    assert (len(board.stamps), board.skipped) == (2, 1)


def test_powermetrics_that_paused_is_placed_anew_behind_the_pause(tmp_path: Path) -> None:
    block = "*** Sampled system activity (Sat Nov 21 12:{}:{:02d} 2026 +0100) (1000.00ms elapsed) ***\n{}"
    power = "CPU Power: 1000 mW\n"
    first = [block.format(49, second, power if second != 47 else "") for second in range(45, 50)]
    second = [block.format(59, second, power) for second in range(10, 13)]
    run = run_of(text_log(tmp_path, "".join([*first, *second])))
    rows = run.sensor("powermetrics")
    ends = [t / 1e9 for t in rows.drop_nulls("apple.cpu.power")["t1_ns"].to_list()]
    assert ends == pytest.approx([0.5, 1.5, 3.5, 4.5, 565.5, 566.5, 567.5])
    (pause,) = rows.filter(rows["apple.cpu.power"].is_null())["apple.cpu.energy"]
    assert pause is None, "nothing is known of the energy of the pause, so that it is a gap of the counter"
    assert any("anew after each of 1 pauses" in event["message"] for event in run.events)


def test_a_line_that_is_still_being_written_is_no_reading(tmp_path: Path) -> None:
    log = tegrastats_log(tmp_path / "tegra.log")
    log.write_text(f"{log.read_text()}{BEGIN:%m-%d-%Y %H:%M:}59 {TX2.replace('VDD_IN 5297/5297', 'VDD_IN 52')[:150]}")
    assert len(run_of(log).sensor("tegrastats")) == 8


def test_a_line_without_a_stamp_is_passed_over_where_others_have_one(tmp_path: Path) -> None:
    log = tegrastats_log(tmp_path / "tegra.log")
    log.write_text(f"{TX2}\n" + log.read_text().replace("11-21", "\x00\x0011-21", 1))
    run = run_of(log)
    assert len(run.sensor("tegrastats")) == 8
    assert any("1 lines have no stamp" in event["message"] for event in run.events)


def test_a_first_reading_of_no_power_at_a_whole_second_is_a_reading(tmp_path: Path) -> None:
    run = run_of(text_log(tmp_path, "time,power\n2026-11-21T11:49:45Z,0\n2026-11-21T11:49:46Z,5\n"))
    assert run.samples("power")["value"].to_list() == [0.0, 5.0]


class _Berlin(tzinfo):
    """Central European time: two hours ahead of UTC until October ends, one from then on."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        """By the local time."""
        return timedelta(hours=2 if when and when.replace(tzinfo=None) < datetime(2026, 10, 25, 3) else 1)

    def dst(self, when: datetime | None) -> timedelta:
        """In summer."""
        return self.utcoffset(when) - timedelta(hours=1)

    def tzname(self, when: datetime | None) -> str:
        """No other."""
        return "Berlin"


STARTED = datetime(2026, 11, 21, 11, 59, 58)
OF_DAY = [
    ("2026-10-25 01:30:00", "2026-10-25 03:30:00", Clock(_Berlin()), 3 * 3600),
    ("12:00:01", "12:00:03.5", Clock(timezone.utc, started=STARTED), 5.5),
    ("11:59:57", "12:00:03.5", Clock(timezone.utc, started=STARTED), 5.5),
    ("0:00:01", "0:00:05.5", Clock(timezone.utc, started=STARTED), 5.5),
    ("23:59:59", "0:00:05.5", Clock(timezone.utc, started=datetime(2026, 11, 22)), 5.5),
    ("0:00:01", "0:00:05.5", Clock(timezone.utc, started=datetime(2026, 11, 21, 0, 0, 30)), 5.5),
]


@pytest.mark.parametrize(("first", "last", "clock", "end_s"), OF_DAY)
def test_times_of_a_meter_are_times_of_day_or_count_from_its_start(
    tmp_path: Path, first: str, last: str, clock: Clock, end_s: float
) -> None:
    run = run_of(text_log(tmp_path, f"time,power\n{first},5\n{last},6\n"), clock=clock)
    end_ns = run.meta["clock"]["unix_ns"] + run.sensor("meter_csv-log")["t1_ns"][-1]
    begin = clock.started or datetime(2026, 10, 24, 23, 30)
    assert end_ns / 1e9 - begin.replace(tzinfo=timezone.utc).timestamp() == pytest.approx(end_s, abs=1e-5)


def _total_w(run: Run) -> float:
    (watts,) = {
        row["id"]: run.sensor(row["sensor"])[row["id"]].mean()
        for row in run.channels
        if row["parent_scope"] == "system"
    }.values()
    assert isinstance(watts, float)
    return watts


def test_power_readings_of_mlperf_become_a_rail_a_node(tmp_path: Path) -> None:
    begin_ms = round(BEGIN.replace(tzinfo=timezone.utc).timestamp() * 1000)
    head = '{"namespace": "", "event_type": "POINT_IN_TIME", "key": "power_reading", '
    lines = [
        f':::MLLOG {head}"time_ms": {begin_ms + 500 * n}, "value": {800 + n}, "metadata": {{"node": "n{n % 2}"}}}}\n'
        for n in range(8)
    ]
    other = f':::MLLOG {{"key": "run_start", "time_ms": {begin_ms}, "value": null, "metadata": {{}}}}\n'
    log = tmp_path / "result_0.txt"
    log.write_text("".join([other, *lines, ':::MLLOG {"key": "power_reading", broken\n']))
    run = run_of(log)
    assert {channel["scope"] for channel in run.channels} == {"meter:n0", "meter:n1"}
    assert run.sensor("mllog-1")["meter.n1.power"].to_list() == [801.0, 803.0, 805.0, 807.0]
    assert all(channel["refresh_ns"] == 10**9 for channel in run.channels)
    assert any("1 lines could not be read" in str(event.get("message")) for event in run.events)


def test_a_dump_of_a_powersensor_has_its_total_and_its_pairs(tmp_path: Path) -> None:
    dump = tmp_path / "dump.txt"
    rows = "".join(
        f"S {n * 50e-6:.6f} 50 {n % 1024} 1.0 12.0 12.0 2.0 3.3 {6.6 + n % 2} {18.6 + n % 2}\n" for n in range(40)
    )
    head = "marker time dt_micro device_timestamp current0 voltage0 power0 current1 voltage1 power1 power_total\n"
    dump.write_text(f"{head}{rows}M a\n{rows[:20]}")
    with pytest.raises(UsageError, match="from its own start"):
        run_of(dump)
    run = run_of(dump, clock=Clock(zone=timezone.utc, started=BEGIN))
    assert {channel["rail"] for channel in run.channels} == {"power0", "power1", "power_total"}
    assert _total_w(run) == pytest.approx(19.1)
    assert {channel["refresh_ns"] for channel in run.channels} == {50_000}


def test_a_meter_s_table_is_a_rail_beside_a_profiler_file_and_its_columns_can_be_named(tmp_path: Path) -> None:
    events = [step(n, n * 5e5, 5e5) for n in range(8)] + [op("aten::mm", n * 5e5, 4e5) for n in range(8)]
    file = write(tmp_path / "trace.json", events)
    table = tmp_path / "wt310.csv"
    stamps = [(BEGIN + timedelta(milliseconds=50 * n)).isoformat() for n in range(80)]
    table.write_text("when,P1 [W],P2 [mW]\n" + "".join(f"{t},99,{7000 + n % 2}\n" for n, t in enumerate(stamps)))
    clock = Clock(zone=timezone.utc, columns=("when", "P2 [mW]"))
    with pytest.raises(UsageError, match="unknown format"):
        run_of(table)
    run = Run(import_file(table, out=tmp_path / "runs", options=Options(kind="meter-csv", clock=clock)))
    assert _total_w(run) == pytest.approx(7.0005)
    with pytest.raises(UsageError, match="no column 'P3'"):
        run_of(table, clock=Clock(columns=("when", "P3")), kind="meter-csv")
    table.write_text("time,power,P2 [mW]\n" + "".join(f"{t},9,7000\n" for t in stamps))
    both = Run(import_file(table, out=tmp_path / "two", options=Options(clock=Clock(zone=timezone.utc))))
    assert any("'P2 [mW]' not read" in str(event.get("message")) for event in both.events)
    table.write_text("time,power (W)\n" + "".join(f"{t},{8 + n % 2}\n" for n, t in enumerate(stamps)))
    joined = run_of(file, table)
    (row,) = joined.energy_totals().to_dicts()
    assert row["watts_mean"] == pytest.approx(8.5, abs=0.1)
    table.write_text("t,power\n" + "".join(f"{n * 0.05},{8 + n % 2}\n" for n in range(80)))
    with pytest.raises(UsageError, match="start of its own"):
        run_of(table)
    table.write_text("time,power\n" + "".join(f"01/31/2026 01:00:{n} PM,{8 + n % 2}\n" for n in range(10, 60)))
    with pytest.raises(UsageError, match="'01/31/2026 01:00:10 PM' is not a known time format"):
        run_of(table)


def test_rails_that_only_some_lines_of_a_log_have_are_kept(tmp_path: Path) -> None:
    """A log over a change of the board's software, or of two boards: names of rails differ from some line on."""
    old = "RAM 1000/7846MB (lfb 1x4MB) CPU [5%@345,off] VDD_SYS_GPU 152/152 VDD_SYS_CPU 300/300 VDD_IN 2000/2000"
    new = "RAM 1000/7846MB (lfb 1x4MB) CPU [5%@345,off] VDD_GPU 400/400 VDD_IN 3000/3000"
    log = tmp_path / "tx2.log"
    log.write_text("\n".join([old] * 5 + [new] * 4) + "\n")
    clock = Clock(started=BEGIN, interval_ns=1_000_000_000)
    run = Run(import_file(log, out=tmp_path / "runs", options=Options(clock=clock)))
    rails = ("VDD_SYS_GPU", "VDD_SYS_CPU", "VDD_GPU", "VDD_IN")
    read = [run.sensor("tegrastats")[f"rail.{name}.power"].drop_nans().drop_nulls().to_numpy() for name in rails]
    assert [len(watts) for watts in read] == [5, 5, 4, 9]
    assert [float(watts.mean()) for watts in read] == pytest.approx([0.152, 0.3, 0.4, (5 * 2 + 4 * 3) / 9])
