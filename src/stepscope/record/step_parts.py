"""The parts of a step that is too large for one window: each phase has a window of its own, for what fits into it.

The forward part begins with the first call of a model, the backward part with the first backward pass, and the
optimizer's part with the end of a pass that an update follows: of a closure's the first, else the step's last one.
"""

from __future__ import annotations

from collections.abc import Callable

from stepscope.record.ops.modules import CallPlaces
from stepscope.record.torch_private import Scope

FORWARD, BACKWARD, UPDATE = "forward", "backward", "optimizer"
BEGINNING = "beginning"  # of a step whose size was not known before: what its first window held
NO_PART_OF_BACKWARD = (
    "a backward pass too large for one window is profiled where it runs on the CPU, through all its nodes, "
    "in a process without other threads, with torch 2.7 or later"
)
_NO_PROFILE_WITHIN_BACKWARD = (
    "an optimizer updates within the backward pass, so that steps begin there, where no profile may begin or end"
)


class Parts:
    """State of a step that is profiled in parts: what is still to be profiled; False where it is profiled whole."""

    def __init__(self) -> None:
        self.step = -1
        self.left: set[str] = set()
        self.open: str | None = None
        self.t0_ns = 0  # of the open part
        self.rows = 0  # that were written of this step
        self.places: CallPlaces | None = None
        self.scope: Scope | None = None  # stands for the optimizer's own range, within a closure's update
        self.undo: Callable[[], None] = _nothing  # of what ends the window within a pass
        self.updating: str | None = None  # the optimizer that updates now
        self._active = self._said_within = False
        self._passes = 0
        self._passes_before = 0  # of the step before

    def __bool__(self) -> bool:
        return self._active

    def step_within_backward(self, step: int, note: Callable[..., None]) -> None:
        """A step begins within a backward pass: neither it nor a part of it is profiled, which is said once."""
        if not self._said_within:
            self._said_within = True
            note("steps-end-in-backward", _NO_PROFILE_WITHIN_BACKWARD, step=step)

    def begin(self, step: int, wanted: set[str]) -> None:
        """This step is profiled in parts, and these are wanted."""
        self._active, self.step, self.left, self.open, self.rows = True, step, set(wanted), None, 0

    def begins(self, part: str, t0_ns: int) -> None:
        """Its window is open."""
        self.left.discard(part)
        self.open, self.t0_ns = part, t0_ns

    def ends(self) -> None:
        """Its window is closed."""
        self.open = None
        undo, self.undo = self.undo, _nothing
        undo()

    def end_scope(self) -> None:
        """The range that stands for the optimizer's ends, before its window does."""
        scope, self.scope = self.scope, None
        if scope is not None:
            scope.__exit__(None, None, None)

    def passed(self) -> None:
        """A backward pass of the step is done."""
        self._passes += 1

    def update_follows(self) -> bool:
        """Return whether an update is about to follow the pass that is done now, as far as the step before tells."""
        return self.updating is not None or self._passes >= self._passes_before

    def step_ended(self) -> None:
        """The next step begins."""
        self._passes_before, self._passes = self._passes, 0

    def drop(self) -> None:
        """No part of this step is profiled any more."""
        self._active, self.places, self.scope = False, None, None
        self.left.clear()
        self.ends()


def _nothing() -> None:
    """There is nothing to undo."""
