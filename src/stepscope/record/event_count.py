"""Estimate how many events a window holds so far, and how many a step will have: the profiler tells neither.

Reckoned from autograd nodes, calls of modules and parameters, times what the windows before have taught. Operators
that make no nodes, outside of modules, escape it: `window_ends`.
"""

from __future__ import annotations

from collections.abc import Callable

from stepscope.record import torch_private

MOST_EVENTS = 32_000  # of several steps in one window: a window's events wait in RAM
MOST_EVENTS_PER_STEP = 48_000  # of one step: a larger one is profiled in parts
MOST_EVENTS_PER_PART = 16_000
EVENT_BYTES = 2_000  # that an event takes in RAM until it is written
TO_THE_END_OF_A_PASS = 1.5  # times as many events may it take to see layers in backward, too
_EVENTS_PER_NODE = 4, 5  # of an autograd node: its op and what that calls, and the same in backward
_EVENTS_PER_UPDATE = 20  # of a parameter
_EVENTS_PER_CALL = 2  # of a module's call, beside those of its nodes
_DEARER = 3  # with shapes or allocations an event takes so many times the memory


def most_events_of_step(dear: bool) -> int:
    """Of a step that is profiled whole; dear: with shapes or allocations."""
    return MOST_EVENTS_PER_STEP // (_DEARER if dear else 1)


class EventCount:
    """Counts what tells events; `calls` counts calls of modules, `parameters` the parameters of models."""

    def __init__(self, calls: Callable[[], int], parameters: Callable[[], int]) -> None:
        self.seen: float | None = None  # of a step, in the last window
        self.caught = self.most = 0  # by the last window, by the largest
        self._calls, self._count_parameters = calls, parameters
        self._parameters: int | None = None
        self._step_sequence = torch_private.autograd_sequence()  # when the step began
        self._step_nodes = 0, 0  # that the last steps made: of two that end at once, late, one has the nodes of both
        self._sequence = self._passed = 0  # when the step or part began; when the last backward pass ended
        self._calls_before = 0
        self._whole_steps = 0.0  # reckoned, of this window
        self._learnt = 1.0  # events caught for one that was reckoned

    # what happens

    def step_begins(self, sequence: int) -> None:
        """A step begins when so many autograd nodes have been made."""
        self._step_sequence = self._sequence = self._passed = sequence
        self._calls_before = self._calls()

    def step_ends(self) -> None:
        """Every step's end, recorded or not."""
        made = torch_private.autograd_sequence()
        self._step_nodes = self._step_nodes[1], made - self._step_sequence
        self._step_sequence = made

    def part_begins(self, with_forward: bool) -> None:
        """A window opens within a step."""
        self._sequence, self._calls_before = torch_private.autograd_sequence(), self._calls()
        if with_forward:
            self._passed = self._sequence

    def pass_ends(self) -> None:
        """A backward pass is done, with all the nodes that were made."""
        self._passed = torch_private.autograd_sequence()

    def window_begins(self) -> None:
        """No event is caught yet."""
        self._whole_steps = 0.0

    def step_of_window_ends(self) -> None:
        """A step ends that is profiled whole."""
        self._whole_steps += self.so_far()

    def window_ends(self, caught: int) -> None:
        """It has caught so many events."""
        self.caught, self.most = caught, max(self.most, caught)

    # what it tells

    def so_far(self) -> float:
        """Events of the step or part that is under way."""
        return self._reckoned(torch_private.autograd_sequence() - self._sequence, self._calls() - self._calls_before)

    def to_come(self) -> float:
        """Events of a backward pass through what was made since the last one."""
        made = torch_private.autograd_sequence() - self._passed
        return self._learnt * _EVENTS_PER_NODE[1] * max(made, 0)

    def of_graph(self) -> float:
        """Events of a step, by what the last two made: those of its nodes."""
        return self._reckoned(sum(self._step_nodes) // 2, 0)

    def expected(self) -> float:
        """Events of a whole step: as many as one had, else reckoned."""
        if self.seen is not None:
            return self.seen
        if self._parameters is None:
            self._parameters = self._count_parameters()
        return self.of_graph() + _EVENTS_PER_UPDATE * self._parameters

    def too_many_updates(self) -> bool:
        """Return whether the update alone is too large for a window."""
        return _EVENTS_PER_UPDATE * self._count_parameters() > MOST_EVENTS_PER_STEP

    @property
    def has_passed(self) -> bool:
        """Return whether a backward pass of this step is done."""
        return self._passed > self._step_sequence

    @property
    def nodes_of_part(self) -> int:
        """Nodes of a backward pass that fill a window."""
        return int(MOST_EVENTS_PER_PART / (_EVENTS_PER_NODE[1] * self._learnt))

    @property
    def nodes_to_pass(self) -> int:
        """Nodes made since the last backward pass."""
        return torch_private.autograd_sequence() - self._passed

    # what it learns

    def learn_from_steps(self) -> None:
        """The window that has ended held whole steps."""
        self._learn(self._whole_steps)

    def learn_from_forward(self) -> None:
        """It held a part that began with a forward pass."""
        self._learn(self.so_far() - self.to_come())

    def _reckoned(self, nodes: int, calls: int) -> float:
        return self._learnt * (sum(_EVENTS_PER_NODE) * max(nodes, 0) + _EVENTS_PER_CALL * max(calls, 0))

    def _learn(self, reckoned: float) -> None:
        if reckoned > 0:
            self._learnt *= min(max(self.caught / reckoned, 0.2), 5.0)
