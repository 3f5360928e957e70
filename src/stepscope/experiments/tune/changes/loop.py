"""Changes of the loop beside the model: how batches are loaded, and how parameters are updated."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch
from stepscope.units import plural

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets

# The data loader: processes that load ahead of the step.

_OF_WORKERS = ("num_workers", "persistent_workers")
_OF_WORKERS_ALONE = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout")
_NO_WORKERS = "batches loaded by the training process itself"
_LEAST_SHARE = 0.02  # of a step: with less there is nothing to gain


def _loading_changes(facts: Facts) -> Iterator[Change]:
    loader = facts["loader"]
    none = "" if loader else "no data loader was seen"
    share = facts.get("data_share")
    if not none and share is not None and share < _LEAST_SHARE:
        none = f"loading takes {100 * share:.1f} % of a step"
    now = int(loader["workers"]) if loader else 0
    for count in (0, 1, 2, 4):
        arguments: dict[str, Any] = {"num_workers": count, **({"persistent_workers": True} if count else {})}
        refused = none or ("the loader already has as many workers" if count == now else "")
        if not refused and loader.get("stream"):
            refused = "of an iterable data set each worker yields all samples, unless it divides them itself"
        if not refused and count > max(2, int(facts["cores"])):
            refused = f"{facts['cores']} cores"
        yield _make_loader_change(
            f"workers={count}", f"{plural(count, 'worker')} prefetching batches" if count else _NO_WORKERS, arguments,
            refused,
        )  # fmt: skip
    refused = none or ("" if now else "the loader has no worker processes")
    yield _make_loader_change(
        "prefetch=4", "4 batches prefetched by each worker", {"prefetch_factor": 4}, refused, "prefetch"
    )
    pinned = none or ("" if facts["device"] == "cuda" else "on a CUDA device only")
    yield _make_loader_change(
        "pinned-memory", "batches in pinned memory", {"pin_memory": True}, pinned, "pinned memory"
    )


def _make_loader_change(
    name: str, title: str, arguments: Mapping[str, Any], refused: str, group: str = "loader"
) -> Change:
    code = f"DataLoader(..., {', '.join(f'{key}={value}' for key, value in arguments.items())})"
    code += "" if arguments.get("num_workers", 1) else f"\n# without {', '.join(_OF_WORKERS_ALONE)}"
    risk = "random numbers drawn by the data set itself differ" if "num_workers" in arguments else ""
    return Change(
        name, title, group, code, risk, lambda _: patch_loader_arguments(arguments), at_start=True, loader=arguments,
        refused=refused,
    )  # fmt: skip


def merge_loader_arguments(original: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a loader with these in their place; what needs worker processes only where it has some.

    Another loader of the same training, such as that of its evaluation, may have none.
    """
    merged = {**original, **arguments}
    if merged.get("num_workers"):
        return merged
    if "num_workers" in arguments:
        return {name: value for name, value in merged.items() if name not in _OF_WORKERS_ALONE}
    needing = {name for name in ("prefetch_factor", "persistent_workers") if name in arguments}
    return {name: value for name, value in merged.items() if name not in needing} | {
        name: value for name, value in original.items() if name in needing
    }


@contextlib.contextmanager
def patch_loader_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Data loaders that are made meanwhile are made with these arguments, however the training gives its own."""
    from torch.utils.data import DataLoader, IterableDataset

    plain = DataLoader.__init__
    signature = inspect.signature(plain)

    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(loader, *args, **kwargs).arguments
        named = {**bound.pop("kwargs", {}), **bound}
        stream = isinstance(named["dataset"], IterableDataset)  # each worker would yield all of it
        own = {name: value for name, value in arguments.items() if not stream or name not in _OF_WORKERS}
        plain(**merge_loader_arguments(named, own))

    DataLoader.__init__ = init  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        DataLoader.__init__ = plain  # type: ignore[method-assign]


# The update of the parameters: one kernel for all of them, and gradients that are dropped instead of zeroed.

_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
_FOREACH = (*_FUSED, "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
_RISK = "sums are made in another order: the last digits of the weights"


def _update_changes(facts: Facts) -> Iterator[Change]:
    kinds = [str(optimizer["kind"]) for optimizer in facts["optimizers"]]
    for name, able in (("fused", _FUSED), ("foreach", _FOREACH)):
        refused = ""
        if not kinds:
            refused = "no optimizer of torch was seen"
        elif any(kind not in able for kind in kinds):
            refused = f"{', '.join(kind for kind in kinds if kind not in able)} has no such update"
        elif all(optimizer[name] for optimizer in facts["optimizers"]):
            refused = "the optimizer already does"
        other = "foreach" if name == "fused" else "fused"
        without = f"{other}=False, " if any(optimizer[other] for optimizer in facts["optimizers"]) else ""
        code = f"torch.optim.{kinds[0] if kinds else 'SGD'}(..., {without}{name}=True)"
        yield Change(name, f"{name} optimizer", "optimizer", code, _RISK, _optimizer_flag_switch(name), refused=refused)
    refusal = "" if facts["zeroes_gradients"] else "the training does not fill its gradients with zeros"
    yield Change(
        "drop-gradients", "zero_grad drops gradients instead of writing zeros", "zero_grad",
        "optimizer.zero_grad(set_to_none=True)", "a parameter without a gradient is not updated",
        _set_gradients_to_none, refused=refusal,
    )  # fmt: skip


def _optimizer_flag_switch(name: str) -> Switch:
    @contextlib.contextmanager
    def switch(targets: Targets) -> Iterator[None]:
        flags = {"fused": name == "fused", "foreach": name == "foreach"}
        before = [
            (group, {key: group[key] for key in flags if key in group})
            for optimizer in targets.optimizers
            for group in optimizer.param_groups
        ]
        for group, _ in before:
            group.update({key: value for key, value in flags.items() if key in group})
        moved = list(_move_step_counts(targets))
        try:
            yield
        finally:
            for group, values in before:
                group.update(values)
            for state, count in moved:
                state["step"] = count.copy_(state["step"])

    return switch


def _move_step_counts(targets: Targets) -> Iterator[tuple[dict[str, Any], Any]]:
    """Put counts of steps where the update wants them: beside the parameter if fused, else on the host; yield those."""
    import torch

    for optimizer in targets.optimizers:
        for group in optimizer.param_groups:
            beside = group.get("fused") or group.get("capturable")
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                count, place = state.get("step"), parameter.device if beside else torch.device("cpu")
                if isinstance(count, torch.Tensor) and count.device != place:
                    state["step"] = count.to(place)
                    yield state, count


@contextlib.contextmanager
def _set_gradients_to_none(_: Targets) -> Iterator[None]:
    """Patch all optimizers and modules at class level, so that nothing stays on an object."""
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


def changes(facts: Facts) -> Iterator[Change]:
    """Yield the changes of loading and of updates."""
    yield from _loading_changes(facts)
    yield from _update_changes(facts)
