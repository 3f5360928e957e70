"""Calls in child processes of one that has imported torch: under emulation the import alone takes ten seconds."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from stepscope.__main__ import main as stepscope

__all__ = ["forked", "stepscope", "torch"]


def forked(call: Callable[[], object], folder: Path, name: str) -> tuple[int, float]:
    """Return the exit code and the seconds of a call made in `folder`; what it says is kept there, in files of a name.

    The child ends as an interpreter does, with all that is due at its exit.
    """
    began = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        for stream, suffix in ((1, ".out"), (2, ".err")):
            file = os.open(folder / f"{name}{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, stream)
        os.chdir(folder)
        try:
            code = call()
        except Exception:
            traceback.print_exc()
            code = 1
        sys.exit(code if isinstance(code, int) else 0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - began
