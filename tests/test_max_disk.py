"""Thinning under --max-disk: totals stay exact, spread and gaps stay, the first part and the recent ones stay whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.fabricate import START_NS, Sampled, fabricate_run
from tests.test_parts import window

from stepscope.analysis.caveats import not_measured, thinning_sentences
from stepscope.analysis.energy import fit_span
from stepscope.analysis.energy.power_sources import power_sources
from stepscope.analysis.run import Run
from stepscope.runfolder import RunReader, RunWriter, checksums, disk_limit, sample_dtype, samples
from stepscope.runfolder.checksums import CHECKSUMS
from stepscope.runfolder.parts import to_bytes
from stepscope.runfolder.thinning import drop_step_blocks, thin_sensor_rows
from stepscope.runfolder.writer import WINDOWS_SHARE, Reservoir

_PERIOD = 10_000_000
_PART_ROWS = 3_000
_CHANNELS = (
    ("watts", "gauge", "W", "power"),
    ("joules", "counter", "J", "energy"),
    ("heat", "gauge", "degC", "temperature"),
)


def watts_at(t_ns: Any) -> Any:
    return 5.0 + np.sin(t_ns / 1e9) + 2 * (t_ns % 160_000_000 < 70_000_000)


def parted(writer: RunWriter, parts: int, seed: int = 0) -> pl.DataFrame:
    """A run with so many parts of 30 s, the last of them open; returns all rows."""
    random = np.random.default_rng(seed)
    channels = [
        {"id": name, "sensor": "meter", "kind": kind, "unit": unit, "quantity": quantity, "scope": "board"}
        for name, kind, unit, quantity in _CHANNELS
    ]
    (writer.path / "channels.json").write_text(json.dumps({"channels": channels}))
    rows = np.zeros(parts * _PART_ROWS, dtype=sample_dtype([name for name, *_ in _CHANNELS]))
    t = np.arange(len(rows)) * _PERIOD + random.integers(0, 4_000_000, len(rows)) + 1
    rows["t0_ns"], rows["t1_ns"] = t, t + 40_000
    rows["watts"] = watts_at(t) + random.normal(0, 0.05, len(rows))
    rows["joules"] = np.cumsum(random.random(len(rows)))
    rows["heat"] = 40 + random.integers(0, 9, len(rows)) / 4
    rows["heat"][_PART_ROWS + 1_234] = 91.0
    for part in range(parts):
        name = f"meter.{part:06d}.rows" if part else "meter.rows"
        (writer.path / "samples" / name).write_bytes(rows[part * _PART_ROWS : (part + 1) * _PART_ROWS].tobytes())
    return samples.samples_of(rows, [name for name, *_ in _CHANNELS])


def names(writer: RunWriter) -> list[str]:
    return sorted(path.name for path in (writer.path / "samples").iterdir())


def integral(frame: pl.DataFrame, channel: str = "watts") -> float:
    middle = ((frame["t0_ns"] + frame["t1_ns"]) // 2).to_numpy()
    return float(np.trapezoid(frame[channel].to_numpy(), middle)) / 1e9


def mean(frame: pl.DataFrame, channel: str) -> float:
    """Mean over time: rows of extremes last no time."""
    return integral(frame, channel) * 1e9 / (int(frame["t0_ns"][-1]) - int(frame["t0_ns"][0]))


def kept(writer: RunWriter, room: int) -> None:
    """Thin the samples to so many bytes."""
    assert disk_limit.main([str(writer.path), "--max-disk", str(int(room / disk_limit.SAMPLES_SHARE))]) == 0


def test_the_mean_of_a_window_keeps_its_energy_and_a_counter_its_growth_to_the_last_digit(writer: RunWriter) -> None:
    rows = parted(writer, 4)
    columns, counters = [name for name, *_ in _CHANNELS], {"joules"}
    second = thin_sensor_rows(rows, columns, counters, 10**9)
    ten = thin_sensor_rows(second, columns, counters, 10**10)
    for means in (second, ten):
        length = means["t1_ns"] - means["t0_ns"]
        assert float((means["watts"] * length).sum()) / 1e9 == pytest.approx(integral(rows), rel=1e-12)
        growth = float((means["joules~last"] - means["joules"]).sum())
        assert growth == pytest.approx(rows["joules"][-1] - rows["joules"][0], rel=1e-12)
        assert int(means["~n"].sum()) == len(rows)
        assert means["heat~high"].max() == 91.0
        assert means["heat~low"].min() == rows["heat"].min()
    assert (len(second), len(ten)) == (120, 12)
    expected = rows.filter(pl.col("t0_ns") < 10**10)["watts"].std()
    assert ten["watts~sd"][0] == pytest.approx(expected, rel=0.01)


def test_silences_failed_reads_and_counters_that_fall_stay_as_they_were_read(writer: RunWriter) -> None:
    rows = parted(writer, 2).with_row_index()
    place = pl.col("index")
    rows = rows.with_columns(
        watts=pl.when(~place.is_between(1_020, 1_040)).then("watts"),
        joules=pl.when(place < 2_050).then("joules").otherwise(pl.col("joules") - 900.0),
        t0_ns=pl.col("t0_ns") + pl.when(place >= 3_050).then(7_000_000_000).otherwise(0),
        t1_ns=pl.col("t1_ns") + pl.when(place >= 3_050).then(7_000_000_000).otherwise(0),
    ).drop("index")
    means = thin_sensor_rows(rows, ["watts", "joules", "heat"], {"joules"}, 10**9)
    exact = means.filter(pl.col("~n") == 1)
    assert exact["watts"].null_count() == 21
    assert (exact["joules"].diff() < 0).sum() == 1
    assert len(means) < 400
    apart = (means["t0_ns"].shift(-1) - means["t1_ns"]).drop_nulls()
    assert 6_900_000_000 < apart.max() < 7_100_000_000
    assert apart.filter(apart > 100_000_000).len() == 1


def test_a_channel_that_begins_amid_few_long_means_keeps_its_beginning(writer: RunWriter) -> None:
    rows = parted(writer, 4).with_row_index()
    rows = rows.with_columns(watts=pl.when(pl.col("index") >= 4_400).then("watts")).drop("index")
    for_ten = thin_sensor_rows(rows, ["watts"], set(), 10**10)
    longest = thin_sensor_rows(thin_sensor_rows(for_ten, ["watts"], set(), 10**10), ["watts"], set(), 6 * 10**10)
    for means in (for_ten, longest):
        known = means.filter(pl.col("watts").is_not_null())
        assert known["t0_ns"][0] < 44.1e9
        assert int(known["~n"].sum()) == 12_000 - 4_400


def test_a_run_keeps_to_its_room_with_its_first_and_its_last_parts_whole(writer: RunWriter) -> None:
    rows = parted(writer, 12)
    kept(writer, 10**9)
    whole = sum(path.stat().st_size for path in (writer.path / "samples").glob("*.parquet"))
    assert RunReader(writer.path).thinned_samples == []
    kept(writer, whole // 2)
    assert sum(path.stat().st_size for path in (writer.path / "samples").glob("*.parquet")) <= whole // 2
    present = names(writer)
    assert "meter.parquet" in present, "the first part has the most profiled steps"
    assert "meter.000010.parquet" in present
    assert present[0].startswith("meter.000001-")
    assert present[0].endswith(".1s.parquet")
    run = RunReader(writer.path)
    assert run.damaged == []
    (_, until, length), *_ = run.thinned_samples[-1:]
    assert length == 1
    begin = int(rows["t0_ns"][11 * _PART_ROWS])
    assert until < begin
    exact = run.sensor_between("meter", begin, begin + 10**9)
    assert exact.equals(rows.filter(pl.col("t1_ns") >= begin, pl.col("t0_ns") <= begin + 10**9))
    assert [event["kind"] for event in run.events] == ["thinned"]
    kept(writer, whole // 2)
    assert len(RunReader(writer.path).events) == 1, "it is said once"


@pytest.mark.parametrize("room", [0.5, 0.2, 0.05])
def test_energy_counters_extremes_and_mean_of_a_thinned_run_are_those_of_the_whole(
    writer: RunWriter, room: float
) -> None:
    rows = parted(writer, 20)
    kept(writer, 10**9)
    whole = sum(path.stat().st_size for path in (writer.path / "samples").glob("*.parquet"))
    kept(writer, int(whole * room))
    run = RunReader(writer.path)
    read = run.sensor("meter")
    assert run.coarser_sensors == ["meter"]
    assert mean(read, "watts") == pytest.approx(mean(rows, "watts"), rel=5e-5), "but for 10 ms between parts"
    assert read["heat"].max() == 91.0 or room < 0.1, "of three means in all the extremes are in the file alone"
    assert mean(read, "heat") == pytest.approx(mean(rows, "heat"), rel=2e-3)
    middle = ((read["t0_ns"] + read["t1_ns"]) / 2).to_numpy()
    true = np.interp(middle, ((rows["t0_ns"] + rows["t1_ns"]) / 2).to_numpy(), rows["joules"].to_numpy())
    longest = np.diff(middle).max() / _PERIOD
    assert np.abs(read["joules"].to_numpy() - true).max() < 2 + 2 * (longest / 12) ** 0.5, "even growth within a mean"
    assert (read["joules"].diff().drop_nulls() >= 0).all()
    distances = np.diff(middle)
    distances = distances[distances > 10]  # rows of extremes last no time
    assert np.median(distances) >= 0.9e9, "as coarse as most of it: no reading is made up"
    source = next(source for source in power_sources(run) if source.id == "watts")
    if room > 0.1:  # else three means are all there is, and most rows are extremes
        assert source.shortest_window_ns >= 1.8e9
    assert source.covered_share(middle[0], middle[-1]) > 0.999


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import Any
from typing import Any
from stepscope.runfolder import disk_limit
count, at = 0, int(sys.argv[1])
def killing(call):
    def killer(*arguments, **options):
        global count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return call(*arguments, **options)
    return killer
Path.unlink, Path.replace, os.fsync = killing(Path.unlink), killing(Path.replace), killing(os.fsync)
disk_limit.main(sys.argv[2:])
"""


