"""The devices and number formats that a training computes in, by the FLOPs of the steps that record shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.arrays import Ints
from stepscope.record.ops.costs import NO_TENSOR
from stepscope.runfolder.schema import main_computation

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
