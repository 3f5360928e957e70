"""Workspaces of convolutions: oneDNN on x86 and over the Arm Compute Library, and intervals for cuDNN.

Convolutions on x86 go through oneDNN: copies in blocked layouts, channels rounded up to a block. cuDNN decides at run
time which kernel runs, so its workspace is an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepscope.record.dry.fused_layer_workspaces import LSTM_RULES
from stepscope.record.dry.platform import AVX2, Platform
from stepscope.record.dry.storage_log import NOTHING, HiddenBytes, Rule, exact_bytes

# Found by watching c10's allocations of single ops (torch 2.13, oneDNN 3.12). Forward: input and weights are copied
# into blocks (a first layer of fewer channels than a block is read as it is), the result is made in blocks, then copied
# out. Backward: the same for the gradient of the input, then again for that of the weights (which reads three channels
# as they are, and copies four and more into eights). In channels-last nothing but the weights is copied. Without bf16
# in hardware an expansion of every patch takes its place (im2col).

_LINES = 128  # B
_SMALL = 20_480  # elements: below this a single sample is not worth oneDNN (torch's ConvUtils)
_FEW = 3  # channels, of a picture: the gradient of the weights reads no more of them without a copy
_TILES_FIXED = 8_500  # B beyond the sample itself, of input and of gradient each


def convolution_forward(platform: Platform) -> Rule:
    """aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        x, weight, groups = args[0], args[1], args[8]
        if not _goes_through_onednn(platform, x, weight, args[3], args[5], groups):
            return exact_bytes(_batch_patch_bytes(x, weight, out, args[6], args[3], args[4]))
        if platform.acl:
            return _acl_forward(platform, x, weight, out, args[3], args[5], groups)
        if fits_no_block(x, weight, groups):
            return exact_bytes(max(_im2col_bytes(weight, out), out.nbytes))
        first, last = _has_fewer_channels_than_block(platform, x, groups), _is_channels_last(x)
        inputs = 0 if first or last else _blocked_bytes(platform, x)
        if platform.block == AVX2 and all(k == 1 for k in weight.shape[2:]) and any(s != 1 for s in args[3]):
            inputs += platform.threads * x.shape[1] * math.prod(out.shape[2:]) * x.element_size() + _LINES
        weights = _blocked_weight_bytes(platform, weight, groups, not first)
        result = 0 if last else _blocked_bytes(platform, out)
        return exact_bytes(max(inputs + weights + result - (0 if last else out.nbytes), result))

    return rule


def convolution_backward(platform: Platform) -> Rule:
    """aten::convolution_backward(gradient, input, weight, bias sizes, stride, padding, dilation, transposed, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        gradient, x, weight, groups, mask = args[0], args[1], args[2], args[9], args[10]
        # of a sum: one number, expanded
        copied = 0 if gradient.is_contiguous() or _is_channels_last(x) else gradient.nbytes
        if not _goes_through_onednn(platform, x, weight, args[4], args[6], groups):
            return exact_bytes(copied + _batch_patch_bytes(x, weight, gradient, args[7], args[4], args[5]))
        if platform.acl:
            return _acl_backward(platform, gradient, x, weight, args[4], mask, out, groups)
        outputs = sum(t.nbytes for t in out if isinstance(t, Tensor))
        if fits_no_block(x, weight, groups):
            return exact_bytes(copied + _im2col_backward_bytes(gradient, x, weight, mask) - outputs)
        first, last = _has_fewer_channels_than_block(platform, x, groups), _is_channels_last(x)
        blocked_gradient = 0 if last else _blocked_bytes(platform, gradient)
        blocked_input = 0 if last else _blocked_bytes(platform, x)
        to_input = x.nbytes if mask[0] else 0
        moments = [0]
        if mask[0]:
            weights = _blocked_weight_bytes(platform, weight, groups, True)
            direct = to_input if last else 0  # the result is written where it belongs, without a copy in blocks
            moments += [blocked_gradient + weights + blocked_input + direct, blocked_input + to_input]
            if groups == 1 and not last and any(s != 1 for s in args[4]):
                moments.append(3 * to_input)  # made with channels innermost, then copied twice
        if mask[1]:
            weights = _blocked_weight_bytes(platform, weight, groups, not first)
            reduced = _bytes_of_float_sums(platform, weight, weights, groups, [gradient] if first else [gradient, x])
            inputs = 0 if first else blocked_input
            if first and x.shape[1] > _FEW and not last:
                eights = replace(platform, block=8)
                inputs, weights = _blocked_bytes(eights, x), _blocked_weight_bytes(eights, weight, groups, True)
            moments += [to_input + inputs + blocked_gradient + weights + reduced, to_input + weights + weight.nbytes]
        return exact_bytes(copied + max(moments) - outputs)

    return rule


_LEAST_BLOCK = 4  # channels of a group, in and out: oneDNN has blocks of 16, 8 and 4
_PATCHES_FIXED, _PARTIAL_SUMS = 128, 4  # B, and copies of the weights that their gradient is summed in


def fits_no_block(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Return whether groups fit in no block: a product then takes a group of one sample, every patch written out."""
    inputs, outputs = int(weight.shape[1]), int(weight.shape[0]) // groups
    alone = inputs == outputs == 1
    whole = inputs % _LEAST_BLOCK == 0 and outputs % _LEAST_BLOCK == 0
    return groups > 1 and x.dtype == torch.float32 and not (alone or whole)


