"""How fast the training goes, from the steps that have ended."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from stepscope.report.live.tail import RowTail

STEP_ROW = struct.Struct("<4qdq")  # as runfolder.schema has it: step, t0_ns, t1_ns, samples, loss, recorded
_NO_SAMPLES = -1
_RECENT = 50  # steps


@dataclass(frozen=True)
class Pace:
    """Steps done; step time, ns, of the middle and on average with what lies between, over the last steps."""

    done: int = 0
    began_ns: int | None = None
    ended_ns: int | None = None
    step_ns: float | None = None
    mean_ns: float | None = None
    samples_per_s: float | None = None
    loss: float | None = None


class Steps:
    """Follows steps.rows."""

    def __init__(self, run: Path) -> None:
        self._tail = RowTail(run / "steps.rows", STEP_ROW)
        self._recent: deque[tuple[int, int, int, int, float, int]] = deque(maxlen=_RECENT)
        self._began_ns: int | None = None

    def look(self) -> Pace:
        """The pace with the steps that have come since the last look."""
        self._recent.extend(self._tail.new())
        if not self._recent:
            return Pace()
        if self._began_ns is None and (first := self._tail.first()) is not None:
            self._began_ns = int(first[1])
        return _pace(list(self._recent), self._began_ns)

    def close(self) -> None:
        """Let go of the file."""
        self._tail.close()


def _pace(recent: list[tuple[int, int, int, int, float, int]], began_ns: int | None) -> Pace:
    lengths = [t1 - t0 for _, t0, t1, *_ in recent]
    first, last = recent[0], recent[-1]
    span_ns = last[2] - first[1]
    counted = all(row[3] != _NO_SAMPLES for row in recent)
    loss = last[4]
    return Pace(
        done=last[0] + 1,
        began_ns=began_ns,
        ended_ns=last[2],
        step_ns=median(lengths),
        mean_ns=span_ns / len(recent),
        samples_per_s=sum(row[3] for row in recent) * 1e9 / span_ns if counted and span_ns > 0 else None,
        loss=loss if loss == loss else None,  # NaN is "not given"
    )
