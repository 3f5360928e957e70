from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tests.fabricate import MODEL, STEP, Op, every_step, fabricate_run
from typer.testing import CliRunner

import stepscope
from stepscope.analysis.compare import compare
from stepscope.analysis.run import Run
from stepscope.cli._application import build_app

CLIPPED = (
    *STEP,
    Op("aten::_foreach_norm", None, "other", 5, (Op("aten::linalg_vector_norm", None, "other", 40),)),
    *(Op("aten::mul_", None, "other", 2) for _ in range(4)),
)


def fabricated(
    out: Path, ops: tuple[Op, ...] = STEP, model: tuple[tuple[str, str, str | None, int], ...] = MODEL
) -> Path:
    return fabricate_run(out, steps=40, noise=0.02, recorded=every_step, ops=ops, model=tuple(model))


def test_operators_that_a_step_calls_besides_are_named_with_their_numbers_where_no_time_tells(tmp_path: Path) -> None:
    comparison = compare([fabricated(tmp_path / "a"), fabricated(tmp_path / "b", CLIPPED)])
    program = comparison.program()
    assert [(change.name, change.first, change.other) for change in program.changes_of_kind("operator")] == [
        ("aten::linalg_vector_norm", None, 1),
        ("aten::mul_", None, 4),
        ("aten::_foreach_norm", None, 1),
    ]
    (calls,) = program.changes_of_kind("operator calls")
    assert calls.other is not None
    assert calls.first is not None
    assert calls.other - calls.first == 6
    (said,) = comparison.sentences()
    assert (
        f"{calls.other:.0f} operator calls (A: {calls.first:.0f}), above all aten::linalg_vector_norm 1 (A: none)"
        in said
    )


def test_of_two_runs_of_one_program_it_is_said_that_they_make_the_same_calls(tmp_path: Path) -> None:
    comparison = compare([fabricated(tmp_path / "a"), fabricated(tmp_path / "b", tuple(STEP))])
    program = comparison.program()
    assert program.changes == ()
    assert program.calls
    assert (
        f"A and B make the same {program.calls} operator calls a step, in the same layers." in comparison.sentences()[0]
    )


def test_layers_that_one_side_has_alone_or_larger_are_named_without_what_contains_them(tmp_path: Path) -> None:
    larger = tuple((name, kind, parent, 2 * size if name in ("fc", "") else size) for name, kind, parent, size in MODEL)
    other = fabricated(tmp_path / "b", model=(*larger, ("norm", "LayerNorm", "", 64)))
    comparison = compare([fabricated(tmp_path / "a"), other])
    assert [change.name for change in comparison.program().changes_of_kind("layer")] == [
        "fc (Linear)",
        "norm (LayerNorm)",
    ]
    (said,) = comparison.sentences()
    assert "1 layer added (norm (LayerNorm))" in said
    assert "other parameters in fc (Linear)" in said


def test_another_model_is_called_so_and_its_layers_are_not_listed(tmp_path: Path) -> None:
    model = (("", "Other", None, 10), *((f"block{at}", "Linear", "", 5) for at in range(9)))
    comparison = compare([fabricated(tmp_path / "a"), fabricated(tmp_path / "b", model=model)])
    (change,) = comparison.program().changes
    assert (change.what, change.first, change.other) == ("model", len(MODEL) - 1, 9)
    assert "another model, 9 layers" in comparison.sentences()[0]


def test_operator_calls_that_vary_from_step_to_step_are_not_called_the_same(tmp_path: Path) -> None:
    runs = [Run(fabricated(tmp_path / name)) for name in ("a", "b")]
    often = pl.when(pl.col("step") % 2 == 0).then(1).otherwise(2)
    table = runs[1].self_times.with_columns(count=pl.col("count") * often)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs[1], "self_times", table)
        program = compare(runs).program()
    assert (program.changes, program.calls) == ((), None)
    assert program.reason == "the operator calls of a step vary"
    assert program.sentence("B") == ""


def test_layers_are_the_same_only_where_both_sides_have_a_model(tmp_path: Path) -> None:
    said = compare([fabricated(tmp_path / "a"), fabricated(tmp_path / "b", model=())]).program().sentence("B")
    assert said.endswith("operator calls a step.")


def test_operators_that_are_not_those_of_torch_are_not_called_unprofiled(tmp_path: Path) -> None:
    ops = (Op("dot_general.3", "fc", "forward", 2_000), Op("fusion.1", "fc", "forward", 1_000))
    program = compare([fabricated(tmp_path / name, ops) for name in ("a", "b")]).program()
    assert (program.calls, program.reason) == (None, "the operators of one side are not PyTorch's")


def test_runs_without_a_whole_profiled_step_have_layers_compared_alone(tmp_path: Path) -> None:
    bare = [fabricate_run(tmp_path / name, steps=20, recorded=lambda _: False) for name in ("a", "b")]
    program = compare(bare).program()
    assert (program.changes, program.calls) == ((), None)
    assert program.reason == "one side has no fully profiled step"
    assert program.sentence("B") == ""


def test_the_table_of_changes_is_in_the_long_report_on_the_page_and_in_json(tmp_path: Path) -> None:
    paths = [fabricated(tmp_path / "a"), fabricated(tmp_path / "b", CLIPPED)]

    def said(*words: str) -> str:
        return CliRunner().invoke(build_app(), ["compare", *map(str, paths), *words], catch_exceptions=False).stdout

    assert "what a step does otherwise, B (4)" in said("-v")
    (setting,) = json.loads(said("--json"))["settings"]
    assert [change["name"] for change in setting["program"][0]["changes"]][-1] == "aten::_foreach_norm"
    page = stepscope.page(compare(paths), tmp_path / "page.html")
    assert "aten::linalg_vector_norm" in page.read_text(encoding="utf-8")
