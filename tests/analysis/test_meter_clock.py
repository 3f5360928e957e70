"""A meter with a clock of its own: laid on the run by its power, or refused."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stepscope.analysis.energy.alignment import align_meter_to_run
from stepscope.analysis.energy.power_sources import power_sources
from stepscope.api.requests import MeterRequest
from stepscope.arrays import Floats
from stepscope.cli.meter import _meter, add_meter_logs
from stepscope.errors import OutputNotWritable, RunDamaged, UsageError
from stepscope.record.meter_log import import_csv, read_meter_csv
from stepscope.runfolder import RunReader, RunWriter

START_S, IDLE_S = 1000.0, 6.0


def busy_share(t_s: Floats, seed: int = 3) -> Floats:
    """Cores that are busy at a time of the run: idle, then work whose load changes every second or so, then idle."""
    rng = np.random.default_rng(seed)
    loads = rng.uniform(0.3, 3.8, 200)
    since = t_s - START_S - IDLE_S
    load = loads[np.clip((since / 1.3).astype(int), 0, 199)]
    return np.where((since < 0) | (since > 80), 0.1, load)


def a_run(folder: Path, seconds: float = 92.0, *, cores: bool = True, steps: bool = True) -> Path:
    """A run of that length on disk, with the busy time of its cores every 20 ms."""
    writer = RunWriter.create(folder, "toy")
    t_s = START_S + np.arange(0, seconds, 0.02)
    if cores:
        busy_ns = np.concatenate([[0.0], np.cumsum(busy_share(t_s[:-1] + 0.01) * 0.02 * 1e9)])
        stamps = (t_s * 1e9).astype(np.int64)
        frame = pl.DataFrame({"t0_ns": stamps, "t1_ns": stamps + 1000, "cores": busy_ns})
        frame.write_parquet(writer.path / "samples" / "cpu.parquet")
        channel = {"id": "cores", "sensor": "cpu", "quantity": "core_busy_time", "unit": "ns", "kind": "counter"}
        table = {"channels": [{**channel, "scope": "core:0", "source": "x", "refresh_ns": None}], "period_ns": 1}
        (writer.path / "channels.json").write_text(json.dumps(table))
    if steps:
        for step in range(40):
            t0 = int((START_S + IDLE_S + step) * 1e9)
            writer.append_step(step, t0, t0 + 950_000_000, 8, 1.0, True)
    writer.update(clock={"monotonic_ns": int(START_S * 1e9), "unix_ns": 1_700_000_000_000_000_000})
    writer.close("ok")
    return writer.path


def a_log(
    offset_s: float, drift_ppm: float = 0.0, period_s: float = 0.25, noise_w: float = 0.05
) -> tuple[Floats, Floats]:
    """What a meter prints whose time t is `offset_s` behind the run's, and goes wrong by ppm: seconds and watts."""
    true_s = START_S + np.arange(1.0, 91.0, period_s)
    fine = true_s[:, None] + np.linspace(-period_s / 2, period_s / 2, 25)
    watts = 3 + 2 * busy_share(fine).mean(axis=1) + np.random.default_rng(1).normal(0, noise_w, len(true_s))
    return (true_s - offset_s - START_S) / (1 + drift_ppm * 1e-6) + START_S, watts


@pytest.mark.parametrize(("offset_s", "drift_ppm"), [(0.0, 0.0), (321.456, 0.0), (-7.7, 150.0), (12.3, -150.0)])
def test_offset_and_drift_of_a_meter_are_found_and_the_interval_holds_them(
    offset_s: float, drift_ppm: float, tmp_path: Path
) -> None:
    run = RunReader(a_run(tmp_path))
    t_s, power_w = a_log(offset_s, drift_ppm)
    found = align_meter_to_run(run, t_s.tolist(), power_w.tolist(), False)
    truth_s = START_S + np.arange(1.0, 91.0, 0.25)
    low, high = (np.array(bound) / 1e9 for bound in found.monotonic_ns(t_s.tolist()))
    error_s = np.abs((low + high) / 2 - truth_s)
    assert error_s.max() < 0.05
    assert np.mean((low - 0.005 <= truth_s) & (truth_s <= high + 0.005)) > 0.9
    assert found.correlation > 0.9
    if found.drift_ppm is not None and found.drift_low_ppm is not None and found.drift_high_ppm is not None:
        assert abs(found.drift_ppm - drift_ppm) < 2 * (found.drift_high_ppm - found.drift_low_ppm)


