"""Energy of operators and modules on the screen, on the page and in summary.json."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from tests.analysis.attribution.powered_run import powered_run
from tests.fabricate import fabricate_run
from typer import Typer
from typer.testing import CliRunner

from stepscope.analysis.run import Run
from stepscope.analysis.summary import energy_facts, main_rail, module_rows, resolution_sentences, write_summary
from stepscope.cli.report import report
from stepscope.errors import UnknownName
from stepscope.report import first_screen, html
from stepscope.report.sections import energy as section
from stepscope.report.terminal_report import operator_energy, operator_utilisation


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return powered_run(tmp_path_factory.mktemp("powered"))


def screen(run: Run) -> str:
    console = Console(width=100, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(*operator_energy(run))
    return captured.get()


def test_the_screen_shows_joules_interval_and_verdict_of_kinds_and_modules(path: Path) -> None:
    text = screen(Run(path))
    for said in (
        "energy by op (VDD_IN)",
        "aten::convolution_backward",
        "within 10 %",
        "± ",
        "backward",
        "regression",
    ):
        assert said in text
    assert "% of the energy is within 10 %, operators from" in text


@pytest.mark.parametrize("method", ["nearest", "overlap"])
def test_another_method_is_named_and_has_no_interval(path: Path, method: str) -> None:
    text = screen(Run(path, method))
    assert f"energy by op (VDD_IN, {method})" in text
    assert "no CI" in text
    assert "±" not in text


def test_a_run_without_a_sensor_says_nothing_of_energy_per_operation(tmp_path: Path) -> None:
    assert operator_energy(Run(fabricate_run(tmp_path, steps=20))) == []


def test_a_method_without_anything_to_hand_out_says_so(path: Path) -> None:
    assert "no power model was given" in screen(Run(path, "model"))


def test_a_rail_that_stands_still_says_why_it_has_no_numbers(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=100, power_w=5.0))
    assert "5 W throughout" in screen(run)
    assert "5 W throughout" in section.build(run).lede


def test_simulated_sensors_are_stamped(path: Path) -> None:
    run = Run(path)
    run.meta["simulated"] = "jetson-tx2"
    assert "SIMULATED sensors: jetson-tx2" in screen(run)
    assert section.build(run).lede.startswith("SIMULATED")
    assert energy_facts(run)["stamp"] == "SIMULATED sensors: jetson-tx2"


@pytest.mark.parametrize(
    ("header", "short", "long"),
    [
        ({}, "est. J/step", "Estimated energy"),
        ({"simulated": "jetson-tx2"}, "sim. est. J/step", "Simulated estimated energy"),
    ],
)
def test_joules_of_layers_by_the_power_model_are_called_estimated(
    header: dict[str, str], short: str, long: str, tmp_path: Path
) -> None:
    run = Run(fabricate_run(tmp_path, steps=60, header={"power_model": "cpu=2W..12W", **header}), "model")
    console = Console(width=140, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(first_screen.render(run))
    assert f" {short}" in captured.get()
    page = html.render(run)
    assert f'"title":"{long}"' in page  # of the bars and the tree
    assert f">{long}</th>" in page


def test_the_page_has_a_picture_and_tables_of_kinds_and_modules(path: Path) -> None:
    built = section.build(Run(path))
    assert [part.kind for part in built.parts] == ["figure", "table", "items"]
    kinds = built.parts[1]
    assert "aten::convolution_backward" in [row[0].text for row in kinds.rows]  # type: ignore[union-attr]
    assert len(kinds.columns) == len(kinds.rows[0])  # type: ignore[union-attr]
    assert "<svg" in built.parts[0].wide  # type: ignore[union-attr]


def test_the_page_of_a_run_without_a_sensor_says_that_energy_is_unknown(tmp_path: Path) -> None:
    bare = Run(fabricate_run(tmp_path, steps=20))
    assert section.build(bare).parts == ()
    assert "energy (no power was measured; it is unknown, not 0)" in html.render(bare)


def test_modules_add_up_to_the_rail_with_their_phases_side_by_side(path: Path) -> None:
    run = Run(path)
    frame = run.energy(by="module")
    rows = module_rows(frame)
    assert sum(row["joules_per_step"] for row in rows) == pytest.approx(frame["joules_per_step"].sum())
    both = next(row for row in rows if row["name"] == "features.0")
    assert both["forward"] + both["backward"] == pytest.approx(both["joules_per_step"])
    assert both["low"] < both["joules_per_step"] < both["high"]


@pytest.mark.parametrize(("backward_j", "verdict"), [(0.05, "resolved"), (0.2, "coarse"), (0.9, "not identifiable")])
def test_a_layer_is_known_no_better_than_its_phases_that_are_supposed(backward_j: float, verdict: str) -> None:
    read = {"joules_per_step": 1.0, "low": 0.98, "high": 1.02, "verdict": "resolved", "reason": None}
    half = 0.01 * backward_j  # made narrow by what is supposed of every operator
    supposed = {"joules_per_step": backward_j, "low": backward_j - half, "high": backward_j + half}
    frame = pl.DataFrame(
        [
            {"name": "fc", "phase": "forward", **read},
            {"name": "fc", "phase": "backward", **supposed, "verdict": "not identifiable", "reason": "hardly told"},
        ],
        infer_schema_length=None,
    ).with_columns(share=pl.lit(0.5), seconds_per_step=pl.lit(0.1), above_idle=pl.lit(0.1))
    (row,) = module_rows(frame)
    assert row["verdict"] == verdict
    assert row["reason"] == (None if verdict == "resolved" else "hardly told")


def test_the_summary_holds_energy_of_operations_only_where_power_was_measured(path: Path, tmp_path: Path) -> None:
    stored = json.loads(write_summary(Run(path)).read_text(encoding="utf-8"))["energy_of_ops"]
    assert stored["method"] == "fit"
    assert stored["kind"][0]["verdict"] == "resolved"
    assert stored["sentences"]
    silent = Run(fabricate_run(tmp_path, steps=20))
    assert json.loads(write_summary(silent).read_text(encoding="utf-8"))["energy_of_ops"] is None


def test_a_lock_of_sampler_and_step_is_said() -> None:
    row = {
        "component": "total",
        "rail": "VDD_IN",
        "resolved_share": 0.0,
        "shortest_op_s": None,
        "more_steps": 5,
        "locked": True,
        "note": "the sampler is locked to the step: dither the period",
    }
    (said,) = resolution_sentences(pl.DataFrame([row]))
    assert "PHASE LOCK" in said
    assert "everything is below sensor resolution" in said


def test_more_steps_are_asked_for_where_they_would_help() -> None:
    row = {"component": "total", "rail": "R", "resolved_share": 0.5, "shortest_op_s": 0.002, "locked": False}
    counts = (120, None, 65_516)
    said = [resolution_sentences(pl.DataFrame([{**row, "note": None, "more_steps": n}]))[0] for n in counts]
    assert "50 % of the energy is within 10 %, operators from 2 ms; about 120 more steps" in said[0]
    assert "would not bring" in said[1]
    assert "about 66,000 more steps" in said[2]


def test_the_device_rail_stands_for_the_run_and_the_largest_where_there_is_none() -> None:
    rows = [("cpu", "CPU", 5.0), ("total", "IN", 3.0), ("gpu", "GPU", 1.0)]
    frame = pl.DataFrame(rows, schema=["component", "rail", "joules_per_step"], orient="row")
    assert main_rail(frame) == "IN"
    assert main_rail(frame.filter(component="cpu")) == "CPU"
    assert main_rail(frame.clear()) is None


def test_report_takes_the_method_and_refuses_an_unknown_one(path: Path) -> None:
    app = Typer()
    app.command()(report)
    shown = CliRunner().invoke(app, [str(path), "-v", "--attribution", "nearest"])
    assert "by the sample nearest in time (the 2019 paper's way)" in shown.output
    refused = CliRunner().invoke(app, [str(path), "--attribution", "nearst"])
    assert isinstance(refused.exception, UnknownName)
    told = json.loads(CliRunner().invoke(app, [str(path), "--json", "--attribution", "overlap"]).output)
    assert told["energy_of_ops"]["method"] == "overlap"


def test_power_without_a_recorded_op_is_said_to_have_nothing_to_go_to(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    shutil.rmtree(copy / "ops")
    assert "no op of a step after the warm-up was recorded" in " ".join(screen(Run(copy)).split())


def test_use_of_kinds_is_shown_where_it_is_resolved(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    shared = {"quantity": "cpu", "scope": "process", "unit": "cores", "low": 1.9, "high": 2.1}
    found = pl.DataFrame(
        [
            {**shared, "name": "aten::mm", "mean": 2.0, "verdict": "resolved"},
            {**shared, "name": "aten::add", "mean": 1.0, "verdict": "coarse"},
        ]
    )
    monkeypatch.setattr(Run, "utilisation", lambda *_, **__: found)
    console = Console(width=100, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(*operator_utilisation(Run(path)))
    assert "CPU of the process: aten::mm 2 cores [1.9, 2.1]" in captured.get()
    assert "aten::add" not in captured.get()
