"""LSTM on x86 through oneDNN: what forward keeps for backward, and copies of the weights in padded rows.

torch's shape function gives the workspace that forward keeps 0 bytes, so without a rule a dry run of an LSTM is up to
80 % low. Fitted on c10's allocations of single layers (torch 2.13, oneDNN 3.12, AVX-512, 5 to 327,680 units of
state over all steps): exact to 0.2 % for the kept part, 2 % for the scratch. On AVX2 61.6 B a unit were seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from stepscope.record.recorders.storage_log import NOTHING, Hidden, Rule
from stepscope.record.workspaces.platform import Platform

_KEPT, _KEPT_IN_ROWS = 33.8, 27.0  # B a unit of state and step; the second part lies in padded rows
_KEPT_FIXED = 22_528
_KEPT_IN_BF16 = 0.711  # of the same in float32: states of cells and their gradients stay in float32
_FLOAT = 4  # B
_TOUCHED = 0.326  # of what is kept: pages that forward writes to; the rest is asked for and never resident
_TOUCHED_BACKWARD = 16.5  # B a unit of state and step that backward touches of it besides
_SCRATCH, _SCRATCH_FIXED = 16.6, 17_000
_LINE = 16  # floats in a cache line
_ALIASING = 256  # a row of a multiple of this many floats gets another line, against aliasing of 4 KB
_INPUT, _INPUT_WEIGHT, _STATE_WEIGHT, _HIDDEN_SIZE, _TRAINED = 0, 1, 2, 10, 15
_WORKSPACE_OUTPUT = 3


def forward(platform: Platform) -> Rule:
    """aten::mkldnn_rnn_layer(input [T, N, I], weights [4H, I] and [4H, H], biases, hx, cx, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        if not platform.block:
            return NOTHING
        x, units = args[_INPUT], args[_HIDDEN_SIZE]
        steps = x.shape[0] * x.shape[1]
        in_float = x.element_size() == _FLOAT
        scratch = _copies(args[_INPUT_WEIGHT], args[_STATE_WEIGHT]) + (_scratch(steps, units) if in_float else 0)
        share = 1 if in_float else _KEPT_IN_BF16
        size = round(share * _kept(steps, units))
        kept = ((_WORKSPACE_OUTPUT, size, round(_TOUCHED * size)),) if args[_TRAINED] else ()
        return Hidden(scratch, scratch, scratch, kept)

    return rule


def backward(platform: Platform) -> Rule:
    """aten::mkldnn_rnn_layer_backward(input, four weights, hx, cx, output, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        if not platform.block:
            return NOTHING
        x, input_weight, state_weight = args[0], args[1], args[2]
        units = state_weight.shape[1]
        copies = _copies(input_weight, state_weight)
        if units % _ALIASING == 0 or units % _LINE:
            copies += _padded_gradients(input_weight, state_weight)
        made_contiguous = sum(t.nbytes for t in args if isinstance(t, Tensor) and not t.is_contiguous())
        scratch = _scratch(x.shape[0] * x.shape[1], units) * x.element_size() // _FLOAT
        size = copies + scratch + made_contiguous
        touched = size + round(_TOUCHED_BACKWARD * x.shape[0] * x.shape[1] * units)
        return Hidden(size, touched, touched)

    return rule


RULES: dict[str, Callable[[Platform], Rule]] = {
    "mkldnn_rnn_layer.default": forward,
    "mkldnn_rnn_layer_backward.default": backward,
}


def _kept(steps: int, units: int) -> int:
    return round(steps * (_KEPT * _up(units) + _KEPT_IN_ROWS * _row(units)) + _KEPT_FIXED)


def _scratch(steps: int, units: int) -> int:
    return round(_SCRATCH * steps * _up(units) + _SCRATCH_FIXED)


def _copies(*weights: Tensor) -> int:
    """Weights [4H, I] as I padded rows of 4H."""
    return sum(w.shape[1] * _row(w.shape[0]) * w.element_size() for w in weights)


def _padded_gradients(*weights: Tensor) -> int:
    """Gradients of weights [4H, I] in blocks of a line of both."""
    return sum(_up(w.shape[1] + 1) * _up(w.shape[0]) * w.element_size() for w in weights)


def _up(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _row(size: int) -> int:
    padded = _up(size)
    return padded + _LINE if padded % _ALIASING == 0 else padded
