"""Observations of what changes with the batch size, what repeats with the step, and what the days bring.

Observation 3: the use of the accelerator follows the batch size, that of the CPU does not.

Observation 11: how much throughput grows with the batch differs from model to model.

Observation 10: throughput grows with the batch.

Observation 8: energy per step grows with the batch, but less than it.

Observation 9: of the memory that training takes, nearly only the intermediate data grow with the batch.

Observations 2 and 7: the use of accelerator and cores, and power, are periodic with the step, hence predictable.

Observation 12: training on a few new images every day slowly raises the accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import polars as pl

from stepscope.analysis.estimate import Estimate
from stepscope.experiments.observations import (
    JudgedClaim,
    Limits,
    Observation,
    Verdict,
    judge_claim,
    undecidable_claim,
    verdict_from_claims,
)
from stepscope.experiments.observations._evidence import Evidence, TimedRuns
from stepscope.experiments.observations._statistics import (
    FOLD_TEST,
    ONCE,
    TOGETHER,
    BatchMeans,
    Comparison,
    batch_means_of_models,
    changes_from_smallest_batch,
    exponents,
    growth,
    judge_models,
    judge_periodicity,
    log_within,
    mean_of,
)
from stepscope.units import plural

FOLLOWS, USE_STAYS = 0.03, 0.05  # of all time: the paper saw 0.10 to 0.13, and 0.021
_USE_TEST = f"mean use of a model's runs at each batch size; {TOGETHER}"
_READING = "counterpart on a CPU: the use of its training threads"


def judge_use_follows_batch(evidence: Evidence) -> Verdict:
    """Judge use against batch size; without an accelerator, that the threads' share of time does not depend on it."""
    stays, smallest = Limits(-USE_STAYS, USE_STAYS), changes_from_smallest_batch
    if not evidence.accelerated:
        of_threads = pl.col("trainer_cores") / pl.col("threads")
        cpu = _judge_change(evidence, of_threads, "the use of the training threads stays", stays, smallest)
        return verdict_from_claims(USE_FOLLOWS_BATCH, [cpu], _READING)
    claim, follows = "the use of the accelerator grows", Limits(least=FOLLOWS)
    claims = [_judge_change(evidence, pl.col("accelerator_use"), claim, follows, growth)]
    claims.append(_judge_change(evidence, pl.col("cpu_use"), "the use of the CPU stays", stays, smallest))
    return verdict_from_claims(USE_FOLLOWS_BATCH, claims)


def _judge_change(
    evidence: Evidence,
    value: pl.Expr,
    claim: str,
    limits: Limits,
    compared: Callable[[BatchMeans], list[Comparison]],
) -> JudgedClaim:
    """A claim on a share of use of the undisturbed runs."""
    model_means = batch_means_of_models(evidence.undisturbed, value)
    if not any(len(cells.batches) > 1 for cells in model_means):
        why = "no model ran with two batch sizes" if model_means else "not read in any run"
        return undecidable_claim(claim, _USE_TEST, evidence.why_all_disturbed or why)
    effect = "change of the share of busy time from the smallest batch to the largest"
    models = [(cells.model, cells.runs, compared(cells)) for cells in model_means]
    lacking = evidence.why_lacking([cells.model for cells in model_means], "its use was not read")
    return judge_models(claim, _USE_TEST, effect, limits, models, lacking=lacking)


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
    "largest growth over smallest, from the runs of the smallest and the largest batch of each model, with an interval "
    "that allows for having chosen them among all pairs (Student, Bonferroni)"
)
_GROWTH_CLAIM = "growth differs between models"


def judge_growth_differs(evidence: Evidence) -> Verdict:
    """Per doubling of the batch, so that models with other ranges can be compared, and told for 16 times the batch."""
    timed = evidence.timed
    growing = [cells for cells in _logarithms(timed.runs, "samples_per_s") if len(cells.batches) > 1]
    rows = sorted(
        ((exponents(cells)[0], cells.model) for cells in growing if cells.freedom), key=lambda row: row[0].value
    )
    if len(rows) < 2:
        why = f"{len(rows)} models ran with two batch sizes and repeats; it takes two"
        why = "; ".join(dict.fromkeys([why, *timed.disturbed.values(), *([ONCE] if len(growing) > len(rows) else [])]))
        return verdict_from_claims(GROWTH_DIFFERS, [undecidable_claim(_GROWTH_CLAIM, _GROWTH_TEST, why)], timed.reading)
    (low, least), (high, most) = rows[0], rows[-1]
    pairs = len(rows) * (len(rows) - 1) // 2
    gap = Comparison("", high.value - low.value, math.hypot(high.error, low.error), min(high.freedom, low.freedom))
    apart = gap.interval(pairs)
    ratio = apart.transformed(lambda exponent: 16**exponent)
    grown = f"16 times the batch: {most} {16**high.value:.2g} times, {least} {16**low.value:.2g}"
    of = f"{plural(len(rows), 'model')}; {grown}"
    claim = judge_claim(_GROWTH_CLAIM, _GROWTH_TEST, "ratio of the growths", ratio, Limits(least=APART), of)
    return verdict_from_claims(GROWTH_DIFFERS, [claim], timed.reading)


