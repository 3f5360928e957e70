"""Rails in the board's tree: components, totals without double counting, sources of one rail, and what is left over."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analysis.powered import STEP_S, TX2, channel, powered, rail, rapl, seconds, times, total
from tests.fabricate import START_NS, Sampled
from tests.sensors.pc_trees import found, hwmon, watching

from stepscope.analysis.device.throttling import detect_throttling
from stepscope.analysis.energy.measured_energy import energy_over, power_windows, window_rates
from stepscope.analysis.forecast import device_energies
from stepscope.analysis.run import Run
from stepscope.record.sensors.hwmon import discover_hwmon
from stepscope.report.live.run_state import total_scopes

T = times(100)
S = seconds(100)
ORIN = {"compatible": "nvidia,p3737-0000+p3701-0005 nvidia,tegra234"}
XAVIER = {"compatible": "nvidia,p2972-0000+p2888-0004 nvidia,tegra194"}
INTEL = {"cpu": "Intel(R) Core(TM) i5-13500"}


def rails(**watts: float) -> list[Sampled]:
    return [rail(name, value, T) for name, value in watts.items()]


def test_the_total_of_a_tx2_is_vdd_in_and_the_rest_is_shown(tmp_path: Path) -> None:
    measured = rails(VDD_IN=10, VDD_SYS_GPU=3, VDD_SYS_CPU=2, VDD_SYS_DDR=1.5, VDD_SYS_SOC=1, VDD_MUX=4)
    run = powered(tmp_path, *measured, device=TX2)
    assert total(run)["joules"] == pytest.approx(10 * S)
    assert total(run, "memory")["joules"] == pytest.approx(1.5 * S)
    assert total(run, "rest")["joules"] == pytest.approx(2.5 * S)
    assert total(run, "carrier")["rail"] == "VDD_MUX"
    parts = run.rail_energy().filter(inside="VDD_IN")["joules"].sum() + total(run, "rest")["joules"]
    assert parts == pytest.approx(total(run)["joules"])


def test_memory_is_not_counted_twice_on_an_agx_orin(tmp_path: Path) -> None:
    measured = rails(VDD_GPU_SOC=8, VDD_CPU_CV=4, VIN_SYS_5V0=5, VDDQ_VDD2_1V8AO=1)
    run = powered(tmp_path, *measured, device=ORIN)
    assert total(run)["watts_mean"] == pytest.approx(17)
    assert total(run)["rail"] == "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0"
    assert total(run, "memory")["watts_mean"] == pytest.approx(1)


def test_the_total_of_an_agx_xavier_needs_all_six_rails(tmp_path: Path) -> None:
    six = dict.fromkeys(("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"), 2.0)
    assert total(powered(tmp_path, *rails(**six), device=XAVIER))["watts_mean"] == pytest.approx(12)
    del six["SYS5V"]
    run = powered(tmp_path, *rails(**six), device=XAVIER)
    assert "total" not in run.energy_totals()["component"].to_list()
    assert "the total needs SYS5V" in run.energy_tables.notes[0]
    assert "energy of the whole board" in {entry.what for entry in run.not_measured()}


def test_rails_of_an_old_release_are_the_same_rails(tmp_path: Path) -> None:
    run = powered(tmp_path, *rails(VDD_IN=10, VDD_DDR=1.5, VDD_CPU=2), device=TX2)
    assert total(run, "memory")["rail"] == "VDD_SYS_DDR"
    assert total(run, "cpu")["watts_mean"] == pytest.approx(2)


def test_package_contains_its_cores_and_memory_stands_beside_it(tmp_path: Path) -> None:
    measured = [
        rapl("package-0", 20, T, parent_scope="system"),
        rapl("package-0/core", 14, T, parent_scope="rapl:package-0"),
        rapl("package-0/uncore", 1, T, parent_scope="rapl:package-0"),
        rapl("package-0/dram", 3, T, parent_scope="rapl:package-0"),
    ]
    run = powered(tmp_path, *measured, device=INTEL)
    assert total(run)["watts_mean"] == pytest.approx(23)
    assert total(run, "cpu")["watts_mean"] == pytest.approx(20)
    assert total(run, "memory")["watts_mean"] == pytest.approx(3)
    inside = dict(run.rail_energy().select("rail", "inside").iter_rows())
    assert inside == {"package-0": None, "core": "package-0", "uncore": "package-0", "dram": None}


def test_psys_contains_the_packages_and_is_the_total(tmp_path: Path) -> None:
    measured = [rapl("psys", 30, T, parent_scope="system")]
    measured += [rapl(f"package-{n}", 10, T, parent_scope="rapl:psys") for n in range(2)]
    measured += [rapl(f"package-{n}/core", 7, T, parent_scope=f"rapl:package-{n}") for n in range(2)]
    run = powered(tmp_path, *measured, device=INTEL)
    assert total(run)["watts_mean"] == pytest.approx(30)
    assert total(run, "cpu")["watts_mean"] == pytest.approx(20)
    assert total(run, "rest")["watts_mean"] == pytest.approx(10)


def test_two_dies_that_show_one_register_are_not_added(tmp_path: Path) -> None:
    measured = [rapl("package-0-die-0", 68, T, parent_scope="system")]
    measured += [rapl("package-0-die-1", 68, T, parent_scope="rapl:package-0-die-0")]
    run = powered(tmp_path, *measured, device=INTEL)
    assert total(run, "cpu")["watts_mean"] == pytest.approx(68)
    assert total(run)["watts_mean"] == pytest.approx(68)


def gpu(watts: float, quantity: str = "energy", number: int = 0, **facts: Any) -> Sampled:
    values = watts * (T - T[0]) / 1e9 + 5 if quantity == "energy" else np.full(len(T), watts)
    stated = {"sensor": f"nvml_{quantity}", "rail": "NVIDIA RTX", "parent_scope": "system", **facts}
    return Sampled(channel(f"gpu.{number}.{quantity}", quantity, f"gpu:{number}", **stated), T, values)


def test_the_socket_of_an_apu_is_counted_once_and_a_card_beside_it_is_added(tmp_path: Path) -> None:
    ppt = {"power1_average": "20000000\n", "power1_label": "PPT\n"}
    hwmon(tmp_path, 0, "amdgpu", "0000:03:00.0", ppt)
    sensor = found(
        discover_hwmon(hwmon(tmp_path, 1, "amdgpu", "0000:08:00.0", {**ppt, "in1_label": "vddnb\n"}), watching())
    )
    sensor.close()
    chips = [Sampled(asdict(chip), T, np.full(len(T), 20.0)) for chip in sensor.channels]
    device = {"cpu": "AMD Ryzen 7 5800U with Radeon Graphics", "accelerators": [{"vendor": "amd", "name": "Radeon"}]}
    run = powered(tmp_path, rapl("package-0", 20, T), *chips, device=device)
    assert total(run)["watts_mean"] == pytest.approx(40)
    assert total(run)["rail"] == "package-0 + gpu:0000:03:00.0"
    alone = powered(tmp_path / "no rapl", *chips, device=device)
    assert total(alone)["watts_mean"] == pytest.approx(40)


def test_cards_of_one_model_are_two_cards_and_join_the_processor_in_the_total(tmp_path: Path) -> None:
    device = {**INTEL, "accelerators": [{"vendor": "nvidia"}]}
    cards = [gpu(50, sensor="nvml"), gpu(70, number=1, sensor="nvml")]
    run = powered(tmp_path, rapl("package-0", 20, T), *cards, device=device)
    assert total(run, "gpu")["watts_mean"] == pytest.approx(120)
    assert total(run)["watts_mean"] == pytest.approx(140)


def _box(out: Path, torch: list[dict[str, Any]], **ends: Any) -> Run:
    """A machine of three GPUs: 100, 200 and 300 W, the second and third hot."""
    signs = ["0000:01:00.0 aaaa", "0000:02:00.0 bbbb", "0000:03:00.0 cccc"]
    cards = [gpu(100 * (n + 1), number=n, sensor="nvml", card=sign) for n, sign in enumerate(signs)]
    for number, bits in enumerate((0.0, 64.0, 64.0)):
        hot = channel(f"gpu.{number}.throttle_reasons", "throttle_reasons", f"gpu:{number}", sensor="nvml")
        cards.append(Sampled({**hot, "card": signs[number]}, T, np.full(len(T), bits)))
    device = {**INTEL, "accelerators": [{"vendor": "nvidia"}] * 3, "accelerators_torch": torch, **ends}
    return powered(out, rapl("package-0", 20, T), *cards, device=device)


def test_cards_that_the_training_did_not_use_are_shown_and_not_added(tmp_path: Path) -> None:
    run = _box(tmp_path / "one", [{"index": 0, "name": "x", "card": "aaaa"}], at_end={})
    assert total(run)["watts_mean"] == pytest.approx(120)
    assert total(run, "gpu")["rail"] == "gpu:0"
    assert run.rail_energy().filter(component="unused")["watts_mean"].to_list() == pytest.approx([200, 300])
    assert "GPUs that the training did not use, in no sum: gpu:1, gpu:2" in run.energy_tables.notes
    assert not any("GPU reports throttling" in text for text in detect_throttling(run)[1])
    seen = [{"index": n, "name": "x", "card": f"0000:0{n + 1}:00.0", "used": n == 1} for n in range(3)]
    by_place = _box(tmp_path / "place", seen, at_end={})
    assert total(by_place, "gpu")["rail"] == "gpu:1"
    assert any("GPU reports throttling" in text for text in detect_throttling(by_place)[1])
    none = _box(tmp_path / "none", [], at_end={})
    assert total(none)["rail"] == "package-0"
    assert "gpu" not in none.energy_totals()["component"].to_list()


def test_where_it_is_not_known_which_cards_were_used_their_number_stands_beside_the_sum(tmp_path: Path) -> None:
    run = _box(tmp_path / "count", [{"index": 0, "name": "x"}], at_end={})
    assert total(run)["watts_mean"] == pytest.approx(620)
    assert any("3 GPUs were read, and the training used 1: which" in note for note in run.energy_tables.notes)
    killed = _box(tmp_path / "killed", [])
    assert total(killed)["watts_mean"] == pytest.approx(620)


def test_a_counter_goes_before_a_gauge_and_the_gauge_checks_it(tmp_path: Path) -> None:
    run = powered(tmp_path, gpu(50, "power"), gpu(51), device={"accelerators": [{"vendor": "nvidia"}]})
    assert total(run, "gpu")["source"] == "nvml_energy"
    assert total(run, "gpu")["watts_mean"] == pytest.approx(51)
    (said,) = [note for note in run.energy_tables.notes if "nvml_power says" in note]
    assert "2.0 % less" in said
    assert "they agree" in said


def test_two_sensors_that_contradict_each_other_are_said_to(tmp_path: Path) -> None:
    direct = [rail("VDD_IN", 10, T)]
    run = powered(tmp_path, *direct, rail("VDD_IN", 14, T, sensor="tegrastats", refresh_ns=1e8), device=TX2)
    assert total(run)["source"] == "ina3221"
    assert any("40.0 % more: they disagree" in note for note in run.energy_tables.notes)


def test_a_second_sensor_that_was_hardly_read_neither_agrees_nor_contradicts(tmp_path: Path) -> None:
    watts = np.where(T.max() / 4 > T, 20.0, 10.0)
    second = rail("VDD_IN", np.where(T.max() / 4 > T, 20.0, np.nan), T, sensor="tegrastats", refresh_ns=1e8)
    run = powered(tmp_path, rail("VDD_IN", watts, T), second, device=TX2)
    (said,) = [note for note in run.energy_tables.notes if "tegrastats says" in note]
    assert said.endswith("more: their readings do not tell whether they agree")


def test_a_finer_source_that_was_dark_most_of_the_time_is_not_preferred(tmp_path: Path) -> None:
    watts = np.where(T.max() / 4 < T, np.nan, 10.0)
    run = powered(tmp_path, rail("VDD_IN", watts, T), rail("VDD_IN", 10, T, sensor="tegrastats"), device=TX2)
    assert total(run)["source"] == "tegrastats"
    assert total(run)["gap_s"] == 0


def test_a_plug_is_the_total_only_where_the_board_has_none(tmp_path: Path) -> None:
    plug = Sampled(channel("wall", "power", "wall:desk", sensor="shelly", parent_scope="system"), T, np.full(len(T), 9))
    alone = powered(tmp_path, plug, device={"compatible": "raspberrypi,4-model-b brcm,bcm2711"})
    assert total(alone)["rail"] == "wall:desk"
    assert alone.energy_totals()["component"].to_list() == ["total"]
    both = powered(tmp_path, plug, *rails(VDD_IN=6), device=TX2)
    assert total(both)["watts_mean"] == pytest.approx(6)
    assert total(both, "device")["watts_mean"] == pytest.approx(9)


def test_two_batteries_of_a_laptop_feed_it_together(tmp_path: Path) -> None:
    first = np.where(T.max() / 2 > T, 8.0, 0.0)
    pair = [
        Sampled(channel(name, "power", f"battery:{name}", sensor="battery", rail=name, parent_scope="system"), T, watts)
        for name, watts in (("BAT0", first), ("BAT1", 8.0 - first))
    ]
    phone = channel("adb", "power", "battery:phone", sensor="adb", rail="phone", parent_scope="system")
    run = powered(tmp_path, *pair, Sampled(phone, T, np.full(len(T), 2.0)))
    assert total(run)["rail"] == "battery:BAT0 + battery:BAT1"
    assert total(run)["watts_mean"] == pytest.approx(8)
    with_package = powered(tmp_path / "package", *pair, rapl("package-0", 5, T), device=INTEL)
    assert total(with_package, "device")["watts_mean"] == pytest.approx(8)
    (energy, *_) = device_energies(run, run.steps, "energy")
    assert np.nanmean(energy.values) == pytest.approx(8 * STEP_S, rel=0.01)
    assert total_scopes([("BAT0", "battery:BAT0"), ("BAT1", "battery:BAT1")], {}, None) == (
        "battery:BAT0", "battery:BAT1",
    )  # fmt: skip


def test_several_chips_that_no_board_file_knows_are_no_whole_device(tmp_path: Path) -> None:
    several = [rail(name, 2.0, T, sensor="hwmon") for name in ("ina231_arm", "ina231_mem")]
    run = powered(tmp_path, *several)
    assert run.energy_totals().is_empty()
    assert run.rail_energy()["component"].unique().to_list() == ["unknown"]
    assert any("none of them is taken for the whole device" in note for note in run.energy_tables.notes)
    assert total(powered(tmp_path, several[0]))["watts_mean"] == pytest.approx(2)


def test_rails_that_nobody_knows_are_shown_and_never_added(tmp_path: Path) -> None:
    run = powered(tmp_path, *rails(VDD_A=3, VDD_B=4))
    assert run.energy_totals().is_empty()
    assert run.rail_energy()["watts_mean"].to_list() == pytest.approx([3, 4])
    assert run.rail_energy()["component"].unique().to_list() == ["unknown"]


def test_the_twelve_rails_of_a_raspberry_pi_5_add_up(tmp_path: Path) -> None:
    names = ["VDD_CORE", "DDR_VDD2", "DDR_VDDQ", "0V8_SW", "0V8_AON", "1V1_SYS"]
    names += ["1V8_SYS", "3V3_SYS", "3V7_WL_SW", "3V3_DAC", "3V3_ADC", "HDMI"]
    device = {"compatible": "raspberrypi,5-model-b brcm,bcm2712"}
    run = powered(tmp_path, *rails(**dict.fromkeys(names, 0.25)), device=device)
    assert total(run)["watts_mean"] == pytest.approx(3)
    assert total(run, "memory")["watts_mean"] == pytest.approx(0.5)
    assert total(run, "memory")["rail"] == "DDR_VDD2 + DDR_VDDQ"


def test_stretches_that_are_shorter_than_a_window_are_laid_end_to_end(tmp_path: Path) -> None:
    t_ns = times(3000)
    watts = 10 + np.random.default_rng(0).normal(0, 1, len(t_ns))
    (source,) = powered(tmp_path, rail("VDD_IN", watts, t_ns), steps=3000).rails.lines[0].sources
    begins = START_NS + 1e8 * np.arange(480)
    spans = np.column_stack([begins, begins + 5e7])
    spans[200, 1] += 4e7  # one step stalled
    rates = window_rates(source, spans)
    assert len(rates) > 190
    assert energy_over(source, spans).watts == pytest.approx(float(rates.mean()))
    begin, end = spans[0].tolist()
    assert window_rates(source, spans[:1]) == pytest.approx(
        power_windows(source, begin, end, source.shortest_window_ns)[1]
    )


def test_estimated_channels_are_apart_from_measured_ones(tmp_path: Path) -> None:
    estimate = rail("VDD_IN", 99, T, sensor="guess", kind="estimate")
    run = powered(tmp_path, *rails(VDD_IN=6), estimate, device=TX2)
    assert total(run)["watts_mean"] == pytest.approx(6)
    kinds = dict(run.rail_energy().select("source", "kind").iter_rows())
    assert kinds == {"ina3221": "measured", "guess": "estimated"}