def test_a_log_with_stamps_of_whole_seconds_keeps_its_readings_in_between(tmp_path: Path) -> None:
    path, (t_s, power_w) = a_run(tmp_path), a_log(12.0)
    import_csv(path, csv_of(tmp_path / "m.csv", np.floor(t_s), power_w), align_meter_to_run)
    run = RunReader(path)
    alignment, truth_s = run.events[-1]["alignment"], START_S + np.arange(1.0, 91.0, 0.25)
    assert alignment["offset_low_s"] <= 12.0 <= alignment["offset_high_s"]
    power = run.samples("power").head(360)
    assert np.abs(((power["t0_ns"] + power["t1_ns"]) / 2e9).to_numpy() - truth_s).max() < 0.05
    source = next(source for source in power_sources(run) if source.scope.startswith("meter:"))
    assert source.growth.covered_ns[-1] / 1e9 == pytest.approx(89.75, abs=0.1)


def test_without_cpu_use_the_steps_edges_are_enough(tmp_path: Path) -> None:
    run = RunReader(a_run(tmp_path, cores=False))
    true_s = START_S + np.arange(0.0, 60.0, 0.25)
    training = (true_s > START_S + IDLE_S) & (true_s < START_S + IDLE_S + 39.95)
    power_w = 3 + 2 * training + np.random.default_rng(1).normal(0, 0.1, len(true_s))
    found = align_meter_to_run(run, (true_s - 50).tolist(), power_w.tolist(), False)
    assert found.offset_s == pytest.approx(50.0, abs=0.5)
    assert found.offset_low_s <= 50.0 <= found.offset_high_s


def test_a_clock_that_knows_the_time_is_searched_near_it_alone(tmp_path: Path) -> None:
    run = RunReader(a_run(tmp_path))
    t_s, power_w = a_log(0.0)
    unix_s = t_s - START_S + 1_700_000_000 + 3.0  # three seconds wrong
    found = align_meter_to_run(run, unix_s.tolist(), power_w.tolist(), True)
    assert found.offset_s == pytest.approx(START_S - 1_700_000_003, abs=0.02)


def test_a_power_that_has_nothing_to_do_with_the_run_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).normal(10, 1, 400)
    with pytest.raises(UsageError, match="does not follow"):
        align_meter_to_run(RunReader(a_run(tmp_path)), (np.arange(400) * 0.25).tolist(), noise.tolist(), False)


def test_a_periodic_power_that_fits_at_many_places_is_refused(tmp_path: Path) -> None:
    run_path = a_run(tmp_path, cores=False, steps=False)
    writer = RunWriter(run_path, RunReader(run_path).meta)
    for step in range(60):
        writer.append_step(step, int((START_S + step) * 1e9), int((START_S + step + 0.5) * 1e9), 8, 1.0, True)
    writer.close("ok")
    t_s = np.arange(0, 20, 0.1)
    with pytest.raises(UsageError, match="several shifts"):
        align_meter_to_run(RunReader(run_path), t_s.tolist(), (5.0 + (t_s % 1.0 < 0.5)).tolist(), False)


@pytest.mark.parametrize("power_w", [[5.0] * 100, [1.0, 2.0], [float("nan")] * 50])
def test_a_log_without_features_is_refused(power_w: list[float], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="8 different"):
        align_meter_to_run(RunReader(a_run(tmp_path)), [float(n) for n in range(len(power_w))], power_w, False)


def test_a_run_without_cpu_use_and_steps_cannot_be_aligned_to(tmp_path: Path) -> None:
    run = RunReader(a_run(tmp_path, cores=False, steps=False))
    t_s, power_w = a_log(0.0)
    with pytest.raises(UsageError, match="neither") as caught:
        align_meter_to_run(run, t_s.tolist(), power_w.tolist(), False)
    assert caught.value.hint


def csv_of(path: Path, t_s: Floats, power_w: Floats) -> Path:
    rows = [f"{t:.6f},{watts:.4f}" for t, watts in zip(t_s, power_w, strict=True)]
    path.write_text("\n".join(["time (s),power (W)", *rows, "1e9,broken", ""]))
    return path


