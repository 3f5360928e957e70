"""The parts of a run of several processes: their ranks, those that are not there, and why parts are not compared."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_NAMED = 9  # ranks of which there is nothing
_SAME_CLOCK_NS = 1_000_000_000  # by which wall minus monotonic time may differ between processes of one machine


def rank_number(run: Run) -> int:
    """Rank of a part, or its number among the processes where there are no ranks."""
    for name in ("rank", "process"):
        value = run.meta.get(name)
        if isinstance(value, int):
            return value
    return int(run.path.name) if run.is_part and run.path.name.isdigit() else 0


def group_rank(part: Run) -> int | None:
    """Rank in the process group; None where the process is no member of one."""
    rank = part.meta.get("rank")
    return rank if isinstance(rank, int) and "process" not in part.meta else None


def absent_ranks(run: Run, parts: list[Run]) -> str:
    """Return which ranks have no part in this run, and why; empty where all have one."""
    world = run.meta.get("world_size")
    if not isinstance(world, int) or run.is_part:
        return ""
    present = {rank_number(part) for part in parts}
    absent = world - sum(0 <= rank < world for rank in present)
    if absent <= 0:
        return ""
    named = [str(rank) for rank in islice((rank for rank in range(world) if rank not in present), _NAMED)]
    more = f" and {absent - _NAMED:,} more" if absent > _NAMED else ""
    ranks = f"rank {named[0]}" if absent == 1 else f"ranks {', '.join(named)}{more}"
    if run.meta.get("trainer"):
        return f"{ranks} of {world} {_is_or_are(absent)} not in this run: a callback records the first process only"
    if not run.part_folders and "launcher_pid" not in run.meta:
        why = "each process that calls stepscope.profile has a run of its own"
        return f"{ranks} of {world} {_is_or_are(absent)} not in this run: {why}"
    return f"{ranks} of {world} wrote no part: it trained on another machine, or never made a step"


def _is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def why_not_comparable(parts: list[Run]) -> str:
    """Return why times of the parts lie on different clocks; empty where they lie on one."""
    if any(group_rank(part) is None for part in parts):
        return "the processes are no members of one process group"
    for name, what in (("boot_id", "boots"), ("host", "machines")):
        stated = {str(part.meta[name]) for part in parts if part.meta.get(name)}
        if len(stated) > 1:
            return f"they ran on different {what}, whose clocks have no common zero"
    if all(part.meta.get("boot_id") for part in parts):
        return ""
    offsets = [_wall_minus_monotonic(part.meta.get("clock")) for part in parts]
    some = [offset for offset in offsets if offset is not None]
    if some and max(some) - min(some) > _SAME_CLOCK_NS:
        return "their clocks count from different times: another machine, or the wall clock was set meanwhile"
    return ""


def why_several_trainings(parts: list[Run]) -> str:
    """Return why the parts, on one clock, are not of one training; empty where they are."""
    ranks = [rank_number(part) for part in parts]
    if twice := sorted({rank for rank in ranks if ranks.count(rank) > 1}):
        return f"rank {twice[0]} trained more than once: it was restarted, or several trainings ran in turn"
    return "" if _are_simultaneous(parts) else "they trained in turn, and not at the same time"


def _are_simultaneous(parts: list[Run]) -> bool:
    """Return whether the times of all parts that made steps have a common stretch."""
    spans = [(part.steps["t0_ns"][0], part.steps["t1_ns"][-1]) for part in parts if len(part.steps)]
    return not spans or max(begin for begin, _ in spans) < min(end for _, end in spans)


def _wall_minus_monotonic(clock: Any) -> int | None:
    try:
        return int(clock["unix_ns"]) - int(clock["monotonic_ns"])
    except (KeyError, TypeError, ValueError):
        return None
