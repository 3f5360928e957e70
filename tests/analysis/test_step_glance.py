"""A glance at many runs says what their reports say, and a run that cannot be read costs the others nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.analysis.test_layer_times import run_with
from tests.fabricate import fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import observed_batch, quick_stats
from stepscope.runfolder.schema import STEP_ROW


def glances_of(*folders: Path) -> list[object]:
    found = quick_stats({folder: Run(folder).warmup_steps for folder in folders})
    return [found.get(folder) for folder in folders]


def value(run: Run, metric: str) -> float | None:
    rows = run.metrics().filter(metric=metric)
    return None if rows.is_empty() else float(rows["value"][0])


def test_a_glance_says_what_the_metrics_say(tmp_path: Path) -> None:
    folders = [
        fabricate_run(tmp_path / "[odd] *", steps=61, noise=0.2),
        fabricate_run(tmp_path, steps=12, noise=0.2, recorded=lambda step: step < 9),  # unprofiled steps too few
        fabricate_run(tmp_path, steps=30, noise=0.2, samples=False),
        fabricate_run(tmp_path, steps=2),  # all of it warm-up
    ]
    for folder, found in zip(folders, glances_of(*folders), strict=True):
        run = Run(folder)
        stated = (len(run.steps), value(run, "step_time"), value(run, "throughput"))
        assert (found.steps, found.step_ns, found.samples_per_s) == pytest.approx(stated)  # type: ignore[attr-defined]
        assert found.batch == observed_batch(run)  # type: ignore[attr-defined]


def test_a_damaged_file_is_left_out_and_the_others_are_read(tmp_path: Path) -> None:
    folders = [fabricate_run(tmp_path, steps=20) for _ in range(5)]
    (folders[2] / "steps.parquet").write_bytes(b"PAR1 and then nothing")
    (folders[4] / "steps.parquet").unlink()
    assert [found is None for found in glances_of(*folders)] == [False, False, True, False, True]


def test_of_a_run_that_broke_off_the_last_steps_tell(tmp_path: Path) -> None:
    folder = fabricate_run(tmp_path, steps=20)
    (folder / "steps.parquet").unlink()
    rows = np.zeros(5_000, dtype=STEP_ROW)
    rows["step"] = np.arange(len(rows))
    rows["t0_ns"], rows["t1_ns"], rows["samples"] = rows["step"] * 1000, rows["step"] * 1000 + 800, 8
    (folder / "steps.rows").write_bytes(rows.tobytes() + b"cut off")
    (found,) = glances_of(folder)
    assert (found.steps, found.step_ns, found.samples_per_s) == (5_000, 800, pytest.approx(1e7))  # type: ignore[attr-defined]


def test_steps_in_which_layers_alone_were_timed_do_not_count_as_unprofiled(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    (found,) = glances_of(run.path)
    stated = (len(run.steps), value(run, "step_time"), value(run, "throughput"))
    assert (found.steps, found.step_ns, found.samples_per_s) == pytest.approx(stated)  # type: ignore[attr-defined]
