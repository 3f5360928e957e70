"""Figures: every chart of the page as a picture for a paper, from the page's own definition, or a reason why not."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from pathlib import Path
from types import ModuleType

import altair as alt
import polars as pl
import pytest
from tests.fabricate import Op, fabricate_run

from stepscope.analysis.run import Run
from stepscope.cli.figure import figure as figure_command
from stepscope.errors import OutputNotWritable, StepscopeError, UnknownName, UsageError
from stepscope.report import figures, sections
from stepscope.report.charts import sensors, steps
from stepscope.report.charts.comparison import tuning_charts
from stepscope.report.charts.style import draw_svg, vega_lite
from stepscope.report.multi_run_figures import FIGURES
from stepscope.report.page.parts import Anatomy, Figure, Icicle, Layer, walk_parts

pytestmark = pytest.mark.skipif(importlib.util.find_spec("altair") is None, reason="needs the extra 'report'")
NAMES = [entry.name for entry in figures.entries()]
MM_PER_INCH, PT_PER_INCH = 25.4, 72


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(fabricate_run(tmp_path_factory.mktemp("runs"), steps=40, noise=0.03, power_w=5.0, gap=(0.4, 0.5)))


def _drawn(run: Run) -> list[str]:
    parts = [part for module in sections.discover_sections().modules for part in walk_parts(module.build(run).parts)]
    return [part.name for part in parts if isinstance(part, Figure | Icicle | Anatomy)]


def test_every_chart_of_the_page_has_a_name_that_can_be_asked_for(run: Run) -> None:
    assert set(_drawn(run)) <= set(NAMES)
    assert set(_drawn(run)) >= {"phases", "step-times", "core-utilisation", "power", "modules", "memory"}
    assert len(set(NAMES)) == len(NAMES)


def test_a_figure_is_drawn_or_refused_with_the_reason(run: Run, tmp_path: Path) -> None:
    for name in set(NAMES) - set(_drawn(run)) - set(FIGURES):
        with pytest.raises(StepscopeError, match=f"nothing to draw as '{name}': "):
            figures.write(name, run, tmp_path, "vega")


@pytest.mark.parametrize(
    "name", ["phases", "anatomy", "step-times", "core-utilisation", "power", "modules", "memory", "roofline"]
)
def test_a_figure_is_written_as_a_vector_and_as_its_specification(name: str, run: Run, tmp_path: Path) -> None:
    svg = figures.write(name, run, tmp_path / "new", "svg").read_text()
    assert svg.startswith("<svg")
    assert "var(--" not in svg, "the page's variables mean nothing outside of it"
    specification = json.loads(figures.write(name, run, tmp_path / "new", "vega").read_text())
    assert specification["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    assert specification["datasets"]
    assert specification["description"].startswith(run.id)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        f"{name}-{run.id}{end}" for end in (".svg", ".vl.json")
    }


@pytest.mark.parametrize("name", ["phases", "anatomy", "step-times", "step-phases", "power", "modules", "memory"])
def test_a_figure_is_as_wide_as_the_column_that_it_was_asked_for(name: str, run: Run, tmp_path: Path) -> None:
    svg = figures.write(name, run, tmp_path, "svg", figures.parse_width("acm")).read_text()
    (width,) = re.findall(r'<svg[^>]*? width="([\d.]+)"', svg)
    assert float(width) / 96 * MM_PER_INCH == pytest.approx(84.7, abs=0.6)


def test_a_figure_is_drawn_from_the_definition_of_the_page(run: Run, tmp_path: Path) -> None:
    """Same labels and same number of marks in the page's drawing and in the picture."""
    (part,) = [part for part in walk_parts(_section("memory").build(run).parts) if isinstance(part, Figure)]
    svg = figures.write("memory", run, tmp_path, "svg").read_text()
    for pattern in (r">([^<>]+)</text>", r'<path aria-label="([^"]*)"'):
        assert set(re.findall(pattern, svg)) >= set(re.findall(pattern, part.wide)) - set(_numbers(part.wide))


def _numbers(svg: str) -> list[str]:
    """Labels of axes: a drawing of another width has others."""
    return re.findall(r">([\d.,]+)</text>", svg)


def _section(name: str) -> ModuleType:
    (found,) = [module for module in sections.discover_sections().modules if name in getattr(module, "FIGURES", ())]
    return found


@pytest.mark.parametrize("width_mm", [85.0, 170.0])
def test_a_picture_has_the_width_that_was_asked_for(width_mm: float, run: Run, tmp_path: Path) -> None:
    png = figures.write("memory", run, tmp_path, "png", width_mm).read_bytes()
    width_px = struct.unpack(">I", png[16:20])[0]
    assert width_px / 300 * MM_PER_INCH == pytest.approx(width_mm, rel=0.05)
    pdf = figures.write("memory", run, tmp_path, "pdf", width_mm).read_bytes()
    box = re.search(rb"MediaBox *\[0 0 ([\d.]+) ", pdf)
    assert box is not None
    assert float(box[1]) / PT_PER_INCH * MM_PER_INCH == pytest.approx(width_mm, rel=0.05)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("power", "no power was measured"),
        ("memory", "it was not sampled"),
        ("modules", "no operator was recorded"),
    ],
)
def test_a_figure_that_the_run_has_no_data_for_is_refused_with_the_reason(name: str, said: str, tmp_path: Path) -> None:
    bare = Run(fabricate_run(tmp_path, steps=8, samples=False, recorded=lambda step: False))
    with pytest.raises(StepscopeError, match=said):
        figures.write(name, bare, tmp_path, "svg")


