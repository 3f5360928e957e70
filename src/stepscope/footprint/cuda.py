"""A training as a GPU would dispatch it, and what it takes of the GPU's memory beside its tensors.

The dry run goes through the CPU's dispatch; three things that CUDA does otherwise are put in: optimizers take all
parameters in one call (foreach), dropout keeps a mask of one byte an element, and attention with dropout stays fused.
cuBLAS keeps a workspace for each thread that multiplies: forward's and backward's. Recordings of GPUs showed two of
8,519,680 B, on Hopper two of 33,554,432 B (`benchmarks/cuda_snapshots.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from stepscope.footprint.cuda_allocator import Settings, reserved_by
from stepscope.record.dry.dry_run import Change
from stepscope.record.dry.job import Job, Optimizers
from stepscope.record.dry.storage_log import Storage, StorageLog

_CUBLAS = (8_519_680, 33_554_432)  # B of a workspace: least, most
_THREADS = 2
_SCALAR = 8  # B at the most; an optimizer's count of steps lies on the host

# Taken by the driver and by kernels that are loaded, beside the allocator's segments. Loaded lazily (CUDA 11.7 and
# later) 0.2 to 0.7 GB are reported; before, about 1 GB. No GPU has checked these ends.
CONTEXT = (200_000_000, 700_000_000)
CONTEXT_OF_A_BOARD = (200_000_000, 1_200_000_000)
LIBRARIES_ON_HOST = (0, 2_000_000_000)  # cuDNN and cuBLAS bring their code into the host's memory, on a board the same


def all_at_once(change: Change | None = None) -> Change:
    """Return a change of a dry run's copy, after another one: optimizers that nobody told otherwise use foreach."""

    def apply(model: nn.Module, optimizers: Optimizers) -> Optimizers:
        changed = optimizers if change is None else change(model, optimizers)
        for group in (group for optimizer in changed for group in optimizer.param_groups):
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        return changed

    return apply


def as_on_cuda(job: Job) -> Job:
    """Return the job with what dropout and attention do on a GPU."""

    def step(model: nn.Module, optimizers: Optimizers, batch: Any) -> None:
        with _Dispatch():
            job.step(model, optimizers, batch)

    return replace(job, step=step)


class _Dispatch(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.dropout:
            given = {**dict(zip(_DROPOUT, args, strict=False)), **kwargs}
            if given.get("training", True) and 0 < given.get("p", 0.5) < 1 and not given.get("inplace"):
                return torch.native_dropout(given["input"], given.get("p", 0.5), True)[0]
        if func is nn.functional.scaled_dot_product_attention:
            return func(**{**dict(zip(_ATTENTION, args, strict=False)), **kwargs, "dropout_p": 0.0})
        return func(*args, **kwargs)


_DROPOUT = ("input", "p", "training", "inplace")
_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def reserved_of(log: StorageLog, settings: Settings) -> tuple[int, int]:
    """Return least and most that the caching allocator reserves for a log, B.

    cuDNN and cuBLAS decide how much they take: the log is replayed with the least and with the most of it.
    """
    events = [(number, sign) for _, _, number, sign in log.events if not _on_host(log.storages[number])]
    ends = []
    for bound, cublas in zip(("low", "high"), _CUBLAS, strict=True):
        sizes = [int(getattr(storage, bound)) for storage in log.storages]
        first = len(sizes)
        sizes += [cublas] * _THREADS
        ends.append(reserved_by([*((first + n, +1) for n in range(_THREADS)), *events], sizes, settings).peak)
    return min(ends), max(ends)


def _on_host(storage: Storage) -> bool:
    return storage.category == "optimizer" and storage.bytes <= _SCALAR
