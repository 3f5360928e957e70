"""`stepscope.forecast`: a whole training from a few measured steps, as `stepscope forecast` says it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analysis import forecast as extrapolated
from stepscope.analysis.run import opened
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope import Run
    from stepscope.analysis.forecast import Forecast


def forecast(
    run: str | Path | Run = "last",
    *,
    steps: int | None = None,
    epochs: float | None = None,
    battery_wh: float | None = None,
    carbon_g_per_kwh: float | None = None,
) -> Forecast:
    """Foretell a training of so many steps or epochs from a run: time, energy, battery, carbon, end temperature.

    run: a Run, the path of its folder, its name in `runs`, or "last"; measure a workload first with
    `stepscope.measure`. Totals in s, J, shares of the battery, g and degC, each with an interval of 95 %; what needs
    energy is absent where none was measured. Raises UsageError where too few steps were measured, or where the steps
    of an epoch are not known; RunError where the run cannot be read.
    """
    if (steps is None) == (epochs is None):
        raise UsageError("how long is the training?", "give either steps= or epochs=")
    for name, value in (("battery_wh", battery_wh), ("carbon_g_per_kwh", carbon_g_per_kwh), ("epochs", epochs)):
        if value is not None and not value > 0:
            raise UsageError(f"{name}={value:g}: must be above 0", f"for example {name}=50")
    if steps is not None and steps < 1:
        raise UsageError("a training has at least one step", "for example steps=1000")
    source = opened(run)
    wanted = steps if steps is not None else extrapolated.steps_of(source, epochs or 1.0)
    joules = None if battery_wh is None else battery_wh * extrapolated.J_PER_WH
    grams_per_j = None if carbon_g_per_kwh is None else carbon_g_per_kwh * extrapolated.KWH_PER_J
    return extrapolated.forecast(source, wanted, joules, grams_per_j)
