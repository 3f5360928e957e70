"""Sensors that answer only later, for example when permission is granted in mid-run: asked again now and then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from stepscope.clock import Clock
from stepscope.record.sensors import NO_ANSWER, Survey, survey
from stepscope.record.sensors.contract import Found, Missing, Target

LOOK_AGAIN_NS = 10_000_000_000
_SHARE = 0.002  # of the time at most goes into asking: looking for what is absent must cost next to nothing


class Newcomers:
    """Asks in a thread, since a vendor's library may take its time; the loop collects what has been found."""

    def __init__(
        self, missing: Mapping[str, Missing], root: Path, target: Target, clock: Clock, every_ns: int = LOOK_AGAIN_NS
    ) -> None:
        self._root, self._target, self._clock, self._every_ns = root, target, clock, every_ns
        # One that hung when it was asked may hang again, each time in a thread more: it is left alone.
        self._names = {name for name, why in missing.items() if why.detail != NO_ANSWER}
        self._due_ns = clock() + every_ns
        self._asking: threading.Thread | None = None
        self._answers: queue.SimpleQueue[Survey] = queue.SimpleQueue()

    def collect(self) -> dict[str, Found]:
        """The sensors that have begun to answer; starts the next round when it is due."""
        try:
            seen = self._answers.get_nowait()
        except queue.Empty:
            if self._names and self._asking is None and self._clock() >= self._due_ns:
                self._asking = threading.Thread(target=self._ask, args=(frozenset(self._names),), daemon=True)
                self._asking.start()
            return {}
        self._asking = None
        self._names -= set(seen.found)
        self._names -= {name for name, why in seen.missing.items() if why.detail == NO_ANSWER}
        return seen.found

    def _ask(self, names: Collection[str]) -> None:
        began_ns = self._clock()
        seen = survey(self._root, self._target, names)
        took_ns = self._clock() - began_ns
        self._due_ns = began_ns + max(self._every_ns, int(took_ns / _SHARE))
        self._answers.put(seen)
