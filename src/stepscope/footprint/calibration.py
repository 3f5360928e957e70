"""Knowledge of this device: its empty process, probes of single operators, and errors of earlier predictions."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope.analysis.memory.limits import UNMEASURED, BaselineMemory
from stepscope.errors import MissingDependency, OutputNotWritable, StepscopeError
from stepscope.files import read_json_object, replace_json, user_cache
from stepscope.footprint.script_memory import imports_of_script
from stepscope.record.c_allocators import child_environment
from stepscope.record.dry import Job
from stepscope.record.dry.dry_run import DryRunStopped, dry_run
from stepscope.record.dry.platform import this_platform
from stepscope.record.dry.probes import OpCallRecorder, probe_all
from stepscope.record.dry.workspaces import Probed, Workspaces
from stepscope.record.empty_process import EmptyProcess, empty_process

_VERSION = 2


@dataclass(frozen=True)
class DeviceCalibration:
    """All of it; `ratios` are measured over predicted process peaks, the newest last."""

    probed: dict[str, Probed] = field(default_factory=dict)
    environment: BaselineMemory = UNMEASURED
    ratios: tuple[float, ...] = ()
    imports_known: bool = True  # whether all that the program imports is in the environment

    def widened_by_errors(self, low: int, high: int) -> tuple[int, int]:
        """An interval of live bytes that also holds what probes showed: it grows, and never becomes narrower."""
        if not self.ratios:
            return low, high
        return round(low * min(1.0, *self.ratios)), round(high * max(1.0, *self.ratios))


def calibration_path() -> Path | None:
    """The file of this device and this torch below the user's cache folder; None without a home folder.

    The empty process has one of its own.
    """
    import torch

    name = f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}-torch{torch.__version__}"
    try:
        return user_cache() / "fit" / f"{name}-{torch.get_num_threads()}threads.json"
    except RuntimeError:
        return None


def load_calibration(path: Path | None) -> DeviceCalibration:
    """Return what is known; nothing where nothing was stored, or where it cannot be read."""
    content = {} if path is None else read_json_object(path)
    try:
        if content["version"] != _VERSION:
            return DeviceCalibration()
        return DeviceCalibration(
            {name: Probed(*values) for name, values in content["probed"].items()},
            ratios=tuple(float(ratio) for ratio in content["ratios"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return DeviceCalibration()


def save_calibration(calibration: DeviceCalibration, path: Path | None) -> None:
    """Keep it for later answers; OutputNotWritable where that cannot be."""
    if path is None:
        raise OutputNotWritable("there is no home folder to keep what was learnt", "set XDG_CACHE_HOME to a folder")
    content: dict[str, Any] = {
        "version": _VERSION,
        "probed": {name: (probed.fixed, probed.per_sample) for name, probed in calibration.probed.items()},
        "ratios": calibration.ratios,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, content)
    except OSError as error:
        raise OutputNotWritable(f"cannot keep what was learnt in '{path}': {error.strerror}") from error


_SAMPLES = 13  # a batch that no layer has as its number of channels, so that it is known again in shapes
_SPREAD = 0.01  # of the measured empty process, from run to run
_ARENAS = 64 << 20  # B of addresses that glibc takes for a thread's heap, used or not


def measured_environment(allocator: str = "default", imports: Iterable[str] = ()) -> BaselineMemory:
    """Return what a process of this machine takes before its first tensor; measured once (seconds), then kept.

    UNMEASURED where it cannot be measured. imports: modules that the training needs beside torch.
    """
    import torch

    threads = torch.get_num_threads()
    process = empty_process(allocator if is_allocator_installed(allocator) else "default", threads, imports)
    return UNMEASURED if process is None else baseline_of_process(process, threads)


def is_allocator_installed(allocator: str) -> bool:
    """Return whether a process can be started with it."""
    try:
        child_environment(allocator)
    except MissingDependency:
        return False
    return True


def baseline_of_process(process: EmptyProcess, threads: int) -> BaselineMemory:
    """Return what a measured process says of the next one like it, by account."""

    def spread(low: int, high: int) -> tuple[int, int]:
        return round(low * (1 - _SPREAD)), round(high * (1 + _SPREAD))

    anonymous, tables = process.anonymous or 0, process.page_tables or 0
    addresses = process.address_space or UNMEASURED.addresses[0]
    most = process.address_space_peak or UNMEASURED.addresses[1]
    return BaselineMemory(
        spread(process.resident, process.resident),
        spread(anonymous, process.resident + tables),
        spread(addresses, most + threads * _ARENAS),
        spread(process.data or UNMEASURED.data[0], (process.data or UNMEASURED.data[1]) + threads * _ARENAS),
        spread(process.worker or UNMEASURED.worker[0], process.worker_most or UNMEASURED.worker[1]),
    )


def import_names_of_layers(model: Any) -> frozenset[str]:
    """Modules that the classes of a model's layers come from, beside torch and this package."""
    names = {type(module).__module__ for module in model.modules()}
    return frozenset(name for name in names if name.partition(".")[0] not in _NO_IMPORTS)


def imports_of_home(module: str | None) -> frozenset[str] | None:
    """Modules that the file of a user's module imports beside torch; None where it has no file, as a notebook's."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if module is None or module.partition(".")[0] in ("torch", "stepscope"):
        return frozenset()
    return None if file is None else imports_of_script(Path(file))


_NO_IMPORTS = ("torch", "stepscope", "__main__", "builtins")


def add_probed_ops(
    calibration: DeviceCalibration, job: Job, progress: Callable[[int, int], None] = lambda number, of: None
) -> DeviceCalibration:
    """Return what was stored, with the ops of this job as they are on this device."""
    book = OpCallRecorder(Workspaces(this_platform()), _SAMPLES)
    try:
        dry_run(job, _SAMPLES, book, steps=1)
    except DryRunStopped as stop:
        text = f"--calibrate: no dry run shows the operators of {job.name}: {stop}"
        raise StepscopeError(text, "leave --calibrate out: it is measured") from stop
    return replace(calibration, probed={**calibration.probed, **probe_all(book.calls, progress)})
