"""Module calls as scopes in the profile: which module an op runs in, and the names of all modules.

A module's name is its qualified name below the outermost module that was called ("layer1.0.conv1"; "" is the model
itself). Further models of the same run, and losses, get their type in front ("Discriminator.conv1").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from stepscope.record import torch_private
from stepscope.record.recorders.phases import MODULE_SCOPE

Scope = AbstractContextManager[Any]


class ModuleScopes:
    """Knows every module by index and, while installed, opens a scope around each call."""

    def __init__(self, found_root: Callable[[nn.Module], None] = lambda _: None) -> None:
        self._found_root = found_root
        self.roots: list[tuple[str, nn.Module]] = []
        self._names: list[tuple[str, str]] = []
        self._index: dict[int, int] = {}
        self._kept: list[nn.Module] = []  # an id is only an identity while its object lives
        self._scopes: dict[nn.Module, Scope] = {}
        self._open: set[int] = set()
        self._undo: Callable[[], None] | None = None

    def names(self) -> list[tuple[str, str]]:
        """(qualified name, type) by index."""
        return self._names

    def index(self, module: nn.Module) -> int:
        """Index of a module; an unknown one becomes a root with everything below it."""
        known = self._index.get(id(module))
        return self.add_root(module) if known is None else known

    def add_root(self, root: nn.Module, name: str | None = None) -> int:
        """Register a model under a name; the first with parameters is "" unless told otherwise."""
        if id(root) in self._index:
            return self._index[id(root)]
        prefix = self._free_name(root) if name is None else name
        self.roots.append((prefix, root))
        for below, module in root.named_modules():
            if id(module) not in self._index:
                self._index[id(module)] = len(self._names)
                self._kept.append(module)
                self._names.append((".".join(part for part in (prefix, below) if part), type(module).__name__))
        self._found_root(root)
        return self._index[id(root)]

    def module_at(self, index: int) -> nn.Module:
        """The module with this index."""
        return self._kept[index]

    def parameter_modules(self) -> dict[int, int]:
        """Index of the module that owns each parameter, by the parameter's id; a shared one counts for the first."""
        owners: dict[int, int] = {}
        for module in self._kept:
            for parameter in module._parameters.values():
                if parameter is not None:
                    owners.setdefault(id(parameter), self._index[id(module)])
        return owners

    def install(self) -> None:
        """Open a scope around each module call from now on."""
        if self._undo is not None:
            return
        if torch_private.can_route_calls():
            self._undo = torch_private.route_module_calls(self._routed_call())
        else:
            handles = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
            self._undo = lambda: [handle.remove() for handle in handles] and None

    def remove(self) -> None:
        """Back to plain module calls."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._open.clear()

    def _routed_call(self) -> Callable[..., Any]:
        scopes, make, plain = self._scopes, self._make_scope, torch_private.uncompiled_call
        is_open = self._open

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            scope = scopes.get(module)
            if scope is None:
                scope = make(module)
            key = id(module)
            if key in is_open:  # a module that calls itself: its scope is not re-entrant, the outer one covers it
                return plain(module, *args, **kwargs)
            is_open.add(key)
            try:
                with scope:
                    return plain(module, *args, **kwargs)
            finally:
                is_open.discard(key)

        return call

    def _enter(self, module: nn.Module, _args: Any) -> None:
        scope = self._scopes.get(module) or self._make_scope(module)
        if id(module) not in self._open:
            self._open.add(id(module))
            scope.__enter__()

    def _leave(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if id(module) in self._open:
            self._open.discard(id(module))
            self._scopes[module].__exit__(None, None, None)

    def _make_scope(self, module: nn.Module) -> Scope:
        scope = torch_private.make_scope(f"{MODULE_SCOPE}{self.index(module)}")
        self._scopes[module] = scope
        return scope

    def _free_name(self, root: nn.Module) -> str:
        taken = {name for name, _ in self.roots}
        if "" not in taken and any(True for _ in root.parameters()):
            return ""
        kind, number = type(root).__name__, 2
        name = kind
        while name in taken:
            name, number = f"{kind}#{number}", number + 1
        return name
