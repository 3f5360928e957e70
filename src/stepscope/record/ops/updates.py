"""Which layer each op of an optimizer's update belongs to.

A loop over parameters issues the same ops for each parameter of a group, in the order of the groups; those of another
group may differ by a few (weight decay). Where the ops divide so, each has its parameter's module. Where one kernel
serves many parameters (foreach, fused, LBFGS) the rows keep no module, and the time of the update is to be shared out
by elements: what is noted here is whose elements those were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.arrays import Ints
from stepscope.record.ops.closures import closure_ends, optimizer_steps, repeated_optimizer_steps
from stepscope.record.ops.events import NO_PARENT, Events

_SERVES_MANY = ("_foreach_", "_fused_")  # in the names of kernels that serve many parameters
_MOST_TRIED = 5_000  # divisions of the ops of an update
_MOST_FOUND = 32


@dataclass(frozen=True)
class Update:
    """One `optimizer.step()`: module index (-1: none) and elements of each parameter that has a gradient, by group.

    kinds: of the groups; those of one kind have the same options switched on, and so the same ops a parameter.
    """

    modules: tuple[tuple[int, ...], ...]
    elements: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]

    @staticmethod
    def from_optimizer(optimizer: Any, every: bool, owners: Callable[[set[int]], Mapping[int, int]]) -> Update:
        """Return what an optimizer will update; every: also parameters that may have no gradient.

        owners gives the module index by `id` of a parameter, of these.
        """
        import torch  # runs are read without it

        with torch._C.DisableTorchFunction():
            stated = _groups_of(optimizer)
            every = every or all(p.grad is None for group in stated for p in group["params"])  # a closure makes them
            groups = [[(id(p), p.numel()) for p in group["params"] if every or p.grad is not None] for group in stated]
        of_module = owners({key for group in groups for key, _ in group})
        return Update(
            tuple(tuple(of_module.get(key, -1) for key, _ in group) for group in groups),
            tuple(tuple(elements for _, elements in group) for group in groups),
            tuple(map(kind_of_group, stated)),
        )

    def by_module(self) -> dict[int, int]:
        """Elements of the parameters of each module."""
        elements_by_module: dict[int, int] = {}
        for modules, elements in zip(self.modules, self.elements, strict=True):
            for module, count in zip(modules, elements, strict=True):
                elements_by_module[module] = elements_by_module.get(module, 0) + count
        return elements_by_module


def _groups_of(optimizer: Any) -> list[dict[str, Any]]:
    stated: list[dict[str, Any]] = vars(optimizer).get("param_groups", [])  # a property would run code of the training
    return stated


def _gradient_flags(optimizer: Any) -> bytes:
    """Which parameters have a gradient, in order, a byte each."""
    import torch

    with torch._C.DisableTorchFunction():
        return bytes(p.grad is not None for group in _groups_of(optimizer) for p in group["params"])


def shares_of(updates: Iterable[Update]) -> dict[int, float]:
    """Share of each module, by index, in the elements that these update; some of which may have no module."""
    counted: dict[int, int] = {}
    for update in updates:
        for module, elements in update.by_module().items():
            counted[module] = counted.get(module, 0) + elements
    whole = sum(counted.values())
    return {module: elements / whole for module, elements in counted.items() if module >= 0 and elements}


@dataclass
class OptimizerCalls:
    """Every `optimizer.step()` of a window in order: those whose ops were told apart, and those where none could be."""

    updates: list[Update] = field(default_factory=list)
    by_parameter: set[Update] = field(default_factory=set)
    by_many: set[Update] = field(default_factory=set)


class UpdateCache:
    """Parameters of each optimizer, looked at once a window, and how updates of many layers at once are shared.

    owners: index of the module of each parameter, by the parameter's id; others: whether a gradient may be replaced
    while it is looked at.
    """

    def __init__(self, owners: Callable[[], Mapping[int, int]], others: Callable[[], bool]) -> None:
        self._all_owners, self._others = owners, others
        self._owners: Mapping[int, int] = {}
        self._known: dict[tuple[int, bytes], Update] = {}  # by optimizer, and which of its parameters have a gradient
        self._by_many: set[Update] = set()  # whose ops serve many parameters at once

    def window_begins(self) -> None:
        """Optimizers may have other parameters now, some of them with the `id` of one that has died."""
        self._known, self._owners = {}, self._all_owners()

    def update_of_optimizer(self, optimizer: Any) -> Update:
        """Return what it updates; once a window and set of gradients, since it costs a percent of a step."""
        every = self._others()
        key = id(optimizer), b"" if every else _gradient_flags(optimizer)
        update = self._known.get(key)
        if update is None:
            update = self._known[key] = Update.from_optimizer(optimizer, every, self._owners_of)
        return update

    def learn(self, calls: OptimizerCalls) -> None:
        """The ops of these updates were told apart, or could not be."""
        self._by_many = (self._by_many | calls.by_many) - calls.by_parameter

    def shares(self) -> dict[int, float]:
        """Share of each module, by index, in the elements that an optimizer's kernels update for many at once."""
        return shares_of(self._by_many)

    def _owners_of(self, parameters: set[int]) -> Mapping[int, int]:
        if not parameters <= self._owners.keys():
            self._owners = self._all_owners()
        return self._owners


