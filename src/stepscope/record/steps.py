"""Where one step ends and the next begins, when nobody says so: from optimizer steps.

One step is one round of the optimizers: the step of a GAN ends with the last of its optimizers. The round is learnt
while warming up: an optimizer that steps for a second time shows that the one before it closed the round. Evaluation
between steps (a trained model, in eval mode, without gradients) is left out: the step begins after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stepscope.clock import Clock, monotonic_ns

Boundary = Callable[[int, bool], None]


class OptimizerRounds:
    """Calls `ended(t_ns, late)` when a round has ended; late is one that is known only by the next round's first."""

    def __init__(self, ended: Boundary, steps_per_round: int | None = None, clock: Clock = monotonic_ns) -> None:
        self._ended = ended
        self._fixed = steps_per_round
        self._clock = clock
        self._seen: list[int] = []
        self._last_ns = 0
        self._closer: int | None = None

    def stepped(self, optimizer: object) -> None:
        """An optimizer has just stepped."""
        now = self._clock()
        key = id(optimizer)
        if self._fixed is not None:
            self._seen.append(key)
            if len(self._seen) >= self._fixed:
                self._close(now)
        elif self._closer is not None:
            if key == self._closer:
                self._close(now)
        elif key in self._seen:
            self._learn(key, now)
        else:
            self._seen.append(key)
        self._last_ns = now

    def finish(self) -> None:
        """The training is over, or evaluation began: an undecided round has ended with its last optimizer step."""
        if self._seen and self._closer is None and self._fixed is None:
            self._closer = self._seen[-1]
            self._close(self._last_ns, late=True)

    def _learn(self, key: int, now: int) -> None:
        self._closer = self._seen[-1]
        alone = self._seen == [key]
        self._close(self._last_ns, late=True)
        if alone:
            self._close(now)
        else:
            self._seen.append(key)

    def _close(self, t_ns: int, late: bool = False) -> None:
        self._seen.clear()
        self._ended(t_ns, late)


class OutermostCalls:
    """Counts the samples of a step, and sees evaluation, from calls of the models themselves.

    A hook on the few outermost modules only: a global one would slow every module call of every step.
    """

    def __init__(self, evaluated: Callable[[int], None], clock: Clock = monotonic_ns) -> None:
        self._evaluated = evaluated
        self._clock = clock
        self._handles: dict[int, list[Any]] = {}
        self._trained: set[int] = set()
        self._counted: int | None = None  # the model whose calls count samples in this step
        self._marked: int | None = None
        self.samples: int | None = None
        self.input_shape: list[int] | None = None

    def watch(self, root: nn.Module) -> None:
        """Hook a model, once."""
        if id(root) not in self._handles:
            before = root.register_forward_pre_hook(self._before, with_kwargs=True)
            after = root.register_forward_hook(self._after)
            self._handles[id(root)] = [before, after]

    def release(self) -> None:
        """Take all hooks off again."""
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def mark(self) -> None:
        """Remember the count: whether a step ends here may only be known later."""
        self._marked = self.samples

    def next_step(self, at_mark: bool = False) -> int | None:
        """The samples of the step that has ended, now or at the last mark; counting begins anew."""
        samples = self._marked if at_mark else self.samples
        left = (self.samples or 0) - (samples or 0)
        self.samples, self._marked = left or None, None
        self._counted = self._counted if left else None
        return samples

    def _before(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        self._trained.add(id(root))
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else first_tensor((args, kwargs))
        if tensor is None or tensor.dim() == 0 or self._counted not in (None, id(root)):
            return
        self._counted = id(root)
        self.samples = (self.samples or 0) + int(tensor.shape[0])
        self.input_shape = list(tensor.shape[1:])

    def _after(self, root: nn.Module, _args: Any, _output: Any) -> None:
        evaluating = not root.training and not torch.is_grad_enabled() and id(root) in self._trained
        if evaluating and self.samples == self._marked:  # in mid-step it is part of the step
            self._evaluated(self._clock())


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor in nested arguments, depth first."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return None
    for item in value:
        found = first_tensor(item)
        if found is not None:
            return found
    return None


def watch_optimizers(before: Callable[[Any], None], after: Callable[[Any], None]) -> Callable[[], None]:
    """Call `before` and `after` around every `optimizer.step()` of the process; returns the undo function."""

    def pre(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        before(optimizer)

    def post(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        after(optimizer)

    handles = [register_optimizer_step_pre_hook(pre), register_optimizer_step_post_hook(post)]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo
