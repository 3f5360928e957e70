"""`stepscope study observations` in Python: measure what is needed, judge every observation, and hand back Findings."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.findings import Findings, FoundTable, Value
from stepscope.analysis.run import Run
from stepscope.studies.here import device_name, versions
from stepscope.studies.observations import every
from stepscope.studies.observations._contract import AS_THE_PAPER, FAILS, HOLDS, UNKNOWN, Interval, Verdict
from stepscope.studies.observations._evidence import Evidence, gathered
from stepscope.studies.observations._figures import frames
from stepscope.studies.observations._measuring import Measured, Watch, measured
from stepscope.studies.observations._plan import Asked
from stepscope.studies.study_folder import StudyFolder

NAME = "observations"
TITLE = "The twelve observations of the 2019 paper on this device"
_CHILD = (sys.executable, "-m", "stepscope.commands._observations_child")


def observations(
    out: str | Path,
    asked: Asked | None = None,
    *,
    child: Sequence[str] = _CHILD,
    watch: Watch | None = None,
    command: str = "",
) -> Findings:
    """Judge the observations in a study's folder, which is begun or gone on with; unless said, the paper's plan.

    `child`: how a measurement is started in a process of its own; `command`: the line that repeats this.
    """
    asked = asked or Asked()
    folder = StudyFolder(Path(out), NAME, asked.to_dict())
    with folder.locked():
        result = measured(folder, asked, child, watch or Watch())
    runs, notes = _comparable(result)
    evidence = gathered(runs, result.frames, {**_not_asked(asked), **result.absent})
    return found(evidence, runs, asked, command or f"stepscope study observations --out {out}", notes)


def found(evidence: Evidence, runs: Sequence[Run], asked: Asked, command: str, notes: Sequence[str]) -> Findings:
    """The findings from evidence that has been gathered."""
    verdicts = judged(evidence, asked.only)
    drawn = frames(evidence, runs)
    simulated = next((run.simulated for run in runs if run.simulated), None)
    return Findings(
        study=NAME,
        title=TITLE,
        answer=_answer(verdicts),
        tables=(
            _verdict_table(verdicts),
            _part_table(verdicts),
            _paper_table(verdicts, drawn),
            _method_table(verdicts),
            _run_table(evidence),
        ),
        settings=asked.to_dict(),
        device=_device(runs),
        versions=versions(),
        command=command,
        notes=(*notes, *_limits(evidence)),
        simulated=simulated,
        frames=drawn,
    )


def judged(evidence: Evidence, only: Sequence[int] = ()) -> list[Verdict]:
    """The verdict on every observation, or on those of these numbers."""
    return [each.judge(evidence) for each in every() if not only or each.number in only]


def _comparable(result: Measured) -> tuple[list[Run], list[str]]:
    """Of each model the runs of one setting, and of one kind of device: what differs otherwise is no batch's doing."""
    kinds = [str((run.meta.get("workload") or {}).get("device") or "cpu").partition(":")[0] for run in result.runs]
    wanted = "cpu" if all(kind == "cpu" for kind in kinds) else next(kind for kind in kinds if kind != "cpu")
    runs = [run for run, kind in zip(result.runs, kinds, strict=True) if kind == wanted]
    settings = {run.id: _setting(run) for run in runs}
    usual = {}
    for name in {name for name, _ in settings.values()}:
        usual[name] = Counter(rest for other, rest in settings.values() if other == name).most_common(1)[0][0]
    kept = [run for run in runs if settings[run.id][1] == usual[settings[run.id][0]]]
    left = len(result.runs) - len(kept)
    said = [f"{left} runs with other optimizers, precisions, threads or devices were left out"] if left else []
    return kept, [*result.notes, *said]


def _setting(run: Run) -> tuple[str, tuple[str, ...]]:
    workload = run.meta.get("workload") or {}
    rest = (workload.get("optimizer"), workload.get("precision"), run.meta.get("threads"))
    return str(workload.get("name")), tuple(map(str, rest))


def _not_asked(asked: Asked) -> dict[str, str]:
    return {name: "not asked for (--only)" for name in ("memory", "days") if name not in asked.needs}


def _answer(verdicts: Sequence[Verdict]) -> str:
    by = {outcome: [str(each.number) for each in verdicts if each.outcome == outcome] for outcome in _ORDER}
    said = [
        f"{len(numbers)} {_ORDER[outcome][len(numbers) > 1]} ({', '.join(numbers)})"
        for outcome, numbers in by.items()
        if numbers
    ]
    others = [str(each.number) for each in verdicts if each.reading != AS_THE_PAPER]
    more = f" Judged by a counterpart that this device has: {', '.join(others)}." if others else ""
    return f"Of {len(verdicts)} observations {'; '.join(said)}.{more}"


