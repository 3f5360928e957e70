"""Run single ops for real on this device, to learn what their kernels allocate: the calibration of the rules."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves, tree_map

from stepscope.record import torch_private
from stepscope.record.dry.storage_log import Hidden, Rule
from stepscope.record.dry.workspaces import Probed, order_of, signature

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
    order: tuple[int, ...]  # dimensions from the outermost in memory to the innermost


class CallBook:
    """A rule that notes each different op on its way to another rule; `wanted`: signatures, None for all."""

    def __init__(self, hidden: Rule, samples: int, wanted: Collection[str] | None = None) -> None:
        self.calls: dict[str, Call] = {}
        self._hidden, self._samples, self._wanted = hidden, samples, wanted

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        if func.__name__ in _PROBED:
            key = signature(func, args)
            if key not in self.calls and (self._wanted is None or key in self._wanted):
                self.calls[key] = Call(func, tree_map(_shape_of, args), self._samples)
        return self._hidden(func, args, kwargs, out)


def probe_all(
    calls: Mapping[str, Call], progress: Callable[[int, int], None] = lambda done, of: None
) -> dict[str, Probed]:
    """The workspace of each call; an op that cannot run alone is left to its rule."""
    found: dict[str, Probed] = {}
    for done, (key, call) in enumerate(calls.items()):
        progress(done, len(calls))
        with contextlib.suppress(RuntimeError):
            found[key] = Probed(*_line(call, *_SAMPLES))
    progress(len(calls), len(calls))
    return found


_MOST_BYTES = 1 << 30  # of a call's tensors: a larger one is probed with fewer samples
_MOST_CPU_S, _TIMEOUT_S = 30, 600  # of processor time a thread; and by the clock, of a child that hangs


def probe_apart(calls: Mapping[str, Call], samples: int) -> dict[str, Probed]:
    """Probe near so many samples in a child process, so that kernels do not add to the memory of this one.

    Without those that fail, and without any where the child takes more than half a minute of each thread's time.
    """
    plain = {key: (str(call.func), call.args, call.samples) for key, call in calls.items()}
    command = [sys.executable, "-c", "from stepscope.record.dry import probes; probes.answer_parent()"]
    orders = pickle.dumps((torch.get_num_threads(), samples, plain))
    try:
        ended = subprocess.run(command, input=orders, capture_output=True, timeout=_TIMEOUT_S, check=True)
        return {key: Probed(*values) for key, values in json.loads(ended.stdout.splitlines()[-1]).items()}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}


def answer_parent() -> None:
    """Answer `probe_apart`, in its child: calls as a pickle on stdin, what was found as JSON on stdout."""
    threads, samples, plain = pickle.load(sys.stdin.buffer)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    mine_s = _MOST_CPU_S * threads
    resource.setrlimit(resource.RLIMIT_CPU, (mine_s if most == resource.RLIM_INFINITY else min(mine_s, most), most))
    torch.set_num_threads(threads)
    found = {}
    for key, (name, args, was) in plain.items():
        call = Call(_op(name), args, was)
        many = samples
        while many > 2 and _size(call, many) > _MOST_BYTES:
            many //= 2
        with contextlib.suppress(RuntimeError):
            found[key] = _line(call, max(1, many // 2), max(2, many))
    sys.stdout.write(f"{json.dumps(found)}\n")


def _op(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _size(call: Call, samples: int) -> int:
    shapes = [leaf for leaf in tree_leaves(call.args) if isinstance(leaf, _Shaped)]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes) * samples // call.samples


def _line(call: Call, small: int, large: int) -> tuple[float, float]:
    low, high = workspace_bytes(call, small), workspace_bytes(call, large)
    per_sample = (high - low) / (large - small)
    return low - per_sample * small, per_sample


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
    return _Shaped(tuple(value.shape), value.dtype, order_of(value))


def _made(value: Any, was: int, samples: int) -> Any:
    """A tensor of random numbers; whose first dimension was the batch has the new number of samples."""
    if not isinstance(value, _Shaped):
        return value
    shape = (samples, *value.shape[1:]) if value.shape and value.shape[0] == was else value.shape
    made = torch.rand([shape[place] for place in value.order]).to(value.dtype)
    return made.permute([value.order.index(place) for place in range(len(shape))])
