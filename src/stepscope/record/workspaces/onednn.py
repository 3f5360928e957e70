"""Convolutions on x86 through oneDNN: copies in blocked layouts, channels rounded up to a block.

Found by watching c10's allocations of single ops (torch 2.13, oneDNN 3.12). Forward: input and weights are copied into
blocks (a first layer of fewer channels than a block is read as it is), the result is made in blocks, then copied out.
Backward: the same for the gradient of the input, then again for that of the weights (which reads three channels as they
are, and copies four and more into eights). In channels-last nothing but the weights is copied. Without bf16 in hardware
an expansion of every patch takes its place (im2col).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepscope.record.recorders.storage_log import NOTHING, Hidden, Rule
from stepscope.record.workspaces.platform import Platform

_SMALL = 20_480  # elements: below this a single sample is not worth oneDNN (torch's ConvUtils)
_FEW = 3  # channels, of a picture: the gradient of the weights reads no more of them without a copy
_TILES_FIXED = 8_500  # B beyond the sample itself, of input and of gradient each


def forward(platform: Platform) -> Rule:
    """aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        x, weight, groups = args[0], args[1], args[8]
        if not _through_onednn(platform, x, weight, args[3], args[5], args[6], groups):
            return _exactly(_patches(x, weight, out, args[6], args[3], args[4]))
        first, last = _is_first(platform, x, groups), _channels_last(x)
        inputs = 0 if first or last else _blocked(platform, x)
        weights = _blocked_weight(platform, weight, groups, not first)
        result = 0 if last else _blocked(platform, out)
        return _exactly(max(inputs + weights + result - (0 if last else out.nbytes), result))

    return rule


def backward(platform: Platform) -> Rule:
    """aten::convolution_backward(gradient, input, weight, bias sizes, stride, padding, dilation, transposed, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        gradient, x, weight, groups, mask = args[0], args[1], args[2], args[9], args[10]
        if not _through_onednn(platform, x, weight, args[4], args[6], args[7], groups):
            return _exactly(_patches(x, weight, gradient, args[7], args[4], args[5]))
        first, last = _is_first(platform, x, groups), _channels_last(x)
        blocked_gradient = 0 if last else _blocked(platform, gradient)
        blocked_input = 0 if last else _blocked(platform, x)
        to_input = x.nbytes if mask[0] else 0
        moments = [0]
        if mask[0]:
            weights = _blocked_weight(platform, weight, groups, True)
            direct = to_input if last else 0  # the result is written where it belongs, without a copy in blocks
            moments += [blocked_gradient + weights + blocked_input + direct, blocked_input + to_input]
            if groups == 1 and not last and any(s != 1 for s in args[4]):
                moments.append(3 * to_input)  # made with channels innermost, then copied twice
        if mask[1]:
            weights = _blocked_weight(platform, weight, groups, not first)
            reduced = _sums_in_float(platform, weight, weights, groups, [gradient] if first else [gradient, x])
            inputs = 0 if first else blocked_input
            if first and x.shape[1] > _FEW and not last:
                eights = replace(platform, block=8)
                inputs, weights = _blocked(eights, x), _blocked_weight(eights, weight, groups, True)
            moments += [to_input + inputs + blocked_gradient + weights + reduced, to_input + weights + weight.nbytes]
        outputs = sum(t.nbytes for t in out if isinstance(t, Tensor))
        return _exactly(max(moments) - outputs)

    return rule


def batch_norm_backward(platform: Platform) -> Rule:
    """aten::native_batch_norm_backward(gradient, input, ...): in bf16 a copy of the gradient."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        return _exactly(args[0].nbytes if args[0].dtype == torch.bfloat16 else 0)

    return rule


def reduction(platform: Platform) -> Rule:
    """aten::mean(input, ...): in bf16 input and result are also there in float32."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        return _exactly(2 * (args[0].nbytes + out.nbytes) if args[0].dtype == torch.bfloat16 else 0)

    return rule


RULES: dict[str, Callable[[Platform], Rule]] = {
    "convolution.default": forward,
    "convolution_backward.default": backward,
    "native_batch_norm_backward.default": batch_norm_backward,
    "mean.dim": reduction,
}


def _exactly(size: int) -> Hidden:
    return Hidden(size, size, size) if size > 0 else NOTHING


def _through_onednn(
    platform: Platform, x: Tensor, weight: Tensor, stride: Any, dilation: Any, transposed: bool, groups: int
) -> bool:
    """Whether torch hands this convolution to oneDNN, or to its own loop over samples (ConvUtils.h, use_mkldnn)."""
    if platform.block == 0 or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    if x.dtype == torch.bfloat16:
        return platform.native_bf16
    strided, dilated = any(s != 1 for s in stride), any(d != 1 for d in dilation)
    pointwise = all(k == 1 for k in weight.shape[2:])
    if not (strided or dilated or x.shape[0] >= 16 or not pointwise or platform.threads > 1):
        return False
    large_kernel = all(k > 3 for k in weight.shape[2:])
    return bool(groups > 1 or large_kernel or x.shape[0] > 1 or x.numel() > _SMALL)


def _sums_in_float(platform: Platform, weight: Tensor, blocked: int, groups: int, transposed: list[Tensor]) -> int:
    """Of a bf16 gradient of weights: its sums in float32; where a kernel is more than a pixel, tiles of a sample."""
    if weight.dtype != torch.bfloat16 or groups > 1:
        return 0
    tiles = sum(_blocked(platform, each[:1]) + _TILES_FIXED for each in transposed)
    return 2 * blocked + (0 if all(k == 1 for k in weight.shape[2:]) else tiles)


def _is_first(platform: Platform, x: Tensor, groups: int) -> bool:
    return bool(groups == 1 and x.shape[1] < platform.block)


def _channels_last(x: Tensor) -> bool:
    return (
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and not x.is_contiguous()
    )  # fmt: skip


def _blocked(platform: Platform, x: Tensor) -> int:
    """Bytes of an activation [N, C, ...] whose channels are rounded up to a block."""
    return int(x.shape[0] * _up(x.shape[1], platform.block) * math.prod(x.shape[2:]) * x.element_size())


def _blocked_weight(platform: Platform, weight: Tensor, groups: int, inputs_too: bool) -> int:
    """Bytes of a weight [O, I, ...] in blocks; of a depthwise one only its channels."""
    outputs, inputs = weight.shape[0], weight.shape[1]
    if groups > 1:
        padded = _up(outputs // groups, platform.block) * groups if outputs != groups else _up(outputs, platform.block)
        inner = _up(inputs, platform.block) if outputs != groups else inputs
    else:
        padded, inner = _up(outputs, platform.block), _up(inputs, platform.block) if inputs_too else inputs
    return int(padded * inner * math.prod(weight.shape[2:]) * weight.element_size())


def _up(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _patches(x: Tensor, weight: Tensor, result: Tensor, transposed: bool, stride: Any, padding: Any) -> int:
    """Every patch of the input as a column (im2col); a kernel of one pixel needs none."""
    if all(k == 1 for k in weight.shape[2:]) and all(s == 1 for s in stride) and not any(padding):
        return 0
    pixels = math.prod((x if transposed else result).shape[2:])
    return int(x.shape[0] * math.prod(weight.shape[1:]) * pixels * x.element_size())
