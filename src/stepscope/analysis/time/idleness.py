"""Causes for which an accelerator, or the cores, are idle in a step: data, small operators, synchronisation, host code.

An accelerator is idle where no kernel runs. Each instant of that counts as what the host did then: it loaded data, it
launched operators, it ran code between them, or it had waited for the accelerator and had not launched anew since.
Where the host runs ahead, kernels of the steps before run in this one; where it is not known which, it is not judged.

On a CPU one core works while data are fetched, while host code runs, and while operators are dispatched; the others
could work, and are idle for no longer than sampled CPU utilisation leaves (threads that wait spin for a while). What it
leaves beyond these is idle time within operators.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.device.ceilings import ceilings_of
from stepscope.analysis.metrics import core_utilisation
from stepscope.analysis.time.operators import CPU
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
    busy = _merged(*(np.clip(ends, 0.0, units.length_ns) for ends in (t0, t1)))
    idle = _gaps(busy, units.length_ns)
    loads = ~kernel & np.array([phase == "data" for phase in units.phase])
    talks = ~kernel & np.array([phase == "communication" for phase in units.phase])
    launches = ~kernel & ~loads & ~talks
    drained = _gaps_after_waits(units, device, idle)
    spans = {DATA: loads, EXCHANGE: talks}
    left, found = idle, {}
    for cause, which in spans.items():
        taken = _merged(units.t0[which], units.t1[which])
        found[cause], left = _overlap(left, taken), _subtract_spans(left, taken)
    found[SYNC], left = _overlap(left, drained), _subtract_spans(left, drained)
    launching = _merged(units.t0[launches], units.t1[launches])
    found[SMALL], left = _overlap(left, launching), _subtract_spans(left, launching)
    found[HOST_CODE] = _total(left)
    return found


def _gaps_after_waits(units: StepUnits, device: str, idle: Floats) -> Floats:
    """Gaps that begin where the host had waited for the device until its last kernel had ended."""
    ends = set()
    for unit, launched in kernels_by_unit(units).items():
        if units.lane[launched[-1]].rpartition(":")[0] == device and waits_for_device(units, unit, launched):
            ends.add(float(units.t1[launched[-1]]))
    return np.array([gap for gap in idle.tolist() if gap[0] in ends], dtype=np.float64).reshape(-1, 2)


def _core_idle_causes(run: RunReader, steps: list[StepUnits], step_ns: float) -> list[tuple[str, str, float, float]]:
    cores = sum(core.get("online", True) for core in run.device.get("cores") or ())
    if cores < 2 or not steps:
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
            HOST_CODE: _total(_gaps(_merged(units.t0, units.t1), units.length_ns)),
        }
        for cause, ns in spans.items():
            alone[cause] = alone.get(cause, 0.0) + float(ns) * scale
    found = {cause: ns * (cores - 1) for cause, ns in alone.items()}
    busy = [row.value for row in core_utilisation(run) if row.value is not None]
    if len(busy) == cores:
        whole, idle_ns = sum(found.values()), (cores - sum(busy)) * step_ns
        found = {cause: ns * min(1.0, idle_ns / max(whole, 1.0)) for cause, ns in found.items()}
        found[WITHIN] = max(idle_ns - whole, 0.0)
    return [(CPU, cause, ns, ns / (cores * step_ns)) for cause, ns in found.items()]


# Spans as (n, 2), in order and apart


def _merged(t0: Floats, t1: Floats) -> Floats:
    order = np.argsort(t0, kind="stable")
    spans: list[list[float]] = []
    for begin, end in zip(t0[order].tolist(), t1[order].tolist(), strict=True):
        if spans and begin <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])
    return np.array(spans, dtype=np.float64).reshape(-1, 2)


def _gaps(busy: Floats, length: float) -> Floats:
    edges = np.concatenate([[0.0], busy.ravel(), [length]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def _subtract_spans(spans: Floats, taken: Floats) -> Floats:
    found = []
    for begin, end in spans.tolist():
        for a, b in taken[(taken[:, 1] > begin) & (taken[:, 0] < end)].tolist():
            if a > begin:
                found.append((begin, a))
            begin = max(begin, b)
        if begin < end:
            found.append((begin, end))
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def _overlap(spans: Floats, taken: Floats) -> float:
    return _total(spans) - _total(_subtract_spans(spans, taken))


def _total(spans: Floats) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())
