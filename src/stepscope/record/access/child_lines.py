"""A child process that prints readings: its lines are taken as they come, without waiting; standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO

from stepscope.record.sensors.contract import wait_readable

_CHUNK = 65536
_LONGEST_LINE = 16384  # a child that prints no line end must not fill the memory
_COMPLAINT_BYTES = 400
_PATIENCE_S = 0.5  # for a command that was asked to end
_KILLED_S = 10.0  # for the end of one that was killed: at once, but on a busy machine


class ChildLines:
    """Starts a command and reads its output; raises OSError where the command cannot be started."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the training process; the group can be ended as one
        )
        self._waiting = b""
        self._complained = b""
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)

    def read_lines(self, wait_s: float = 0.0) -> list[str]:
        """The whole lines printed since the last call; waits up to `wait_s` for the first bytes."""
        out, err = self._pipes()
        if wait_s > 0:
            wait_readable(out.fileno(), wait_s)
        self._complained = (self._complained + _available(err))[-_COMPLAINT_BYTES:]
        self._waiting += _available(out)
        if self.exit_code() is not None and self._waiting and not self._waiting.endswith(b"\n"):
            self._waiting += _available(out) + b"\n"  # a command may leave out the last line end
        *lines, self._waiting = self._waiting.split(b"\n")
        self._waiting = self._waiting[-_LONGEST_LINE:]
        return [line[:_LONGEST_LINE].decode(errors="replace") for line in lines]

    def exit_code(self) -> int | None:
        """Return how the command ended; None while it runs."""
        return self._child.poll()

    def complaint(self) -> str:
        """The end of what the command has written to stderr until now, on one line."""
        _, err = self._pipes()
        self._complained = (self._complained + _available(err))[-_COMPLAINT_BYTES:]
        return " ".join(self._complained.decode(errors="replace").split())

    def close(self) -> None:
        """End the command and all that it started; one that runs as root ends at its next write to the closed pipe."""
        for way, patience_s in ((signal.SIGTERM, _PATIENCE_S), (signal.SIGKILL, _KILLED_S)):
            try:
                os.killpg(self._child.pid, way)
            except ProcessLookupError:
                pass
            except PermissionError:
                patience_s = _PATIENCE_S
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(patience_s)
                break
        for pipe in self._pipes():
            pipe.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        out, err = self._child.stdout, self._child.stderr
        assert out is not None
        assert err is not None
        return out, err


def _available(pipe: IO[bytes]) -> bytes:
    """Return what can be read now, at most a megabyte at a time; nothing at the end of the stream."""
    data = b""
    with contextlib.suppress(BlockingIOError):
        while len(data) < 16 * _CHUNK and (chunk := os.read(pipe.fileno(), _CHUNK)):
            data += chunk
    return data
