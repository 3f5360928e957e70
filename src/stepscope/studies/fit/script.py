"""A user's script under the tracker: on fake tensors until its first optimizer steps, else really for as long."""

from __future__ import annotations

import contextlib
import runpy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from stepscope.errors import UsageError
from stepscope.record.dry_run import STEPS, DryRunStopped, number_for, quiet
from stepscope.record.recorders.storage_log import Rule, StorageLog, nothing_hidden
from stepscope.studies.fit.as_main import EnoughSteps, as_main, until_enough_steps


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
        with quiet(), as_main(target, arguments), until_enough_steps(_followed(log)), mode, log:
            runpy.run_path(target, run_name="__main__")
    except EnoughSteps:
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


def _followed(log: StorageLog) -> Callable[[Any], bool]:
    def stepped(optimizer: Any) -> bool:
        log.adopt_optimizer(optimizer)
        log.step += 1
        return log.step >= STEPS

    return stepped
