"""Workspaces that kernels allocate and no dispatcher sees: a rule a kernel, by the library that runs it.

`Workspaces` is called with each op of a dry run. An op that is known to call a library, and for which there is no
rule, counts 0 and is named in `not_modelled`. A convolution that the rules were not fitted on (three dimensions,
dilated, transposed, channels innermost) gets an interval and is named in `uncovered`; so does a kernel of another
processor. The rules are in `convolution_workspaces`, `fused_layer_workspaces` and `arithmetic_workspaces`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepscope.record.dry.arithmetic_workspaces import ARITHMETIC_RULES
from stepscope.record.dry.convolution_workspaces import CONVOLUTION_RULES, CUDNN_RULES, fits_no_block
from stepscope.record.dry.fused_layer_workspaces import ATTENTION_RULES, LSTM_RULES
from stepscope.record.dry.platform import AVX2, Platform
from stepscope.record.dry.storage_log import NOTHING, HiddenBytes, Rule
from stepscope.record.dry.unmodelled_ops import (
    bytes_of,
    call_kind,
    call_signature,
    needs_no_workspace,
    upper_bound,
)

_LIBRARY_CALLS = (
    "conv", "rnn", "lstm", "gru", "attention", "ctc", "fft", "linalg", "mkldnn", "cudnn", "grid_sampler", "coalesce",
    "_trilinear",
)  # fmt: skip
_NO_WORKSPACE = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "constant",
    "_thnn_fused",
    "_scaled_dot_product_fused",
    "vector_norm",
)
_OWN = ("aten", "prims", "prim")


@dataclass
class Workspaces:
    """The rules of one platform; `probed` are measurements of single ops on this device, which go before any rule."""

    platform: Platform
    probed: Mapping[str, Probed] = field(default_factory=dict)
    not_modelled: dict[str, int] = field(default_factory=dict)  # name of an op, how often it ran
    uncovered: set[str] = field(default_factory=set)  # signatures outside of what the rules were fitted on

    def __post_init__(self) -> None:
        of_cpu = {**CONVOLUTION_RULES, **LSTM_RULES, **ARITHMETIC_RULES}
        rules = CUDNN_RULES if self.platform.kind == "cuda" else of_cpu
        self._rules = {name: rule(self.platform) for name, rule in rules.items()}
        if self.platform.kind == "cpu":
            self._rules |= {name: rule(self.platform.threads) for name, rule in ATTENTION_RULES.items()}
        if not self.platform.is_known and self.platform.kind == "cpu":
            others = [replace(self.platform, block=0, acl=acl) for acl in (False, True)]
            self._rules = {
                name: _interval_of_rules([rule, *(rules[name](other) for other in others if name in rules)])
                for name, rule in self._rules.items()
            }
        if not self.platform.is_known or self.platform.kind != "cpu":
            self.probed = {}  # of this machine's kernels, which are not those
        self._rule_by_op: dict[Any, Rule | None] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        if func not in self._rule_by_op:
            self._rule_by_op[func] = self._rules.get(func.__name__)
        rule = self._rule_by_op[func]
        if rule is None or any(isinstance(arg, Tensor) and arg.layout is not torch.strided for arg in args):
            return self._workspace_without_rule(func, args, kwargs, out)
        hidden = rule(func, args, kwargs, out)
        fitted = hidden.output_sizes or self.platform.kind != "cpu" or not self._is_unfitted_convolution(func, args)
        if fitted and not self.probed:
            return hidden
        name = signature(func, args)
        probe = None if hidden.output_sizes else self.probed.get(name)
        if probe is not None:
            size = probe.bytes(_first_argument_length(args))
            return HiddenBytes(size, size if fitted else min(size, hidden.low), size, requested=(size, size))
        if fitted:
            return hidden
        self.uncovered.add(name)
        most, least = hidden.high + _unfitted_bound(args), 0 if self.platform.block == AVX2 else hidden.low
        return HiddenBytes(hidden.expected, least, most, call=name, samples=_first_argument_length(args))

    def _workspace_without_rule(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> HiddenBytes:
        """Return what is known of an op by name, by a probe of it, by one of its like, or else that little is known."""
        here = self.platform.is_known and self.platform.kind == "cpu"
        if not here or func.namespace not in _OWN:
            if _calls_a_library(func) and bytes_of(args, kwargs, out):
                self.not_modelled[str(func)] = self.not_modelled.get(str(func), 0) + 1
            return NOTHING
        if needs_no_workspace(func, args, kwargs):
            return NOTHING
        call = call_signature(func, args, kwargs)
        probe = self.probed.get(call)
        if probe is not None:
            size = probe.bytes(0)
            return HiddenBytes(size, size, size, call=call) if size else NOTHING
        if call:
            self.uncovered.add(call)
        like, size = self.probed.get(call_kind(func, args, kwargs)), bytes_of(args, kwargs)
        if like is None:
            return HiddenBytes(0, 0, upper_bound(size, out), call=call)
        expected = like.bytes(size)
        return HiddenBytes(expected, 0, round(_OF_ITS_LIKE * expected) + _LITTLE, call=call)

    def _is_unfitted_convolution(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether a convolution is none of those that the rules were fitted on: flat, dense and as stored."""
        if not func.__name__.startswith("convolution"):
            return False
        backward = "backward" in func.__name__
        x, weight = (args[1], args[2]) if backward else (args[0], args[1])
        dilation, transposed = (args[6], args[7]) if backward else (args[5], args[6])
        strided = not (x.is_contiguous() and weight.is_contiguous())
        stride, padding, groups = (*args[4:6], args[9]) if backward else (*args[3:5], args[8])
        padded = any(padding) and all(k == 1 for k in weight.shape[2:])  # patches of one pixel, some of them of zeros
        sparse = x.dim() == 3 and any(s != 1 for s in stride)
        odd = padded or (groups > 1 and (sparse or x.dtype != torch.float32 or fits_no_block(x, weight, groups)))
        if self.platform.block == AVX2 and _differs_on_avx2(x, weight, groups):
            return True
        return bool(x.dim() > 4 or transposed or strided or odd or any(d != 1 for d in dilation))


