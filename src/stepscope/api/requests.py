"""The questions that Python asks by name: each is a frozen dataclass, and its fields are the options of its command.

    stepscope.study(stepscope.requests.PartialTraining(fractions=(0.125, 0.5)))

A study of one's own is a `StudyRequest` in one file and a row of STUDIES.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.api.run_request import RunRequest
from stepscope.errors import UsageError
from stepscope.experiments.breakdown import Breakdown
from stepscope.experiments.daily import DailyTraining
from stepscope.experiments.engine import StudyRequest
from stepscope.experiments.kernels import Kernels
from stepscope.experiments.observations import Observations
from stepscope.experiments.paper_2019 import Paper2019
from stepscope.experiments.paper_p744 import PaperP744
from stepscope.experiments.partial import PartialTraining
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.sweeps import BatchSweep, OptimizerSweep, PowerModes, PrecisionSweep, ThreadSweep
from stepscope.request import IS_MODULE, REQUIRED, Option, Request, option, refuse_bare_share
from stepscope.run_paths import NEWEST
from stepscope.runfolder.schema import PROBED

_MOST_SHIFT_S = 4e9  # a clock that counts from 1970, brought to any time that a clock of this century shows
_LIMIT = Option("", unit="share", bare="%", least=0, most=10, example="5%")


def _ways_to_divide() -> list[str]:
    from stepscope.analysis.compare import WHAT

    return list(dict.fromkeys(way for ways in WHAT.values() for way in ways))


def _differences() -> list[str]:
    from stepscope.analysis.compare import WHAT

    return list(WHAT)


@dataclass(frozen=True)
class ForecastRequest(Request):
    """Predict a whole training from a few measured steps: time, energy, battery share and end temperature.

    `stepscope forecast last --epochs 10` extrapolates the newest run; `stepscope forecast lenet --steps 5000` measures
    100 steps first. With `--watch` the whole training is run, and the forecast is corrected meanwhile and then checked.
    """

    target: str = option(REQUIRED, "A run folder (or 'last'), or a workload to measure now.", argument=True)
    steps: int | None = option(None, "Steps of the whole training.", least=1, example="1000")
    epochs: float | None = option(
        None, "Or its epochs, if the size of the data is known.", above=0, example="10"
    )  # fmt: skip
    measure: int = option(100, "Steps of a workload to measure.", least=1)
    batch: int | None = option(None, "Batch size of a workload.", least=1, example="16")
    battery: float | None = option(
        None, "Battery to run on, for example 50Wh.", above=0, unit="J", bare="Wh", example="50Wh"
    )
    carbon: float | None = option(
        None,
        "Carbon intensity of the electricity, for example 400g/kWh.",
        above=0,
        unit="g/J",
        bare="g/kWh",
        example="400g/kWh",
    )
    watch: bool = option(False, "Run the whole training, and correct the forecast by all steps made so far.")
    out: Path = option(Path("runs"), "Folder for run folders.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.steps is None) == (self.epochs is None):
            raise UsageError("how long is the training?", "give either --steps N or --epochs E")


@dataclass(frozen=True)
class CalibrateRequest(Request):
    """Compare this device's power sensors with a meter for a minute of square load; keep gain, offset, delay, window.

    `stepscope calibrate --plug shelly=192.168.1.20` loads all cores in plateaus of some seconds while the plug and all
    sensors are read. From then on each run states what the meter would show beside what the sensor shows. The result is
    stored for this device below ~/.local/share/stepscope, outside of runs. Ctrl-C stores nothing.
    """

    plug: str | None = option(None, "The meter's address: shelly=192.168.1.20, tasmota=..., adb=SERIAL, termux.")
    meter_command: str | None = option(None, "Or a command that prints watts, one reading per line.")
    meter_csv: Path | None = option(None, "Or the log that a meter writes during the load: times and watts.")
    seconds: float = option("60s", "Total duration of the load.", least=20, unit="s", example="60s")
    accuracy: float = option(
        "1%", "Accuracy of the meter by its data sheet, as a share of the reading.", above=0, most=1, unit="share",
        bare="%", example="1%",
    )  # fmt: skip
    dry: bool = option(False, "Show the result without storing it.")

    def __post_init__(self) -> None:
        refuse_bare_share("--accuracy", self.accuracy)
        super().__post_init__()
        if sum(meter is not None for meter in (self.plug, self.meter_command, self.meter_csv)) != 1:
            raise UsageError("calibrate against which meter?", "give one of --plug, --meter-command and --meter-csv")


RUN = "A run folder, the name of one in runs/, or 'last'."
LAST = Path(NEWEST)


@dataclass(frozen=True)
class CheckRequest(Request):
    """Decide with intervals whether a run has regressed: exit code 0 no regression, 10 regression, 11 cannot tell.

    Without a limit, time, memory and energy are checked at 5 %, 3 % and 5 %, energy if both sides measured it; with
    limits, only those given. It is a regression if the whole 95 % CI of the ratio lies above the limit, none if the
    whole interval lies within, and otherwise "cannot tell". Memory is the live peak if both recorded it, otherwise the
    process's. In a GitHub job the Markdown is added to the job summary too.
    """

    run: Path = option(REQUIRED, "A run folder, a name in runs/, 'last', or a folder of repeats.", argument=True)
    against: Path = option(REQUIRED, "The baseline: a run, or a folder of repeats.")
    max_slowdown: float | None = option(None, _LIMIT, help="Allowed growth of the step time: 5%.")
    max_memory: float | None = option(None, _LIMIT, help="Allowed growth of peak memory: 3%.")
    max_energy: float | None = option(None, _LIMIT, help="Allowed growth of the energy per step: 5%.")
    anyway: bool = option(False, "Compare runs that differ in what was trained, or where.")

    def __post_init__(self) -> None:
        for name in ("max_slowdown", "max_memory", "max_energy"):
            refuse_bare_share(f"--{name.replace('_', '-')}", getattr(self, name))
        super().__post_init__()

    @property
    def limits(self) -> dict[str, float] | None:
        """The growth allowed of time, memory and energy, as shares; None: all three at their usual limits."""
        shares = {"time": self.max_slowdown, "memory": self.max_memory, "energy": self.max_energy}
        return {what: share for what, share in shares.items() if share is not None} or None


@dataclass(frozen=True)
class CompareRequest(Request):
    """Compare runs, devices or sweeps with the first of them: ratios with intervals, and what explains the difference.

    Several runs of one folder and setting are repeats: the intervals then cover the variation between runs. The
    parts (modules, operators) of a difference in time, memory or energy add up to it, and what is unattributed is
    shown.
    """

    runs: tuple[Path, ...] = option(
        (),
        "Two to ten: run folders, names in runs/, 'last', sweeps, or folders of runs (repeats). Default: the last two.",
        argument=True,
        stated=True,
    )
    per: str = option("step", "Count time and energy of the parts by step or by sample.")
    by: tuple[str, ...] = option(
        None, "Parts: module, type, kind, phase, category. Default: module, with -v and --json kind too.",
        stated=True, separate=True, choices=_ways_to_divide, kind="kind of part",
    )  # fmt: skip
    what: tuple[str, ...] = option(
        None, "Differences to explain: time, kernels, memory, energy. Default: all.", separate=True,
        choices=_differences, kind="difference to explain",
    )  # fmt: skip
    attribution: str = option(
        "fit", "How energy is attributed to operators: fit (ours), overlap, nearest (2019) or model."
    )


@dataclass(frozen=True)
class ExportRequest(Request):
    """Write a run as a file that another tool opens, or as a folder of tables.

    Perfetto shows ops by thread and device above every sampled channel; speedscope shows flame graphs. The content and
    approximate size are printed before writing; export only a few steps of a long run.
    """

    run: Path = option(LAST, RUN, argument=True)
    to: str = option("perfetto", "Format: perfetto, chrome, csv, parquet, latex, speedscope or json.")
    steps: str = option("all", "Which steps: 10:20 (10 to 19), first:50 or all.")
    out: Path | None = option(None, "File, or folder of tables. Default: in the run folder.")


@dataclass(frozen=True)
class ImportRequest(Request):
    """Turn measurements of another tool into a run: a torch.profiler file, with the log of a sensor tool beside it.

    What the file does not contain is not made up: the run lists it as not measured. Steps, ops, phases and, with
    with_stack=True, layers come from the profiler; power, utilisation and memory from the log. A file written by
    `stepscope export --to chrome` becomes the run again, without the sampled channels.
    """

    file: Path = option(REQUIRED, "A torch.profiler JSON (also .gz), or the log of a sensor tool.", argument=True)
    with_: tuple[Path, ...] = option((), "A sensor log of the same time; may be repeated.", separate=True, stated=True)
    kind: str | None = option(
        None, "torch-profiler, stepscope-chrome, tegrastats, jetson-stats, nvidia-smi, powermetrics, mllog, "
        "powersensor3 or meter-csv. Default: by content."
    )  # fmt: skip
    out: Path = option(Path("runs"), "Folder for the run.")
    name: str | None = option(None, "What was trained. Default: the file's name.")
    batch: int | None = option(None, "Samples per step.", least=1)
    warmup: int | None = option(None, "Warm-up steps at the beginning, which do not count.", least=0)
    board: str | None = option(None, "The board, by name or as in its device tree.")
    utc_offset: str | None = option(None, "UTC offset of time stamps without one: +02:00. Default: this machine's.")
    shift: float = option(
        0.0, "Seconds to add to the times of the logs.", unit="s", least=-_MOST_SHIFT_S, most=_MOST_SHIFT_S
    )
    started: str | None = option(None, "Start time of a log without dates (tegrastats, a meter).")
    interval: float | None = option(None, "Interval of that log: 100ms.", unit="s", above=0, most=4e9, example="100ms")
    time_column: str | None = option(None, "Column of times in a meter's CSV. Default: by name.")
    power_column: str | None = option(None, "Column of power in a meter's CSV. Default: by name.")


@dataclass(frozen=True)
class DoctorRequest(Request):
    """Show what can be measured on this machine, what cannot, and the command that would enable it."""

    characterise: bool = option(
        False, "Measure update interval, resolution and filter of each power sensor: loads all cores."
    )
    picture: Path | None = option(None, "With --characterise: draw the answers to the load (.png, .svg or .html).")
    ceilings: bool = option(False, "Measure this device's ceilings for bottleneck and roofline (seconds).")
    threads: int | None = option(None, "With --ceilings: threads of torch (default: its own).", least=1)
    precision: str | None = option(
        None,
        "With --ceilings: the number format (default: float32); of float32 also under torch's switches.",
        choices=("fp32", "bf16", "fp16", *PROBED),
    )
    device: str | None = option(None, "With --ceilings: cpu (default), cuda, cuda:1 or another that torch has.")
    simulate: str | None = option(
        None, "Look at a simulated board instead (labelled everywhere): jetson-tx2, or jetson-tx2,average=76."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.picture is not None and not self.characterise:
            raise UsageError("--picture belongs to --characterise", "add --characterise")
        for name in ("threads", "precision", "device"):
            if getattr(self, name) is not None and not self.ceilings:
                raise UsageError(f"--{name} belongs to --ceilings", "add --ceilings")
        if self.simulate is not None and (self.characterise or self.ceilings):
            text = (
                "--characterise: a simulated board follows a training, not the load that this would make"
                if self.characterise
                else "--ceilings: what is measured would be this machine's, and not the board's"
            )
            raise UsageError(text, f"look at it alone: stepscope doctor --simulate {self.simulate}")


@dataclass(frozen=True)
class LiveRequest(Request):
    """Watch a running training: step, speed, time left, load, power, memory and heat.

    It only reads the run folder: the training does not notice it, and continues when you leave with Ctrl-C. It ends
    when the run does, with exit code 0 if that went well and 1 if not.
    """

    run: Path = option(LAST, RUN, argument=True)
    wait: bool = option(False, "Wait for the run to begin.")
    lines: bool = option(False, "A line every few seconds, as without a terminal.")
    prometheus: str | None = option(
        None, "Serve gauges on this port of 127.0.0.1 (0: any), or keep this .prom file up to date."
    )


@dataclass(frozen=True)
class LogRequest(Request):
    """Send a run to MLflow, Weights & Biases, TensorBoard, Prometheus or a CodeCarbon table.

    Names of numbers contain the unit, and the 95 % CI is beside each; what was not measured is omitted. The destination
    is printed. Nothing leaves this machine unless --out or the tool's own settings name a server.
    """

    run: Path = option(LAST, RUN, argument=True)
    to: str = option("tensorboard", "The tool: mlflow, wandb, tensorboard, prometheus or codecarbon.")
    out: str | None = option(None, "File, folder or tracking URI. Default: that of the tool.")
    page: bool = option(True, "Send the page as well.")
    carbon_intensity: float | None = option(None, "g of CO2 per kWh, for codecarbon; none is assumed.")


@dataclass(frozen=True)
class MeterRequest(Request):
    """Add the log of a meter with its own clock to a run.

    The clocks are aligned by what both recorded: power against the steps and the CPU time of the run. A log that does
    not belong to the run is refused.
    """

    run: Path = option(REQUIRED, RUN, argument=True)
    log: Path = option(REQUIRED, "CSV of the meter: a column of times and one of watts.", argument=True)


@dataclass(frozen=True)
class DataRequest(Request):
    """List, download or check the data sets that workloads are trained on.

    `fetch` downloads by name: it tries mirrors in turn, resumes interrupted downloads, and keeps only files with the
    right checksum. `verify` compares what is on this machine with the checksums. Data is in $STEPSCOPE_DATA, by default
    ~/.cache/stepscope.
    """

    action: str = option(REQUIRED, "list, fetch or verify.", argument=True, choices=("list", "fetch", "verify"))
    names: tuple[str, ...] = option((), "Data sets, for fetch and verify.", argument=True, stated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action == "list" and self.names:
            names = " ".join(self.names)
            raise UsageError(f"list takes no names: {names}", f"stepscope data verify {names}")


@dataclass(frozen=True)
class RunsRequest(Request):
    """List the runs of a store, or of a plain folder of runs, the newest first."""

    store: str | None = option(None, "A folder, or an address such as s3://bucket/runs. Default: $STEPSCOPE_STORE.")
    workload: str | None = option(None, "Only this workload; * stands for any text.")
    board: str | None = option(None, "Only this board; * stands for any text.")
    status: str | None = option(None, "Only this status: ok, failed, oom or interrupted.")
    tag: tuple[str, ...] = option((), "Only runs with this tag; may be given again.", separate=True, stated=True)
    since: str | None = option(None, "Only runs started on this date (UTC) or later: 2026-01-31.")
    where: str | None = option(None, "SQL condition on the columns: 'batch_size >= 32'.")
    most: int = option(50, "Largest number of runs to show, newest first.", least=1)
    timeout: float = option(30.0, "Timeout in seconds for one answer of the store.", unit="s")


@dataclass(frozen=True)
class SuiteShowRequest(Request):
    """Show the table of a sweep, its score against a reference device, and what was wrong with runs.

    Values are means over the repeats with half the width of their 95 % CI. The score is the geometric mean of
    reference / here over the settings that both measured: 2 is twice as fast.
    """

    path: Path = option(LAST, "Folder of a sweep, finished or not, a result file, or 'last'.", argument=True)
    against: str | None = option(None, "Score against this stored device (see `suite list`) or result file.")
    models: bool = option(False, "Also what papers print of the models, corrected.")


@dataclass(frozen=True)
class SuiteExportRequest(Request):
    """Export the results of a sweep as CSV, Parquet, Markdown, MLPerf-style log lines, or one file that travels.

    The result file holds device, versions, settings and every run's numbers, with a hash: `suite show` reads it.
    """

    path: Path = option(REQUIRED, "Folder of a sweep, or a result file.", argument=True)
    to: str = option("result", "csv, parquet, markdown, mlperf, or result: a file that travels.")
    out: Path | None = option(None, "File to write. Default: beside the sweep.")
    runs: bool = option(False, "CSV and Parquet: a row a run, not a setting.")


@dataclass(frozen=True)
class SuiteListRequest(Request):
    """List the tiers with their workloads, the sweeps in a folder, and the devices that scores are made against."""

    below: Path = option(Path("suites"), "Folder whose sweeps are listed.", argument=True)


__all__ = [
    "BatchSweep",
    "Breakdown",
    "CalibrateRequest",
    "CheckRequest",
    "CompareRequest",
    "DailyTraining",
    "DataRequest",
    "DoctorRequest",
    "ExportRequest",
    "ForecastRequest",
    "ImportRequest",
    "Kernels",
    "LiveRequest",
    "LogRequest",
    "MeterRequest",
    "Observations",
    "OptimizerSweep",
    "Paper2019",
    "PaperP744",
    "PartialTraining",
    "PowerModes",
    "PrecisionSweep",
    "RunRequest",
    "RunsRequest",
    "StudyRequest",
    "SuiteExportRequest",
    "SuiteListRequest",
    "SuiteRun",
    "SuiteShowRequest",
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
        Study(Paper2019, "observations:paper_charts"),
        Study(PaperP744, "operators:paper_p744_charts"),
        Study(PartialTraining, "comparison:partial_charts"),
        Study(PowerModes, "comparison:setting_charts"),
        Study(PrecisionSweep, "comparison:setting_charts"),
        Study(ThreadSweep, "comparison:setting_charts"),
    )
}


# The question of `stepscope fit`: its fields are the options of the command.


@dataclass(frozen=True)
class FitRequest(Request):
    """Predict, without training, whether a training fits: peak memory, largest batch, and what would make it fit.

    `stepscope fit resnet18-c32 --batch 64 --board tx2` simulates a step on tensors without values. A script, or with
    `-m package.train` a module, is followed to its end, with long loops shortened. `--plan` looks for the cheapest
    combination of changes that fits, `--prove` trains it. `--probe` trains for real in child processes until one fails,
    and corrects later answers on this device. `--allocators` runs the step for real under each allocator.
    """

    target: str = option(
        REQUIRED, "A workload, module:function, or a script (with -m a module) followed by its options.", argument=True
    )
    memory: str | None = option(None, "Memory the process may use: 8GB, 512MB, 7.5GiB.")
    account: str = option(
        "resident", "How --memory is counted: resident (RAM), cgroup, address-space (ulimit -v), data (ulimit -d)."
    )
    board: str | None = option(None, "A board (tx2, orin-nano, rpi5): its memory less what its system uses.")
    here: bool = option(None, "The memory that is available on this machine now.")
    batch: int | None = option(None, "Samples per step.", short="--batch-size")
    optimizer: str | None = option(None, "Optimizer: sgd, momentum, adam, adamw, rmsprop.")
    precision: str = option("fp32", "fp32 (or float32), or bf16 for everything.")
    malloc: str = option("default", "Allocator: default (glibc), pinned, tcmalloc; on cuda PYTORCH_CUDA_ALLOC_CONF.")
    device: str = option("cpu", "Device of torch whose memory and kernels count: cpu, or cuda (a GPU's own).")
    threads: int | None = option(None, "Threads that torch computes with.", least=1, most=1024)
    options: bool = option(True, "Look for what would make it fit.")
    plan: bool = option(None, "Look for the cheapest combination of changes that fits.")
    prove: bool = option(None, "Train three steps of the plan, under the limit if the kernel can enforce it.")
    calibrate: bool = option(None, "Measure single operators here first.")
    probe: bool = option(None, "Train with more and more samples to measure it.")
    allocators: bool = option(None, "Train under each allocator: memory against time.")
    module: bool = option(False, IS_MODULE)
    figures: Path | None = option(None, "Write pictures of the answer into this folder.")
    beside: tuple[str, ...] | None = option(None, "Another workload to draw beside it; may be repeated.", separate=True)
    format: tuple[str, ...] | None = option(None, "Format of pictures: png (default), svg, pdf or vega.", separate=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision == "fp32":
            object.__setattr__(self, "precision", "float32")
