"""Workspaces of matrix products, losses, means, batch normalization and other single ops on a CPU.

Products in bf16 go through oneDNN: buffers of one tile; float32 goes to MKL, which allocates nothing through torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepscope.record.dry.platform import Platform
from stepscope.record.dry.storage_log import NOTHING, HiddenBytes, Rule, exact_bytes
from stepscope.record.dry.unmodelled_ops import SIXTEEN_BITS


def batch_norm_backward(platform: Platform) -> Rule:
    """aten::native_batch_norm_backward(gradient, input, ...): the input's gradient is made twice, the first never used.

    Not of a gradient that lies otherwise than the input: one number, expanded.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        gradient, x = args[:2]
        if gradient.stride() == x.stride():
            return HiddenBytes(x.nbytes, 0, x.nbytes, requested=(x.nbytes, x.nbytes))
        return exact_bytes(2 * x.nbytes if x.dtype == torch.float16 else 0)

    return rule


def mean_rule(platform: Platform) -> Rule:
    """aten::mean(input, ...): in 16 bits input and result are also there in float32."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        return exact_bytes(2 * (args[0].nbytes + out.nbytes) if args[0].dtype in SIXTEEN_BITS else 0)

    return rule


def reduced_loss(platform: Platform) -> Rule:
    """aten::mse_loss(input, target, reduction = 1): each element's loss twice, one of which the result keeps.

    In 16 bits a mean takes it in float32 besides.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        kind, size = _reduction_argument(args, kwargs, 2), args[0].nbytes
        temporary = 3 * size if kind == _MEAN and args[0].dtype in SIXTEEN_BITS else size
        # nothing is written to what is kept
        return HiddenBytes(temporary, temporary, temporary, ((0, size, 0),)) if kind else NOTHING

    return rule


def shrunk_loss(reduction: int) -> Callable[[Platform], Rule]:
    """aten::binary_cross_entropy(input, ...): the reduced loss keeps the memory of all elements' losses.

    reduction: place of the argument.
    """

    def of_platform(platform: Platform) -> Rule:
        def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
            kind, size = _reduction_argument(args, kwargs, reduction), args[0].nbytes
            if not kind:
                return NOTHING
            mean = 2 * size if kind == _MEAN and args[0].dtype in SIXTEEN_BITS else 0
            return HiddenBytes(mean, mean, mean, ((0, size, size),))

        return rule

    return of_platform


_MEAN = 1  # reduction of a loss: none, mean, sum


def _reduction_argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> int:
    return int(args[place] if len(args) > place else kwargs.get("reduction", _MEAN))


def nearest_rule(platform: Platform) -> Rule:
    """aten::upsample_nearest2d(input, ...): small pictures go through copies with channels innermost."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        if sum(out.shape[-2:]) > _SMALL_PICTURE:
            return NOTHING
        innermost = torch.channels_last
        copied = (tensor for tensor in (args[0], out) if not tensor.is_contiguous(memory_format=innermost))
        return exact_bytes(sum(tensor.nbytes for tensor in copied))

    return rule


_SMALL_PICTURE = 128  # rows and columns together (torch's UpSampleKernel.cpp)


def mixed_types(platform: Platform) -> Rule:
    """aten::mul.Tensor(one, other) and its like: on a CPU an input of another type is copied into the common one."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        first, second = args[:2]
        if not isinstance(second, Tensor) or first.dtype == second.dtype:
            return NOTHING
        common = torch.result_type(first, second)
        return exact_bytes(
            sum(tensor.numel() * common.itemsize for tensor in (first, second) if tensor.dtype != common)
        )

    return rule


