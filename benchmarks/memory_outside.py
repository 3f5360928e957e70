"""Predicted against measured live peak of models outside the suite: `python -m benchmarks.memory_outside`.

--of outside: models as users write them, at --batches; --of library: models of other people's libraries at the batch
and with the optimizer of each; --of unseen: networks after papers, likewise (names apart by ";"); --of signatures: so
many random operators (--only "0-499" are their seeds). Each is trained in a clean process of its own under the
profiler, which sees every allocation and free of torch's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.library_cases import CASES
from benchmarks.memory_truth import live_peak
from benchmarks.operator_signatures import drawn
from benchmarks.outside_models import JOBS
from benchmarks.unseen_models import MODELS
from benchmarks.unseen_models import job as unseen_job
from stepscope.errors import StepscopeError
from stepscope.footprint.calibration import calibration_path, load_calibration
from stepscope.footprint.prediction import JobQuestion, predict_fit
from stepscope.record.dry import Job

_ROUNDING = 1e-3  # of the truth: a scalar or a random number generator's state is no miss


@dataclass(frozen=True)
class Row:
    """A model at a batch, B: what was said, least and most of it, and what was measured."""

    model: str
    batch: int
    said: int
    low: int
    high: int
    took: int
    method: str
    seconds: float  # of the answer

    @property
    def error(self) -> float:
        """Of the prediction."""
        return self.said / self.took - 1

    @property
    def width(self) -> float:
        """Of the interval, as a share of what was said."""
        return (self.high - self.low) / self.said

    @property
    def holds(self) -> bool:
        """Return whether the interval holds what was measured."""
        return self.low * (1 - _ROUNDING) <= self.took <= self.high * (1 + _ROUNDING)


def _outside(names: str, batches: list[int]) -> Iterator[tuple[str, int]]:
    yield from ((name, batch) for name in names.split(",") for batch in batches)


def _library(names: str, _batches: list[int]) -> Iterator[tuple[str, int]]:
    yield from ((name, CASES[name].batch) for name in names.split(","))


def _unseen(names: str, _batches: list[int]) -> Iterator[tuple[str, int]]:
    yield from ((name, MODELS[name][1]) for name in names.split(";"))


def _signatures(seeds: str, _batches: list[int]) -> Iterator[tuple[str, int]]:
    first, _, last = seeds.partition("-")
    yield from ((str(seed), drawn(seed)[2]) for seed in range(int(first), int(last or first) + 1))


SOURCES: dict[str, tuple[Callable[[str], Job], Callable[[str, list[int]], Iterator[tuple[str, int]]], str]] = {
    "outside": (lambda name: JOBS[name](), _outside, ",".join(JOBS)),
    "library": (lambda name: CASES[name].job(), _library, ",".join(CASES)),
    "unseen": (unseen_job, _unseen, ";".join(MODELS)),
    "signatures": (lambda seed: drawn(int(seed))[1], _signatures, "0-499"),
}


def compare(source: str, model: str, batch: int) -> Row | str:
    """Prediction and measurement, or what went wrong."""
    torch.manual_seed(0)
    job = SOURCES[source][0](model)
    name = job.name if source == "signatures" else model
    kept = load_calibration(calibration_path())
    try:
        answer = predict_fit(JobQuestion(job, batch, calibration=kept, options=False, largest=False))
    except StepscopeError as error:
        return f"not predicted: {error}"
    command = [sys.executable, "-m", "benchmarks.memory_outside", "--child", json.dumps([source, model, batch])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1]
    live, took = answer.live, int(done.stdout.split()[-1])
    unruled = " ".join(sorted(answer.not_modelled))
    method = f"{answer.method}{f'; no rule: {unruled}' if unruled else ''}"
    return Row(name, batch, live.bytes, live.least, live.most, took, method, answer.seconds)


def _measure(source: str, model: str, batch: int) -> None:
    torch.manual_seed(0)
    job = SOURCES[source][0](model)
    module, optimizers = job.build()
    inputs = job.batch(batch)
    print(live_peak(lambda: job.step(module, optimizers, inputs), module, [inputs, [o.state for o in optimizers]]))


def table(rows: list[Row]) -> str:
    """Markdown: misses first, then what was said of all."""
    errors = [abs(row.error) for row in rows]
    lines = ["| model | batch | said, MB | interval | took, MB | error | how |", "| --- |" + " --- |" * 6]
    lines += [
        f"| {r.model} | {r.batch} | {r.said / 1e6:.2f} | {r.low / 1e6:.2f} to {r.high / 1e6:.2f}"
        f"{'' if r.holds else ' (misses)'} | {r.took / 1e6:.2f} | {r.error:+.2%} | {r.method} |"
        for r in sorted(rows, key=lambda row: -abs(row.error))
    ]
    held, widths = sum(row.holds for row in rows) / len(rows), [row.width for row in rows]
    return "\n".join(
        [
            *lines, "",
            f"{len(rows)} cells: mean {statistics.mean(errors):.2%}, median {statistics.median(errors):.2%}, worst"
            f" {max(errors):.2%}, within 0.5 %: {sum(error <= 0.005 for error in errors)}; intervals hold {held:.1%},"
            f" mean width {statistics.mean(widths):.1%}, none at {sum(width == 0 for width in widths)};"
            f" seconds median {statistics.median(r.seconds for r in rows):.1f},"
            f" most {max(r.seconds for r in rows):.1f}",
            "",
        ]
    )  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--child", help=argparse.SUPPRESS)
    arguments.add_argument("--of", choices=list(SOURCES), default="outside")
    arguments.add_argument("--only", help="models, with commas; first and last seed")
    arguments.add_argument("--batches", default="4,16,64")
    arguments.add_argument("--write", type=Path, help="a table; rows are added to the .jsonl beside it")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    if options.child:
        _measure(*json.loads(options.child))
        return
    rows = []
    _, cells, every = SOURCES[options.of]
    for model, batch in cells(options.only or every, [int(each) for each in options.batches.split(",")]):
        found = compare(options.of, model, batch)
        if isinstance(found, str):
            print(f"{model} {batch}: {found}", flush=True)
            continue
        print(f"{found.error:+.3%} {'' if found.holds else 'MISSES '}{found}", flush=True)
        rows.append(found)
        if options.write:
            with options.write.with_suffix(".jsonl").open("a") as lines:
                lines.write(json.dumps(asdict(found)) + "\n")
    if rows:
        print(table(rows))
    if options.write and rows:
        options.write.write_text(f"# Models outside the suite\n\n{table(rows)}")


if __name__ == "__main__":
    main()
