"""Energy over the steps after warm-up: right within its interval, and under faults nothing that was not measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.signal import lfilter  # type: ignore[import-untyped]
from tests.analysis.powered import STEP_S, TX2, channel, powered, rail, rapl, seconds, times, total
from tests.fabricate import START_NS, STEP, Core, Sampled, every_step, fabricate_run, four_of_five

from stepscope.analysis.energy.measured_energy import energy_over
from stepscope.analysis.energy.power_sources import PowerSource, integrate_power
from stepscope.analysis.run import Run
from stepscope.analysis.summary import summary
from stepscope.report import html
from stepscope.report.terminal_report import render

T = times(100)
S = seconds(100)
INTEL = {"cpu": "Intel(R) Core(TM) i5-13500"}
MINUTE = 3753  # steps, of which 3750 are steady: 60 s
NAN = float("nan")


def package(watts: float = 15.0, **facts: Any) -> Sampled:
    return rapl("package-0", watts, T, **facts)


def faulty(values: dict[int, float], sampled: Sampled | None = None) -> Sampled:
    one = sampled or package()
    changed = one.values.copy()
    changed[list(values)] = list(values.values())
    return Sampled(one.channel, one.t_ns, changed)


def event(run: Run, **fields: Any) -> Run:
    with (run.path / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"source": "sampler", "message": "x", **fields}) + "\n")
    return Run(run.path)


def test_readings_under_one_stamp_count_as_their_mean() -> None:
    t_ns = np.array([0.0, 0.0, 1e9, 1e9, 2e9])  # a log in whole seconds
    growth = integrate_power(t_ns, np.array([1.0, 3.0, 5.0, 7.0, 6.0]))
    assert growth.t_ns.tolist() == [0.0, 1e9, 2e9]
    assert growth.steps.tolist() == [4.0, 6.0]


def test_a_minute_of_a_wrapping_counter_is_exact_to_rounding(tmp_path: Path) -> None:
    t_ns = times(MINUTE)
    run = powered(tmp_path, rapl("package-0", 15, t_ns, start_j=80.0, full_j=100.0), steps=MINUTE, device=INTEL)
    row = total(run)
    assert row["joules"] == pytest.approx(900.0, rel=1e-6)
    assert row["low"] <= 900.0 <= row["high"]
    assert row["high"] - row["low"] < 2.0
    assert (row["gap_s"], row["covered_s"]) == (0, pytest.approx(60.0))


def test_a_filtered_and_quantised_gauge_has_the_truth_in_its_interval(tmp_path: Path) -> None:
    t_ns = times(MINUTE, before_s=2)
    truth = np.where(t_ns < 0, 3.0, 8.0 + 2.0 * np.sin(t_ns / 1e9))
    decay = np.exp(-0.01 / 0.42)
    seen = np.empty_like(truth)
    state = truth[0]
    for place, value in enumerate(truth):
        state = decay * state + (1 - decay) * value
        seen[place] = np.floor(state / 0.038) * 0.038
    gauge = rail("VDD_IN", seen, t_ns, refresh_ns=6_600_000, window_ns=420_000_000, step_size=0.038)
    run = powered(tmp_path, gauge, steps=MINUTE, device=TX2)
    steady = (t_ns >= 3 * STEP_S * 1e9) & (t_ns <= MINUTE * STEP_S * 1e9)
    joules = float(truth[steady].mean()) * 60.0
    row = total(run)
    assert row["joules"] == pytest.approx(joules, rel=0.01)
    assert row["low"] <= joules <= row["high"]


def test_the_lag_of_a_gauge_adds_up_over_the_stretches_between_evaluations() -> None:
    t_ns = np.arange(0, 705e9, 20e6)
    power_w = np.where(t_ns / 1e9 % 7 < 5, 10.0, 5.0)
    seen_w = lfilter([0.02 / 0.42], [1, 0.02 / 0.42 - 1], power_w, zi=[5.0 * (1 - 0.02 / 0.42)])[0]
    source = PowerSource(
        "VDD_IN", "ina3221", "gauge", "rail:VDD_IN", None, None, integrate_power(t_ns, seen_w),
        window_ns=420_000_000, spread_w=float(np.ptp(seen_w)),
    )  # fmt: skip
    begins = 7e9 * np.arange(1, 101)
    found = energy_over(source, np.column_stack([begins, begins + 5e9]))
    assert found.joules == pytest.approx(4800, abs=15)
    assert found.low_j is not None
    assert found.high_j is not None
    assert found.low_j <= 5000 <= found.high_j
    assert found.high_j - found.low_j < 0.11 * 5000


def test_the_mean_power_of_a_run_that_was_mostly_dark_has_no_interval(tmp_path: Path) -> None:
    watts = np.where((T > 0.15e9) & (T < 0.2e9), 20.0, 10.0)
    short, lost = (
        total(powered(tmp_path, rail("VDD_IN", np.where((T > 0.3e9) & (until * 1e9 > T), NAN, watts), T), device=TX2))
        for until in (0.42, 9.0)
    )
    assert lost["watts_mean"] == pytest.approx(12, rel=0.1)
    assert (lost["watts_low"], lost["watts_high"]) == (None, None)
    assert (lost["joules_per_step_low"], lost["joules_per_step_high"]) == (None, None)
    above, below = short["watts_high"] - short["watts_mean"], short["watts_mean"] - short["watts_low"]
    assert above - below > 0.06 * 5


def test_energy_a_step_and_a_sample_go_with_the_mean_power(tmp_path: Path) -> None:
    row = total(powered(tmp_path, package(), device=INTEL, batch=16))
    assert row["joules_per_step"] == pytest.approx(15 * STEP_S)
    assert row["joules_per_sample"] == pytest.approx(15 * STEP_S / 16)
    assert row["joules_per_step_low"] <= 15 * STEP_S <= row["joules_per_step_high"]
    assert row["kind"] == "measured"


FAULTS: dict[str, dict[int, float]] = {
    "a failed read": {80: NAN},
    "a failed read turned into 0": {80: 0.0},
    "garbage": {80: 1e30, 90: -5.0, 100: float("inf")},
    "half a second of nothing": dict.fromkeys(range(60, 110), NAN),
    "half a second of zeros": dict.fromkeys(range(60, 110), 0.0),
    "set back": dict(zip(range(80, len(T)), 15 * (T[80:] - T[80]) / 1e9, strict=True)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_under_a_fault_no_joule_is_invented_and_the_truth_stays_in_the_interval(
    tmp_path: Path, fault: dict[int, float]
) -> None:
    row = total(powered(tmp_path, faulty(fault), device=INTEL))
    assert row["joules"] <= 15 * S + 1e-6
    assert row["joules"] == pytest.approx(15 * row["covered_s"], rel=1e-3)
    assert row["low"] <= 15 * S <= row["high"]
    assert row["gap_s"] > 0
    assert row["gap_s"] + row["covered_s"] == pytest.approx(S)
    assert row["joules_per_step"] == pytest.approx(15 * STEP_S, rel=1e-3)


def test_a_gap_of_a_gauge_is_reported_and_widens_the_interval(tmp_path: Path) -> None:
    whole = total(powered(tmp_path, rail("VDD_IN", 10, T), device=TX2))
    dark = np.where((T > 0.5e9) & (T < 1e9), NAN, 10.0)
    run = powered(tmp_path, rail("VDD_IN", dark, T), device=TX2)
    row = total(run)
    assert row["joules"] == pytest.approx(10 * (S - row["gap_s"]))
    assert row["gap_s"] == pytest.approx(0.5, abs=0.03)
    assert row["high"] - row["low"] > whole["high"] - whole["low"]
    assert row["low"] <= 10 * S <= row["high"] + 1e-9
    assert any("not covered by VDD_IN; nothing was filled in" in note for note in run.energy_tables.notes)


@pytest.mark.parametrize("value", [-4.0, 1e12, float("inf")])
def test_a_power_that_cannot_be_is_a_gap(tmp_path: Path, value: float) -> None:
    watts = np.full(len(T), 10.0)
    watts[50:60] = value
    row = total(powered(tmp_path, rail("VDD_IN", watts, T), device=TX2))
    assert row["watts_mean"] == pytest.approx(10.0)
    assert row["gap_s"] == pytest.approx(0.11, abs=0.001)


@pytest.mark.parametrize(
    ("period_ms", "window_ns", "locked"), [(16.0, None, True), (10.3, None, False), (16.0, 16_000_000, False)]
)
def test_a_gauge_that_reads_one_part_of_every_step_allows_for_the_rest(
    period_ms: float, window_ns: int | None, locked: bool, tmp_path: Path
) -> None:
    t = times(200, period_ms) + 1e6 + np.random.default_rng(0).uniform(0, 3e6, len(times(200, period_ms)))
    watts = np.where(t / 1e9 % STEP_S < 0.005, np.where(t / 1e9 % STEP_S < 0.003, 12.0, 4.0), 5.0)
    truth = (12 * 3 + 4 * 2 + 5 * 11) / 16
    run = powered(tmp_path, rail("VDD_IN", watts, t, window_ns=window_ns), device=TX2, steps=200)
    row = total(run)
    said = [note for note in run.energy_tables.notes if "keep step with the training" in note]
    assert bool(said) == locked
    if window_ns is None:
        assert row["low"] <= truth * seconds(200) <= row["high"]
        (whole,) = run.energy("component").to_dicts()
        assert whole["low"] <= truth * STEP_S <= whole["high"]


def test_what_no_rail_can_draw_is_no_energy_of_an_operator(tmp_path: Path) -> None:
    t = times(300)
    watts = np.where(t / 1e9 % STEP_S < STEP_S / 2, 12.0, 4.0)
    right, glitched = watts.copy(), watts.copy()
    glitched[::50] = 65_535.0
    runs = [powered(tmp_path, rail("VDD_IN", each, t), device=TX2, steps=300) for each in (right, glitched)]
    plain, other = (run.energy("kind") for run in runs)
    assert other["joules_per_step"].sum() == pytest.approx(plain["joules_per_step"].sum(), rel=0.05)


def test_a_measured_zero_is_a_zero_and_nothing_read_is_null(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", 10, T), rail("VDD_4V0_WIFI", 0, T), device=TX2)
    assert total(run, "other")["joules"] == 0
    assert powered(tmp_path, rail("VDD_IN", NAN, T), device=TX2).energy_totals().is_empty()


def test_a_sensor_that_gave_out_before_the_steady_steps_has_null_and_no_zero(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", np.where(T > 0.03e9, NAN, 10.0), T), device=TX2)
    row = total(run)
    assert (row["joules"], row["joules_per_step"], row["covered_s"]) == (None, None, 0)
    assert json.dumps(run.metrics().to_dicts(), allow_nan=False)


def test_readings_of_a_gauge_that_has_nothing_newer_are_no_gaps(tmp_path: Path) -> None:
    lines = np.where(np.arange(len(T)) % 10 == 0, 10.0, NAN)  # a child process that prints ten times a second
    row = total(powered(tmp_path, rail("VDD_IN", lines, T, refresh_ns=100_000_000), device=TX2))
    assert row["gap_s"] == pytest.approx(0, abs=0.1)
    assert row["watts_mean"] == pytest.approx(10)


@pytest.mark.parametrize("kind", ["suspend", "clock-jump"])
def test_time_in_which_the_machine_slept_is_cut_out(tmp_path: Path, kind: str) -> None:
    run = event(powered(tmp_path, package(), device=INTEL), t_ns=START_NS + 1_000_000_000, kind=kind)
    row = total(run)
    assert row["gap_s"] == pytest.approx(0.5, abs=0.03)
    assert row["joules"] == pytest.approx(15 * row["covered_s"])
    precise = event(run, t_ns=START_NS + 1_000_000_000, since_ns=START_NS + 200_000_000, kind=kind)
    assert total(precise)["gap_s"] == pytest.approx(0.8, abs=0.03)


def test_a_counter_that_stands_still_while_others_move_is_a_gap_and_is_reported(tmp_path: Path) -> None:
    t_ns = times(600)
    stuck = rapl("package-0", 15, t_ns)
    values = stuck.values.copy()
    values[300:600] = values[300]
    core = rapl("package-0/core", 9, t_ns, parent_scope="rapl:package-0")
    run = powered(tmp_path, Sampled(stuck.channel, t_ns, values), core, steps=600, device=INTEL)
    row = total(run)
    assert row["gap_s"] == pytest.approx(3.0, abs=0.05)
    assert row["watts_mean"] == pytest.approx(15, rel=1e-3)
    assert row["low"] <= 15 * seconds(600) <= row["high"]
    assert any("stood still for 3" in note for note in run.energy_tables.notes)


def test_a_counter_that_is_off_most_of_the_time_did_not_stall(tmp_path: Path) -> None:
    t_ns = times(600)
    graphics = rapl("package-0/uncore", 0, t_ns, parent_scope="rapl:package-0")
    values = graphics.values + np.where(t_ns > 8e9, 2.0 * (t_ns - 8e9) / 1e9, 0.0)
    run = powered(
        tmp_path, rapl("package-0", 15, t_ns), Sampled(graphics.channel, t_ns, values), steps=600, device=INTEL
    )
    assert total(run, "gpu")["gap_s"] == 0
    assert total(run, "gpu")["joules"] == pytest.approx(3.2, abs=0.1)


def test_evaluation_between_steps_is_in_no_step(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", np.where((T > 0.8e9) & (T < 1.0e9), 30.0, 10.0), T), device=TX2)
    steps = pl.read_parquet(run.path / "steps.parquet")
    inside = pl.col("t0_ns").is_between(START_NS + 770_000_000, START_NS + 1_030_000_000)
    steps.filter(~inside).write_parquet(run.path / "steps.parquet")
    row = total(Run(run.path))
    assert row["watts_mean"] == pytest.approx(10, rel=0.02)
    assert row["covered_s"] < S - 0.2


def test_idle_power_is_given_apart_where_the_trainer_was_idle_before_the_first_step(tmp_path: Path) -> None:
    t_ns = times(100, before_s=2)
    own = channel("own", "process_cpu_time", "process", sensor="own", unit="ns", kind="counter")
    busy = np.maximum(t_ns, 0.0)
    watts = np.where(t_ns < 0, 3.0, 10.0)
    sampled = (rail("VDD_IN", watts, t_ns), Sampled(own, t_ns, busy))
    path = powered(tmp_path, *sampled, device=TX2).path
    _without_channel(path, "cpu_time")
    assert total(Run(path))["idle_watts"] == pytest.approx(3, rel=0.02)
    rows = Run(path).metrics().filter(metric="idle_power")
    assert rows["scope"].to_list() == ["total"]
    late = rail("VDD_SYS_CPU", 2, t_ns[t_ns > 0], sensor="late")
    path = powered(tmp_path, *sampled, late, device=TX2).path
    _without_channel(path, "cpu_time")
    assert total(Run(path))["idle_watts"] == pytest.approx(3, rel=0.02)
    assert total(Run(path), "cpu")["idle_watts"] is None
    working = (rail("VDD_IN", watts, t_ns), Sampled(own, t_ns, t_ns - t_ns[0]))
    path = powered(tmp_path, *working, device=TX2).path
    _without_channel(path, "cpu_time")
    assert total(Run(path))["idle_watts"] is None


def _without_channel(path: Path, name: str) -> None:
    content = json.loads((path / "channels.json").read_text())
    content["channels"] = [channel for channel in content["channels"] if channel["id"] != name]
    (path / "channels.json").write_text(json.dumps(content))


def test_each_step_has_its_energy_where_the_sensor_can_resolve_one(tmp_path: Path) -> None:
    fine = rapl("package-0", 15, times(100, period_ms=2))
    steps = powered(tmp_path, fine, device=INTEL).step_energy().filter(component="total")
    assert len(steps) == 97
    assert steps["joules"].to_numpy() == pytest.approx(np.full(97, 15 * STEP_S))
    coarse = powered(tmp_path, rail("VDD_IN", 10, T, window_ns=420_000_000), device=TX2).step_energy()
    assert coarse["resolved"].to_list() == [False] * 97
    assert coarse["joules"].null_count() == 97


def test_metrics_carry_energy_with_the_total_first(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_SYS_CPU", 2, T), rail("VDD_IN", 10, T), device=TX2)
    for metric in ("energy", "energy_per_step", "energy_per_sample", "mean_power"):
        rows = run.metrics().filter(metric=metric)
        assert rows["scope"][0] == "total"
        assert (rows["low"] <= rows["value"]).all()
    assert "rail:VDD_IN" in run.metrics().filter(metric="energy")["scope"]
    assert run.metrics().select("metric", "scope").is_duplicated().sum() == 0


def test_simulated_energy_is_stamped_everywhere_and_shares_no_name_with_measured(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", 10, T), header={"simulated": "jetson-tx2"}, steps=100)
    assert run.board.name == "jetson_tx2"
    assert run.energy_totals()["kind"].unique().to_list() == ["simulated"]
    names = set(run.metrics()["metric"])
    assert "simulated_energy" in names
    assert not names & {"energy", "energy_per_step", "mean_power"}
    assert "SIMULATED" in run.verdict().sentence
    assert summary(run)["simulated"] == "jetson-tx2"
    assert "SIMULATED sensors: " in html.render(run)
    assert _screen(run).count("SIMULATED") >= 3


def _screen(run: Run) -> str:
    import io

    from rich.console import Console

    console = Console(width=100, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(render(run))
    return " ".join(captured.get().split())


def test_the_reports_show_power_with_intervals_gaps_and_the_boards_traps(tmp_path: Path) -> None:
    watts = np.where((T > 0.5e9) & (T < 0.7e9), NAN, 10.0)
    run = powered(tmp_path, rail("VDD_IN", watts, T), rail("VDD_SYS_CPU", 2, T), device=TX2)
    page, screen = html.render(run), _screen(run)
    for trap in run.board.traps:
        assert trap.replace("'", "&#39;") in page
    assert "not measured" in page
    assert "total 10 W 160 mJ" in screen
    assert "0.2 s of the steps were not covered by VDD_IN" in screen


def test_without_a_sensor_the_report_says_what_was_tried_and_what_would_enable_one(tmp_path: Path) -> None:
    missing = (
        {"sensor": "rapl", "reason": "denied", "detail": "energy_uj: permission denied", "remedy": "sudo chmod a+r X"},
        {"sensor": "nvml", "reason": "absent", "detail": "no library", "remedy": None},
        {"sensor": "battery", "reason": "absent", "detail": "no battery", "remedy": None},
    )
    run = powered(tmp_path, missing=missing)
    said = {entry.what: entry for entry in run.not_measured()}
    assert "rapl (denied); 2 kinds of power sensor are not there" in said["energy"].why
    assert said["energy"].detail == "looked for and not found: nvml, battery"
    assert str(said["energy"].remedy).startswith("sudo chmod a+r X; or ")
    assert "rapl" in said
    assert "nvml" not in said
    page = html.render(run)
    assert "energy (no power was measured; it is unknown, not 0)" in page
    assert "rapl (denied)" in page
    assert "not found: nvml, battery" in page


def test_a_power_sensor_without_two_good_readings_is_said(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", NAN, T), device=TX2)
    (entry,) = [entry for entry in run.not_measured() if entry.what == "energy"]
    assert "no two good readings" in entry.why


@pytest.mark.parametrize(("step", "low"), [(0.04, -0.08), (None, -0.4)])
def test_readings_a_little_below_0_are_an_offset_and_no_gap(tmp_path: Path, step: float | None, low: float) -> None:
    watts = np.where(np.arange(len(T)) % 2, 10.0, low)
    row = total(powered(tmp_path, rail("VDD_IN", watts, T, step_size=step), device=TX2))
    assert row["joules"] / S == pytest.approx((10 + low) / 2, rel=0.02)
    assert row["gap_s"] == 0


def test_a_shunt_the_other_way_round_is_said(tmp_path: Path) -> None:
    turned = rail("VDD_SYS_GPU", np.where(np.arange(len(T)) == 5, 0.01, -4.0), T, step_size=0.04)
    run = powered(tmp_path, rail("VDD_IN", 10.0, T), turned, device=TX2)
    (entry,) = [entry for entry in run.not_measured() if "VDD_SYS_GPU" in entry.what]
    assert entry.why == "its power is below 0: its shunt is the other way round"


def test_a_run_of_many_readings_is_gone_through(tmp_path: Path) -> None:
    t_ns = np.linspace(-1e7, MINUTE * STEP_S * 1e9 + 1e7, 1_000_000)
    run = powered(
        tmp_path, rapl("package-0", 15, t_ns), steps=MINUTE, device=INTEL, cores=(Core(0.5),), recorded=lambda _: False
    )
    assert total(run)["joules"] == pytest.approx(900.0, rel=1e-4)


@pytest.mark.parametrize("profiled", [every_step, four_of_five, lambda step: step < 8, lambda step: False])
@pytest.mark.parametrize("stall_ms", [0, 40])
@pytest.mark.parametrize("wait_ms", [0, 12])
def test_energy_of_a_sample_times_samples_a_second_is_the_power(
    tmp_path: Path, profiled: Callable[[int], bool], stall_ms: int, wait_ms: int
) -> None:
    """On runs with stalls, with a data phase that waits, and with profiled steps that are slower than the others."""
    data = replace(STEP[0], self_us=STEP[0].self_us + 1000 * wait_ms)
    steps, random = 120, np.random.default_rng(3)
    made = tmp_path / "made"
    t_ns = np.arange(-10e6, steps * 120e6, 10e6)
    watts = rail("VDD_IN", 5 + np.sin(t_ns / 1e9) + random.normal(0, 0.3, len(t_ns)), t_ns)
    path = fabricate_run(
        made, steps=steps, ops=(data, *STEP[1:]), recorded=profiled, noise=0.2, overhead=0.5, sampled=(watts,),
        device=TX2, seed=5,
    )  # fmt: skip
    frame = pl.read_parquet(path / "steps.parquet").with_row_index("row")
    later = pl.when(pl.col("row") % 9 == 8).then(stall_ms * 1_000_000).otherwise(0)
    moved = later.cum_sum() - later  # all that comes after a stall is later
    frame = frame.with_columns(t0_ns=pl.col("t0_ns") + moved, t1_ns=pl.col("t1_ns") + moved + later)
    frame.drop("row").write_parquet(path / "steps.parquet")
    rows = {(row["metric"], row["scope"]): row for row in Run(path).metrics().to_dicts()}
    rate, power = rows["throughput", "run"]["value"], rows["mean_power", "total"]["value"]
    assert rows["energy_per_sample", "total"]["value"] * rate == pytest.approx(power, rel=0.005)
    assert rows["energy_per_step", "total"]["value"] * rows["step_rate", "run"]["value"] == pytest.approx(
        power, rel=0.005
    )
    timed = frame.slice(3).filter(~pl.col("recorded"))
    timed = timed if len(timed) >= 6 else frame.slice(3)
    by_hand = timed["samples"].sum() / ((timed["t1_ns"] - timed["t0_ns"]).sum() / 1e9)
    assert rate == pytest.approx(by_hand, rel=1e-9)
    assert rows["throughput", "run"]["low"] <= by_hand <= rows["throughput", "run"]["high"]