def test_a_kill_at_any_moment_of_thinning_leaves_each_reading_in_one_file_that_counts(writer: RunWriter) -> None:
    rows = parted(writer, 5)
    kept(writer, 10**9)
    whole = sum(path.stat().st_size for path in (writer.path / "samples").glob("*.parquet"))
    room = str(int(whole / 3 / disk_limit.SAMPLES_SHARE))
    kills = 0
    for at in (0, 1, 2, 3, 4, 5, 7, 8, 9):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(at), str(writer.path), "--max-disk", room], check=False
        )
        kills += killed.returncode == -signal.SIGKILL
        run = RunReader(writer.path)
        sensor = run._long_sensor("meter")
        if sensor is not None:
            assert sum(file.stands_for for file in sensor.files) == len(rows)
            assert run.sensor("meter")["joules"].max() > 0.99 * rows["joules"][-1]
        else:
            assert len(run.sensor("meter")) == len(rows)
        assert run.damaged == []
    assert kills >= 5
    assert disk_limit.main([str(writer.path), "--max-disk", room]) == 0
    assert [name for name in names(writer) if name.endswith(".part")] == []
    assert sum(path.stat().st_size for path in (writer.path / "samples").glob("*.parquet")) <= whole / 3


def test_a_thinned_part_that_is_damaged_costs_itself_and_is_not_thinned_further(writer: RunWriter) -> None:
    parted(writer, 8)
    kept(writer, 10**9)
    whole = sum(path.stat().st_size for path in (writer.path / "samples").glob("*.parquet"))
    kept(writer, whole // 2)
    file = next((writer.path / "samples").glob("*.1s.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    run = RunReader(writer.path)
    assert len(run.sensor("meter")) > 10
    assert run.damaged == [f"samples/{file.name}"]
    kept(writer, whole // 8)
    assert file.exists(), "what is damaged is left to who can mend it"


def test_a_channel_of_which_a_thinned_part_lacks_a_column_was_not_read_there(writer: RunWriter) -> None:
    parted(writer, 8)
    kept(writer, 10**9)
    whole = sum(path.stat().st_size for path in (writer.path / "samples").glob("*.parquet"))
    kept(writer, whole // 2)
    file = next((writer.path / "samples").glob("*.1s.parquet"))
    before = RunReader(writer.path).sensor("meter")
    frame = pl.read_parquet(file)
    frame.rename({"heat~low": "x"}).write_parquet(file)
    checksums.record_checksums(writer.path, file.relative_to(writer.path).as_posix())
    now = RunReader(writer.path).sensor("meter")
    assert now["heat"].null_count() > before["heat"].null_count()
    assert now["watts"].null_count() == before["watts"].null_count()


def test_a_reader_that_looks_while_parts_are_thinned_finds_them(writer: RunWriter) -> None:
    rows = parted(writer, 6)
    kept(writer, 10**9)
    before = RunReader(writer.path)
    whole = sum(path.stat().st_size for path in (writer.path / "samples").glob("*.parquet"))
    kept(writer, whole // 3)
    read = before.sensor("meter")
    assert read["joules"].max() > 0.99 * rows["joules"][-1]
    assert before.damaged == []


# steps


def test_of_old_steps_all_profiled_ones_stay_and_of_the_others_whole_blocks_evenly_over_the_run() -> None:
    steps = pl.DataFrame({"step": np.arange(400_000), "recorded": np.arange(400_000) % 1_000 == 7})
    four = drop_step_blocks(steps, 4)
    sixteen = drop_step_blocks(four, 16)
    assert sixteen.equals(drop_step_blocks(steps, 16)), "what was thinned before is thinned on as from the beginning"
    assert four.filter("recorded").height == sixteen.filter("recorded").height == 400
    for kept_now, share in ((four, 1 / 4), (sixteen, 1 / 16)):
        plain = kept_now.filter(~pl.col("recorded"))["step"].to_numpy()
        assert len(plain) / len(steps) == pytest.approx(share, rel=0.1)
        tenths = np.histogram(plain, 10, (0, 400_000))[0]
        assert tenths.min() > 0.6 * tenths.mean()
        assert np.median(np.diff(plain)) == 1, "steps that follow each other stay together"


def test_steps_keep_to_their_room(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.runfolder.writer.STEP_PART_BYTES", 48 * 4_000)
    random = np.random.default_rng(3)
    for step in range(60_000):
        begin = step * 10_000_000 + int(random.integers(0, 1_000_000))
        writer.append_step(step, begin, begin + 9_000_000, 4, 0.5, step % 2_000 == 0)
        if step % 1_000 == 0:
            writer.flush_steps()
    writer.flush_steps()
    most = 1_000_000
    assert disk_limit.main([str(writer.path), "--max-disk", str(most)]) == 0
    packed = sum(path.stat().st_size for path in writer.path.glob("steps*.parquet"))
    assert packed <= disk_limit.STEPS_SHARE * most
    run = RunReader(writer.path)
    assert run.steps["recorded"].sum() == 30
    assert run.steps["step"][-1] == 59_999
    assert 4_000 < len(run.steps) < 40_000
    assert run.damaged == []


def test_steps_that_were_removed_take_no_energy_from_the_run(writer: RunWriter) -> None:
    parted(writer, 4)
    ends = [10_000_000 * step for step in range(10, 11_990)]
    for step, begin in enumerate(ends):
        writer.append_step(step, begin, begin + 10_000_000, 4, 0.5, False)
    writer.flush_steps()
    writer.update(sampler={"max_disk": 10_000_000})
    writer.close("ok")
    whole, path = Run(writer.path), writer.path / "steps.parquet"
    joules = {row["rail"] or row["component"]: row["joules"] for row in whole.rail_energy().iter_rows(named=True)}
    drop_step_blocks(whole.steps, 16).write_parquet(path)
    for other in ("steps.rows", CHECKSUMS):
        (writer.path / other).unlink(missing_ok=True)
    thin = Run(writer.path)
    assert len(thin.steps) < 0.2 * len(whole.steps)
    for row in thin.rail_energy().iter_rows(named=True):
        assert row["joules"] == pytest.approx(joules[row["rail"] or row["component"]], rel=0.03), "but for its ends"


# windows of operators


def test_the_windows_that_stay_are_a_uniform_choice_and_the_same_for_the_same_run() -> None:
    places: list[int] = []
    for seed in range(40):
        windows = Reservoir(50_000, f"run {seed}")
        there = set()
        for number in range(500):
            there.add(number)
            there -= set(windows.add(number, 1_000, number * 7))
        assert len(there) == 50
        places += there
        if seed == 0:
            again = Reservoir(50_000, "run 0")
            gone = [gone for number in range(500) for gone in again.add(number, 1_000, number * 7)]
            assert set(range(500)) - set(gone) == there
    tenths = np.histogram(places, 10, (0, 500))[0]
    assert tenths.min() > 0.7 * tenths.mean(), "the beginning, the middle and the end alike"
    assert tenths.max() < 1.3 * tenths.mean()


def test_what_was_recorded_of_one_step_stays_or_goes_together() -> None:
    windows = Reservoir(20_000, "run")
    there: set[int] = set()
    for number in range(300):
        there.add(number)
        there -= set(windows.add(number, 1_000, number // 3))
    steps = [number // 3 for number in sorted(there)]
    assert all(steps.count(step) == 3 for step in steps)
    assert 15 <= len(there) <= 20


def test_windows_of_a_run_keep_to_their_room_and_steps_without_theirs_are_not_profiled(writer: RunWriter) -> None:
    size = len(to_bytes(window(100, 0), "ops"))
    writer.max_disk = int(10 * size / WINDOWS_SHARE["ops"])
    for seed in range(60):
        part = window(100, seed)
        writer.write_ops(replace(part, columns={**part.columns, "step": np.full(len(part), seed)}))
    for step in range(120):
        writer.append_step(step, step * 10**6, step * 10**6 + 900_000, 4, None, step < 60)
    writer.update(sampler={"period_ns": _PERIOD, "max_disk": writer.max_disk}, recorder={"windows": 60})
    writer.close("ok")
    run = RunReader(writer.path)
    there, made = run.windows_recorded
    assert made == 60
    assert 5 < there < 13
    assert sum(path.stat().st_size for path in (writer.path / "ops").iterdir()) < 13 * size
    recorded = run.steps.filter("recorded")["step"].to_list()
    assert set(recorded) == set(run.ops["step"].to_list())
    assert run.steps.filter(~pl.col("recorded")).height == 60
    said = list(thinning_sentences(run))
    assert said == [f"{there} of 60 windows of operators are there, chosen at random"]


def test_a_report_says_what_was_thinned_and_operators_are_fitted_to_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(1)
    t = np.arange(6_000, dtype=np.int64) * _PERIOD
    watts = 4 + 3.0 * (t % 16_000_000 < 6_000_000) + random.normal(0, 0.02, len(t))
    channel = {"id": "watts", "sensor": "meter", "kind": "gauge", "unit": "W", "quantity": "power"}
    channel |= {"scope": "rail:VDD_IN", "rail": "VDD_IN"}
    path = fabricate_run(
        tmp_path, steps=3_700, recorded=lambda step: step % 9 == 0, sampled=(Sampled(channel, t, watts),)
    )
    before = Run(path)
    energy = before.energy("kind")["joules_per_step"].sum()
    whole = RunReader(path).sensor("meter")
    cut = START_NS + 40_000_000_000
    (path / "samples" / "meter.parquet").unlink()
    old = thin_sensor_rows(whole.filter(pl.col("t0_ns") < cut), ["watts"], set(), 10**9)
    old.write_parquet(path / "samples" / "meter.000000-000003.1s.parquet")
    whole.filter(pl.col("t0_ns") >= cut).write_parquet(path / "samples" / "meter.000004.parquet")
    run = Run(path)
    assert run.energy("kind")["joules_per_step"].sum() == pytest.approx(energy, rel=0.02)
    first = run.attributed_rails[0].ops.timeline
    assert first.steps < 3_700 / 3
    assert "of 3,697" in fit_span.stretch_sentence(run)
    (reason,) = [gap.why for gap in not_measured(run) if gap.what == "all of a long run"]
    assert reason.startswith("samples from ")
    assert reason.endswith("of the run are means of 1 s")
