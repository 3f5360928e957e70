"""The power model: the user's own figures, called estimated wherever they appear."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.analysis.powered import TX2, channel, powered, rail, seconds, times, total
from tests.fabricate import Core, Sampled

from stepscope.analysis.energy.power_model import ComponentPower, PowerModel, parse_power_model
from stepscope.errors import UnknownName, UsageError
from stepscope.report import html
from stepscope.report.terminal_tables import energy_table

T = times(100)
S = seconds(100)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("cpu=2W..15W", [("cpu", 2.0, 15.0)]),
        ("cpu=2..15W", [("cpu", 2.0, 15.0)]),
        ("cpu = 2W .. 15W , gpu=500mW..10W", [("cpu", 2.0, 15.0), ("gpu", 0.5, 10.0)]),
        ("gpu=0W..0.5W", [("gpu", 0.0, 0.5)]),
    ],
)
def test_a_model_names_what_a_part_takes_idle_and_busy(spec: str, expected: list[tuple[str, float, float]]) -> None:
    assert parse_power_model(spec) == PowerModel(tuple(ComponentPower(*one) for one in expected))


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "cpu",
        "cpu=15W",
        "cpu=2..15",
        "cpu=2W-15W",
        "cpu=15W..2W",
        "cpu=-1W..5W",
        "cpu=0W..0W",
        "cpu=1W..9999999W",
        "cpu=2W..15W,",
        "cpu=2W..15W,cpu=1W..2W",
        "cpu=2kW..15kW",
        "cpu=nanW..infW",
        "cpu=2W..15W gpu=1W..2W",
        "cpu=2W..15W+-",
        "cpu=2W..15W+-10",
        "cpu=2W..15W+-0%",
        "cpu=2W..15W+-8%at30%",
    ],
)
def test_a_model_that_cannot_be_read_says_what_to_write(spec: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_power_model(spec)
    assert refused.value.hint


def test_a_part_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(UnknownName) as refused:
        parse_power_model("cpus=2W..15W")
    assert "cpu" in str(refused.value.hint)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="cpugm=W.0123456789,-+%at xe", max_size=30))
def test_any_text_is_a_model_or_a_usage_error(spec: str) -> None:
    try:
        model = parse_power_model(spec)
    except UsageError:
        return
    assert all(0 <= one.idle_w <= one.busy_w for one in model.parts)


def model(spec: str) -> dict[str, Any]:
    return {"header": {"power_model": spec}}


def test_the_estimate_follows_utilisation_and_is_called_estimated(tmp_path: Path) -> None:
    run = powered(tmp_path, cores=(Core(0.75), Core(0.25)), **model("cpu=2W..12W"))
    row = total(run, "cpu")
    assert row["kind"] == "estimated"
    assert row["watts_mean"] == pytest.approx(7.0, rel=0.03)
    assert row["joules"] == pytest.approx(7.0 * S, rel=0.03)
    names = set(run.metrics()["metric"])
    assert "estimated_energy" in names
    assert not names & {"energy", "energy_per_step", "mean_power"}
    assert run.power_timeline(*_span(run))["estimated"].all()
    page = html.render(run)
    assert "Estimated rows come from the power model" in page
    assert "(estimated)" in page


def test_an_estimate_has_no_interval_and_says_so(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", 10, T, step_size=0.04), device=TX2, **model("cpu=2W..12W"))
    row, measured = total(run, "cpu", "estimated"), total(run)
    bounds = [name for name in row if name == "low" or name == "high" or name.endswith(("_low", "_high"))]
    assert len(bounds) == 10
    assert {row[name] for name in bounds} == {None}
    assert None not in {measured[name] for name in bounds}
    metrics = run.metrics().filter(pl.col("metric").str.starts_with("estimated_"))
    assert metrics["low"].is_null().all()
    assert metrics["note"].str.contains("no CI: estimated").all()
    assert any("no CI: estimated" in note for note in run.energy_tables.notes)
    assert "no CI: estimated" in html.render(run)
    console = Console(width=120, file=io.StringIO())
    with console.capture() as screen:
        console.print(*energy_table(run.energy_totals()))
    assert "(no CI: estimated)" in screen.get()


def _span(run: Any) -> tuple[int, int]:
    return int(run.steps["t0_ns"][0]), int(run.steps["t1_ns"][-1])


def test_an_estimate_is_no_measurement_so_energy_is_still_said_to_be_missing(tmp_path: Path) -> None:
    run = powered(tmp_path, **model("cpu=2W..12W"))
    assert "energy" in {entry.what for entry in run.not_measured()}
    assert "total" not in run.energy_totals()["component"].to_list()


def test_without_a_model_nothing_is_estimated(tmp_path: Path) -> None:
    run = powered(tmp_path)
    assert run.energy_totals().is_empty()
    assert run.rail_energy().is_empty()


def test_a_slow_clock_takes_less(tmp_path: Path) -> None:
    clocks = [
        Sampled(
            channel(f"f{core}", "core_frequency", f"core:{core}", sensor="clock", unit="Hz"), T, np.full(len(T), 1e9)
        )
        for core in range(2)
    ]
    device = {"cores": [{"core": core, "max_frequency_hz": 2_000_000_000} for core in range(2)]}
    run = powered(tmp_path, *clocks, device=device, cores=(Core(1.0), Core(1.0)), **model("cpu=2W..12W"))
    assert total(run, "cpu")["watts_mean"] == pytest.approx(7.0, rel=0.02)


def test_a_gpu_is_estimated_from_its_own_utilisation(tmp_path: Path) -> None:
    busy = Sampled(channel("gpu.0.utilisation", "utilisation", "gpu:0", sensor="gpu"), T, np.full(len(T), 0.5))
    run = powered(tmp_path, busy, **model("gpu=1W..9W"))
    assert total(run, "gpu")["watts_mean"] == pytest.approx(5.0)
    assert total(run, "gpu")["joules"] == pytest.approx(5.0 * S)
    assert total(run, "gpu")["low"] is None


def test_a_gap_in_utilisation_is_a_gap_of_the_estimate(tmp_path: Path) -> None:
    used = np.where((T > 0.5e9) & (T < 0.8e9), np.nan, 0.5)
    busy = Sampled(channel("gpu.0.utilisation", "utilisation", "gpu:0", sensor="gpu"), T, used)
    row = total(powered(tmp_path, busy, **model("gpu=1W..9W")), "gpu")
    assert row["gap_s"] == pytest.approx(0.3, abs=0.03)
    assert row["joules"] == pytest.approx(5.0 * row["covered_s"])


def test_a_part_whose_utilisation_was_not_sampled_is_said_to_have_no_estimate(tmp_path: Path) -> None:
    run = powered(tmp_path, **model("cpu=2W..12W,gpu=1W..9W"))
    said = [entry.why for entry in run.not_measured() if entry.what == "estimated energy"]
    assert said == ["the power model names 'gpu', whose utilisation was not sampled in this run"]
    broken = powered(tmp_path, **model("cpu=lots"))
    assert broken.energy_totals().is_empty()
    assert "cannot read" in next(e.why for e in broken.not_measured() if e.what == "estimated energy")


def test_an_estimate_stands_beside_a_measurement_and_is_never_added_to_it(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", 10, T), rail("VDD_SYS_CPU", 3, T), device=TX2, **model("cpu=2W..12W"))
    assert total(run, "cpu", "measured")["watts_mean"] == pytest.approx(3)
    assert total(run, "cpu", "estimated")["watts_mean"] == pytest.approx(7, rel=0.03)
    assert total(run)["watts_mean"] == pytest.approx(10)
    assert total(run, "rest")["watts_mean"] == pytest.approx(7)