GROWTH_DIFFERS = Observation(
    11,
    "How much throughput grows with the batch differs by model",
    "from batch 4 to 64: deep RL 15.3 times, ResNet50 6.1, DenseNet40 1.7 (Fig. 8)",
    "figure-8-throughput-by-batch",
    "runs",
    judge_growth_differs,
)


_EXPONENT = "exponent of the batch"
_THROUGHPUT_TEST = (
    "mean log(samples a second) of a model's runs at each batch size; the exponent from the smallest to the largest, "
    f"and from each batch size to the next; {TOGETHER}"
)
_THROUGHPUT_CLAIM = "samples a second grow with the batch"


def judge_throughput_grows(evidence: Evidence) -> Verdict:
    """Judge each model's throughput from each batch size to the next: any fall is evidence against it."""
    timed = evidence.timed
    claims = _judge_exponents(timed, "samples_per_s", [(_THROUGHPUT_CLAIM, Limits(least=0.0))], _THROUGHPUT_TEST)
    return verdict_from_claims(THROUGHPUT_GROWS, claims, timed.reading)


def _judge_exponents(
    timed: TimedRuns, column: str, claims: list[tuple[str, Limits]], test: str, why: str = ""
) -> list[JudgedClaim]:
    """Claims about the exponent of the batch for each model: on its whole range, and on every stretch of it."""
    model_means = _logarithms(timed.runs, column)
    if not any(len(cells.batches) > 1 for cells in model_means):
        reasons = [why] if why else [*timed.disturbed.values()]
        return [
            undecidable_claim(claim, test, "; ".join(reasons) or "no model ran with two batch sizes")
            for claim, _ in claims
        ]
    models = [(cells.model, cells.runs, exponents(cells)) for cells in model_means]
    lacking = timed.why_lacking([cells.model for cells in model_means], "it was not measured")
    return [judge_models(claim, test, _EXPONENT, limits, models, lacking=lacking) for claim, limits in claims]


def _logarithms(runs: pl.DataFrame, column: str) -> list[BatchMeans]:
    return batch_means_of_models(runs.filter(pl.col(column) > 0), pl.col(column).log(), log_within(column))


THROUGHPUT_GROWS = Observation(
    10,
    "Throughput grows with the batch",
    "for all models; ResNet50 from 9 to 55 samples a second from batch 4 to 64 (Fig. 8)",
    "figure-8-throughput-by-batch",
    "runs",
    judge_throughput_grows,
)


_ENERGY_TEST = (
    "mean log(energy per step) of a model's runs at each batch size; the exponent from the smallest to the largest, "
    f"and from each batch size to the next; {TOGETHER}"
)
_GROWS, _LESS = "energy per step grows with the batch", "it grows less than the batch"


def judge_energy_grows_less(evidence: Evidence) -> Verdict:
    """The exponent of the batch: 0 where energy stays, 1 where it grows as the batch.

    Energy is the whole device's: runs with background CPU load are not judged, whatever their threads.
    """
    quiet, timed = evidence.runs_without_load, evidence.timed
    why = "" if evidence.runs["energy_per_step_j"].drop_nulls().len() else evidence.absent.get("power", _NO_ENERGY)
    disturbed = evidence.runs.filter(pl.col("background").is_not_null())["workload"].unique(maintain_order=True)
    alone = timed.disturbed or dict.fromkeys(disturbed, "its runs were disturbed and are not judged")
    claims = [(_GROWS, Limits(least=0.0)), (_LESS, Limits(most=1.0))]
    return verdict_from_claims(
        ENERGY_GROWS_LESS,
        _judge_exponents(TimedRuns(quiet, disturbed=alone), "energy_per_step_j", claims, _ENERGY_TEST, why),
    )


_NO_ENERGY = "the energy of the whole device was not measured with two batch sizes of a model"


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
        return verdict_from_claims(
            MEMORY_BY_BATCH, [undecidable_claim("only intermediate data grow", _MEMORY_TEST, why)]
        )
    of = f"models: {', '.join(first['workload'])}"
    change = {name: (last[name] - first[name]).cast(pl.Float64) for name in PARTS}
    all_of_it = sum(change.values(), start=pl.Series([0.0] * len(first)))
    shares = change[PARTS[3]] / all_of_it
    alone = _exact(shares.to_list(), min)
    found_in = f"{of}{_exceptions(first['workload'], shares)}"
    limit, effect = Limits(least=ALONE), "smallest share of the growth"
    parts = [judge_claim("intermediate data are the growth", _MEMORY_TEST, effect, alone, limit, found_in)]
    for name in PARTS[:2]:
        relative = (change[name] / first[name].clip(lower_bound=1)).to_list()
        most = _exact(relative, lambda values: max(values, key=abs))
        parts.append(
            judge_claim(
                f"{name} stay",
                _MEMORY_TEST,
                "largest relative change",
                most,
                Limits(-MEMORY_STAYS, MEMORY_STAYS),
                of,
            )
        )
    refused = evidence.absent.get("memory")
    return verdict_from_claims(
        MEMORY_BY_BATCH, [*parts, *([undecidable_claim("of every model", _MEMORY_TEST, refused)] if refused else [])]
    )


