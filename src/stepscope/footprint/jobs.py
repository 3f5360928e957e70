"""Jobs for dry runs: from a model, an optimizer, a maker of batches and a loss, or from a workload of the suite."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stepscope.errors import StepscopeError, UnknownName, UsageError
from stepscope.files import atomic_write
from stepscope.record.dry import Job, Loss, Optimizers, plain_step
from stepscope.record.fault_boundary import is_foreign

if TYPE_CHECKING:
    from stepscope.record.dry import Step
    from stepscope.workloads.contract import Workload

_SHAPE = "return (model, optimizer, make_batch, loss), or a dict with these names"
DEFAULT_BATCH = 16
JobParts = tuple[nn.Module, Optimizers, Callable[[int], Any], Loss]


def job_of(
    model: nn.Module,
    optimizer: Optimizer | tuple[Optimizer, ...] | list[Optimizer],
    make_batch: Callable[[int], Any],
    loss: Any = None,
    name: str | None = None,
) -> Job:
    """The job of objects that exist: they are copied without their numbers and never changed.

    `loss(model, batch)` gives a scalar; an nn.Module or function of (outputs, targets) does for batches of a pair; None
    takes the model's own loss (an output with `loss`, or a scalar).
    """
    optimizers = _as_optimizers(optimizer)
    _check_job_parts(model, optimizers, make_batch)
    counted = loss_of(loss)
    return Job(
        name or type(model).__name__,
        lambda: (model, optimizers),
        make_batch,
        plain_step(counted),
        DEFAULT_BATCH,
        counted,
        getattr(make_batch, "__module__", None) or type(make_batch).__module__,
        is_built=True,
    )


def job_of_function(target: str, numbers: bool = True) -> Job:
    """The job that `package.module:function` returns the parts of; it is called anew for each dry run.

    numbers: whether it is called for real now, to be checked; else on fake tensors, for a model larger than memory.
    """
    module_name, _, function_name = target.partition(":")
    if module_name.endswith(".py"):
        plain = module_name.removesuffix(".py").replace("/", ".")
        raise UsageError(f"there is no module '{module_name}' here", f"a module has no .py: {plain}:{function_name}")
    try:
        with _current_folder_on_path():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing in (module_name, module_name.partition(".")[0]):
            raise UsageError(f"there is no module '{module_name}' here", "run in the folder of its file") from error
        hint = f'it fails without Stepscope too: python -c "import {module_name}"'
        raise UsageError(f"the module '{module_name}' raised {_describe_error(error)}", hint) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise UsageError(
            f"'{module_name}' has no function '{function_name}'", f"it has: {', '.join(functions) or 'none'}"
        )
    parts = _UserJobParts(function, target)
    parts.check_by_calling(numbers)
    return Job(target, parts.build, parts.batch, plain_step(parts.loss), DEFAULT_BATCH, parts.loss, module_name)


def is_script(target: str) -> bool:
    """Return whether a target is a file to run."""
    return target.endswith(".py") or Path(target).is_file()


def loss_of(loss: Any) -> Loss:
    """A function of (model, batch) from whatever users call a loss."""
    if loss is None:
        return _model_loss
    if isinstance(loss, nn.Module) or _takes_outputs_and_targets(loss):
        return functools.partial(_loss_of_outputs, loss)
    if not callable(loss):
        raise UsageError(f"a loss of type {type(loss).__name__} cannot be called", "give a function loss(model, batch)")
    chosen: Loss = loss
    return chosen


def inputs_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a model's arguments for a batch: a dictionary by name, an object by its attributes, a sequence's first."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return (batch[0],), {}
    if isinstance(batch, Tensor) or not hasattr(batch, "__dict__"):
        return (batch,), {}
    return (), dict(vars(batch))


class _UserJobParts:
    """Parts that a user's function returned last: batch and loss are of the model that was built last."""

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        self._function, self._name = function, name
        self._last: JobParts | None = None

    def build(self) -> tuple[nn.Module, Optimizers]:
        self._last = None  # one model at a time
        self._last = self._parts()
        return self._last[0], self._last[1]

    def check_by_calling(self, numbers: bool) -> None:
        """Call it once; where fake tensors stop it, for real."""
        if not numbers:
            from stepscope.record.dry.fake_numbers import FakeMode

            with contextlib.suppress(Exception), FakeMode():
                self._parts()
                return
        self._parts()

    def batch(self, samples: int) -> Any:
        from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

        if self._last is None:
            self.build()
        assert self._last is not None
        try:
            with _current_folder_on_path():
                return self._last[2](samples)
        except Exception:
            if _get_current_dispatch_mode() is None:
                raise
            with _disable_current_modes():  # it looks at numbers, of data that were made beside the model
                return self._parts()[2](samples)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self._last is None:
            self.build()
        assert self._last is not None
        with _current_folder_on_path():
            return self._last[3](model, batch)

    def _parts(self) -> JobParts:
        model, optimizers, make_batch, loss = _job_parts(_call_user_function(self._function, self._name), self._name)
        _check_job_parts(model, optimizers, make_batch)
        return model, optimizers, make_batch, loss


