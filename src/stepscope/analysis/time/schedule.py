"""List scheduling: when tasks start on lanes, given what each waits for.

A lane runs one task at a time. Of the tasks that are ready, the one with the longest way to the end comes first (R. L.
Graham, Bell System Technical Journal 45, 1966; T. C. Hu, 1961). No order of these tasks on these
lanes ends before `lower_bound_ns`, so the best one lies between the two.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.arrays import Floats, Ints


@dataclass
class Tasks:
    """Tasks, each after all that it waits for: duration in ns, lane (a group), predecessors."""

    duration: list[float] = field(default_factory=list)
    lane: list[Any] = field(default_factory=list)
    after: list[Sequence[int]] = field(default_factory=list)

    def add(self, duration: float, lane: Any, after: Sequence[int]) -> int:
        """Append a task; returns its number."""
        self.duration.append(duration)
        self.lane.append(lane)
        self.after.append(tuple(dict.fromkeys(after)))
        return len(self.duration) - 1


@dataclass(frozen=True)
class Schedule:
    """Start and end of each task, ns, and which of the lanes of its group it ran on."""

    start: Floats
    end: Floats
    place: Ints

    @property
    def length_ns(self) -> float:
        """Return when the last task ends."""
        return float(self.end.max(initial=0.0))


def longest_paths_to_end(tasks: Tasks) -> Floats:
    """Return the longest way from the beginning of each task to the end of all, ns."""
    longest = np.zeros(len(tasks.duration))
    for task in range(len(tasks.duration) - 1, -1, -1):
        longest[task] += tasks.duration[task]
        for before in tasks.after[task]:
            longest[before] = max(longest[before], longest[task])
    return longest


def longest_paths_from_start(tasks: Tasks) -> Floats:
    """Return the longest way from the beginning of all to the beginning of each task, ns."""
    earliest = np.zeros(len(tasks.duration))
    for task, before in enumerate(tasks.after):
        earliest[task] = max((earliest[b] + tasks.duration[b] for b in before), default=0.0)
    return earliest


def lower_bound_ns(tasks: Tasks, lanes: dict[Any, int]) -> float:
    """Return the length that no schedule is below: the critical path, or the work of a group over its lanes."""
    work: dict[Any, float] = {}
    for duration, lane in zip(tasks.duration, tasks.lane, strict=True):
        work[lane] = work.get(lane, 0.0) + duration
    return float(
        max(longest_paths_to_end(tasks).max(initial=0.0), *(ns / lanes[lane] for lane, ns in work.items()), 0.0)
    )


def schedule(tasks: Tasks, lanes: dict[Any, int], in_order: bool = False) -> Schedule:
    """Return a schedule on so many lanes of each group; in_order: tasks start in their order, as in a queue."""
    count = len(tasks.duration)
    rank = -np.arange(count, dtype=np.float64) if in_order else longest_paths_to_end(tasks)
    waits = [len(before) for before in tasks.after]
    followers: list[list[int]] = [[] for _ in range(count)]
    for task, before in enumerate(tasks.after):
        for earlier in before:
            followers[earlier].append(task)
    start, end, place = np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.int64)
    free = {lane: list(range(many)) for lane, many in lanes.items()}
    ready: dict[Any, list[tuple[float, int]]] = {lane: [] for lane in lanes}
    running: list[tuple[float, int]] = []
    for task in range(count):
        if waits[task] == 0:
            heapq.heappush(ready[tasks.lane[task]], (-rank[task], task))
    now = 0.0
    while True:
        for lane, queue in ready.items():
            while queue and free[lane]:
                _, task = heapq.heappop(queue)
                place[task] = heapq.heappop(free[lane])
                start[task], end[task] = now, now + tasks.duration[task]
                heapq.heappush(running, (end[task], task))
        if not running:
            return Schedule(start, end, place)
        now = running[0][0]
        while running and running[0][0] <= now:
            _, task = heapq.heappop(running)
            heapq.heappush(free[tasks.lane[task]], int(place[task]))
            for follower in followers[task]:
                waits[follower] -= 1
                if waits[follower] == 0:
                    heapq.heappush(ready[tasks.lane[follower]], (-rank[follower], follower))
