"""The update of the parameters: one kernel for all of them, and gradients that are dropped instead of zeroed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets

_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
_FOREACH = (*_FUSED, "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
_RISK = "sums are made in another order: the last digits of the weights"


def changes(facts: Facts) -> Iterator[Change]:
    """Yield the fused and the foreach update, and `zero_grad` that drops gradients."""
    kinds = [str(optimizer["kind"]) for optimizer in facts["optimizers"]]
    for name, able in (("fused", _FUSED), ("foreach", _FOREACH)):
        refused = ""
        if not kinds:
            refused = "no optimizer of torch was seen"
        elif any(kind not in able for kind in kinds):
            refused = f"{', '.join(kind for kind in kinds if kind not in able)} has no such update"
        elif all(optimizer[name] for optimizer in facts["optimizers"]):
            refused = "the optimizer updates so already"
        code = f"torch.optim.{kinds[0] if kinds else 'SGD'}(..., {name}=True)"
        yield Change(name, f"{name} optimizer", "optimizer", code, _RISK, _update(name), refused=refused)
    kept = "" if facts["zeroes_gradients"] else "the training does not keep its gradients"
    yield Change(
        "drop-gradients", "zero_grad drops gradients instead of writing zeros", "zero_grad",
        "optimizer.zero_grad(set_to_none=True)", "a parameter without a gradient is not updated",
        _drop, refused=kept,
    )  # fmt: skip


def _update(name: str) -> Switch:
    @contextlib.contextmanager
    def switch(targets: Targets) -> Iterator[None]:
        wanted = {"fused": name == "fused", "foreach": name == "foreach"}
        before = [
            (group, {key: group[key] for key in wanted if key in group})
            for optimizer in targets.optimizers
            for group in optimizer.param_groups
        ]
        for group, _ in before:
            group.update({key: value for key, value in wanted.items() if key in group})
        try:
            yield
        finally:
            for group, values in before:
                group.update(values)

    return switch


@contextlib.contextmanager
def _drop(_: Targets) -> Iterator[None]:
    """For every optimizer and module: at class level, so that nothing stays on one."""
    import torch

    owners: list[Any] = [torch.optim.Optimizer, torch.nn.Module]
    before = [owner.zero_grad for owner in owners]

    def dropping(plain: Any) -> Any:
        def zero_grad(owner: Any, set_to_none: bool = True) -> None:
            plain(owner, set_to_none=True)

        return zero_grad

    for owner, plain in zip(owners, before, strict=True):
        owner.zero_grad = dropping(plain)
    try:
        yield
    finally:
        for owner, plain in zip(owners, before, strict=True):
            owner.zero_grad = plain
