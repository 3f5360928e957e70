"""The tests that the observations share. A claim about all models is judged for each of them, from its runs.

The unit that repeats is the run, a fresh process. Of one model, runs of a batch size differ by chance and runs of two
batch sizes by the batch as well: each batch size has a mean of its own (no line is fitted: growth may bend), and the
scatter of a run is pooled from the differences within them, with as many degrees of freedom as there are repeats.
Intervals of one claim hold together: Bonferroni over all comparisons of all models (R. G. Miller, Simultaneous
Statistical Inference, 1981). Nothing is pooled over models: what one does says nothing of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import polars as pl
from scipy import special  # type: ignore[import-untyped]  # scipy.stats takes half a second to import

from stepscope.analysis.estimate import CONFIDENCE, Estimate, mean_interval, share_interval
from stepscope.experiments.observations import (
    FAILS,
    FEWEST,
    HOLDS,
    UNKNOWN,
    JudgedClaim,
    Limits,
    ModelVerdict,
    Outcome,
    interval_text,
    undecidable_claim,
)
from stepscope.units import plural

NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))
TOGETHER = "95 % CIs that hold together for all models and batch sizes (Student, Bonferroni)"
ONCE = "no batch size has two runs that tell it, so how runs differ is not known: more or longer runs would tell"


@dataclass(frozen=True)
class Comparison:
    """A number of one model with its standard error and degrees of freedom.

    A model's first comparison is its headline, whose whole interval must lie within the limits. The others can speak
    against the claim; where `strict`, the whole interval of each must lie within as well, otherwise its value.
    """

    what: str
    value: float
    error: float
    freedom: float
    strict: bool = False
    veto_limits: Limits | None = None  # in place of the claim's limits: against it only where the whole interval is out

    def interval(self, comparisons: int) -> Estimate:
        """The interval that holds together with those of so many comparisons."""
        if self.error == 0:
            return Estimate(self.value, self.value, self.value)
        tail = (1 - CONFIDENCE) / 2 / comparisons
        half = float(special.stdtrit(self.freedom, 1 - tail)) * self.error
        return Estimate(self.value, self.value - half, self.value + half)


@dataclass(frozen=True)
class BatchMeans:
    """One model: batch sizes in order, the mean of its runs at each with its standard error, and degrees of freedom.

    freedom: 0 where no batch size was run twice; errors are then NaN.
    """

    model: str
    batches: tuple[int, ...]
    means: tuple[float, ...]
    errors: tuple[float, ...]
    freedom: int
    runs: int


def batch_means_of_models(runs: pl.DataFrame, value: pl.Expr, within: pl.Expr | None = None) -> list[BatchMeans]:
    """Return the cells of each model: `value` of each run by batch, and where known its standard error within the run.

    runs: workload, batch and what the expressions need. The standard error of a mean is the one from the scatter
    between runs, or the one from within the runs if that is larger.
    """
    within = pl.lit(None) if within is None else within
    rows = runs.select("workload", "batch", value=value.cast(pl.Float64), within=within.cast(pl.Float64))
    models: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for name, batch, number, inside in rows.iter_rows():
        if batch is not None and number is not None and math.isfinite(number):
            models.setdefault(str(name), {}).setdefault(int(batch), []).append((number, inside or 0.0))
    return [_batch_means(name, batches) for name, batches in models.items()]


def _batch_means(model: str, batches: dict[int, list[tuple[float, float]]]) -> BatchMeans:
    order = sorted(batches)
    values, inside = zip(*(np.array(batches[batch]).T for batch in order), strict=True)
    runs = sum(map(len, values))
    freedom = runs - len(order)
    squares = sum(float(((x - x.mean()) ** 2).sum()) for x in values)
    scatter = math.sqrt(squares / freedom) if freedom else math.nan
    errors = (
        max(scatter / math.sqrt(len(x)), math.sqrt(float((is_inside**2).sum())) / len(x)) if freedom else math.nan
        for x, is_inside in zip(values, inside, strict=True)
    )
    return BatchMeans(model, tuple(order), tuple(float(x.mean()) for x in values), tuple(errors), freedom, runs)


def mean_over_batches(cells: BatchMeans) -> list[Comparison]:
    """The mean over a model's batch sizes; the mean of each of them must not speak against it."""
    count = len(cells.batches)
    error = math.sqrt(sum(error**2 for error in cells.errors)) / count
    overall = [Comparison("", sum(cells.means) / count, error, cells.freedom)]
    single = zip(cells.batches, cells.means, cells.errors, strict=True)
    comparisons = [Comparison(f"at batch {batch}", mean, error, cells.freedom) for batch, mean, error in single]
    return overall + comparisons if count > 1 else overall


