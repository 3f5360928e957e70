"""The time of a call, and the parts of a kernel with their FLOPs and bytes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import benchmark

from stepscope.analysis.estimate import median_interval, null_if_nan
from stepscope.arrays import Floats
from stepscope.experiments.kernels.shapes import Kernel
from stepscope.record.ops.costs import convolution_flops, product_flops

FEWEST = 7  # blocks: of fewer than six no interval of the median can be given
_BARE_ROUNDS = 9
_BLOCK_S = 2e-3  # of a bare loop: long against the cost of reading a clock
Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Median time of one call, ns, over the blocks, the 95 % CI of that median (null where too few), and the range."""

    ns: float
    low_ns: float | None
    high_ns: float | None
    least_ns: float
    most_ns: float
    blocks: int
    calls: int  # in each block


def time_call(call: Call, seconds: float, threads: int = 1, fewest: int = FEWEST) -> Timing:
    """Time a call for at least so many seconds and `fewest` blocks; the first calls are not counted."""
    timer = _timer(call, threads)
    first = timer.timeit(1).median
    measurement = timer.blocked_autorange(min_run_time=max(seconds, fewest * first))
    calls, times = measurement.number_per_run, list(measurement.times)
    if len(times) < fewest:  # a block that was sized for a busy moment lasts as long as all of them should
        calls = max(1, calls // fewest)
        times = [timer.timeit(calls).median for _ in range(fewest)]
    ns, low, high = median_interval(np.array(times) * 1e9)
    bounds = null_if_nan(float(low)), null_if_nan(float(high)), 1e9 * min(times), 1e9 * max(times)
    return Timing(float(ns), *bounds, len(times), calls)


def bare_loop_s(call: Call, calls: int, clock: Callable[[], float] = benchmark.timer) -> float:
    """Seconds a call in a plain loop between two readings of the clock."""
    began = clock()
    for _ in range(calls):
        call()
    return (clock() - began) / calls


def timer_to_bare_loop_ratio(
    call: Call, threads: int = 1, clock: Callable[[], float] = benchmark.timer
) -> dict[str, Any]:
    """The timer's seconds over those of a bare loop, alternated: ratio, low, high of the median over the rounds.

    clock: what both read, for a test that counts the time of the processor.
    """
    timer = _timer(call, threads, clock)
    calls = max(1, round(_BLOCK_S / max(timer.timeit(1).median, 1e-9)))
    bare_s, timer_s = [], []
    for _ in range(_BARE_ROUNDS):
        call()  # the timer warms up before each of its blocks as well
        call()
        bare_s.append(bare_loop_s(call, calls, clock))
        timer_s.append(timer.timeit(calls).median)
    return {**median_ratio([np.array(timer_s)], np.array(bare_s)), "calls": calls}


def time_in_turn(calls: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, Floats]:
    """Seconds a call of each, a value a round; every round runs all of them, so that what drifts hits all alike."""
    counts = {name: _calls_for(call, seconds / rounds / len(calls)) for name, call in calls.items()}
    times_s: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times_s[name].append(bare_loop_s(call, counts[name]))
    return {name: np.array(values) for name, values in times_s.items()}


def _calls_for(call: Call, seconds: float) -> int:
    call()
    once = statistics.median(bare_loop_s(call, 1) for _ in range(3))
    return max(1, round(seconds / max(once, 1e-9)))


def median_ratio(above: Sequence[Floats], below: Floats) -> dict[str, float | None]:
    """Median over the rounds of a sum of times over another time, with its 95 % CI."""
    ratio, low, high = median_interval(np.sum(above, axis=0) / below)
    return {"ratio": float(ratio), "low": null_if_nan(float(low)), "high": null_if_nan(float(high))}


def _timer(call: Call, threads: int, clock: Callable[[], float] = benchmark.timer) -> benchmark.Timer:
    return benchmark.Timer("call()", globals={"call": call}, num_threads=threads, timer=clock)


# FLOPs are the useful ones: the products and sums as they are written. A fast algorithm does fewer, a kernel that
# computes something again does more. Bytes are the tensors that have to be read and written, each once.

FORWARD, WEIGHT, INPUT, BOTH = "forward", "weight gradient", "input gradient", "both gradients"
WHOLE, UPDATE = "forward and both", "update"
_NORM_FORWARD, _NORM_WEIGHT, _NORM_INPUT = 6, 4, 8  # FLOPs an element: statistics and scaling; sums; sums and scaling
_UPDATE = {"sgd": (2, 3), "momentum": (4, 5), "adam": (12, 7), "adamw": (14, 7)}  # FLOPs, numbers moved, a parameter
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
}


