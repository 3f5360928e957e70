"""Causes for which an accelerator, or the cores, are idle in a step: data, small operators, synchronisation, host code.

An accelerator is idle where no kernel runs. Each instant of that counts as what the host did then: it loaded data, it
launched operators, it ran code between them, or it had waited for the accelerator and had not launched anew since.
Where the host runs ahead, kernels of the steps before run in this one; where it is not known which, it is not judged.

On a CPU one core works while data are fetched, while host code runs, and while operators are dispatched; the others
that the training may use (affinity, quota) could work, and are idle for no longer than sampled CPU utilisation leaves
(threads that wait spin for a while). What it leaves beyond these is idle time within operators.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.channels import board_computes
from stepscope.analysis.device.ceilings import ceilings_of
from stepscope.analysis.device.occupancy import occupancy, usable_cores
from stepscope.analysis.metrics import core_utilisation
from stepscope.analysis.time.operators import CPU
from stepscope.analysis.time.spans import complement, overlap, subtract, union
from stepscope.analysis.time.step_units import StepUnits, kernels_by_unit, waits_for_device
from stepscope.arrays import Floats
from stepscope.runfolder import RunReader

DATA, SMALL, SYNC, HOST_CODE, EXCHANGE, WITHIN = (
    "data loading",
    "small operators (launch and dispatch)",
    "synchronisation",
    "host code outside operators",
    "communication",
    "within operators",
)
IDLE = {"device": pl.String, "cause": pl.String, "ns": pl.Float64, "share": pl.Float64}


def idle_causes(run: RunReader, steps: list[StepUnits], step_ns: float) -> pl.DataFrame:
    """Return idle time by cause, ns a step, and its share of the step (of all cores' time on a CPU), largest first."""
    on_device = bool(steps) and bool(steps[0].kernel.any())
    rows = _accelerator_idle_causes(steps, step_ns) if on_device else _core_idle_causes(run, steps, step_ns)
    frame = pl.DataFrame(rows, schema=IDLE, orient="row")
    return frame.filter(pl.col("ns") > 0).sort("device", "ns", descending=[False, True])


def _accelerator_idle_causes(steps: list[StepUnits], step_ns: float) -> list[tuple[str, str, float, float]]:
    sums: dict[tuple[str, str], float] = {}
    # Where a step's own kernels end within it, those of the step before did so too.
    steps = [step for step in steps if step.earlier is not None or step.t1[step.kernel].max() <= step.length_ns]
    for units in steps:
        devices = {lane.rpartition(":")[0] for lane in np.array(units.lane)[units.kernel]}
        for device in devices:
            for cause, ns in gaps_by_cause(units, device).items():
                key = device, cause
                sums[key] = sums.get(key, 0.0) + ns * step_ns / units.length_ns / len(steps)
    return [(device, cause, ns, ns / step_ns) for (device, cause), ns in sums.items()]


def gaps_by_cause(units: StepUnits, device: str) -> dict[str, float]:
    """Return the time in which no kernel ran on the device in this step, by what the host did meanwhile, ns."""
    kernel = units.kernel
    mine = np.array([lane.rpartition(":")[0] == device for lane in units.lane])
    t0, t1 = units.t0[mine], units.t1[mine]
    if units.earlier is not None:
        others = units.earlier.filter(device=device)
        t0, t1 = np.append(t0, others["t0"].to_numpy()), np.append(t1, others["t1"].to_numpy())
    busy = union(np.clip(np.column_stack([t0, t1]), 0.0, units.length_ns))
    idle = complement(busy, 0.0, units.length_ns)
    loads = ~kernel & np.array([phase == "data" for phase in units.phase])
    talks = ~kernel & np.array([phase == "communication" for phase in units.phase])
    launches = ~kernel & ~loads & ~talks
    drained = _gaps_after_waits(units, device, idle)
    spans = {DATA: loads, EXCHANGE: talks}
    ends = np.column_stack([units.t0, units.t1])
    remaining, idle_ns = idle, {}
    for cause, which in spans.items():
        covered = union(ends[which])
        idle_ns[cause], remaining = float(overlap(remaining, covered).sum()), subtract(remaining, covered)
    idle_ns[SYNC], remaining = float(overlap(remaining, drained).sum()), subtract(remaining, drained)
    launching = union(ends[launches])
    idle_ns[SMALL], remaining = float(overlap(remaining, launching).sum()), subtract(remaining, launching)
    idle_ns[HOST_CODE] = _total_length(remaining)
    return idle_ns


def _gaps_after_waits(units: StepUnits, device: str, idle: Floats) -> Floats:
    """Gaps that begin where the host had waited for the device until its last kernel had ended."""
    ends = set()
    for unit, launched in kernels_by_unit(units).items():
        if units.lane[launched[-1]].rpartition(":")[0] == device and waits_for_device(units, unit, launched):
            ends.add(float(units.t1[launched[-1]]))
    return np.array([gap for gap in idle.tolist() if gap[0] in ends], dtype=np.float64).reshape(-1, 2)


def _core_idle_causes(run: RunReader, steps: list[StepUnits], step_ns: float) -> list[tuple[str, str, float, float]]:
    cores = usable_cores(run)
    if cores < 2 or not steps or board_computes(run):  # of this machine's cores nothing was read
        return []
    ceilings = ceilings_of(run)
    call_ns = ceilings.op_ns if ceilings is not None and ceilings.device == CPU else 0.0
    alone: dict[str, float] = {}
    for units in steps:
        scale = step_ns / units.length_ns / len(steps)
        phase, own = np.array(units.phase), units.t1 - units.t0
        loads, talks = phase == "data", phase == "communication"
        small = np.where(loads | talks, 0.0, np.minimum(units.calls * call_ns, own))
        spans = {
            DATA: own[loads].sum(),
            EXCHANGE: own[talks].sum(),
            SMALL: small.sum(),
            HOST_CODE: _total_length(complement(union(np.column_stack([units.t0, units.t1])), 0.0, units.length_ns)),
        }
        for cause, ns in spans.items():
            alone[cause] = alone.get(cause, 0.0) + float(ns) * scale
    idle_by_cause = {cause: ns * (cores - 1) for cause, ns in alone.items()}
    busy = _busy_cores(run, cores)
    if busy is not None:
        whole, idle_ns = sum(idle_by_cause.values()), max(cores - busy, 0.0) * step_ns
        idle_by_cause = {cause: ns * min(1.0, idle_ns / max(whole, 1.0)) for cause, ns in idle_by_cause.items()}
        idle_by_cause[WITHIN] = max(idle_ns - whole, 0.0)
    return [(CPU, cause, ns, ns / (cores * step_ns)) for cause, ns in idle_by_cause.items()]


def _busy_cores(run: RunReader, usable: int) -> float | None:
    """Return how many of the usable cores were busy; of a part of all, at least so many."""
    busy, usage = [row.value for row in core_utilisation(run) if row.value is not None], occupancy(run)
    if len(busy) < usable or (len(busy) > usable and usage.process_cores is None):
        return None
    own = sum(cores.value for cores in (usage.process_cores, usage.children_cores) if cores is not None)
    return max(sum(busy) - (len(busy) - usable), own if len(busy) > usable else 0.0)


def _total_length(spans: Floats) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())