_ORDER = {  # of one, of several
    HOLDS: ("holds here", "hold here"),
    FAILS: ("does not", "do not"),
    UNKNOWN: ("cannot be judged", "cannot be judged"),
}


def _verdict_table(verdicts: Sequence[Verdict]) -> FoundTable:
    rows: list[tuple[Value, ...]] = []
    for each in verdicts:
        read = "paper" if each.reading == AS_THE_PAPER else "counterpart"
        effect = (each.deciding.effect or None, *_bounds(each.deciding.found))
        rows.append((each.number, each.claim, each.outcome, read, *effect))
    columns = ("no.", "observation", "verdict", "read as", "effect", "value", "low", "high")
    note = "Value with its interval of 95 % is that of the claim that decides; every test is in the tables below."
    return FoundTable("verdicts", "Verdicts", columns, tuple(rows), note)


def _paper_table(verdicts: Sequence[Verdict], drawn: dict[str, pl.DataFrame]) -> FoundTable:
    about = {each.number: each for each in every()}
    rows: list[tuple[Value, ...]] = []
    for each in verdicts:
        known = about[each.number]
        figure = known.figure if known.figure in drawn else "not drawn: no data"
        rows.append((each.number, known.paper, figure, None if each.reading == AS_THE_PAPER else each.reading))
    columns = ("no.", "the paper saw", "figure from own data", "judged in its place")
    return FoundTable("paper", "What the paper saw", columns, tuple(rows))


def _part_table(verdicts: Sequence[Verdict]) -> FoundTable:
    rows: list[tuple[Value, ...]] = []
    for each in verdicts:
        for one in each.parts:
            limits = None if one.limits is None else str(one.limits)
            about = one.why if one.outcome == UNKNOWN else one.of
            rows.append((each.number, one.claim, one.outcome, *_bounds(one.found), limits, about))
    columns = ("no.", "claim", "outcome", "value", "low", "high", "true if", "taken from, or why not judged")
    note = "A claim holds where its whole interval lies within the limits, and does not where none of it does."
    return FoundTable("tests", "Tests", columns, tuple(rows), note)


def _method_table(verdicts: Sequence[Verdict]) -> FoundTable:
    rows = tuple((each.number, one.claim, one.effect or None, one.test) for each in verdicts for one in each.parts)
    return FoundTable("methods", "How each was tested", ("no.", "claim", "number", "test"), rows)


def _run_table(evidence: Evidence) -> FoundTable:
    columns = (
        "workload",
        "batch",
        "runs",
        "ms a step",
        "samples/s",
        "CPU use",
        "trainer's cores",
        "accelerator use",
        "J a step",
    )
    of = ("step_ms", "samples_per_s", "cpu_use", "trainer_cores", "accelerator_use", "energy_per_step_j")
    grouped = evidence.runs.group_by("workload", "batch").agg(
        pl.len().alias("runs"), *(pl.col(name).mean() for name in of)
    )
    rows = tuple(grouped.sort("workload", "batch").select("workload", "batch", "runs", *of).iter_rows())
    return FoundTable("runs", "What was measured", columns, rows, "Means over the runs.")


def _bounds(interval: Interval | None) -> tuple[Value, Value, Value]:
    values = (math.nan,) * 3 if interval is None else (interval.value, interval.low, interval.high)
    known = [None if math.isnan(value) else value for value in values]
    return known[0], known[1], known[2]


def _limits(evidence: Evidence) -> Iterator[str]:
    disturbed = evidence.runs["background"].drop_nulls()
    if len(disturbed):
        which = f"{len(disturbed)} of {len(evidence.runs)} runs were disturbed (the first: {disturbed[0]})"
        yield f"{which}: what is said of the use of cores leaves them out, and their times are not theirs alone"
    repeats = evidence.runs.group_by("workload", "batch").len()["len"]
    if len(repeats) and int(repeats.to_numpy().max()) == 1:
        yield "every setting was run once: intervals come from within the runs and from the fits over several models"


def _device(runs: Sequence[Run]) -> str:
    """Of the machine that the runs were made on, which need not be this one."""
    facts: dict[str, Any] = runs[0].device if runs else {}
    named = facts.get("board") or facts.get("cpu")
    if not named:
        return device_name()
    return str(named.get("name") if isinstance(named, dict) else named)
