"""Page, headline and verdict say the same of throttling, and flags of the past are none of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analysis.test_bottleneck import Machine
from tests.fabricate import Core, Sampled, fabricate_run

from stepscope.analysis.device.throttling import detect_throttling
from stepscope.analysis.first_screen import headline
from stepscope.analysis.run import Run
from stepscope.report.page.parts import Items
from stepscope.report.sections.step_times import build

_STEPS = 60


def _read(quantity: str, scope: str, values: Any, kind: str = "gauge", source: str = "synthetic") -> Sampled:
    t_ns = np.arange(len(values)) * 10_000_000
    channel = {"id": f"{scope}.{quantity}", "quantity": quantity, "unit": "1", "kind": kind, "scope": scope}
    shared = {"sensor": quantity, "refresh_ns": None, "source": source}
    return Sampled({**channel, **shared}, t_ns, np.array(values, dtype=np.float64))


_HEAT = _read("temperature", "zone:cpu", [60.0] * 60)


def _run(out: Path, machine: Machine | None, *channels: Sampled, **device: Any) -> Run:
    cores = [{"core": core, "online": True, "max_frequency_hz": 2_000_000_000} for core in (0, 1)]
    sampled = (*(machine.sampled() if machine is not None else ()), _HEAT, *channels)
    about = {"cores": cores, **device}
    return Run(fabricate_run(out, steps=_STEPS, noise=0.02, sampled=sampled, device=about))


def _said(run: Run) -> tuple[str, str, str]:
    """The note of the headline's hottest zone, the sentence in Steps, and what bounds the steps."""
    (hottest,) = (line for line in headline(run) if line.metric == "temperature")
    items = [part for part in build(run).parts if isinstance(part, Items)]
    (sentence,) = (said for part in items for said, _ in part.rows if "hrottl" in said)
    return hottest.note, sentence, run.verdict().bound


def test_a_clock_that_falls_is_throttled_everywhere(tmp_path: Path) -> None:
    assert _said(_run(tmp_path, Machine(clocks=(2e9, 0.8e9)))) == ("throttled", "Throttled.", "throttled")


def test_a_steady_clock_is_throttled_nowhere(tmp_path: Path) -> None:
    note, sentence, bound = _said(_run(tmp_path, Machine(clocks=(2e9, 2e9))))
    assert (note, sentence) == ("not throttled", "Not throttled.")
    assert bound != "throttled"


@pytest.mark.parametrize("flag", ["throttled-since-boot", "frequency-capped-since-boot", "undervoltage"])
def test_flags_of_the_past_and_of_the_supply_are_no_throttling(tmp_path: Path, flag: str) -> None:
    run = _run(tmp_path, Machine(clocks=(2e9, 2e9)), _read("throttled", f"throttle:{flag}", [1] * 60))
    assert _said(run)[:2] == ("not throttled", "Not throttled.")


def test_a_flag_that_is_set_while_steps_run_says_in_how_many_readings(tmp_path: Path) -> None:
    flag = _read("throttled", "throttle:throttled", [0] * 30 + [1] * 30)
    held, why = detect_throttling(_run(tmp_path, Machine(clocks=(2e9, 2e9)), flag))
    assert held
    assert why == ("the firmware reports throttled in 54.5 % of 55 readings",)


def test_a_gpu_that_reports_throttling_at_a_few_readings_is_not_throttled(tmp_path: Path) -> None:
    seldom, often = (_read("throttle_reasons", "gpu:0", [4] * count + [1] * (60 - count)) for count in (7, 12))
    held, why = detect_throttling(_run(tmp_path, Machine(clocks=(2e9, 2e9)), seldom))
    assert held is False
    assert why[0] == "the GPU reports throttling in 3.6 % of 55 readings"
    assert detect_throttling(_run(tmp_path / "often", Machine(clocks=(2e9, 2e9)), often))[0] is True


def test_a_zone_is_near_its_own_trip_point_alone_and_not_one_that_only_notifies(tmp_path: Path) -> None:
    zones = (("acpitz", 0, 20.0), ("acpitz#2", 1, 66.0), ("x86_pkg_temp", 2, 66.0))
    read = [
        _read("temperature", f"zone:{name}", [celsius] * 60, source=f"/sys/class/thermal/thermal_zone{number}/temp")
        for name, number, celsius in zones
    ]
    trips = {"acpitz (thermal_zone0)": {"passive": 20.0}, "acpitz (thermal_zone1)": {"passive": 68.0}}
    trips["x86_pkg_temp (thermal_zone2)"] = {"passive": 66.0}
    run = _run(tmp_path, Machine(clocks=(1e9, 1e9)), *read, trip_points_celsius=trips)
    assert [said for said in detect_throttling(run)[1] if said.startswith("zone")] == [
        "zone acpitz reached 20 °C, and the kernel slows down at 20 °C",
        "zone acpitz#2 reached 66 °C, and the kernel slows down at 68 °C",
    ]


def test_a_power_mode_below_the_highest_is_no_throttling_where_the_clock_is_not_low(tmp_path: Path) -> None:
    assert _said(_run(tmp_path, Machine(clocks=(2e9, 2e9)), power_mode="15W"))[0] == "not throttled"
    assert _said(_run(tmp_path / "low", Machine(clocks=(1e9, 1e9)), power_mode="15W"))[0] == "throttled"


def test_what_nobody_read_is_not_told(tmp_path: Path) -> None:
    run = _run(tmp_path, None)
    assert detect_throttling(run) == (None, ())
    assert _said(run)[:2] == ("", "Throttling was not read.")


