"""Power of the whole device while blocks of steps run, as a sampling process beside the training reads it.

The mean of a block excludes its beginning: what a reading there shows lies before the block. Every block is as long
as the slowest of the sensors needs. The gain error of a sensor is the same on both sides of a pair.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.clock import PERIOD_NS, monotonic_ns, read_clocks
from stepscope.errors import UsageError
from stepscope.experiments.tune.process import CannotGoOn
from stepscope.liveness import process_identity
from stepscope.record.device import describe_device
from stepscope.record.run_facts import metering_facts
from stepscope.record.sampler.process import Sampler, start_sampler
from stepscope.record.settings import Metering
from stepscope.runfolder import RunReader
from stepscope.runfolder.writer import RunWriter

if TYPE_CHECKING:
    from stepscope.analysis.energy.power_sources import PowerSource

_LEAST_S, _LEAST_LAG_S = 1.0, 0.15  # of a block, and of its beginning that does not count
_WINDOWS = 2.0  # shortest windows of the slowest sensor in a block
_READ = 0.8  # share of a block that must have been read
_FOUND_S, _LATE_S = 20.0, 10.0  # until a meter gives its first two readings; until the end of a block is on the disk
_LOOK_S = 0.1
_LEAST_BLOCKS = 24  # that the time must hold
_MOST_UNREAD = 6  # blocks in a row


class PowerLost(CannotGoOn):
    """No power is read any more."""


class DevicePower:
    """Power of the whole device: `watts` of a block, each of which takes `block_s` at least.

    note: what the power is of. Raises UsageError where nothing reads it, with what was found instead.
    """

    def __init__(self, folder: Path, metering: Metering, root: str | None = None) -> None:
        self._writer = RunWriter.create(folder, "power")
        self._writer.update(
            **process_identity(os.getpid()),
            clock=read_clocks(),
            workload={"name": "power"},
            recorder={"mode": "none", "steps_from": "calls"},
            sampler={"period_ns": PERIOD_NS, "max_disk": None},
            **metering_facts(metering),
        )
        self._writer.write_device(describe_device(Path(root or "/")))
        self._sampler: Sampler | None = None
        self._unread = 0  # blocks in a row
        try:
            self._sampler = start_sampler(self._writer.path, PERIOD_NS, root, metering=metering)
            sources, covers, is_estimated = self._first_readings(bool(metering.meters or metering.power_model))
        except BaseException:
            self.close()
            raise
        lag_ns = max(source.lag_ns for source in sources)
        self._lag_ns = max(round(_LEAST_LAG_S * 1e9), round(lag_ns))
        window_s = max(source.shortest_window_ns for source in sources) / 1e9
        self.block_s = max(_LEAST_S, self._lag_ns / 1e9 + _WINDOWS * window_s)
        self._slowest = max(sources, key=lambda source: source.shortest_window_ns).id
        names = ", ".join(source.id for source in sources)
        self.note = (
            f"Energy is estimated from utilisation ({covers}), not measured: what an instruction takes is not seen."
            if is_estimated
            else f"Energy is of {covers or 'the whole device'}, with what it takes when idle, from {names}. The gain "
            "error of a sensor is the same on both sides."
        )

    def refuse_short(self, seconds: float) -> None:
        """Raise UsageError where an experiment of so many seconds holds too few blocks behind these sensors."""
        if seconds < (least := _LEAST_BLOCKS * self.block_s):
            raise UsageError(
                f"--for energy: behind {self._slowest} a block takes {self.block_s:.2g} s, and too few fit into "
                f"{seconds / 60:.3g} minutes",
                f"--minutes {math.ceil(10 * least / 60) / 10:g}",
            )

    def watts(self, t0_ns: int, t1_ns: int) -> float | None:
        """Return the mean power of a block, W; None where too little of it was read. Raises PowerLost."""
        from stepscope.analysis.energy.measured_energy import energy_over, sum_energies

        begin = t0_ns + self._lag_ns
        t1_ns = max(t1_ns, begin + 1)
        until_ns = monotonic_ns() + round(_LATE_S * 1e9) + 2 * self._lag_ns
        span = np.array([[begin, t1_ns]], dtype=np.float64)
        while True:
            sources, _, _ = self._sources()
            if sources and min(float(source.growth.t_ns[-1]) for source in sources) >= t1_ns:
                break
            if self._sampler is None or not self._sampler.alive():
                raise PowerLost("the process that reads the power sensors has ended")
            if monotonic_ns() > until_ns:
                if not sources:
                    raise PowerLost("the power sensors give no readings any more")
                break
            time.sleep(_LOOK_S)
        energy = sum_energies([energy_over(source, span) for source in sources])
        watts = energy.watts if energy.covered_s * 1e9 >= _READ * (t1_ns - begin) else None
        self._unread = self._unread + 1 if watts is None or watts <= 0 else 0
        if self._unread >= _MOST_UNREAD:
            raise PowerLost(f"the power sensors gave too few readings, or none above 0 W, in {_MOST_UNREAD} blocks")
        return watts if self._unread == 0 else None

    def close(self) -> None:
        """End the sampling process; its readings stay in the folder."""
        if self._sampler is not None:
            self._sampler.stop()
        with contextlib.suppress(OSError):
            self._writer.close("ok")

    def _first_readings(self, named: bool) -> tuple[list[PowerSource], str, bool]:
        """Wait for what gives power; not where no channel does, and the user has named none."""
        until_ns = monotonic_ns() + round(_FOUND_S * 1e9)
        while True:
            readings = self._sources()
            channels = RunReader(self._writer.path).channels
            awaited = named or any(channel.get("quantity") in ("power", "energy") for channel in channels)
            if readings[0] or not awaited or monotonic_ns() > until_ns:
                break
            time.sleep(_LOOK_S)
        if readings[0]:
            return readings
        why = readings[1] or "no power sensor and no meter gives readings here"
        raise UsageError(
            f"--for energy: {why}",
            "name a meter (--plug shelly=ADDRESS), or estimate power from utilisation (--power-model cpu=2W..15W); "
            "stepscope doctor lists the sensors",
        )

    def _sources(self) -> tuple[list[PowerSource], str, bool]:
        """Return what adds up to the power of the device, what that covers (or why there is none), and if estimated."""
        from stepscope.analysis.energy.rails import outermost, rail_tree

        tree = rail_tree(RunReader(self._writer.path))
        if tree.total:
            return [line.best for line in tree.total], tree.covers, False
        estimated = [line for line in tree.lines if line.estimated]
        names = ", ".join(line.component for line in outermost(estimated, tree.lines))
        return [line.best for line in outermost(estimated, tree.lines)], names or "; ".join(tree.notes), True
