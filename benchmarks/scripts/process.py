"""One run of a program: its exit code and output, and what its whole tree of processes took."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pty
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_S = 20.0


@dataclass(frozen=True)
class Ended:
    """What a run left: `code` as a shell says it, CPU time of all its processes, resident peak of the largest one."""

    code: int
    stdout: str
    stderr: str
    cpu_s: float
    peak_bytes: int
    wall_s: float
    in_time: bool


def run(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    limit_s: float,
    stop_after: str | None = None,
    terminal: bool = False,
) -> Ended:
    """Run to the end, or to Ctrl-C once stdout has said `stop_after`, or to the limit.

    terminal: stdin and stdout are a terminal of 80 columns. Orphans come to this process, so that nothing of the tree
    escapes the account.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reading, writing = pty.openpty() if terminal else os.pipe()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and its children
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command, cwd=cwd, env=dict(env), stdout=writing, stderr=said, start_new_session=True,
            stdin=writing if terminal else subprocess.DEVNULL,
        )  # fmt: skip
        os.close(writing)
        listener = _Listener(reading, child.pid, stop_after)
        in_time = _wait(child.pid, began + limit_s)
        cpu_s, peak, code = _reaped(child.pid, in_time)
        child.returncode = code  # it was waited for here, not by Popen
        listener.join(5)
        wall_s = time.monotonic() - began
        said.seek(0)
        stderr = said.read().decode(errors="replace")
    text = bytes(listener.heard).decode(errors="replace")
    return Ended(code if code >= 0 else 128 - code, text, stderr, cpu_s, peak, wall_s, in_time)


class _Listener(threading.Thread):
    """Hears what is said on a descriptor; presses Ctrl-C once after certain words."""

    def __init__(self, descriptor: int, pid: int, stop_after: str | None) -> None:
        super().__init__(daemon=True)
        self.descriptor, self.pid = descriptor, pid
        self.stop_after = re.compile(stop_after.encode()) if stop_after else None
        self.heard = bytearray()
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):  # what Linux says when the other end of a terminal is gone
            while part := os.read(self.descriptor, 65_536):
                self.heard += part
                if self.stop_after is not None and self.stop_after.search(self.heard):
                    self.stop_after = None
                    os.killpg(self.pid, signal.SIGINT)
        os.close(self.descriptor)


def _wait(pid: int, until: float) -> bool:
    """Whether it ended in time; it is not reaped yet."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _reaped(pid: int, in_time: bool) -> tuple[float, int, int]:
    """(CPU time, peak, exit code) of a tree; what is left of it past the limit is ended."""
    if not in_time:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    cpu_s, peak = used.ru_utime + used.ru_stime, used.ru_maxrss
    until = time.monotonic() + _ORPHANS_S
    with contextlib.suppress(ChildProcessError):
        while True:
            orphan, _, used = os.wait4(-1, os.WNOHANG)
            if orphan:
                cpu_s, peak = cpu_s + used.ru_utime + used.ru_stime, max(peak, used.ru_maxrss)
            elif time.monotonic() > until:
                _end_orphans()
            else:
                time.sleep(0.02)
    return cpu_s, peak * 1024, os.waitstatus_to_exitcode(status)


def _end_orphans() -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
