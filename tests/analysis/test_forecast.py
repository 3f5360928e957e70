"""Predicting a whole training from a few steps, on series whose truth is known."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from benchmarks import forecast as plants
from rich.console import Console
from tests.analysis.powered import TX2, channel, powered, rail, rapl, times
from tests.fabricate import Core, Sampled, fabricate_run

from stepscope.analysis.estimate import change_points
from stepscope.analysis.forecast import Forecast, forecast
from stepscope.analysis.projection import project_level, project_sum
from stepscope.analysis.run import Run
from stepscope.analysis.time.tracks import step_time_level_changes
from stepscope.api.requests import ForecastRequest
from stepscope.api.run_reports import forecast_of
from stepscope.arrays import Flags, Floats
from stepscope.cli import _forecast_watch
from stepscope.cli import forecast as cli
from stepscope.cli._forecast_watch import measured_totals
from stepscope.errors import RunError, UsageError
from stepscope.units import percent


def _quiet(steps: int, seed: int, spread: float = 0.01, likeness: float = 0.5) -> Floats:
    """Step times around 1 that resemble their neighbours."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, spread * np.sqrt(1 - likeness**2), steps)
    for step in range(1, steps):
        noise[step] += likeness * noise[step - 1]
    return 1 + noise


def test_a_throttle_is_found_within_30_steps_and_where_it_began() -> None:
    delays = []
    for seed in range(40):
        values = _quiet(1000, seed)
        values[600:] *= 1.12
        (change,) = change_points(values)
        assert abs(change.step - 600) <= 10
        assert change.ratio == pytest.approx(1.12, abs=0.02)
        delays.append(change.noticed - 600)
    assert max(delays) <= 30


def test_quiet_steps_raise_no_alarm() -> None:
    assert sum(len(change_points(_quiet(20_000, seed))) for seed in range(10)) <= 2


def test_a_training_that_recovers_has_two_changes() -> None:
    values = _quiet(3000, 1)
    values[1000:2000] *= 1.3
    assert [round(change.ratio, 1) for change in change_points(values)] == [1.3, 0.8]


def test_steps_too_few_to_judge_are_not_judged() -> None:
    assert change_points(np.array([1.0, 5.0] * 10)) == []


@pytest.mark.parametrize("warming", [0.0, 0.06])
def test_20_of_every_1000_steps_foretell_the_whole_within_a_percent_and_the_interval_holds(warming: float) -> None:
    held, errors = 0, []
    for seed in range(40):
        values = _quiet(5000, seed) * (1 + warming * (1 - np.exp(-np.arange(5000) / 450)))
        at = np.concatenate([np.arange(start, start + 20) for start in range(0, 5000, 1000)]).astype(np.float64)
        said = project_sum(at, values[at.astype(int)], 5000)
        errors.append(abs(said.total / values.sum() - 1))
        held += said.low <= values.sum() <= said.high
    assert np.percentile(errors, 95) < 0.01
    assert held >= 36


def test_what_nobody_has_seen_widens_the_interval() -> None:
    values = _quiet(100, 3)
    near, far = (project_sum(np.arange(100.0), values, steps) for steps in (200, 20_000))
    assert (far.high - far.low) / far.total > 2 * (near.high - near.low) / near.total


def test_all_steps_measured_leave_nothing_to_foretell() -> None:
    values = _quiet(200, 4)
    said = project_sum(np.arange(200.0), values, 200)
    assert said.total == pytest.approx(values.sum())
    assert said.high - said.low < 1e-9


def test_numbers_that_no_sensor_shows_are_foretold_or_refused() -> None:
    values = np.full(400, 1e-200)
    values[280:] = 50 * _quiet(120, 6)  # most blocks are at a level whose square is 0
    with np.errstate(all="ignore"), contextlib.suppress(RunError):
        assert project_level(np.arange(400.0), values, 1000.0).steps == 1000


def test_after_a_throttle_the_new_level_goes_on() -> None:
    values = _quiet(800, 5)
    values[500:] *= 1.5
    said = project_sum(np.arange(800.0), values, 2000)
    assert said.total == pytest.approx(500 + 1500 * 1.5, rel=0.01)
    assert "after their last change" in said.method


def test_a_run_is_foretold_in_time_and_without_a_sensor_not_in_energy(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=60))
    said = forecast(run, 1000)
    time = said.value("time")
    assert time is not None
    assert time.value == pytest.approx(1000 * 0.015, rel=0.2)
    assert said.value("energy") is None
    assert any("no sensor" in note for note in said.notes)


