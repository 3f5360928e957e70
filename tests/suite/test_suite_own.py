"""Scripts and functions of the user's own in a sweep beside workloads: run, resumed, and refused where need be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.__main__ import main
from stepscope.errors import UsageError
from stepscope.experiments.engine.sweep_points import SweepPoint
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.suite.plan import chosen_entries

SCRIPT = """
import torch
print("starts")
model = torch.nn.Linear(8, 2)
rule = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(500):
    loss = model(torch.rand(16, 8)).square().mean()
    rule.zero_grad(); loss.backward(); rule.step()
"""
FUNCTION = """
import torch
def training():
    model = torch.nn.Linear(8, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda n: (torch.rand(n, 8), torch.rand(n, 2)), \\
        torch.nn.functional.mse_loss
"""
RAISES = """
def training():
    raise TypeError("of theirs")
def leave():
    raise SystemExit(3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "suite_mine.py").write_text(FUNCTION)
    (tmp_path / "suite_raises.py").write_text(RAISES)
    (tmp_path / "suite_torn.py").write_text("def training(:".replace(":", ""))
    (tmp_path / "suite_needs.py").write_text("import xyzzy\ndef training(): pass\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_workload_a_script_and_a_function_are_one_sweep_that_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    names = ("lenet", "train.py", "suite_mine:training")
    options = ("--steps", "9", "--repeats", "1", "--threads", "1", "--precisions", "fp32,bf16", "--out", "s", "-q")
    assert main(["suite", "run", *names, *options]) == 0
    capsys.readouterr()
    assert main(["suite", "show", "s", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["settings"]
    assert {(row["workload"], row["precision"]) for row in rows} == {(n, p) for n in names for p in ("fp32", "bf16")}
    assert [row["reason"] for row in rows if row["status"] != "ok"] == []
    assert {row["workload"]: row["batch"] for row in rows} == {"lenet": 64, "train.py": None, names[2]: None}
    assert {row["optimizer"] for row in rows if row["workload"] != "lenet"} == {"own"}
    assert all(row["step_time_ms"] > 0 for row in rows)
    assert all(8 <= json.loads(path.read_text())["steps"] <= 9 for path in Path("s/points").glob("*.json"))
    plan = json.loads(Path("s/sweep.json").read_text())
    assert plan["schema"] == 2
    assert plan["workloads"]["train.py"]["definition"]["own"] == "script"
    _exported(capsys)
    headers = {path: path.stat().st_mtime_ns for path in Path("s/runs").glob("*/*/run.json")}
    assert main(["suite", "run", *names, *options, "--resume"]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("s/runs").glob("*/*/run.json")} == headers
    Path("train.py").write_text(SCRIPT + "# changed\n")
    assert main(["suite", "run", "--resume", "--out", "s"]) == 2
    said = capsys.readouterr().err
    assert "train.py: source_sha256" in said
    assert "+# changed" in said


def _exported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "show", "s", "--html"]) == 0
    for to in ("csv", "markdown", "mlperf", "result"):
        assert main(["suite", "export", "s", "--to", to]) == 0
    assert "global_batch_size" in Path("s.log").read_text()
    capsys.readouterr()
    assert main(["suite", "show", "s.json", "--against", "s.json"]) == 0
    assert "6 of 6 parts" in capsys.readouterr().out


def test_a_script_ends_when_a_step_is_known_well_enough_and_out_of_memory_is_its_outcome(folder: Path) -> None:
    pytest.importorskip("torch")
    once = ("--repeats", "1", "--threads", "1", "-q")
    assert main(["suite", "run", "train.py", "--interval", "90%", "--out", "narrow", *once]) == 0
    (result,) = (json.loads(path.read_text()) for path in Path("narrow/points").glob("*.json"))
    assert (result["status"], result["steps"] < 100) == ("ok", True)
    Path("large.py").write_text(SCRIPT.replace('"starts"', "torch.ones(400_000_000).sum()"))
    assert main(["suite", "run", "large.py", "--steps", "9", "--memory", "900MB", "--out", "full", *once]) == 0
    (result,) = (json.loads(path.read_text()) for path in Path("full/points").glob("*.json"))
    assert (result["status"], "numbers" in result) == ("oom", False), result


def test_a_training_that_fails_before_a_step_has_the_line_that_it_ended_with_as_its_reason(folder: Path) -> None:
    pytest.importorskip("torch")
    Path("train.py").write_text("raise ValueError('at once')\n")
    once = ("--steps", "9", "--repeats", "1", "--threads", "1", "-q")
    assert main(["suite", "run", "train.py", "--out", "failed", *once]) == 0
    (result,) = (json.loads(path.read_text()) for path in Path("failed/points").glob("*.json"))
    assert (result["status"], result["reason"]) == ("failed", "exit code 1: ValueError: at once")


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("train.py --batch 2,4", "--batch: 'train.py' decides that itself", "stepscope study batch train.py --"),
        ("train.py --optimizers adam", "--optimizers: 'train.py' decides that itself", "in a sweep of its own"),
        ("train.py --precisions fp16", "fp16: 'train.py' scales its loss", "fp32 and bf16"),
        ("nowhere.py", "there is no script 'nowhere.py'", "give the path of a script"),
        ("lenet trian.pyy", "there is no file 'trian.pyy'", "did you mean train.py?"),
        ("suite_mine:trainin", "'suite_mine' has no function 'trainin'", "it has: training"),
        ("suite_raises:training", "'suite_raises:training' raised TypeError: of theirs (suite_raises.py:3)", "fails w"),
        ("suite_raises:leave", "'suite_raises:leave' raised SystemExit: 3 (suite_raises.py:5)", "suite_raises.leave()"),
        (
            "suite_torn:training",
            "the module 'suite_torn' raised SyntaxError: '(' was never closed",
            "without Stepscope",
        ),
        ("suite_needs:training", "the module 'suite_needs' raised ModuleNotFoundError: No module named 'xyzzy'", "im"),
        ("--workloads lenet", "has no option --workloads", "stepscope suite run WORKLOADS"),
        ("train.py --tier smal", "unknown tier 'smal'", ""),
    ],
)
def test_what_cannot_be_asked_of_a_script_is_refused_before_anything_runs(
    folder: Path, words: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert main(["suite", "run", *words.split(), "--out", "s"]) == 2
    said = capsys.readouterr().err
    assert error in said
    assert hint in said
    assert not Path("s").exists()


def test_a_script_does_not_travel_to_a_fleet(folder: Path) -> None:
    with pytest.raises(UsageError, match="does not travel to the boards of a fleet") as refused:
        chosen_entries(SuiteRun(workloads=("train.py",), fleet="hosts.toml"))
    assert "train.py:NAME" in str(refused.value.hint)


def test_names_may_be_joined_by_commas_as_they_were_before() -> None:
    assert SuiteRun(workloads=("lenet,train.py", "mine:training")).workloads == ("lenet", "train.py", "mine:training")
    assert SuiteRun(workloads="lenet,train.py").words() == ["lenet", "train.py"]  # type: ignore[arg-type]


def test_a_run_of_a_script_has_a_name_without_a_batch() -> None:
    point = SweepPoint("train.py", None, "own", "bf16", 2, "cpu", 0)
    assert point.title == "train.py bf16 2 threads, repeat 1"
    assert point.id == "train.py-bown-own-bf16-t2-cpu-r0"
