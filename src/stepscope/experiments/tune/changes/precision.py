"""The arithmetic: bfloat16 under autocast, products of float32 in fewer bits, numbers near zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets

_BF16 = "8 bits of mantissa in forward and backward: compare the loss of a whole training before you keep it"


def changes(facts: Facts) -> Iterator[Change]:
    """Yield autocast, the precision of float32 products, and flushing of denormal numbers."""
    device = str(facts["device"])
    taken = "the training uses autocast already" if facts["autocast"] else ""
    unknown = "" if facts["calls"] else "no module of the training is called"
    code = f'with torch.autocast("{device}", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)'
    yield Change(
        "bf16", "autocast to bfloat16", "precision", code, _BF16, _autocast(device),
        refused=taken or unknown, lossy=True,
    )  # fmt: skip
    lower = "medium" if device == "cpu" else "high"
    least = "" if facts["matmul_precision"] == "highest" else f"the precision is {facts['matmul_precision']} already"
    yield Change(
        f"matmul={lower}", "float32 products in fewer bits", "matmul", f'torch.set_float32_matmul_precision("{lower}")',
        "products are rounded: compare the loss of a whole training before you keep it", _matmul(lower), refused=least,
        lossy=True,
    )  # fmt: skip
    reason = "of the CPU alone" if device != "cpu" else "they are flushed already" if facts["flushes_denormals"] else ""
    yield Change(
        "flush-denormals", "denormal numbers become zero", "denormals", "torch.set_flush_denormal(True)",
        "numbers below 1e-38 become zero", _flush, refused=reason,
    )  # fmt: skip


def _autocast(device: str) -> Switch:
    @contextlib.contextmanager
    def switch(targets: Targets) -> Iterator[None]:
        """Autocast within the calls of the models; what they return is float32 again, so that any loss takes it."""
        import torch

        opened: list[Any] = []

        def begin(_module: object, _args: object) -> None:
            opened.append(torch.autocast(device, dtype=torch.bfloat16))
            opened[-1].__enter__()

        def end(_module: object, _args: object, output: Any) -> Any:
            if opened:
                opened.pop().__exit__(None, None, None)
            return _in_float(output)

        hooks: list[Any] = []
        for model in targets.called:
            hooks += [model.register_forward_pre_hook(begin), model.register_forward_hook(end, always_call=True)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            while opened:
                opened.pop().__exit__(None, None, None)

    return switch


def _in_float(output: Any) -> Any:
    """The output with float32 in place of bfloat16, in tuples, lists and dictionaries as well."""
    import torch

    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype == torch.bfloat16 else output
    if type(output) in (tuple, list):
        return type(output)(map(_in_float, output))
    if isinstance(output, dict):
        for name, value in output.items():
            output[name] = _in_float(value)
    return output


def _matmul(precision: str) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    return switch


@contextlib.contextmanager
def _flush(_: Targets) -> Iterator[None]:
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
