"""The adaptive plan of profiling: which of a run's steps have their ops recorded.

Steps repeat, so a few profiled ones tell each op's time. A block of consecutive steps right after the warm-up gives
also a short run its layers with their intervals. Small blocks follow at random distances, so that no period of the
training (a logging step, an epoch) is met always or never: until every op's median is known to 2 % (95 % CI,
order statistics) or the share of time that profiling may take is used up; then a block now and then notices drift.
Blocks in which layers alone are timed (`layer_times`), at a tenth of the cost, come before each of these.

Cost and allowance are both wall time. What is paid once a process (the first start of the profiler) is apart, and
what costs little once is done however short the run is: a step with its shapes, and as many steps as an interval needs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from stepscope.record.ops.rows import StepProfile
from stepscope.record.settings import StepChoice

WARMUP_STEPS = 3  # as the 2019 paper
TARGET = 0.02  # half width of the 95 % CI of a median, as a share of it
BUDGET = 0.02  # of the run's time, beside what is paid once
_SHAPES = 1  # the step of the warm-up that is profiled with its shapes, where that is cheap
_FIRST = WARMUP_STEPS - 1  # the first block begins with the last step of the warm-up: it runs on cold caches
_FIRST_BLOCK = 9  # steps; fewer where they cost more than the allowance of a run of _PRESUMED_STEPS
_FEWEST_FOR_A_CI = 6  # below six values no 95 % CI of a median exists
_CHEAP_NS = 40_000_000  # so much once, for shapes and again for the first block, is spent however short the run is
_PRESUMED_STEPS = 300
_PRESUMED_AT_ONCE = 60  # of which only the first step was seen, which allocates and compiles
_BLOCK = 2
_LAYER_BLOCK = 6, 24  # steps whose layers alone are timed, fewest and most; the first of them only settles
_LAYER_BLOCK_NS = 10_000_000  # as many as cost so much
_LAYER_BLOCKS = 3  # of these for each of the others, until the medians are known
_LAYER_COST = 0.1  # of what a profiled step costs, until one tells
_LAYERS_CHEAP_NS = 25_000_000  # so much once, for the first of them: without, a network bound by dispatch has one step
_BETWEEN = 6  # unprofiled steps between blocks, on average
_DRIFT_EVERY = 200  # the same once the medians are known
_BLOCK_SPACING = (0.5, 1.5)  # times the average, evenly distributed
_SHORTEST_PAUSE = 20  # steps, where there is no allowance left
_MOST = 200
_FEW_TIMES = 5  # so few steps are judged by the shortest: the first ones of a training allocate and compile
_MOST_MISSED = 5
_MOST_MODELS = 16  # trained one after another, that are each profiled when they begin
_NEGLIGIBLE = 0.01  # ops that together take less than this share of the step need no better median
_CHECK_EVERY = 5
_LENGTHS = 50  # of steps that are kept
LOOK_AHEAD = 200  # steps that may go by before the plan is asked again
_EVENT_WITHIN_NS = 400  # that an event adds to its step, until profiled steps tell
_SHAPES_COST = 3  # times as much to profile a step with the shapes of its tensors
_MEMORY_NS = 5_000_000  # to list the live tensors before a window
_MEMORY_EVENT_NS = 25_000  # to write the allocations of a window, an op call
_SEED = 20_190_606
_Times = np.ndarray[Any, np.dtype[np.float32]]  # of the ops of a step, ns: half the size of int64, of any length


@dataclass
class Plan:
    """Decides step by step; `learn` takes what came of a window, `spent` what it cost."""

    choice: StepChoice
    memory: str = "auto"  # see settings.MEMORY_CHOICES
    same_steps_on_all_ranks: bool = (
        False  # ranks of one training: all of them record the same steps, since each waits for the others
    )
    recorded: int = 0
    known_share: float | None = None  # share of op time whose median is known to TARGET
    events_per_step: float = 0.0  # as far as it is known, or reckoned
    window_ns: float = 2e6  # to open, close and write a window, beside its events
    event_ns: float = 6e3  # to write an event
    layers_possible: bool = False  # layers can be timed without their operators
    times_layers: bool = False  # the step that was asked about last: its layers alone are timed
    layers_timed: bool = False  # and so it was
    _profiles: dict[int, list[_Times]] = field(default_factory=lambda: defaultdict(list))
    _spent_ns: int = 0
    _recorded_ns: list[int] = field(default_factory=list)
    _plain_ns: list[int] = field(default_factory=list)
    _wait: int = 0  # unprofiled steps still to come before the next block
    _left: int = 0  # profiled steps still to come in this one
    _layers_left: int = 0  # steps whose layers alone are timed, still to come in this one
    _layers_due: int = _LAYER_BLOCKS  # blocks of these, before the next one of operators
    _layer_ns: float | None = None  # to write a step of layers
    _layer_steps_ns: list[int] = field(default_factory=list)
    _steady: int = 0  # profiled steps after warm-up
    _shapes_at: int = _SHAPES
    _shapes_wanted: bool = False  # in the step that is under way
    _wanted: bool = False  # the step that is under way is to be recorded
    _missed: int = 0  # steps in a row that were to be recorded, and were not: evaluation came between
    _checked: int = 0  # of them, when the medians were last looked at
    _first: bool = True  # the block right after the warm-up is not over
    _models: int = 0  # that began to be trained after the first block had begun
    _memory_seen: set[bool] = field(default_factory=set)  # of a warm-up step (False), of a later one (True)
    _random: random.Random = field(default_factory=lambda: random.Random(_SEED))

    def records(self, step: int, elapsed_ns: int) -> bool:
        """Are the ops of this step recorded? Asked once, in order, before each step."""
        self.times_layers = self.layers_timed = False
        if not self.choice.adaptive:
            return self.choice.records(step)
        if step < _FIRST or step == self._shapes_at:
            self._shapes_wanted = self.wants_shapes(step, elapsed_ns)
            if self._shapes_wanted or step < _FIRST:
                return self._shapes_wanted
        if step == _FIRST and self._affordable_steps(elapsed_ns) <= 1 and not self.same_steps_on_all_ranks:
            return False  # where one step is all that there is for, it is not one of the warm-up
        if self._left == self._layers_left == self._wait == 0:
            self._begin_block(elapsed_ns)
        if self._layers_left:
            self._count_layer_steps(1)
            self.times_layers = True
            return False
        if self._left == 0:
            self._wait -= 1
            return False
        self._left -= 1
        self._steady += 1
        self._wanted = True
        if self._left == 0:
            self._wait = self._steps_apart(
                _DRIFT_EVERY if self.same_steps_on_all_ranks or self._are_medians_known() else _BETWEEN
            )
        return True

    def reset_learnt_state(self) -> None:
        """Steps are others than was thought: what was learnt of them is void, what was spent is not."""
        new = Plan(self.choice)
        lasting = ("choice", "memory", "same_steps_on_all_ranks", "window_ns", "event_ns", "_spent_ns", "_random")
        for name in vars(new).keys() - set(lasting):
            setattr(self, name, vars(new)[name])

    def note_new_model(self) -> bool:
        """Plan to profile a model that begins to be trained late, behind its steps that allocate; False for others."""
        has_begun = self._steady if self.choice.adaptive else self.recorded
        if not has_begun or self.same_steps_on_all_ranks or self._models == _MOST_MODELS:
            return False
        self._models += 1
        self._steady = self._checked = self._left = self._layers_left = 0
        self._wait, self._wanted, self.known_share = WARMUP_STEPS - 1, False, None
        for learnt in (self._profiles, self._recorded_ns, self._plain_ns, self._layer_steps_ns):
            learnt.clear()
        return True

    def steps_unprofiled(self, step: int) -> int:
        """Number of steps, this unprofiled one included, that end before the next decision."""
        if self.choice.adaptive:
            if self.times_layers:
                return self._layers_left + 1
            asked_for = self._wanted  # and may be profiled in parts
            return 0 if self._left or self._layers_left or asked_for else self._wait + 1
        return self.choice.steps_until_recorded(step, LOOK_AHEAD)

    def note_unprofiled_steps(self, lengths_ns: list[int], timed: bool) -> None:
        """Steps of these lengths have ended without being asked about: unprofiled, or their layers alone were timed."""
        if timed:
            self._layer_steps_ns = (self._layer_steps_ns + lengths_ns)[-_LENGTHS:]
            self._count_layer_steps(len(lengths_ns))
        else:
            self._wait = max(self._wait - len(lengths_ns), 0)
            self._plain_ns = (self._plain_ns + lengths_ns)[-_LENGTHS:]

    def _count_layer_steps(self, steps: int) -> None:
        """So many steps of a block whose layers alone are timed are over, or begin."""
        if self._layers_left:
            self._layers_left = max(self._layers_left - steps, 0)
            if self._layers_left == 0:
                self._wait = self._steps_apart(_BETWEEN)

    def wants_shapes(self, step: int, elapsed_ns: int) -> bool:
        """Shapes are recorded while warming up, where time does not count."""
        if not self.choice.adaptive:
            return step < WARMUP_STEPS
        if step != self._shapes_at or self.same_steps_on_all_ranks:
            return False
        cheap = 0 < _SHAPES_COST * self._cost_of_step_ns() <= _CHEAP_NS
        return cheap or self._affordable_steps(elapsed_ns) >= _SHAPES_COST + _FIRST_BLOCK

    def affords_shapes_again(self, elapsed_ns: int) -> bool:
        """Return whether a later step, with other ops or other shapes, is worth another look."""
        if not self.choice.adaptive:
            return True
        return not self._first and self._affordable_steps(elapsed_ns, _SHAPES_COST) >= 1

    def wants_memory(self, step: int, elapsed_ns: int) -> bool:
        """Are allocations recorded in this profiled step? Asked once; "auto" is one step of warm-up and one later.

        The later one ends the first block, whose other steps are timed without it, or is of another block.
        """
        if self.memory != "auto":
            return self.memory == "all"
        steady = step >= WARMUP_STEPS
        if step < _SHAPES or steady in self._memory_seen or (self.choice.adaptive and steady and self._left):
            return False
        cost_ns = self._cost_ns() + _MEMORY_NS + _MEMORY_EVENT_NS * self.events_per_step
        if self.choice.adaptive and cost_ns > self._allowance_ns(elapsed_ns):
            return False
        self._memory_seen.add(steady)
        return True

    def note_step_length(self, recorded: bool, ns: int) -> None:
        """The length of a step that has ended; one that was to be recorded and was not is made up for."""
        if self._wanted and not recorded and self._missed < _MOST_MISSED:
            self._left, self._steady, self._missed = self._left + 1, self._steady - 1, self._missed + 1
        elif recorded:
            self._missed = 0
        if not recorded:  # the first step of a script is known to have ended only with the second update
            self.postpone_shapes()
        self._wanted = self._shapes_wanted = False
        times = self._recorded_ns if recorded else self._layer_steps_ns if self.layers_timed else self._plain_ns
        if not recorded or self._steady:  # a profiled step of the warm-up is slow for reasons of its own
            times.append(ns)
            del times[:-_LENGTHS]
        self.recorded += recorded
        self._first = self._first and (self._steady == 0 or self._left > 0)

    def postpone_shapes(self) -> None:
        """The step that was to be profiled with its shapes was not, or not whole: the next one is, still in warm-up."""
        if self._shapes_wanted and self._shapes_at < _FIRST:
            self._shapes_at += 1

    def note_cost(self, ns: int, events: int = 0, layer_steps: int = 0) -> None:
        """Wall time spent between steps on starting, stopping and writing; events or steps of layers written in it."""
        self._spent_ns += ns
        if layer_steps:
            self._layer_ns = max(ns - self.window_ns, 0.2 * ns) / layer_steps
        if events:
            self.event_ns = max(ns - self.window_ns, 0.2 * ns) / events

    def learn(self, profiles: list[StepProfile]) -> None:
        """Add the times of the ops of a window; steps with other ops are counted apart."""
        for profile in profiles if self.choice.adaptive else ():
            if profile.step >= WARMUP_STEPS:
                profiles_alike = self._profiles[profile.signature]
                profiles_alike.append(profile.self_ns.astype(np.float32))
                del profiles_alike[:-_MOST]
        if len(self._profiles) > 64:
            self._profiles.pop(next(iter(self._profiles)))
        if self.choice.adaptive and not self._are_medians_known() and self._steady - self._checked >= _CHECK_EVERY:
            self._checked = self._steady
            self.known_share = self._share_with_known_median()

    def _are_medians_known(self) -> bool:
        return self._steady >= _MOST or (self.known_share is not None and self.known_share >= 1 - _NEGLIGIBLE)

    def _begin_block(self, elapsed_ns: int) -> None:
        """Profile the next steps, or time their layers alone, or wait until the allowance pays for it."""
        if self._steady and self.layers_possible and not self.same_steps_on_all_ranks and self._layers_due > 0:
            steps = int(np.clip(_LAYER_BLOCK_NS / max(self._cost_of_layers_ns(), 1.0), *_LAYER_BLOCK))
            cost_ns = self._window_cost_ns() + steps * self._cost_of_layers_ns()
            cheap = self._layer_ns is None and cost_ns <= _LAYERS_CHEAP_NS
            if cheap or self._cost_ns() + cost_ns <= self._allowance_ns(elapsed_ns):
                self._layers_left, self._layers_due = steps, self._layers_due - 1
            else:
                self._wait_until_affordable(self._cost_ns() + cost_ns - self._allowance_ns(elapsed_ns))
            return
        most = _FIRST_BLOCK if self._steady == 0 else _BLOCK
        affordable = most if self.same_steps_on_all_ranks else self._affordable_steps(elapsed_ns)
        if affordable >= most or self._steady == 0:
            cheap = self._steady == 0 and self._cost_of_block_ns(_FEWEST_FOR_A_CI) <= _CHEAP_NS
            self._left = max(_FEWEST_FOR_A_CI if cheap else 1, min(most, affordable))
            enough = self._are_medians_known() or len(self._layer_steps_ns) >= _LENGTHS
            self._layers_due = 1 if enough else _LAYER_BLOCKS
            return
        self._wait_until_affordable(self._cost_ns() + self._cost_of_block_ns(most) - self._allowance_ns(elapsed_ns))

    def _wait_until_affordable(self, missing_ns: float) -> None:
        """Wait until the allowance has grown by so much."""
        needed = int(missing_ns / (BUDGET * max(self.step_ns(), 1.0)))
        self._wait = self._steps_apart(min(max(needed, _SHORTEST_PAUSE), 10 * _DRIFT_EVERY))

    def _steps_apart(self, average: int) -> int:
        return max(2, round(average * self._random.uniform(*_BLOCK_SPACING)))  # the first after a window only settles

    def _affordable_steps(self, elapsed_ns: int, times: float = 1.0) -> int:
        """Return how many steps in a window the allowance pays for, each at so many times the usual cost."""
        left_ns = self._allowance_ns(elapsed_ns) - self._cost_ns() - self._window_cost_ns()
        return int(left_ns / max(times * self._cost_of_step_ns(), 1.0)) if left_ns > 0 else 0

    def _allowance_ns(self, elapsed_ns: int) -> float:
        """A run is taken to have some hundred steps, until the first block is over."""
        steps = _PRESUMED_STEPS if len(self._plain_ns) > 1 else _PRESUMED_AT_ONCE
        return BUDGET * max(elapsed_ns, steps * self.step_ns() if self._first else 0.0)

    def _cost_ns(self) -> float:
        return self._spent_ns + self.recorded * self._profiling_slowdown_ns()

    def _cost_of_layers_ns(self) -> float:
        """Return the cost of a step whose layers alone are timed, ns."""
        if self._layer_ns is None:
            return _LAYER_COST * self._cost_of_step_ns()
        slower_ns = median(self._layer_steps_ns) - self.step_ns() if self._layer_steps_ns else 0.0
        return self._layer_ns + max(slower_ns, 0.0)

    def _cost_of_block_ns(self, steps: int) -> float:
        return self._window_cost_ns() + steps * self._cost_of_step_ns()

    def _window_cost_ns(self) -> float:
        return self.window_ns if self.events_per_step else 0.0

    def _cost_of_step_ns(self) -> float:
        """Return the cost of a step in a window, ns: by its events, or by the steps so far where none were counted."""
        if not self.events_per_step:
            return self._cost_ns() / max(self.recorded, 1)
        return self.events_per_step * self.event_ns + self._profiling_slowdown_ns()

    def step_ns(self) -> float:
        """An unprofiled step; of a few the shortest, since the first ones allocate and compile."""
        if not self._plain_ns:
            return 0.0
        return float(min(self._plain_ns) if len(self._plain_ns) < _FEW_TIMES else median(self._plain_ns))

    def _profiling_slowdown_ns(self) -> float:
        """By how much profiling makes a step longer, ns: no event adds more to its step than it takes to write it.

        Steps that differ by more do so for reasons of their own: another program ran, or clocks were others.
        """
        if not self._recorded_ns or not self._plain_ns:
            return _EVENT_WITHIN_NS * self.events_per_step
        slower_ns = max(0.0, median(self._recorded_ns) - self.step_ns())
        return min(slower_ns, self.events_per_step * self.event_ns) if self.events_per_step else slower_ns

    def _share_with_known_median(self) -> float:
        """Share of the op time whose median is known, over the kind of step seen most often."""
        profiles = max(self._profiles.values(), key=len, default=[])
        if len(profiles) < _FEWEST_FOR_A_CI:
            return 0.0
        times = np.sort(np.stack(profiles), axis=0)
        n = len(times)
        low = int(np.floor(n / 2 - 0.98 * np.sqrt(n)))
        middle = np.maximum((times[(n - 1) // 2] + times[n // 2]) / 2, 1)  # np.median would import numpy.ma, for 8 ms
        half = (times[min(n - 1 - max(low, 0), n - 1)] - times[max(low, 0)]) / 2
        return float(middle[half <= TARGET * middle].sum() / middle.sum())
