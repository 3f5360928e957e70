"""Workspaces of fused attention on a CPU, as torch 2.13 asks for them (FlashAttentionKernel.cpp).

Rows of queries and keys are taken in blocks. Each thread has room for the scores of a block, forward with its sums and
result, backward for the scores and their gradient. Backward copies a gradient of which heads do not lie within tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepscope.record.dry.storage_log import Hidden, Rule

_KEYS = 512  # of a block at most
_FLOAT = 4  # B
_PANELS = 100_000  # B at most that products in bf16 ask for one after another


def _block(queries: Tensor, keys: Tensor) -> tuple[int, int]:
    """Rows of queries and of keys that are taken together."""
    length = int(queries.shape[2])
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    return min(rows, length), min(_KEYS, int(keys.shape[2]))


def attention_forward(threads: int) -> Rule:
    """aten::_scaled_dot_product_flash_attention_for_cpu(query, key, value, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        query, key, value = args[:3]
        rows, keys = _block(query, key)
        size = threads * _FLOAT * rows * (keys + 2 + int(query.shape[3]))
        if query.dtype == torch.float32:
            return Hidden(size, size, size)
        size += threads * rows * keys * query.element_size()
        return Hidden(size, size, size + key.nbytes + value.nbytes + _PANELS)

    return rule


def attention_backward(threads: int) -> Rule:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, query, key, value, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        gradient, query, key = args[:3]
        rows, keys = _block(query, key)
        copied = 0 if gradient.transpose(1, 2).is_contiguous() else gradient.nbytes
        size = copied + 2 * threads * _FLOAT * rows * keys + _FLOAT * rows
        if query.dtype == torch.float32:
            return Hidden(size, size, size)
        size += threads * rows * keys * 2 * query.element_size()
        return Hidden(size, size, size + _PANELS)

    return rule


ATTENTION_RULES: dict[str, Callable[[int], Rule]] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": attention_backward,
}
