"""Whose an exception is that arises while our code runs, and what becomes of the training then."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.patience import HANG_S

import stepscope
from stepscope.record import fault_boundary as boundary_module
from stepscope.record import profile as profile_module
from stepscope.record.fault_boundary import Boundary, DeferredSignals, _action_of, is_ours

_OURS = str(Path(stepscope.__file__).parent / "record" / "a_part.py")


class Timeout(Exception):
    pass


def ours(source: str, **names: Any) -> Callable[[], Any]:
    """A function that lies in a file of ours."""
    scope: dict[str, Any] = dict(names)
    exec(compile(f"def run():\n    {source}", _OURS, "exec"), scope)
    made: Callable[[], Any] = scope["run"]
    return made


def raised(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        trace = error.__traceback__
        return error.with_traceback(None if trace is None else trace.tb_next)  # from our frame on, as it is caught
    raise AssertionError("nothing was raised")


def test_an_error_of_our_own_code_is_ours() -> None:
    assert is_ours(raised(ours("1 / 0")))
    assert is_ours(raised(ours("raise RuntimeError('x')")))


def test_what_an_object_of_the_trainings_raises_when_we_look_at_it_is_ours_to_bear() -> None:
    class Odd:
        def __bool__(self) -> bool:
            raise Timeout

    assert is_ours(raised(ours("return bool(odd)", odd=Odd())))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_is_never_ours(error: type[BaseException]) -> None:
    assert not is_ours(raised(ours("raise error", error=error)))


def test_a_panic_of_a_library_is_ours() -> None:
    assert is_ours(raised(ours("raise error", error=type("PanicException", (BaseException,), {}))))


def test_a_timeout_that_is_thrown_into_the_thread_is_the_trainings() -> None:
    assert not is_ours(raised(ours("raise error", error=Timeout)))


class PlainTimeout(TimeoutError):
    __module__ = "json"  # of a library


@pytest.mark.parametrize("error", [TimeoutError, PlainTimeout])
def test_a_timeout_of_python_or_of_a_library_that_is_thrown_into_the_thread_is_the_trainings(error: type) -> None:
    assert not is_ours(raised(ours("raise error", error=error)))
    assert is_ours(raised(ours("raise error('the sampler said nothing')", error=TimeoutError)))


def test_a_thread_does_not_wait_for_ever_for_another_that_is_held_up_within_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that came in while its thread was with us may wait for this one."""
    monkeypatch.setattr(boundary_module, "_PATIENCE_S", 0.05)
    failures: list[str] = []
    boundary = Boundary(lambda error: failures.append(f"{type(error).__name__}: {error}"))
    entered, worked = threading.Event(), threading.Event()

    def held_up() -> None:
        entered.set()
        assert worked.wait(HANG_S)

    holder = threading.Thread(target=boundary.call, args=(held_up,))
    holder.start()
    assert entered.wait(HANG_S)
    assert boundary.call(lambda: 7) is None
    worked.set()
    holder.join()
    assert not boundary.open
    assert [text.partition(":")[0] for text in failures] == ["TimeoutError"]


@pytest.fixture
def alarm() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGUSR1)

    def set_to(handler: Any) -> None:
        signal.signal(signal.SIGUSR1, handler)

    yield set_to
    signal.signal(signal.SIGUSR1, before)


