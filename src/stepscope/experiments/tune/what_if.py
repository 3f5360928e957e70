"""Gains of perfect parts: each part is made slower by a known delay, and the step is watched.

Curtsinger and Berger, Coz, 2015, turned round: a part cannot be made faster at will, but it can be made slower. By how
much the step grows for each second that a part is delayed is the share of the part's time that the step waits for: 1
for what nothing hides, 0 for a loader that is ahead anyway. With the ceilings of the device, which say how far a layer
is from what is attainable, this is what a perfect one would save.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.clock import monotonic_ns
from stepscope.errors import UsageError
from stepscope.experiments.tune.delays import LAYER, LOADER, OPTIMIZER, delay_name
from stepscope.experiments.tune.pair_statistics import (
    LEAST_PAIRS,
    ExperimentStore,
    TunableTraining,
    are_numbers,
    centre_interval,
    non_negative_number,
    trimmed_mean,
)
from stepscope.experiments.tune.process import TooShort, TrainingEnded

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

STUDY = "what-if"
_MOST_PARTS = 12
_LEAST_SHARE = 0.01  # of the step, from which on a part is worth it
_PROBE_STEPS = 3
_PROBE_S = 2e-5  # delay of a call by which calls are counted
_LEAST_CALL_S = 5e-5  # delay of each of several calls, beside which a hook takes next to nothing
_SLOWER, _LEAST_DELAY = 0.2, 0.05  # of the part's own time; of the step, so that the step can show it
_TRIMMED = 0.2
_ANSWER_S = 900.0
_ENOUGH = 0.1  # half the width of the CI of what a part decides, from which on no more pairs are made
_MOST_PAIRS = 30


@dataclass
class StepPart:
    """A layer, the loader or the optimizer: its share of the step, and what was seen of it made slower.

    forward: the part of its time that is forward. attained: share of what this device could do; None where not known.
    waits: of each pair, by how much the step grew for a second of delay.
    """

    name: str
    kind: str
    type: str
    share: float
    forward: float = 1.0
    attained: float | None = None
    delayed: float = 0.0  # of its own time
    calls: float | None = None  # in a step; None before they are counted
    waits: list[float] = field(default_factory=list)
    reason: str = "no time was left for it"

    @property
    def label(self) -> str:
        return self.name or "the model itself"

    @property
    def key(self) -> str:
        """Return its name among all parts of a training: a layer may be called as the loader is."""
        return f"{self.kind} {self.name}"

    def take(self, stored: Any) -> None:
        """Go on with what was measured of it before; what cannot have been counts as nothing."""
        entry: dict[str, Any] = stored if isinstance(stored, dict) else {}
        waits, delayed = entry.get("waits"), entry.get("delayed", math.nan)
        if isinstance(waits, list) and 0 < len(waits) <= _MOST_PAIRS and are_numbers([*waits, delayed]):
            self.waits, self.delayed, self.reason = [float(wait) for wait in waits], float(delayed), ""

    def interval(self) -> tuple[float, float, float]:
        """Return the share of its time that the step waits for, with its CI."""
        return centre_interval(self.waits)

    @property
    def clear(self) -> bool:
        _, low, high = self.interval()
        enough = len(self.waits) >= LEAST_PAIRS and (high - low) / 2 < _ENOUGH
        return enough or len(self.waits) >= _MOST_PAIRS


def parts_of(run: Run) -> list[StepPart]:
    """Return the layers of a run that take a share of its step, optimizer and loader; UsageError without layers."""
    rows = [row for row in run.layers().iter_rows(named=True) if row["share"] and row["share"] >= _LEAST_SHARE]
    if not rows:
        raise UsageError(
            "--what-if: the run has no times of layers", "record one first: stepscope run, and give --what-if last"
        )
    parts = []
    for row in rows[:_MOST_PARTS]:
        forward, backward = float(row["forward_ns"] or 0), float(row["backward_ns"] or 0)
        both, whole = forward + backward, float(row["total_ns"])
        if both > 0:
            share = float(row["share"]) * both / whole  # its update is the optimizer's
            parts.append(StepPart(row["layer"], LAYER, row["type"] or "", share, forward / both, row["attained"]))
    shares = {str(row["phase"]): float(row["share"] or 0) for row in run.phases().iter_rows(named=True)}
    for phase, kind in (("optimizer", OPTIMIZER), ("data", LOADER)):
        if shares.get(phase, 0.0) > 0:
            parts.append(StepPart(kind, kind, "", shares[phase]))
    return parts


class WhatIf:
    """The experiment: pairs of blocks, as is and with one part delayed, in random order, of each part in turn."""

    def __init__(
        self,
        open_training: Callable[[], TunableTraining],
        parts: Sequence[StepPart],
        seconds: float,
        store: ExperimentStore | None = None,
        recorded: Mapping[str, Any] | None = None,
    ) -> None:
        self._open, self.parts, self._seconds = open_training, list(parts), seconds
        self._store, self._recorded = store or ExperimentStore(), recorded or {}
        progress = self._store.saved.get(STUDY, {})
        self._spent_s, stored = non_negative_number(progress.get("spent_s")), progress.get("parts")
        for part in self.parts:
            part.take(stored.get(part.key) if isinstance(stored, dict) else None)
        self._random = random.Random(sum(len(part.waits) for part in self.parts))
        self._began_ns = monotonic_ns()
        self.step_s = math.nan
        self.as_is_s: list[float] = []
        self.loader: Mapping[str, Any] | None = None
        self.interrupted = False

    @property
    def used(self) -> float:
        """The share of the time that has been used."""
        return (self._spent_s + (monotonic_ns() - self._began_ns) / 1e9) / self._seconds

    def run(self) -> None:
        """Measure until every part is clear or the time is over. Ctrl-C ends it, and what is known is kept."""
        training = self._open()
        try:
            self._begin(training)
            self._began_ns = monotonic_ns()  # the start is none of the time
            while self.used < 1:
                open_ = [part for part in self.parts if not part.clear and part.reason != "failed"]
                if not open_:
                    return
                self._random.shuffle(open_)
                for part in sorted(open_, key=lambda part: len(part.waits)):
                    if self.used < 1 or not part.waits:
                        self._store.show_progress(f"{part.label} made slower", self.used)
                        self._measure(training, part)
                        parts = {part.key: {"waits": part.waits, "delayed": part.delayed} for part in self.parts}
                        self._store.save(STUDY, {"spent_s": self.used * self._seconds, "parts": parts})
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            training.close()

    def _begin(self, training: TunableTraining) -> None:
        self._store.show_progress("the training as it is", self.used)
        facts = training.ask(_ANSWER_S, do="facts")
        if facts["device"] != "cpu":
            raise UsageError(
                f"--what-if: on {facts['device']} a delay of the CPU is not one of the device", "on the CPU alone"
            )
        kinds = [optimizer["kind"] for optimizer in facts.get("optimizers", ())]
        for name, here in (("threads", [facts.get("threads")]), ("optimizer", kinds)):
            stated = self._recorded.get(name)
            if stated is not None and any(here) and stated not in here:
                raise UsageError(
                    f"--what-if: the {name} of the run: {stated}; of this training: {', '.join(map(str, here))}",
                    "give a run of the same training, or record it again: stepscope run",
                )
        self.step_s, self.loader = facts["step_s"], facts["loader"]
        block = training.ask(_ANSWER_S, do="block", changes=[], warmup=3, steps=self._steps())
        self.step_s = trimmed_mean(block["seconds"], _TRIMMED)
        if not self.loader:
            self.parts = [part for part in self.parts if part.kind != LOADER]
        for part in self.parts:  # a loader with workers is no part of the step's own time: its batches say how long
            if part.kind == LOADER and block["fetches"]:
                part.share = block["fetch_s"] / self.step_s

    def _steps(self) -> int:
        return min(100, max(3, math.ceil(0.1 / self.step_s)))

    def _measure(self, training: TunableTraining, part: StepPart) -> None:
        try:
            part.waits.append(self._pair(training, part))
            part.reason = ""
        except TooShort:
            raise
        except TrainingEnded as error:
            part.reason = "failed" if not part.waits else ""
            self._store.show_progress(f"{part.label}: {error}", self.used)

    def _pair(self, training: TunableTraining, part: StepPart) -> float:
        """Return by how much the step grows for a second of delay, of one pair of blocks."""
        own_s = part.share * self.step_s
        delay_s = max(_SLOWER * own_s, _LEAST_DELAY * self.step_s)
        if part.calls is None:
            part.calls = self._calls_per_step(training, part)
        if part.calls > 1:
            delay_s = max(delay_s / part.calls, min(delay_s, _LEAST_CALL_S))
        name = _delay_of_part(part, delay_s)
        # What a loader has ahead is used up before the delay shows.
        ahead = 8 * int((self.loader or {}).get("workers", 0)) if part.kind == LOADER else 0
        steps, warmup = self._steps(), 2 + ahead
        sides: list[list[str]] = [[], [name]]
        self._random.shuffle(sides)
        blocks = {
            bool(side): training.ask(_ANSWER_S, do="block", changes=side, warmup=warmup, steps=steps) for side in sides
        }
        times = {side: trimmed_mean(block["seconds"], _TRIMMED) for side, block in blocks.items()}
        self.as_is_s.append(times[False])
        self.step_s = 0.8 * self.step_s + 0.2 * times[False]
        each_s: float = blocks[True]["delayed_s"] / (warmup + steps)
        if each_s <= 0:
            raise TrainingEnded("it was not called within a step")
        part.delayed = each_s / own_s
        grown_s: float = times[True] - times[False]
        return grown_s / each_s

    def _calls_per_step(self, training: TunableTraining, part: StepPart) -> float:
        """Return how often a layer or optimizer works in a step, by the delays of a short block."""
        if part.kind == LOADER:
            return 1.0
        block = training.ask(
            _ANSWER_S, do="block", changes=[_delay_of_part(part, _PROBE_S)], warmup=0, steps=_PROBE_STEPS
        )
        return float(block["delayed_s"]) / _PROBE_STEPS / _PROBE_S


def _delay_of_part(part: StepPart, call_s: float) -> str:
    forward_ns, backward_ns = 1e9 * call_s * part.forward, 1e9 * call_s * (1 - part.forward)
    return delay_name(part.kind, part.name, forward_ns, backward_ns)


def recorded_facts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the threads and the type of the optimizer of a run; None for what it does not say."""
    kind = (meta.get("workload") or {}).get("optimizer")
    return {"threads": meta.get("threads"), "optimizer": kind}


