"""Knowledge of this device: probes of single operators, the empty process, and errors of earlier predictions."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope.errors import OutputNotWritable, StepscopeError
from stepscope.files import replace_json
from stepscope.record.dry.dry_run import dry_run
from stepscope.record.dry.job import Job
from stepscope.record.dry.probes import CallBook, probe_all
from stepscope.record.dry.workspaces import Probed, Workspaces, this_platform
from stepscope.record.empty_process import measure_empty_process_bytes

_VERSION = 1


@dataclass(frozen=True)
class DeviceCalibration:
    """All of it; `ratios` are measured over predicted process peaks, the newest last."""

    probed: dict[str, Probed] = field(default_factory=dict)
    empty_process: tuple[int, int] | None = None
    ratios: tuple[float, ...] = ()

    def corrected(self, low: int, high: int) -> tuple[int, int]:
        """An interval of live bytes that also holds what probes showed: it grows, and never becomes narrower."""
        if not self.ratios:
            return low, high
        return round(low * min(1.0, *self.ratios)), round(high * max(1.0, *self.ratios))


def calibration_path(home: Path | None = None) -> Path:
    """The file of this device and this torch below the user's cache folder."""
    import torch

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") if home is None else home
    name = f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}-torch{torch.__version__}"
    return cache / "stepscope" / "fit" / f"{name}-{torch.get_num_threads()}threads.json"


def load_calibration(path: Path) -> DeviceCalibration:
    """Return what is known; nothing where nothing was stored, or where it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            return DeviceCalibration()
        empty = content["empty_process"]
        return DeviceCalibration(
            {name: Probed(*values) for name, values in content["probed"].items()},
            None if empty is None else (int(empty[0]), int(empty[1])),
            tuple(float(ratio) for ratio in content["ratios"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return DeviceCalibration()


def save_calibration(kept: DeviceCalibration, path: Path) -> None:
    """Keep it for later answers."""
    content: dict[str, Any] = {
        "version": _VERSION,
        "probed": {name: (probed.fixed, probed.per_sample) for name, probed in kept.probed.items()},
        "empty_process": kept.empty_process,
        "ratios": kept.ratios,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, content)
    except OSError as error:
        raise OutputNotWritable(f"cannot keep what was learnt in '{path}': {error.strerror}") from error


_SAMPLES = 13  # a batch that no layer has as its number of channels, so that it is known again in shapes
SPREAD = 0.01  # of the measured empty process, from run to run


def measure_calibration(
    kept: DeviceCalibration, job: Job, progress: Callable[[int, int], None] = lambda done, of: None
) -> DeviceCalibration:
    """Return what was stored, with the ops of this job and the empty process as they are on this device."""
    book = CallBook(Workspaces(this_platform()), _SAMPLES)
    dry_run(job, _SAMPLES, book, steps=1)
    probed = probe_all(book.calls, progress)
    size = measure_empty_process_bytes()
    if size is None:
        raise StepscopeError("the empty training process could not be measured", "run it without --calibrate")
    return replace(
        kept, probed={**kept.probed, **probed}, empty_process=(round(size * (1 - SPREAD)), round(size * (1 + SPREAD)))
    )
