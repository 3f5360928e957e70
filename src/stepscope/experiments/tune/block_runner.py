"""Runs blocks of real steps as they are or with changes, and puts the state of the training back after each."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from stepscope.clock import monotonic_ns
from stepscope.errors import StepscopeError, UsageError
from stepscope.experiments.tune.changes import Change, all_changes, changes_applied
from stepscope.experiments.tune.changes.loop import merge_loader_arguments
from stepscope.experiments.tune.child import execute_command
from stepscope.experiments.tune.delays import DELAY, delay_of
from stepscope.experiments.tune.loop_protection import (
    BatchCopies,
    HeldInterrupts,
    StepState,
    copy_of_batch,
    put_back,
    refuse_unprotected,
)
from stepscope.experiments.tune.process import TrainingEnded
from stepscope.experiments.tune.training import Observer, Targets, facts_of, observe_training
from stepscope.experiments.tune.training_state import LoaderSampler, State
from stepscope.record.kineto import start_window

_HUNG_WORKER_S = 120.0  # without a batch, of worker processes that the loop does not have as it is


@dataclass(frozen=True)
class Block:
    """A block of timed steps: the time of each, s (of an accelerator, their mean); begin and end, monotonic ns."""

    seconds: tuple[float, ...]
    t0_ns: int
    t1_ns: int


class BlockRunner:
    """A training in this process. step(batch): one step of it, which may return its loss.

    source: batches without end for timed steps, by the arguments of a data loader; fixed: batches in which losses are
    compared. restored: whether the state is put back after every block (a training that goes on), or only where losses
    are compared (a process that is there for tuning).
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        targets: Targets,
        source: Callable[[Mapping[str, Any]], Iterator[Any]],
        fixed: Sequence[Any],
        *,
        others: tuple[Any, ...] = (),
        restored: bool = True,
        divisible: bool = False,
        batch: int | None = None,
    ) -> None:
        self._step, self._targets, self._source, self.fixed = step, targets, source, list(fixed)
        self._state = functools.partial(State, targets, others)
        self._restored = restored
        self._batches: dict[tuple[tuple[str, Any], ...], Iterator[Any]] = {}
        self._divisible, self._size = divisible, batch
        self._known: dict[str, Change] = {}
        self._seen = self._observe()
        if not targets.called:
            targets.called = tuple(self._seen.called_modules.values())
        targets.evaluated = targets.evaluated or self._seen.evaluated_modules

    def facts(self) -> dict[str, Any]:
        """Return what says which changes apply, and how long a step takes, s."""
        with self._put_back():  # reading a weight that is computed may change a buffer, as that of a spectral norm
            facts = facts_of(self._targets, self._seen, self._size, self._divisible)
        facts |= {"step_s": self._step_s, "data_share": self._data_share}
        if not self._known:
            self.set_facts(facts)
        return facts

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Take these facts for the changes: those of another process, whose environment is the training's own."""
        self._known = all_changes(facts)

    def find(self, names: Sequence[str]) -> list[Change]:
        """Return the changes of these names."""
        if not self._known:
            self.facts()
        return [delay_of(name) if name.startswith(DELAY) else self._known[name] for name in names]

    def run_block(self, names: Sequence[str], warmup: int, steps: int) -> Block:
        """Make so many timed steps with the changes, after some that are not timed."""
        changes = self.find(names)
        with self._put_back(changes, self._restored):
            batches = self._batches_for(changes)
            for batch in itertools.islice(batches, warmup):
                self._step(batch)
            return self._timed(batches, steps)

    def measure_losses(self, names: Sequence[str], steps: int) -> list[float]:
        """Return the losses of steps on the fixed batches; the state is put back. Empty where the step returns none."""
        losses: list[float] = []
        with self._put_back(self.find(names)):
            for batch in itertools.islice(BatchCopies(self.fixed), steps):
                loss = _number_or_none(self._step(batch))
                if loss is None:
                    return []
                losses.append(loss)
        return losses

    def measure_memory(self, names: Sequence[str]) -> int | None:
        """Return the memory that a step adds at its peak to what was live at its start, B; null where unknown."""
        with self._put_back(self.find(names)):
            for _ in range(2):  # the second frees what the first has left: its size is known if it was watched
                batch = copy_of_batch(self.fixed[0])
                with watch_peak_memory() as peaks:
                    self._step(batch)
        return peaks[0] if peaks else None

    @contextlib.contextmanager
    def _put_back(
        self, changes: Sequence[Change] = (), restored: bool = True, within: AbstractContextManager[Any] | None = None
    ) -> Iterator[Any]:
        """Make changes; at the end they are taken back, and the state with them, whenever Ctrl-C comes."""
        with HeldInterrupts() as interrupts:
            state = self._state() if restored else None
            try:
                with changes_applied(changes, self._targets), within or nullcontext() as entered, interrupts.released():
                    yield entered
            finally:
                if state is not None:
                    put_back(state)

    def _timed(self, batches: Iterator[Any], steps: int) -> Block:
        ends: list[int] = []
        copied_ns = getattr(batches, "spent_ns", 0)  # the time of copies is none of a step
        wait_for_accelerator()
        began_ns = monotonic_ns()
        for batch in itertools.islice(batches, steps):
            self._step(batch)
            ends.append(monotonic_ns() - getattr(batches, "spent_ns", 0) + copied_ns)
        ended_ns = monotonic_ns()
        if wait_for_accelerator():
            ended_ns = monotonic_ns()
            step_s = (ended_ns - began_ns) / 1e9 / max(1, len(ends))
            return Block((step_s,) * len(ends), began_ns, ended_ns)
        seconds = tuple((after - before) / 1e9 for before, after in itertools.pairwise([began_ns, *ends]))
        return Block(seconds, began_ns, ended_ns)

    def _batches_for(self, changes: Sequence[Change]) -> Iterator[Any]:
        arguments = {name: value for change in changes for name, value in change.loader.items()}
        key = tuple(sorted(arguments.items()))
        if key not in self._batches:
            self._batches[key] = iter(self._source(arguments))
        return self._batches[key]

    def _observe(self) -> Observer:
        """Two steps on the fixed batches, and a batch of the source: the state is put back."""
        with self._put_back(within=observe_training()) as observer:
            batches = self._batches_for(())
            next(batches)
            self._step(copy_of_batch(self.fixed[0]))
            again = copy_of_batch(self.fixed[0])
            began_ns = monotonic_ns()
            next(batches)
            loaded_ns = monotonic_ns()
            self._step(again)
            wait_for_accelerator()
            ended_ns = monotonic_ns()
        self._step_s = (ended_ns - began_ns) / 1e9
        self._data_share = (loaded_ns - began_ns) / (ended_ns - began_ns)
        return observer  # type: ignore[no-any-return]


