"""cuDNN on NVIDIA GPUs: which kernel runs is decided at run time, so a workspace is an interval.

No less than nothing (implicit products) and no more than every patch of the input written out, capped by what cuDNN
may take at most. Allocations of an LSTM's reserve follow NVIDIA's guide: gates and states of every step. Not yet
compared with a GPU: the interval is wide on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stepscope.record.recorders.storage_log import NOTHING, Hidden, Rule
from stepscope.record.workspaces.onednn_rnn import RULES as SEEN_AS_ONEDNN
from stepscope.record.workspaces.platform import Platform

_MOST = 1 << 30  # B, cuDNN's limit in torch for a search of kernels
_EXPECTED = 0.25  # of the widest: most layers run without, a few with transformed tiles
_RESERVED = 24  # B a unit of state and step: four gates, cell and output in float32


def forward(platform: Platform) -> Rule:
    """aten::convolution."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        return _between(args[0].shape[0] * math.prod(args[1].shape[1:]) * math.prod(out.shape[2:]), args[0])

    return rule


def backward(platform: Platform) -> Rule:
    """aten::convolution_backward."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        gradient, x, weight = args[:3]
        return _between(x.shape[0] * math.prod(weight.shape[1:]) * math.prod(gradient.shape[2:]), x)

    return rule


def lstm(platform: Platform) -> Rule:
    """A layer of an LSTM, which the CPU's dispatch shows as oneDNN's."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        if "backward" in func.__name__:
            return NOTHING
        reserve = _RESERVED * args[0].shape[0] * args[0].shape[1] * args[10]
        return Hidden(0, 0, reserve, ((3, reserve, reserve),))

    return rule


RULES: dict[str, Callable[[Platform], Rule]] = {
    "convolution.default": forward,
    "convolution_backward.default": backward,
    **dict.fromkeys(SEEN_AS_ONEDNN, lstm),
}


def _between(elements: int, x: Any) -> Hidden:
    most = min(_MOST, elements * x.element_size())
    return Hidden(round(_EXPECTED * most), 0, most)
