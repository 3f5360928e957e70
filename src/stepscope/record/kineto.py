"""Windows of torch's profiler: ours, those of the training beside them, and how a process ends in which one has run.

None of it is public API. What is touched, since which torch it has had this form, and what happens without it:

| private name | since | without it |
| --- | --- | --- |
| torch._C._autograd._prepare_profiler, _enable_profiler, _disable_profiler | 1.9 | no ops are recorded |
| torch._C._profiler.ProfilerConfig, ProfilerState, _ExperimentalConfig | 2.0, 2.5 | no ops are recorded |
| _KinetoEvent.start_ns, duration_ns, sequence_nr, fwd_thread_id, scope | 2.4 | no ops are recorded |
| torch._C._profiler.RecordScope | 1.13 | layers are not timed apart from operators |
| _ProfilerResult.experimental_event_tree, _ExtraFields_Allocation, _TensorMetadata | 2.1 | no memory is recorded |
| FLAGS_caffe2_log_level of libc10 | 2.0 | c10 warns now and then while memory is recorded |
| torch._C._autograd._profiler_enabled | 1.6 | a profiler of the user's that runs already is found out by its error |
| _ExperimentalConfig(profile_all_threads) | 2.7 | of a step that is too large no backward pass is profiled |
| torch._C._autograd._clear_callbacks | 1.5 | a child forked in a profiled step records into its own memory |
| torch.autograd.profiler.profile._prepare_trace | 1.10 | a profiler of the user's may refuse to start |
| torch.autograd.profiler._is_profiler_enabled | 2.1 | one of another thread is seen only where it starts later |
| torch._C._autograd._toggle_collection_dynamic | 2.5 | a profile that was overtaken records on, unseen |
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from stepscope.record.ops.events import CLOSING
from stepscope.record.torch_private import Scope, make_call_scope

TIMES_NODES_ALONE = hasattr(torch._C._profiler, "RecordScope")
_MAIN_THREAD = threading.main_thread()
_MEMORY_EVENT = "[memory]"
_ERRORS_ONLY = 2  # c10/util/Logging.h
_CHATTER = (
    b"USDT",
    b"External init callback must run in same thread",  # from any thread but the main one
    b"no active profiling session found",  # these of a profile that another one took the place of
    b"Failed to recover relationship between all profiler and kineto events",
    b"Failed to read process name",  # where /proc is hidden
    b"Toggling CPU activity with GPU activity on",
)
_one_at_a_time = threading.RLock()  # whoever starts or stops a profile, of ours or of the training's
_running: KinetoWindow | None = None  # our profile
_others: set[int] = set()  # profiles of the training's, from before they are prepared until they have stopped
_kineto_runs = False  # in this process, now or before


class ProfileOvertaken(RuntimeError):
    """A profiler of the training's was started in another thread while this profile ran: only `leave` can end it."""


@dataclass(eq=False)
class KinetoWindow:
    """A running profile; `stop` ends it, in the thread that started it.

    Kineto has one session a process, and ends ours where another thread starts one (`overtaken`). To stop ours then, or
    before the other has stopped, would crash the process.
    """

    shapes: bool
    memory: bool = False
    nodes_alone: bool = False  # nodes of backward passes, and no operators
    tree: list[Any] = field(default_factory=list)  # roots of `_ProfilerEvent`s, once stopped, where memory is recorded
    speak_again: Callable[[], None] = lambda: None
    end_ranges: Callable[[], None] = lambda: None
    thread: int = field(default_factory=threading.get_ident)
    overtaken: bool = False
    muted: bool = False

    def is_of_this_thread(self) -> bool:
        """A profile belongs to the thread that started it: no other can stop it."""
        return self.thread == threading.get_ident()

    def stop(self, end_scopes: Callable[[], None] = lambda: None) -> list[Any]:
        """The raw `_KinetoEvent`s of the window (times in Unix ns), those of memory excluded; raises Overtaken.

        Whatever is open ends first, within the range CLOSING: what is open after it would crash (`follow_ranges`).
        """
        with _one_at_a_time:
            if self.overtaken:
                raise ProfileOvertaken("the training started a torch profiler of its own in another thread")
            try:
                closing = make_call_scope(CLOSING)
                closing.__enter__()
                try:
                    end_scopes()
                    self.end_ranges()
                finally:
                    closing.__exit__(None, None, None)
            finally:
                result = _disable()
                self.speak_again()
        events: list[Any] = result.events()
        if self.memory:
            self.tree = result.experimental_event_tree()
            events = [event for event in events if event.name() != _MEMORY_EVENT]
        return events

    def leave(self, end_scopes: Callable[[], None] = lambda: None) -> bool:
        """End an overtaken profile, without its events; False where it must wait for the other one, and only rests."""
        with _one_at_a_time:
            end_scopes()
            self.end_ranges()
            if _others:
                self._mute()
                return False
            _disable(self)
            self.speak_again()
        return True

    def _mute(self) -> None:
        toggle = getattr(torch._C._autograd, "_toggle_collection_dynamic", None)
        if toggle is not None and not self.muted:
            self.muted = True
            with without_usdt_lines():
                toggle(False, {torch.profiler.ProfilerActivity.CPU})


