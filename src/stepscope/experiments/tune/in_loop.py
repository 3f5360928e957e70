"""Tuning within a running loop: the steps are made here and now, and everything is put back after each block."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from stepscope.errors import StepscopeError, UsageError
from stepscope.experiments.tune.bench import Bench
from stepscope.experiments.tune.changes.loading import with_arguments
from stepscope.experiments.tune.child import obeyed
from stepscope.experiments.tune.process import PlaceEnded
from stepscope.experiments.tune.training import Targets


class LoopPlace:
    """A training in this process, told as those in other processes are."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
        """Do it now, however long it takes. What the user's step raises passes through, but of a change it is a result.

        The state has been put back then.
        """
        try:
            return obeyed(self._bench, command)
        except StepscopeError:
            raise
        except Exception as error:
            if not command.get("changes"):
                raise
            raise PlaceEnded(f"with it the step raises {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing was started."""


def loop_bench(
    step: Callable[[Any], Any], batches: Iterable[Any], targets: Targets, others: tuple[Any, ...], fixed: int
) -> Bench:
    """Return the bench of a step of the user's; a data loader is read through iterators of its own."""
    from torch.utils.data import DataLoader

    loader = batches if isinstance(batches, DataLoader) else None
    generators = () if loader is None else _generators(loader)
    if loader is None:
        kept = list(itertools.islice(batches, fixed))
        if not kept:
            raise UsageError(
                "there is no batch to make steps of", "stepscope.tune(step, [batch], model=..., optimizer=...)"
            )
        return Bench(step, targets, lambda _: itertools.cycle(kept), kept, others=others)
    from stepscope.experiments.tune.state import State

    # A loader whose workers persist has a single iterator, and the user's loop may be amid it.
    plain = _with(loader, {}) if loader.persistent_workers else loader
    state = State(Targets((), ()), generators)  # a loader draws random numbers when it begins
    try:
        kept = list(itertools.islice(iter(plain), fixed))
    finally:
        state.put_back()

    def source(arguments: Mapping[str, Any]) -> Iterator[Any]:
        return itertools.chain.from_iterable(itertools.repeat(_with(loader, arguments) if arguments else plain))

    return Bench(step, targets, source, kept, others=(*others, *generators))


def _generators(loader: Any) -> tuple[Any, ...]:
    found = (getattr(loader, "generator", None), getattr(getattr(loader, "sampler", None), "generator", None))
    return tuple({id(generator): generator for generator in found if generator is not None}.values())


def _with(loader: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a loader of the same data with other arguments."""
    from torch.utils.data import DataLoader

    same = {
        name: getattr(loader, name)
        for name in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator")
    }
    if loader.num_workers:
        same.update(prefetch_factor=loader.prefetch_factor, persistent_workers=loader.persistent_workers)
    batching = (
        {"batch_sampler": loader.batch_sampler}
        if loader.batch_sampler is not None
        else {"batch_size": None, "sampler": loader.sampler}
    )
    return DataLoader(loader.dataset, **with_arguments({**same, **batching}, arguments))
