"""Changes of the arithmetic: autocast, products of float32 in fewer bits, numbers near zero."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch, calls_within

if TYPE_CHECKING:
    import torch

    from stepscope.experiments.tune.training import Targets

_COMPARE = "compare the loss of a whole training before you keep it"

# Autocast, and of fp16 the scale that keeps small gradients from becoming zero.


def _autocast_changes(facts: Facts) -> Iterator[Change]:
    device = str(facts["device"])
    refusal = "the training uses autocast already" if facts["autocast"] else ""
    unknown = "" if facts["calls"] else "no module of the training is called"
    code = f'with torch.autocast("{device}", dtype=torch.bfloat16):\n    output = model(x)\n'
    code += "loss = criterion(output.float(), y)"
    yield Change(
        "bf16", "autocast to bfloat16", "precision", code, f"8 bits of mantissa in forward and backward: {_COMPARE}",
        functools.partial(_autocast, device=device, precision="bfloat16"), refused=refusal or unknown, lossy=True,
    )  # fmt: skip
    lack = "" if facts["half_precision"] else "this CPU has no arithmetic of fp16"
    code = code.replace("bfloat16", "float16").replace(
        "with", f'scaler = torch.amp.GradScaler("{device}")  # once\nwith'
    )
    code += "\nscaler.scale(loss).backward()\nscaler.unscale_(optimizer)  # where gradients are clipped: before that"
    code += "\nscaler.step(optimizer)\nscaler.update()"
    yield Change(
        "fp16", "autocast to float16, the loss scaled", "precision", code,
        f"11 bits of mantissa, and steps omitted where a gradient overflows: {_COMPARE}",
        functools.partial(_autocast_scaled, device=device), refused=refusal or unknown or lack, lossy=True,
    )  # fmt: skip


def _autocast(targets: Targets, device: str, precision: str) -> AbstractContextManager[None]:
    """Autocast within the calls of the models; what they return is float32 again, so that any loss takes it.

    It is that of the device of a model's parameters, which a study does not know beforehand.
    """
    import torch

    number_type: torch.dtype = getattr(torch, precision)

    def mode_of(module: Any) -> Any:
        kind = next((parameter.device.type for parameter in module.parameters()), device)
        return torch.autocast(kind, dtype=number_type)

    return calls_within(targets.called, mode_of, lambda x: x.float() if x.dtype == number_type else x)


@contextlib.contextmanager
def _autocast_scaled(targets: Targets, device: str) -> Iterator[None]:
    with _autocast(targets, device, "float16"), LossScale(targets):
        yield


class LossScale(contextlib.ExitStack):
    """A `torch.amp.GradScaler` for a loop that does not call one: each backward pass is of a scaled loss.

    Gradients are divided by the scale at the end of the pass, so that clipping sees what it saw before. An update with
    a gradient that is not finite is omitted: its parameters have no gradients meanwhile. Gradients of tensors that no
    optimizer updates stay scaled.
    """

    def __init__(self, targets: Targets) -> None:
        import torch

        super().__init__()
        self._targets = targets
        groups = [group for optimizer in targets.optimizers for group in optimizer.param_groups]
        self._parameters = [parameter for group in groups for parameter in group["params"]]
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self.scale = torch.full((), 2.0**16, device=device)
        self._overflow = torch.zeros((), device=device)
        self._steps_since_overflow = torch.zeros((), dtype=torch.int32, device=device)
        self._withheld: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __enter__(self) -> LossScale:
        import torch

        plain = torch.autograd.backward

        @functools.wraps(plain)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
            with self._unscaled():
                plain(tuple(root * self.scale.to(root.device, root.dtype) for root in roots), *args, **kwargs)

        torch.autograd.backward = backward
        self.callback(setattr, torch.autograd, "backward", plain)
        for optimizer in self._targets.optimizers:
            self.callback(optimizer.register_step_pre_hook(self._before_update).remove)
            self.callback(optimizer.register_step_post_hook(self._after_update).remove)
        return self

    @contextlib.contextmanager
    def _unscaled(self) -> Iterator[None]:
        """Divide the gradients of a pass by the scale, and then add them to those of passes before it."""
        import torch

        earlier = [(parameter, parameter.grad) for parameter in self._parameters if parameter.grad is not None]
        for parameter, _ in earlier:
            parameter.grad = None
        try:
            yield
        finally:
            with torch.no_grad():
                self._divide([parameter.grad for parameter in self._parameters if parameter.grad is not None])
                for parameter, gradient in earlier:
                    parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def _divide(self, gradients: Sequence[torch.Tensor]) -> None:
        import torch

        by_kind: dict[Any, list[torch.Tensor]] = defaultdict(list)
        for gradient in gradients:
            values = gradient._values() if gradient.is_sparse else gradient
            by_kind[values.device, values.dtype].append(values)
        inverse = self.scale.double().reciprocal().float()
        for (device, _), tensors in by_kind.items():
            overflow = self._overflow.to(device)
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, overflow, inverse.to(device))
            if overflow is not self._overflow:
                self._overflow += overflow.to(self._overflow.device)

    def _before_update(self, optimizer: Any, *_: object) -> None:
        if not self._overflow.item():
            return
        for group in optimizer.param_groups:
            self._withheld += [(parameter, parameter.grad) for parameter in group["params"]]
        for parameter, _gradient in self._withheld:
            parameter.grad = None

    def _after_update(self, *_: object) -> None:
        import torch

        for parameter, gradient in self._withheld:
            parameter.grad = gradient
        self._withheld = []
        torch._amp_update_scale_(self.scale, self._steps_since_overflow, self._overflow, 2.0, 0.5, 2000)
        self._overflow.zero_()


# Products of float32 matrices, and numbers near zero.


def _rounding_changes(facts: Facts) -> Iterator[Change]:
    device = str(facts["device"])
    lower = "medium" if device == "cpu" else "high"
    least = "" if facts["matmul_precision"] == "highest" else f"the precision is {facts['matmul_precision']} already"
    yield Change(
        f"matmul={lower}", "float32 products in fewer bits", "matmul", f'torch.set_float32_matmul_precision("{lower}")',
        f"products are rounded: {_COMPARE}", _matmul_precision(lower), refused=least, lossy=True,
    )  # fmt: skip
    reason = "on the CPU only" if device != "cpu" else "they are flushed already" if facts["flushes_denormals"] else ""
    yield Change(
        "flush-denormals", "denormal numbers become zero", "denormals", "torch.set_flush_denormal(True)",
        "numbers below 1e-38 become zero", _flush_denormals, refused=reason,
    )  # fmt: skip


def _matmul_precision(precision: str) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        import torch

        before = torch.get_float32_matmul_precision()
        owners: list[Any] = [
            getattr(backend, "matmul", None) for backend in (torch.backends.cuda, torch.backends.mkldnn)
        ]
        own = [(owner, owner.fp32_precision) for owner in owners if hasattr(owner, "fp32_precision")]
        torch.set_float32_matmul_precision(precision)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
            for owner, value in own:  # which the line before sets too, where it was left to a more general setting
                owner.fp32_precision = value

    return switch


@contextlib.contextmanager
def _flush_denormals(_: Targets) -> Iterator[None]:
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def changes(facts: Facts) -> Iterator[Change]:
    """Yield the changes of the arithmetic."""
    yield from _autocast_changes(facts)
    yield from _rounding_changes(facts)
