"""Compute FLOPs and bytes of one op call from what Kineto's raw event says of its inputs; one MAC is two FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = Sequence[int]
Shapes = Sequence[Shape]
Values = Sequence[Any]  # Kineto's concrete inputs: scalars and lists, None where the input is a tensor

_ITEM_BYTES = {
    "float": 4,
    "double": 8,
    "int": 4,
    "long": 8,
    "long int": 8,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}
NO_TENSOR = ("", "Scalar", "ScalarList")


def count_op_flops(name: str, input_shapes: Shapes, concrete_inputs: Values) -> int | None:
    """FLOPs of one instance: multiplications and additions of its products, as written (a fast algorithm may do
    fewer); null where the op has no formula or its inputs do not tell."""
    formula = _FORMULAS.get(name)
    if formula is None:
        return None
    try:
        return formula(input_shapes, concrete_inputs)
    except (IndexError, TypeError, ValueError):
        return None  # another release of torch passes other arguments: not counted beats counted wrong


def has_formula(name: str) -> bool:
    """Return whether FLOPs of this op can be counted."""
    return name in _FORMULAS


def count_op_bytes(input_shapes: Shapes, dtypes: Sequence[str]) -> int | None:
    """Bytes of the tensors an instance is given, each once, as if dense; null where one of them is not described.

    What it writes, workspaces, and reading an input twice are not in it; a view is given its tensor but reads nothing.
    """
    total = 0
    for shape, dtype in zip(input_shapes, dtypes, strict=False):
        if dtype in NO_TENSOR:
            continue
        if dtype not in _ITEM_BYTES:
            return None  # a list of tensors (its shapes are not recorded) or a type of another release
        total += math.prod(shape) * _ITEM_BYTES[dtype]
    return total


def product_flops(rows: int, inner: int, columns: int) -> int:
    """[rows, inner] times [inner, columns]."""
    return 2 * rows * inner * columns


def convolution_flops(batch: int, positions: Shape, weight: Shape) -> int:
    """Every weight is used once at every position of a sample: of the output, or of the input when transposed.

    `weight` is [out, in / groups, *kernel] (transposed: [in, out / groups, *kernel]), so groups are already in it.
    """
    return 2 * batch * math.prod(positions) * math.prod(weight)


def convolution_backward_flops(
    grad_out: Shape, x: Shape, weight: Shape, transposed: bool, output_mask: Sequence[bool]
) -> int:
    """Return the FLOPs of backward: those of forward for dL/dx, and again for dL/dw, where each is wanted."""
    positions = x[2:] if transposed else grad_out[2:]
    return convolution_flops(x[0], positions, weight) * (bool(output_mask[0]) + bool(output_mask[1]))


def _mm(first: int) -> Callable[[Shapes, Values], int]:
    """A matrix product whose factors are the inputs `left` and `left + 1`."""

    def count(shapes: Shapes, _: Values) -> int:
        (rows, inner), (_inner, columns) = shapes[first], shapes[first + 1]
        return product_flops(rows, inner, columns)

    return count


def _bmm(first: int) -> Callable[[Shapes, Values], int]:
    """A batch of matrix products, [batch, rows, inner] times [batch, inner, columns]."""

    def count(shapes: Shapes, _: Values) -> int:
        (batch, rows, inner), (_batch, _inner, columns) = shapes[first], shapes[first + 1]
        return batch * product_flops(rows, inner, columns)

    return count


def _addmv(shapes: Shapes, _: Values) -> int:
    rows, inner = shapes[1]
    return product_flops(rows, inner, 1)


def _convolution(stride: int, padding: int, dilation: int | None) -> Callable[[Shapes, Values], int]:
    """A convolution of inputs 0 and 1 whose stride, padding and dilation are the inputs of these numbers."""

    def count(shapes: Shapes, values: Values) -> int:
        x, weight = shapes[0], shapes[1]
        steps, pads = values[stride], values[padding]
        holes = [1] * len(steps) if dilation is None else values[dilation]
        sizes = zip(x[2:], weight[2:], steps, pads, holes, strict=True)
        return convolution_flops(x[0], [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in sizes], weight)

    return count


def _transposed_convolution(shapes: Shapes, values: Values) -> int | None:
    if values[6] is not True:
        return None  # counted at the op that it calls
    return convolution_flops(shapes[0][0], shapes[0][2:], shapes[1])


def _convolution_backward(shapes: Shapes, values: Values) -> int:
    return convolution_backward_flops(shapes[0], shapes[1], shapes[2], values[7], values[10])


def _lstm_layer(times: int) -> Callable[[Shapes, Values], int]:
    """One layer and direction of oneDNN's LSTM, x [steps, batch, inputs]; backward does the products twice."""

    def count(shapes: Shapes, _: Values) -> int:
        (steps, batch, inputs), (gates, _inputs), (_gates, hidden) = shapes[0], shapes[1], shapes[2]
        return times * product_flops(steps * batch, inputs + hidden, gates)

    return count


