"""The one door between the training's code and ours: what fails on our side stays there, and profiling ends.

Every call of the training into ours goes through a `Boundary`. Our own errors, of any type, are caught there and
reported once, and the door stays shut for the rest of the training. Exceptions of the training pass through untouched,
also those that a signal handler or a timeout raises while our code happens to run. Our frames are hidden from
tracebacks of the training, and routed functions are shown as those they replace.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import sleep as _sleep  # the training may put a mock in its place
from types import CodeType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from stepscope.clock import monotonic_ns

P = ParamSpec("P")
T = TypeVar("T")
_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")  # of a user, of Debian
_TURNS = 100  # to put handlers back, while others raise in between
_SIGACTION_BYTES = 512  # more than any libc's
_libc: ctypes.CDLL | None = None
with contextlib.suppress(OSError, TypeError):
    _libc = ctypes.CDLL(None)
_SHORT_LOOKS = 100  # at a thread that is with us, before those that are a millisecond apart
_PATIENCE_S = 30.0  # a signal handler of the training's may wait for a thread, and came in while another was with us
_PANIC = "PanicException"  # of a library written in Rust: a BaseException, and never meant for the training


class Boundary:
    """Guards the calls of one session; `shut` is told of the first error of ours."""

    def __init__(self, shut: Callable[[BaseException], None], disturbed: Callable[[], None] = lambda: None) -> None:
        self.open = True
        self._shut = shut
        self._disturbed = disturbed  # an exception of the training's passed through us and may have cut us short
        self._lock = threading.RLock()  # a signal handler that trains may come in before `_inside` is set
        self._inside: int | None = None  # the thread that runs our code
        self.spent_ns = 0  # in all calls so far

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call a function of ours; None where it failed, where the door is shut, and from within another such call."""
        if not self.open or self._inside == threading.get_ident():
            return None
        if self._inside is not None and not self.ask(self._has_come_out):
            return None
        with self._lock:
            began_ns = monotonic_ns()
            try:  # an exception that another thread sets may arise at any call from here on
                self._inside = threading.get_ident()
                return function(*args, **kwargs) if self.open else None
            except BaseException as error:
                if not is_ours(error):
                    try:
                        self._disturbed()
                    except BaseException as second:
                        if not is_ours(second):
                            raise
                        self.close(second)  # what is half done is left so
                    raise
                self.close(error)
                return None
            finally:
                self._inside = None
                self.spent_ns += monotonic_ns() - began_ns

    def _has_come_out(self) -> bool:
        """Wait for the thread that is within us; False where it is held up: a signal handler may wait for this one.

        Without taking the lock: an exception that another thread sets could come in before it is given back.
        """
        began_ns, turns, holder = monotonic_ns(), 0, self._inside
        while holder is not None and self._inside == holder:
            _sleep(0.0 if turns < _SHORT_LOOKS else 0.001)
            turns += 1
            if monotonic_ns() - began_ns > _PATIENCE_S * 1e9:
                self.close(
                    TimeoutError("a thread of the training is held up within Stepscope, and may wait for this one")
                )
                return False
        return True

    def ask(self, question: Callable[P, bool], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Ask ours a question that is quickly answered, without the lock; False where it failed or the door is shut."""
        try:
            return self.open and question(*args, **kwargs)
        except BaseException as error:
            self.handle_error(error)
            return False

    def handle_error(self, error: BaseException) -> None:
        """Raise an exception of the training's again; one of ours closes the door."""
        if is_ours(error):
            self.close(error)
            return
        try:
            raise error
        finally:
            del error  # its traceback has this frame, which would keep it, and with it what the training's frames hold

    def call_all(self, actions: Iterable[Callable[[], object]]) -> None:
        """Call every one of these, also after a fault of ours in one of them."""
        for action in actions:
            try:
                action()
            except BaseException as error:
                self.handle_error(error)

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Let nothing through meanwhile: steps that are tried are no part of the training."""
        before, self.open = self.open, False
        try:
            yield
        finally:
            self.open = before

    def close(self, error: BaseException) -> None:
        """Our side failed: tell it, and let nothing more through."""
        if self.open:
            self.open = False
            try:
                # What a signal raises is the training's: formatting a traceback would swallow it.
                with DeferredSignals():
                    self._shut(error)
            except BaseException as second:
                if not is_ours(second):
                    raise
            finally:
                clear_error_frames(error)
                DeferredSignals.end()

    def guarded(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Return the function wrapped so that it is called through this boundary."""

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
            return self.call(function, *args, **kwargs)

        return call

    def close_in_child(self) -> None:
        """Shut the door in a forked child: it is not the profiled training, and no lock can be trusted."""
        self.open = False
        self._lock = threading.RLock()
        self._inside = None


class WithoutCollections:
    """While it is entered the garbage collector is off: short-lived events by the thousand would set it off."""

    def __enter__(self) -> None:
        self._collecting = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._collecting:
            gc.enable()


class DeferredSignals:
    """While it is entered no signal handler runs in the main thread: it waits, and runs, and may raise, at the end.

    A profile that is started or stopped cannot be left halfway: torch would crash. Other threads run no handlers.
    What C has installed for a signal, with its flags (`siginterrupt`, `faulthandler.register`), is put back as it was.
    """

    _now: DeferredSignals | None = None

    def __enter__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._actions: dict[int, Any] = {}
        self._waiting: list[tuple[int, FrameType | None]] = []
        self._outermost = DeferredSignals._now is None and threading.get_ident() == threading.main_thread().ident
        if not self._outermost:
            return
        DeferredSignals._now = self
        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._actions[number] = _action_of(number)
                    self._handlers[number] = handler
                    signal.signal(number, self._defer_signal)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if not self._outermost:
            return
        raised: BaseException | None = None
        try:
            raised = self._restore()
        except Exception as error:  # a fault of ours: the handlers are the training's all the same
            raised, DeferredSignals._now = error, None
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        waited = self._call_waiting()
        if (raised := _exception_to_raise(raised, waited)) is not None:
            try:
                raise raised
            finally:  # its traceback has this frame, which would keep it, and with it what the training's frames hold
                raised = waited = None

    def _restore(self) -> BaseException | None:
        """Put every handler back, whatever one that is back already raises; return that."""
        raised: BaseException | None = None
        remaining, turns = dict(self._handlers), 0
        while remaining:
            turns += 1
            try:
                for number in list(remaining):
                    signal.signal(number, remaining[number])
                    if turns < _TURNS:  # else it is our own fault that comes again and again
                        _restore_action(number, self._actions[number])
                    del remaining[number]
            except BaseException as error:
                raised = _exception_to_raise(raised, error)
        DeferredSignals._now = None
        try:
            return raised
        finally:
            raised = None  # as above

    def _defer_signal(self, number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back  # what the handler is told is where the training was
        self._waiting.append((number, frame))

    def _call_waiting(self) -> BaseException | None:
        """Call the handlers of the signals that came; return the first exception that one raised."""
        raised: BaseException | None = None
        while self._waiting:
            number, frame = self._waiting.pop(0)
            try:
                self._handlers[number](number, frame)
            except BaseException as error:
                raised = _exception_to_raise(raised, error)
        try:
            return raised
        finally:
            raised = None  # as above

    @staticmethod
    def end() -> None:
        """Put the handlers back, and call those of signals that came, where a fault of ours kept `__exit__` from it."""
        now = DeferredSignals._now
        if now is not None and threading.get_ident() == threading.main_thread().ident:
            raised = now._restore()
            waited = now._call_waiting()
            try:
                if (raised := _exception_to_raise(raised, waited)) is not None:
                    raise raised
            finally:
                raised = waited = None  # as above

    @staticmethod
    def end_in_child() -> None:
        """Put the handlers back in a child that a thread forked: the signals were the parent's."""
        if DeferredSignals._now is not None:
            DeferredSignals._now._waiting.clear()
            DeferredSignals.end()


os.register_at_fork(after_in_child=DeferredSignals.end_in_child)


def _exception_to_raise(first: BaseException | None, second: BaseException | None) -> BaseException | None:
    """Return which of two exceptions is raised: the first, but of a fault of ours and one of a handler the latter."""
    if first is None or (second is not None and is_ours(first) and not is_ours(second)):
        return second
    return first


def _action_of(number: int) -> ctypes.Array[ctypes.c_char] | None:
    """Return what C does at a signal (struct sigaction); None where libc cannot be asked."""
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    return action if _libc is not None and _libc.sigaction(number, None, action) == 0 else None


def _restore_action(number: int, action: ctypes.Array[ctypes.c_char] | None) -> None:
    if action is not None and _libc is not None:
        _libc.sigaction(number, action, None)


def is_ours(error: BaseException) -> bool:
    """Return whether an exception that arose while our code ran is a failure of ours, not one of the training's.

    Code of the training's runs within ours where we look at its objects, and where a signal or a trace function comes
    in between. Only the latter may raise what is meant for the training: they are known by the frame that they are
    given. A timeout that is thrown into this thread has a type of the training's.
    """
    try:
        return _arose_with_us(error)
    except Exception as second:  # a fault in here, or a signal just now: what raised it tells as much as is needed
        if not _is_raised_by_us(second):
            raise
        return _is_raised_by_us(error)


def clear_error_frames(error: BaseException) -> None:
    """Clear the frames of a fault of ours that has been told of, not of what the training was handling meanwhile.

    They hold what the training's functions were given, often in cycles: its graph would live until they are collected.
    """
    frames, error.__traceback__ = error.__traceback__, None
    traceback.clear_frames(frames)


def fault_text(error: BaseException) -> str:
    """Return the sentence about a fault of ours that has ended profiling."""
    return f"a fault in Stepscope ended profiling, the training goes on: {type(error).__name__}: {error}"


def _is_raised_by_us(error: BaseException) -> bool:
    """Return whether the line that raised it is ours or a library's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not is_foreign(trace.tb_frame.f_code.co_filename)


def _arose_with_us(error: BaseException) -> bool:
    kind = type(error)
    if not isinstance(error, Exception):
        return kind.__name__ == _PANIC
    frames = list(_frames_of_traceback(error.__traceback__))
    handlers = _signal_handlers()
    if any(frame.f_code in handlers or _receives_frame(frame) for frame in frames):
        return False
    if any(is_foreign(frame.f_code.co_filename) for frame in frames):
        return True
    if "Timeout" in kind.__name__ and not error.args:
        return False  # thrown into the thread by whoever limits its time: of a class, and so without a word
    return not is_foreign(_file_that_defines(kind))


def _receives_frame(frame: FrameType) -> bool:
    """Return whether a function of somebody else's was given a frame: as handlers of signals and trace functions
    are.
    """
    code = frame.f_code
    if code.co_filename.startswith(_OURS):
        return False
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    values = [frame.f_locals.get(name) for name in names]
    arguments = [item for value in values for item in (value if type(value) is tuple else (value,))]  # *args
    return any(isinstance(item, FrameType) for item in arguments)


def _frames_of_traceback(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _signal_handlers() -> set[CodeType]:
    codes: set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        of_its_type = next((vars(kind)["__call__"] for kind in type(handler).__mro__ if "__call__" in vars(kind)), None)
        for function in (handler, getattr(handler, "__func__", None), of_its_type):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
    return codes


def is_foreign(file: str | None) -> bool:
    """Return whether a file is neither ours nor a library's: code of the training."""
    if file is None or file.startswith(("<frozen", _OURS)):
        return False
    return not (file.startswith(_LIBRARIES) or any(part in file for part in INSTALLED))


def _file_that_defines(kind: type) -> str | None:
    """The file in which a type was defined; None for built-in ones."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__ in ("__main__", "__mp_main__"):
        return getattr(module, "__file__", None) or "__main__"
    return getattr(module, "__file__", None)


_HERE = str(Path(__file__).parent)


def optimizers_stepping_below(newest: FrameType) -> set[int]:
    """Return the addresses of optimizers whose `step` is under way below this frame, torch's wrapper of another one."""
    addresses, frame = set(), newest.f_back
    while frame is not None:
        if frame.f_code is newest.f_code:
            addresses.add(id(frame.f_locals.get("self")))
        frame = frame.f_back
    return addresses


def without_our_frames(walk: Callable[[Any], Iterator[tuple[Any, Any]]]) -> Callable[[Any], Iterator[tuple[Any, Any]]]:
    def frames(trace: Any) -> Iterator[tuple[Any, Any]]:
        return (item for item in walk(trace) if not item[0].f_code.co_filename.startswith(_HERE))

    return frames


_PLACE = 0x57E95C09E  # a constant that stands for the function


def _routed_call_template(t1: Any, t2: Any) -> Any:
    routed: Any = 0x57E95C09E  # _PLACE, as a constant of the code
    return routed(t1, t2)


def code_that_calls(function: Callable[[Any, Any], Any], plain: CodeType) -> CodeType:
    """Return code that calls this function with two arguments, and is shown as the code in whose place it stands."""
    template = _routed_call_template.__code__
    constants = tuple(function if value == _PLACE else value for value in template.co_consts)
    names = plain.co_varnames[:2] + template.co_varnames[2:]
    return template.replace(
        co_consts=constants,
        co_varnames=names,
        co_filename=plain.co_filename,
        co_firstlineno=plain.co_firstlineno,
        co_name=plain.co_name,
    )
