"""The rules of a run: warm-up, steps enough, cooling down, and options that are no time, share or temperature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, repeat
from pathlib import Path

import numpy as np
import pytest

from stepscope.errors import UsageError
from stepscope.experiments.engine.child import LEAST_BYTES, refuse_memory_limit
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.suite.plan import sweep_rules
from stepscope.experiments.suite.rules import (
    FEWEST,
    RunRules,
    StopCondition,
    cool_down,
    parse_cooldown,
    steady_start,
)
from stepscope.experiments.suite.sweep import add_cooling_facts


def _clock(lengths_ms: list[float]) -> Callable[[], int]:
    times: Iterator[int] = iter([round(t * 1e6) for t in accumulate(lengths_ms)])
    return lambda: next(times)


def _steps_until_enough(rules: RunRules, lengths_ms: list[float]) -> int:
    enough = StopCondition(rules, _clock(lengths_ms))
    return next(step for step in range(1, len(lengths_ms) + 1) if enough())


def _zone(root: Path, celsius: float) -> None:
    zone = root / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "type").write_text("cpu")
    (zone / "temp").write_text(str(round(celsius * 1000)))


def test_warm_up_lasts_until_the_rest_is_alike_and_at_least_three_steps() -> None:
    steady = np.array([10.0, 10.2, 9.9, 10.1] * 10)
    slow = np.concatenate([[90.0, 60, 40, 30, 25, 20, 18, 16], steady])
    assert steady_start(steady) < 10
    assert 8 <= steady_start(slow) <= 12
    assert steady_start(np.array([5.0, 5.0])) == 2
    assert steady_start(np.array([5.0] * 6)) == 3


def test_a_single_stall_late_in_a_run_is_no_warm_up() -> None:
    lengths = np.array([10.0, 10.2, 9.9, 10.1] * 10)
    lengths[18] = 5_000.0
    assert steady_start(lengths) <= 19


def test_a_run_ends_when_the_interval_is_narrow() -> None:
    noisy = [10.0, 12.0] * 500
    assert _steps_until_enough(RunRules(interval=0.02), [10.0, 10.01] * 100) == 10
    assert _steps_until_enough(RunRules(interval=0.2), noisy) < 100


def test_a_run_ends_by_time_but_not_before_six_steps() -> None:
    assert _steps_until_enough(RunRules(seconds=1.0), list(repeat(100.0, 50))) == 11
    assert _steps_until_enough(RunRules(seconds=1.0), list(repeat(5_000.0, 50))) == FEWEST


def test_cooling_down_waits_for_the_pause_and_the_temperature(tmp_path: Path) -> None:
    _zone(tmp_path, 60.0)
    temperatures, slept = iter([52.0, 48.0, 44.0]), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        _zone(tmp_path, next(temperatures))

    cooled = cool_down(RunRules(cool_to_celsius=45.0), tmp_path, sleep)
    assert len(slept) == 3
    assert (cooled["from_celsius"], cooled["to_celsius"], cooled["reached"]) == (60.0, 44.0, True)
    assert cool_down(RunRules(pause_s=7.0), tmp_path, slept.append)["reached"]
    assert slept[-1] == 7.0


def test_a_device_that_does_not_cool_is_not_waited_for_without_end(tmp_path: Path) -> None:
    _zone(tmp_path, 60.0)
    times = iter(range(0, 10**14, 500 * 10**9))
    cooled = cool_down(RunRules(cool_to_celsius=45.0), tmp_path, lambda seconds: None, lambda: next(times))
    assert not cooled["reached"]


def test_a_temperature_to_cool_to_needs_a_sensor(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no temperature can be read here") as refused:
        parse_cooldown("45C", tmp_path)
    assert refused.value.hint == "give a time: --cooldown 30s"
    _zone(tmp_path, 40.0)
    assert parse_cooldown("45.5 C", tmp_path) == (45.5, 0.0)
    assert parse_cooldown("2min", tmp_path) == (None, 120.0)
    assert parse_cooldown(None, tmp_path) == (None, 0.0)


def test_times_and_shares_are_read_or_refused() -> None:
    asked = SuiteRun(time_limit="1.5h", wait="500ms", seconds="3", interval="2%")  # type: ignore[arg-type]
    assert (asked.time_limit, asked.wait, asked.seconds, asked.interval) == (5400.0, 0.5, 3.0, 0.02)
    for wrong in ("soon", "-3s", ""):
        with pytest.raises(UsageError, match="--time-limit"):
            SuiteRun(time_limit=wrong)  # type: ignore[arg-type]
    for wrong in ("0", "120%", "half"):
        with pytest.raises(UsageError, match="--interval"):
            SuiteRun(interval=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a share between 0 and 1"):
        sweep_rules(SuiteRun(interval=1.0))


def test_a_memory_limit_that_torch_alone_exceeds_is_refused() -> None:
    with pytest.raises(UsageError, match="less than torch alone"):
        refuse_memory_limit(LEAST_BYTES - 1)


def test_a_board_whose_temperature_cannot_be_read_keeps_its_runs_and_they_say_so() -> None:
    cooled = {"waited_s": 0.0, "from_celsius": None, "to_celsius": None, "reached": False}
    found = add_cooling_facts({"flags": [], "wall_s": 1.0}, cooled)
    assert found["flags"] == ["begun without cooling: no temperature was read"]


def test_a_run_ends_by_itself_before_its_time_limit() -> None:
    by_interval = sweep_rules(SuiteRun(interval=0.01))
    assert by_interval["seconds"] < by_interval["time_limit_s"] == 900
    long = sweep_rules(SuiteRun(seconds=1200))
    assert long["seconds"] < long["time_limit_s"]
    with pytest.raises(UsageError, match="ends within 60 s"):
        sweep_rules(SuiteRun(seconds=100, time_limit=60))
