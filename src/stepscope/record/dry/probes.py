"""Run single ops for real on this device, to learn what their kernels allocate: the calibration of the rules."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves, tree_map

from stepscope.record import kineto
from stepscope.record.dry.storage_log import HiddenBytes, Rule
from stepscope.record.dry.unmodelled_ops import bytes_of, call_kind
from stepscope.record.dry.workspaces import Probed, dim_order, signature

_SAMPLES = (16, 32)  # below 16 samples torch and oneDNN may take other kernels
_PROBED = ("convolution.default", "convolution_backward.default", "native_batch_norm_backward.default")


@dataclass(frozen=True)
class Call:
    """An op as a dry run saw it: its arguments with shapes in the place of tensors, at a batch of so many samples."""

    func: Any
    args: tuple[Any, ...]
    samples: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""  # of an op without a rule, which is run as it is: what calls of other sizes are known by
    bytes: int = 0  # of such a call's inputs


@dataclass(frozen=True)
class _Shaped:
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]  # dimensions from the outermost in memory to the innermost
    strides: tuple[int, ...]


class OpCallRecorder:
    """A rule that notes each different op on its way to another rule; `wanted`: as those call them, None for all."""

    def __init__(self, hidden: Rule, samples: int | None, signatures: Collection[str] | None = None) -> None:
        """`samples`: of the batch; None where each call has its own, as those of a script."""
        self.calls: dict[str, Call] = {}
        self._hidden, self._samples, self._wanted = hidden, samples, signatures

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        hidden = self._hidden(func, args, kwargs, out)
        if func.__name__ in _PROBED:
            key = signature(func, args)
            if key not in self.calls and (self._wanted is None or key in self._wanted):
                self.calls[key] = Call(
                    func, tree_map(_shape_in_place_of_tensor, args), self._samples or int(args[0].shape[0])
                )
        elif hidden.call and hidden.call not in self.calls and self._wanted is not None and hidden.call in self._wanted:
            shapes, named = tree_map(_shape_in_place_of_tensor, args), tree_map(_shape_in_place_of_tensor, kwargs)
            kind, size = call_kind(func, args, kwargs), bytes_of(args, kwargs)
            self.calls[hidden.call] = Call(func, shapes, self._samples or 1, named, kind, size)
        return hidden


def probe_all(
    calls: Mapping[str, Call], progress: Callable[[int, int], None] = lambda number, of: None
) -> dict[str, Probed]:
    """The workspace of each call; an op that cannot run alone is left to its rule."""
    probed_sizes: dict[str, Probed] = {}
    for number, (key, call) in enumerate(calls.items()):
        progress(number, len(calls))
        with contextlib.suppress(RuntimeError):
            probed_sizes[key] = Probed(*_workspace_line(call, *_SAMPLES))
    progress(len(calls), len(calls))
    return probed_sizes


_MOST_BYTES = 1 << 30  # of a call's tensors: a larger one is probed with fewer samples
_MOST_CPU_S, _TIMEOUT_S = 30, 600  # of processor time a thread; and by the clock, of a child that hangs


_CHILDREN = 3  # an op may end its child: numbers that are made up may be none that it takes


def probe_in_child(calls: Mapping[str, Call]) -> dict[str, Probed]:
    """The same near their own numbers of samples, in a child process: what a kernel takes is not added to this one's.

    Smallest first; without those that fail, and those that are left after half a minute of each thread's time.
    """
    remaining = dict(sorted(calls.items(), key=lambda item: _tensor_bytes_of_call(item[1], item[1].samples)))
    probed_sizes: dict[str, Probed] = {}
    for _ in range(_CHILDREN):
        if not remaining:
            break
        answers = _ask_child(remaining)
        remaining = {key: call for key, call in remaining.items() if key not in answers}
        remaining = dict(list(remaining.items())[1:])  # without the one that ended the child, or took too long
        for key, values in answers.items():
            if values is not None:
                probed_sizes[key] = Probed(*values)
                if calls[key].kind:
                    probed_sizes[calls[key].kind] = Probed(0, values[0] / max(1, calls[key].bytes))
    return probed_sizes


def _ask_child(calls: Mapping[str, Call]) -> dict[str, tuple[float, float] | None]:
    """What a child says of the first calls, until it ends or the time is over; None: such an op cannot run alone."""
    command = [sys.executable, "-c", "from stepscope.record.dry import probes; probes.answer_parent()"]
    answers: dict[str, tuple[float, float] | None] = {}
    plain = []
    for key, call in calls.items():
        try:
            plain.append(pickle.dumps((key, str(call.func), replace(call, func=None))))
        except Exception:  # an argument that is no plain value, such as a file that a scripted model is saved to
            answers[key] = None
    try:
        orders = pickle.dumps((torch.get_num_threads(), plain))
        ended = subprocess.run(command, input=orders, capture_output=True, timeout=_TIMEOUT_S, check=False)
        written = ended.stdout
    except subprocess.TimeoutExpired as late:
        written = late.stdout or b""
    except OSError:
        return dict.fromkeys(calls)
    for line in written.splitlines():
        with contextlib.suppress(ValueError):
            key, values = json.loads(line)
            answers[key] = values
    return answers


def answer_parent() -> None:
    """Answer `probe_in_child`, in its child: calls as a pickle on stdin, of each a line of JSON on stdout."""
    threads, plain = pickle.load(sys.stdin.buffer)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    mine_s = _MOST_CPU_S * threads
    resource.setrlimit(resource.RLIMIT_CPU, (mine_s if most == resource.RLIM_INFINITY else min(mine_s, most), most))
    torch.set_num_threads(threads)
    for key, name, shapes in map(pickle.loads, plain):
        call = replace(shapes, func=_op_by_name(name))
        values = None
        with contextlib.suppress(Exception):  # numbers that are made up may be none that an op takes
            values = (
                (float(workspace_bytes(call, call.samples)), 0.0) if call.kind else _workspace_line_near_samples(call)
            )
        sys.stdout.write(f"{json.dumps([key, values])}\n")
        sys.stdout.flush()


def _workspace_line_near_samples(call: Call) -> tuple[float, float]:
    many = call.samples
    while many > 2 and _tensor_bytes_of_call(call, many) > _MOST_BYTES:
        many //= 2
    return _workspace_line(call, max(1, many // 2), max(2, many))


def _op_by_name(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _tensor_bytes_of_call(call: Call, samples: int) -> int:
    shapes = [leaf for leaf in tree_leaves((call.args, dict(call.kwargs))) if isinstance(leaf, _Shaped)]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes) * samples // call.samples


def _workspace_line(call: Call, small: int, large: int) -> tuple[float, float]:
    low, high = workspace_bytes(call, small), workspace_bytes(call, large)
    per_sample = (high - low) / (large - small)
    return low - per_sample * small, per_sample


def workspace_bytes(call: Call, samples: int) -> int:
    """The most bytes beyond its outputs that an op takes while it runs, with so many samples."""
    args, kwargs = _made_up_arguments(call, samples)
    with torch.no_grad():
        call.func(*args, **kwargs)  # the first call also makes the primitive
        with kineto.without_usdt_lines(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            out = call.func(*args, **kwargs)
    events = profiler.profiler.kineto_results.events()
    now = most = 0
    for _, _, size in sorted((e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]"):
        now += size
        most = max(most, now)
    return most - now if call.kind else most - sum(t.nbytes for t in tree_leaves(out) if isinstance(t, Tensor))


def _made_up_arguments(call: Call, samples: int) -> tuple[Any, Any]:
    """The arguments anew: of an op with a rule its activations with so many samples, which come first."""
    if call.kind:
        return tree_map(_random_with_strides, (call.args, dict(call.kwargs)))  # type: ignore[no-any-return]
    activations = 2 if "backward" in call.func.__name__ else 1
    sizes = [samples if place < activations else None for place in range(len(call.args))]
    args = [tree_map(functools.partial(_random_like, samples=n), arg) for arg, n in zip(call.args, sizes, strict=True)]
    return args, tree_map(functools.partial(_random_like, samples=None), dict(call.kwargs))


def _shape_in_place_of_tensor(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return _Shaped(tuple(value.shape), value.dtype, dim_order(value), tuple(value.stride()))


def _random_like(value: Any, samples: int | None) -> Any:
    """A tensor of random numbers, with so many samples in its first dimension; None: as many as it had."""
    if not isinstance(value, _Shaped):
        return value
    shape = value.shape if samples is None or not value.shape else (samples, *value.shape[1:])
    sizes = [1 if value.strides[place] == 0 else shape[place] for place in range(len(shape))]
    numbers = torch.rand([sizes[place] for place in value.order]).to(value.dtype)
    return numbers.permute([value.order.index(place) for place in range(len(shape))]).expand(shape)


def _random_with_strides(value: Any) -> Any:
    """A tensor of the same shape and strides: random numbers between 0 and 1, and zeros where they are integers."""
    if not isinstance(value, _Shaped):
        return value
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True))
    numbers = torch.rand(reach + 1 if all(value.shape) else 0).to(value.dtype)
    return numbers.as_strided(value.shape, value.strides)
