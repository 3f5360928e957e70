"""Who hears of the training's calls, and in which words: what `torch_hooks` reports to.

`Listener` hears of events of any step; `Repeating` is asked first, and may keep them from it while steps repeat; within
windows `CallListener` and `layer_times.LayerTimes` have each call of a module.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from stepscope.record.torch_private import Scope


class Listener(Protocol):
    """Listeners to what the training does; every call comes through a boundary."""

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called that no other module calls."""

    def returned(self, module: nn.Module, output: Any) -> None:
        """The call has returned."""

    def raised(self, module: nn.Module) -> None:
        """The call has ended with an exception."""

    def compiled(self, module: nn.Module) -> None:
        """A module was compiled in place: its calls pass us by from now on."""

    def before_optimizer(self, optimizer: Any) -> None:
        """An optimizer is about to update."""

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer has updated."""

    def skipped_update(self) -> None:
        """A gradient scaler has left an update out."""

    def before_backward(self, roots: Any, inputs: Any, weights: Any = None) -> None:
        """Gradients are about to be computed, of these weighted roots; of all leaves, unless inputs are given."""

    def after_backward(self) -> None:
        """The gradients are computed."""

    def backward_raised(self) -> None:
        """An exception has ended a backward pass."""

    def batch(self, iterator: Any, batch: Any) -> None:
        """A data loader gave a batch."""

    def many_calls(self) -> None:
        """Enough modules were called in a window that its size should be checked."""

    def makes_scope(self, module: nn.Module) -> Scope | None:
        """The range of a call in the window that records now; None where none can be made."""

    def optimizer_scope(self, optimizer: Any) -> Scope | None:
        """Return a scope for the update of an optimizer that does not announce itself."""


class CallListener(Protocol):
    """Listener, for a while, to every call of a module."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called."""

    def leave(self) -> None:
        """The last one that was called returns."""


CALL, BATCH, BACKWARD, UPDATE, UPDATED, STEP = "call", "batch", "backward", "update", "updated", "step"
CALL_WITHIN, EVALUATION = "call within a backward pass", "call without gradients"
ENDED = -1
MOST_NOTED = 600_000  # numbers of `LayerTimes`: 100,000 calls


class Repeating(Protocol):
    """Asked first about what happens in every step: True where it is what was expected, and the listener need not hear.

    steps_to_skip: how many steps may still be only looked at; the ends of calls and of backward passes are not even
    looked at then. The others are the listener's methods of the same names, and `is_next` asks about those that are
    known by their kind and what they are about: an optimizer, or the one who is asked.
    """

    steps_to_skip: int
    wants_loss: bool  # of the next pass, also where it is the expected one

    def is_next(self, kind: str, about: Any, detail: Any = None) -> bool: ...
    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool: ...
    def batch(self, iterator: Any, batch: Any) -> bool: ...


class NoneRepeats:
    """Stand-in where no filter checks events first."""

    steps_to_skip = 0
    wants_loss = False

    def is_next(self, *_: Any) -> bool:
        return False

    called = batch = is_next
