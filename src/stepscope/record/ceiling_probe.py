"""The probe of a device's ceilings, in a process of its own: python -m stepscope.record.ceiling_probe '{"threads": 2}'.

Prints one JSON object: rates that products and convolutions of growing size reach, bandwidth by working set, and what
one op call costs before it computes anything. Of each the fastest block counts: a ceiling is what can be reached.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepscope.record.ops.costs import convolution_flops, product_flops
from stepscope.runfolder.schema import QUIET

Call = Callable[[], Any]
DTYPES = {
    **dict.fromkeys(("float32", "float32-high", "float32-medium", "float32-ieee"), torch.float32),
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SIDES = (32, 64, 128, 256, 512, 1024, 2048)
CONVOLUTIONS = ((8, 16, 32, 3), (16, 32, 32, 3), (16, 64, 32, 3), (32, 128, 16, 3), (32, 256, 16, 1))
_ARRAY_BYTES = (16_384, 131_072, 524_288, 2_097_152, 8_388_608, 67_108_864)
_BLOCK_S, _BLOCKS_S, _FEWEST, _MOST_ONCE_S = 1e-3, 0.06, 4, 0.4
_CLEAN = 0.01  # share of a block in run queues
_PATIENCE = 5  # times the usual time, until a clean block comes
_BUSY = 0.3  # share of a thread's time in run queues: beyond, caches and cores are others' also in a clean block
_TINY_CALLS, _CHAIN = 2_000, 200


@dataclass(frozen=True)
class Timed:
    """Seconds of a call, and the share of them in which threads of the probe waited for a core."""

    seconds: float
    waited: float

    @property
    def is_undisturbed(self) -> bool:
        """Return whether nothing that matters was in the way."""
        return self.waited <= _CLEAN


def time_fastest_block(call: Call, wait: Call = lambda: None, seconds: float = _BLOCKS_S) -> Timed:
    """Time a call in the fastest of many short blocks, the first calls excluded.

    Blocks in which a thread waited for a core count where there is no other: on a busy machine it is looked for one
    some times longer.
    """
    call()
    wait()
    blocks = [_time_block(call, 1, wait) for _ in range(2)]
    calls = max(1, round(_BLOCK_S / max(min(block.seconds for block in blocks), 1e-9)))
    began = time.perf_counter()
    while (
        len(blocks) < _FEWEST
        or (elapsed := time.perf_counter() - began) < seconds
        or (elapsed < _PATIENCE * seconds and not any(block.is_undisturbed for block in blocks))
    ):
        blocks.append(_time_block(call, calls, wait))
    return min([block for block in blocks if block.is_undisturbed] or blocks, key=lambda block: block.seconds)


def _time_block(call: Call, calls: int, wait: Call) -> Timed:
    before = _waited_ns()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    elapsed = time.perf_counter() - began
    return Timed(elapsed / calls, (_waited_ns() - before) / 1e9 / max(elapsed, 1e-9))


def _waited_ns() -> int:
    """Return how long all threads of this process have waited for a core, ns; 0 where the kernel does not say."""
    waited = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in Path("/proc/self/task").iterdir():
            waited += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return waited


def measure_arithmetic(
    device: str, dtype: torch.dtype, wait: Call, sides: Sequence[int] = SIDES
) -> Iterator[dict[str, Any]]:
    """FLOP/s of square products and of convolutions, forward and backward: kind, what, flops a call, flops_per_s."""
    for side in sides:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        timed = time_fastest_block(lambda a=a, b=b: torch.mm(a, b), wait)  # type: ignore[misc]
        yield _rate_row("gemm", f"{side} x {side} matrices", product_flops(side, side, side), timed)
        if timed.seconds > _MOST_ONCE_S / 8:  # the next one is eight times slower
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

        timed = time_fastest_block(forward, wait)
        rate = flops / timed.seconds
        yield _rate_row("convolution", what, flops, timed)
        yield _rate_row("convolution backward", what, 2 * flops, time_fastest_block(backward, wait))


def _rate_row(kind: str, what: str, flops: int, timed: Timed) -> dict[str, Any]:
    return {"kind": kind, "what": what, "flops": flops, "flops_per_s": flops / timed.seconds, "waited": timed.waited}


def measure_bandwidth(device: str, dtype: torch.dtype, wait: Call) -> Iterator[dict[str, Any]]:
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
            timed = time_fastest_block(call, wait)
            yield {"kind": kind, "bytes": moved, "bytes_per_s": moved / timed.seconds, "waited": timed.waited}


def measure_dispatch(device: str) -> dict[str, float]:
    """Return the ns of an op call on one number, of a module call, of a node of backward, and of a Python call."""
    x = torch.zeros(1, device=device)
    leaf = torch.zeros(1, device=device, requires_grad=True)
    module = nn.Identity()

    def nothing() -> None:
        return None

    def repeated(call: Call) -> float:
        return time_fastest_block(lambda: [call() for _ in range(_TINY_CALLS // 100)]).seconds / (_TINY_CALLS // 100)

    def chain() -> Tensor:
        y = leaf
        for _ in range(_CHAIN):
            y = y.neg()
        return y

    graph = chain()
    node = time_fastest_block(lambda: torch.autograd.grad(graph, leaf, retain_graph=True)).seconds / _CHAIN
    seconds = {
        "op_ns": repeated(lambda: x.neg()),
        "module_ns": repeated(lambda: module(x)),
        "backward_node_ns": node,
        "python_call_ns": repeated(nothing),
    }
    return {name: value * 1e9 for name, value in seconds.items()}


def _synchronizer(device: str) -> Call:
    """Return what waits until an accelerator has done what it was given; a CPU has."""
    kind = device.partition(":")[0]
    accelerator: Any = getattr(torch, kind, None)
    return accelerator.synchronize if kind not in ("cpu", "meta") and accelerator is not None else lambda: None


def drop_disturbed_rates(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], float]:
    """Return the rates without those of which each block was disturbed, and the share of waiting in those that stay.

    A long call meets other load in every block, a short one in few: of each kind the quiet ones stay, all where there
    is none. Arrays that no cache holds are the longest of all, and no smaller ones stand for them: theirs stay with
    what they waited, so that the bandwidth of memory is known to be unknown.
    """
    stated: list[dict[str, Any]] = []
    waited = 0.0
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        quiet = [row for row in own if row["waited"] <= QUIET] or own
        waited = max(waited, *(row["waited"] for row in quiet))
        largest = max(row.get("bytes", 0) for row in own)
        stated += [row for row in own if row in quiet or (largest and row["bytes"] == largest)]
    return stated, waited


def _set_float32_switches(precision: str) -> None:
    """Let products of float32 round as a training of this precision let them (`runfolder.computation.PROBED`)."""
    name, _, switch = precision.partition("-")
    if name == "float32" and switch in ("high", "medium"):
        torch.set_float32_matmul_precision(switch)
    if switch == "ieee":
        torch.backends.cudnn.allow_tf32 = False


def probe(device: str, precision: str, threads: int | None) -> dict[str, Any]:
    """Measure everything; some seconds."""
    if threads is not None:
        torch.set_num_threads(threads)
    _set_float32_switches(precision)
    dtype, wait = DTYPES[precision], _synchronizer(device)
    began, waited_ns = time.perf_counter(), _waited_ns()
    with torch.no_grad():
        rates, rates_waited = drop_disturbed_rates(list(measure_arithmetic(device, dtype, wait)))
        moved, moved_waited = drop_disturbed_rates(list(measure_bandwidth(device, dtype, wait)))
    seconds = time.perf_counter() - began
    throughout = (_waited_ns() - waited_ns) / 1e9 / seconds / torch.get_num_threads()
    share = max(rates_waited, moved_waited) if throughout <= _BUSY else throughout
    return {
        "arithmetic": rates,
        "bandwidth": moved,
        "dispatch": measure_dispatch(device),
        "threads": torch.get_num_threads(),
        "run_queue_share": share if Path("/proc/self/schedstat").exists() else None,  # not told is not 0
        "seconds": seconds,
    }


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(probe(orders["device"], orders["precision"], orders.get("threads"))) + "\n")
