"""Faults of ours, on purpose: a function of Stepscope raises when the training's process calls it."""

from __future__ import annotations

import _thread
import functools
import importlib
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import stepscope

_FILE = str(Path(stepscope.__file__).parent / "record" / "a_fault.py")  # the traceback is one of ours
_SOURCE = "def broken(*args, **kwargs):\n    raise RuntimeError('a fault of ours, on purpose')\n"
_UNNAMED = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<module>")  # run where they stand
MODULES = (
    "arrays", "clock", "errors", "files", "liveness", "part_names", "privacy", "request", "record.access",
    "record.c_allocators", "record.fault_boundary", "record.call_samples", "record.device", "record.empty_process",
    "record.event_cost", "record.run_facts", "record.framework", "record.gradient_threads", "record.kineto",
    "record.layer_times", "record.listeners", "record.memory.rows", "record.memory.event_tree",
    "record.memory.tensor_watch", "record.meters", "record.ops.closures", "record.ops.costs", "record.ops.events",
    "record.ops.module_calls", "record.ops.modules", "record.ops.rows",
    "record.ops.source_lines", "record.ops.updates",
    "record.optimizer_identity", "record.plan", "record.processes.children", "record.processes.training",
    "record.profile", "record.recorder", "record.repeated_steps", "record.sample_count", "record.sampler.process",
    "record.sensors", "record.sensors.contract", "record.sensors.number_files", "record.session", "record.settings",
    "record.steps", "record.torch_hooks", "record.torch_private", "record.torch_recorder",
    "record.update_rounds", "record.op_windows", "runfolder", "runfolder.parts",
    "runfolder.schema", "runfolder.writer",
)  # fmt: skip
COMMAND = (  # of `stepscope run`, which starts a script
    "__main__", "api.run_request", "cli._script", "quantities", "record.ceilings",
    "record.script", "record.signals", "run_paths", "runfolder.checksums",
    "runfolder.pack", "runfolder.reader", "runfolder.samples", "runfolder.tables",
    "runfolder.thinning", "runfolder.validation",
)  # fmt: skip
# Of what is loaded in a training's process, these hold no function that a fault could stand in, or pytest calls it.
EMPTY = (
    "pytest_plugin", "api", "cli", "record", "record.memory", "record.ops", "record.processes", "record.sampler",
)  # fmt: skip
# What torch, Python or the training itself calls in place of its own: nothing stands above it. It makes sure of its
# callees, which are broken in turn, and does nothing else.
DOORS = {
    "record.fault_boundary:Boundary.ask", "record.fault_boundary:Boundary.call",
    "record.fault_boundary:Boundary.handle_error", "record.fault_boundary:Boundary.guarded.call",
    "record.fault_boundary:DeferredSignals._defer_signal", "record.fault_boundary:is_ours",
    "record.fault_boundary:without_our_frames.frames", "record.kineto:_at_exit",
    "record.kineto:before_other_profilers.end", "record.kineto:before_other_profilers.prepare",
    "record.kineto:follow_ranges.follow", "record.kineto:follow_ranges.forget",
    "record.processes.children:_Finder.find_spec", "record.processes.children:_Loader.__getattr__",
    "record.processes.children:_Loader.create_module", "record.processes.children:_Loader.exec_module",
    "record.processes.children:_joining_popen.start", "record.processes.children:_joining_spawn.spawn",
    "record.processes.children:_raise_unless_ours", "record.processes.training:_run_ignoring_our_faults",
    "record.profile:Scope.close", "record.profile:Scope.inside", "record.profile:Scope.note",
    "record.profile:Scope.pause", "record.profile:Scope.resume", "record.profile:Scope.step",
    "record.profile:Scope.update", "record.profile:profile.__exit__", "record.session:Session.at_exit",
    "record.torch_hooks:TorchHooks._announced_update.apply", "record.torch_hooks:TorchHooks._wrap_backward.run",
    "record.torch_hooks:TorchHooks._wrap_module_compile.compile_in_place",
    "record.torch_hooks:TorchHooks._distributed_backward.run", "record.torch_hooks:TorchHooks._wrap_loader_next.take",
    "record.torch_hooks:TorchHooks._make_optimizer_hooks.after",
    "record.torch_hooks:TorchHooks._make_optimizer_hooks.before", "record.torch_hooks:TorchHooks._scaler_step.step",
    "record.torch_hooks:TorchHooks._wrap_swap_tensors.swap", "record.torch_hooks:_ModuleRoute._outermost_call",
    "record.torch_hooks:_ModuleRoute._routed_call.call", "record.torch_private:act_within_backward.<lambda>-2",
    "record.op_windows:_PendingCall.__bool__",
}  # fmt: skip
# What starts a script, or is `stepscope.profile(...)` itself: it fails before the first line, or the loop, and says so.
STARTS = {
    "record.framework:_leaves", "record.framework:framework_of", "record.meters:_with_distinct_names",
    "record.meters:parse_meters", "record.processes.training:_compile_script",
    "record.processes.training:add_current_folder",
    "record.processes.training:_reset_main_module", "record.processes.training:_run_script",
    "record.processes.training:run_module_as_main", "record.processes.training:run_target",
    "record.profile:Scope.__init__", "record.profile:_is_module",
    "record.profile:_as_list", "record.profile:profile.__enter__", "record.profile:profile.__init__",
    "record.settings:parse_max_disk", "record.settings:sampling_period_ns",
}  # fmt: skip
Code = types.CodeType


def places() -> dict[str, tuple[types.FunctionType, tuple[Code, ...]]]:
    """Every function of these modules by its place, "module:qualified name": the function that holds its code, and
    the codes on the way to it, from that function's own.

    Methods of every kind, properties and functions within functions are among them; of several lambdas in one function
    each has its number.
    """
    found: dict[str, tuple[types.FunctionType, tuple[Code, ...]]] = {}
    for name in (*MODULES, *COMMAND):
        module = importlib.import_module(f"stepscope.{name}")
        for qualified, function in _functions_of(module):
            for path, codes in _within(qualified, (function.__code__,)):
                place = f"{name}:{path}"
                number = 2
                while place in found:
                    place, number = f"{name}:{path}-{number}", number + 1
                found[place] = function, codes
    return found


def _functions_of(module: types.ModuleType) -> Iterator[tuple[str, types.FunctionType]]:
    seen: set[Code] = set()
    owners: list[tuple[str, Any]] = [("", module)]
    for above, owner in owners:
        for key, value in sorted(vars(owner).items()):
            if inspect.isclass(value) and value.__module__ == module.__name__ and value.__qualname__ == f"{above}{key}":
                owners.append((f"{above}{key}.", value))
            for function in _plain(value):
                if function.__code__.co_filename == module.__file__ and function.__code__ not in seen:
                    seen.add(function.__code__)
                    yield f"{above}{key}", function


def _plain(value: Any) -> Iterator[types.FunctionType]:
    """Return the functions behind a method, a property, or a decorated function."""
    if isinstance(value, property):
        parts = [value.fget, value.fset, value.fdel]
    elif isinstance(value, (classmethod, staticmethod)):
        parts = [value.__func__]
    elif isinstance(value, functools.cached_property):
        parts = [value.func]
    else:
        parts = [value]
    for part in parts:
        part = inspect.unwrap(part) if callable(part) else part
        if isinstance(part, types.FunctionType):
            yield part


def _within(path: str, codes: tuple[Code, ...]) -> Iterator[tuple[str, tuple[Code, ...]]]:
    if codes[-1].co_name not in _UNNAMED:
        yield path, codes
    for constant in codes[-1].co_consts:
        if isinstance(constant, Code):
            name = path if constant.co_name in _UNNAMED else f"{path}.{constant.co_name}"
            yield from _within(name, (*codes, constant))


def inject(place: str) -> None:
    """Let this function raise from now on, by whatever name its caller knows it."""
    scope: dict[str, Any] = {}
    exec(compile(_SOURCE, _FILE, "exec"), scope)
    function, codes = places()[place]
    broken: Code = scope["broken"].__code__.replace(co_freevars=codes[-1].co_freevars)
    for above, code in zip(reversed(codes[:-1]), reversed(codes[1:]), strict=True):
        broken = above.replace(co_consts=tuple(broken if part is code else part for part in above.co_consts))
    function.__code__ = broken


def note_calls(file: Path) -> None:
    """Write into a file, a line each, which of the functions are called from now on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    waiting = {codes[-1]: f"{place}\n".encode() for place, (_, codes) in places().items()}

    def note(frame: types.FrameType, event: str, _about: Any) -> None:
        line = waiting.pop(frame.f_code, None) if event == "call" else None
        if line is not None:
            os.write(descriptor, line)

    start = _thread.start_new_thread

    def start_noted(function: Callable[..., Any], *rest: Any) -> int:
        def run(*args: Any, **kwargs: Any) -> Any:
            sys.setprofile(note)
            return function(*args, **kwargs)

        return start(run, *rest)

    _thread.start_new_thread = threading._start_new_thread = start_noted  # type: ignore[attr-defined]
    sys.setprofile(note)
