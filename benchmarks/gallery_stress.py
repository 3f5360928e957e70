"""Does a gallery script crash or differ once in many runs? `python -m benchmarks.gallery_stress --times N`.

Each script of tests/gallery runs N times bare and in each mode, several at once and in shuffled order, with all choices
of what is recorded in turn; in half of the rounds threads take turns every 20 us instead of every 5 ms. What bare runs
never show is a defect: a table of them is printed, their folders are kept, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.gallery.jobs import MODES, SAME, SCRIPTS, job, run_jobs

SWITCH_S = 20e-6
Outcome = dict[str, Any]


def runs(arguments: argparse.Namespace, folder: Path) -> dict[str, list[Outcome]]:
    """Return every run's outcome by script; the folders of runs that are like an earlier bare one are removed."""
    scripts = [path for path in SCRIPTS if any(fnmatch.fnmatch(path.stem, glob) for glob in arguments.script)]
    modes = ("bare", *arguments.mode)
    found: dict[str, list[Outcome]] = {path.stem: [] for path in scripts}
    for turn in range(arguments.times):
        own = folder / f"round-{turn}"
        own.mkdir()
        extra: dict[str, Any] = {"limit_s": arguments.limit, **({"switch_s": SWITCH_S} if turn % 2 else {})}
        jobs = [
            job(own, path, mode, turn // 2 + number, **extra) for number, path in enumerate(scripts) for mode in modes
        ]
        random.Random(turn).shuffle(jobs)
        for name, result in run_jobs(own, jobs, arguments.parallel).items():
            result |= {"mode": name.removeprefix(f"{result['script']}-"), "folder": str(own / name)}
            found[result["script"]].append(result)
        for script in found:
            for result in found[script]:
                if result["folder"].startswith(f"{own}/") and not defects(result, found[script]):
                    shutil.rmtree(result["folder"], ignore_errors=True)
    return found


def defects(result: Outcome, alike: list[Outcome]) -> list[str]:
    """Name what of a run no bare run of its script shows."""
    bare = [other for other in alike if other["mode"] == "bare"]
    if result["mode"] == "bare":
        return []
    whole = json.dumps([result[what] for what in SAME])
    if any(json.dumps([other[what] for what in SAME]) == whole for other in bare):
        different = []
    else:
        different = [what for what in SAME if all(other[what] != result[what] for other in bare)] or ["together"]
    if "exit" in different:
        different = [f"exit {result['exit']}"]
    return different + (["profiling-failed"] if result["faults"] else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="runs of each script in each mode (default: 10)")
    parser.add_argument("--script", action="append", help="names, as a glob; may be given several times (default: all)")
    parser.add_argument("--mode", action="append", choices=MODES, help="default: both")
    parser.add_argument("--parallel", type=int, default=4, help="runs at once (default: 4)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a run counts as hung")
    parser.add_argument("--out", type=Path, help="where the folders of defects are kept (default: a temporary one)")
    arguments = parser.parse_args()
    arguments.script, arguments.mode = arguments.script or ["*"], arguments.mode or list(MODES)
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="gallery-"))
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for script, outcomes in runs(arguments, folder).items():
        bare = [json.dumps([outcome[what] for what in SAME]) for outcome in outcomes if outcome["mode"] == "bare"]
        if len(set(bare)) > 1:
            print(f"{script:60} bare     {len(set(bare))} different results in {len(bare)} runs")
        for mode in arguments.mode:
            ours = [outcome for outcome in outcomes if outcome["mode"] == mode]
            kinds = collections.Counter(", ".join(defects(outcome, outcomes)) for outcome in ours)
            for kind, times in kinds.items():
                if kind:
                    where = next(o["folder"] for o in ours if ", ".join(defects(o, outcomes)) == kind)
                    print(f"{script:60} {mode:8} {times} of {len(ours)}: {kind}  {where}")
                    failed += times
    print(f"{failed} runs differ from every bare one" if failed else "every run is like a bare one")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
