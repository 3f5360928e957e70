"""The registry of modules: which module an op runs in, and the names of all modules.

A module's name is its qualified name below the outermost module that was called ("layer1.0.conv1"; "" is the model
itself). Where a run trains several models each has its type in front ("Discriminator.conv1"), and so have losses.
The registry knows modules by weak identity and keeps none alive; what it states of one that is gone was noted before.
Modules are read through their `__dict__`, so that no code of the training's own runs.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stepscope.record.fault_boundary import DeferredSignals

COMPILED, SCRIPTED = "compiled", "scripted"
_MOST_SEARCHED, _SEARCHED_PER_MODULE = 100_000, 20  # modules, at a microsecond each
_MOST_SIZES = 64  # of models that are built alike and told apart by their parameters
_COMPILED = "_orig_mod"  # the attribute under which torch.compile keeps the model
Reference = Callable[[], nn.Module | None]
Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None


def named_models(models: Models) -> list[tuple[str | None, nn.Module]]:
    """Return (name, model) for what the user gave; a name is None until names are settled."""
    if models is None:
        return []
    if isinstance(models, nn.Module):
        return [("", models)]
    if isinstance(models, Mapping):
        return list(models.items())
    return [(None, model) for model in models]


@dataclass(frozen=True)
class Sizes:
    """Parameters of a module and everything below it; None where one of them has no shape yet."""

    parameters: int | None
    bytes: int | None
    trainable: bool | None


@dataclass
class Root:
    """An outermost module; `name` is None until names are settled, unless the user gave one."""

    reference: Reference
    name: str | None
    kind: str
    learns: bool  # it has parameters
    first: int  # index of the module itself; what is below follows
    parameters: int | None = 0  # when it became known
    within: int | None = None  # the root that it turned out to be a part of

    @property
    def module(self) -> nn.Module:
        """The module, or an empty one where it is gone."""
        return _module_or_empty(self.reference)


@dataclass
class _RegisteredModule:
    reference: Reference
    root: int
    below: str
    kind: str
    sizes: Sizes | None = None
    box: str | None = None  # COMPILED or SCRIPTED, where calls of what is in it are not seen
    closed: bool = False  # nor is its own


class ModuleRegistry:
    """Knows every module by index, and its name."""

    def __init__(self, found_root: Callable[[nn.Module], None] = lambda _: None) -> None:
        self.roots: list[Root] = []
        self._found_root = found_root
        self._index: dict[int, int] = {}
        self._modules: list[_RegisteredModule] = []
        self._alike: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)  # roots by what is below them
        self._root_names: list[str | None] = []  # None for one that is within another
        self._taken_names: set[str] = set()
        self._next_number: dict[str, int] = {}  # for the next root of a name that is taken
        self._searched = 0  # modules, for those that were added to a root since

    def index(self, module: nn.Module) -> int:
        """Index of a module; an unknown one becomes a root with everything below it."""
        index = self._index.get(id(module))
        if index is not None and self._modules[index].reference() is module:
            return index
        return self.add_root(module)

    def knows(self, module: nn.Module) -> bool:
        """Return whether this module has an index."""
        index = self._index.get(id(module))
        return index is not None and self._modules[index].reference() is module

    def learns(self, module: nn.Module) -> bool:
        """Return whether a known module belongs to a model that has parameters."""
        return self.roots[self._modules[self._index[id(module)]].root].learns

    def add_root(self, module: nn.Module, name: str | None = None) -> int:
        """Register a model and everything below it; names settle when they are first asked for."""
        if self.knows(module):
            return self._index[id(module)]
        whole = list(_named_modules(module))
        registered = [(below, part) for below, part in whole if self.knows(part)]
        parts = [(below, part) for below, part in whole if not self.knows(part)]
        learns = any(parameters_of(part) for _, part in whole)
        if learns and not registered and (place := self._root_around(module)) is not None:
            return self._add_to_root(*place, parts)
        signature = (name, *((below, type(part).__name__) for below, part in parts))
        parameters = _sizes(module).parameters if learns else 0
        alike = [self.roots[root] for root in self._alike[signature]]
        gone = [root for root in alike if root.reference() is None and root.within is None]
        any_size = gone if len(alike) >= _MOST_SIZES else ()
        vacant = next((root for root in gone if root.parameters == parameters), next(iter(any_size), None))
        if vacant is None:
            first, roots = len(self._modules), len(self.roots)
            before = [(entry, entry.root, entry.below) for entry in self._modules] if registered else []
            try:
                with DeferredSignals():  # an interrupt in its midst would leave lists that do not fit each other
                    kind = _uncompiled_type_name(module)
                    root = Root(weakref.ref(module), name, kind, learns, first, parameters)
                    self._new_root(root, signature, parts)
                    for below, part in registered:
                        self._move_into_root(part, roots, below)
            except BaseException:  # set by another thread, which nothing puts off: as if nobody had called it yet
                self._roll_back_to(first, roots, before)
                raise
        else:  # a loss of each batch, a model of each fold: made anew, it takes the place of one that is gone
            first = vacant.first
            vacant.reference = weakref.ref(module)
            for index, (_, part) in enumerate(parts, first):
                self._modules[index].reference = weakref.ref(part)
            self._index.update((id(part), index) for index, (_, part) in enumerate(parts, first))
        self._found_root(module)
        return first

    def _root_around(self, module: nn.Module) -> tuple[int, str] | None:
        """Return the root that an unknown module was added to since that became known, and its path there.

        After long searches an unknown module is a root: with a thousand models each search takes milliseconds.
        """
        if self._searched > _MOST_SEARCHED + _SEARCHED_PER_MODULE * len(self._modules):
            return None
        for number, root in enumerate(self.roots):
            model = root.reference() if root.within is None else None
            self._searched += 1
            for below, part in () if model is None else _named_modules(model):
                self._searched += 1
                if part is module:
                    return number, below
        return None

    def _add_to_root(self, root: int, path: str, parts: list[tuple[str, nn.Module]]) -> int:
        first = len(self._modules)
        with DeferredSignals():
            self._modules += [
                _RegisteredModule(weakref.ref(part), root, _join_module_path(path, below), type(part).__name__)
                for below, part in parts
            ]
            self._index.update((id(part), index) for index, (_, part) in enumerate(parts, first))
        return first

    def _new_root(self, new: Root, signature: tuple[Any, ...], parts: list[tuple[str, nn.Module]]) -> None:
        root = len(self.roots)
        self.roots.append(new)
        self._alike[signature].append(root)
        self._modules += [
            _RegisteredModule(weakref.ref(part), root, below, type(part).__name__) for below, part in parts
        ]
        self._index.update((id(part), index) for index, (_, part) in enumerate(parts, new.first))

    def _roll_back_to(self, first: int, roots: int, before: list[tuple[_RegisteredModule, int, str]]) -> None:
        """Drop modules and roots from these numbers on, and give the others the roots and names that they had."""
        for entry, root, below in before:
            entry.root, entry.below = root, below
        for former in self.roots[:roots]:
            if former.within is not None and former.within >= roots:
                former.within = None
        self._index = {key: place for key, place in self._index.items() if place < first}
        for alike in self._alike.values():
            alike[:] = [root for root in alike if root < roots]
        del self._modules[first:], self.roots[roots:]

    def names(self) -> list[tuple[str, str]]:
        """(qualified name, type) by index. From the first call on, names stay as they are."""
        self._settle_root_names()
        for entry in self._modules:
            if (module := entry.reference()) is not None:
                entry.kind = type(module).__name__  # a lazy one has become another
        return [
            (_join_module_path(self._root_names[entry.root] or "", entry.below), entry.kind) for entry in self._modules
        ]

    def root_names(self) -> set[str]:
        """The names of the outermost modules."""
        self._settle_root_names()
        return {name for name in self._root_names if name is not None}

    def modules(self) -> list[nn.Module]:
        """Every module by index; an empty one where it is gone."""
        return [_module_or_empty(entry.reference) for entry in self._modules]

    def sizes(self) -> list[Sizes]:
        """Parameters by index; of modules that are gone as they were when they were last looked at."""
        for entry in self._modules:
            module = entry.reference()
            if module is not None:
                entry.sizes = _sizes(module)
        return [entry.sizes or Sizes(None, None, None) for entry in self._modules]

    def regions(self) -> dict[int, str]:
        """COMPILED or SCRIPTED, by index, for the modules whose calls are not seen since they lie in such a one."""
        boxes: dict[tuple[int, str], _RegisteredModule] = {}
        for entry in self._modules:
            module = entry.reference()
            if module is not None:
                entry.box, entry.closed = _compiled_region(module)
            if entry.box is not None:
                boxes[entry.root, entry.below] = entry
        regions: dict[int, str] = {}
        for index, entry in enumerate(self._modules):
            if entry.closed and entry.box is not None:
                regions[index] = entry.box
                continue
            below = entry.below.removesuffix(_COMPILED).removesuffix(".")  # the model itself is called by its box
            while below and index not in regions:
                below = below.rpartition(".")[0]
                box = boxes.get((entry.root, below))
                if box is not None and box.box is not None:
                    regions[index] = box.box
        return regions

    def parameter_modules(self) -> dict[int, int]:
        """Index of the module that owns each parameter, by the parameter's id; a shared one counts for the first."""
        owners: dict[int, int] = {}
        for index, module in enumerate(self.modules()):
            for parameter in parameters_of(module):
                owners.setdefault(id(parameter), index)
        return owners

    def _move_into_root(self, part: nn.Module, root: int, below: str) -> None:
        """A module that was called by itself, before the model whose part it is: it has its name there."""
        former = self._modules[self._index[id(part)]].root
        former_root = self.roots[former]
        if (
            former < len(self._root_names)
            or former_root.name is not None
            or former_root.within is not None
            or former_root.reference() is not part
        ):
            return
        former_root.within = root
        for entry in self._modules:
            if entry.root == former:
                entry.root, entry.below = root, f"{below}.{entry.below}" if entry.below else below

    def _settle_root_names(self) -> None:
        models = sum(root.learns and root.within is None for root in self.roots)
        for root in self.roots[len(self._root_names) :]:
            if root.within is not None:
                self._root_names.append(None)
                continue
            alone = "" not in self._taken_names and models == 1 and root.learns
            text = "" if alone else root.kind
            self._root_names.append(self._take_name(root.name if root.name is not None else text))

    def _take_name(self, name: str) -> str:
        """Return this name for a root, with a number behind it where another one has it."""
        free, number = name, self._next_number.get(name, 2)
        while free in self._taken_names:
            free, number = f"{name}#{number}", number + 1
        self._next_number[name] = number
        self._taken_names.add(free)
        return free


