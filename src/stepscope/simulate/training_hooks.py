"""Hooks in the training process that mark what runs at this moment, at a few microseconds each.

They are torch's global hooks, so nothing is left in the user's modules: a model that is copied or saved meanwhile
carries no trace, and the recorder's own scopes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stepscope.simulate.marks import BETWEEN, HOST, IDLE, Mark, State, StateLog
from stepscope.simulate.work_estimates import tensors_of, work_of_call, work_of_update

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None
Backward = Callable[[Any], None]
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_WITH_KEYWORDS: dict[int, bool] = getattr(torch.nn.modules.module, "_global_forward_hooks_with_kwargs", {})


class _ComputingModule:
    """A module that computes something itself: its states by the shape of its input."""

    __slots__ = ("by_shape", "latest", "module", "name")

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module  # kept alive: an id is an identity only while it lives
        self.name = name
        self.by_shape: dict[Any, tuple[int, Backward]] = {}
        self.latest: int | None = None  # state of the last call


class StateMarker:
    """Marks states from `attach` to `remove`; whatever fails inside a hook turns it off and stays in `failure`."""

    def __init__(self, mark: Mark, log: StateLog, models: Models = None) -> None:
        self._mark, self._log = mark, log
        self._places: dict[int, _ComputingModule | None] = {}
        self._containers: list[nn.Module] = []  # kept alive as well: another module must not get the id of one
        self._optimizers: dict[int, tuple[Any, int]] = {}  # by id: each has parameters of its own
        self._handles: list[Any] = []
        self._on = False
        self.failure: str | None = None
        for name, model in _name_models(models):
            self._enter_model(model, name)

    def attach(self) -> None:
        """Mark from now on."""
        self._on = True
        self._handles = [
            register_module_forward_pre_hook(self._guarded(self._before)),
            register_module_forward_hook(self._guarded(self._after), with_kwargs=True),
            register_optimizer_step_pre_hook(self._guarded(self._before_optimizer)),
            register_optimizer_step_post_hook(self._guarded(self._after_optimizer)),
        ]
        self._mark(HOST)

    def remove(self) -> None:
        """Take every hook off; nodes of a graph that lives on keep theirs, which then do nothing."""
        for handle in self._handles:
            handle.remove()
            _WITH_KEYWORDS.pop(handle.id, None)  # torch forgets to: it would think of hooks for good
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
            except Exception as error:  # the training goes on without marks
                self.failure, self._on = f"{type(error).__name__}: {error}", False

        return guarded

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Mark the state; that of the call before where tensors come by keyword, which is not shown before a call."""
        place = self._find_computing_module(module)
        if place is None:
            return
        tensors = list(tensors_of(args))
        if place.latest is not None and not tensors:
            self._mark(place.latest)
        else:
            self._mark(BETWEEN if _is_lazy(module) else self._states(place, tensors)[0])

    def _after(self, module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> None:
        place = self._find_computing_module(module)
        if place is None:
            return
        tensors = list(tensors_of(args)) or list(tensors_of(_inputs_first(keywords)))
        place.latest, backward = self._states(place, tensors)
        result = next((tensor for tensor in tensors_of((output,)) if tensor.grad_fn is not None), None)
        if result is not None and result.grad_fn is not None and all(result is not tensor for tensor in tensors):
            result.grad_fn.register_prehook(backward)
        self._mark(BETWEEN)

    def _before_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        entry = self._optimizers.get(id(optimizer))
        if entry is None:
            state = State(type(optimizer).__name__, "optimizer", "", "", *work_of_update(optimizer))
            entry = self._optimizers[id(optimizer)] = optimizer, self._log.add(state)
        self._mark(entry[1])

    def _after_optimizer(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._mark(HOST)

    def _find_computing_module(self, module: nn.Module) -> _ComputingModule | None:
        if id(module) not in self._places:
            self._enter_model(module, type(module).__name__)
        return self._places[id(module)]

    def _enter_model(self, model: nn.Module, name: str) -> None:
        for below, module in _modules(model):
            if id(module) in self._places:
                continue
            if _computes(module):
                self._places[id(module)] = _ComputingModule(module, ".".join(part for part in (name, below) if part))
            else:
                self._places[id(module)] = None
                self._containers.append(module)

    def _states(self, place: _ComputingModule, tensors: Sequence[torch.Tensor]) -> tuple[int, Backward]:
        """Id of the forward state, and the hook that marks the backward one."""
        shapes = tuple(tensor.shape for tensor in tensors[:2])
        states = place.by_shape.get(shapes)
        if states is None:
            parameters = [tuple(parameter.shape) for parameter in place.module.parameters(recurse=False)]
            signature = f"{tuple(shapes[0]) if shapes else None} {parameters}"
            kind = type(place.module).__name__
            work = work_of_call(place.module, tensors)
            forward = self._log.add(State(kind, "forward", place.name, signature, *work))
            backward = self._log.add(State(kind, "backward", place.name, signature, *work.of_backward()))
            states = place.by_shape[shapes] = forward, self._backward_hook(backward)
        return states

    def _backward_hook(self, state: int) -> Backward:
        mark = self._mark

        def before_node(_gradients: Any) -> None:
            if self._on:
                mark(state)

        return before_node


def _modules(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules below and with this one; compiled and scripted ones are closed boxes."""
    yield name, model
    if not _is_opaque(model):
        for below, child in model.named_children():
            yield from _modules(child, f"{name}.{below}" if name else below)


def _is_opaque(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod")


def _computes(module: nn.Module) -> bool:
    """Leaves compute; attention calls functions with its children's weights and never the children."""
    return isinstance(module, nn.MultiheadAttention) or _is_opaque(module) or not any(True for _ in module.children())


def _is_lazy(module: nn.Module) -> bool:
    return isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()


def _inputs_first(keywords: Mapping[str, Any]) -> list[Any]:
    """Return the values of keyword arguments, those that torch's own layers compute with before masks and states."""
    return [keywords[name] for name in sorted(keywords, key=lambda name: name not in ("input", "query"))]


def _name_models(models: Models) -> list[tuple[str, nn.Module]]:
    if models is None:
        return []
    if isinstance(models, nn.Module):
        return [("", models)]
    if isinstance(models, Mapping):
        return list(models.items())
    return [(type(model).__name__, model) for model in models]
