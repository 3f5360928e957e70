"""Everything of torch that is not public API, in one place, each with its fallback.

What is touched, since which torch it has had this form, and what happens without it:

| private name | since | without it |
| --- | --- | --- |
| torch._C._autograd._prepare_profiler, _enable_profiler, _disable_profiler | 1.9 | no ops are recorded |
| torch._C._profiler.ProfilerConfig, ProfilerState, _ExperimentalConfig | 2.0 | no ops are recorded |
| _KinetoEvent.start_ns, duration_ns, sequence_nr, fwd_thread_id, scope | 2.4 | no ops are recorded |
| _ProfilerResult.experimental_event_tree, _ExtraFields_Allocation, _TensorMetadata | 2.1 | no memory is recorded |
| FLAGS_caffe2_log_level of libc10 | 2.0 | c10 warns now and then while memory is recorded |
| torch._C._profiler._RecordFunctionFast | 2.2 | torch.profiler.record_function |
| torch._C._autograd._profiler_enabled | 1.6 | a profiler of the user's that runs already is found out by its error |
| nn.Module._compiled_call_impl (a class attribute, None) | 2.1 | global module hooks |
| torch.autograd.profiler.profile._prepare_trace | 1.10 | a profiler of the user's may refuse to start |
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepscope.record.recorders.open_ranges import follow_ranges
from stepscope.record.recorders.phases import CLOSING

ModuleCall = Callable[..., Any]
Hook = Callable[..., None]
_MEMORY_EVENT = "[memory]"
_ERRORS_ONLY = 2  # c10/util/Logging.h
Scope = contextlib.AbstractContextManager[Any]


@dataclass
class KinetoWindow:
    """A running profile; `stop` ends it, in the thread that started it."""

    shapes: bool
    memory: bool = False
    tree: list[Any] = field(default_factory=list)  # roots of `_ProfilerEvent`s, once stopped, where memory is recorded
    speak_again: Callable[[], None] = lambda: None
    end_ranges: Callable[[], None] = lambda: None
    thread: int = field(default_factory=threading.get_ident)

    def is_of_this_thread(self) -> bool:
        """A profile belongs to the thread that started it: no other can stop it."""
        return self.thread == threading.get_ident()

    def stop(self, end_scopes: Callable[[], None] = lambda: None) -> list[Any]:
        """The raw `_KinetoEvent`s of the window (times in Unix ns), those of memory left out.

        Whatever is open ends first, within the range CLOSING: what is open after it would crash (`open_ranges`).
        """
        closing = _fast_scope(CLOSING)
        closing.__enter__()
        try:
            end_scopes()
            self.end_ranges()
        finally:
            closing.__exit__(None, None, None)
            with usdt_lines_kept_off_the_terminal():
                result = torch._C._autograd._disable_profiler()
            self.speak_again()
        events: list[Any] = result.events()
        if self.memory:
            self.tree = result.experimental_event_tree()
            events = [event for event in events if event.name() != _MEMORY_EVENT]
        return events


def start_window(shapes: bool, cuda: bool, memory: bool = False) -> KinetoWindow:
    """Start recording on this thread and on the autograd threads that it feeds.

    Raises RuntimeError where a profiler runs already, AttributeError or TypeError where torch has changed.
    """
    if getattr(torch._C._autograd, "_profiler_enabled", lambda: False)():
        raise RuntimeError("a torch profiler of the training's own is running")  # to prepare another would disturb it
    profiler = torch._C._profiler
    activities = {torch.profiler.ProfilerActivity.CPU}
    if cuda:
        activities.add(torch.profiler.ProfilerActivity.CUDA)
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO, shapes, memory, False, False, False, _experimental(correlate=cuda), ""
    )
    with usdt_lines_kept_off_the_terminal():
        torch._C._autograd._prepare_profiler(config, activities)
        torch._C._autograd._enable_profiler(config, activities)
    speak_again = _silence_the_allocator() if memory else lambda: None
    return KinetoWindow(shapes, memory, speak_again=speak_again, end_ranges=follow_ranges())


def _silence_the_allocator() -> Callable[[], None]:
    """Keep c10's warnings off the terminal; returns the undo function.

    While memory is profiled the CPU allocator warns of every 1,000th free of a block that is older than the profile.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # another build: the line appears now and then
        return lambda: None
    before, level.value = level.value, max(level.value, _ERRORS_ONLY)

    def undo() -> None:
        level.value = before

    return undo


