"""`stepscope.measure`: train a workload and measure it, as `stepscope run` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import stepscope
from stepscope import workloads
from stepscope.analysis.summary import write_summary
from stepscope.errors import UsageError
from stepscope.record.empty_process import told_of_the_empty_process
from stepscope.record.schedule import Schedule
from stepscope.record.session import Settings
from stepscope.record.train import EXIT_CODES, train_workload
from stepscope.simulate.rooted import rooted
from stepscope.studies.metering import metering
from stepscope.studies.until_resolved import MOST, UntilResolved, wanted_share

if TYPE_CHECKING:
    from stepscope import Run
    from stepscope.workloads.contract import Workload

_STEPS = 100
_INTERRUPTED = EXIT_CODES["interrupted"]


def measure(
    workload: str | Workload,
    *,
    steps: int | None = None,
    until_resolved: float | None = None,
    batch: int | None = None,
    optimizer: str | None = None,
    lr: float | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    threads: int | None = None,
    seed: int = 0,
    record: str | Schedule = "adaptive",
    memory: str = "auto",
    period_ms: float = 10.0,
    plugs: Sequence[str] = (),
    meter_commands: Sequence[str] = (),
    power_model: str | None = None,
    characterise: bool = True,
    dither: bool = True,
    simulate: str | None = None,
    out: str | Path = "runs",
    progress: Callable[[int, float | None], None] | None = None,
) -> Run:
    """Train a workload and measure it, as `stepscope run` does; the run, opened for reading.

    workload: a name of `stepscope.workloads.names()`, "path/to/file.py:name", or a Workload. steps: 100 unless said;
    with until_resolved, a share of the energy such as 0.9 after which it ends, they are the bound. threads: of torch,
    for this training alone. simulate: a board of `stepscope.simulate.BOARDS` whose sensors are read instead of this
    machine's. progress: called after each step with the number of steps made and the loss. What is left are the
    settings of `stepscope.profile`.

    A training that ran out of memory is a run too: its status is "oom". Raises UsageError and OutputNotWritable before
    anything is trained, DataUnavailable and MissingDependency, what the workload itself raises, and KeyboardInterrupt;
    the run of a training that broke off stays in `out` and says so.
    """
    _refuse(steps, batch, threads)
    found = workloads.find(workload) if isinstance(workload, str) else workload
    settings = Settings(
        out=out,
        record=record,
        memory=memory,
        period_ns=round(period_ms * 1e6),
        root=os.environ.get("STEPSCOPE_ROOT"),
        metering=metering(plugs, meter_commands, power_model, characterise, dither),
    )
    most = steps or (_STEPS if until_resolved is None else MOST)
    with rooted(simulate, settings.root) as chosen, _threads(threads), _resolved(until_resolved, out) as stop:
        path, code = train_workload(
            found,
            most,
            replace(settings, root=chosen.root, metering=replace(settings.metering, simulated=simulate)),
            batch=batch,
            optimizer=optimizer,
            lr=lr,
            device=device,
            precision=precision,
            seed=seed,
            stop=stop,
            progress=progress or (lambda step, loss: None),
        )
        chosen.runs.append(path)
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if code == 0 and memory != "off":
        told_of_the_empty_process(path)
    run = stepscope.Run(path)
    write_summary(run)
    return run


def _refuse(steps: int | None, batch: int | None, threads: int | None) -> None:
    for name, value in (("steps", steps), ("batch", batch), ("threads", threads)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value}: must be 1 or more", f"for example {name}=1")


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    """So many threads of torch, and afterwards as many as before."""
    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _resolved(share: float | None, out: str | Path) -> Iterator[Callable[[], bool]]:
    """What is asked after each step: has enough of the energy been resolved?"""
    if share is None:
        yield lambda: False
        return
    resolved = UntilResolved(Path(out), wanted_share(str(share)))
    try:
        yield resolved
    finally:
        resolved.close()