def _module_or_empty(reference: Reference) -> nn.Module:
    module = reference()  # never asked whether it is true: that may be the training's own code
    return nn.Module() if module is None else module  # one that has died owns nothing


def _named_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield like `Module.named_modules`, parents first; takes cycles and any depth, and calls no method of a module."""
    visited: set[int] = set()
    waiting: list[tuple[str, nn.Module]] = [("", module)]
    while waiting:
        name, part = waiting.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        yield name, part
        children = [
            (f"{name}.{key}" if name else str(key), child)
            for key, child in copied_items(vars(part).get("_modules"))
            if isinstance(child, nn.Module)
        ]
        waiting += reversed(children)


def copied_items(mapping: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dictionary of the training's (or None), copied at once: other threads may add some."""
    return list((dict.copy(mapping) if isinstance(mapping, dict) else mapping or {}).items())


def _compiled_region(module: nn.Module) -> tuple[str | None, bool]:
    """Whether what is within this module runs as compiled or scripted code, and whether its own call is hidden too."""
    own = vars(module)
    if own.get("_compiled_call_impl") is not None:
        return COMPILED, True
    if torch.jit.ScriptModule in type(module).__mro__:
        return SCRIPTED, False
    return (COMPILED, False) if _COMPILED in (own.get("_modules") or {}) else (None, False)


