"""Run a training step on fake tensors: everything runs but the kernels, and every storage is logged."""

from __future__ import annotations

import contextlib
import copy
import io
import mmap
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import flop_registry

from stepscope.record.dry import Job, Optimizers
from stepscope.record.dry.fake_numbers import FakeMode, fake_of_tensor
from stepscope.record.dry.storage_log import NO_SAVED_HOOKS, HiddenBytes, Rule, StorageLog, nothing_hidden, peak_of
from stepscope.record.dry.user_objects import copy_training
from stepscope.record.ops.costs import count_op_flops, has_formula

STEPS = 2
Change = Callable[[nn.Module, Optimizers], Optimizers]  # changes the model in place; the optimizers to train it with


class DryRunStopped(Exception):
    """Fake tensors could not run the step; `op` and `module` are where."""

    def __init__(self, op: str, module: str | None, reason: str) -> None:
        self.op, self.module, self.reason = op, module, reason
        place = f"in layer '{module}'" if module else "in the model itself" if module == "" else "outside any layer"
        super().__init__(f"{op or 'the first op'} {place}: {reason}")


class NoSuchBatch(DryRunStopped):
    """Whoever makes the batches has not so many samples."""


@dataclass(frozen=True)
class DryRun:
    """Result of a dry run; sizes in B, `flops` of one step without those of elementwise ops."""

    batch: int
    log: StorageLog
    flops: int
    wall_s: float
    segments: tuple[Segment, ...] = field(default=())

    @property
    def peak_bytes(self) -> int:
        """The most bytes live at once."""
        return peak_of(self.log)

    def events(self) -> pl.DataFrame:
        """Allocations and frees, columns as `runfolder.MEMORY`."""
        return self.log.frame()


@dataclass(frozen=True)
class Segment:
    """A child of the model as a candidate for recomputation: what it saves for backward, and its forward FLOPs."""

    module: str
    saved_bytes: int
    flops: int


def dry_run(
    job: Job, batch: int, hidden: Rule = nothing_hidden, change: Change | None = None, steps: int = STEPS
) -> DryRun:
    """Run steps of a job on fake tensors; raises DryRunStopped where they cannot run it."""
    try:
        return _run_on_fakes(job, batch, FlopTally(hidden), change, steps)
    except DryRunStopped as stop:
        if NO_SAVED_HOOKS not in stop.reason:
            raise
    return _run_on_fakes(job, batch, FlopTally(hidden), change, steps, sees_saved=False)


