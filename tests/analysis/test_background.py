"""Cores that others kept busy are told from the trainer's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fabricate import Core, fabricate_run

from stepscope.analysis.metrics import Measured, background_cpu_load, background_warning
from stepscope.analysis.run import Run


def core(number: int, value: float) -> Measured:
    return Measured("core_utilisation", f"core:{number}", value, "1", value - 0.02, value + 0.02, 50)


def process(value: float, scope: str = "process") -> Measured:
    return Measured("process_cpu_utilisation", scope, value, "cores", value - 0.02, value + 0.02, 50)


def test_what_neither_the_trainer_nor_its_children_used_is_others() -> None:
    use = background_cpu_load([core(0, 1.0), core(1, 0.9), process(1.1), process(0.2, "children")])
    assert use[0].value == pytest.approx(0.6)
    assert use[0].low == pytest.approx(0.56)  # four errors of 0.02 that are independent of each other
    assert "0.6 cores" in background_warning(use)


def test_a_machine_of_ones_own_gives_no_warning() -> None:
    use = background_cpu_load([core(0, 1.0), core(1, 0.05), process(1.0)])
    assert use[0].value == pytest.approx(0.05)
    assert background_warning(use) == ""


def test_without_the_trainers_own_time_nothing_is_said() -> None:
    assert background_cpu_load([core(0, 1.0), process(0.5, "children")]) == []
    assert background_cpu_load([process(1.0)]) == []


def test_cores_of_a_simulated_board_less_processes_of_this_machine_are_no_background_load(tmp_path: Path) -> None:
    board = {"simulated": "raspberry-pi-5"}
    run = Run(fabricate_run(tmp_path, steps=60, cores=(Core(0.97), Core(0.97)), process_cores=0.5, header=board))
    assert not any("Background" in caution for caution in run.verdict().cautions)
