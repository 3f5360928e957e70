"""`stepscope.measure`: train a workload and measure it, as `stepscope run` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import stepscope
from stepscope import workloads
from stepscope.analysis.summary import write_summary
from stepscope.api.requests import RunRequest
from stepscope.experiments.energy_resolution import MOST, parse_metering, stop_when_resolved
from stepscope.footprint.jobs import write_computed_memory
from stepscope.record.ceilings import write_ceilings
from stepscope.record.empty_process import write_empty_process_bytes
from stepscope.record.settings import Schedule, Settings, parse_max_disk, sampling_period_ns
from stepscope.record.train import EXIT_CODES, TrainingChoices, torch_threads, train_workload
from stepscope.runfolder import RunWriter
from stepscope.simulate import sensor_root

if TYPE_CHECKING:
    from stepscope import Run
    from stepscope.workloads.contract import Workload

_STEPS = 100
_INTERRUPTED = EXIT_CODES["interrupted"]


def measure(
    workload: str | Workload,
    *,
    steps: int | None = None,
    until_resolved: float | str | None = None,
    batch: int | None = None,
    optimizer: str | None = None,
    lr: float | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    threads: int | None = None,
    seed: int = 0,
    record: str | Schedule = "adaptive",
    memory: str = "auto",
    period: float | str = 0.01,
    period_ms: float | None = None,
    plugs: Sequence[str] = (),
    meter_commands: Sequence[str] = (),
    power_model: str | None = None,
    characterise: bool = True,
    dither: bool = True,
    ceilings: bool = True,
    simulate: str | None = None,
    max_disk: float | str | None = None,
    out: str | Path = "runs",
    progress: Callable[[int, float | None], None] | None = None,
) -> Run:
    """Train a workload and measure it, as `stepscope run` does; the run, opened for reading.

    workload: a name of `stepscope.workloads.names()`, "path/to/file.py:name", or a Workload. steps: 100 by default;
    with until_resolved, a share of the energy such as 0.9 after which it ends, they are the bound. threads: of torch,
    for this training alone. ceilings: measure what this device can reach after the run, once for each device
    (seconds). simulate: a board of `stepscope.simulate.BOARDS` whose sensors are read instead of this
    machine's. progress: called after each step with the number of steps made and the loss. What is left are the
    settings of `stepscope.profile`; period is in s or a text such as "5ms", period_ms its old name.

    A training that ran out of memory is a run too: its status is "oom". Raises UsageError and OutputNotWritable before
    anything is trained, DataUnavailable and MissingDependency, what the workload itself raises, and KeyboardInterrupt;
    the run of a training that broke off stays in `out` and says so.
    """
    request = RunRequest(
        workload if isinstance(workload, str) else workload.name, batch=batch, steps=steps, threads=threads,
        until_resolved=until_resolved, period=sampling_period_ns(period, period_ms) / 1e9,  # type: ignore[arg-type]
        optimizer=optimizer, precision=precision, record_memory=memory, ceilings=ceilings,
    )  # fmt: skip
    resolved_workload = workloads.find(workload) if isinstance(workload, str) else workload
    settings = Settings(
        out=out,
        record=record,
        memory=memory,
        period_ns=request.period_ns,
        root=os.environ.get("STEPSCOPE_ROOT"),
        metering=replace(
            parse_metering(plugs, meter_commands, power_model, characterise, dither), max_disk=parse_max_disk(max_disk)
        ),
    )
    most = steps or (_STEPS if until_resolved is None else MOST)
    with (
        sensor_root(simulate, settings.root) as chosen,
        torch_threads(threads),
        stop_when_resolved(request.until_resolved, Path(out)) as stop,
    ):
        metering = replace(settings.metering, simulated=simulate)
        path, code = train_workload(
            resolved_workload, most, replace(settings, root=chosen.root, metering=metering),
            TrainingChoices(batch, optimizer, device, seed, lr, precision), stop=stop or (lambda: False),
            progress=progress or (lambda step, loss: None),
        )  # fmt: skip
        chosen.runs.append(RunWriter.attach(path))
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    measure_after_run(path, code == 0, request, resolved_workload, lambda sentence: None)
    run = stepscope.Run(path)
    write_summary(run, of_operators=False)
    return run


def measure_after_run(
    path: Path, ended_well: bool, request: RunRequest, workload: Workload | None, says: Callable[[str], object]
) -> None:
    """Write into a workload's run what is measured once it has ended: memory of an empty process, device ceilings.

    workload: whose memory is computed too, where none was recorded.
    """
    if ended_well and request.record_memory != "off":
        write_empty_process_bytes(path, says)
        if workload is not None:
            write_computed_memory(path, workload, request.optimizer, request.precision or "fp32")
    write_ceilings(path, says, request.ceilings and ended_well)
