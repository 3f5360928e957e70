"""Kinds of operation in the words of people who build networks: an op of torch by its name and phase."""

from __future__ import annotations

import re

OPTIMIZER, BETWEEN, OTHER = "optimizer", "between operations", "other"
_FAMILIES = {
    "data": r"dataloader|^#stepscope\.data",
    "code of the layers": r"^nn\.",
    OPTIMIZER: r"^optimizer\.",
    "convolution": r"conv",
    "batch norm": r"batch_?norm",
    "other norms": r"(layer|group|instance|rms)_?norm",
    "attention": r"attention",
    "recurrent": r"lstm|gru|rnn",
    "matrix product": r"(^|_)(mm|addmm|bmm|baddbmm|matmul|linear|addmv|mv|dot)($|_)",
    "activation": r"relu|threshold|gelu|silu|hardtanh|hardswish|sigmoid|tanh|clamp|elu",
    "pooling": r"pool|^mean$",
    "loss": r"softmax|nll|cross_entropy|mse|smooth_l1",
    "dropout": r"dropout|bernoulli",
    "embedding": r"embedding|index_select|^index",
    "sums and products": r"^(add|sub|mul|div|sum|neg|rsub|addcmul|addcdiv|lerp)_?($|\.)|accumulategrad|^_foreach",
    "moving and filling": r"copy|clone|^cat|fill|zero|^empty|^to$|contiguous|stack|as_strided|reshape|^t$|expand|view",
}
_PATTERNS = {family: re.compile(pattern) for family, pattern in _FAMILIES.items()}
NAMES = (*_FAMILIES, OTHER, BETWEEN)


def family(op: str | None) -> str:
    """The family of an op such as `aten::mkldnn_convolution` or `aten.native_batch_norm.default`."""
    if op is None:
        return OTHER
    if op.startswith("("):  # a row for what lies in no op
        return BETWEEN
    op = op.removeprefix("autograd::engine::evaluate_function: ")  # a node of backward, named like its op
    name = re.sub(r"^(aten|prims|mkldnn|torch)(::|\.)", "", op).lower()
    name = re.sub(r"\.(default|tensor|out|int|scalar|self).*$", "", name)
    return next((family for family, pattern in _PATTERNS.items() if pattern.search(name)), OTHER)
