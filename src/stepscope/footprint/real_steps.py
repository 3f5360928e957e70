"""Steps that really run, in a process of their own: the measurements of `--probe` and `--allocators`.

Only torch is imported here: libraries that the answer needs (polars alone takes 24 MB) would be counted, and those of
the command line (13 MB).
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stepscope.errors import StepscopeError, UsageError
from stepscope.record.dry import Job
from stepscope.record.dry.allocator_costs import StepClock, StepCost, cost_as_json_line, measured_steps
from stepscope.record.processes.training import add_current_folder


@dataclass(frozen=True)
class RealSteps:
    """A training that a child process makes so many timed steps of; changed: fields of `transforms.Variant`."""

    target: str
    batch: int | None = None
    optimizer: str | None = None
    precision: str = "float32"
    threads: int | None = None
    arguments: tuple[str, ...] = ()  # of a script
    changed: dict[str, Any] | None = None
    module: bool = False  # the target is a module, as with `python -m`

    def command(self, steps: int) -> list[str]:
        """Return the command that prints their cost as its last line."""
        return [sys.executable, "-m", "stepscope.footprint.real_steps", json.dumps(asdict(self)), str(steps)]

    def cost(self, steps: int) -> StepCost:
        """Make them in this process; return what they took."""
        from stepscope.footprint.jobs import is_script, job_of_target

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self.module or is_script(self.target):
            return script_steps(self.target, self.arguments, steps, self.module)
        job = job_of_target(self.target, self.optimizer, self.precision)
        size = self.batch or job.default_batch
        if self.changed is not None:
            from stepscope.footprint.transforms import Variant

            job, size = Variant(**{**self.changed, "recomputed": tuple(self.changed["recomputed"])}).apply(job, size)
        return job_steps(job, size, steps)


def job_steps(job: Job, batch: int, steps: int) -> StepCost:
    """Run so many steps of a job after its warm-up; return the peak of this process and the CPU time of a step."""
    offer_to_be_killed_first()
    model, optimizers = job.build()
    inputs = job.batch(batch)
    return measured_steps(lambda: job.step(model, optimizers, inputs), steps)


def script_steps(target: str, arguments: Sequence[str], steps: int, module: bool = False) -> StepCost:
    """Measure steps of a script's own loop, from one update of its first optimizer to the next, then end it.

    module: the target is one, as with `python -m`.
    """
    offer_to_be_killed_first()
    clock = StepClock(steps)
    with (
        contextlib.suppress(EndOfSteps),
        as_main(target, arguments, module),
        until_enough_steps(lambda _: clock.note_step_end()),
    ):
        if module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(Path(target).absolute()), run_name="__main__")
        raise UsageError(
            f"'{target}' ended before it had made enough optimizer steps to be measured",
            "have it make ten steps or more",
        )
    return clock.cost()


def offer_to_be_killed_first() -> None:
    """Make the kernel take this process when memory runs out, and not the user's desktop."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


@contextlib.contextmanager
def killed_first() -> Iterator[None]:
    """Make the kernel take this process first when memory runs out, for as long as it trains for real."""
    place = Path("/proc/self/oom_score_adj")
    before = place.read_text(encoding="ascii") if place.is_file() else ""
    offer_to_be_killed_first()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            place.write_text(before, encoding="ascii")


class EndOfSteps(BaseException):
    """Ends the script from within its own loop; no `except Exception` of the script's catches it."""


@contextlib.contextmanager
def until_enough_steps(stepped: Callable[[Any], bool]) -> Iterator[None]:
    """Ends the script with EndOfSteps once `stepped`, called after each update of its first optimizer, says so."""
    first: list[int] = []

    def updated(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        first.append(id(optimizer))
        if id(optimizer) == first[0] and stepped(optimizer):
            raise EndOfSteps

    hook = register_optimizer_step_post_hook(updated)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def as_main(target: str, arguments: Sequence[str], module: bool = False) -> Iterator[None]:
    """Return what `python target arguments` sets up, or `python -m target`; what it prints goes to stderr."""
    kept_argv, kept_path = sys.argv, list(sys.path)
    sys.argv = ["-m" if module else target, *arguments]  # as Python has it until a module is found
    if module:
        add_current_folder()
    else:
        sys.path.insert(0, str(Path(target).resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv, sys.path[:] = kept_argv, kept_path


def main() -> None:
    """The child's part: argv is the fields of RealSteps as JSON, and how many steps."""
    try:
        cost = RealSteps(**json.loads(sys.argv[1])).cost(int(sys.argv[2]))
    except StepscopeError as error:
        raise SystemExit(": ".join(filter(None, [str(error), error.hint]))) from None
    sys.stdout.write(cost_as_json_line(cost) + "\n")


if __name__ == "__main__":
    main()