_OF_ITS_LIKE, _LITTLE = 1.25, 65_536  # an op of other sizes than the one that was probed; B


def _interval_of_rules(rules: list[Rule]) -> Rule:
    """Between nothing and the largest: which of them a processor's library follows is not known."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        candidates = [rule(func, args, kwargs, out) for rule in rules]
        most = max(hidden.high for hidden in candidates)
        output_sizes = max(
            (hidden.output_sizes for hidden in candidates),
            key=lambda output_sizes: sum(size for _, size, _ in output_sizes),
        )
        return HiddenBytes(most // 2, 0, most, output_sizes)

    return rule


def _differs_on_avx2(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Return whether a convolution is one of those that the rules of AVX-512 missed by far, of 810 on AVX2."""
    sizes = tuple(weight.shape[2:])
    if groups > 1:
        return not (groups == x.shape[1] == weight.shape[0] and all(k == _DEPTHWISE for k in sizes))
    return bool(x.shape[1] < _FEW or (x.shape[1] < AVX2 and all(k == 1 for k in sizes)))


_DEPTHWISE, _FEW = 3, 3  # pixels of a kernel, and channels of a picture, that have kernels of their own

# Seen beyond the rules (forward and backward of one op, float32, AVX-512): 3.2 times the weights of a dilated kernel of
# 960 to 256 channels, 3.0 of 512 to 512 in three dimensions, 2.0 of the same with channels innermost.
_WEIGHTS_BEYOND = 4


def _unfitted_bound(args: tuple[Any, ...]) -> int:
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    largest = max((tensor.nbytes for tensor in tensors if tensor.dim() > 1), default=0)
    weight = tensors[2] if len(tensors) > 2 and tensors[2].dim() > 2 else tensors[1]
    return _WEIGHTS_BEYOND * weight.nbytes + largest


def _calls_a_library(func: Any) -> bool:
    namespace, name = func.namespace, func.__name__
    if namespace not in _OWN:
        return bool(namespace not in ("stepscope", "profiler", "c10d"))
    return any(word in name for word in _LIBRARY_CALLS) and not any(word in name for word in _NO_WORKSPACE)


def _first_argument_length(args: tuple[Any, ...]) -> int:
    first = args[0]
    return int(first.shape[0]) if isinstance(first, torch.Tensor) and first.dim() else 1


@dataclass(frozen=True)
class Probed:
    """A measured workspace, B: one share that does not depend on the batch and one a sample."""

    fixed: float
    per_sample: float

    def bytes(self, samples: int) -> int:
        """Return the bytes at a batch of so many samples."""
        return max(0, round(self.fixed + self.per_sample * samples))


def signature(func: Any, args: tuple[Any, ...]) -> str:
    """Name, types, shapes, strides and numbers; of activations (more than two dimensions) the first one is excluded."""
    weights = 2 if "backward" in func.__name__ else 1
    return f"{func.__name__}({', '.join(_argument_text(arg, index == weights) for index, arg in enumerate(args))})"


def _argument_text(arg: Any, is_weight: bool) -> str:
    if isinstance(arg, Tensor):
        shape = tuple(arg.shape) if is_weight else tuple(arg.shape[1:])
        return f"{str(arg.dtype).removeprefix('torch.')}{list(shape)}{'' if arg.is_contiguous() else dim_order(arg)}"
    return str(arg)


def dim_order(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions from the outermost in memory to the innermost."""
    return tuple(sorted(range(tensor.dim()), key=lambda place: -int(tensor.stride()[place])))
