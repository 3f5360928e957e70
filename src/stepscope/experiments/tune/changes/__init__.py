"""The changes that `stepscope tune` tries: a file a place where one is made, and this folder is their registry.

A file has a function `changes(facts)` which yields its changes, with the reason where one does not apply
to this training on this machine. `facts` is plain data of the training and the machine (`training.facts_of`), so that
what applies is known without torch. A change that is made while a training goes on has a `switch`, which makes it and
takes it back; one that a process must begin with has an environment, a switch at its start, or both.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets

Facts = Mapping[str, Any]
Switch = Callable[["Targets"], AbstractContextManager[None]]

_CORES = os.cpu_count() or 1
_UNKNOWN: Facts = {  # of a training that nobody has looked at, such as that of a configuration written by hand
    "device": "cpu", "gpu": "", "cores": _CORES, "physical_cores": _CORES, "large_cores": [], "threads": 0,
    "conv2d": 1, "channels_last": False, "calls": 1, "calls_without_gradients": 1,
    "autocast": False, "compiled": False, "zeroes_gradients": True,
    "matmul_precision": "highest", "flushes_denormals": False, "optimizers": [], "blocks": 1, "loader": None,
    "first_learning_blocks": {}, "half_precision": True,
    "batch": 0, "divisible": False, "cpu_capability": "", "glibc": True, "tcmalloc": None, "tcmalloc_in_use": False,
    "jemalloc": None, "interop_threads": 1,
    "compiler": "c++", "environment": {}, "device_settings": {}, "apply_power": False,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One change of a training.

    group: changes of one group exclude each other. code: what to paste, or the line to start with. risk: what may
    differ in the result, "" where nothing does. at_start: needs a process of its own, with this environment.
    loader: arguments of the data loader. goal: what it is for, time, energy or memory. refused: why it does not apply
    here. writes: values by path, of settings of the whole device, which whoever measures makes and puts back.
    by_name: tried only where it is named, because it changes the model or takes long. lossy: numbers are rounded, so
    that it is recommended only where losses were compared.
    """

    name: str
    title: str
    group: str
    code: str
    risk: str = ""
    switch: Switch | None = None
    at_start: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    loader: Mapping[str, Any] = field(default_factory=dict)
    writes: Mapping[str, str] = field(default_factory=dict)
    goal: str = "time"
    refused: str = ""
    by_name: bool = False
    lossy: bool = False


def all_changes(facts: Facts) -> dict[str, Change]:
    """Return every change by its name, those that do not apply with their reason. Facts may be missing."""
    topics = sorted(module.name for module in pkgutil.iter_modules(__path__))
    by_name: dict[str, Change] = {}
    all_facts = {**_UNKNOWN, **facts}
    for topic in topics:
        for change in importlib.import_module(f"{__name__}.{topic}").changes(all_facts):
            by_name[change.name] = change
    return by_name


def refuse_unknown(named: Iterable[str]) -> None:
    """Raise UnknownName for what no training has as a change, before one begins; a number (`threads=3`) is its own."""
    names = {name for change in all_changes({}).values() for name in _names(change)}
    for name in named:
        if name not in names and "=" not in name:
            raise UnknownName("change", name, sorted(names))


def select_changes(changes: Iterable[Change], goal: str, only: Sequence[str], without: Sequence[str]) -> list[Change]:
    """Return the changes to try for a goal: all that apply, or those that are named, by name, group or goal.

    UnknownName for a name that is neither, UsageError where none is left.
    """
    every = list(changes)
    names = {name for change in every for name in _names(change)}
    for name in (*only, *without):
        if name not in names:
            raise UnknownName("change", name, sorted(names))

    def chosen(change: Change) -> bool:
        if _names(change) & set(without):
            return False
        if only:
            return bool(_names(change) & set(only))
        return not change.by_name and change.goal in ("time", goal)

    selection = [change for change in every if chosen(change)]
    if not selection:
        raise UsageError(
            "--only and --not leave no change to try",
            f"--only {','.join(only)} without --not {','.join(without)}" if only else "name fewer with --not",
        )
    return selection


def _names(change: Change) -> set[str]:
    """What selects a change: `workers=2` also as all `workers`."""
    return {change.name, change.name.partition("=")[0], change.group, change.goal}


@contextlib.contextmanager
def remove_hooks_after(hooks: Iterable[Any]) -> Iterator[None]:
    """Remove these hooks of torch at the end."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def calls_within(
    modules: Iterable[Any],
    mode_of: Callable[[Any], AbstractContextManager[Any] | None],
    convert: Callable[[Any], Any],
) -> Iterator[None]:
    """Calls of modules run within a mode of torch, None for as they are; the tensors that they return are converted."""
    modes: list[AbstractContextManager[Any] | None] = []

    def begin(module: Any, _args: object) -> None:
        modes.append(mode_of(module))
        if modes[-1] is not None:
            modes[-1].__enter__()

    def end(_module: object, _args: object, output: Any) -> Any:
        mode = modes.pop() if modes else None
        if mode is None:
            return output
        mode.__exit__(None, None, None)
        return _map_tensors(output, convert)

    hooks: list[Any] = []
    for module in modules:
        hooks += [module.register_forward_pre_hook(begin), module.register_forward_hook(end, always_call=True)]
    try:
        with remove_hooks_after(hooks):
            yield
    finally:
        for mode in reversed(modes):
            if mode is not None:
                mode.__exit__(None, None, None)


def _map_tensors(output: Any, convert: Callable[[Any], Any]) -> Any:
    """Return an output with converted tensors, in tuples, lists and dictionaries as well; the last are the same."""
    import torch

    if isinstance(output, torch.Tensor):
        return convert(output)
    if type(output) in (tuple, list):
        return type(output)(_map_tensors(value, convert) for value in output)
    if isinstance(output, dict):
        for name, value in output.items():
            output[name] = _map_tensors(value, convert)
    return output


@contextlib.contextmanager
def changes_applied(changes: Iterable[Change], targets: Targets) -> Iterator[None]:
    """Make the changes, and take them back in reverse."""
    with contextlib.ExitStack() as stack:
        for change in changes:
            if change.switch is not None:
                stack.enter_context(change.switch(targets))
        yield
