"""Module calls as scopes in the profile: which module an op runs in, and the names of all modules.

A module's name is its qualified name below the outermost module that was called ("layer1.0.conv1"; "" is the model
itself). Where a run trains several models each has its type in front ("Discriminator.conv1"), and so have losses.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from stepscope.record import torch_private
from stepscope.record.recorders.phases import MODULE_SCOPE

_COMPILED = "_orig_mod"  # the attribute under which torch.compile keeps the model
_GONE = nn.Module()  # stands for one that has died: it owns nothing
Held = Callable[[], nn.Module]


@dataclass(frozen=True)
class Root:
    """An outermost module; `name` is None until names are settled, unless the user gave one."""

    held: Held
    name: str | None
    kind: str

    @property
    def module(self) -> nn.Module:
        """The module, or an empty one where it was made for a step and is gone."""
        return self.held()


@dataclass(frozen=True)
class _Known:
    held: Held
    root: int
    below: str
    kind: str


class ModuleBook:
    """Knows every module by index, and its name."""

    def __init__(self, found_root: Callable[[nn.Module], None] = lambda _: None) -> None:
        self.roots: list[Root] = []
        self._found_root = found_root
        self._index: dict[int, int] = {}
        self._modules: list[_Known] = []
        self._vacant: defaultdict[type[nn.Module], list[int]] = defaultdict(list)
        self._root_names: list[str] = []

    def index(self, module: nn.Module) -> int:
        """Index of a module; an unknown one becomes a root with everything below it."""
        known = self._index.get(id(module))
        return self.add_root(module) if known is None else known

    def add_root(self, module: nn.Module, name: str | None = None) -> int:
        """Register a model and everything below it; names settle when they are first asked for."""
        if id(module) in self._index:
            return self._index[id(module)]
        if name is None and _may_be_made_for_a_step(module):
            index = self._passing(module)
        else:
            index = len(self._modules)
            self.roots.append(Root(lambda: module, name, _type(module)))
            for below, part in module.named_modules():
                if id(part) not in self._index:
                    self._add(part, below)
        self._found_root(module)
        return index

    def _add(self, module: nn.Module, below: str) -> None:
        # Kept alive: an id is an identity only while it lives.
        self._index[id(module)] = len(self._modules)
        self._modules.append(_Known(lambda: module, len(self.roots) - 1, below, type(module).__name__))

    def _passing(self, module: nn.Module) -> int:
        """Index of a loss or the like: some libraries make one for each batch, which takes the place of the last.

        Such a module is not kept alive, or a long training would fill the memory with them.
        """
        vacant, held = self._vacant[type(module)], _weakly(module)
        index = vacant.pop() if vacant else len(self._modules)
        if index < len(self._modules):
            known = self._modules[index]
            self._modules[index] = replace(known, held=held)
            self.roots[known.root] = Root(held, None, known.kind)
        else:
            self.roots.append(Root(held, None, _type(module)))
            self._modules.append(_Known(held, len(self.roots) - 1, "", type(module).__name__))
        self._index[id(module)] = index
        weakref.finalize(module, self._left, id(module), type(module), index).atexit = False
        return index

    def _left(self, identity: int, kind: type[nn.Module], index: int) -> None:
        del self._index[identity]
        self._vacant[kind].append(index)

    def names(self) -> list[tuple[str, str]]:
        """(qualified name, type) by index. From the first call on, names stay as they are."""
        self._settle_root_names()
        return [(_joined(self._root_names[known.root], known.below), known.kind) for known in self._modules]

    def root_names(self) -> set[str]:
        """The names of the outermost modules."""
        self._settle_root_names()
        return set(self._root_names)

    def modules(self) -> list[nn.Module]:
        """Every module by index; an empty one where it is gone."""
        return [known.held() for known in self._modules]

    def parameter_modules(self) -> dict[int, int]:
        """Index of the module that owns each parameter, by the parameter's id; a shared one counts for the first."""
        owners: dict[int, int] = {}
        for index, module in enumerate(self.modules()):
            for parameter in module._parameters.values():
                if parameter is not None:
                    owners.setdefault(id(parameter), index)
        return owners

    def _settle_root_names(self) -> None:
        models = sum(_has_parameters(root.module) for root in self.roots)
        for root in self.roots[len(self._root_names) :]:
            alone = "" not in self._root_names and models == 1 and _has_parameters(root.module)
            said = "" if alone else root.kind
            self._root_names.append(self._free(root.name if root.name is not None else said))

    def _free(self, name: str) -> str:
        free, number = name, 2
        while free in self._root_names:
            free, number = f"{name}#{number}", number + 1
        return free


class ModuleScopes:
    """Opens a scope around each module call while a window records, and finds models while none does."""

    def __init__(self, book: ModuleBook) -> None:
        self.book = book
        self._undo: list[Callable[[], None]] = []

    def find_models(self) -> None:
        """Register every outermost module that is called from now on."""
        self.remove()
        if torch_private.can_route_calls():
            self._undo = [torch_private.route_module_calls(self._finding_call())]
        else:
            self._undo = [register_module_forward_pre_hook(self._find).remove]

    def open_scopes(self) -> None:
        """Open a scope around each module call from now on; a window must be recording until after `remove`.

        Scopes are made anew for each window: none may outlive the window in which it was entered (`open_ranges`).
        """
        self.remove()
        if torch_private.can_route_calls():
            call, end = torch_private.scoped_call(self._scope_name)
            self._undo = [end, torch_private.route_module_calls(call)]
        else:
            before, after, end = torch_private.scoping_hooks(self._scope_name)
            handles = [register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)]
            self._undo = [end, *(handle.remove for handle in handles)]

    def remove(self) -> None:
        """Back to plain module calls; scopes that are open end here."""
        undo, self._undo = self._undo, []
        for each in undo:
            each()

    def _finding_call(self) -> Callable[..., Any]:
        index, plain = self.book.index, torch_private.uncompiled_call

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            index(module)
            return plain(module, *args, **kwargs)

        return call

    def _find(self, module: nn.Module, _args: Any) -> None:
        self.book.index(module)

    def _scope_name(self, module: nn.Module) -> str:
        return f"{MODULE_SCOPE}{self.book.index(module)}"


def _joined(root: str, below: str) -> str:
    parts = [part for part in (root, *below.split(".")) if part and part != _COMPILED]
    return ".".join(parts)


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _type(module: nn.Module) -> str:
    return type(getattr(module, _COMPILED, module)).__name__


def _may_be_made_for_a_step(module: nn.Module) -> bool:
    """A loss, an activation: with nothing below it and nothing to learn, none is told from the next."""
    return not module._modules and not module._parameters


def _weakly(module: nn.Module) -> Held:
    reference = weakref.ref(module)

    def held() -> nn.Module:
        alive = reference()
        return _GONE if alive is None else alive

    return held
