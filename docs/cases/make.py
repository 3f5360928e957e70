"""Measures the case studies and draws their pages: `python docs/cases/make.py [CASE ...]`, `--pages` without measuring.

What was measured is kept in results.json, a case an entry; pages, pictures and the gallery are made of it and of
nothing else. A case is a script in scripts/, two commands, and the quantity that tells them apart.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
SCRIPTS = HERE / "scripts"
_NUMBERS = ("step_time", "throughput", "peak_memory")
_HEAD = 26  # lines of a command's output that a page shows


@dataclass(frozen=True)
class Case:
    """A training that is slow, large or misleading: the commands before and after, and what was learnt.

    advice: a command whose output names the change; metric: the quantity in the picture; lesson: what to do elsewhere.
    """

    name: str
    title: str
    problem: str
    before: str
    after: str
    lesson: str
    metric: str = "step_time"
    advice: str = ""
    simulated: str = ""
    repeats: int = 1  # runs of each command: more where a run is not alike from its beginning to its end


CASES = (
    Case(
        "loader", "A loader that the model waits for",
        "Pictures come one by one from a card that takes a millisecond for each. The card is a wait in the script.",
        "stepscope run loader.py", "stepscope run loader.py --workers 4",
        "Input bound is told by the time in which the training process waits for data. Reading ahead in processes "
        "of their own pays as long as those mostly wait: then four of them do no harm on two cores.",
    ),
    Case(
        "dispatch", "Thousands of operators too small for their call",
        "A recurrent cell is called for each of 50 time steps, with 32 units and 16 sequences.",
        "stepscope run dispatch.py", "stepscope run dispatch.py --fused",
        "Where operators take microseconds, most of a step is Python and dispatch. Make fewer and larger calls.",
    ),
    Case(
        "memory", "Out of memory at batch 32",
        "A process may hold 600 MB, and a step of 32 pictures needs more.",
        "stepscope run memory.py --limit-mb 600", "stepscope run memory.py --limit-mb 600 --pieces 16",
        "`fit` makes the step without numbers, says what is live at the peak and which changes are enough. The "
        "update is the same: gradients of 16 passes with two pictures add up to those of one with 32.",
        "peak_memory", "stepscope fit memory:training --batch 32 --memory 600MB --account data --plan",
    ),
    Case(
        "laptop", "A laptop that throttles",
        "After four seconds at full speed the laptop is hot, and idle time is forced upon it.",
        "stepscope run laptop.py", "stepscope run laptop.py --cap",
        "The median of the whole run hides it: look at the steps over time. A lower limit from the beginning may be "
        "faster than the highest clock for some seconds; on a laptop of yours measure which.",
        "throughput",
        simulated="The laptop is SIMULATED: a second process stops the training for part of each 10 ms, as Intel's "
        "powerclamp does. How hot it gets, and how much the cap leaves, are numbers of the script.",
        repeats=3,
    ),
    Case(
        "threads", "Sixteen threads on two cores",
        "The script comes from a server and asks torch for 16 threads.",
        "stepscope run threads.py", "stepscope run threads.py --threads 2",
        "The load is the script's own threads: beyond the cores they wait for each other at the end of every operator. "
        "`stepscope study threads train.py` tries each number.",
    ),
    Case(
        "lora", "Fine-tuning all the weights, or LoRA",
        "A transformer of 23 million weights is fine-tuned with AdamW, one sequence of 64 tokens a step.",
        "stepscope run lora.py", "stepscope run lora.py --lora",
        "Frozen weights have no gradients, no optimizer state and no update: that is what LoRA saves. Forward and the "
        "gradients of activations are as before, so that it is no faster than those allow.",
    ),
    Case(
        "layout", "Channels last",
        "A convolutional network for pictures is trained in PyTorch's default layout.",
        "stepscope run layout.py", "stepscope run layout.py --channels-last",
        "Kernels for depthwise and pointwise convolutions like the channels innermost. It is one line of code, and "
        "`stepscope tune train.py` tries it among others.",
    ),
    Case(
        "sensor", "A sensor that lies",
        "The power sensor of a board shows the mean of about the last half second, and a step is shorter than that.",
        "python sensor.py", "",
        "The reading nearest in time belongs to what ran before. Stepscope finds the averaging window in the "
        "readings and fits the power of operators to windows instead; the CI says how well that is known. "
        "`stepscope report last --attribution nearest` shows the other way.",
        simulated="The board is SIMULATED (a Jetson TX2's sensor beside a training of this machine): only so the "
        "truth is known.",
    ),
)  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    """Run the commands of a case and return what pages say of it."""
    about = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d")}
    if case.name == "sensor":
        return {**about, "sensor": json.loads(_output(case.before).splitlines()[-1])}
    advice = {"advice": _output(case.advice)} if case.advice else {}
    with tempfile.TemporaryDirectory() as folder:
        sides = {"before": case.before, "after": case.after}
        runs: dict[str, list[Path]] = {side: [] for side in sides}
        for _ in range(case.repeats):
            for side, command in sides.items():
                runs[side].append(_run(command, Path(folder, side)))
        facts = {side: _facts(paths[0]) for side, paths in runs.items()}
        return {**about, **advice, **facts, **_ratio([*runs.values()], case.metric)}


def _run(command: str, folder: Path) -> Path:
    """Measure a command into a folder, beside the runs that are there, and return its run."""
    before = set(folder.glob("*/run.json"))
    _, _, *rest = shlex.split(command)
    subprocess.run(
        [sys.executable, "-m", "stepscope", "run", "-q", "--out", str(folder), *rest], cwd=SCRIPTS, check=False
    )
    (new,) = set(folder.glob("*/run.json")) - before
    return new.parent


def _output(command: str) -> str:
    name, *rest = shlex.split(command)
    line = [sys.executable, *(rest if name == "python" else ["-m", "stepscope", *rest])]
    benchmarks = os.pathsep.join(filter(None, (str(HERE.parents[1]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": benchmarks}  # the truth of a simulated board is told by theirs
    done = subprocess.run(line, cwd=SCRIPTS, capture_output=True, text=True, check=False, env=environment)
    if not done.stdout.strip():
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


def _facts(path: Path) -> dict[str, Any]:
    """Status, headline quantities with their CIs, the bottleneck and the step times of ten stretches of a run, ns."""
    import numpy as np

    import stepscope

    run = stepscope.Run(path)
    rows = {row["metric"]: row for row in run.metrics().to_dicts() if row["scope"] in ("run", "process", "processes")}
    lengths = (run.steps["t1_ns"] - run.steps["t0_ns"]).to_numpy()
    board = run.device.get("board") or run.device.get("cpu") or {}
    return {
        "status": run.status,
        "machine": board.get("title") or board.get("name") or board.get("model") if isinstance(board, dict) else board,
        "bottleneck": run.verdict().sentence if run.status == "ok" else None,
        "numbers": {name: [rows[name][end] for end in ("value", "low", "high", "unit", "metric")]
                    for name in _NUMBERS if name in rows},
        "stretches_ns": [float(np.median(part)) for part in np.array_split(lengths, 10) if len(part)],
    }  # fmt: skip


def _ratio(sides: list[list[Path]], metric: str) -> dict[str, Any]:
    import stepscope

    if any(stepscope.Run(run).status != "ok" for runs in sides for run in runs):
        return {}
    compared = [runs[0] if len(runs) == 1 else runs[0].parent for runs in sides]
    table = stepscope.compare(compared).quantities.filter(metric=metric, side=1)
    return {"ratio": [table[end][0] for end in ("ratio", "ratio_low", "ratio_high")]} if len(table) else {}


TITLES = {"step_time": "Step time", "throughput": "Samples/s", "peak_memory": "Peak memory"}


def page(case: Case, result: dict[str, Any]) -> str:
    """A case as Markdown; every number in it is of `result`."""
    lines = [f"# {case.title}", "", case.problem]
    lines += ["", f"**{case.simulated}**"] if case.simulated else []
    lines += ["", f"![{case.title}]({case.name}.svg)", "", *_measured(case, result), "", case.lesson, ""]
    lines += [f"Measured on {result['date']} with `docs/cases/scripts/{case.name}.py`, on two cores of a virtual machine. On "  # noqa: E501
              f"yours: `python docs/cases/make.py {case.name}`.",
              "All cases: [gallery](index.md)."]  # fmt: skip
    return "\n".join(lines) + "\n"


def _measured(case: Case, result: dict[str, Any]) -> list[str]:
    if "sensor" in result:
        known = result["sensor"]
        table = [
            f"| `{row['operator']}` | {_joules([row['nearest']])} | {_joules(row['fit'])} | {_joules([row['truth']])} |"
            for row in known
        ]
        before, after = (f"{error:.1f} %" for error in _sensor_errors(known))
        titles = "| Energy of a step | before: nearest reading | after: Stepscope | truth |"
        said = f"Mean error of the {len(known)} operators: before **{before}**, after **{after}**."
        return [f"```console\n$ {case.before}\n```", "", titles, "| --- | --- | --- | --- |", *table, "", said]
    sides = (("before", case.before), ("after", case.after))
    lines = [f"```console\n$ {case.before}\n$ {case.after}\n```", "", f"| | {' | '.join(TITLES.values())} |",
            "| --- | --- | --- | --- |"]  # fmt: skip
    for side, _ in sides:
        facts = result[side]
        values = [_estimate(facts["numbers"].get(name)) for name in TITLES]
        values = (
            values
            if facts["status"] == "ok"
            else ["out of memory" if facts["status"] == "oom" else facts["status"]] * 3
        )
        lines.append(f"| {side} | {' | '.join(values)} |")
    of = f" (of {case.repeats} runs each; above are the first two)" if case.repeats > 1 else ""
    if "ratio" in result:
        lines += ["", f"{TITLES[case.metric]}, after / before: **{_times(result['ratio'])}**{of}."]
    if result["before"]["bottleneck"]:
        lines.append(f"\nBefore: {result['before']['bottleneck'].split(';')[0].rstrip('.')}.")
    if "advice" in result:
        head = [line.rstrip() for line in result["advice"].splitlines()]
        plan = next((place for place, line in enumerate(head) if line.startswith("plan:")), len(head))
        lines += ["", f"```console\n$ {case.advice}", *head[:4], "...", *head[plan : plan + 6], "```"]
    return lines


def _sensor_errors(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean error of operators in percent of their true energy: by the nearest reading, and fitted."""
    nearest = [abs(row["nearest"] / row["truth"] - 1) for row in rows]
    fitted = [abs(row["fit"][0] / row["truth"] - 1) for row in rows]
    return 100 * sum(nearest) / len(rows), 100 * sum(fitted) / len(rows)


