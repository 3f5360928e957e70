"""The data loader: processes that load ahead of the step."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch

if TYPE_CHECKING:
    pass

_LEAST_SHARE = 0.02  # of a step: with less there is nothing to gain


def changes(facts: Facts) -> Iterator[Change]:
    """Yield worker processes, more batches ahead, and pinned memory for an accelerator."""
    loader = facts["loader"]
    none = "" if loader else "no data loader was seen"
    share = facts.get("data_share")
    if not none and share is not None and share < _LEAST_SHARE:
        none = f"loading takes {100 * share:.1f} % of a step"
    now = int(loader["workers"]) if loader else 0
    for count in (1, 2, 4):
        arguments = {"num_workers": count, "persistent_workers": True}
        refused = none or ("the loader has so many workers already" if count == now else "")
        if not refused and count > max(2, int(facts["cores"])):
            refused = f"{facts['cores']} cores"
        yield _change(f"workers={count}", f"{count} worker{'s' * (count != 1)} load ahead", arguments, refused)
    refused = none or ("" if now else "the loader has no worker processes")
    yield _change("prefetch=4", "4 batches ahead by each worker", {"prefetch_factor": 4}, refused, "prefetch")
    pinned = none or ("" if facts["device"] == "cuda" else "of a CUDA device alone")
    yield _change("pinned-memory", "batches in pinned memory", {"pin_memory": True}, pinned, "pinned memory")


def _change(name: str, title: str, arguments: Mapping[str, Any], refused: str, group: str = "loader") -> Change:
    code = f"DataLoader(..., {', '.join(f'{key}={value}' for key, value in arguments.items())})"
    risk = "random numbers drawn by the data set itself differ" if "num_workers" in arguments else ""
    return Change(
        name, title, group, code, risk, _made_with(arguments), at_start=True, loader=arguments, refused=refused
    )  # fmt: skip


def with_arguments(given: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a loader with these in their place; what needs worker processes only where it has some.

    Another loader of the same training, such as that of its evaluation, may have none.
    """
    found = {**given, **arguments}
    if found.get("num_workers"):
        return found
    needing = {name for name in ("prefetch_factor", "persistent_workers") if name in arguments}
    return {name: value for name, value in found.items() if name not in needing} | {
        name: value for name, value in given.items() if name in needing
    }


@contextlib.contextmanager
def loaders_made_with(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Data loaders that are made meanwhile are made with these arguments, however the training gives its own."""
    from torch.utils.data import DataLoader

    plain = DataLoader.__init__
    signature = inspect.signature(plain)

    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(loader, *args, **kwargs).arguments
        named = {**given.pop("kwargs", {}), **given}
        plain(**with_arguments(named, arguments))

    DataLoader.__init__ = init  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        DataLoader.__init__ = plain  # type: ignore[method-assign]


def _made_with(arguments: Mapping[str, Any]) -> Switch:
    return lambda _: loaders_made_with(arguments)
