"""The causes of a step's length, each from two pieces of evidence that could have gone against it.

What the system takes (background load, quotas, clocks, memory: `system`) comes before what the training waits for by
itself (`waits`) and what it does with the rest (`work`): where the training thread does not run, no operator explains
the time. A limit of the device is named only against a ceiling of this device that was measured
(`analysis.device.ceilings`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.analysis.bottleneck.causes import MEDIUM, OF_WORK, SYSTEM, Bottleneck, Bound, Cause, Evidence
from stepscope.analysis.bottleneck.compute_causes import WORKS_ELSEWHERE, causes_while_computing
from stepscope.analysis.bottleneck.off_core_causes import CROWDED, causes_of_system, causes_of_waiting, late_rank
from stepscope.analysis.device.occupancy import occupancy
from stepscope.analysis.estimate import Estimate
from stepscope.analysis.metrics import accelerator_utilisation
from stepscope.analysis.time.accelerators import accelerator_without_kernels
from stepscope.analysis.time.overhead_correction import max_loading_time

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_NOT_READ = Evidence("background CPU load was not read, and could speak against it", None)
__all__ = ["CROWDED", "SYSTEM", "Bottleneck", "Bound", "Cause", "bottleneck"]


def bottleneck(run: Run) -> Bottleneck:
    """Return the causes of the step's length in this run, by share of the step; system causes before operators."""
    usage, most = occupancy(run), _loading_share(run)
    phases = _phase_shares(run, most)
    system = sorted(causes_of_system(usage), key=lambda cause: -cause.share)
    busiest = max((row.value or 0.0 for row in accelerator_utilisation(run) if row.source == "ops"), default=None)
    without_kernels = accelerator_without_kernels(run)
    loaders = bool(run.self_times["name"].str.contains("MultiProcessingDataLoader").any())
    elsewhere = busiest is not None or without_kernels is not None or run.framework in WORKS_ELSEWHERE
    off_core = [*causes_of_waiting(usage, phases, elsewhere, most if loaders else 0.0, late_rank(run))]
    work, why, would_tell = causes_while_computing(run, usage, phases, busiest, without_kernels)
    if usage.background_cores is None and usage.delayed is None:
        off_core, work = (
            [replace(cause, confidence=MEDIUM, evidence=(*cause.evidence, _NOT_READ)) for cause in causes]
            for causes in (off_core, work)
        )
    waits = max((cause.share for cause in off_core), default=0.0)
    first = [cause for cause in system if cause.share >= waits]
    others = [*(cause for cause in system if cause.share < waits), *off_core, *work]
    return Bottleneck((*first, *sorted(others, key=_cause_sort_key)), why, would_tell)


def _cause_sort_key(cause: Cause) -> float:
    """The largest share first; that of a wait counts twice, since no work is lost with it."""
    return -cause.share if cause.bound in OF_WORK else -2 * cause.share


def _loading_share(run: Run) -> float:
    """Share of the time of all steps that the data loaders took at most; 1 where that is not known."""
    loading_ns, lengths_ns = max_loading_time(run), run.steps["t1_ns"] - run.steps["t0_ns"]
    return 1.0 if loading_ns is None else loading_ns / max(float(lengths_ns.to_numpy().mean()), 1.0)


def _phase_shares(run: Run, most: float) -> dict[str, Estimate]:
    """Share of the profiled steps in each phase, and outside operators (FRAMEWORK_OVERHEAD).

    Data takes no more than the loaders took of all steps: a few profiled ones may hold the first batches of epochs.
    """
    shares = {
        row["phase"]: _share_of_step(row["share"], row["ns"], row["low_ns"], row["high_ns"])
        for row in run.phases().iter_rows(named=True)
    }
    return {**shares, "data": shares["data"].clipped(most)} if "data" in shares else shares


def _share_of_step(share: float, ns: float, low: float | None, high: float | None) -> Estimate:
    """A share with the relative interval of its median time."""
    if not ns or ns <= 0 or low is None or high is None:
        return Estimate(share).clipped()
    return Estimate(share, share * low / ns, share * high / ns).clipped()
