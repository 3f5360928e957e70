"""The whole state of a training that is tuned, kept and put back bit by bit."""

from __future__ import annotations

import collections
import copy
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stepscope.clock import monotonic_ns
from stepscope.errors import UsageError
from stepscope.experiments.tune.training import Targets

_COUNTED = (collections.OrderedDict, collections.defaultdict, collections.Counter)
_CONTAINERS = (list, dict, set, collections.deque, *_COUNTED)
_OF_TORCH = frozenset(vars(nn.Module()))  # what every module has: parameters, buffers, hooks
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass
class _Tensor:
    """A tensor with the memory that it has now, and a copy of what is in it."""

    tensor: torch.Tensor
    memory: torch.Tensor
    content: torch.Tensor
    version: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Tensor:
        memory = tensor.data
        return cls(tensor, memory, memory.clone(memory_format=torch.preserve_format))

    def put_back(self) -> None:
        self.memory.copy_(self.content)
        self.tensor.data = self.memory


class State:
    """The whole state of a training, bit by bit: weights, gradients, buffers, optimizers, generators of random numbers.

    others: what else the step changes: objects with `state_dict` and `load_state_dict` (schedulers, a gradient scaler),
    generators of torch, numpy or Python, lists, dictionaries, tensors. Every tensor keeps its object and its memory.
    """

    def __init__(self, targets: Targets, others: tuple[Any, ...] = ()) -> None:
        self._tensors: dict[int, _Tensor] = {}
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._containers: dict[int, _Container | None] = {}
        for model in targets.models:
            for tensor in (*model.parameters(), *model.buffers()):
                self._keep(tensor)
        for optimizer in targets.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._keep(parameter)
        modules = {id(module): module for model in targets.models for module in model.modules()}
        self._modules = [_Module(module, self) for module in modules.values()]
        self._optimizers = [_Optimizer(optimizer, self) for optimizer in targets.optimizers]
        self._others = [_Other(other) for other in others if not self._is_kept(other)]
        self._random = RandomNumbers()

    @property
    def size(self) -> int:
        """The memory of the copies, B."""
        return sum(kept.content.numel() * kept.content.element_size() for kept in self._tensors.values())

    def put_back(self) -> None:
        """Make everything as it was."""
        with torch.no_grad():
            for kept in self._tensors.values():
                kept.put_back()
            for tensor, gradient in self._gradients:
                tensor.grad = gradient
        for container in self._containers.values():
            if container is not None:
                container.put_back()
        parts: tuple[Any, ...] = (*self._modules, *self._optimizers, *self._others, self._random)
        for part in parts:
            part.put_back()

    def _is_kept(self, other: Any) -> bool:
        """Keep a tensor or a container of the user's; False for what has a state of its own."""
        if isinstance(other, torch.Tensor):
            self._keep(other)
            return True
        if type(other) in _CONTAINERS:
            self.keep_container(other)
            return True
        return False

    def keep(self, value: Any) -> Any:
        """Return the value to put back: a tensor is kept as the object that it is, other data is copied."""
        if isinstance(value, torch.Tensor):
            self._keep(value)
            return value
        return copy.deepcopy(value)

    def keep_container(self, container: Any) -> None:
        """Have a list, dictionary, set or queue put back, with the tensors and containers in it."""
        if id(container) not in self._containers:
            self._containers[id(container)] = None
            self._containers[id(container)] = _Container(container, self)

    def _keep(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = _Tensor.of(tensor.detach() if not tensor.is_leaf else tensor)
        if tensor.is_leaf and tensor.requires_grad:
            self._gradients.append((tensor, tensor.grad))
            if tensor.grad is not None:
                self._keep(tensor.grad)


class _Container:
    """A list, dictionary, set or queue, which keeps its object, with all that is in it."""

    def __init__(self, container: Any, state: State) -> None:
        self._container = container
        self._content = _content(container, state)

    def put_back(self) -> None:
        """Give it what it held; what was in it and is no container itself is the same object."""
        container = self._container
        container.clear()
        if isinstance(container, (dict, set)):
            container.update(self._content)
        else:
            container.extend(self._content)


def _content(container: Any, state: State) -> Any:
    """Return a shallow copy; tensors and containers within are kept by the state."""
    for value in container.values() if isinstance(container, dict) else container:
        if isinstance(value, torch.Tensor):
            state.keep(value)
        elif type(value) in _CONTAINERS:
            state.keep_container(value)
    return dict(container) if isinstance(container, dict) else list(container)


class _Module:
    """Attributes of a module, its buffers and its mode: plain ones, tensors, and lists and dictionaries of them."""

    def __init__(self, module: nn.Module, state: State) -> None:
        self._module = module
        self._names = set(vars(module))
        for name, value in vars(module).items():
            if type(value) in _CONTAINERS and name not in _OF_TORCH:
                state.keep_container(value)
        self._objects = {name: value for name, value in vars(module).items() if type(value) in _CONTAINERS}
        self._plain = {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)}
        self._tensors = {
            name: state.keep(value) for name, value in vars(module).items() if isinstance(value, torch.Tensor)
        }
        self._buffers = dict(module._buffers)

    def put_back(self) -> None:
        for name in set(vars(self._module)) - self._names:
            del vars(self._module)[name]
        vars(self._module).update({**self._objects, **self._plain, **self._tensors})
        self._module._buffers.clear()
        self._module._buffers.update(self._buffers)


