"""The steps of a run as they are written: brought to the disk now and then, and taken back where they were none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stepscope.record.framework import Loss
from stepscope.record.settings import FLUSH_EVERY_NS
from stepscope.runfolder import RunWriter

_KEPT = 512  # that can still be joined


class StepLog:
    """Writes steps and notes what the disk refuses; `lost` counts the times that it did."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._last: deque[tuple[int, int, int]] = deque(maxlen=_KEPT)  # number, beginning and end
        self._waiting: list[tuple[int, int, int, int | None, Loss, bool]] = []  # for losses that are read later
        self.flushed_ns = self.lost = 0
        self._diverged = False  # a loss was NaN

    def add_step(
        self,
        writer: RunWriter,
        step: int,
        span_ns: tuple[int, int],
        samples: int | None,
        loss: Loss,
        whole: bool,
    ) -> None:
        """Write a step of this span; whole: its ops are recorded as a whole."""
        self._waiting.append((step, *span_ns, samples, loss, whole))
        if len(self._waiting) == 1 and not callable(loss):
            self._read_losses(writer)
        self._last.append((step, *span_ns))

    def flush(self, writer: RunWriter, now_ns: int) -> None:
        """Bring the steps so far to the disk, where the last time is long enough ago."""
        if now_ns - self.flushed_ns <= FLUSH_EVERY_NS:
            return
        self.flushed_ns = now_ns
        self._read_losses(writer)
        try:
            writer.flush_steps()
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                self._note(
                    "steps-lost", f"the times of some steps could not be written: {error}", step=self._last[-1][0]
                )

    def close(self, writer: RunWriter, status: str, reason: str | None) -> None:
        """Write what waits for its loss, and close the run."""
        try:
            self._read_losses(writer)
        finally:
            writer.close(status, reason)

    def _read_losses(self, writer: RunWriter) -> None:
        while self._waiting:  # an interrupt, which a wait for an accelerator invites, loses none of them
            step, t0_ns, t1_ns, samples, loss, whole = self._waiting[0]
            value = loss() if callable(loss) else loss
            writer.append_step(step, t0_ns, t1_ns, samples, value, whole)
            del self._waiting[0]
            if value is not None and value != value and not self._diverged:  # in its row NaN reads as none
                self._diverged = True
                self._note("loss-nan", f"the loss of step {step} is NaN, and is not stored", step=step)

    def replace_steps(self, writer: RunWriter, first_ns: int, ends_ns: tuple[int, ...]) -> tuple[int, int] | None:
        """Make steps that end at these times of those since the one in which `first_ns` lies.

        Return the number of the first of them, and when the open step begins; None where they cannot be taken back.
        """
        self._read_losses(writer)
        step, begin_ns, _ = next((entry for entry in self._last if entry[2] >= first_ns), (None, 0, 0))
        if step is None or (step and step == self._last[0][0]) or not writer.drop_steps_from(step):
            return None
        what = f"{len(ends_ns)} rounds of optimizers" if ends_ns else "none, since an optimizer updates"
        count = self._last[-1][0] + 1 - step + (len(ends_ns) > 0)
        self._note("steps-joined", f"{count} updates since step {step} were found to be {what}", step=step)
        self._last.clear()
        for number, end_ns in enumerate(ends_ns, step):
            self.add_step(writer, number, (begin_ns, end_ns), None, None, False)
            begin_ns = end_ns
        return step, begin_ns
