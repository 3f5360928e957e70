"""The live view: reads what a run appends to its folder, and draws it; nothing of it runs in the training process.

Standard library and rich alone: beside a training on a small board there is no memory for tables.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.clock import monotonic_ns

_PATIENCE_S = 3.0  # for the last look, once the run has ended


@contextmanager
def live_view(out: str | Path, lines: bool = False) -> Iterator[None]:
    """Show the run that this process is going to record below `out`, on stderr, until it has ended.

    `lines`: a line every few seconds, for a script that prints to the same terminal. A view that cannot start, or
    dies, costs the training nothing.
    """
    view = _start(Path(out), lines)
    try:
        yield
    finally:
        if view is not None:
            _wait_for_view_to_end(view)


def _start(out: Path, lines: bool) -> subprocess.Popen[bytes] | None:
    command = [sys.executable, "-m", "stepscope.report.live", str(out), "--of", str(os.getpid())]
    command += ["--since-ns", str(monotonic_ns())]
    try:
        return subprocess.Popen([*command, *(["--lines"] if lines else [])], stdin=subprocess.DEVNULL, stdout=2)
    except OSError as error:
        sys.stderr.write(f"the live view could not start: {error}\n")
        return None


def _wait_for_view_to_end(view: subprocess.Popen[bytes]) -> None:
    """Wait for the view, which ends with the run; end one that hangs."""
    try:
        view.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        view.terminate()
        try:
            view.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            view.kill()
            view.wait()
