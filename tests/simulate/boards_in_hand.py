"""A simulated board driven by hand: no process, no waiting, the test is the clock and the trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.simulate.boards import parse_options
from stepscope.simulate.marks import State, StateLog, create_ring, open_writer
from stepscope.simulate.process import RING_FILE, STATES_FILE, BoardRun

MS = 1_000_000
S = 1_000_000_000
QUIET: dict[str, Any] = {"noise": 0.0, "drift": 0.0, "adc_noise": 0.0, "clock_error": 0.0}


class Hand:
    """A board, and marks with times of the test's choice."""

    def __init__(self, board: str, home: Path, seed: int = 0, **options: Any) -> None:
        create_ring(home / RING_FILE)
        self.root = home / "root"
        self.now_ns = 1000 * S
        self.log = StateLog(home / STATES_FILE)
        self._segments = (home / "segments").open("w+b")
        self._mark = open_writer(home / RING_FILE, lambda: self.now_ns)
        self.run = BoardRun(board, home, parse_options(options), seed, self._segments, lambda: self.now_ns)

    def state(self, kind: str, phase: str = "forward", place: str = "", signature: str = "") -> int:
        """A new state, in which GPU and memory of a board that computes are busy."""
        return self.log.add(State(kind, phase, place, signature, flops=1e9, moved=2e7))

    def mark(self, state: int) -> None:
        """It runs from now on."""
        self._mark(state)

    def go(self, ns: int, tick_ns: int | None = None) -> None:
        """Let time pass."""
        until = self.now_ns + ns
        while self.now_ns < until:
            step_ns = tick_ns or self.run.next_ns(self.now_ns) - self.now_ns
            self.now_ns = min(until, self.now_ns + step_ns)
            self.run.tick(self.now_ns)

    def text(self, pattern: str) -> str:
        """Content of the one file that matches."""
        (path,) = self.root.glob(pattern)
        return path.read_text(errors="replace").strip()

    def number(self, pattern: str) -> int:
        """The whole number in the one file that matches."""
        return int(self.text(pattern))

    def close(self) -> None:
        """Let go of files."""
        self.run.close()
        self.log.close()
        self._segments.close()


@contextlib.contextmanager
def board_in_hand(board: str, home: Path, seed: int = 0, **options: Any) -> Iterator[Hand]:
    """A board that is closed again."""
    hand = Hand(board, home, seed, **options)
    try:
        yield hand
    finally:
        hand.close()
