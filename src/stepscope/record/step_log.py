"""The steps of a run as they are written: brought to the disk now and then, and taken back where they were none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stepscope.record.framework import FLUSH_EVERY_NS
from stepscope.runfolder import RunWriter

_KEPT = 512  # that can still be joined


class StepLog:
    """Writes steps and notes what the disk refuses; `lost` counts the times that it did."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._last: deque[tuple[int, int, int]] = deque(maxlen=_KEPT)  # number, beginning and end
        self.flushed_ns = self.lost = 0

    def write(
        self,
        writer: RunWriter,
        step: int,
        span_ns: tuple[int, int],
        samples: int | None,
        loss: float | None,
        whole: bool,
    ) -> None:
        """Write a step of this span; whole: its ops are recorded as a whole."""
        writer.step(step, *span_ns, samples, loss, whole)
        self._last.append((step, *span_ns))

    def flush(self, writer: RunWriter, now_ns: int) -> None:
        """Bring the steps so far to the disk, where the last time is long enough ago."""
        if now_ns - self.flushed_ns <= FLUSH_EVERY_NS:
            return
        self.flushed_ns = now_ns
        try:
            writer.flush_steps()
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                self._note(
                    "steps-lost", f"the times of some steps could not be written: {error}", step=self._last[-1][0]
                )

    def join(self, writer: RunWriter, first_ns: int, middle_ns: int, last_ns: int) -> int | None:
        """Make two steps, until `middle_ns` and `last_ns`, of those since the one in which `first_ns` lies.

        Return the number of the first of them; None where that step is too long ago, or cannot be taken back.
        """
        step, begin_ns, _ = next((known for known in self._last if known[2] >= first_ns), (None, 0, 0))
        if step is None or (step and step == self._last[0][0]) or not writer.take_back(step):
            return None
        message = f"{self._last[-1][0] + 2 - step} updates since step {step} were found to be two rounds of optimizers"
        self._note("steps-joined", message, step=step)
        self._last.clear()
        self.write(writer, step, (begin_ns, middle_ns), None, None, False)
        self.write(writer, step + 1, (middle_ns, last_ns), None, None, False)
        return step
