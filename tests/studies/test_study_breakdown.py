"""Breaking a training down: parts add up to the step, families are those of the words, memory is explained."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest
from tests.fabricate import STEP, fabricate_run

from stepscope.analysis.results import Findings
from stepscope.analysis.run import Run
from stepscope.errors import UsageError
from stepscope.experiments.breakdown import Breakdown
from stepscope.experiments.breakdown.study import FAMILY_NAMES, Evidence, build_findings, family_milliseconds, op_family
from stepscope.experiments.engine.engine import Plan, answer_study
from stepscope.experiments.observations._measurements import runs_in
from stepscope.report.charts.operators import breakdown_charts
from stepscope.report.study_results import render

CHILD = (sys.executable, str(Path(__file__).parent / "setting_child.py"))


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten::mkldnn_convolution", "convolution"), ("aten.convolution_backward.default", "convolution"),
        ("aten::native_batch_norm_backward", "batch norm"), ("aten::native_layer_norm", "other norms"),
        ("aten::addmm", "matrix product"), ("aten::mm", "matrix product"), ("aten::threshold_backward", "activation"),
        ("aten::max_pool2d_with_indices", "pooling"), ("aten::_log_softmax", "loss"),
        ("aten::add_", "sums and products"),
        ("aten::mkldnn_rnn_layer", "recurrent"), ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::copy_", "moving and filling"), ("(residual)", "framework overhead"), ("aten::sort", "other"),
        ("nn.BatchNorm2d", "code of the layers"), ("Optimizer.step#SGD.step", "optimizer"), ("#stepscope.data", "data"),
        ("autograd::engine::evaluate_function: NativeBatchNormBackward0", "batch norm"),
        (None, "other"), ("aten::hardtanh_", "activation"), ("aten::linear", "matrix product"),
    ],
)  # fmt: skip
def test_an_op_belongs_to_the_family_that_people_name(op: str | None, name: str) -> None:
    assert op_family(op) == name
    assert name in FAMILY_NAMES


def test_the_parts_of_a_step_add_up_to_the_step(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=20, ops=STEP, residual_us=2000))
    found = family_milliseconds(run)
    assert sum(found.values()) == pytest.approx(17.0)
    assert found["optimizer"] == pytest.approx(0.8)
    assert found["framework overhead"] == pytest.approx(2.0)
    assert found["convolution"] > 8.9


def test_two_models_are_broken_down_side_by_side(tmp_path: Path) -> None:
    asked = Breakdown(("lenet", "resnet8-c32"), batch=4, repeats=1, steps=20)
    findings = answer_study(asked, tmp_path / "study", child=CHILD)
    names = {table.name: table for table in findings.tables}
    assert set(names) == {"memory", "time"}
    for model in asked.models:
        for kind in ("training", "inference"):
            parts = [row for row in names["memory"].rows if row[:2] == (model, kind)]
            assert sum(float(row[4] or 0) for row in parts[:-1]) == pytest.approx(float(parts[-1][4] or 0))
    assert "resnet8-c32 holds" in findings.answer
    assert "most of the difference was made by" in findings.answer
    assert sum("cannot be judged" in note for note in findings.notes) == 4
    taken = runs_in(tmp_path / "study")  # by the observations: a forward alone is no training
    assert sorted((run.meta["workload"]["name"], run.meta["workload"]["kind"]) for run in taken) == [
        ("lenet", "training"), ("resnet8-c32", "training"),
    ]  # fmt: skip
    drawn = breakdown_charts(findings.frames)
    assert set(drawn) == {"memory-over-step", "time-by-family", "saved-by-family"}
    assert "Memory at the peak" in render(findings, drawn)


def test_the_mobile_network_keeps_twice_as_much_for_backward_as_resnet18_and_nothing_is_trained(tmp_path: Path) -> None:
    models = ("mobilenet-v1-224", "resnet18-224")
    findings = answer_study(Breakdown(models, batch=8, memory_only=True), tmp_path, child=("false",))
    assert findings.answer.startswith("mobilenet-v1-224 holds")
    rows = findings.tables[0].rows
    saved = [sum(float(r[4] or 0) for r in rows if r[:3] == (name, "training", "activations")) for name in models]
    assert 1.7 < saved[0] / saved[1] < 2.1  # counted by hand: 39.1 and 21.2 MiB an image


def test_inference_holds_less_than_training_and_saves_nothing(tmp_path: Path) -> None:
    asked = Breakdown(("lenet",), batch=8, repeats=1, steps=20)
    findings = answer_study(asked, tmp_path, child=CHILD)
    rows = findings.tables[0].rows
    whole = {str(row[1]): float(row[4] or 0) for row in rows if row[2] == "whole peak"}
    assert whole["inference"] < whole["training"]
    assert {row[1] for row in rows if row[2] == "activations"} == {"training"}


def test_a_model_of_either_that_was_edited_meanwhile_is_refused(tmp_path: Path) -> None:
    files = [tmp_path / name / "net.py" for name in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text("size = 1", encoding="utf-8")
    asked = Breakdown(tuple(f"{file}:net" for file in files))
    nothing = Plan([], lambda results: Findings("b", "", ()))
    answer_study(asked, tmp_path / "study", plan=nothing)
    (tmp_path / "study" / "findings.json").touch()  # else nothing of it has ended that could be mixed
    answer_study(asked, tmp_path / "study", plan=nothing)
    for file in files:
        file.write_text("size = 2", encoding="utf-8")
        with pytest.raises(UsageError, match="the training has changed"):
            answer_study(asked, tmp_path / "study", plan=nothing)
        file.write_text("size = 1", encoding="utf-8")


@pytest.mark.parametrize(("device", "is_said"), [("cpu", False), ("cuda", True)])
def test_on_an_accelerator_times_are_said_to_be_those_of_the_cpu_that_launches(device: str, is_said: bool) -> None:
    times = {("lenet", "training"): [{"convolution": 1.0, "framework overhead": 9.0}]}
    findings = build_findings(Evidence(times, {}, {}, pl.DataFrame(), {}, ()), Breakdown(("lenet",), device=device))
    bars = findings.frames["time-by-family"]["kind"].unique().to_list()
    assert ("which launches the kernels" in findings.answer) == is_said
    assert ("which launches the kernels" in findings.tables[0].title) == is_said
    assert bars == (["training (CPU)"] if is_said else ["training"])
