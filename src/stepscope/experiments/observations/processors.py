"""Observations of where the work is done: accelerator, cores, components, domains of models.

Observation 1: the accelerator is much busier than the CPU, and when one is busy the other is not.

Observation 5: convolutional networks use the accelerator more than recurrent ones.

Observation 4: the cores are not used alike, and those of one cluster are idle for much of the time.

Observation 6: the accelerator draws the most power, but for recurrent networks the memory draws more than it.
"""

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
from stepscope.experiments.observations._evidence import CONVOLUTIONAL, RECURRENT, Evidence
from stepscope.experiments.observations._statistics import correlation_of, difference_of, mean_of, quotient_of, ratio_of
from stepscope.units import plural

MUCH = 1.5  # times as busy: GPU close to 100 %, each core 0 to 60 % (Fig. 3)
_LEAST = 1e-3  # of a core: below that a ratio says nothing
_BUSIER = "geometric mean over the runs, Student's 95 % CI of the logarithms"
_IN_TURN = "mean over the runs of Pearson's correlation between windows, Fisher's z"


def judge_accelerator_against_cpu(evidence: Evidence) -> Verdict:
    """On the CPU alone: the cores that train against the other cores."""
    if evidence.disturbed:
        why = f"the use of the cores is not this training's: {evidence.disturbed}"
        return verdict(
            ACCELERATOR_AGAINST_CPU,
            [unjudged("busier", _BUSIER, why)],
            AS_THE_PAPER if evidence.accelerated else _OTHER_CORES,
        )
    if evidence.accelerated:
        return verdict(
            ACCELERATOR_AGAINST_CPU, _parts(evidence, "accelerator_use", "cpu_use", "alternation", "accelerator", "CPU")
        )
    names = ("training_cores_use", "other_cores_use", "core_alternation", "training cores", "other cores")
    return verdict(ACCELERATOR_AGAINST_CPU, _parts(evidence, *names), _OTHER_CORES)


def _parts(evidence: Evidence, ours: str, others: str, together: str, name: str, other: str) -> list[Part]:
    runs = evidence.undisturbed.filter(pl.col(ours).is_not_null() & pl.col(others).is_not_null())
    busier, in_turn = f"the {name} busier than the {other}", f"{name} and {other} busy in turn"
    if runs.is_empty():
        why = f"the use of the {name} or of the {other} was not read"
        if not evidence.accelerated and not evidence.runs.is_empty():
            why += "; every core trains, or the cores were not sampled: give fewer --threads than there are cores"
        return [unjudged(busier, _BUSIER, why), unjudged(in_turn, _IN_TURN, why)]
    ratio = ratio_of((runs[ours] / runs[others].clip(lower_bound=_LEAST)).to_list())
    known = runs[together].drop_nulls()
    effect, of = f"use of the {name} / use of the {other}", plural(len(runs), "run")
    parts = [part(busier, _BUSIER, effect, ratio, Limits(least=MUCH), of)]
    if known.is_empty():
        return [*parts, unjudged(in_turn, _IN_TURN, "one of the two never changes, or too few windows were read")]
    effect, of = "correlation of their use", plural(len(known), "run")
    return [*parts, part(in_turn, _IN_TURN, effect, correlation_of(known), Limits(most=0.0), of)]


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
_SHARE = "mean of the convolutional runs less mean of the recurrent ones, Welch's 95 % CI"
_RATE = "geometric means of both kinds, Welch's 95 % CI of the logarithms"
_CLAIM = "convolution higher than recurrence"
_ARITHMETIC = "counterpart on a CPU: arithmetic done a second, since a training thread is busy in either case"


def judge_use_differs_by_domain(evidence: Evidence) -> Verdict:
    """On the CPU alone by FLOP/s: what a busy core gets done is what differs there."""
    column, reading = ("accelerator_use", "as the paper") if evidence.accelerated else ("flop_per_s", _ARITHMETIC)
    known = evidence.runs.drop_nulls(column)
    ours, others = (known.filter(kind=kind)[column] for kind in (CONVOLUTIONAL, RECURRENT))
    test = _SHARE if evidence.accelerated else _RATE
    if ours.is_empty() or others.is_empty():
        lacking = " and ".join(
            kind for kind, values in ((CONVOLUTIONAL, ours), (RECURRENT, others)) if values.is_empty()
        )
        why = f"no {lacking} network was measured: name one with --workloads"
        return verdict(USE_DIFFERS_BY_DOMAIN, [unjudged(_CLAIM, test, why)], reading)
    of = f"{len(ours)} convolutional and {len(others)} recurrent runs"
    if evidence.accelerated:
        found = difference_of(ours, others)
        return verdict(
            USE_DIFFERS_BY_DOMAIN,
            [part(_CLAIM, test, "difference of the use", found, Limits(least=DOMAINS_APART), of)],
            reading,
        )
    found = quotient_of(ours, others)
    return verdict(
        USE_DIFFERS_BY_DOMAIN, [part(_CLAIM, test, "ratio of FLOP/s", found, Limits(least=FASTER), of)], reading
    )


