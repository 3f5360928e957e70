"""A stored run is read, reported and drawn on a machine where torch is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fabricate import fabricate_run
from tests.patience import HANG_S

PROGRAM = """
import sys
sys.modules["torch"] = None  # an import of torch now fails as if it were not installed
from stepscope.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def _stepscope(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run recorded elsewhere."""
    return fabricate_run(tmp_path / "runs", steps=30)


def test_the_report_is_printed(run: Path) -> None:
    done = _stepscope(run.parent.parent, "report", str(run))
    assert (done.returncode, done.stderr) == (0, "")
    assert "features.0" in done.stdout


def test_the_page_is_written(run: Path) -> None:
    done = _stepscope(run.parent.parent, "report", "last", "--html")
    assert (done.returncode, done.stderr) == (0, "")
    assert "<svg" in (run / "report.html").read_text(encoding="utf-8")


def test_the_help_is_shown(tmp_path: Path) -> None:
    assert _stepscope(tmp_path, "--help").returncode == 0


@pytest.mark.parametrize("arguments", [("run", "lenet"), ("workloads",)])
def test_what_needs_torch_says_how_to_get_it(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = _stepscope(tmp_path, *arguments)
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "torch" in done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr
