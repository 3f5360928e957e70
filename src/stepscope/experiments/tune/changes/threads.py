"""Threads that torch computes with, and the cores that they run on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.experiments.tune.changes import Change, Facts, Switch

if TYPE_CHECKING:
    from stepscope.experiments.tune.training import Targets

_RISK = "sums are made in another order: the last digits of the loss"


def changes(facts: Facts) -> Iterator[Change]:
    """Yield fewer and more threads, a single inter-op thread, bound cores, and of cores of two sizes the large ones."""
    cores, physical, now = int(facts["cores"]), int(facts["physical_cores"]), int(facts["threads"])
    for count in sorted({1, 2, 4, max(1, cores // 2), physical, cores}):
        if count <= cores and count != now:
            yield Change(
                f"threads={count}", f"{count} thread{'s' * (count != 1)} instead of {now}", "threads",
                f"torch.set_num_threads({count})", _RISK, _threads(count),
            )  # fmt: skip
    alone = "a training with one thread" if now == 1 else "one core" if cores == 1 else ""
    bound = alone or ("the threads are bound already" if facts["environment"].get("OMP_PROC_BIND") else "")
    environment = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    yield Change(
        "bind", "each thread bound to a core", "pinning", shell(environment), at_start=True, environment=environment,
        refused=bound,
    )  # fmt: skip
    inter = int(facts["interop_threads"])
    yield Change(
        "interop=1", f"1 inter-op thread instead of {inter}", "inter-op", "torch.set_num_interop_threads(1)",
        "", _between(1), at_start=True, refused="there is one already" if inter == 1 else "",
        by_name=True,  # of use only where a model forks tasks of its own (torch.jit.fork)
    )  # fmt: skip
    large = [int(core) for core in facts["large_cores"]]
    listed = ",".join(map(str, large))
    yield Change(
        "large-cores", f"only the large cores ({listed or 'none'})", "pinning", f"taskset -c {listed} python train.py",
        at_start=True, switch=_on_cores(large), refused="" if large else "the cores do not differ",
    )  # fmt: skip


def shell(environment: dict[str, str]) -> str:
    """Return the words that a shell sets an environment with, before a command."""
    return " ".join(f"{name}={value}" for name, value in environment.items()) + " python train.py"


def _threads(count: int) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        from stepscope.record.train import torch_threads

        with torch_threads(count):
            yield

    return switch


def _between(count: int) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        """For the life of the process: torch starts these threads once."""
        import torch

        torch.set_num_interop_threads(count)
        yield

    return switch


def _on_cores(cores: list[int]) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    return switch
