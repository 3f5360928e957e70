"""`--until-resolved`: how the share is read, what a question finds, and how a training ends by it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.attribution.powered_run import powered_run
from tests.fabricate import fabricate_run

from stepscope.api.requests import RunRequest
from stepscope.errors import UsageError
from stepscope.experiments.energy_resolution import FIRST, StopWhenEnergyResolved, resolved_so_far, run_of_process


class Answering:
    """Stands for the process beside the training: ends at once with an answer."""

    def __init__(self, answer: str) -> None:
        self.answer, self.killed = answer, False

    def poll(self) -> int:
        return 0

    def communicate(self) -> tuple[str, None]:
        return self.answer, None

    def kill(self) -> None:
        self.killed = True


def trained(monkeypatch: pytest.MonkeyPatch, answers: list[str], steps: int) -> tuple[StopWhenEnergyResolved, int]:
    """The state after so many steps, or fewer where it ended them, and how many those were."""
    asked = iter(answers)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Answering(next(asked)))
    resolved = StopWhenEnergyResolved(Path("runs"), 0.9)
    for step in range(1, steps + 1):
        if resolved():
            return resolved, step
    return resolved, steps


@pytest.mark.parametrize(("text", "share"), [("90%", 0.9), ("0.8", 0.8), ("100 %", 1.0), ("1", 1.0), ("12.5%", 0.125)])
def test_a_share_is_read(text: str, share: float) -> None:
    assert RunRequest("lenet", until_resolved=text).until_resolved == pytest.approx(share)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "90", "-5%", "nan", "most"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="until-resolved"):
        RunRequest("lenet", until_resolved=text)  # type: ignore[arg-type]


def test_training_ends_when_the_share_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [json.dumps({"share": share, "more_steps": more, "why": None}) for share, more in ((0.5, 20), (0.93, 0))]
    resolved, steps = trained(monkeypatch, answers, 500)
    assert FIRST < steps < 2 * FIRST
    assert resolved.reached
    assert "93% of the energy was within 10 % after" in resolved.sentence


def test_the_bound_is_said_when_it_was_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [json.dumps({"share": 0.4, "more_steps": 4_000, "why": None})] * 9
    resolved, steps = trained(monkeypatch, answers, 200)
    assert steps == 200
    assert "bound of 200 steps (--steps): 40% of the energy is within 10 %; about 4,000 more steps" in resolved.sentence
    assert resolved.progress == "40% of 90% within 10 %"


@pytest.mark.parametrize("answer", ["", "no json", "[1]", json.dumps({"why": "no power is measured"})])
def test_no_answer_ends_no_training_and_is_said(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    resolved, steps = trained(monkeypatch, [answer] * 9, 150)
    assert steps == 150
    assert "is not known after 150 steps" in resolved.sentence


def test_a_process_that_cannot_start_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise OSError("no memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    resolved = StopWhenEnergyResolved(Path("runs"), 0.9)
    assert not any(resolved() for _ in range(300))
    assert len(tried) == 1
    assert "no memory" in resolved.sentence


def test_an_open_question_is_ended_with_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Answering("")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: child)
    resolved = StopWhenEnergyResolved(Path("runs"), 0.9)
    for _ in range(FIRST):
        resolved()
    resolved.close()
    assert child.killed


def test_a_run_with_power_says_how_much_is_resolved(tmp_path: Path) -> None:
    answer = resolved_so_far(powered_run(tmp_path, steps=200))
    assert 0 < answer["share"] <= 1


def test_a_run_without_power_says_so(tmp_path: Path) -> None:
    assert resolved_so_far(fabricate_run(tmp_path, steps=20)) == {"why": "no power is measured"}


def test_the_folder_that_a_process_is_writing_is_found(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=5)
    header = json.loads((path / "run.json").read_text(encoding="utf-8"))
    assert run_of_process(tmp_path, os.getpid()) is None
    (path / "run.json").write_text(json.dumps({**header, "status": "running", "pid": os.getpid()}), encoding="utf-8")
    assert run_of_process(tmp_path, os.getpid()) == path
    assert run_of_process(tmp_path / "nowhere", os.getpid()) is None
