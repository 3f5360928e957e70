"""Trainings of the user's own in a sweep of the suite: scripts, and functions that return the parts of a training.

A script decides its batch and its optimizer itself; a function takes the batch, and decides the optimizer. What two
measurements must have in common is the text of the file.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError, script_not_found_error
from stepscope.experiments.engine.sweep_points import OWN, WorkloadEntry
from stepscope.experiments.sweeps.user_training import (
    is_script,
    is_user_training,
    refuse_no_function,
    train_user_training,
)

if TYPE_CHECKING:
    from stepscope.experiments.engine.child import Orders
    from stepscope.experiments.suite import SuiteRun

__all__ = ["is_user_training", "refuse_fixed_axes", "run_user_training", "user_entry"]


def user_entry(target: str) -> WorkloadEntry:
    """Return a script, or module:function, as a sweep knows it; UsageError where there is none."""
    script = is_script(target)
    if not script:
        refuse_no_function(target)
    elif not Path(target).is_file():
        raise script_not_found_error(target)
    path = Path(target) if script else _file_of(target)
    source = "" if path is None else path.read_text(encoding="utf-8", errors="replace")
    kind = "script" if script else "function"
    definition = {"own": kind, "source_sha256": hashlib.sha256(source.encode()).hexdigest()}
    about = {"domain": "own", "summary": f"a {kind} of your own", "published": []}
    return WorkloadEntry(target, (), None, OWN, (OWN,), definition, about, source)


def _file_of(target: str) -> Path | None:
    """The file of the function's module, which has been imported."""
    module = sys.modules.get(target.partition(":")[0])
    spec = None if module is None else getattr(module, "__spec__", None)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def refuse_fixed_axes(request: SuiteRun, targets: Sequence[str]) -> None:
    """Raise UsageError for axes that a training of the user's own decides itself, with how it can be done."""
    for target in targets:
        alone = f"leave it out, or name '{target}' in a sweep of its own"
        if request.fleet is not None:
            hint = f"a workload in a file travels: {Path(target).stem}.py:NAME (docs/add-a-workload.md)"
            raise UsageError(f"'{target}': a script or function does not travel to the boards of a fleet", hint)
        if request.optimizers is not None:
            raise UsageError(f"--optimizers: '{target}' decides that itself", alone)
        if request.device not in (None, "cpu"):
            raise UsageError(f"--device: '{target}' decides that itself", alone)
        if request.batch is not None and is_script(target):
            hint = f"leave it out, or: stepscope study batch {target} -- --batch {{batch}}"
            raise UsageError(f"--batch: '{target}' decides that itself", hint)
        unknown = [name for name in request.precisions or () if name not in ("fp32", "bf16")]
        if unknown:
            text = f"{', '.join(unknown)}: '{target}' scales its loss and quantises its model itself, or not at all"
            raise UsageError(text, "leave it out: fp32 and bf16 are made for it")


def run_user_training(orders: Orders, rules: Any) -> dict[str, Any]:
    """Run a script or function by the rules of a sweep; returns how it ended."""
    enough = {"seconds": rules.seconds, "interval": rules.interval, "memory_bytes": rules.memory_bytes}
    return train_user_training({**orders, "arguments": (), "steps": rules.steps, "optimizer": None, **enough})
