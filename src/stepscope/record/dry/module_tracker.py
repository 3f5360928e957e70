"""The module that an op belongs to, in forward and in backward.

In forward it is the innermost module that runs. In backward it is the module whose forward made the autograd node: node
and forward op share a sequence number. `torch._C._current_autograd_node` and `torch.autograd._get_sequence_nr` are
private (both since 2.1); without them ops of the backward pass have no module.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_current_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
_next_sequence: Callable[[], int] | None = getattr(torch.autograd, "_get_sequence_nr", None)
_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def in_backward() -> bool:
    """Return whether autograd is running a node on this thread."""
    return _graph_task() != -1


class ModuleTracker:
    """Follows module calls while it is `open`; a module that nobody named has no place of its own: null."""

    def __init__(self) -> None:
        self.called_in_backward = False  # a module ran forward again: activation checkpointing does that
        self._names = weakref.WeakKeyDictionary[nn.Module, str]()  # a model of a script may end before the script
        self._stack: list[str | None] = []
        self._by_sequence: dict[int, str | None] = {}
        self._last: str | None = None  # AccumulateGrad has no number: it belongs to the node before it
        self._hooks: list[Any] = []

    def name_modules(self, model: nn.Module) -> None:
        """Know the modules of a model by their qualified names; "" is the model itself."""
        for name, module in model.named_modules():
            self._names.setdefault(module, name)

    def knows(self, module: nn.Module) -> bool:
        """Return whether this module has a name already."""
        return module in self._names

    def open(self, outermost: Callable[[nn.Module, Any], None] = lambda module, args: None) -> None:
        """Follow calls from now on; `outermost` hears of each module that is called from outside, and with what."""

        def before(module: nn.Module, args: Any) -> None:
            self.called_in_backward = self.called_in_backward or in_backward()
            if not self._stack:
                outermost(module, args)
            self._stack.append(self._names.get(module))

        def after(_module: nn.Module, _args: Any, _output: Any) -> None:
            if self._stack:
                self._stack.pop()

        # always_call: a checkpoint that stops its second forward early leaves its modules by an exception
        self._hooks = [
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        ]

    def close(self) -> None:
        """Follow no more calls."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._stack.clear()

    def note_node(self) -> None:
        """An op of the forward pass has run: the node that it may have made belongs to the present module.

        The first op that sees a number keeps it: what a module does without a gradient afterwards has the same one.
        """
        if self._stack and _next_sequence is not None and not in_backward():
            self._by_sequence.setdefault(_next_sequence() - 1, self._stack[-1])

    def may_be_gradient_sum(self) -> bool:
        """Return whether an addition can be autograd's sum of what several nodes give to one: no code of a user's
        runs.
        """
        return not self._stack and in_backward() and not hasattr(_current_node(), "_forward_cls")

    def current(self) -> str | None:
        """The module that the op which runs now belongs to; None outside any."""
        if self._stack:
            return self._stack[-1]
        node = _current_node()
        if node is None:
            return None
        number = node._sequence_nr()
        if number in self._by_sequence:
            self._last = self._by_sequence[number]
        elif "AccumulateGrad" not in node.name():
            self._last = None
        return self._last
