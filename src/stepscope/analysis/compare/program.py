"""Differences between the steps of two sides as programs: layers, operator calls and FLOPs, counted and not timed.

Counts of the profiled steps do not depend on how busy a machine is, so that they tell a change of the program apart
from one of its surroundings: a loss that is read each step, a clipped gradient, another precision, a layer more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import CPU
from stepscope.arrays import Floats
from stepscope.runfolder import AUTOGRAD_NODE
from stepscope.units import number, plural, si

_OTHER_MODEL = 0.5  # of all layers: where more of them differ, it is another model
_NAMED = 3  # layers, and kinds of operator, in a sentence
_ALIKE = 0.01  # FLOPs are those of shapes that were seen: what differs by less is no change


@dataclass(frozen=True)
class ProgramChange:
    """One thing that a step does otherwise: "layer", "operator", "operator calls", "FLOPs" or "model".

    first and other: parameters of the layer, calls of the operator a step (median), FLOPs a step, layers of the model;
    None where a side has no such thing.
    """

    what: str
    name: str
    first: float | None
    other: float | None


@dataclass(frozen=True)
class Program:
    """Differences between the steps of two sides as programs.

    calls: operator calls of a step, where nothing differs. reason: why operator calls were not compared, or could not
    be told apart. layers_known: both sides have a model, whose layers were compared.
    """

    changes: tuple[ProgramChange, ...]
    calls: int | None = None
    reason: str = ""
    layers_known: bool = False

    def sentence(self, letter: str) -> str:
        """Return what differs, or that nothing does; empty where that is not known."""
        parts = [*self._layers(), *self._flops_texts(), *self._operators()]
        if parts:
            return f"{letter}'s step differs from A's: {'; '.join(parts)}."
        if self.calls is None:
            return ""
        same = ", in the same layers" if self.layers_known else ""
        return f"A and {letter} make the same {plural(self.calls, 'operator call')} a step{same}."

    def changes_of_kind(self, what: str) -> list[ProgramChange]:
        """Return the changes of one sort."""
        return [change for change in self.changes if change.what == what]

    def _layers(self) -> Iterator[str]:
        for change in self.changes_of_kind("model"):
            yield f"another model, {plural(int(change.other or 0), 'layer')} (A: {number(change.first or 0)})"
        changes = self.changes_of_kind("layer")
        for verb, names in (
            ("added", [change for change in changes if change.first is None]),
            ("removed", [change for change in changes if change.other is None]),
        ):
            if names:
                yield f"{plural(len(names), 'layer')} {verb} ({_abbreviated([change.name for change in names])})"
        sized = [change for change in changes if change.first is not None and change.other is not None]
        if sized:
            named = [f"{change.name} {_count_text(change.other)} (A: {_count_text(change.first)})" for change in sized]
            yield f"other parameters in {_abbreviated(named)}"

    def _flops_texts(self) -> Iterator[str]:
        for change in self.changes_of_kind("FLOPs"):
            yield f"{si(change.other or 0.0, 'FLOP')} (A: {si(change.first or 0.0, 'FLOP')})"

    def _operators(self) -> Iterator[str]:
        named = [
            f"{change.name} {_count_text(change.other)} (A: {_count_text(change.first)})"
            for change in self.changes_of_kind("operator")
        ]
        for change in self.changes_of_kind("operator calls"):
            calls = f"{_count_text(change.other)} operator calls (A: {_count_text(change.first)})"
            yield f"{calls}, above all {_abbreviated(named)}"


def _abbreviated(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _count_text(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f}"


def program_changes(first: Sequence[Run], other: Sequence[Run]) -> Program:
    """Return what a step of the other side does otherwise: layers, then FLOPs, then operators by their time."""
    layers = list(_layer_changes(first[0], other[0]))
    if any(change.what == "model" for change in layers):
        return Program(tuple(layers))
    sides = [_OperatorCalls.of(runs) for runs in (first, other)]
    before, after = sides
    if before is None or after is None:
        profiled = all(run.steps["recorded"].any() for run in (*first, *other))
        why = "the operators of one side are not PyTorch's" if profiled else "one side has no fully profiled step"
        return Program(tuple(layers), reason=why)
    changes = (*layers, *_flops(before, after), *_operator_changes(before, after))
    if changes or not _are_same(before, after):
        return Program(changes, reason="" if changes else "the operator calls of a step vary")
    are_known = all(_layers_of(side[0]) for side in (first, other))
    return Program((), round(float(np.median(after.total))), layers_known=are_known)


def _layer_changes(first: Run, other: Run) -> Iterator[ProgramChange]:
    """The layers that one side alone has, or that have other parameters; of another model their number alone."""
    sides = [_layers_of(run) for run in (first, other)]
    if not all(sides):
        return
    keys = list(dict.fromkeys((*sides[0], *sides[1])))
    changed = [key for key in keys if sides[0].get(key) != sides[1].get(key)]
    if len(set(sides[0]) ^ set(sides[1])) > _OTHER_MODEL * len(keys):
        yield ProgramChange("model", "layers", float(len(sides[0])), float(len(sides[1])))
        return
    within = {name for name, _ in changed}
    for name, kind in changed:
        if any(inner.startswith(f"{name}.") for inner in within) and all((name, kind) in side for side in sides):
            continue  # a container of what changed
        before, after = (None if (name, kind) not in side else float(side[name, kind] or 0) for side in sides)
        yield ProgramChange("layer", f"{name} ({kind})", before, after)


def _layers_of(run: Run) -> dict[tuple[str, str], int | None]:
    """Return the own parameters of each layer of the model, by name and type."""
    rows = run.model.select("module", "type", "parameters").iter_rows()
    return {(name, kind): own for name, kind, own in rows if name}


@dataclass(frozen=True)
class _OperatorCalls:
    """Operator calls of the whole profiled steps of a side, kinds in columns: count and self time of each."""

    kinds: list[str]
    counts: Floats  # (steps, kinds)
    ns: dict[str, float]
    flops: float | None  # of a step, the median

    @property
    def total(self) -> Floats:
        """All calls of each step."""
        return np.asarray(self.counts.sum(axis=1))

    @classmethod
    def of(cls, runs: Sequence[Run]) -> _OperatorCalls | None:
        """None where no step of a run was profiled whole."""
        if not all(run.steps["recorded"].any() for run in runs):
            return None
        name = pl.col("name")
        own = (pl.col("device") == CPU) & name.str.contains("::") & ~name.str.starts_with(AUTOGRAD_NODE)
        tables = [run.self_times.filter(own).with_columns(run=pl.lit(index)) for index, run in enumerate(runs)]
        table = pl.concat(tables)
        steps = table.select("run", "step").unique(maintain_order=True)
        if any(table.is_empty() for table in tables):
            return None
        summed = table.group_by("run", "step", "name").agg(pl.col("count", "self_ns").sum())
        wide = steps.join(
            summed.pivot("name", index=["run", "step"], values="count"), on=["run", "step"], how="left"
        ).fill_null(0)
        kinds = [name for name in wide.columns if name not in ("run", "step")]
        ns = dict(summed.group_by("name").agg(pl.col("self_ns").sum() / len(steps)).iter_rows())
        stated = table.filter(pl.col("flops").is_not_null())  # of some steps no shapes were seen
        flops = stated.group_by("run", "step").agg(pl.col("flops").sum())["flops"].median()
        flops_or_none = float(flops) if isinstance(flops, (int, float)) and flops > 0 else None
        return cls(kinds, wide.select(kinds).to_numpy().astype(np.float64), ns, flops_or_none)

    def of_kind(self, kind: str) -> Floats:
        """Calls of a kind in each step."""
        column = self.counts[:, self.kinds.index(kind)] if kind in self.kinds else np.zeros(len(self.counts))
        return np.asarray(column)


def _flops(first: _OperatorCalls, other: _OperatorCalls) -> Iterator[ProgramChange]:
    if first.flops and other.flops and abs(other.flops / first.flops - 1) > _ALIKE:
        yield ProgramChange("FLOPs", "", first.flops, other.flops)


def _operator_changes(first: _OperatorCalls, other: _OperatorCalls) -> Iterator[ProgramChange]:
    """The kinds whose number of calls differs in all steps: those first whose calls more or fewer take most time."""
    kinds = dict.fromkeys((*first.kinds, *other.kinds))
    counted = [(kind, first.of_kind(kind), other.of_kind(kind)) for kind in kinds]
    apart = [
        kind
        for kind, of_first, of_other in counted
        if of_first.max() < of_other.min() or of_other.max() < of_first.min()
    ]
    if not apart:
        return
    yield ProgramChange("operator calls", "", float(np.median(first.total)), float(np.median(other.total)))
    counts = {kind: [float(np.median(side.of_kind(kind))) for side in (first, other)] for kind in apart}

    def cost(kind: str) -> float:
        before, after = counts[kind]
        ns, calls = (first.ns[kind], before) if before > after else (other.ns[kind], after)
        return -abs(after - before) * ns / calls

    for kind in sorted(apart, key=cost):
        before, after = (count or None for count in counts[kind])
        yield ProgramChange("operator", kind, before, after)


def _are_same(first: _OperatorCalls, other: _OperatorCalls) -> bool:
    """Return whether a step of both sides makes the same calls of each kind, in the median."""
    kinds = dict.fromkeys((*first.kinds, *other.kinds))
    return all(np.median(first.of_kind(kind)) == np.median(other.of_kind(kind)) for kind in kinds)