def test_an_imported_log_is_a_channel_of_the_run_with_its_alignment_in_the_events(tmp_path: Path) -> None:
    path = a_run(tmp_path)
    log = csv_of(tmp_path / "bench meter.csv", *a_log(77.0))
    for _ in range(2):  # a second import replaces the first
        channel = import_csv(path, log, align_meter_to_run)
    run = RunReader(path)
    assert [each["id"] for each in run.channels] == ["cores", channel.id]
    assert channel.scope == "meter:bench-meter.csv"
    power = run.samples("power")
    assert power["channel"].unique().to_list() == [channel.id]
    assert len(power) == 361
    assert power["value"].null_count() == 1  # the row that says "broken"
    good = power.head(360)
    middle_s = ((good["t0_ns"] + good["t1_ns"]) / 2e9).to_numpy()
    assert np.abs(middle_s - (START_S + np.arange(1.0, 91.0, 0.25))).max() < 0.05
    assert (good["t0_ns"] < good["t1_ns"]).all()
    event = run.events[-1]
    assert event["kind"] == "meter-imported"
    assert event["alignment"]["method"] == "cross-correlation"
    assert event["alignment"]["offset_low_s"] <= event["alignment"]["offset_s"] <= event["alignment"]["offset_high_s"]
    assert run.status == "ok"


def test_a_log_is_read_as_the_import_command_reads_it(tmp_path: Path) -> None:
    log = tmp_path / "m.csv"
    log.write_bytes("time,power,apower\n0,5.5,1\n1,6.5,2\n2,117.5,3\n3,1".encode("utf-16"))  # still being written
    readings = read_meter_csv(log)
    assert (readings.power_w, readings.other_columns) == ((5.5, 6.5, 117.5), ("apower",))
    path, (t_s, power_w) = a_run(tmp_path), a_log(12.0)
    rows = [f"{t},{watts},1" for t, watts in zip(t_s, power_w, strict=True)]
    log.write_text("\n".join(["time,power,apower", *rows, ""]))
    import_csv(path, log, align_meter_to_run)
    assert "'apower' not read (stepscope import --power-column NAME" in RunReader(path).events[-1]["message"]


def test_one_stamp_too_far_ahead_costs_one_row_and_whoever_adds_the_log_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (t_s, power_w) = a_run(tmp_path), a_log(12.0)
    t_s[100] += 1e6
    log = tmp_path / "m.csv"
    log.write_text("\n".join(["time,power", *(f"{t},{watts}" for t, watts in zip(t_s, power_w, strict=True)), ""]))
    _meter(MeterRequest(path, log))
    assert "rows skipped (no time, or out of order): 1" in capsys.readouterr().out
    assert len(RunReader(path).samples("power")) == len(t_s) - 1
    _meter(MeterRequest(path, log), as_json=True)
    assert json.loads(capsys.readouterr().out)["skipped"] == 1
    assert "skipped" in add_meter_logs(path, [log])[0]


def test_what_cannot_be_imported_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    path = a_run(tmp_path)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    (tmp_path / "no.csv").write_text("hello\n")
    (tmp_path / "flat.csv").write_text("\n".join(f"{n},5" for n in range(50)))
    for name in ("no.csv", "flat.csv", "missing.csv"):
        with pytest.raises(UsageError):
            import_csv(path, tmp_path / name, align_meter_to_run)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_a_damaged_table_of_channels_is_said_before_anything_is_written(tmp_path: Path) -> None:
    path = a_run(tmp_path)
    (path / "channels.json").write_text("{")
    with pytest.raises(RunDamaged):
        import_csv(path, csv_of(tmp_path / "m.csv", *a_log(0.0)), align_meter_to_run)
    assert not list((path / "samples").glob("meter*"))


def test_a_run_that_is_still_written_waits_for_its_meter(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "toy")
    writer.update(pid=os.getpid())
    with pytest.raises(UsageError, match="still being written"):
        import_csv(writer.path, csv_of(tmp_path / "m.csv", *a_log(0.0)), align_meter_to_run)


def test_a_run_that_cannot_be_written_is_said_to_whoever_adds_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = a_run(tmp_path)
    monkeypatch.setattr("stepscope.record.meter_log.replace_json", refused)
    with pytest.raises(OutputNotWritable, match="No space left on device"):
        import_csv(path, csv_of(tmp_path / "m.csv", *a_log(0.0)), align_meter_to_run)
