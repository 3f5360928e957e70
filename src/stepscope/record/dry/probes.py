"""Run single ops for real on this device, to learn what their kernels allocate: the calibration of the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves, tree_map

from stepscope.record import torch_private
from stepscope.record.dry.storage_log import Hidden, Rule
from stepscope.record.dry.workspaces import Probed, signature

_SAMPLES = (16, 32)  # below 16 samples torch and oneDNN may take other kernels
_PROBED = ("convolution.default", "convolution_backward.default", "native_batch_norm_backward.default")


@dataclass(frozen=True)
class Call:
    """An op as a dry run saw it: its arguments with shapes in the place of tensors, at a batch of so many samples."""

    func: Any
    args: tuple[Any, ...]
    samples: int


@dataclass(frozen=True)
class _Shaped:
    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool


class CallBook:
    """A rule that notes each different op on its way to another rule."""

    def __init__(self, hidden: Rule, samples: int) -> None:
        self.calls: dict[str, Call] = {}
        self._hidden, self._samples = hidden, samples

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        if func.__name__ in _PROBED:
            key = signature(func, args)
            if key not in self.calls:
                self.calls[key] = Call(func, tree_map(_shape_of, args), self._samples)
        return self._hidden(func, args, kwargs, out)


def probe_all(
    calls: Mapping[str, Call], progress: Callable[[int, int], None] = lambda done, of: None
) -> dict[str, Probed]:
    """The workspace of each call; an op that cannot run alone is left to its rule."""
    found: dict[str, Probed] = {}
    for done, (key, call) in enumerate(calls.items()):
        progress(done, len(calls))
        small, large = _SAMPLES
        try:
            low, high = workspace_bytes(call, small), workspace_bytes(call, large)
        except RuntimeError:
            continue
        per_sample = (high - low) / (large - small)
        found[key] = Probed(low - per_sample * small, per_sample)
    progress(len(calls), len(calls))
    return found


def workspace_bytes(call: Call, samples: int) -> int:
    """The most bytes beyond its outputs that an op takes while it runs, with so many samples."""
    args = tree_map(lambda value: _made(value, call.samples, samples), call.args)
    with torch.no_grad():
        call.func(*args)  # the first call also makes the primitive
        with torch_private.without_usdt_lines(), _memory_profile() as profiler:
            out = call.func(*args)
    events = profiler.profiler.kineto_results.events()
    now = most = 0
    for _, _, size in sorted((e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]"):
        now += size
        most = max(most, now)
    return most - sum(t.nbytes for t in tree_leaves(out) if isinstance(t, Tensor))


def _memory_profile() -> profile:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def _shape_of(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    last = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
    return _Shaped(tuple(value.shape), value.dtype, last)


def _made(value: Any, was: int, samples: int) -> Any:
    """A tensor of random numbers; whose first dimension was the batch has the new number of samples."""
    if not isinstance(value, _Shaped):
        return value
    shape = (samples, *value.shape[1:]) if value.shape and value.shape[0] == was else value.shape
    made = torch.rand(shape).to(value.dtype)
    return made.contiguous(memory_format=torch.channels_last) if value.channels_last else made
