"""Protection of a loop that goes on after it was tuned: what is refused, found unasked, and not interrupted."""

from __future__ import annotations

import collections
import contextlib
import copy
import copyreg
import dis
import functools
import io
import itertools
import random
import signal
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from stepscope.clock import monotonic_ns
from stepscope.errors import StepscopeError, UsageError
from stepscope.experiments.tune.training import Targets, refuse_untimed_device
from stepscope.experiments.tune.training_state import OF_TORCH, PLAIN, OwnRestorer, State, attributes_restorer

_PARTS = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler, torch.Generator, random.Random)
_DEEP = 6  # names, attributes and items on the way from a step to what it changes
_MOST_OBJECTS, _MOST_ITEMS, _MOST_ENTRIES = 20_000, 1000, 1_000_000  # items that are looked at; entries that are kept
_LEAST_BUDGET = 32_000_000
_LIBRARIES = ("torch", "numpy", "stepscope")
_HOOKS = [name for name in vars(nn.Module()) if name.endswith("_hooks")]
_STORED = ("STORE_GLOBAL", "DELETE_GLOBAL")
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
    named = [pair for part in modules for pair in part.named_modules()]
    lazy = [name for name, module in named if any(map(is_lazy, (*module.parameters(False), *module.buffers(False))))]
    if lazy:
        raise UsageError(f"the layer '{lazy[0]}' has no weights yet", "call the model with a batch first: model(batch)")
    for model in targets.models:
        for parameter in itertools.islice(model.parameters(), 1):
            refuse_untimed_device(parameter.device)


