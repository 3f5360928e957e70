"""Simulated boards whose energy is known: real sysfs files below a root of their own, driven by what really trains."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import stepscope
from stepscope.errors import OutputNotWritable, StepscopeError
from stepscope.simulate.boards import BOARDS as _BOARDS
from stepscope.simulate.boards import Options, parse_board, parse_options

if TYPE_CHECKING:
    from stepscope.simulate.marks import StateLog
    from stepscope.simulate.power import Truth
    from stepscope.simulate.training_hooks import Models, StateMarker

BOARDS = tuple(sorted(_BOARDS))

__all__ = ["BOARDS", "Simulation", "start"]


# The handle on a simulated board in the training process: start it, train, stop it, read the truth.

_READY_S, _END_S = 60.0, 60.0  # of a busy machine
_SHARED_MEMORY = Path("/dev/shm")


class Simulation:
    """A running board; a context manager. `root` is where its files are: give it as STEPSCOPE_ROOT."""

    def __init__(
        self, board: str, home: Path, folder: Path, process: _Process, marker: StateMarker, states: StateLog
    ) -> None:
        self.board, self.root = board, home / "root"
        self._home, self._folder = home, folder
        self._process, self._marker, self._states = process, marker, states
        self._owner = os.getpid()
        self._truth: Truth | None = None
        self._stopped = False

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The simulating process."""
        return self._process.pid

    @property
    def failure(self) -> str | None:
        """Return why the marker gave up, if it did: from then on the board shows the last state."""
        return self._marker.failure

    def stop(self) -> None:
        """Take the hooks off, end the process and remove the files; may be called again."""
        if self._stopped or os.getpid() != self._owner:
            return
        self._stopped = True
        self._marker.remove()
        self._states.close()
        try:
            self._process.end()
            from stepscope.simulate.power import TRUTH_FILE, load_truth

            if (self._folder / TRUTH_FILE).exists():
                self._truth = load_truth(self._folder)
        finally:
            shutil.rmtree(self._home, ignore_errors=True)

    def truth(self) -> Truth:
        """Return the energy that was really spent.

        Raises StepscopeError while the board runs, or when its process was killed.
        """
        if self._truth is None:
            ended = f"its process ended early ({self._process.last_word})"
            why = ended if self._stopped else "it still runs: stop it first"
            raise StepscopeError(f"the truth of the simulated {self.board} is not known: {why}")
        return self._truth

    def save_truth(self, run: RunEvents) -> None:
        """Save the truth into the folder of a run, which also says where the board did not follow the training."""
        truth = self.truth()
        truth.save(run.path)
        faults = {}
        if self.failure is not None:
            faults["simulation-stopped"] = f"the board no longer followed the training: {self.failure}"
        if truth.lost_marks:
            faults["marks-lost"] = f"the board missed {truth.lost_marks} changes of what the training did"
        for kind, message in faults.items():
            run.append_event(kind, f"{message}; its energy is not that of this training", "simulate")


def start(
    board: str, models: Models = None, seed: int = 0, folder: str | Path | None = None, **options: Any
) -> Simulation:
    """Simulate a board beside this process while it trains `models`.

    board: a name of `BOARDS`, and what is wrong with it (see `boards.parse_board`). `folder`: where truth.npz is kept
    (None: only in memory); options as in `boards.Options`. Raises UnknownName and
    UsageError for what cannot be simulated, StepscopeError when the process does not start.
    """
    board, settings = parse_board(board)
    chosen = parse_options({**settings, **options})
    from stepscope.simulate.marks import StateLog, create_ring, open_writer
    from stepscope.simulate.training_hooks import StateMarker

    shared = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    home = Path(tempfile.mkdtemp(prefix="stepscope-board-", dir=shared))
    truth_folder = home if folder is None else Path(folder)
    try:
        _make_folder(truth_folder)
        create_ring(home / "ring")
        states = StateLog(home / "states.jsonl")
        marker = StateMarker(open_writer(home / "ring"), states, models)
        process = _Process(_command(board, home, truth_folder, seed, chosen))
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    marker.attach()
    return Simulation(board, home, truth_folder, process, marker, states)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot keep the truth of a simulated board in '{folder}': {error.strerror or error}"
        raise OutputNotWritable(message, "choose a folder that you can write") from error


def _command(board: str, home: Path, folder: Path, seed: int, options: Options) -> list[str]:
    return [
        *(sys.executable, "-m", "stepscope.simulate.process", "--home", str(home), "--truth", str(folder.absolute())),
        *("--board", board, "--seed", str(seed), "--options", options.to_json(), "--pid", str(os.getpid())),
    ]


class _Process:
    """The simulating process. It is nobody's child, so what is known of it comes through its pipes."""

    def __init__(self, command: list[str]) -> None:
        self._launcher = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=Path(stepscope.__file__).parent.parent,  # the user's signal.py must not become ours
            start_new_session=True,
        )
        self._launcher.wait()
        answer = self._line(_READY_S)
        if answer is None or not answer.startswith("ready "):
            why = "it was not ready in time" if answer is None else self._read_last_word()
            self._close()
            raise StepscopeError(f"the simulated board did not start: {why}", "free space in /dev/shm or $TMPDIR")
        self.pid = int(answer.split()[1])
        self.last_word = ""

    def end(self) -> None:
        """Ask it to end and wait until the truth is written; a process that hangs is killed."""
        assert self._launcher.stdin is not None
        with contextlib.suppress(OSError):  # it may have ended already: then the pipe has no reader
            self._launcher.stdin.write(b"stop\n")
        answer = self._line(_END_S)
        if answer is None:
            self.last_word = f"it did not answer within {_END_S:g} s"
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        elif not answer:
            self.last_word = self._read_last_word()
        self._close()

    def _line(self, timeout_s: float) -> str | None:
        """The next line of its output; "" when it has ended, None when there was none in time."""
        stdout = self._launcher.stdout
        assert stdout is not None
        line, deadline = b"", time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            if not select.select([stdout], (), (), max(0.0, deadline - time.monotonic()))[0]:
                return None
            byte = os.read(stdout.fileno(), 1)
            if not byte:
                return ""
            line += byte
        return line.decode()

    def _read_last_word(self) -> str:
        assert self._launcher.stderr is not None
        lines = self._launcher.stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    def _close(self) -> None:
        for pipe in (self._launcher.stdin, self._launcher.stdout, self._launcher.stderr):
            if pipe is not None:
                pipe.close()


class RunEvents(Protocol):
    """Run folder, and its log of events: what the writer of a run is to a simulated board."""

    @property
    def path(self) -> Path:
        """Folder of the run."""

    def append_event(self, kind: str, message: str, source: str = "session", **fields: Any) -> None:
        """Append an event to the log."""


@dataclass(frozen=True)
class SensorRoot:
    """The top of the file system whose sensors are read; `runs`: those that a board's truth is to be kept in."""

    root: str | None
    runs: list[RunEvents] = field(default_factory=list)


@contextmanager
def sensor_root(board: str | None, root: str | None = None) -> Iterator[SensorRoot]:
    """`root` without a board; else the root of a board of this name, which ends with the block."""
    if board is None:
        yield SensorRoot(root)
        return
    with start(board) as simulation:
        chosen = SensorRoot(str(simulation.root))
        yield chosen
    for run in chosen.runs:
        simulation.save_truth(run)
