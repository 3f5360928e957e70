"""A training of the user's own in a sweep: a script, or module:function, run as it is in each setting.

A script decides its batch and all else itself. Where its arguments hold {batch}, {threads}, {precision}, {optimizer},
{device} or {seed}, the value of the setting is put there. Threads and bfloat16 need no argument: they are set in its
process, as `stepscope tune` does. It is ended before the update that would be one too many, as `sys.exit(0)` would end
it.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.clock import monotonic_ns
from stepscope.errors import UsageError, script_not_found_error
from stepscope.experiments.engine.child import Orders, limit_memory, run_status_and_reason
from stepscope.experiments.engine.process import last_line
from stepscope.part_names import has_steps
from stepscope.record.processes.modules import find_module
from stepscope.request import is_function

if TYPE_CHECKING:
    from stepscope.experiments.sweeps import TrainingSweep
    from stepscope.record.settings import Settings

TASK = "stepscope.experiments.sweeps.user_training:train_user_training"
_PREPARE = "stepscope.experiments.sweeps.user_training:prepare"
_FUNCTIONS = "stepscope.experiments.sweeps.user_training"  # as a module to run
_PLACES = ("batch", "threads", "precision", "optimizer", "device", "seed")
_OWN = ("threads", "precision")  # made in the process of a script without an argument of its own
_WARMUP = 3  # updates before the seconds of a training count


def is_user_training(target: str) -> bool:
    """Return whether a target is a script or module:function, and not the name of a workload."""
    return is_script(target) or is_function(target)


def is_script(target: str) -> bool:
    """Return whether a target is a script."""
    return target.endswith(".py") or (":" not in target and Path(target).is_file())


def refuse_no_function(target: str) -> None:
    """Raise UsageError where the module, or the function in it, is not there or returns no parts of a training."""
    from stepscope.footprint.jobs import job_of_function

    job_of_function(target)


def run_function(
    target: str, batch: int | None, settings: Settings, steps: int | None, threads: int | None, malloc: str = "default"
) -> tuple[Path, int]:
    """Run what a function returns for some steps, as a script would be; return the run folder and the exit code.

    Where there is no such function no folder is left: UsageError, or the end of this process once the other said it.
    """
    from stepscope.record.script import run_script

    module = target.partition(":")[0]
    if find_module(module) is None:  # it is not imported, since torch would come too
        raise UsageError(f"there is no module '{module}' here", "run in the folder of its file")
    limit = {"steps": steps, "seconds": None, "precision": "fp32", "first": settings.prepare}
    limited = replace(settings, prepare=(_PREPARE, json.dumps(limit)))
    words = [target, *([] if batch is None else [str(batch)])]
    path, code = run_script(_FUNCTIONS, words, limited, True, threads, malloc, name=target.replace(":", "."))
    if code == UsageError.exit_code and not has_steps(path):
        shutil.rmtree(path, ignore_errors=True)
        raise SystemExit(code)
    return path, code


def check_user_training(request: TrainingSweep) -> None:
    """Raise UsageError for what a sweep cannot do with a training of the user's own, with how it can be done."""
    target, words = request.base.workload, request.base.arguments
    command = f"stepscope study {request.study} {target}"
    if request.rules.target_loss is not None:
        raise UsageError("--target: the loss of a script is not known to a study", "leave --target out")
    if is_script(target) and not Path(target).is_file():
        raise script_not_found_error(target)
    if is_function(target) and words:
        raise UsageError(f"a function takes no arguments: {' '.join(words)}", "give a script, or leave them out")
    given_kinds = getattr(request, "precisions", (request.base.precision,))
    unknown = [name for name in given_kinds if name not in ("fp32", "bf16")]
    if unknown and not _has_placeholder("precision", words):
        raise UsageError(
            f"{', '.join(unknown)}: '{target}' scales its loss and quantises its model itself, or not at all",
            f"write {{precision}} where its option takes it: {command} -- --precision {{precision}}",
        )
    for name in ("batch", "optimizer", "device"):
        is_set = name == request.axis or getattr(request.base, name) not in (None, "cpu")
        if not is_set or _has_placeholder(name, words) or (name == "batch" and is_function(target)):
            continue
        if is_script(target) and name != "device":
            hint = f"write {{{name}}} where its option takes it: {command} -- --{name} {{{name}}}"
            raise UsageError(f"the {name} of '{target}' is its own: a study cannot set it", hint)
        raise UsageError(f"--{name}: '{target}' decides that itself", f"leave --{name} out")


