"""Pauses between steps, as of an evaluation or a save: those of a run, and what those of a whole training take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.time.steps import PAUSE, all_timed_steps
from stepscope.arrays import Flags, Floats
from stepscope.runfolder import RunReader

_OF_LONGEST = 0.05  # what is shorter is a stall of a step: many of them would hide how regularly the long ones come
_FEWEST_BOUNDARIES = 10
_FEWEST_CYCLES = 3  # below, nothing tells how regularly pauses come: then as if by chance
_NORMAL = 1.96


@dataclass(frozen=True)
class StepsAndPauses:
    """Steps (n rows) that end where the next one begins, except before a pause; and the pauses (m rows).

    is_boundary: (n,) whether what follows a step is known: beside a profiled step it is also the profiler's writing.
    at: (m,) places of the pauses among the known boundaries, of which there are `boundaries`; 1 is the first.
    unknown_share: of the time, between steps where no pause is known: those of the training and of the profiler.
    """

    steps: pl.DataFrame
    pauses: pl.DataFrame
    is_boundary: Flags
    at: Floats
    boundaries: int
    unknown_share: float

    def project(self, amounts: Floats, steps: int) -> tuple[float, float, float]:
        """Amount of all pauses in so many steps, half of its 95 % CI, and what of it was measured; amounts: (m,).

        From the first step's begin to the last one's end. The pauses that are to come do so at the rate at which they
        came; the CI is of a renewal process with rewards, which is narrow where they came regularly.
        """
        number = self.steps["step"].to_numpy().astype(np.int64)
        inside = number[:-1] - number[0] < steps - 1 if len(number) else np.empty(0, dtype=bool)
        more = max(steps - 1 - int((inside & self.is_boundary[:-1]).sum()), 0)
        measured = float(amounts[self.pauses["step"].to_numpy() - number[0] < steps - 1].sum()) if len(amounts) else 0.0
        if not more or not len(amounts):
            return measured, 0.0, measured
        count, size = len(amounts), float(amounts.mean())
        # The stretch behind the last pause tells of the rate only where it is longer than those before.
        span = max(self.at[-1], self.boundaries - self.at[-1] / count)
        rate, cycles = float(amounts.sum()) / span, more * count / span
        beyond = amounts - rate * np.diff(self.at, prepend=0.0)
        regular = count >= _FEWEST_CYCLES
        variance = float((beyond**2).sum()) / (count - 1) if regular else size**2
        variance = variance * (cycles + cycles**2 / count) + size**2 / 6  # and where between two pauses it ends
        factor = float(special.stdtrit(count - 1, 0.975)) if regular else _NORMAL
        return measured + rate * more, factor * float(np.sqrt(variance)), measured

    @property
    def spans(self) -> pl.DataFrame:
        """Begin and end of the steps and, behind them, of the pauses: (n + m rows)."""
        return pl.concat([part.select(pl.col("t0_ns", "t1_ns").cast(pl.Int64)) for part in (self.steps, self.pauses)])

    def total(self, amounts: Floats) -> float | None:
        """Return what the run took by amounts of the steps and pauses, (n + m,); NaN counts as the others do."""
        count = len(self.steps)
        steps, pauses = amounts[:count], self.fill_unknown(amounts[count:])
        if np.isnan(steps).all() or np.isnan(pauses).any():
            return None
        return float(np.nanmean(steps)) * count + float(pauses.sum()) * (count - 1) / max(self.boundaries, 1)

    def fill_unknown(self, amounts: Floats) -> Floats:
        """Amounts of the pauses, (m,), those not known (NaN) at the mean rate of the others."""
        lengths, read = self.pauses["length_ns"].to_numpy(), ~np.isnan(amounts)
        if read.all():
            return amounts
        return np.where(read, amounts, lengths * (amounts[read].sum() / lengths[read].sum() if read.any() else np.nan))


def steps_and_pauses(run: RunReader, steps: pl.DataFrame) -> StepsAndPauses:
    """Return what lies between these steps after warm-up: what is short belongs to the step before it."""
    t0, t1 = (steps[name].to_numpy().astype(np.int64) for name in ("t0_ns", "t1_ns"))
    gap = np.maximum(t0[1:] - t1[:-1], 0)
    timed, which = all_timed_steps(run)
    bare = steps["step"].is_in(timed["step"].implode()).to_numpy() & (which == "unprofiled steps")
    follows = np.diff(steps["step"].to_numpy().astype(np.int64)) == 1
    is_boundary = follows & bare[:-1] & bare[1:]
    is_boundary &= is_boundary.sum() >= _FEWEST_BOUNDARIES
    usual = np.median(gap[is_boundary]) + PAUSE * np.median(t1 - t0) if is_boundary.any() else np.inf
    long = is_boundary & (gap > usual) & (gap > _OF_LONGEST * gap[is_boundary].max(initial=0))
    place = np.flatnonzero(long)
    ends = np.append(np.where(is_boundary & ~long, t0[1:], t1[:-1]), t1[-1:])
    pauses = pl.DataFrame({"step": steps["step"].gather(place), "t0_ns": t1[place], "t1_ns": t0[place + 1]})
    return StepsAndPauses(
        steps.with_columns(t1_ns=pl.Series(ends), length_ns=pl.Series(ends - t0)),
        pauses.with_columns(length_ns=pl.col("t1_ns") - pl.col("t0_ns")),
        np.append(is_boundary, is_boundary.any())[: len(steps)],
        np.cumsum(is_boundary)[place].astype(np.float64),
        int(is_boundary.sum()),
        0.0 if long.any() else float(gap[follows & ~is_boundary].sum()) / max(float((t1[-1:] - t0[:1]).sum()), 1.0),
    )
