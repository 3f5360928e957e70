"""Power rails of a Jetson through NVIDIA's tegrastats, W: the way in where the INA3221 itself may not be read.

A child process prints a line an interval. Only a line that is new since the last read is a reading: no new line is
NaN, never the old value again. A line is up to one interval older than the read that takes it.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stepscope.record.access.child_lines import ChildLines
from stepscope.record.formats.tegrastats import Rail, TegrastatsLine, parse
from stepscope.record.sensors import ina3221
from stepscope.record.sensors.contract import NAN, Channel, Found, Missing, Target, missing_because

NAME = "tegrastats"
EVERY_NS = 100_000_000
FIRST_LINE_S = 2.0
MOST_WATTS = 1000.0
LOOK_EVERY = 10  # reads: is it still needed?


def discover(root: Path, target: Target) -> Found | Missing:
    """One power gauge a rail that the first line names; nothing where the rails can be read without it."""
    program = _program(root)
    if program is None:
        return Missing("absent", f"{root / 'usr/bin/tegrastats'}: not there (it comes with Jetson Linux)")
    if _rails_are_open(root, target):
        return Missing("absent", f"{program}: not needed, the INA3221 below {root} can be read itself")
    try:
        child = ChildLines([str(program), "--interval", str(EVERY_NS // 1_000_000)])
    except OSError as error:
        return missing_because(error, program, f"sudo chmod a+rx {program}")
    first = first_line(child)
    places = rail_places(first.rails) if first else {}
    if not places:
        child.close()
        return _no_rail(program, first, child.complaint())
    reads = 0

    def read() -> list[float]:
        nonlocal reads
        reads += 1
        if reads % LOOK_EVERY == 0 and _rails_are_open(root, target):
            raise OSError("not needed any more: the INA3221 can be read itself")
        lines = child.take()
        if not lines and child.exit_code() is not None:
            raise OSError(f"it has ended with status {child.exit_code()}: {child.complaint()}")
        return rail_watts(parse(lines[-1]), places) if lines else [NAN] * len(places)

    channels = tuple(_channel(name, program) for name in places)
    return Found(channels, read, child.close, every_ns=EVERY_NS, blocking=True)


def first_line(child: ChildLines) -> TegrastatsLine | None:
    """Wait for a line that states memory, as all do; None where none comes in time or the child ends before."""
    deadline = time.monotonic() + FIRST_LINE_S
    while (left := deadline - time.monotonic()) > 0:
        ended = child.exit_code() is not None
        for content in map(parse, child.take(left)):
            if content.memory:
                return content
        if ended:
            return None
    return None


def rail_places(rails: Sequence[Rail]) -> dict[str, tuple[str, int]]:
    """Names of the channels, and for each the rail of the line: its name, and which of those of the same name it is."""
    seen: Counter[str] = Counter()
    places: dict[str, tuple[str, int]] = {}
    for rail in rails:
        if rail.name == "NC":
            continue
        place = (rail.name, seen[rail.name])
        seen[rail.name] += 1
        places[rail.name if place[1] == 0 else f"{rail.name}#{seen[rail.name]}"] = place
    return places


def rail_watts(line: TegrastatsLine, places: dict[str, tuple[str, int]]) -> list[float]:
    """Power now of each channel, W; NaN where this line lacks the rail, or states what cannot be."""
    of_name: dict[str, list[float]] = {}
    for rail in line.rails:
        of_name.setdefault(rail.name, []).append(rail.watts[0])
    values = []
    for name, nth in places.values():
        watts = of_name.get(name, [])[nth : nth + 1] or [NAN]
        values.append(watts[0] if 0 <= watts[0] <= MOST_WATTS else NAN)
    return values


def _rails_are_open(root: Path, target: Target) -> bool:
    """Whether the INA3221 itself can be read, so that no rail is reported twice."""
    direct = ina3221.discover(root, target)
    if isinstance(direct, Missing):
        return False
    direct.close()
    return True


def _no_rail(program: Path, first: TegrastatsLine | None, complaint: str) -> Missing:
    if first is None:
        said = f" ({complaint})" if complaint else ""
        return Missing("failed", f"{program}: no line of numbers within {FIRST_LINE_S:g} s{said}")
    remedy = "sudo -E stepscope ...   (old releases print the rails for root alone)"
    return Missing("denied", f"{program}: prints no power rail", remedy)


def _program(root: Path) -> Path | None:
    """The program of this machine on PATH, or the one below root."""
    on_path = shutil.which("tegrastats") if root == Path("/") else None
    if on_path is not None:
        return Path(on_path)
    program = root / "usr/bin/tegrastats"
    return program if program.is_file() else None


def _channel(name: str, program: Path) -> Channel:
    return Channel(
        id=f"rail.{name}.power",
        sensor=NAME,
        quantity="power",
        unit="W",
        kind="gauge",
        scope=f"rail:{name}",
        parent_scope="board",
        source=str(program),
        rail=name.partition("#")[0],
        refresh_ns=EVERY_NS,
    )
