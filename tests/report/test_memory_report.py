"""The step's memory on the terminal, on the page and in summary.json; the charts of several runs."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from tests.fabricate import fabricate_run

from stepscope.analysis.memory.events import categories_over_step, live_by_module
from stepscope.analysis.run import Run
from stepscope.analysis.summary import ALLOCATOR, PEAK, process_parts, summary
from stepscope.report.page.parts import Figure, walk_parts
from stepscope.report.sections import modules
from stepscope.report.table import Table
from stepscope.report.terminal_report import render
from stepscope.runfolder import MEMORY, RunWriter, part_of

needs_altair = pytest.mark.skipif(importlib.util.find_spec("altair") is None, reason="needs the extra 'report'")
MB = 1_000_000


def events(first_ns: int) -> pl.DataFrame:
    """One step: 40 MB of parameters, 60 MB saved by conv1, 20 MB of workspace at the peak, 1 MB unattributed."""
    about = {
        0: ("parameter", 40, "fc", None, "other", "1000x10000"),
        1: ("saved", 60, "features.0", "aten::mkldnn_convolution", "forward", "16x64x32x32"),
        2: ("workspace", 20, "features.0", "aten::convolution_backward", "backward", None),
        3: ("other", 1, None, None, "other", None),
    }
    order = [(0, 0, 1), (0, 3, 1), (10, 1, 1), (20, 2, 1), (21, 2, -1), (30, 1, -1), (40, 0, -1), (40, 3, -1)]
    rows: list[dict[str, Any]] = []
    for t, tensor, sign in order:
        category, size, module, op, phase, shape = about[tensor]
        rows.append(
            {
                "step": 4, "t_ns": first_ns + t * MB, "tensor": tensor, "bytes": sign * size * MB, "category": category,
                "module": module, "op": op, "phase": phase, "device": "cpu", "shape": shape,
            }
        )  # fmt: skip
    plain = {name: pl.String if kind == pl.Categorical else kind for name, kind in MEMORY.items()}
    return pl.DataFrame(rows, schema=plain)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    header = {
        "recorder": {"mode": "all", "memory": "auto", "reserved_bytes": {"cpu": 300 * MB}},
        "malloc": {"name": "default", "library": "glibc 2.36", "empty_process_bytes": 320 * MB},
    }
    path = fabricate_run(tmp_path, steps=12, header=header)
    RunWriter(path, {}).write_memory_events(part_of(events(Run(path).steps["t0_ns"][4]), "memory"))
    return Run(path)


def screen(run: Run) -> str:
    console = Console(width=200, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(render(run))
    return captured.get()


def test_the_terminal_says_how_much_where_of_what_and_what_is_largest(run: Run) -> None:
    text = screen(run)
    assert (
        "121 MB of live tensors at the peak, in backward: aten::convolution_backward of features.0 reached it" in text
    )
    assert "activations 60 MB (50 %), parameters 40 MB (33 %), kernel workspace 20 MB (17 %)" in text
    assert "largest: activations 16x64x32x32 of features.0 60 MB" in text
    assert "reserved by malloc: at least 300 MB" in text
    assert "0.83 % of it is unattributed" in text


def test_the_summary_has_the_three_numbers_and_the_parts_of_the_process(run: Run) -> None:
    memory = summary(run)["memory"]
    assert memory["live_peak_bytes"] == 121 * MB
    assert memory["reserved_bytes"] == {"cpu": 300 * MB}
    assert memory["categories"] == {"saved": 60 * MB, "parameter": 40 * MB, "workspace": 20 * MB, "other": MB}
    parts = {row["part"]: row["bytes"] for row in memory["process"]}
    whole = parts.pop(PEAK)
    assert sum(parts.values()) == whole > 0
    assert parts[ALLOCATOR] == whole - 320 * MB - 121 * MB


def test_tensors_that_were_not_resident_leave_no_part_of_the_process_below_nothing(tmp_path: Path) -> None:
    header = {"malloc": {"name": "default", "library": "glibc 2.36", "empty_process_bytes": 450 * MB}}
    path = fabricate_run(tmp_path, steps=12, header=header)
    RunWriter(path, {}).write_memory_events(part_of(events(Run(path).steps["t0_ns"][4]), "memory"))
    rows = process_parts(Run(path))
    parts = dict(rows.select("part", "bytes").iter_rows())
    assert parts[ALLOCATOR] == 0
    assert sum(parts.values()) == 2 * parts[PEAK]
    assert "more were not resident" in " ".join(rows["source"])


def test_a_process_without_a_measured_empty_one_is_not_taken_apart(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=12)
    RunWriter(path, {}).write_memory_events(part_of(events(Run(path).steps["t0_ns"][4]), "memory"))
    assert process_parts(Run(path)).is_empty()


@pytest.mark.parametrize(
    ("mode", "why"), [("off", "switched off"), ("auto", "too short"), ("all", "no step was profiled")]
)
def test_memory_that_was_not_recorded_says_why_and_what_to_do(mode: str, why: str, tmp_path: Path) -> None:
    bare = Run(fabricate_run(tmp_path, steps=12, header={"recorder": {"mode": "all", "memory": mode}}))
    (entry,) = [entry for entry in bare.not_measured() if entry.what == "memory by layer"]
    assert why in entry.why
    assert entry.remedy == "--record-memory all"
    assert summary(bare)["memory"] is None
    assert "of live tensors" not in screen(bare)


def test_memory_that_was_computed_is_shown_and_marked_where_none_was_profiled(tmp_path: Path) -> None:
    header = {"recorder": {"mode": "adaptive", "memory": "auto"}}
    path = fabricate_run(tmp_path, steps=12, header=header)
    (path / "computed").mkdir()
    typed = events(0).select(pl.col(name).cast(dtype) for name, dtype in MEMORY.items())
    typed.write_parquet(path / "computed" / "memory.parquet")
    run = Run(path)
    peak = run.peak()
    assert peak is not None
    assert (peak.computed, run.memory_events.height) == (True, 0)
    assert "memory by layer" not in {entry.what for entry in run.not_measured()}
    assert "computed on tensors without data" in screen(run)
    assert summary(run)["memory"]["computed"]
    (views,) = modules.build(run).parts
    table = next(part for part in walk_parts([views]) if isinstance(part, Table))
    assert {"At peak, computed", "Most at once, computed"} <= {column.title for column in table.columns}
    RunWriter(path, {}).write_memory_events(part_of(events(run.steps["t0_ns"][4]), "memory"))
    measured = Run(path).peak()
    assert measured is not None
    assert not measured.computed


@needs_altair
def test_the_page_draws_the_step_and_the_peak_by_module_and_lists_the_tensors(run: Run) -> None:
    from stepscope.report.sections import memory_step

    section = memory_step.build(run)
    kinds = [part.kind for part in walk_parts(section.parts)]
    assert kinds == ["figure", "more", "key_figures", "figure", "table", "table", "facts", "note"]
    step, treemap = (part for part in walk_parts(section.parts) if isinstance(part, Figure))
    assert "saved" in step.wide
    assert "features.0" in treemap.wide
    tensors = next(part for part in walk_parts(section.parts) if isinstance(part, Table))
    assert [row[0].text for row in tensors.rows][:2] == ["features.0", "fc"]
    assert "121 MB" in section.lede


@needs_altair
def test_a_run_without_memory_has_a_section_that_says_so(tmp_path: Path) -> None:
    from stepscope.report.sections import memory_step

    section = memory_step.build(Run(fabricate_run(tmp_path, steps=8)))
    assert section.parts == ()
    assert "--record-memory all" in section.lede


@needs_altair
def test_a_limit_is_drawn_over_the_memory_of_a_step(run: Run) -> None:
    from stepscope.report.charts.memory import build_step_memory
    from stepscope.report.charts.style import draw_svg

    series = categories_over_step(run.memory_events).select(
        "category", t_ms=pl.col("t") / 1e6, mb=pl.col("bytes") / 1e6
    )
    assert "var(--warn)" in draw_svg(build_step_memory(series, 900, limit_mb=100))


@needs_altair
def test_categories_against_batch_mark_what_does_not_fit() -> None:
    from stepscope.report.charts import memory
    from stepscope.report.charts.style import draw_svg

    rows = pl.DataFrame(
        [("lenet", 4, "saved", 10.0), ("lenet", 16, "saved", 40.0), ("lenet", 64, "saved", None)],
        schema={"model": pl.String, "batch": pl.Int64, "category": pl.String, "mb": pl.Float64},
        orient="row",
    )
    svg = draw_svg(memory.build_batches(rows, 900, limit_mb=100))
    assert "does not fit" in svg
    assert "lenet" in svg


@needs_altair
def test_the_fit_table_has_an_edge_where_fitting_ends() -> None:
    from stepscope.report.charts import memory
    from stepscope.report.charts.style import draw_svg

    cells = [
        (4, "as it is", 50, "fits"),
        (8, "as it is", 120, "does not fit"),
        (4, "bf16 \"x\" 'y'", 25, "fits"),
        (8, "bf16 \"x\" 'y'", None, "?"),
    ]
    names = ("batch", "option", "peak_bytes", "verdict")
    rows = pl.DataFrame(cells, schema=list(names), orient="row").with_columns(limit_bytes=pl.lit(100))
    placed = memory._edges(memory._cells(rows, ["as it is", "bf16 \"x\" 'y'"], [4, 8]))
    assert placed.select("column", "row").rows() == [(1, 0), (1, 1)]  # right of batch 4, in both rows
    assert "as it is" in draw_svg(memory.build_options(rows, 900))


@needs_altair
def test_the_trade_names_every_allocator() -> None:
    from stepscope.report.charts import memory
    from stepscope.report.charts.style import draw_svg

    names = ("peak_mb", "peak_low", "peak_high", "step_ms", "step_low", "step_high")
    rows = pl.DataFrame({"allocator": ["default", "pinned"], **{name: [100.0, 90.0] for name in names}})
    svg = draw_svg(memory.build_allocators(rows, 900))
    assert "default" in svg
    assert "pinned" in svg


@needs_altair
def test_a_treemap_fills_its_box_with_areas_in_proportion() -> None:
    from stepscope.report.charts.memory import squarified

    sizes = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0]
    boxes = squarified(sizes, (0.0, 0.0, 600.0, 400.0))
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes]
    assert areas == pytest.approx([size * 10_000 for size in sizes])
    assert max(max(x1 - x0, y1 - y0) / min(x1 - x0, y1 - y0) for x0, y0, x1, y1 in boxes) < 3


@needs_altair
def test_a_treemap_of_many_modules_joins_the_smallest(run: Run) -> None:
    from stepscope.report.charts.memory import build_treemap
    from stepscope.report.charts.style import draw_svg

    many = pl.DataFrame(
        {
            "module": [f"block.{i}" for i in range(300)],
            "category": ["saved"] * 300,
            "bytes": [1000 + i for i in range(300)],
        }
    )
    svg = draw_svg(build_treemap(many, 900))
    assert "smaller parts" in svg
    peak = run.peak()
    assert peak is not None
    assert "outside any layer" in draw_svg(build_treemap(live_by_module(peak.tensors), 900))
