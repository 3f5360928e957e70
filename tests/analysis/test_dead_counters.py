"""Counters that are dead, frozen or coarse are no zero, and a meter that saw the whole device is not added up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analysis.powered import channel, powered, rail, rapl, seconds, times, total
from tests.fabricate import Sampled

from stepscope.analysis.energy.accuracy import Accuracy
from stepscope.analysis.energy.measured_energy import Energy, sum_energies

STEPS = 600
T = times(STEPS, 50)
S = seconds(STEPS)
INTEL = {"cpu": "Intel(R) Core(TM) i7-8650U CPU"}
CARD = {**INTEL, "accelerators": [{"vendor": "nvidia", "name": "RTX 3090"}]}


def _constant(sampled: Sampled) -> Sampled:
    return Sampled(sampled.channel, sampled.t_ns, np.full(len(sampled.t_ns), 1000.0))


def _gpu(quantity: str, values: Any) -> Sampled:
    facts = {"sensor": "nvml", "parent_scope": "system", "refresh_ns": 100_000_000}
    return Sampled(channel(f"gpu.0.{quantity}", quantity, "gpu:0", **facts), T, np.broadcast_to(values, T.shape))


def test_a_package_whose_counter_never_moves_has_no_energy_and_its_cores_keep_theirs(tmp_path: Path) -> None:
    core = rapl("package-0/core", 9, T, parent_scope="rapl:package-0")
    run = powered(tmp_path, _constant(rapl("package-0", 15, T)), core, steps=STEPS, device=INTEL)
    assert total(run)["joules"] is None
    assert total(run, "rest")["joules"] is None
    assert run.rail_energy().filter(scope="rapl:package-0/core")["joules"][0] == pytest.approx(9 * S, rel=0.01)
    assert any("never moved" in note for note in run.energy_tables.notes)


def test_built_in_graphics_that_are_off_take_nothing_of_a_package_that_goes_on(tmp_path: Path) -> None:
    graphics = _constant(rapl("package-0/uncore", 1, T, parent_scope="rapl:package-0"))
    run = powered(tmp_path, rapl("package-0", 15, T), graphics, steps=STEPS, device=INTEL)
    assert run.rail_energy().filter(scope="rapl:package-0/uncore")["joules"][0] == 0
    assert total(run)["joules"] == pytest.approx(15 * S, rel=0.01)


def test_a_package_that_freezes_for_most_of_the_run_keeps_its_power_and_misses_the_rest(tmp_path: Path) -> None:
    package, core = rapl("package-0", 15, T), rapl("package-0/core", 9, T, parent_scope="rapl:package-0")
    values = package.values.copy()
    values[int(0.4 * len(values)) :] = values[int(0.4 * len(values))]
    run = powered(tmp_path, Sampled(package.channel, T, values), core, steps=STEPS, device=INTEL)
    whole, rest = total(run), total(run, "rest")
    assert whole["watts_mean"] == pytest.approx(15, rel=0.01)
    assert whole["gap_s"] > 0.55 * S
    assert rest["joules"] == pytest.approx(6 / 15 * whole["joules"], rel=0.02)
    assert not any("one of them is wrong" in note for note in run.energy_tables.notes)


def test_a_dead_energy_counter_of_a_gpu_leaves_its_power_gauge_to_tell(tmp_path: Path) -> None:
    run = powered(
        tmp_path, rapl("package-0", 15, T), _gpu("energy", 99.0), _gpu("power", 80.0), steps=STEPS, device=CARD
    )
    assert total(run, "gpu")["joules"] == pytest.approx(80 * S, rel=0.01)
    assert total(run)["joules"] == pytest.approx(95 * S, rel=0.01)


@pytest.mark.parametrize("ticks", [0, 1, 12])
def test_a_plug_that_counts_in_large_steps_is_read_by_its_power(tmp_path: Path, ticks: int) -> None:
    step_j = 60 * S / max(ticks, 1)
    counted = 6.041 * 3.6e6 + np.floor(np.linspace(0, ticks + 0.5, len(T))) * step_j
    facts = {"sensor": "tasmota", "parent_scope": "system"}
    energy = Sampled(channel("wall.t.energy", "energy", "wall:t", **facts), T, counted)
    power = Sampled(channel("wall.t.power", "power", "wall:t", **facts), T, np.full(len(T), 60.0))
    run = powered(tmp_path, energy, power, steps=STEPS, device={})
    assert total(run)["joules"] == pytest.approx(60 * S, rel=0.01)


def test_a_coarse_counter_that_is_alone_has_its_step_in_the_interval(tmp_path: Path) -> None:
    step_j = 60 * S / 12
    counted = np.floor(np.linspace(0, 12.5, len(T))) * step_j
    energy = channel("wall.t.energy", "energy", "wall:t", sensor="tasmota", parent_scope="system")
    row = total(powered(tmp_path, Sampled(energy, T, counted), steps=STEPS, device={}))
    assert row["high"] - row["low"] >= 1.9 * step_j
    assert row["low"] <= 60 * S <= row["high"]


_PLUG = {
    **{"gain": 0.4, "gain_half": 0.01, "shown_w": 40.0, "meter_w": 200.0, "meter_half_w": 1.0, "accuracy": 0.01},
    **{"plateaus": 9, "delay_ns": 0, "filter": None, "window_ns": None, "meter": "shelly=1", "at": "2026-01-01"},
}


def test_two_sockets_calibrated_beside_one_plug_show_that_plug_once(tmp_path: Path) -> None:
    sockets = [rapl(f"package-{number}", 40, T, calibration=_PLUG) for number in (0, 1)]
    run = powered(tmp_path, *sockets, steps=STEPS, device={"cpu": "Intel(R) Xeon(R) Gold"})
    assert total(run)["meter_joules"] == pytest.approx(200 * S, rel=0.01)
    assert total(run, "cpu")["meter_joules"] is None
    assert any("supply line of the device" in note for note in run.energy_tables.notes)


def test_a_load_on_one_of_two_calibrated_sockets_moves_the_plug_by_its_part(tmp_path: Path) -> None:
    sockets = [rapl(f"package-{number}", watts, T, calibration=_PLUG) for number, watts in ((0, 48), (1, 40))]
    run = powered(tmp_path, *sockets, steps=STEPS, device={"cpu": "Intel(R) Xeon(R) Gold"})
    assert total(run)["meter_joules"] == pytest.approx((200 + 8 / 0.8) * S, rel=0.01)


def test_a_processor_that_was_calibrated_alone_does_not_tell_what_the_gpu_takes(tmp_path: Path) -> None:
    calibrated = rapl("package-0", 40, T, calibration=_PLUG)
    run = powered(tmp_path, calibrated, _gpu("power", 300.0), steps=STEPS, device=CARD)
    row = total(run)
    assert row["meter_low"] > 300 * S
    assert row["meter_joules"] == pytest.approx((40 + 3.9 + (300 - 3.9) / 0.945) * S, rel=0.3)
    assert "not by the calibration, which does not tell the power of gpu:0" in row["meter_source"]
    unknown = powered(tmp_path, calibrated, _gpu("power", 300.0), rail("VDD_A", 5, T), steps=STEPS, device={})
    assert unknown.rail_energy()["meter_joules"].null_count() == 2
    cards = Sampled({**_gpu("power", 300.0).channel, "sensor": "amdsmi"}, T, np.full(len(T), 300.0))
    run = powered(tmp_path, calibrated, cards, steps=STEPS, device=CARD)
    assert total(run)["meter_joules"] is None
    assert any("would show is not known" in note for note in run.energy_tables.notes)


@pytest.mark.parametrize("shown_w", [0.0, 0.5, 3.0, 50.0])
def test_what_a_meter_would_show_is_never_below_nothing(shown_w: float) -> None:
    watts, half = Accuracy(0.945, 0.047, "RTX 3090", shown_w=3.9).at_meter(shown_w)
    assert watts >= 0
    assert half >= 0
    assert watts + half >= min(shown_w, 3.9) - 1e-9


def test_the_interval_of_a_sum_allows_for_what_one_of_its_rails_did_not_cover() -> None:
    whole = Energy(100.0, 99.0, 101.0, 1.0, 0.99, 1.01, 100.0, 0.0, windows=10)
    part = Energy(50.0, 49.0, 110.0, 1.0, 0.98, 1.02, 50.0, 50.0, windows=10)
    summed = sum_energies([whole, part])
    assert summed.joules is not None
    assert summed.low_j is not None
    assert summed.high_j is not None
    assert summed.low_j <= summed.joules <= 200 <= summed.high_j
    assert summed.watts == 2.0
