"""Observation 6: the accelerator draws the most power, but for recurrent networks the memory draws more than it."""

from __future__ import annotations

import polars as pl

from stepscope.experiments.observations._contract import Limits, Observation, Part, Verdict, part, unjudged, verdict
from stepscope.experiments.observations._evidence import CONVOLUTIONAL, RECURRENT, Evidence
from stepscope.experiments.observations._statistics import ratio_of
from stepscope.units import plural

_TEST = "geometric mean over the runs of the ratio of mean powers, Student's 95 % CI of the logarithms"
_READING = "counterpart on a CPU: the cores in the place of the accelerator"
_RIVALS = ("gpu", "cpu", "memory")


def judge(evidence: Evidence) -> Verdict:
    """Needs a rail of its own for each of them: one that two share cannot tell."""
    worker, reading = ("gpu", "as the paper") if evidence.accelerated else ("cpu", _READING)
    most, least = (
        f"the {worker} draws the most ({CONVOLUTIONAL})",
        f"the memory draws more than the {worker} ({RECURRENT})",
    )
    wide = _by_component(evidence)
    lacking = [name for name in dict.fromkeys((worker, "cpu", "memory")) if name not in wide.columns]
    if lacking:
        why = _why(evidence, wide, lacking)
        return verdict(OBSERVATION, [unjudged(most, _TEST, why), unjudged(least, _TEST, why)], reading)
    others = [name for name in _RIVALS if name != worker and name in wide.columns]
    ours = wide.filter(kind=CONVOLUTIONAL).with_columns(ratio=pl.col(worker) / pl.max_horizontal(others))
    theirs = wide.filter(kind=RECURRENT).with_columns(ratio=pl.col("memory") / pl.col(worker))
    first = _part(ours, most, f"power of the {worker} / that of the next", CONVOLUTIONAL)
    return verdict(
        OBSERVATION, [first, _part(theirs, least, f"power of the memory / that of the {worker}", RECURRENT)], reading
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


OBSERVATION = Observation(
    6,
    "The accelerator draws the most power, but for recurrent networks the memory draws more",
    "GPU first for ResNet50 and VGG16, memory first for the LSTM (Figs. 6 and 7)",
    "figure-6-energy-by-batch",
    "runs",
    judge,
)
