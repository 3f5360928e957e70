"""The process that is there for tuning: `python -m stepscope.experiments.tune.child ORDERS`, driven through pipes.

Of a workload the steps are made here. A script runs as it is, and is stopped between two of its steps, where commands
are taken: as-is and changed blocks alternate within its own loop. Its end is the end of this process: what it writes
after its loop is not written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepscope.clock import monotonic_ns
from stepscope.errors import StepscopeError
from stepscope.experiments.engine.child import die_with_parent
from stepscope.experiments.tune.delays import take_delay_totals, watch_batches
from stepscope.experiments.tune.other_load import OtherLoad
from stepscope.record.dry.allocator_costs import peak_bytes

if TYPE_CHECKING:
    from stepscope.experiments.tune.block_runner import BlockRunner
    from stepscope.experiments.tune.changes import Change
    from stepscope.experiments.tune.training import Targets
    from stepscope.workloads.contract import Training

Orders = Mapping[str, Any]
_FIXED = 8  # batches in which losses are compared
_kept = contextlib.ExitStack()  # of what a workload's process begins with, for as long as it lives


class CommandPipe:
    """The commands that come through a pipe, and the answers to them."""

    def __init__(self, pipes: Sequence[int]) -> None:
        self._in, self._out = os.fdopen(pipes[0], "r"), os.fdopen(pipes[1], "w", buffering=1)

    def next(self) -> dict[str, Any]:
        """Return the next command; without one this process ends."""
        line = self._in.readline()
        if not line:
            os._exit(0)
        command: dict[str, Any] = json.loads(line)
        return command

    def answer(self, **content: Any) -> None:
        """Answer the last command."""
        with contextlib.suppress(BrokenPipeError):
            self._out.write(json.dumps(content) + "\n")
            self._out.flush()


def main(orders: Orders) -> None:
    """Prepare the training, then do as told until the pipe ends."""
    die_with_parent(orders["parent"])
    if orders.get("script"):
        from stepscope.experiments.tune.script import train_script

        train_script(orders)
        return
    commands = CommandPipe(orders["pipes"])
    began_ns = monotonic_ns()
    try:
        bench = prepare_workload_runner(orders)
    except StepscopeError as error:
        commands.next()
        commands.answer(refused=str(error), hint=error.hint)
        return
    except Exception as error:
        commands.next()
        commands.answer(failed=f"{type(error).__name__}: {error}")
        raise
    prepared_s = (monotonic_ns() - began_ns) / 1e9
    while True:
        command = commands.next()
        try:
            commands.answer(**execute_command(bench, command), prepared_s=prepared_s)
        except StepscopeError as error:
            commands.answer(refused=str(error), hint=error.hint)
        except Exception as error:  # what a change does to a training is a result
            commands.answer(failed=f"{type(error).__name__}: {error}")


def execute_command(bench: BlockRunner, command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a command: facts, a block of steps, losses or the memory of a step."""
    what, names = command["do"], command.get("changes", [])
    if what == "facts":
        return bench.facts()
    if what == "use":
        bench.set_facts(command["facts"])
        return {}
    if what == "losses":
        return {"losses": bench.measure_losses(names, command["steps"])}
    if what == "memory":
        return {"bytes": bench.measure_memory(names)}
    if what == "peak":
        return {"process_bytes": peak_bytes()}
    take_delay_totals()
    others = OtherLoad()
    others.begin()
    block = bench.run_block(names, command["warmup"], command["steps"])
    return {**asdict(block), **take_delay_totals(), "others": others.busy_cores_of_others()}


def changes_at_start(orders: Orders) -> list[Change]:
    """Return the changes that this process begins with; those of the environment are in force already."""
    if not orders["at_start"]:
        return []
    from stepscope.experiments.tune.changes import all_changes

    by_name = all_changes(orders["facts"])
    return [by_name[name] for name in orders["at_start"]]


def prepare_workload_runner(orders: Orders) -> BlockRunner:
    """Return the bench of a workload, with what it begins with in force for as long as this process lives."""
    import torch

    if orders.get("threads") is not None:
        torch.set_num_threads(orders["threads"])
    from stepscope import workloads
    from stepscope.experiments.tune.changes import changes_applied
    from stepscope.experiments.tune.training import Targets

    if orders.get("what_if"):
        watch_batches()
    at_start = changes_at_start(orders)
    early = [change for change in at_start if change.group != "compile"]
    _kept.enter_context(changes_applied(early, Targets((), ())))  # before there are threads, which keep their cores
    training = workloads.find(orders["workload"]).prepare(
        batch=orders.get("batch"), optimizer=orders.get("optimizer"), device=orders.get("device") or "cpu"
    )
    targets = Targets((training.model,), training.optimizers)
    if len(early) < len(at_start):
        runner_for_workload(training, targets)  # which modules it calls is seen in a step
        _kept.enter_context(changes_applied([change for change in at_start if change not in early], targets))
    return runner_for_workload(training, targets)


def runner_for_workload(training: Training, targets: Any = None, restored: bool = False) -> BlockRunner:
    """Return the bench of a prepared workload: its own step, its own batches."""
    from stepscope.experiments.tune.block_runner import BlockRunner
    from stepscope.experiments.tune.changes.loop import patch_loader_arguments
    from stepscope.experiments.tune.training import Targets

    targets = targets or Targets((training.model,), training.optimizers)
    # Batches for comparison come first, from an iterator of their own: a training's own stream is begun once.
    stream: Iterator[Any] = iter(training.batches())
    fixed = list(itertools.islice(stream, _FIXED))

    def source(arguments: Mapping[str, Any]) -> Iterator[Any]:
        if not arguments:
            return stream
        with patch_loader_arguments(arguments):
            return iter(training.batches())

    return BlockRunner(
        lambda batch: make_step(training, targets, batch), targets, source, fixed, others=(training.counters,),
        restored=restored, divisible=training.workload.step is None, batch=training.batch_size,
    )  # fmt: skip


def make_step(training: Training, targets: Targets, batch: Any) -> Any:
    """Make a step of a workload, with its batch in as many parts as the targets state; return the loss."""
    if targets.parts == 1:
        return training.step(batch)
    training.optimizer.zero_grad()
    total: Any = 0.0
    for part in zip(*(tensor.chunk(targets.parts) for tensor in batch), strict=True):
        loss = training.loss(part) / targets.parts
        loss.backward()  # type: ignore[no-untyped-call]
        total = total + loss.detach()
    training.optimizer.step()
    return total


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