def judge_parts(experiment: WhatIf, title: str, no_ceilings: str = "") -> Findings:
    """Return the findings: what each part decides, and what a perfect one would save.

    no_ceilings: why the run has no ceilings, as a part of a sentence; empty where it has.
    """
    measured = [part for part in experiment.parts if part.waits]
    rows = sorted((_part_row(part) for part in measured), key=_rank, reverse=True)
    untried = tuple((part.label, part.reason) for part in experiment.parts if not part.waits)
    tables = (
        ResultTable("what-if", "What it would gain if", _COLUMNS, tuple(rows), _NOTE, _MEANINGS),
        ResultTable("untried", "Not measured", ("part", "why"), untried),
    )
    return Findings(
        title,
        _answer(rows, no_ceilings),
        tuple(table for table in tables if table.rows),
        tuple(_notes(experiment, measured, no_ceilings)),
    )


_COLUMNS = (
    "part", "type", "time %", "slower by %", "decides %", "low %", "high %", "if perfect saves %", "attained %", "pairs"
)  # fmt: skip
_NOTE = "Shares of the step time. Decides: what the step waits for of the part's time, with its 95 % CI."
_MEANINGS = {
    "time %": "of the step, forward and backward, or the update, or the making of a batch",
    "slower by %": "of its own time, in the experiment",
    "decides %": "of the step: time, times the growth of the step for each second of delay",
    "if perfect saves %": "of the step, if the part ran as fast as this device could; null where no ceiling is known",
    "attained %": "share of what this device could do, from the run",
}


