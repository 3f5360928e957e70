"""A handle on the sampling process: start it, ask whether it lives, stop it; standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from os import getpid  # as it is now: a training may put another one in its place
from pathlib import Path
from typing import IO, TYPE_CHECKING

import stepscope
from stepscope.clock import PERIOD_NS
from stepscope.errors import SamplerFailed
from stepscope.liveness import is_running, start_time
from stepscope.record.sensors.contract import read_small_file, wait_readable

if TYPE_CHECKING:
    from stepscope.record.settings import Metering

CHARACTERISING = b"characterising"  # the process says so, with the seconds that it takes, before "ready"
STDERR = ".sampler-stderr"  # in samples/; removed at an orderly end where it is empty
PID_FILE = ".sampler-pid"  # in samples/; removed at an orderly end
STOP_TIMEOUT_S = 3.0
_LOOK_AGAIN_S = 0.005


@dataclass(frozen=True)
class SamplerEnd:
    """End of the sampling process; `died_early`: before `stop`; `message`: the last line of its stderr.

    exit_code: 0 after an orderly end, 1 after an error of its own, None where it was killed.
    """

    exit_code: int | None
    died_early: bool
    message: str | None = None

    @property
    def reason(self) -> str:
        """Return how it came to its end, in words."""
        if self.exit_code == 0:
            return "another process sent it SIGTERM"
        return self.message or "it was killed (sudo dmesg tells whether memory ran out)"


class Sampler:
    """A running sampling process; only the process that started it can stop it."""

    def __init__(self, pid: int, run: Path) -> None:
        self.pid = pid
        self._run = run
        self._started = start_time(pid)
        self._owner = getpid()
        self._end: SamplerEnd | None = None

    def alive(self) -> bool:
        """Return whether it still samples; always False in a forked child, which does not own it."""
        return getpid() == self._owner and self._end is None and self._runs()

    def stop(self) -> SamplerEnd:
        """End it and wait until everything is on disk; may be called again."""
        if getpid() != self._owner:
            return SamplerEnd(None, died_early=False)
        if self._end is None:
            died_early = not self._runs()
            for signal_number in (signal.SIGTERM, signal.SIGKILL):
                if not self._runs():
                    break
                with contextlib.suppress(OSError):
                    os.kill(self.pid, signal_number)
                self._wait(STOP_TIMEOUT_S)
            self._end = self._collect_end(died_early)
        return self._end

    def _runs(self) -> bool:
        """Return whether the process is there; another one that has its number by now is not it."""
        with contextlib.suppress(OSError):
            os.waitpid(self.pid, os.WNOHANG)  # where this process is the init of a container, it is its child after all
        return is_running(self.pid, self._started)

    def _wait(self, seconds: float) -> None:
        looks = round(seconds / _LOOK_AGAIN_S)  # counted: a machine that stands still is no sampler that hangs
        while looks > 0 and self._runs():
            time.sleep(_LOOK_AGAIN_S)
            looks -= 1

    def _collect_end(self, died_early: bool) -> SamplerEnd:
        samples = self._run / "samples"
        message = _last_line(samples / STDERR)
        orderly = not (samples / PID_FILE).exists()
        with contextlib.suppress(OSError):
            (samples / PID_FILE).unlink()
            if message is None:
                (samples / STDERR).unlink()
        return SamplerEnd(0 if orderly else 1 if message else None, died_early, message)


def start_sampler(
    run: str | Path,
    period_ns: int = PERIOD_NS,
    root: str | Path | None = None,
    cpu: int | None = None,
    timeout_s: float = 30.0,
    metering: Metering | None = None,
    look_again_ns: int | None = None,
    pid: int | None = None,
) -> Sampler:
    """Start the sampling process and wait until it is ready; raises SamplerFailed.

    metering: the meters to read, whether power sensors are characterised and ticks dithered, and the room on the disk;
    none, yes, yes and all where not given. pid: the process to watch, this one where not given. The sampling process
    ends when that one or this one is gone. On a device whose power sensors are new it is ready some seconds later: it
    characterises them first.
    """
    if not sys.executable:
        raise SamplerFailed("this Python does not know its own executable", "start the training with a python command")
    folder = Path(run).absolute()
    core = choose_sampler_core() if cpu is None else cpu
    command = [sys.executable, "-m", "stepscope.record.sampler", "--run", str(folder), "--starter", str(getpid())]
    command += ["--pid", str(getpid() if pid is None else pid), "--period-ns", str(period_ns)]
    command += [] if root is None else ["--root", str(Path(root).absolute())]
    command += [] if core is None else ["--cpu", str(core)]
    if metering is not None:
        command += ["--dither" if metering.dither else "--no-dither"]
        command += ["--characterise" if metering.characterise else "--no-characterise"]
        command += [] if metering.max_disk is None else ["--max-disk", str(metering.max_disk)]
        command += [word for meter in metering.meters for word in ("--meter", meter.kind, meter.name, meter.address)]
        command += _folder_option() if metering.meters else []
    command += [] if look_again_ns is None else ["--look-again-ns", str(look_again_ns)]
    try:
        (folder / "samples").mkdir(exist_ok=True)
        with (folder / "samples" / STDERR).open("ab") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                bufsize=0,  # what lies in a buffer of ours would escape select
                stderr=stderr,
                # -m puts the working directory first on the path: a signal.py of the user's must not become ours.
                cwd=Path(stepscope.__file__).parent.parent,
                start_new_session=True,  # Ctrl-C in the terminal is for the training process
            )
    except OSError as error:
        raise _not_started(error.strerror or str(error)) from error
    return Sampler(_pid_when_ready(process, folder, timeout_s), folder)


def _folder_option() -> list[str]:
    """Return the option with the working directory, from which the commands of meters are meant to run."""
    with contextlib.suppress(OSError):  # it has been removed
        return ["--folder", str(Path.cwd())]
    return []


def choose_sampler_core(root: Path = Path("/"), allowed: set[int] | None = None) -> int | None:
    """The core for the sampler: the last of the smallest cores; None where two cores or fewer leave no choice."""
    if allowed is None:
        try:
            allowed = os.sched_getaffinity(0)
        except (AttributeError, OSError):  # macOS has no affinity
            return None
    if len(allowed) <= 2:
        return None
    return min(allowed, key=lambda core: (_core_capacity(root, core), -core))


def _core_capacity(root: Path, core: int) -> int:
    try:
        return int(read_small_file(root / f"sys/devices/system/cpu/cpu{core}/cpu_capacity"))
    except (OSError, ValueError):
        return 0  # stated for all cores or for none


def _pid_when_ready(process: subprocess.Popen[bytes], run: Path, timeout_s: float) -> int:
    """The number of the sampling process, which it says before it says that it is ready."""
    assert process.stdout is not None
    pid, ready, answered = None, False, True
    try:
        with process.stdout as stdout:
            deadline = time.monotonic() + timeout_s
            answered, line = _next_line(stdout, deadline)
            while line and not line.strip().isdigit():  # printed by a sitecustomize of the user's
                answered, line = _next_line(stdout, deadline)
            if line:
                pid = int(line)
                answered, line = _next_line(stdout, deadline)
            if line.startswith(CHARACTERISING):
                timeout_s += float(line.split()[1])
                answered, line = _next_line(stdout, deadline + timeout_s)
            ready = line == b"ready\n" and pid is not None
    finally:  # also where a signal handler of the user's raises while this waits
        if not ready:
            for running in {process.pid, process.pid if pid is None else pid}:
                with contextlib.suppress(OSError):
                    os.kill(running, signal.SIGKILL)
        process.wait()  # it has forked and ended, or was killed
    if ready and pid is not None:
        return pid
    stderr = run / "samples" / STDERR
    complaint = _last_line(stderr)
    for leftover in (stderr, stderr.with_name(PID_FILE)):
        with contextlib.suppress(OSError):
            leftover.unlink()
    raise _not_started(f"it was not ready after {timeout_s:g} s" if not answered else complaint or "it ended at once")


def _not_started(why: str) -> SamplerFailed:
    return SamplerFailed(
        f"the sampling process did not start: {why}",
        "the run goes on without samples; 'stepscope doctor' shows what this machine can measure",
    )


def _next_line(stdout: IO[bytes], deadline: float) -> tuple[bool, bytes]:
    """Return whether a line came before the deadline (monotonic s), and the line; an empty one when it has ended."""
    ready = wait_readable(stdout.fileno(), deadline - time.monotonic())
    return (True, stdout.readline()) if ready else (False, b"")


def _last_line(path: Path) -> str | None:
    """The last line of a file; None where it is empty or not there."""
    try:
        lines = path.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
    except OSError:
        return None
    return lines[-1] if lines else None
