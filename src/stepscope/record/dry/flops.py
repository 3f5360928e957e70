"""Count FLOPs of a training step, forward and backward, per module, on the meta device: shapes without numbers."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from stepscope.record.ops.costs import convolution_backward_flops, product_flops

LossOf = Callable[[nn.Module, Any], Tensor]
_META = torch.device("meta")


class ModuleFlops(NamedTuple):
    """FLOPs per sample of a module and everything below it."""

    forward: int
    backward: int


@dataclass(frozen=True)
class FlopCount:
    """FLOPs per sample of one step without the optimizer; all null, with a reason, where it could not be counted.

    `by_module` covers the subtree of each module ("" is the model); the totals also hold what lies outside modules.
    """

    total_forward: int | None = None
    total_backward: int | None = None
    by_module: Mapping[str, ModuleFlops] = field(default_factory=dict)
    reason: str | None = None


def count_flops(model: nn.Module, loss: LossOf, batch: Any, samples: int | None = None) -> FlopCount:
    """Count one step of `loss(model, batch)` on a copy of the model without numbers; the model is not touched.

    `batch` is a tensor or a nest of tuples, lists and dicts of them; `samples` is the length of its first tensor,
    by default. Hooks of the model run too, on the copy. A model that looks at numbers cannot be counted.
    """
    try:
        size = samples or _first_length(batch)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(_without_compilation())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # they would be about our copy, not about the user's model
            counter = _Counter(on_meta(model))
            counter.run(loss, _batch_on_meta(batch))
        return counter.result(size)
    except Exception as error:  # a user's model may raise anything; the run goes on without its FLOPs
        return FlopCount(reason=f"not counted: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model whose parameters and buffers have shapes and no numbers; needs no memory for them."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device=_META)
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device=_META)
    return copy.deepcopy(model, memo)


class _Counter:
    """One step of a model on the meta device: what is counted between two changes of place goes to the old place."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._mode = FlopCounterMode(display=False, custom_mapping=_CORRECTED)
        self._forward = dict.fromkeys(self._names.values(), 0)
        self._backward = dict.fromkeys(self._names.values(), 0)
        self._own = self._forward
        self._stack: list[str] = []  # modules whose forward is running
        self._place: str | None = None
        self._node_place: str | None = None  # of the node that runs in backward; null in forward
        self._counted = 0
        self._claimed: set[Any] = set()  # nodes of the graph that have a module; kept, so that they stay the same
        self._totals = (0, 0)

    def run(self, loss: LossOf, batch: Any) -> None:
        for module in self._names:
            module.register_forward_pre_hook(self._enter_module, with_kwargs=True)
            module.register_forward_hook(self._leave_module, always_call=True)
        with _META, self._mode:
            value = loss(self._model, batch)
            self._count_into(None)
            forward = self._mode.get_total_flops()
            self._own = self._backward
            value.backward()  # type: ignore[no-untyped-call]
            self._count_into(None)
            self._totals = (forward, self._mode.get_total_flops() - forward)

    def result(self, samples: int) -> FlopCount:
        forward, backward = (_flops_with_submodules(own) for own in (self._forward, self._backward))
        per_sample = {
            name: ModuleFlops(_flops_per_sample(forward[name], samples), _flops_per_sample(backward[name], samples))
            for name in forward
        }
        return FlopCount(
            _flops_per_sample(self._totals[0], samples), _flops_per_sample(self._totals[1], samples), per_sample
        )

    def _enter_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._assign_nodes((args, kwargs), self._stack[-1] if self._stack else None)
        self._stack.append(self._names[module])
        self._count_into(self._stack[-1])

    def _leave_module(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._assign_nodes(output, self._stack.pop())
        self._count_into(self._stack[-1] if self._stack else self._node_place)

    def _count_into(self, place: str | None) -> None:
        """Count for `place` from here on; null is outside every module."""
        counted = self._mode.get_total_flops()
        if self._place is not None:
            self._own[self._place] += counted - self._counted
        self._counted, self._place = counted, place

    def _enter_backward(self, place: str | None) -> None:
        if not self._stack:  # a forward that is computed again inside a node keeps its place, and gives it back
            self._node_place = place
            self._count_into(place)

    def _assign_nodes(self, values: Any, place: str | None) -> None:
        """Give the nodes below these tensors that have no module yet to `place`, to be told when they run."""
        waiting = [tensor.grad_fn for tensor in _tensors_in(values) if tensor.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node in self._claimed:
                continue
            self._claimed.add(node)
            node.register_prehook(lambda _: self._enter_backward(place))
            waiting += [below for below, _ in node.next_functions if below is not None]


def _convolution_backward(
    grad_out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, output_mask: list[bool], out_shape: Any = None,
) -> int:  # fmt: skip
    return convolution_backward_flops(grad_out, x, weight, transposed, output_mask)


_CORRECTED = {
    torch.ops.aten.convolution_backward: _convolution_backward,
    torch.ops.aten.mv: lambda matrix, *_, **_named: product_flops(matrix[0], matrix[1], 1),
    torch.ops.aten.dot: lambda first, *_, **_named: product_flops(1, first[0], 1),
}


def _flops_with_submodules(own: dict[str, int]) -> dict[str, int]:
    """FLOPs of each module together with those below it, by name."""
    total = dict(own)
    for name in sorted(own, key=lambda name: name.count(".") + bool(name), reverse=True):
        if name:
            total[name.rpartition(".")[0]] += total[name]
    return total


def _flops_per_sample(flops: int, samples: int) -> int:
    return round(flops / samples) if flops % samples else flops // samples


def _without_compilation() -> contextlib.AbstractContextManager[Any]:
    """A compiled model is counted as written; torch before 2.6 has no way to ask for that."""
    stance: Callable[..., contextlib.AbstractContextManager[Any]] | None = getattr(torch.compiler, "set_stance", None)
    return contextlib.nullcontext() if stance is None else stance("force_eager")


def _batch_on_meta(value: Any) -> Any:
    """Return the same nested structure with tensors on the meta device."""
    if isinstance(value, Tensor):
        return torch.empty_like(value, device=_META).requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return type(value)({key: _batch_on_meta(item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_batch_on_meta(item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_batch_on_meta(item) for item in value)
    return value


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a nest of tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item)


def _first_length(batch: Any) -> int:
    first = next(_tensors_in(batch), None)
    if first is None or first.dim() == 0 or math.prod(first.shape) == 0:
        raise ValueError("the batch holds no tensor whose first dimension is samples")
    return int(first.shape[0])
