"""What kernels allocate that no dispatcher sees: a rule a kernel, by the library that runs it.

`Workspaces` is called with each op of a dry run. An op that is known to call a library, and for which there is no
rule, counts 0 and is named in `not_modelled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stepscope.record.recorders.storage_log import NOTHING, Hidden, Rule
from stepscope.record.workspaces import cudnn, onednn, onednn_matmul, onednn_rnn
from stepscope.record.workspaces.platform import Platform, this_platform
from stepscope.record.workspaces.signature import Probed, signature

__all__ = ["Platform", "Workspaces", "this_platform"]

_LIBRARY_CALLS = ("conv", "rnn", "lstm", "gru", "attention", "ctc", "fft", "linalg", "mkldnn", "cudnn", "grid_sampler")
_NO_WORKSPACE = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "constant",
    "_thnn_fused",
    "_scaled_dot_product_fused",
    "vector_norm",
)
_OWN = ("aten", "prims", "prim")


@dataclass
class Workspaces:
    """The rules of one platform; `probed` are measurements of single ops on this device, which go before any rule."""

    platform: Platform
    probed: Mapping[str, Probed] = field(default_factory=dict)
    not_modelled: dict[str, int] = field(default_factory=dict)  # name of an op, how often it ran

    def __post_init__(self) -> None:
        rules = (
            cudnn.RULES if self.platform.kind == "cuda" else {**onednn.RULES, **onednn_rnn.RULES, **onednn_matmul.RULES}
        )
        self._rules = {name: rule(self.platform) for name, rule in rules.items()}
        self._of: dict[Any, Rule | None] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Hidden:
        if func not in self._of:
            self._of[func] = self._rules.get(func.__name__)
            if self._of[func] is None and _calls_a_library(func):
                self.not_modelled[str(func)] = 0
        rule = self._of[func]
        if rule is None:
            if self.not_modelled and str(func) in self.not_modelled:
                self.not_modelled[str(func)] += 1
            return NOTHING
        hidden = rule(func, args, kwargs, out)
        if self.probed and not hidden.kept:
            found = self.probed.get(signature(func, args))
            if found is not None:
                size = found.bytes(_samples(args))
                return Hidden(size, size, size)
        return hidden


def _calls_a_library(func: Any) -> bool:
    namespace, name = func.namespace, func.__name__
    if namespace not in _OWN:
        return bool(namespace not in ("stepscope", "profiler", "c10d"))
    return any(word in name for word in _LIBRARY_CALLS) and not any(word in name for word in _NO_WORKSPACE)


def _samples(args: tuple[Any, ...]) -> int:
    first = args[0]
    return int(first.shape[0]) if isinstance(first, torch.Tensor) and first.dim() else 1
