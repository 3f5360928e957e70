"""Workspaces that kernels allocate and no dispatcher sees: a rule a kernel, by the library that runs it.

`Workspaces` is called with each op of a dry run. An op that is known to call a library, and for which there is no
rule, counts 0 and is named in `not_modelled`. A convolution that the rules were not fitted on (three dimensions,
dilated, transposed, channels innermost) gets an interval and is named in `uncovered`; so does a kernel of another
processor.

Convolutions on x86 go through oneDNN: copies in blocked layouts, channels rounded up to a block (those on ARM:
`op_workspaces.acl_forward`). So do products in bf16: buffers of one tile; float32 goes to MKL, which allocates nothing
through torch. So does an LSTM: what forward leaves for backward, and copies of the weights in padded rows. cuDNN
decides at run time which kernel runs, so its workspace is an interval.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepscope.record.dry import op_workspaces
from stepscope.record.dry.op_workspaces import ATTENTION_RULES, FOLD_RULES, LSTM_RULES
from stepscope.record.dry.storage_log import NOTHING, HiddenBytes, Rule
from stepscope.record.dry.unmodelled_ops import (
    SIXTEEN_BITS,
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
        of_cpu = {**CONVOLUTION_RULES, **LSTM_RULES, **FOLD_RULES, **PRODUCT_RULES, **MIXED_RULES}
        rules = CUDNN_RULES if self.platform.kind == "cuda" else of_cpu
        self._rules = {name: rule(self.platform) for name, rule in rules.items()}
        if self.platform.kind == "cpu":
            self._rules |= {name: rule(self.platform.threads) for name, rule in ATTENTION_RULES.items()}
        if not self.platform.known and self.platform.kind == "cpu":
            others = [replace(self.platform, block=0, acl=acl) for acl in (False, True)]
            self._rules = {
                name: _any_of([rule, *(rules[name](other) for other in others if name in rules)])
                for name, rule in self._rules.items()
            }
        if not self.platform.known or self.platform.kind != "cpu":
            self.probed = {}  # of this machine's kernels, which are not those
        self._of: dict[Any, Rule | None] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        if func not in self._of:
            self._of[func] = self._rules.get(func.__name__)
        rule = self._of[func]
        if rule is None:
            return self._without_rule(func, args, kwargs, out)
        hidden = rule(func, args, kwargs, out)
        fitted = hidden.kept or not _outside_of_rules(func, args) or self.platform.kind != "cpu"
        if fitted and not self.probed:
            return hidden
        name = signature(func, args)
        found = None if hidden.kept else self.probed.get(name)
        if found is not None:
            size = found.bytes(_first_argument_length(args))
            return HiddenBytes(size, size if fitted else min(size, hidden.low), size, requested=(size, size))
        if fitted:
            return hidden
        self.uncovered.add(name)
        most = hidden.high + _unfitted_bound(args)
        return HiddenBytes(hidden.expected, hidden.low, most, call=name, samples=_first_argument_length(args))

    def _without_rule(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        """Return what is known of an op by name, by a probe of it, by one of its like, or else that little is known."""
        here = self.platform.known and self.platform.kind == "cpu"
        if not here or func.namespace not in _OWN:
            if _calls_a_library(func) and bytes_of(args, kwargs, out):
                self.not_modelled[str(func)] = self.not_modelled.get(str(func), 0) + 1
            return NOTHING
        if needs_no_workspace(func, args, kwargs):
            return NOTHING
        call = call_signature(func, args, kwargs)
        found = self.probed.get(call)
        if found is not None:
            size = found.bytes(0)
            return HiddenBytes(size, size, size, call=call) if size else NOTHING
        if call:
            self.uncovered.add(call)
        like, size = self.probed.get(call_kind(func, args, kwargs)), bytes_of(args, kwargs)
        if like is None:
            return HiddenBytes(0, 0, upper_bound(size, out), call=call)
        expected = like.bytes(size)
        return HiddenBytes(expected, 0, round(_OF_ITS_LIKE * expected) + _LITTLE, call=call)


_OF_ITS_LIKE, _LITTLE = 1.25, 65_536  # an op of other sizes than the one that was probed; B


def _any_of(rules: list[Rule]) -> Rule:
    """Between nothing and the largest: which of them a processor's library follows is not known."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        found = [rule(func, args, kwargs, out) for rule in rules]
        most = max(hidden.high for hidden in found)
        kept = max((hidden.kept for hidden in found), key=lambda kept: sum(size for _, size, _ in kept))
        return HiddenBytes(most // 2, 0, most, kept)

    return rule


def _outside_of_rules(func: Any, args: tuple[Any, ...]) -> bool:
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
    odd = padded or (groups > 1 and (sparse or x.dtype != torch.float32 or _as_products(x, weight, groups)))
    return bool(x.dim() > 4 or transposed or strided or odd or any(d != 1 for d in dilation))


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
class Platform:
    """`kind` is cpu or cuda; `block`: channels that oneDNN keeps together, 16 with AVX-512, 8 with AVX2, else 0."""

    kind: str = "cpu"
    block: int = 16
    native_bf16: bool = False
    threads: int = 1
    known: bool = True  # whether the rules were fitted on such a processor
    acl: bool = False  # oneDNN over the Arm Compute Library: `op_workspaces.acl_forward`

    @property
    def name(self) -> str:
        """Return the name in words, for the user."""
        if self.kind == "cuda":
            return "CUDA with cuDNN"
        if not self.known:
            return "another processor, its kernels as intervals"
        if self.acl:
            return "CPU with oneDNN over the Arm Compute Library"
        return f"CPU with oneDNN, blocks of {self.block}" if self.block else "CPU without oneDNN's blocked layouts"


def other_platform(kind: str = "cpu", has_bf16: bool = False, threads: int = 4) -> Platform:
    """Return a processor that nobody measured: a board by name. Never this machine's kernels for another's."""
    return Platform(kind, native_bf16=has_bf16, threads=threads, known=False)


def this_platform(kind: str = "cpu") -> Platform:
    """Return what torch says of this process."""
    capability = torch.backends.cpu.get_cpu_capability()
    blocks = {"AVX512": 16, "AVX2": 8} if _has_onednn() else {}
    acl = _has_acl()
    known = platform.machine() in ("x86_64", "AMD64") or (acl and capability == "DEFAULT" and not native_bf16())
    return Platform(kind, blocks.get(capability, 0), native_bf16(), torch.get_num_threads(), known, acl)


def _has_acl() -> bool:
    """Return whether oneDNN is built with the Arm Compute Library, as the wheels for aarch64 are."""
    if platform.machine() != "aarch64" or not _has_onednn():
        return False
    available = getattr(torch.backends.mkldnn, "is_acl_available", lambda: True)
    return bool(available())


def native_bf16() -> bool:
    """Return whether convolutions and products in bf16 run as such here: without, each is expanded and takes
    minutes.
    """
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(supported()) if supported is not None and _has_onednn() else False


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


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
    return f"{func.__name__}({', '.join(_text(arg, index == weights) for index, arg in enumerate(args))})"


def _text(arg: Any, is_weight: bool) -> str:
    if isinstance(arg, Tensor):
        shape = tuple(arg.shape) if is_weight else tuple(arg.shape[1:])
        return f"{str(arg.dtype).removeprefix('torch.')}{list(shape)}{'' if arg.is_contiguous() else dim_order(arg)}"
    return str(arg)


def dim_order(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions from the outermost in memory to the innermost."""
    return tuple(sorted(range(tensor.dim()), key=lambda place: -int(tensor.stride()[place])))


# Found by watching c10's allocations of single ops (torch 2.13, oneDNN 3.12). Forward: input and weights are copied
# into blocks (a first layer of fewer channels than a block is read as it is), the result is made in blocks, then copied
# out. Backward: the same for the gradient of the input, then again for that of the weights (which reads three channels
# as they are, and copies four and more into eights). In channels-last nothing but the weights is copied. Without bf16
# in hardware an expansion of every patch takes its place (im2col).

_SMALL = 20_480  # elements: below this a single sample is not worth oneDNN (torch's ConvUtils)
_FEW = 3  # channels, of a picture: the gradient of the weights reads no more of them without a copy
_TILES_FIXED = 8_500  # B beyond the sample itself, of input and of gradient each


def convolution_forward(platform: Platform) -> Rule:
    """aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        x, weight, groups = args[0], args[1], args[8]
        if not _through_onednn(platform, x, weight, args[3], args[5], groups):
            return _exactly(_patches(x, weight, out, args[6], args[3], args[4]))
        if platform.acl:
            return op_workspaces.acl_forward(platform, x, weight, out, args[3], args[5], groups)
        if _as_products(x, weight, groups):
            return _exactly(max(_im2col_bytes(weight, out), out.nbytes))
        first, last = _is_first(platform, x, groups), _channels_last(x)
        inputs = 0 if first or last else _blocked_bytes(platform, x)
        weights = _blocked_weight(platform, weight, groups, not first)
        result = 0 if last else _blocked_bytes(platform, out)
        return _exactly(max(inputs + weights + result - (0 if last else out.nbytes), result))

    return rule


def convolution_backward(platform: Platform) -> Rule:
    """aten::convolution_backward(gradient, input, weight, bias sizes, stride, padding, dilation, transposed, ...)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        gradient, x, weight, groups, mask = args[0], args[1], args[2], args[9], args[10]
        # of a sum: one number, expanded
        copied = 0 if gradient.is_contiguous() or _channels_last(x) else gradient.nbytes
        if not _through_onednn(platform, x, weight, args[4], args[6], groups):
            return _exactly(copied + _patches(x, weight, gradient, args[7], args[4], args[5]))
        if platform.acl:
            return op_workspaces.acl_backward(platform, gradient, x, weight, args[4], mask, out, groups)
        outputs = sum(t.nbytes for t in out if isinstance(t, Tensor))
        if _as_products(x, weight, groups):
            return _exactly(copied + _products_backward(gradient, x, weight, mask) - outputs)
        first, last = _is_first(platform, x, groups), _channels_last(x)
        blocked_gradient = 0 if last else _blocked_bytes(platform, gradient)
        blocked_input = 0 if last else _blocked_bytes(platform, x)
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
                inputs, weights = _blocked_bytes(eights, x), _blocked_weight(eights, weight, groups, True)
            moments += [to_input + inputs + blocked_gradient + weights + reduced, to_input + weights + weight.nbytes]
        return _exactly(copied + max(moments) - outputs)

    return rule


_LEAST_BLOCK = 4  # channels of a group, in and out: oneDNN has blocks of 16, 8 and 4
_PATCHES_FIXED, _PARTIAL_SUMS = 128, 4  # B, and copies of the weights that their gradient is summed in


def _as_products(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Return whether groups fit in no block: a product then takes a group of one sample, every patch written out."""
    inputs, outputs = int(weight.shape[1]), int(weight.shape[0]) // groups
    alone = inputs == outputs == 1
    whole = inputs % _LEAST_BLOCK == 0 and outputs % _LEAST_BLOCK == 0
    return groups > 1 and x.dtype == torch.float32 and not (alone or whole)


def _im2col_bytes(weight: Tensor, out: Tensor) -> int:
    return int(math.prod(out.shape[2:]) * math.prod(weight.shape[1:]) * weight.element_size() + _PATCHES_FIXED)


def _products_backward(gradient: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> int:
    """The most bytes at once, outputs included: of the input's gradient, then of the weights'."""
    patches, to_input = _im2col_bytes(weight, gradient), x.nbytes if mask[0] else 0
    moments = [to_input + max(patches, to_input)] if mask[0] else [0]
    if mask[1]:
        sums = patches + _PARTIAL_SUMS * weight.nbytes + _PATCHES_FIXED
        moments.append(to_input + weight.nbytes + max(sums, weight.nbytes))
    return max(moments)


def batch_norm_backward(platform: Platform) -> Rule:
    """aten::native_batch_norm_backward(gradient, input, ...): the input's gradient is made twice, the first never used.

    Not of a gradient that lies otherwise than the input: one number, expanded.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        gradient, x = args[:2]
        if gradient.stride() == x.stride():
            return HiddenBytes(x.nbytes, 0, x.nbytes, requested=(x.nbytes, x.nbytes))
        return _exactly(2 * x.nbytes if x.dtype == torch.float16 else 0)

    return rule


def mean_rule(platform: Platform) -> Rule:
    """aten::mean(input, ...): in 16 bits input and result are also there in float32."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        return _exactly(2 * (args[0].nbytes + out.nbytes) if args[0].dtype in SIXTEEN_BITS else 0)

    return rule


def reduced_loss(platform: Platform) -> Rule:
    """aten::mse_loss(input, target, reduction = 1): each element's loss twice, one of which the result keeps.

    In 16 bits a mean takes it in float32 besides.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        kind, size = _reduction(args, kwargs, 2), args[0].nbytes
        taken = 3 * size if kind == _MEAN and args[0].dtype in SIXTEEN_BITS else size
        # nothing is written to what is kept
        return HiddenBytes(taken, taken, taken, ((0, size, 0),)) if kind else NOTHING

    return rule


def shrunk_loss(reduction: int) -> Callable[[Platform], Rule]:
    """aten::binary_cross_entropy(input, ...): the reduced loss keeps the memory of all elements' losses.

    reduction: place of the argument.
    """

    def of_platform(platform: Platform) -> Rule:
        def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
            kind, size = _reduction(args, kwargs, reduction), args[0].nbytes
            if not kind:
                return NOTHING
            mean = 2 * size if kind == _MEAN and args[0].dtype in SIXTEEN_BITS else 0
            return HiddenBytes(mean, mean, mean, ((0, size, size),))

        return rule

    return of_platform


_MEAN = 1  # reduction of a loss: none, mean, sum


def _reduction(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> int:
    return int(args[place] if len(args) > place else kwargs.get("reduction", _MEAN))


def nearest_rule(platform: Platform) -> Rule:
    """aten::upsample_nearest2d(input, ...): small pictures go through copies with channels innermost."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        if sum(out.shape[-2:]) > _SMALL_PICTURE:
            return NOTHING
        innermost = torch.channels_last
        copied = (tensor for tensor in (args[0], out) if not tensor.is_contiguous(memory_format=innermost))
        return _exactly(sum(tensor.nbytes for tensor in copied))

    return rule


_SMALL_PICTURE = 128  # rows and columns together (torch's UpSampleKernel.cpp)


def mixed_types(platform: Platform) -> Rule:
    """aten::mul.Tensor(one, other) and its like: on a CPU an input of another type is copied into the common one."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        first, second = args[:2]
        if not isinstance(second, Tensor) or first.dtype == second.dtype:
            return NOTHING
        common = torch.result_type(first, second)
        return _exactly(sum(tensor.numel() * common.itemsize for tensor in (first, second) if tensor.dtype != common))

    return rule


_OF_TWO = ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "pow")
MIXED_RULES = {
    f"{name}.{'default' if name.endswith('imum') else 'Tensor_Tensor' if name == 'pow' else 'Tensor'}": mixed_types
    for name in _OF_TWO
}

CONVOLUTION_RULES: dict[str, Callable[[Platform], Rule]] = {
    "convolution.default": convolution_forward,
    "convolution_backward.default": convolution_backward,
    "native_batch_norm_backward.default": batch_norm_backward,
    "mean.default": mean_rule,
    "mean.dim": mean_rule,
    "mse_loss.default": reduced_loss,
    "smooth_l1_loss.default": reduced_loss,
    "binary_cross_entropy.default": shrunk_loss(3),
    "soft_margin_loss.default": shrunk_loss(2),
    "upsample_nearest2d.default": nearest_rule,
}


def _exactly(size: int) -> HiddenBytes:
    return HiddenBytes(size, size, size) if size > 0 else NOTHING


def _through_onednn(platform: Platform, x: Tensor, weight: Tensor, stride: Any, dilation: Any, groups: int) -> bool:
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


def _sums_in_float(platform: Platform, weight: Tensor, blocked: int, groups: int, transposed: list[Tensor]) -> int:
    """Return float32 sums of a bf16 weight gradient; tiles of a sample where a kernel is larger than a pixel."""
    if weight.dtype != torch.bfloat16 or groups > 1:
        return 0
    tiles = sum(_blocked_bytes(platform, shape[:1]) + _TILES_FIXED for shape in transposed)
    return 2 * blocked + (0 if all(k == 1 for k in weight.shape[2:]) else tiles)


def _is_first(platform: Platform, x: Tensor, groups: int) -> bool:
    return bool(groups == 1 and x.shape[1] < platform.block)


def _channels_last(x: Tensor) -> bool:
    return (
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and not x.is_contiguous()
    )  # fmt: skip


def _blocked_bytes(platform: Platform, x: Tensor) -> int:
    """Bytes of an activation [N, C, ...] whose channels are rounded up to a block."""
    return int(x.shape[0] * _whole_blocks(x.shape[1], platform.block) * math.prod(x.shape[2:]) * x.element_size())


def _blocked_weight(platform: Platform, weight: Tensor, groups: int, inputs_too: bool) -> int:
    """Bytes of a weight [O, I, ...] in blocks; of a depthwise one only its channels."""
    outputs, inputs = weight.shape[0], weight.shape[1]
    if groups > 1 and outputs != groups:
        return int(weight.nbytes)  # blocks as small as the group needs
    if groups > 1:
        padded, inner = _whole_blocks(outputs, platform.block), inputs
    else:
        padded, inner = (
            _whole_blocks(outputs, platform.block),
            _whole_blocks(inputs, platform.block) if inputs_too else inputs,
        )
    return int(padded * inner * math.prod(weight.shape[2:]) * weight.element_size())


def _whole_blocks(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _patches(x: Tensor, weight: Tensor, result: Tensor, transposed: bool, stride: Any, padding: Any) -> int:
    """Every patch of the input as a column (im2col); a kernel of one pixel needs none."""
    if all(k == 1 for k in weight.shape[2:]) and all(s == 1 for s in stride) and not any(padding):
        return 0
    pixels = math.prod((x if transposed else result).shape[2:])
    return int(x.shape[0] * math.prod(weight.shape[1:]) * pixels * x.element_size())


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
            return _exactly(sum(factor.nbytes for factor in (a, b) if not _by_rows_or_columns(factor)))
        size = _PRODUCT_FIXED + (_transposed_product if a.stride(1) != 1 else _plain_product)(
            a.shape[0], a.shape[1], b.shape[1]
        )
        return HiddenBytes(size, size, size, requested=(max(0, size - _LESS_OF_FEW_ROWS), size + _OTHER_TILES))

    return rule


def _by_rows_or_columns(factor: Tensor) -> bool:
    """Return whether a product takes a factor as it lies; any other (one number, expanded) is copied first."""
    (rows, columns), (row, column) = factor.shape[-2:], factor.stride()[-2:]
    return bool((column == 1 and row >= max(1, columns)) or (row == 1 and column >= max(1, rows)))


def batched_product_rule(platform: Platform) -> Rule:
    """aten::bmm(a, b) and aten::baddbmm(bias, a, b)."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        a, b = args[-2:]
        if a.dtype == torch.float32:  # one matrix after another
            return _exactly(sum(f.nbytes // f.shape[0] for f in (a, b) if f.numel() and not _by_rows_or_columns(f)))
        one_for_all = sum(factor.nbytes for factor in (a, b) if not (_by_rows_or_columns(factor) and factor.stride(0)))
        return HiddenBytes(one_for_all, one_for_all, one_for_all + _PANELS)

    return rule


PRODUCT_RULES: dict[str, Callable[[Platform], Rule]] = {
    "mm.default": matrix_product_rule,
    "addmm.default": matrix_product_rule,
    "bmm.default": batched_product_rule,
    "baddbmm.default": batched_product_rule,
}


def _transposed_product(rows: int, depth: int, columns: int) -> int:
    """A tile of the first factor the right way round, and its sums in float32 where they are made in parts."""
    high = min(rows, _TILE_ROWS)
    if depth <= _TILE_DEPTH:
        return high * (2 * depth + _PAST_A_ROW_AT_ONCE)
    return high * (2 * _TILE_DEPTH + _PAST_A_ROW) + _FLOAT * high * min(columns, _TILE_COLUMNS)


def _plain_product(rows: int, depth: int, columns: int) -> int:
    return min(rows, _TILE_ROWS) // 2 * min(depth, 2 * _TILE_DEPTH)


# No less than nothing (implicit products) and no more than every patch of the input written out, capped by what cuDNN
# may take at most. Allocations of an LSTM's reserve follow NVIDIA's guide: gates and states of every step. Not yet
# compared with a GPU: the interval is wide on purpose.

_CUDNN_MOST = 1 << 30  # B, cuDNN's limit in torch for a search of kernels
_CUDNN_EXPECTED = 0.25  # of the widest: most layers run without, a few with transformed tiles
_CUDNN_RESERVED = 24  # B a unit of state and step: four gates, cell and output in float32


def cudnn_forward(platform: Platform) -> Rule:
    """aten::convolution."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        return _cudnn_interval(args[0].shape[0] * math.prod(args[1].shape[1:]) * math.prod(out.shape[2:]), args[0])

    return rule


def cudnn_backward(platform: Platform) -> Rule:
    """aten::convolution_backward."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
        gradient, x, weight = args[:3]
        return _cudnn_interval(x.shape[0] * math.prod(weight.shape[1:]) * math.prod(gradient.shape[2:]), x)

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
    "convolution.default": cudnn_forward,
    "convolution_backward.default": cudnn_backward,
    **dict.fromkeys(LSTM_RULES, cudnn_lstm),
}


def _cudnn_interval(elements: int, x: Any) -> HiddenBytes:
    most = min(_CUDNN_MOST, elements * x.element_size())
    return HiddenBytes(round(_CUDNN_EXPECTED * most), 0, most)
