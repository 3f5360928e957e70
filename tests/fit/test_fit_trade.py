"""Allocators measured on a step, real steps of scripts, and what the pictures of `fit` are drawn from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.fit import jobs
from torch import nn

from stepscope.__main__ import main
from stepscope.analysis.memory.limits import ADDRESSES, RESIDENT, limit_of_memory
from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint import chart_data
from stepscope.footprint.prediction import JobQuestion, predict_fit, predict_script_fit
from stepscope.footprint.prediction_trials import trade_allocators, trade_dicts, trade_frame
from stepscope.footprint.real_steps import RealSteps, script_steps
from stepscope.footprint.simulator import Simulator
from stepscope.footprint.transforms import Variant
from stepscope.record.dry import Job, plain_step
from stepscope.record.dry.allocator_costs import StepCost, cost_as_json_line
from stepscope.record.dry.platform import this_platform
from stepscope.runfolder import CATEGORIES

MINE = """
import torch
def training():
    model = torch.nn.Linear(4, 2)
    batch = lambda samples: (torch.randn(samples, 4), torch.zeros(samples, dtype=torch.long))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), batch, torch.nn.CrossEntropyLoss()
"""
LOOP = """
import sys, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
"""


def simulator() -> Simulator:
    return Simulator(this_platform(), jobs.MEASURED, "default")


def asked(**more: Any) -> JobQuestion:
    return JobQuestion(jobs.job(), 16, limit_of_memory("360MB"), calibration=jobs.MEASURED, **more)


def says(cost: StepCost) -> list[str]:
    return [sys.executable, "-S", "-c", f"print({cost_as_json_line(cost)!r})"]


def test_the_trade_states_what_was_measured_beside_what_was_predicted() -> None:
    found = predict_fit(asked(options=False, largest=False))
    traded = trade_allocators(says(StepCost(1, 350_000_000, 0.25)), found, simulator(), rounds=1)
    default = traded[0]
    assert (default.cost.peak_bytes, default.cost.step_s, default.within_limit) == (350_000_000, 0.25, True)
    assert default.predicted == found.interval
    assert traded[1].predicted[1] < default.predicted[1]
    assert trade_frame(traded)["peak_mb"][0] == 350.0
    assert json.loads(json.dumps(trade_dicts(traded)))[0]["step_s"] == 0.25


def test_a_peak_above_the_limit_is_told_as_such() -> None:
    found = predict_fit(asked(options=False, largest=False))
    assert trade_allocators(says(StepCost(1, 361_000_000, 0.25)), found, simulator(), rounds=1)[0].within_limit is False


def test_a_resident_peak_says_nothing_of_a_limit_on_addresses() -> None:
    limit = limit_of_memory("2GB", ADDRESSES)
    found = predict_fit(replace(asked(options=False, largest=False), limit=limit))
    trade = trade_allocators(says(StepCost(1, 350_000_000, 0.25)), found, simulator(), rounds=1)[0]
    assert trade.within_limit is None


def test_options_and_their_gain_are_of_the_account_that_decides() -> None:
    plain, addresses = (
        predict_fit(replace(asked(largest=False), limit=limit_of_memory("2GB", account), batch=4096))
        for account in (RESIDENT, ADDRESSES)
    )
    for found in (plain, addresses):
        for option in found.options:
            assert option.gain_bytes == found.process.middle - option.process.middle
    assert addresses.options[0].process.empty_process == addresses.process.empty_process


def test_the_picture_of_options_is_no_surer_than_the_answer() -> None:
    unsure = replace(asked(), calibration=replace(jobs.MEASURED, imports_known=False), limit=limit_of_memory("8GB"))
    limit = limit_of_memory("8GB", ADDRESSES)
    rows = chart_data.options_by_batch(unsure, limit, [], [16])
    assert rows["verdict"].to_list() == ["likely fits"]
    assert rows["peak_bytes"][0] == predict_fit(replace(unsure, options=False, limit=limit)).process.middle


def test_a_script_is_ended_once_its_steps_are_measured(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP + "    assert step < 5, 'it ran on'\n")
    cost = script_steps(str(tmp_path / "loop.py"), ["100"], 3)
    assert cost.peak_bytes > 1_000_000
    assert cost.step_s > 0


def test_a_script_with_too_few_steps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    with pytest.raises(UsageError, match="enough optimizer steps"):
        script_steps(str(tmp_path / "loop.py"), ["2"], 3)


def test_the_child_that_is_measured_loads_neither_the_libraries_of_the_answer_nor_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polars alone would add 24 MB to every peak, the command line 13."""
    said = "print(*{'polars', 'typer', 'rich'} & set(sys.modules), file=sys.stderr)"
    (tmp_path / "mine.py").write_text(f"{MINE}\nimport atexit, sys\natexit.register(lambda: {said})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = RealSteps("mine:training", 4, threads=1, changed=asdict(Variant(2))).command(1)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stderr.strip() == ""
    assert len(json.loads(done.stdout)["cpu_s"]) == 1


def test_a_child_that_cannot_train_says_why_in_its_last_line() -> None:
    done = subprocess.run(RealSteps("lenett").command(1), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "lenet" in done.stderr.splitlines()[-1]


def test_the_series_of_a_step_adds_up_to_its_peak() -> None:
    found = predict_fit(asked(options=False, largest=False))
    series = chart_data.step_series(found.events)
    assert set(series["category"]) <= set(CATEGORIES)
    assert series.group_by("op").agg(pl.col("mb").sum())["mb"].max() == pytest.approx(found.peak_bytes / 1e6)


def test_inference_holds_less_than_training_and_nothing_for_backward() -> None:
    rows = chart_data.training_and_inference(simulator(), [(jobs.job(), 512)])
    most = {
        kind: part.group_by("op").agg(pl.col("mb").sum())["mb"].to_numpy().max()
        for (kind,), part in rows.group_by("kind")
    }
    assert most[chart_data.INFERENCE] < 0.7 * most[chart_data.TRAINING]
    held = set(rows.filter(pl.col("kind") == chart_data.INFERENCE)["category"])
    assert not held & {"saved", "gradient", "optimizer"}


def test_feature_maps_grow_with_the_batch_and_parameters_do_not() -> None:
    rows = chart_data.categories_by_batch(simulator(), [jobs.job()], [512, 4096])
    of = {(row["batch"], row["category"]): row["mb"] for row in rows.iter_rows(named=True)}
    assert of[(4096, "saved")] > 4 * of[(512, "saved")]
    assert of[(4096, "parameter")] == of[(512, "parameter")]


def test_a_batch_that_cannot_be_run_is_left_out_of_the_drawing_and_unknown_in_the_table() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, jobs.CLASSES))

    question = JobQuestion(jobs.job(normed), 4, limit_of_memory("360MB"), calibration=jobs.MEASURED)
    rows = chart_data.categories_by_batch(simulator(), [question.job], [1, 4])
    assert rows["batch"].unique().to_list() == [4]
    assert question.limit is not None
    table = chart_data.options_by_batch(question, question.limit, ["allocator: pinned"], [1, 4])
    unknown = table.filter(pl.col("batch") == 1)
    assert unknown["peak_bytes"].null_count() == len(unknown) == 2


