"""Tell optimizers from each other: which one updates, which is of a copy of another's model, which are of one model."""

from __future__ import annotations

import itertools
import math
import struct
import weakref
from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from stepscope.record import torch_private
from stepscope.record.ops.modules import module_and_descendants, parameters_of

COPIES = (
    "optimizers are made anew for copies of a model, which then moves to where its copies went (as in Reptile "
    "and federated averaging): what is counted is each update of a copy, not each move of the model"
)
_ALONG = 0.95  # cosine of the way that a model went with the way that its copies went
_MOST_BYTES = 512  # of a parameter
_SAME = 1e-3  # of that way
_FORMATS = {torch.float32: "f", torch.float64: "d", torch.float16: "e"}


class _Numbered(weakref.ref[Any]):
    """A weak reference that knows the address and number of what it referred to."""

    key = number = -1


class ObjectNumbers:
    """Small numbers for objects that live: one that took the address of another has a number of its own.

    follows: `forget_dead` is called now and then.
    """

    def __init__(self, follows: bool = False) -> None:
        self._numbers: dict[int, tuple[_Numbered | None, int]] = {}
        self._gone: list[_Numbered] = []  # since the last time
        self._goes = self._gone.append if follows else None  # called where they are freed: no function of ours
        self._next = itertools.count()

    def number(self, thing: Any) -> int:
        """Return the number of an object, without holding a reference to it."""
        key = id(thing)
        entry = self._numbers.get(key)
        if entry is not None and (entry[0] is None or entry[0]() is thing):
            return entry[1]
        try:
            reference = _Numbered(thing, self._goes)
        except TypeError:  # takes no weak references: as good as its address is
            reference = None
        number = next(self._next)
        if reference is not None:
            reference.key, reference.number = key, number
        self._numbers[key] = (reference, number)
        return number

    def forget_dead(self) -> list[int]:
        """Forget the objects that are gone since the last time, and return their numbers."""
        numbers = []
        while self._gone:
            reference = self._gone.pop()
            if self._numbers.get(reference.key, (None, 0))[0] is reference:
                del self._numbers[reference.key]
            numbers.append(reference.number)
        return numbers

    def alive(self, number: Hashable) -> bool:
        """Return whether the object of this number may still be there."""
        return any(
            reference is None or reference() is not None
            for reference, its_number in self._numbers.values()
            if its_number == number
        )


class OptimizerNumbers:
    """Numbers of optimizers: one that is made anew has that of the one before it, for the same parameters or a copy.

    Not where both update in turn, or one right after the other, with nothing computed in between. A copy's optimizer
    is one of the same class, for parameters of the same shapes, that comes when the one before it is gone.
    """

    _MOST = 64  # that are known; a training that makes many has seen the last of them

    def __init__(self) -> None:
        self._optimizers = ObjectNumbers()
        self.of_copies: set[Hashable] = set()  # numbers that optimizers of several copies had
        self.forget_parameters()

    def forget_parameters(self) -> None:
        """Hold no reference to a parameter any more."""
        self._parameters = ObjectNumbers()
        self._numbers: dict[int, int] = {}
        self._of_parameters: dict[Hashable, int] = {}
        self._of_shapes: dict[Hashable, list[int]] = {}  # numbers, the one that was taken longest ago first
        self._last: dict[int, int] = {}  # by number, the optimizer that updated last

    def number(self, optimizer: Any, joins: bool) -> int:
        """The number of an optimizer that has updated; joins: nothing was computed since the last update."""
        own = self._optimizers.number(optimizer)
        number = self._numbers.get(own)
        if number is None:
            self._forget_some()
            number = self._numbers[own] = own if joins else self._number_before(optimizer, own)
        elif self._last.get(number, own) != own:  # one that was taken for gone: the other has a number of its own
            self._numbers[self._last[number]] = self._last[number]
        self._last[number] = own
        return number

    def alive(self, number: Hashable) -> bool:
        """Return whether the optimizer that had this number last may still be there."""
        return self._optimizers.alive(self._last.get(number, number) if isinstance(number, int) else number)

    def _forget_some(self) -> None:
        """Forget those that came before others of the same number; all of them where too many are left."""
        if len(self._numbers) >= self._MOST:
            self._numbers = {own: number for own, number in self._numbers.items() if self._last.get(number) == own}
            self._of_parameters.clear()
            if len(self._numbers) >= self._MOST:
                self.forget_parameters()

    def _number_before(self, optimizer: Any, own: int) -> int:
        """Return the number of the one that this one takes the place of; its own where there is none."""
        parameters = _parameters_of(optimizer)
        if not parameters:
            return own
        number = self._parameters.number
        these = number(parameters[0]), number(parameters[-1]), len(parameters)
        number_before = self._of_parameters.get(these)
        if number_before is not None:
            return number_before
        if not all(issubclass(type(parameter), torch.Tensor) for parameter in parameters):
            return self._of_parameters.setdefault(these, own)
        with torch._C.DisableTorchFunction():
            shapes = type(optimizer), tuple((tuple(p.shape), p.dtype) for p in parameters)
        before = self._of_shapes.setdefault(shapes, [])
        vacant = next((number for number in before if not self.alive(number)), None)
        if vacant is None:
            before.append(own)
        else:
            before.remove(vacant)
            before.append(vacant)
            self.of_copies.add(vacant)
        return self._of_parameters.setdefault(these, own if vacant is None else vacant)


