"""The engine of studies: a `Plan` of points, each measured once, stored and judged with the others.

Also what the findings of several studies share: device, versions, and means over seeds with Student's intervals.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from stepscope import __version__
from stepscope.analysis.estimate import Estimate, mean_interval
from stepscope.analysis.memory.limits import limit_of_this_machine
from stepscope.analysis.results import Findings, ResultTable
from stepscope.clock import monotonic_ns
from stepscope.errors import StepscopeError, UsageError
from stepscope.experiments.engine.folder import ResultFolder, StudyFolder
from stepscope.experiments.engine.process import Tick, UntimedWork, disk_was_full, run_child
from stepscope.experiments.engine.sweep_points import in_rounds, training_file_digests
from stepscope.privacy import redacted_texts
from stepscope.record.device import describe_device, usable_cores
from stepscope.record.empty_process import installed_version

if TYPE_CHECKING:
    from stepscope.experiments.engine import StudyRequest


def device_name() -> str:
    """Board, else processor, else architecture."""
    facts = describe_device()
    return str(facts.get("board") or facts.get("cpu") or platform.machine())


def versions() -> dict[str, str]:
    """Return the versions of this package, Python and torch."""
    torch = installed_version("torch") or "not installed"
    return {"stepscope": __version__, "python": platform.python_version(), "torch": torch}


def measured_on() -> dict[str, Any]:
    """Return what results must have in common to be judged together: the device with its accelerators, the versions."""
    cards = [card["model"] for card in describe_device()["accelerators"]]
    return {"device": device_name(), "accelerators": cards, "versions": versions()}


def installed_versions() -> dict[str, str | None]:
    """Return the versions of Stepscope, Python and the libraries that runs depend on; null is not installed."""
    libraries = {name: installed_version(name) for name in ("torch", "polars")}
    return {"stepscope": __version__, "python": platform.python_version(), **libraries}


SHARE = (0.0, 100.0)  # percent of samples
AMOUNT = (0.0, math.inf)  # seconds, joules
ANY = (-math.inf, math.inf)


def mean_of(
    values: Sequence[float | None], factor: float = 1.0, possible: tuple[float, float] = AMOUNT
) -> Estimate | None:
    """Null where one of the seeds has no value: a mean over the others would be of another thing.

    Bounds beyond what is possible (more than 100 % of the images) are put at its end.
    """
    present = [value * factor for value in values if value is not None]
    return mean_of_all(present, possible) if present and len(present) == len(values) else None


def mean_of_all(values: Iterable[float], possible: tuple[float, float] = AMOUNT) -> Estimate:
    """Return the mean over the seeds, each of which has a value; bounds as `mean_of`."""
    value, low, high = mean_interval(np.array(list(values), dtype=np.float64))
    return Estimate(value, *(None if math.isnan(bound) else float(np.clip(bound, *possible)) for bound in (low, high)))


def value_and_bounds(mean: Estimate | None) -> tuple[float | None, float | None, float | None]:
    """A mean, low and high, or three times "not measured"."""
    return (None, None, None) if mean is None else mean.row


def overlap(value: Estimate, other: Estimate) -> bool:
    """Return whether two intervals do not tell their values apart; without an interval nothing does."""
    if None in (value.low, value.high, other.low, other.high):
        return True
    return float(value.low or 0) <= float(other.high or 0) and float(other.low or 0) <= float(value.high or 0)


def energy_name(kind: str | None) -> str:
    """Name energy as estimated or simulated where it is: what is not measured never has the name of what is."""
    return "energy" if kind in (None, "measured") else f"{kind} energy"


def energy_notes(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what to know of the energy of these trainings: why there is none, of what it is, how much was not read."""
    kinds = {cell["energy_kind"] for cell in cells}
    if kinds == {None}:
        yield f"energy was not measured: {cells[0]['energy_note']}"
        return
    if len(kinds) > 1:
        yield "energy is excluded: it is not of one kind in all trainings"
        return
    yield f"energy: {next(iter(kinds))}, of {cells[0]['energy_note']}"
    gap = max(cell["energy_gap"] for cell in cells)
    if gap > 0:
        text = "it is counted at the mean power of the other readings; above 20 % energy is not known"
        yield f"the sensor missed up to {100 * gap:.2g} % of the time of a training: {text}"


