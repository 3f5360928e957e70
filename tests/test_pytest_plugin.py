"""`pytest --stepscope` in a pytest of its own: marked tests leave runs, and without the flag nothing happens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import HANG_S

from stepscope.pytest_plugin import InertScope

TESTS = """
import pytest

def train(scope=None):
    import torch
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        if scope is not None:
            scope.step(samples=3)

@pytest.mark.stepscope(period="20ms")
def test_marked(): train()

def test_with_the_fixture(stepscope_scope): train(stepscope_scope)

@pytest.mark.stepscope
def test_without_a_step(): pass

@pytest.mark.stepscope
def test_that_fails(): assert False, "of its own"

def test_plain(): pass

def test_that_fails_with_the_fixture(stepscope_scope):
    train(stepscope_scope)
    assert False, "too"

@pytest.mark.stepscope
def test_that_skips(): pytest.skip("not here")
"""
UNWRITABLE = """
import pytest

@pytest.mark.stepscope
def test_marked(): pass

def test_with_the_fixture(stepscope_scope): stepscope_scope.step()
"""
INERT = """
import sys

def test_nothing_heavy_came_with_the_plugin(stepscope_scope):
    stepscope_scope.step(samples=1)
    stepscope_scope.pause()
    stepscope_scope.resume()
    stepscope_scope.note("kind", "text")
    with stepscope_scope.inside(None):
        assert stepscope_scope.path is None
    assert not {"torch", "polars", "numpy"} & set(sys.modules)
"""


def _pytest(folder: Path, content: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(content, encoding="utf-8")
    options = ["-p", "stepscope.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", *options, *arguments, "test_it.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )


def test_without_the_flag_it_is_inert(tmp_path: Path) -> None:
    done = _pytest(tmp_path, INERT)
    assert done.returncode == 0, done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_with_the_flag_marked_tests_leave_runs_and_keep_their_outcome(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = _pytest(tmp_path, TESTS, "--stepscope", "--stepscope-out", "kept")
    assert "2 failed, 4 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "AssertionError: of its own" in done.stdout
    headers = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "kept").glob("*/run.json")]
    ended = {header["workload"]["name"]: header["status"] for header in headers}
    assert ended == {
        "test_marked": "ok",
        "test_with_the_fixture": "ok",
        "test_without_a_step": "ok",
        "test_that_fails": "failed",
        "test_that_fails_with_the_fixture": "failed",
        "test_that_skips": "interrupted",
    }
    assert done.stdout.count("stepscope report kept/") == 6


def test_what_a_profiled_test_may_call_is_there_without_the_flag() -> None:
    scope = pytest.importorskip("stepscope.record.profile").Scope
    assert {name for name in vars(scope) if not name.startswith("_")} <= set(dir(InertScope))


def test_where_no_run_can_be_written_tests_keep_their_outcome(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "occupied").write_text("", encoding="utf-8")
    done = _pytest(tmp_path, UNWRITABLE, "--stepscope", "--stepscope-out", "occupied")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