def _estimate(number: list[Any] | None) -> str:
    from stepscope.quantities import find_quantity
    from stepscope.units import estimate

    if number is None:
        return "-"
    *ends, unit, metric = number
    return estimate(*ends, find_quantity(metric, unit).shown_unit)


def _joules(ends: list[float | None]) -> str:
    from stepscope.units import estimate

    value, low, high = (*ends, None, None)[:3]
    return estimate(value, low, high, "J")


def _times(ratio: list[float | None]) -> str:
    from stepscope.units import estimate

    return f"{estimate(*ratio, '')} times"


def gallery(results: dict[str, Any]) -> str:
    """The page that leads to every case, with the picture of each."""
    lines = ["# Trainings, before and after", "",
             "Small scripts, each with one thing wrong, measured on the two cores of a virtual machine before and "
             "after it was changed. Numbers are as Stepscope says them, with their 95 % CIs; pages and pictures are "
             "made from what was stored (`python docs/cases/make.py --pages`)."]  # fmt: skip
    for case in CASES:
        if case.name in results:
            mark = " (simulated)" if case.simulated else ""
            lines += ["", f"## [{case.title}]({case.name}.md){mark}", "", f"![{case.title}]({case.name}.svg)"]
    return "\n".join(lines) + "\n"


def picture(case: Case, result: dict[str, Any]) -> str:
    """The picture of a case as SVG text: bars with their 95 % CIs, or the steps over the run."""
    import altair as alt
    import vl_convert

    from stepscope.report.charts.style import LIGHT, apply_style

    if case.name == "laptop":
        values = [{"side": side, "at": (place + 0.5) * 10, "ms": ns / 1e6}
                  for side in ("before", "after") for place, ns in enumerate(result[side]["stretches_ns"])]  # fmt: skip
        colour = alt.Color(
            "side:N", scale=alt.Scale(range=[LIGHT["forward"], LIGHT["backward"]]), sort=["before", "after"]
        )
        drawn = alt.Chart(alt.InlineData(values=values)).mark_line(point=True, interpolate="monotone").encode(
            x=alt.X("at:Q", axis=alt.Axis(title="part of the run's steps, %", grid=False)),
            y=alt.Y("ms:Q", axis=alt.Axis(title="step time, ms", tickCount=4)), color=colour)  # fmt: skip
        chart = drawn.properties(width=420, height=110)
    else:
        rows, unit = _bars(case, result)
        base = alt.Chart(alt.InlineData(values=rows))
        y = alt.Y("side:N", sort=[row["side"] for row in rows], axis=alt.Axis(title=None, labelLimit=150))
        x = alt.X("value:Q", axis=alt.Axis(title=unit, tickCount=5))
        bars = base.mark_bar(height=18, color=LIGHT["forward"]).encode(x=x, y=y)
        ends = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2, color=LIGHT["ink"])
        chart = alt.layer(bars, ends.encode(x="low:Q", x2="high:Q", y=y)).properties(width=420, height=34 * len(rows))
    specification = apply_style(chart).to_dict()
    specification["config"]["background"] = "white"
    svg: str = vl_convert.vegalite_to_svg(specification, allowed_base_urls=[])
    return re.sub(r"(\d+\.\d{3})\d+", r"\1", svg) + "\n"


