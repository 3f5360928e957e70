"""The bars of single steps: however many steps were profiled, no more than asked for, spread over the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fabricate import every_step, fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.time.tables import UNPROFILED, phases_by_step


@pytest.mark.parametrize("most", [10, 25])
def test_of_a_run_whose_steps_were_all_profiled_some_are_shown_from_the_first_to_the_last(
    tmp_path: Path, most: int
) -> None:
    run = Run(fabricate_run(tmp_path, steps=60, recorded=every_step, noise=0.02))
    shown = phases_by_step(run, most)
    steps = shown["step"].unique().sort()
    assert len(steps) == most
    assert (steps[0], steps[-1]) == (run.warmup_steps, 59)
    assert UNPROFILED not in set(shown["phase"])


def test_profiled_steps_are_all_shown_and_others_fill_the_room(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=60, recorded=lambda step: step % 10 == 5, noise=0.02))
    shown = phases_by_step(run, 30)
    profiled = shown.filter(shown["phase"] != UNPROFILED)["step"].unique().sort().to_list()
    assert profiled == [5, 15, 25, 35, 45, 55]
    assert shown["step"].n_unique() == 30
