"""The measurements of `study observations`: which are made, the tasks that make them, and runs from elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.run import Run
from stepscope.errors import RunError, RunNotFound
from stepscope.experiments.daily.study import TASK as DAYS
from stepscope.experiments.daily.study import DailyTrainingOrders
from stepscope.experiments.engine.child import Orders, run_status_and_reason, session_settings
from stepscope.experiments.engine.engine import Point, Result
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.engine.sweep_points import SweepPoint, in_rounds
from stepscope.experiments.observations import Observations
from stepscope.experiments.suite.rules import MOST, RunRules, StopCondition
from stepscope.experiments.sweeps import TRAINING
from stepscope.run_paths import run_folders

LEAST_STEPS = 12  # three of them warm-up; nine are enough for the interval of a median
_TASKS = "stepscope.experiments.observations._measurements"
_RUN, _MEMORY = f"{_TASKS}:train_run", f"{_TASKS}:count_memory"
_KINDS = {_RUN: "run", _MEMORY: "memory", DAYS: "days"}


def planned_measurements(request: Observations) -> list[Point]:
    """Return what is measured, in order: runs in shuffled rounds of repeats, memory by workload, and the days."""
    points = [] if request.from_ or "runs" not in request.needs else list(_planned_runs(request))
    shared: dict[str, Any] = {"threads": request.threads, "simulate": request.simulate}
    if "memory" in request.needs:
        for name in request.workloads:
            place = SweepPoint(name, 1, "own", "fp32", request.threads, request.device, 0)
            orders = {"workload": name, "batches": list(request.batch), **shared}
            points.append(
                Point(f"memory-{place.id}", f"memory of {name}, counted on a dry run", _MEMORY, orders, timed=False)
            )
    return points + (list(_planned_days(request)) if "days" in request.needs else [])


def _planned_runs(request: Observations) -> Iterator[Point]:
    settings = [(name, batch) for name in dict.fromkeys(request.workloads) for batch in dict.fromkeys(request.batch)]
    for (name, batch), repeat in in_rounds(settings, request.repeats, request.seed):
        place = SweepPoint(name, batch, "own", "fp32", request.threads, request.device, repeat)
        orders = {"workload": name, "batch": batch, "device": request.device, "seed": request.seed + repeat}
        orders |= {"threads": request.threads, "simulate": request.simulate}
        orders |= {"steps": LEAST_STEPS, "seconds": request.seconds}
        yield Point(place.id, f"{name} batch {batch}, repeat {repeat + 1} of {request.repeats}", _RUN, orders)


def _planned_days(request: Observations) -> Iterator[Point]:
    scenario = request.daily
    training_orders = DailyTrainingOrders(scenario.days, scenario.images, scenario.start, data=scenario.data)
    for seed in scenario.seeds:
        for batch in scenario.batches:
            title = f"{scenario.days} days of {scenario.images} images, batch {batch}, seed {seed}"
            orders = {
                "workload": scenario.workload,
                "seed": seed,
                "routine": {**asdict(training_orders), "batch": batch},
            }
            # Of the days only the accuracy is judged: they may be trained side by side.
            yield Point(f"days-b{batch}-s{seed}", title, DAYS, {**orders, "threads": 1, "simulate": None}, timed=False)


@dataclass
class Measurements:
    """Runs, frames by name, why a kind of evidence is lacking, and sentences on what did not come out."""

    runs: list[Run] = field(default_factory=list)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def gather_measurements(request: Observations, results: Mapping[str, Result]) -> Measurements:
    """Return what the points gave, and the runs that were made elsewhere."""
    gathered = Measurements()
    rows: dict[str, list[Any]] = {"memory": [], "days": []}
    without: dict[str, str] = {}  # models that no run was made of, and why
    for point in planned_measurements(request):
        result, kind = results[point.id], _KINDS[point.task]
        if result["status"] != "ok":
            gathered.notes.append(f"{point.title}: {result['status']}: {result['reason']}")
            gathered.absent.setdefault(kind, f"{point.title}: {result['reason']}")
            if kind == "run":
                without.setdefault(point.orders["workload"], f"{point.title}: {result['status']}: {result['reason']}")
        elif kind == "run":
            try:
                gathered.runs.append(Run(result["run"]))
            except RunError as error:  # removed by hand: the others still say something
                gathered.notes.append(f"{point.title}: excluded: {error}")
        elif kind == "memory":
            rows[kind] += result["rows"]
        else:
            rows[kind] += [
                {"seed": result["seed"], "batch": result["batch"], "day": day["day"], "accuracy": day["accuracy"]}
                for day in result["days"]
            ]
    gathered.frames = {name: pl.DataFrame(of_kind) for name, of_kind in rows.items() if of_kind}
    places = {run.path.resolve(): run for sweep in request.from_ for run in runs_in(sweep)}
    gathered.runs += places.values()
    measured = {str((run.meta.get("workload") or {}).get("name")) for run in gathered.runs}
    lost = [why for name, why in without.items() if name not in measured]
    if lost:
        gathered.absent["models"] = "; ".join(lost)
    return gathered


def runs_in(path: Path) -> list[Run]:
    """The runs that ended well in a sweep, a study, or any folder of run folders; RunNotFound where there is none."""
    if (path / "sweep.json").exists():
        ended = SweepFolder(path).results().values()
        places = [path / result["run"] for result in ended if result["status"] == "ok" and result.get("run")]
    else:
        places = sorted({*run_folders(path), *(header.parent for header in path.glob("runs/*/*/run.json"))})
    runs = list(_good_runs(places))
    if not runs:
        raise RunNotFound(f"no run that ended well in '{path}'", "give the folder of a sweep: stepscope suite list")
    return runs


def _good_runs(places: Sequence[Path]) -> Iterator[Run]:
    for place in places:
        with contextlib.suppress(RunError):
            run = Run(place)
            if run.status == "ok" and (run.meta.get("workload") or {}).get("kind", TRAINING) == TRAINING:
                yield run


def train_run(orders: Orders) -> dict[str, Any]:
    """Train a workload for so many steps, and so long; returns how the run ended."""
    from stepscope import workloads
    from stepscope.record.train import TrainingChoices, train_workload

    with session_settings(orders) as settings:
        path, _ = train_workload(
            workloads.find(orders["workload"]),
            MOST,
            settings,
            TrainingChoices(orders["batch"], device=orders["device"], seed=orders["seed"]),
            evaluate=False,
            stop=StopCondition(RunRules(seconds=orders["seconds"]), fewest=orders["steps"]),
        )
    return run_status_and_reason(path)


def count_memory(orders: Orders) -> dict[str, Any]:
    """Return the bytes of each part of memory by batch, as `rows`."""
    from stepscope import workloads
    from stepscope.experiments.observations._evidence import memory_by_batch
    from stepscope.footprint.jobs import workload_job
    from stepscope.record.dry.dry_run import DryRunStopped

    try:
        return {"rows": list(memory_by_batch(workload_job(workloads.find(orders["workload"])), orders["batches"]))}
    except DryRunStopped as stopped:
        return {"status": "refused", "reason": f"fake tensors stopped at {stopped}"}