def test_the_table_of_options_holds_the_answers_own_figures() -> None:
    question = asked(largest=False)
    found = predict_fit(question)
    assert question.limit is not None
    names = [option.name for option in found.options if "accumulated" not in option.name]
    rows = chart_data.options_by_batch(question, question.limit, names, [16, 32])
    at = {row["option"]: row["peak_bytes"] for row in rows.filter(pl.col("batch") == 16).iter_rows(named=True)}
    assert at[chart_data.AS_IT_IS] == found.process.middle
    assert {name: at[name] for name in names} == {o.name: o.process.middle for o in found.options if o.name in names}


def test_state_of_the_optimizer_belongs_to_the_layer_of_its_parameter() -> None:
    found = predict_fit(asked(options=False, largest=False))
    held = found.events.filter((pl.col("category") == "optimizer") & (pl.col("bytes") > 1000))
    assert held["module"].null_count() == 0
    assert "3.up" in held["module"].to_list()


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def command(*words: str) -> int:
    try:
        return main(["fit", *words])
    except SystemExit as end:
        return int(end.code or 0)


def test_every_picture_is_written_in_the_format_that_was_asked_for(in_a_folder: Path) -> None:
    pytest.importorskip("altair")
    words = ["lenet", "--batch", "4", "--memory", "1GB", "--no-options", "--figures", "out", "--format", "vega"]
    assert command(*words, "--beside", "ds-cnn-kws") == 0
    names = {path.name for path in (in_a_folder / "out").iterdir()}
    drawn = ("step", "modules", "inference", "peak", "batches", "options")
    assert names == {f"fit-{name}-lenet.vl.json" for name in drawn}
    assert "ds-cnn-kws" in (in_a_folder / "out/fit-inference-lenet.vl.json").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--beside", "ds-cnn-kws"], "--figures DIR"),
        (["--format", "svg"], "--figures DIR"),
        (["--figures", "out", "--format", "sgv"], "did you mean svg"),
        (["--figures", "out", "--beside", "lennet"], "did you mean lenet"),
    ],
)
def test_pictures_asked_for_wrongly_are_refused(
    words: list[str], said: str, in_a_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("lenet", "--batch", "4", "--no-options", *words) == 2
    assert said in capsys.readouterr().err


def test_what_was_never_simulated_is_not_drawn(tmp_path: Path) -> None:
    from stepscope.cli._fit_answer import draw_figures

    pytest.importorskip("altair")
    job = jobs.job()

    def looks(model: nn.Module, batch: Any) -> Any:
        assert batch[0].sum() != 0  # a number that no dry run has
        return jobs.loss(model, batch)

    of = Job("looking", job.build, job.batch, plain_step(looks), 16, looks)
    found = predict_fit(JobQuestion(of, 4, limit_of_memory("1GB"), options=False))
    with pytest.raises(StepscopeError, match="no dry run"):
        draw_figures(tmp_path, ["svg"], found, None, [], [])


def test_what_was_predicted_of_an_allocator_for_a_script_is_what_the_answer_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(LOOP)
    answer = predict_script_fit(
        "loop.py", ["5"], limit_of_memory("8GB"), "default", lambda _: jobs.MEASURED.environment
    )
    trade = trade_allocators(says(StepCost(1, 350_000_000, 0.25)), answer, answer.simulator, rounds=1)[0]
    assert trade.predicted == answer.interval
    assert "simulator" not in answer.as_dict()