def test_an_unknown_figure_or_format_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as refused:
        figures.check("memroy")
    assert (refused.value.hint or "").startswith("did you mean memory")
    with pytest.raises(UnknownName, match="unknown format 'jpg'"):
        figure_command("memory", form=["jpg"])


@pytest.mark.parametrize("width", [10.0, 5000.0, float("nan")])
def test_a_width_that_no_paper_has_is_refused(width: float) -> None:
    with pytest.raises(UsageError, match="--width"):
        figure_command("memory", width=str(width))


def test_a_folder_that_cannot_be_made_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file in the place of the folder")
    with pytest.raises(OutputNotWritable, match="taken"):
        figures.write("memory", run, tmp_path / "taken", "svg")


def test_names_in_a_figure_stay_text(tmp_path: Path) -> None:
    hostile = "</svg><script>alert(1)</script>" + "y" * 500
    ops = (Op("nn.X", "", "forward", 10, (Op("nn.Y", hostile, "forward", 9000),)),)
    model = (("", "Net", None, 0), (hostile, "Y", "", 8))
    run = Run(fabricate_run(tmp_path, steps=12, ops=ops, model=model))
    svg = figures.write("modules", run, tmp_path, "svg").read_text()
    assert "<script" not in svg


def test_the_icicle_of_ten_thousand_modules_can_be_drawn(tmp_path: Path) -> None:
    calls = tuple(Op("nn.L", f"m{n}", "forward", 5) for n in range(10_000))
    model = (("", "Net", None, 0), *((f"m{n}", "L", "", 8) for n in range(10_000)))
    ops = (Op("nn.Net", "", "forward", 10, calls),)
    run = Run(fabricate_run(tmp_path, steps=6, ops=ops, model=model, samples=False))
    assert figures.write("modules", run, tmp_path, "svg").stat().st_size > 1000


def test_the_icicle_stacks_children_within_their_parent() -> None:
    rows: list[list[str | int | None]] = [["", None], ["a", 0], ["a.b", 1], ["c", 0]]
    times: list[list[float | None] | None] = [
        [10e6, 4e6, 6e6, None, 1e6],
        [3e6, 3e6, 0, None, 2e6],
        [1e6, 1e6, 0, 0, 1e6],
        [6e6, 0, 6e6, 0, 6e6],
    ]
    layers = (Layer("time", "Time", "ns", "", times),)
    cells = steps.icicle_cells(Icicle(("name", "parent"), rows, layers, ""))
    found = cells.select("label", "depth", "t0_ms", "t1_ms").rows()
    assert found == [("the model", 0, 0.0, 10.0), ("a", 1, 0.0, 3.0), ("b", 2, 0.0, 1.0), ("c", 1, 3.0, 9.0)]


def test_a_file_name_in_place_of_the_folder_is_refused_with_the_format_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        figures.write("phases", Run(fabricate_run(tmp_path)), tmp_path / "fig.pdf", "png")
    assert "--format pdf" in str(refused.value.hint)
    assert not (tmp_path / "fig.pdf").exists()


def test_the_clocks_of_64_cores_and_more_rows_than_a_notebook_may_have_are_drawn() -> None:
    readings = 450
    cores = [
        pl.DataFrame(
            {
                "quantity": ["core_frequency"] * readings,
                "scope": [f"core:{core}"] * readings,
                "unit": ["Hz"] * readings,
                "t_s": [at / 10 for at in range(readings)],
                "value": [1e9 + core] * readings,
            }
        )
        for core in range(64)
    ]
    chart = sensors.build_clocks(pl.concat(cores), 940)
    assert draw_svg(chart).count('aria-roledescription="line mark"') == 64
    with pytest.raises(alt.MaxRowsError):
        chart.to_dict()  # altair's own limit is as the user has it


def test_the_distribution_of_twenty_thousand_steps_is_a_line_of_no_more_than_a_thousand_points(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=8))
    length_ns = int(run.steps["t1_ns"][0] - run.steps["t0_ns"][0])
    numbers = pl.int_range(20_000, eager=True)
    begins_ns = numbers * 100_000_000
    many = run.steps[[0] * 20_000].with_columns(
        step=numbers.cast(run.steps.schema["step"]), recorded=pl.lit(False), t0_ns=begins_ns,
        t1_ns=begins_ns + length_ns + numbers,
    )  # fmt: skip
    vars(run)["steps"] = many
    chart, _ = FIGURES["step-ecdf"][1]([run])
    rows = next(iter(vega_lite(chart(640))["datasets"].values()))
    assert 900 <= len(rows) <= 1_001
    assert rows[0]["share"] == 0
    assert rows[-1]["share"] == pytest.approx(0.99, abs=1e-3)


def test_a_change_many_times_slower_is_written_at_the_edge_of_the_axis_and_not_drawn_on_it() -> None:
    rows = pl.DataFrame(
        {"change": ["bf16", "threads=2"], "gain": [-2.0, -2990.0], "low": [-9.0, -3970.0], "high": [4.0, -2250.0]}
    )
    chart, _ = tuning_charts({"gains": rows.with_columns(kind=pl.lit("no certain gain"))})["gains"]
    spec = vega_lite(chart(900))
    drawn = {layer["mark"]["type"]: spec["datasets"][layer["data"]["name"]] for layer in spec["layer"]}
    assert [row["change"] for row in drawn["point"]] == ["bf16"]
    assert [(row["change"], row["text"]) for row in drawn["text"]] == [("threads=2", "◀ -2,990 %")]
