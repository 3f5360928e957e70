"""The kernels that one step of a model runs, found by calling it on tensors without numbers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from stepscope.errors import UsageError
from stepscope.record.flops import on_meta
from stepscope.studies.kernels.shapes import RULES, Kernel

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload

Found = tuple[str, tuple[tuple[str, Any], ...]]


def kernels_of(workload: Workload, batch: int | None, ops: Sequence[str]) -> list[Kernel]:
    """The kernels of these kinds in a step of a workload, most frequent first; UsageError where there is none."""
    model = on_meta(workload.build().train())
    size = batch or workload.default_batch
    seen = _Calls()
    with torch.random.fork_rng(devices=[]), torch.device("meta"), seen, contextlib.suppress(NotImplementedError):
        workload.loss(model, tree_map(_without_numbers, workload.example(size)))
    parameters = sum(p.numel() for p in model.parameters())
    rule = workload.default_optimizer if workload.default_optimizer in RULES else "sgd"
    seen.found["optimizer", (("rule", rule), ("parameters", parameters))] = 1
    kept = [Kernel(op, dict(sizes), {}, count) for (op, sizes), count in seen.found.most_common() if op in ops]
    if not kept:
        has = ", ".join(sorted({op for op, _ in seen.found}))
        raise UsageError(f"'{workload.name}' has no {' or '.join(ops)}", f"it has: {has}")
    return kept


class _Calls(TorchFunctionMode):
    """Counts the calls of functions that have a kernel here, by their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Found] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        read = _READ.get(getattr(func, "__name__", ""))
        if read is not None:
            self.found.update((op, tuple(sizes.items())) for op, sizes in read(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _without_numbers(value: Any) -> Any:
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _conv2d(
    x: Tensor, w: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Iterable[tuple[str, dict[str, int]]]:
    steps, holes = _both(stride), _both(dilation)
    if x.dim() != 4 or isinstance(padding, str) or steps[0] != steps[1] or holes[0] != holes[1]:
        return
    pads = _both(padding)
    sizes = {
        "batch": x.shape[0], "inputs": x.shape[1], "height": x.shape[2], "width": x.shape[3], "outputs": w.shape[0],
        "kernel_height": w.shape[2], "kernel_width": w.shape[3], "stride": steps[0], "padding_height": pads[0],
        "padding_width": pads[1], "dilation": holes[0], "groups": groups,
    }  # fmt: skip
    yield ("depthwise" if groups > 1 and groups == x.shape[1] else "conv", sizes)


def _linear(x: Tensor, w: Tensor, bias: Any = None) -> Iterable[tuple[str, dict[str, int]]]:
    yield "linear", {"batch": x.numel() // x.shape[-1], "inputs": w.shape[1], "outputs": w.shape[0]}


def _batch_norm(x: Tensor, *_: Any, **__: Any) -> Iterable[tuple[str, dict[str, int]]]:
    if x.dim() == 4:
        yield (
            "batch_norm",
            {"batch": x.shape[0], "channels": x.shape[1], "height": x.shape[2], "width": x.shape[3]},
        )


def _attention(q: Tensor, k: Tensor, *_: Any, **__: Any) -> Iterable[tuple[str, dict[str, int]]]:
    if q.dim() == 4 and q.shape == k.shape:
        yield "attention", {"batch": q.shape[0], "heads": q.shape[1], "length": q.shape[2], "head": q.shape[3]}


def _lstm(x: Tensor, _state: Any, weights: Sequence[Tensor], *rest: Any) -> Iterable[tuple[str, dict[str, int]]]:
    """One kernel a layer and direction; `rest` is has_biases, layers, dropout, training, bidirectional, batch_first."""
    has_biases, _layers, _dropout, _training, _both_ways, batch_first = rest
    length, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    for first in weights[:: 4 if has_biases else 2]:
        hidden = first.shape[0] // 4
        yield "lstm", {"batch": batch, "length": length, "inputs": first.shape[1], "hidden": hidden}


def _both(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


_READ: dict[str, Callable[..., Iterable[tuple[str, dict[str, int]]]]] = {
    "conv2d": _conv2d, "linear": _linear, "batch_norm": _batch_norm, "lstm": _lstm,
    "scaled_dot_product_attention": _attention,
}  # fmt: skip