@dataclass(frozen=True)
class TimedCall:
    """One call that is timed, with its useful FLOPs and the bytes that it cannot do without."""

    call: Callable[[], Any]
    flops: int
    bytes: int


Parts = dict[str, TimedCall]


def timed_calls_of(kernel: Kernel, device: str = "cpu") -> Parts:
    """Tensors of a kernel on a device, random and of float32, and its parts; on "meta" they need no memory."""
    with torch.device(device):
        return _MAKERS[kernel.op](kernel.sizes)


def _convolution(of: Mapping[str, int]) -> Parts:
    aten = torch.ops.aten
    x = torch.randn(of["batch"], of["inputs"], of["height"], of["width"])
    w = torch.randn(of["outputs"], of["inputs"] // of["groups"], of["kernel_height"], of["kernel_width"])
    padding = [of["padding_height"], of["padding_width"]]
    how = ([of["stride"]] * 2, padding, [of["dilation"]] * 2, False, [0, 0], of["groups"])

    def forward() -> Tensor:
        result: Tensor = aten.convolution(x, w, None, *how)
        return result

    g = torch.randn_like(forward())

    def backward(wants: list[bool]) -> Callable[[], Any]:
        return lambda: aten.convolution_backward(g, x, w, None, *how, wants)

    flops = convolution_flops(of["batch"], g.shape[2:], w.shape)
    return _with_whole_step(
        TimedCall(forward, flops, _bytes(x, w, g)),
        TimedCall(backward([False, True, False]), flops, _bytes(g, x, w)),
        TimedCall(backward([True, False, False]), flops, _bytes(g, w, x)),
        TimedCall(backward([True, True, False]), 2 * flops, _bytes(g, x, w, w, x)),
    )


def _linear(of: Mapping[str, int]) -> Parts:
    x, w = torch.randn(of["batch"], of["inputs"]), torch.randn(of["outputs"], of["inputs"])
    g = torch.randn(of["batch"], of["outputs"])
    flops = product_flops(of["batch"], of["inputs"], of["outputs"])
    return _with_whole_step(
        TimedCall(lambda: functional.linear(x, w), flops, _bytes(x, w, g)),
        TimedCall(lambda: torch.mm(g.t(), x), flops, _bytes(g, x, w)),
        TimedCall(lambda: torch.mm(g, w), flops, _bytes(g, w, x)),
        TimedCall(lambda: (torch.mm(g.t(), x), torch.mm(g, w)), 2 * flops, _bytes(g, x, w, w, x)),
    )


def _lstm(of: Mapping[str, int]) -> Parts:
    """Autograd divides its backward: a gradient of the weights alone still goes back through the steps of time."""
    module = nn.LSTM(of["inputs"], of["hidden"])
    x = torch.randn(of["length"], of["batch"], of["inputs"], requires_grad=True)
    weights = list(module.parameters())
    out, _ = module(x)
    g = torch.randn_like(out)
    rows, gates = of["length"] * of["batch"], 4 * of["hidden"]
    flops, through_time = (product_flops(rows, n, gates) for n in (of["inputs"] + of["hidden"], of["hidden"]))
    weight_bytes = _bytes(*weights)
    return _with_whole_step(
        TimedCall(lambda: module(x), flops, _bytes(x, out) + weight_bytes),
        TimedCall(_gradient(out, weights, g), flops + through_time, _bytes(g, x) + 2 * weight_bytes),
        TimedCall(_gradient(out, [x], g), flops, _bytes(g, x) + weight_bytes),
        TimedCall(_gradient(out, [*weights, x], g), 2 * flops, _bytes(g, x, x) + 2 * weight_bytes),
    )


def _attention(of: Mapping[str, int]) -> Parts:
    shape = (of["batch"], of["heads"], of["length"], of["head"])
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))

    causal, length = bool(of.get("causal")), of["length"]

    def forward() -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    out = forward()
    g = torch.randn_like(out)
    product = of["batch"] * of["heads"] * product_flops(length, of["head"], length)
    product = product * (length + 1) // (2 * length) if causal else product  # what a token sees of the others
    backward = _gradient(out, [q, k, v], g)
    return {
        FORWARD: TimedCall(forward, 2 * product, _bytes(q, k, v, out)),
        INPUT: TimedCall(backward, 4 * product, _bytes(g, q, k, v, q, k, v)),
        WHOLE: TimedCall(lambda: (forward(), backward()), 6 * product, _bytes(q, k, v, out, g, q, k, v, q, k, v)),
    }