def start_window(
    shapes: bool, cuda: bool, memory: bool = False, in_pass: bool = False, nodes_alone: bool = False
) -> KinetoWindow:
    """Start recording on this thread and on the autograd threads that it feeds.

    nodes_alone: of backward passes, without any operator or range: a tenth of the events, and no new memory pages.

    in_pass: it may be stopped within a backward pass, in a process where no other thread runs Python. The engine puts
    back, before each node, what the thread had as the pass began, so that a profile of the thread would go on.
    Raises RuntimeError where a profiler runs already, AttributeError or TypeError where torch has changed.
    """
    activities = {torch.profiler.ProfilerActivity.CPU}
    if cuda:
        activities.add(torch.profiler.ProfilerActivity.CUDA)
    config = _configured(shapes, memory, _experimental(correlate=cuda, in_pass=in_pass))
    enable: Any = torch._C._autograd._enable_profiler
    if nodes_alone:
        enable = functools.partial(enable, scopes={torch._C._profiler.RecordScope.BACKWARD_FUNCTION})
    global _kineto_runs, _running
    with _one_at_a_time:
        if _running is not None or _others or _other_is_enabled():
            raise RuntimeError("another torch profiler is running")  # to prepare another would disturb it
        window = KinetoWindow(shapes, memory, nodes_alone)  # before it runs: nobody would stop a profile that has none
        _kineto_runs = True
        with without_usdt_lines():
            torch._C._autograd._prepare_profiler(config, activities)
            enable(config, activities)
            _running = window
        try:
            if memory:
                window.speak_again = _silence_the_allocator()
            if not nodes_alone:  # which knows no range
                window.end_ranges = follow_ranges()
        except BaseException:
            _disable()
            raise
    return window


@contextlib.contextmanager
def no_other_starts() -> Iterator[None]:
    """Keep profilers of other threads from being started meanwhile, for some milliseconds: they wait."""
    with _one_at_a_time:
        yield


def _other_is_enabled() -> bool:
    """Return whether a profile of the training's runs in this thread, or by Python in any."""
    of_this_thread = getattr(torch._C._autograd, "_profiler_enabled", lambda: False)
    return bool(of_this_thread() or getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def _disable(overtaken: KinetoWindow | None = None) -> Any:
    """Stop the profile of this thread; one that was overtaken has no session, and gets one for that."""
    global _running
    autograd, activities = torch._C._autograd, {torch.profiler.ProfilerActivity.CPU}
    with without_usdt_lines():
        if overtaken is not None:
            config = _configured(False, False, _experimental(correlate=False, in_pass=False))
            autograd._prepare_profiler(config, activities)
        result = autograd._disable_profiler()
    _running = None
    return result


def runs_elsewhere() -> bool:
    """Return whether a profile of ours runs in another thread, which alone may end it."""
    return _running is not None and not _running.is_of_this_thread()


def end_running_profile(at_exit: bool = False) -> None:
    """Stop a profile that runs on after a fault of what stops it: it keeps tensors, and would crash the exit."""
    with _one_at_a_time:
        running = _running
        if running is not None and running.thread == threading.get_ident() and not (running.overtaken and _others):
            with contextlib.suppress(Exception):
                running.stop()
            with contextlib.suppress(Exception):
                _ = _running is None or _disable(running if running.overtaken else None)
        if at_exit and _running is not None:
            end_without_destructors()


@atexit.register  # before any session's own, so that it comes after them
def _at_exit() -> None:
    with contextlib.suppress(Exception):  # the interpreter would print it
        end_running_profile(at_exit=True)


def _silence_the_allocator() -> Callable[[], None]:
    """Keep c10's warnings of blocks older than a profile of memory off the terminal; returns the undo function."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # another build: the line appears now and then
        return lambda: None
    before, level.value = level.value, max(level.value, _ERRORS_ONLY)
    return lambda: setattr(level, "value", before)


def _configured(shapes: bool, memory: bool, experimental: Any) -> Any:
    """Return the configuration of a profile of operators, without stacks, FLOPs and modules."""
    profiler = torch._C._profiler
    config = functools.partial(profiler.ProfilerConfig, profiler.ProfilerState.KINETO, shapes, memory)
    try:
        return config(False, False, False, experimental, "")
    except TypeError:  # older than 2.5: a trace has no identifier
        return config(False, False, False, experimental)


def _experimental(correlate: bool, in_pass: bool) -> Any:
    """Return the profiler configuration; without a GPU, correlation is off: a few percent of an overhead-bound step."""
    config = torch._C._profiler._ExperimentalConfig
    if in_pass:
        return config(disable_external_correlation=not correlate, profile_all_threads=True)
    try:
        return config(disable_external_correlation=not correlate)
    except TypeError:  # older than 2.6: the option does not exist
        return config()


def stops_within_backward() -> bool:
    """Return whether this torch lets a profile end within a backward pass (see `start_window`)."""
    try:
        _experimental(correlate=False, in_pass=True)
    except (AttributeError, TypeError):
        return False
    return True


@contextlib.contextmanager
def without_usdt_lines() -> Iterator[None]:
    """Kineto of torch 2.13 prints "USDT: ..." to file descriptor 2 at start and stop; anything else is passed on."""
    try:
        sys.stderr.flush()
        stderr = os.dup(2)
    except (OSError, ValueError, AttributeError):  # closed, or none at all: nothing to keep clean
        yield
        return
    with contextlib.ExitStack() as opened:
        try:
            caught = opened.enter_context(_file_in_ram())
        except OSError:  # a full disk, or no file descriptor left: better a line too many than a profile that runs on
            os.close(stderr)
            yield
            return
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            caught.seek(0)
            others = [line for line in caught.read().splitlines(keepends=True) if not any(w in line for w in _CHATTER)]
            if others:
                with contextlib.suppress(OSError):  # a full disk, a terminal that is gone
                    os.write(2, b"".join(others))


def _file_in_ram() -> IO[bytes]:
    """Return a file without a disk or folder that a training may have forbidden (Linux), else a temporary one."""
    make = getattr(os, "memfd_create", None)
    return tempfile.TemporaryFile() if make is None else os.fdopen(make("stepscope"), "w+b")


# A profile keeps a record of every range that begins while it runs, and frees them all when it stops. The end of a
# range is told to the profile that runs at that time, whichever it is, with the address of the range's record: one that
# began under an earlier profile is written into freed memory, and the process crashes then or later. So no range may
# outlive the window in which it began. Those of torch (`Optimizer.step`, the data loader) and of the training itself
# are all `torch.profiler.record_function`s; a second end of one, by whoever opened it, does nothing.


def follow_ranges() -> Callable[[], None]:
    """Follow each `record_function` that this thread enters from now on; returns the function that ends the open ones.

    `with` looks up both methods when it begins, so both are in place as long as a window records.
    """
    ranges: Any = torch.profiler.record_function
    enter, leave = ranges.__enter__, ranges.__exit__
    here = threading.get_ident()
    entered: dict[int, Any] = {}

    @functools.wraps(enter)
    def follow(self: Any) -> Any:
        result = enter(self)
        if threading.get_ident() == here:
            entered[id(self)] = self
        return result

    @functools.wraps(leave)
    def forget(self: Any, *error: Any) -> Any:
        entered.pop(id(self), None)
        return leave(self, *error)

    ranges.__enter__, ranges.__exit__ = follow, forget

    def end() -> None:
        if ranges.__enter__ is follow and ranges.__exit__ is forget:  # else somebody wrapped ours: they pass through
            ranges.__enter__, ranges.__exit__ = enter, leave
        for entry in reversed(list(entered.values())):
            leave(entry, None, None, None)
        entered.clear()

    return end


def before_other_profilers(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` when somebody else starts a torch profiler, before it starts; returns the undo function.

    A window of ours that this cannot end, since another thread started it, is overtaken.
    """
    profile: Any = torch.autograd.profiler.profile
    prepares, ends = vars(profile).get("_prepare_trace"), vars(profile).get("__exit__")
    if prepares is None or ends is None:
        return lambda: None

    @functools.wraps(prepares)
    def prepare(self: Any) -> Any:
        callback()
        with _one_at_a_time:
            _others.add(id(self))
            if _running is None:
                quiet: Scope = contextlib.nullcontext()
            else:
                _running.overtaken, quiet = True, without_usdt_lines()
            try:
                with quiet:
                    return prepares(self)
            except BaseException:
                _others.discard(id(self))
                raise

    @functools.wraps(ends)
    def end(self: Any, *error: Any) -> Any:
        try:
            return ends(self, *error)
        finally:
            _others.discard(id(self))
            if over:
                restore()

    profile._prepare_trace, profile.__exit__ = prepare, end
    over = False
    annotators = _before_annotators(lambda: callback())

    def restore() -> None:
        for name, ours, theirs in (("_prepare_trace", prepare, prepares), ("__exit__", end, ends)):
            if vars(profile).get(name) is ours and not _others and _running is None:  # else when those have stopped
                setattr(profile, name, theirs)

    def undo() -> None:
        nonlocal callback, over
        callback, over = lambda: None, True  # where somebody has wrapped ours meanwhile, it passes through
        restore()
        annotators()

    return undo


def _before_annotators(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` before `emit_nvtx`, `emit_itt` or the legacy profiler starts: each fails beside another."""
    legacy = getattr(sys.modules.get("torch.autograd.profiler_legacy"), "profile", None)
    wrapped = [getattr(torch.autograd.profiler, name, None) for name in ("emit_nvtx", "emit_itt")]
    routed: list[tuple[Any, Any, Any]] = []
    for kind in filter(None, (*wrapped, legacy)):
        plain = vars(kind).get("__enter__")
        if plain is None:
            continue

        @functools.wraps(plain)
        def enter(self: Any, plain: Any = plain) -> Any:
            callback()
            return plain(self)

        kind.__enter__ = enter
        routed.append((kind, plain, enter))

    def undo() -> None:
        for kind, plain, enter in routed:
            if vars(kind).get("__enter__") is enter:
                kind.__enter__ = plain

    return undo


def forget_callbacks() -> None:
    """Remove, in a forked child, the callbacks of the parent's profile from every op, without notifying the profile."""
    clear = getattr(torch._C._autograd, "_clear_callbacks", None)
    if clear is not None:
        clear()


def end_forked_children_early() -> None:
    """Let a forked child of a process in which Kineto has run end without C++ destructors.

    The one of Kineto's configuration waits for a thread that a fork does not copy, and the child would never end.
    """
    global _running, _one_at_a_time
    _running, _one_at_a_time = None, threading.RLock()
    _others.clear()
    if not _kineto_runs:
        return
    if threading.get_ident() == _MAIN_THREAD.ident:
        atexit.register(end_without_destructors)  # the lock it takes may be held here by a thread that is not copied
    else:  # where this thread returns, the child ends without Python's end
        end_without_destructors()


def end_without_destructors() -> None:
    """Let `_exit` take the place of what `exit` would still do, once Python and the C library have written everything.

    For a process that would crash or hang there: with a profile that nobody can stop any more, or half of Kineto.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        for name in ("_exit", "_IO_flush_all"):  # the one that is registered last comes first
            libc.on_exit(ctypes.cast(getattr(libc, name), ctypes.c_void_p), None)
