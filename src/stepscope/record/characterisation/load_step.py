"""A load of known times on every core: idle processes that spin when a schedule says so; standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

# The times are agreed beforehand on the clock that all processes share, so that nothing is sent while it matters;
# the last one ends the process, even when nobody is left to stop it. nice: whoever polls the sensors goes first.
_BUSY = """
import os, sys, time
try:
    os.nice(10)
except OSError:
    pass
now = time.monotonic_ns
sys.stdout.write("\\n")
sys.stdout.flush()
for times in sys.stdin.readline().split():
    on, off = map(int, times.split(":"))
    time.sleep(max(0, on - now()) / 1e9)
    while now() < off:
        pass
"""
_READY_S = 5.0  # a small board may take half a second to start Python
_LEAD, _LONG, _PAUSE, _END = 0.15, 0.42, 0.6, 0.97  # of the whole: idle, a long load, a pause, pulses, idle
_SHORTEST_PULSE_S = 0.015
_GOLDEN = 0.6180339887498949


def schedule(start_ns: int, seconds: float) -> list[tuple[int, int]]:
    """When the cores are busy, (on, off) in ns: one long step for slow filters, then pulses of 15 to 75 ms.

    The pulses let a sensor that averages a short part of each refresh show how short: an edge must fall into it.
    """
    whole_ns = seconds * 1e9
    times = [(_LEAD, _LONG)]
    at, turn = _PAUSE, 0
    while True:
        lengths = [(_SHORTEST_PULSE_S + 0.06 * ((turn + n) * _GOLDEN % 1)) / seconds for n in (1, 2)]
        if at + lengths[0] > _END:
            return [(start_ns + int(on * whole_ns), start_ns + int(off * whole_ns)) for on, off in times]
        times.append((at, at + lengths[0]))
        at += sum(lengths)
        turn += 2


def cores() -> int:
    """How many cores this process may load."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


class Loaders:
    """Processes that are ready to load a core each; they wait for their times."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def __len__(self) -> int:
        return len(self._processes)

    def follow(self, busy: Sequence[tuple[int, int]]) -> None:
        """Tell all when to be busy, (on, off) in ns of the monotonic clock."""
        line = " ".join(f"{on}:{off}" for on, off in busy).encode() + b"\n"
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has been killed from outside: the others carry the load
                process.stdin.write(line)


@contextlib.contextmanager
def loaders(processes: int | None = None) -> Iterator[Loaders]:
    """A loader a core, gone after the block however it ends; one that cannot be started is left out."""
    started: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-S", "-E", "-c", _BUSY]
    try:
        for _ in range(cores() if processes is None else processes):
            with contextlib.suppress(OSError):
                started.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
                    )
                )
        until = time.monotonic() + _READY_S
        yield Loaders([process for process in started if _is_ready(process, until)])
    finally:
        for process in started:
            process.kill()
        for process in started:
            with process:  # closes its pipes and waits
                pass


def _is_ready(process: subprocess.Popen[bytes], until: float) -> bool:
    assert process.stdout is not None
    said = select.select([process.stdout], (), (), max(0.0, until - time.monotonic()))[0]
    return bool(said) and process.stdout.read(1) == b"\n"
