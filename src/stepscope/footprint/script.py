"""Follow a training script to its end on fake tensors: every phase, with loops cut to the rounds that can differ.

A loop in which the optimizer steps, or that evaluates, runs its first rounds, those that differ, and its last. A
DataLoader hands out its first batches and its last, in this process whatever its workers. Nothing of the user's is
written: files go into a folder that is thrown away, nothing is deleted, and what torch.save is given comes back from
torch.load.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint.real_steps import EndOfSteps, as_main, killed_first
from stepscope.footprint.script_exit import ScriptExit, keep_random_states, preserve_process_state
from stepscope.footprint.script_files import ScriptFiles
from stepscope.footprint.script_loaders import Loaders
from stepscope.footprint.script_loops import KEPT_FOR_EVER, BranchSide, Loops
from stepscope.footprint.script_memory import ScriptMemory, count_joined_arrays, imports_of_script
from stepscope.footprint.script_modules import UserModules, clear_module_objects
from stepscope.footprint.script_processes import Processes, Ranks
from stepscope.footprint.script_progress import Growth, Progress, note_compiled_models, temporary_attribute
from stepscope.footprint.script_rewriter import install_for_scripts
from stepscope.footprint.script_target import ScriptTarget, find_target, hint_of_module
from stepscope.footprint.simulator import LoaderMemory
from stepscope.footprint.time_limit import TimeLimit, TimeLimitReached, time_limit_cause
from stepscope.record.dry.dry_run import STEPS, DryRunStopped, made_up_number, preserve_rng_and_hide_warnings
from stepscope.record.dry.fake_numbers import FakeMode, arrays_of_fakes
from stepscope.record.dry.storage_log import EVALUATION, NEEDS_NUMBERS, NO_SAVED_HOOKS, Rule, StorageLog, nothing_hidden
from stepscope.record.fault_boundary import is_foreign
from stepscope.units import bytes_

_USAGE = 2  # the code with which argparse leaves
_OF_THE_SCRIPT = (FileNotFoundError, ImportError, SyntaxError, EOFError)  # errors that come of no tensor
_MOST_FOR_ANOTHER_S = 20.0  # of processor time, for other passes; a first one of longer has none
_WRITE_BELOW = {
    "pyarrow", "polars", "duckdb", "fastparquet", "lmdb", "tables", "netCDF4", "soundfile", "zarr", "deltalake",
    "torchaudio", "faiss", "xgboost", "lightgbm", "catboost", "tensorflow", "rasterio", "SimpleITK",
}  # fmt: skip


@dataclass(frozen=True)
class ScriptLog:
    """The log of a script; `stopped` says why fake tensors could not run it, where it was run for real instead.

    missed: what was not followed, in words; rest_unknown: whether it may take more than what was. imports: modules
    beside torch. loading: of its data. later: the log of another pass, in which what only omitted rounds run was
    followed once, in a last one, as `forced` names it. presumed: places of assertions that failed, and were taken to
    hold, since rounds were omitted or values made up.
    """

    log: StorageLog
    stopped: str | None
    seconds: float
    missed: tuple[str, ...] = ()
    imports: frozenset[str] = frozenset()
    loading: LoaderMemory = field(default_factory=LoaderMemory)
    rest_unknown: bool = False
    later: StorageLog | None = None
    forced: tuple[str, ...] = ()
    presumed: tuple[str, ...] = ()


def dry_run_script(target: str, arguments: Sequence[str], hidden: Rule, module: bool = False) -> ScriptLog:
    """Run a script on fake tensors; where they stop it, for real until it made two updates. Its output goes to stderr.

    module: the target is one, as with `python -m`. UsageError where there is none, or where it ends without having
    trained anything.
    """
    script, began = find_target(target, module), time.perf_counter()
    follower, stopped = Follower(script, hidden), None
    try:
        try:
            follower.run(arguments)
        except DryRunStopped as stop:
            if NO_SAVED_HOOKS not in stop.reason:
                raise
            follower = Follower(script, hidden, sees_saved=False)
            follower.run(arguments)
    except DryRunStopped as stop:
        stopped = str(stop)
        follower = Follower(script, None)
        with killed_first():
            follower.run(arguments)
    watched = ScriptLog(
        follower.log,
        stopped,
        time.perf_counter() - began,
        tuple(follower.progress.missed),
        imports_of_script(Path(script.file), follower.memory.imported, script.folder, script.packages),
        follower.loading(),
        follower.progress.rest_unknown,
        presumed=tuple(follower.loops.presumed),
    )
    writes = {name.partition(".")[0] for name in watched.imports} & _WRITE_BELOW  # where nobody hears of it
    if stopped is not None or not follower.loops.unseen or follower.time_limit.used > _MOST_FOR_ANOTHER_S or writes:
        return watched
    return replace(_follow_unseen_branches(watched, follower, arguments, hidden), seconds=time.perf_counter() - began)


def _follow_unseen_branches(watched: ScriptLog, before: Follower, arguments: Sequence[str], hidden: Rule) -> ScriptLog:
    """Follow a script again, in silence and alone, into branches that only omitted rounds take.

    Such a branch may lead where the state of the script does not belong: what fails there is no fault of the script,
    and it is followed once more without that branch.
    """
    forced, left_s = dict(before.loops.unseen), _MOST_FOR_ANOTHER_S
    while forced and left_s > 0:
        again = Follower(before.target, hidden, SecondPass(forced, left_s), before.sees_saved)
        with (
            contextlib.suppress(DryRunStopped, StepscopeError),
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            Path(os.devnull).open(encoding="utf-8") as nothing,
            contextlib.redirect_stderr(nowhere),
            temporary_attribute(sys, "stdin", nothing),
        ):
            again.run(arguments)
        followed = again.loops.forced
        if again.whole:
            missed = [words for words in watched.missed if words not in followed.values()]
            earlier = {
                words.lstrip("0123456789") for words in watched.missed
            }  # as many batches or rounds, give or take
            missed += [words for words in again.progress.missed if words.lstrip("0123456789") not in earlier]
            return replace(
                watched,
                later=again.log,
                forced=tuple(followed.values()),
                missed=tuple(missed),
                loading=watched.loading.or_more(again.loading()),
            )
        if not followed:
            break
        del forced[list(followed)[-1]]
        left_s -= again.time_limit.used
    return watched


class SecondPass(NamedTuple):
    """Plan of another pass: sides of branches that it takes once, by number, in so much processor time."""

    forced: Mapping[int, BranchSide]
    most_s: float


class Follower:
    """One run of a script, and what is seen of it."""

    def __init__(
        self, target: ScriptTarget, hidden: Rule | None, second: SecondPass | None = None, sees_saved: bool = True
    ) -> None:
        """hidden: what kernels of fake tensors allocate; None: on real tensors. sees_saved: what autograd saves."""
        fake = hidden is not None
        self.log = StorageLog(hidden or nothing_hidden, _made_up_number if fake else None, sees_saved)
        self.progress, self.sees_saved = Progress(self.log), sees_saved
        self.target, self._fake = target, fake
        self._path = target.file  # absolute: the script may change its folder
        self.whole = False  # whether it came to its end, or made as many updates as it may
        self.time_limit = TimeLimit(self._path, None if second is None else second.most_s, target.packages)
        self.memory = ScriptMemory(self.progress, target.folder, fake)
        forced = {} if second is None else second.forced
        self.loops = Loops(self.progress, self.memory.note_arrays_after_loop, forced, self.time_limit.check)
        self.progress.last_rounds += second is not None
        self._files = ScriptFiles(self.progress, alone=second is not None)
        self._loaders, self._updated = Loaders(self.progress), Growth(self.progress, looks=False)
        self._impossible: list[str] = []  # ops with their lines, which fail here alone
        self.log.note_impossible_op = self._note_impossible_op
        self.log.note_whole_number = self._note_whole_number
        self._ranks = Ranks(self.progress, self.loops.rewriter.function_trains, fake)
        self._processes, self._exit = Processes(self.progress, self._ranks), ScriptExit(self.progress)

    def run(self, arguments: Sequence[str]) -> None:
        """Follow it; DryRunStopped where fake tensors cannot, before two updates were made."""
        try:
            with (
                self.memory.measure(), preserve_rng_and_hide_warnings(), preserve_process_state(),
                as_main(self.target.name, arguments, self.target.module is not None),
                self._files.intercept() as files,
                UserModules(self.loops.rewriter.transform, files, self.target.folder).intercept(),
                install_for_scripts(self.loops),
                self._loaders.followed_loaders(), self.memory.split_imports(), self._processes.intercept(),
                note_compiled_models(self.progress), self._exit.intercept(), keep_random_states(),
                self._count_updates(), FakeMode() if self._fake else contextlib.nullcontext(), self.log,
                self.time_limit.interrupt_at_limit(), arrays_of_fakes(self._count_value_read),
                count_joined_arrays(self.progress),
            ):  # fmt: skip
                self._execute_script()
            self.whole = True
        except TimeLimitReached as end:
            self._give_up(end)
        except EndOfSteps:
            self.whole = True
            self._note_unseen_evaluation()
        except SystemExit as end:
            self.whole = end.code in (None, 0) or isinstance(end.code, float)  # a loss that main() returns
            if not self.whole and self._fake and (end.code != _USAGE or self.progress.updates):
                self._handle_stopped_dry_run(f"the script left with {end.code}", end)
            if not self.whole and self.progress.updates == 0:
                raise UsageError(
                    f"'{self.target.name}' left with {end.code} before it trained anything",
                    f"its own arguments stand behind it: stepscope fit {self.target.words} --epochs 1",
                ) from end
        except Exception as error:
            self._handle_error(error)
        self.loops.note_missed_branches()
        for place in self._impossible:
            self.progress.note_missed(f"what the script does without an op that needs numbers, at {place}")
            self.progress.rest_unknown = True
        if self.progress.updates == 0:
            where = "in other processes alone" if self._processes.trained.value else "nothing that can be seen"
            raise UsageError(
                f"'{self.target.name}' ended without an optimizer step: it trains {where}",
                "give a script that trains by itself, or module:function",
            )

    def loading(self) -> LoaderMemory:
        """Return what its loaders of data and its arrays take."""
        memory = self.memory
        mapped = memory.mapped or (0, 0)
        return replace(self._loaders.loading, arrays=memory.arrays, earlier=memory.earlier, mapped=mapped)

    def _execute_script(self) -> None:
        """Run the script as Python would, with its loops cut."""
        module = types.ModuleType("__main__")
        plain = sys.modules["__main__"]
        sys.modules["__main__"] = module
        try:
            with self._exit.take_place():
                module.__dict__.update(self.target.main_names())
                code = self.loops.rewriter.transform(Path(self._path).read_bytes(), self._path, of_module=False)
                exec(code, module.__dict__)
        finally:
            self.memory.measure_later_growth()
            sys.modules["__main__"] = plain
            clear_module_objects(module)

    def _script_line_of_error(self, error: BaseException) -> str:
        """Return "line 5: " or "line 5 of net.py: ", of the user's own line that an error passed last; "" of none."""
        return self._script_line_in_frames(reversed(traceback.extract_tb(error.__traceback__)))

    def _script_line_in_frames(self, frames: Iterable[traceback.FrameSummary]) -> str:
        for frame in frames:
            if frame.filename == self._path:
                return f"line {frame.lineno}: "
            if is_foreign(frame.filename) and not frame.filename.startswith("<"):
                return f"line {frame.lineno} of {Path(frame.filename).name}: "
        return ""

    def _note_impossible_op(self, op: str) -> None:
        stack = traceback.StackSummary.extract(traceback.walk_stack(sys._getframe(1)), limit=None, lookup_lines=False)
        self._impossible.append(f"{self._script_line_in_frames(stack)}{op}")

    def _note_whole_number(self) -> None:
        """Say where a whole number that is made up becomes a size."""
        for frame, line in traceback.walk_stack(sys._getframe(1)):
            if (frame.f_code.co_filename, line) in self.loops.rewriter.size_lines:
                place = self._script_line_in_frames(
                    [traceback.FrameSummary(frame.f_code.co_filename, line, "", lookup_line=False)]
                )
                self.progress.note_missed(f"sizes that follow from a number which is made up, at {place[:-2]}")
                return
            if is_foreign(frame.f_code.co_filename):
                return

    def _count_value_read(self) -> None:
        self.log.value_reads += 1

    def _handle_error(self, error: Exception) -> None:
        over = time_limit_cause(error)
        if over is not None:
            self._give_up(over)
        elif self._fake and (self.progress.updates or not isinstance(error, _OF_THE_SCRIPT)):
            if isinstance(error, NEEDS_NUMBERS):
                del self._impossible[-1:]  # of this one it is said that it ended the script
            reason = (str(error).splitlines() or [""])[0]
            self._handle_stopped_dry_run(f"{self._script_line_of_error(error)}{type(error).__name__}: {reason}", error)
        else:
            hint = f"python {self.target.words} shows it in full"
            if self._processes.refused:
                hint = f"fit does not run {self._processes.refused[-1]!r}: run first what it needs of that"
            elif isinstance(error, EOFError):
                hint = f"it reads standard input: stepscope fit {self.target.words} < FILE gives it some"
            elif "attempted relative import" in str(error):
                hint = hint_of_module(self._path)
            elif "RANK" in str(error):
                hint = f"it is for a launcher: RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 stepscope fit {self.target.words}"
            how = "without the other members of its process group" if self._ranks.others else "by itself"
            reason = f"{self._script_line_of_error(error)}{type(error).__name__}: {error}"
            raise StepscopeError(f"'{self.target.name}' fails {how}: {reason}", hint) from error

    def _give_up(self, end: TimeLimitReached) -> None:
        if self.progress.updates == 0:
            raise UsageError(
                f"'{self.target.name}' had made no optimizer step when {end}",
                "give it less to do before it trains, or module:function",
            ) from end
        self.progress.note_missed(f"what comes after {self.progress.updates} updates: {end}")
        self._note_unseen_evaluation()

    def _handle_stopped_dry_run(self, reason: str, error: BaseException) -> None:
        stop = DryRunStopped(self.log.last_op, self.log.last_module, reason)
        if self.progress.updates < STEPS:
            raise stop from error
        self.progress.note_missed(f"what comes after {self.progress.updates} updates: {stop}")
        if self.progress.ended_early:  # what its last round would have left is missing: no fault of the rest
            self._note_unseen_evaluation()
        else:
            self.progress.rest_unknown = True

    def _note_unseen_evaluation(self) -> None:
        """Know that an evaluation may come after what was followed, where the script has one and none was seen."""
        has_evaluated = any(name == EVALUATION for _, name in self.log.scenes)
        if not has_evaluated and any(map(_EVALUATES.search, self.loops.rewriter.sources)):
            self.progress.rest_unknown = True

    @contextlib.contextmanager
    def _count_updates(self) -> Iterator[None]:
        """Count the updates of one optimizer: the first, and once another steps twice in a row or is alone, that.

        Without one, those that the script makes by hand: `parameter.data.add_(parameter.grad, alpha=-0.1)`.
        """
        counted = last = cast(Callable[[], Any], type(None))  # as references to nothing

        def updated(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            nonlocal counted, last
            self.log.updated_by_hand = None
            if counted() is None or last() is optimizer:
                counted = weakref.ref(optimizer)
            last = weakref.ref(optimizer)
            if counted() is optimizer and self._note_update(optimizer):
                raise EndOfSteps

        def updated_by_hand() -> None:
            if self._note_update(None):
                raise EndOfSteps

        self.log.updated_by_hand = updated_by_hand
        hook = register_optimizer_step_post_hook(updated)
        try:
            yield
        finally:
            hook.remove()

    def _note_update(self, optimizer: Any) -> bool:
        if optimizer is not None:
            self.log.adopt_optimizer(optimizer)
        self.log.step += 1
        self.progress.updates += 1
        self._updated.note()
        self._processes.note_running()
        self.memory.note_mapped_files()
        if self.progress.updates == 1:
            self.memory.measure_first_update()
            self.time_limit.note_first_update()
        if not self._fake and self.progress.updates >= STEPS:
            self.progress.note_missed(f"what comes after {STEPS} updates, since fake tensors cannot run it")
            return True
        return self._has_followed_enough()

    def _has_followed_enough(self) -> bool:
        """Return whether it was followed for long enough; then what comes is missed."""
        over = self.time_limit.used >= self.time_limit.most_s
        if self.progress.updates < self.progress.allowed and not over:
            return False
        why = f": {self.time_limit.most_s:.0f} s of processor time are over" if over else ""
        self.progress.note_missed(f"what comes after {self.progress.updates} updates{why}")
        # By a function that `map` calls, say: no loop of the script's.
        if self._updated.bytes_per_round > KEPT_FOR_EVER:
            self.progress.note_missed(f"{bytes_(self._updated.bytes_per_round)} that each update keeps")
            self.progress.rest_unknown = True
        return True


_EVALUATES = re.compile(rb"no_grad|inference_mode|\.eval\(|evaluat|validat|\.test\(")


def _made_up_number(tensor: Tensor) -> Any:
    """A made-up number: more than none, so that a first result is the best so far, and is saved."""
    return made_up_number(tensor) or (0 if tensor.dtype == torch.bool else 1)
