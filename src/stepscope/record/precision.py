"""Numbers that a workload computes with: float32, bfloat16, float16 with a scaled loss, int8 as in quantised inference.

What the backend of a device does not have is refused in words, by the first step that needs it at the latest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

PRECISIONS = {
    "fp32": "float32",
    "bf16": "bfloat16 (autocast)",
    "fp16": "float16 (autocast, scaled loss)",
    "int8": "int8 (quantisation-aware: rounded in forward, computed in float32)",
}
_KERNELS = ("qnnpack", "x86", "fbgemm", "onednn")  # that int8 numbers would be computed with, the first one there is
Work = TypeVar("Work")


def describe_precision(precision: str) -> str:
    """Return its content for run.json."""
    return PRECISIONS[precision]


def workload_in_precision(workload: Work, precision: str, device: str) -> Work:
    """The workload in this precision; weights, their gradients and the optimizer stay float32.

    bf16 and fp16 put forward and loss under autocast. bfloat16 has the exponents of float32, so no loss scaling is
    needed; float16 has not, and the loss is scaled. int8 rounds weights and activations of the layers that quantised
    inference has, as it would, and computes with the rounded numbers in float32.
    """
    if precision not in PRECISIONS:
        raise UnknownName("precision", precision, PRECISIONS)
    if precision == "fp32":
        return workload
    plain: Any = workload
    if precision == "int8":
        quantised: Work = replace(plain, build=lambda: quantisation_aware(plain.build()))
        return quantised
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    cast = _make_autocast_wrapper(torch.device(device).type, dtype)
    changed = replace(plain, loss=cast(plain.loss), step=None if plain.step is None else cast(plain.step))
    if precision == "fp16":
        changed = replace(changed, step=_scaled_step(plain, device))
    whole: Work = changed
    return whole


def _make_autocast_wrapper(kind: str, dtype: torch.dtype) -> Callable[[Any], Any]:
    """A step of the workload's own runs under autocast as a whole: what it computes is not known from outside."""

    def cast(function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            with torch.autocast(kind, dtype=dtype):
                return function(*arguments)

        return called

    return cast


def _scaled_step(workload: Any, device: str) -> Callable[[Any, Any], Tensor]:
    """A training step whose loss is scaled, so that small gradients do not vanish in float16."""
    if workload.step is not None:
        raise UsageError(
            f"'{workload.name}' has a step of its own, whose losses cannot be scaled from outside",
            "take bf16, which needs no scaled loss",
        )
    try:
        scaler = torch.amp.GradScaler(torch.device(device).type)
    except (AttributeError, TypeError, RuntimeError) as error:
        raise UsageError(f"this torch has no scaled loss on {device}: {error}", "take bf16") from error

    def step(training: Any, batch: Any) -> Tensor:
        training.optimizer.zero_grad()
        try:
            loss = training.workload.loss(training.model, batch)
            scaler.scale(loss).backward()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "memory" in str(error):
                raise
            why = str(error).partition("\n")[0]
            raise UsageError(
                f"the {device} backend cannot train '{workload.name}' in float16: {why}", "take bf16 or fp32"
            ) from error
        scaler.step(training.optimizer)
        scaler.update()
        detached: Tensor = loss.detach()
        return detached

    return step


def quantisation_aware(model: nn.Module) -> nn.Module:
    """The model with layers that round to int8 in forward; UsageError where torch or its backend has none of it."""
    try:
        from torch.ao import quantization
    except ImportError as error:
        raise UsageError("this torch has no quantisation-aware training (torch.ao.quantization)") from error
    engine = next((name for name in _KERNELS if name in torch.backends.quantized.supported_engines), None)
    if engine is None:
        raise UsageError("torch was built without a backend for int8 here", "take fp32 or bf16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.ao, that it moves to torchao
        model.train()
        model.qconfig = quantization.get_default_qat_qconfig(engine)  # type: ignore[no-untyped-call]
        prepared: nn.Module = quantization.prepare_qat(model)  # type: ignore[no-untyped-call]
    if not any(hasattr(module, "weight_fake_quant") for module in prepared.modules()):
        raise UsageError("the model has no layer that quantised inference has: int8 would change nothing")
    return prepared
