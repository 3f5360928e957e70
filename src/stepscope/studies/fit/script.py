"""A user's script under the tracker: on fake tensors until its first optimizer steps, else really for as long."""

from __future__ import annotations

import contextlib
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook

from stepscope.errors import UsageError
from stepscope.record.dry_run import STEPS, DryRunStopped, number_for, quiet
from stepscope.record.recorders.storage_log import Rule, StorageLog, nothing_hidden


class _EnoughSteps(BaseException):
    """Ends the script from within its own loop; no `except Exception` of the script's catches it."""


@dataclass(frozen=True)
class Watched:
    """The log of a script's first steps; `stopped` says why fake tensors could not run it, where they could not."""

    log: StorageLog
    stopped: str | None
    seconds: float


def watch_script(target: str, arguments: Sequence[str], hidden: Rule) -> Watched:
    """Run a script until it has made two optimizer steps; its output goes to stderr.

    UsageError where there is no script, or where it ends without having trained anything.
    """
    if not Path(target).is_file():
        raise UsageError(f"there is no script '{target}'", "give the path of a Python file")
    began = time.perf_counter()
    try:
        log = _run(target, arguments, StorageLog(hidden, told=number_for), fake=True)
        stopped = None
    except DryRunStopped as stop:
        log, stopped = _run(target, arguments, StorageLog(nothing_hidden), fake=False), str(stop)
    return Watched(log, stopped, time.perf_counter() - began)


def _run(target: str, arguments: Sequence[str], log: StorageLog, fake: bool) -> StorageLog:
    mode: Any = FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext()
    try:
        with quiet(), _as_main(target, arguments), _until_trained(log), mode, log:
            runpy.run_path(target, run_name="__main__")
    except _EnoughSteps:
        return log
    except SystemExit as end:
        if end.code not in (None, 0) and fake:
            raise DryRunStopped(log.last_op, log.last_module, f"the script left with {end.code}") from end
    except Exception as error:
        if not fake:
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise DryRunStopped(log.last_op, log.last_module, f"{type(error).__name__}: {reason}") from error
    if log.step == 0:
        raise UsageError(
            f"'{target}' ended without an optimizer step: it trains nothing that can be seen",
            "give a script that trains with torch.optim, or module:function",
        )
    return log


@contextlib.contextmanager
def _until_trained(log: StorageLog) -> Iterator[None]:
    """Ends the script after so many updates of its first optimizer."""
    first: list[int] = []

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        first.append(id(optimizer))
        if id(optimizer) == first[0]:
            log.adopt_optimizer(optimizer)
            log.step += 1
            if log.step >= STEPS:
                raise _EnoughSteps

    hook = register_optimizer_step_post_hook(stepped)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def _as_main(target: str, arguments: Sequence[str]) -> Iterator[None]:
    kept_argv, kept_path = sys.argv, list(sys.path)
    sys.argv = [target, *arguments]
    sys.path.insert(0, str(Path(target).resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv, sys.path[:] = kept_argv, kept_path
