"""The guide to comparing runs is true: its commands and its program run, and the options that it names exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.analysis.test_compare import SLOW
from tests.fabricate import STEP, fabricate_run

from stepscope.__main__ import main
from stepscope.analysis.compare.regression_check import NONE, REGRESSION, UNSURE

pytest.importorskip("altair")
DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(sh|python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODES = {0, 10, 11}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the guide speaks of."""
    for name, ops in (("before", STEP), ("after", SLOW)):
        fabricate_run(tmp_path / "runs" / name, steps=20, ops=ops)
    for name in ("x", "y"):
        path = fabricate_run(tmp_path / name, steps=20)
        path.rename(tmp_path / "runs" / f"2026-lenet-{name}")
    for name in ("tx2", "orin", "pi5"):
        fabricate_run(tmp_path / "suites" / name / "runs" / "0", steps=20)
        (tmp_path / "suites" / name / "sweep.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")) if kind == language]


def exit_code(line: str) -> int:
    try:
        return main(shlex.split(line)[1:])
    except SystemExit as end:
        return int(end.code or 0)


def test_every_command_of_the_guide_runs(place: Path) -> None:
    lines = [line for text in blocks("guide-compare.md", "sh") for line in text.splitlines()]
    assert len(lines) >= 4
    assert {line: code for line in lines if (code := exit_code(line)) not in CODES} == {}
    assert (place / "compare.html").exists()


def test_the_program_of_the_guide_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = next(text for text in blocks("guide-compare.md", "python") if "stepscope.compare" in text)
    exec(compile(program, "guide-compare.md", "exec"), {})
    assert "step_time" in capsys.readouterr().out


def test_the_guide_names_every_outcome() -> None:
    page = (DOCS / "guide-compare.md").read_text(encoding="utf-8")
    assert all(f"| {outcome} |" in page for outcome in (NONE, REGRESSION, UNSURE))


@pytest.mark.parametrize("page", ["guide-view.md", "guide-compare.md"])
def test_every_option_that_a_guide_names_exists(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    known = "--record-memory --stepscope --stepscope-out"  # of `stepscope run` and of pytest
    for command in ("view", "compare", "check"):
        exit_code(f"stepscope {command} --help")
        known += capsys.readouterr().out
    assert not [option for option in set(re.findall(r"--[a-z][a-z-]+", text)) if option not in known]
