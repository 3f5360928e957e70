"""What each single change truly gains, and what tune says of it: `python -m benchmarks.tune lenet resnet8-c32`.

Truth: every change that applies, in fresh pairs of processes, as is and changed, which make steps in turns: one
process pair for each change, then two more for those that could be the best or that tune recommends. Its whole
recommendation is measured so as well. Tune is asked in between, with its own time. Answers are kept (`--kept FILE`) and
written as a table (`--write PAGE`). Said at the end: whether the truly best change is ranked first (a tie within the CI
counts), by how many points the gains of what is recommended are off, and what is recommended though it is slower. A
target is a workload, or a script with its arguments in one word ("train.py --batch-size 8"). Wants an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import stepscope
from benchmarks.profiled import keep as write_table
from stepscope.analysis.results import Findings
from stepscope.experiments.tune import TuneRequest
from stepscope.experiments.tune.changes import Change, all_changes, select_changes
from stepscope.experiments.tune.pair_statistics import process_interval, ratio_interval
from stepscope.experiments.tune.process import RestartingTraining, TrainingEnded, TrainingProcess
from stepscope.files import atomic_write
from stepscope.record.device import describe_device

KEPT = Path(__file__).with_name("tune_truth.json")
_LIMIT_S = 1800.0
_TURN_S, _TURNS = 0.35, 8  # of one side; turns of a process pair
_MOST_STEPS = 30  # of a turn
_PROCESS_PAIRS = 3
_SLOWER = 1.02  # what is slower than this must not be recommended


@dataclass
class Answer:
    """The truth of a target and what tune said.

    truth, together: log ratios of the step time of each process pair, by change and of the recommendation. said,
    final: gain with its bounds, %, of each change that tune recommends and of the recommendation when measured anew.
    """

    target: str
    step_s: float = math.nan
    machine: str = ""
    truth: dict[str, list[list[float]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    said: dict[str, list[float | None]] = field(default_factory=dict)
    best: tuple[str, ...] = ()
    final: list[float | None] = field(default_factory=list)
    together: list[list[float]] = field(default_factory=list)
    answer: str = ""
    whole: bool = False  # all of it was measured

    def gain(self, name: str) -> tuple[float, float, float]:
        """Return the true gain of a change with its bounds, %."""
        return _gain(self.truth[name])


def _gain(process_pairs: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    ratio, low, high = process_interval(process_pairs) if len(process_pairs) > 1 else ratio_interval(process_pairs[0])
    return 100 * (1 - ratio), 100 * (1 - high), 100 * (1 - low)


class Target:
    """A training whose changes are measured in pairs of fresh processes."""

    def __init__(self, text: str, folder: Path) -> None:
        self.name, self._folder = text, folder
        name, *arguments = shlex.split(text)
        self.request = TuneRequest(target=name, arguments=tuple(arguments))
        self._orders: dict[str, Any] = {**self.request.orders(), "facts": {}}
        place = self._open("facts", {}, ())
        try:
            self.facts = place.ask(_LIMIT_S, do="facts")
        finally:
            place.close()
        self._orders["facts"] = self.facts
        self.known: dict[str, Change] = all_changes(self.facts)
        self.changes = [change for change in select_changes(self.known.values(), "time", (), ()) if not change.refused]

    def _open(
        self, name: str, environment: dict[str, str], at_start: Sequence[str]
    ) -> TrainingProcess | RestartingTraining:
        kind = RestartingTraining if "script" in self._orders else TrainingProcess
        return kind(self._orders, self._folder / f"{name}.txt", environment, at_start)

    def process_pair(self, names: Sequence[str]) -> list[float]:
        """Return the log ratio of each turn of a new pair of processes, as is and with these changes."""
        at_start = [name for name in names if self.known[name].at_start]
        live = [name for name in names if name not in at_start]
        environment = {key: value for name in at_start for key, value in self.known[name].environment.items()}
        places = [self._open("as-is", {}, ()), self._open("changed", environment, at_start)]
        try:
            with ThreadPoolExecutor(2) as both:  # they start beside each other, and take turns from then on
                list(both.map(lambda place: place.ask(_LIMIT_S, do="use", facts=self.facts), places))
            return [self._turn(places, live, turn) for turn in range(_TURNS)]
        finally:
            for place in places:
                place.close()

    def _turn(self, places: Sequence[TrainingProcess | RestartingTraining], live: Sequence[str], turn: int) -> float:
        steps = max(2, min(_MOST_STEPS, math.ceil(_TURN_S / self.facts["step_s"])))
        warmup = max(3, min(20, math.ceil(1.0 / self.facts["step_s"]))) if turn == 0 else 1
        sides = [(places[0], []), (places[1], list(live))]
        means = {}
        for place, names in reversed(sides) if turn % 2 else sides:
            seconds = place.ask(_LIMIT_S, do="block", changes=names, warmup=warmup, steps=steps)["seconds"]
            means[id(place)] = statistics.fmean(sorted(seconds)[: math.ceil(0.9 * len(seconds))])
        return math.log(means[id(places[1])] / means[id(places[0])])


def complete(found: Answer, minutes: float, folder: Path, keep: Callable[[], object]) -> None:
    """Measure each change once, ask tune, and measure what matters twice more; what is kept is not measured again.

    keep: called after each process pair, since a target takes many minutes.
    """
    target = Target(found.target, folder)
    found.step_s, found.machine = target.facts["step_s"], _machine()
    for change in target.changes:
        _measure(target, found, change.name, 1, keep)
    if not found.answer:
        where = folder / found.target.replace("/", "-").replace(" ", "-")
        _take(found, stepscope.tune(replace(target.request, minutes=minutes), out=where))
        keep()
    top = max((found.gain(name) for name in found.truth), default=(0.0, 0.0, 0.0))
    for name in list(found.truth):
        if name in found.said or found.gain(name)[2] >= max(0.0, top[1]):
            _measure(target, found, name, _PROCESS_PAIRS, keep)
    if len(found.best) == 1:
        found.together = found.truth.get(found.best[0], [])
    while len(found.best) > 1 and len(found.together) < _PROCESS_PAIRS:
        found.together.append(target.process_pair(found.best))
        keep()
    found.whole = True


def _take(found: Answer, findings: Findings) -> None:
    """Note what tune says."""
    tables = {table.name: table.rows for table in findings.tables}
    rows = [(str(row[1]), [*row[4:7]]) for row in tables.get("helps", ())]
    found.said = {name: gains for name, gains in rows if " + " not in name}  # type: ignore[misc]
    found.answer = findings.answer
    if "code" in tables:
        found.best = tuple(str(row[0]) for row in tables["code"])
        found.final = [*tables["final"][0][3:6]] if "final" in tables else []  # type: ignore[list-item]


def _machine() -> str:
    found = describe_device()
    return f"{found['cpu']}, {len(found['cores'])} cores, torch {version('torch')}"


def _measure(target: Target, found: Answer, name: str, process_pairs: int, keep: Callable[[], object]) -> None:
    """Measure a change in as many process pairs as are missing."""
    while name not in found.failed and len(found.truth.get(name, ())) < process_pairs:
        try:
            measured = target.process_pair([name])
        except TrainingEnded as error:
            found.failed[name] = str(error)
        else:
            found.truth.setdefault(name, []).append(measured)
            sys.stderr.write("{}: {}: {:+.1f} % [{:+.1f}, {:+.1f}]\n".format(found.target, name, *found.gain(name)))
        keep()


def verdict(found: Answer) -> dict[str, Any]:
    """Return how the answer of tune compares with the truth."""
    gains = {name: found.gain(name) for name in found.truth}
    best = max(gains, key=lambda name: gains[name][0]) if gains else None
    helping = best is not None and gains[best][1] > 0
    first = max(found.said, key=lambda name: found.said[name][0] or 0.0) if found.said else None
    tied = first is not None and best is not None and first in gains and gains[first][2] >= gains[best][1]
    off = {name: said[0] - gains[name][0] for name, said in found.said.items() if name in gains and said[0] is not None}
    if found.final and found.together and found.final[0] is not None:
        off["the recommendation"] = found.final[0] - _gain(found.together)[0]
    slower = [name for name in found.said if name in gains and gains[name][2] < -100 * (_SLOWER - 1)]
    return {
        "target": found.target, "truly best": best, "its gain": None if best is None else gains[best],
        "ranked first": first, "right": first == best or tied if helping else first is None or tied,
        "points off": off, "recommended but slower": slower, "answer": found.answer,
    }  # fmt: skip


def summary(verdicts: Sequence[dict[str, Any]]) -> str:
    """Return the three figures that are asked for, over all targets."""
    right = sum(bool(row["right"]) for row in verdicts)
    off = sorted(abs(points) for row in verdicts for points in row["points off"].values())
    slower = sum(len(row["recommended but slower"]) for row in verdicts)
    spread = f"median {statistics.median(off):.1f}, 90 % below {off[math.ceil(0.9 * len(off)) - 1]:.1f}" if off else "-"
    return (
        f"truly best first (or tied): {right} of {len(verdicts)}; points off: {spread} (of {len(off)});"
        f" recommended though slower: {slower}\n"
    )


def table(answers: Sequence[Answer]) -> str:
    """Return a row of Markdown for each target, and the summary below."""
    heads = ("training", "step, ms", "best change", "its gain, %", "first of `tune`", "its gain by `tune`, %", "")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    verdicts = [verdict(answer) for answer in answers]
    for answer, row in zip(answers, verdicts, strict=True):
        first = row["ranked first"]
        cells = [
            answer.target, f"{1e3 * answer.step_s:.3g}", row["truly best"] or "none", _bounds(row["its gain"]),
            first or "none", _bounds(answer.said.get(first)), "right" if row["right"] else "wrong",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{summary(verdicts).strip()}\n"


def _bounds(gain: Sequence[float | None] | None) -> str:
    if gain is None or None in gain:
        return ""
    value, low, high = gain
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    """Measure the truth of the targets, ask tune, and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("targets", nargs="*", help="of none: those that are kept are judged again")
    parser.add_argument("--kept", type=Path, default=KEPT, help="where the answers are kept")
    parser.add_argument("--folder", type=Path, default=Path("studies/tune-truth"), help="where tune's own answers lie")
    parser.add_argument("--minutes", type=float, default=3.0, help="that tune may take")
    parser.add_argument("--write", type=Path, help="a page whose table is written anew: docs/guide-tune.md")
    known = parser.parse_args()
    rows = json.loads(known.kept.read_text()) if known.kept.exists() else []
    kept = {row["target"]: Answer(**row) for row in rows}

    def keep() -> None:
        with atomic_write(known.kept) as part:
            part.write_text(json.dumps([asdict(answer) for answer in kept.values()], indent=1) + "\n")

    for text in known.targets:
        found = kept.setdefault(text, Answer(text))
        if not found.whole:
            complete(found, known.minutes, known.folder, keep)
            keep()
        sys.stdout.write(json.dumps(verdict(found), indent=1) + "\n")
        sys.stdout.flush()
    verdicts = [verdict(answer) for answer in kept.values() if answer.whole]
    for row in verdicts:
        sys.stdout.write(f"{row['target']}: {'right' if row['right'] else 'wrong'}; best {row['truly best']}"
                         f" ({(row['its gain'] or [0])[0]:+.1f} %), first {row['ranked first']}\n")  # fmt: skip
    sys.stdout.write(summary(verdicts))
    if known.write is not None:
        write_table(known.write, "tune-truth", "Tune", table([answer for answer in kept.values() if answer.whole]))


if __name__ == "__main__":
    main()
