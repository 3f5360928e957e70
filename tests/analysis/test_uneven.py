"""A row of which single steps lay far off is marked, ranked without them, and no other row is marked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from tests.fabricate import fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.time.tables import largest_difference, mean_differs_from_median
from stepscope.report.terminal_report import render


@pytest.fixture
def stalled(tmp_path: Path) -> Run:
    """A run in which the convolution of one profiled step took 30 ms more."""
    path = fabricate_run(tmp_path, steps=20)
    parts = sorted((path / "ops").glob("*.parquet"))
    frame = pl.read_parquet(parts[-2])
    slow = pl.col("name").cast(pl.String) == "aten::mkldnn_convolution"
    frame.with_columns(pl.when(slow).then(pl.col("self_ns") + 30_000_000).otherwise("self_ns").alias("self_ns")).select(
        frame.columns
    ).cast(frame.schema).write_parquet(parts[-2])
    return Run(path)


def screen(run: Run) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(render(run))
    return captured.get()


def test_a_stall_in_a_profiled_step_is_named_since_the_speed_does_not_count_it(tmp_path: Path) -> None:
    path = fabricate_run(
        tmp_path, recorded=lambda step: step in {4, 8, 12}, stretch=lambda step: 999.0 if step == 8 else 1
    )
    assert any("The speed does not count a profiled step of" in said for said in Run(path).verdict().cautions)
    calm = fabricate_run(tmp_path / "calm", recorded=lambda step: step in {4, 8, 12})
    assert not any("does not count" in said for said in Run(calm).verdict().cautions)


def test_what_is_printed_is_what_is_ranked_by_and_what_shares_are_of(stalled: Run) -> None:
    step = stalled.metrics().filter(metric="step_time")["value"][0]
    for frame, name in ((stalled.phases(), "ns"), (stalled.operators(), "total_ns"), (stalled.modules(), "total_ns")):
        known = frame.filter(pl.col("share").is_not_null())
        assert known[name].to_list() == pytest.approx((known["share"] * step).to_list(), rel=1e-6)
    ranked = stalled.operators()["total_ns"].to_list()[:-1]
    assert ranked == sorted(ranked, reverse=True)


def test_the_row_of_the_stalled_step_is_marked_and_its_mean_is_told(stalled: Run) -> None:
    marked = {row["name"] for row in stalled.operators().iter_rows(named=True) if mean_differs_from_median(row)}
    assert marked == {"aten::mkldnn_convolution"}
    said = " ".join(screen(stalled).split())
    assert "outlying single steps are not in the times and shares" in said
    assert "aten::mkldnn_convolution: 3 ms, with them" in said


def test_without_a_stalled_step_no_row_is_marked(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=20))
    assert largest_difference(run.operators().iter_rows(named=True)) is None
    assert "* " not in screen(run)


@pytest.mark.skipif(importlib.util.find_spec("altair") is None, reason="needs the extra 'report'")
def test_the_page_marks_it_too(stalled: Run) -> None:
    from stepscope.report.page.parts import walk_parts
    from stepscope.report.sections import modules, operations, overview
    from stepscope.report.table import Table

    for section in (operations, modules, overview):
        (table,) = (part for part in walk_parts(section.build(stalled).parts) if isinstance(part, Table))
        cells = [cell for row in table.rows for cell in row if cell.text.startswith("* ")]
        assert cells
        assert "mean" in cells[0].hint
        assert "single steps were far from the others" in table.caption


def test_few_long_steps_that_hold_much_of_the_time_are_told(tmp_path: Path) -> None:
    path = fabricate_run(
        tmp_path, steps=223, recorded=lambda step: step < 23, stretch=lambda step: 100.0 if step in (50, 150) else 1.0
    )
    said = " ".join(Run(path).verdict().cautions)
    assert "1 % of the steps take more than twice the median, and 50 % of the time" in said


def test_steps_that_are_alike_are_not_said_to_vary(tmp_path: Path) -> None:
    assert "Steps vary" not in " ".join(Run(fabricate_run(tmp_path, steps=203, noise=0.1)).verdict().cautions)
