"""`stepscope.compare`: two to ten runs, repeats, devices or sweeps side by side, and what explains the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from stepscope.analysis import compare_energy, compare_memory
from stepscope.analysis.background import warning
from stepscope.analysis.compare_parts import BY, RESIDUALS, Explanation, samples_per_step, time_explained
from stepscope.analysis.compare_quantities import QUANTITIES, Ratio, overall, quantities
from stepscope.analysis.compare_sides import Operand, Setting, differing, matched, operand
from stepscope.analysis.compare_timed import TIMED
from stepscope.analysis.measured import Measured
from stepscope.analysis.run import Run
from stepscope.errors import UnknownName, UsageError
from stepscope.units import duration, number, percent, si

WHAT = {"time": tuple(BY), "kernels": tuple(BY), "memory": compare_memory.BY, "energy": compare_energy.BY}
PER = ("step", "sample")
_NAMED = 3  # parts in a sentence
_TELLING = 0.05  # of the difference
_TOO_MUCH = 0.2  # of the difference, to be left without a word


@dataclass(frozen=True)
class Comparison:
    """Operands, the settings that they share, and sentences on what could not be compared; the first is the reference.

    `per` is "step" or "sample": what the parts of time and energy are counted by.
    """

    # How a notebook shows it, as of `Run`.
    shown_as_html: ClassVar[Callable[[Comparison], str | None] | None] = None

    operands: tuple[Operand, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]
    per: str = "step"

    def _repr_html_(self) -> str | None:
        """What Jupyter shows; None, and so the plain text, where nothing draws it."""
        draw = type(self).shown_as_html
        return None if draw is None else draw(self)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.names)}>"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.operands)

    @cached_property
    def quantities(self) -> pl.DataFrame:
        """A row a setting, metric, scope and operand: value, interval, ratio to the first. See compare_quantities."""
        frames = [quantities(one.sides).with_columns(setting=pl.lit(one.label)) for one in self.settings]
        return pl.concat(frames)

    def overall(self, metric: str, other: int = 1) -> Ratio | None:
        """Geometric mean over the settings of other / first, of the scope of that metric which comes first."""
        rows = self.quantities.filter((pl.col("metric") == metric) & (pl.col("side") == other))
        rows = rows.filter(pl.col("ratio").is_not_null()).unique("setting", keep="first", maintain_order=True)
        return overall(Ratio(r["ratio"], r["ratio_low"], r["ratio_high"]) for r in rows.iter_rows(named=True))

    def explain(self, what: str = "time", by: str = "module", other: int = 1, setting: int = 0) -> Explanation:
        """Which parts make the difference between an operand (from 1) and the first: they add up to it.

        what: "time" (of the CPU threads), "kernels" (of accelerators), "memory" (the live peak) or "energy"; by:
        "module", "type", "kind" or "phase", and for memory "category" in its place.
        """
        if what not in WHAT:
            raise UnknownName("thing to explain", what, WHAT)
        if by not in WHAT[what]:
            raise UnknownName(f"way to divide {what}", by, WHAT[what])
        sides = self.settings[setting].sides
        first, second, per_sample = sides[0], sides[other], self.per == "sample"
        if what == "memory":
            return compare_memory.memory_explained(first, second, by)
        if what == "energy":
            return compare_energy.energy_explained(first, second, by, per_sample)
        return time_explained(first, second, by, what == "kernels", per_sample)

    def differences(self, other: int = 1, setting: int = 0) -> dict[str, tuple[Any, Any]]:
        """What the settings and devices of an operand and the first do not have in common."""
        sides = self.settings[setting].sides
        return differing(sides[0][0], sides[other][0])

    def sentences(self, setting: int = 0) -> list[str]:
        """For each operand but the first: how much longer its step is, and which parts that comes from."""
        return [_sentence(self, other, setting) for other in range(1, len(self.operands))]

    def to_dict(
        self, by: Sequence[str] = ("module", "type", "kind"), whats: Sequence[str] = tuple(WHAT)
    ) -> dict[str, Any]:
        """Everything as plain JSON values, SI units; null is not measured."""
        return {
            "operands": [{"name": one.name, "runs": [str(run.path) for run in one.runs]} for one in self.operands],
            "per": self.per,
            "notes": list(self.notes),
            "quantities": self.quantities.to_dicts(),
            "settings": [self._setting(index, by, whats) for index in range(len(self.settings))],
        }

    def _setting(self, index: int, by: Sequence[str], whats: Sequence[str]) -> dict[str, Any]:
        others = range(1, len(self.operands))
        return {
            "setting": self.settings[index].label,
            "sentences": self.sentences(index),
            "differences": [self.differences(other, index) for other in others],
            "explanations": [_plain(self.explain(what, way, other, index), other)
                             for other in others for what in whats for way in by if way in WHAT[what]],
        }  # fmt: skip


def compare(runs: Sequence[str | Path | Run], per: str = "step", attribution: str = "fit") -> Comparison:
    """Compare two to ten runs, folders of runs (repeats, or a device's) or folders of sweeps with the first of them.

    per: "step", or "sample" for parts of time and energy a training sample, where batch sizes differ. Raises
    UsageError where there is nothing in common, and RunError where one cannot be read.
    """
    if per not in PER:
        raise UnknownName("unit to count parts by", per, PER)
    operands = tuple(operand(run, attribution) for run in runs)
    settings, notes = matched(operands)
    if per == "sample" and any(samples_per_step(run) is None for one in settings for side in one.sides for run in side):
        raise UsageError("per='sample': the samples of a step were not counted in all runs", "compare per step")
    return Comparison(_distinct(operands), settings, (*notes, *_warnings(settings, operands)), per)


def _distinct(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Operands with names of their own: the same folder name can be given twice."""
    names = [one.name for one in operands]
    if len(set(names)) == len(names):
        return operands
    return tuple(Operand(f"{one.name} ({place})", one.runs, one.left_out) for place, one in enumerate(operands, 1))


def _warnings(settings: Sequence[Setting], operands: Sequence[Operand]) -> Iterator[str]:
    if any(len(side) == 1 for one in settings for side in one.sides):
        yield (
            "A single run says nothing of how much runs differ among themselves: its interval covers its own steps "
            "alone. Several runs in one folder are taken as repeats."
        )
    shared = {run.simulated is not None for one in operands for run in one.runs}
    if True in shared:
        yield "SIMULATED sensors: power and energy of some of these are of a simulated board, not of a device."
    disturbed = ", ".join(one.name for one in operands if any(_disturbed(run) for run in one.runs))
    if disturbed:
        yield f"Other programs kept cores busy during {disturbed}: times there are not the training's alone."


def _disturbed(run: Run) -> bool:
    return bool(warning([Measured(**row) for row in run.metrics().filter(metric="background_cpu_use").to_dicts()]))


def _sentence(comparison: Comparison, other: int, setting: int) -> str:
    rows = comparison.quantities.filter(
        (pl.col("setting") == comparison.settings[setting].label) & (pl.col("side") == other)
    )
    said = [f"{comparison.names[other]}: {_times(rows)}"]
    why = comparison.explain("time", "module", other, setting)
    if why.reason:
        return f"{said[0]} Why is not known: {why.reason}."
    if not _told(rows):
        return f"{said[0]} Such steps do not tell a difference apart from chance, so no part explains one."
    kinds = comparison.explain("time", "kind", other, setting)
    named = [text for each in (why, kinds) if (text := _dominant(each))]
    return " ".join([*said, *(named or ["No part of the recorded steps shows it."]), *_unexplained(why)])


def _times(rows: pl.DataFrame) -> str:
    step = rows.filter(pl.col("metric") == "step_time")
    if step.is_empty() or step["ratio"][0] is None:
        return "step times cannot be compared."
    row = step.row(0, named=True)
    if row["difference"] == "none seen":
        between = f"{number(row['ratio_low'])} to {number(row['ratio_high'])}"
        return f"no difference in step time seen (a step takes {between} times as long as the first's)."
    between = "" if row["ratio_low"] is None else f" ({number(row['ratio_low'])} to {number(row['ratio_high'])})"
    return f"a step takes {number(row['ratio'])}{between} times as long as the first's."


def _told(rows: pl.DataFrame) -> bool:
    """Whether there is a difference to explain."""
    return bool(rows.filter(pl.col("metric") == "step_time")["difference"].is_in(["larger", "smaller"]).any())


def _dominant(why: Explanation) -> str:
    """The parts that make most of the difference, by name; not those that chance can explain."""
    whole = why.difference or 0.0
    chance = (pl.col("low") <= 0) & (pl.col("high") >= 0)
    parts = why.parts.filter(pl.col("difference") * whole > 0, pl.col("share") >= _TELLING, pl.col("name") != TIMED)
    parts = parts.filter(~chance.fill_null(False)).head(_NAMED)
    if parts.is_empty():
        return ""
    named = ", ".join(f"{_said(r['name'])} {_amount(r['difference'], why.unit)} ({percent(r['share'], 0)})"
                      for r in parts.iter_rows(named=True))  # fmt: skip
    return f"By {why.by}: {named} of {_amount(whole, why.unit)}."


def _unexplained(why: Explanation) -> Iterator[str]:
    """Where the timed steps differ otherwise than the recorded ones that the parts are of: by how much."""
    row = why.parts.row(by_predicate=pl.col("name") == TIMED, named=True)
    if row["share"] is not None and abs(row["share"]) >= _TOO_MUCH and why.difference is not None:
        recorded = _amount(why.difference - row["difference"], why.unit)
        yield (
            f"The parts are of recorded steps, which differ by {recorded}; {_amount(row['difference'], why.unit)} "
            f"({percent(row['share'], 0)}) lies between those and the steps that the step time is of: no part explains "
            "that. More steps, or `--record all`, bring the two together."
        )


def _said(name: str) -> str:
    return name if name in RESIDUALS or name.startswith("(") else f"'{name}'" if name else "the model itself"


def _amount(value: float, unit: str) -> str:
    text = duration(value) if unit == "ns" else si(value, unit)
    return text if value < 0 else f"+{text}"


def _plain(why: Explanation, other: int) -> dict[str, Any]:
    kept = {name: getattr(why, name) for name in ("what", "by", "unit", "first", "other", "low", "high", "note")}
    kept |= {"difference": why.difference, "reason": why.reason or None, "other_operand": other}
    return {**kept, "parts": why.parts.to_dicts()}


__all__ = ["PER", "QUANTITIES", "WHAT", "Comparison", "compare"]
