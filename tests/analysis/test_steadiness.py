"""Drift, changes of level, clocks, heat and throttling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fabricate import Sampled, fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.time.tracks import clocks_and_heat, drift, step_time_level_changes
from stepscope.report.page.parts import Items
from stepscope.report.sections.step_times import build


def _unrecorded(_: int) -> bool:
    return False


def _channel(quantity: str, unit: str, values: Any) -> Sampled:
    t_ns = np.arange(len(values)) * 10_000_000
    shared = {"unit": unit, "kind": "gauge", "scope": "zone:cpu", "sensor": quantity, "refresh_ns": None}
    channel = {"id": f"{quantity}.cpu", "quantity": quantity, "source": "synthetic", **shared}
    return Sampled(channel, t_ns, np.array(values, dtype=np.float64))


def test_a_run_that_grows_slower_has_a_clear_drift(tmp_path: Path) -> None:
    found = drift(Run(fabricate_run(tmp_path, steps=100, recorded=_unrecorded, drift=0.5, noise=0.01)))
    assert found is not None
    assert found.is_clear
    assert found.ratio == pytest.approx(1.45 / 1.05, rel=0.05)


def test_a_steady_run_has_none(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=100, recorded=_unrecorded, noise=0.02))
    found = drift(run)
    assert found is not None
    assert not found.is_clear
    assert step_time_level_changes(run) == []
    lists = [part for part in build(run).parts if isinstance(part, Items)]
    said = " ".join(f"{sentence} {why}" for items in lists for sentence, why in items.rows)
    assert "Cannot tell whether the run drifts" in said
    assert "95 % CIs" in said
    assert "kept its level" not in said


def test_too_few_steps_are_not_judged(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=20))
    assert drift(run) is None
    assert step_time_level_changes(run) is None


def test_heat_is_shown_as_read_and_a_gap_begins_with_null(tmp_path: Path) -> None:
    heat = _channel("temperature", "degC", [40.0, 41.0, np.nan, np.nan, 44.0])
    watched = clocks_and_heat(Run(fabricate_run(tmp_path, sampled=(heat,))))
    assert watched["value"].to_list() == [40.0, 41.0, None, 44.0]
    assert watched["unit"].unique().to_list() == ["degC"]