class _Optimizer:
    """State and settings of an optimizer; what a step added is gone afterwards."""

    def __init__(self, optimizer: Optimizer, state: State) -> None:
        self._optimizer = optimizer
        self._state = [
            (key, values, {name: state.keep(value) for name, value in values.items()})
            for key, values in optimizer.state.items()
        ]
        self._groups = [
            (group, {name: state.keep(value) for name, value in group.items() if name != "params"})
            for group in optimizer.param_groups
        ]
        self._plain = {name: value for name, value in vars(optimizer).items() if isinstance(value, _PLAIN)}

    def put_back(self) -> None:
        self._optimizer.state.clear()
        for key, values, content in self._state:
            values.clear()
            values.update({name: self._value(value) for name, value in content.items()})
            self._optimizer.state[key] = values
        for group, values in self._groups:
            for name in [name for name in group if name != "params" and name not in values]:
                del group[name]
            group.update({name: self._value(value) for name, value in values.items()})
        present = vars(self._optimizer)
        for name in [name for name, value in present.items() if isinstance(value, _PLAIN) and name not in self._plain]:
            del present[name]
        present.update(self._plain)

    @staticmethod
    def _value(value: Any) -> Any:
        return value if isinstance(value, torch.Tensor) else copy.deepcopy(value)


class _Other:
    """Any other object of the training that a step changes."""

    def __init__(self, other: Any) -> None:
        self._other = other
        if isinstance(other, dict):
            self._content: Any = copy.deepcopy(other)
        elif isinstance(other, torch.Generator):
            self._content = other.get_state()
        elif isinstance(other, random.Random):
            self._content = other.getstate()
        elif hasattr(other, "bit_generator"):
            self._content = copy.deepcopy(other.bit_generator.state)
        elif hasattr(other, "state_dict") and hasattr(other, "load_state_dict"):
            self._content = copy.deepcopy(other.state_dict())
        else:
            raise UsageError(
                f"others: a {type(other).__name__} cannot be put back",
                "name tensors, lists, dictionaries, generators, and what has state_dict and load_state_dict",
            )

    def put_back(self) -> None:
        other = self._other
        if isinstance(other, dict):
            other.clear()
            other.update(copy.deepcopy(self._content))
        elif isinstance(other, torch.Generator):
            other.set_state(self._content)
        elif isinstance(other, random.Random):
            other.setstate(self._content)
        elif hasattr(other, "bit_generator"):
            other.bit_generator.state = copy.deepcopy(self._content)
        else:
            other.load_state_dict(copy.deepcopy(self._content))


def copy_of_batch(value: Any) -> Any:
    """Return a batch that a step may alter: its containers are new, and so is the memory of tensors and arrays."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (dict, collections.UserDict)):
        found = copy.copy(value)
        for name in found:
            found[name] = copy_of_batch(found[name])
        return found
    if isinstance(value, tuple):
        items = map(copy_of_batch, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return list(map(copy_of_batch, value))
    return value.copy() if type(value).__module__ == "numpy" and hasattr(value, "copy") else value


class BatchCopies:
    """Batches of a list again and again, a copy each time. spent_ns: what copying has taken so far."""

    def __init__(self, kept: Sequence[Any]) -> None:
        self._batches = itertools.cycle(kept)
        self.spent_ns = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began_ns = monotonic_ns()
        batch = copy_of_batch(next(self._batches))
        self.spent_ns += monotonic_ns() - began_ns
        return batch


class RandomNumbers:
    """The global generators of Python, numpy and torch, of every device that is in use."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def put_back(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
