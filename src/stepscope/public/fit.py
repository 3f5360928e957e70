"""`stepscope.fit_workload` and `stepscope.fit_script`: will it fit, as `stepscope fit` answers it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope import workloads
from stepscope.commands._jobs import workload_job
from stepscope.studies.fit.python_api import fit_job, limit_of
from stepscope.studies.fit.result import FitResult
from stepscope.studies.fit.script_answer import answer_of_script

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


def fit_workload(
    workload: str | Workload,
    *,
    batch: int | None = None,
    optimizer: str | None = None,
    memory: str | None = None,
    device: str | None = None,
    allocator: str = "default",
    options: bool = True,
) -> FitResult:
    """Whether the training of a workload fits into a memory ("8GB"), a device ("tx2") or this machine, unrun.

    workload: a name, "path/to/file.py:name", or a Workload; batch and optimizer are its own unless said. options: also
    look for what would make it fit. Bytes throughout. Raises UnknownName and UsageError. `stepscope.fit` asks the same
    of a model of yours.
    """
    job = workload_job(workloads.find(workload) if isinstance(workload, str) else workload, optimizer)
    return fit_job(job, job.default_batch if batch is None else batch, memory, device, allocator, options)


def fit_script(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    memory: str | None = None,
    device: str | None = None,
    allocator: str = "default",
) -> FitResult:
    """The same of a training script, followed to its second optimizer step in this process without computing.

    arguments: the script's own. Raises UsageError where the script cannot be followed.
    """
    limit = limit_of(memory, device, here=memory is None and device is None)
    return answer_of_script(str(script), list(arguments), limit, allocator)
