"""The case studies of the docs: their scripts run, their commands are valid, their pages say what is stored."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.warm_python import WarmPython
from typer.main import get_command

from stepscope.__main__ import build_app

CASES = Path(__file__).parents[1] / "docs" / "cases"


def _make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_cases", CASES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_cases"] = module
    spec.loader.exec_module(module)
    return module


MAKE = _make()
STORED = json.loads((CASES / "results.json").read_text(encoding="utf-8"))
RUNS = [command for case in MAKE.CASES for command in (case.before, case.after) if command.startswith("stepscope run ")]


@pytest.mark.parametrize("command", RUNS)
def test_the_script_of_a_case_takes_its_options_and_trains(
    command: str, warm_python: WarmPython, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    _, _, script, *options = shlex.split(command)
    options = [option for option in options if option not in ("--limit-mb", "600")]  # a limit of this process's own
    arguments = [script, *options, "--steps", "2"]
    path = str(CASES / "scripts" / script)
    program = f"import runpy, sys; sys.argv = {arguments!r}; runpy.run_path({path!r}, None, '__main__')"
    done = warm_python.run(["-c", program], tmp_path)
    assert done.returncode == 0, done.stderr


def test_options_of_commands_that_advise_exist() -> None:
    for case in MAKE.CASES:
        _, name, *words = shlex.split(case.advice) if case.advice else ("", "", "")
        if name:
            command = get_command(build_app(name)).commands[name]  # type: ignore[attr-defined]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("case", [case for case in MAKE.CASES if case.name in STORED], ids=lambda case: case.name)
def test_the_page_of_a_case_is_made_of_what_was_measured(case: Any) -> None:
    text = MAKE.page(case, STORED[case.name])
    assert (CASES / f"{case.name}.md").read_text(encoding="utf-8") == text
    assert (CASES / f"{case.name}.svg").read_text(encoding="utf-8").startswith("<svg")
    assert len(text.splitlines()) < 60  # a screen and a half
    assert bool(case.simulated) == ("SIMULATED" in text)


def test_the_gallery_has_every_case_with_its_picture() -> None:
    text = (CASES / "index.md").read_text(encoding="utf-8")
    assert text == MAKE.gallery(STORED)
    assert all(
        f"({case.name}.md)" in text and f"({case.name}.svg)" in text for case in MAKE.CASES if case.name in STORED
    )