def _has_placeholder(name: str, words: Sequence[str]) -> bool:
    return any(f"{{{name}}}" in word for word in words)


def fill_placeholders(words: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return the arguments with the values of the setting in their places; other braces stay as they are."""
    filled = list(words)
    for name in _PLACES:
        if values.get(name) is not None:
            filled = [word.replace(f"{{{name}}}", str(values[name])) for word in filled]
    return filled


def train_user_training(orders: Orders) -> dict[str, Any]:
    """Run the script or the function as ordered; returns how it ended. One that makes no step has failed."""
    from stepscope.record.script import run_script
    from stepscope.record.settings import Metering, Settings
    from stepscope.runfolder import RunReader

    target, words = str(orders["workload"]), list(orders["arguments"])
    placed = {name for name in _OWN if _has_placeholder(name, words)}
    precision = "fp32" if "precision" in placed else orders["precision"]
    limit = {name: orders.get(name) for name in ("steps", "seconds", "interval", "memory_bytes")}
    limit["precision"] = precision
    metering = Metering(simulated=orders.get("simulate"), characterise=False)
    settings = Settings(out=orders["out"], prepare=(_PREPARE, json.dumps(limit)), metering=metering)
    if is_function(target):
        batch = [] if orders["batch"] is None else [str(orders["batch"])]
        path, code = run_script(_FUNCTIONS, [target, *batch], settings, as_module=True, threads=orders["threads"])
    else:
        threads = None if "threads" in placed else orders["threads"]
        path, code = run_script(target, fill_placeholders(words, orders), settings, threads=threads)
    ended = run_status_and_reason(path)
    if ended["status"] == "ok" and code == 0 and RunReader(path).steps.is_empty():
        return {"status": "failed", "reason": "no training step was seen: a step is a call of optimizer.step()"}
    if code == 0 or (ended["status"] != "ok" and ended["reason"] != f"exit code {code}"):
        return ended
    return {"status": "failed", "reason": f"exit code {code}: {last_line(Path(orders['out']))}"}


def prepare(text: str) -> None:
    """Prepare the process of the script once torch is imported: a configuration, its precision, and where it ends."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    about = json.loads(text)
    if about.get("first") is not None:
        module, _, function = about["first"][0].partition(":")
        getattr(importlib.import_module(module), function)(about["first"][1])
    if about["precision"] == "bf16":
        from stepscope.experiments.tune.changes import all_changes
        from stepscope.experiments.tune.config import apply_changes_in_script

        apply_changes_in_script([all_changes({})["bf16"]])
    if about.get("memory_bytes") is not None:
        limit_memory(about["memory_bytes"])
    narrow = None
    if about.get("interval") is not None:
        from stepscope.experiments.suite.rules import RunRules, StopCondition

        narrow = StopCondition(RunRules(interval=about["interval"]))
    register_optimizer_step_pre_hook(_StopAtLimit(about["steps"], about["seconds"], narrow))


class _StopAtLimit:
    """Ends the script before the update that would be one too many; of several optimizers the first counts.

    narrow: asked at each update but the first whether the time of a step is known well enough.
    """

    def __init__(self, steps: int | None, seconds: float | None, narrow: Callable[[], bool] | None = None) -> None:
        self._steps, self._seconds, self._narrow = steps, seconds, narrow
        self._first: int | None = None
        self._updates = 0
        self._began_ns = 0

    def __call__(self, optimizer: object, _args: object, _kwargs: object) -> None:
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) != self._first:
            return
        over = self._steps is not None and self._updates >= self._steps
        if self._seconds is not None and self._updates > _WARMUP:
            over |= monotonic_ns() - self._began_ns >= self._seconds * 1e9
        if self._narrow is not None and self._updates:
            over |= self._narrow()
        if over:
            raise SystemExit(0)
        self._updates += 1
        if self._updates == _WARMUP:
            self._began_ns = monotonic_ns()


def main(target: str, batch: str | None = None) -> None:
    """Train what a function returns, without end: whoever started this ends it."""
    from stepscope.footprint.jobs import job_of_function

    job = job_of_function(target)
    model, optimizers = job.build()
    samples = job.default_batch if batch is None else int(batch)
    while True:
        job.step(model, optimizers, job.batch(samples))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UsageError as refused:
        sys.stderr.write(f"error: {refused}\nhint: {refused.hint}\n")
        sys.exit(refused.exit_code)
