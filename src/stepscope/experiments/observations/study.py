"""`stepscope study observations`: its plan, findings and frames, with the values and rankings that the paper prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.channels import Series
from stepscope.analysis.estimate import Estimate
from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import span_ns, steps_after_warmup
from stepscope.arrays import Floats
from stepscope.experiments.engine.engine import Plan, Result, device_name
from stepscope.experiments.observations import (
    AS_THE_PAPER,
    FAILS,
    HOLDS,
    UNKNOWN,
    JudgedClaim,
    Limits,
    Observation,
    Observations,
    Verdict,
    all_observations,
    undecidable_claim,
    verdict_from_claims,
)
from stepscope.experiments.observations._evidence import (
    CONVOLUTIONAL,
    Evidence,
    accelerator_gauge,
    gather_evidence,
    phases_within_steps,
    process_use,
    process_windows,
    read_processor_use,
)
from stepscope.experiments.observations._measurements import Measurements, gather_measurements, planned_measurements
from stepscope.experiments.observations._statistics import (
    TOGETHER,
    batch_means_of_models,
    compare_model_pairs,
    judge_models,
    why_not_judged,
)

PAPER_POINTS = "paper-points"
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


_OF_A_BOARD = (
    " Beside a simulated board, times and samples a second are this machine's with its processor; use and power are "
    "the board's, joules its power over this machine's time."
)


def point_table(drawn: Mapping[str, pl.DataFrame], simulated: str | None = None) -> ResultTable:
    """The paper's points beside own values of the same model, at the same batch size or day."""
    rows: list[tuple[Value, ...]] = []
    for point in paper_points().iter_rows(named=True):
        column, unit = _UNITS[point["figure"]]
        number = point["figure"].split("-")[1]
        value = point["value"]
        rows.append(
            (f"figure {number}", point["model"], point["x"], value, _measured_value(drawn, point, column), unit)
        )
    columns = ("figure", "model", "batch or day", "the paper", "here", "unit")
    note = "The paper's values are those in its text, of a Jetson TX2 with TensorFlow 1.13; a dash: not measured here."
    note += _OF_A_BOARD if simulated else ""
    return ResultTable("points", "The paper's points beside yours", columns, tuple(rows), note)


def _measured_value(drawn: Mapping[str, pl.DataFrame], point: Mapping[str, object], column: str) -> float | None:
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


def judge_rankings(evidence: Evidence) -> list[JudgedClaim]:
    """The paper's rankings by energy, each against every other convolutional network that was measured."""
    seeing = evidence.runs.filter(kind=CONVOLUTIONAL)
    runs = evidence.runs_without_load.filter(pl.col("kind") == CONVOLUTIONAL, pl.col("energy_per_step_j") > 0)
    model_means = batch_means_of_models(runs, (pl.col("energy_per_step_j") / pl.col("batch")).log())
    names = [cells.model for cells in model_means]
    lacking = why_not_judged(seeing, evidence.runs_without_load["run"], names, "its energy was not measured")
    claims = []
    for claim, prefix, limits in (
        (_MOST, "densenet40", Limits(least=1.0)),
        (_LEAST, "squeezenet", Limits(most=1.0)),
    ):
        ours = [cells for cells in model_means if cells.model.startswith(prefix)]
        others = [cells for cells in model_means if cells not in ours]
        if not ours or not others:
            why = evidence.absent.get("power", f"no energy was measured of {prefix} and of another network")
            claims.append(undecidable_claim(claim, _TEST, why))
            continue
        pairs, apart = compare_model_pairs((ours[0], other) for other in others)
        claims.append(
            judge_models(claim, _TEST, "ratio of the energies", limits, pairs, math.exp, {**apart, **lacking})
        )
    return claims


def ranking_table(evidence: Evidence) -> ResultTable:
    """The verdicts on the rankings."""
    claims = judge_rankings(evidence)
    rows = [(part.claim, part.outcome, *_value_and_bounds(part.interval), part.why) for part in claims]
    columns = ("the paper says", "verdict", "ratio", "low", "high", "why")
    return ResultTable("rankings", "The paper's rankings", columns, tuple(rows), _TEST)


TITLE = "The twelve observations of the 2019 paper on this device"


def observation_plan(request: Observations) -> Plan:
    """Measure what the observations need, and judge them."""

    def judge(results: Mapping[str, Result]) -> Findings:
        gathered = gather_measurements(request, results)
        runs, notes = _select_comparable_runs(gathered)
        unselected = {name: "not selected (--only)" for name in ("memory", "days") if name not in request.needs}
        evidence = gather_evidence(runs, gathered.frames, {**unselected, **gathered.absent})
        return build_findings(evidence, runs, request, notes)

    return Plan(planned_measurements(request), judge, time_limit_s=request.time_limit)


def build_findings(evidence: Evidence, runs: Sequence[Run], request: Observations, notes: Sequence[str]) -> Findings:
    """The findings from evidence that has been gathered."""
    verdicts = judge_all(evidence, request.only)
    drawn = figure_frames(evidence, runs)
    simulated = next((run.simulated for run in runs if run.simulated), None)
    return Findings(
        title=TITLE,
        answer=_answer(verdicts),
        tables=(
            _verdict_table(verdicts),
            _model_table(verdicts),
            _part_table(verdicts),
            _paper_table(verdicts, drawn),
            *([ranking_table(evidence), point_table(drawn, simulated)] if request.all_of_runs else []),
            _method_table(verdicts),
            _means_by_workload_table(evidence, simulated),
        ),
        device=_device_of_runs(runs),
        notes=(*notes, *_limit_notes(evidence)),
        simulated=simulated,
        frames=drawn,
    )


def judge_all(evidence: Evidence, only: Sequence[int] = ()) -> list[Verdict]:
    """The verdict on every observation, or on those of these numbers."""
    return [_judge_observation(entry, evidence) for entry in all_observations() if not only or entry.number in only]


def _judge_observation(observation: Observation, evidence: Evidence) -> Verdict:
    """Judge it; a model of which there is no run at all keeps what is claimed of all models open."""
    verdict, lost = observation.judge(evidence), evidence.absent.get("models")
    if observation.needs != "runs" or not lost:
        return verdict
    missing = undecidable_claim("of every model", "a run of each model that was asked for", lost)
    return verdict_from_claims(observation, [*verdict.parts, missing], verdict.reading)


def _select_comparable_runs(result: Measurements) -> tuple[list[Run], list[str]]:
    """Return the runs of each model with one setting on one device, so that only the batch differs.

    Of several devices it is an accelerator where there is one, and then the one with the most runs.
    """
    devices = {run.id: _device_facts(run) for run in result.runs}
    count = Counter(devices.values())
    usual_device = max(count, key=lambda device: (device[0] != ("device", "cpu"), count[device]), default=())
    runs = [run for run in result.runs if devices[run.id] == usual_device]
    settings = {run.id: _setting_facts(run) for run in runs}
    usual = {}
    for name in {name for name, _ in settings.values()}:
        usual[name] = Counter(facts for other, facts in settings.values() if other == name).most_common(1)[0][0]
    comparable = [run for run in runs if settings[run.id][1] == usual[settings[run.id][0]]]
    excluded = len(result.runs) - len(comparable)
    if not excluded:
        return comparable, result.notes
    pairs = [(usual_device, facts) for facts in devices.values()]
    pairs += [(usual[name], facts) for name, facts in settings.values()]
    names = sorted({name for ours, facts in pairs for name, _ in set(facts) - set(ours)})
    text = f"{excluded} runs on other devices, or with other data, optimizers, precisions or threads were excluded"
    return comparable, [*result.notes, f"{text}; they differ in: {', '.join(names)}"]


Facts = tuple[tuple[str, str], ...]  # what runs must have in common, by name


def _setting_facts(run: Run) -> tuple[str, Facts]:
    """Return the workload of a run, and what its training is beside the batch."""
    workload = run.meta.get("workload") or {}
    data = (workload.get("data") or {}).get("sha256") or (workload.get("data") or {}).get("name")
    facts = {name: workload.get(name) for name in ("optimizer", "hyperparameters", "precision", "input_shape")}
    return str(workload.get("name")), _as_text(facts | {"data": data, "threads": run.meta.get("threads")})


