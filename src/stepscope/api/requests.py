"""The requests of questions about one training: measure it, and what will the whole of it take?

The questions that Python can ask by name: each is a frozen dataclass, and its fields are the options of its command.

    stepscope.study(stepscope.requests.PartialTraining(fractions=(0.125, 0.5)))

A study of one's own is a `StudyRequest` in one file and a row of STUDIES.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.experiments.breakdown import Breakdown
from stepscope.experiments.daily import DailyTraining
from stepscope.experiments.engine.request import StudyRequest
from stepscope.experiments.kernels import Kernels
from stepscope.experiments.observations import Observations
from stepscope.experiments.partial import PartialTraining
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.sweeps import BatchSweep, OptimizerSweep, PowerModes, PrecisionSweep, ThreadSweep
from stepscope.request import REQUIRED, Request, option


@dataclass(frozen=True)
class RunRequest(Request):
    """Train a workload, or a script of yours, and measure it.

    `stepscope run lenet --steps 300` trains a workload; `stepscope run train.py -- --epochs 1` runs a script unchanged:
    its steps are taken from its optimizers, its samples from its data loader.
    The report follows at the end, of a script on stderr, since stdout is the script's; its own exit code is passed on.
    """

    target: str = option(REQUIRED, "A workload (see `stepscope workloads`), or a Python script.", argument=True)
    arguments: tuple[str, ...] = option((), "After `--`: the script's own arguments.", argument=True, stated=True)
    batch: int | None = option(
        None, "Samples per step. Of a script: what one step counts as.", least=1, example="1"
    )  # fmt: skip
    steps: int | None = option(None, "Training steps of a workload (default: 100).", least=1, example="1")
    until_resolved: float | None = option(
        None, "Train until this share of the energy is within 10 %, such as 90%; --steps bounds it.",
        above=0, most=1, unit="share", example="90%",
    )  # fmt: skip
    optimizer: str | None = option(None, "Optimizer of a workload: sgd, momentum, adam, ...")
    lr: float | None = option(None, "Learning rate of a workload.")
    device: str | None = option(None, "Device of a workload: cpu (default) or cuda.")
    precision: str | None = option(None, "Precision of a workload: fp32 (default) or bf16.")
    threads: int | None = option(None, "Threads that torch computes with.", least=1, example="1")
    seed: int | None = option(None, "Seed of a workload: the same seed repeats the run.")
    out: Path = option(Path("runs"), "Folder that the run folder is made in.")
    record: str = option("adaptive", "Steps to profile: adaptive, all, none, first:N or every:N.")
    record_memory: str = option(
        "auto", "Profiled steps whose allocations are recorded: auto (one or two), all or off."
    )  # fmt: skip
    with_: Path | None = option(None, "Train with the configuration that `stepscope tune --apply FILE` wrote.")
    malloc: str = option(
        "default", "C allocator: default, pinned (glibc's mmap threshold: smaller, slower) or tcmalloc."
    )
    period: float = option("10ms", "Period of the sampler, for example 10ms, 5ms or 1ms.", above=0, unit="s")
    updates_per_step: int | None = option(None, "Of a script: optimizer steps that make one training step.")
    plug: tuple[str, ...] = option(
        (), "A meter by address: shelly=192.168.1.20, tasmota=..., adb=SERIAL, termux.", separate=True, stated=True
    )
    meter_command: tuple[str, ...] = option(
        (), "A command of yours that prints watts, a reading a line.", separate=True, stated=True
    )
    meter_csv: tuple[Path, ...] = option(
        (), "Log of a meter with its own clock, aligned when the run has ended.", separate=True, stated=True
    )
    power_model: str | None = option(None, "Estimate power from utilisation, labelled so: cpu=2W..15W,gpu=1W..10W.")
    simulate: str | None = option(
        None, "Read a simulated board's sensors (all output says so): jetson-tx2, jetson-tx2,average=76,stuck=5s+3s."
    )  # fmt: skip
    characterise: bool = option(
        True, "Measure refresh, step and filter of power sensors that are new on this device."
    )  # fmt: skip
    dither: bool = option(True, "Spread the sampler's reads, so that no step locks to them.")
    ceilings: bool = option(
        True, "Measure what this device can reach after the run, once for each device (seconds): bottleneck, roofline."
    )  # fmt: skip
    module: bool = option(False, "TARGET is a module, as with `python -m`.", short="-m")

    @property
    def period_ns(self) -> int:
        """The period of the sampler, ns."""
        return round(self.period * 1e9)


@dataclass(frozen=True)
class ForecastRequest(Request):
    """Predict a whole training from a few measured steps: time, energy, battery share and end temperature.

    `stepscope forecast last --epochs 10` extrapolates the newest run; `stepscope forecast lenet --steps 5000` measures
    100 steps first. With `--watch` the training is made, and the forecast is corrected as it goes on and then checked.
    """

    target: str = option(REQUIRED, "A run folder (or 'last'), or a workload to measure now.", argument=True)
    steps: int | None = option(None, "Steps of the whole training.", least=1, example="1000")
    epochs: float | None = option(
        None, "Or its epochs, where the size of the data is known.", above=0, example="10"
    )  # fmt: skip
    measure: int = option(100, "Steps to measure of a workload.", least=1)
    batch: int | None = option(None, "Batch size of a workload.", least=1, example="16")
    battery: float | None = option(
        None, "Battery to run on, for example 50Wh.", above=0, unit="J", bare="Wh", example="50Wh"
    )
    carbon: float | None = option(
        None, "Carbon of the electricity, for example 400g/kWh.", above=0, unit="g/J", bare="g/kWh", example="400g/kWh"
    )
    watch: bool = option(False, "Train it all, measure 20 steps of every 500, correct the forecast.")
    out: Path = option(Path("runs"), "Folder of the run folders.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.steps is None) == (self.epochs is None):
            raise UsageError("how long is the training?", "give either --steps N or --epochs E")


@dataclass(frozen=True)
class CalibrateRequest(Request):
    """Compare this device's power sensors with a meter for a minute of square load; keep gain, offset, delay, window.

    `stepscope calibrate --plug shelly=192.168.1.20` loads all cores in plateaus of some seconds while the plug and all
    sensors are read. From then on each run states what the meter would say beside what the sensor says. The result is
    kept for this device below ~/.local/share/stepscope, outside of runs. With Ctrl-C nothing is kept.
    """

    plug: str | None = option(None, "The meter by address: shelly=192.168.1.20, tasmota=..., adb=SERIAL, termux.")
    meter_command: str | None = option(None, "Or a command of yours that prints watts, a reading a line.")
    meter_csv: Path | None = option(None, "Or the log that a meter writes meanwhile: times and watts.")
    seconds: float = option("60s", "How long the load lasts in all.", least=20, unit="s", example="60s")
    accuracy: float = option(
        "1%", "What the meter's data sheet says of it, a share of its reading.", above=0, most=1, unit="share",
        example="1%",
    )  # fmt: skip
    dry: bool = option(False, "Show the result and keep nothing.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(meter is not None for meter in (self.plug, self.meter_command, self.meter_csv)) != 1:
            raise UsageError("calibrate against which meter?", "give one of --plug, --meter-command and --meter-csv")


__all__ = [
    "BatchSweep",
    "Breakdown",
    "CalibrateRequest",
    "DailyTraining",
    "ForecastRequest",
    "Kernels",
    "Observations",
    "OptimizerSweep",
    "PartialTraining",
    "PowerModes",
    "PrecisionSweep",
    "RunRequest",
    "StudyRequest",
    "SuiteRun",
    "ThreadSweep",
]


@dataclass(frozen=True)
class Study:
    """A study: its request, and the function of `report.charts` that draws its figures from the frames."""

    request: type[StudyRequest]
    charts: str = ""


STUDIES = {
    study.request.study: study
    for study in (
        Study(BatchSweep, "comparison:setting_charts"),
        Study(Breakdown, "operators:breakdown_charts"),
        Study(DailyTraining, "comparison:daily_charts"),
        Study(Kernels, "operators:kernel_charts"),
        Study(Observations, "observations:observation_charts"),
        Study(OptimizerSweep, "comparison:setting_charts"),
        Study(PartialTraining, "comparison:partial_charts"),
        Study(PowerModes, "comparison:setting_charts"),
        Study(PrecisionSweep, "comparison:setting_charts"),
        Study(ThreadSweep, "comparison:setting_charts"),
    )
}
