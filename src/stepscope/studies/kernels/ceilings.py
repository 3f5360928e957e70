"""What this device reaches at its best in this run: the roofs that kernels are held against.

Arithmetic: products of large square matrices. Memory: copies and sums of arrays that no cache holds. The fastest block
counts, since a roof is what can be reached; and it is still a lower bound of what the silicon can do.
"""

from __future__ import annotations

from typing import Any

import torch

from stepscope.studies.kernels.timing import FEWEST, Call, bare_loop_s

_SIDES, _QUICK_SIDES = (512, 1024, 2048), (256, 512)
_ARRAY, _QUICK_ARRAY = 64_000_000, 32_000_000  # B of each array


def ceilings(device: str = "cpu", quick: bool = False) -> dict[str, Any]:
    """FLOP/s and B/s that were reached at the most, and by what."""
    with torch.device(device):
        flops = [(_best(product, 2 * side**3), f"product of {side} x {side} matrices") for side, product in
                 ((side, _product(side)) for side in (_QUICK_SIDES if quick else _SIDES))]  # fmt: skip
        size = (_QUICK_ARRAY if quick else _ARRAY) // 4
        a, b, c = (torch.ones(size) for _ in range(3))
        moved = [
            (_best(lambda: c.copy_(a), 2 * a.nbytes), "copy"),
            (_best(lambda: torch.add(a, b, out=c), 3 * a.nbytes), "sum of two arrays"),
        ]
    (flops_per_s, by), (bytes_per_s, moved_by) = max(flops), max(moved)
    return {"flops_per_s": flops_per_s, "flops_by": by, "bytes_per_s": bytes_per_s, "bytes_by": moved_by}


def _product(side: int) -> Call:
    a, b, out = (torch.randn(side, side) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _best(call: Call, amount: float) -> float:
    """Amount a second in the fastest of some calls, the first left out."""
    call()
    return amount / min(bare_loop_s(call, 1) for _ in range(FEWEST))
