"""Observations of what changes with the batch size: use, power, throughput, energy, memory.

Observation 3: the use of the accelerator follows the batch size, that of the CPU does not.

Observation 11: how much throughput grows with the batch differs from model to model.

Observation 10: throughput grows with the batch.

Observation 8: energy per step grows with the batch, but less than it.

Observation 9: of the memory that training takes, nearly only the intermediate data grow with the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import polars as pl
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.estimate import CONFIDENCE
from stepscope.experiments.observations._contract import (
    AS_THE_PAPER,
    Interval,
    Limits,
    Observation,
    Part,
    Verdict,
    part,
    unjudged,
    verdict,
)
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import NORMAL, growth_by_model, slope_within
from stepscope.units import plural

FOLLOWS, USE_STAYS = (
    0.03,
    0.05,
)  # of all time, for 16 times the batch: the paper saw 0.10 to 0.13, and 0.021
DOUBLINGS = 4  # 16 times, as from 4 to 64
_USE_TEST = "least squares on log2(batch) with an intercept for each model, Student's 95 % CI"
_READING = "counterpart on a CPU: the use of its training threads"


def judge_use_follows_batch(evidence: Evidence) -> Verdict:
    """On the CPU alone: the share of the time in which its threads run must not depend on the batch."""
    stays, runs = Limits(-USE_STAYS, USE_STAYS), evidence.undisturbed
    own = runs.with_columns(use=pl.col("trainer_cores") / pl.col("threads"))
    what, column, reading = (
        ("CPU", "cpu_use", AS_THE_PAPER) if evidence.accelerated else ("training threads", "use", _READING)
    )
    claim = f"the use of the {what} stays"
    cpu = unjudged(claim, _USE_TEST, evidence.disturbed) if evidence.disturbed else _change(own, column, claim, stays)
    if not evidence.accelerated:
        return verdict(USE_FOLLOWS_BATCH, [cpu], reading)
    follows = _change(evidence.runs, "accelerator_use", "the use of the accelerator grows", Limits(least=FOLLOWS))
    return verdict(USE_FOLLOWS_BATCH, [follows, cpu], reading)


def _change(runs: pl.DataFrame, column: str, claim: str, limits: Limits) -> Part:
    known = runs.drop_nulls(column).filter(pl.col("batch").n_unique().over("workload") > 1)
    if known.is_empty():
        why = "not read in any run" if runs[column].null_count() == len(runs) else "no model ran with two batch sizes"
        return unjudged(claim, _USE_TEST, why)
    slope = slope_within(known["workload"].to_list(), np.log2(known["batch"].to_numpy()), known[column].to_numpy())
    change = Interval(*(DOUBLINGS * bound for bound in (slope.value, slope.low, slope.high)))
    of = f"{plural(len(known), 'run')}; models: {known['workload'].n_unique()}"
    return part(
        claim,
        _USE_TEST,
        "change of the share of busy time for a 16 times larger batch",
        change,
        limits,
        of,
    )


USE_FOLLOWS_BATCH = Observation(
    3,
    "The use of the accelerator follows the batch size, that of the CPU does not",
    "GPU: 71.4 to 84.5 % and 85.6 to 95.6 % from batch 4 to 64; CPU: 2.1 points on average (Fig. 4)",
    "figure-4-use-by-batch",
    "runs",
    judge_use_follows_batch,
)


APART = 1.25  # times
_GROWTH_TEST = (
    "largest growth over smallest, with an interval that allows for having chosen them among all pairs (Bonferroni)"
)
_GROWTH_CLAIM = "growth differs between models"


def judge_growth_differs(evidence: Evidence) -> Verdict:
    """Per doubling of the batch, so that models with other ranges can be compared, and told for 16 times the batch."""
    growth = growth_by_model(evidence.runs, "samples_per_s").drop_nulls("error")
    if len(growth) < 2:
        why = f"{len(growth)} models ran with two batch sizes and an interval; it takes two"
        return verdict(GROWTH_DIFFERS, [unjudged(_GROWTH_CLAIM, _GROWTH_TEST, why)])
    rows = []
    for row in growth.iter_rows(named=True):
        scale = math.log(16) / math.log(row["largest"] / row["smallest"])
        rows.append((row["log"] * scale, row["error"] * scale, row["workload"]))
    rows.sort()
    (low, low_error, least), (high, high_error, most) = rows[0], rows[-1]
    pairs = len(rows) * (len(rows) - 1) / 2
    half = float(special.ndtri(1 - (1 - CONFIDENCE) / 2 / pairs)) * math.hypot(low_error, high_error)
    ratio = Interval(*(math.exp(x) for x in (high - low, high - low - half, high - low + half)))
    grown = f"16 times the batch: {most} {math.exp(high):.2g} times, {least} {math.exp(low):.2g}"
    of = f"{plural(len(rows), 'model')}; {grown}"
    return verdict(
        GROWTH_DIFFERS,
        [part(_GROWTH_CLAIM, _GROWTH_TEST, "ratio of the growths", ratio, Limits(least=APART), of)],
    )


GROWTH_DIFFERS = Observation(
    11,
    "How much throughput grows with the batch differs by model",
    "from batch 4 to 64: deep RL 15.3 times, ResNet50 6.1, DenseNet40 1.7 (Fig. 8)",
    "figure-8-throughput-by-batch",
    "runs",
    judge_growth_differs,
)


_THROUGHPUT_TEST = (
    "least squares of log(samples a second) on log(batch) with an intercept for each model, Student's 95 % CI"
)
_THROUGHPUT_CLAIM = "samples a second grow with the batch"


def judge_throughput_grows(evidence: Evidence) -> Verdict:
    """Over all models together; those that clearly go the other way are named."""
    runs = evidence.runs.drop_nulls("samples_per_s").filter(pl.col("batch").n_unique().over("workload") > 1)
    if runs.is_empty():
        return verdict(
            THROUGHPUT_GROWS,
            [unjudged(_THROUGHPUT_CLAIM, _THROUGHPUT_TEST, "no model ran with two batch sizes")],
        )
    logs = (np.log(runs[name].to_numpy().astype(np.float64)) for name in ("batch", "samples_per_s"))
    exponent = slope_within(runs["workload"].to_list(), *logs)
    growth = growth_by_model(runs, "samples_per_s")
    shrink = growth.filter(pl.col("log") + NORMAL * pl.col("error") < 0)
    against = "".join(
        f"; {row['workload']} shrinks to {math.exp(row['log']):.2g}" for row in shrink.iter_rows(named=True)
    )
    of = f"{plural(len(runs), 'run')}; models: {len(growth)}{against}"
    return verdict(
        THROUGHPUT_GROWS,
        [
            part(
                _THROUGHPUT_CLAIM,
                _THROUGHPUT_TEST,
                "exponent of the batch",
                exponent,
                Limits(least=0.0),
                of,
            )
        ],
    )


THROUGHPUT_GROWS = Observation(
    10,
    "Throughput grows with the batch",
    "for all models; ResNet50 from 9 to 55 samples a second from batch 4 to 64 (Fig. 8)",
    "figure-8-throughput-by-batch",
    "runs",
    judge_throughput_grows,
)


_ENERGY_TEST = "least squares of log(energy per step) on log(batch) with an intercept for each model, Student's 95 % CI"
_GROWS, _LESS = "energy per step grows with the batch", "it grows less than the batch"


def judge_energy_grows_less(evidence: Evidence) -> Verdict:
    """The exponent of the batch: 0 where energy stays, 1 where it grows as the batch."""
    runs = evidence.runs.drop_nulls("energy_per_step_j").filter(pl.col("batch").n_unique().over("workload") > 1)
    if runs.is_empty():
        why = evidence.absent.get(
            "power", "the energy of the whole device was not measured with two batch sizes of a model"
        )
        return verdict(ENERGY_GROWS_LESS, [unjudged(claim, _ENERGY_TEST, why) for claim in (_GROWS, _LESS)])
    logs = (np.log(runs[name].to_numpy().astype(np.float64)) for name in ("batch", "energy_per_step_j"))
    exponent = slope_within(runs["workload"].to_list(), *logs)
    growth = growth_by_model(runs, "energy_per_step_j")
    times = "; ".join(f"{row['workload']} {math.exp(row['log']):.2g} times for {row['largest'] / row['smallest']:g}"
                      for row in growth.iter_rows(named=True))  # fmt: skip
    of, effect = f"{plural(len(runs), 'run')}: {times}", "exponent of the batch"
    return verdict(
        ENERGY_GROWS_LESS,
        [
            part(_GROWS, _ENERGY_TEST, effect, exponent, Limits(least=0.0), of),
            part(_LESS, _ENERGY_TEST, effect, exponent, Limits(most=1.0), of),
        ],
    )


ENERGY_GROWS_LESS = Observation(
    8,
    "Energy per step grows with the batch, but less than it",
    "2.2 to 10.5 times for a batch 16 times as large: an exponent of 0.28 to 0.85 (Fig. 6)",
    "figure-6-energy-by-batch",
    "runs",
    judge_energy_grows_less,
)


PARTS = ("parameters", "gradients", "input data", "intermediate data")
ALONE, MEMORY_STAYS = 0.9, 0.01  # share of the growth; relative change that is none
_MEMORY_TEST = "largest against smallest batch of each model, counted on a dry run: exact, every model must comply"


def judge_memory_by_batch(evidence: Evidence) -> Verdict:
    """Input data must grow with the batch; the claim is that next to the intermediate data they do not count."""
    grown = evidence.memory.pivot(on="part", index=["workload", "batch"], values="bytes").sort("workload", "batch")
    ends = grown.filter(pl.len().over("workload") > 1).group_by("workload", maintain_order=True)
    first, last = ends.first(), ends.last()
    if first.is_empty():
        why = evidence.absent.get("memory", "no model was counted with two batch sizes")
        return verdict(MEMORY_BY_BATCH, [unjudged("only intermediate data grow", _MEMORY_TEST, why)])
    of = f"models: {', '.join(first['workload'])}"
    change = {name: (last[name] - first[name]).cast(pl.Float64) for name in PARTS}
    all_of_it = sum(change.values(), start=pl.Series([0.0] * len(first)))
    shares = change[PARTS[3]] / all_of_it
    alone = _exact(shares.to_list(), min)
    found_in = f"{of}{_exceptions(first['workload'], shares)}"
    limit, effect = Limits(least=ALONE), "smallest share of the growth"
    parts = [part("intermediate data are the growth", _MEMORY_TEST, effect, alone, limit, found_in)]
    for name in PARTS[:2]:
        relative = (change[name] / first[name].clip(lower_bound=1)).to_list()
        most = _exact(relative, lambda values: max(values, key=abs))
        parts.append(
            part(
                f"{name} stay",
                _MEMORY_TEST,
                "largest relative change",
                most,
                Limits(-MEMORY_STAYS, MEMORY_STAYS),
                of,
            )
        )
    return verdict(MEMORY_BY_BATCH, parts)


def _exact(values: list[float], chosen: Callable[[list[float]], float]) -> Interval:
    value = chosen(values)
    return Interval(value, value, value)


def _exceptions(names: pl.Series, shares: pl.Series) -> str:
    below = [f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True) if share <= ALONE]
    return f"; below: {', '.join(below)}" if below else ""


MEMORY_BY_BATCH = Observation(
    9,
    "Only the intermediate data grow with the batch; parameters and gradients stay",
    "DenseNet40: intermediate data 2.2 to 5.9 GB from batch 4 to 64, all else constant (Fig. 9)",
    "figure-9-memory-by-batch",
    "memory",
    judge_memory_by_batch,
)

OBSERVATIONS = (USE_FOLLOWS_BATCH, GROWTH_DIFFERS, THROUGHPUT_GROWS, ENERGY_GROWS_LESS, MEMORY_BY_BATCH)
