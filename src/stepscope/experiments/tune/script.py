"""A user's script that is tuned: it runs as it is, and takes commands between two of its steps.

Its steps are found as `stepscope run` finds them. A change is made between two steps and taken back after a block, so
that blocks as is and changed alternate within one training. Losses are not compared: each block has other batches.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.clock import monotonic_ns
from stepscope.errors import UsageError
from stepscope.experiments.tune.changes import Change, all_changes, changes_applied
from stepscope.experiments.tune.child import CommandPipe, changes_at_start
from stepscope.experiments.tune.delays import DELAY, delay_of, take_delay_totals, watch_batches
from stepscope.experiments.tune.other_load import OtherLoad
from stepscope.record.dry.allocator_costs import peak_bytes
from stepscope.record.processes.children import when_imported
from stepscope.record.processes.training import _run_script, run_module_as_main

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Observer, Targets

_WARMUP = 3  # steps before the first command
_WEIGHED = 2  # steps whose memory is measured: one of them may have the last, smaller batch


def train_script(orders: Mapping[str, Any]) -> None:
    """Run the script; this process ends with it, however it ends."""
    commands = CommandPipe(orders["pipes"])
    loop = _Loop(orders, commands)
    when_imported("torch", lambda _: loop.begin())
    script, arguments = str(orders["script"]), list(orders.get("arguments", ()))
    why, failed = "the script ended", False
    try:
        if orders.get("module"):
            sys.argv = ["-m", *arguments]  # as Python has it until the module is found
            run_module_as_main(script)
        else:
            sys.argv = [script, *arguments]
            _run_script(Path(script))
    except SystemExit as error:
        why = (
            f"the script ended: {error.code}"
            if isinstance(error.code, str)
            else (f"the script ended (exit code {error.code or 0})")
        )
    except BaseException as error:
        traceback.print_exc()
        failed = True
        why = f"the script failed: {type(error).__name__}: {error}"
    with contextlib.suppress(Exception):
        loop.answer_until_closed(why, failed)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Loop:
    """The loop of the script: counts its steps, and at their ends does what it is told."""

    def __init__(self, orders: Mapping[str, Any], commands: CommandPipe) -> None:
        self._orders, self._commands = orders, commands
        self._known: dict[str, Change] = {}
        self._steps = 0
        self._last_ns: int | None = None
        self._waited_ns = 0  # since the last step ended
        self._last_s = self._data_share = 0.0
        self._others = OtherLoad()
        self._block: tuple[int, int] | None = None  # warm-up and timed steps that are left
        self._weighs = False  # whether the block is there for its memory
        self._watch = contextlib.ExitStack()
        self._peak: list[int] = []
        self._seconds: list[float] = []
        self._span_ns = (0, 0)
        self._switches = contextlib.ExitStack()
        self._at_start = contextlib.ExitStack()
        self._seen: Observer | None = None
        self._synchronize: Callable[[], bool] = lambda: False  # and whether an accelerator is in use
        self._targets: Targets | None = None

    def begin(self) -> None:
        """Torch is there: listen to the training, and make what it begins with."""
        import torch

        from stepscope.experiments.tune.block_runner import wait_for_accelerator
        from stepscope.experiments.tune.training import StepListener, Targets

        self._synchronize = wait_for_accelerator
        if self._orders.get("threads") is not None:
            torch.set_num_threads(self._orders["threads"])
        self._targets = Targets((), ())
        at_start = [change for change in changes_at_start(self._orders) if change.group != "compile"]
        self._at_start.enter_context(changes_applied(at_start, self._targets))
        if self._orders.get("what_if"):
            watch_batches()
        self._seen = StepListener(self._step_ended, self._failed)

    def answer_until_closed(self, why: str, raised: bool) -> None:
        """The script is over: whatever is asked from now on has this answer."""
        why = why if self._steps else f"{why}, and no training step was seen"
        over = {"over": self._steps, "why": why, "raised": raised}
        if self._block is not None:
            self._commands.answer(**over)
        while True:
            self._commands.next()
            self._commands.answer(**over)

    def _failed(self, error: BaseException) -> None:
        self._commands.answer(failed=f"{type(error).__name__}: {error}")
        traceback.print_exception(error)
        os._exit(1)

    def _step_ended(self, t_ns: int, late: bool = False) -> None:
        self._steps += 1
        before, self._last_ns = self._last_ns, t_ns
        waited, self._waited_ns = self._waited_ns, 0
        length_ns = t_ns - (before or t_ns)
        # The end of a step under way may have been noted before a late one was told: the wait came after it.
        self._last_s = (length_ns - waited if waited < length_ns else length_ns) / 1e9
        loaded_ns = None if self._seen is None else self._seen.batch_ns
        if before is not None and loaded_ns is not None and before < loaded_ns < t_ns:
            share = (loaded_ns - before) / (t_ns - before)
            self._data_share = max(self._data_share, share)  # one step may be slow for another reason
        if self._steps < _WARMUP:
            return
        if self._block is not None:
            warmup, remaining = self._block
            if warmup > 0:
                self._block = warmup - 1, remaining
            elif before is not None:
                self._seconds.append(self._last_s)
                self._block = 0, remaining - 1
            if self._block[1] > 0:
                if self._block[0] == 0 and not self._seconds:
                    self._synchronize()
                    if self._weighs:
                        self._watch_memory()
                    if not late:
                        self._last_ns = monotonic_ns()
                    self._span_ns = self._last_ns, self._last_ns
                return
            if self._synchronize() and self._seconds:  # the host may be steps ahead: only the whole block is known
                t_ns = monotonic_ns()
                self._seconds = [(t_ns - self._span_ns[0]) / 1e9 / len(self._seconds)] * len(self._seconds)
            self._end_block(t_ns)
        waiting_since_ns = monotonic_ns()
        self._answer_commands()
        self._waited_ns = monotonic_ns() - waiting_since_ns
        if not late:
            self._last_ns, self._waited_ns = monotonic_ns(), 0

    def _watch_memory(self) -> None:
        """Watch memory from here on: the warm-up as well, since its steps leave what the first of the others frees."""
        from stepscope.experiments.tune.block_runner import watch_peak_memory

        self._watch.close()
        self._peak = self._watch.enter_context(watch_peak_memory())

    def _end_block(self, t_ns: int) -> None:
        self._watch.close()
        self._switches.close()
        self._block = None
        if self._weighs:
            self._commands.answer(bytes=self._peak[0] if self._peak else None)
            self._seconds, self._weighs, self._peak = [], False, []
            return
        self._commands.answer(
            seconds=self._seconds, t0_ns=self._span_ns[0], t1_ns=t_ns, others=self._others.busy_cores_of_others(),
            **take_delay_totals(),
        )  # fmt: skip
        self._seconds = []

    def _answer_commands(self) -> None:
        from stepscope.experiments.tune.loop_protection import allow_compilations

        assert self._targets is not None
        assert self._seen is not None
        targets, observer = self._targets, self._seen
        allow_compilations()
        targets.called = targets.models = tuple(observer.called_modules.values())
        targets.optimizers = tuple(observer.optimizers.values())
        targets.evaluated = observer.evaluated_modules
        if self._steps == _WARMUP:
            compiling = [change for change in changes_at_start(self._orders) if change.group == "compile"]
            self._at_start.enter_context(changes_applied(compiling, targets))
        while True:
            command = self._commands.next()
            what = command["do"]
            if what == "facts":
                try:
                    self._commands.answer(**self._facts())
                except UsageError as error:
                    self._commands.answer(refused=str(error), hint=error.hint)
            elif what == "use":
                self._known = all_changes(command["facts"])
                self._commands.answer()
            elif what == "peak":
                self._commands.answer(process_bytes=peak_bytes(), prepared_s=None)
            elif what in ("block", "memory"):
                changes = [
                    delay_of(name) if name.startswith(DELAY) else self._known[name] for name in command["changes"]
                ]
                take_delay_totals()
                self._others.begin()
                self._switches.enter_context(changes_applied(changes, targets))
                self._weighs = what == "memory"
                self._block = (1, _WEIGHED) if self._weighs else (max(1, command["warmup"]), command["steps"])
                if self._weighs:
                    self._watch_memory()
                return
            else:
                self._commands.answer(failed=f"a script cannot be asked for {what}")

    def _facts(self) -> dict[str, Any]:
        from stepscope.experiments.tune.training import facts_of

        assert self._targets is not None
        assert self._seen is not None
        facts = facts_of(self._targets, self._seen)
        self._known = self._known or all_changes(facts)
        return {**facts, "losses_known": False, "step_s": self._last_s, "data_share": self._data_share}
