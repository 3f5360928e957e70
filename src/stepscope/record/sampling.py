"""The trainer's handle on the sampling process: start it, ask whether it lives, stop it; standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import stepscope
from stepscope.errors import SamplerFailed
from stepscope.record.formats.attribute import content
from stepscope.record.sensors.contract import Meter

CHARACTERISING = b"characterising"  # the process says so, with the seconds that it takes, before "ready"
STOP_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class SamplerEnd:
    """How the sampling process ended; `died_early`: before it was told to; `message`: the last line of its stderr."""

    exit_code: int
    died_early: bool
    message: str | None = None


class Sampler:
    """A running sampling process, owned by the process that started it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._owner = os.getpid()
        self._end: SamplerEnd | None = None

    @property
    def pid(self) -> int:
        """The sampling process."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still samples; always False in a forked child, which does not own it."""
        return os.getpid() == self._owner and self._process.poll() is None

    def stop(self) -> SamplerEnd:
        """End it and wait until everything is on disk; may be called again."""
        if self._end is None:
            if os.getpid() != self._owner:
                return SamplerEnd(0, died_early=False)
            died_early = self._process.poll() is not None
            exit_code = _ended(self._process)
            self._end = SamplerEnd(exit_code, died_early, _last_word(self._process))
        return self._end


def start_sampler(
    run: str | Path,
    period_ns: int = 10_000_000,
    root: str | Path | None = None,
    cpu: int | None = None,
    timeout_s: float = 5.0,
    dither: bool = True,
    characterise: bool = True,
    meters: Sequence[Meter] = (),
    look_again_ns: int | None = None,
) -> Sampler:
    """Start the sampling process for this process and wait until it is ready; raises SamplerFailed.

    On a device whose power sensors are new it is ready some seconds later: it characterises them first.
    """
    if not sys.executable:
        raise SamplerFailed("this Python does not know its own executable", "start the training with a python command")
    core = pin_away() if cpu is None else cpu
    command = [sys.executable, "-m", "stepscope.record.sampler", "--run", str(Path(run).absolute())]
    command += ["--pid", str(os.getpid()), "--period-ns", str(period_ns)]
    command += [] if root is None else ["--root", str(Path(root).absolute())]
    command += [] if core is None else ["--cpu", str(core)]
    command += ["--dither" if dither else "--no-dither", "--characterise" if characterise else "--no-characterise"]
    command += [word for meter in meters for word in ("--meter", meter.kind, meter.name, meter.address)]
    command += [] if look_again_ns is None else ["--look-again-ns", str(look_again_ns)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what lies in a buffer of ours would escape select
            stderr=subprocess.PIPE,
            # -m puts the working directory first on the path: a signal.py of the user's must not become ours.
            cwd=Path(stepscope.__file__).parent.parent,
            start_new_session=True,  # Ctrl-C in the terminal is for the trainer
        )
    except OSError as error:
        raise SamplerFailed(f"the sampling process cannot be started: {error.strerror or error}") from error
    _wait_until_ready(process, timeout_s)
    return Sampler(process)


def pin_away(root: Path = Path("/"), allowed: set[int] | None = None) -> int | None:
    """The core for the sampler: the last of the smallest cores; None where two cores or fewer leave no choice."""
    if allowed is None:
        try:
            allowed = os.sched_getaffinity(0)
        except (AttributeError, OSError):  # macOS has no affinity
            return None
    if len(allowed) <= 2:
        return None
    return min(allowed, key=lambda core: (_capacity(root, core), -core))


def _capacity(root: Path, core: int) -> int:
    try:
        return int(content(root / f"sys/devices/system/cpu/cpu{core}/cpu_capacity"))
    except (OSError, ValueError):
        return 0  # stated for all cores or for none


def _wait_until_ready(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    answered, line = _next_line(process, deadline)
    if line.startswith(CHARACTERISING):
        timeout_s += float(line.split()[1])
        answered, line = _next_line(process, deadline + timeout_s)
    if line == b"ready\n":
        process.stdout.close()
        return
    if not answered:
        process.kill()
    exit_code = process.wait()
    said = _last_word(process)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    why = f"it was not ready after {timeout_s:g} s" if not answered else said or f"exit code {exit_code}"
    raise SamplerFailed(
        f"the sampling process did not start: {why}",
        "the run goes on without samples; 'stepscope doctor' shows what this machine can measure",
    )


def _next_line(process: subprocess.Popen[bytes], deadline: float) -> tuple[bool, bytes]:
    """Whether it said anything before the deadline (monotonic s), and what; nothing at all when it has ended."""
    assert process.stdout is not None
    ready = select.select([process.stdout], (), (), max(0.0, deadline - time.monotonic()))[0]
    return (True, process.stdout.readline()) if ready else (False, b"")


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Ask it to end, more firmly each time. A byte is written since forked workers may hold the pipe open."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended already: the pipe has no reader
        process.stdin.write(b"stop\n")
    process.stdin.close()
    for firmer in (process.terminate, process.kill):
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            firmer()
    return process.wait()


def _last_word(process: subprocess.Popen[bytes]) -> str | None:
    """The last line that the ended process wrote to stderr."""
    assert process.stderr is not None
    with process.stderr as stream:
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None
