"""The devices of this machine that can train."""

from __future__ import annotations

import torch

from stepscope.errors import UnknownName, UsageError


def device_of(name: str) -> torch.device:
    """The torch device of this name, or an error that lists those present."""
    present = _present()
    kind = name.partition(":")[0]
    if kind not in present:
        raise UnknownName("device", name, present, f"present on this machine: {', '.join(present)}")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UnknownName("device", name, present, f"present on this machine: {', '.join(present)}") from error
    if device.index is not None and device.index >= present[kind]:
        raise UsageError(f"there is no device '{name}'", f"this machine has {present[kind]} of the kind '{kind}'")
    return device


def _present() -> dict[str, int]:
    """Kinds of device that can train here, with how many there are."""
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    return {kind: count for kind, count in counts.items() if count}
