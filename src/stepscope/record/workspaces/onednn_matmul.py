"""Products in bf16 on x86 through oneDNN: buffers of one tile; float32 goes to MKL, which asks torch for nothing.

Found by watching c10's allocations of single products (torch 2.13, oneDNN 3.12, AVX-512 with bf16): exact for
gradients of weights (the first factor is transposed) of 64 rows and more over more than 512 samples, to 40 KB else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stepscope.record.recorders.storage_log import NOTHING, Hidden, Rule
from stepscope.record.workspaces.platform import Platform

_FIXED = 66_688  # B
_ROWS, _COLUMNS, _DEPTH = 256, 1024, 512  # of a tile of the result, and of the sums that are made at once
_PAST_A_ROW = 64  # B
_PAST_A_ROW_AT_ONCE = 320  # B, where one tile has all the sums
_FLOAT = 4  # B


def product(platform: Platform) -> Rule:
    """aten::mm(a, b) and aten::addmm(bias, a, b)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        a, b = args[-2:]
        if a.dtype != torch.bfloat16 or not platform.native_bf16 or not platform.block:
            return NOTHING
        size = _FIXED + (_of_transposed if a.stride(1) != 1 else _of_plain)(a.shape[0], a.shape[1], b.shape[1])
        return Hidden(size, size, size)

    return rule


RULES: dict[str, Callable[[Platform], Rule]] = {"mm.default": product, "addmm.default": product}


def _of_transposed(rows: int, depth: int, columns: int) -> int:
    """A tile of the first factor the right way round, and its sums in float32 where they are made in parts."""
    high = min(rows, _ROWS)
    if depth <= _DEPTH:
        return high * (2 * depth + _PAST_A_ROW_AT_ONCE)
    return high * (2 * _DEPTH + _PAST_A_ROW) + _FLOAT * high * min(columns, _COLUMNS)


def _of_plain(rows: int, depth: int, columns: int) -> int:
    return min(rows, _ROWS) // 2 * min(depth, 2 * _DEPTH)
