"""Observation 9: of the memory that training takes, nearly only the intermediate data grow with the batch."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from stepscope.experiments.observations._contract import Interval, Limits, Observation, Verdict, part, unjudged, verdict
from stepscope.experiments.observations._evidence import Evidence

PARTS = ("parameters", "gradients", "input data", "intermediate data")
ALONE, STAYS = 0.9, 0.01  # share of the growth; relative change that is none
_TEST = "largest against smallest batch of each model, counted on a dry run: exact, every model must comply"


def judge(evidence: Evidence) -> Verdict:
    """Input data must grow with the batch; the claim is that next to the intermediate data they do not count."""
    grown = evidence.memory.pivot(on="part", index=["workload", "batch"], values="bytes").sort("workload", "batch")
    ends = grown.filter(pl.len().over("workload") > 1).group_by("workload", maintain_order=True)
    first, last = ends.first(), ends.last()
    if first.is_empty():
        why = evidence.absent.get("memory", "no model was counted with two batch sizes")
        return verdict(OBSERVATION, [unjudged("only intermediate data grow", _TEST, why)])
    of = f"models: {', '.join(first['workload'])}"
    change = {name: (last[name] - first[name]).cast(pl.Float64) for name in PARTS}
    all_of_it = sum(change.values(), start=pl.Series([0.0] * len(first)))
    shares = change[PARTS[3]] / all_of_it
    alone = _exact(shares.to_list(), min)
    parts = [part("intermediate data are the growth", _TEST, "smallest share of the growth", alone, Limits(least=ALONE),
                  f"{of}{_exceptions(first['workload'], shares)}")]  # fmt: skip
    for name in PARTS[:2]:
        relative = (change[name] / first[name].clip(lower_bound=1)).to_list()
        most = _exact(relative, lambda values: max(values, key=abs))
        parts.append(part(f"{name} stay", _TEST, "largest relative change", most, Limits(-STAYS, STAYS), of))
    return verdict(OBSERVATION, parts)


def _exact(values: list[float], chosen: Callable[[list[float]], float]) -> Interval:
    value = chosen(values)
    return Interval(value, value, value)


def _exceptions(names: pl.Series, shares: pl.Series) -> str:
    below = [f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True) if share <= ALONE]
    return f"; below: {', '.join(below)}" if below else ""


OBSERVATION = Observation(
    9,
    "Only the intermediate data grow with the batch; parameters and gradients stay",
    "DenseNet40: intermediate data 2.2 to 5.9 GB from batch 4 to 64, all else constant (Fig. 9)",
    "figure-9-memory-by-batch",
    "memory",
    judge,
)