@contextlib.contextmanager
def watch_peak_memory() -> Iterator[list[int]]:
    """Watch memory: then the list has the most that was live beyond what was live before, B; nothing if unknown.

    On the CPU what was allocated before is of unknown size when it is freed, unless its allocation was watched as well.
    """
    peaks: list[int] = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield peaks
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        return
    try:
        window = start_window(shapes=False, cuda=False, memory=True)
    except (RuntimeError, AttributeError, TypeError):  # another profiler runs, or this torch has none
        yield peaks
        return
    try:
        yield peaks
    finally:
        window.stop()
    sizes = sorted(_allocation_events(window.tree), key=lambda event: event[0])
    peaks.append(max(itertools.accumulate((size for _, size in sizes), initial=0)))


def _allocation_events(nodes: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield when memory was taken, ns, and how much, B; below 0 where it was given back."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if type(node.extra_fields).__name__ == "_ExtraFields_Allocation":
            yield node.start_time_ns, int(node.extra_fields.alloc_size)
        waiting.extend(node.children)


def _number_or_none(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def wait_for_accelerator() -> bool:
    """Wait for the accelerator; return whether there is one in use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        return True
    return False


# Tuning within a running loop: the steps are made here and now, and everything is put back after each block.


class LocalTraining:
    """A training in this process, told as those in other processes are."""

    def __init__(self, bench: BlockRunner) -> None:
        self._bench = bench

    def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
        """Run the action now, without a limit. Exceptions of the user's step pass through; a change's are results.

        The state has been put back then.
        """
        try:
            return execute_command(self._bench, command)
        except StepscopeError:
            raise
        except Exception as error:
            if not command.get("changes"):
                raise
            raise TrainingEnded(f"with it the step raises {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Do nothing: no process was started."""


def runner_for_loop(
    step: Callable[[Any], Any], batches: Iterable[Any], targets: Targets, others: tuple[Any, ...], fixed: int
) -> BlockRunner:
    """Return the bench of a step of the user's; a data loader is read through iterators of its own."""
    from torch.utils.data import DataLoader

    loader = batches if isinstance(batches, DataLoader) else None
    roots: tuple[Any, ...] = () if isinstance(batches, (list, tuple)) else (batches,)
    if loader is not None:
        roots = (loader.dataset, loader.collate_fn)
    weights = [tensor for model in targets.models for tensor in model.parameters()]
    reached = StepState((step, *roots), (*weights, *others), sum(tensor.nbytes for tensor in weights))
    others = (*others, *reached.parts, reached)
    refuse_unprotected(batches, targets, others)
    plain, drawing = batches, tuple[Any, ...]()
    if loader is not None:
        # A loader whose workers persist has a single iterator, and the user's loop may be amid it.
        plain = _loader_with(loader, {}) if loader.persistent_workers else loader
        samplers = tuple(LoaderSampler(part) for part in (loader.sampler, loader.batch_sampler) if part is not None)
        drawing = samplers if loader.generator is None else (loader.generator, *samplers)
    others = (*others, *drawing)
    state = State(Targets((), ()), others)  # a loader draws random numbers when it begins, a data set may count
    try:
        first_batches = list(itertools.islice(iter(plain), fixed))
    finally:
        state.restore()
    if not first_batches:
        raise UsageError(
            "there is no batch to make steps of", "stepscope.tune(step, [batch], model=..., optimizer=...)"
        )
    if loader is None:
        return BlockRunner(step, targets, lambda _: BatchCopies(first_batches), first_batches, others=others)

    def source(arguments: Mapping[str, Any]) -> Iterator[Any]:
        return _endless_batches(_loader_with(loader, arguments) if arguments else plain)

    return BlockRunner(step, targets, source, first_batches, others=others)


def _endless_batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of epoch after epoch; UsageError where one has none, as when a stream is at its end."""
    has_batch = True
    while has_batch:
        has_batch = False
        for batch in loader:
            has_batch = True
            yield batch
    raise UsageError("the data loader gives no more batches: its stream is at its end", "give a list of batches")


def loop_identity(
    step: Callable[[Any], Any], batches: Iterable[Any], targets: Targets, bench: BlockRunner
) -> dict[str, str]:
    """Return what a loop trains by name: two loops that differ in it are two trainings."""
    code = getattr(step, "__code__", None) or getattr(type(step).__call__, "__code__", None)
    parameters = [parameter for model in targets.models for parameter in model.parameters()]
    if isinstance(batches, torch.utils.data.DataLoader):  # whose samples may have any length
        batch = f"{batches.batch_size} of {type(batches.dataset).__name__}"
    else:
        batch = _without_lengths(_shapes_text(bench.fixed))
    return {
        "step": f"code {_digest(_code_text(code))}",
        "model": f"{sum(p.numel() for p in parameters)} parameters, shapes {_digest(_shapes_text(parameters))}",
        "optimizer": ", ".join(type(optimizer).__name__ for optimizer in targets.optimizers),
        "batch": batch,
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _code_text(code: Any) -> str:
    """Return what a function does, with the functions within it, whatever lines it stands in."""
    if isinstance(code, frozenset):
        return repr(sorted(map(repr, code)))
    if not hasattr(code, "co_code"):
        return repr(code)
    return repr([code.co_code, code.co_names, list(map(_code_text, code.co_consts))])


def _without_lengths(shapes: str) -> str:
    """Return the kinds of tensors, each with the most samples: the longest of a batch differs from draw to draw."""
    most: dict[str, int] = {}
    for kind, sides in re.findall(r"(\w+)\[(\d[\d, ]*)\]", shapes):
        samples, *others = map(int, sides.split(", "))
        name = f"{kind} of {1 + len(others)} sides"
        most[name] = max(most.get(name, 0), samples)
    return ", ".join(f"{name}, {samples} samples" for name, samples in sorted(most.items()))


def _shapes_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_shapes_text(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_shapes_text, value))})"
    return type(value).__name__


def _loader_with(loader: Any, arguments: Mapping[str, Any]) -> Any:
    from torch.utils.data import DataLoader, IterableDataset

    same = {
        name: getattr(loader, name)
        for name in (
            *("num_workers", "collate_fn", "pin_memory", "pin_memory_device", "timeout", "worker_init_fn"),
            *("generator", "in_order"),
        )
        if hasattr(loader, name)  # of this torch
    }
    if loader.num_workers:
        same.update(prefetch_factor=loader.prefetch_factor, persistent_workers=loader.persistent_workers)
    if isinstance(loader.dataset, IterableDataset):  # which takes no sampler
        batching = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        batching = {"batch_sampler": loader.batch_sampler}
    else:
        batching = {"batch_size": None, "sampler": loader.sampler}
    merged = merge_loader_arguments({**same, **batching}, arguments)
    if merged["num_workers"] and loader.multiprocessing_context is not None:
        merged["multiprocessing_context"] = loader.multiprocessing_context
    if merged["num_workers"] and arguments and not merged.get("timeout"):
        merged["timeout"] = _HUNG_WORKER_S  # one that waits for a lock of this process would have it wait for ever
    return DataLoader(loader.dataset, **merged)
