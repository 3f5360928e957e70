"""Clocks, governor and power limits that tune changes: what there is, who writes them, and that they are put back."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until
from tests.tune.fake_training import FakePlace, FakePower, FakeTraining

from stepscope.errors import UsageError
from stepscope.experiments.tune import device_settings
from stepscope.experiments.tune.changes import Change, all_changes, select_changes
from stepscope.experiments.tune.device_settings import DeviceSettings, settings_found


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """The files of two clusters, of which the second is slower, of a GPU and of a power limit."""
    for policy, highest in ((0, 2_000_000), (4, 1_200_000)):
        folder = tmp_path / f"sys/devices/system/cpu/cpufreq/policy{policy}"
        folder.mkdir(parents=True)
        texts = {"scaling_max_freq": highest, "scaling_min_freq": 400_000, "scaling_governor": "ondemand",
                 "scaling_available_governors": "ondemand performance",
                 "scaling_available_frequencies": f"400000 800000 1400000 {highest}"}  # fmt: skip
        for name, text in texts.items():
            (folder / name).write_text(f"{text}\n")
    gpu = tmp_path / "sys/class/devfreq/17000000.ga10b"
    gpu.mkdir(parents=True)
    for name, text in (("max_freq", 900), ("min_freq", 600), ("available_frequencies", "300 600 900")):
        (gpu / name).write_text(f"{text}\n")
    limit = tmp_path / "sys/class/powercap/intel-rapl:0"
    limit.mkdir(parents=True)
    (limit / "constraint_0_power_limit_uw").write_text("15000000\n")
    return tmp_path


def _clock(board: Path, policy: int = 0) -> Path:
    return board / f"sys/devices/system/cpu/cpufreq/policy{policy}/scaling_max_freq"


def _changes(board: Path, allowed: bool = True) -> dict[str, Change]:
    return all_changes({"device_settings": settings_found(board), "apply_power": allowed})


def test_a_share_of_a_limit_is_rounded_down_to_a_clock_that_there_is(board: Path) -> None:
    known = _changes(board)
    assert list(known["cpu-clock=75%"].writes.values()) == ["1400000", "800000"]
    assert list(known["cpu-clock=50%"].writes.values()) == ["800000", "400000"]
    assert list(known["gpu-clock=75%"].writes.values()) == ["600"]
    assert list(known["power-limit=50%"].writes.values()) == ["7500000"]
    assert set(known["governor=performance"].writes.values()) == {"performance"}
    assert known["cpu-clock=75%"].code.startswith("echo 1400000 | sudo tee ")


def test_no_clock_below_the_least_that_is_allowed_is_tried(board: Path) -> None:
    assert _changes(board)["gpu-clock=50%"].refused == "nothing lower can be chosen"


def test_without_permission_each_setting_says_how_it_is_given(board: Path) -> None:
    known = _changes(board, allowed=False)
    assert "--apply-power" in known["cpu-clock=75%"].refused
    assert "--apply-power" in known["governor=performance"].refused
    assert "cpufreq" in all_changes({})["cpu-clock=75%"].refused


def test_lower_clocks_are_tried_for_energy_alone_and_the_governor_for_time_as_well(board: Path) -> None:
    names = {goal: {change.name for change in select_changes(_changes(board).values(), goal, (), ())}
             for goal in ("time", "energy", "memory")}  # fmt: skip
    assert {"cpu-clock=50%", "power-limit=75%", "governor=performance"} <= names["energy"]
    assert "governor=performance" in names["time"]
    assert not any(
        name.startswith(("cpu-clock", "gpu-clock", "power-limit", "gpu-power-limit"))
        for name in names["time"] | names["memory"]
    )


def test_a_setting_is_there_as_long_as_it_is_changed_and_then_as_it_was(board: Path) -> None:
    writes = _changes(board)["cpu-clock=50%"].writes
    with DeviceSettings(str(board), allowed=True) as device:
        for _ in range(2):
            with device.changed(writes):
                assert [_clock(board, policy).read_text() for policy in (0, 4)] == ["800000", "400000"]
            assert [_clock(board, policy).read_text().strip() for policy in (0, 4)] == ["2000000", "1200000"]


def test_what_was_changed_before_one_that_fails_is_put_back(board: Path) -> None:
    with DeviceSettings(str(board)) as device:
        writes = {str(_clock(board)): "800000", str(board / "absent"): "1"}
        with pytest.raises(UsageError, match="absent") as caught, device.changed(writes):
            pytest.fail("nothing may run with half of it")
        assert "--not" in str(caught.value.hint)
        assert _clock(board).read_text().strip() == "2000000"


def test_settings_are_put_back_where_whoever_changed_them_is_killed(board: Path) -> None:
    text = f"""
