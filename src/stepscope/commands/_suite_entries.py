"""The workloads of the suite as a sweep takes them: what defines each, in plain data that a file can keep."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.studies.suite.grid import Entry

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


def entries(names: Sequence[str]) -> list[Entry]:
    """The workloads of these names, in this order; UnknownName where there is none."""
    from stepscope import workloads

    return [_entry(name, workloads.find(name)) for name in names]


def tiers() -> dict[str, tuple[str, ...]]:
    """The tiers of every workload, by its name."""
    from stepscope import workloads

    return {workload.name: tuple(workload.tiers) for workload in workloads.every()}


def _entry(name: str, workload: Workload) -> Entry:
    source = _source(name, workload)
    return Entry(
        name=name,
        tiers=tuple(workload.tiers),
        default_batch=workload.default_batch,
        default_optimizer=workload.default_optimizer,
        optimizers=tuple(workload.hyperparameters),
        definition={
            "input_shape": list(workload.input_shape),
            "hyperparameters": {name: dict(values) for name, values in workload.hyperparameters.items()},
            "loss": workload.loss_name,
            "data": _data(workload),
            **_model(workload),
            "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
        },
        about={
            "domain": workload.domain,
            "summary": workload.summary,
            "published": [asdict(published) for published in workload.published],
        },
        source=source,
    )


def _source(name: str, workload: Workload) -> str:
    """The text of the file that offers the workload; empty where it cannot be read."""
    offering = (module for module in list(sys.modules.values()) if workload in _offered(module))
    path = name.rpartition(":")[0] or getattr(next(offering, None), "__file__", None)
    try:
        return "" if path is None else Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _offered(module: object) -> Collection[object]:
    """What a module names as its workloads; a module of another package may name anything so."""
    offered = vars(module).get("WORKLOADS", ()) if hasattr(module, "__dict__") else ()
    return offered if isinstance(offered, (tuple, list)) else ()


def _data(workload: Workload) -> str | None:
    """What it would be trained on now; a data set that arrives in the midst of a sweep would change it."""
    from stepscope.errors import DataUnavailable

    try:
        return workload.data.name
    except DataUnavailable:
        return None


def _model(workload: Workload) -> dict[str, Any]:
    """Parameters, and a hash of the module tree as torch prints it; built without memory for the parameters."""
    import torch

    try:
        with torch.device("meta"):
            model = workload.build()
    except Exception as error:  # a workload of the user's may raise anything: its runs will say so
        return {"parameters": None, "model_sha256": None, "model_error": type(error).__name__}
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "model_sha256": hashlib.sha256(repr(model).encode()).hexdigest(),
    }
