"""Counts what a program really trains, through torch's own global hooks alone; Python imports it at every start.

A byte is appended for each event, so that the count survives any end of the process. Files in $PROGRAM_COUNTS:
PID.step.N optimizer steps of the Nth optimizer, PID.backward calls of backward, PID.layer a line for each module that
has trainable parameters of its own and was called while gradients were on.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_FOLDER = os.environ.get("PROGRAM_COUNTS", "")
_files: dict[str, int] = {}
_optimizers: list[Any] = []
_layers: dict[int, Any] = {}


def _append(what: str, text: bytes) -> None:
    name = f"{os.getpid()}.{what}"
    if name not in _files:
        _files[name] = os.open(os.path.join(_FOLDER, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # noqa: PTH118
    os.write(_files[name], text)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    at = next((at for at, one in enumerate(_optimizers) if one is optimizer), len(_optimizers))
    if at == len(_optimizers):
        _optimizers.append(optimizer)
    _append(f"step.{at}", b".")


def _called(module: Any, args: Any, output: Any) -> None:
    if id(module) in _layers or not sys.modules["torch"].is_grad_enabled():
        return
    _layers[id(module)] = module
    if any(one is not None and one.requires_grad for one in module._parameters.values()):
        _append("layer", f"{type(module).__name__}\n".encode())


def _watch_optimizers(module: Any) -> None:
    module.register_optimizer_step_post_hook(_stepped)


def _watch_modules(module: Any) -> None:
    if os.environ.get("PROGRAM_COUNTS_LAYERS", "1") == "1":
        module.register_module_forward_hook(_called)


def _watch_backward(module: Any) -> None:
    backward = module.backward

    def counted(*args: Any, **kwargs: Any) -> Any:
        _append("backward", b".")
        return backward(*args, **kwargs)

    module.backward = counted


_WATCHED = {
    "torch.optim.optimizer": _watch_optimizers,
    "torch.nn.modules.module": _watch_modules,
    "torch.autograd": _watch_backward,
}


class _Loader(importlib.abc.Loader):
    """Loads a module as it is, then watches it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _WATCHED[module.__name__](module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the three watched modules where Python would have found them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if _FOLDER:
    sys.meta_path.insert(0, _Finder())
