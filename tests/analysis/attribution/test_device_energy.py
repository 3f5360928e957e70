"""The energy of the rail that stands for the whole device, without the time that the others take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.analysis.attribution.powered_run import powered_run

from stepscope.analysis.energy import rail_fits
from stepscope.analysis.run import Run


def behind_two_rails(out: Path) -> Path:
    """A run whose cores have a rail of their own, of 40 % of the power."""
    path = powered_run(out, steps=120)
    power = path / "samples" / "power.parquet"
    pl.read_parquet(power).with_columns(vdd_cpu=(0.4 * pl.col("vdd_in")).round(3)).write_parquet(power)
    described = json.loads((path / "channels.json").read_text(encoding="utf-8"))
    (whole,) = (entry for entry in described["channels"] if entry["id"] == "vdd_in")
    cores = {**whole, "id": "vdd_cpu", "scope": "rail:VDD_CPU_GPU_CV", "rail": "VDD_CPU_GPU_CV"}
    described["channels"].append(cores)
    (path / "channels.json").write_text(json.dumps(described), encoding="utf-8")
    device = json.loads((path / "device.json").read_text(encoding="utf-8"))
    device["board"] = "NVIDIA Jetson Orin NX"
    (path / "device.json").write_text(json.dumps(device), encoding="utf-8")
    return path


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rails that were fitted, in order."""
    rails: list[str] = []
    fit = rail_fits._fit_rail

    def noted(run: Any, rail: Any, *options: Any, **more: Any) -> Any:
        rails.append(rail.line.name)
        return fit(run, rail, *options, **more)

    monkeypatch.setattr(rail_fits, "_fit_rail", noted)
    return rails


def test_the_rail_of_the_whole_device_is_fitted_alone_and_as_among_the_others(
    tmp_path: Path, fitted: list[str]
) -> None:
    path = behind_two_rails(tmp_path)
    alone = Run(path).device_energy("kind")
    assert alone["rail"].unique().to_list() == fitted == ["VDD_IN"]
    assert (alone["verdict"] == "resolved").any()
    whole = Run(path).energy("kind")
    assert sorted(whole["rail"].unique()) == ["VDD_CPU_GPU_CV", "VDD_IN"]
    assert_frame_equal(alone, whole.filter(rail="VDD_IN"), rel_tol=1e-9)


def test_once_all_rails_are_fitted_nothing_is_fitted_again(tmp_path: Path, fitted: list[str]) -> None:
    run = Run(behind_two_rails(tmp_path))
    whole = run.energy("module")
    count = len(fitted)
    assert_frame_equal(run.device_energy("module"), whole.filter(rail="VDD_IN"))
    assert len(fitted) == count


def test_where_nothing_could_be_called_known_nothing_is_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rail_fits, "attribute_energy", lambda *_: pytest.fail("a fit whose parts nobody vouches for"))
    energy = Run(powered_run(tmp_path, steps=200, keep_every=60)).device_energy("module")
    assert energy["verdict"].to_list() == ["not identifiable"]
    assert energy["joules_per_step"].to_list() == [None]
    assert "profiled steps cannot tell" in energy["reason"][0]


def test_without_a_sensor_there_is_no_row(tmp_path: Path) -> None:
    path = powered_run(tmp_path, steps=20)
    (path / "samples" / "power.parquet").unlink()
    assert Run(path).device_energy().is_empty()