def modules_of_updates(events: Events, parent: Ints, module: Ints, texts: list[str], calls: OptimizerCalls) -> Ints:
    """Modules of the rows below each `Optimizer.step`; of updates of many parameters at once they stay as they are."""
    scopes, repeated = optimizer_steps(events, texts), repeated_optimizer_steps(events, texts)
    if len(scopes) != len(calls.updates):
        return module
    above = parent.copy()
    for row in repeated.tolist():  # outer ones first: what lies in it is the outermost one's
        above[above == row] = above[row]
    many = np.array([any(part in text for part in _SERVES_MANY) for text in texts], dtype=bool)
    module_of_row = module.copy()
    for scope, end, update in zip(scopes, closure_ends(events, scopes, texts), calls.updates, strict=True):
        ops = np.setdiff1d(np.flatnonzero(above == scope), repeated, assume_unique=True)
        ops = ops[events.t0[ops] > end]
        names = events.name[ops]
        filled = [modules for modules in update.modules if modules]
        groups = tuple((len(of), kind) for of, kind in zip(update.modules, update.kinds, strict=True) if of)
        widths = None if many[names].any() else ops_of_a_parameter(names.tobytes(), groups)
        if widths is not None:
            module_of_row[ops] = np.concatenate(
                [np.repeat(of, width) for of, width in zip(filled, widths, strict=True)]
            )
            calls.by_parameter.add(update)
        elif len(ops):
            calls.by_many.add(update)
    return _inherit_modules_below(module_of_row, parent, scopes)


def kind_of_group(group: Mapping[str, Any]) -> int:
    """Return a number that is equal for groups with the same options switched on, whatever their values."""
    plain = (bool, int, float, type(None))
    return hash(tuple((key, bool(value)) for key, value in list(group.items()) if type(value) in plain))


@functools.lru_cache(maxsize=64)
def ops_of_a_parameter(names: bytes, groups: tuple[tuple[int, int], ...]) -> tuple[int, ...] | None:
    """Return how many ops a parameter of each group has, where groups of (parameters, kind) explain all ops.

    names: of the ops in order, int64. Of several answers the one whose groups differ least; None where there is none.
    """
    ops = np.frombuffer(names, dtype=np.int64)
    parameters = sum(count for count, _ in groups)
    if not parameters or len(ops) == 0:
        return None
    alike = len(ops) // parameters
    if alike * parameters == len(ops) and _repeats(ops, 0, alike, parameters):
        return (alike,) * len(groups)
    answers = [answer for _, answer in zip(range(_MOST_FOUND), _possible_op_counts(ops, groups), strict=False)]
    return min(answers, key=lambda widths: max(widths) - min(widths), default=None)


def _possible_op_counts(ops: Ints, groups: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, ...]]:
    """Widths by group with which every parameter of a kind has the same ops, and all end with the same one."""
    tried = 0
    waiting: list[tuple[int, tuple[int, ...], dict[int, Ints]]] = [(0, (), {})]
    while waiting and tried < _MOST_TRIED:
        first, widths, patterns = waiting.pop()
        if len(widths) == len(groups):
            if first == len(ops):
                yield widths
            continue
        (count, kind), more = groups[len(widths)], sum(count for count, _ in groups[len(widths) + 1 :])
        pattern = patterns.get(kind)
        widest = (len(ops) - first - more) // count
        for width in range(1, widest + 1) if pattern is None else (len(pattern),):
            tried += 1
            here = ops[first : first + width]
            if pattern is not None and not np.array_equal(here, pattern):
                continue
            if len(here) and here[-1] == ops[-1] and _repeats(ops, first, width, count):
                waiting.append((first + count * width, (*widths, width), {**patterns, kind: here}))


def _repeats(ops: Ints, first: int, width: int, count: int) -> bool:
    """Return whether the ops from `first` on are so many equal sequences of this width."""
    until = first + width * count
    return width > 0 and until <= len(ops) and bool((ops[first + width : until] == ops[first : until - width]).all())


def _inherit_modules_below(module: Ints, parent: Ints, scopes: Ints) -> Ints:
    """Rows below an update belong to the same module; parents come before children within a thread."""
    below = np.zeros(len(parent), dtype=bool)
    below[scopes] = True
    while True:
        children = (parent != NO_PARENT) & below[parent] & ~below
        if not children.any():
            return module
        inherits = children & (module < 0)
        module[inherits] = module[parent[inherits]]
        below |= children