def _part_row(part: StepPart) -> tuple[Value, ...]:
    wait, low, high = (value if math.isnan(value) else min(1.0, max(0.0, value)) for value in part.interval())
    saves = None if part.attained is None else 100 * part.share * wait * (1 - part.attained)
    decided = [None if math.isnan(value) else 100 * part.share * value for value in (wait, low, high)]
    return (
        part.label, part.type, 100 * part.share, 100 * part.delayed, *decided, saves,
        None if part.attained is None else 100 * part.attained, len(part.waits),
    )  # fmt: skip


def _rank(row: tuple[Value, ...]) -> tuple[bool, Any, Any]:
    """Return the key of a row: first what is known to save, by how much, then the rest by what it decides."""
    return row[7] is not None, row[7] or 0.0, row[4] or 0.0


def _answer(rows: Sequence[tuple[Value, ...]], no_ceilings: str) -> str:
    if not rows:
        return "Nothing could be measured: see below why."
    measured = [row for row in rows if isinstance(row[5], float) and row[5] > 0]
    if not measured:
        return "Cannot tell yet: the step was not surely seen to wait for any part; run it longer (--minutes)."
    saving = [row for row in measured if isinstance(row[7], float) and row[7] > 0]
    chosen = saving[0] if saving else max(measured, key=lambda row: _rank(row)[2])
    name, best, low, high, saves = chosen[0], chosen[4], chosen[5], chosen[6], chosen[7]
    decides = f"decides {best:.0f} % [{low:.0f}, {high:.0f}] of the step"
    if saves is not None:
        return f"{name}, if perfect, would save {saves:.0f} % of the step; it {decides}."
    return f"{name} {decides}; what a perfect one would save cannot be told: {no_ceilings or _NO_CEILING}."


_NO_CEILING = "no ceiling is known for it"


def _notes(experiment: WhatIf, measured: Sequence[StepPart], no_ceilings: str) -> Iterator[str]:
    if experiment.interrupted:
        yield "Interrupted: the parts below were measured before."
    if no_ceilings and any(part.kind == LAYER for part in measured):
        yield (
            f"No saving is stated: {no_ceilings}. On an idle machine `stepscope doctor --ceilings` measures them; "
            "then record the run again, and ask again."
        )
    wide = [part.label for part in measured if not part.clear]
    if wide:
        yield f"Not clear yet: {', '.join(wide)}; run it longer (--minutes)."
    yield "Shares of time are of the run that was named; what a part decides was measured now, on the same device."
    yield "A saving is an upper bound: a part at the ceilings of the device, the others as they are."