def test_a_run_too_short_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too few"):
        forecast(Run(fabricate_run(tmp_path, steps=8)), 1000)


@pytest.mark.parametrize("plant", plants.PLANTS)
def test_cis_hold_where_what_a_training_does_has_been_seen(plant: str) -> None:
    cells = [cell for seed in range(3) for cell in plants.cells(plant, seed, plants.VIEWS[2:])]
    assert sum(cell.held for cell in cells) >= 0.7 * len(cells)
    assert all(abs(cell.error) < 3 * cell.half for cell in cells)


def test_100_quiet_steps_forecast_the_whole_within_5_percent() -> None:
    cells = [cell for seed in range(8) for cell in plants.cells("stationary", seed, ("first 100",))]
    assert all(cell.held and abs(cell.error) < 0.02 for cell in cells)
    assert float(np.median([cell.half for cell in cells])) < 0.05


def test_a_throttle_that_has_not_come_is_a_condition_and_not_in_the_interval(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=60))
    said, whole = forecast(run, 1000), forecast(run, 40)
    assert said.condition is not None
    assert "two thirds" in said.condition
    assert whole.condition is None


def test_the_level_that_a_zone_approaches_is_predicted_with_an_interval_that_holds() -> None:
    at = np.arange(600.0)
    held = 0
    for seed in range(10):
        noise = np.random.default_rng(seed).normal(0, 0.2, len(at))
        said = project_level(at, 70 - 30 * np.exp(-at / 200) + noise, 3000.0)
        assert said.total == pytest.approx(70, abs=2.5)
        held += said.low <= 70 <= said.high
    assert held >= 9


@pytest.mark.parametrize("count", [40, 100, 600])
@pytest.mark.parametrize(("warms_by", "tau_s"), [(0.0, 60.0), (10.0, 20.0), (25.0, 60.0)])
def test_a_device_that_warms_up_is_not_said_to_stay_as_it_was_in_the_first_seconds(
    count: int, warms_by: float, tau_s: float
) -> None:
    rng = np.random.default_rng(count)
    t_s = np.arange(count) * 0.1
    for _ in range(3):
        celsius = 40 + warms_by * (1 - np.exp(-t_s / tau_s)) + 0.15 * rng.standard_normal(count)
        level = project_level(np.arange(count, dtype=np.float64), np.round(celsius * 2) / 2, 6000)
        assert level.low <= 40 + warms_by <= level.high
        assert level.high - level.low >= 2.0, "readings come in steps of half a degree"
        assert ("drifting" in level.method) == bool(warms_by)


def test_a_temperature_of_few_readings_is_disowned(tmp_path: Path) -> None:
    def read(count: int) -> Forecast:
        zone = channel("temperature", "temperature", "zone:cpu", unit="degC")
        heat = Sampled(zone, np.arange(count) * 100_000_000, np.linspace(40, 42, count))
        return forecast(Run(fabricate_run(tmp_path / str(count), steps=60, sampled=(heat,))), 1000)

    few, many = read(39), read(41)
    assert few.value("temperature") is None
    assert any(note.startswith("no temperature: ") for note in few.notes)
    assert many.value("temperature") is not None
    assert not any(note.startswith("no temperature: ") for note in many.notes)


def test_amounts_have_units() -> None:
    asked = ForecastRequest("last", steps=9, battery="50", carbon="3.6")  # type: ignore[arg-type]
    assert (asked.battery, asked.carbon) == pytest.approx((180_000.0, 1e-6))
    assert ForecastRequest("last", steps=9, battery=180_000.0, carbon=1e-6) == asked


@pytest.mark.parametrize("text", ["", "much", "-3Wh", "0Wh", "50 C"])
def test_an_amount_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--battery"):
        ForecastRequest("last", steps=9, battery=text)  # type: ignore[arg-type]


def test_a_battery_that_cannot_be_foretold_is_null_and_a_note_says_what_to_do(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=30))
    said = forecast(run, 1000, battery_j=180_000.0)
    battery = said.value("battery")
    assert battery is not None
    assert battery.value is None
    assert said.value("carbon") is None
    assert any("no sensor of this run measured power" in note and "--power-model" in note for note in said.notes)


T = times(60)
INTEL = {"cpu": "Intel(R) Core(TM) i7-8650U CPU"}


def gauge(scope: str, watts: float) -> Sampled:
    """A meter of the whole device."""
    facts = channel(scope.replace(":", "."), "power", scope, sensor=scope.partition(":")[0], parent_scope="system")
    return Sampled(facts, T, np.full(len(T), watts))


