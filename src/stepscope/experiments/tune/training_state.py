"""The whole state of a training that is tuned, kept and put back bit by bit."""

from __future__ import annotations

import collections
import copy
import functools
import random
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler

from stepscope.errors import UsageError
from stepscope.experiments.tune.training import Targets

_COUNTED = (collections.OrderedDict, collections.defaultdict, collections.Counter)
_CONTAINERS = (list, dict, set, collections.deque, *_COUNTED)
OF_TORCH = frozenset(vars(nn.Module()))  # what every module has: parameters, buffers, hooks
_OF_OPTIMIZERS = frozenset(("state", "param_groups", "defaults")) | {
    name for name in vars(torch.optim.SGD([nn.Parameter()])) if name.endswith("_hooks")
}
_OF_SAMPLERS = frozenset(("data_source", "dataset"))
PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEEP = 4  # containers within containers that were named


@dataclass
class _SavedTensor:
    """A tensor with the memory that it has now, and a copy of what is in it."""

    tensor: torch.Tensor
    memory: torch.Tensor
    content: torch.Tensor
    learns: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _SavedTensor:
        memory = tensor.data
        return cls(tensor, memory, _without_expansion(memory).clone(), tensor.requires_grad)

    def restore(self) -> None:
        _without_expansion(self.memory).copy_(self.content)
        self.tensor.data = self.memory
        if self.tensor.is_leaf:
            self.tensor.requires_grad_(self.learns)


def _without_expansion(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor each once: torch writes to none that `expand` shows several times."""
    if tensor.layout is not torch.strided:
        return tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        tensor = tensor.narrow(dim, 0, 1) if stride == 0 and size > 1 else tensor
    return tensor


class State:
    """The whole state of a training, bit by bit: weights, gradients, buffers, optimizers, generators of random numbers.

    others: what else the step changes: objects with `state_dict` and `load_state_dict` (schedulers, a gradient scaler),
    modules, generators and arrays, lists, dictionaries, tensors. Every tensor keeps its object and its memory. What
    modules and optimizers hold of these is kept as well, and which layers, parameters, hooks and groups they have.
    """

    def __init__(self, targets: Targets, others: tuple[Any, ...] = ()) -> None:
        self._tensors: dict[int, _SavedTensor] = {}
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._parts: dict[int, _Restorable | None] = {}
        for model in targets.models:
            self.save_value(model)
        for optimizer in targets.optimizers:
            if not self.save_value(optimizer):  # a wrapper that is none of torch's
                self._keep_part(optimizer, _WithStateDict)
        for other in others:
            if isinstance(other, PLAIN):  # of which the step has another
                _WithStateDict(other, self)
            self._save_other(other)
        self._random = RandomNumbers()

    def restore(self) -> None:
        """Make everything as it was; what cannot be put back is told once everything else is."""
        failed: list[Exception] = []
        with torch.no_grad():
            for saved in self._tensors.values():
                _restore(saved, failed)
            for tensor, gradient in self._gradients:
                tensor.grad = gradient
        for part in (*self._parts.values(), self._random):
            if part is not None:
                _restore(part, failed)
        if failed:
            raise failed[0]

    def save_value(self, value: Any) -> bool:
        """Have the value put back as the object that it is, with what is in it; False where nobody knows how."""
        if isinstance(value, torch.Tensor):
            self._save_tensor(value)
        elif isinstance(value, nn.Module):
            for tensor in (*value.parameters(), *value.buffers()):
                self._save_tensor(tensor)
            for module in value.modules():
                self._keep_part(module, _SavedModule)
        elif isinstance(value, LoaderSampler):
            self._keep_part(value.sampler, _SavedSampler)
        elif isinstance(value, tuple):
            are_saved = [self.save_value(inner) for inner in value]
            return all(are_saved)
        elif (kind := _saver_class(value)) is not None:
            self._keep_part(value, kind)
        else:
            return isinstance(value, PLAIN)
        return True

    def _save_other(self, other: Any, depth: int = 0) -> None:
        """Save what was named, and what is in it: in lists and dictionaries what nobody can put back stays as it is."""
        if isinstance(other, OwnRestorer):
            self._parts[id(other)] = other
        elif isinstance(other, tuple):
            for inner in other:
                self._save_other(inner, depth)
        elif isinstance(other, (dict, list)):
            self._keep_part(other, _SavedContainer)
            for inner in (other.values() if isinstance(other, dict) else other) if depth < _DEEP else ():
                self._save_other(inner, depth + 1)
        elif not self.save_value(other) and (depth == 0 or _has_state_dict(other)):
            self._keep_part(other, _WithStateDict)

    def _keep_part(self, value: Any, kind: Callable[[Any, State], _Restorable]) -> None:
        if id(value) not in self._parts:
            self._parts[id(value)] = None  # it may hold itself
            self._parts[id(value)] = kind(value, self)

    def _save_tensor(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = _SavedTensor.of(tensor.detach() if not tensor.is_leaf else tensor)
        if tensor.is_leaf:
            self._gradients.append((tensor, tensor.grad))
            if tensor.grad is not None:
                self._save_tensor(tensor.grad)


@dataclass
class LoaderSampler:
    """A sampler of a data loader, which need not be one of torch's: all that it holds is put back."""

    sampler: Any


class _Restorable(Protocol):
    """Something that a step alters in place."""

    def restore(self) -> None: ...


class OwnRestorer:
    """A part that has kept its state itself."""

    def restore(self) -> None: ...


def _restore(part: _Restorable, failed: list[Exception]) -> None:
    try:
        part.restore()
    except Exception as error:  # a `load_state_dict` of the user's
        failed.append(error)


def _saver_class(value: Any) -> Callable[[Any, State], _Restorable] | None:
    if isinstance(value, Optimizer):
        return _SavedOptimizer
    if isinstance(value, Sampler):
        return _SavedSampler
    if isinstance(value, (LRScheduler, torch.amp.GradScaler)):
        return _WithStateDict
    if type(value) in _CONTAINERS:
        return _SavedContainer
    if isinstance(value, (random.Random, torch.Generator)) and not isinstance(value, random.SystemRandom):
        return _SavedGenerator
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState)):
        return _SavedGenerator
    return _SavedArray if numpy is not None and isinstance(value, numpy.ndarray) else None


