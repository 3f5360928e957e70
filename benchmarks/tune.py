"""What each single change truly gains, and what tune says: `python -m benchmarks.tune --exhaustive lenet`.

Truth: every change that applies, in fresh couples of processes, as is and changed, which make 300 steps each in turns
of ten. Then `stepscope tune` is asked with its own time. Printed for each workload: the truth by change, whether tune
ranks the truly best first (a tie within the CI counts), by how many points its gain is off, and whether it recommends
anything slower. The truth is kept as JSON, so that it need not be measured again: `--truth FILE`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import stepscope
from stepscope.experiments.tune.arms import process_interval
from stepscope.experiments.tune.changes import Change, offered, wanted
from stepscope.experiments.tune.process import Place, PlaceEnded

_LIMIT_S = 1800.0
_BLOCK = 10  # steps
Truth = dict[str, list[float]]  # of each change: ratio, low, high


def truth_of(workload: str, steps: int, couples: int, folder: Path) -> Truth:
    """Return the ratio of the step time with each change to that without, with its CI."""
    orders: dict[str, Any] = {"workload": workload}
    first = Place({**orders, "facts": {}}, folder / "facts.txt", {})
    try:
        facts = first.ask(_LIMIT_S, do="facts")
    finally:
        first.close()
    orders["facts"] = facts
    found: Truth = {}
    for change in wanted(offered(facts).values(), "time", (), ()):
        if change.refused:
            continue
        try:
            logs = [_couple(orders, change, steps, folder) for _ in range(couples)]
        except PlaceEnded as error:
            sys.stderr.write(f"{workload} {change.name}: {error}\n")
            continue
        found[change.name] = [*process_interval(logs)]
        sys.stderr.write(f"{workload} {change.name}: {_gain(found[change.name])}\n")
    return found


def _couple(orders: dict[str, Any], change: Change, steps: int, folder: Path) -> list[float]:
    """Return the log ratios of the turns of a couple of processes."""
    live, at_start = ([], [change.name]) if change.at_start else ([change.name], [])
    places = [
        Place(orders, folder / "as-is.txt", {}),
        Place(orders, folder / "changed.txt", change.environment, at_start),
    ]
    try:
        for place in places:
            place.ask(_LIMIT_S, do="use", facts=orders["facts"])
        logs = []
        for turn in range(max(1, steps // _BLOCK)):
            warmup = 20 if turn == 0 else 1
            as_is, changed = (
                statistics.fmean(place.ask(_LIMIT_S, do="block", changes=names, warmup=warmup, steps=_BLOCK)["seconds"])
                for place, names in zip(places, ([], live), strict=True)
            )
            logs.append(math.log(changed / as_is))
        return logs
    finally:
        for place in places:
            place.close()


def _gain(interval: list[float]) -> str:
    ratio, low, high = (100 * (1 - value) for value in interval)
    return f"{ratio:+.1f} % [{high:+.1f}, {low:+.1f}]"


def compared(workload: str, truth: Truth, minutes: float, folder: Path) -> dict[str, Any]:
    """Return how the answer of tune compares with the truth: rank, points off, anything slower that it recommends."""
    findings = stepscope.tune(workload, minutes=minutes, out=folder / f"tune-{workload}")
    helps = next((table.rows for table in findings.tables if table.name == "helps"), ())
    single = [row for row in helps if " + " not in str(row[1])]
    first = str(single[0][1]) if single else None
    best = min(truth, key=lambda name: truth[name][0]) if truth else None
    helping = best is not None and truth[best][2] < 1
    tied = first is not None and best is not None and first in truth and truth[first][1] <= truth[best][2]
    off = [float(row[4]) - 100 * (1 - truth[str(row[1])][0]) for row in single if str(row[1]) in truth]  # type: ignore[arg-type]
    slower = [str(row[1]) for row in single if str(row[1]) in truth and truth[str(row[1])][1] > 1.02]
    right = (first == best or tied) if helping else first is None or tied
    return {
        "workload": workload, "best": best, "first": first, "right": right, "points off": off, "slower": slower,
        "answer": findings.answer,
    }  # fmt: skip


def main() -> None:
    """Measure the truth where it is wanted, ask tune, and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--exhaustive", action="store_true", help="measure the truth anew")
    parser.add_argument("--truth", type=Path, default=Path("tune-truth.json"), help="where the truth is kept")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--couples", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=3.0, help="that tune may take")
    known = parser.parse_args()
    truths: dict[str, Truth] = json.loads(known.truth.read_text()) if known.truth.exists() else {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for workload in known.workloads:
            if known.exhaustive or workload not in truths:
                truths[workload] = truth_of(workload, known.steps, known.couples, folder)
                known.truth.write_text(json.dumps(truths, indent=1))
            result = compared(workload, truths[workload], known.minutes, folder)
            sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
