"""The adaptive recording plan: which of a run's steps have their ops recorded.

Steps repeat, so a few recorded ones tell each op's median. Recorded blocks alternate with unprofiled ones (which is
also how the run learns what recording costs) until every op's median is known to 2 % (95 % CI, order
statistics) or the share of time that recording may take is used up; then a block now and then notices drift.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from stepscope.arrays import Ints
from stepscope.record.ops.rows import StepProfile
from stepscope.record.settings import Choice

WARMUP_STEPS = 3  # as the 2019 paper
TARGET = 0.02  # half width of the 95 % CI of a median, as a share of it
BUDGET = 0.04  # of the run's time
_ALLOWANCE_NS = 75_000_000  # that a run may spend in any case: a short run is worth some profiled steps too
_TOGETHER = (WARMUP_STEPS + 1, 6, 3)  # first step, steps in the first block, and in each later one, of ranks together
_FIRST = 1  # the step whose recording tells what recording costs
_BLOCK = 2
_SHORTEST_PAUSE = 20  # steps: asking the budget takes medians, which is not free either
_BETWEEN = 4  # unprofiled steps between blocks: the first after a block only settles
_FEWEST = 1  # profiled step after warm-up that is worth having in any case
_MOST = 200
_DRIFT_EVERY = 200  # steps
_NEGLIGIBLE = 0.01  # ops that together take less than this share of the step need no better median
_CHECK_EVERY = 5
_MEMORY_NS = 60_000_000  # to look for everything that is alive before a window
_MEMORY_EVENT_NS = 25_000  # to write the allocations of a window, an op call


@dataclass
class Plan:
    """Decides step by step; `learn` takes what came of a window, `spent` what it cost."""

    choice: Choice
    memory: str = "auto"  # see schedule.MEMORY_CHOICES
    together: bool = False  # ranks of one training: all of them record the same steps, since each waits for the others
    recorded: int = 0
    known: float | None = None  # share of op time whose median is known to TARGET
    _profiles: dict[int, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    _spent_ns: int = 0
    _recorded_ns: list[int] = field(default_factory=list)
    _plain_ns: list[int] = field(default_factory=list)
    _wait: int = 0  # unprofiled steps still to come in this block
    _left: int = 0  # profiled steps that follow them
    _steady: int = 0  # profiled steps after warm-up
    _memory_seen: set[bool] = field(default_factory=set)  # of a warm-up step (False), of a later one (True)

    def records(self, step: int, elapsed_ns: int) -> bool:
        """Are the ops of this step recorded? Asked once, in order, before each step."""
        if not self.choice.adaptive:
            return self.choice.records(step)
        if self.together:
            return self._records_together(step)
        if step < WARMUP_STEPS:
            return step == _FIRST or (step > _FIRST and self.affords_shapes(elapsed_ns))
        if self._left == 0 and self._wait == 0:
            self._next_block(elapsed_ns)
        if self._wait > 0:  # first: steps right after the writing of a window run on cold caches
            self._wait -= 1
            return False
        if self._left == _BLOCK and not self._affords(_BLOCK, elapsed_ns):
            self._left = _FEWEST  # only now is it known what the window before cost
        self._left -= 1
        self._steady += 1
        return True

    def _records_together(self, step: int) -> bool:
        """Return whether every rank profiles this step: those of a block after the warm-up, and one now and then."""
        first, most, later = _TOGETHER
        since = step - first
        return 0 <= since < most or (since >= _DRIFT_EVERY and since % _DRIFT_EVERY < later)

    def reckons(self, step: int) -> bool:
        """Before this step the window must be closed, so that its cost is known."""
        return self.choice.adaptive and not self.together and step == _FIRST + 1

    def wants_shapes(self, step: int) -> bool:
        """Shapes are recorded while warming up, where time does not count, once it is known what a step costs."""
        return step < WARMUP_STEPS and not (self.choice.adaptive and step <= _FIRST)

    def affords_shapes(self, elapsed_ns: int) -> bool:
        """With its shapes a step costs twice as much to record."""
        return not self.choice.adaptive or self._affords(2, elapsed_ns)

    def wants_memory(self, step: int, elapsed_ns: int, events_per_step: int) -> bool:
        """Are allocations recorded in this profiled step? Asked once; "auto" is one step of warm-up and one later."""
        if self.memory != "auto":
            return self.memory == "all"
        steady = step >= WARMUP_STEPS
        if step < _FIRST or steady in self._memory_seen:
            return False
        if self.choice.adaptive:
            cost_ns = self._cost_ns() + _MEMORY_NS + _MEMORY_EVENT_NS * events_per_step
            if cost_ns > max(_ALLOWANCE_NS, BUDGET * elapsed_ns):
                return False
        self._memory_seen.add(steady)
        return True

    def took(self, recorded: bool, ns: int) -> None:
        """The length of a step that has ended."""
        times = self._recorded_ns if recorded else self._plain_ns
        times.append(ns)
        del times[:-50]
        self.recorded += recorded

    def spent(self, ns: int) -> None:
        """Time spent between steps on starting, stopping and writing."""
        self._spent_ns += ns

    def learn(self, profiles: list[StepProfile]) -> None:
        """Add the times of the ops of a window; steps with other ops are counted apart."""
        for profile in profiles if self.choice.adaptive else ():
            if profile.step >= WARMUP_STEPS:
                kept = self._profiles[profile.signature]
                kept.append(profile.self_ns.astype(np.int32))
                del kept[:-_MOST]
        if len(self._profiles) > 64:
            self._profiles.pop(next(iter(self._profiles)))

    def _next_block(self, elapsed_ns: int) -> None:
        after_warmup = self._steady
        if after_warmup >= _FEWEST and after_warmup % _CHECK_EVERY in (0, 1):
            self.known = self._known_share()
        done = self.known is not None and self.known >= 1 - _NEGLIGIBLE
        if done or after_warmup >= _MOST:
            self._wait, self._left = _DRIFT_EVERY, _BLOCK
        elif after_warmup < _FEWEST or self._affords(_BLOCK, elapsed_ns):
            self._wait, self._left = _BETWEEN, _BLOCK
        else:
            self._wait, self._left = self._pause(), 0

    def _affords(self, more: int, elapsed_ns: int) -> bool:
        return self._cost_ns() + more * self._cost_of_one_ns() <= max(_ALLOWANCE_NS, BUDGET * elapsed_ns)

    def _pause(self) -> int:
        """Unprofiled steps after which another look at the budget is worth it."""
        step_ns = float(np.median(self._plain_ns)) if self._plain_ns else 1e6
        needed = _BLOCK * self._cost_of_one_ns() / BUDGET
        return int(np.clip(needed / max(step_ns, 1.0) / 4, _SHORTEST_PAUSE, _DRIFT_EVERY))

    def _cost_ns(self) -> float:
        return self._spent_ns + self.recorded * self._slower_by_ns()

    def _cost_of_one_ns(self) -> float:
        return self._cost_ns() / max(self.recorded, 1)

    def _slower_by_ns(self) -> float:
        if not self._recorded_ns or not self._plain_ns:
            return 0.0
        return max(0.0, float(np.median(self._recorded_ns) - np.median(self._plain_ns)))

    def _known_share(self) -> float:
        """Share of the op time whose median is known, over the kind of step seen most often."""
        kept = max(self._profiles.values(), key=len, default=[])
        if len(kept) < 6:  # below six values no 95 % CI of a median exists
            return 0.0
        times = np.sort(np.stack(kept), axis=0)
        n = len(times)
        low = int(np.floor(n / 2 - 0.98 * np.sqrt(n)))
        middle = np.maximum(np.median(times, axis=0), 1)
        half = (times[min(n - 1 - max(low, 0), n - 1)] - times[max(low, 0)]) / 2
        return float(middle[half <= TARGET * middle].sum() / middle.sum())
