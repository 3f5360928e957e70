"""The optimizers that can be compared: those of torch, and those with a state of 8 bits of other libraries."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stepscope.errors import MissingDependency, UnknownName

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload

Make = Callable[..., Optimizer]


@dataclass(frozen=True)
class Kind:
    """One optimizer: where it comes from, and its learning rate as a multiple of what the workload has for `like`."""

    name: str
    place: str  # module and class
    like: str
    times: float = 1.0
    library: str | None = None  # what has to be installed beside torch

    @property
    def missing(self) -> str | None:
        """Why it cannot be had here; null where it can."""
        root = self.place.partition(":")[0].partition(".")[0]
        if importlib.util.find_spec(root) is None:
            return f"{self.library or root} is not installed: pip install {self.library or root}"
        if self.library is None and not hasattr(torch.optim, self.place.partition(":")[2]):
            return f"torch {torch.__version__} has no {self.name}"
        return None

    def make(self, group: Any, **values: Any) -> Optimizer:
        """MissingDependency where its library is not here, or cannot be imported."""
        why = self.missing
        if why is not None:
            raise MissingDependency(f"the optimizer {self.name} is not here: {why}", "leave it out, or install it")
        module, _, name = self.place.partition(":")
        try:
            made: Optimizer = getattr(importlib.import_module(module), name)(group, **values)
        except (ImportError, AttributeError) as error:
            raise MissingDependency(f"{self.library} cannot be used here: {error}", "leave it out") from error
        return made


# Learning rates as their authors advise them relative to Adam's: Adagrad's shrink, Adafactor's are relative updates.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("sgd", "torch.optim:SGD", "sgd"),
        Kind("momentum", "torch.optim:SGD", "momentum"),
        Kind("adam", "torch.optim:Adam", "adam"),
        Kind("adamw", "torch.optim:AdamW", "adamw"),
        Kind("adagrad", "torch.optim:Adagrad", "adam", 10),
        Kind("rmsprop", "torch.optim:RMSprop", "rmsprop"),
        Kind("adafactor", "torch.optim:Adafactor", "adam", 10),
        Kind("adamw-8bit-torchao", "torchao.optim:AdamW8bit", "adam", library="torchao"),
        Kind("adamw-8bit-bitsandbytes", "bitsandbytes.optim:AdamW8bit", "adam", library="bitsandbytes"),
    )
}


def with_every_optimizer(workload: Workload, tell: Callable[[Optimizer], None] = lambda made: None) -> Workload:
    """The workload, ready to be trained by each of KINDS; `tell` hears of every optimizer that is made."""
    known = {name: dict(values) for name, values in workload.hyperparameters.items()}
    rules = {name: known.get(name) or _like(kind, known) for name, kind in KINDS.items()}
    makers = {name: _telling(kind.make, tell) for name, kind in KINDS.items()}
    own = {name: _telling(make, tell) for name, make in workload.makers.items()}
    return replace(workload, hyperparameters={**rules, **known}, makers={**makers, **own})


def chosen(names: tuple[str, ...]) -> list[Kind]:
    """The kinds of these names; all, unless said."""
    for name in names:
        if name not in KINDS:
            raise UnknownName("optimizer", name, KINDS)
    return [KINDS[name] for name in names or KINDS]


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of the tensors that an optimizer keeps between its steps, of packed ones those that they are packed in."""
    return sum(_bytes(value) for state in optimizer.state.values() for value in state.values())


def _bytes(value: Any) -> int:
    if not isinstance(value, Tensor):
        return 0
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is not None and type(value) is not Tensor:
        return sum(_bytes(getattr(value, name)) for name in flatten()[0])
    return value.nbytes


def _like(kind: Kind, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    of = dict(known.get(kind.like) or {"lr": 1e-3})
    return {**of, "lr": of["lr"] * kind.times}


def _telling(make: Make, tell: Callable[[Optimizer], None]) -> Make:
    def made(group: Any, **values: Any) -> Optimizer:
        optimizer = make(group, **values)
        tell(optimizer)
        return optimizer

    return made