def _experimental(correlate: bool) -> Any:
    """Without a GPU nothing needs to be correlated, which saves a few percent of a dispatch-bound step."""
    config = torch._C._profiler._ExperimentalConfig
    try:
        return config(disable_external_correlation=not correlate)
    except TypeError:  # older than 2.6: the option does not exist
        return config()


@contextlib.contextmanager
def usdt_lines_kept_off_the_terminal() -> Iterator[None]:
    """Kineto of torch 2.13 prints "USDT: ..." to file descriptor 2 at start and stop; anything else is passed on."""
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (OSError, ValueError, AttributeError):  # closed, or none at all: nothing to keep clean
        yield
        return
    with contextlib.ExitStack() as opened:
        try:
            caught = opened.enter_context(tempfile.TemporaryFile())
        except OSError:  # a full disk, or no file descriptor left: better a line too many than a profile that runs on
            os.close(kept)
            yield
            return
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            others = [line for line in caught.read().splitlines(keepends=True) if b"USDT" not in line]
            if others:
                os.write(2, b"".join(others))


def make_scope(name: str) -> Scope:
    """A reusable (not re-entrant) named range in the profile, which may outlive a window; 2 us."""
    return torch.profiler.record_function(name)


def _fast_scope(name: str) -> Scope:
    """The same at 0.1 us, for those who see to it that it is left in the window in which it was entered."""
    fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    return torch.profiler.record_function(name) if fast is None else fast(name)


def can_route_calls() -> bool:
    """Has nn.Module the class attribute that its __call__ looks up first?"""
    return "_compiled_call_impl" in vars(nn.Module) and vars(nn.Module)["_compiled_call_impl"] is None


def route_module_calls(call: ModuleCall) -> Callable[[], None]:
    """Route each `module(...)` through `call(module, *args, **kwargs)`; returns the function that undoes it.

    nn.Module.__call__ looks at the attribute `_compiled_call_impl` before anything else; a plain function there on
    the class becomes a bound method and costs one Python call. A module that was compiled in place has an attribute
    of its own, which stays in force.
    """
    nn.Module._compiled_call_impl = call

    def undo() -> None:
        nn.Module._compiled_call_impl = None

    return undo


def uncompiled_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What nn.Module.__call__ would have done."""
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def scoped_call(name: Callable[[nn.Module], str]) -> tuple[ModuleCall, Callable[[], None]]:
    """A call for `route_module_calls` with a scope around it, named by `name`, and the function that ends it all.

    It runs for every module of every recorded step: a frame less here is a percent of a dispatch-bound step.
    """
    made: list[Scope] = []
    free: dict[int, Scope] = {}  # a scope that is open cannot be entered again, so it is taken out meanwhile
    ended = False

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if ended:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        key = id(module)
        scope = free.pop(key, None)
        if scope is None:
            scope = _fast_scope(name(module))
            made.append(scope)
        scope.__enter__()
        try:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            if not ended:  # the window may have closed inside this call
                scope.__exit__(None, None, None)
                free[key] = scope

    def end() -> None:
        nonlocal ended
        ended = True
        left = {id(scope) for scope in free.values()}
        for scope in made:
            if id(scope) not in left:
                with contextlib.suppress(RuntimeError):  # entered in a thread that is not recorded: nothing began
                    scope.__exit__(None, None, None)

    return call, end


def scoping_hooks(name: Callable[[nn.Module], str]) -> tuple[Hook, Hook, Callable[[], None]]:
    """The same as global hooks: one before a call, one after it, and the function that ends it all."""
    entered: dict[int, Scope] = {}

    def before(module: nn.Module, _args: Any) -> None:
        if id(module) not in entered:
            entered[id(module)] = scope = _fast_scope(name(module))
            scope.__enter__()

    def after(module: nn.Module, _args: Any, _output: Any) -> None:
        scope = entered.pop(id(module), None)
        if scope is not None:
            scope.__exit__(None, None, None)

    def end() -> None:
        for scope in reversed(list(entered.values())):
            with contextlib.suppress(RuntimeError):  # as above
                scope.__exit__(None, None, None)
        entered.clear()

    return before, after, end


def before_other_profilers(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` when somebody else starts a torch profiler, before it starts; returns the undo function."""
    profile = torch.autograd.profiler.profile
    original = getattr(profile, "_prepare_trace", None)
    if original is None:
        return lambda: None

    def prepare(self: Any) -> Any:
        callback()
        return original(self)

    profile._prepare_trace = prepare  # type: ignore[method-assign]

    def undo() -> None:
        profile._prepare_trace = original  # type: ignore[method-assign]

    return undo