def _has_state_dict(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


class _SavedContainer:
    """A list, dictionary, set or queue, which keeps its object; what is in it and not known to a state is the same."""

    def __init__(self, container: Any, state: State) -> None:
        self._container = container
        self._content: Any = dict(container) if isinstance(container, dict) else list(container)
        for value in container.values() if isinstance(container, dict) else container:
            if not isinstance(value, PLAIN):  # of which a list of a sampler's may have millions
                state.save_value(value)

    def restore(self) -> None:
        container = self._container
        container.clear()
        if isinstance(container, (dict, set)):
            container.update(self._content)
        else:
            container.extend(self._content)


class _SavedGenerator:
    """A generator of random numbers: Python's, numpy's of either kind, torch's."""

    def __init__(self, generator: Any, state: State) -> None:
        self._generator = generator
        self._state = copy.deepcopy(self._access())

    def restore(self) -> None:
        self._access(copy.deepcopy(self._state))

    def _access(self, *new: Any) -> Any:
        generator = self._generator
        if isinstance(generator, random.Random):
            return generator.setstate(*new) if new else generator.getstate()
        if not hasattr(generator, "bit_generator"):
            return generator.set_state(*new) if new else generator.get_state()
        if new:
            generator.bit_generator.state = new[0]
        return generator.bit_generator.state


class _SavedArray:
    """An array of numpy, which keeps its object and its memory."""

    def __init__(self, array: Any, state: State) -> None:
        self._array, self._content = array, array.copy()

    def restore(self) -> None:
        if self._array.flags.writeable:
            self._array[...] = self._content


class _SavedAttributes:
    """The attributes of an object; of those that are torch's own, the content of the containers as well."""

    def __init__(self, owner: Any, state: State, of_torch: frozenset[str] = frozenset()) -> None:
        self._owner, self._attributes = owner, dict(getattr(owner, "__dict__", {}))
        for name, value in self._attributes.items():
            if name not in of_torch:
                state.save_value(value)
        attributes = [(name, value) for name, value in self._attributes.items() if name in of_torch - _OF_SAMPLERS]
        self._contents = [(value, value.copy()) for _, value in attributes if isinstance(value, (dict, set))]

    def restore(self) -> None:
        present = getattr(self._owner, "__dict__", {})
        for name in present.keys() - self._attributes.keys():
            del present[name]
        present.update(self._attributes)
        for container, content in self._contents:
            container.clear()
            container.update(content)


# A sampler of a data loader, and those within it: the order of what comes may follow from a count of its own. The
# samples that it draws from are no part of it: a list of them would be copied around every block.
_SavedSampler = functools.partial(_SavedAttributes, of_torch=_OF_SAMPLERS)
_SavedModule = functools.partial(_SavedAttributes, of_torch=OF_TORCH)  # layers, parameters, hooks, mode, attributes


class _SavedOptimizer:
    """State and settings of an optimizer, and what else it holds, another one too; what a step added is gone."""

    def __init__(self, optimizer: Optimizer, state: State) -> None:
        self._optimizer = optimizer
        for group in optimizer.param_groups:
            state.save_value(tuple(group["params"]))
        self._state = [
            (key, values, {name: self._save_and_return(value, state) for name, value in values.items()})
            for key, values in optimizer.state.items()
            if isinstance(values, dict)
        ]
        # Some keep a count of steps under a name, beside the dictionaries of their parameters.
        loose = {key: value for key, value in optimizer.state.items() if not isinstance(value, dict)}
        self._loose = {key: self._save_and_return(value, state) for key, value in loose.items()}
        self._groups = [
            (group, {name: self._save_and_return(value, state) for name, value in group.items() if name != "params"})
            for group in optimizer.param_groups
        ]
        lists = [optimizer.param_groups, *(group["params"] for group in optimizer.param_groups)]
        self._lists = [(parameters, list(parameters)) for parameters in lists]
        self._own = _SavedAttributes(optimizer, state, _OF_OPTIMIZERS)

    def restore(self) -> None:
        self._own.restore()
        for present, before in self._lists:
            present[:] = before
        self._optimizer.state.clear()
        for key, values, content in self._state:
            values.clear()
            values.update({name: self._value_or_copy(value) for name, value in content.items()})
            self._optimizer.state[key] = values
        self._optimizer.state.update({key: self._value_or_copy(value) for key, value in self._loose.items()})
        for group, values in self._groups:
            for name in [name for name in group if name != "params" and name not in values]:
                del group[name]
            group.update({name: self._value_or_copy(value) for name, value in values.items()})
        for group, (params, _) in zip(self._optimizer.param_groups, self._lists[1:], strict=True):
            group["params"] = params

    @classmethod
    def _save_and_return(cls, value: Any, state: State) -> Any:
        if isinstance(value, torch.Tensor):
            state.save_value(value)
        return cls._value_or_copy(value)

    @staticmethod
    def _value_or_copy(value: Any) -> Any:
        return value if isinstance(value, torch.Tensor) else copy.deepcopy(value)


class _WithStateDict:
    """Any other object of the training that a step changes, and that can tell and take its state."""

    def __init__(self, other: Any, state: State) -> None:
        self._other = other
        has_state_dict = _has_state_dict(other)
        self._content = copy.deepcopy(other.state_dict()) if has_state_dict else None
        self._stages = self._copy_of_stages()
        idle = not getattr(other, "is_enabled", lambda: True)()  # a gradient scaler that does nothing
        if not self._content and not idle:
            empty = ": its state_dict() is empty" if has_state_dict else ""
            raise UsageError(
                f"others: {type(other).__name__!r} cannot be put back{empty}",
                "name tensors, lists, dictionaries, modules, generators, and what has state_dict and load_state_dict",
            )

    def restore(self) -> None:
        self._other.load_state_dict(copy.deepcopy(self._content))
        if self._stages is not None:
            present = self._other._per_optimizer_states
            present.clear()
            present.update({key: dict(stage) for key, stage in self._stages.items()})

    def _copy_of_stages(self) -> dict[int, dict[str, Any]] | None:
        """Return how far a gradient scaler is with each optimizer: unscaled or stepped, and in no `state_dict`."""
        stages = getattr(self._other, "_per_optimizer_states", None)
        return {key: dict(stage) for key, stage in stages.items()} if isinstance(stages, dict) else None


def attributes_restorer(owner: Any, used: Collection[str]) -> Callable[[], None]:
    """Return what gives the names of a class or module their values again, and takes new numbers and containers away.

    New functions, classes and modules stay: what was imported or defined on the way is expected to be there. Of a
    module only what is used within the step is its own.
    """
    before = {name: value for name, value in vars(owner).items() if not name.startswith("__")}

    def restore() -> None:
        present = dict(vars(owner))
        for name, value in before.items():
            is_steps = name in used or isinstance(owner, type)
            if is_steps and (name not in present or present[name] is not value):
                setattr(owner, name, value)
        for name in (present.keys() - before.keys()) & {*used}:
            if issubclass(type(present[name]), (*PLAIN, dict, list, set, tuple, torch.Tensor)):
                delattr(owner, name)

    return restore


class RandomNumbers:
    """The global generators of Python, numpy and torch, of every device that is in use."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def restore(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
