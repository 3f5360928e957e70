"""Two energies of a step: the sum of operators, which is fitted, and the mean of the readings alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analysis.energy.fit_inputs import BETWEEN, PAUSES
from stepscope.units import estimate, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_NOTABLE = 0.05  # of the fitted energy


def fit_against_readings_sentences(run: Run, kinds: pl.DataFrame, rail: str) -> list[str]:
    """Return the sentence on a rail of which the two are far apart; kinds: the energy of operators by kind.

    A sensor that averages has also read what was before a short run: the fit takes that out, the mean of the readings
    does not, and its CI says so.
    """
    parts = kinds.filter((pl.col("rail") == rail) & ~pl.col("name").is_in([BETWEEN, PAUSES]))
    fitted = float(parts["joules_per_step"].drop_nulls().sum())
    row = next(iter(run.energy_tables.rails.filter(pl.col("rail") == rail).to_dicts()), {})
    alone = row.get("joules_per_step")
    if run.attribution != "fit" or not fitted or not alone or abs(alone / fitted - 1) < _NOTABLE:
        return []
    readings = estimate(alone, row["joules_per_step_low"], row["joules_per_step_high"], "J")
    return [
        f"{rail}: operators sum to {si(fitted, 'J')} a step, fitted with what the sensor averages; the total above is "
        f"the mean of its readings, {readings}: in a longer run they agree"
    ]