def exponents(cells: BatchMeans) -> list[Comparison]:
    """The exponent of the batch from the smallest to the largest, and strictly from each batch size to the next.

    The cells hold logarithms. Nothing where there is one batch size.
    """
    logs = [math.log(batch) for batch in cells.batches]
    places = list(range(len(logs)))
    if len(places) < 2:
        return []
    stretches = [(0, places[-1]), *(pairwise(places) if len(places) > 2 else ())]
    comparisons = []
    for a, b in stretches:
        apart = logs[b] - logs[a]
        error = math.hypot(cells.errors[a], cells.errors[b]) / apart
        what = f"from batch {cells.batches[a]} to {cells.batches[b]}"
        comparisons.append(
            Comparison(what, (cells.means[b] - cells.means[a]) / apart, error, cells.freedom, strict=True)
        )
    return comparisons


def growth(cells: BatchMeans) -> list[Comparison]:
    """The change from the smallest batch to the largest; from no batch size to the next may it clearly fall."""
    changes = _changes(cells, list(pairwise(range(len(cells.batches)))), strict=False)
    ends = _changes(cells, [(0, len(cells.batches) - 1)], strict=True)
    falls = [replace(comparison, veto_limits=Limits(least=0.0)) for comparison in changes] if len(changes) > 1 else []
    return [*ends, *falls] if changes else []


def changes_from_smallest_batch(cells: BatchMeans) -> list[Comparison]:
    """The change from the smallest batch to each other one, the largest first; each must lie within the limits."""
    return _changes(cells, [(0, place) for place in range(len(cells.batches) - 1, 0, -1)], strict=True)


def _changes(cells: BatchMeans, pairs: Iterable[tuple[int, int]], strict: bool) -> list[Comparison]:
    return [
        Comparison(
            f"from batch {cells.batches[a]} to {cells.batches[b]}",
            cells.means[b] - cells.means[a],
            math.hypot(cells.errors[a], cells.errors[b]),
            cells.freedom,
            strict,
        )
        for a, b in pairs
    ]


def compare_model_pairs(
    pairs: Iterable[tuple[BatchMeans, BatchMeans]],
) -> tuple[list[tuple[str, int, list[Comparison]]], dict[str, str]]:
    """Return each model against another, as `judge_models` takes them, and why some cannot be compared."""
    entries, counted = [], set[str]()
    for a, b in pairs:  # each model's runs once, in however many pairs it is
        runs = sum(cells.runs for cells in (a, b) if cells.model not in counted)
        counted |= {a.model, b.model}
        entries.append((f"{a.model} over {b.model}", runs, difference_between_models(a, b)))
    apart = {name: "they have no batch size in common" for name, _, comparisons in entries if not comparisons}
    return [entry for entry in entries if entry[2]], apart


def difference_between_models(ours: BatchMeans, others: BatchMeans) -> list[Comparison]:
    """Mean of one model less that of another over the batch sizes of both; at none of them may it be the other way.

    Nothing where they share none: what the batch does would pass for what the model does.
    """
    shared = [batch for batch in ours.batches if batch in others.batches]
    if not shared:
        return []
    ours, others = (_select_batches(cells, shared) for cells in (ours, others))
    pairs = zip(mean_over_batches(ours), mean_over_batches(others), strict=True)
    return [Comparison(a.what, a.value - b.value, math.hypot(a.error, b.error), _welch(a, b)) for a, b in pairs]