def _call_user_function(function: Callable[[], Any], name: str) -> Any:
    """Return what the user's function returns; UsageError, with the line, where it raises or exits."""
    try:
        with _current_folder_on_path():
            return function()
    except StepscopeError:
        raise
    except (Exception, SystemExit) as error:
        module, _, function_name = name.partition(":")
        hint = f'it fails without Stepscope too: python -c "import {module}; {module}.{function_name}()"'
        raise UsageError(f"'{name}' raised {_describe_error(error)}", hint) from error


@contextlib.contextmanager
def _current_folder_on_path() -> Iterator[None]:
    """Find modules of the current folder, as `python -c` does; a function of the user's may import some as it runs."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have taken it off
            sys.path.remove("")


def _describe_error(error: BaseException) -> str:
    """Return "TypeError: text (train.py:3)", with the last line that is neither ours nor a library's."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # it names its line
    places = [
        f" ({Path(frame.filename).name}:{frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if is_foreign(frame.filename)
    ]
    return f"{type(error).__name__}: {error}{places[-1] if places else ''}"


def _job_parts(result: Any, name: str) -> JobParts:
    if isinstance(result, Mapping):
        missing = [key for key in ("model", "optimizer", "make_batch") if key not in result]
        if missing:
            raise UsageError(f"'{name}' returned a dict without {', '.join(missing)}", _SHAPE)
        result = (result["model"], result["optimizer"], result["make_batch"], result.get("loss"))
    if not isinstance(result, (tuple, list)) or len(result) not in (3, 4):
        raise UsageError(f"'{name}' returned {type(result).__name__}", _SHAPE)
    model, optimizer, make_batch, loss = (*result, None)[:4]
    return model, _as_optimizers(optimizer), make_batch, loss_of(loss)


def _as_optimizers(optimizer: Any) -> tuple[Any, ...]:
    return tuple(optimizer) if isinstance(optimizer, (tuple, list)) else (optimizer,)


def _check_job_parts(model: Any, optimizers: tuple[Any, ...], make_batch: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}, not an nn.Module", _SHAPE)
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers) or "empty list"
        raise UsageError(f"the optimizer is no torch.optim.Optimizer, but {kinds}", _SHAPE)
    if not callable(make_batch):
        raise UsageError("make_batch cannot be called", "give a function of the number of samples that returns a batch")


def _takes_outputs_and_targets(loss: Any) -> bool:
    """Return whether a function is one of (outputs, targets), as those of torch.nn.functional are."""
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        return False
    return bool(names) and names[0] in ("input", "output", "outputs", "pred", "preds", "prediction", "logits", "y_hat")


def _loss_of_outputs(criterion: Callable[..., Tensor], model: nn.Module, batch: Any) -> Tensor:
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise UsageError("a loss of (outputs, targets) needs batches of (inputs, targets)", "give loss(model, batch)")
    return criterion(model(batch[0]), batch[1])


def _model_loss(model: nn.Module, batch: Any) -> Tensor:
    args, kwargs = inputs_of(batch)
    output = model(*args, **kwargs)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(loss, Tensor) or loss.dim():
        raise UsageError("the model's output has no scalar loss", "give loss=, a function of (model, batch)")
    return loss