def parameters_of(module: nn.Module) -> list[Any]:
    """The parameters of this very module; those of a Keras layer are the values of its variables."""
    own = vars(module)
    parameters = [parameter for _, parameter in copied_items(own.get("_parameters")) if parameter is not None]
    variables = own.get("_trainable_variables")
    if isinstance(variables, list):
        values = [getattr(variable, "__dict__", {}).get("_value") for variable in list.__iter__(variables)]
        parameters += [value for value in values if isinstance(value, nn.Parameter)]
    return parameters


def _sizes(module: nn.Module) -> Sizes:
    """Return what `parameters()` would give, counted without it: shared ones once."""
    with torch._C.DisableTorchFunction():
        everything = {id(p): p for _, part in _named_modules(module) for p in parameters_of(part)}.values()
        if not all(isinstance(p, torch.Tensor) for p in everything):
            return Sizes(None, None, None)
        trainable = any(torch.Tensor.requires_grad.__get__(p) for p in everything)  # type: ignore[attr-defined]
        if any(is_lazy(p) for p in everything):
            return Sizes(None, None, trainable)
        sizes = [(torch.Tensor.numel(p), torch.Tensor.element_size(p)) for p in everything]  # not a subclass's own
        return Sizes(sum(count for count, _ in sizes), sum(count * size for count, size in sizes), trainable)


def module_and_descendants(module: nn.Module) -> list[nn.Module]:
    """A module and everything below it."""
    return [part for _, part in _named_modules(module)]


def _join_module_path(root: str, below: str) -> str:
    parts = [part for part in (root, *below.split(".")) if part and part != _COMPILED]
    return ".".join(parts)


def _uncompiled_type_name(module: nn.Module) -> str:
    below = vars(module).get("_modules") or {}
    compiled = below[_COMPILED] if _COMPILED in below else module  # noqa: SIM401 - a scripted module's has no `get`
    return type(compiled).__name__