USE_DIFFERS_BY_DOMAIN = Observation(
    5,
    "The use of the accelerator differs by domain: recurrent networks low, convolutional ones high",
    "LSTM low, ResNet 95 % (Fig. 4)",
    "figure-4-use-by-batch",
    "runs",
    judge_use_differs_by_domain,
)


CORES_APART = 0.05  # of all time
_CORES = "busiest less idlest core, chosen in the first half of a run and measured in the second; mean over the runs"
_CLUSTERS = "idle residency of the idler cluster less that of the busier, paired within a run; mean over the runs"
_ALIKE = "counterpart on cores of one kind: whether they are used alike"


def judge_cores_differ(evidence: Evidence) -> Verdict:
    """Judge whether cores differ.

    Where they are of one kind there is no cluster to compare, and the reading says so.
    """
    clusters = evidence.cores["cluster"].n_unique()
    reading = AS_THE_PAPER if clusters > 1 else _ALIKE
    if evidence.disturbed:
        return verdict(CORES_DIFFER, [unjudged("the cores differ", _CORES, evidence.disturbed)], reading)
    runs = evidence.undisturbed
    known = runs["core_spread"].drop_nulls()
    if known.is_empty():
        one = not runs.is_empty() and runs["cores"].max() == 1
        why = "there is one core" if one else "the busy time of the cores was not read for long enough"
        return verdict(CORES_DIFFER, [unjudged("the cores differ", _CORES, why)], reading)
    effect = "difference of the shares of busy time"
    parts = [
        part(
            "the cores differ",
            _CORES,
            effect,
            mean_of(known),
            Limits(least=CORES_APART),
            plural(len(known), "run"),
        )
    ]
    return verdict(CORES_DIFFER, [*parts, *_by_cluster(evidence, runs)] if clusters > 1 else parts, reading)


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
    return [part(claim, _CLUSTERS, "difference of the idle residencies", apart, Limits(least=CORES_APART), of)]


CORES_DIFFER = Observation(
    4,
    "The cores differ in use, and one cluster is idle for much of the time",
    "the two Denver2 cores have the highest idle residency, up to 65 % (Fig. 5)",
    "figure-5-cores-by-batch",
    "runs",
    judge_cores_differ,
)


_TEST = "geometric mean over the runs of the ratio of mean powers, Student's 95 % CI of the logarithms"
_CORES_ALONE = "counterpart on a CPU: the cores in the place of the accelerator"
_RIVALS = ("gpu", "cpu", "memory")


def judge_component_power(evidence: Evidence) -> Verdict:
    """Needs a rail of its own for each of them: one that two share cannot tell."""
    worker, reading = ("gpu", "as the paper") if evidence.accelerated else ("cpu", _CORES_ALONE)
    most, least = (
        f"the {worker} draws the most ({CONVOLUTIONAL})",
        f"the memory draws more than the {worker} ({RECURRENT})",
    )
    wide = _by_component(evidence)
    lacking = [name for name in dict.fromkeys((worker, "cpu", "memory")) if name not in wide.columns]
    if lacking:
        why = _why(evidence, wide, lacking)
        return verdict(COMPONENT_POWER, [unjudged(most, _TEST, why), unjudged(least, _TEST, why)], reading)
    others = [name for name in _RIVALS if name != worker and name in wide.columns]
    ours = wide.filter(kind=CONVOLUTIONAL).with_columns(ratio=pl.col(worker) / pl.max_horizontal(others))
    theirs = wide.filter(kind=RECURRENT).with_columns(ratio=pl.col("memory") / pl.col(worker))
    first = _part(ours, most, f"power of the {worker} / that of the next", CONVOLUTIONAL)
    return verdict(
        COMPONENT_POWER,
        [first, _part(theirs, least, f"power of the memory / that of the {worker}", RECURRENT)],
        reading,
    )


def _by_component(evidence: Evidence) -> pl.DataFrame:
    """A row a run with the watts of each component."""
    rows = evidence.power.filter(pl.col("component").is_in(_RIVALS)).drop_nulls("watts")
    return rows.pivot(on="component", index=["run", "kind"], values="watts", aggregate_function="first")


def _part(rows: pl.DataFrame, claim: str, effect: str, kind: str) -> Part:
    known = rows["ratio"].drop_nulls()
    if known.is_empty():
        return unjudged(claim, _TEST, f"no {kind} network was measured: name one with --workloads")
    return part(claim, _TEST, effect, ratio_of(known), Limits(least=1.0), plural(len(known), "run"))


def _why(evidence: Evidence, wide: pl.DataFrame, lacking: list[str]) -> str:
    if evidence.power.is_empty():
        return evidence.absent.get("power", "no power sensor was read")
    seen = ", ".join(sorted(evidence.power["component"].unique()))
    return f"no sensor for the power of {' and '.join(lacking)} alone; measured: {seen}"


COMPONENT_POWER = Observation(
    6,
    "The accelerator draws the most power, but for recurrent networks the memory draws more",
    "GPU first for ResNet50 and VGG16, memory first for the LSTM (Figs. 6 and 7)",
    "figure-6-energy-by-batch",
    "runs",
    judge_component_power,
)

OBSERVATIONS = (ACCELERATOR_AGAINST_CPU, USE_DIFFERS_BY_DOMAIN, CORES_DIFFER, COMPONENT_POWER)
