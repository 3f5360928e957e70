"""The engine of many runs, and the request of a study: names and checks that several studies share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.errors import UnknownName, UsageError
from stepscope.request import Option, Request

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Plan
    from stepscope.workloads.contract import Workload

# The request of a study, and the checks that several studies share: of names, and of what this machine has.


@dataclass(frozen=True)
class StudyRequest(Request):
    """A question that many runs answer. study: its name; subject: what it is about, for the name of its folder."""

    study: ClassVar[str]

    @property
    def subject(self) -> str:
        return str(getattr(self, "workload", ""))

    @property
    def trainings(self) -> tuple[str, ...]:
        """Return the workloads that it trains; one of the user's own must stay the same until the study has ended."""
        return (str(getattr(self, "workload", "")),)

    def checked(self) -> StudyRequest:
        """Return the request as it is stored, with what this machine adds. Whatever cannot be is refused here."""
        return self

    def plan(self) -> Plan:
        """Return what is measured and how it is judged."""
        raise NotImplementedError


def _check_board(text: str) -> None:
    from stepscope.simulate.boards import parse_board

    parse_board(text)


OPTIMIZER = Option("Optimizer. Default: the workload's own.")
THREADS = Option("Threads. Default: torch's own choice.", least=1, most=1024, example="4")
DEVICE = Option("cpu or cuda.", choices=("cpu", "cuda"))
SIMULATE = Option("Read a simulated board's sensors: jetson-tx2, jetson-tx2,launch=1ms.", check=_check_board)
# Of a study that trains a classifier in its own way.
OWN_OPTIMIZER = Option("sgd, momentum, adam, adamw or rmsprop.")
LEARNING_RATE = Option("Learning rate. Default: the optimizer's own.", above=0)
TEST_SAMPLES = 2000  # a standard error of 1.1 points at most; tests of more would take longer than the training
LOOKED_AT = Option("Test samples that the accuracy is taken on, each time: 2000.")
DATA = Option("A data set of the workload, or a folder; the best here.")
ANY_DEVICE = Option("cpu, cuda or mps.")
# A result that came in time does not depend on it, so that a begun folder goes on with another.
TIME_LIMIT = Option(
    "A training that lasts longer is ended. Default: 1h.", above=0, unit="s", example="3h", stored=False, stated=True
)
DEFAULT_TIME_LIMIT_S = 3600.0


def check_device(device: str | None) -> str:
    """Return the device, by default cuda where torch has it; UsageError for cuda where it has none."""
    if device not in (None, "cuda"):
        return device
    import torch

    is_there = torch.cuda.is_available()
    if device == "cuda" and not is_there:
        raise UsageError(
            "--device cuda: torch sees no CUDA device here", "leave --device out, or install torch for CUDA"
        )
    return "cuda" if is_there else "cpu"


def find_workload(workload: str, optimizer: str | None = None) -> Workload:
    """Return the workload of this name; UnknownName where there is none, or where it has no such optimizer."""
    from stepscope import workloads
    from stepscope.experiments.sweeps.optimizers import with_every_optimizer

    match = workloads.find(workload)
    _check_optimizer(optimizer, with_every_optimizer(match).hyperparameters if optimizer is not None else ())
    return match


def check_classifier(workload: str, optimizer: str | None) -> Workload:
    """Return the workload; UsageError where it has no accuracy, UnknownName where it has no such optimizer."""
    from stepscope import workloads

    match = workloads.find(workload)
    _check_optimizer(optimizer, match.hyperparameters)
    if match.correct is None:
        raise UsageError(f"'{workload}' has no accuracy", "take a classifier: stepscope workloads")
    return match


def _check_optimizer(name: str | None, names: Iterable[str]) -> None:
    if name is not None and name not in names:
        raise UnknownName("optimizer", name, names)


def pinned_data(workload: str, data: str | None) -> str:
    """Return the data set that a study is of, also when it goes on after another one has come onto this machine.

    Raises what says that there is no such data set, before anything is trained.
    """
    from stepscope import workloads

    match = workloads.find(workload)
    match.loading_function(data)
    return match.data.name if data is None else data


def request_fields(request: Request, names: Iterable[str]) -> dict[str, Any]:
    """Return these fields of a request by name; those that it does not have are excluded."""
    return {name: getattr(request, name) for name in names if hasattr(request, name)}
