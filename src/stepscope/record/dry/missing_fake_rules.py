"""Results of ops on tensors without numbers, where torch's own rule is missing or refuses what real ones take.

Sparse tensors: of most results torch's rules make tensors without entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten


def _grouped_product(first: Tensor, second: Tensor, offs: Tensor | None = None, *_: Any, **_named: Any) -> Tensor:
    """Return what aten::_grouped_mm gives: its own rule for tensors without numbers takes bfloat16 alone."""
    groups: tuple[int, ...] = (int(first.shape[0]),) if first.dim() == second.dim() == 3 else ()
    if first.dim() == second.dim() == 2 and offs is not None:  # the gradient of the experts' weights
        groups = (int(offs.shape[0]),)
    return first.new_empty(*groups, int(first.shape[-2]), int(second.shape[-1]))


def _ctc_losses(
    shares: Tensor, targets: Tensor, _input_lengths: Tensor, lengths: Tensor, *_: Any, **_named: Any
) -> tuple[Tensor, Tensor]:
    """Return what aten::_ctc_loss gives, of targets as long as they are, or can be where each has a row."""
    numbers = getattr(lengths, "constant", None)
    if numbers is None and targets.dim() < 2:
        raise DynamicOutputShapeException(_aten._ctc_loss.Tensor)
    with _disable_current_modes():
        longest = int(targets.shape[1]) if numbers is None else max(numbers.tolist(), default=0)
    many = int(lengths.numel())
    return shares.new_empty(many), shares.new_empty(many, shares.shape[0], 2 * longest + 1)


def _coalesced(sparse: Tensor) -> Tensor:
    """Return what aten::_coalesce gives of entries that are all apart: torch's rules for sparse results give none."""
    return _sparse(sparse._indices().clone(), sparse._values().clone(), sparse.shape, True)


def _sparse(indices: Tensor, values: Tensor, shape: tuple[int, ...], coalesced: bool = False) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)


def _sparse_gradient(tensor: Tensor, **_named: Any) -> Any:
    """Return a sparse gradient as autograd keeps it for its parameter: itself, where torch sees a copy here."""
    if tensor.layout is not torch.sparse_coo:
        return NotImplemented
    parts = (tensor._indices(), tensor._values())
    indices, values = parts if torch._C._current_graph_task_id() != -1 else (part.clone() for part in parts)
    return _sparse(indices, values, tensor.shape, tensor.is_coalesced())


def _masked_by_sparse(tensor: Tensor, mask: Tensor) -> Tensor:
    values = tensor.new_empty((*mask._values().shape[:1], *tensor.shape[mask.sparse_dim() :]))
    return _sparse(mask._indices(), values, tensor.shape, True)


def _embedding_bag_gradient(gradient: Tensor, indices: Tensor, *args: Any, **_named: Any) -> Any:
    if not args[7]:  # sparse
        return NotImplemented
    values = gradient.new_empty(int(indices.numel()), int(gradient.shape[1]))
    return _sparse(indices.reshape(1, -1), values, (args[4], int(gradient.shape[1])))


# NotImplemented: torch's own rule will do.
FILLED: dict[Any, Callable[..., Any]] = {
    _aten._ctc_loss.Tensor: _ctc_losses, _aten._coalesce.default: _coalesced, _aten.clone.default: _sparse_gradient,
    _aten.sparse_mask.default: _masked_by_sparse, _aten._embedding_bag_backward.default: _embedding_bag_gradient,
}  # fmt: skip
if hasattr(_aten, "_grouped_mm"):
    FILLED[_aten._grouped_mm.default] = _grouped_product
