"""Steps that repeat: while none is profiled and each does what the one before it did, a look at each event is enough.

A step is known by its events: which module was called with which shape, which loader gave how many samples, that
gradients were computed, which optimizer updated. After some steps that were all the same, an event that is the
expected one goes no further, and a step is complete with its last event. What differs is told to the session, with the
events of that step before it, and from there on every event again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stepscope.clock import monotonic_ns
from stepscope.record import torch_private
from stepscope.record.call_samples import LoaderBatches
from stepscope.record.fault_boundary import Boundary, DeferredSignals
from stepscope.record.framework import Ended
from stepscope.record.listeners import BACKWARD, BATCH, CALL, CALL_WITHIN, EVALUATION, STEP, UPDATE, UPDATED
from stepscope.record.sample_count import telling_tensor
from stepscope.record.settings import FLUSH_EVERY_NS

if TYPE_CHECKING:
    from stepscope.record.torch_recorder import TorchRecorder

_ALIKE = 2  # steps in a row, before the next ones are only looked at; more after each disappointment
_MOST_ALIKE = 64
_WORTH = 4  # times as many steps that were only looked at are no disappointment: an epoch is over, for one
_MOST_EVENTS = 200  # of a step that is known to repeat
_is_grad_enabled, _thread, _as_it_is = torch.is_grad_enabled, threading.get_ident, torch._C.DisableTorchFunction
_Tensor, _graph_task, _NO_TASK = torch.Tensor, torch_private.graph_task, torch_private.NO_TASK
_Event = tuple[str, int, Any]  # kind, address of what it is about, and what else tells it from another


class RepeatFilter:
    """Filter before a session: checks each event first; True where the event needs nothing more."""

    def __init__(self, boundary: Boundary, steps: TorchRecorder) -> None:
        self._boundary, self._steps = boundary, steps
        self._events: list[_Event] = []  # of the step that is under way
        self._about: list[Callable[[], Any]] = []
        self._before: list[_Event] = []  # of the step before it
        self._regular = False  # all that happened in it is an event that can be compared
        self._alike, self._needed = 0, _ALIKE
        self.steps_to_skip = 0  # that may still be only looked at
        self._granted = 0  # that might be, when the first of them began
        self._about_before: list[Callable[[], Any]] = []
        self._expected: list[tuple[str, Callable[[], Any], Any]] = []  # the same in one: kind, about what, and detail
        self._place = 0  # of the next event, in it
        self._samples: int | None = None
        self._batch: tuple[Callable[[], Any], list[torch.Size] | None, int | None] = (lambda: None, None, None)
        self._loaders = LoaderBatches()
        self.wants_loss = False  # of one pass, though it is the expected one: now and then
        self._ended: list[Ended] = []  # that the session has not been told of
        self._flushed_ns = 0
        self._sequence = self._nodes = 0  # autograd nodes when a step last ended, as far as known; that one made
        self._last_began = 0  # autograd nodes when the last step of those began that may be only looked at
        self._thread: int | None = None
        self.replaying = False  # what is told now happened before

    # events; each returns True where it was the expected one

    def is_next(self, kind: str, about: Any, detail: Any = None, loss: Any = None) -> bool:
        """Return whether an event is the next one expected; it is told by its kind, what it is about, and the rest."""
        if self.steps_to_skip:
            place = self._place
            if (
                _thread() == self._thread  # asked first: another thread's place may be past the end
                and (expected := self._expected[place])[0] is kind
                and expected[1]() is about
                and expected[2] == detail
            ):
                if place + 1 < len(self._expected):
                    self._place = place + 1
                else:  # never past the end, where an interrupt could leave it
                    self._end_step(loss)
                return True
            self.leave()
        if len(self._events) < _MOST_EVENTS:
            self._events.append((kind, id(about), detail))
            self._about.append(_reference(about))
        else:
            self._regular = False
        return False

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """A module is called that no other module calls."""
        within = _graph_task() != _NO_TASK
        if within and not _is_grad_enabled():
            return self.end_repetition()
        with _as_it_is():
            tensor = args[0] if args and type(args[0]) is _Tensor else telling_tensor(args, kwargs)
            if tensor is not None and tensor.is_nested:  # without a shape to compare
                return self.end_repetition()
            detail = None if tensor is None else (tensor.shape, tensor.dtype)
        return self.is_next(CALL_WITHIN if within else CALL if _is_grad_enabled() else EVALUATION, module, detail)

    def batch(self, iterator: Any, batch: Any) -> bool:
        """A data loader gave a batch: of as many samples as the last one, where its tensors have the same shapes."""
        shapes = None
        if type(batch) in (list, tuple):
            with _as_it_is():
                shapes = [item.shape for item in batch if type(item) is _Tensor and not item.is_nested]
            if len(shapes) < len(batch):
                shapes = None
        loader, shapes_before, samples = self._batch
        if shapes is None or shapes != shapes_before or loader() is not iterator:
            samples = self._loaders.samples(iterator, batch)
            self._batch = _reference(iterator), shapes, samples
        return self.is_next(BATCH, iterator, samples)

    def stepped(self, loss: Any, samples: int | None) -> bool:
        """The training says that a step has ended."""
        return self.is_next(STEP, self, samples, loss)

    def end_repetition(self) -> bool:
        """Something happened that is no event of a step that repeats."""
        self.leave()
        self._regular = False
        return False

    # steps

    @property
    def unreported_steps(self) -> int:
        """Steps that have ended and that the session has not been told of."""
        return len(self._ended)

    def step_ended(self) -> None:
        """A step has ended that was followed event by event."""
        alike = self._regular and self._events == self._before
        self._alike = self._alike + 1 if alike else 0
        self._before, self._about_before = self._events, self._about
        self._events, self._about, self._regular = [], [], True
        sequence = torch_private.autograd_sequence()
        self._sequence, self._nodes = sequence, max(sequence - self._sequence, 0)

    def may_begin(self, steps: int, samples: int | None, flushed_ns: int) -> None:
        """None of so many steps, the one that begins now included, needs to be followed if it repeats the last.

        flushed_ns: when steps were last brought to the disk.
        """
        if steps < 1 or self._alike < self._needed or not self._before:
            return
        if any(about() is None for about in self._about_before):
            return  # made anew in each step
        self._expected = [
            (kind, about, detail) for (kind, _, detail), about in zip(self._before, self._about_before, strict=True)
        ]
        self.steps_to_skip, self._granted, self._place, self._samples = steps, steps, 0, samples
        self._flushed_ns = flushed_ns
        self._sequence = self._last_began = torch_private.autograd_sequence()
        self._thread = _thread()

    def leave(self) -> None:
        """Return to following each event, beginning with those of the open step."""
        if self.steps_to_skip:
            self._boundary.call(self.follow)

    def follow(self) -> None:
        """Return to following each event; called by the session itself."""
        if self.steps_to_skip:
            worth = self._granted - self.steps_to_skip >= _WORTH * self._needed
            self._needed = _ALIKE if worth else min(2 * self._needed, _MOST_ALIKE)
            self._leave()

    def _end_step(self, loss: Any) -> None:
        """Note the time and no more, in most steps: each line that runs here runs on cold caches."""
        self._place, now_ns = 0, monotonic_ns()
        if self.steps_to_skip < 1:  # another thread made an end of it just now
            return
        self._ended.append((now_ns, None if loss is None else torch_private.loss_value_or_reader(loss)))
        self.steps_to_skip = remaining = max(self.steps_to_skip - 1, 0)
        if not remaining:
            self._boundary.call(self._ask_about_next_step)
            return
        if remaining == 1:
            self._last_began = torch_private.autograd_sequence()
        if now_ns - self._flushed_ns > FLUSH_EVERY_NS:
            self._flushed_ns, self.wants_loss = now_ns, True
            self._boundary.call(self.report_ended_steps)

    def _ask_about_next_step(self) -> None:
        """Ask what is to be done in the next step: the one that has ended was as those before it, as if followed."""
        self._needed = _ALIKE
        self._events, self._about, self._regular = [], [], True
        self.report_ended_steps()
        self._steps.decides(self._samples, self._last_began)

    def report_ended_steps(self) -> None:
        """Report the ended steps to the session."""
        ended, self._ended = self._ended, []
        expected = self._sequence + len(ended) * self._nodes
        if _thread() == self._thread:
            sequence = torch_private.autograd_sequence()
            expected = sequence - min(max(sequence - expected, 0), self._nodes if self._place else 0)
        self._sequence = expected
        self._steps.repeated(ended, self._samples, expected)

    def _leave(self) -> None:
        self.report_ended_steps()
        count, self._place, self.steps_to_skip = self._place, 0, 0
        self._alike = 0
        self._events, self._about, self._regular = self._before[:count], self._about_before[:count], True
        self.replaying = True
        try:
            # Gradients as they were: it may be an evaluation that differs.
            with DeferredSignals(), torch_private.gradients_enabled():
                for (kind, _, detail), about in zip(self._events, self._about, strict=True):
                    thing = about()
                    if thing is not None:  # else it went with the loop that had it
                        self._replay(kind, thing, detail)
        finally:
            self.replaying = False

    def _replay(self, kind: str, about: Any, detail: Any) -> None:
        """Report an event of the open step to the session after the fact."""
        inputs = () if kind not in (CALL, EVALUATION) or detail is None else (torch_private.make_meta_tensor(*detail),)
        if kind == CALL:
            self._steps.called(about, inputs, {})
        elif kind == EVALUATION:
            with torch.no_grad():
                self._steps.called(about, inputs, {})
                self._steps.returned(about, None)
        elif kind == BATCH:
            self._steps.fetched(about, detail)
        elif kind == BACKWARD:
            self._steps.before_backward(None, (None,) if detail else None)  # of tensors that are no parameters
            self._steps.after_backward()
        elif kind == UPDATE:
            self._steps.before_optimizer(about)
        elif kind == UPDATED:
            self._steps.after_optimizer(about)


def _reference(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:  # takes no weak references: it is never the expected one
        return lambda: None
