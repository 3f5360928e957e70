"""The loop of a sweep: one run after the other, each written down when it ends; what has ended is never run again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.studies.suite.grid import Point
from stepscope.studies.suite.measured import measured
from stepscope.studies.suite.rules import Rules, cool_down
from stepscope.studies.suite.run_one import NO_FIT, Outcome, disk_was_full, finished, run_one
from stepscope.studies.suite.state import SweepFolder, disk_full

_LEAST_FREE_BYTES = 64_000_000
WOULD_NOT_FIT = "would not fit"
Ended = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Watch:
    """What a sweep tells while it runs: about to begin a run, a second has passed, a run has ended."""

    begins: Callable[[Point, int], None] = lambda point, place: None
    ticks: Callable[[], None] = lambda: None
    ends: Callable[[Point, int, Mapping[str, Any]], None] = lambda point, place, result: None


def sweep(folder: SweepFolder, child: Sequence[str], watch: Watch | None = None, root: Path = Path("/")) -> Ended:
    """Run what has not ended yet, in the order of the plan; what became of every run, by the id of its point."""
    watch = watch or Watch()
    rules, order = Rules(**folder.plan["rules"]), folder.order
    with folder.locked():
        ended = folder.ended()
        for place, point in enumerate(order):
            if point.id in ended:
                continue
            _refuse_full_disk(folder.path)
            watch.begins(point, place)
            result = skipped(point, order[:place], ended) or adopted(folder, point)
            if result is None:
                result = _run(folder, child, point, rules, watch, root)
            folder.end(point, result)
            ended[point.id] = result
            watch.ends(point, place, result)
    return ended


def time_left_s(order: Sequence[Point], ended: Ended) -> float | None:
    """How long the runs to come take: as the mean of the alike that have ended, first by setting, then by workload."""
    took = {point: ended[point.id].get("total_s") for point in order if point.id in ended}
    known = [(point, float(seconds)) for point, seconds in took.items() if seconds is not None]
    if not known:
        return None
    left = 0.0
    for point in order:
        if point.id not in ended:
            alike = [s for p, s in known if p.setting == point.setting]
            alike = alike or [s for p, s in known if p.workload == point.workload] or [s for _, s in known]
            left += sum(alike) / len(alike)
    return left


def skipped(point: Point, before: Sequence[Point], ended: Ended) -> dict[str, Any] | None:
    """The result of a run that is not made, since one that needs no more did not fit; None where it is to be made."""
    for other in before:
        status = str(ended.get(other.id, {}).get("status"))
        if status in NO_FIT and point.would_need_more_than(other):
            reason = f"batch {other.batch} {NO_FIT[status]}"
            return {"point": point.to_dict(), "status": WOULD_NOT_FIT, "reason": reason}
    return None


def adopted(folder: SweepFolder, point: Point) -> dict[str, Any] | None:
    """The result of a run that ended while the sweep was being killed; None where there is none."""
    outcome = finished(folder.run_folder(point))
    return None if outcome is None or disk_was_full(folder.run_folder(point)) else result_of(folder, point, outcome)


def _run(
    folder: SweepFolder, child: Sequence[str], point: Point, rules: Rules, watch: Watch, root: Path
) -> dict[str, Any]:
    cooled = cool_down(rules, root)
    where = folder.run_folder(point)
    spec = {**point.to_dict(), "rules": rules.to_dict()}
    outcome = run_one(child, spec, where, rules.time_limit_s, watch.ticks)
    if disk_was_full(where):
        shutil.rmtree(where, ignore_errors=True)
        raise disk_full(folder.path)
    return with_cooling(result_of(folder, point, outcome), cooled)


def with_cooling(result: Mapping[str, Any], cooled: Mapping[str, Any]) -> dict[str, Any]:
    """A result with what was waited for before its run; a device that did not get cool is a flag."""
    warm = [] if cooled["reached"] else [f"begun at {cooled['to_celsius']:g} degC, not cool"]
    flags = {"flags": [*result.get("flags", []), *warm]} if warm else {}
    total_s = cooled["waited_s"] + (result["wall_s"] or 0.0)
    return {**result, **flags, "cooled": dict(cooled), "total_s": total_s}


def result_of(folder: SweepFolder, point: Point, outcome: Outcome) -> dict[str, Any]:
    """What is written down of a run: how it ended, and the numbers of its run folder."""
    result: dict[str, Any] = {
        "point": point.to_dict(),
        "status": outcome.status,
        "reason": outcome.reason,
        "wall_s": outcome.wall_s,
        "ended_unix_ms": time.time_ns() // 1_000_000,
        "run": None if outcome.run is None else str(outcome.run.relative_to(folder.path)),
    }
    if outcome.run is None:
        return result
    try:
        return {**result, **measured(outcome.run, outcome.status == "ok")}
    except StepscopeError as error:  # broken off before its first words: its status says why
        return {**result, "flags": [str(error)]}


def _refuse_full_disk(path: Path) -> None:
    if shutil.disk_usage(path).free < _LEAST_FREE_BYTES:
        raise disk_full(path)
