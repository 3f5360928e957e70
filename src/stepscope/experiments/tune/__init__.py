"""Changes that could make a training faster or smaller, measured in pairs against the training as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError
from stepscope.request import IS_MODULE, REQUIRED, Request, is_function, option

# The request of `stepscope tune`.

GOALS = ("time", "energy", "memory")


@dataclass(frozen=True)
class TuneRequest(Request):
    """Try changes on a training and measure each against it as it is: what makes it faster or smaller.

    `stepscope tune lenet` tries them on a workload, `stepscope tune train.py --epochs 1` within the loop of a script
    (`-m package.train`: of a module), without waiting for its end. Blocks of real steps, unchanged and changed,
    alternate in random order; changes that need a new process (environment variables, an allocator) get their own
    processes. No change stays. Ctrl-C keeps the results so far, and the same command with the same --out continues.
    """

    target: str = option(
        REQUIRED,
        "A workload (see `stepscope workloads`), a script (train.py), with -m a module, or module:function.",
        argument=True,
    )
    arguments: tuple[str, ...] = option(
        (), "The script's own arguments, after its name or after `--`.", argument=True, stated=True
    )
    minutes: float = option(
        3.0,
        "Minutes to measure, once the training has started.",
        above=0,
        example="3",
    )
    for_: str = option(
        "time",
        "What to improve: time, energy (of the whole device, by its power sensors or a meter) or memory.",
        choices=GOALS,
        kind="goal",
    )
    only: tuple[str, ...] = option(
        (), "Try only these changes, by name or group: channels_last,threads.", stated=True, example="channels_last"
    )  # fmt: skip
    not_: tuple[str, ...] = option((), "Do not try these changes: bf16,compile.", stated=True, example="bf16")
    what_if: Path | None = option(
        None,
        "A recorded run of the same training, or last: delay each layer instead, to see what a perfect one would save.",
    )
    plug: tuple[str, ...] = option(
        (), "With --for energy, a meter by address: shelly=192.168.1.20, tasmota=...", separate=True, stated=True
    )
    meter_command: tuple[str, ...] = option(
        (), "With --for energy, a command that prints watts, one reading per line.", separate=True, stated=True,
        advanced=True,
    )  # fmt: skip
    power_model: str | None = option(
        None, "With --for energy, estimate power from utilisation: cpu=2W..15W, or runs with a meter.", advanced=True
    )
    apply_power: bool = option(
        False,
        "Also try CPU and GPU clocks, the governor and power limits of the device, and put them back (root only).",
    )
    batch: int | None = option(None, "Samples per step of a workload.", least=1, example="16")
    optimizer: str | None = option(None, "Optimizer of a workload. Default: its own.")
    threads: int | None = option(None, "Threads of the training as it is.", least=1, most=1024, example="2")
    device: str | None = option(None, "Device of a workload: cpu (default) or cuda.")
    module: bool = option(False, IS_MODULE)

    @property
    def of_a_script(self) -> bool:
        """Return whether the target is a script of the user's, or a module that is run as one."""
        return self.module or self.target.endswith(".py")

    @property
    def of_a_function(self) -> bool:
        """Return whether the target is a function of the user's that returns the parts of a training."""
        return not self.module and is_function(self.target)

    @property
    def subject(self) -> str:
        """The name of what is tuned, for its folder."""
        return self.target if self.module else self.target.rpartition("/")[2].removesuffix(".py").replace(":", "-")

    def orders(self) -> dict[str, Any]:
        """Return what the process of a training is told; UsageError for what cannot be."""
        self.refuse_unused_meters()
        if self.what_if is not None and (self.only or self.not_ or self.for_ != "time"):
            raise UsageError("--what-if tries no changes: --only, --not and --for do not apply", "leave them out")
        if self.of_a_function:
            return self._orders_of_a_function()
        if not self.of_a_script:
            if self.arguments:
                raise UsageError(f"a workload takes no arguments of its own: {' '.join(self.arguments)}")
            names = ("batch", "optimizer", "threads", "device")
            return {"workload": self.target, **{name: getattr(self, name) for name in names}}
        options = [f"--{name}" for name in ("batch", "optimizer", "device") if getattr(self, name) is not None]
        if options:
            raise UsageError(f"{', '.join(options)}: of a workload only", "give a script its own arguments after --")
        orders = {"script": self.target, "arguments": list(self.arguments), "threads": self.threads}
        return {**orders, "module": True} if self.module else orders

    def refuse_unused_meters(self) -> None:
        """Raise UsageError for a meter that nothing would be read from."""
        named = [name for name in ("plug", "meter_command", "power_model") if getattr(self, name)]
        if named and self.for_ != "energy":
            raise UsageError(f"--{named[0].replace('_', '-')} is read with --for energy alone", "add --for energy")

    def _orders_of_a_function(self) -> dict[str, Any]:
        """The orders for the script that trains what a function returns, without end."""
        options = [f"--{name}" for name in ("optimizer", "device") if getattr(self, name) is not None]
        if options or self.arguments:
            raise UsageError(f"{' '.join([*options, *self.arguments])}: a function decides that itself", "leave it out")
        from stepscope.experiments.sweeps import user_training

        batch = [] if self.batch is None else [str(self.batch)]
        return {"script": user_training.__file__, "arguments": [self.target, *batch], "threads": self.threads}