def _device_facts(run: Run) -> Facts:
    """Return the kind of device, which machine it is and in which state, and as what it was simulated."""
    kind = str((run.meta.get("workload") or {}).get("device") or "cpu").partition(":")[0]
    names = ("board", "compatible", "cpu", "power_mode", "governors")
    facts = {name.replace("_", " "): run.device.get(name) for name in names}
    facts |= {"cores": len(run.device.get("cores") or ()), "simulated board": run.simulated}
    return _as_text({"device": kind, **facts, "torch": (run.meta.get("versions") or {}).get("torch")})


def _as_text(facts: Mapping[str, Any]) -> Facts:
    return tuple((name.replace("_", " "), str(value)) for name, value in facts.items())


def _answer(verdicts: Sequence[Verdict]) -> str:
    by = {outcome: [str(verdict.number) for verdict in verdicts if verdict.outcome == outcome] for outcome in _ORDER}
    parts = [
        f"{len(numbers)} {_ORDER[outcome][len(numbers) > 1]} ({', '.join(numbers)})"
        for outcome, numbers in by.items()
        if numbers
    ]
    others = [str(verdict.number) for verdict in verdicts if verdict.reading != AS_THE_PAPER]
    more = f" Judged by a counterpart that this device has: {', '.join(others)}." if others else ""
    return f"Of {len(verdicts)} observations {'; '.join(parts)}.{more}"


_ORDER = {  # of one, of several
    HOLDS: ("holds here", "hold here"),
    FAILS: ("does not", "do not"),
    UNKNOWN: ("cannot be judged", "cannot be judged"),
}


def _verdict_table(verdicts: Sequence[Verdict]) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for verdict in verdicts:
        read = "paper" if verdict.reading == AS_THE_PAPER else "counterpart"
        effect = (verdict.deciding.effect or None, *_value_and_bounds(verdict.deciding.interval))
        rows.append((verdict.number, verdict.claim, verdict.outcome, read, *effect))
    columns = ("no.", "observation", "verdict", "read as", "effect", "value", "low", "high")
    note = "Value with its 95 % CI is that of the claim that decides; every test is in the tables below."
    return ResultTable("verdicts", "Verdicts", columns, tuple(rows), note)


def _paper_table(verdicts: Sequence[Verdict], drawn: dict[str, pl.DataFrame]) -> ResultTable:
    about = {observation.number: observation for observation in all_observations()}
    rows: list[tuple[Value, ...]] = []
    for verdict in verdicts:
        studied = about[verdict.number]
        figure = studied.figure if studied.figure in drawn else "not drawn: no data"
        rows.append(
            (verdict.number, studied.paper, figure, None if verdict.reading == AS_THE_PAPER else verdict.reading)
        )
    columns = ("no.", "the paper saw", "figure from own data", "judged in its place")
    return ResultTable("paper", "What the paper saw", columns, tuple(rows))


def _part_table(verdicts: Sequence[Verdict]) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for verdict in verdicts:
        for part in verdict.parts:
            limits = None if part.limits is None else str(part.limits)
            about = part.why if part.outcome == UNKNOWN else part.of
            rows.append((verdict.number, part.claim, part.outcome, *_value_and_bounds(part.interval), limits, about))
    columns = ("no.", "claim", "outcome", "value", "low", "high", "true if", "taken from, or why not judged")
    note = "A claim holds where its whole interval lies within the limits, and does not where none of it does."
    return ResultTable("tests", "Tests", columns, tuple(rows), note)


def _model_table(verdicts: Sequence[Verdict]) -> ResultTable:
    """A row a model and claim: "for all models" is a claim about each."""
    rows: list[tuple[Value, ...]] = []
    for verdict in verdicts:
        for claim in verdict.parts:
            rows += [
                (verdict.number, claim.claim, model.model, model.outcome, *_value_and_bounds(model.interval), model.why)
                for model in claim.models
            ]
    columns = ("no.", "claim", "model", "verdict", "value", "low", "high", "why")
    note = "A claim about all models holds only if it holds for each; one that does the opposite is enough against it."
    return ResultTable("models", "Verdict of each model", columns, tuple(rows), note)


