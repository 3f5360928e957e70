"""The question of `stepscope run`, apart from the others: what waits for a training imports this one alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.clock import PERIOD_NS
from stepscope.record.settings import LEAST_DISK
from stepscope.request import IS_MODULE, REQUIRED, Request, option


@dataclass(frozen=True)
class RunRequest(Request):
    """Train a workload, or run your script, and measure it.

    `stepscope run lenet --steps 300` trains a workload; `stepscope run train.py --epochs 1` runs a script unchanged.
    Everything after its name is passed to the script; options of Stepscope go before it. Steps are detected at its
    optimizers, samples at its data loader. The report is printed at the end (for a script on stderr, since stdout is
    the script's), and the script's exit code is passed on.
    """

    target: str = option(REQUIRED, "A workload (see `stepscope workloads`), script or module:function.", argument=True)
    arguments: tuple[str, ...] = option(
        (), "The script's own arguments, after its name or after `--`.", argument=True, stated=True
    )
    batch: int | None = option(
        None,
        "Samples per step; for a script, how many samples one step counts as.",
        least=1,
        example="32",
        short="--batch-size",
    )
    steps: int | None = option(None, "Training steps of a workload (default: 100).", least=1, example="300")
    until_resolved: float | None = option(
        None,
        "Train until this share of the energy is known within 10 %, such as 90%; at most --steps.",
        above=0,
        most=1,
        unit="share",
        example="90%",
        advanced=True,
    )
    optimizer: str | None = option(None, "Optimizer of a workload: sgd, momentum, adam, ...")
    lr: float | None = option(None, "Learning rate of a workload.", example="0.01")
    device: str | None = option(None, "Device of a workload: cpu (default) or cuda.")
    precision: str | None = option(
        None, "Precision of a workload: fp32 (default), bf16, fp16 or int8 (quantisation-aware)."
    )
    threads: int | None = option(None, "Threads that torch computes with.", least=1, most=1024, example="2")
    seed: int | None = option(
        None, "Seed of a workload: the same seed repeats the run.", least=0, most=2**63 - 1, example="1"
    )
    out: Path = option(Path("runs"), "Folder for run folders.")
    record: str = option("adaptive", "Steps to profile: adaptive, all, none, first:N or every:N.")
    record_memory: str = option(
        "auto", "Profiled steps whose allocations are recorded: auto (one or two), all or off.", advanced=True
    )
    with_: Path | None = option(None, "Train with the configuration that `stepscope tune --apply FILE` wrote.")
    malloc: str = option(
        "default", "C allocator: default, pinned (glibc's mmap threshold: smaller, slower) or tcmalloc.", advanced=True
    )
    period: float = option(
        f"{PERIOD_NS / 1e6:g}ms",
        "Period of the sampler, for example 10ms, 5ms or 1ms.",
        above=0,
        unit="s",
        example="5ms",
        advanced=True,
    )
    max_disk: float | None = option(
        None,
        "Limit the run folder of a long run: old samples become means, operators a random choice of windows.",
        least=LEAST_DISK,
        unit="B",
        example="500MB",
        advanced=True,
    )
    updates_per_step: int | None = option(None, "For a script: optimizer steps per training step.", advanced=True)
    plug: tuple[str, ...] = option(
        (), "A meter by address: shelly=192.168.1.20, tasmota=..., adb=SERIAL, termux.", separate=True, stated=True
    )
    meter_command: tuple[str, ...] = option(
        (), "A command that prints watts, one reading per line.", separate=True, stated=True, advanced=True
    )
    meter_csv: tuple[Path, ...] = option(
        (),
        "Log of a meter with its own clock, aligned after the run.",
        separate=True,
        stated=True,
        advanced=True,
    )
    power_model: str | None = option(
        None,
        "Estimate power from utilisation, labelled so: cpu=2W..15W,gpu=1W..10W; or learn that from runs with a meter: "
        "runs/a,runs/b,runs/c.",
    )
    simulate: str | None = option(
        None,
        "Read a simulated board's sensors (labelled everywhere): jetson-tx2, jetson-tx2,average=76,stuck=5s+3s.",
        advanced=True,
    )
    characterise: bool = option(
        True,
        "Measure update interval, resolution and filter of power sensors that are new on this device.",
        advanced=True,
    )
    dither: bool = option(
        True, "Vary the sampler's period slightly, so that it does not lock to the steps.", advanced=True
    )
    ceilings: bool = option(
        True,
        "After the run, measure this device's ceilings for bottleneck and roofline: once per device, a few seconds.",
        advanced=True,
    )
    module: bool = option(False, IS_MODULE)

    @property
    def period_ns(self) -> int:
        """The period of the sampler, ns."""
        return round(self.period * 1e9)
