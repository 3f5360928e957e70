"""The runs of one board: which wait, which are under way, which have ended."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.studies.suite.grid import Point
from stepscope.studies.suite.state import SweepFolder

LOST = "lost"  # the run was begun, and its device went away, each time
TRIES = 3


class Board:
    """What is to be done for one board; runs that were lost in an earlier sweep are made anew."""

    def __init__(self, name: str, sweep: SweepFolder) -> None:
        self.name, self.sweep, self.order = name, sweep, sweep.order
        self.ended = {id_: result for id_, result in sweep.ended().items() if result.get("status") != LOST}
        self.waiting = deque(point for point in self.order if point.id not in self.ended)
        self._tries: Counter[str] = Counter()

    def left(self) -> list[Point]:
        """What has not ended, waiting or under way."""
        return [point for point in self.order if point.id not in self.ended]

    def before(self, point: Point) -> Sequence[Point]:
        """What comes before a run in the order of the sweep."""
        return self.order[: self.order.index(point)]

    def give_back(self, point: Point) -> None:
        """It waits again, first in the line."""
        self.waiting.appendleft(point)

    def end(self, point: Point, result: Mapping[str, Any]) -> None:
        """Write down what became of it."""
        self.sweep.end(point, dict(result))
        self.ended[point.id] = dict(result)

    def lost(self, point: Point, why: str) -> dict[str, Any] | None:
        """Count a try that came to nothing; the result after the last one, None while there are more."""
        self._tries[point.id] += 1
        if self._tries[point.id] < TRIES:
            return None
        return {
            "point": point.to_dict(),
            "status": LOST,
            "reason": f"tried {TRIES} times: {why}",
            "wall_s": None,
            "ended_unix_ms": time.time_ns() // 1_000_000,
            "run": None,
        }
