"""Use of CPU and memory controller by op, from counters and gauges whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.analysis.attribution.powered_run import OTHER_W, WATTS, powered_run

from stepscope.analysis.energy.operators import _reason_uninformative, utilisation_by
from stepscope.analysis.run import Run
from stepscope.errors import UnknownName


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose power gauge is told to be the busy share of a memory controller, a tenth of the watts."""
    made = powered_run(tmp_path_factory.mktemp("runs"))
    described = json.loads((made / "channels.json").read_text(encoding="utf-8"))
    for entry in described["channels"]:
        if entry["id"] == "vdd_in":
            entry |= {"quantity": "utilisation", "unit": "1", "scope": "emc", "rail": None}
    (made / "channels.json").write_text(json.dumps(described), encoding="utf-8")
    samples = made / "samples" / "power.parquet"
    pl.read_parquet(samples).with_columns(pl.col("vdd_in") / 10).write_parquet(samples)
    return made


def test_the_use_of_each_kind_is_what_it_truly_was(path: Path) -> None:
    frame = Run(path).utilisation(by="kind").filter(quantity="utilisation", scope="emc")
    resolved = frame.filter(verdict="resolved")
    assert len(resolved) > 0
    for row in resolved.iter_rows(named=True):
        if not row["name"].startswith("("):
            assert row["mean"] == pytest.approx(WATTS.get(row["name"], OTHER_W) / 10, rel=0.1)
            assert row["low"] <= row["mean"] <= row["high"]
    assert frame["share"].sum() == pytest.approx(1.0, abs=0.02)


def test_a_confidence_interval_beyond_what_there_is_says_nothing(path: Path) -> None:
    use = next(use for use in Run(path).use_of_ops if use.quantity == "utilisation")
    assert (utilisation_by([use])["verdict"] == "resolved").any()
    frame = utilisation_by([replace(use, most=1e-6)]).filter(pl.col("mean") > 0)
    assert set(frame["verdict"]) == {"not identifiable"}
    assert "its CI lies above all that there is" in set(frame["reason"])
    assert frame["low"].is_null().all()


def test_a_use_that_is_disowned_has_no_interval(path: Path) -> None:
    use = next(use for use in Run(path).use_of_ops if use.quantity == "utilisation")
    assert use.fit is not None
    disowned = replace(use.fit, misfit=replace(use.fit.misfit, fatal="readings fit nothing that ran"))
    frame = utilisation_by([replace(use, fit=disowned)])
    assert frame["low"].is_null().all()
    assert frame["high"].is_null().all()
    assert frame["mean"].sum() > 0
    assert set(frame["reason"]) == {"readings fit nothing that ran"}


def test_a_confidence_interval_of_everything_says_nothing() -> None:
    assert _reason_uninformative(-0.5, 2.5, 2.0) == "its CI holds everything from none to all"
    assert _reason_uninformative(1.9, 2.1, 2.0) == ""
    assert _reason_uninformative(-0.5, 0.5, 2.0) == ""


@pytest.mark.parametrize("by", ["kind", "module", "phase", "op"])
def test_every_way_to_divide_has_all_of_the_time(path: Path, by: str) -> None:
    run = Run(path)
    frame = run.utilisation(by=by).filter(quantity="utilisation", scope="emc")
    steps = run.steps.slice(run.warmup_steps)
    span = (int(steps["t1_ns"][-1]) - int(steps["t0_ns"][0])) / 1e9 / len(steps)
    assert frame["seconds_per_step"].sum() == pytest.approx(span, rel=0.01)


def test_a_way_to_divide_that_is_none_is_refused(path: Path) -> None:
    with pytest.raises(UnknownName, match="divide utilisation"):
        Run(path).utilisation(by="colour")


def test_energy_has_a_column_per_sample(tmp_path: Path) -> None:
    run = Run(powered_run(tmp_path, steps=120))
    frame = run.energy(by="kind")
    batch = float(np.mean(run.steps["samples"].to_numpy()))
    assert frame["joules_per_sample"].to_numpy() == pytest.approx(frame["joules_per_step"].to_numpy() / batch)