import time
from stepscope.experiments.tune.device_settings import DeviceSettings
with DeviceSettings(), DeviceSettings().changed({{{str(_clock(board))!r}: "800000"}}):
    print("changed", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "changed\n"
        assert _clock(board).read_text() == "800000"
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: _clock(board).read_text() == "2000000")


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that holds the limit of a card, W, and an `nvidia-smi` that reads and writes it."""
    limit = tmp_path / "limit"
    limit.write_text("250.00")
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
case "$*" in
    "--query-gpu=index,power.limit,power.min_limit "*) echo "0, $(cat {limit}), 150.00" ;;
    "-i 0 --query-gpu=power.limit "*) cat {limit} ;;
    "-i 0 -pl 4"*) echo "Provided power limit is not a valid power limit"; exit 2 ;;
    "-i 0 -pl "*) printf '%s.00' "${{4%.*}}" > {limit} ;;
    *) exit 6 ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return limit


def test_the_power_limit_of_a_card_is_set_within_its_bounds_and_put_back(card: Path, tmp_path: Path) -> None:
    found = settings_found(tmp_path, asks_driver=True)
    known = all_changes({"device_settings": found, "apply_power": True, "gpu": "a card"})
    assert known["gpu-power-limit=50%"].refused == "nothing lower can be chosen"
    change = known["gpu-power-limit=75%"]
    assert change.refused == ""
    assert change.code == "sudo nvidia-smi -i 0 -pl 187"
    with DeviceSettings(str(tmp_path), allowed=True) as device, device.changed(change.writes):
        assert card.read_text() == "187.00"
    assert card.read_text() == "250.00"


def test_what_the_driver_refuses_is_told_in_its_words(card: Path) -> None:
    with (
        DeviceSettings(allowed=True) as device,
        pytest.raises(UsageError, match="not a valid power limit"),
        device.changed({"nvidia-smi -i 0": "400"}),
    ):
        pytest.fail("nothing may run with it")
    assert card.read_text() == "250.00"


def test_without_a_card_or_without_permission_no_driver_is_asked(card: Path, tmp_path: Path) -> None:
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert settings_found(tmp_path, asks_driver=True)["gpu-power-limit"] == []
    assert "--apply-power" in all_changes({"gpu": "a card"})["gpu-power-limit=75%"].refused
    assert "states no power limit" in all_changes({})["gpu-power-limit=75%"].refused


class _Looking(FakeTraining):
    """A training that notes the clock in each of its blocks."""

    def __init__(self, clock: Path) -> None:
        super().__init__({})
        self.clock, self.clocks = clock, list[tuple[str, Any]]()
        self.at_clock: dict[int, str] = {}

    def open_training(self, changes: Sequence[Change], facts: Any) -> FakePlace:
        training = self

        class Place(FakePlace):
            def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
                clock = training.clock.read_text().strip()
                training.clocks.append((clock, tuple(command.get("changes", []))))
                answer = super().ask(limit_s, **command)
                training.at_clock[answer.get("t0_ns", -1)] = clock
                return answer

        return Place(self, ())


def test_the_device_is_changed_for_the_changed_block_alone_and_the_training_is_told_nothing_of_it(board: Path) -> None:
    training = _Looking(_clock(board))

    class Clocked(FakePower):
        def watts(self, t0_ns: int, t1_ns: int) -> float | None:
            clock = training.at_clock[t0_ns]
            return 10.0 * (0.4 if clock == "800000" else 1.0)

    training.power = Clocked(training, {})
    with DeviceSettings(str(board), allowed=True) as training.device:
        tuned = training.tuning(goal="energy", only=("cpu-clock=50%",))
    assert {clock for clock, _ in training.clocks} == {"800000", "2000000"}
    assert {names for _, names in training.clocks} == {()}
    assert tuned.arms["cpu-clock=50%"].interval()[0] == pytest.approx(0.4, rel=0.02)
    assert tuned.best() is not None
    assert _clock(board).read_text().strip() == "2000000"


@pytest.mark.parametrize(("taken", "refused"), [("790000", False), ("400000", True)])
def test_a_number_that_the_kernel_rounds_is_taken_and_another_one_is_not(
    board: Path, taken: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str) -> str:
        text = Path(path).read_text().strip()
        return taken if text == "800000" else text

    monkeypatch.setattr(device_settings, "_text", read)
    answers = io.StringIO()
    device_settings.obey(io.StringIO(json.dumps({"set": {str(_clock(board)): "800000"}}) + "\n"), answers)
    assert bool(json.loads(answers.getvalue())["failed"]) == refused
    assert _clock(board).read_text() == "2000000"
