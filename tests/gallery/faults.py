"""Faults of ours, on purpose: a function of Stepscope raises when the training's process calls it."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stepscope

_FILE = str(Path(stepscope.__file__).parent / "record" / "a_fault.py")  # the traceback is one of ours
_SOURCE = "def broken(*args, **kwargs):\n    raise RuntimeError('a fault of ours, on purpose')\n"
MODULES = (
    "record.session", "record.torch_recorder", "record.recorder", "record.steps",
    "record.update_rounds", "record.optimizers",
    "record.plan", "record.facts", "record.settings", "record.torch_private",
    "record.empty_process", "record.repeats", "record.sample_count", "record.step_log",
    "record.allocators", "record.device", "record.sampler.process", "record.ops.modules", "record.ops.events",
    "record.ops.rows", "record.memory.watch", "record.memory.rows", "record.processes.training",
    "record.processes.children", "record.windows", "runfolder.writer", "runfolder.parts",
)  # fmt: skip
# Whose failure is no fault inside a training: they run before it, in the process that starts it, or are the guard.
_BEFORE = {
    "record.session:Session.__init__", "record.repeats:Repeats.__init__",
    "record.torch_recorder:TorchRecorder.__init__", "record.torch_recorder:TorchRecorder.listen",
    "record.processes.training:run_target", "record.processes.training:_run_script", "record.processes.training:_code",
    "record.processes.training:_empty", "record.processes.training:_guarded", "record.processes.training:_without_us",
    "record.processes.training:_end_with_parent", "record.processes.training:_wait_for_go",
    "record.processes.training:_show_without_us", "record.processes.training:_is_start",
    "record.processes.training:_run_stdin",
    "record.processes.training:Recording.__init__", "record.session:Session.start", "record.session:Session.close",
    "record.session:Session._safely", "record.processes.children:join_children",
    "record.processes.training:Recording.wait_for_torch", "record.processes.training:Orders.__init__",
    "record.processes.training:Orders.to_json", "record.processes.training:Orders.from_json",
    "record.processes.children:when_imported", "record.processes.children:_act",
    "record.processes.children:_Finder.__init__", "record.processes.children:_Finder.find_spec",
    "record.processes.children:_Loader.__init__", "record.processes.children:_Loader.create_module",
    "record.processes.children:_Loader.exec_module", "runfolder.writer:RunWriter.create",
}  # fmt: skip


def functions() -> Iterator[str]:
    """Every function and method of ours that can run inside a training, as "module:qualified name"."""
    for name in MODULES:
        module = importlib.import_module(f"stepscope.{name}")
        for key, value in sorted(vars(module).items()):
            if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
                yield f"{name}:{key}"
            elif inspect.isclass(value) and value.__module__ == module.__name__:
                for method, function in sorted(vars(value).items()):
                    plain = isinstance(function, types.FunctionType)
                    if plain and (method == "__init__" or not method.startswith("__")):
                        yield f"{name}:{key}.{method}"


def injectable() -> list[str]:
    """Those that a training may call."""
    return [function for function in functions() if function not in _BEFORE]


def _owner(place: str) -> tuple[Any, str]:
    """The module or class that has a function, and the name of the function there."""
    name, _, qualified = place.partition(":")
    owner: Any = importlib.import_module(f"stepscope.{name}")
    *above, last = qualified.split(".")
    for part in above:
        owner = getattr(owner, part)
    return owner, last


def inject(place: str) -> None:
    """Let this function raise from now on."""
    scope: dict[str, Any] = {}
    exec(compile(_SOURCE, _FILE, "exec"), scope)
    setattr(*_owner(place), scope["broken"])


def note_calls(file: Path) -> None:
    """Write into a file, a line each, which of the injectable functions are called from now on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for place in injectable():
        owner, name = _owner(place)
        setattr(owner, name, _noted(vars(owner)[name], f"{place}\n".encode(), descriptor))


def _noted(function: Any, line: bytes, descriptor: int) -> Any:
    waiting = [line]

    @functools.wraps(function)
    def noted(*arguments: Any, **options: Any) -> Any:
        if waiting:
            os.write(descriptor, waiting.pop())
        return function(*arguments, **options)

    return noted
