"""A training in a session with evaluations in between: time and energy of each step, and the accuracies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.device.occupancy import background_load_sentence
from stepscope.analysis.forecast import step_energy
from stepscope.analysis.run import Run
from stepscope.arrays import Floats
from stepscope.errors import DataUnavailable, UsageError
from stepscope.experiments.engine.child import Orders, session_settings
from stepscope.record.run_facts import status_of
from stepscope.record.session import Session
from stepscope.record.settings import Metering, Settings

if TYPE_CHECKING:
    from torch import Tensor

    from stepscope.workloads.contract import Batch, Training, Workload


@dataclass(frozen=True)
class TrainingEnvironment:
    """Places of runs and pre-trained weights, and whose sensors are read (a simulated board's, or this machine's)."""

    runs: Path
    weights: Path
    root: str | None = None
    simulated: str | None = None

    def settings(self, training: Training) -> Settings:
        """Return the settings of a session that times steps and reads sensors, and records no ops."""
        facts = {
            "workload": {
                "batch_size": training.batch_size,
                "data": asdict(training.data),
                "kind": "with evaluations",
            },
            "seed": training.seed,
        }
        metering = Metering(simulated=self.simulated, characterise=self.simulated is None)
        out, name = str(self.runs), training.workload.name
        return Settings(out=out, name=name, record="none", memory="off", facts=facts, root=self.root, metering=metering)


@contextlib.contextmanager
def training_environment(orders: Orders) -> Iterator[TrainingEnvironment]:
    """Yield the environment of the training that a task is ordered to make."""
    with session_settings(orders) as settings:
        weights = Path(orders["study"]) / "pretrained"
        yield TrainingEnvironment(Path(settings.out), weights, settings.root, settings.metering.simulated)


Evaluate = Callable[[], Mapping[str, float]]


LEAST_READ = 0.8  # of the time; with less, energy is not known


@dataclass(frozen=True)
class Evaluation:
    """State after so many steps."""

    steps: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class TrainingRecord:
    """A training: seconds of each step, its energy in J where it is known (NaN at gaps), and its evaluations.

    energy_kind: measured, estimated or simulated; null, with the reason in `energy_note`, where nothing gives energy.
    """

    evaluations: tuple[Evaluation, ...]
    step_s: Floats
    step_j: Floats | None
    energy_kind: str | None
    energy_note: str | None
    run: str
    background: str = ""  # a sentence where other processes took a good part of the machine

    def seconds(self, steps: int, begin: int = 0) -> float:
        """Time of the steps from `begin` to `steps`, s, without what lies between them."""
        return float(self.step_s[begin:steps].sum())

    def joules(self, steps: int, begin: int = 0) -> float | None:
        """Energy of the same steps, J; null where less than LEAST_READ of their time was read.

        Steps that a gap of the sensor touches are counted at the mean power of the others: `gap` says how many.
        """
        if self.step_j is None or steps <= begin:
            return None
        joules, seconds = self.step_j[begin:steps], self.step_s[begin:steps]
        read = ~np.isnan(joules)
        if seconds[read].sum() < LEAST_READ * seconds.sum():
            return None
        return float(joules[read].sum() * seconds.sum() / seconds[read].sum())

    @property
    def gap(self) -> float | None:
        """Share of the training time whose energy was not read, 0 to 1; null without any energy."""
        if self.step_j is None:
            return None
        return float(self.step_s[np.isnan(self.step_j)].sum() / self.step_s.sum())


def train_in_session(
    training: Training,
    batches: Iterable[Batch],
    settings: Settings,
    step: Callable[[int, Batch], Tensor],
    evaluate: Evaluate,
    evaluate_after: Callable[[int], bool],
    prepare: Callable[[int], None] | None = None,
) -> TrainingRecord:
    """Make a step of every batch; before the first and wherever `evaluate_after(steps made)`, evaluate the model.

    prepare: called with the number of each step before it. Neither that nor an evaluation is part of a step. Exceptions
    pass through, and the run says how it ended.
    """
    evaluations = [Evaluation(0, evaluate())]
    if prepare is not None:
        prepare(0)
    session = Session(settings)
    session.start(training.model)
    try:
        for index, batch in enumerate(batches):
            session.step(float(step(index, batch)), samples=len(batch[0]))
            is_evaluated = evaluate_after(index + 1)
            if prepare is None and not is_evaluated:
                continue
            session.pause()
            if is_evaluated:
                evaluations.append(Evaluation(index + 1, evaluate()))
            if prepare is not None:
                prepare(index + 1)
            session.resume()
    except BaseException as error:
        session.close(*status_of(error))
        raise
    session.close()
    session.pack()
    return _read_record(session, tuple(evaluations))


def accuracy_of(training: Training, samples: int | None = None) -> float:
    """Return the accuracy on the test data, or on `samples` spread over it, 0 to 1; UsageError without test data."""
    accuracy = training.evaluate(samples)
    if accuracy is None:
        raise UsageError(f"'{training.workload.name}' has no accuracy", "take a classifier: stepscope workloads")
    return accuracy


def prepare_classifier(workload: Workload, orders: Any, seed: int) -> Training:
    """Make a training ready as ordered: batch, optimizer, device, lr and data.

    DataUnavailable or UsageError where nothing could be said about how good the model is.
    """
    training = workload.prepare(orders.batch, orders.optimizer, orders.device, seed, orders.lr, orders.data)
    if workload.correct is None or training.splits.test is None or training.splits.train is None:
        raise UsageError(f"'{workload.name}' has no accuracy", "take a classifier: stepscope workloads")
    if training.data.kind == "synthetic":
        hint = "stepscope data list names what can be fetched"
        raise DataUnavailable(f"'{workload.name}' has no real data here: accuracy would say nothing", hint)
    return training


def _read_record(session: Session, evaluations: tuple[Evaluation, ...]) -> TrainingRecord:
    run = Run(session.path)
    steps = run.steps
    lengths = (steps["t1_ns"] - steps["t0_ns"]).to_numpy().astype(np.float64) / 1e9
    energy, load = step_energy(run, steps), background_load_sentence(run)
    if energy is None:
        note = "no sensor of this device gives the energy of the whole: `stepscope doctor` says what would"
        return TrainingRecord(evaluations, lengths, None, None, note, str(session.path), load)
    kind = "simulated" if run.simulated else "estimated" if energy.note else "measured"
    return TrainingRecord(evaluations, lengths, energy.values, kind, energy.scope, str(session.path), load)
