"""Ops that no rule of workspaces covers: those that ask for nothing, and how the others are called.

A list of names is the only knowledge here, found by running the ops of random trainings alone: an op is in it
where none of its calls asked for anything beyond its outputs. Whatever is not in it is run on this device (`probes`)
or enters as an interval.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from stepscope.record.dry.storage_log import parts_of

_PREFIXES = ("_foreach_", "_fused_")  # a loop over the plain op on a CPU
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
_MOST = 1  # times the bytes of inputs and outputs: of 2,900 different calls none asked for more than 0.9 besides


def needs_no_workspace(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an op takes no memory beyond its outputs, as far as its name, types and strides tell."""
    if func.namespace == "prim":
        return True
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if not tensors or func.is_view:
        return True
    name = func.__name__.partition(".")[0]
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return name not in ("add", "add_", "coalesce", "_coalesce")
    numbers = {tensor.dtype for tensor in tensors if tensor.dtype != torch.bool and tensor.dim()}
    if torch.Tag.pointwise in func.tags or name.startswith(_PREFIXES):
        return len(numbers) <= 1
    if name == "sum" and not tensors[0].is_floating_point():
        return tensors[0].dtype in (
            torch.int64,
            torch.complex64,
            torch.complex128,
        )  # else it is copied as whole numbers
    if name in PLAIN_IN_ROWS:
        rows_alone = "softmax" in name or name.startswith("nll_loss")
        return all(tensor.is_contiguous() for tensor in tensors) or (not rows_alone and _are_channels_last(tensors))
    if name in _SUMMED_IN_FLOAT and any(tensor.dtype in SIXTEEN_BITS for tensor in tensors):
        return False
    return name in PLAIN and all(_is_dense(tensor) for tensor in tensors)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether every address of a tensor's range is one of its elements, and of one alone."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _are_channels_last(tensors: list[Tensor]) -> bool:
    wide = [tensor for tensor in tensors if tensor.dim() > 2]
    return bool(wide) and all(t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) for t in wide)


def call_signature(func: Any, args: Any, kwargs: Any) -> str:
    """Name, types, shapes, strides and numbers of a call: what its workspace depends on. "" where it cannot be made."""
    if any(isinstance(leaf, Tensor) and leaf.layout is not torch.strided for leaf in tree_leaves((args, kwargs))):
        return ""
    return f"{func}({', '.join(_argument_text(leaf) for leaf in tree_leaves((args, kwargs)))})"


def _argument_text(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        strides = "" if leaf.is_contiguous() else f"@{list(leaf.stride())}"
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{strides}"
    return str(leaf)


def call_kind(func: Any, args: Any, kwargs: Any) -> str:
    """Name, types and numbers of dimensions: calls that differ in sizes alone are of one kind."""
    tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
    return f"any {func}({', '.join(f'{tensor.dtype} {tensor.dim()} {_is_dense(tensor)}' for tensor in tensors)})"


def bytes_of(*nest: Any) -> int:
    """The bytes of all tensors of a nest of containers, each counted as if it were dense."""
    tensors = (leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor))
    return sum(part.nbytes for tensor in tensors for part in parts_of(tensor))


def upper_bound(inputs: int, out: Any) -> int:
    """The most that an op of so many bytes asks for beyond its outputs, B, where nothing else is known of it."""
    return _MOST * (inputs + bytes_of(out))


# Of tensors that are dense. Copies, fills, products in float32, reductions and normalizations: most of what a training
# runs. What sorts, transforms, solves, samples or scatters is not here.
_PLAIN = """
    _local_scalar_dense _reshape_alias _to_copy _unsafe_view addmm addmv amax amin arange avg_pool2d bernoulli_
    binary_cross_entropy_backward cat channel_shuffle clone constant_pad_nd copy_ dot elu_backward embedding
    embedding_renorm_ empty_like exponential_ fill fill_ flip full_like gather hardtanh_backward index_add
    leaky_relu_backward lift_fresh linalg_vector_norm masked_fill_ max max_pool2d_with_indices mean min mm
    mse_loss_backward mv new_empty new_empty_strided new_full new_ones new_zeros normal_ ones_like pixel_shuffle
    pixel_unshuffle rand_like randn_like repeat resize_ rrelu_with_noise rrelu_with_noise_backward scalar_tensor
    scatter scatter_ scatter_add scatter_add_ select_backward slice_backward softplus_backward split_with_sizes_copy
    squeeze_ stack sum transpose_ tril triu uniform_ unsafe_split upsample_nearest1d upsample_nearest2d_backward vdot
    zero_ zeros_like
"""
# Of tensors that are contiguous: any other is copied first.
_PLAIN_IN_ROWS = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _log_softmax _log_softmax_backward_data
    _native_batch_norm_legit _softmax _softmax_backward_data avg_pool2d_backward avg_pool3d avg_pool3d_backward
    embedding_dense_backward max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward
    max_unpool2d max_unpool3d multi_margin_loss multi_margin_loss_backward native_batch_norm
    native_batch_norm_backward native_group_norm native_group_norm_backward native_layer_norm
    native_layer_norm_backward nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward
    reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward replication_pad1d
    replication_pad1d_backward replication_pad2d replication_pad2d_backward
"""
# In 16 bits these have the result once more in float32.
_SUMMED_IN_FLOAT = frozenset(("gather", "scatter", "scatter_", "scatter_add", "scatter_add_"))
PLAIN, PLAIN_IN_ROWS = (frozenset(names.split()) for names in (_PLAIN, _PLAIN_IN_ROWS))