def test_a_clock_that_sinks_because_the_training_waits_is_throttled_nowhere(tmp_path: Path) -> None:
    waits = Machine(0.2, 0.01, {"timer": 0.79}, own_cores=0.2, clocks=(2e9, 0.8e9))
    note, sentence, bound = _said(_run(tmp_path, waits))
    assert (note, sentence) == ("not throttled", "Not throttled.")
    assert bound != "throttled"


def test_a_little_core_at_its_own_maximum_hides_no_big_one_that_is_held_down(tmp_path: Path) -> None:
    def clocks(core: int, first: float, last: float) -> Sampled:
        read = _read("core_frequency", f"core:{core}", np.linspace(first, last, 100))
        return Sampled({**read.channel, "unit": "Hz", "sensor": f"clock{core}"}, read.t_ns, read.values)

    cores = [{"core": core, "online": True, "max_frequency_hz": hertz} for core, hertz in ((0, 1.8e9), (1, 2.4e9))]

    def throttled(name: str, little: float, big: float) -> bool | None:
        sampled = (*Machine().sampled(), clocks(0, 1.8e9, 1.8e9), clocks(1, 2.4e9, 1.0e9))
        busy = (Core(little), Core(big))
        path = fabricate_run(tmp_path / name, steps=_STEPS, cores=busy, sampled=sampled, device={"cores": cores})
        return detect_throttling(Run(path))[0]

    assert throttled("big", 0.5, 0.9) is True
    assert throttled("little", 0.9, 0.02) is False, "the big core rests"


def _waiting(**more: Any) -> Machine:
    return Machine(0.45, 0.01, {"timer": 0.54}, own_cores=0.45, clocks=(1.1e9, 1.1e9), **more)


def test_a_clock_that_its_governor_lowers_for_a_thread_that_waits_is_not_held_down_by_a_limit_it_never_reached(
    tmp_path: Path,
) -> None:
    for name, machine, about in (
        ("mode", _waiting(), {"power_mode": "15W"}),
        ("limit", _waiting(limit=1.8e9), {"power_mode": "15W"}),
        ("busy", Machine(clocks=(1.1e9, 1.1e9), limit=1.8e9), {}),
        ("falls", replace(_waiting(), clocks=(1.6e9, 0.8e9)), {}),
    ):
        run = _run(tmp_path / name, machine, **about)
        assert detect_throttling(run)[0] is False, name
        assert all(cause.bound != "throttled" for cause in run.verdict().causes), name


def test_a_limit_that_the_clock_reached_holds_it_down_also_for_a_thread_that_waits(tmp_path: Path) -> None:
    held, why = detect_throttling(_run(tmp_path, _waiting(limit=1.1e9), power_mode="15W"))
    assert held
    assert why[:2] == ("the clock's limit is 1.10 GHz of 2.00 GHz", "the power mode is 15W")


@pytest.mark.parametrize(
    ("quantity", "scope"), [("throttled", "throttle:throttled"), ("cooling_state", "cooling:cpufreq-cpu0")]
)
def test_a_report_of_a_moment_is_no_throttling_of_the_steps(tmp_path: Path, quantity: str, scope: str) -> None:
    moment, long = (_read(quantity, scope, [0] * (60 - count) + [1] * count) for count in (2, 12))
    assert detect_throttling(_run(tmp_path / "moment", Machine(clocks=(2e9, 2e9)), moment))[0] is False
    assert detect_throttling(_run(tmp_path / "long", Machine(clocks=(2e9, 2e9)), long))[0] is True


def test_events_alone_tell_that_a_core_was_throttled_and_not_for_how_long(tmp_path: Path) -> None:
    once = _read("throttle_events", "core:0", [7.0] * 20 + [8.0] * 40, kind="counter")
    run = _run(tmp_path, Machine(clocks=(1.6e9, 1.6e9)), once)
    assert detect_throttling(run) == (
        True,
        ("core 0 was throttled 1 time", "the fastest core's clock was 80 % of its maximum, 80 % in the first steps "
         "and 80 % in the last"),
    )  # fmt: skip
    (cause,) = (cause for cause in run.verdict().causes if cause.bound == "throttled")
    assert cause.confidence == "medium"
    falls = _run(tmp_path / "falls", Machine(clocks=(2e9, 1.2e9)), once)
    assert next(cause for cause in falls.verdict().causes if cause.bound == "throttled").confidence == "high"


def test_the_limit_of_a_little_core_is_none_of_the_big_one_that_runs(tmp_path: Path) -> None:
    def read(quantity: str, scope: str, hertz: float) -> Sampled:
        channel = _read(quantity, scope, [hertz] * 100)
        return Sampled({**channel.channel, "unit": "Hz", "sensor": scope}, channel.t_ns, channel.values)

    cores = [{"core": core, "online": True, "max_frequency_hz": hertz} for core, hertz in ((0, 1.8e9), (1, 2.4e9))]
    limits = (read("core_frequency_limit", "policy0", 1.8e9), read("core_frequency_limit", "policy1", 1.2e9))
    sampled = (*Machine().sampled(), read("core_frequency", "core:1", 1.2e9), *limits)
    path = fabricate_run(tmp_path, steps=_STEPS, cores=(Core(0.1), Core(0.9)), sampled=sampled, device={"cores": cores})
    assert detect_throttling(Run(path))[1][0] == "the clock's limit is 1.20 GHz of 2.40 GHz"
