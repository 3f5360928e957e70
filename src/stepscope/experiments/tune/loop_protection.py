"""Protection of a loop that goes on after it was tuned: what is refused, found unasked, and not interrupted."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import random
import signal
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stepscope.errors import StepscopeError, UsageError
from stepscope.experiments.tune.training import Targets, refuse_untimed_device
from stepscope.experiments.tune.training_state import State

_PARTS = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler, torch.Generator, random.Random)
_DEEP = 5  # names, attributes and items on the way from a step to a part
_MOST_OBJECTS, _MOST_ITEMS = 2000, 100
_LIBRARIES = ("torch", "numpy", "stepscope")
_LIMITS = ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit", "accumulated_cache_size_limit")
_MOST_GRAPHS = 1000


def refuse_unprotected(batches: Iterable[Any], targets: Targets, others: tuple[Any, ...]) -> None:
    """Raise UsageError for a loop that could not go on as before, before a step of it is made."""
    if isinstance(batches, Iterator):
        raise UsageError(
            "an iterator gives each batch once: tune would take those that the training is to have",
            "give the data loader itself, or a list of batches: list(itertools.islice(loader, 8))",
        )
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and (ranks := torch.distributed.get_world_size()) > 1:
        raise UsageError(
            f"{ranks} processes train together: each would try other changes, and wait for the others for ever",
            "tune the training of one process",
        )
    modules = [part for part in (*targets.models, *others) if isinstance(part, nn.Module)]
    lazy = [name for part in modules for name, module in part.named_modules() if any(map(is_lazy, _tensors(module)))]
    if lazy:
        raise UsageError(f"the layer '{lazy[0]}' has no weights yet", "call the model with a batch first: model(batch)")
    for model in targets.models:
        for parameter in itertools.islice(model.parameters(), 1):
            refuse_untimed_device(parameter.device)


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def parts_of_step(step: Any) -> tuple[Any, ...]:
    """Return models, optimizers, schedulers, scalers and generators that a step reaches by name: it may change them.

    One that nobody named would go on through all blocks.
    """
    numpy = sys.modules.get("numpy")
    kinds = _PARTS if numpy is None else (*_PARTS, numpy.random.Generator, numpy.random.RandomState)
    objects: dict[int, Any] = {}
    parts: list[Any] = []
    waiting = collections.deque([(step, 0)])
    while waiting and len(objects) < _MOST_OBJECTS:
        value, depth = waiting.popleft()
        if id(value) in objects:
            continue
        objects[id(value)] = value
        if issubclass(type(value), kinds):  # `isinstance` would ask a proxy for what it stands for
            parts.append(value)
        elif depth < _DEEP:
            with contextlib.suppress(Exception):  # a proxy, or a list of somebody's
                waiting += ((inner, depth + 1) for inner in itertools.islice(_reached_values(value), _MOST_ITEMS))
    return tuple(parts)


def _reached_values(value: Any) -> Iterator[Any]:
    """Yield what a function uses, an object or a container holds."""
    if isinstance(value, types.FunctionType):
        if value.__module__ is None or value.__module__.partition(".")[0] not in _LIBRARIES:
            yield from _used_by_function(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, dict):
        yield from list(itertools.islice(value.values(), _MOST_ITEMS))
    elif isinstance(value, (list, tuple)):
        yield from value[:_MOST_ITEMS]
    elif not isinstance(value, (type, types.ModuleType, torch.Tensor)):
        with contextlib.suppress(AttributeError):
            yield from list(object.__getattribute__(value, "__dict__").values())
        yield vars(type(value)).get("__call__")


def _used_by_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # of a name that has no value yet
            yield cell.cell_contents
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


class HeldInterrupts:
    """Ctrl-C is noted within the block and raised at its end, so that what is put back is put back whole."""

    def __init__(self) -> None:
        self._handler: Any = None  # the training's own; None where none can be held
        self._noted = False

    def __enter__(self) -> HeldInterrupts:
        self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Within a step of the training Ctrl-C is the training's own."""
        try:
            self._release()
            yield
        finally:
            self._hold()

    def _hold(self) -> None:
        if threading.current_thread() is threading.main_thread():  # no other has it
            self._handler = signal.getsignal(signal.SIGINT)  # a step may set another
            if self._handler is not None:
                signal.signal(signal.SIGINT, self._note)

    def _release(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._noted:
            self._noted = False
            signal.raise_signal(signal.SIGINT)

    def _note(self, number: int, frame: object) -> None:
        self._noted = True


class NotPutBack(StepscopeError):
    """A part of a training that could not be put back: no result of a change, but the end of the experiment."""


def put_back(state: State) -> None:
    """Restore a state; NotPutBack where a part of it could not be."""
    try:
        state.restore()
    except Exception as error:
        raise NotPutBack(
            f"the training is not as it was before tune: {type(error).__name__}: {error}",
            "begin it anew, from its last checkpoint",
        ) from error


def allow_compilations() -> None:
    """Have what is compiled be compiled for every change: beyond a limit torch runs it as it is written."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        for name in _LIMITS:
            if getattr(dynamo.config, name, _MOST_GRAPHS) < _MOST_GRAPHS:
                setattr(dynamo.config, name, _MOST_GRAPHS)


@contextlib.contextmanager
def recompiled_after() -> Iterator[None]:
    """Compile for every change; where that took place, the training is compiled anew in its next step.

    Else what was compiled for changes would count against torch's limit in the rest of the training.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        yield
        return
    limits = {name: value for name in _LIMITS if (value := getattr(dynamo.config, name, None)) is not None}
    graphs = dynamo.utils.counters["stats"]["unique_graphs"]
    allow_compilations()
    try:
        yield
    finally:
        for name, value in limits.items():
            setattr(dynamo.config, name, value)
        if dynamo.utils.counters["stats"]["unique_graphs"] != graphs:
            dynamo.reset()
