"""Jobs from what users have: a model, an optimizer, a maker of batches, a loss."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stepscope.errors import UsageError
from stepscope.record.job import Job, Loss, Optimizers, plain_step

_SHAPE = "return (model, optimizer, make_batch, loss), or a dict with these names"
DEFAULT_BATCH = 16
Made = tuple[nn.Module, Optimizers, Callable[[int], Any], Loss]


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
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    _check(model, optimizers, make_batch)
    counted = loss_of(loss)
    return Job(
        name or type(model).__name__,
        lambda: (model, optimizers),
        make_batch,
        plain_step(counted),
        DEFAULT_BATCH,
        counted,
    )


def job_of_function(target: str) -> Job:
    """The job that `package.module:function` returns the parts of; it is called anew for each dry run."""
    module_name, _, function_name = target.partition(":")
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name not in (module_name, module_name.partition(".")[0]):
            raise
        raise UsageError(f"there is no module '{module_name}' here", "run in the folder of its file") from error
    finally:
        sys.path.remove("")
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise UsageError(f"'{module_name}' has no function '{function_name}'", f"it has: {', '.join(known) or 'none'}")
    return _job_of_maker(function, target)


def is_script(target: str) -> bool:
    """Whether a target is a file to run."""
    return target.endswith(".py") or Path(target).is_file()


def loss_of(loss: Any) -> Loss:
    """A function of (model, batch) from whatever users call a loss."""
    if loss is None:
        return _own_loss
    if isinstance(loss, nn.Module) or _takes_outputs(loss):
        return functools.partial(_of_outputs, loss)
    if not callable(loss):
        raise UsageError(f"a loss of type {type(loss).__name__} cannot be called", "give a function loss(model, batch)")
    chosen: Loss = loss
    return chosen


def inputs_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with a batch: a dictionary by name, an object by its attributes, a sequence's first."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return (batch[0],), {}
    if isinstance(batch, Tensor) or not hasattr(batch, "__dict__"):
        return (batch,), {}
    return (), dict(vars(batch))


def _job_of_maker(function: Callable[[], Any], name: str) -> Job:
    parts = _parts(function(), name)
    model, optimizers, make_batch, loss = parts
    _check(model, optimizers, make_batch)

    def build() -> tuple[nn.Module, Optimizers]:
        made = _parts(function(), name)
        return made[0], made[1]

    return Job(name, build, make_batch, plain_step(loss), DEFAULT_BATCH, loss)


def _parts(made: Any, name: str) -> Made:
    if isinstance(made, Mapping):
        missing = [key for key in ("model", "optimizer", "make_batch") if key not in made]
        if missing:
            raise UsageError(f"'{name}' returned a dict without {', '.join(missing)}", _SHAPE)
        made = (made["model"], made["optimizer"], made["make_batch"], made.get("loss"))
    if not isinstance(made, (tuple, list)) or len(made) not in (3, 4):
        raise UsageError(f"'{name}' returned {type(made).__name__}", _SHAPE)
    model, optimizer, make_batch, loss = (*made, None)[:4]
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    return model, optimizers, make_batch, loss_of(loss)


def _check(model: Any, optimizers: tuple[Any, ...], make_batch: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}, not an nn.Module", _SHAPE)
    if not optimizers or not all(isinstance(each, Optimizer) for each in optimizers):
        raise UsageError("the optimizer is no torch.optim.Optimizer", _SHAPE)
    if not callable(make_batch):
        raise UsageError("make_batch cannot be called", "give a function of the number of samples that returns a batch")


def _takes_outputs(loss: Any) -> bool:
    """Whether a function is one of (outputs, targets), as those of torch.nn.functional are."""
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        return False
    return bool(names) and names[0] in ("input", "output", "outputs", "pred", "preds", "prediction", "logits", "y_hat")


def _of_outputs(criterion: Callable[..., Tensor], model: nn.Module, batch: Any) -> Tensor:
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise UsageError("a loss of (outputs, targets) needs batches of (inputs, targets)", "give loss(model, batch)")
    return criterion(model(batch[0]), batch[1])


def _own_loss(model: nn.Module, batch: Any) -> Tensor:
    args, kwargs = inputs_of(batch)
    output = model(*args, **kwargs)
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(found, Tensor) or found.dim():
        raise UsageError("the model's output has no scalar loss", "give loss=, a function of (model, batch)")
    return found
