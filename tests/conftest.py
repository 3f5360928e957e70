"""What several tests share: a fresh run to write, and the command line in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.runfolder import RunWriter

CommandLine = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    """A run that has just begun."""
    return RunWriter.create(tmp_path / "runs", "lenet")


@pytest.fixture
def stepscope_cli(tmp_path: Path) -> CommandLine:
    """`stepscope ...` as a user runs it, in an empty folder."""

    def call(*arguments: str, python: tuple[str, ...] = ("-m", "stepscope")) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *python, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)

    return call