def _select_batches(cells: BatchMeans, batches: Sequence[int]) -> BatchMeans:
    places = [cells.batches.index(batch) for batch in batches]
    means, errors = (tuple(values[place] for place in places) for values in (cells.means, cells.errors))
    return replace(cells, batches=tuple(batches), means=means, errors=errors)


def _welch(a: Comparison, b: Comparison) -> float:
    squares = a.error**2, b.error**2
    if not a.freedom or not b.freedom or not sum(squares):
        return min(a.freedom, b.freedom)
    return sum(squares) ** 2 / (squares[0] ** 2 / a.freedom + squares[1] ** 2 / b.freedom)


def judge_models(
    claim: str,
    test: str,
    effect: str,
    limits: Limits,
    models: Sequence[tuple[str, int, list[Comparison]]],
    transform: Callable[[float], float] = float,
    lacking: dict[str, str] | None = None,
    selected_from: int = 1,
) -> JudgedClaim:
    """A claim about all models, judged for each; it holds only if it holds for each, and one is enough against it.

    models: the name of a model, its runs, and its comparisons, the headline first; `transform` makes what is said of
    the intervals. lacking: why there is nothing of the models that are not among them. selected_from: how many such
    claims there were, of which the data themselves selected this one.
    """
    together = selected_from * sum(len(comparisons) for *_, comparisons in models)
    verdicts = [_judge_model(name, comparisons, limits, together, transform) for name, _, comparisons in models]
    verdicts += [ModelVerdict(name, UNKNOWN, None, why) for name, why in (lacking or {}).items()]
    if not verdicts:
        return undecidable_claim(claim, test, "no model was measured")
    return combine_verdicts(claim, test, effect, limits, verdicts, sum(runs for _, runs, _ in models))


def combine_verdicts(
    claim: str, test: str, effect: str, limits: Limits, verdicts: Sequence[ModelVerdict], runs: int
) -> JudgedClaim:
    """The verdict on a claim about all models from those on each; the number is that of the model that decides."""
    outcomes = {verdict.outcome for verdict in verdicts}
    outcome: Outcome = FAILS if FAILS in outcomes else UNKNOWN if UNKNOWN in outcomes else HOLDS
    deciding = [verdict for verdict in verdicts if verdict.outcome == outcome]
    worst = min(deciding, key=lambda model_result: _margin(model_result.interval, limits))
    others = ", ".join(verdict.model for verdict in verdicts if verdict.outcome == HOLDS)
    also_holds = f"; holds for {others}" if outcome != HOLDS and others else ""
    pairs = any(" over " in verdict.model for verdict in verdicts)
    unknown = sum(verdict.interval is None for verdict in verdicts)
    of = f"{plural(runs, 'run')}; {'pairs of models' if pairs else 'models'}: {len(verdicts)}"
    of += f", of which {unknown} could not be judged" if unknown else ""
    if outcome == HOLDS:
        why = f"for each of {plural(len(verdicts), 'model')}; nearest to the limit {worst.model}: {worst.why}"
    else:
        why = "; ".join(f"{model_result.model}: {model_result.why}" for model_result in deciding) + also_holds
    named = f"{effect}; the number: {worst.where}" if worst.where else effect
    return JudgedClaim(claim, test, named, worst.interval, limits, of, outcome, why, tuple(verdicts))


def _margin(number: Estimate | None, limits: Limits) -> float:
    """How far inside the limits an interval lies; the lowest is the worst."""
    if number is None:
        return math.inf
    low, high = (number.value if bound is None else bound for bound in (number.low, number.high))
    return min(low - limits.least, limits.most - high)


