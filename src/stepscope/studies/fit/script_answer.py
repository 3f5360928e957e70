"""The answer for a user's script: its own batch, its own loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepscope.analysis.memory_model import ALLOCATORS, Limit, allocator_of, verdict
from stepscope.record.workspaces import Workspaces, this_platform
from stepscope.studies.fit import result as words
from stepscope.studies.fit.kept import Kept
from stepscope.studies.fit.live_peak import live_peak
from stepscope.studies.fit.result import FitResult, Option
from stepscope.studies.fit.script import watch_script
from stepscope.studies.fit.simulator import Simulator


def answer_of_script(
    target: str, arguments: Sequence[str], limit: Limit | None, allocator: str = "default"
) -> FitResult:
    """From the script's first two optimizer steps; ways to need less are those that leave the script as it is."""
    chosen = allocator_of(allocator)
    workspaces = Workspaces(this_platform())
    watched = watch_script(target, arguments, workspaces)
    live = live_peak(watched.log)
    simulator = Simulator(workspaces.platform, Kept(), allocator)
    process = simulator.process(live)
    options = []
    for other in ALLOCATORS.values():
        of = simulator.process(live, other)
        if other != chosen and of.middle < process.middle:
            gain = process.middle - of.middle
            price = f"{other.time[0]:g} to {other.time[1]:g} times the CPU time; {other.how}"
            said = None if limit is None else verdict(of, limit)
            options.append(
                Option(f"allocator: {other.name}", live.bytes, of, said, gain, gain / process.middle, price, 1.0)
            )
    notes = ["the batch is the script's own: for the largest batch and more ways, give module:function"]
    if watched.log.looks:
        notes.append(f"the script asked for {watched.log.looks} numbers outside the model; it was told made-up ones")
    return FitResult(
        Path(target).stem, 0, words.DRY_RUN if watched.stopped is None else words.OWN_BATCH, live, process, chosen.name,
        this_platform().name, limit, None if limit is None else verdict(process, limit), options=tuple(options),
        stopped=watched.stopped, not_modelled={k: n for k, n in workspaces.not_modelled.items() if n},
        notes=tuple(notes), ops=watched.log.ops, seconds=watched.seconds, events=watched.log.frame(),
    )  # fmt: skip
