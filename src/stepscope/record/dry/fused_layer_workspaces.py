"""Workspaces of fused attention and of LSTM layers on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepscope.record.dry.platform import AVX2, Platform
from stepscope.record.dry.storage_log import NOTHING, HiddenBytes, Rule

# Workspaces of fused attention on a CPU, as torch 2.13 asks for them (FlashAttentionKernel.cpp).
#
# Rows of queries and keys are taken in blocks. Each thread has room for the scores of a block, forward with its sums
# and result, backward for the scores and their gradient. Backward copies a gradient of which heads do not lie within
# tokens.

_KEYS = 512  # of a block at most
_FLOAT = 4  # B
_PANELS = 100_000  # B at most that products in bf16 ask for one after another


def _attention_block(queries: Tensor, keys: Tensor) -> tuple[int, int]:
    """Rows of queries and of keys that are taken together."""
    length = int(queries.shape[2])
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    return min(rows, length), min(_KEYS, int(keys.shape[2]))


def attention_forward(threads: int) -> Rule:
    """aten::_scaled_dot_product_flash_attention_for_cpu(query, key, value, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        query, key, value = args[:3]
        rows, keys = _attention_block(query, key)
        size = threads * _FLOAT * rows * (keys + 2 + int(query.shape[3]))
        if query.dtype == torch.float32:
            return HiddenBytes(size, size, size)
        size += threads * rows * keys * query.element_size()
        return HiddenBytes(size, size, size + key.nbytes + value.nbytes + _PANELS)

    return rule


def attention_backward(threads: int) -> Rule:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, query, key, value, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        gradient, query, key = args[:3]
        rows, keys = _attention_block(query, key)
        copied = 0 if gradient.transpose(1, 2).is_contiguous() else gradient.nbytes
        size = copied + 2 * threads * _FLOAT * rows * keys + _FLOAT * rows
        if query.dtype == torch.float32:
            return HiddenBytes(size, size, size)
        size += threads * rows * keys * 2 * query.element_size()
        return HiddenBytes(size, size, size + _PANELS)

    return rule


ATTENTION_RULES: dict[str, Callable[[int], Rule]] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": attention_backward,
}


# Workspaces of LSTM layers on the CPU: what forward leaves for backward, and copies of the weights in padded rows.

# torch's shape function gives the workspace that forward keeps 0 bytes, so without a rule a dry run of an LSTM is up to
# 80 % low. In float32 forward keeps buffers that begin on pages: of 177 layers (torch 2.13, oneDNN 3.12, AVX2; 1 to 512
# inputs, 5 to 512 units, 1 to 192 steps) none was off by more than three pages. With AVX-512 a fit (8 to 1024 inputs,
# 64 to 670 units) gave 60.1 B a unit where these are 60. In bf16 it was fitted alike: exact to 1 %.

# B a unit that forward keeps in bf16: a step, in rows of gates and without padding; a state, in rows of states or of
# inputs, whichever are more, and in rows of states
_WORKSPACE_IN_BF16 = (9.5, 7.5, 20.2, 5.2)  # states of cells and their gradients stay in float32
_PAGE = 4096  # B
_TOUCHED = 0.326  # of what is kept: pages that forward writes to; the rest is asked for and never resident
_TOUCHED_BACKWARD = 16.5  # B a unit of state and step that backward touches of it besides
_SCRATCH_FIXED = 17_000  # B
_KEPT_FITTED, _SCRATCH_FITTED, _FITTED_FIXED = 0.045, 0.05, 18_000  # seen on 30 other layers, and pages, B
_KEPT_EXACT = 0.002, 2 * _PAGE  # in float32, where it was measured
_SCRATCH_IN_BF16 = 19.0  # B a unit of state and sample: one step at a time
_LINE = 16  # floats in a cache line
_ALIASING = 256  # a row of a multiple of this many floats gets another line, against aliasing of 4 KB
_INPUT, _INPUT_WEIGHT, _STATE_WEIGHT, _HIDDEN_SIZE, _TRAINED = 0, 1, 2, 10, 15
_WORKSPACE_OUTPUT = 3


