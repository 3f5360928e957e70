"""Names of the files that rows lie in: parts that follow each other, and what was made of several; standard library.

    cpu.rows                        part 0, that of a short run; cpu.parquet once it is packed
    cpu.000001.rows                 the next one, as all others packed as cpu.000001.parquet
    cpu.000001-000012.10s.parquet   parts 1 to 12, thinned: means of 10 s
    steps.000000-000003.4th.parquet   parts 0 to 3, thinned: a block of steps in four

Of files that hold the same parts the one that holds more of them counts, then the coarser one, then the packed one:
each is complete before what it was made of is removed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(
    r"(?P<stem>.+?)(?:\.(?P<first>\d{6,12})(?:-(?P<last>\d{6,12}))?(?:\.(?P<grain>\d{1,9})(?:s|th))?)?\.(?P<kind>rows|parquet)"
)

STEPS = "steps"


@dataclass(frozen=True)
class PartName:
    """A file of rows: the parts that it holds, first to last, and how far it is thinned.

    grain: length of the means of samples, s, or of how many blocks of steps one is there; 0: all rows as they were.
    """

    name: str
    stem: str
    first: int
    last: int
    grain: int
    packed: bool

    @property
    def sort_key(self) -> tuple[int, int, int, bool]:
        """Sorts what counts before what it was made of."""
        return self.first, -self.last, -self.grain, not self.packed


def parsed(name: str) -> PartName | None:
    """Return what the name of a file of rows says, with its folder in the stem; None for another file."""
    folder, slash, file = name.rpartition("/")
    match = _NAME.fullmatch(file)
    if match is None or file[0] == ".":
        return None
    first = int(match["first"] or 0)
    last = int(match["last"] or first)
    grain = int(match["grain"] or 0)
    return PartName(name, folder + slash + match["stem"], first, max(first, last), grain, match["kind"] == "parquet")


def parts_of_stem(stem: str, names: Iterable[str]) -> list[PartName]:
    """Return all files with rows of a stem, such as `samples/cpu` or `steps`."""
    parts = (parsed(name) for name in names if name.startswith(stem))
    return [part for part in parts if part is not None and part.stem == stem]


def parts_in_use(stem: str, names: Iterable[str], without: Collection[str] = ()) -> list[PartName]:
    """Return the files that count, in the order of their parts; `without` those that cannot be read."""
    chosen: list[PartName] = []
    for part in sorted(parts_of_stem(stem, names), key=lambda part: part.sort_key):
        if part.name not in without and (not chosen or part.first > chosen[-1].last):
            chosen.append(part)
    return chosen


def parts_ready_to_pack(names: Iterable[str]) -> list[PartName]:
    """Return the files of rows, not packed yet, to which nothing is added any more: a later part has begun."""
    parts = [part for part in map(parsed, names) if part is not None]
    newest: dict[str, int] = {}
    for part in parts:
        newest[part.stem] = max(newest.get(part.stem, 0), part.last)
    return [part for part in parts if not part.packed and part.last < newest[part.stem]]


def rows_file_name(stem: str, number: int) -> str:
    """Return the name of a part that is being written."""
    return f"{stem}.{number:06d}.rows" if number else f"{stem}.rows"


def thinned_file_name(stem: str, first: int, last: int, grain: int) -> str:
    """Return the name of a thinned file."""
    return f"{stem}.{first:06d}-{last:06d}.{grain}{'th' if stem == STEPS else 's'}.parquet"


def next_number(names: Iterable[str], stem: str | None = None) -> int:
    """Return the part to go on with: the newest one that has rows, or the one after what was packed."""
    parts = [part for part in map(parsed, names) if part is not None and stem in (None, part.stem)]
    return max((part.last + part.packed for part in parts), default=0)


def has_steps(run: Path) -> bool:
    """Return whether any step of a run was written: a run without one has no such file, or an empty one."""
    with contextlib.suppress(OSError):
        return any(path.stat().st_size for kind in ("rows", "parquet") for path in run.glob(f"{STEPS}.*{kind}"))
    return False
