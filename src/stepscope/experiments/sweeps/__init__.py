"""One workload in several settings: batch sizes, threads, precisions, optimizers, power modes.

Here lie their requests, and what their engine is told: a setting, and the rules by which every training is made.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.engine import (
    DEFAULT_TIME_LIMIT_S,
    DEVICE,
    OPTIMIZER,
    SIMULATE,
    THREADS,
    TIME_LIMIT,
    StudyRequest,
    check_device,
    find_workload,
    request_fields,
)
from stepscope.request import REQUIRED, Option, option

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Plan


TRAINING, INFERENCE = "training", "inference"
PRECISIONS = ("fp32", "bf16", "fp16", "int8")


@dataclass(frozen=True)
class TrainingSetting:
    """Setting of a training that a study varies; null is the workload's or torch's own choice.

    lr: learning rate. mode: a power mode of the board, by its number. arguments: of a script, for every setting.
    """

    workload: str
    batch: int | None = None
    optimizer: str | None = None
    precision: str = "fp32"
    threads: int | None = None
    device: str = "cpu"
    kind: str = TRAINING
    lr: float | None = None
    mode: int | None = None
    arguments: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """A name for files."""
        parts = [f"{name}-{value}" for name, value in asdict(self).items() if value not in (None, self.arguments)]
        return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts))


@dataclass(frozen=True)
class TrainingRules:
    """Rules of every training: it ends after so many steps or seconds, or where its loss has reached a target.

    With a target, `steps` is the most that are made. simulate: a board whose sensors are simulated.
    """

    repeats: int = 3
    steps: int | None = None
    seconds: float | None = 10.0
    target_loss: float | None = None
    time_limit_s: float = 900.0
    seed: int = 0
    simulate: str | None = None


WORKLOAD = Option("A workload of the suite, or path/to/file.py:name.", argument=True)
TRAINING_OF = Option("A workload, path/to/file.py:name, a script (train.py) or module:function.", argument=True)
ARGUMENTS = Option("The script's own arguments; {batch} is the setting's.", argument=True, stated=True)
BATCH = Option("Batch size. Default: the workload's own.", least=1, example="4")
PRECISION = Option("fp32, bf16, fp16 (scaled loss) or int8 (quantisation-aware).", choices=PRECISIONS)
REPEATS = Option("Fresh processes for each setting: 3 (--quick: 2).", least=1, example="20", quick=2)
STEPS = Option("Steps of each training; with --target, at most: 500.", least=1, example="20")
SECONDS = Option("Seconds of steps of each training, unless --steps: 10.", above=0, unit="s", example="10")
TARGET = Option("Train until the loss, a mean of ten steps, is here or lower.")
QUICK = Option("12 steps and 2 repeats for each setting.")
SEED = Option("Seed of the order of the trainings and of the trainings.")
SWEEP_TIME_LIMIT = replace(
    TIME_LIMIT, help="A training that lasts longer is ended. Default: 1h; 15min or thrice its --seconds."
)

_MOST_STEPS, _QUICK_STEPS, _SECONDS = 500, 12, 10.0
_SLOWEST = 3  # times the seconds that were asked for, with start and the last step


@dataclass(frozen=True)
class TrainingSweep(StudyRequest):
    """Trainings of a workload in several settings. axis: what differs, and is no part of the base."""

    axis: ClassVar[str] = ""
    default_steps: ClassVar[int | None] = None  # where neither steps nor seconds are given

    @property
    def base(self) -> TrainingSetting:
        """The setting that the axis is put into."""
        names = {"workload", "batch", "optimizer", "precision", "threads", "device", "arguments"} - {self.axis}
        return TrainingSetting(**request_fields(self, names))

    @property
    def settings(self) -> list[TrainingSetting]:
        """One for each value, each once."""
        raise NotImplementedError

    @property
    def rules(self) -> TrainingRules:
        """The facts that every training is made with."""
        return training_rules(self, self.default_steps)

    def checked(self) -> StudyRequest:
        from stepscope.experiments.sweeps.user_training import check_user_training, is_user_training

        own, words = is_user_training(self.base.workload), self.base.arguments
        if own and hasattr(self, "arguments"):
            check_user_training(self)
            return self
        if words:
            raise UsageError(f"a workload takes no arguments of its own: {' '.join(words)}")
        find_workload(self.base.workload, self.base.optimizer)
        check_device(self.base.device)
        return self

    def plan(self) -> Plan:
        from stepscope.experiments.sweeps.results import axis_plan

        return axis_plan(self)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rules  # noqa: B018  what contradicts itself is refused at once


def training_rules(request: StudyRequest, default_steps: int | None = None) -> TrainingRules:
    """Return the rules of a request: a training ends by its steps, its seconds, or where its loss is at the target."""
    shared = request_fields(request, ("repeats", "seed", "simulate"))
    steps, seconds, target = (getattr(request, name, None) for name in ("steps", "seconds", "target"))
    if steps is not None and seconds is not None and target is None:
        raise UsageError("--steps and --seconds both end a training", "give one of them")
    if target is not None and seconds is not None:
        raise UsageError("--seconds ends no training that has a --target", "give --steps as the most that it may take")
    if target is not None:
        steps, seconds = steps or _MOST_STEPS, None
    elif steps is None and seconds is None:
        steps = _QUICK_STEPS if getattr(request, "quick", False) else default_steps
        seconds = _SECONDS if steps is None else None
    limit_s = max(TrainingRules.time_limit_s, _SLOWEST * seconds) if seconds else DEFAULT_TIME_LIMIT_S
    limit_s = getattr(request, "time_limit", None) or limit_s
    return TrainingRules(steps=steps, seconds=seconds, target_loss=target, time_limit_s=limit_s, **shared)


@dataclass(frozen=True)
class BatchSweep(TrainingSweep):
    """Train at several batch sizes: which is best for throughput, energy a sample, and time and energy to a loss.

    It can be interrupted: the same command with the same --out continues where it stopped.
    """

    study: ClassVar[str] = "batch"
    axis: ClassVar[str] = "batch"

    workload: str = option(REQUIRED, TRAINING_OF)
    arguments: tuple[str, ...] = option((), ARGUMENTS)
    batch: tuple[int, ...] = option("1,2,4,...,64", "Batch sizes. Default: 1,2,4,...,64.", least=1)
    optimizer: str | None = option(None, OPTIMIZER)
    precision: str = option("fp32", PRECISION)
    threads: int | None = option(None, THREADS)
    device: str = option("cpu", DEVICE)
    repeats: int = option(3, REPEATS)
    steps: int | None = option(None, STEPS)
    seconds: float | None = option(None, SECONDS)
    target: float | None = option(None, TARGET)
    simulate: str | None = option(None, SIMULATE)
    quick: bool = option(False, QUICK)
    seed: int = option(0, SEED)
    time_limit: float | None = option(None, SWEEP_TIME_LIMIT)

    @property
    def settings(self) -> list[TrainingSetting]:
        return [replace(self.base, batch=batch) for batch in dict.fromkeys(self.batch)]


@dataclass(frozen=True)
class ThreadSweep(TrainingSweep):
    """Train with several numbers of threads: which is best for throughput, energy a sample, and energy to a loss.

    It can be interrupted: the same command with the same --out continues where it stopped.
    """

    study: ClassVar[str] = "threads"
    axis: ClassVar[str] = "threads"

    workload: str = option(REQUIRED, TRAINING_OF)
    arguments: tuple[str, ...] = option((), ARGUMENTS)
    threads: tuple[int, ...] = option(None, "Threads. Default: 1 to all cores.", least=1, example="1,2,4")
    batch: int | None = option(None, BATCH)
    optimizer: str | None = option(None, OPTIMIZER)
    precision: str = option("fp32", PRECISION)
    repeats: int = option(3, REPEATS)
    steps: int | None = option(None, STEPS)
    seconds: float | None = option(None, SECONDS)
    target: float | None = option(None, TARGET)
    simulate: str | None = option(None, SIMULATE)
    quick: bool = option(False, QUICK)
    seed: int = option(0, SEED)
    time_limit: float | None = option(None, SWEEP_TIME_LIMIT)

    @property
    def settings(self) -> list[TrainingSetting]:
        return [replace(self.base, threads=threads) for threads in dict.fromkeys(self.threads)]

    def checked(self) -> StudyRequest:
        from stepscope.record.device import usable_cores

        return super(ThreadSweep, replace(self, threads=self.threads or tuple(range(1, usable_cores() + 1)))).checked()


@dataclass(frozen=True)
class PrecisionSweep(TrainingSweep):
    """Train in several kinds of arithmetic: which is best for throughput, energy a sample, and energy to a loss.

    It can be interrupted: the same command with the same --out continues where it stopped.
    """

    study: ClassVar[str] = "precision"
    axis: ClassVar[str] = "precision"

    workload: str = option(REQUIRED, TRAINING_OF)
    arguments: tuple[str, ...] = option((), ARGUMENTS)
    precisions: tuple[str, ...] = option(
        "fp32,bf16",
        "Kinds: fp32, bf16, fp16 (scaled loss), int8 (quantisation-aware).",
        choices=PRECISIONS,
    )
    batch: int | None = option(None, BATCH)
    optimizer: str | None = option(None, OPTIMIZER)
    threads: int | None = option(None, THREADS)
    device: str = option("cpu", DEVICE)
    repeats: int = option(3, REPEATS)
    steps: int | None = option(None, STEPS)
    seconds: float | None = option(None, SECONDS)
    target: float | None = option(None, TARGET)
    simulate: str | None = option(None, SIMULATE)
    quick: bool = option(False, QUICK)
    seed: int = option(0, SEED)
    time_limit: float | None = option(None, SWEEP_TIME_LIMIT)

    @property
    def settings(self) -> list[TrainingSetting]:
        return [replace(self.base, precision=precision) for precision in dict.fromkeys(self.precisions)]


@dataclass(frozen=True)
class OptimizerSweep(TrainingSweep):
    """Train with each optimizer: memory of its state, time and energy of a step, steps to a loss.

    SGD, momentum, Adam, AdamW, Adagrad, RMSprop, Adafactor, and AdamW with a state of 8 bits where torchao or
    bitsandbytes is installed. Unless --target is given, it is the loss that all of them reach in 200 steps.
    """

    study: ClassVar[str] = "optimizers"
    default_steps: ClassVar[int | None] = 200

    workload: str = option(REQUIRED, WORKLOAD)
    optimizers: tuple[str, ...] = option(None, "Which, with commas. Default: all.", example="sgd,adam")
    lr: dict[str, float] = option(
        None, "A learning rate of your own: adam=0.003; may be given again.", above=0, example="adam=0.01"
    )
    batch: int | None = option(None, BATCH)
    precision: str = option("fp32", PRECISION)
    threads: int | None = option(None, THREADS)
    device: str = option("cpu", DEVICE)
    repeats: int = option(3, REPEATS)
    steps: int | None = option(None, STEPS)
    target: float | None = option(None, TARGET)
    simulate: str | None = option(None, SIMULATE)
    quick: bool = option(False, QUICK)
    seed: int = option(0, SEED)
    time_limit: float | None = option(None, TIME_LIMIT)

    def checked(self) -> StudyRequest:
        from stepscope.experiments.sweeps.optimizers import kinds_named

        names = tuple(kind.name for kind in kinds_named(self.optimizers or ()))
        for name in self.lr or {}:
            if name not in names:
                raise UsageError(f"--lr {name}: not an optimizer and its rate", f"for example --lr {names[0]}=0.01")
        return super(OptimizerSweep, replace(self, optimizers=names)).checked()

    def plan(self) -> Plan:
        from stepscope.experiments.sweeps.optimizers import optimizer_plan

        return optimizer_plan(self)


@dataclass(frozen=True)
class PowerModes(TrainingSweep):
    """Train in each power mode of a Jetson (nvpmodel): which is best for throughput, energy a sample, energy to a loss.

    Without --apply it says what it would do and changes nothing. With it, it asks first, and sets the mode of before
    again at the end, also after Ctrl-C or an error; after a power cut the same command does so. It takes root.
    """

    study: ClassVar[str] = "power-modes"

    workload: str = option(REQUIRED, TRAINING_OF)
    arguments: tuple[str, ...] = option((), ARGUMENTS)
    modes: tuple[str, ...] = option(None, "Modes by number or name, with commas. Default: all.", example="0,1")
    apply: bool = option(False, "Set the modes; without it, only list what would be done.", stored=False)
    yes: bool = option(False, "Do not ask before the first mode is set.", stored=False)
    batch: int | None = option(None, BATCH)
    optimizer: str | None = option(None, OPTIMIZER)
    precision: str = option("fp32", PRECISION)
    threads: int | None = option(None, THREADS)
    device: str = option("cpu", DEVICE)
    repeats: int = option(3, REPEATS)
    steps: int | None = option(None, STEPS)
    seconds: float | None = option(None, SECONDS)
    target: float | None = option(None, TARGET)
    quick: bool = option(False, QUICK)
    seed: int = option(0, SEED)
    time_limit: float | None = option(None, SWEEP_TIME_LIMIT)
    root: Path = option(Path("/"), "Top of the file system that holds etc/nvpmodel.conf.", stored=False)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The modes by number, once the request is checked."""
        return tuple(map(int, self.modes))

    def checked(self) -> StudyRequest:
        from stepscope.experiments.sweeps.power_modes import find_jetson

        super().checked()
        jetson = find_jetson(self.root)
        numbers = {name: number for number, name in jetson.modes.items()} | {str(n): n for n in jetson.modes}
        for word in self.modes or ():
            if word not in numbers:
                raise UnknownName("power mode", word, numbers)
        requested = tuple(dict.fromkeys(numbers[word] for word in self.modes or ())) or tuple(sorted(jetson.modes))
        return replace(self, modes=tuple(map(str, requested)))

    def plan(self) -> Plan:
        from stepscope.experiments.sweeps.power_modes import find_jetson, power_mode_plan, refuse_without_permission

        if not self.apply:
            raise UsageError("without apply, the study 'power-modes' measures nothing", "add --apply, or apply=True")
        refuse_without_permission()
        if not self.yes:
            raise UsageError(
                "setting power modes needs a confirmation, and there is no terminal to ask on", "add --yes, or yes=True"
            )
        return power_mode_plan(find_jetson(self.root), self)