def _judge_model(
    model: str, comparisons: Sequence[Comparison], limits: Limits, together: int, transform: Callable[[float], float]
) -> ModelVerdict:
    if not comparisons:
        return ModelVerdict(model, UNKNOWN, None, "it ran with one batch size")
    if not comparisons[0].freedom:
        return ModelVerdict(model, UNKNOWN, Estimate(transform(comparisons[0].value)), ONCE)
    judged = []
    for index, comparison in enumerate(comparisons):
        interval, own = comparison.interval(together), comparison.veto_limits or limits
        spread = interval.transformed(transform)
        outcome = _outcome(spread, own, comparison.strict or index == 0)
        if comparison.veto_limits is not None and outcome == UNKNOWN:
            outcome = HOLDS
        judged.append((outcome, comparison, spread, own))
    decisive = next((entry for outcome in (FAILS, UNKNOWN) for entry in judged if entry[0] == outcome), None)
    if decisive is None:
        spread = judged[0][2]
        return ModelVerdict(model, HOLDS, spread, f"{interval_text(spread)}, {limits}")
    outcome, comparison, spread, own = decisive
    where = f" {comparison.what}" if comparison.what else ""
    spans = f" spans the limit ({own}); more repeats or longer runs would tell"
    why = f"{interval_text(spread)}{where}{f', not {own}' if outcome == FAILS else spans}"
    return ModelVerdict(model, outcome, spread, why, comparison.what)


def _outcome(number: Estimate, limits: Limits, strict: bool) -> Outcome:
    if number.low is None or number.high is None:
        return UNKNOWN
    if number.high <= limits.least or number.low >= limits.most:
        return FAILS
    low, high = (number.low, number.high) if strict else (number.value, number.value)
    return HOLDS if low > limits.least and high < limits.most else UNKNOWN


def judge_run_shares(
    counts: Sequence[tuple[str, int, int, int]], limits: Limits, lacking: dict[str, str] | None = None
) -> list[ModelVerdict]:
    """The share of the runs of each model with Wilson's intervals, which hold together.

    counts: name, batch, hits, runs. What a batch size does its repeats do as well: at none may the share be otherwise.
    """
    models: dict[str, dict[int, tuple[int, int]]] = {}
    for name, batch, hits, count in counts:
        models.setdefault(name, {})[batch] = hits, count
    batch_confidence = 1 - (1 - CONFIDENCE) / max(len(counts), 1)
    verdicts = []
    for name, batches in models.items():
        hits, count = (sum(of_batch[place] for of_batch in batches.values()) for place in (0, 1))
        verdict = _judge_share(name, hits, count, limits, len(models))
        for batch, (hits, count) in batches.items():
            outcome = _outcome(Estimate(*share_interval(hits, count, batch_confidence)), limits, strict=False)
            if verdict.outcome == HOLDS and outcome != HOLDS:
                why = f"{verdict.why}, but at batch {batch} {hits} of {plural(count, 'run')}"
                verdict = replace(verdict, outcome=outcome, why=why)
        verdicts.append(verdict)
    return [*verdicts, *(ModelVerdict(name, UNKNOWN, None, why) for name, why in (lacking or {}).items())]


def _judge_share(name: str, hits: int, count: int, limits: Limits, together: int) -> ModelVerdict:
    """The share of the runs of one model, with Wilson's interval that holds together with those of so many models."""
    if count < FEWEST:
        return ModelVerdict(name, UNKNOWN, Estimate(hits / count), f"too few: {plural(count, 'run')}")
    spread = Estimate(*share_interval(hits, count, 1 - (1 - CONFIDENCE) / together))
    outcome = _outcome(spread, limits, strict=True)
    spans = f" spans the limit ({limits}); more runs would tell"
    reason = {HOLDS: f", {limits}", FAILS: f", not {limits}"}.get(outcome, spans)
    why = f"{hits} of {plural(count, 'run')}, {interval_text(spread)}{reason}"
    return ModelVerdict(name, outcome, spread, why)


