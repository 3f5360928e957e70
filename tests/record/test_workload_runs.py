"""The end of the training of a workload: test data are looked at once the run is whole, and not for ever."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fabricate import fabricate_run

from stepscope import workloads
from stepscope.__main__ import main
from stepscope.cli import _forecast_watch
from stepscope.errors import StepscopeError
from stepscope.record.settings import Settings
from stepscope.record.train import TrainingChoices, train_workload
from stepscope.runfolder import RunReader
from stepscope.workloads.contract import Training


def trained(out: Path, **options: Any) -> tuple[RunReader, int]:
    settings = Settings(out=out, record="none", memory="off", sampler=False)
    path, code = train_workload(workloads.find("lenet"), 2, settings, TrainingChoices(batch=4), **options)
    return RunReader(path), code


def test_no_more_test_samples_are_looked_at_than_were_trained_on_and_the_run_says_how_many(tmp_path: Path) -> None:
    announced: list[int] = []
    run, code = trained(tmp_path, evaluates=announced.append)
    assert (code, announced) == (0, [8])
    assert run.meta["result"]["accuracy_samples"] == 8
    assert (run.meta["result"]["accuracy"] * 8) % 1 == pytest.approx(0)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory"), ValueError("no such label")])
def test_a_training_is_whole_whatever_becomes_of_the_look_at_its_test_data(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(training: Training, samples: int) -> float:
        assert RunReader(next(tmp_path.iterdir())).status == "ok"
        raise error

    monkeypatch.setattr(Training, "evaluate", fail)
    run, code = trained(tmp_path)
    assert (code, run.status) == (0, "ok")
    assert run.meta["result"] == {"accuracy": None, "accuracy_samples": None, "steps": 2, "counters": {}}
    assert [event["kind"] for event in run.events] == ["no-accuracy"]


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_within_the_code_of_a_workload_is_a_failed_run_and_an_error_with_its_place(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "step", lambda *_: sys.exit(code))
    with pytest.raises(StepscopeError, match=rf"^sys.exit\({code}\) in .*test_workload_runs.py, line \d+ ended"):
        trained(tmp_path)
    run = RunReader(next(tmp_path.iterdir()))
    assert (run.status, run.meta["reason"][:30]) == ("failed", f"StepscopeError: sys.exit({code}) in")


def test_a_training_whose_accuracy_nobody_wants_looks_at_no_test_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "evaluate", lambda *_: pytest.fail("test data were looked at"))
    run, _ = trained(tmp_path, evaluate=False)
    assert run.meta["result"]["accuracy"] is None


def test_a_training_that_breaks_off_while_it_is_watched_says_how_it_ended_and_gives_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fabricate_run(tmp_path / "runs", steps=6, status="oom")
    child = SimpleNamespace(wait=lambda: 8)
    monkeypatch.setattr(_forecast_watch, "start_training", lambda *_: (child, run))
    command = ["forecast", "lenet", "--steps", "1000", "--watch", "--out", str(tmp_path / "empty")]
    assert main(command) == 8
    assert "the training did not end well: oom" in capsys.readouterr().err