def _batch_norm(of: Mapping[str, int]) -> Parts:
    aten, channels = torch.ops.aten, of["channels"]
    x = torch.randn(of["batch"], channels, of["height"], of["width"])
    g, w, b = torch.randn_like(x), torch.ones(channels), torch.zeros(channels)
    mean, var = torch.zeros(channels), torch.ones(channels)

    def forward() -> Any:
        return aten.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5)

    _, batch_mean, batch_inverse = forward()

    def backward(wants: list[bool]) -> Callable[[], Any]:
        return lambda: aten.native_batch_norm_backward(g, x, w, mean, var, batch_mean, batch_inverse, True, 1e-5, wants)

    size = x.numel()
    return _with_whole_step(
        TimedCall(forward, _NORM_FORWARD * size, _bytes(x, x)),
        TimedCall(backward([False, True, True]), _NORM_WEIGHT * size, _bytes(g, x)),
        TimedCall(backward([True, False, False]), _NORM_INPUT * size, _bytes(g, x, x)),
        TimedCall(backward([True, True, True]), _NORM_INPUT * size, _bytes(g, x, x)),
    )


def _optimizer(of: Mapping[str, Any]) -> Parts:
    parameter = nn.Parameter(torch.randn(of["parameters"]))
    parameter.grad = torch.randn(of["parameters"])
    optimizer = _OPTIMIZERS[of["rule"]]([parameter])
    flops, moved = _UPDATE[of["rule"]]
    return {UPDATE: TimedCall(optimizer.step, flops * of["parameters"], moved * parameter.nbytes)}


def _with_whole_step(forward: TimedCall, weight: TimedCall, inputs: TimedCall, both: TimedCall) -> Parts:
    def all_of_it() -> None:
        forward.call()
        both.call()

    whole = TimedCall(all_of_it, forward.flops + both.flops, forward.bytes + both.bytes)
    return {FORWARD: forward, WEIGHT: weight, INPUT: inputs, BOTH: both, WHOLE: whole}


def _gradient(out: Tensor, of: list[Any], g: Tensor) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(out, of, g, retain_graph=True)


def _bytes(*tensors: Tensor) -> int:
    return sum(math.prod(tensor.shape) * tensor.element_size() for tensor in tensors)


def times_a_step(kernel: Kernel, part: str) -> int:
    """Return how often a step of the model runs a part of a kernel; of a sweep, or an update, all count alike."""
    if not kernel.gradients or part == FORWARD:
        return kernel.count
    both = (False, True) if kernel.op == "attention" else (True, True)  # which has no weights
    return kernel.gradients.get({WEIGHT: (True, False), INPUT: (False, True)}.get(part, both), 0)


_MAKERS: dict[str, Callable[[Mapping[str, Any]], Parts]] = {
    "conv": _convolution, "depthwise": _convolution, "linear": _linear, "lstm": _lstm, "attention": _attention,
    "batch_norm": _batch_norm, "optimizer": _optimizer,
}  # fmt: skip
