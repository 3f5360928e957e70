"""Time, energy, memory and FLOPs of modules add up the tree."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.analysis.powered import powered, rail, times
from tests.fabricate import STEP, every_step, fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.summary import module_quantities


def _of(frame: pl.DataFrame, quantity: str) -> dict[str, dict[str, float | None]]:
    return {row["module"]: row for row in frame.filter(pl.col("quantity") == quantity).to_dicts()}


def test_flops_of_a_module_are_its_own_and_those_inside_it(tmp_path: Path) -> None:
    found = _of(module_quantities(Run(fabricate_run(tmp_path, steps=10, recorded=every_step))), "flops")
    assert found["features.0"]["forward"] == 6_000_000
    assert found["features.0"]["backward"] == 12_000_000
    assert found["features"]["own"] == 0
    assert found["features"]["total"] == 18_000_000
    assert found[""]["total"] == 21_000_000
    assert found[""]["optimizer"] is None, "no optimizer's operator states what it does"


def test_time_is_that_of_the_modules(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=10, recorded=every_step))
    found = _of(module_quantities(run), "time")
    stored = dict(run.modules().select("module", "tree_total_ns").drop_nulls().rows())
    assert {name: row["total"] for name, row in found.items()} == {name: stored[name] for name in found}


def test_what_was_not_measured_has_no_rows(tmp_path: Path) -> None:
    found = module_quantities(Run(fabricate_run(tmp_path, steps=10, recorded=every_step)))
    assert set(found["quantity"]) == {"time", "flops"}
    assert module_quantities(Run(fabricate_run(tmp_path / "b", steps=0, ops=(), model=()))).is_empty()


def test_energy_of_the_model_is_the_sum_of_its_modules_on_one_rail(tmp_path: Path) -> None:
    path = powered(tmp_path, rail("VDD_IN", 5.0, times(60)), steps=60, ops=STEP, residual_us=1000).path
    run = Run(path, "overlap")
    found = _of(module_quantities(run), "energy")
    modules = run.energy(by="module").filter(pl.col("name").is_in(["", "features", "features.0", "features.1", "fc"]))
    assert found[""]["total"] == pytest.approx(modules["joules_per_step"].sum())
    assert found["features"]["total"] <= found[""]["total"]  # type: ignore[operator]