_SCALES = {"ns": (1e-6, "ms"), "B": (1e-6, "MB"), "1/s": (1.0, "samples/s")}


def _bars(case: Case, result: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    if "sensor" in result:
        named = zip(("nearest reading", "Stepscope"), _sensor_errors(result["sensor"]), strict=True)
        return [_bar(name, [error], 1.0) for name, error in named], "mean error of six operators, %"
    known = {side: result[side]["numbers"].get(case.metric) for side in ("before", "after")}
    scale, unit = next(_SCALES[number[3]] for number in known.values() if number)
    rows = []
    for side, number in known.items():
        if result[side]["status"] == "ok" and number:
            rows.append(_bar(side, number[:3], scale))
        else:
            rows.append({"side": f"{side}: out of memory", "value": 0.0, "low": None, "high": None})
    return rows, f"{TITLES[case.metric].lower()}, {unit}"


def _bar(side: str, ends: list[float | None], scale: float) -> dict[str, Any]:
    values = [None if end is None else end * scale for end in (*ends, None, None)[:3]]
    return dict(zip(("side", "value", "low", "high"), (side, *values), strict=True))


def write_pages(results: dict[str, Any]) -> None:
    """Write every page and picture that there is a result for, and the gallery."""
    for case in CASES:
        if case.name in results:
            (HERE / f"{case.name}.md").write_text(page(case, results[case.name]), encoding="utf-8")
            (HERE / f"{case.name}.svg").write_text(picture(case, results[case.name]), encoding="utf-8")
    (HERE / "index.md").write_text(gallery(results), encoding="utf-8")


def _stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return known


def main(arguments: list[str]) -> None:
    """Measure the cases that are named, or all; with --pages none."""
    wanted = [name for name in arguments if not name.startswith("-")] or [case.name for case in CASES]
    for case in CASES if "--pages" not in arguments else ():
        if case.name in wanted:
            measured = measure(case)
            results = _stored() | {case.name: measured}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if "--no-pages" not in arguments:
        write_pages(_stored())


if __name__ == "__main__":
    main(sys.argv[1:])