def _method_table(verdicts: Sequence[Verdict]) -> ResultTable:
    rows = tuple(
        (verdict.number, part.claim, part.effect or None, part.test) for verdict in verdicts for part in verdict.parts
    )
    return ResultTable("methods", "How each was tested", ("no.", "claim", "number", "test"), rows)


def _means_by_workload_table(evidence: Evidence, simulated: str | None) -> ResultTable:
    columns = (
        "workload", "batch", "runs", "ms a step", "samples/s", "CPU use", "training process", "accelerator use",
        "J a step",
    )  # fmt: skip
    of = ("step_ms", "samples_per_s", "cpu_use", "trainer_cores", "accelerator_use", "energy_per_step_j")
    grouped = evidence.runs.group_by("workload", "batch").agg(
        pl.len().alias("runs"), *(pl.col(name).mean() for name in of)
    )
    rows = tuple(grouped.sort("workload", "batch").select("workload", "batch", "runs", *of).iter_rows())
    note = "Means over all runs, also the disturbed ones." + (_OF_A_BOARD if simulated else "")
    return ResultTable("runs", "What was measured", columns, rows, note)


def _value_and_bounds(interval: Estimate | None) -> tuple[Value, Value, Value]:
    return (None, None, None) if interval is None or math.isnan(interval.value) else interval.row


def _limit_notes(evidence: Evidence) -> Iterator[str]:
    disturbed = evidence.runs["background"].drop_nulls()
    if len(disturbed):
        which = f"{len(disturbed)} of {len(evidence.runs)} runs were disturbed (the first: {disturbed[0]})"
        timed = evidence.timed
        if len(evidence.undisturbed) > len(evidence.runs_without_load):
            yield f"{which}: they judge neither time nor energy; shares of use and power are the simulated board's"
        elif timed.reading == AS_THE_PAPER:
            yield f"{which}: they judge neither time, energy nor the use of cores"
        else:
            yield f"{which}: they judge neither energy nor the use of cores; times are judged {timed.reading}"
    repeats = evidence.runs.group_by("workload", "batch").len()["len"]
    if len(repeats) and int(repeats.to_numpy().max()) == 1:
        yield "every setting was run once: nothing tells how much runs differ, and what is to be judged by them is not"


def _device_of_runs(runs: Sequence[Run]) -> str:
    """Return the device that the runs were made on, which may be another machine."""
    facts: dict[str, Any] = runs[0].device if runs else {}
    named = facts.get("board") or facts.get("cpu")
    if not named:
        return device_name()
    return str(named.get("name") if isinstance(named, dict) else named)


_STEPS, _MOST_STEPS, _FEW_WINDOWS, _MOST_WINDOWS = 3, 60, 24, 600
_PHASES = 24
_WHOLES = ("total", "device", "carrier")
Frames = dict[str, pl.DataFrame]


def figure_frames(evidence: Evidence, runs: Sequence[Run]) -> Frames:
    """Frames by figure; a figure without data has none."""
    run = _illustrated_run(evidence, runs)
    frames: Frames = {
        **(_use_over_steps(run) if run else {}),
        "figure-4-use-by-batch": _use_by_batch(evidence),
        "figure-5-cores-by-batch": _cores_by_batch(evidence),
        "figure-6-energy-by-batch": _energy_by_batch(evidence),
        **_power_over_steps(evidence, runs),
        "figure-8-throughput-by-batch": _over_repeats(evidence.runs, "samples_per_s", "samples_per_s", 1.0),
        "figure-9-memory-by-batch": evidence.memory.with_columns(mb=pl.col("bytes") / 1e6),
        "figure-10-accuracy-by-day": _accuracy_by_day(evidence),
        "rhythm-use": _folded_use(evidence, runs),
    }
    drawn = {name: frame for name, frame in frames.items() if not frame.is_empty()}
    return {**drawn, PAPER_POINTS: paper_points()} if drawn else {}


