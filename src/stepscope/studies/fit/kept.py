"""What was learnt about this device: probes of single ops, of the empty process, of how far predictions were off."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.errors import OutputNotWritable
from stepscope.record.workspaces.signature import Probed

_VERSION = 1


@dataclass(frozen=True)
class Kept:
    """All of it; `ratios` are measured over predicted process peaks, the newest last."""

    probed: dict[str, Probed] = field(default_factory=dict)
    empty_process: tuple[int, int] | None = None
    ratios: tuple[float, ...] = ()

    def corrected(self, low: int, high: int) -> tuple[int, int]:
        """An interval of live bytes that also holds what probes showed: it grows, and never becomes narrower."""
        if not self.ratios:
            return low, high
        return round(low * min(1.0, *self.ratios)), round(high * max(1.0, *self.ratios))


def place(home: Path | None = None) -> Path:
    """The file of this device and this torch below the user's cache folder."""
    import torch

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") if home is None else home
    name = f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}-torch{torch.__version__}"
    return cache / "stepscope" / "fit" / f"{name}-{torch.get_num_threads()}threads.json"


def load(path: Path) -> Kept:
    """What is known; nothing where nothing was kept, or where it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            return Kept()
        empty = content["empty_process"]
        return Kept(
            {name: Probed(*values) for name, values in content["probed"].items()},
            None if empty is None else (int(empty[0]), int(empty[1])),
            tuple(float(ratio) for ratio in content["ratios"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Kept()


def save(kept: Kept, path: Path) -> None:
    """Keep it for later answers."""
    content: dict[str, Any] = {
        "version": _VERSION,
        "probed": {name: (probed.fixed, probed.per_sample) for name, probed in kept.probed.items()},
        "empty_process": kept.empty_process,
        "ratios": kept.ratios,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise OutputNotWritable(f"cannot keep what was learnt in '{path}': {error.strerror}") from error