def job_of_target(target: str, optimizer: str | None, precision: str = "float32", numbers: bool = True) -> Job:
    """Return the training of module:function, or of a workload (file.py:name), in a precision that `fit` knows."""
    if ":" in target and not _names_workloads(Path(target.rpartition(":")[0])):
        job = job_of_function(target, numbers)
    else:
        from stepscope import workloads

        job = workload_job(workloads.find(target), optimizer)
    if precision == "float32":
        return job
    from stepscope.footprint.transforms import bf16

    def build() -> tuple[nn.Module, Optimizers]:
        model, optimizers = job.build()
        return model, bf16(model, optimizers)

    return replace(job, build=build)


def _names_workloads(path: Path) -> bool:
    """Return whether a file is one of workloads; it is not imported: a script would begin to train."""
    return path.suffix == ".py" and path.is_file() and "WORKLOADS" in path.read_text(encoding="utf-8", errors="replace")


def workload_job(workload: Workload, optimizer: str | None = None) -> Job:
    """The training that `workload.prepare(optimizer=...)` makes ready; its batches have the shapes of its examples."""
    rule = optimizer or workload.default_optimizer
    if rule not in workload.hyperparameters:
        raise UnknownName("optimizer", rule, workload.hyperparameters)

    def build() -> tuple[nn.Module, Optimizers]:
        model = workload.build().train()
        values = workload.hyperparameters[rule]
        return model, tuple(workload.makers[rule](group, **values) for group in workload.groups(model))

    own_step = workload.step is not None
    return Job(
        workload.name,
        build,
        workload.example,
        _step_without_data(workload),
        workload.default_batch,
        None if own_step else workload.loss,
    )


def _step_without_data(workload: Workload) -> Step:
    """The step of the suite's own loop, with a training that has no data."""
    import torch

    from stepscope.workloads.contract import Training
    from stepscope.workloads.data.source import DataFacts, Splits

    no_data = Splits(None, None, DataFacts("none", "synthetic", "", "", "", 0, 0))

    def step(model: nn.Module, optimizers: Optimizers, batch: Any) -> None:
        Training(workload, model, optimizers, len(batch[0]), torch.device("cpu"), 0, no_data).step(batch)

    return step


# Memory of a step by layer for a run in which no step's allocations were profiled: computed, and marked so.


def write_computed_memory(run: Path, workload: Workload, optimizer: str | None = None, precision: str = "fp32") -> None:
    """Write the allocations of a step on tensors without data into a run that has ended on a CPU.

    Nothing is written where allocations were profiled or not wanted, or where fake tensors cannot run the step. Never
    raises on account of the run or of the disk.
    """
    import polars as pl

    from stepscope.record.dry.dry_run import DryRunStopped, dry_run
    from stepscope.record.precision import workload_in_precision
    from stepscope.runfolder import MEMORY, RunReader

    try:
        reader = RunReader(run)
        recorder: dict[str, Any] = reader.meta.get("recorder") or {}
        about: dict[str, Any] = reader.meta.get("workload") or {}
        is_needed = recorder.get("memory") == "auto" and recorder.get("mode") != "none" and not reader.steps.is_empty()
        if not is_needed or about.get("device") != "cpu" or not reader.memory_events.is_empty():
            return
        job = workload_job(workload_in_precision(workload, precision, "cpu"), optimizer)
        as_profiled = pl.col("op").str.replace(r"^(\w+)\.(\w+)\..*$", "${1}::${2}")  # aten.mm.default is aten::mm
        events = dry_run(job, int(about["batch_size"])).events().with_columns(as_profiled)
        (run / "computed").mkdir(exist_ok=True)
        with atomic_write(run / "computed" / "memory.parquet") as part:
            columns = (pl.col(name).cast(dtype) for name, dtype in MEMORY.items())
            events.select(columns).write_parquet(part, compression="zstd", statistics=False)
    except (StepscopeError, OSError, DryRunStopped, KeyError):
        return