def _im2col_bytes(weight: Tensor, out: Tensor) -> int:
    return int(math.prod(out.shape[2:]) * math.prod(weight.shape[1:]) * weight.element_size() + _PATCHES_FIXED)


def _im2col_backward_bytes(gradient: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> int:
    """The most bytes at once, outputs included: of the input's gradient, then of the weights'."""
    patches, to_input = _im2col_bytes(weight, gradient), x.nbytes if mask[0] else 0
    moments = [to_input + max(patches, to_input)] if mask[0] else [0]
    if mask[1]:
        sums = patches + _PARTIAL_SUMS * weight.nbytes + _PATCHES_FIXED
        moments.append(to_input + weight.nbytes + max(sums, weight.nbytes))
    return max(moments)


def _goes_through_onednn(
    platform: Platform, x: Tensor, weight: Tensor, stride: Any, dilation: Any, groups: int
) -> bool:
    """Return whether torch hands this convolution to oneDNN, or to its own loop over samples (ConvUtils.h,
    use_mkldnn).
    """
    if not (platform.block or platform.acl) or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    if x.dtype == torch.bfloat16:
        return platform.native_bf16
    strided, dilated = any(s != 1 for s in stride), any(d != 1 for d in dilation)
    pointwise = all(k == 1 for k in weight.shape[2:])
    if not (strided or dilated or x.shape[0] >= 16 or not pointwise or platform.threads > 1):
        return False
    large_kernel = all(k > 3 for k in weight.shape[2:])
    return bool(groups > 1 or large_kernel or x.shape[0] > 1 or x.numel() > _SMALL)


def _bytes_of_float_sums(
    platform: Platform, weight: Tensor, blocked: int, groups: int, transposed: list[Tensor]
) -> int:
    """Return float32 sums of a bf16 weight gradient; tiles of a sample where a kernel is larger than a pixel."""
    if weight.dtype != torch.bfloat16 or groups > 1:
        return 0
    tiles = sum(_blocked_bytes(platform, shape[:1]) + _TILES_FIXED for shape in transposed)
    return 2 * blocked + (0 if all(k == 1 for k in weight.shape[2:]) else tiles)


def _has_fewer_channels_than_block(platform: Platform, x: Tensor, groups: int) -> bool:
    return bool(groups == 1 and x.shape[1] < platform.block)


def _is_channels_last(x: Tensor) -> bool:
    return (
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and not x.is_contiguous()
    )  # fmt: skip


def _blocked_bytes(platform: Platform, x: Tensor) -> int:
    """Bytes of an activation [N, C, ...] whose channels are rounded up to a block."""
    return int(x.shape[0] * _round_up_to_block(x.shape[1], platform.block) * math.prod(x.shape[2:]) * x.element_size())


def _blocked_weight_bytes(platform: Platform, weight: Tensor, groups: int, inputs_too: bool) -> int:
    """Bytes of a weight [O, I, ...] in blocks; of a depthwise one only its channels."""
    outputs, inputs = weight.shape[0], weight.shape[1]
    if groups > 1 and outputs != groups:
        return int(weight.nbytes)  # blocks as small as the group needs
    if groups > 1:
        padded, inner = _round_up_to_block(outputs, platform.block), inputs
    else:
        padded, inner = (
            _round_up_to_block(outputs, platform.block),
            _round_up_to_block(inputs, platform.block) if inputs_too else inputs,
        )
    return int(padded * inner * math.prod(weight.shape[2:]) * weight.element_size())


def _round_up_to_block(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _batch_patch_bytes(x: Tensor, weight: Tensor, result: Tensor, transposed: bool, stride: Any, padding: Any) -> int:
    """Every patch of the input as a column (im2col); a kernel of one pixel needs none."""
    if all(k == 1 for k in weight.shape[2:]) and all(s == 1 for s in stride) and not any(padding):
        return 0
    pixels = math.prod((x if transposed else result).shape[2:])
    return int(x.shape[0] * math.prod(weight.shape[1:]) * pixels * x.element_size())


# Workspaces of convolutions on ARM: oneDNN over the Arm Compute Library forward, its plain products backward.
#
# Found by watching c10's allocations of single ops (torch 2.10, oneDNN 3.7, 1 to 4 threads, an emulated Cortex-A76:
# NEON, no SVE, no bf16). Forward: input with channels innermost, weights in fours of output channels, the result with
# channels innermost; then the result is copied twice. A kernel of one pixel, a dilated one, and one whose outputs
# make no fours go through a product, which takes every patch of the batch and its result besides. Backward: the
# patches of one sample a thread, the gradient of the input and of the weights each made twice, and sums of the
# weights' gradient by thread.

_FOURS = 4  # output channels that are kept together
_FEW_OUTPUTS = 16  # output channels up to which no whole fours are needed
_ACL_LINE = 128  # B, of an allocation of the library
_WEIGHT_SUMS = 4  # times the weights, a thread: as oneDNN books them
_BALANCED = 256  # pixels of a result, a thread: above, the threads share one sample
# Depthwise kernels keep packed weights and rows of a tile: B in all, a channel, and a channel and column of the input.
# Fitted on 11 shapes of 3 x 3 (8 to 256 channels, 4 to 32 columns): within 16 kB.
_DEPTHWISE, _OF_CHANNEL, _OF_COLUMN = 8_656, 160, 36


def _acl_forward(
    platform: Platform, x: Tensor, weight: Tensor, out: Tensor, stride: Any, dilation: Any, groups: int
) -> HiddenBytes:
    """Return what a convolution takes beside its result, B."""
    outputs, result = weight.shape[0], out.nbytes
    if groups > 1 and weight.shape[1] > 1:
        size = max(platform.threads * _sample_patch_bytes(weight, out) + _ACL_LINE, result)
        return HiddenBytes(size, size, size)
    inputs = x.nbytes if x.shape[1] > 1 else 0
    weights = weight.nbytes // outputs * -(-outputs // _FOURS) * _FOURS
    scratch = least = 0
    if groups > 1:
        scratch, weights = _DEPTHWISE + x.shape[1] * (_OF_CHANNEL + _OF_COLUMN * x.shape[-1]), weight.nbytes
    elif _acl_uses_product(weight, dilation):
        least = 0 if _needs_no_patches(weight, stride) else x.shape[0] * _sample_patch_bytes(weight, out)
        scratch = least + result + 2 * _ACL_LINE
    size, low = (max(amount + inputs + weights, 2 * result) for amount in (scratch, least))
    return HiddenBytes(size, low, size)


def _acl_uses_product(weight: Tensor, dilation: Any) -> bool:
    outputs = weight.shape[0]
    dilated, odd = any(d != 1 for d in dilation), outputs > _FEW_OUTPUTS and outputs % _FOURS != 0
    return dilated or odd or all(k == 1 for k in weight.shape[2:])


def _needs_no_patches(weight: Tensor, stride: Any) -> bool:
    """Return whether pixels are multiplied as they lie, without patches."""
    return all(k == 1 for k in weight.shape[2:]) and all(s == 1 for s in stride)


def _sample_patch_bytes(weight: Tensor, result: Tensor) -> int:
    """Every patch of one sample as a column, B."""
    return int(math.prod(weight.shape[1:]) * math.prod(result.shape[2:]) * weight.element_size())


def _acl_backward(
    platform: Platform, gradient: Tensor, x: Tensor, weight: Tensor, stride: Any, mask: Any, out: Any, groups: int
) -> HiddenBytes:
    """Return what the gradients of a convolution take beside themselves, B."""
    plain = _needs_no_patches(weight, stride)
    patches = 0 if plain else _sample_patch_bytes(weight, gradient)
    pixels, samples = math.prod(gradient.shape[2:]), x.shape[0]
    to_input, bias = x.nbytes if mask[0] else 0, weight.shape[0] * weight.element_size() if mask[2] else 0
    shared = pixels / platform.threads < _BALANCED and (samples > 1 or groups > 2)
    workers = platform.threads if shared else 1
    sums = workers * (patches + _WEIGHT_SUMS * weight.nbytes) + (1 if plain else 2) * _ACL_LINE
    always = [2 * to_input]
    if mask[1]:
        always += [to_input + weight.nbytes + sums + bias, to_input + 2 * (weight.nbytes + bias)]
    single, all_of_them = (to_input + threads * patches + _ACL_LINE for threads in (1, platform.threads))
    usual = all_of_them if samples % platform.threads == 0 else single
    outputs = sum(t.nbytes for t in out if isinstance(t, Tensor))
    low, high = max(*always, to_input and single), max(*always, to_input and all_of_them)
    return HiddenBytes(max(*always, to_input and usual) - outputs, low - outputs, high - outputs)


CONVOLUTION_RULES: dict[str, Callable[[Platform], Rule]] = {
    "convolution.default": convolution_forward,
    "convolution_backward.default": convolution_backward,
}


# No less than nothing (implicit products) and no more than every patch of the input written out, capped by what cuDNN
# may take at most. Allocations of an LSTM's reserve follow NVIDIA's guide: gates and states of every step. Not yet
# compared with a GPU: the interval is wide on purpose.

_CUDNN_MOST = 1 << 30  # B, cuDNN's limit in torch for a search of kernels
_CUDNN_EXPECTED = 0.25  # of the widest: most layers run without, a few with transformed tiles
_CUDNN_RESERVED = 24  # B a unit of state and step: four gates, cell and output in float32


def cudnn_convolution(platform: Platform) -> Rule:
    """aten::convolution(input, weight, ...) and aten::convolution_backward(gradient, input, weight, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        result, x, weight = args[:3] if "backward" in func.__name__ else (out, *args[:2])
        most = min(
            _CUDNN_MOST, x.shape[0] * math.prod(weight.shape[1:]) * math.prod(result.shape[2:]) * x.element_size()
        )
        return HiddenBytes(round(_CUDNN_EXPECTED * most), 0, most)

    return rule


def cudnn_lstm(platform: Platform) -> Rule:
    """A layer of an LSTM, which the CPU's dispatch shows as oneDNN's."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        if "backward" in func.__name__:
            return NOTHING
        reserve = _CUDNN_RESERVED * args[0].shape[0] * args[0].shape[1] * args[10]
        return HiddenBytes(0, 0, reserve, ((3, reserve, reserve),))

    return rule


CUDNN_RULES: dict[str, Callable[[Platform], Rule]] = {
    **dict.fromkeys(CONVOLUTION_RULES, cudnn_convolution),
    **dict.fromkeys(LSTM_RULES, cudnn_lstm),
}