def lstm_forward(platform: Platform) -> Rule:
    """aten::mkldnn_rnn_layer(input [T, N, I], weights [4H, I] and [4H, H], biases, hx, cx, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        x, units = args[_INPUT], args[_HIDDEN_SIZE]
        if not _has_lstm_rule(platform, x):
            return NOTHING
        weights = args[_INPUT_WEIGHT], args[_STATE_WEIGHT]
        size = (_reference_rnn_bytes if platform.acl else _lstm_workspace_bytes)(x, units)
        if platform.acl:
            scratch = _padded_weight_bytes(*weights) + _reference_scratch_bytes(x, units, x.shape[1] < _ONE_PRODUCT)
        elif x.element_size() == _FLOAT:
            scratch = _padded_weight_bytes(*weights) + _lstm_scratch_bytes(x, units)
        else:
            scratch = sum(
                4 * _round_up_to_line(units, 2 * _LINE) * w.shape[1] * w.element_size() for w in weights
            ) + _bf16_scratch_bytes(x.shape[1], units)
        touched = size if platform.acl else round(_TOUCHED * size)
        workspace = ((_WORKSPACE_OUTPUT, size, touched),) if args[_TRAINED] else ()
        requested = (scratch - _scratch_uncertainty(scratch), scratch + _scratch_uncertainty(scratch))
        exact = x.element_size() == _FLOAT and platform.block == AVX2
        uncertainty = _KEPT_EXACT if exact else (_KEPT_FITTED, _FITTED_FIXED)
        return HiddenBytes(scratch, scratch, scratch, workspace, requested, uncertainty)

    return rule


def lstm_backward(platform: Platform) -> Rule:
    """aten::mkldnn_rnn_layer_backward(input, four weights, hx, cx, output, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        x, weights = args[0], args[1:3]
        if not _has_lstm_rule(platform, x):
            return NOTHING
        units = weights[1].shape[1]
        size = sum(t.nbytes for t in args if isinstance(t, Tensor) and not t.is_contiguous())
        if platform.acl:
            size += (
                _padded_weight_bytes(*weights)
                + _padded_gradient_bytes(*weights)
                + _reference_scratch_bytes(x, units, True)
            )
            return HiddenBytes(
                size, size, size, requested=(size - _scratch_uncertainty(size), size + _scratch_uncertainty(size))
            )
        size += (_lstm_backward_in_float if x.element_size() == _FLOAT else _lstm_backward_in_bf16)(x, *weights)
        touched = size + round(_TOUCHED_BACKWARD * x.shape[0] * x.shape[1] * units)
        return HiddenBytes(
            size, touched, touched, requested=(size - _scratch_uncertainty(size), size + _scratch_uncertainty(size))
        )

    return rule


def _scratch_uncertainty(size: int) -> int:
    """How far a scratch of so many bytes may be off, B."""
    return round(_SCRATCH_FITTED * size) + _FITTED_FIXED


LSTM_RULES: dict[str, Callable[[Platform], Rule]] = {
    "mkldnn_rnn_layer.default": lstm_forward,
    "mkldnn_rnn_layer_backward.default": lstm_backward,
}


def _has_lstm_rule(platform: Platform, x: Tensor) -> bool:
    return bool(platform.block) or (platform.acl and x.element_size() == _FLOAT)


# On ARM oneDNN's reference implementation runs (oneDNN 3.7, an emulated Cortex-A76, 20 shapes of 8 to 300 inputs, 64 to
# 650 units): gates twice, ten rows of states or inputs and one of states a step. Each buffer begins on a page.
_ONE_PRODUCT = 128  # samples from which forward makes the gates of one step at a time
_PAGES, _PAGE_OR_TWO = 17_000, 6_000  # B


def _reference_rnn_bytes(x: Tensor, units: int) -> int:
    steps, samples, inputs = x.shape
    gates = steps * (_padded_row(4 * units) + 4 * units)
    states = 10 * (steps + 1) * _padded_row(max(inputs, units)) + (steps + 4) * _padded_row(units)
    return int(_FLOAT * samples * (gates + states)) + (_PAGES if samples < 2 * _LINE else 0)


def _reference_scratch_bytes(x: Tensor, units: int, of_all_steps: bool) -> int:
    steps, samples = x.shape[0] if of_all_steps else 1, x.shape[1]
    return int(5 * _FLOAT * samples * (steps * _padded_row(4 * units) + 2 * _padded_row(units))) + _PAGE_OR_TWO


def _lstm_workspace_bytes(x: Tensor, units: int) -> int:
    """Return the workspace for an input [T, N, I]; there is one more state than there are steps."""
    steps, samples, inputs = x.shape
    if x.element_size() == _FLOAT:
        unit = _FLOAT * samples  # B of a step
        gates, plain = unit * steps * _padded_row(4 * units), unit * units
        wider, states = unit * _padded_row(max(inputs, units)), unit * _padded_row(units) * (steps + 1)
        buffers = gates, *[2 * wider * (steps + 1)] * 3, states, 2 * plain * (steps + 1), plain * (2 * steps + 1)
        return sum(_round_up_to_line(size, _PAGE) for size in buffers)
    of_gates, of_units, of_inputs, of_states = _WORKSPACE_IN_BF16
    of_step = of_gates * _padded_row(4 * units) / 4 + of_units * _round_up_to_line(units)
    of_state = of_inputs * _padded_row(max(inputs, units)) + of_states * _padded_row(units)
    return round(samples * (steps * of_step + (steps + 1) * of_state))


def _lstm_scratch_bytes(x: Tensor, units: int) -> int:
    steps, samples = x.shape[:2]
    return int(_FLOAT * samples * (steps * _padded_row(4 * units) + 2 * units) + _SCRATCH_FIXED)


def _lstm_backward_in_float(x: Tensor, input_weight: Tensor, state_weight: Tensor) -> int:
    units = state_weight.shape[1]
    copies = _padded_weight_bytes(input_weight, state_weight) + _padded_gradient_bytes(input_weight, state_weight)
    return copies + _lstm_scratch_bytes(x, units)


def _lstm_backward_in_bf16(x: Tensor, input_weight: Tensor, state_weight: Tensor) -> int:
    """Weights once more, their gradients in rows of float32, and the gradients of the output as float32."""
    (steps, samples, _), units = x.shape, state_weight.shape[1]
    weights = sum(
        _round_up_to_line(w.shape[1], 2 * _LINE) * w.shape[0] * w.element_size() for w in (input_weight, state_weight)
    )
    rows = sum(w.shape[1] * _padded_row(w.shape[0]) for w in (input_weight, state_weight))
    incoming = samples * units * (steps + 2)
    return weights + _FLOAT * (rows + incoming) + _bf16_scratch_bytes(samples, units)


def _bf16_scratch_bytes(samples: int, units: int) -> int:
    return round(_SCRATCH_IN_BF16 * samples * units) + _SCRATCH_FIXED


def _padded_weight_bytes(*weights: Tensor) -> int:
    """Weights [4H, I] as I padded rows of 4H."""
    return sum(w.shape[1] * _padded_row(w.shape[0]) * w.element_size() for w in weights)


def _padded_gradient_bytes(*weights: Tensor) -> int:
    """Gradients of weights [4H, I] once more in rows of whole lines, where I fills none or would alias."""
    padded = [w for w in weights if w.shape[1] % _ALIASING == 0 or w.shape[1] % _LINE]
    return sum(_round_up_to_line(w.shape[1] + 1) * w.shape[0] * w.element_size() for w in padded)


def _round_up_to_line(size: int, line: int = _LINE) -> int:
    return -(-size // line) * line


def _padded_row(size: int) -> int:
    padded = _round_up_to_line(size)
    return padded + _LINE if padded % _ALIASING == 0 else padded
