"""The measurements of the study: which are made, how each is made, and runs that were made elsewhere."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.run import Run
from stepscope.errors import DataUnavailable, RunError, RunNotFound, UsageError
from stepscope.experiments.engine.folder import StudyFolder, SweepFolder
from stepscope.experiments.engine.points import Point
from stepscope.experiments.engine.process import JobWatch, Outcome, run_child
from stepscope.experiments.engine.training import accuracy_of
from stepscope.experiments.observations.request import DailyScenario, Observations

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from stepscope.workloads.contract import Training, Workload
    from stepscope.workloads.data.source import Batch


LEAST_STEPS = 12  # three of them warm-up; nine are enough for the interval of a median


@dataclass(frozen=True)
class Measurement:
    """One measurement: its id in the study's folder, how it is called for people, and the orders for the child."""

    id: str
    called: str
    orders: Mapping[str, Any]


def planned_measurements(asked: Observations) -> list[Measurement]:
    """Return what is measured, in order: runs shuffled within each round of repeats, so that repeats lie far apart."""
    found = [] if asked.from_ or "runs" not in asked.needs else list(_runs(asked))
    shared: dict[str, Any] = {"threads": asked.threads, "simulate": asked.simulate}
    if "memory" in asked.needs:
        for name in asked.workloads:
            point = Point(name, 1, "own", "fp32", asked.threads, asked.device, 0)
            orders = {"what": "memory", "workload": name, "batches": list(asked.batch), **shared}
            found.append(Measurement(f"memory-{point.id}", f"memory of {name}, counted on a dry run", orders))
    if "days" in asked.needs:
        for seed in asked.daily.seeds:
            scenario = replace(asked.daily, seeds=(seed,))
            orders = {**shared, "what": "days", "daily": asdict(scenario)}
            called = f"{scenario.days} days of {scenario.images} images, seed {seed}"
            found.append(Measurement(f"days-{seed}", called, orders))
    return found


def _runs(asked: Observations) -> Iterator[Measurement]:
    for point in _shuffled(asked):
        orders = {"what": "run", "workload": point.workload, "batch": point.batch, "device": asked.device}
        orders |= {"threads": asked.threads, "simulate": asked.simulate, "seed": asked.seed + point.repeat}
        orders |= {"steps": LEAST_STEPS, "seconds": asked.seconds}
        called = f"{point.workload} batch {point.batch}, repeat {point.repeat + 1} of {asked.repeats}"
        yield Measurement(point.id, called, orders)


def _shuffled(asked: Observations) -> Sequence[Point]:
    shuffle, order = random.Random(asked.seed), list[Point]()
    for repeat in range(asked.repeats):
        round_ = [
            Point(name, batch, "own", "fp32", asked.threads, asked.device, repeat)
            for name in dict.fromkeys(asked.workloads)
            for batch in dict.fromkeys(asked.batch)
        ]
        shuffle.shuffle(round_)
        order += round_
    return order


CellResult = dict[str, Any]


@dataclass
class Measurements:
    """Runs, frames by name, why a kind of evidence is lacking, and sentences on what did not come out."""

    runs: list[Run] = field(default_factory=list)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measure_all(folder: StudyFolder, asked: Observations, child: Sequence[str], watch: JobWatch) -> Measurements:
    """Every cell as it was answered before, or answered now; an interrupted one leaves nothing and is made again."""
    todo, result = planned_measurements(asked), Measurements()
    rows: dict[str, list[Any]] = {"memory": [], "days": []}
    for place, cell in enumerate(todo):
        known = folder.cell(cell.id)
        if known is None:
            watch.begins(cell.called, place, len(todo))
            known = folder.answered(cell.id, lambda cell=cell: _measure_one(folder, asked, cell, child, watch))  # type: ignore[misc]
            watch.ends(cell.called, place, len(todo), Outcome(known["status"], known["reason"], None, known["wall_s"]))
        what = str(cell.orders["what"])
        if known["status"] != "ok":
            result.notes.append(f"{cell.called}: {known['status']}: {known['reason']}")
            result.absent.setdefault(what, f"{cell.called}: {known['reason']}")
        elif what == "run":
            try:
                result.runs.append(Run(folder.path / known["run"]))
            except RunError as error:  # removed by hand: the others still say something
                result.notes.append(f"{cell.called}: excluded: {error}")
        else:
            rows[what] += known["rows"]
    result.frames = {name: pl.DataFrame(found) for name, found in rows.items() if found}
    result.runs += [run for sweep in asked.from_ for run in runs_in(sweep)]
    return result