def mean_of(values: Sequence[float | None] | pl.Series) -> Estimate:
    """Mean and Student's interval of values from independent runs; no interval below FEWEST."""
    plain = np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    present = plain[np.isfinite(plain)]
    mean, low, high = mean_interval(present)
    return Estimate(mean, low, high) if len(present) >= FEWEST else Estimate(mean)


def log_within(column: str) -> pl.Expr:
    """Standard error of the logarithm of a number within its run, from the bounds of its 95 % CI; null without."""
    low, high = pl.col(f"{column}_low"), pl.col(f"{column}_high")
    return pl.when((low > 0) & (high > 0)).then((high / low).log() / 2 / NORMAL)


def why_not_judged(runs: pl.DataFrame, judged_runs: pl.Series, judged_names: Iterable[str], why: str) -> dict[str, str]:
    """Return why models of these runs are not among the `judged_names`: no run of theirs is judged, or `why`."""
    reasons = {}
    for (name,), frame in runs.group_by(["workload"], maintain_order=True):
        if name not in set(judged_names):
            others = frame["background"].drop_nulls()
            lost = len(others) > 0 and not frame["run"].is_in(judged_runs.implode()).any()
            every = f"all {len(frame)} of its runs"
            which = every if len(others) == len(frame) else "all runs of one of its batch sizes"
            reasons[str(name)] = f"{which} were disturbed ({others[0]})" if lost else why
    return reasons


OF_THE_STEP = 0.1  # a period within this share of the step's length is the step's
MOST_RUNS, LEAST_EXPLAINED = 0.5, 0.25
PERIOD_TEST = (
    "share of a model's runs whose autocorrelation has its first peak at one step; Wilson's 95 % CIs that hold "
    "together; at none of its batch sizes may it be otherwise"
)
FOLD_TEST = (
    "samples folded by step: variance of the even steps predicted by the mean of the odd ones; mean over a model's "
    f"batch sizes; {TOGETHER}"
)


def judge_periodicity(rhythm: pl.DataFrame, runs: pl.DataFrame, of: str, what: str, name: str) -> list[JudgedClaim]:
    """Two claims on one channel: the samples alone show the step as their period; one step predicts another."""
    periodic, predictable = f"the {name} has the step as its period", f"one step predicts the {name} of another"
    rows = rhythm.filter(of=of, what=what).join(runs.select("run", "batch"), on="run", how="left")
    readable = rows.drop_nulls("explained")
    if readable.is_empty():
        why = _too_short(rows, name)
        return [undecidable_claim(periodic, PERIOD_TEST, why), undecidable_claim(predictable, FOLD_TEST, why)]
    hit = ((pl.col("period_steps") - 1).abs() <= OF_THE_STEP).fill_null(False)
    counted = readable.group_by("workload", "batch", maintain_order=True).agg(hit.sum().alias("hits"), count=pl.len())
    lacking = {
        str(model): _too_short(frame, name)
        for (model,), frame in rows.group_by(["workload"], maintain_order=True)
        if model not in set(counted["workload"])
    }
    lacking |= why_not_judged(runs, rhythm["run"], rows["workload"].unique(), f"the {name} was not read")
    shares = judge_run_shares(list(counted.iter_rows()), Limits(least=MOST_RUNS), lacking)
    models = [(of.model, of.runs, mean_over_batches(of)) for of in batch_means_of_models(readable, pl.col("explained"))]
    effect, limits = "share of the variance predicted", Limits(least=LEAST_EXPLAINED)
    return [
        combine_verdicts(periodic, PERIOD_TEST, "share of the runs", Limits(least=MOST_RUNS), shares, len(readable)),
        judge_models(predictable, FOLD_TEST, effect, limits, models, lacking=lacking),
    ]


def _too_short(rows: pl.DataFrame, name: str) -> str:
    if rows.is_empty():
        return f"the {name} was not read"
    readings, step = rows.select("readings_per_step", "step_ms").sort("readings_per_step", descending=True).row(0)
    return f"no run has steps long enough to see into: at best {readings:.1f} readings in a step of {step:.3g} ms"