def shown(said: Forecast) -> str:
    console = Console(file=io.StringIO(), width=200)
    cli._print_forecast(console, said)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]  # a StringIO


def test_the_share_of_a_battery_is_of_its_own_gauge_and_carbon_of_the_meter_of_the_whole(tmp_path: Path) -> None:
    run = powered(tmp_path, rapl("package-0", 10, T), gauge("battery:BAT0", 30), gauge("wall:x", 40), steps=60,
                  device=INTEL, recorded=lambda _: False)  # fmt: skip
    said = forecast(run, 10_000, battery_j=160 * 60.0, carbon_g_per_j=1.0)
    energy, battery, carbon = (said.value(name) for name in ("energy", "battery", "carbon"))
    assert energy is not None and battery is not None and carbon is not None  # noqa: PT018 - for the types
    assert (energy.value, battery.value, carbon.value) == pytest.approx((1600, 0.5, 6400), rel=1e-3)
    assert battery.high is not None
    assert battery.scope == "all that the battery feeds, display included"
    assert "[1.58, 1.62], the processor (and memory and cards, where measured) alone" in shown(said)


def test_the_share_of_a_battery_is_at_least_what_the_processor_took_where_no_more_was_measured(tmp_path: Path) -> None:
    said = forecast(powered(tmp_path, rapl("package-0", 10, T), steps=60, device=INTEL), 10_000, battery_j=16_000.0)
    battery = said.value("battery")
    assert battery is not None
    assert battery.value == pytest.approx(0.1, rel=1e-3)
    assert battery.high is None
    assert "not that of the whole device" in str(battery.note)
    assert battery.low is not None
    assert battery.low < 0.0995  # the bound is the low end of the CI, not its middle
    assert f"battery at least {percent(battery.low)}, the processor" in shown(said)


@pytest.mark.parametrize(("model", "half"), [("cpu=2W..12W", None), ("cpu=2W..12W+-10%", 0.1)])
def test_a_power_model_of_the_run_gives_estimated_energy_with_the_cis_of_the_model(
    model: str, half: float | None, tmp_path: Path
) -> None:
    cores = (Core(0.75), Core(0.25))
    run = powered(tmp_path, steps=60, cores=cores, header={"power_model": model}, recorded=lambda _: False)
    said = forecast(run, 10_000, battery_j=11_200.0)
    energy, battery = said.value("estimated_energy"), said.value("estimated_battery")
    assert energy is not None and battery is not None and energy.value is not None  # noqa: PT018 - for the types
    assert energy.value == pytest.approx(7 * 160, rel=0.03)
    assert battery.value == pytest.approx(0.1, rel=0.03)
    assert said.value("energy") is None
    if half is None:
        assert (energy.low, energy.high) == (None, None)
    else:
        assert energy.low is not None
        assert energy.low == pytest.approx(energy.value * (1 - half), rel=0.02)
    assert any("estimated by the power model" in note for note in said.notes)
    assert "--power-model" not in " ".join(said.notes)
    assert battery.value is not None
    bound = battery.value if battery.low is None else battery.low
    assert f"battery at least {percent(bound)}" in shown(said)
    assert "- battery: of 3.11" in shown(said)
    assert "cpu, estimated by the power model" in shown(said)
    assert [total.metric for total in measured_totals(run.path)] == ["time", "estimated_energy"]


def test_a_power_model_that_gives_nothing_is_named_and_not_advised(tmp_path: Path) -> None:
    said = forecast(Run(fabricate_run(tmp_path, steps=60, header={"power_model": "gpu=2W..12W"})), 1000)
    (note,) = said.notes
    assert "'gpu', whose utilisation was not sampled" in note
    assert "--power-model" not in note