def _run_on_fakes(
    job: Job, batch: int, tally: FlopTally, change: Change | None, steps: int, sees_saved: bool = True
) -> DryRun:
    began = time.perf_counter()
    mode = FakeMode()
    log = StorageLog(tally, value_of=made_up_number, sees_saved=sees_saved)
    with preserve_rng_and_hide_warnings(), _explain_failures(log):
        model, optimizers = _build_on_fakes(job, mode)
        with mode:
            optimizers = optimizers if change is None else change(model, optimizers)
            inputs = _fake_nest(job.batch(batch), mode)
            _check_samples(job, batch, inputs)
            log.adopt_model(model)
            for optimizer in optimizers:
                log.adopt_optimizer(optimizer)
            log.adopt_all(inputs, "input")
            tally.log = log
            with log:
                for log.step in range(steps):
                    job.step(model, optimizers, inputs)
    return DryRun(batch, log, tally.total // steps, time.perf_counter() - began, _recompute_segments(log, tally, steps))


class FlopTally:
    """Counts the FLOPs of products and convolutions beside the rule that it passes on."""

    def __init__(self, hidden: Rule) -> None:
        self.total = 0
        self.forward_by_module: dict[str, int] = {}
        self.log: StorageLog | None = None
        self._hidden = hidden

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        count = _flops(func, args, kwargs, out)
        if count:
            self.total += count
            log = self.log
            if log is not None and log.last_module is not None and torch._C._current_graph_task_id() == -1:
                self.forward_by_module[log.last_module] = self.forward_by_module.get(log.last_module, 0) + count
        return self._hidden(func, args, kwargs, out)


def made_up_number(tensor: Tensor) -> Any:
    """A number for a loop that prints its loss: no branch of a model ever sees it."""
    return (tensor.dtype.is_floating_point and 1.0) or (False if tensor.dtype == torch.bool else 0)


@contextlib.contextmanager
def preserve_rng_and_hide_warnings() -> Iterator[None]:
    """The user's random numbers stay as they were, and nobody is warned about a step that is none."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def copy_on_fake(model: nn.Module, optimizers: Optimizers, mode: FakeMode) -> tuple[nn.Module, Optimizers]:
    """A copy of both whose parameters, buffers and state have no numbers and need no memory; on the CPU's rules.

    What a model holds beside them is in both, where it is data or can have no copy.
    """
    memo: dict[int, Any] = {}
    in_both = _types_not_copied()
    for module in model.modules():
        for value in tree_leaves(vars(module)):
            is_other = isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not is_lazy(value)
            if is_other and (value.numel() > _COPIED or not value.is_leaf):
                memo[id(value)] = fake_of_tensor(value, mode)
            elif isinstance(value, in_both):
                memo[id(value)] = value
    for parameter in [*model.parameters(), *_optimized_parameters(optimizers)]:
        if id(parameter) not in memo and not is_lazy(parameter):
            memo[id(parameter)] = nn.Parameter(fake_of_tensor(parameter, mode), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        lazy: Any = type(buffer)
        memo[id(buffer)] = lazy(dtype=buffer.data.dtype) if is_lazy(buffer) else fake_of_tensor(buffer, mode)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            memo.update({id(v): fake_of_tensor(v, mode) for v in state.values() if isinstance(v, Tensor) and v.dim()})
    return copy_training(model, optimizers, memo)


_COPIED = 65_536  # elements at most of a table or mask that is no buffer, and keeps its numbers


def _types_not_copied() -> tuple[type, ...]:
    arrays = () if "numpy" not in sys.modules else (sys.modules["numpy"].ndarray,)
    lock = type(threading.Lock()), type(threading.RLock())
    return (*arrays, *lock, mmap.mmap, io.IOBase, bytearray, Dataset, DataLoader)


def model_of(job: Job) -> nn.Module:
    """Return the model of a job, without numbers where it can be built so."""
    with preserve_rng_and_hide_warnings():
        try:
            with FakeMode():
                return job.build()[0]
        except Exception:  # as below
            return job.build()[0]


def _build_on_fakes(job: Job, mode: FakeMode) -> tuple[nn.Module, Optimizers]:
    """Model and optimizers on fake tensors: made so, or where making looks at numbers, made really and then copied."""
    try:
        with mode:
            model, optimizers = job.build()
    except Exception:  # a user's constructor may raise anything here that it would not raise with numbers
        model, optimizers = job.build()
    if all(isinstance(p.data, FakeTensor) or isinstance(p, FakeTensor) for p in model.parameters()):
        return model, optimizers
    return copy_on_fake(model, optimizers, mode)


def _fake_nest(nest: Any, mode: FakeMode) -> Any:
    """Tensors of a batch without their numbers; objects with attributes keep their type."""
    copies: dict[int, Any] = {}

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
            return fake_of_tensor(value, mode).requires_grad_(value.requires_grad)
        if isinstance(value, Tensor) or not hasattr(value, "__dict__"):
            return value
        if id(value) not in copies:
            copied = copies[id(value)] = copy.copy(value)
            for name, inner in vars(value).items():
                object.__setattr__(copied, name, tree_map(leaf, inner))  # also of a frozen dataclass
        return copies[id(value)]

    return tree_map(leaf, nest)


def _check_samples(job: Job, batch: int, inputs: Any) -> None:
    """NoSuchBatch where all tensors have fewer rows than samples were asked for, and one where one was."""

    def rows(nest: Any) -> int:
        tensors = (leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor) and leaf.dim())
        return max((int(tensor.shape[0]) for tensor in tensors), default=batch)

    if batch == 1 or rows(inputs) >= batch:
        return
    try:
        counted = rows(job.batch(1)) == 1
    except Exception:  # a user's maker of batches may raise anything
        return
    if counted:
        raise NoSuchBatch("", None, f"{batch} samples were asked for, and there are {rows(inputs)}")


def _optimized_parameters(optimizers: Optimizers) -> list[Any]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


@contextlib.contextmanager
def _explain_failures(log: StorageLog) -> Iterator[None]:
    try:
        yield
    except DryRunStopped:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise DryRunStopped(log.last_op, log.last_module, f"{type(error).__name__}: {reason}") from error


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """FLOPs by the formulas of a run's ops, else by torch's.

    torch has none of fused attention and LSTMs on a CPU, and is up to 14 times too high for grouped convolutions.
    """
    if has_formula(func._schema.name):
        shapes = [tuple(arg.shape) if isinstance(arg, Tensor) else () for arg in args]
        return count_op_flops(func._schema.name, shapes, args) or 0
    formula = flop_registry.get(func.overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


def _recompute_segments(log: StorageLog, tally: FlopTally, steps: int) -> tuple[Segment, ...]:
    """Every module with what it and those below it save and compute in forward, a step."""
    saved: dict[str, int] = {}
    for storage in log.storages:
        if storage.category == "saved" and storage.module is not None and storage.phase == "forward":
            saved[storage.module] = saved.get(storage.module, 0) + storage.bytes
    names = {name for module in {*saved, *tally.forward_by_module} for name in _with_parents(module)}
    return tuple(
        Segment(
            name, _sum_at_and_below(saved, name) // steps, _sum_at_and_below(tally.forward_by_module, name) // steps
        )
        for name in sorted(names)
    )


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _sum_at_and_below(amounts: dict[str, int], name: str) -> int:
    return sum(amount for module, amount in amounts.items() if module == name or module.startswith(f"{name}."))