def _attention(query: int, with_key: int, with_value: int) -> Callable[[Shapes, Values], int]:
    """Fused attention, query [batch, heads, length, size]: so many products of the size of q k', and of p v.

    A causal mask is not subtracted, as in torch's own counter.
    """

    def count(shapes: Shapes, _: Values) -> int:
        (batch, heads, length, size), (_b, _h, others, _s), (*_, value_size) = shapes[query : query + 3]
        key, value = product_flops(length, size, others), product_flops(length, others, value_size)
        return batch * heads * (with_key * key + with_value * value)

    return count


_ATTENTIONS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
_FORMULAS: dict[str, Callable[[Shapes, Values], int | None]] = {
    "aten::mm": _mm(0),
    "aten::addmm": _mm(1),
    "aten::addmm_": _mm(1),
    "aten::_addmm_activation": _mm(1),
    "aten::_scaled_mm": _mm(0),
    "aten::bmm": _bmm(0),
    "aten::baddbmm": _bmm(1),
    "aten::baddbmm_": _bmm(1),
    "aten::addmv": _addmv,
    "aten::addmv_": _addmv,
    "aten::dot": lambda shapes, _: product_flops(1, shapes[0][0], 1),
    "aten::_convolution": _transposed_convolution,
    "aten::mkldnn_convolution": _convolution(4, 3, 5),
    "aten::_mps_convolution": _convolution(4, 3, 5),
    "aten::miopen_convolution": _convolution(4, 3, 5),
    "aten::miopen_depthwise_convolution": _convolution(4, 3, 5),
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    "aten::cudnn_convolution_relu": _convolution(3, 4, 5),
    "aten::_conv_depthwise2d": _convolution(4, 5, 6),
    "aten::conv_depthwise3d": _convolution(4, 5, 6),
    "aten::_slow_conv2d_forward": _convolution(4, 5, None),
    "aten::slow_conv3d_forward": _convolution(4, 5, None),
    "aten::slow_conv_dilated2d": _convolution(4, 5, 6),
    "aten::slow_conv_dilated3d": _convolution(4, 5, 6),
    "aten::_nnpack_spatial_convolution": _convolution(4, 3, None),
    "aten::convolution_backward": _convolution_backward,
    "aten::mkldnn_rnn_layer": _lstm_layer(1),
    "aten::mkldnn_rnn_layer_backward": _lstm_layer(2),
    **{f"aten::_scaled_dot_product_{kind}": _attention(0, 1, 1) for kind in _ATTENTIONS},
    # Backward computes q k' again, then dL/dq and dL/dk of that size, and dL/dp and dL/dv of the size of p v.
    **{f"aten::_scaled_dot_product_{kind}_backward": _attention(1, 3, 2) for kind in _ATTENTIONS},
}
