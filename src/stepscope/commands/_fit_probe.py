"""`stepscope fit --probe`: the prediction against this device, batch after batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.units import bytes_, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from stepscope.analysis.memory_model import ProcessPeak
    from stepscope.studies.fit.answer import Question
    from stepscope.studies.fit.kept import Kept
    from stepscope.studies.fit.probe import Tried

_KEPT = 20  # ratios


def probe_and_keep(console: Console, question: Question, words: Sequence[str], kept: Kept) -> None:
    """Train for real, batch after batch; keep how far the predictions were off."""
    from stepscope.commands._fit_trade import child_command
    from stepscope.studies.fit import kept as kept_file
    from stepscope.studies.fit.answer import answer
    from stepscope.studies.fit.probe import probe

    def command(batch: int) -> list[str]:
        return child_command([*words, "--batch", str(batch)], 1)

    def predicted(batch: int) -> ProcessPeak:
        return answer(replace(question, batch=batch, options=False, largest=False, limit=None)).process

    limit = None if question.limit is None else float(question.limit.bytes)
    ratios = list(kept.ratios)
    for tried in probe(command, predicted, question.batch, limit, question.allocator):
        _show_try(console, tried)
        if tried.off != 1.0:
            ratios.append(round(tried.off, 4))
    if tuple(ratios) != kept.ratios:
        kept_file.save(replace(kept, ratios=tuple(ratios[-_KEPT:])), kept_file.place())
        console.print("Some peaks lay outside the prediction: later answers on this device allow for that.")


def _show_try(console: Console, tried: Tried) -> None:
    said = f"predicted {bytes_(tried.predicted.low)} to {bytes_(tried.predicted.high)}"
    if tried.peak_bytes is None:
        console.print(f"batch {tried.batch}: failed ({tried.failure}); {said}")
        return
    held = "within" if tried.off == 1.0 else f"off by {percent(tried.off - 1)}"
    console.print(f"batch {tried.batch}: measured {bytes_(tried.peak_bytes)}; {said}: {held}")
