"""The programs and commands of the guides on trainers and loggers run."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integrations.trainings import library

CommandLine = Callable[..., "subprocess.CompletedProcess[str]"]
DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IMPORTED = re.compile(r"^(?:from|import) (lightning\.pytorch|transformers|accelerate|keras)\b", re.MULTILINE)
NEEDED = {"tensorboard": "tensorboard", "prometheus": "prometheus_client"}

pytestmark = pytest.mark.filterwarnings("ignore")


def _programs(page: str) -> list[str]:
    return [text for language, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")) if language == "python"]


@pytest.mark.parametrize("text", _programs("guide-trainers.md"), ids=lambda text: IMPORTED.findall(text)[0])
def test_a_trainer_of_the_guide_is_recorded(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in IMPORTED.findall(text):
        library(name)
    if "accelerate" in IMPORTED.findall(text):
        library("accelerate").state.AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "guide-trainers.md", "exec"), {"__name__": "guide"})
    assert len(list(tmp_path.glob("runs/*/run.json"))) == 1
    assert "shape: (" in capsys.readouterr().out


def test_the_loggers_of_the_guide_take_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEEDED.values():
        library(name)
    monkeypatch.chdir(tmp_path)
    for text in _programs("guide-loggers.md"):
        exec(compile(text, "guide-loggers.md", "exec"), {"__name__": "guide"})
    assert (tmp_path / "last.prom").exists()
    assert list(tmp_path.glob("tensorboard/*/events.*"))


def test_the_commands_of_the_guide_on_loggers_run(tmp_path: Path, stepscope_cli: CommandLine) -> None:
    for name in NEEDED.values():
        library(name)
    page = (DOCS / "guide-loggers.md").read_text(encoding="utf-8")
    for line in "".join(text for language, text in BLOCK.findall(page) if language == "sh").splitlines():
        done = stepscope_cli(*shlex.split(line)[1:])
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert "stepscope_step_time_seconds{" in (tmp_path / "lenet.prom").read_text(encoding="utf-8")
