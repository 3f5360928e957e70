"""Whether a run said and left the same as bare runs do, leaving out only what differs between bare runs themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"0x[0-9a-f]+|(?:(?<=\s)[-+])?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
_TIMED = re.compile(
    r"(\b(?:time|data|ms/batch|sps|iter_dt|mfu|\w+_runtime|\w+_per_second)\b[\s:'(]{0,6})-?\d[\d.]*(?:\s*\(\s*[\d.]+\))?"
    r"|()\d[\d.]*\s*[mu]?s/(?:step|epoch)",
    re.IGNORECASE,
)
_BREAKS = re.compile(r"[\r\n\b]+")


@dataclass(frozen=True)
class Verdict:
    """`same`: None where bare runs differ too much among themselves to tell; `how` says by what measure."""

    same: bool | None
    how: str


def same_text(bare: Sequence[str], other: str) -> Verdict:
    """Compare what was printed with what at least two bare runs printed."""
    if other in bare:
        return Verdict(True, "same")
    lines, theirs = _lines(other), [_lines(text) for text in bare]
    shapes = [[_shape(line) for line in one] for one in theirs]
    if all(one == shapes[0] for one in shapes):
        return _same_numbers(theirs, lines)
    counts = [Counter(one) for one in shapes]
    if all(one == counts[0] for one in counts):
        same = Counter(_shape(line) for line in lines) == counts[0]
        return Verdict(same, "same lines, in an order that varies" if same else "other lines")
    return Verdict(None, "varies from run to run")


def _same_numbers(bare: list[list[str]], lines: list[str]) -> Verdict:
    if len(lines) != len(bare[0]):
        return Verdict(False, f"{len(lines)} lines, not {len(bare[0])}")
    for at, line in enumerate(lines):
        if _shape(line) != _shape(bare[0][at]):
            return Verdict(False, f"line {at + 1}: {line[:60]!r}, not {bare[0][at][:60]!r}")
        numbers = [_NUMBER.findall(one[at]) for one in bare]
        for place, number in enumerate(_NUMBER.findall(line)):
            seen = {one[place] for one in numbers}
            if len(seen) == 1 and number not in seen:
                return Verdict(False, f"line {at + 1}: {number}, not {seen.pop()}")
    return Verdict(True, "same but for numbers that vary")


def _lines(text: str) -> list[str]:
    """Lines that say something, and no times or rates: they may be equal in bare runs by chance."""
    return [_TIMED.sub(r"\1", line) for line in _BREAKS.split(text) if line.strip()]


def _shape(line: str) -> str:
    return re.sub(r"\s+", " ", _NUMBER.sub("#", line))


def same_files(bare: Sequence[Mapping[str, str]], other: Mapping[str, str]) -> Verdict:
    """Compare files, given as name and digest, with those of at least two bare runs."""
    named = [_settled(one) if any(one.keys() != bare[0].keys() for one in bare) else dict(one) for one in bare]
    mine = _settled(other) if named[0].keys() != bare[0].keys() else dict(other)
    if any(one.keys() != named[0].keys() for one in named):
        return Verdict(None, "names vary from run to run")
    if mine.keys() != named[0].keys():
        odd = sorted(mine.keys() ^ named[0].keys())
        return Verdict(False, f"{'no ' if odd[0] in named[0] else 'also '}{odd[0]}")
    varying = {name for name in mine if len({one[name] for one in named}) > 1}
    wrong = sorted(name for name in mine if name not in varying and mine[name] != named[0][name])
    if wrong:
        return Verdict(False, f"{', '.join(wrong[:3])} differ{'s' if len(wrong) == 1 else ''}")
    return Verdict(True, f"{len(mine) - len(varying)} same" + (f", {len(varying)} vary" if varying else ""))


def _settled(files: Mapping[str, str]) -> dict[str, str]:
    """With numbers taken out of the names: a stamp or a process id is in them."""
    return {re.sub(r"\d+", "#", name): digest for name, digest in sorted(files.items())}
