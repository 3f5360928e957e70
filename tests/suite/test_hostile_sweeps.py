"""The folder of a sweep that somebody else made: going on with it reads and writes there alone, and runs no program."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.__main__ import main
from stepscope.errors import RunDamaged, UsageError
from stepscope.experiments.engine.folder import StudyFolder, SweepFolder
from stepscope.experiments.engine.sweep_points import SweepPoint
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
    "versions in a list": lambda plan: plan.update(versions=[1]),
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


def test_a_study_goes_on_with_the_data_that_it_began_with(tmp_path: Path) -> None:
    def begin(data: str) -> StudyFolder:
        return StudyFolder(tmp_path / "s", "batch", {}, where={"device": "a board", "data": {"data of lenet": data}})

    begin("mnist-5k").store_result("a", {"status": "ok"})
    begin("mnist-5k")
    with pytest.raises(UsageError, match='data of lenet: "mnist-5k" -> "mnist"'):  # which was fetched meanwhile
        begin("mnist")


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


ANY: list[Any] = [None, 5, "x\x1b]0;mine\x07", [], [7], [None], {}, {"x": [1]}, 1e300, True]


def _result(point: SweepPoint) -> dict[str, Any]:
    return {
        "point": point.to_dict(), "status": "ok", "reason": None, "wall_s": 1.0, "total_s": 1.0, "run": "runs/x/y",
        "ended_unix_ms": 1, "flags": ["it is warm"], "cooled": {"waited_s": 0.0, "reached": True}, "steps": 2,
        "numbers": {"step_time_ms": {"value": 1.0, "low": 0.9, "high": 1.1}}, "versions": {"torch": "2"}, "data": None,
        "at_start": {}, "at_end": {}, "input_shape": [1], "parameters": 1, "threads": 1, "last_loss": math.nan,
        "flops_forward": None, "flops_backward": None, "warmup_steps": 0, "train_s": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("place", ["result", "plan"])
def test_whatever_a_folder_holds_of_a_sweep_is_shown_or_refused(
    place: str, plan: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _kept(tmp_path / "s", plan)
    (point,) = SweepFolder(folder).order
    result = _result(point)
    (folder / "points").mkdir()
    for key in result if place == "result" else plan:
        for value in ANY:
            changed = {**(result if place == "result" else plan), key: value}
            if value is ANY[-1]:
                del changed[key]
            (folder / "sweep.json").write_text(json.dumps(plan if place == "result" else changed), encoding="utf-8")
            kept = changed if place == "result" else result
            (folder / "points" / f"{point.id}.json").write_text(json.dumps(kept), encoding="utf-8")
            for more in ([], ["--json"]):
                assert main(["suite", "show", str(folder), *more]) in (0, 4), (key, value)
                said = capsys.readouterr()
                assert not set(said.out + said.err) & set("\x1b\x07"), (key, value)


def test_a_result_of_ours_is_read_as_it_was_written(plan: dict[str, Any], tmp_path: Path) -> None:
    folder = SweepFolder(_kept(tmp_path / "s", plan))
    (folder.path / "points").mkdir()
    (point,) = folder.order
    folder.store_result(point.id, _result(point))
    assert json.dumps(folder.result(point.id), sort_keys=True) == json.dumps(_result(point), sort_keys=True)
    folder.store_result("another", _result(point))
    assert folder.result("another") is None


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


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("device", "board", "NVIDIA Jetson TX2"),
        ("device", "cores", [{"core": 0}] * 99),
        ("device", "power_mode", "MAXN"),
        ("versions", "torch", "1.13.0"),
        ("versions", "python", "3.6.9"),
    ],
)
def test_a_sweep_does_not_go_on_with_another_device_or_other_versions(
    place: str, name: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('it trains')\n", encoding="utf-8")
    new_sweep(SuiteRun(workloads=("train.py",), steps=2, repeats=1), Path("s"), print)
    assert resume_sweep(SuiteRun(resume=True), Path("s")).order
    content = json.loads(Path("s/sweep.json").read_text())
    content[place][name] = value
    monkeypatch.setattr(SweepFolder, "refuse_programs_of_others", lambda self, names: None)
    Path("s/sweep.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="began on another device"):
        resume_sweep(SuiteRun(resume=True), Path("s"))


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


def test_options_of_a_sweep_that_goes_on_are_compared_alone_and_the_way_that_the_refusal_names_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other.py", "third.py"):
        Path(name).write_text("print('it trains')\n", encoding="utf-8")
    new_sweep(SuiteRun(workloads=("train.py", "other.py"), steps=2, repeats=2, threads=(1,)), Path("s"), print)
    content = json.loads(Path("s/sweep.json").read_text())
    Path("s/sweep.json").write_text(json.dumps({**content, "seal": None}))  # as of somebody else
    with pytest.raises(UsageError, match=r"would run other\.py, train\.py") as refused:
        resume_sweep(SuiteRun(resume=True), Path("s"))
    assert refused.value.hint == "name what you trust: stepscope suite run other.py train.py --resume --out s"
    whole = ("train.py", "other.py")
    same: tuple[dict[str, Any], ...] = ({}, {"steps": 2}, {"repeats": 2, "threads": (1,)})
    for options in same:
        assert resume_sweep(SuiteRun(workloads=whole, resume=True, **options), Path("s")).order
    others: dict[str, Any] = {"repeats": 3, "threads": (2,), "seconds": 9.0, "seed": 1}
    for name, value in others.items():
        with pytest.raises(UsageError, match="was begun otherwise") as refused:
            resume_sweep(SuiteRun(workloads=whole, resume=True, **{name: value}), Path("s"))
        assert len(str(refused.value).splitlines()) <= 3
    with pytest.raises(UsageError, match=r"workload: other.py, train.py -> other.py, third.py, train.py"):
        resume_sweep(SuiteRun(workloads=(*whole, "third.py"), resume=True), Path("s"))
    Path("s/sweep.json").write_text(json.dumps(content))
    assert resume_sweep(SuiteRun(workloads=("train.py",), resume=True), Path("s")).order


@pytest.mark.parametrize(
    "linked", ["runs", "runs/0.txt", "figures/gains.png", ".lock", "page.html", "cells/x.json", "a pipe"]
)
def test_nobody_works_in_a_folder_with_links_or_pipes(linked: str, tmp_path: Path) -> None:
    folder, mine = StudyFolder(tmp_path / "s", "tune", {}), tmp_path / "mine"
    mine.write_text("mine", encoding="utf-8")
    (folder.path / linked).parent.mkdir(exist_ok=True)
    if linked == "runs":
        (folder.path / linked).rmdir()
    if linked == "a pipe":
        os.mkfifo(folder.path / "runs" / "0.txt")
    else:
        (folder.path / linked).symlink_to(mine if linked != "runs" else tmp_path)
    with pytest.raises(RunDamaged, match="is a link, or no plain file"), folder.locked():
        pytest.fail("it was worked in")
    assert mine.read_text(encoding="utf-8") == "mine"


def test_a_result_that_was_changed_since_it_was_written_is_none(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path / "s", "tune", {})
    study.store_result("a", {"status": "ok", "ms": 41.5, "steps": 12})
    file = study.path / "cells" / "a.json"
    for changed in (file.read_text().replace("41.5", "37.9"), file.read_text().replace('"ok"', '"lost"')):
        file.write_text(changed)
        assert study.result("a") is None
        assert study.results() == {}
    file.write_text('{"status": "ok", "ms": 41.5}')  # of an earlier version, or of somebody who means it
    assert study.result("a") == {"status": "ok", "ms": 41.5}


@pytest.mark.parametrize("kind", ["a pipe", "a link", "no end of lists"])
def test_a_study_that_is_no_plain_file_is_refused(kind: str, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s", "tune", {}).path
    (folder / "study.json").rename(tmp_path / "outside.json")
    if kind == "a pipe":
        os.mkfifo(folder / "study.json")
    elif kind == "a link":
        (folder / "study.json").symlink_to("../outside.json")
    else:
        (folder / "study.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(RunDamaged):
        StudyFolder(folder, "tune", {})
