"""Studies of a training of the user's own: a script or a function, what can be set of it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope import workloads
from stepscope.__main__ import main
from stepscope.errors import UsageError
from stepscope.experiments.engine.engine import answer_study
from stepscope.experiments.engine.folder import StudyFolder
from stepscope.experiments.engine.sweep_points import training_file_digests
from stepscope.experiments.sweeps import BatchSweep, OptimizerSweep, PrecisionSweep, ThreadSweep, TrainingSetting
from stepscope.experiments.sweeps.user_training import TASK, _StopAtLimit, fill_placeholders, is_user_training
from stepscope.request import is_function
from stepscope.runfolder import RunReader

SCRIPT = """
import sys, torch
size = int(sys.argv[1])
model = torch.nn.Linear(8, 2)
rule = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(500):
    loss = model(torch.rand(size, 8)).square().mean()
    rule.zero_grad(); loss.backward(); rule.step()
print("the end")
"""
FUNCTION = """
import torch
def training():
    model = torch.nn.Linear(8, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda n: (torch.rand(n, 8), torch.rand(n, 2)), \\
        torch.nn.functional.mse_loss
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "mine.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_is_run_with_the_batch_of_each_setting_and_ended_after_its_steps(folder: Path) -> None:
    pytest.importorskip("torch")
    request = BatchSweep("train.py", arguments=("{batch}",), batch=(4, 32), repeats=1, steps=12)
    findings = answer_study(request, folder / "study")
    assert {row[0] for row in findings.tables[1].rows} == {"batch 4", "batch 32"}
    read = {}
    for cell in (folder / "study" / "cells").glob("*.json"):
        content = json.loads(cell.read_text(encoding="utf-8"))
        run = RunReader(folder / "study" / content["run"])
        assert 11 <= len(run.steps) <= 12
        read[run.meta["argv"][-1]] = run.steps["samples"].drop_nulls().max()
    assert read == {"4": 4, "32": 32}
    assert "loss-by-step" not in findings.frames  # the script told none
    pytest.importorskip("altair", reason="needs the extra 'report'")
    from stepscope.report.charts.comparison import setting_charts
    from stepscope.report.study_results import render

    assert "batch 32" in render(findings, setting_charts(findings.frames))


@pytest.mark.parametrize(("target", "file"), [("train.py", "train.py"), ("mine:training", "mine.py")])
def test_a_training_that_was_edited_amid_its_study_is_refused_and_says_what_to_do(
    target: str, file: str, folder: Path
) -> None:
    pytest.importorskip("torch")
    request = ThreadSweep(target, arguments=("8",) if target == "train.py" else (), threads=(1,), repeats=1, steps=6)
    answer_study(request, folder / "study")
    answer_study(request, folder / "study")  # as it was, its results count
    path = folder / file
    path.write_text(path.read_text().replace("lr=0.1", "lr=0.2"))
    with pytest.raises(UsageError, match=rf"(?s)the training has changed since .*  {file}: ") as refused:
        answer_study(request, folder / "study")
    assert "--out" in str(refused.value.hint)


def test_what_a_training_imports_from_beside_it_is_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {
        "train.py": "import json, torch\nimport parts.model\n\n\ndef main():\n    import settings\n",
        "parts/__init__.py": "", "parts/model.py": "from . import layers\n", "parts/layers.py": "WIDTH = 8\n",
        "settings.py": "RATE = 0.1\n", "other.py": "", "broken.py": "import settings\n(",
    }  # fmt: skip
    (tmp_path / "parts").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    parts = {"parts/__init__.py", "parts/layers.py"}
    whole = {"train.py", "settings.py", "parts/model.py", *parts}
    assert {*training_file_digests("train.py")} == whole
    assert training_file_digests(str(tmp_path / "train.py")) == training_file_digests("train.py")
    assert {*training_file_digests("parts.model:make")} == {"model.py", *parts}
    assert {*training_file_digests("parts.model", module=True)} == {"model.py", *parts}
    assert {*training_file_digests("broken.py")} == {"broken.py"}
    before = training_file_digests("train.py")
    (tmp_path / "parts/layers.py").write_text("WIDTH = 9\n")
    assert {name for name, digest in training_file_digests("train.py").items() if digest != before[name]} == {
        "parts/layers.py"
    }


def test_a_study_without_a_result_begins_anew_with_the_training_that_was_mended(tmp_path: Path) -> None:
    begun = StudyFolder(tmp_path / "study", "threads", {"steps": 6}, {"train.py": "broken"})
    with begun.locked(), pytest.raises(UsageError, match="the training has changed since"):
        StudyFolder(tmp_path / "study", "threads", {"steps": 6}, {"train.py": "mended"})
    mended = StudyFolder(tmp_path / "study", "threads", {"steps": 9}, {"train.py": "mended"})
    mended.store_result("a", {"status": "ok"})
    StudyFolder(tmp_path / "study", "threads", {"steps": 9}, {"train.py": "mended"})
    with pytest.raises(UsageError, match="begun with other settings"):
        StudyFolder(tmp_path / "study", "threads", {"steps": 6}, {"train.py": "mended"})


def test_the_threads_of_a_script_are_studied_by_the_command_that_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ThreadSweep] = []
    monkeypatch.setattr("stepscope.api.study.answer_request", lambda request, checked, *_, **__: asked.append(checked))
    line = ["study", "threads", "train.py", "--threads", "1,2", "--quick", "-q", "--", "16"]
    assert main(line) == 0
    assert [(one.workload, one.threads, one.arguments) for one in asked] == [("train.py", (1, 2), ("16",))]