def runs_in(path: Path) -> list[Run]:
    """The runs that ended well in a sweep, a study, or any folder of run folders; RunNotFound where there is none."""
    if (path / "sweep.json").exists():
        ended = SweepFolder(path).ended().values()
        places = [path / result["run"] for result in ended if result["status"] == "ok" and result.get("run")]
    else:
        places = [header.parent for header in sorted({*path.glob("*/run.json"), *path.glob("runs/*/*/run.json")})]
    found = list(_good_runs(places))
    if not found:
        raise RunNotFound(f"no run that ended well in '{path}'", "give the folder of a sweep: stepscope suite list")
    return found


def _good_runs(places: Sequence[Path]) -> Iterator[Run]:
    for place in places:
        with contextlib.suppress(RunError):
            run = Run(place)
            if run.status == "ok":
                yield run


def _measure_one(
    folder: StudyFolder, asked: Observations, cell: Measurement, child: Sequence[str], watch: JobWatch
) -> CellResult:
    where = folder.path / "runs" / cell.id
    outcome = run_child(child, cell.orders, where, asked.time_limit, watch.ticks)
    found: CellResult = {"status": outcome.status, "reason": outcome.reason, "wall_s": outcome.wall_s}
    if outcome.run is not None:
        found["run"] = str(outcome.run.relative_to(folder.path))
    if outcome.status == "ok" and cell.orders["what"] != "run":
        found["rows"] = json.loads((where / "found.json").read_text(encoding="utf-8"))["rows"]
    return found


_EVERY = 2  # steps of the pre-training between two looks at its accuracy
_EVALUATION_IMAGES = 1000  # test images for that; the days are judged on all of them
_MOST_STEPS = 2000
_SHARE_BEFORE = 0.5  # of the training images: the days have the rest to themselves


def daily_rows(workload: Workload, scenario: DailyScenario) -> Iterator[dict[str, Any]]:
    """A row a seed, batch and day: seed, batch, day, accuracy on the whole test data; day 0 is before the first day.

    DataUnavailable where its data is not real, UsageError where there are too few images or it does not get so far.
    """
    for batch in scenario.batches:
        for seed in scenario.seeds:
            for day, accuracy in enumerate(_evenings(workload, scenario, batch, seed)):
                yield {"seed": seed, "batch": batch, "day": day, "accuracy": accuracy}


def _evenings(workload: Workload, scenario: DailyScenario, batch: int, seed: int) -> Iterator[float]:
    import torch
    from torch.utils.data import Subset

    training = workload.prepare(batch=batch, seed=seed)
    train = training.splits.train
    if train is None or training.data.kind == "synthetic":
        raise DataUnavailable(
            f"'{workload.name}' has no real images here: accuracy would say nothing", "stepscope data"
        )
    order = torch.randperm(training.data.train_size, generator=torch.Generator().manual_seed(seed)).tolist()
    before = int(_SHARE_BEFORE * len(order))
    if before + scenario.days * scenario.images > len(order):
        most = (len(order) - before) // scenario.images
        raise UsageError(f"{len(order)} training images are too few for {scenario.days} days", f"--days {most} or less")
    _pre_train(training, Subset(train, order[:before]), scenario.start)
    yield accuracy_of(training)
    for day in range(scenario.days):
        begin = before + day * scenario.images
        for images in _batches(Subset(train, order[begin : begin + scenario.images]), batch, seed + day):
            training.step(images)
        yield accuracy_of(training)


def _pre_train(training: Training, images: Dataset[Batch], start: float) -> None:
    steps, passes = 0, 0
    while steps < _MOST_STEPS:
        for batch in _batches(images, training.batch_size, training.seed + 1000 + passes):
            training.step(batch)
            steps += 1
            if steps % _EVERY == 0 and accuracy_of(training, _EVALUATION_IMAGES) >= start:
                return
        passes += 1
    raise UsageError(
        f"{steps} steps did not bring '{training.workload.name}' to {start:.0%}", "ask for a lower --start"
    )


def _batches(images: Dataset[Batch], size: int, seed: int) -> Iterator[Batch]:
    """Shuffled, the last one smaller where they do not divide."""
    import torch
    from torch.utils.data import DataLoader

    shuffle = torch.Generator().manual_seed(seed)
    yield from DataLoader(images, batch_size=size, shuffle=True, generator=shuffle, num_workers=0)
