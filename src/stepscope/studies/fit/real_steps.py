"""Steps that really run, in a process of their own: what `--probe` and `--allocators` measure.

Only torch is imported here: libraries that the answer needs (polars alone takes 24 MB) would be counted.
"""

from __future__ import annotations

import contextlib
import runpy
from collections.abc import Sequence
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.record.allocator_trade import StepClock, StepCost, measured_steps
from stepscope.record.job import Job
from stepscope.studies.fit.as_main import EnoughSteps, as_main, until_enough_steps


def job_steps(job: Job, batch: int, steps: int) -> StepCost:
    """So many steps of a job after those of its warm-up: peak of this process and CPU time of a step."""
    offer_to_be_killed_first()
    model, optimizers = job.build()
    inputs = job.batch(batch)
    return measured_steps(lambda: job.step(model, optimizers, inputs), steps)


def script_steps(target: str, arguments: Sequence[str], steps: int) -> StepCost:
    """The same of a script's own loop, from one update of its first optimizer to the next; then it is ended."""
    offer_to_be_killed_first()
    clock = StepClock(steps)
    with contextlib.suppress(EnoughSteps), as_main(target, arguments), until_enough_steps(lambda _: clock.stepped()):
        runpy.run_path(target, run_name="__main__")
        raise UsageError(
            f"'{target}' ended before it had made enough optimizer steps to be measured",
            "have it make ten steps or more",
        )
    return clock.cost()


def offer_to_be_killed_first() -> None:
    """When memory runs out the kernel takes this process, and not the user's desktop."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
