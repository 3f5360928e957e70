"""What a sweep runs: every combination of workload, batch, optimizer, precision and threads, in shuffled rounds."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stepscope.errors import UnknownName, UsageError

ALL = "all"


@dataclass(frozen=True)
class Entry:
    """A workload as a sweep knows it: names and facts alone, so that a sweep is read where there is no torch.

    `definition` is what two measurements must have in common; `about` is for the reader.
    """

    name: str
    tiers: tuple[str, ...]
    default_batch: int
    default_optimizer: str
    optimizers: tuple[str, ...]
    definition: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""  # the text of its file, to show what has changed


@dataclass(frozen=True)
class Point:
    """One run of a sweep; `threads` null is torch's own choice. Repeats count from 0."""

    workload: str
    batch: int
    optimizer: str
    precision: str
    threads: int | None
    device: str
    repeat: int

    @property
    def setting(self) -> tuple[str, int, str, str, int | None, str]:
        """What its repeats have in common."""
        return (self.workload, self.batch, self.optimizer, self.precision, self.threads, self.device)

    @property
    def id(self) -> str:
        """A name for files: readable, and unique also where a workload is named by a path."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", self.workload).strip("._") or "workload"
        if name != self.workload:
            name = f"{name[-40:]}-{hashlib.sha256(self.workload.encode()).hexdigest()[:6]}"
        threads = "auto" if self.threads is None else self.threads
        return f"{name}-b{self.batch}-{self.optimizer}-{self.precision}-t{threads}-{self.device}-r{self.repeat}"

    def would_need_more_than(self, other: Point) -> bool:
        """The same training with a batch at least as large: what did not fit for the other does not fit for it."""
        alike = self.setting[:1] + self.setting[2:] == other.setting[:1] + other.setting[2:]
        return alike and self.batch >= other.batch

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Grid:
    """The axes of a sweep; an empty axis is each workload's own default."""

    batches: tuple[int, ...] = ()
    optimizers: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    threads: tuple[int, ...] = ()
    device: str = "cpu"
    repeats: int = 3

    def settings(self, entries: Sequence[Entry]) -> list[Point]:
        """The first repeat of every combination in order, each once."""
        found = [point for entry in entries for point in self._of(entry)]
        return list(dict.fromkeys(found))

    def duplicates(self, entries: Sequence[Entry]) -> int:
        """How many combinations were asked for more than once."""
        return sum(1 for entry in entries for _ in self._of(entry)) - len(self.settings(entries))

    def points(self, entries: Sequence[Entry], seed: int) -> list[Point]:
        """Every run, shuffled within each round of repeats, so that repeats lie far apart in time."""
        settings, shuffle = self.settings(entries), random.Random(seed)
        order: list[Point] = []
        for repeat in range(self.repeats):
            round_ = [Point(*point.setting, repeat) for point in settings]
            shuffle.shuffle(round_)
            order += round_
        return order

    def _of(self, entry: Entry) -> Iterator[Point]:
        for batch in self.batches or (entry.default_batch,):
            for optimizer in self.optimizers or (entry.default_optimizer,):
                if optimizer not in entry.optimizers:
                    raise UnknownName(f"optimizer of '{entry.name}'", optimizer, entry.optimizers)
                for precision in self.precisions:
                    for threads in self.threads or (None,):
                        yield Point(entry.name, batch, optimizer, precision, threads, self.device, 0)


def of_tier(names: Mapping[str, Iterable[str]], tier: str | None, wanted: Sequence[str]) -> list[str]:
    """The workloads of a tier, or those of them that are named; `names` has the tiers of each workload.

    A workload of the user's own (`path/to/file.py:name`) belongs to every tier.
    """
    tiers = sorted({each for of_one in names.values() for each in of_one})
    if tier is not None and tier not in (*tiers, ALL):
        raise UnknownName("tier", tier, [*tiers, ALL])
    inside = [name for name, of_one in names.items() if tier in (None, ALL) or tier in of_one]
    if not wanted:
        return inside
    for name in wanted:
        if name not in inside and ":" not in name:
            raise UnknownName("workload" if name not in names else f"workload of the tier '{tier}'", name, inside)
    return list(dict.fromkeys(wanted))


def numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Whole numbers from 1 as `1,2,8` or `1,2,4,...,256`, which goes on by the same factor or difference."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found: list[int] = []
    for place, part in enumerate(parts):
        if part != "...":
            found.append(_number(option, part))
            continue
        if len(found) < 2 or place + 1 >= len(parts):
            raise UsageError(f"{option} {text}: '...' goes between numbers", f"for example {option} 1,2,4,...,256")
        found += _between(found[-2], found[-1], _number(option, parts[place + 1]))
    if not found:
        raise UsageError(f"{option} is empty", f"for example {option} 1,2,4")
    return tuple(found)


def words(option: str, text: str | None, known: Iterable[str] | None = None) -> tuple[str, ...]:
    """Names between commas; UnknownName where one is not among the known."""
    if text is None:
        return ()
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise UsageError(f"{option} is empty", f"give it names with commas: {option} a,b")
    allowed = None if known is None else list(known)
    for word in found:
        if allowed is not None and word not in allowed:
            raise UnknownName(option.removeprefix("--").rstrip("s"), word, allowed)
    return found


def _number(option: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text):
        raise UsageError(f"{option} {text}: not a whole number", f"for example {option} 1,2,4")
    if int(text) < 1:
        raise UsageError(f"{option} {text}: must be 1 or more", f"for example {option} 1,2,4")
    return int(text)


def _between(before: int, last: int, end: int) -> list[int]:
    """What lies between `last` and `end`, by the factor of the two before where it is a whole one above 1."""
    if last <= before or end <= last:
        raise UsageError(f"'{before},{last},...,{end}' does not grow", "for example 1,2,4,...,256")
    factor, left = divmod(last, before)
    found: list[int] = []
    value = last
    while True:
        value = value * factor if left == 0 else value + (last - before)
        if value >= end:
            return found
        found.append(value)