class StepState(OwnRestorer):
    """State that a step reaches by name: names, attributes, containers; put back as the objects that they are.

    parts: models, optimizers, tensors and whatever else a `State` puts back. Objects of libraries keep their attributes
    as they are: those may belong to threads, files and connections.
    """

    def __init__(self, roots: Iterable[Any], named: Iterable[Any] = (), budget: int = 0) -> None:
        numpy = sys.modules.get("numpy")
        self._arrays = () if numpy is None else (numpy.ndarray,)
        self._kinds = _PARTS if numpy is None else (*_PARTS, numpy.random.Generator, numpy.random.RandomState)
        self.parts: list[Any] = []
        self._budget = max(budget, _LEAST_BUDGET)  # memory of tensors and arrays that is left, B
        self._watched: list[tuple[torch.Tensor, int]] = []  # beyond it, with the version of each
        self._named = {id(value) for value in named}  # which others put back
        self._restorers: list[Callable[[], None]] = []
        self._used = {"__call__", "forward"}  # names that functions use
        self._iterators: list[tuple[str, Any]] = []
        self._walk(roots)
        for name, iterator in self._iterators:
            if name in self._used:
                raise UsageError(
                    f"the step draws from '{name}' ({type(iterator).__name__}), which cannot be put back",
                    "give what it yields as the batches: stepscope.tune(step, loader, ...)",
                )

    def restore(self) -> None:
        """Make names, attributes and containers as they were; RuntimeError where a tensor was too large to be kept."""
        for restore in self._restorers:
            restore()
        for tensor, version in self._watched:
            if tensor._version != version:
                shape = "x".join(map(str, tensor.shape))
                raise RuntimeError(f"the step changes a tensor of {shape} that others=[...] does not name")

    def _walk(self, roots: Iterable[Any]) -> None:
        objects: dict[int, Any] = {}
        owners: dict[int, Any] = {}  # classes and modules of the user's, by their id
        waiting = collections.deque((root, 0, True) for root in roots)
        while waiting and len(objects) < _MOST_OBJECTS:
            value, depth, is_own = waiting.popleft()
            if id(value) not in objects and type(value) not in PLAIN:
                objects[id(value)] = value
                with contextlib.suppress(Exception):  # a proxy, or a list of somebody's
                    inner_values = self._visit(value, is_own)
                    waiting += ((inner, depth + 1, own) for inner, own in inner_values if depth < _DEEP)
                new = {id(owner): owner for owner in _owners_of(value) if id(owner) not in owners}
                self._restorers += [attributes_restorer(owner, self._used) for owner in new.values()]
                owners |= new
            if not waiting:  # of methods and names of modules those that are used, which is known by now
                used = [vars(owner)[name] for owner in owners.values() for name in vars(owner).keys() & self._used]
                inner = [value for value in map(_function_of, used) if type(value) not in PLAIN]
                waiting += ((value, 1, True) for value in inner if id(value) not in objects)

    def _visit(self, value: Any, is_own: bool) -> Iterator[tuple[Any, bool]]:
        """Keep a value; yield what a function uses, an object or a container holds, and whether it is the user's."""
        if issubclass(type(value), self._kinds):  # `isinstance` would ask a proxy for what it stands for
            self.parts.append(value)
            for module in value.modules() if isinstance(value, nn.Module) else ():
                yield from ((inner, True) for name, inner in vars(module).items() if name not in OF_TORCH)
                hooked = [vars(module).get(name) for name in _HOOKS]
                hooked += [tensor._backward_hooks for tensor in module.parameters(recurse=False)]
                yield from ((hook, True) for hooks in hooked for hook in (hooks or {}).values())
        elif isinstance(value, (torch.Tensor, *self._arrays)):
            if is_own:
                self._keep_numbers(value)
        elif isinstance(value, types.FunctionType):
            yield from self._used_by_function(value)
        elif isinstance(value, types.MethodType):
            yield from ((value.__self__, is_own), (value.__func__, is_own))
        elif isinstance(value, functools.partial):
            yield from ((inner, is_own) for inner in (value.func, *value.args, *value.keywords.values()))
        elif isinstance(value, (dict, list, tuple, set, collections.deque)):
            if is_own and not isinstance(value, tuple) and len(value) <= _MOST_ENTRIES:
                self._restorers.append(_container_restorer(value))
            items = value.values() if isinstance(value, dict) else value
            yield from ((inner, is_own) for inner in list(itertools.islice(items, _MOST_ITEMS)))
        elif not isinstance(value, (type, types.ModuleType)):
            is_users = is_own and (_is_of_user(type(value).__module__) or type(value) is types.SimpleNamespace)
            attributes: dict[str, Any] = {}
            with contextlib.suppress(AttributeError):  # it has slots alone
                attributes = object.__getattribute__(value, "__dict__")
            slots = {name: object.__getattribute__(value, name) for name in slot_names(value)} if is_users else {}
            if is_users:
                self._restorers.append(_mapping_restorer(attributes))
                self._restorers += [functools.partial(object.__setattr__, value, *slot) for slot in slots.items()]
            for name, inner in {**attributes, **slots}.items():
                yield from self._unless_iterator(name, inner, is_users)

    def _unless_iterator(self, name: str, value: Any, is_own: bool) -> Iterator[tuple[Any, bool]]:
        kind = type(value)
        is_iterator = issubclass(kind, Iterator) and not issubclass(kind, io.IOBase)
        if is_own and is_iterator and not _is_of_user(kind.__module__):
            self._iterators.append((name, value))
        else:
            yield value, is_own

    def _keep_numbers(self, value: Any) -> None:
        if id(value) in self._named:
            return
        if value.nbytes <= self._budget:
            self._budget -= value.nbytes
            self.parts.append(value)
        else:
            with contextlib.suppress(RuntimeError, AttributeError):  # an array; a tensor without versions
                self._watched.append((value, value._version))

    def _used_by_function(self, function: types.FunctionType) -> Iterator[tuple[Any, bool]]:
        """Keep and yield what a function uses: all of the user's own; of torch what it closes over, as a decorator."""
        names, codes = function.__globals__, [function.__code__]
        is_own, is_library = _is_of_user(str(names.get("__name__"))), _root(str(names.get("__name__"))) in _LIBRARIES
        if is_own:
            self._restorers.append(_mapping_restorer(vars(function)))
            self._used.update(function.__code__.co_freevars)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # of a name that has no value yet
                value = cell.cell_contents
                if is_own:
                    self._restorers.append(functools.partial(setattr, cell, "cell_contents", value))
                yield from self._unless_iterator(name, value, is_own)
        while codes and not is_library:
            code = codes.pop()
            if is_own:
                self._used.update(code.co_names)
                stored = {step.argval for step in dis.get_instructions(code) if step.opname in _STORED}
                self._restorers.append(_mapping_restorer(names, stored))
            for name in code.co_names:
                if name in names:
                    yield from self._unless_iterator(name, names[name], is_own)
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield value, is_own


