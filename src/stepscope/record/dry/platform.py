"""The processor that kernels run on, as far as their workspaces depend on it."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

AVX2 = 8  # channels that oneDNN keeps together there


@dataclass(frozen=True)
class Platform:
    """`kind` is cpu or cuda; `block`: channels that oneDNN keeps together, 16 with AVX-512, 8 with AVX2, else 0."""

    kind: str = "cpu"
    block: int = 16
    native_bf16: bool = False
    threads: int = 1
    is_known: bool = True  # whether the rules were fitted on such a processor
    acl: bool = False  # oneDNN over the Arm Compute Library

    @property
    def name(self) -> str:
        """Return the name in words, for the user."""
        if self.kind == "cuda":
            return "CUDA with cuDNN"
        if not self.is_known:
            return "another processor, its kernels as intervals"
        if self.acl:
            return "CPU with oneDNN over the Arm Compute Library"
        return f"CPU with oneDNN, blocks of {self.block}" if self.block else "CPU without oneDNN's blocked layouts"


def other_platform(kind: str = "cpu", has_bf16: bool = False, threads: int = 4) -> Platform:
    """Return a processor that nobody measured: a board by name. Never this machine's kernels for another's."""
    return Platform(kind, native_bf16=has_bf16, threads=threads, is_known=False)


def this_platform(kind: str = "cpu") -> Platform:
    """Return what torch says of this process."""
    capability = torch.backends.cpu.get_cpu_capability()
    blocks = {"AVX512": 16, "AVX2": AVX2} if _has_onednn() else {}
    acl = _has_acl()
    is_known = platform.machine() in ("x86_64", "AMD64") or (acl and capability == "DEFAULT" and not native_bf16())
    return Platform(kind, blocks.get(capability, 0), native_bf16(), torch.get_num_threads(), is_known, acl)


def _has_acl() -> bool:
    """Return whether oneDNN is built with the Arm Compute Library, as the wheels for aarch64 are."""
    if platform.machine() != "aarch64" or not _has_onednn():
        return False
    available = getattr(torch.backends.mkldnn, "is_acl_available", lambda: True)
    return bool(available())


def native_bf16() -> bool:
    """Return whether convolutions and products in bf16 run as such here: without, each is expanded and takes
    minutes.
    """
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(supported()) if supported is not None and _has_onednn() else False


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