def fold(platform: Platform) -> Rule:
    """aten::col2im, also the gradient of an unfolding: its result keeps the memory of the columns."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        size = max(args[0].nbytes, out.nbytes)
        return HiddenBytes(output_sizes=((0, size, size),))

    return rule


# Found by watching c10's allocations of single products (torch 2.13, oneDNN 3.12, AVX-512 with bf16): exact for
# gradients of weights (the first factor is transposed) of 64 rows and more over more than 512 samples, to 40 KB else.

_PRODUCT_FIXED = 66_688  # B
_TILE_ROWS, _TILE_COLUMNS, _TILE_DEPTH = (
    256,
    1024,
    512,
)  # of a tile of the result, and of the sums that are made at once
_PAST_A_ROW = 64  # B
_LESS_OF_FEW_ROWS, _OTHER_TILES = 55_000, 40_000  # B that 11 other shapes took less, and that may be more
_PANELS = 100_000  # B at most of products of a batch
_PAST_A_ROW_AT_ONCE = 320  # B, where one tile has all the sums
_FLOAT = 4  # B


def matrix_product_rule(platform: Platform) -> Rule:
    """aten::mm(a, b) and aten::addmm(bias, a, b)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        a, b = args[-2:]
        if a.dtype != torch.bfloat16 or not platform.native_bf16 or not platform.block:
            return exact_bytes(sum(factor.nbytes for factor in (a, b) if not _lies_by_rows_or_columns(factor)))
        size = _PRODUCT_FIXED + (_transposed_product_bytes if a.stride(1) != 1 else _plain_product_bytes)(
            a.shape[0], a.shape[1], b.shape[1]
        )
        return HiddenBytes(size, size, size, requested=(max(0, size - _LESS_OF_FEW_ROWS), size + _OTHER_TILES))

    return rule


def _lies_by_rows_or_columns(factor: Tensor) -> bool:
    """Return whether a product takes a factor as it lies; any other (one number, expanded) is copied first."""
    (rows, columns), (row, column) = factor.shape[-2:], factor.stride()[-2:]
    return bool((column == 1 and row >= max(1, columns)) or (row == 1 and column >= max(1, rows)))


def batched_product_rule(platform: Platform) -> Rule:
    """aten::bmm(a, b) and aten::baddbmm(bias, a, b)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        a, b = args[-2:]
        if a.dtype == torch.float32:  # one matrix after another
            return exact_bytes(
                sum(f.nbytes // f.shape[0] for f in (a, b) if f.numel() and not _lies_by_rows_or_columns(f))
            )
        one_for_all = sum(
            factor.nbytes for factor in (a, b) if not (_lies_by_rows_or_columns(factor) and factor.stride(0))
        )
        return HiddenBytes(one_for_all, one_for_all, one_for_all + _PANELS)

    return rule


def _transposed_product_bytes(rows: int, depth: int, columns: int) -> int:
    """A tile of the first factor the right way round, and its sums in float32 where they are made in parts."""
    high = min(rows, _TILE_ROWS)
    if depth <= _TILE_DEPTH:
        return high * (2 * depth + _PAST_A_ROW_AT_ONCE)
    return high * (2 * _TILE_DEPTH + _PAST_A_ROW) + _FLOAT * high * min(columns, _TILE_COLUMNS)


def _plain_product_bytes(rows: int, depth: int, columns: int) -> int:
    return min(rows, _TILE_ROWS) // 2 * min(depth, 2 * _TILE_DEPTH)


_OF_TWO = ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "pow")
_MIXED_RULES = {
    f"{name}.{'default' if name.endswith('imum') else 'Tensor_Tensor' if name == 'pow' else 'Tensor'}": mixed_types
    for name in _OF_TWO
}

ARITHMETIC_RULES: dict[str, Callable[[Platform], Rule]] = {
    "native_batch_norm_backward.default": batch_norm_backward,
    "mean.default": mean_rule,
    "mean.dim": mean_rule,
    "mse_loss.default": reduced_loss,
    "smooth_l1_loss.default": reduced_loss,
    "binary_cross_entropy.default": shrunk_loss(3),
    "soft_margin_loss.default": shrunk_loss(2),
    "upsample_nearest2d.default": nearest_rule,
    "col2im.default": fold,
    "mm.default": matrix_product_rule,
    "addmm.default": matrix_product_rule,
    "bmm.default": batched_product_rule,
    "baddbmm.default": batched_product_rule,
    **_MIXED_RULES,
}
