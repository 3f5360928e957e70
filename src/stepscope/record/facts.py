"""What run.json, device.json and model.json say that is not measured: versions, settings, the module tree."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import torch

from stepscope import __version__
from stepscope.record.device import changing_facts, describe_device
from stepscope.record.recorders.modules import ModuleBook


def of_process() -> dict[str, Any]:
    """Versions, threads and the command line of this process."""
    return {
        "argv": list(sys.argv),
        "cwd": str(Path.cwd()),
        "versions": {
            "stepscope": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "polars": pl.__version__,
        },
        "threads": torch.get_num_threads(),
    }


def of_device(root: str | None, run: Path | None = None) -> dict[str, Any]:
    """device.json; with a run folder, the facts of its start with those of the end beside them."""
    where = Path(root or "/")
    if run is None:
        return {
            **describe_device(where),
            "accelerators_torch": _gpus(),
            "at_start": changing_facts(where),
        }
    known: dict[str, Any] = json.loads((run / "device.json").read_text(encoding="utf-8"))
    return {**known, "at_end": changing_facts(where)}


def of_modules(book: ModuleBook, flops: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """Rows of model.json, parents before children; FLOPs are per sample and cover everything below a module."""
    rows = []
    roots = book.root_names()
    for module, (name, kind) in zip(book.modules(), book.names(), strict=True):
        parameters = list(module.parameters())
        forward, backward = flops.get(name, (None, None))
        rows.append(
            {
                "module": name,
                "type": kind,
                "parent": None if name in roots else name.rpartition(".")[0],
                "parameters": sum(p.numel() for p in parameters),
                "bytes": sum(p.numel() * p.element_size() for p in parameters),
                "flops_forward": forward,
                "flops_backward": backward,
                "trainable": any(p.requires_grad for p in parameters),
            }
        )
    return rows


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append({"index": index, "name": properties.name, "memory_bytes": properties.total_memory})
    return found
