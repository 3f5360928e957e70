"""The notebooks run from top to bottom, as their readers would run them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.warm_python import WarmPython

FEW_STEPS = "40"
NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def _cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs_in_an_empty_folder(path: Path, tmp_path: Path, warm_python: WarmPython) -> None:
    program = "\n".join("".join(cell["source"]) for cell in _cells(path))
    done = warm_python.run(["-c", re.sub(r"\bsteps=\d{3}\b", f"steps={FEW_STEPS}", program)], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_what_its_cells_showed_and_without_errors(path: Path) -> None:
    outputs = [output for cell in _cells(path) for output in cell["outputs"]]
    assert outputs
    assert {output["output_type"] for output in outputs} <= {"execute_result", "display_data", "stream"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
