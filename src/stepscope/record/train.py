"""Train a workload inside a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError, exit_error
from stepscope.record import torch_private
from stepscope.record.dry.flops import FlopCount, count_flops
from stepscope.record.ops.events import DATA_SCOPE
from stepscope.record.precision import describe_precision, workload_in_precision
from stepscope.record.run_facts import status_of
from stepscope.record.session import Session
from stepscope.record.settings import Settings

if TYPE_CHECKING:
    import torch

    from stepscope.workloads.contract import Training, Workload
EXIT_CODES = {"interrupted": 130, "oom": 8}  # results of a run in their own right, not faults
Progress = Callable[[int, float | None], None]
Stop = Callable[[], bool]  # asked after every step: was that the last one?
Evaluates = Callable[[int], None]  # hears that so many test samples are looked at now


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch compute with so many threads (None: as it does), and afterwards with as many as before."""
    import torch

    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class TrainingChoices:
    """Batch, optimizer, device, seed, learning rate and precision of a training; null is the workload's own choice."""

    batch: int | None = None
    optimizer: str | None = None
    device: str = "cpu"
    seed: int = 0
    lr: float | None = None
    precision: str = "fp32"
    kind: str = "training"  # or inference: a forward alone


def train_workload(
    workload: Workload,
    steps: int,
    settings: Settings,
    choices: TrainingChoices,
    *,
    evaluate: bool = True,
    stop: Stop = lambda: False,
    progress: Progress = lambda step, loss: None,
    evaluates: Evaluates = lambda samples: None,
) -> tuple[Path, int]:
    """(run folder, exit code) of at most so many steps; but for Ctrl-C and out of memory, exceptions pass through.

    evaluate: afterwards, with the run ended, look at test samples, no more of them than were trained on.
    """
    if steps < 1:
        raise UsageError(f"--steps {steps}: a run needs at least one step")
    settings_of_training = asdict(choices)
    del settings_of_training["kind"]
    cast = workload_in_precision(workload, settings_of_training.pop("precision"), choices.device)
    with _no_silent_exit():
        training = cast.prepare(**settings_of_training)
        counted = count_flops(training.model, workload.loss, workload.example(2))
    facts = {**_facts(workload, training, counted, choices), "planned_steps": steps}
    session = Session(replace(settings, name=workload.name, facts=facts, flops=counted.by_module))
    session.start(training.model)
    try:
        with _no_silent_exit():
            _train(training, steps, session, progress, stop)
        session.update(result=_result(training, session.steps))
    except BaseException as error:
        status, reason = status_of(error)
        session.close(status, reason)
        session.pack()
        if status not in EXIT_CODES:
            raise
        return session.path, EXIT_CODES[status]
    session.close()  # no sensor reads what follows, and whatever becomes of it, the training is whole
    if evaluate:
        _evaluate(training, session, evaluates)
    session.pack()
    return session.path, 0


@contextmanager
def _no_silent_exit() -> Iterator[None]:
    """Let an exit of the workload's code be an error: with it the training, and this process, would end as if whole."""
    try:
        yield
    except SystemExit as error:
        raise exit_error(error) from error


def _result(
    training: Training, steps: int, accuracy: float | None = None, samples: int | None = None
) -> dict[str, Any]:
    counters = dict(training.counters)
    return {"accuracy": accuracy, "accuracy_samples": samples, "steps": steps, "counters": counters}


def _evaluate(training: Training, session: Session, evaluates: Evaluates) -> None:
    """Write the accuracy into the run; that it broke off, or failed, is noted there."""
    samples = min(training.data.test_size, session.steps * training.batch_size)
    if samples == 0 or training.workload.correct is None:
        return
    evaluates(samples)
    try:
        accuracy = training.evaluate(samples)
    except (Exception, KeyboardInterrupt) as error:
        session.note("no-accuracy", f"looking at the test data ended early: {status_of(error)[1]}")
        return
    session.update(result=_result(training, session.steps, accuracy, None if accuracy is None else samples))


def _train(training: Training, steps: int, session: Session, progress: Progress, stop: Stop) -> None:
    fetching = torch_private.make_scope(DATA_SCOPE)
    batches = iter(training.batches())
    for step in range(steps):
        with fetching:
            batch = next(batches)
        value = float(training.step(batch))
        session.step(value, samples=training.batch_size)
        progress(step + 1, value)
        if stop():
            return


def _hyperparameters(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What tells an optimizer from another of its type: numbers and switches that are set."""
    return {name: value for name, value in optimizer.defaults.items() if value and isinstance(value, int | float)}


def _facts(workload: Workload, training: Training, counted: FlopCount, choices: TrainingChoices) -> dict[str, Any]:
    return {
        "workload": {
            "domain": workload.domain,
            "kind": choices.kind,
            "batch_size": training.batch_size,
            "optimizer": type(training.optimizer).__name__,
            "hyperparameters": _hyperparameters(training.optimizer),
            "precision": describe_precision(choices.precision),
            "device": choices.device,
            "input_shape": list(workload.input_shape),
            "parameters": sum(p.numel() for p in training.model.parameters()),
            "data": asdict(training.data),
        },
        "seed": choices.seed,
        "flops_not_counted": counted.reason,
    }
