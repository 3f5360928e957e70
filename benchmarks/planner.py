"""Plans of `stepscope fit TARGET --memory LIMIT --plan` against what they promise: `python -m benchmarks.planner`.

Each model is asked under limits between one that nothing keeps and one that the training keeps as it is. Of each
answer:

- trains: three steps of the plan, after a warm-up of two, in a control group of that limit (else nothing enforces it)
- peak: resident memory of that process (VmHWM), within the limit and within what was said
- step: processor time of a step against what was said, one thread: of the plan's own steps, run a moment before
- excess: price of the plan over the cheapest of all combinations, every one simulated, by the planner's own prices
- answer: processor time of the search without the first dry run

Combinations that change the training (seen where no other fits) are all simulated with `--changed` alone: it takes
long. `--whole` takes 12 models and 15 limits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from stepscope import workloads
from stepscope.analysis.memory.limits import MARGIN, VERDICTS, Limit
from stepscope.errors import StepscopeError
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.plan import (
    Candidate,
    Search,
    StepTime,
    changes_of,
    make_plan,
    measured_step_time,
    with_measured_times,
)
from stepscope.footprint.prediction import JobQuestion, question_of
from stepscope.footprint.prediction_trials import train_in_child, train_under_limit
from stepscope.footprint.real_steps import RealSteps
from stepscope.footprint.transforms import Variant
from stepscope.record.dry.allocator_costs import StepCost

MODELS = (
    ("mobilenet-v1-c32", "momentum", 48),
    ("resnet18-c32", "adam", 16),
    ("bert-mini-128", "adam", 12),
    ("char-gpt-64", "adam", 40),
)
WHOLE = (
    *MODELS,
    ("squeezenet-c32", "sgd", 96),
    ("mobilenet-v2-c32", "momentum", 32),
    ("resnet8-c32", "momentum", 128),
    ("vit-tiny-c32", "adam", 16),
    ("bert-tiny-128", "adam", 64),
    ("char-lstm-80", "adam", 64),
    ("next-word-lstm-20", "momentum", 64),
    ("lenet", "momentum", 512),
)
_PRICED, _PROVEN = 5, 3  # steps
_ALIKE = 0.15  # of a step time
_NEAR = 0.05  # of the least price


@dataclass(frozen=True)
class Row:
    """One limit: the plan in words, and what came of it; B and s. None: nothing fits, or it did not train."""

    model: str
    limit: int
    plan: str | None
    said: tuple[int, int] | None
    took: int | None
    enforced: bool
    said_s: tuple[float, float] | None
    took_s: float | None
    price: float | None
    least: float | None  # of all combinations
    answer_s: float

    @property
    def trains(self) -> bool:
        """Whether it ran under the limit, and within it."""
        return self.took is not None and self.took <= self.limit

    @property
    def holds(self) -> bool:
        """Whether the peak is within what was said."""
        return self.took is not None and self.said is not None and self.said[0] <= self.took <= self.said[1]

    @property
    def step_error(self) -> float:
        """Said step time, in the middle, against the measured one."""
        assert self.said_s is not None
        assert self.took_s is not None
        return sum(self.said_s) / 2 / self.took_s - 1

    @property
    def excess(self) -> float:
        """Of the price over the least; infinite where something fits and nothing was found."""
        if self.least is None:
            return 0.0
        return float("inf") if self.price is None else self.price / self.least - 1


class Model:
    """One training: its question, its priced steps, and every combination of it simulated."""

    def __init__(self, name: str, optimizer: str, batch: int, changed: bool) -> None:
        self.name, self.batch, self.changed = name, batch, changed
        self.real = RealSteps(name, batch, optimizer, threads=1)
        job = workload_job(workloads.find(name), optimizer)
        self.question = question_of(job, batch, "1TB", None, "default", options=False)
        self.priced: StepTime = measured_step_time(self.small_step, batch)
        self.search = Search(self.question)
        self.same = self.search.combinations(("",))
        self.highs = [c.process.high for c in self.candidates(self.same, Limit(1 << 40, ""))]

    def small_step(self, samples: int) -> StepCost:
        """Real steps with few samples; processor time in the place of the clock's."""
        cost = train_in_child(replace(self.real, batch=samples).command(_PRICED), "default")
        return replace(cost, wall_s=cost.cpu_s)

    def steps_of(self, settings: Variant) -> StepCost:
        """Real updates of a combination, with processor time likewise."""
        cost = train_in_child(replace(self.real, changed=asdict(settings)).command(_PRICED), settings.allocator)
        return replace(cost, wall_s=cost.cpu_s)

    def candidates(self, combinations: Sequence[Variant], limit: Limit) -> list[Candidate]:
        """Return all that can be simulated."""
        found = (self.search.candidate(settings, limit, self.priced) for settings in combinations)
        return [candidate for candidate in found if candidate is not None]

    def limits(self, count: int) -> list[Limit]:
        """Return limits from below what anything keeps to what the training keeps as it is."""
        least, most = 0.93 * min(self.highs), 1.01 * self.plain_high() / (1 - MARGIN)
        sizes = [round(least + (most - least) * n / (count - 1)) for n in range(count)]
        return [Limit(size, "benchmark") for size in sizes]

    def plain_high(self) -> int:
        """Return the upper end of the process as it is, B."""
        plain = self.search.candidate(Variant(allocator="default"), Limit(1 << 40, ""), None)
        assert plain is not None
        return plain.process.high

    def row(self, limit: Limit) -> Row:
        """Return one answer and its truth."""
        question = replace(self.question, limit=limit)
        began, before_s = time.process_time(), self.search.all_s
        plan = make_plan(question, self.priced, self.search)
        # dry runs of earlier limits count as if they were made for this one
        answer_s = time.process_time() - began - (self.search.all_s - before_s) + plan.search_s
        least = self.least(question)
        nothing = Row(self.name, limit.bytes, None, None, None, False, None, None, None, least, answer_s)
        chosen = plan.chosen
        if chosen is None:
            return nothing
        by_the_line, plan = chosen.price, with_measured_times(plan, self.steps_of)
        assert plan.chosen is not None
        chosen = plan.chosen
        said = replace(
            nothing, plan=chosen.settings.words, said=(chosen.process.low, chosen.process.high),
            said_s=chosen.seconds, price=by_the_line,
        )  # fmt: skip
        command = replace(self.real, changed=asdict(chosen.settings)).command(_PROVEN)
        try:
            kind, cost = train_under_limit(command, chosen.settings.allocator, limit)
        except StepscopeError as error:
            print(f"{self.name}, {limit.bytes / 1e6:.0f} MB: {error}", flush=True)
            return said
        return replace(said, took=cost.peak_bytes, took_s=cost.step_s, enforced=kind is not None)

    def least(self, question: JobQuestion) -> float | None:
        """Return the least price of all combinations that fit, of the same training where one does."""
        assert question.limit is not None
        for combinations in (self.same, self.search.combinations(changes_of(question)) if self.changed else []):
            found = [c.price for c in self.candidates(combinations, question.limit) if c.verdict in VERDICTS[:2]]
            if found:
                return min(found)
        return None


