"""What else kept the cores busy: a step that shares them with other programs is not this training's step alone."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.analysis.measured import Measured
from stepscope.units import number

_WORTH_SAYING = 0.2  # of one core


def background_cpu_use(measured: Iterable[Measured]) -> list[Measured]:
    """Cores that other processes kept busy: those of all cores (Eq. 1) less the trainer's and its children's own.

    The sampler counts as one of the others (it is stated on its own). Nothing where one of the two is missing; the
    bounds are those of both together, the widest case.
    """
    rows = [row for row in measured if row.value is not None]
    cores = [row for row in rows if row.metric == "core_utilisation"]
    own = [row for row in rows if row.metric == "process_cpu_utilisation"]
    if not cores or not any(row.scope == "process" for row in own):
        return []
    value = max(0.0, _total(cores, "value") - _total(own, "value"))
    low = max(0.0, _total(cores, "low") - _total(own, "high"))
    high = max(0.0, _total(cores, "high") - _total(own, "low"))
    note = f"of {len(cores)} cores: all that were busy, less the trainer's own"
    return [Measured("background_cpu_use", "system", value, "cores", low, high, cores[0].n, cores[0].source, note)]


def warning(use: list[Measured]) -> str:
    """A sentence where others took enough of the machine to change what was measured, else nothing."""
    if not use or use[0].low is None or use[0].low < _WORTH_SAYING:
        return ""
    busy = number(use[0].value, 2)
    cores = "core" if busy == "1" else "cores"
    return f" Other programs kept {busy} {cores} busy meanwhile: times and energy are not this training's alone."


def _total(rows: list[Measured], bound: str) -> float:
    """Sum of a bound, which for a row without an interval is its value."""
    return sum(float(getattr(row, bound) if getattr(row, bound) is not None else row.value or 0.0) for row in rows)