def test_the_energy_of_the_whole_is_foretold_within_one_and_a_half_percent_and_its_interval_holds(
    tmp_path: Path,
) -> None:
    steps, first = 1000, 40
    t = np.arange(0, (steps + 5) * 20e-3, 2e-3)
    errors, held = [], 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        watts = 10 * (1 + 0.03 * (1 - np.exp(-t / 4))) + rng.normal(0, 0.5, len(t))
        sampled = rail("VDD_IN", watts, (t * 1e9).astype(np.int64))
        run = powered(tmp_path / str(seed), sampled, steps=steps, device=TX2)
        made = run.steps.slice(run.warmup_steps)
        begin, end = float(made["t0_ns"][0]), float(made["t1_ns"][-1])
        true = run.rails.lines[0].best.growth.between(np.array([begin]), np.array([end]))[0]

        def seen(numbers: Floats) -> Flags:
            return np.asarray((numbers - numbers[0]) % 250 < first // 4)

        said = forecast(run, len(made), chosen=seen).value("energy")
        assert said is not None
        assert said.low is not None
        assert said.high is not None
        errors.append(abs(float(said.value or 0) / true - 1))
        held += said.low <= true <= said.high
    assert max(errors) < 0.015
    assert held == 4


def test_steps_that_are_slower_for_being_profiled_are_no_change_of_the_training(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=603, recorded=lambda step: step < 303, overhead=0.3, noise=0.01)
    assert forecast(Run(path), 1000).changes == ()


def test_energy_is_foretold_from_the_steps_that_nobody_profiled_as_time_is(tmp_path: Path) -> None:
    sampled = rail("VDD_IN", 10.0, times(700))
    run = powered(tmp_path, sampled, steps=300, recorded=lambda step: step % 2 == 0, overhead=0.5, device=TX2)
    said = forecast(run, 10_000)
    time, energy = (said.value(name) for name in ("time", "energy"))
    assert time is not None and energy is not None and time.value is not None  # noqa: PT018 - for the types
    assert energy.value == pytest.approx(10 * time.value, rel=0.01)


def test_a_change_is_told_by_the_number_of_its_step(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=603, recorded=lambda _: False, noise=0.01)
    steps = pl.read_parquet(path / "steps.parquet")
    length = pl.col("t1_ns") - pl.col("t0_ns")
    slower = pl.when(pl.col("step") >= 303).then(pl.col("t0_ns") + (1.5 * length).cast(pl.Int64)).otherwise("t1_ns")
    steps.with_columns(t1_ns=slower).cast(steps.schema).write_parquet(path / "steps.parquet")
    run = Run(path)
    (change,) = forecast(run, 1000).changes
    assert [step for step, _ in step_time_level_changes(run) or ()] == [change.step]
    assert change.ratio == pytest.approx(1.5, rel=0.02)
    assert abs(change.step - 303) <= 5


def test_a_gap_of_the_power_sensor_leaves_the_energy_that_was_taken_known(tmp_path: Path) -> None:
    runs = [fabricate_run(tmp_path / f"{gap}", power_w=5.0, gap=gap) for gap in (None, (0.1, 0.15))]
    whole, gap = ({total.metric: total.value for total in measured_totals(run)}["energy"] for run in runs)
    assert whole is not None
    assert gap == pytest.approx(whole, rel=0.02)


def test_what_a_simulated_board_would_take_has_a_name_of_its_own(tmp_path: Path) -> None:
    whole = rail("VDD_IN", 5.0, times(60), parent_scope=None)
    plain = powered(tmp_path / "a", whole, steps=40, device=TX2)
    board = powered(tmp_path / "b", whole, steps=40, device=TX2, header={"simulated": "jetson-tx2"})
    measured, simulated = (forecast(run, 1000, battery_j=180_000.0, carbon_g_per_j=1e-4) for run in (plain, board))
    names = [total.metric for total in measured.totals]
    assert [total.metric for total in simulated.totals] == [
        name if name == "time" else f"simulated_{name}" for name in names
    ]
    assert "energy" in names
    assert not any("SIMULATED" in note for note in measured.notes)
    assert simulated.notes[0].startswith("SIMULATED sensors: jetson-tx2")


def _with_pauses(path: Path, pause_s: float, every: int, short_s: float = 0.0) -> Run:
    """The run with a pause behind every so many of its steps, and a shorter one behind each other."""
    steps = pl.read_parquet(path / "steps.parquet")
    number = pl.col("step").cast(pl.Int64)
    later = ((number // every * pause_s + (number - number // every) * short_s) * 1e9).cast(pl.Int64)
    moved = steps.with_columns(pl.col("t0_ns", "t1_ns").cast(pl.Int64) + later)
    moved.cast(steps.schema).write_parquet(path / "steps.parquet")
    return Run(path)


@pytest.mark.parametrize("every", [50, 57])
def test_what_lies_between_steps_is_part_of_the_whole_training(every: int, tmp_path: Path) -> None:
    sampled = rail("VDD_IN", 10.0, times(1200))
    run = powered(tmp_path, sampled, steps=400, recorded=lambda step: step < 6, device=TX2)
    length_s = run.steps.select((pl.col("t1_ns") - pl.col("t0_ns")).last()).item() / 1e9
    run = _with_pauses(run.path, 0.5, every, 0.001)
    said = forecast(run, 10_000)
    time, energy = (said.value(name) for name in ("time", "energy"))
    assert time is not None and energy is not None and time.value is not None  # noqa: PT018 - for the types
    assert time.low is not None and time.high is not None  # noqa: PT018 - for the types
    true = 10_000 * (length_s + 0.001 + (0.5 - 0.001) / every)
    assert time.value == pytest.approx(true, rel=0.02)
    assert time.low <= true <= time.high
    assert energy.value == pytest.approx(10 * time.value, rel=0.01)
    assert any("between steps (evaluation, saving)" in note for note in said.notes)
    took = {total.metric: total.value for total in measured_totals(run.path)}
    made = run.steps.slice(run.warmup_steps)
    assert took["time"] == pytest.approx((made["t1_ns"][-1] - made["t0_ns"][0]) / 1e9, rel=0.01)


def test_of_two_pauses_the_interval_is_as_wide_as_they_tell(tmp_path: Path) -> None:
    run = _with_pauses(fabricate_run(tmp_path, steps=240, recorded=lambda _: False), 5.0, 100)
    time = forecast(run, 5000).value("time")
    assert time is not None and time.value is not None and time.low is not None  # noqa: PT018 - for the types
    assert time.low < time.value - 100


def test_a_pause_that_has_not_come_is_a_condition(tmp_path: Path) -> None:
    said = forecast(Run(fabricate_run(tmp_path, steps=60)), 1000)
    assert "pauses between steps" in str(said.condition)


def test_time_beside_profiled_steps_does_not_count_and_a_note_says_so(tmp_path: Path) -> None:
    run = _with_pauses(fabricate_run(tmp_path, steps=60, recorded=lambda _: True), 0.1, 10)
    said = forecast(run, 1000)
    assert any("it is not known how much of it the profiler took" in note for note in said.notes)


def test_a_thousand_blocks_are_looked_at_in_64_pieces_and_tell_what_they_do_apart() -> None:
    at = np.flatnonzero(plants.watched_step_flags(np.arange(500_000.0), seed=1)).astype(np.float64)
    values = np.random.default_rng(2).normal(1, 0.01, len(at)) * (1 + 0.2 * at / 500_000)
    began = time.process_time()
    said = project_sum(at, values, 500_000)
    assert time.process_time() - began < 5
    assert said.low <= 550_000 <= said.high
    assert said.high - said.low < 0.03 * said.total


def test_a_training_is_followed_to_just_before_its_end_and_by_its_newest_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [5, 25, 26, 900, 1000, 1000]

    class Growing:
        def __init__(self, _: Path) -> None:
            self.made = lengths.pop(0)
            self.status = "running" if lengths else "ok"

    monkeypatch.setattr(_forecast_watch, "Run", Growing)
    monkeypatch.setattr(_forecast_watch, "steps_after_warmup", lambda run: range(run.made))
    monkeypatch.setattr(_forecast_watch, "forecast", lambda *_, **__: None)
    monkeypatch.setattr(_forecast_watch, "_POLL_S", 0)
    updates = [update.made for update in _forecast_watch.follow_forecasts(tmp_path, 1000, None, None)]
    assert updates[0] == 20
    assert 850 < updates[1] <= 900  # what came meanwhile is passed over
    assert 950 <= updates[-1] < 1000
    assert len(updates) == 3


def test_of_an_ended_run_every_forecast_is_made_that_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(fabricate_run(tmp_path, steps=103))
    updates = list(_forecast_watch.follow_forecasts(run.path, 100, None, None))
    assert [update.made for update in updates][:4] == [20, 25, 30, 35]
    time_s = updates[-1].forecast.value("time")
    assert time_s is not None
    assert updates[-1].made == 95
    assert time_s.low is not None
    assert time_s.low > 0.9 * float((run.steps["t1_ns"][-1] - run.steps["t0_ns"][3]) / 1e9)  # the most is over


def test_a_forecast_from_steps_that_waited_for_a_core_states_it(tmp_path: Path) -> None:
    busy = Run(fabricate_run(tmp_path / "busy", steps=40, cores=(Core(0.99), Core(0.99)), process_cores=0.2))
    quiet = Run(fabricate_run(tmp_path / "quiet", steps=40))
    notes = [forecast_of(run, ForecastRequest("last", steps=1000)).notes for run in (busy, quiet)]
    assert [any("measured while CPU-starved (background load)" in note for note in part) for part in notes] == [
        True, False,
    ]  # fmt: skip
