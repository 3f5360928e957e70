"""What several tests share: a fresh run to write, and the command line in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepscope.runfolder import RunWriter

# What a user's earlier runs have left in the cache must not change a test, nor a test what the user finds there.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="stepscope-tests-")

CommandLine = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    """A run that has just begun."""
    writer = RunWriter.create(tmp_path / "runs", "lenet")
    yield writer
    with contextlib.suppress(OSError):  # a test may have broken the folder; its open file has to be closed all the same
        writer.close("ok")


@pytest.fixture
def stepscope_cli(tmp_path: Path) -> CommandLine:
    """`stepscope ...` as a user runs it, in an empty folder."""

    def call(*arguments: str, python: tuple[str, ...] = ("-m", "stepscope")) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *python, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)

    return call
