"""Delays: a layer, the data loader or the optimizer made slower by so much, to see what the step waits for.

A delay is a change like any other, named `slower=[kind, name, forward ns, backward ns]`. It computes nothing: it waits
in the thread, or in the worker process, that does the work. How long it truly waited is counted.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.clock import monotonic_ns
from stepscope.experiments.tune.changes import Change, Switch, remove_hooks_after

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets

DELAY = "slower="
LAYER, LOADER, OPTIMIZER = "layer", "loader", "optimizer"
_WANTED, _DELAYED, _FETCHED, _FETCHES = range(4)
# Shared with worker processes that are forked later: the delay of a batch, what was waited, time and number of batches.
_shared = memoryview(mmap.mmap(-1, 32)).cast("q")


def delay_name(kind: str, name: str, forward_ns: float, backward_ns: float = 0.0) -> str:
    """Return the name of a delay, ns a call of the part."""
    return DELAY + json.dumps([kind, name, round(forward_ns), round(backward_ns)])


def delay_of(name: str) -> Change:
    """Return the delay of this name as a change."""
    kind, part, forward_ns, backward_ns = json.loads(name.removeprefix(DELAY))
    makes: dict[str, Switch] = {
        LAYER: lambda targets: _delay_layer(targets, part, forward_ns, backward_ns),
        LOADER: lambda targets: _delay_loader(forward_ns),
        OPTIMIZER: lambda targets: _delay_optimizer(targets, forward_ns),
    }
    return Change(name, f"{part} made slower", DELAY, "", switch=makes[kind])


def take_delay_totals() -> dict[str, float]:
    """Return what was waited since the last time, s, and of the batches since then the number and the mean time, s."""
    delayed, fetched, fetches = (_shared[place] for place in (_DELAYED, _FETCHED, _FETCHES))
    _shared[_DELAYED] = _shared[_FETCHED] = _shared[_FETCHES] = 0
    return {"delayed_s": delayed / 1e9, "fetches": fetches, "fetch_s": fetched / 1e9 / fetches if fetches else 0.0}


def watch_batches() -> None:
    """Time each batch that a data set makes from now on, in this process and in workers forked later, for its life."""
    from torch.utils.data._utils import fetch

    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        plain = fetcher.fetch

        def fetched(self: Any, index: Any, plain: Any = plain) -> Any:
            began_ns = monotonic_ns()
            batch = plain(self, index)
            _shared[_FETCHED] += monotonic_ns() - began_ns
            _shared[_FETCHES] += 1
            if _shared[_WANTED]:
                _busy_wait(_shared[_WANTED])
            return batch

        fetcher.fetch = fetched  # type: ignore[method-assign]


def _busy_wait(duration_ns: int) -> None:
    began_ns = now_ns = monotonic_ns()
    while now_ns - began_ns < duration_ns:
        now_ns = monotonic_ns()
    _shared[_DELAYED] += now_ns - began_ns


@contextlib.contextmanager
def _delay_layer(targets: Targets, name: str, forward_ns: int, backward_ns: int) -> Iterator[None]:
    """After each call of the module, and in backward when the gradient of what it returned is there."""
    modules = [
        module
        for model in targets.models
        for path, module in model.named_modules()
        if name in (path, ".".join(part for part in (type(model).__name__, path) if part))  # of several models by type
    ]
    if not modules:
        raise LookupError(f"the training calls no module {name or 'at the root'}")

    def ended(_module: object, _args: object, output: Any) -> None:
        _busy_wait(forward_ns)
        tensor = _first_tensor(output)
        if tensor is not None and backward_ns:
            tensor.register_hook(lambda _: _busy_wait(backward_ns))

    with remove_hooks_after([module.register_forward_hook(ended) for module in modules[:1]]):
        yield


def _first_tensor(output: Any) -> Any:
    """Return the first tensor with a gradient in what a module returned; null where it has none."""
    import torch

    if isinstance(output, torch.Tensor):
        return output if output.requires_grad else None
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return next((tensor for part in parts if (tensor := _first_tensor(part)) is not None), None)


@contextlib.contextmanager
def _delay_loader(batch_ns: int) -> Iterator[None]:
    _shared[_WANTED] = batch_ns
    try:
        yield
    finally:
        _shared[_WANTED] = 0


@contextlib.contextmanager
def _delay_optimizer(targets: Targets, step_ns: int) -> Iterator[None]:
    with remove_hooks_after(
        [optimizer.register_step_post_hook(lambda *_: _busy_wait(step_ns)) for optimizer in targets.optimizers[:1]]
    ):
        yield
