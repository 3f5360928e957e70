"""Workspaces of convolutions on ARM: oneDNN over the Arm Compute Library forward, its plain products backward.

Found by watching c10's allocations of single ops (torch 2.10, oneDNN 3.7, 1 to 4 threads, an emulated Cortex-A76: NEON,
no SVE, no bf16). Forward: input with channels innermost, weights in fours of output channels, the result with channels
innermost; then the result is copied twice. A kernel of one pixel, a dilated one, and one whose outputs make no fours go
through a product, which takes every patch of the batch and its result besides. Backward: the patches of one sample a
thread, the gradient of the input and of the weights each made twice, and sums of the weights' gradient by thread.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stepscope.record.dry.storage_log import Hidden

if TYPE_CHECKING:
    from stepscope.record.dry.workspaces import Platform

_FOURS = 4  # output channels that are kept together
_FEW = 16  # output channels up to which no whole fours are needed
_LINE = 128  # B, of an allocation of the library
_WEIGHT_SUMS = 4  # times the weights, a thread: as oneDNN books them
_BALANCED = 256  # pixels of a result, a thread: above, the threads share one sample
# Depthwise kernels keep packed weights and rows of a tile: B in all, a channel, and a channel and column of the input.
# Fitted on 11 shapes of 3 x 3 (8 to 256 channels, 4 to 32 columns): within 16 kB.
_DEPTHWISE, _OF_CHANNEL, _OF_COLUMN = 8_656, 160, 36


def forward(
    platform: Platform, x: Tensor, weight: Tensor, out: Tensor, stride: Any, dilation: Any, groups: int
) -> Hidden:
    """Return what a forward convolution takes beside its result, B."""
    outputs, result = weight.shape[0], out.nbytes
    if groups > 1 and weight.shape[1] > 1:
        size = max(platform.threads * _patches(weight, out) + _LINE, result)
        return Hidden(size, size, size)
    inputs = x.nbytes if x.shape[1] > 1 else 0
    weights = weight.nbytes // outputs * -(-outputs // _FOURS) * _FOURS
    scratch = least = 0
    if groups > 1:
        scratch, weights = _DEPTHWISE + x.shape[1] * (_OF_CHANNEL + _OF_COLUMN * x.shape[-1]), weight.nbytes
    elif _is_a_product(weight, dilation):
        least = 0 if _is_plain(weight, stride) else x.shape[0] * _patches(weight, out)
        scratch = least + result + 2 * _LINE
    size, low = (max(taken + inputs + weights, 2 * result) for taken in (scratch, least))
    return Hidden(size, low, size)


def _is_a_product(weight: Tensor, dilation: Any) -> bool:
    outputs = weight.shape[0]
    dilated, odd = any(d != 1 for d in dilation), outputs > _FEW and outputs % _FOURS != 0
    return dilated or odd or all(k == 1 for k in weight.shape[2:])


def _is_plain(weight: Tensor, stride: Any) -> bool:
    """Return whether pixels are multiplied as they lie, without patches."""
    return all(k == 1 for k in weight.shape[2:]) and all(s == 1 for s in stride)


def _patches(weight: Tensor, result: Tensor) -> int:
    """Every patch of one sample as a column, B."""
    return int(math.prod(weight.shape[1:]) * math.prod(result.shape[2:]) * weight.element_size())


def backward(
    platform: Platform, gradient: Tensor, x: Tensor, weight: Tensor, stride: Any, mask: Any, out: Any, groups: int
) -> Hidden:
    """Return what the gradients of a convolution take beside themselves, B."""
    plain = _is_plain(weight, stride)
    patches = 0 if plain else _patches(weight, gradient)
    pixels, samples = math.prod(gradient.shape[2:]), x.shape[0]
    to_input, bias = x.nbytes if mask[0] else 0, weight.shape[0] * weight.element_size() if mask[2] else 0
    shared = pixels / platform.threads < _BALANCED and (samples > 1 or groups > 2)
    workers = platform.threads if shared else 1
    sums = workers * (patches + _WEIGHT_SUMS * weight.nbytes) + (1 if plain else 2) * _LINE
    always = [2 * to_input]
    if mask[1]:
        always += [to_input + weight.nbytes + sums + bias, to_input + 2 * (weight.nbytes + bias)]
    single, all_of_them = (to_input + threads * patches + _LINE for threads in (1, platform.threads))
    usual = all_of_them if samples % platform.threads == 0 else single
    kept = sum(t.nbytes for t in out if isinstance(t, Tensor))
    low, high = max(*always, to_input and single), max(*always, to_input and all_of_them)
    return Hidden(max(*always, to_input and usual) - kept, low - kept, high - kept)