def _illustrated_run(evidence: Evidence, runs: Sequence[Run]) -> Run | None:
    """The run to look into: of a convolutional network if there is one, with the longest steps."""
    order = evidence.runs.with_columns(first=pl.col("kind") != CONVOLUTIONAL).sort(
        "first", "step_ms", descending=[False, True]
    )
    named = {run.id: run for run in runs}
    return next((named[name] for name in order["run"] if name in named), None)


def middle_steps(run: Run, window_ns: float) -> pl.DataFrame:
    """Three steps from the middle of the steady part, or as many as it takes for some windows."""
    steps = steps_after_warmup(run)
    if steps.is_empty():
        return steps
    length = float(np.median(steps["length_ns"].to_numpy()))
    count = min(len(steps), _MOST_STEPS, max(_STEPS, round(_FEW_WINDOWS * window_ns / length)))
    return steps.slice((len(steps) - count) // 2, count)


def _use_over_steps(run: Run) -> Frames:
    use = read_processor_use(run)
    steps = pl.DataFrame() if use is None else middle_steps(run, float(np.diff(use.edges_ns).mean()))
    if use is None or steps.is_empty():
        return {}
    t0_ns, t1_ns = float(steps["t0_ns"][0]), float(steps["t1_ns"][-1])
    rows = [
        (f"core {name.partition(':')[2]}", use.edges_ns, rates)
        for name, rates in zip(use.names, use.cores, strict=True)
    ]
    if use.source:
        rows.insert(0, ("accelerator", use.edges_ns, use.accelerator))
    else:
        rows.insert(0, ("training process", *_process_use(run, t0_ns, t1_ns)))
    drawn = pl.concat([_use_in_windows(label, edges, rates, t0_ns, t1_ns) for label, edges, rates in rows])
    edges = pl.DataFrame({"t_ms": [(t - t0_ns) / 1e6 for t in [*steps["t0_ns"], steps["t1_ns"][-1]]]})
    about = drawn.with_columns(workload=pl.lit(str((run.meta.get("workload") or {}).get("name"))))
    return {"figure-3-use-over-steps": about, "figure-3-steps": edges}


def _process_use(run: Run, t0_ns: float, t1_ns: float) -> tuple[Floats, Floats]:
    """CPU utilisation of the training process, as a share of its threads."""
    windows = process_windows(run, t0_ns, t1_ns)
    if windows is None:
        return np.array([t0_ns, t1_ns]), np.array([np.nan])
    return windows.edges_ns, np.clip(windows.rates / max(run.meta.get("threads") or 1, 1), 0, 1)


def _use_in_windows(label: str, edges: Floats, rates: Floats, t0_ns: float, t1_ns: float) -> pl.DataFrame:
    inside = (edges[1:] > t0_ns) & (edges[:-1] < t1_ns)
    columns = {
        "core": [label] * int(inside.sum()),
        "label": [label] * int(inside.sum()),
        "t0_ms": (np.maximum(edges[:-1][inside], t0_ns) - t0_ns) / 1e6,
        "t1_ms": (np.minimum(edges[1:][inside], t1_ns) - t0_ns) / 1e6,
        "percent": rates[inside] * 100,
    }
    return pl.DataFrame(columns, nan_to_null=True).head(_MOST_WINDOWS)


def _use_by_batch(evidence: Evidence) -> pl.DataFrame:
    runs = evidence.runs.with_columns(own=pl.col("trainer_cores") / pl.col("threads"))
    columns = {"accelerator": "accelerator_use", "CPU, all cores": "cpu_use"}
    if not evidence.accelerated:
        columns = {"training threads": "own", "CPU, all cores": "cpu_use"}
    parts = [
        _over_repeats(runs, column, "percent", 100.0).with_columns(what=pl.lit(what))
        for what, column in columns.items()
    ]
    return pl.concat(parts)


def _over_repeats(runs: pl.DataFrame, column: str, name: str, factor: float) -> pl.DataFrame:
    """Mean over the repeats, and the lowest and highest of them: workload, batch, `name`, low, high."""
    value = pl.col(column) * factor
    groups = runs.drop_nulls(column).group_by("workload", "batch", maintain_order=True)
    summary = groups.agg(value.mean().alias(name), low=value.min(), high=value.max())
    return summary.sort("workload", "batch")


def _cores_by_batch(evidence: Evidence) -> pl.DataFrame:
    grouped = evidence.cores.group_by("workload", "batch", "core", "cluster").agg(
        percent=pl.col("use").mean() * 100, idle_percent=pl.col("idle_ratio").mean() * 100
    )
    return grouped.sort("workload", "batch", "core")


def _energy_by_batch(evidence: Evidence) -> pl.DataFrame:
    components = evidence.power.filter(~pl.col("component").is_in(_WHOLES)).drop_nulls("joules_per_step")
    grouped = components.group_by("workload", "batch", "component", maintain_order=True)
    return grouped.agg(joules=pl.col("joules_per_step").mean().clip(lower_bound=0.0)).sort("workload", "batch")


def _power_over_steps(evidence: Evidence, runs: Sequence[Run]) -> Frames:
    run = _illustrated_run(evidence, [run for run in runs if run.rails.lines])
    if run is None:
        return {}
    slowest = max(max(line.best.refresh_ns, line.best.growth.period_ns) for line in run.rails.lines)
    steps = middle_steps(run, 2 * slowest)
    if steps.is_empty():
        return {}
    t0_ns = int(steps["t0_ns"][0])
    timeline = run.power_timeline(t0_ns, int(steps["t1_ns"][-1]))
    name = str(run.meta["workload"]["name"])
    drawn = timeline.select("rail", "component", "watts", "estimated", workload=pl.lit(name),
                        t0_s=(pl.col("t0_ns") - t0_ns) / 1e9, t1_s=(pl.col("t1_ns") - t0_ns) / 1e9)  # fmt: skip
    edges = pl.DataFrame({"t_s": [(t - t0_ns) / 1e9 for t in [*steps["t0_ns"], steps["t1_ns"][-1]]]})
    return {"figure-7-power-over-steps": drawn, "figure-7-steps": edges}


def _accuracy_by_day(evidence: Evidence) -> pl.DataFrame:
    """Mean over the seeds with the lowest and the highest of them."""
    value = pl.col("accuracy") * 100
    grouped = evidence.days.group_by("batch", "day").agg(
        percent=value.mean(), low=value.min(), high=value.max(), seeds=pl.len()
    )
    return grouped.sort("batch", "day")


def _folded_use(evidence: Evidence, runs: Sequence[Run]) -> pl.DataFrame:
    """Return use by part of the step (median, middle 80 % of readings) from each model's run with the longest steps."""
    parts = []
    named = {run.id: run for run in runs}
    for (name,), frame in evidence.runs.sort("step_ms", descending=True).group_by(["workload"], maintain_order=True):
        run = named.get(frame["run"][0])
        series = None if run is None else _processor_use(run, evidence.accelerated)
        if run is None or series is None:
            continue
        edges = steps_after_warmup(run).select("t0_ns", "t1_ns").to_numpy().astype(np.float64)
        if not len(edges) or float(np.median(edges[:, 1] - edges[:, 0])) < 6 * series.period_ns:
            continue
        step, phase = phases_within_steps(series, edges)
        bins = int(min(_PHASES, np.median(edges[:, 1] - edges[:, 0]) / max(series.period_ns, 1.0)))
        rows = pl.DataFrame(
            {"value": series.values[step >= 0] * 100, "bin": (phase[step >= 0] * bins).astype(np.int64)}
        )
        value = pl.col("value")
        profile = rows.filter(pl.col("bin") < bins).group_by("bin").agg(
            percent=value.median(), low=value.quantile(0.1), high=value.quantile(0.9)
        )  # fmt: skip
        parts.append(
            profile.sort("bin").with_columns(workload=pl.lit(str(name)), phase=(pl.col("bin") + 0.5) / bins * 100)
        )
    return pl.concat(parts) if parts else pl.DataFrame()


def _processor_use(run: Run, accelerated: bool) -> Series | None:
    """Return what observation 2 looks at: the accelerator, or on the CPU alone the training process."""
    gauge = accelerator_gauge(run) if accelerated else None
    if gauge is not None:
        return gauge
    span = span_ns(run)
    windows = None if span is None else process_windows(run, *span)
    return None if windows is None else process_use(windows)
