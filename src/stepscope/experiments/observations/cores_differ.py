"""Observation 4: the cores are not used alike, and those of one cluster are idle for much of the time."""

from __future__ import annotations

import polars as pl

from stepscope.experiments.observations._contract import (
    AS_THE_PAPER,
    Limits,
    Observation,
    Part,
    Verdict,
    part,
    unjudged,
    verdict,
)
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import mean_of
from stepscope.units import plural

APART = 0.05  # of all time
_CORES = "busiest less idlest core, chosen in the first half of a run and measured in the second; mean over the runs"
_CLUSTERS = "idle residency of the idler cluster less that of the busier, paired within a run; mean over the runs"
_ALIKE = "counterpart on cores of one kind: whether they are used alike"


def judge(evidence: Evidence) -> Verdict:
    """Judge whether cores differ.

    Where they are of one kind there is no cluster to compare, and the reading says so.
    """
    clusters = evidence.cores["cluster"].n_unique()
    reading = AS_THE_PAPER if clusters > 1 else _ALIKE
    if evidence.disturbed:
        return verdict(OBSERVATION, [unjudged("the cores differ", _CORES, evidence.disturbed)], reading)
    runs = evidence.undisturbed
    known = runs["core_spread"].drop_nulls()
    if known.is_empty():
        one = not runs.is_empty() and runs["cores"].max() == 1
        why = "there is one core" if one else "the busy time of the cores was not read for long enough"
        return verdict(OBSERVATION, [unjudged("the cores differ", _CORES, why)], reading)
    effect = "difference of the shares of busy time"
    parts = [part("the cores differ", _CORES, effect, mean_of(known), Limits(least=APART), plural(len(known), "run"))]
    return verdict(OBSERVATION, [*parts, *_by_cluster(evidence, runs)] if clusters > 1 else parts, reading)


def _by_cluster(evidence: Evidence, runs: pl.DataFrame) -> list[Part]:
    cores = evidence.cores.join(runs.select("run"), on="run", how="semi").drop_nulls("idle_ratio")
    idle = cores.group_by("run", "cluster").agg(pl.col("idle_ratio").mean())
    order = idle.group_by("cluster").agg(pl.col("idle_ratio").mean()).sort("idle_ratio")["cluster"].to_list()
    if len(order) < 2:
        return [unjudged("the clusters differ", _CLUSTERS, "the idle time of one of them was not read")]
    ends = [idle.filter(cluster=name).select("run", name="idle_ratio") for name in (order[-1], order[0])]
    pairs = ends[0].join(ends[1], on="run")
    shares = [
        f"{name} idle for {float(end['name'].to_numpy().mean()):.0%}"
        for name, end in zip((order[-1], order[0]), ends, strict=True)
    ]
    of = f"{plural(len(pairs), 'run')}; {', '.join(shares)}"
    apart = mean_of(pairs["name"] - pairs["name_right"])
    claim = f"{order[-1]} idler than {order[0]}"
    return [part(claim, _CLUSTERS, "difference of the idle residencies", apart, Limits(least=APART), of)]


OBSERVATION = Observation(
    4,
    "The cores differ in use, and one cluster is idle for much of the time",
    "the two Denver2 cores have the highest idle residency, up to 65 % (Fig. 5)",
    "figure-5-cores-by-batch",
    "runs",
    judge,
)
