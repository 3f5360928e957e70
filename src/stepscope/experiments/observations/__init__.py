"""The twelve observations of the 2019 paper, judged on the device at hand.

A file without a leading underscore names its OBSERVATIONS; the folder is its own registry. Here lies the request.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.engine.request import SIMULATE, StudyRequest
from stepscope.experiments.observations._contract import Observation
from stepscope.plugins import Discovery, discover
from stepscope.request import option

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Plan


ENTRY_POINTS = "stepscope.observations"
_NOT_OBSERVATIONS = frozenset({"study"})


@cache
def discovered() -> Discovery:
    """Every file of this folder and of plug-ins, and a sentence for each that could not be imported."""
    return discover(sys.modules[__name__], ENTRY_POINTS, skip=_NOT_OBSERVATIONS)


def every() -> list[Observation]:
    """All observations, in order of their numbers."""
    found: list[object] = [entry for module in discovered().modules for entry in getattr(module, "OBSERVATIONS", ())]
    found += [getattr(module, "OBSERVATION", None) for module in discovered().modules]  # of a plug-in with one
    return sorted((entry for entry in found if isinstance(entry, Observation)), key=lambda entry: entry.number)


QUICK_WORKLOADS = ("squeezenet-c32", "inception-v1-narrow-c32", "char-lstm-80", "dqn-2013-84")
PAPER_WORKLOADS = (
    "densenet40-12-c32", "resnet50-c32", "squeezenet-c32", "inception-v1-c32", "dcgan-32", "char-lstm-80", "dqn-2013-84"
)  # fmt: skip
QUICK_BATCHES, PAPER_BATCHES = (4, 16, 64), (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class DailyScenario:
    """The scenario: pre-trained to `start` (as the paper's 60.65 %), then `images` new ones each day, seen once."""

    workload: str = "lenet"
    days: int = 17
    images: int = 64
    start: float = 0.6
    batches: tuple[int, ...] = (16,)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Observations(StudyRequest):
    """Judge each of the twelve observations of the 2019 paper on this device: holds, does not, or cannot be judged.

    Each has a stated test, an effect with its 95 % CI, and a figure (3 to 10 of the paper from own data).
    Without an accelerator the meaningful counterpart is judged and labelled so; a missing sensor is never a pass.
    Interrupt it as you like: the same command with the same --out goes on where it stopped.
    """

    study: ClassVar[str] = "observations"

    quick: bool = option(False, "Small models and few repeats: minutes on two cores.", stored=False)
    from_: tuple[Path, ...] = option(
        (), "Take the runs of a sweep, or of any folder of runs; may be given again.", separate=True, stated=True
    )
    simulate: str | None = option(None, SIMULATE)
    workloads: tuple[str, ...] = option(
        PAPER_WORKLOADS, "Train these: a,b. Default: the paper's.", stated=True, quick=QUICK_WORKLOADS
    )
    batch: tuple[int, ...] = option(
        PAPER_BATCHES, "Batch sizes. Default: 4,8,...,64.", least=1, example="4", stated=True, quick=QUICK_BATCHES
    )
    repeats: int = option(
        3, "Fresh processes for each setting: 3. One tells nothing of how runs differ.", least=1, example="4"
    )
    seconds: float = option(
        20.0, "Seconds of steps of a run, 12 steps at least: 20 (2).", above=0, unit="s", example="20", quick=2.0
    )
    device: str = option(  # one of them, once it is checked
        None, "cpu or cuda. Default: cuda where torch has it.", choices=("cpu", "cuda")
    )
    threads: int | None = option(
        None, "Threads. Default: on a CPU one core is left free.", least=1, example="1"
    )  # fmt: skip
    days: int = option(17, "Days of the daily training: 17 (--quick: 10).", least=1, example="10", quick=10)
    only: tuple[int, ...] = option((), "Judge these alone: 1,3,9.", least=1, example="1,3,9", stated=True)
    seed: int = option(0, "Seed of the order of runs and of the trainings.")
    day_batches: tuple[int, ...] = option((16, 32, 64), "Batch sizes of the days.", least=1, quick=(16,), typed=False)
    day_seeds: int = option(5, "Daily trainings of each batch size.", least=1, quick=4, typed=False)
    time_limit: float = option(900.0, "Seconds that one measurement may take.", above=0, unit="s", typed=False)

    @property
    def daily(self) -> DailyScenario:
        """Return the trainings of each day."""
        return DailyScenario(days=self.days, batches=self.day_batches, seeds=tuple(range(self.day_seeds)))

    @property
    def needs(self) -> set[str]:
        """The kinds of measurement: runs, memory, days."""
        return {observation.needs for observation in every() if not self.only or observation.number in self.only}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.workloads or not self.batch:
            raise UsageError("no workload or no batch size is asked for", "leave --workloads and --batch out for all")
        known = [observation.number for observation in every()] if self.only else []
        for number in self.only:
            if number not in known:
                raise UnknownName("observation", str(number), map(str, known))

    def checked(self) -> StudyRequest:
        """Return where runs are given and no workloads, those of the runs are counted on dry runs."""
        from stepscope import workloads
        from stepscope.experiments.observations._measurements import runs_in

        device, runs = _device(self.device), [run for sweep in self.from_ for run in runs_in(sweep)]
        known = {workload.name for workload in workloads.every()}
        axes: dict[str, Any] = {}
        if self.workloads in (PAPER_WORKLOADS, QUICK_WORKLOADS):
            stated: list[dict[str, Any]] = [run.meta.get("workload") or {} for run in runs]
            names = tuple(dict.fromkeys(str(row.get("name")) for row in stated if row.get("name") in known))
            batches = tuple(sorted({int(row["batch_size"]) for row in stated if row.get("batch_size")}))
            axes = {"workloads": names, "batch": batches} if names and batches else {}
        for name in self.workloads:
            if name not in known:
                raise UnknownName("workload", name, known)
        threads = self.threads or (_threads() if device == "cpu" else None)
        sweeps = tuple(sweep.absolute() for sweep in self.from_)
        return replace(self, device=device, threads=threads, from_=sweeps, **axes)

    def plan(self) -> Plan:
        from stepscope.experiments.observations.study import observation_plan

        return observation_plan(self)


def _device(wanted: str | None) -> str:
    if wanted == "cpu":
        return "cpu"
    import torch

    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UsageError(
            "--device cuda: torch sees no CUDA device here", "leave --device out, or install torch for CUDA"
        )
    return "cuda" if there else "cpu"


def _threads() -> int:
    """One core less than there are, so that the cores that train can be told from the others."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable - 1)
