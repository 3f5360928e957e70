"""`stepscope.compare`: runs side by side, and what explains the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.channels import board_computes
from stepscope.analysis.compare import explanation
from stepscope.analysis.compare.explanation import (
    RESIDUAL,
    TIME_BY,
    UNATTRIBUTED_PARTS,
    Explanation,
    explain_time,
)
from stepscope.analysis.compare.layers import QUANTITIES, LayerRow, layers_of_sides
from stepscope.analysis.compare.program import Program, program_changes
from stepscope.analysis.compare.run_groups import (
    ALL_STEPS,
    CHANGES,
    PROFILED,
    RunGroup,
    Setting,
    difference_label,
    match_settings,
    pooled_step_time,
    quantities,
    run_group,
    setting_differences,
    total_supplies,
)
from stepscope.analysis.compare.surroundings import EXPLAINS, Surrounding, load_without_waits, surroundings
from stepscope.analysis.energy.mean_step import samples_per_step
from stepscope.analysis.estimate import Estimate, geometric_mean_of_ratios
from stepscope.analysis.metrics import background_load_of, background_warning
from stepscope.analysis.run import Run
from stepscope.analysis.summary import COMPUTED, memory_is_computed
from stepscope.errors import UnknownName, UsageError
from stepscope.fault_isolation import wrap_analysis_faults
from stepscope.plugins import notebook_html
from stepscope.quantities import find_quantity, sort_metrics
from stepscope.units import duration, estimate, number, percent, row_label, si

WHAT = {
    "time": tuple(TIME_BY),
    "kernels": tuple(TIME_BY),
    "memory": explanation.MEMORY_BY,
    "energy": explanation.ENERGY_BY,
}
PER = ("step", "sample")
_NAMED = 3  # parts in a sentence
_TELLING = 0.05  # of the difference
_APART = 1.25  # times: between the ratios of the median steps and of the throughputs, from which on both are said
_TOO_MUCH = 0.2  # of the difference, to be left without a word


@dataclass(frozen=True)
class Comparison:
    """Operands, the settings that they share, and sentences on what could not be compared; the first is the reference.

    `per` is "step" or "sample": what the parts of time and energy are counted by.
    """

    run_groups: tuple[RunGroup, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]
    per: str = "step"

    def _repr_html_(self) -> str | None:
        """What Jupyter shows; None, and so the plain text, without the extra `report`."""
        return notebook_html("Comparison", self)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.names)}>"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(group.name for group in self.run_groups)

    @cached_property
    def quantities(self) -> pl.DataFrame:
        """A row a setting, metric, scope and side: value, interval, ratio to the first. See stepscope.quantities."""
        frames = [quantities(setting.sides).with_columns(setting=pl.lit(setting.label)) for setting in self.settings]
        return pl.concat(frames)

    @cached_property
    def _explained(self) -> dict[tuple[str, str, int, int], Explanation]:
        """Explanations that were given before: sentences and tables ask for the same ones."""
        return {}

    def overall_ratios(self) -> Iterator[tuple[str, int, Estimate]]:
        """Title of each metric, number of a side, and its ratio to the first over all settings that have one."""
        for metric in sort_metrics(self.quantities["metric"]):
            for other in range(1, len(self.run_groups)):
                if (ratio := self.overall(metric, other)) is not None:
                    rows = self._rows_of_scope(metric, other)
                    of = f" of {rows['scope'][0]}" if "energy" in metric or "power" in metric else ""
                    fewer = f" ({len(rows)} of them)" if len(rows) < len(self.settings) else ""
                    yield f"{find_quantity(metric).title}{of}{fewer}", other, ratio

    def overall(self, metric: str, other: int = 1) -> Estimate | None:
        """Geometric mean of other / first over the settings, of the scope of that metric which most of them have."""
        rows = self._rows_of_scope(metric, other).iter_rows(named=True)
        return geometric_mean_of_ratios(Estimate(r["ratio"], r["ratio_low"], r["ratio_high"]) for r in rows)

    def _rows_of_scope(self, metric: str, other: int) -> pl.DataFrame:
        """Return a row a setting, all of one scope: another one's ratio would be of another thing."""
        rows = self.quantities.filter(metric=metric, side=other).filter(pl.col("ratio").is_not_null())
        scopes = rows.group_by("scope", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
        return rows.filter(pl.col("scope").is_in(scopes["scope"].head(1).implode()))

    def explain(self, what: str = "time", by: str = "module", other: int = 1, setting: int = 0) -> Explanation:
        """Return the parts that make the difference between a side (from 1) and the first: they add up to it.

        what: "time" (of the CPU threads), "kernels" (of accelerators), "memory" (the live peak) or "energy"; by:
        "module", "type", "kind" or "phase", and for memory "category" in its place.
        """
        if what not in WHAT:
            raise UnknownName("thing to explain", what, WHAT)
        if by not in WHAT[what]:
            raise UnknownName(f"way to divide {what}", by, WHAT[what])
        if not 0 < other < len(self.run_groups) or not 0 <= setting < len(self.settings):
            raise UsageError(
                f"there is no side {other} in setting {setting}", "sides are numbered from 1, settings from 0"
            )
        question = (what, by, other, setting)
        if question not in self._explained:
            self._explained[question] = self._explain(*question)
        return self._explained[question]

    def _explain(self, what: str, by: str, other: int, setting: int) -> Explanation:
        sides = self.settings[setting].sides
        first, second, per_sample = sides[0], sides[other], self.per == "sample"
        if what == "memory":
            return explanation.explain_memory(first, second, by)
        if what == "energy":
            return explanation.explain_energy(first, second, by, per_sample)
        return explain_time(first, second, by, what == "kernels", per_sample)

    def surroundings(self, other: int = 1, setting: int = 0) -> tuple[Surrounding, ...]:
        """Return what of the difference in time the machine explains: load, quota, clock, memory; ns, by `per`."""
        sides = self.settings[setting].sides
        return surroundings(sides[0], sides[other], self.per)

    def by_the_machine(self, other: int = 1, setting: int = 0) -> bool:
        """Return whether the machine explains half of the difference in time, or all that was changed."""
        around = self.surroundings(other, setting)
        same = bool(around) and not self.differences(other, setting) and self.program(other, setting).calls is not None
        return same or sum(part.share for part in around) >= EXPLAINS

    def why_no_layer(self, other: int = 1, setting: int = 0) -> str:
        """Return why no layer explains the difference in time, as a sentence; empty where layers may."""
        if pair := self.differences(other, setting).get(PROFILED):
            of = side_letter(0 if pair[0] == ALL_STEPS else other)
            return f"No layer is named: every step of {of} was profiled, which lengthens it by an unknown part."
        if self.by_the_machine(other, setting):
            return "No layer is named: the machine differed, and layers took longer or shorter with it."
        sides = self.settings[setting].sides
        load = load_without_waits(sides[0], sides[other])
        return f"No layer is named: {load}." if load else ""

    def program(self, other: int = 1, setting: int = 0) -> Program:
        """Return what a step of a side does otherwise than one of the first: layers, FLOPs, operator calls, counted."""
        sides = self.settings[setting].sides
        return program_changes(sides[0], sides[other])

    def differences(self, other: int = 1, setting: int = 0) -> dict[str, tuple[Any, Any]]:
        """Return the settings and devices that a side and the first do not have in common, stated or seen."""
        first, second = (self.settings[setting].sides[side][0] for side in (0, other))
        return setting_differences(first, second)

    def layers(self, quantity: str = "time", setting: int = 0) -> list[LayerRow]:
        """Return each layer with its value on every side: "time" (self, ns), "energy" (J) or "memory" (live, B).

        Each value says whether it is larger or smaller than the first's; times are not judged where no layer explains
        their difference (`why_no_layer`), nor joules or bytes of unlike sources.
        """
        if quantity not in QUANTITIES:
            raise UnknownName("quantity of layers", quantity, QUANTITIES)
        sides = self.settings[setting].sides
        judged = [other for other in range(1, len(sides)) if self._judges_layers(quantity, other, setting)]
        return layers_of_sides(sides, quantity, judged)

    def _judges_layers(self, quantity: str, other: int, setting: int) -> bool:
        if quantity == "time":
            return not self.why_no_layer(other, setting)
        sides = self.settings[setting].sides
        unlike = explanation.reason_unlike if quantity == "energy" else explanation.reason_unlike_peaks
        return not unlike(sides[0], sides[other])

    def sentences(self, setting: int = 0) -> list[str]:
        """Return a sentence for each side but the first: how much longer its step is, and by which parts."""
        return [_difference_sentence(self, other, setting) for other in range(1, len(self.run_groups))]

    def to_dict(
        self, by: Sequence[str] = ("module", "type", "kind"), whats: Sequence[str] = tuple(WHAT)
    ) -> dict[str, Any]:
        """Everything as plain JSON values, SI units; null is not measured."""
        return {
            "sides": [{"name": group.name, "runs": [str(run.path) for run in group.runs]} for group in self.run_groups],
            "per": self.per,
            "notes": list(self.notes),
            "quantities": self.quantities.to_dicts(),
            "settings": [self._setting(index, by, whats) for index in range(len(self.settings))],
        }

    def _setting(self, index: int, by: Sequence[str], whats: Sequence[str]) -> dict[str, Any]:
        others = range(1, len(self.run_groups))
        return {
            "setting": self.settings[index].label,
            "sentences": self.sentences(index),
            "layers": {name: [asdict(row) for row in self.layers(name, index)] for name in QUANTITIES},
            "differences": [self.differences(other, index) for other in others],
            "surroundings": [[asdict(part) for part in self.surroundings(other, index)] for other in others],
            "program": [asdict(self.program(other, index)) for other in others],
            "explanations": [_explanation_dict(self.explain(what, way, other, index), other)
                             for other in others for what in whats for way in by if way in WHAT[what]],
        }  # fmt: skip


@wrap_analysis_faults
def compare(runs: Sequence[str | Path | Run], per: str = "step", attribution: str = "fit") -> Comparison:
    """Compare two to ten runs, folders of runs (repeats, or a device's) or folders of sweeps with the first of them.

    per: "step", or "sample" for parts of time and energy a training sample, where batch sizes differ. Raises
    UsageError where there is nothing in common, and RunError where one cannot be read.
    """
    if per not in PER:
        raise UnknownName("unit to count parts by", per, PER)
    run_groups = tuple(run_group(run, attribution) for run in runs)
    settings, notes = match_settings(run_groups)
    if per == "sample" and any(
        samples_per_step(run) is None for setting in settings for side in setting.sides for run in side
    ):
        raise UsageError("per='sample': the samples of a step were not counted in all runs", "compare per step")
    return Comparison(_distinct_names(run_groups), settings, (*notes, *_warnings(settings, run_groups)), per)


def supply_notes(sides: Sequence[Sequence[Run]]) -> Iterator[str]:
    """Yield what the totals of the sides are of, where that differs."""
    supplies = [" or ".join(total_supplies(runs)) for runs in sides]
    if len(set(filter(None, supplies))) > 1:
        of = "; ".join(f"{side_letter(side)}: {supply or 'none'}" for side, supply in enumerate(supplies))
        yield f"Total power and energy are not of the same supply, and have no ratio ({of})."


def _distinct_names(run_groups: tuple[RunGroup, ...]) -> tuple[RunGroup, ...]:
    """Operands with names of their own: the same folder name can be given twice."""
    if len({group.name for group in run_groups}) == len(run_groups):
        return run_groups
    return tuple(replace(group, name=f"{group.name} ({number})") for number, group in enumerate(run_groups, 1))


def _warnings(settings: Sequence[Setting], run_groups: Sequence[RunGroup]) -> Iterator[str]:
    if any(len(side) == 1 for setting in settings for side in setting.sides):
        yield (
            "The interval of a single run covers its own steps, not how much runs differ. Several runs in one folder "
            "are taken as repeats."
        )
    for side, run in ((side, run) for side, group in enumerate(run_groups) for run in group.runs if run.status != "ok"):
        ended = "goes on" if run.status == "running" else f"ended as {run.status}"
        yield f"{side_letter(side)}: '{run.id}' {ended}: its numbers are of the steps until then."
    simulated = [
        (side_letter(side), run)
        for side, group in enumerate(run_groups)
        for run in group.runs
        if run.simulated is not None
    ]
    if simulated:
        sides = ", ".join(dict.fromkeys(side for side, _ in simulated))
        use = " and the use of its processors" if any(board_computes(run) for _, run in simulated) else ""
        yield f"SIMULATED sensors of {sides}: power, energy, heat{use} are of a simulated board, not of a device."
    yield from supply_notes([group.runs for group in run_groups])
    computed = [
        side_letter(side) for side, group in enumerate(run_groups) if any(memory_is_computed(run) for run in group.runs)
    ]
    if computed:
        yield f"COMPUTED memory of {', '.join(computed)}: live tensors there are {COMPUTED}."
    disturbed = [
        side_letter(side)
        for side, group in enumerate(run_groups)
        if any(background_warning(background_load_of(run)) for run in group.runs)
    ]
    if disturbed:
        yield f"Background CPU load during {', '.join(disturbed)}: times there are not the training's alone."


def side_letter(side: int) -> str:
    """Return A, B, C ... of a side."""
    return chr(ord("A") + side)


def _difference_sentence(comparison: Comparison, other: int, setting: int) -> str:
    ratio, sentence = _pace(comparison, other, setting)
    parts = [sentence, *_long_steps_text(comparison, ratio, other, setting)]
    parts += _changed_settings_text(comparison, other, setting)
    why = comparison.explain("time", "module", other, setting)
    program = comparison.program(other, setting).sentence(side_letter(other))
    difference = None if ratio is None else difference_label(ratio)
    if difference not in ("larger", "smaller"):
        no_more = "The steps do not tell a difference from chance: no part is named."
        if difference == "no interval":
            no_more = "So few steps have no CI, and no part is named: run longer."
        return " ".join(filter(None, [*parts, no_more, program]))
    if why.reason:
        return " ".join(filter(None, [*parts, program, f"Why is not known: {why.reason}."]))
    parts += [_around_sentence(part) for part in comparison.surroundings(other, setting)]
    parts += [program] if program else []
    if not comparison.differences(other, setting) and comparison.program(other, setting).calls is not None:
        parts += ["If the code is the same, the machine made the difference: the parts only say where it shows."]
    if why_none := comparison.why_no_layer(other, setting):
        return " ".join([*parts, why_none])
    phases, kinds = (comparison.explain("time", by, other, setting) for by in ("phase", "kind"))
    where = why if _largest(phases) in ("forward", "backward") else phases
    named = [text for explained in (where, kinds) if (text := _dominant_parts(explained))]
    parts += named or ["No layer or operator differs by more than chance explains."]
    return " ".join([*parts, *_unexplained_note(why)])


def _changed_settings_text(comparison: Comparison, other: int, setting: int) -> Iterator[str]:
    """Yield what was changed between two sides: the parts that follow come of it."""
    changes = comparison.differences(other, setting)
    named = [f"{name} {first} to {second}" for name in CHANGES if name in changes for first, second in [changes[name]]]
    if named:
        yield f"Changed: {', '.join(named)}."
    if "batch" in changes and comparison.per == "step":
        label, letter = comparison.settings[setting].label, side_letter(other)
        for row in comparison.quantities.filter(metric="throughput", side=other, setting=label).iter_rows(named=True):
            if row["ratio"] is not None:
                ratio = estimate(row["ratio"], row["ratio_low"], row["ratio_high"], "")
                yield f"Samples/s, {letter} / A: {ratio}; `--per sample` explains that difference."


def _long_steps_text(comparison: Comparison, ratio: Estimate | None, other: int, setting: int) -> Iterator[str]:
    """Yield the throughput where it tells otherwise than the median step: one side has steps that take far longer."""
    label, letter = comparison.settings[setting].label, side_letter(other)
    if ratio is None or "batch" in comparison.differences(other, setting):
        return
    rates = comparison.quantities.filter(pl.col("ratio").is_not_null(), metric="throughput", side=other, setting=label)
    for row in rates.iter_rows(named=True):
        if not 1 / _APART <= ratio.value * row["ratio"] <= _APART:
            achieved = estimate(row["ratio"], row["ratio_low"], row["ratio_high"], "")
            yield f"That is the median step. Samples/s with its long steps, {letter} / A: {achieved}."


def _largest(why: Explanation) -> str | None:
    """Return the name of the part that makes most of the difference, in its direction."""
    parts = why.parts.filter(pl.col("share") > 0).sort("share", descending=True)
    return None if parts.is_empty() else str(parts["name"][0])


def _around_sentence(part: Surrounding) -> str:
    """Return how much of the difference lies in the machine, with the evidence of both sides."""
    between = f"[{_signed(part.low, 'ns')}, {_signed(part.high, 'ns')}]"
    whole = f"{percent(min(part.share, 1.0), 0)} of the difference"
    return f"The machine ({part.name}): {_signed(part.difference, 'ns')} {between}, {whole}: {part.evidence}."


def _pace(comparison: Comparison, other: int, setting: int) -> tuple[Estimate | None, str]:
    """Return the ratio of a side's step time (or of a sample's) to the first's, None without one, and a sentence."""
    per, letter, sides = comparison.per, side_letter(other), comparison.settings[setting].sides
    before, after = (pooled_step_time(sides[side], per == "sample") for side in (0, other))
    ratio = after / before
    if ratio is None:
        return None, f"The step times of A and {letter} cannot be compared."
    difference = difference_label(ratio)
    if difference == "none seen":
        between = f"[{number(ratio.low)}, {number(ratio.high)}]"
        what = "step time" if per == "step" else "the time of a sample"
        return ratio, f"No difference in {what} seen between A and {letter} ({letter} / A: {between})."
    ends = f"({letter} / A: {estimate(*ratio.row, '')})"
    side, first, slower, faster, alike = letter, "A", "slower", "faster", "fast"
    if per == "step" and "batch" in comparison.differences(other, setting):  # other work: a shorter step is not faster
        side, first, slower, faster, alike = f"A step of {letter}", "one of A", "longer", "shorter", "long"
    pace, factor = (slower, ratio.value) if ratio.value >= 1 else (faster, 1 / ratio.value)
    if number(factor) == "1" and difference != "no interval":
        return ratio, f"{side} is as {alike} as {first}: {duration(after.value)} a {per} {ends}."
    times = f"{duration(after.value)} a {per} against {duration(before.value)}"
    if difference == "no interval":
        return ratio, f"Whether {letter} is {pace} than A cannot be told: {times} {ends}."
    return ratio, f"{side} is {number(factor)}x {pace} than {first}: {times} {ends}."


def _dominant_parts(why: Explanation) -> str:
    """The parts that make most of the difference, by name; not those that chance can explain, or without a CI."""
    whole = why.difference or 0.0
    chance = (pl.col("low") <= 0) & (pl.col("high") >= 0)
    parts = why.parts.filter(pl.col("difference") * whole > 0, pl.col("share") >= _TELLING)
    parts = parts.filter(~chance.fill_null(True)).sort(pl.col("difference").abs(), descending=True).head(_NAMED)
    if parts.is_empty():
        return ""
    named = ", ".join(f"{_quoted(r['name'])} {_signed(r['difference'], why.unit)} ({percent(r['share'], 0)})"
                      for r in parts.iter_rows(named=True))  # fmt: skip
    return f"By {why.by}: {named} of {_signed(whole, why.unit)}."


def _unexplained_note(why: Explanation) -> Iterator[str]:
    """Yield how much of the difference lies where steps were not profiled, as the large ones that are so in part."""
    for row in why.parts.filter(pl.col("name") == RESIDUAL, pl.col("share").abs() >= _TOO_MUCH).iter_rows(named=True):
        unexplained = f"{_signed(row['difference'], why.unit)} ({percent(row['share'], 0)})"
        yield f"{unexplained} lies in what was not profiled of the steps: no part explains that."


def _quoted(name: str) -> str:
    if name in UNATTRIBUTED_PARTS or name.startswith("("):
        return row_label(name)
    return f"'{name}'" if name else "(the model)"


def _signed(value: float, unit: str) -> str:
    text = duration(value) if unit == "ns" else si(value, unit)
    return text if value < 0 else f"+{text}"


def _explanation_dict(why: Explanation, other: int) -> dict[str, Any]:
    answer = {name: getattr(why, name) for name in ("what", "by", "unit", "first", "other", "low", "high", "note")}
    answer |= {"difference": why.difference, "reason": why.reason or None, "other_operand": other}
    return {**answer, "parts": why.parts.to_dicts()}
