"""Power of the whole device while blocks of steps run, as a sampling process beside the training reads it.

The mean of a block excludes its beginning: what a reading there shows lies before the block. Every block is as long
as the slowest of the sensors needs. The gain error of a sensor is the same on both sides of a pair.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Sequence
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
_FEWEST = 3  # readings of a gauge in a block
_FIRST = 8  # readings of each source that tell its pace, at the beginning
_FOUND_S, _LATE_S = 20.0, 5.0  # for those; until the end of a block is on the disk
_LOOK_S = 0.1
_LEAST_BLOCKS = 24  # that the time must hold
_MOST_UNREAD = 6  # blocks in a row
_LOST = ("sensor-lost", "channel-lost")
_HINT = (
    "name a meter (--plug shelly=ADDRESS), or estimate power from utilisation (--power-model cpu=2W..15W); "
    "stepscope doctor lists the sensors"
)


class PowerLost(CannotGoOn):
    """No power is read any more."""


class DevicePower:
    """Power of the whole device: `watts` of a block, each of which takes `block_s` at least.

    Raises UsageError where nothing reads it, with what was found instead.
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
        self.block_s = _LEAST_S
        try:
            self._sampler = start_sampler(self._writer.path, PERIOD_NS, root, metering=metering)
            sources, covers, is_estimated = self._first_readings(metering)
        except BaseException:
            self.close()
            shutil.rmtree(self._writer.path, ignore_errors=True)
            raise
        self._take_pace(sources)
        self._covers, self._model, self.estimated = covers or "the whole device", metering.power_model, is_estimated
        self._names = ", ".join(source.id for source in sources)

    @property
    def note(self) -> str:
        """Return what the power is of, and how it is read."""
        if self.estimated:
            return (
                f"Energy is estimated from utilisation ({self._model}), not measured: that one instruction takes more "
                "power than another is not seen."
            )
        return (
            f"Energy covers {self._covers}, idle power included; it is read from {self._names} in blocks of "
            f"{self.block_s:.2g} s or more. The gain error of a sensor is the same on both sides."
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

        begin_ns = t0_ns + self._lag_ns
        until_ns = monotonic_ns() + round(_LATE_S * 1e9) + 2 * self._lag_ns
        while True:
            sources, _, _ = self._sources()
            if sources and min(float(source.growth.t_ns[-1]) for source in sources) >= t1_ns:
                break
            if self._sampler is None or not self._sampler.alive():
                raise PowerLost("the process that reads the power sensors has ended")
            if monotonic_ns() > until_ns:
                if why := self._why_silent(sources, t0_ns):
                    raise PowerLost(why)
                break
            time.sleep(_LOOK_S)
        self._take_pace(sources)
        energy = sum_energies([energy_over(source, np.array([[begin_ns, t1_ns]], dtype=float)) for source in sources])
        is_read = energy.covered_s * 1e9 >= _READ * (t1_ns - begin_ns) and all(
            source.kind == "counter" or _readings_between(source, begin_ns, t1_ns) >= _FEWEST for source in sources
        )
        self._unread = 0 if is_read and (energy.watts or 0.0) > 0 else self._unread + 1
        if self._unread >= _MOST_UNREAD:
            raise PowerLost(f"the power sensors gave too few readings, or none above 0 W, in {_MOST_UNREAD} blocks")
        return None if self._unread else energy.watts

    def close(self) -> None:
        """End the sampling process; its readings stay in the folder."""
        if self._sampler is not None:
            self._sampler.stop()
        with contextlib.suppress(OSError):
            self._writer.close("ok")

    def _take_pace(self, sources: Sequence[PowerSource]) -> None:
        """Make blocks as long as the slowest source needs, by all that it has given so far."""
        slowest = max(sources, key=lambda source: source.shortest_window_ns)
        self._slowest = slowest.id
        self._lag_ns = max(round(_LEAST_LAG_S * 1e9), *(round(source.lag_ns) for source in sources))
        self.block_s = max(_LEAST_S, (self._lag_ns + _WINDOWS * slowest.shortest_window_ns) / 1e9)

    def _why_silent(self, sources: Sequence[PowerSource], since_ns: int) -> str:
        """Return what ended the readings of a source that has given none since then; "" where all have."""
        silent = [source.id for source in sources if float(source.growth.t_ns[-1]) < since_ns]
        if sources and not silent:
            return ""
        events = RunReader(self._writer.path).events
        lost = {event.get("kind"): str(event.get("message")) for event in events}
        gone = f"{', '.join(silent) or 'the power sensor'} gives no readings any more"
        return next((lost[kind] for kind in _LOST if kind in lost), gone)

    def _first_readings(self, metering: Metering) -> tuple[list[PowerSource], str, bool]:
        """Wait until the pace of each source is known; not where no channel gives power, and none was named."""
        until_ns = monotonic_ns() + round(_FOUND_S * 1e9)
        while True:
            readings = self._sources()
            run = RunReader(self._writer.path)
            ids = [str(channel["id"]) for channel in run.channels if channel.get("quantity") in ("power", "energy")]
            named = {meter.kind for meter in metering.meters}
            failed = [
                entry for entry in run.sampling.get("missing") or [] if entry.get("reason") not in (None, "absent")
                and any(kind in str(entry.get("sensor")) for kind in named)
            ]  # fmt: skip
            is_known = readings[0] and min(len(source.growth.t_ns) for source in readings[0]) >= _FIRST
            is_awaited = not failed and (ids or named or metering.power_model)
            if is_known or not is_awaited or monotonic_ns() > until_ns:
                break
            time.sleep(_LOOK_S)
        sources = readings[0]
        if sources and all(source.kind == "gauge" and source.read_w.max() <= 0 for source in sources):
            raise UsageError(f"--for energy: {', '.join(source.id for source in sources)} reads 0 W", _HINT)
        if sources:
            return readings
        if failed:
            raise UsageError(f"--for energy: {failed[0].get('detail')}", failed[0].get("remedy") or _HINT)
        implausible = f"{', '.join(ids)} gives no reading that can be true: W, above 0 and below 5,000" if ids else ""
        raise UsageError(
            f"--for energy: {readings[1] or implausible or 'nothing measures the power of this device'}", _HINT
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


def _readings_between(source: PowerSource, begin_ns: int, end_ns: int) -> int:
    return int(((source.growth.t_ns > begin_ns) & (source.growth.t_ns <= end_ns)).sum())
