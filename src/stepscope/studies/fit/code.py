"""Code of kernels, primitives and packed weights that real steps bring in beyond the empty process: from a dry run.

On x86 (torch 2.13, oneDNN 3.12) a process that trains is larger than its tensors and an empty process by 11 to 28 MB,
the same for a model whatever its batch: kernels that backward runs (code, primitives that oneDNN compiles for a shape,
autograd's nodes), an LSTM's weights packed once more, products in bf16, and where forward runs again in backward what
keeps its graphs. Fitted on 77 trainings of eleven workloads; docs/memory.md says how it holds on others.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analysis.memory_model import PAGED_IN
from stepscope.record.recorders.storage_log import StorageLog
from stepscope.record.workspaces import Platform

_ALWAYS = 12_000_000  # B: modules of training that the tiny step does not need, and their code
_A_BACKWARD_KERNEL = 29_600
_BF16, _A_PRODUCT_IN_BF16 = 1_950_000, 373_000
_RECOMPUTED = 3_770_000
_PACKED = 1.1  # B for each of an LSTM's weights
_HALF_WIDTH = 4_500_000
_PACKS_WEIGHTS = "mkldnn_rnn_layer"
_PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")


@dataclass(frozen=True)
class CodeSeen:
    """What of a step decides it: ops of backward alone, products that differ, B of weights that are packed."""

    backward_kernels: int
    products: int
    packed_weights: int
    bf16: bool
    recomputes: bool


def code_seen(log: StorageLog) -> CodeSeen:
    """From a log of storages; an op that runs in forward too is not counted again in backward."""
    steps = max((step for step, *_ in log.events), default=0) + 1
    forward = {storage.op for storage in log.storages if storage.phase == "forward"}
    backward = sum(storage.phase == "backward" and storage.op not in forward for storage in log.storages)
    products = {(storage.op, storage.shape) for storage in log.storages if storage.op in _PRODUCTS}
    packing = {storage.module for storage in log.storages if _PACKS_WEIGHTS in storage.op}
    weights = (s.bytes for s in log.storages if s.category == "parameter" and s.module in packing)
    return CodeSeen(
        backward // steps, len(products), 0 if log.in_bf16 else sum(weights), log.in_bf16, log.recomputes
    )  # fmt: skip


def code_bytes(seen: CodeSeen | None, platform: Platform) -> tuple[int, int]:
    """Least and most, B; the same wide interval for every model where the platform is not the one that was measured."""
    if seen is None or not platform.block:
        return PAGED_IN
    size = _ALWAYS + seen.backward_kernels * _A_BACKWARD_KERNEL + round(_PACKED * seen.packed_weights)
    if seen.bf16:
        size += _BF16 + seen.products * _A_PRODUCT_IN_BF16
    if seen.recomputes:
        size += _RECOMPUTED
    return size - _HALF_WIDTH, size + _HALF_WIDTH
