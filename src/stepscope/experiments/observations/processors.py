"""Observations of where the work is done: accelerator, cores, components, domains of models.

Observation 1: the accelerator is much busier than the CPU, and when one is busy the other is not.

Observation 5: convolutional networks use the accelerator more than recurrent ones.

Observation 4: the cores are not used alike, and those of one cluster are idle for much of the time.

Observation 6: the accelerator draws the most power, but for recurrent networks the memory draws more than it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import polars as pl

from stepscope.experiments.observations import (
    AS_THE_PAPER,
    JudgedClaim,
    Limits,
    Observation,
    Verdict,
    undecidable_claim,
    verdict_from_claims,
)
from stepscope.experiments.observations._evidence import CONVOLUTIONAL, RECURRENT, Evidence
from stepscope.experiments.observations._statistics import (
    TOGETHER,
    batch_means_of_models,
    compare_model_pairs,
    judge_models,
    mean_over_batches,
)

MUCH = 1.5  # times as busy: GPU close to 100 %, each core 0 to 60 % (Fig. 3)
_LEAST = 1e-3  # of a core: below that a ratio says nothing
_BUSIER = f"geometric mean over a model's batch sizes, of the runs of each; {TOGETHER}"
_IN_TURN = f"Pearson's correlation between windows, mean over a model's batch sizes by Fisher's z; {TOGETHER}"


def judge_accelerator_against_cpu(evidence: Evidence) -> Verdict:
    """Judge accelerator against CPU; without an accelerator, the cores that train against the other cores."""
    if evidence.why_all_disturbed:
        why = f"the use of the cores is not this training's: {evidence.why_all_disturbed}"
        return verdict_from_claims(
            ACCELERATOR_AGAINST_CPU,
            [undecidable_claim("busier", _BUSIER, why)],
            AS_THE_PAPER if evidence.accelerated else _OTHER_CORES,
        )
    if evidence.accelerated:
        return verdict_from_claims(
            ACCELERATOR_AGAINST_CPU,
            _judge_busier_and_in_turn(evidence, "accelerator_use", "cpu_use", "alternation", "accelerator", "CPU"),
        )
    names = ("training_cores_use", "other_cores_use", "core_alternation", "training cores", "other cores")
    return verdict_from_claims(ACCELERATOR_AGAINST_CPU, _judge_busier_and_in_turn(evidence, *names), _OTHER_CORES)


def _judge_busier_and_in_turn(
    evidence: Evidence, ours: str, others: str, together: str, name: str, other: str
) -> list[JudgedClaim]:
    runs = evidence.undisturbed.filter(pl.col(ours).is_not_null() & pl.col(others).is_not_null())
    busier, in_turn = f"the {name} busier than the {other}", f"{name} and {other} busy in turn"
    if runs.is_empty():
        why = f"the use of the {name} or of the {other} was not read"
        if not evidence.accelerated and not evidence.runs.is_empty():
            more = "every core trains, or the cores were not sampled: give fewer --threads than there are cores"
            why += f"; {'there is one core' if evidence.runs['cores'].max() == 1 else more}"
        return [undecidable_claim(busier, _BUSIER, why), undecidable_claim(in_turn, _IN_TURN, why)]
    ratio = pl.col(ours) / pl.col(others).clip(lower_bound=_LEAST)
    effect = f"use of the {name} / use of the {other}"
    stated = (busier, _BUSIER, effect, Limits(least=MUCH))
    parts = [_judge_model_means(evidence, evidence.undisturbed, ratio.log(), stated, math.exp)]
    if runs[together].null_count() == len(runs):
        return [
            *parts,
            undecidable_claim(in_turn, _IN_TURN, "one of the two never changes, or too few windows were read"),
        ]
    turned = pl.col(together).clip(-0.999999, 0.999999).arctanh()
    stated = (in_turn, _IN_TURN, "correlation of their use", Limits(most=0.0))
    return [*parts, _judge_model_means(evidence, evidence.undisturbed, turned, stated, math.tanh)]


def _judge_model_means(
    evidence: Evidence,
    runs: pl.DataFrame,
    value: pl.Expr,
    stated: tuple[str, str, str, Limits],
    transform: Callable[[float], float] = float,
    kind: str | None = None,
    selected_from: int = 1,
) -> JudgedClaim:
    """A claim (with test, effect and limits) on the mean of each model's runs, for all models (of a kind) with runs.

    selected_from: how many such claims there were, of which the data themselves selected this one.
    """
    claim, test, effect, limits = stated
    model_means = batch_means_of_models(runs, value)
    lacking = evidence.why_lacking([cells.model for cells in model_means], "it was not read in its runs", kind)
    return judge_models(
        claim,
        test,
        effect,
        limits,
        [(cells.model, cells.runs, mean_over_batches(cells)) for cells in model_means],
        transform,
        lacking,
        selected_from,
    )


_OTHER_CORES = "counterpart on a CPU: the cores that train against the other cores"
ACCELERATOR_AGAINST_CPU = Observation(
    1,
    "The accelerator is much busier than the CPU, and they alternate",
    "GPU close to 100 %, each core 0 to 60 %; when one is high the other tends to be low",
    "figure-3-use-over-steps",
    "runs",
    judge_accelerator_against_cpu,
)


DOMAINS_APART = 0.10  # of all time
FASTER = 1.25
_SHARE = f"each convolutional network less each recurrent one, mean over the batch sizes of both (Welch); {TOGETHER}"
_RATE = f"each convolutional network over each recurrent one, geometric mean over batch sizes (Welch); {TOGETHER}"
_CLAIM, _APART, _KINDS = "convolution higher than recurrence", "difference of the use", (CONVOLUTIONAL, RECURRENT)
_ARITHMETIC = "counterpart on a CPU: arithmetic done a second, since a training thread is busy in either case"


def judge_use_differs_by_domain(evidence: Evidence) -> Verdict:
    """Each network that sees against each recurrent one; on the CPU alone by FLOP/s, where any busy core is busy."""
    timed = evidence.timed
    runs, value, test, effect, limit = timed.runs, pl.col("flop_per_s").log(), _RATE, "ratio of FLOP/s", FASTER
    transform: Callable[[float], float] = math.exp
    reading = _ARITHMETIC if timed.reading == AS_THE_PAPER else f"{_ARITHMETIC}; {timed.reading}"
    disturbed = timed.disturbed
    if evidence.accelerated:
        runs, value, limit, transform = evidence.undisturbed, pl.col("accelerator_use"), DOMAINS_APART, float
        test, effect, reading = _SHARE, _APART, AS_THE_PAPER
        disturbed = evidence.why_lacking(runs["workload"].unique(), "it was not read in its runs")
    ours, others = (batch_means_of_models(runs.filter(kind=kind), value) for kind in _KINDS)
    if not ours or not others:
        absent = " and ".join(kind for kind, claim in zip(_KINDS, (ours, others), strict=True) if not claim)
        why = "; ".join([f"no {absent} network was measured: name one with --workloads", *disturbed.values()])
        return verdict_from_claims(USE_DIFFERS_BY_DOMAIN, [undecidable_claim(_CLAIM, test, why)], reading)
    pairs, apart = compare_model_pairs(product(ours, others))
    every = evidence.runs.filter(pl.col("kind").is_in(_KINDS))["workload"].unique(maintain_order=True)
    compared_names = {cells.model for cells in (*ours, *others)}
    lacking = {
        str(name): disturbed.get(name, "it was not read in its runs") for name in every if name not in compared_names
    }
    claim = judge_models(_CLAIM, test, effect, Limits(least=limit), pairs, transform, {**apart, **lacking})
    return verdict_from_claims(USE_DIFFERS_BY_DOMAIN, [claim], reading)


USE_DIFFERS_BY_DOMAIN = Observation(
    5,
    "The use of the accelerator differs by domain: recurrent networks low, convolutional ones high",
    "LSTM low, ResNet 95 % (Fig. 4)",
    "figure-4-use-by-batch",
    "runs",
    judge_use_differs_by_domain,
)


CORES_APART = 0.05  # of all time
MUCH_IDLE = 0.3  # of all time: the paper saw up to 65 % (Fig. 5)
_CORES = (
    "busiest less idlest core, chosen in the first half of a run and measured in the second; mean of a model; "
    f"{TOGETHER}"
)
_CLUSTERS = (
    f"idle residency of the idler cluster less that of the busier, paired within a run; mean of a model; {TOGETHER}, "
    "and for all pairs of clusters"
)
_IDLE = f"idle residency of the idlest cluster; mean of a model; {TOGETHER}, and for all clusters"
_ALIKE = "counterpart on cores of one kind: whether they are used alike"


def judge_cores_differ(evidence: Evidence) -> Verdict:
    """Judge whether cores differ.

    Where they are of one kind there is no cluster to compare, and the reading says so.
    """
    clusters = evidence.cores["cluster"].n_unique()
    reading = AS_THE_PAPER if clusters > 1 else _ALIKE
    if evidence.why_all_disturbed:
        return verdict_from_claims(
            CORES_DIFFER, [undecidable_claim("the cores differ", _CORES, evidence.why_all_disturbed)], reading
        )
    runs = evidence.undisturbed
    spreads = runs["core_spread"].drop_nulls()
    if spreads.is_empty():
        single_core = not runs.is_empty() and runs["cores"].max() == 1
        why = "there is one core" if single_core else "the busy time of the cores was not read for long enough"
        return verdict_from_claims(CORES_DIFFER, [undecidable_claim("the cores differ", _CORES, why)], reading)
    effect = "difference of the shares of busy time"
    stated = ("the cores differ", _CORES, effect, Limits(least=CORES_APART))
    parts = [_judge_model_means(evidence, runs, pl.col("core_spread"), stated)]
    return verdict_from_claims(
        CORES_DIFFER, [*parts, *_judge_clusters(evidence, runs)] if clusters > 1 else parts, reading
    )


def _judge_clusters(evidence: Evidence, runs: pl.DataFrame) -> list[JudgedClaim]:
    cores = evidence.cores.join(runs.select("run"), on="run", how="semi").drop_nulls("idle_ratio")
    idle = cores.group_by("run", "cluster").agg(pl.col("idle_ratio").mean())
    order = idle.group_by("cluster").agg(pl.col("idle_ratio").mean()).sort("idle_ratio")["cluster"].to_list()
    if len(order) < 2:
        return [undecidable_claim("the clusters differ", _CLUSTERS, "the idle time of one of them was not read")]
    ends = [idle.filter(cluster=name).select("run", "idle_ratio") for name in (order[-1], order[0])]
    pairs = ends[0].join(ends[1], on="run").join(runs.select("run", "workload", "batch"), on="run")
    residency, count = pl.col("idle_ratio"), len(order)
    difference = residency - pl.col("idle_ratio_right")
    effect = "difference of the idle residencies"
    apart = (f"{order[-1]} idler than {order[0]}", _CLUSTERS, effect, Limits(least=CORES_APART))
    idle_long = (f"{order[-1]} idle for much of the time", _IDLE, "idle residency", Limits(least=MUCH_IDLE))
    return [
        _judge_model_means(evidence, pairs, difference, apart, selected_from=math.comb(count, 2)),
        _judge_model_means(evidence, pairs, residency, idle_long, selected_from=count),
    ]


CORES_DIFFER = Observation(
    4,
    "The cores differ in use, and one cluster is idle for much of the time",
    "the two Denver2 cores have the highest idle residency, up to 65 % (Fig. 5)",
    "figure-5-cores-by-batch",
    "runs",
    judge_cores_differ,
)


_TEST = f"ratio of mean powers, geometric mean over a model's batch sizes, of the runs of each; {TOGETHER}"
_CORES_ALONE = "counterpart on a CPU: the cores instead of the accelerator"
_RIVALS = ("gpu", "cpu", "memory")


def judge_component_power(evidence: Evidence) -> Verdict:
    """Needs a rail of its own for each of them: one that two share cannot tell."""
    worker, reading = ("gpu", "as the paper") if evidence.accelerated else ("cpu", _CORES_ALONE)
    most, least = (
        f"the {worker} draws the most ({CONVOLUTIONAL})",
        f"the memory draws more than the {worker} ({RECURRENT})",
    )
    wide = _watts_by_component(evidence)
    lacking = [name for name in dict.fromkeys((worker, "cpu", "memory")) if name not in wide.columns]
    if lacking:
        why = _why_no_power(evidence, lacking)
        return verdict_from_claims(
            COMPONENT_POWER, [undecidable_claim(most, _TEST, why), undecidable_claim(least, _TEST, why)], reading
        )
    others = [name for name in _RIVALS if name != worker and name in wide.columns]
    ours = wide.filter(kind=CONVOLUTIONAL).with_columns(ratio=pl.col(worker) / pl.max_horizontal(others))
    theirs = wide.filter(kind=RECURRENT).with_columns(ratio=pl.col("memory") / pl.col(worker))
    parts = [
        _judge_power_ratio(evidence, ours, most, f"power of the {worker} / that of the next", CONVOLUTIONAL),
        _judge_power_ratio(evidence, theirs, least, f"power of the memory / that of the {worker}", RECURRENT),
    ]
    return verdict_from_claims(COMPONENT_POWER, parts, reading)


def _watts_by_component(evidence: Evidence) -> pl.DataFrame:
    rows = evidence.power.filter(pl.col("component").is_in(_RIVALS)).drop_nulls("watts")
    rows = rows.join(evidence.undisturbed.select("run"), on="run", how="semi")
    index = ["run", "workload", "batch", "kind"]
    return rows.pivot(on="component", index=index, values="watts", aggregate_function="first")


def _judge_power_ratio(evidence: Evidence, rows: pl.DataFrame, claim: str, effect: str, kind: str) -> JudgedClaim:
    if rows["ratio"].drop_nulls().is_empty():
        return undecidable_claim(claim, _TEST, f"no {kind} network was measured: name one with --workloads")
    stated = (claim, _TEST, effect, Limits(least=1.0))
    return _judge_model_means(evidence, rows, pl.col("ratio").log(), stated, math.exp, kind)


def _why_no_power(evidence: Evidence, lacking: list[str]) -> str:
    if not evidence.power.is_empty() and evidence.why_all_disturbed:
        return f"the power is not this training's alone: {evidence.why_all_disturbed}"
    if evidence.power.is_empty():
        return evidence.absent.get("power", "no power sensor was read")
    components = ", ".join(sorted(evidence.power["component"].unique()))
    return f"no sensor for the power of {' and '.join(lacking)} alone; measured: {components}"


COMPONENT_POWER = Observation(
    6,
    "The accelerator draws the most power, but for recurrent networks the memory draws more",
    "GPU first for ResNet50 and VGG16, memory first for the LSTM (Figs. 6 and 7)",
    "figure-6-energy-by-batch",
    "runs",
    judge_component_power,
)

OBSERVATIONS = (ACCELERATOR_AGAINST_CPU, USE_DIFFERS_BY_DOMAIN, CORES_DIFFER, COMPONENT_POWER)