def _owners_of(value: Any) -> list[Any]:
    """Return the classes of the user's that make an object what it is, or a class; a module of the user's itself."""
    if issubclass(type(value), types.ModuleType):  # `isinstance` would ask a proxy
        return [value] if _is_of_user(value.__name__) else []
    kind = value if issubclass(type(value), type) else type(value)
    return [owner for owner in kind.__mro__ if _is_of_user(owner.__module__)]


@functools.cache
def _is_of_user(module: str) -> bool:
    """Return whether a module is neither of Python nor of an installed library."""
    root = _root(module)
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    known = root in _LIBRARIES or root in sys.stdlib_module_names
    return not known and not {"site-packages", "dist-packages"} & {*Path(file).parts}


def _root(module: str) -> str:
    return module.partition(".")[0]


def _mapping_restorer(mapping: dict[str, Any], only: Collection[str] | None = None) -> Callable[[], None]:
    """Return what gives names their values again, and takes away those that are new."""
    before = {name: mapping[name] for name in (mapping if only is None else only) if name in mapping}

    def restore() -> None:
        for name in [name for name in (mapping if only is None else only) if name in mapping and name not in before]:
            del mapping[name]
        mapping.update(before)

    return restore


def _function_of(value: Any) -> Any:
    """Return the function behind a property or a method that takes no object."""
    if type(value) is property:
        return value.fget
    return value.__func__ if type(value) in (staticmethod, classmethod) else value


def _container_restorer(container: Any) -> Callable[[], None]:
    before = container.copy()

    def restore() -> None:
        container.clear()
        container.extend(before) if hasattr(container, "extend") else container.update(before)

    return restore


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


def copy_of_batch(value: Any, depth: int = 0) -> Any:
    """Return a batch that a step may alter: containers, its own objects, memory of tensors and arrays are new."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (dict, collections.UserDict)):
        duplicate = copy.copy(value)
        for name in duplicate:
            duplicate[name] = copy_of_batch(duplicate[name], depth)
        return duplicate
    if isinstance(value, tuple):
        items = (copy_of_batch(inner, depth) for inner in value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [copy_of_batch(inner, depth) for inner in value]
    if type(value).__module__ == "numpy" and hasattr(value, "copy"):
        return value.copy()
    return value if isinstance(value, _NOT_OF_A_BATCH) or depth >= _MOST_NESTED else _copy_of_object(value, depth)


_MOST_NESTED = 3  # objects within objects: what is deeper belongs to no batch, as the data set that one refers to
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_NOT_OF_A_BATCH: tuple[Any, ...] = (*PLAIN, type, types.ModuleType, *_FUNCTIONS, nn.Module, Dataset, DataLoader)


def _copy_of_object(value: Any, depth: int) -> Any:
    """Return a copy of a dataclass, or of a class of the user's; one that cannot be copied is the same."""
    slots = slot_names(value)
    if not (slots or getattr(value, "__dict__", None)):
        return value
    try:
        duplicate = copy.copy(value)
        for name in slots:
            object.__setattr__(duplicate, name, copy_of_batch(getattr(value, name), depth + 1))
    except (TypeError, AttributeError):
        return value
    attributes = getattr(duplicate, "__dict__", {})
    attributes.update({name: copy_of_batch(inner, depth + 1) for name, inner in attributes.items()})
    return duplicate


def slot_names(value: Any) -> list[str]:
    """Return the slots of an object that have a value."""
    return [name for name in copyreg._slotnames(type(value)) if hasattr(value, name)]  # type: ignore[attr-defined]


class BatchCopies:
    """Batches of a list again and again, a copy each time. spent_ns: what copying has taken so far."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = itertools.cycle(batches)
        self.spent_ns = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began_ns = monotonic_ns()
        batch = copy_of_batch(next(self._batches))
        self.spent_ns += monotonic_ns() - began_ns
        return batch
