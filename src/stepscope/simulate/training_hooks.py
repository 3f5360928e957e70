"""Hooks in the training process that mark what runs at this moment, at a few microseconds each.

They are torch's global hooks, so nothing is left in the user's modules: a model that is copied or saved meanwhile
carries no trace, and the recorder's own scopes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stepscope.simulate.marks import BETWEEN, HOST, IDLE, Mark, State, StateLog
from stepscope.simulate.work import work_of_call, work_of_update

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None
Backward = Callable[[Any], None]
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class _Place:
    """A module that computes something itself: its states by the shape of its input."""

    __slots__ = ("by_shape", "module", "name")

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module  # kept alive: an id is an identity only while it lives
        self.name = name
        self.by_shape: dict[Any, tuple[int, Backward]] = {}


class Beacon:
    """Marks states from `attach` to `remove`; whatever fails inside a hook turns it off and stays in `failure`."""

    def __init__(self, mark: Mark, log: StateLog, models: Models = None) -> None:
        self._mark, self._log = mark, log
        self._places: dict[int, _Place | None] = {}
        self._containers: list[nn.Module] = []  # kept alive as well: another module must not get the id of one
        self._optimizers: dict[type, int] = {}
        self._handles: list[Any] = []
        self._on = False
        self.failure: str | None = None
        for name, model in _named(models):
            self._enter_model(model, name)

    def attach(self) -> None:
        """Mark from now on."""
        self._on = True
        self._handles = [
            register_module_forward_pre_hook(self._guarded(self._before)),
            register_module_forward_hook(self._guarded(self._after)),
            register_optimizer_step_pre_hook(self._guarded(self._before_optimizer)),
            register_optimizer_step_post_hook(self._guarded(self._after_optimizer)),
        ]
        self._mark(HOST)

    def remove(self) -> None:
        """Take every hook off; nodes of a graph that lives on keep theirs, which then do nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._on:
            self._on = False
            self._mark(IDLE)

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            # The compiler traces through hooks: seeing a constant here it leaves nothing of them in its graph.
            if _is_compiling() or not self._on:
                return
            try:
                hook(*args)
            except Exception as error:  # the training goes on without a beacon
                self.failure, self._on = f"{type(error).__name__}: {error}", False

        return guarded

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        place = self._place(module)
        if place is not None:
            self._mark(self._states(place, args)[0])

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        place = self._place(module)
        if place is None:
            return
        tensor = _first_tensor(output)
        if tensor is not None and tensor.grad_fn is not None and not (args and tensor is args[0]):
            tensor.grad_fn.register_prehook(self._states(place, args)[1])
        self._mark(BETWEEN)

    def _before_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        kind = type(optimizer)
        if kind not in self._optimizers:
            self._optimizers[kind] = self._log.add(
                State(kind.__name__, "optimizer", "", "", *work_of_update(optimizer))
            )
        self._mark(self._optimizers[kind])

    def _after_optimizer(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._mark(HOST)

    def _place(self, module: nn.Module) -> _Place | None:
        if id(module) not in self._places:
            self._enter_model(module, type(module).__name__)
        return self._places[id(module)]

    def _enter_model(self, model: nn.Module, name: str) -> None:
        for below, module in _modules(model):
            if id(module) in self._places:
                continue
            if _computes(module):
                self._places[id(module)] = _Place(module, ".".join(part for part in (name, below) if part))
            else:
                self._places[id(module)] = None
                self._containers.append(module)

    def _states(self, place: _Place, args: tuple[Any, ...]) -> tuple[int, Backward]:
        """Id of the forward state, and the hook that marks the backward one."""
        shape = getattr(args[0], "shape", None) if args else None
        found = place.by_shape.get(shape)
        if found is None:
            parameters = [tuple(parameter.shape) for parameter in place.module.parameters(recurse=False)]
            signature = f"{None if shape is None else tuple(shape)} {parameters}"
            kind = type(place.module).__name__
            work = work_of_call(place.module, args)
            forward = self._log.add(State(kind, "forward", place.name, signature, *work))
            backward = self._log.add(State(kind, "backward", place.name, signature, *work.of_backward()))
            found = place.by_shape[shape] = forward, self._backward_hook(backward)
        return found

    def _backward_hook(self, state: int) -> Backward:
        mark = self._mark

        def before_node(_gradients: Any) -> None:
            if self._on:
                mark(state)

        return before_node


def _modules(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules below and with this one; compiled and scripted ones are closed boxes."""
    yield name, model
    if not _is_box(model):
        for below, child in model.named_children():
            yield from _modules(child, f"{name}.{below}" if name else below)


def _is_box(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod")


def _computes(module: nn.Module) -> bool:
    """Leaves compute; attention calls functions with its children's weights and never the children."""
    return isinstance(module, nn.MultiheadAttention) or _is_box(module) or not any(True for _ in module.children())


def _first_tensor(output: Any) -> torch.Tensor | None:
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


def _named(models: Models) -> list[tuple[str, nn.Module]]:
    if models is None:
        return []
    if isinstance(models, nn.Module):
        return [("", models)]
    if isinstance(models, Mapping):
        return list(models.items())
    return [(type(model).__name__, model) for model in models]
