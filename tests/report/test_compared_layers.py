"""Several runs by layer: a row a layer, a column a run, on the terminal, the page, in JSON and in Python."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.fabricate import MODEL, STEP, Op, fabricate_run

from stepscope.analysis.compare import compare
from stepscope.analysis.compare.layers import LayerValue, _difference
from stepscope.analysis.estimate import interval_factor
from stepscope.errors import UnknownName
from stepscope.report.comparison import render

MORE = (*STEP, Op("aten::extra", "features.9", "forward", 900))


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    model = (*MODEL, ("features.9", "Extra", "", 0))
    return [
        fabricate_run(tmp_path / "a", steps=40, noise=0.01),
        fabricate_run(tmp_path / "b", steps=40, noise=0.01, seed=1, power_w=5.0),
        fabricate_run(tmp_path / "c", steps=40, noise=0.01, seed=2, ops=MORE, model=model),
    ]


def screen(paths: list[Path], width: int = 110) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(render(compare(paths)))
    return captured.get()


def test_every_layer_has_a_value_for_each_run_and_none_where_it_is_not(three: list[Path]) -> None:
    rows = {row.layer: row for row in compare(three).layers()}
    first = rows["features.0"]
    assert all(value is not None for value in first.values)
    assert first.values[0] is not None
    assert first.values[0].low is not None
    assert first.values[0].low <= first.values[0].value
    extra = rows["features.9"]
    assert [value is None for value in extra.values] == [True, True, False]
    assert next(iter(rows)) == max(rows.values(), key=lambda row: row.most).layer


def test_repeats_have_their_mean_with_the_interval_between_them(tmp_path: Path) -> None:
    for seed in range(3):
        fabricate_run(tmp_path / "a", steps=30, noise=0.05, seed=seed)
    other = fabricate_run(tmp_path / "b", steps=30)
    value = compare([tmp_path / "a", other]).layers()[0].values[0]
    assert value is not None
    assert value.low is not None
    assert value.high is not None
    assert value.low < value.value < value.high


def test_a_quantity_that_nobody_measured_has_no_rows_and_one_that_is_none_is_refused(three: list[Path]) -> None:
    assert compare(three).layers("memory") == []
    with pytest.raises(UnknownName):
        compare(three).layers("colour")


def test_the_terminal_has_a_column_for_each_of_three_runs_and_no_such_table_for_two(three: list[Path]) -> None:
    text = screen(three)
    head = next(line for line in text.splitlines() if line.startswith("self time of a step by layer"))
    assert head.split()[-3:] == ["A", "B", "C"]
    line = next(line for line in text.splitlines() if line.startswith("features.9 "))
    assert line.split()[1:3] == ["-", "-"]
    assert re.search(r"\d [mu]s \[[\d.]+, [\d.]+\]", line)
    assert "self time of a step by layer" not in screen(three[:2])


def test_json_has_the_layers_of_every_setting(three: list[Path]) -> None:
    content = json.loads(json.dumps(compare(three).to_dict()))
    rows = content["settings"][0]["layers"]["time"]
    assert {len(row["values"]) for row in rows} == {3}
    assert {"layer", "type", "values"} == set(rows[0])


def test_the_page_has_a_section_of_layers_for_three_runs(three: list[Path]) -> None:
    pytest.importorskip("altair", reason="needs the extra 'report'")
    from stepscope.report import compare_page

    assert 'id="layers-0"' in compare_page.render(compare(three))
    assert 'id="layers-0"' not in compare_page.render(compare(three[:2]))


def slower(ops: tuple[Op, ...], module: str, factor: float) -> tuple[Op, ...]:
    """The ops with those of a module, wherever they are called, that much longer."""
    return tuple(
        replace(op, self_us=round(op.self_us * (factor if op.module == module else 1)),
                calls=slower(op.calls, module, factor))
        for op in ops
    )  # fmt: skip


@pytest.fixture
def differing(tmp_path: Path) -> list[Path]:
    """A; B is the same program again; in C one layer takes longer, and another less."""
    ops = slower(slower(STEP, "features.0", 1.3), "fc", 0.7)
    return [
        fabricate_run(tmp_path / "a", steps=60, noise=0.01),
        fabricate_run(tmp_path / "b", steps=60, noise=0.01, seed=1),
        fabricate_run(tmp_path / "c", steps=60, noise=0.01, seed=2, ops=ops),
    ]


def test_only_layers_that_differ_beyond_chance_are_marked(differing: list[Path]) -> None:
    found = {row.layer: [value and value.difference for value in row.values] for row in compare(differing).layers()}
    assert found["features.0"] == [None, "none seen", "larger"]
    assert found["fc"] == [None, "none seen", "smaller"]
    assert {said[1] for said in found.values()} == {"none seen"}
    text = screen(differing)
    table = text[text.index("self time of a step by layer") : text.index("▲ more, ▼ less than A")]
    marked = {line.split()[0]: {mark for mark in "▲▼" if mark in line} for line in table.splitlines() if line.strip()}
    assert marked["features.0"] == {"▲"}
    assert marked["fc"] == {"▼"}
    assert marked["features.1"] == set()


def test_only_counted_bytes_are_told_apart_without_an_interval(tmp_path: Path) -> None:
    ops = slower(STEP, "features.0", 1.3)
    paths = [fabricate_run(tmp_path / "a", steps=6), fabricate_run(tmp_path / "b", steps=6, ops=ops)]
    values = [value for row in compare(paths).layers("time") for value in row.values if value]
    assert {value.low for value in values} == {None}
    assert {value.difference for value in values} == {None}
    first, other = (LayerValue(size) for size in (1e6, 2e6))
    assert _difference(first, other, 1, counted=True) == "larger"
    assert _difference(first, other, 1, counted=False) is None


def test_a_narrow_terminal_keeps_values_and_marks_and_drops_the_intervals(differing: list[Path]) -> None:
    line = next(line for line in screen(differing, 60).splitlines() if line.startswith("features.0 "))
    assert "▲" in line
    assert "[" not in line


def test_intervals_of_many_layers_hold_together() -> None:
    assert interval_factor(1, 1) == 1.0
    assert interval_factor(1, 40) == pytest.approx(3.227 / 1.960, abs=0.002)  # normal quantiles of 0.05 / 80 and 0.025
    assert interval_factor(3, 40) > 3 * interval_factor(1, 40)  # three repeats know their spread badly


def test_layers_with_unlike_joules_are_not_judged(tmp_path: Path) -> None:
    paths = [
        fabricate_run(tmp_path / "a", steps=40, power_w=5.0),
        fabricate_run(tmp_path / "b", steps=40, power_w=5.0, header={"simulated": "jetson-tx2"}),
    ]
    assert {value.difference for row in compare(paths).layers("energy") for value in row.values if value} <= {None}


def test_every_way_to_divide_that_is_asked_for_is_shown_without_v(tmp_path: Path) -> None:
    slow = tuple(replace(op, self_us=2 * op.self_us) for op in STEP)
    paths = [fabricate_run(tmp_path / "a", steps=40), fabricate_run(tmp_path / "b", steps=40, ops=slow)]
    console = Console(width=110)
    with console.capture() as captured:
        console.print(render(compare(paths), by=("type", "phase")))
    text = captured.get()
    assert "by type" in text
    assert "by phase" in text
