"""Compute FLOPs and bytes of one op call from what Kineto's raw event says of its inputs; one MAC is two FLOPs.

And those of the steps that record shapes, by the devices and number formats that a training computes in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepscope.arrays import Ints
from stepscope.runfolder.schema import main_computation

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


_ON_CPU = -1
_FORMATS = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_CPU_FORMATS = {"none": "float32", "ieee": "float32", "tf32": "float32-high", "bf16": "float32-medium"}
_CUDA_FORMATS = {  # by whether products and convolutions round to TF32
    (False, True): "float32",
    (True, True): "float32-high",
    (False, False): "float32-ieee",
}
_OTHER_FLOAT32 = "float32 with switches of its own"


class FlopsByFormat:
    """FLOPs by the GPU that computed them (-1: the CPU), the number format of their operands, and the op and layer."""

    def __init__(self) -> None:
        self._flops: Counter[tuple[int, str, str, int]] = Counter()

    def add(self, raw: Sequence[Any], flops: Ints, gpu: Ints, names: Sequence[str], modules: Ints) -> None:
        """Add the ops of a step, (n,) each: raw events of Kineto, FLOPs, the GPU that ran their kernels, op and layer.

        modules: places in the list that `other_formats` takes, below 0 outside of any.
        """
        for op in np.flatnonzero(flops > 0).tolist():
            operand = next((dtype for dtype in raw[op].dtypes() if dtype not in NO_TENSOR), "")
            self._flops[int(gpu[op]), operand, names[op], int(modules[op])] += int(flops[op])

    def facts(self) -> dict[str, dict[str, int]]:
        """Return the FLOPs by device and format for run.json: {"cuda:0": {"bfloat16": 12, "float32": 1}}."""
        facts: dict[str, dict[str, int]] = {}
        for (gpu, operand, _, _), flops in self._flops.items():
            device, precision = _device_and_format(gpu, operand)
            of_device = facts.setdefault(device, {})
            of_device[precision] = of_device.get(precision, 0) + flops
        return facts

    def other_formats(self, modules: Sequence[str]) -> list[list[str]]:
        """Return op and layer (the op alone outside of any) of what its main device computes in other formats as well.

        modules: the qualified names of all layers.
        """
        main = main_computation({"recorder": {"flops_by_format": self.facts()}})
        others: dict[tuple[str, ...], None] = {}
        for gpu, operand, name, module in self._flops:
            device, precision = _device_and_format(gpu, operand)
            if main is not None and device == main.device and precision != main.precision:
                others[(name,) if module < 0 else (name, modules[module])] = None
        return [list(call) for call in others]


def _device_and_format(gpu: int, operand: str) -> tuple[str, str]:
    device = "cpu" if gpu == _ON_CPU else f"cuda:{gpu}"
    precision = _FORMATS.get(operand, operand.removeprefix("c10::").lower())
    return device, float32_format(device) if precision == "float32" else precision


def gpus_of_ops(parent: Ints, gpu: Ints) -> Ints:
    """GPU that ran the kernels of each row of a step or of what is below it, (n,); -1 where it launched none.

    parent: row of the caller, below 0 at the top; gpu: that which a row itself ran on.
    """
    launched_on: Ints = gpu.copy()
    kernels = np.flatnonzero(gpu >= 0)
    above, number = parent[kernels], gpu[kernels]
    for _ in range(len(parent)):
        inside = above >= 0
        above, number = above[inside], number[inside]
        if not len(above):
            break
        launched_on[above] = number
        above = parent[above]
    return launched_on


def float32_format(device: str) -> str:
    """Return the format of float32 operands under torch's switches, which may round them: one of `PROBED`, if known."""
    import torch

    backends: Any = torch.backends
    try:
        if device == "cpu":
            products = getattr(getattr(backends.mkldnn, "matmul", None), "fp32_precision", None)
            if products is None:  # before torch 2.9
                mode = torch.get_float32_matmul_precision()
                return "float32" if mode == "highest" else f"float32-{mode}"
            return _CPU_FORMATS.get(products, _OTHER_FLOAT32)
        convolutions = _rounds(backends.cudnn, getattr(backends.cudnn, "conv", None))
        rounds = (_rounds(backends.cuda.matmul, backends.cuda.matmul), convolutions)
    except (AttributeError, RuntimeError):
        return "float32"
    return _CUDA_FORMATS.get(rounds, _OTHER_FLOAT32)


def _rounds(older: Any, newer: Any) -> bool:
    """Return whether TF32 is allowed; since torch 2.9 the older switch cannot be read where both were used."""
    precision = getattr(newer, "fp32_precision", None)
    return bool(older.allow_tf32) if precision is None else precision == "tf32"
