"""`stepscope.fit_workload`, `fit_script` and `workload_facts`: answers about a training without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import workloads
from stepscope.experiments.workload_counts import chosen_workloads, workload_rows
from stepscope.footprint.calibration import measured_environment
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.plan import make_plan
from stepscope.footprint.prediction import predict_fit, predict_script_fit, question_of, requested_limit
from stepscope.footprint.result import FitResult

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
    job = workload_job(workloads.find(workload) if isinstance(workload, str) else workload, optimizer)
    size = job.default_batch if batch is None else batch
    question = question_of(job, size, memory, board, allocator, options)
    return replace(predict_fit(question), plan=make_plan(question) if plan else None)


def fit_script(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    memory: float | str | None = None,
    board: str | None = None,
    allocator: str = "default",
) -> FitResult:
    """The same of a training script, followed to its end in this process without computing, its long loops cut.

    arguments: the script's own. Raises UsageError where the script cannot be followed.
    """
    limit = requested_limit(memory, board, here=memory is None and board is None)
    known = partial(measured_environment, allocator)
    return predict_script_fit(str(script), list(arguments), limit, allocator, *(() if board else (known,)))


def workload_facts(*names: str, tier: str | None = None) -> list[dict[str, Any]]:
    """Return what is known of these workloads, or of all, without training them: a dictionary each.

    Keys: name, domain, summary, tiers, input_shape, default_batch, parameters, flops_forward and flops_training (a
    sample; 1 MAC = 2 FLOPs; None where they cannot be counted, with the reason in flops_not_counted), counted_with
    (the torch that counted), data, data_kind. tier: smoke, paper-2019, paper-low-power or edge alone.
    Raises UnknownName, MissingDependency.
    """
    return workload_rows(chosen_workloads(names, tier))
