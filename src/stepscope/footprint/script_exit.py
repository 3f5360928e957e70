"""The exit of a script that is followed: what it left for then happens where it ends, not in the exit of this process.

Its functions of atexit run there, and its objects go, so that what they write lies where its other files do. What it
has set in this process (settings of torch, variables of the environment, random numbers) is as it was before it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from stepscope.footprint.script_progress import Progress, temporary_attribute
from stepscope.record.fault_boundary import is_foreign


class ScriptExit:
    """Functions that the script, and no library, registers while they are `kept`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._registered: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Answer for atexit, and for ends of this process that ask nobody."""
        plain, forget, process = atexit.register, atexit.unregister, os.getpid()
        ends = {name: getattr(os, name) for name in ("_exit", "abort")}

        def end(name: str, *code: int) -> None:
            if os.getpid() != process:  # a child ends as it wants to
                ends[name](*code)
            self._registered.clear()  # it does not happen then
            raise SystemExit(*code or (1,))

        def register(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
            if not is_foreign(sys._getframe(1).f_code.co_filename):
                return plain(function, *arguments, **options)
            self._registered.append((function, arguments, options))
            return function

        def unregister(function: Callable[..., Any]) -> None:
            self._registered = [row for row in self._registered if row[0] != function]
            forget(function)

        with contextlib.ExitStack() as stack:
            stack.enter_context(temporary_attribute(atexit, "register", register))
            stack.enter_context(temporary_attribute(atexit, "unregister", unregister))
            for name in ends:
                stack.enter_context(temporary_attribute(os, name, functools.partial(end, name)))
            yield

    @contextlib.contextmanager
    def take_place(self) -> Iterator[None]:
        """Run what was registered where the script ends; a child that it has forked ends there, before what is ours."""
        process, code = os.getpid(), 1
        try:
            yield
            code = 0
            self._run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            self._run()
            raise
        finally:
            if os.getpid() != process:
                os._exit(code)

    def _run(self) -> None:
        """Run what was registered, the last first; as in Python, one that fails does not hold up the others."""
        while self._registered:
            function, arguments, options = self._registered.pop()
            try:
                function(*arguments, **options)
            except Exception as error:
                self._progress.note_missed(f"what it left for its exit: {type(error).__name__}: {error}")


_OFFLINE = {  # trackers of experiments, whose pages are no place for losses that are made up
    "WANDB_MODE": "disabled", "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "debug", "COMET_START_ONLINE": "0",
    "SWANLAB_MODE": "disabled", "MLFLOW_TRACKING_URI": "file:mlruns",
    # and of gRPC, which no socket of Python's shows, calls that leave this machine
    "grpc_proxy": "http://127.0.0.1:9", "no_grpc_proxy": "localhost,127.0.0.1",
}  # fmt: skip


@contextlib.contextmanager
def preserve_process_state() -> Iterator[None]:
    """Give back what a script sets in this process; meanwhile trackers of experiments are off."""
    numpy, logger = sys.modules.get("numpy"), logging.getLogger()
    environment, handlers, level = dict(os.environ), list(logger.handlers), logger.level
    random_state, numbers, mask = random.getstate(), None, os.umask(0)
    os.umask(mask)
    if numpy is not None:
        name, key, *others = numpy.random.get_state()
        numbers = (name, key.tolist(), *others)  # no array of ours is there to be counted
        del key
    with_gradients, kind, device = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device()
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    starts_by = multiprocessing.get_start_method(allow_none=True)
    os.environ.update(_OFFLINE)
    try:
        yield
    finally:
        os.umask(mask)
        os.environ.clear()
        os.environ.update(environment)
        logger.handlers[:] = handlers
        logger.setLevel(level)
        random.setstate(random_state)
        multiprocessing.set_start_method(starts_by, force=True)
        if numpy is not None:
            numpy.random.set_state(numbers)
        torch.set_grad_enabled(with_gradients)
        torch.set_default_dtype(kind)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        torch.use_deterministic_algorithms(deterministic)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def keep_random_states() -> Iterator[None]:
    """Keep the state of torch's random numbers where one without numbers is to be set, of a file that was loaded."""
    plain = torch.random.set_rng_state

    def keep(state: Tensor) -> None:
        with contextlib.suppress(RuntimeError):
            plain(state)

    with temporary_attribute(torch, "set_rng_state", keep), temporary_attribute(torch.random, "set_rng_state", keep):
        yield
