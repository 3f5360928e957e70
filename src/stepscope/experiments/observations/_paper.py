"""Values and rankings that the 2019 paper prints in its text, to stand beside own ones in its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

import polars as pl

from stepscope.analysis.results import ResultTable, Value
from stepscope.experiments.observations._contract import Limits, Part, unjudged
from stepscope.experiments.observations._evidence import CONVOLUTIONAL, Evidence
from stepscope.experiments.observations._statistics import TOGETHER, cells_of, judge_models, lead

FRAME = "paper-points"
# figure, the paper's model, what, batch or day, value: read in the text, not measured in a picture
_POINTS = (
    ("figure-4-use-by-batch", "SqueezeNet", "accelerator", 4, 71.4),
    ("figure-4-use-by-batch", "SqueezeNet", "accelerator", 64, 84.5),
    ("figure-4-use-by-batch", "ResNet50", "accelerator", 4, 85.6),
    ("figure-4-use-by-batch", "ResNet50", "accelerator", 64, 95.6),
    ("figure-8-throughput-by-batch", "ResNet50", "samples/s", 4, 9.0),
    ("figure-8-throughput-by-batch", "ResNet50", "samples/s", 64, 55.0),
    ("figure-8-throughput-by-batch", "Deep RL", "samples/s", 4, 889.0),
    ("figure-8-throughput-by-batch", "Deep RL", "samples/s", 64, 13_618.0),
    ("figure-8-throughput-by-batch", "DenseNet40", "samples/s", 4, 20.0),
    ("figure-8-throughput-by-batch", "DenseNet40", "samples/s", 64, 34.0),  # 1.7 times the 20
    ("figure-9-memory-by-batch", "DenseNet40", "intermediate data", 4, 2200.0),
    ("figure-9-memory-by-batch", "DenseNet40", "intermediate data", 64, 5900.0),
    ("figure-10-accuracy-by-day", "DenseNet40", "accuracy", 0, 60.65),
    ("figure-10-accuracy-by-day", "DenseNet40", "accuracy", 17, 61.32),
)
_PREFIXES = {"SqueezeNet": "squeezenet", "ResNet50": "resnet50", "Deep RL": "dqn", "DenseNet40": "densenet40"}
_UNITS = {
    "figure-4-use-by-batch": ("percent", "%"),
    "figure-8-throughput-by-batch": ("samples_per_s", "samples/s"),
    "figure-9-memory-by-batch": ("mb", "MB"),
    "figure-10-accuracy-by-day": ("percent", "%"),
}


def paper_points() -> pl.DataFrame:
    """The paper's points: figure, model, workload (how the names of its own begin), what, x (batch or day), value."""
    rows = [(figure, model, _PREFIXES[model], what, x, value) for figure, model, what, x, value in _POINTS]
    schema = {"figure": pl.String, "model": pl.String, "workload": pl.String, "what": pl.String, "x": pl.Int64}
    return pl.DataFrame(rows, schema={**schema, "value": pl.Float64}, orient="row")


def point_table(drawn: Mapping[str, pl.DataFrame]) -> ResultTable:
    """The paper's points beside own values of the same model, at the same batch size or day."""
    rows: list[tuple[Value, ...]] = []
    for point in paper_points().iter_rows(named=True):
        column, unit = _UNITS[point["figure"]]
        number = point["figure"].split("-")[1]
        value = point["value"]
        rows.append((f"figure {number}", point["model"], point["x"], value, _own(drawn, point, column), unit))
    columns = ("figure", "model", "batch or day", "the paper", "here", "unit")
    note = "The paper's values are those in its text, of a Jetson TX2 with TensorFlow 1.13; a dash: not measured here."
    return ResultTable("points", "The paper's points beside own ones", columns, tuple(rows), note)


def _own(drawn: Mapping[str, pl.DataFrame], point: Mapping[str, object], column: str) -> float | None:
    rows = drawn.get(str(point["figure"]))
    if rows is None:
        return None
    place = "day" if "day" in rows.columns else "batch"
    rows = rows.filter(pl.col(place) == point["x"])
    for name in ("what", "part"):
        rows = rows.filter(pl.col(name) == point["what"]) if name in rows.columns else rows
    if "workload" in rows.columns:
        rows = rows.filter(pl.col("workload").str.starts_with(str(point["workload"])))
    elif point["figure"] == "figure-10-accuracy-by-day":
        return None  # of another network: the study's daily training says which
    values = rows[column].to_numpy()
    return float(values.mean()) if len(values) else None


_MOST = "DenseNet40 takes the most energy of the networks that see"
_LEAST = "SqueezeNet takes the least energy of the networks that see"
_TEST = f"energy of a sample over that of each other network, geometric mean over the batch sizes of both; {TOGETHER}"


def judge_rankings(evidence: Evidence) -> list[Part]:
    """The paper's rankings by energy, each against every other convolutional network that was measured."""
    runs = evidence.undisturbed.filter(pl.col("kind") == CONVOLUTIONAL, pl.col("energy_per_step_j") > 0)
    known = cells_of(runs, (pl.col("energy_per_step_j") / pl.col("batch")).log())
    found = []
    for claim, prefix, limits in (
        (_MOST, "densenet40", Limits(least=1.0)),
        (_LEAST, "squeezenet", Limits(most=1.0)),
    ):
        ours = [cells for cells in known if cells.model.startswith(prefix)]
        others = [cells for cells in known if cells not in ours]
        if not ours or not others:
            why = evidence.absent.get("power", f"no energy was measured of {prefix} and of another network")
            found.append(unjudged(claim, _TEST, why))
            continue
        pairs = [
            (f"{ours[0].model} over {other.model}", ours[0].runs + other.runs, lead(ours[0], other)) for other in others
        ]
        found.append(judge_models(claim, _TEST, "ratio of the energies", limits, pairs, math.exp))
    return found


def ranking_table(evidence: Evidence) -> ResultTable:
    """The verdicts on the rankings."""
    rows: list[tuple[Value, ...]] = []
    for part in judge_rankings(evidence):
        bounds = (None, None, None) if part.found is None else (part.found.value, part.found.low, part.found.high)
        known = [None if bound is None or math.isnan(bound) else bound for bound in bounds]
        rows.append((part.claim, part.outcome, *known, part.why))
    columns = ("the paper says", "verdict", "ratio", "low", "high", "why")
    return ResultTable("rankings", "The paper's rankings", columns, tuple(rows), _TEST)