def _exact(values: list[float], chosen: Callable[[list[float]], float]) -> Estimate:
    value = chosen(values)
    return Estimate(value, value, value)


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


_PROCESS_READING = "counterpart on a CPU: the use of the training process itself"


def judge_use_is_periodic(evidence: Evidence) -> Verdict:
    """Accelerator and mean of the cores; on the CPU alone the cores that the training process keeps busy."""
    if not evidence.accelerated:
        return verdict_from_claims(
            USE_IS_PERIODIC, _periodic(evidence, "use", "trainer", "use of the training process"), _PROCESS_READING
        )
    parts = _periodic(evidence, "use", "accelerator", "use of the accelerator")
    return verdict_from_claims(USE_IS_PERIODIC, [*parts, *_periodic(evidence, "use", "CPU", "use of the CPU")])


def _periodic(evidence: Evidence, of: str, what: str, name: str) -> list[JudgedClaim]:
    """Return the parts on a channel, from runs that had the machine to themselves: a scheduler has a rhythm, too."""
    if evidence.why_all_times_disturbed:
        return [undecidable_claim(f"{name} periodic", FOLD_TEST, evidence.why_all_times_disturbed)]
    alone = evidence.rhythm.join(evidence.runs_without_load.select("run"), on="run", how="semi")
    return judge_periodicity(alone, evidence.runs, of, what, name)


USE_IS_PERIODIC = Observation(
    2,
    "The use of the accelerator and of the cores is periodic, hence predictable",
    "busy cycles alternate with less busy ones; one period is one step (Fig. 3)",
    "rhythm-use",
    "runs",
    judge_use_is_periodic,
)


def judge_power_is_periodic(evidence: Evidence) -> Verdict:
    """Judge the power of the whole device where a rail measures it, else of the first measured component."""
    measured = evidence.rhythm.filter(of="power")["what"].unique(maintain_order=True).to_list()
    if not measured:
        why = evidence.absent.get("power", "no power sensor was read")
        return verdict_from_claims(POWER_IS_PERIODIC, [undecidable_claim("the power is periodic", FOLD_TEST, why)])
    what = "total" if "total" in measured else measured[0]
    return verdict_from_claims(POWER_IS_PERIODIC, _periodic(evidence, "power", what, f"power ({what})"))


POWER_IS_PERIODIC = Observation(
    7,
    "Power is periodic with the step, hence predictable",
    "the power of every component repeats from step to step (Fig. 7)",
    "figure-7-power-over-steps",
    "runs",
    judge_power_is_periodic,
)


_DAYS_TEST = "least-squares slope of accuracy on day of each seed; mean over the seeds, Student's 95 % CI"
_DAYS_CLAIM = "accuracy rises"


def judge_days(evidence: Evidence) -> Verdict:
    """Seeds are what repeats: days of one seed hang together. Several batch sizes of a seed count as their mean."""
    if evidence.days.is_empty():
        why = evidence.absent.get("days", "no daily training was made")
        return verdict_from_claims(DAILY_TRAINING, [undecidable_claim(_DAYS_CLAIM, _DAYS_TEST, why)])
    slopes, gains = [], []
    for _, seed in evidence.days.group_by("seed", maintain_order=True):
        of_seed = [frame.sort("day") for _, frame in seed.group_by("batch", maintain_order=True)]
        lines = [np.polyfit(frame["day"].to_numpy(), frame["accuracy"].to_numpy(), 1)[0] for frame in of_seed]
        slopes.append(100 * float(np.mean(lines)))
        gains.append([float(np.mean([frame["accuracy"][end] for frame in of_seed])) for end in (0, -1)])
    slope = mean_of(slopes)
    first, last = np.mean(gains, axis=0)
    days = int(evidence.days.select("day").to_series().max())  # type: ignore[arg-type]
    of = f"{len(slopes)} seeds, {days} days: {first:.1%} to {last:.1%}"
    return verdict_from_claims(
        DAILY_TRAINING, [judge_claim(_DAYS_CLAIM, _DAYS_TEST, "points of accuracy a day", slope, Limits(least=0.0), of)]
    )


DAILY_TRAINING = Observation(
    12,
    "Training on 64 new images a day slowly raises the accuracy",
    "60.65 to 61.32 % in 17 days: 0.04 points a day (Fig. 10)",
    "figure-10-accuracy-by-day",
    "days",
    judge_days,
)

OBSERVATIONS = (
    USE_FOLLOWS_BATCH, GROWTH_DIFFERS, THROUGHPUT_GROWS, ENERGY_GROWS_LESS, MEMORY_BY_BATCH, USE_IS_PERIODIC,
    POWER_IS_PERIODIC, DAILY_TRAINING,
)  # fmt: skip
