"""Tune with energy to improve: planted power, the sampling process that reads it, and what is refused."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tune.fake_training import FakePower, FakeTraining

import stepscope
from stepscope.errors import UsageError
from stepscope.experiments.tune import TuneRequest
from stepscope.experiments.tune.device_power import DevicePower, PowerLost
from stepscope.experiments.tune.experiment import Tuning
from stepscope.experiments.tune.judge import judge
from stepscope.experiments.tune.pair_statistics import Arm
from stepscope.record.meters import parse_meters
from stepscope.record.settings import Metering


def _tuning(times: dict[str, float], powers: dict[str, float], **rules: Any) -> Tuning:
    training = FakeTraining(times)
    training.power = FakePower(training, powers)
    return training.tuning(goal="energy", **rules)


def test_a_slower_change_that_needs_half_the_power_is_first() -> None:
    tuned = _tuning({"threads=2": 1.2, "fused": 0.9}, {"threads=2": 0.5}, only=("threads=2", "fused"))
    found = judge(tuned, "t")
    helps = found.tables[0]
    row: dict[str, Any] = dict(zip(helps.columns, next(r for r in helps.rows if r[1] == "threads=2"), strict=True))
    assert row["gain %"] == pytest.approx(40, abs=2)
    assert row["low %"] < 40 < row["high %"]
    assert row["time %"].startswith("+")
    assert float(row["time %"]) == pytest.approx(20, abs=2)
    assert row["as is mJ"] == pytest.approx(100, rel=0.05)  # 10 ms at 10 W
    assert row["step mJ"] == pytest.approx(60, rel=0.05)
    assert tuned.winners()[0].name == "threads=2"


def test_the_answer_is_in_joules_and_states_the_time_beside_it() -> None:
    found = judge(_tuning({"threads=2": 1.2}, {"threads=2": 0.5}, only=("threads=2",)), "t")
    assert "mJ per step instead of" in found.answer
    assert "less energy" in found.answer
    assert "more time" in found.answer
    assert "Energy is of a plant." in found.notes
    assert "Gain: less energy a step" in (found.tables[0].note or "")


def test_energy_that_was_estimated_never_has_the_name_of_what_was_measured() -> None:
    training = FakeTraining({"fused": 0.8})
    training.power = FakePower(training, {})
    training.power.estimated = True
    found = judge(training.tuning(goal="energy", only=("fused",)), "t")
    assert "less estimated energy" in found.answer
    assert "less estimated energy a step" in (found.tables[0].note or "")


def test_a_faster_change_that_takes_more_energy_is_named_so() -> None:
    found = judge(_tuning({"fused": 0.8}, {"fused": 1.5}, only=("fused",)), "t")
    verdicts = {row[0]: row[4] for table in found.tables if table.name == "no-gain" for row in table.rows}
    assert verdicts == {"fused": "takes more energy"}
    assert "None" in found.answer or "not certain" in found.answer


def test_what_two_changes_gain_together_is_of_energy_and_its_time_of_time() -> None:
    times, powers = {"fused": 0.8, "threads=2": 1.1}, {"threads=2": 0.6}
    tuned = _tuning(times, powers, only=("fused", "threads=2"))
    both = next(
        arm for arm in tuned.arms.values() if set(arm.changes) == {"fused", "threads=2"} and arm.name != "final"
    )
    assert both.interval()[0] == pytest.approx(0.8 * 1.1 * 0.6, rel=0.03)
    assert both.time_ratio == pytest.approx(0.8 * 1.1, rel=0.03)
    assert both.power_ratio == pytest.approx(0.6, rel=0.03)


def test_a_block_takes_as_long_as_the_sensor_needs_also_with_a_change_that_is_much_faster() -> None:
    tuned = _tuning({"fused": 0.2}, {}, only=("fused",))
    spans = [blocks[at : at + 2] for blocks in tuned.arms["fused"].blocks_ns for at in (0, 2)]
    assert min(t1_ns - t0_ns for t0_ns, t1_ns in spans) >= 0.7 * 2e9


def test_a_pair_whose_power_was_not_read_is_made_again_and_counts_for_nothing() -> None:
    training = FakeTraining({"fused": 0.9})
    training.power = FakePower(training, {}, unread=(1, 4, 5))
    arm = training.tuning(goal="energy", only=("fused",)).arms["fused"]
    assert len(arm.pairs) == len(arm.as_is_w) == len(arm.changed_w) == len(arm.blocks_ns)
    assert arm.interval()[0] == pytest.approx(0.9, rel=0.02)


def test_power_that_is_lost_ends_the_experiment_with_what_it_has() -> None:
    class Dies(FakePower):
        def watts(self, t0_ns: int, t1_ns: int) -> float | None:
            if len(self.spans) >= 14:
                raise PowerLost("the power sensors give no readings any more")
            return super().watts(t0_ns, t1_ns)

    training = FakeTraining({"fused": 0.9})
    training.power = Dies(training, {})
    tuned = training.tuning(goal="energy", only=("fused",))
    assert len(tuned.arms["fused"].pairs) == 7
    assert any("no readings any more" in note for note in judge(tuned, "t").notes)


def test_without_a_single_pair_lost_power_is_an_error() -> None:
    class Dead(FakePower):
        def watts(self, t0_ns: int, t1_ns: int) -> float | None:
            raise PowerLost("the power sensors give no readings any more")

    training = FakeTraining({"fused": 0.9})
    training.power = Dead(training, {})
    with pytest.raises(PowerLost):
        training.tuning(goal="energy", only=("fused",))


@pytest.mark.parametrize("watts", [[1.0], [1.0, -1.0], [0.0, 1.0]])
def test_kept_power_that_cannot_have_been_measured_is_refused(watts: list[float]) -> None:
    pairs = {"pairs": [[0.1, 0], [0.1, 0]], "as_is_s": [1.0, 1.0], "changed_s": [1.0, 1.0], "status": "measured"}
    with pytest.raises(ValueError, match="power"):
        Arm.from_dict({"name": "fused", "changes": ["fused"], **pairs, "as_is_w": watts, "changed_w": [1.0, 1.0]})


def _meter(text: str) -> Metering:
    command = shlex.join([sys.executable, "-c", text])
    return Metering(parse_meters((), (command,)), characterise=False)


_OF_LOAD = """
import time
while True:
    print(30 if {busy} else 10, flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def device_power(tmp_path: Path) -> Iterator[Callable[[str], DevicePower]]:
    opened = []

    def start(text: str) -> DevicePower:
        opened.append(DevicePower(tmp_path / "power", _meter(text)))
        return opened[-1]

    yield start
    for power in opened:
        power.close()


def test_the_mean_power_of_a_block_is_that_of_the_block_and_not_of_what_was_before(
    device_power: Callable[[str], DevicePower], tmp_path: Path
) -> None:
    busy = tmp_path / "busy"
    power = device_power("import os" + _OF_LOAD.format(busy=f"os.path.exists({str(busy)!r})"))
    means = []
    for _ in range(2):
        began_ns = time.monotonic_ns()
        time.sleep(power.block_s)
        means.append(power.watts(began_ns, time.monotonic_ns()))
        busy.touch()
        time.sleep(1.0)
    assert means == [pytest.approx(10, rel=0.02), pytest.approx(30, rel=0.02)]
    assert "meter" in power.note


def test_an_experiment_that_holds_too_few_blocks_is_refused_with_the_minutes_that_it_needs(
    device_power: Callable[[str], DevicePower],
) -> None:
    power = device_power(_OF_LOAD.format(busy=False))
    power.refuse_short(24 * power.block_s)
    with pytest.raises(UsageError, match="too few") as caught:
        power.refuse_short(23 * power.block_s)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("--minutes ")


_ZERO = "import time\nwhile True:\n    print(0, flush=True)\n    time.sleep(0.02)"


def test_a_meter_that_reads_zero_is_refused_at_once(device_power: Callable[[str], DevicePower]) -> None:
    with pytest.raises(UsageError, match="reads 0 W"):
        device_power(_ZERO)


def test_the_reason_why_a_named_meter_fails_is_told_with_what_to_do(device_power: Callable[[str], DevicePower]) -> None:
    with pytest.raises(UsageError, match="no watts here") as caught:
        device_power("import time\nwhile True:\n    print('no watts here', flush=True)\n    time.sleep(0.02)")
    assert "a line with the power in W" in str(caught.value.hint)


def test_a_meter_that_falls_to_zero_ends_it(device_power: Callable[[str], DevicePower], tmp_path: Path) -> None:
    off = tmp_path / "off"
    power = device_power(
        "import os" + _OF_LOAD.format(busy="False").replace("10", f"0 if os.path.exists({str(off)!r}) else 10")
    )
    off.touch()
    time.sleep(0.3)
    began_ns = time.monotonic_ns()
    time.sleep(power.block_s)
    ended_ns = time.monotonic_ns()
    assert [power.watts(began_ns, ended_ns) for _ in range(5)] == [None] * 5
    with pytest.raises(PowerLost, match="above 0 W"):
        power.watts(began_ns, ended_ns)


def test_a_sampling_process_that_is_gone_is_told(device_power: Callable[[str], DevicePower]) -> None:
    power = device_power(_OF_LOAD.format(busy=False))
    assert power._sampler is not None
    os.kill(power._sampler.pid, 9)
    with pytest.raises(PowerLost, match="has ended"):
        power.watts(time.monotonic_ns() + 10**9, time.monotonic_ns() + 2 * 10**9)


def test_a_meter_that_ends_is_lost_and_says_why(device_power: Callable[[str], DevicePower], tmp_path: Path) -> None:
    end = tmp_path / "end"
    power = device_power(
        "import os, sys, time\n"
        f"while not os.path.exists({str(end)!r}):\n    print(10, flush=True)\n    time.sleep(0.02)\n"
        "sys.exit('no more watts')"
    )
    end.touch()
    time.sleep(0.3)
    began_ns = time.monotonic_ns()
    with pytest.raises(PowerLost, match="no more watts"):
        power.watts(began_ns, began_ns + 10**9)


def test_pairs_that_were_too_short_for_a_sensor_that_turns_out_to_be_slow_do_not_count() -> None:
    class Slow(FakePower):
        def watts(self, t0_ns: int, t1_ns: int) -> float | None:
            self.block_s = 2.0 if len(self.spans) < 12 else 8.0
            return super().watts(t0_ns, t1_ns)

    training = FakeTraining({"fused": 0.9})
    training.power = Slow(training, {})
    arm = training.tuning(goal="energy", only=("fused",)).arms["fused"]
    assert min(block[1] - block[0] for block in arm.blocks_ns) >= 0.7 * 8e9
    assert len(arm.pairs) == len(arm.blocks_ns) == len(arm.as_is_w) == len(arm.fastest)


def test_a_pair_of_a_combination_that_was_too_short_does_not_count_either() -> None:
    training = FakeTraining({})
    training.power = FakePower(training, {})
    tuned = training.tuning(goal="energy", only=("fused", "foreach"))
    place, step = training.open_training((), {}), Arm("fused + foreach", ("fused", "foreach"))
    tuned._pair(place, place, step)
    training.power.block_s = 10 * training.power.block_s
    tuned._pair(place, place, step)
    assert len(step.pairs) == len(step.as_is_w) == 1


def test_without_a_sensor_and_a_meter_energy_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(UsageError, match="power") as caught:
        DevicePower(tmp_path / "power", Metering(characterise=False), str(tmp_path / "root"))
    assert "--plug" in str(caught.value.hint)


def test_a_meter_is_refused_where_energy_is_not_to_improve() -> None:
    with pytest.raises(UsageError, match="--plug"):
        TuneRequest("lenet", plug=("termux",)).orders()
    with pytest.raises(UsageError, match="--power-model"):
        stepscope.tune("lenet", power_model="cpu=2W..15W")
