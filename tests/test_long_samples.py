"""Samples of long runs: a coarser view of the whole, exact rows of a span; the limit is lowered to keep runs short."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.fabricate import START_NS, Sampled, fabricate_run

from stepscope.analysis.energy import fit_span
from stepscope.analysis.energy.power_sources import power_sources
from stepscope.analysis.run import Run
from stepscope.runfolder import RunReader, samples

_PERIOD = 10_000_000
_ROWS = 6_000


@pytest.fixture(autouse=True)
def lower_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_ROWS", 500)
    monkeypatch.setattr(samples, "_AT_A_TIME", 1_000)
    monkeypatch.setattr(samples, "LEAST_BYTES", 100)


def _channel(name: str, kind: str, unit: str, quantity: str) -> dict[str, object]:
    return {"id": name, "sensor": "meter", "kind": kind, "unit": unit, "quantity": quantity, "scope": "board"}


def _run(out: Path, status: str | None = "ok") -> Path:
    t = np.arange(_ROWS, dtype=np.int64) * _PERIOD
    t[4_000:] += 3_000_000_000  # nothing was read for 3 s
    watts = 5 + np.sin(t / 1e9)
    watts[2_345], watts[1_000:1_040] = 9.0, np.nan
    joules = t * 4e-9
    sampled = (
        Sampled(_channel("watts", "gauge", "W", "power"), t, watts),
        Sampled(_channel("joules", "counter", "J", "energy"), t, joules),
    )
    return fabricate_run(out, steps=30, sampled=sampled, status=status)


@pytest.mark.parametrize("status", ["ok", None], ids=["packed", "broken off"])
def test_a_long_sensor_reads_as_few_rows_with_its_energy_and_extremes(tmp_path: Path, status: str | None) -> None:
    run = RunReader(_run(tmp_path, status))
    read = run.sensor("meter")
    assert run.coarser_sensors == ["meter"]
    assert 400 < len(read) < 1_200
    assert read["watts"].max() == 9.0, "the highest reading stays as it is"
    exact = run.sensor_between("meter", 0, 1 << 60)
    assert len(exact) == _ROWS
    counted = read.drop_nulls("joules")
    elapsed = ((counted["t0_ns"] + counted["t1_ns"]) // 2 - START_NS).to_numpy()
    np.testing.assert_allclose(counted["joules"].to_numpy(), elapsed * 4e-9, atol=1e-9)
    early = read.filter(pl.col("t0_ns") < START_NS + 9_000_000_000).drop_nulls("watts")
    middle = ((early["t0_ns"] + early["t1_ns"]) // 2 - START_NS).to_numpy() / 1e9
    first = middle[0]
    joules = np.trapezoid(early["watts"].to_numpy(), middle)
    assert joules == pytest.approx(5 * (middle[-1] - first) + np.cos(first) - np.cos(middle[-1]), rel=2e-3)


def test_what_was_not_read_of_a_long_run_stays_a_gap_of_the_same_length(tmp_path: Path) -> None:
    read = RunReader(_run(tmp_path)).sensor("meter")
    known = read.drop_nulls("watts")["t1_ns"].to_numpy() - START_NS
    around = known[known < 10_200_000_000].max(), known[known > 10_200_000_000].min()
    assert around == (9_990_010_000, 10_400_010_000)
    silence = read.filter(pl.col("joules").is_null())
    assert len(silence) == 1, "a silence without rows is one row in which nothing was read"
    assert START_NS + 40_000_000_000 < int(silence["t0_ns"][0]) < START_NS + 43_000_000_000


def test_exact_rows_of_a_span_are_read_without_the_rest(tmp_path: Path) -> None:
    run = RunReader(_run(tmp_path))
    run.sensor("meter")
    begin = START_NS + 20_000_000_000
    part = run.sensor_between("meter", begin, begin + 1_000_000_000)
    middle = ((part["t0_ns"] + part["t1_ns"]) // 2).to_list()
    assert middle == list(range(begin, begin + 1_000_000_001, _PERIOD))


def test_a_flipped_bit_in_a_long_sensor_costs_that_sensor(tmp_path: Path) -> None:
    from stepscope.runfolder import checksums

    path = _run(tmp_path)
    checksums.record_checksums(path, "samples/meter.parquet")
    file = path / "samples" / "meter.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    run = RunReader(path)
    assert run.sensor("meter").is_empty()
    assert run.damaged == ["samples/meter.parquet"]


@pytest.mark.parametrize("grain", [500, 1 << 20], ids=["coarser", "exact"])
def test_sleep_and_a_counter_that_starts_anew_are_gaps_of_a_long_run_as_of_a_short_one(
    tmp_path: Path, grain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_ROWS", grain)
    t = np.arange(_ROWS, dtype=np.int64) * _PERIOD
    joules = np.where(t < 30_000_000_000, 100 + t * 4e-9, (t - 30_000_000_000) * 4e-9)  # the meter was plugged in again
    sampled = Sampled(_channel("joules", "counter", "J", "energy"), t, joules)
    path = fabricate_run(tmp_path, steps=30, sampled=(sampled,))
    event = {"t_ns": START_NS + 20_000_000_000, "source": "sampler", "kind": "suspend", "message": "slept"}
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    (source,) = power_sources(RunReader(path))
    covered_s = source.growth.covered_ns[-1] / 1e9
    assert 58.3 < covered_s < 59.6
    assert source.growth.known_growth[-1] == pytest.approx(4 * covered_s, rel=1e-6)
    assert all(steps >= 0 for steps in source.growth.steps[~source.growth.gap])


def test_operators_of_a_long_run_are_fitted_to_a_stretch_and_add_up_to_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_span, "MOST_READINGS", 300)
    random = np.random.default_rng(1)
    t = np.arange(640, dtype=np.int64) * _PERIOD
    busy = (t % 16_000_000 < 6_000_000).astype(float)
    watts = (4 + 3 * busy + random.normal(0, 0.02, len(t))) * np.where(t < 3_000_000_000, 1.0, 1.1)
    channel = {**_channel("watts", "gauge", "W", "power"), "scope": "rail:VDD_IN", "rail": "VDD_IN"}
    run = Run(
        fabricate_run(
            tmp_path,
            steps=390,
            recorded=lambda step: step < 100 or step % 9 == 0,
            sampled=(Sampled(channel, t, watts),),
        )
    )
    fitted = run.attributed_rails[0]
    assert fitted.ops.timeline.steps < 200
    assert "of 387" in fit_span.stretch_sentence(run)
    energy = run.energy("kind")
    measured = fitted.measured
    assert measured is not None
    assert measured.watts is not None
    per_step = measured.watts * 0.016
    assert energy["joules_per_step"].sum() == pytest.approx(per_step, rel=0.02)
