"""Figures of several runs: one picture of all, as wide as it was asked for, in type that a paper accepts."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.fabricate import fabricate_run
from tests.report.stored_runs import simulated_board

import stepscope
from stepscope.analysis.compare.run_groups import MOST
from stepscope.analysis.run import Run
from stepscope.cli.figure import figure as figure_command
from stepscope.errors import StepscopeError, UsageError
from stepscope.report import figures
from stepscope.report.multi_run_figures import FIGURES, distinct_run_labels

pytestmark = pytest.mark.skipif(importlib.util.find_spec("altair") is None, reason="needs the extra 'report'")
SMALLEST_PT, PT_PER_PX, MM_PER_PX = 7.0, 72 / 96, 25.4 / 96


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    out = tmp_path_factory.mktemp("runs")
    return [Run(fabricate_run(out, steps=200, batch=batch, noise=0.03, power_w=5.0, seed=batch)) for batch in (16, 32)]


def _rows(specification: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for rows in specification["datasets"].values() for row in rows]


def _drawn(name: str, runs: list[Run], folder: Path, form: str = "vega", width: str = "acm") -> str:
    return figures.write_multi_run_figure(name, runs, folder, form, figures.parse_width(width)).read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("width", ["acm", "ieee-2"])
@pytest.mark.parametrize("name", sorted(set(FIGURES) - {"memory-stack"}))
def test_a_figure_of_two_runs_names_both_and_keeps_its_width_and_type(
    runs: list[Run], tmp_path: Path, name: str, width: str
) -> None:
    svg = _drawn(name, runs, tmp_path, "svg", width)
    (drawn,) = re.findall(r'<svg[^>]*? width="([\d.]+)"', svg)
    assert float(drawn) * MM_PER_PX == pytest.approx(figures.parse_width(width), abs=0.6)
    assert {f"fabricated, batch {batch}" for batch in (16, 32)} <= set(re.findall(r">([^<>]+)</text>", svg))
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)px"', svg)]
    assert sizes
    assert min(sizes) * PT_PER_PX >= SMALLEST_PT


def test_bars_of_layers_have_the_layers_of_the_run_and_their_cis(runs: list[Run], tmp_path: Path) -> None:
    bars = [row for row in _rows(json.loads(_drawn("layer-bars", runs, tmp_path))) if row["layer"] == "features.0"]
    known = runs[0].layers().row(0, named=True)
    assert known["layer"] == "features.0"
    assert bars[0]["value"] == pytest.approx(known["total_ns"] / 1e6)
    assert bars[0]["low"] == pytest.approx(known["low_ns"] / 1e6)


def test_layers_of_a_single_run_are_divided_by_phase(runs: list[Run], tmp_path: Path) -> None:
    rows = _rows(json.loads(_drawn("layer-bars", runs[:1], tmp_path)))
    assert {row["phase"] for row in rows if "phase" in row} == {"forward", "backward"}


def test_components_add_up_to_the_device_and_simulated_ones_are_marked(tmp_path: Path) -> None:
    run = Run(simulated_board(tmp_path))
    specification = json.loads(_drawn("energy-breakdown", [run], tmp_path))
    rows = [row for row in _rows(specification) if "part" in row]
    assert {row["part"] for row in rows} == {"CPU", "GPU", "memory", "SoC", "unattributed"}
    whole_mj = 1e3 * run.energy_totals()["joules_per_step"][0]
    assert sum(row["value"] for row in rows) == pytest.approx(whole_mj, rel=1e-6)
    assert "energy of a step, mJ (simulated)" in json.dumps(specification)
    assert "quill" not in json.dumps(specification)


def test_a_distribution_ends_at_the_slowest_percent_and_says_so(runs: list[Run], tmp_path: Path) -> None:
    specification = json.loads(_drawn("step-ecdf", runs, tmp_path))
    shares = [row["share"] for row in _rows(specification)]
    assert (min(shares), max(shares)) == (0.0, pytest.approx(0.99, abs=0.02))
    many = Run(fabricate_run(tmp_path, steps=700, ops=(), noise=0.02, samples=False))
    assert "slowest 1 % beyond the edge" in _drawn("step-ecdf", [many], tmp_path)


def test_runs_without_power_are_traded_by_their_memory(runs: list[Run], tmp_path: Path) -> None:
    bare = Run(fabricate_run(tmp_path, steps=40, noise=0.03))
    assert "energy of a step, mJ" in _drawn("trade-off", runs, tmp_path)
    assert "peak memory, MB" in _drawn("trade-off", [bare, runs[0]], tmp_path)


def test_what_a_run_lacks_is_refused_by_name_with_the_reason(runs: list[Run], tmp_path: Path) -> None:
    bare = Run(fabricate_run(tmp_path, steps=8, samples=False, recorded=lambda step: False))
    for name, why in [
        ("energy-breakdown", "no power"),
        ("memory-stack", "memory by layer"),
        ("layer-bars", "operator"),
    ]:
        with pytest.raises(StepscopeError, match=f"{bare.id} has nothing to draw: .*{why}"):
            figures.write(name, bare, tmp_path, "vega")


def test_labels_say_what_differs_and_else_the_name_of_the_run(runs: list[Run]) -> None:
    assert distinct_run_labels(runs) == ["fabricated, batch 16", "fabricated, batch 32"]
    twins = distinct_run_labels([runs[0], runs[0]])
    assert twins == [f"fabricated {runs[0].id[-6:]}"] * 2


def test_python_and_the_command_line_draw_the_same_picture(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stepscope.figure("trade-off", [run.path for run in runs], tmp_path / "a", form="svg", width_mm=85)
    figure_command("trade-off", [run.path for run in runs], tmp_path / "b", ["svg"], "85mm")
    assert Path(capsys.readouterr().out.strip()).read_bytes() == path.read_bytes()
    with pytest.raises(UsageError, match="draws one run"):
        stepscope.figure("phases", [run.path for run in runs], tmp_path)


def test_the_energy_of_a_model_is_the_mean_of_its_runs_with_the_ci_of_the_whole(
    runs: list[Run], tmp_path: Path
) -> None:
    more = Run(fabricate_run(tmp_path, steps=200, batch=16, noise=0.03, power_w=6.0, seed=3))
    specification = json.loads(_drawn("energy-by-model", [*runs, more], tmp_path))
    rows = _rows(specification)
    bars = {row["run"]: row["value"] for row in rows if "part" in row}
    ends = {row["run"]: (row["low"], row["high"]) for row in rows if "low" in row}
    assert set(bars) == set(ends) == {"fabricated, batch 16", "fabricated, batch 32"}
    joules = [run.energy_totals()["joules_per_sample"][0] for run in (runs[0], more)]
    assert bars["fabricated, batch 16"] == pytest.approx(1e3 * sum(joules) / 2)
    low, high = ends["fabricated, batch 16"]
    assert low < bars["fabricated, batch 16"] < high
    assert "energy of a sample, mJ" in json.dumps(specification)


def test_no_two_of_many_lines_or_points_look_alike() -> None:
    from stepscope.report.charts import across_runs, comparison, memory

    names = [f"run {number}" for number in range(MOST)]
    steps = pl.DataFrame([{"run": name, "ms": 1.0 + at, "share": at / 2} for name in names for at in (0, 1, 2)])
    ends = dict.fromkeys(("x_low", "x_high", "y_low", "y_high"), pl.Series([None] * MOST, dtype=pl.Float64))
    points = pl.DataFrame({"run": names, "x": [1.0] * MOST, "y": [1.0] * MOST, **ends})
    series = pl.DataFrame(
        [{"series": name, "piece": name, "t_s": float(at), "mb": 1.0} for name in names for at in (0, 1)]
    )
    settings = [f"setting {number}" for number in range(20)]
    batches = pl.DataFrame([{"line": name, "batch": batch, "value": 1.0, "low": 0.9, "high": 1.1, "hover": ""}
                            for name in settings for batch in (8, 16)])  # fmt: skip
    for chart, kind, expected in (
        (across_runs.build_ecdf(steps, False, 400), "strokeDash", names),
        (across_runs.build_trade_off(points, "x", "y", 400), "shape", names),
        (memory.build_memory(series, 400), "strokeDash", names),
        (comparison.build_batches(batches, "values", 400), "strokeDash", settings),
    ):
        written = chart.to_dict()
        (encoding,) = [layer["encoding"] for layer in written.get("layer", [written]) if kind in layer["encoding"]]
        assert encoding["color"]["scale"]["domain"] == expected
        looks = zip(*(encoding[name]["scale"]["range"] for name in ("color", kind)), strict=True)
        assert len({(colour, str(way)) for colour, way in looks}) == len(expected)
