"""The metrics of the paper against runs whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.fabricate import Core, Sampled, fabricate_run

from stepscope.analysis.run import Run


def measured(run: Run, metric: str, scope: str) -> dict[str, Any]:
    return run.metrics().row(by_predicate=(pl.col("metric") == metric) & (pl.col("scope") == scope), named=True)


@pytest.mark.parametrize("idle_counters", [False, True])
@pytest.mark.parametrize("refresh_ns", [1_000, 10_000_000])
def test_a_core_that_is_busy_a_known_share_of_the_time_has_that_utilisation(
    tmp_path: Path, idle_counters: bool, refresh_ns: int
) -> None:
    cores = (Core(0.8), Core(0.3), Core(0.0), Core(1.0))
    run = Run(fabricate_run(tmp_path, steps=80, cores=cores, idle_counters=idle_counters, refresh_ns=refresh_ns))
    for index, core in enumerate(cores):
        row = measured(run, "core_utilisation", f"core:{index}")
        assert row["value"] == pytest.approx(core.busy, abs=0.02)
        assert row["low"] - 1e-9 <= core.busy <= row["high"] + 1e-9
    assert measured(run, "mean_cpu_utilisation", "cpu")["value"] == pytest.approx(0.525, abs=0.02)
    assert measured(run, "process_cpu_utilisation", "process")["value"] == pytest.approx(2.1, abs=0.05)


def test_the_utilisation_of_all_cores_is_the_mean_of_theirs_where_ticks_come_late_and_together(tmp_path: Path) -> None:
    t_ns = np.arange(-10, 800) * 2_000_000
    counted = np.concatenate([[0.0], np.cumsum(2e6 * np.where(t_ns[:-1] % 60_000_000 < 30_000_000, 0.5, 1.5))])
    about = {"unit": "ns", "kind": "counter", "sensor": "stat", "refresh_ns": 10_000_000, "source": "synthetic"}
    sampled = tuple(
        Sampled({"id": f"busy{core}", "quantity": "core_busy_time", "scope": f"core:{core}", **about}, t_ns, counted)
        for core in range(2)
    )
    path = fabricate_run(tmp_path, steps=80, sampled=sampled)
    content = json.loads((path / "channels.json").read_text())
    content["channels"] = [channel for channel in content["channels"] if channel["sensor"] == "stat"]
    (path / "channels.json").write_text(json.dumps(content))
    run = Run(path)
    own = [measured(run, "core_utilisation", f"core:{core}")["value"] for core in range(2)]
    assert own == pytest.approx([1.0, 1.0], abs=0.03)
    assert measured(run, "mean_cpu_utilisation", "cpu")["value"] == pytest.approx(sum(own) / 2)


def test_cpu_utilisation_is_that_of_the_steps_and_not_of_the_pauses_between_them(tmp_path: Path) -> None:
    """Ten steps of 16 ms in turn with 160 ms of evaluation by another process, of which the training only waits."""
    t_ns = np.arange(-10, 800) * 2_000_000
    is_pause = t_ns % 320_000_000 >= 160_000_000
    own, core = (
        np.concatenate([[0.0], np.cumsum(2e6 * share[:-1])]) for share in (np.where(is_pause, 0.1, 1.0), 1.0 + 0 * t_ns)
    )

    def read(sensor: str, quantity: str, scope: str, values: Any) -> Sampled:
        about = {"id": scope, "quantity": quantity, "unit": "ns", "kind": "counter", "scope": scope, "sensor": sensor}
        return Sampled({**about, "refresh_ns": 1000, "source": "synthetic"}, t_ns, values)

    sampled = (read("a", "process_cpu_time", "process", own), read("b", "core_busy_time", "core:0", core))
    path = fabricate_run(tmp_path, steps=50, sampled=sampled)
    content = json.loads((path / "channels.json").read_text())
    content["channels"] = [channel for channel in content["channels"] if channel["sensor"] in ("a", "b")]
    (path / "channels.json").write_text(json.dumps(content))
    steps = pl.read_parquet(path / "steps.parquet")
    number = steps["step"].cast(pl.Int64)
    t0_ns = steps["t0_ns"][0] + number * 16_000_000 + number // 10 * 160_000_000
    steps.with_columns(t0_ns=t0_ns, t1_ns=t0_ns + 16_000_000).cast(steps.schema).write_parquet(path / "steps.parquet")
    run = Run(path)
    assert measured(run, "process_cpu_utilisation", "process")["value"] == pytest.approx(1.0, abs=0.02)
    assert measured(run, "core_utilisation", "core:0")["value"] == pytest.approx(1.0, abs=0.02)
    assert measured(run, "background_cpu_use", "system")["value"] == pytest.approx(0.0, abs=0.04)


def test_idle_time_that_is_booked_late_does_not_make_a_core_look_busy(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=80, cores=(Core(0.0),), idle_counters=True)
    frame = pl.read_parquet(path / "samples" / "cpu.parquet")
    every_tenth = pl.int_range(pl.len()) % 10 == 9
    late = frame.with_columns(pl.when(every_tenth).then("core0_idle").forward_fill().fill_null(0).alias("core0_idle"))
    late.write_parquet(path / "samples" / "cpu.parquet")
    assert measured(Run(path), "core_utilisation", "core:0")["value"] < 0.05


def test_the_idle_state_ratio_is_the_share_of_the_time_in_which_a_core_sleeps(tmp_path: Path) -> None:
    cores = (Core(0.9, from_share=0.6), Core(0.9))
    run = Run(fabricate_run(tmp_path, steps=200, cores=cores))
    asleep = measured(run, "idle_state_ratio", "core:0")
    assert asleep["low"] <= 0.6 <= asleep["high"]
    assert measured(run, "idle_state_ratio", "core:1")["value"] == 0


def test_a_gap_is_left_out_reported_in_seconds_and_makes_the_interval_wider(tmp_path: Path) -> None:
    cores = (Core(0.5, cycle_ns=33_000_000),)
    whole = measured(Run(fabricate_run(tmp_path, steps=100, cores=cores)), "core_utilisation", "core:0")
    dark = measured(Run(fabricate_run(tmp_path, steps=100, cores=cores, gap=(0.2, 0.8))), "core_utilisation", "core:0")
    assert dark["value"] == pytest.approx(0.5, abs=0.05)
    assert dark["high"] - dark["low"] > whole["high"] - whole["low"]
    assert "not covered" in dark["note"]
    assert "not covered" not in whole["note"]


def test_a_counter_that_was_set_back_is_a_gap_and_not_negative_work(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=80, cores=(Core(0.5),))
    frame = pl.read_parquet(path / "samples" / "cpu.parquet")
    back = pl.when(pl.int_range(pl.len()) > 60).then(pl.col("core0_busy") - 2e8).otherwise("core0_busy")
    frame.with_columns(back.alias("core0_busy")).write_parquet(path / "samples" / "cpu.parquet")
    assert measured(Run(path), "core_utilisation", "core:0")["value"] == pytest.approx(0.5, abs=0.02)


def test_throughput_is_samples_by_time_and_comes_with_the_step_time(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=60, noise=0.02, batch=16))
    step, rate = measured(run, "step_time", "run"), measured(run, "throughput", "run")
    assert step["low"] <= 16e6 <= step["high"]
    assert rate["low"] <= 1000 <= rate["high"]
    assert step["note"] == "median of unprofiled steps"


def test_the_cost_of_recording_stays_out_of_the_step_time(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=60, overhead=0.5))
    assert measured(run, "step_time", "run")["value"] == pytest.approx(16e6)


def test_energy_is_the_integral_of_power(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=23, power_w=5.0))
    assert measured(run, "energy", "board")["value"] == pytest.approx(5.0 * 20 * 16e-3)


def test_without_a_power_sensor_there_is_no_joule(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path))
    assert "energy" not in run.metrics()["metric"].to_list()
    assert "energy" in {entry.what for entry in run.not_measured()}


def test_peak_memory_is_the_larger_of_the_high_water_mark_and_the_samples(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path)
    assert measured(Run(path), "peak_memory", "process")["value"] == 5.1e8
    frame = pl.read_parquet(path / "samples" / "process.parquet")
    old = frame.with_columns(peak_rss=pl.lit(4.0e8))  # read before the peak
    old.write_parquet(path / "samples" / "process.parquet")
    row = measured(Run(path), "peak_memory", "process")
    assert (row["value"], row["source"], row["high"]) == (5e8, "rss", None)


def test_a_run_of_warm_up_steps_only_has_no_times(tmp_path: Path) -> None:
    metrics = Run(fabricate_run(tmp_path, steps=3)).metrics()
    assert set(metrics["metric"]) == {"peak_memory"}


def test_the_first_steps_are_left_out_of_the_step_time(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=20, samples=False)
    steps = pl.read_parquet(path / "steps.parquet")
    steps.with_columns(t0_ns=pl.when(pl.col("step") < 3).then(0).otherwise("t0_ns")).write_parquet(
        path / "steps.parquet"
    )
    assert measured(Run(path), "step_time", "run")["value"] == pytest.approx(16e6)


def test_the_timeline_has_each_core_in_windows_of_at_least_two_ticks(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=80, refresh_ns=10_000_000))
    span = int(run.steps["t0_ns"][10]), int(run.steps["t1_ns"][60])
    timeline = run.core_timeline(*span)
    assert set(timeline["scope"]) == {"core:0", "core:1"}
    assert (timeline["t1_ns"] - timeline["t0_ns"]).min() >= 20_000_000
    assert timeline["utilisation"].is_between(0, 1).all()


def test_metrics_hold_no_nan(tmp_path: Path) -> None:
    for steps in (0, 1, 4, 20):
        rows = Run(fabricate_run(tmp_path, steps=steps)).metrics().to_dicts()
        assert json.dumps(rows, allow_nan=False)


@pytest.mark.parametrize(("level", "dip"), [(1.0, 0.5), (0.0, 0.4)])
def test_the_interval_of_a_utilisation_that_a_gpu_states_ends_at_0_and_1(
    tmp_path: Path, level: float, dip: float
) -> None:
    channel = {"id": "gpu.use", "quantity": "utilisation", "unit": "1", "kind": "gauge", "scope": "gpu:0"}
    values = np.full(80, level)
    values[40] = dip
    seen = Sampled(
        {**channel, "sensor": "gpu", "refresh_ns": None, "source": "gpu"}, np.arange(80) * 10_000_000, values
    )
    run = Run(fabricate_run(tmp_path, steps=60, ops=(), sampled=(seen,)))
    row = measured(run, "accelerator_utilisation", "gpu:0")
    assert 0 <= row["low"] <= row["value"] <= row["high"] <= 1