class CopyUpdateWitness:
    """Witness of a model that moves by hand to where optimizers of its copies went, seen in where the copies begin."""

    _FEWEST = 4  # values that tell a direction

    def __init__(self) -> None:
        self._optimizers = ObjectNumbers()
        self._newest = self._updating = -1
        self._parameter: weakref.ref[torch.Tensor] | None = None  # of the newest optimizer
        self._begin: tuple[float, ...] = ()  # of the copies of this round
        self._ends: list[tuple[float, ...]] = []  # and where each of them went
        self._begun = self._along = 0  # times that copies began elsewhere, and of them those on the way

    @property
    def model_follows_copies(self) -> bool:
        """Return whether the model moved so more than once, and mostly."""
        return self._along > 1 and 2 * self._along >= self._begun

    def begins(self, optimizer: Any) -> None:
        """An optimizer is about to update: a new one tells where its copy begins."""
        self._updating = self._optimizers.number(optimizer)
        if self._updating <= self._newest:
            return
        self._newest, parameter = self._updating, _first_parameter(optimizer)
        self._parameter = None if parameter is None else weakref.ref(parameter)
        begin = () if parameter is None else _first_values(parameter)
        if begin != self._begin:
            self._begun += len(self._ends) > 0
            self._along += self._is_along(begin)
            self._begin, self._ends = begin, []
        self._ends = [*self._ends[-63:], begin]

    def updated(self) -> None:
        """It has updated."""
        parameter = None if self._parameter is None or self._updating != self._newest else self._parameter()
        if parameter is not None:
            self._ends[-1] = _first_values(parameter)

    def _is_along(self, begin: tuple[float, ...]) -> bool:
        """Return whether the new beginning lies where the copies went, but is not where one of them ended."""
        before, ends = self._begin, [end for end in self._ends if len(end) == len(begin)]
        if not ends or not self._FEWEST <= len(begin) == len(before):
            return False
        went = [sum(at) / len(ends) - was for *at, was in zip(*ends, before, strict=True)]
        moved = [now - was for now, was in zip(begin, before, strict=True)]
        end = [there + was for there, was in zip(went, before, strict=True)]
        if min(math.dist(begin, other) for other in ends) <= _SAME * math.hypot(*moved):
            return False
        if math.dist(begin, end) >= math.hypot(*went):  # farther from there than the one before it
            return False
        along = sum(a * b for a, b in zip(went, moved, strict=True))
        return bool(along > _ALONG * math.hypot(*went) * math.hypot(*moved) > 0)


