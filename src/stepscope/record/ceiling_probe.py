"""The probe of a device's ceilings, in a process of its own: python -m stepscope.record.ceiling_probe '{"threads": 2}'.

Prints one JSON object: rates that products and convolutions of growing size reach, bandwidth by working set, and what
one op call costs before it computes anything. Of each the fastest block counts: a ceiling is what can be reached.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepscope.record.ops.costs import convolution_flops, product_flops

Call = Callable[[], Any]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIDES = (32, 64, 128, 256, 512, 1024, 2048)
CONVOLUTIONS = ((8, 16, 32, 3), (16, 32, 32, 3), (16, 64, 32, 3), (32, 128, 16, 3), (32, 256, 16, 1))
_ARRAY_BYTES = (16_384, 131_072, 524_288, 2_097_152, 8_388_608, 67_108_864)
_BLOCK_S, _BLOCKS_S, _FEWEST, _MOST_ONCE_S = 1e-3, 0.06, 4, 0.4
_TINY_CALLS, _CHAIN = 2_000, 200


def best_s(call: Call, wait: Call = lambda: None, seconds: float = _BLOCKS_S) -> float:
    """Seconds a call takes in the fastest of many short blocks, the first calls excluded."""
    call()
    wait()
    once = _block_s(call, 1, wait)
    calls = max(1, round(_BLOCK_S / max(once, 1e-9)))
    best, end, blocks = once, time.perf_counter() + seconds, 0
    while blocks < _FEWEST or time.perf_counter() < end:
        best = min(best, _block_s(call, calls, wait))
        blocks += 1
    return best


def _block_s(call: Call, calls: int, wait: Call) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - began) / calls


def arithmetic(device: str, dtype: torch.dtype, wait: Call, sides: Sequence[int] = SIDES) -> Iterator[dict[str, Any]]:
    """FLOP/s of square products and of convolutions, forward and backward: kind, what, flops a call, flops_per_s."""
    for side in sides:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        seconds = best_s(lambda a=a, b=b: torch.mm(a, b), wait)  # type: ignore[misc]
        yield _rate("gemm", f"{side} x {side} matrices", product_flops(side, side, side), seconds)
        if seconds > _MOST_ONCE_S / 8:  # the next one is eight times slower
            break
    rate = math.inf
    for batch, channels, side, kernel in CONVOLUTIONS:
        flops = convolution_flops(batch, (side, side), (channels, channels, kernel, kernel))
        if 3 * flops / rate > _MOST_ONCE_S:  # forward and backward: on a slow device the small ones have to do
            continue
        x, grad = (torch.randn(batch, channels, side, side, device=device).to(dtype) for _ in range(2))
        w = torch.randn(channels, channels, kernel, kernel, device=device).to(dtype)
        how = ([1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], 1)
        what = f"{kernel} x {kernel}, {channels} channels, {side} x {side}, batch {batch}"

        def forward(x: Tensor = x, w: Tensor = w, how: Any = how) -> Any:
            return torch.ops.aten.convolution(x, w, None, *how)

        def backward(grad: Tensor = grad, x: Tensor = x, w: Tensor = w, how: Any = how) -> Any:
            return torch.ops.aten.convolution_backward(grad, x, w, None, *how, [True, True, False])

        seconds = best_s(forward, wait)
        rate = flops / seconds
        yield _rate("convolution", what, flops, seconds)
        yield _rate("convolution backward", what, 2 * flops, best_s(backward, wait))


def _rate(kind: str, what: str, flops: int, seconds: float) -> dict[str, Any]:
    return {"kind": kind, "what": what, "flops": flops, "flops_per_s": flops / seconds}


def bandwidth(device: str, dtype: torch.dtype, wait: Call) -> Iterator[dict[str, Any]]:
    """B/s by working set, B: of a copy, of a triad (a = b + 2 c), and of an op whose result is allocated for it.

    All that is read and written counts. "fresh" is what most operators of a training do: it contains the allocator's
    and the kernel's work on new pages.
    """
    for size in _ARRAY_BYTES:
        a, b, c = (torch.ones(size // dtype.itemsize, dtype=dtype, device=device) for _ in range(3))
        calls: dict[str, tuple[Call, int]] = {
            "copy": (lambda a=a, b=b: a.copy_(b), 2),  # type: ignore[misc]
            "triad": (lambda a=a, b=b, c=c: torch.add(b, c, alpha=2, out=a), 3),  # type: ignore[misc]
            "fresh": (lambda b=b: b.neg(), 2),  # type: ignore[misc]
        }
        for kind, (call, arrays) in calls.items():
            moved = arrays * a.nbytes
            yield {"kind": kind, "bytes": moved, "bytes_per_s": moved / best_s(call, wait)}


def dispatch(device: str) -> dict[str, float]:
    """Return the ns of an op call on one number, of a module call, of a node of backward, and of a Python call."""
    x = torch.zeros(1, device=device)
    wanted = torch.zeros(1, device=device, requires_grad=True)
    module = nn.Identity()

    def nothing() -> None:
        return None

    def repeated(call: Call) -> float:
        return best_s(lambda: [call() for _ in range(_TINY_CALLS // 100)], seconds=_BLOCKS_S) / (_TINY_CALLS // 100)

    def chain() -> Tensor:
        y = wanted
        for _ in range(_CHAIN):
            y = y.neg()
        return y

    graph = chain()
    node = best_s(lambda: torch.autograd.grad(graph, wanted, retain_graph=True)) / _CHAIN
    seconds = {
        "op_ns": repeated(lambda: x.neg()),
        "module_ns": repeated(lambda: module(x)),
        "backward_node_ns": node,
        "python_call_ns": repeated(nothing),
    }
    return {name: value * 1e9 for name, value in seconds.items()}


def _waiter(device: str) -> Call:
    """Return what waits until an accelerator has done what it was given; a CPU has."""
    kind = device.partition(":")[0]
    accelerator: Any = getattr(torch, kind, None)
    return accelerator.synchronize if kind not in ("cpu", "meta") and accelerator is not None else lambda: None


def _disturbed(began_s: float, run_before_ns: tuple[int, int]) -> float | None:
    """Share of the probe's time in which its main thread waited for a core; None where the kernel does not say."""
    waited_ns = _schedstat()[1] - run_before_ns[1]
    elapsed = time.perf_counter() - began_s
    return None if not any(run_before_ns) else waited_ns / 1e9 / max(elapsed, 1e-9)


def _schedstat() -> tuple[int, int]:
    try:
        ran, waited, _ = Path("/proc/self/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0, 0
    return int(ran), int(waited)


def probe(device: str, precision: str, threads: int | None) -> dict[str, Any]:
    """Measure everything; some seconds."""
    if threads is not None:
        torch.set_num_threads(threads)
    dtype, wait = DTYPES[precision], _waiter(device)
    began, before = time.perf_counter(), _schedstat()
    with torch.no_grad():
        rates, moved = list(arithmetic(device, dtype, wait)), list(bandwidth(device, dtype, wait))
    return {
        "arithmetic": rates,
        "bandwidth": moved,
        "dispatch": dispatch(device),
        "threads": torch.get_num_threads(),
        "run_queue_share": _disturbed(began, before),
        "seconds": time.perf_counter() - began,
    }


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(probe(orders["device"], orders["precision"], orders.get("threads"))) + "\n")