def load_notes(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how many of these trainings other processes disturbed; results of earlier versions do not say."""
    disturbed = [cell["background"] for cell in cells if cell.get("background")]
    if disturbed:
        which = f"{len(disturbed)} of {len(cells)} trainings were disturbed (the first: {disturbed[0]})"
        yield f"{which}: times and energy are not the training's alone; repeat them on a quiet machine"


AnySetting = TypeVar("AnySetting", bound="SettingLike")
Cell = Mapping[str, Any]  # what the training of one seed returned


class SettingLike(Protocol):
    """A setting as this file sees it: `id` is its points', `name` is for people."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


def evaluated_samples_text(size: int, samples: int) -> str:
    """Return how many of the test samples the accuracy is of: "2000 of 10000"."""
    return f"{size}" if size <= samples else f"{samples} of {size}"


def plan_of_seeds(
    request: Any,
    task: str,
    settings: Sequence[AnySetting],
    orders: Callable[[AnySetting], Mapping[str, Any]],
    judge: Callable[[Mapping[AnySetting, Sequence[Result]]], Findings],
) -> Plan:
    """Return the plan that trains each setting with each seed, in shuffled rounds, and judges the results by setting.

    request: has workload, threads, simulate, seeds and time_limit. orders: of a setting, beside these.
    """
    shared = {"workload": request.workload, "threads": request.threads, "simulate": request.simulate}
    points = [
        Point(
            f"{setting.id}-s{seed}",
            f"{request.workload}: {setting.name}, seed {seed}",
            task,
            {**shared, "seed": seed, **orders(setting)},
            setting=setting.id,
        )
        for setting, seed in in_rounds(settings, request.seeds, 0)
    ]

    def judge_settings(results: Mapping[str, Result]) -> Findings:
        return judge({of: [results[point.id] for point in points if point.setting == of.id] for of in settings})

    return Plan(points, judge_settings, time_limit_s=request.time_limit)


def split_trained_and_failed(
    results: Mapping[AnySetting, Sequence[Result]], noun: str, column: str
) -> tuple[dict[AnySetting, list[Cell]], list[ResultTable]]:
    """Return the cells of each setting that was trained, and a table of the failures where there are any.

    noun: what a setting is for people; column: title of the table's first. UsageError where nothing was trained.
    """
    cells = {setting: [result for result in of if result["status"] == "ok"] for setting, of in results.items()}
    failures = []
    for setting, of in results.items():
        failed = next((result for result in of if result["status"] != "ok"), None)
        if failed is not None:
            failures.append((setting.name, str(failed["status"]), str(failed["reason"])))
    if not any(cells.values()):
        raise UsageError(f"no {noun} could be trained: {failures[0][2] if failures else 'nothing was made'}")
    note = "What was not refused but failed is tried again by the same command."
    table = ResultTable("unmade", "Not trained", (column, "status", "why"), tuple(failures), note)
    return {setting: list(of) for setting, of in cells.items() if of}, [table] if failures else []


# The engine of many runs: each point is measured once, in a process of its own, kept, and judged with the others.

_SIDE_BY_SIDE = 4  # untimed points at most, whatever cores there are
_BYTES_SIDE_BY_SIDE = 1_000_000_000  # for each of them: it holds torch and a model
_OUT_OF_MEMORY = ("oom", "killed")
CHILD = (sys.executable, "-m", "stepscope.experiments.engine.child")
Result = dict[str, Any]  # status, reason, wall_s, run (its folder, relative to the study's), and what the task returned


class PointRefused(UsageError):
    """Error: the device cannot be brought into the state that a point needs; not stored, and tried again."""


class PointLike(Protocol):
    """A point as the engine sees it: `id` names its files, `title` is for people, `setting` has repeats."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def setting(self) -> Any: ...


AnyPoint = TypeVar("AnyPoint", bound=PointLike)


@dataclass(frozen=True)
class Point:
    """One measurement of a study: a task ("module:function") with its orders, in a process of its own.

    setting: the points of a setting differ by their repeat, and what refuses one refuses all of them. timed: whether
    anything in it is; where nothing is, points that follow each other are measured side by side, a core for each.
    """

    id: str
    title: str
    task: str = ""
    orders: Mapping[str, Any] = field(default_factory=dict)
    setting: str = ""
    timed: bool = True


@dataclass(frozen=True)
class ProgressCallbacks:
    """Progress of an experiment: about to measure (point, place, count), a second has passed, how it ended."""

    begins: Callable[[Any, int, int], None] = lambda point, place, count: None
    ticks: Callable[[], None] = lambda: None
    ends: Callable[[Any, int, int, Mapping[str, Any]], None] = lambda point, place, count, result: None


@dataclass(frozen=True)
class Plan:
    """The points that a study measures, and its judge.

    judge: the findings from the result of each point by its id, whose `run` is a path that can be opened; the engine
    adds request, device and versions. measure: of points without a task, in this process; a task has one of its own.
    read: what is taken of the run folder of a point that ended well. before: brings the device into the state of a
    point; around: what holds while any is measured, in the study's folder.
    """

    points: Sequence[Point]
    judge: Callable[[Mapping[str, Result]], Findings]
    measure: Callable[[Point], Mapping[str, Any]] | None = None
    read: Callable[[Path], Mapping[str, Any]] = lambda run: {}
    before: Callable[[Point], None] = lambda point: None
    around: Callable[[Path], AbstractContextManager[Any]] = lambda folder: contextlib.nullcontext()
    time_limit_s: float = 900.0


def joined_plan(parts: Mapping[str, Plan], judge: Callable[[Mapping[str, Findings]], Findings]) -> Plan:
    """Return one plan of several, whose points follow each other: each part is judged alone, `judge` joins by name.

    A part that could not be judged (nothing of it could be measured) has an empty answer, and a note that says why.
    """
    of = {f"{name}-{point.id}": (plan, point) for name, plan in parts.items() for point in plan.points}
    points = [
        replace(
            point, id=full_name, setting=f"{full_name.removesuffix(point.id)}{point.setting}" if point.setting else ""
        )
        for full_name, (_, point) in of.items()
    ]

    def measure(point: Point) -> Mapping[str, Any]:
        plan, own = of[point.id]
        assert plan.measure is not None, "the engine measures points that have a task"
        return plan.measure(own)

    def judge_parts(results: Mapping[str, Result]) -> Findings:
        findings = {}
        for name, plan in parts.items():
            try:
                findings[name] = plan.judge({point.id: results[f"{name}-{point.id}"] for point in plan.points})
            except UsageError as error:
                findings[name] = Findings(name, "", (), notes=(f"{name}: {error}",))
        return judge(findings)

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for plan in parts.values():
                stack.enter_context(plan.around(folder))
            yield

    def before(point: Point) -> None:
        plan, own = of[point.id]
        plan.before(own)

    return Plan(
        points,
        judge_parts,
        measure if any(plan.measure for plan in parts.values()) else None,
        read=lambda run: of[run.parent.name][0].read(run),
        before=before,
        around=around,
        time_limit_s=max(plan.time_limit_s for plan in parts.values()),
    )


def answer_study(
    request: StudyRequest,
    out: str | Path,
    *,
    child: Sequence[str] = CHILD,
    watch: ProgressCallbacks | None = None,
    command: str = "",
    plan: Plan | None = None,
) -> Findings:
    """Measure what is missing in a study's folder, which is begun or gone on with, and judge.

    `child`: how a point is started in a process of its own; `command`: the line that repeats this; `plan`: the
    request's own by default. Ctrl-C ends the process of the point; those that had ended stay. UsageError where the
    folder holds another request, or where training, device or versions have changed since.
    """

    plan, watch = plan or request.plan(), watch or ProgressCallbacks()
    where = {**measured_on(), "data": _data_sets(request)}
    folder = StudyFolder(Path(out), request.study, request.to_dict(), _sources(request.trainings), where)

    def measure(point: Point, _: Mapping[str, Result]) -> Result:
        plan.before(point)
        if not point.timed:
            for other in _untimed_from(point, plan.points, folder):
                untimed.begin(other.id, partial(_measure_ahead, folder, other, plan, child))
            result = untimed.result(point.id, watch.ticks)
            if result["status"] not in _OUT_OF_MEMORY or untimed.places == 1:
                return result
            untimed.wait_for_all(watch.ticks)  # alone there may be memory enough
            return _measure_in_child(folder, point, plan, child, watch.ticks)
        if plan.measure is None or point.task:
            return _measure_in_child(folder, point, plan, child, watch.ticks)
        began_ns = monotonic_ns()
        result = dict(plan.measure(point))
        return {"status": "ok", "reason": None, "wall_s": (monotonic_ns() - began_ns) / 1e9, **result}

    untimed = UntimedWork(places_side_by_side())
    with folder.locked(), plan.around(folder.path), contextlib.closing(untimed):
        results = measure_points(folder, plan.points, measure, watch)
    paths = {name: {"run": folder.path / result["run"]} for name, result in results.items() if result.get("run")}
    findings = plan.judge({name: {**result, **paths.get(name, {})} for name, result in results.items()})
    return replace(
        findings,
        study=request.study,
        settings=redacted_texts(request.to_dict()),
        device=findings.device or device_name(),
        versions=versions(),
        command=command or request.command_line("stepscope", "study", request.study, out=Path(out)),
        simulated=findings.simulated or getattr(request, "simulate", None),
    )


def places_side_by_side() -> int:
    """Return how many untimed points are measured at once: a core and memory for each."""
    try:
        fitting = limit_of_this_machine().bytes // _BYTES_SIDE_BY_SIDE
    except UsageError:  # a system that does not say how much memory is available
        fitting = 1
    return max(1, min(usable_cores(), _SIDE_BY_SIDE, fitting))


def _sources(targets: Sequence[str]) -> dict[str, str]:
    """Return the files of trainings of the user's own; of two with the same name the second by its target."""
    digests = dict[str, str]()
    for target in targets:
        for name, digest in training_file_digests(target).items():
            digests[name if digests.get(name, digest) == digest else target] = digest
    return digests


def _data_sets(request: StudyRequest) -> dict[str, str]:
    """Return the data set of each workload of the suite whose request names none: after a fetch it may be another."""
    from stepscope import workloads

    packaged = set() if hasattr(request, "data") else {workload.name for workload in workloads.every()}
    data_sets = dict[str, str]()
    for name in request.trainings:
        with contextlib.suppress(StepscopeError):  # that there is none is told by whoever trains it
            data_sets |= {f"data of {name}": workloads.find(name).data.name} if name in packaged else {}
    return data_sets


def measure_points(
    folder: ResultFolder,
    points: Sequence[AnyPoint],
    measure: Callable[[AnyPoint, Mapping[str, Result]], Result],
    watch: ProgressCallbacks,
    again: Callable[[Result], bool] | None = None,
) -> dict[str, Result]:
    """Return the result of each point by its id, stored or measured now; `measure` is given those so far.

    again: whether a kept result is measured again. By default what failed is (memory, time, a crash), and what ended
    well or was refused is not; what refuses a point refuses all of its setting.
    """
    again, results, refused = again or _has_failed, dict[str, Result](), dict[Any, Result]()
    for index, point in enumerate(points):
        result = folder.result(point.id) or refused.get(point.setting)
        if result is None or again(result):
            watch.begins(point, index, len(points))
            try:
                result = measure(point, results)
                folder.store_result(point.id, result)
            except PointRefused as error:
                result = {"status": "refused", "reason": str(error), "wall_s": None}
            watch.ends(point, index, len(points), result)
        if result.get("status") == "refused" and point.setting and again is _has_failed:
            refused[point.setting] = result
        results[point.id] = {"status": "ok", "reason": None, **result}
    return results


def _has_failed(result: Result) -> bool:
    return result.get("status", "ok") not in ("ok", "refused")


def _untimed_from(point: Point, points: Sequence[Point], folder: StudyFolder) -> Iterator[Point]:
    """Yield an untimed point, and those after it before the next timed one that are to be measured too."""
    for other in itertools.takewhile(lambda other: not other.timed, points[points.index(point) :]):
        if _has_failed(folder.result(other.id) or {"status": "missing"}):
            yield other


def _measure_ahead(folder: StudyFolder, point: Point, plan: Plan, child: Sequence[str], tick: Tick) -> Result:
    """Measure a point before its turn; the result is kept at once, should the study be interrupted before that."""
    result = _measure_in_child(folder, point, plan, child, tick)
    folder.store_result(point.id, result)
    return result


def _measure_in_child(folder: StudyFolder, point: Point, plan: Plan, child: Sequence[str], tick: Tick) -> Result:
    orders = {**point.orders, "task": point.task, "study": str(folder.path.absolute())}
    where = (folder.path / "runs" / point.id).absolute()
    outcome = run_child(child, orders, where, plan.time_limit_s, tick, writing=folder.translate_write_errors)
    if outcome.status == "ok" and disk_was_full(where):  # its record may lack anything
        shutil.rmtree(where, ignore_errors=True)
        with folder.translate_write_errors():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    reason = f"{outcome.reason} (longer: --time-limit)" if outcome.status == "timeout" else outcome.reason
    result: Result = {"status": outcome.status, "reason": reason, "wall_s": outcome.wall_s, **outcome.result}
    if outcome.run is None:
        return result
    result["run"] = outcome.run.relative_to(folder.path.absolute()).as_posix()
    return {**result, **plan.read(outcome.run)} if outcome.status == "ok" else result
