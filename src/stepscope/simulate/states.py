"""What can be running: a state is a kind of work in a phase, at a place in the model, on inputs of some shapes.

The trainer's side appends each new state to a file before its first mark; the line number is the state's id.
"""

from __future__ import annotations

import json
import os
from dataclasses import astuple, dataclass
from pathlib import Path

from stepscope.simulate.ring import STATES


@dataclass(frozen=True)
class State:
    """One kind of work; power differs by `kind` and `phase`, a little by `signature`, and least by `place`."""

    kind: str  # module type or optimizer type
    phase: str
    place: str = ""  # qualified name of the module
    signature: str = ""  # shapes of inputs and parameters


IDLE, HOST, BETWEEN, OTHER = range(4)
FIXED = (
    State("idle", "other"),
    State("host", "data"),  # between the optimizer's step and the next forward: data loading, the user's own code
    State("between modules", "forward"),
    State("other", "other"),  # of more states than an id can number
)


class StateLog:
    """The trainer's side: ids of states, new ones appended to the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._count = 0
        for state in FIXED:
            self.add(state)

    def close(self) -> None:
        """No state is added any more."""
        os.close(self._file)

    def add(self, state: State) -> int:
        """The id of a new state, known to the other side from now on; OTHER when there are too many."""
        if self._count == STATES:
            return OTHER
        os.write(self._file, json.dumps(astuple(state)).encode() + b"\n")
        self._count += 1
        return self._count - 1


class StateReader:
    """The simulating side: the states that were appended since the last call, in order of their ids."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = 0

    def read(self) -> list[State]:
        """New states; a line that is still being written waits for the next call."""
        data = os.pread(self._file, os.fstat(self._file).st_size - self._offset, self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [State(*json.loads(line)) for line in whole.splitlines()]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
