"""Sentences on what a run gave up to keep to its room on the disk (`--max-disk`)."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.runfolder import RunReader
from stepscope.units import duration, plural


def thinning_sentences(run: RunReader) -> Iterator[str]:
    """Yield which samples are means, of which steps a part is there, and how many windows of operators."""
    begin_ns = int((run.meta.get("clock") or {}).get("monotonic_ns") or 0)
    spans = run.thinned_samples
    for grain in sorted({length for *_, length in spans}, reverse=True):
        first = min(t0 for t0, _, length in spans if length == grain) - begin_ns
        last = max(t1 for _, t1, length in spans if length == grain) - begin_ns
        yield f"samples from {duration(max(first, 0))} to {duration(last)} of the run are means of {plural_s(grain)}"
    if files := run.thinned_steps:
        made, coarsest = run.steps["step"].max(), max(part.grain for part in files)
        yield (
            f"{len(run.steps):,} of {plural(int(str(made or 0)) + 1, 'step')} are there: all profiled ones, and of "
            f"long ago one block of 64 in up to {coarsest:,}"
        )
    there, recorded = run.windows_recorded
    if run.max_disk is not None and there < recorded:
        yield f"{there:,} of {plural(recorded, 'window')} of operators are there, chosen at random"


def plural_s(seconds: int) -> str:
    """Return a length of means."""
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
