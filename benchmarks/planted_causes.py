"""Does it name the true bottleneck? `python -m benchmarks.planted_causes [--seeds 5] [--only NAME] [--write PAGE]`.

Twelve kinds of causes are planted in small trainings and around them, with sizes, networks and magnitudes drawn from
the seed; each runs under `stepscope run`, and the first bottleneck of `stepscope report --json` is compared with the
truth. Then quiet runs, in which none may be invented (input is none where a plain timer around the loader says that it
takes a notable share), and pairs of the same training without and with other load, where
`stepscope compare` must name the load and no layer. The kernel's own counts tell whether a cause took hold, and whether
something else on the machine disturbed the training: such a run is repeated, and does not count where it stays so.
On a shared machine run it under `nice -n -15`: planted load inherits the priority.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.planted_training import CAUSES, CORES
from benchmarks.profiled import ROOT, RunFailedError, answer, finished, keep, start, wait_for, workplace
from benchmarks.surroundings import (
    LittleMemory,
    Load,
    NotPossibleError,
    Quota,
    Surrounding,
    group,
    system_tree,
)  # fmt: skip

# What `verdict.bound` of the report may be called, and the name of it here.
NAMES = {
    "data": "input",
    **dict.fromkeys(("dispatch", "python", "framework"), "overhead"),
    **dict.fromkeys(("memory", "bandwidth"), "memory-bandwidth"),
    **dict.fromkeys(("swap", "capacity"), "memory-capacity"),
    **dict.fromkeys(("starved", "cpu"), "cpu-starved"),
    **dict.fromkeys(("unknown", "mixed", "none"), "cannot-tell"),
    **dict.fromkeys(("sleep", "idle"), "waiting"),
    "gil": "lock",
    "throttle": "throttled",
}
# The right answers for each cause. A sleep is nobody's fault but the loop's: time outside operators.
RIGHT = {
    "slow-loader": {"input"},
    "sleep-in-loop": {"overhead", "waiting"},
    "other-load": {"cpu-starved"},
    "cgroup-quota": {"cpu-starved"},
    "memory-hog": {"memory-capacity"},
    "tiny-ops": {"overhead"},
    "large-gemm": {"compute"},
    "elementwise-chain": {"memory-bandwidth"},
    "pinned": {"cpu-starved"},
    "clock-drop": {"throttled"},
    "gil": {"lock"},
    "slow-disk": {"input"},
    "quiet": {"compute", "memory-bandwidth", "kernels", "overhead", "cannot-tell"},
}
_LOADS = 0.15  # of the time in the data loader, by a plain timer: a quiet run may be called input bound
_STARVED = ("other-load", "cgroup-quota", "pinned", "gil")  # here it is the cause itself that keeps threads waiting
_DISTURBED = 0.1  # seconds of waiting for a core in a second of training
_SCRIPT = ROOT / "benchmarks" / "planted_training.py"
_LOAD = re.compile(r"\bload\b|starv|run.queue|background|waited for (a core|CPU)|CPU time|PSI|contention|throttl", re.I)


@dataclass
class Outcome:
    """What was answered about one training: state is right, wrong, skipped, disturbed or failed."""

    cause: str
    seed: int
    state: str
    answer: str = ""
    sentence: str = ""
    note: str = ""
    verdict: dict[str, Any] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def surrounding(cause: str, draw: random.Random, folder: Path) -> Iterator[Surrounding]:
    """Make what has to be around the training of a cause. Raises NotPossibleError."""
    if cause == "other-load":
        yield Load(processes=CORES * draw.randint(1, 2) + draw.randint(0, 1))
    elif cause == "cgroup-quota":
        with group("cpu") as limited:
            yield Quota(
                limited.joined, of=limited, cores=draw.uniform(0.2, 0.6), period_us=draw.choice((20, 50, 100)) * 1000
            )
    elif cause == "memory-hog":
        with group("memory") as limited:
            yield LittleMemory(
                limited.joined, of=limited, files=folder, part=draw.uniform(0.1, 0.4), hog=draw.random() < 0.5
            )
    elif cause == "clock-drop":
        khz = draw.choice((1_400, 1_800, 2_035, 2_400, 3_200)) * 1000
        yield Surrounding(env={"STEPSCOPE_ROOT": str(system_tree(folder / "root", khz, draw.choice((70, 85, 95))))})
    else:
        yield Surrounding()


def train(cause: str, seed: int, around: Surrounding, folder: Path) -> tuple[Path, dict[str, float]]:
    """Profile one training; return its run folder and what the kernel counted. Raises RunFailedError."""
    arguments = [cause, str(seed)]
    process = start(_SCRIPT, arguments, folder / "runs", around.prefix, PLANTED=str(folder), **around.env)
    try:
        if wait_for(folder / "begun", process):
            around.begin()
        wait_for(folder / "ended", process)
    finally:
        around.end()
    path, printed = finished(process, folder / "runs")
    counted: dict[str, float] = json.loads(printed.splitlines()[-1])
    return path, counted


def bound_of(verdict: dict[str, Any]) -> str:
    """Return the first bottleneck of a verdict by the name that it has here."""
    said = re.sub(r"[ _]+", "-", str(verdict.get("bound") or "none").lower()).removesuffix("-bound")
    return NAMES.get(said, said)


def examine(cause: str, seed: int, folder: Path) -> Outcome:
    """Plant, profile and judge one training."""
    draw = random.Random(f"around {cause} {seed}")
    try:
        with surrounding(cause, draw, folder) as around:
            path, counted = train(cause, seed, around, folder)
            if missing := around.took_hold():
                return Outcome(cause, seed, "skipped", note=missing, counted=counted)
            verdict = answer("report", str(path), **around.env)["verdict"]
    except NotPossibleError as error:
        return Outcome(cause, seed, "skipped", note=str(error))
    except RunFailedError as error:
        return Outcome(cause, seed, "failed", note=str(error))
    found = bound_of(verdict)
    loads = {"input"} if cause == "quiet" and counted["loading"] >= _LOADS else set()
    state = "right" if found in RIGHT[cause] | loads else "wrong"
    if state == "wrong" and cause not in _STARVED and counted["run_delay"] > _DISTURBED:
        state = "disturbed"
    return Outcome(cause, seed, state, found, str(verdict.get("sentence", "")), "", verdict, counted)


def compare(seed: int, folder: Path) -> Outcome:
    """Profile the same training twice, alone and under load, and judge what explains the difference."""
    draw = random.Random(f"pair {seed}")
    paths = []
    try:
        for around in (Surrounding(), Load(processes=CORES * draw.randint(1, 2))):
            place = folder / type(around).__name__
            place.mkdir()
            path, counted = train("other-load", seed, around, place)
            paths.append(str(path))
        answered = answer("compare", *paths)
    except RunFailedError as error:
        return Outcome("compare", seed, "failed", note=str(error))
    said = " ".join(answered["settings"][0]["sentences"])
    parts = {
        str(part.get("part", part.get("name", "")))
        for one in answered["settings"][0]["explanations"]
        if one["by"] == "module"
        for part in one["parts"]
    }
    layers = sorted(name for name in parts if re.search(r"\w\.\w", name) and f"'{name}'" in said)
    layers += re.findall(r"\b(?:Conv\dd|Linear|LSTM|BatchNorm\dd|Embedding|ReLU6?|LayerNorm)\b", said)
    named = "load" if _LOAD.search(said) else ""
    state = "right" if named and not layers else "wrong"
    return Outcome(
        "compare", seed, state, " and ".join(filter(None, [named, *layers[:2]])) or "nothing", said, "", {}, counted
    )


def repeated(examined: Callable[[Path], Outcome], attempts: int = 3) -> Outcome:
    """Examine again while something else disturbs, each time in an empty folder."""
    for _ in range(attempts):
        with workplace() as folder:
            outcome = examined(Path(folder))
        if outcome.state != "disturbed":
            break
    return outcome


def line(outcome: Outcome) -> str:
    """One outcome for the terminal."""
    how, counted = "", outcome.counted
    if counted:
        how = f"{counted['steps']:.0f} steps of {counted['step_s'] * 1e3:.0f} ms, {counted['cores']:.2f} cores"
        how += f", waiting {counted['run_delay']:.2f}, loading {counted['loading']:.2f}"
    said = f"{outcome.cause:<18} {outcome.seed:>3}  {outcome.state:<9} {outcome.answer:<18}"
    return f"{said} {how:<64} {outcome.note or outcome.sentence}"


def table(outcomes: list[Outcome]) -> str:
    """Return the table of causes as Markdown, with what was answered instead of the truth."""
    lines = ["| cause | named first | of | instead | did not count |", "| --- | --- | --- | --- | --- |"]
    for cause in dict.fromkeys(outcome.cause for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.cause == cause]
        judged = [row for row in rows if row.state in ("right", "wrong", "failed")]
        right = sum(row.state == "right" for row in judged)
        wrong = [row.answer or "failed" for row in judged if row.state != "right"]
        instead = ", ".join(f"{name} {wrong.count(name)}x" for name in dict.fromkeys(wrong))
        apart = "; ".join(dict.fromkeys(row.note or row.state for row in rows if row not in judged))
        lines.append(f"| {cause} | {right} | {len(judged)} | {instead} | {apart} |")
    planted = [
        row for row in outcomes if row.cause not in ("quiet", "compare") and row.state in ("right", "wrong", "failed")
    ]
    if planted:
        right = sum(row.state == "right" for row in planted)
        lines += ["", f"Planted causes named first: {right} of {len(planted)} ({right / len(planted):.0%}; bar 95 %)."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each cause, and pairs to compare")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=[*CAUSES, "compare"], help="may be given again")
    parser.add_argument("--quiet-runs", type=int, default=20)
    parser.add_argument("--json", type=Path, help="file for all outcomes with their verdicts")
    parser.add_argument("--write", type=Path, help="page that keeps the table")
    parser.add_argument("--keep", type=Path, help="folder for the run folders of wrong answers")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    for cause in options.only or [*CAUSES, "compare"]:
        count = options.quiet_runs if cause == "quiet" else options.seeds
        for seed in range(options.first_seed, options.first_seed + count):

            def examined(folder: Path, cause: str = cause, seed: int = seed) -> Outcome:
                outcome = compare(seed, folder) if cause == "compare" else examine(cause, seed, folder)
                if options.keep and outcome.state != "right":
                    shutil.copytree(
                        folder,
                        options.keep / f"{cause}-{seed}",
                        dirs_exist_ok=True,
                        symlinks=True,
                        ignore=shutil.ignore_patterns("*.bin", "root"),
                    )
                return outcome

            outcomes.append(repeated(examined))
            print(line(outcomes[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(f"\n{table(outcomes)}")
    if options.write:
        keep(options.write, "planted causes", "Bottleneck", table(outcomes))


if __name__ == "__main__":
    main()
