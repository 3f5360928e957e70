"""The request of a sweep of the suite, on this machine or on the boards of a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.experiments.engine import DEVICE
from stepscope.experiments.sweeps import PRECISIONS
from stepscope.request import Request, option, parameters


@dataclass(frozen=True)
class SuiteRun(Request):
    """Run a sweep: every training, batch, optimizer, precision and number of threads, in shuffled fresh processes.

    `stepscope suite run lenet train.py mine:training` runs a workload, a script and a function; without a name, a tier.

    Out of memory, a kill, a crash, a hang and a library that is not installed are results; a batch larger than one
    that did not fit is skipped and says so. Interrupt it as you like: `--resume` repeats nothing that has ended.
    Without --steps, --seconds and --interval a run ends when ms a step is known within 2 %, or after 60 s.
    """

    workloads: tuple[str, ...] | None = option(
        None, "Workloads, scripts (train.py) and module:function. Default: the tier.", argument=True, stated=True
    )
    tier: str | None = option(None, "smoke (default), paper-2019, paper-low-power, edge or all.")
    batch: tuple[int, ...] | None = option(
        None, "Batch sizes: 1,2,4,...,256. Default: each workload's own.", least=1, example="1,2,4"
    )
    optimizers: tuple[str, ...] | None = option(None, "Optimizers: sgd,adam. Default: each workload's own.")
    precisions: tuple[str, ...] | None = option(
        None, "Precisions: fp32,bf16,fp16,int8. Default: fp32.", choices=PRECISIONS
    )  # fmt: skip
    threads: tuple[int, ...] | None = option(None, "Threads: 1,2,4. Default: torch's choice.", least=1, example="1,2,4")
    device: str | None = option(None, DEVICE, help="cpu (default) or cuda.")
    repeats: int | None = option(
        None, "Fresh processes for each setting: 3 (smoke: 1).", least=1, example="3"
    )  # fmt: skip
    steps: int | None = option(None, "Most steps of a run, warm-up included.", least=1, example="3")
    seconds: float | None = option(
        None, "Most seconds of steps of a run (6 steps are always made).", above=0, unit="s", example="30"
    )
    interval: float | None = option(
        None, "End a run when ms a step is known within this, at 95 %: 2%.", above=0, most=1, unit="share", example="2%"
    )
    cooldown: str | None = option(None, "Before each run: cool down to 45C, or wait 30s.")
    memory: int | None = option(
        None, "Memory of each process (RLIMIT_DATA), to ask what a smaller device does: 8GB.",
        above=0, unit="B", example="8GB",
    )  # fmt: skip
    time_limit: float | None = option(
        None,
        "A run that lasts longer is ended. Default: 15min, or half as long again as --seconds.",
        above=0,
        unit="s",
        example="15min",
    )
    tune: float | None = option(
        None, "Also try changes on each setting for so long, and state what helps.", above=0, unit="s", example="3min"
    )  # fmt: skip
    out: Path | None = option(None, "Folder of the sweep. Default: suites/<time>-<tier>.")
    resume: bool = option(False, "Go on with the sweep in --out, or the newest.")
    seed: int | None = option(None, "Seed of the order of runs and of the trainings.")
    fleet: str | None = option(None, "On the boards of a fleet: hosts.toml, or tls://host:port.")
    boards: tuple[str, ...] | None = option(None, "With --fleet, these boards alone: a,b. Default: all.")
    tls: Path | None = option(None, "With --fleet tls://...: folder of ca.pem, certificate.pem, key.pem.")
    wait: float = option(
        "5min", "With --fleet: how long a board, or the scheduler, may be away.", least=0, unit="s", example="5min"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workloads is not None:  # also `a,b c`
            split = (name for argument in self.workloads for name in argument.split(","))
            object.__setattr__(self, "workloads", tuple(filter(None, split)) or None)
        if self.tune is not None and self.memory is not None:
            raise UsageError("--memory limits one process, and --tune trains in several", "make two sweeps of it")
        if self.fleet is None and (self.boards is not None or self.tls is not None):
            raise UsageError("--boards and --tls belong to --fleet", "name the fleet: --fleet hosts.toml")

    @property
    def given_options(self) -> dict[str, str]:
        """The options that say what is run, of those that were given, by the name of their field."""
        about = ("out", "resume", "fleet", "boards", "tls", "wait")
        options = parameters(type(self)).items()
        return {name: option.flag for name, option in options if name not in about and getattr(self, name) is not None}

    @property
    def tier_name(self) -> str | None:
        """The tier; null where workloads were named instead."""
        return self.tier or ("smoke" if self.workloads is None else None)