def line(row: Row) -> str:
    """A line of Markdown."""
    cells = [row.model, f"{row.limit / 1e6:.0f}", row.plan or "nothing fits"]
    if row.said is None or row.said_s is None:
        cells += ["", "", "", ""]
    else:
        took = "" if row.took is None else f"{row.took / 1e6:.0f}"
        cells += [f"{row.said[0] / 1e6:.0f} to {row.said[1] / 1e6:.0f}", took or "FAILED"]
        cells += [f"{row.said_s[0]:.2f} to {row.said_s[1]:.2f}", "" if row.took_s is None else f"{row.took_s:.2f}"]
    cells += [f"{row.excess:.1%}", f"{row.answer_s:.1f}"]
    return "| " + " | ".join(cells) + " |"


HEADS = ("model", "limit, MB", "plan", "said, MB", "took", "step said, s", "took", "excess", "answer, s")


def summary(rows: Sequence[Row]) -> str:
    """Return each bar with its figure."""
    plans = [row for row in rows if row.plan is not None]
    timed = [row for row in plans if row.took_s is not None]
    errors = sorted(abs(row.step_error) for row in timed)
    inside = sum(row.said_s[0] <= row.took_s <= row.said_s[1] for row in timed if row.said_s and row.took_s)
    return "\n".join(
        [
            f"plans: {len(plans)} of {len(rows)} limits; trained under the limit: {sum(row.trains for row in plans)}"
            f" (kept by the kernel: {sum(row.enforced for row in plans)})",
            f"peak within what was said: {sum(row.holds for row in plans)}",
            f"step time within {_ALIKE:.0%}: {sum(error <= _ALIKE for error in errors)} of {len(errors)}, median"
            f" {statistics.median(errors) if errors else 0:.1%}, worst {max(errors, default=0):.1%};"
            f" within what was said: {inside}",
            f"price within {_NEAR:.0%} of the least: {sum(row.excess <= _NEAR for row in rows)} of {len(rows)}, worst"
            f" {max(row.excess for row in rows):.1%}",
            f"answer: median {statistics.median(row.answer_s for row in rows):.1f} s of processor time, most"
            f" {max(row.answer_s for row in rows):.1f}",
        ]
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", help="names of models, with commas")
    arguments.add_argument("--limits", type=int, help="of each model (6; with --whole 15)")
    arguments.add_argument("--whole", action="store_true", help="12 models")
    arguments.add_argument(
        "--changed", action="store_true", help="simulate every combination that changes the training"
    )
    options = arguments.parse_args()
    torch.set_num_threads(1)
    print("| " + " | ".join(HEADS) + " |\n| --- |" + " --- |" * (len(HEADS) - 1))
    rows = []
    for name, optimizer, batch in WHOLE if options.whole or options.only else MODELS:
        if options.only is None or name in options.only.split(","):
            model = Model(name, optimizer, batch, options.changed)
            for limit in model.limits(options.limits or (15 if options.whole else 6)):
                rows.append(model.row(limit))
                print(line(rows[-1]), flush=True)
    print(f"\n{summary(rows)}")


if __name__ == "__main__":
    main()