def _handlers() -> dict[str, Any]:
    def plain(_number: int, _frame: Any) -> None:
        raise ValueError

    def of_anything(*_given: Any) -> None:
        raise ValueError

    def that_resets_itself(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise ValueError

    class Handler:
        def __call__(self, number: int, frame: Any) -> None:
            raise ValueError

    return {"plain": plain, "args": of_anything, "resets": that_resets_itself, "object": Handler()}


@pytest.mark.parametrize("kind", ["plain", "args", "resets", "object"])
def test_what_a_signal_handler_raises_is_the_trainings(alarm: Callable[[Any], None], kind: str) -> None:
    alarm(_handlers()[kind])
    assert not is_ours(raised(ours("send(number)", send=signal.raise_signal, number=signal.SIGUSR1)))


def test_a_boundary_catches_what_is_ours_once_and_lets_nothing_more_through() -> None:
    failures: list[BaseException] = []
    boundary = Boundary(failures.append)
    assert boundary.call(ours("return 7")) == 7
    assert boundary.call(ours("1 / 0")) is None
    assert boundary.call(ours("return 7")) is None
    assert [type(error) for error in failures] == [ZeroDivisionError]
    assert not boundary.open


def test_a_boundary_lets_the_trainings_exceptions_pass_and_stays_open() -> None:
    disturbed: list[bool] = []
    boundary = Boundary(lambda _: None, lambda: disturbed.append(True))
    with pytest.raises(Timeout):
        boundary.call(ours("raise error", error=Timeout))
    assert disturbed == [True]
    assert boundary.call(ours("return 7")) == 7


def test_a_failure_to_tell_of_a_failure_stays_on_our_side() -> None:
    boundary = Boundary(lambda _: ours("raise OSError('full')")())
    assert boundary.call(ours("1 / 0")) is None


def test_a_call_from_within_our_own_code_is_none_of_the_trainings() -> None:
    boundary = Boundary(lambda _: None)
    assert boundary.call(lambda: boundary.call(lambda: 7)) is None


def test_threads_wait_for_each_other_and_none_is_lost() -> None:
    boundary, counted = Boundary(lambda _: None), [0]

    def count() -> None:
        counted[0] += 1

    threads = [threading.Thread(target=lambda: [boundary.call(count) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [2000]


def test_in_a_forked_child_nothing_comes_through() -> None:
    boundary = Boundary(lambda _: None)
    boundary.close_in_child()
    assert boundary.call(lambda: 7) is None


def test_a_signal_that_comes_while_undisturbed_is_handled_at_the_end() -> None:
    def ring(_number: int, _frame: object) -> None:
        raise Timeout

    done = []
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(Timeout), DeferredSignals():  # noqa: PT012 - it is raised by the end of the block
            with DeferredSignals():
                signal.raise_signal(signal.SIGUSR1)
            done.append("inner")
            signal.raise_signal(signal.SIGUSR1)
            done.append("outer")
        assert done == ["inner", "outer"]
        assert signal.getsignal(signal.SIGUSR1) is ring
        with pytest.raises(Timeout):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_waited_is_given_the_frame_in_which_the_training_was() -> None:
    given: list[FrameType | None] = []
    act = ours(
        "with Undisturbed(): ring(number)", Undisturbed=DeferredSignals, ring=signal.raise_signal, number=signal.SIGUSR1
    )
    before = signal.signal(signal.SIGUSR1, lambda _number, frame: given.append(frame))
    try:
        Boundary(lambda _: None).call(act)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert given == [sys._getframe()]


def test_a_boundary_is_shut_when_tidying_up_behind_the_trainings_exception_fails() -> None:
    told: list[BaseException] = []

    def disturbed() -> None:
        raise LookupError

    def ring(_number: int, _frame: object) -> None:
        raise Timeout

    boundary = Boundary(told.append, disturbed)
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(Timeout):
            boundary.call(signal.raise_signal, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [type(error) for error in told] == [LookupError]
    assert not boundary.open


def test_a_shield_that_a_fault_of_ours_keeps_from_ending_ends_with_the_boundary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ring(_number: int, _frame: object) -> None:
        raise Timeout

    def broken(*_: object) -> None:
        raise LookupError

    def work() -> None:
        with DeferredSignals():
            signal.raise_signal(signal.SIGUSR1)

    boundary = Boundary(lambda _: None)
    before = signal.signal(signal.SIGUSR1, ring)
    monkeypatch.setattr(DeferredSignals, "__exit__", broken)
    try:
        with pytest.raises(Timeout):
            boundary.call(work)
        assert signal.getsignal(signal.SIGUSR1) is ring
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not boundary.open


def test_what_a_handler_raises_goes_on_whatever_fails_as_handlers_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(_number: int, _frame: object) -> None:
        raise Timeout

    broken = ours("raise LookupError")
    before = signal.signal(signal.SIGUSR1, ring)
    monkeypatch.setattr(boundary_module, "_restore_action", lambda *_: broken())
    try:
        with pytest.raises(Timeout), DeferredSignals():
            signal.raise_signal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is ring
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("ours", [False, True])
def test_nothing_is_kept_by_an_exception_that_the_end_raises(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Large:
        """What a frame of the training's holds: the loss, and with it the graph."""

    def ring(_number: int, _frame: object) -> None:
        raise Timeout

    def broken(_: DeferredSignals) -> None:
        raise Timeout

    def train() -> weakref.ref[Large]:
        held = Large()
        try:
            with DeferredSignals():
                signal.raise_signal(signal.SIGUSR1)
        except Timeout:
            return weakref.ref(held)
        raise AssertionError

    before = signal.signal(signal.SIGUSR1, ring)
    if ours:
        monkeypatch.setattr(DeferredSignals, "_restore", broken)
    gc.disable()
    try:
        assert train()() is None
    finally:
        gc.enable()
        signal.signal(signal.SIGUSR1, before)


def test_another_thread_needs_no_shield_and_changes_no_handler() -> None:
    before = signal.getsignal(signal.SIGINT)

    def enter() -> None:
        with DeferredSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    seen: list[object] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def _handler_and_flags() -> tuple[bytes, bytes]:
    """What Linux' libc keeps of a signal; between the two lies a mask, of which it fills 8 bytes."""
    action = bytes(_action_of(signal.SIGUSR1) or b"")
    return action[:16], action[136:140]


@pytest.mark.skipif(sys.platform != "linux", reason="the layout of struct sigaction")
def test_what_c_has_installed_for_a_signal_is_put_back() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        signal.siginterrupt(signal.SIGUSR1, False)
        faulthandler.register(signal.SIGUSR1, file=2, chain=True)
        installed = _handler_and_flags()
        with DeferredSignals():
            assert _handler_and_flags() != installed
        assert _handler_and_flags() == installed
    finally:
        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_another_thread_forks_meanwhile_has_the_handlers_of_the_training() -> None:
    codes: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(7 if signal.getsignal(signal.SIGUSR1) is ring else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def ring(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with DeferredSignals():
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
        assert codes == [7]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_trains_as_a_call_begins_does_not_wait_for_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in the thread that has the lock already, and has not said so yet."""
    boundary, free, found = Boundary(lambda _: None), threading.get_ident, []

    def interrupted() -> int:
        free_for_us = boundary._lock.acquire(blocking=False)
        found.append(free_for_us)
        if free_for_us:
            boundary._lock.release()
        return free()

    monkeypatch.setattr(threading, "get_ident", interrupted)
    assert boundary.call(lambda: 3) == 3
    assert found
    assert all(found)


def test_a_scope_whose_session_could_not_begin_does_all_that_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        return ours("raise RuntimeError('a fault of ours')")()

    monkeypatch.setattr(profile_module, "Session", broken)
    monkeypatch.setattr(stepscope, "tune", lambda *_, **__: "tuned")
    profile = stepscope.profile(out=tmp_path, framework="torch")
    with pytest.warns(RuntimeWarning, match="a fault of ours"):
        scope = profile.__enter__()
    assert scope.tune(lambda batch: batch, [1]) == "tuned"
    scope.pause()
    scope.resume()
    scope.note("kind", "message")
    scope.update(answer=42)
    with scope.inside("loss"):
        pass
    scope.step()
    scope._failed(raised(broken))
    scope.close()
