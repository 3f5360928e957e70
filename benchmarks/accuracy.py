"""`make accuracy`: energy per op against the truth, on simulated boards that real training drives, by the real sampler.

Each cell is a process of its own: a network trains beside a board, the run is attributed, and every part is compared
with the integral of the board's true power over its own time. Beside ours stand the 2019 paper's way (the sample
nearest in time) and power held between samples (overlap). A cell that was measured is kept in the folder of `--out`,
so that an interrupted experiment goes on; `--write FILE` keeps the table as Markdown and the picture beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COUNTED = 0.003  # of a rail's energy: smaller parts do not enter the coverage


@dataclass(frozen=True)
class Cell:
    """One board, network and length; `bar` is the error per operator that ours must not exceed."""

    title: str
    board: str
    rail: str
    model: str
    batch: int
    steps: int
    bar: float
    options: dict[str, Any] = field(default_factory=dict)
    period_ms: float = 10.0
    seed: int = 0

    @property
    def name(self) -> str:
        return (
            f"{self.title}-{self.model}-{self.steps}-{self.seed}".replace(" ", "_").replace(",", "").replace("/", "-")
        )


Sensor = tuple[str, str, str, dict[str, Any]]
SPOT: Sensor = ("10 ms gauge", "jetson-orin-nano", "VDD_IN", {"samples": 1, "computed": False})
REGISTER: Sensor = ("INA3221, average of 64, 38 mW", "jetson-tx2", "VDD_IN", {"computed": False})
RAPL: Sensor = ("RAPL, 1 ms counter", "laptop-rapl", "package-0", {})
SLOW: Sensor = ("counter in steps of 100 ms", "gpu-counter", "card", {})
MODELS = (("resnet18-c32", 8), ("densenet40-12-c32", 8), ("char-lstm-80", 32))
PERIODS_MS = {RAPL[0]: 1.0}  # of the sampler, where it is not 10 ms
BARS = {100: (0.03, 0.04, 0.02, 0.12), 500: (0.015, 0.025, 0.02, 0.12)}


def cells(steps: list[int], models: list[str], seeds: int) -> Iterator[Cell]:
    """The grid of the experiment."""
    for count in steps:
        bars = BARS[500 if count >= 500 else 100]
        for (title, board, rail, options), bar in zip((SPOT, REGISTER, RAPL, SLOW), bars, strict=True):
            for model, batch in MODELS:
                if model in models:
                    for seed in range(seeds):
                        period_ms = PERIODS_MS.get(title, 10.0)
                        yield Cell(title, board, rail, model, batch, count, bar, options, period_ms, seed)


def measure(cell: Cell) -> dict[str, Any]:
    """Train beside the board and score the run; in a process of its own."""
    import torch

    import stepscope
    from stepscope import simulate, workloads

    torch.set_num_threads(1)
    training = workloads.find(cell.model).prepare(batch=cell.batch, seed=cell.seed)
    batches = iter(training.batches())
    with tempfile.TemporaryDirectory() as out:
        board = simulate.start(cell.board, training.model, seed=cell.seed, **cell.options)
        with (
            board,
            stepscope.profile(
                training.model, out=out, record="all", period_ms=cell.period_ms, simulation=board, characterise=False
            ) as scope,
        ):
            for _ in range(cell.steps + 3):
                training.step(next(batches))
                scope.step()
        return score(stepscope.Run(scope.path), board.truth(), cell)


def score(run: Any, truth: Any, cell: Cell) -> dict[str, Any]:
    """Errors of the methods, coverage of our intervals, resolved share and how much of it is true, closure."""
    from benchmarks.accuracy_score import scores

    return scores(run, truth, cell.rail)


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    """The result of a cell, measured now or before."""
    kept = folder / f"{cell.name}.json"
    if not kept.exists():
        command = [sys.executable, "-m", "benchmarks.accuracy", "--cell", json.dumps(asdict(cell))]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"{cell.name}: {ended.stderr}")
        kept.write_text(ended.stdout.splitlines()[-1])
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def line(cell: Cell, found: dict[str, Any]) -> str:
    """A row of the table."""
    fit, error = found["kinds"], found["error"]
    verdict = "reached" if fit["error"] <= cell.bar else "MISSED" if fit["resolved"] else "none called resolved"
    return (
        f"| {cell.title} | {cell.model} | {cell.steps} of {found['step_s'] * 1e3:.0f} ms "
        f"| {fit['error']:.1%} | {cell.bar:.1%} {verdict} "
        f"| {error['nearest']:.0%} | {error['overlap']:.0%} | {fit['inside']}/{fit['counted']} "
        f"| {found['modules']['inside']}/{found['modules']['counted']} | {fit['resolved']:.0%} | {fit['right']:.0%} "
        f"| {found['closure']:.2%} |"
    )


HEAD = (
    "| sensor | network | steps | error per operator | bar | nearest sample (2019) | overlap | kinds: 95 % CIs "
    "that hold | modules: the same | energy within 10 % | and truly within 10 % | parts + unattributed off |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--steps", default="100,500")
    parser.add_argument("--models", default=",".join(model for model, _ in MODELS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("accuracy"))
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(measure(Cell(**json.loads(options.cell)))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [HEAD]
    print(HEAD)
    results = []
    for cell in cells([int(n) for n in options.steps.split(",")], options.models.split(","), options.seeds):
        found = run_cell(cell, options.out)
        results.append((cell, found))
        rows.append(line(cell, found))
        print(rows[-1], flush=True)
    if options.write:
        from benchmarks.accuracy_score import picture

        keep(options.write, rows)
        picture(results, options.write.parent / "images" / "accuracy.png")


def keep(page: Path, rows: list[str]) -> None:
    """Replace the table between the page's two marks."""
    begin, end = "<!-- accuracy -->", "<!-- /accuracy -->"
    before, _, rest = page.read_text().partition(begin)
    after = rest.partition(end)[2]
    page.write_text(before + begin + "\n" + "\n".join(rows) + "\n" + end + after)


if __name__ == "__main__":
    main()
