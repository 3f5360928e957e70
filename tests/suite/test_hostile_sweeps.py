"""The folder of a sweep that somebody else made: going on with it reads and writes there alone, and runs no program."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import RunDamaged, UsageError
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.suite.plan import new_sweep, resume_sweep


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    request = SuiteRun(workloads=("lenet",), steps=2, repeats=1, batch=(4,))
    return new_sweep(request, tmp_path_factory.mktemp("sweep") / "s", print).plan


def _kept(folder: Path, plan: Any) -> Path:
    folder.mkdir()
    (folder / "sources").mkdir()
    (folder / "sweep.json").write_text(plan if isinstance(plan, str) else json.dumps(plan), encoding="utf-8")
    return folder


def _point(**changed: object) -> Callable[[dict[str, Any]], object]:
    return lambda plan: plan["order"][0].update(changed)


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a device that is a path": _point(device="../../../x"),
    "an optimizer that is a path": _point(optimizer="../../../x"),
    "a precision that is none": _point(precision="\x1b]0;mine\x07"),
    "a batch that is a text": _point(batch="\x1b]0;mine\x07"),
    "more threads than any machine has": _point(threads=10**9),
    "no point": lambda plan: plan.update(order=[7]),
    "no order": lambda plan: plan.pop("order"),
    "no rules": lambda plan: plan.update(rules=[]),
    "workloads in a list": lambda plan: plan.update(workloads=["lenet"]),
    "a source outside": lambda plan: plan["workloads"]["lenet"].update(source="../../secret.txt"),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_plan_that_cannot_be_is_refused(hostile: str, plan: dict[str, Any], tmp_path: Path) -> None:
    changed = json.loads(json.dumps(plan))
    HOSTILE[hostile](changed)
    with pytest.raises(RunDamaged, match="is not the plan of a sweep"):
        SweepFolder(_kept(tmp_path / "s", changed))


@pytest.mark.parametrize("kind", ["a pipe", "a link", "no end of lists"])
def test_what_is_no_plan_at_all_is_refused(kind: str, tmp_path: Path) -> None:
    folder = _kept(tmp_path / "s", "[" * 100_000)
    if kind != "no end of lists":
        (folder / "sweep.json").rename(tmp_path / "outside.json")
        os.mkfifo(folder / "sweep.json") if kind == "a pipe" else (folder / "sweep.json").symlink_to("../outside.json")
    with pytest.raises(RunDamaged):
        SweepFolder(folder)


def test_a_plan_of_ours_is_taken_with_other_rules_than_there_are(plan: dict[str, Any], tmp_path: Path) -> None:
    changed = {**plan, "rules": {**plan["rules"], "of a later version": 1}}
    assert SweepFolder(_kept(tmp_path / "s", changed)).plan["rules"] == plan["rules"]


def test_a_source_that_is_a_link_is_not_shown(plan: dict[str, Any], tmp_path: Path) -> None:
    changed = json.loads(json.dumps(plan))
    changed["workloads"]["lenet"]["definition"]["loss"] = "another"
    folder = _kept(tmp_path / "s", changed)
    (tmp_path / "mine").write_text("a secret of mine", encoding="utf-8")
    (folder / "sources" / "0.py").symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match="has changed since") as caught:
        resume_sweep(SuiteRun(resume=True), folder)
    assert "a secret" not in str(caught.value)


@pytest.mark.parametrize("place", ["workloads", "order"])
def test_going_on_with_somebody_else_s_sweep_runs_none_of_its_programs(
    place: str, plan: dict[str, Any], tmp_path: Path
) -> None:
    program = f"{tmp_path / 'evil.py'}:make"
    (tmp_path / "evil.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path)!r}, 'ran').touch()\n")
    changed = json.loads(json.dumps(plan))
    if place == "order":
        changed["order"][0]["workload"] = program
    else:
        changed["workloads"] = {program: plan["workloads"]["lenet"]}
    folder = _kept(tmp_path / "s", {**changed, "seal": "0" * 64})
    with pytest.raises(UsageError, match="somebody else may have made"):
        resume_sweep(SuiteRun(resume=True), folder)
    assert not (tmp_path / "ran").exists()
    SweepFolder(folder).refuse_programs_of_others([program])


def test_going_on_with_a_sweep_of_one_s_own_programs_needs_no_word_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('it trains')\n", encoding="utf-8")
    new_sweep(SuiteRun(workloads=("train.py",), steps=2, repeats=1), Path("s"), print)
    assert resume_sweep(SuiteRun(resume=True), Path("s")).order
    content = json.loads(Path("s/sweep.json").read_text())
    content["order"][0]["workload"] = "other.py"
    Path("s/sweep.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"would run other.py"):
        resume_sweep(SuiteRun(resume=True), Path("s"))
