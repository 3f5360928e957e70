"""`stepscope.fit_workload`, `fit_script` and `workload_facts`: answers about a training without running it."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stepscope
from stepscope import workloads
from stepscope.errors import UnknownName
from stepscope.files import digest_of, read_json_object, try_store_json, user_cache
from stepscope.footprint.calibration import measured_environment
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.plan import make_plan
from stepscope.footprint.prediction import predict_fit, predict_script_fit, question_of, requested_limit
from stepscope.footprint.result import FitResult
from stepscope.workloads import files_digest, shipped_counts
from stepscope.workloads.contract import TIERS

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


def fit_workload(
    workload: str | Workload,
    *,
    batch: int | None = None,
    optimizer: str | None = None,
    memory: float | str | None = None,
    board: str | None = None,
    allocator: str = "default",
    options: bool = True,
    plan: bool = False,
) -> FitResult:
    """Return whether the training of a workload fits into a memory (8e9, or "8GB"), a board ("tx2") or this machine,
    unrun.

    workload: a name, "path/to/file.py:name", or a Workload; batch and optimizer default to its own. options: also
    look for what would make it fit. plan: also search the cheapest combination of changes that fits (`plan.chosen`),
    priced in FLOPs; the command measures seconds. Bytes throughout. Raises UnknownName and UsageError. `stepscope.fit`
    asks the same of a model of yours.
    """
    if isinstance(workload, str):
        workload = workloads.find(workload)
    job = workload_job(workload, optimizer)
    size = job.default_batch if batch is None else batch
    workload.refuse_small_batch(size)
    question = question_of(job, size, memory, board, allocator, options)
    return replace(predict_fit(question), plan=make_plan(question) if plan else None)


def fit_script(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    memory: float | str | None = None,
    board: str | None = None,
    allocator: str = "default",
    module: bool = False,
) -> FitResult:
    """Predict whether a training script fits: followed to its end in this process without computing, long loops cut.

    arguments: the script's own. module: `script` is the name of a module, which is run as `python -m` runs it. Raises
    UsageError where the script cannot be followed.
    """
    limit = requested_limit(memory, board, here=memory is None and board is None)
    environment = partial(measured_environment, allocator)
    measured = None if board else environment
    return predict_script_fit(str(script), list(arguments), limit, allocator, measured, module=module)


def workload_facts(*names: str, tier: str | None = None) -> list[dict[str, Any]]:
    """Return what is known of these workloads, or of all, without training them: a dictionary each.

    Keys: name, domain, summary, tiers, input_shape, default_batch, parameters, flops_forward and flops_training (a
    sample; 1 MAC = 2 FLOPs; None where they cannot be counted, with the reason in flops_not_counted), counted_with
    (the torch that counted), data, data_kind. tier: smoke, paper-2019, paper-low-power or edge alone.
    Raises UnknownName, MissingDependency.
    """
    return workload_rows(chosen_workloads(names, tier))


# The workloads of the suite as rows: parameters and FLOPs computed from the models themselves, and kept.
#
# Those of our own files come with the package, as long as these files are what they were counted from; what else
# there is (a file that was changed, a plug-in's) is counted here, and kept between calls where that is safe.

Counting = Callable[["Sequence[Workload]"], "Iterable[Workload]"]


def chosen_workloads(names: Sequence[str] = (), tier: str | None = None) -> list[Workload]:
    """The workloads of these names, or all, of this tier alone where one is named; UnknownName."""
    if tier is not None and tier not in TIERS:
        raise UnknownName("tier", tier, TIERS)
    every = [workloads.find(name) for name in names] if names else list(workloads.every())
    return [workload for workload in every if tier is None or tier in workload.tiers]


def workload_rows(chosen: Sequence[Workload], counting: Counting = lambda new: new) -> list[dict[str, Any]]:
    """A row each; as shipped, or from the cache where the same files were counted by the same torch before.

    counting: is handed the workloads that have to be counted now, and gives them back one after the other.
    """
    rows, file = _shipped_rows(), None
    if any(workload.name not in rows for workload in chosen):
        file = _cache_file()
        rows = {**({} if file is None else read_json_object(file)), **rows}
    new = [workload for workload in chosen if workload.name not in rows or not _is_ours(workload)]
    for workload in counting(new):
        rows[workload.name] = count_workload(workload)
    if new and file is not None:
        _write_cache(file, rows)
    return [{**rows[workload.name], "data": workload.data.name, "data_kind": workload.data.kind} for workload in chosen]


def counting_digest() -> str:
    """Return the digest of the files that count FLOPs."""
    folder = Path(stepscope.__file__).parent / "record"
    return digest_of([folder / "dry" / "flops.py", folder / "ops" / "costs.py"])


def _shipped_rows() -> dict[str, Any]:
    """The rows of the package; none where something has changed since they were counted."""
    content = shipped_counts()
    return dict(content["rows"]) if content.get("counting") == counting_digest() else {}


def _is_ours(workload: Workload) -> bool:
    """A workload of the user's may change without any file of ours changing: it is counted each time."""
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{workloads.__name__}.")]
    return any(workload is ours for module in modules for ours in getattr(module, "WORKLOADS", ()))


def _cache_file() -> Path | None:
    """Return the file of earlier counts; None without a home folder."""
    try:
        return user_cache() / f"workloads-{_digest()}.json"
    except RuntimeError:
        return None


def _digest() -> str:
    """Return the digest of all that the counts depend on: the workloads' files, the counting, and torch."""
    import torch

    return hashlib.sha256(f"{torch.__version__} {files_digest()} {counting_digest()}".encode()).hexdigest()[:16]


def _write_cache(file: Path, rows: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        for old in file.parent.glob("workloads-*.json"):
            old.unlink()
    try_store_json(file, rows)


def count_workload(workload: Workload) -> dict[str, Any]:
    """Return what is known of a workload without training it; the model is built without memory for its parameters."""
    import torch

    from stepscope.record.dry.flops import count_flops

    with torch.device("meta"):
        model = workload.build()
        counted = count_flops(model, workload.loss, workload.example(2))
    forward, backward = counted.total_forward, counted.total_backward
    return {
        "name": workload.name,
        "domain": workload.domain,
        "summary": workload.summary,
        "tiers": list(workload.tiers),
        "input_shape": list(workload.input_shape),
        "default_batch": workload.default_batch,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops_forward": forward,
        "flops_training": None if forward is None or backward is None else forward + backward,
        "flops_not_counted": counted.reason,
        "counted_with": f"torch {torch.__version__.partition('+')[0]}",
    }
