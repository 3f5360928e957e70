"""A second report starts from what the first one found; a file that cannot be trusted is not used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.analysis.attribution.powered_run import powered_run

from stepscope.analysis import result_cache
from stepscope.analysis.energy import rail_fits
from stepscope.analysis.energy.calibration import fit_sensor_model
from stepscope.analysis.energy.calibration_store import stored_calibrations
from stepscope.analysis.run import Run
from stepscope.errors import UnknownName

RAILS = "calibration-rails"


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pl.DataFrame]:
    """A run that has been reported once, and its energy by kind."""
    path = powered_run(tmp_path_factory.mktemp("reported"), steps=200)
    return path, Run(path).energy(by="kind")


def test_a_second_report_says_the_same_without_looking_again(
    reported: tuple[Path, pl.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, first = reported

    def refuse(*_: object) -> None:
        raise AssertionError("calibrated again")

    monkeypatch.setattr("stepscope.analysis.energy.attribution.fit_sensor_model", refuse)
    assert_frame_equal(Run(path).energy(by="kind"), first)


def test_a_second_reader_fits_nothing(
    reported: tuple[Path, pl.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(reported[0], copy)
    first = [Run(copy).energy(by="module"), Run(copy).energy_resolution(), Run(copy).utilisation()]

    def refuse(*_: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr("stepscope.analysis.energy.rail_fits.attribute_energy", refuse)
    monkeypatch.setattr("stepscope.analysis.energy.operators.attribute_energy", refuse)
    again = Run(copy)
    for before, now in zip(first, [again.energy(), again.energy_resolution(), again.utilisation()], strict=True):
        assert_frame_equal(before, now)


@pytest.mark.parametrize("damage", ["readings", "table"])
def test_a_table_of_other_readings_or_a_damaged_one_is_made_anew(
    reported: tuple[Path, pl.DataFrame], tmp_path: Path, damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(reported[0], copy)
    before = Run(copy).energy(by="kind")
    (table,) = (copy / ".cache").glob("energy-kind.*.parquet")
    if damage == "table":
        table.write_bytes(b"PAR1")
        assert_frame_equal(Run(copy).energy(by="kind"), before)
        return
    samples = copy / "samples" / "power.parquet"
    pl.read_parquet(samples).with_columns(pl.col("vdd_in") * 2).write_parquet(samples)
    after = Run(copy).energy(by="kind")
    assert after["joules_per_step"].sum() == pytest.approx(2 * before["joules_per_step"].sum(), rel=1e-6)
    assert len(list((copy / ".cache").glob("energy-kind.*.parquet"))) == 1


def test_a_way_that_does_not_exist_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    run = Run(powered_run(tmp_path, steps=60))
    for ask in (run.energy, run.utilisation):
        with pytest.raises(UnknownName):
            ask(by="colour")
    assert not (run.path / ".cache").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"vdd_in": null}', '{"vdd_in": {"first": {}}}'])
def test_what_cannot_be_read_is_not_used(reported: tuple[Path, pl.DataFrame], tmp_path: Path, content: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(reported[0], copy)
    (stored,) = (copy / ".cache").glob(f"{RAILS}.*.json")
    stored.write_text(content, encoding="utf-8")
    assert stored_calibrations(Run(copy).results, RAILS) == {}


def test_numbers_of_other_steps_are_not_used(reported: tuple[Path, pl.DataFrame], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(reported[0], copy)
    assert stored_calibrations(Run(copy).results, RAILS)
    pl.read_parquet(copy / "steps.parquet").head(-1).write_parquet(copy / "steps.parquet")
    assert stored_calibrations(Run(copy).results, RAILS) == {}


def test_numbers_of_another_version_of_the_program_are_not_used(
    reported: tuple[Path, pl.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stored_calibrations(Run(reported[0]).results, RAILS)
    monkeypatch.setattr("stepscope.analysis.result_cache.VERSION", 0)
    assert stored_calibrations(Run(reported[0]).results, RAILS) == {}


def test_a_folder_with_the_results_of_an_older_version_opens_and_they_are_left_alone(
    reported: tuple[Path, pl.DataFrame], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(reported[0], copy, ignore=shutil.ignore_patterns(".cache"))
    older = [copy / "attribution" / "energy-kind.0123456789abcdef.parquet", copy / "calibration.json"]
    older[0].parent.mkdir()
    for path in older:
        path.write_text('{"version": 2}', encoding="utf-8")
    assert_frame_equal(Run(copy).energy(by="kind"), reported[1])
    assert [path.read_text(encoding="utf-8") for path in older] == ['{"version": 2}'] * 2


def test_a_folder_that_cannot_be_written_is_reported_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = powered_run(tmp_path, steps=60)

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert len(Run(path).energy(by="kind")) > 1
    assert not list((path / ".cache").iterdir())


def _two_channels(path: Path) -> None:
    """A second channel of the same chip: the same power, halved."""
    samples = path / "samples" / "power.parquet"
    pl.read_parquet(samples).with_columns(vdd_cpu=pl.col("vdd_in") / 2).write_parquet(samples)
    described = json.loads((path / "channels.json").read_text(encoding="utf-8"))
    first = next(entry for entry in described["channels"] if entry["id"] == "vdd_in")
    first["source"] = "/sys/chip0/in1"
    second = {**first, "id": "vdd_cpu", "scope": "rail:VDD_CPU", "rail": "VDD_CPU", "source": "/sys/chip0/in2"}
    described["channels"].append(second)
    (path / "channels.json").write_text(json.dumps(described), encoding="utf-8")


def test_another_channel_of_a_chip_starts_from_the_stronger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = powered_run(tmp_path, steps=200)
    _two_channels(path)
    searched = []

    def counted(*given: Any) -> Any:
        searched.append(given)
        return fit_sensor_model(*given)

    monkeypatch.setattr("stepscope.analysis.energy.attribution.fit_sensor_model", counted)
    run = Run(path)
    whole, half = rail_fits.fit_rails(run, run.rails)
    assert len(searched) == 1
    assert whole.fit is not None
    assert half.fit is not None
    assert whole.chip == half.chip == "/sys/chip0"
    assert half.fit.joules == pytest.approx(whole.fit.joules / 2, rel=0.02, abs=0.002 * half.fit.total.joules)


@pytest.mark.parametrize("left", [b"", b"cut off", b"x" * 33])
def test_a_key_that_is_cut_off_is_made_anew_and_a_whole_one_stays(
    left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "stepscope/results.key"
    file.parent.mkdir()
    file.write_bytes(left)
    make = result_cache._user_key.__wrapped__
    key = make()
    assert key is not None
    assert (len(key), file.read_bytes(), file.stat().st_mode & 0o777) == (32, key, 0o600)
    assert make() == key
    (tmp_path / "late").write_bytes(b"y" * 32)
    result_cache._link_or_replace(tmp_path / "late", file)  # another process was quicker
    assert [make(), list(file.parent.iterdir())] == [key, [file]]
