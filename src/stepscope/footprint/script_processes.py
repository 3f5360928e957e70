"""Processes and threads that a script starts while it is followed: none outlives the answer, no program changes things.

What trains in one of its own (`Process(target=train)`, `torch.multiprocessing.spawn`, a thread, an executor) is done
where it is started. Of processes that train alike the others are not started. Of a process group it is the only
member, and hears of as many as there would be. Of other processes it is said that their memory is not known.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import functools
import mmap
import multiprocessing
import os
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed

from stepscope.footprint.script_programs import first_acting_program
from stepscope.footprint.script_progress import Progress, resident_bytes, temporary_attribute
from stepscope.footprint.time_limit import TimeLimitReached
from stepscope.record.fault_boundary import is_foreign
from stepscope.units import plural

_PATIENCE_S = 5.0  # for a process that was asked to end
_MEMORY_UNKNOWN = "what processes take that it starts"
_WORTH = 30_000_000  # B that a process takes beyond what it was born with, that are worth a word
_SPAWN = "torch.multiprocessing.spawn"
_STARTER = "what the process takes that starts the training in another"
_AS_MUCH_AGAIN = "other processes that train as the first one does: each takes as much again"
_AT_ONCE = "what its threads take that train at the same time as others"
_CHUNK = "_process_chunk"  # of concurrent.futures.process: what its workers are given of map()


class Processes:
    """Processes of one script; those that would run it anew, unfollowed, are not started: it is left there.

    refused: programs that were not run. trained: 1 once a child has made an update, which is not followed.
    """

    def __init__(self, progress: Progress, ranks: Ranks) -> None:
        self._progress, self._ranks = progress, ranks
        self.refused: list[str] = []
        self._started: list[Any] = []
        self._process = os.getpid()
        self._growth = _shared_number()  # B at most by which a child has grown, which writes it here
        self.trained = _shared_number()

    def note_running(self) -> None:
        """Say where some run beside the training; in one of them, that it trains itself."""
        if os.getpid() != self._process:
            self.trained.value = 1
        elif any(map(_runs, self._started)):
            self._progress.note_missed(_MEMORY_UNKNOWN)

    def _note_ended(self) -> None:
        """Say where some have run before an update, or after the last one, and took memory."""
        if self.trained.value:
            self._progress.note_missed(_AS_MUCH_AGAIN)
            self._progress.rest_unknown = True
        elif self._growth.value > _WORTH:
            self._progress.note_missed(_MEMORY_UNKNOWN)

    def _note_growth(self, process: str, at_birth: int) -> None:
        peak = resident_bytes(at_most=True, process=process) - at_birth
        self._growth.value = max(peak, self._growth.value)

    def _is_refused(self, command: Any, executable: Any = None) -> bool:
        """Return whether a command is not run, and say so: whatever is not known to do no more than answer."""
        if self._progress.updates == 0 and _starts_itself(command):
            raise TimeLimitReached("it starts itself, or a training, in another process: give fit that one", None)
        unrun = first_acting_program(command, executable)
        if unrun is not None:
            self.refused.append(unrun)
            self._progress.note_missed(f"what {unrun!r} does: programs that may do more than answer are not run")
        return unrun is not None

    def _spawn(self, path: Any, words: Any, environment: Any, **options: Any) -> int:
        """Start a program as `Popen` does; one whose files or session are set as well is not run."""
        program = ["true"] if options and self._is_refused([">"]) else list(words)
        return subprocess.Popen(program, executable=None if options else path, env=environment).pid

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Know what it starts, and end it at last."""
        plain, plain_program = BaseProcess.start, subprocess.Popen.__init__
        plain_life, plain_end = BaseProcess._bootstrap, BaseProcess.terminate  # type: ignore[attr-defined]
        at_birth = weakref.WeakKeyDictionary[Any, ctypes.c_int64]()  # B that each was born with, which it writes there

        def start(process: Any) -> None:
            if os.getpid() == self._process and self._ranks.follow(process):
                return
            how = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            if how != "fork":
                raise TimeLimitReached(f"it starts a process by '{how}', which runs the script anew", None)
            at_birth[process] = _shared_number()
            plain(process)
            self._started.append(process)

        def live(process: Any, *arguments: Any, **options: Any) -> Any:
            """Run in the child, which says at its end by how much it grew."""
            at_birth[process].value = resident_bytes()
            try:
                return plain_life(process, *arguments, **options)
            finally:
                self._note_growth("self", at_birth[process].value)

        def terminate(process: Any) -> None:
            if process in at_birth and at_birth[process].value and _runs(process):
                self._note_growth(str(process.pid), at_birth[process].value)
            plain_end(process)

        def run(opened: Any, *arguments: Any, **options: Any) -> None:
            executable = options.get("executable", arguments[2] if len(arguments) > 2 else None)
            if self._is_refused(arguments[0] if arguments else options.get("args", ()), executable):
                arguments, options = (["true"], *arguments[1:]), {**options, "executable": None}
                options.pop("args", None)
            plain_program(opened, *arguments, **options)
            self._started.append(opened)

        try:
            with (
                temporary_attribute(os, "posix_spawn", self._spawn),
                temporary_attribute(os, "posix_spawnp", self._spawn), temporary_attribute(BaseProcess, "start", start),
                temporary_attribute(BaseProcess, "_bootstrap", live),
                temporary_attribute(BaseProcess, "terminate", terminate),
                temporary_attribute(subprocess.Popen, "__init__", run), self._ranks.intercept(),
                temporary_attribute(subprocess, "_USE_POSIX_SPAWN", False),  # whose programs nobody knows (write guard)
            ):  # fmt: skip
                yield
        finally:
            if os.getpid() == self._process:  # a fork of the script's may come here too
                self._end()
                self._note_ended()

    def _end(self) -> None:
        for process in self._started:
            with contextlib.suppress(Exception):
                process.terminate()
        for process in self._started:
            with contextlib.suppress(Exception):
                if not _wait_for_end(process, _PATIENCE_S):
                    process.kill()
                    _wait_for_end(process, _PATIENCE_S)
                for pipe in filter(None, (getattr(process, name, None) for name in ("stdin", "stdout", "stderr"))):
                    pipe.close()