class SharedModelWitness:
    """Witness of optimizers whose parameters lie in one model and get their gradients in the same passes.

    Looked at from when an optimizer is known, at each pass that is followed.
    """

    _MOST = 8  # optimizers

    def __init__(self) -> None:
        self._of: dict[Hashable, weakref.ref[torch.Tensor]] = {}  # a parameter of each optimizer
        self._before: dict[Hashable, tuple[int, int] | None] = {}  # its gradient before the pass
        self._reached: set[Hashable] = set()  # optimizers that got gradients since the last update
        self._replayed = False  # a pass since then was not looked at
        self._models: dict[int, weakref.ref[nn.Module]] = {}  # that were called since then
        self._without_gradient: defaultdict[Hashable, set[Hashable]] = defaultdict(
            set
        )  # that got none before updates of another
        self._seen: defaultdict[Hashable, set[Hashable]] = defaultdict(set)  # those that were known then
        self._within: dict[Hashable, set[Hashable]] = {}  # optimizers of a model called before each of its updates

    def called(self, model: nn.Module) -> None:
        """A model is called with gradients, by no other one."""
        if len(self._of) > 1 and id(model) not in self._models and len(self._models) < self._MOST:
            try:
                self._models[id(model)] = weakref.ref(model)
            except TypeError:
                return

    def before_pass(self) -> None:
        """Gradients are about to be computed."""
        if len(self._of) > 1:
            self._before = {number: _gradient_of(reference()) for number, reference in self._of.items()}

    def passed(self, replayed: bool) -> None:
        """Gradients are computed; replayed: some time ago, so that what they were before is not known."""
        before, self._before = self._before, {}
        self._replayed |= replayed
        for number, gradient in before.items():
            parameter = self._of[number]()
            if parameter is not None and _gradient_of(parameter) not in (gradient, None):
                self._reached.add(number)

    def updated(self, number: Hashable, optimizer: Any) -> None:
        """Note an update, which ends what was computed for it."""
        reached, self._reached = self._reached, set()
        models, self._models = self._models, {}
        replayed, self._replayed = self._replayed, False
        if number in self._of and len(self._of) > 1 and not replayed:
            self._seen[number] |= self._of.keys()
            self._without_gradient[number] |= self._of.keys() - reached
            if number not in self._within:
                self._within[number] = self._owners(models)
        reference = self._of.get(number)
        if (reference is None or reference() is None) and len(self._of) < self._MOST:
            parameter = _first_parameter(optimizer)
            if parameter is not None:
                self._of[number] = weakref.ref(parameter)

    def is_one_model(self, numbers: set[Hashable]) -> bool:
        """Return whether these are all of one model, and each update of any is of gradients of all."""
        candidates = [number for number in numbers if self._seen[number] >= numbers]
        return (
            len(numbers) > 1
            and bool(candidates)
            and all(self._within[number] >= numbers for number in candidates)
            and not any(self._without_gradient[number] & numbers for number in candidates)
        )

    def _owners(self, models: dict[int, weakref.ref[nn.Module]]) -> set[Hashable]:
        """Return the optimizers of parameters of the one of these models that has most of them."""
        numbers = {id(parameter): number for number, ref in self._of.items() if (parameter := ref()) is not None}
        owners: set[Hashable] = set()
        for model in filter(None, (reference() for reference in models.values())):
            parameters = {id(parameter) for part in module_and_descendants(model) for parameter in parameters_of(part)}
            owners = max(owners, {numbers[key] for key in parameters & numbers.keys()}, key=len)
        return owners


def _parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer; none of one that is not as torch's."""
    groups = vars(optimizer).get("param_groups")  # never by its class: a property would run the training's code
    if type(groups) is not list:
        return []
    listed = [group["params"] for group in groups if type(group) is dict and type(group.get("params")) is list]
    return [parameter for parameters in listed for parameter in parameters]


def _first_parameter(optimizer: Any) -> torch.Tensor | None:
    """Return a parameter of an optimizer."""
    parameter = next(iter(_parameters_of(optimizer)), None)
    return parameter if issubclass(type(parameter), torch.Tensor) else None


def _gradient_of(parameter: torch.Tensor | None) -> tuple[int, int] | None:
    with torch._C.DisableTorchFunction():
        gradient = None if parameter is None else parameter.grad
        return None if gradient is None else (id(gradient), gradient._version)


def _first_values(parameter: torch.Tensor) -> tuple[float, ...]:
    """Return the first values of a parameter, as far as they can be read without an operator."""
    with torch._C.DisableTorchFunction():
        code, content = _FORMATS.get(parameter.dtype), torch_private.first_bytes(parameter, _MOST_BYTES)
    return (
        () if code is None or not content else struct.unpack(f"{len(content) // struct.calcsize(code)}{code}", content)
    )
