"""What a kernel's workspace depends on beside the op: the processor's vectors, its bf16, the threads."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Platform:
    """`kind` is cpu or cuda; `block`: channels that oneDNN keeps together, 16 with AVX-512, 8 with AVX2, else 0."""

    kind: str = "cpu"
    block: int = 16
    native_bf16: bool = False
    threads: int = 1

    @property
    def name(self) -> str:
        """In words, for the user."""
        if self.kind == "cuda":
            return "CUDA with cuDNN"
        return f"CPU with oneDNN, blocks of {self.block}" if self.block else "CPU without oneDNN's blocked layouts"


def this_platform(kind: str = "cpu") -> Platform:
    """What torch says of this process."""
    capability = torch.backends.cpu.get_cpu_capability()
    known = {"AVX512": 16, "AVX2": 8} if _has_onednn() else {}
    return Platform(kind, known.get(capability, 0), native_bf16(), torch.get_num_threads())


def native_bf16() -> bool:
    """Whether convolutions and products in bf16 run as such here: without, each is expanded and takes minutes."""
    asked = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(asked()) if asked is not None and _has_onednn() else False


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