_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch")


def _starts_itself(command: Any) -> bool:
    """Return whether a command runs the script anew, or a program that starts trainings: it would train for real."""
    words = command.split() if isinstance(command, str) else command if isinstance(command, (list, tuple)) else []
    names = [Path(os.fsdecode(word)).name for word in words]
    runs_python = bool(names) and names[0].startswith("python")
    if any(name in _LAUNCHERS for name in names[:3]):
        return True
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # of a module that is followed
    named = () if spec is None else (spec.name, spec.name.removesuffix(".__main__"))
    return runs_python and (
        Path(sys.argv[0]).name in names or any(flag == "-m" and name in named for flag, name in pairwise(names))
    )


def _shared_number() -> ctypes.c_int64:
    """Return a number that children share with this process."""
    return ctypes.c_int64.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_int64)))


def _wait_for_end(started: Any, within_s: float) -> bool:
    """Wait for its end, so that nothing is left of it: a zombie, or a warning that it still runs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        (started.join if isinstance(started, BaseProcess) else started.wait)(within_s)
    return not _runs(started)


def _runs(started: Any) -> bool:
    with contextlib.suppress(ValueError):  # it is closed
        return bool(started.is_alive() if isinstance(started, BaseProcess) else started.poll() is None)
    return False


class Ranks:
    """Processes and threads of one script that train; `trains` says whether a function of that name does."""

    def __init__(self, progress: Progress, trains: Callable[[str], bool], fake: bool) -> None:
        self._progress, self._trains, self._fake = progress, trains, fake
        self.others: int | None = None  # members of its process group that are not there; None without a group
        self._followed: list[types.SimpleNamespace] = []
        self._thread, self._process = threading.get_ident(), os.getpid()

    def follow(self, process: BaseProcess) -> bool:
        """Do here what a process would that trains; False of one that is to be started."""
        target = _target_of(process, BaseProcess)
        if target is None or not self._is_training(target):
            return False
        if self._progress.updates and not self._followed:
            return False  # the script trains by itself
        self._progress.note_missed(_STARTER)
        if self._followed:
            self._progress.note_missed(_AS_MUCH_AGAIN)
            self._progress.rest_unknown = True
        self._followed.append(_ended_process())
        vars(process).update(_popen=self._followed[-1], _sentinel=self._followed[-1].sentinel)
        if len(self._followed) == 1:
            with contextlib.suppress(SystemExit):  # of that process alone
                target()
        return True

    def _is_training(self, target: Callable[..., Any]) -> bool:
        code = getattr(getattr(target, "func", target), "__code__", None)
        return code is not None and is_foreign(code.co_filename) and self._trains(code.co_name)

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Do here what threads would that train, and let a script be a member of process groups by itself."""
        executors = concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor
        with contextlib.ExitStack() as stack:
            start = functools.partial(self._start_thread, threading.Thread.start)
            stack.enter_context(temporary_attribute(threading.Thread, "start", lambda thread: start(thread)))
            for kind in executors:
                stack.enter_context(temporary_attribute(kind, "submit", self._submission(kind.submit)))
            if torch.distributed.is_available():
                stack.enter_context(self._join_groups_alone())
            yield

    def _start_thread(self, plain: Callable[[Any], None], thread: Any) -> None:
        """Do here what a thread would that trains: what it did by itself would be neither simulated nor seen."""
        target = _target_of(thread, threading.Thread)
        if self._is_here() and target is not None and self._is_training(target):
            self._progress.note_missed(_AT_ONCE)
            with contextlib.suppress(SystemExit):
                thread.run()
            thread.run = int  # it has done all
        plain(thread)

    def _submission(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def submit(executor: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
            inner = function
            while isinstance(inner, functools.partial):
                inner = inner.args[0] if inner.func.__name__ == _CHUNK else inner.func
            if not (self._is_here() and self._is_training(inner)):
                return plain(executor, function, *arguments, **options)
            several = executor._max_workers > 1
            if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
                self._progress.note_missed(_AT_ONCE)
            else:
                self._progress.note_missed(_AS_MUCH_AGAIN if several else _STARTER)
                self._progress.rest_unknown |= several
            done = concurrent.futures.Future[Any]()
            try:
                done.set_result(function(*arguments, **options))
            except Exception as error:
                done.set_exception(error)
            return done

        return submit

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread and os.getpid() == self._process

    @contextlib.contextmanager
    def _join_groups_alone(self) -> Iterator[None]:
        plain, plain_size = torch.distributed.init_process_group, torch.distributed.get_world_size

        def join_alone(*arguments: Any, **options: Any) -> None:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            store: Any = FakeStore() if self._fake else torch.distributed.HashStore()  # type: ignore[attr-defined]
            names = ("backend", "init_method", "timeout", "world_size", "rank")
            requested = {**dict(zip(names, arguments, strict=False)), **options}
            sizes = {name: requested.get(name, -1) for name in ("rank", "world_size")}
            for name, least in (("rank", 0), ("world_size", 1)):
                sizes[name] = sizes[name] if sizes[name] >= least else int(os.environ.get(name.upper(), least))
            self.others = sizes["world_size"] - 1
            if not self._fake:
                sizes = {"rank": 0, "world_size": 1}
            plain("fake" if self._fake else "gloo", store=store, **sizes)
            if self.others:
                others = plural(self.others, "other member")
                self._progress.note_missed(f"{others} of its process group, and what they send")
                self._progress.rest_unknown = True

        def count_members(*arguments: Any, **options: Any) -> int:
            return self.others + 1 if self.others and not (arguments or options) else plain_size(*arguments, **options)

        try:
            with (
                temporary_attribute(torch.distributed, "init_process_group", join_alone),
                temporary_attribute(torch.distributed, "get_world_size", count_members),
            ):
                yield
        finally:
            for followed in self._followed:
                followed.close()
            if self.others is not None and torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def _target_of(process: Any, kind: type[Any]) -> Callable[[], Any] | None:
    """Return what a process, or a thread, will do; of torch's spawn what it was given."""
    target: Any = getattr(process, "_target", None)
    arguments: tuple[Any, ...] = getattr(process, "_args", ())
    options: dict[str, Any] = getattr(process, "_kwargs", {})
    if target is None:
        return None if type(process).run is kind.run else functools.partial(type(process).run, process)
    if getattr(target, "__module__", "") == _SPAWN and len(arguments) > 2:
        target, rank, own = arguments[:3]
        arguments, options = (rank, *own), {}
    if isinstance(target, functools.partial):
        target, arguments = target.func, (*target.args, *arguments)
        options = {**process._target.keywords, **options}
    return functools.partial(target, *arguments, **options)


def _ended_process() -> types.SimpleNamespace:
    """Return what `multiprocessing` knows a process by that has ended well."""
    sentinel = os.open(os.devnull, os.O_RDONLY)

    def close() -> None:
        with contextlib.suppress(OSError):
            os.close(sentinel)

    return types.SimpleNamespace(
        returncode=0, pid=os.getpid(), sentinel=sentinel, poll=int, wait=lambda timeout=None: 0,
        terminate=int, kill=int, close=close,
    )  # fmt: skip