def test_a_function_is_trained_with_the_batch_and_the_threads_of_its_setting(folder: Path) -> None:
    pytest.importorskip("torch")
    request = ThreadSweep("mine:training", threads=(1,), batch=8, repeats=1, steps=10)
    findings = answer_study(request, folder / "study")
    assert {row[0] for row in findings.tables[1].rows} == {"threads 1"}
    assert "single repeat" in " ".join(findings.notes)


def test_a_script_decides_its_batch_unless_it_is_given_a_place(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"the batch of 'train\.py' is its own") as refused:
        BatchSweep("train.py", batch=(4, 8)).checked()
    assert "-- --batch {batch}" in str(refused.value.hint)
    with pytest.raises(UsageError, match=r"the optimizer of 'train\.py' is its own"):
        ThreadSweep("train.py", threads=(1,), optimizer="adam").checked()
    assert BatchSweep("train.py", batch=(4,), arguments=("{batch}",)).checked()
    assert ThreadSweep("train.py", threads=(1,), optimizer="adam", arguments=("--rule={optimizer}",)).checked()


def test_what_cannot_be_done_with_a_training_of_ones_own_is_refused(folder: Path) -> None:
    sweep = PrecisionSweep("train.py")
    assert sweep.checked()
    for request, said in (
        (replace(sweep, target=0.5), "loss of a script is not known"),
        (replace(sweep, workload="trian.py"), "no script"),
        (replace(sweep, workload="mine:training", arguments=("4",)), "takes no arguments"),
        (replace(sweep, workload="mine:training", optimizer="adam"), "decides that itself"),
        (replace(sweep, workload="train.py", device="cuda"), "decides that itself"),
        (replace(sweep, workload="lenet", arguments=("4",)), "takes no arguments of its own"),
    ):
        with pytest.raises(UsageError, match=said):
            request.checked()


def test_a_study_that_needs_a_workload_says_which_commands_take_a_script(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"'train\.py' is a script, and this needs a workload") as refused:
        OptimizerSweep("train.py").checked()
    assert "study threads" in str(refused.value.hint)
    with pytest.raises(UsageError, match="is a script"):
        workloads.find("train.py")


def test_places_are_filled_and_other_braces_stay() -> None:
    words = ["--batch", "{batch}", "--name={threads}x{batch}", "{other}", "{precision}"]
    values = {"batch": 4, "threads": 2, "precision": None}
    assert fill_placeholders(words, values) == ["--batch", "4", "--name=2x4", "{other}", "{precision}"]


def test_the_name_of_a_setting_is_the_same_with_and_without_arguments() -> None:
    setting = TrainingSetting("lenet", batch=4)
    assert setting.id == "workload-lenet-batch-4-precision-fp32-device-cpu-kind-training"
    assert replace(setting, arguments=("--a", "b")).id == setting.id


def test_a_script_in_a_folder_whose_name_has_a_colon_is_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run:2").mkdir()
    Path("run:2/train").touch()
    assert not any(map(is_function, ("run:2", "run:2/train", "run:2/not_there.py")))


@pytest.mark.parametrize(
    ("target", "own"), [("train.py", True), ("mine:training", True), ("mine.py:NET", False), ("lenet", False)]
)
def test_what_is_a_workload_and_what_is_ones_own_is_told_by_its_name(target: str, own: bool) -> None:
    assert is_user_training(target) == own
    assert is_function(target) == (target == "mine:training")


def test_the_script_ends_before_the_update_that_is_one_too_many_of_its_first_optimizer() -> None:
    end, first, second = _StopAtLimit(3, None), object(), object()
    for _ in range(3):
        end(first, (), {})
        end(second, (), {})
    with pytest.raises(SystemExit) as over:
        end(first, (), {})
    assert over.value.code == 0
    assert TASK.endswith(":train_user_training")


def test_the_device_of_a_script_takes_its_place_in_the_arguments() -> None:
    assert fill_placeholders(["--device", "{device}"], {"device": "cuda"}) == ["--device", "cuda"]
