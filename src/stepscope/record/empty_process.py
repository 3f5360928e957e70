"""Memory of a training process that trains nothing: Python, torch, an optimizer, a step of a tiny network, imports.

It belongs to an environment: this build of torch, this Python, processor, allocator and number of threads, and what the
training imports. It is measured in a child process once for each (seconds) and kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.files import read_json_object, try_store_json, user_cache
from stepscope.record.c_allocators import child_environment

# Only what any training imports. A second fetch of the worker collects garbage, which writes to each object that it
# looks at: the most of its parent's pages that a worker makes its own.
_PROGRAM = """
import gc, importlib, json, re, sys
imports, threads = json.loads(sys.argv[1])
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(threads)
for name in imports:
    try:
        importlib.import_module(name)
    except BaseException:
        pass
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    optimizer.step()
def sizes(path, names):
    text = open(path).read()
    return [int(re.search(rf"^{name}:\\s+(\\d+) kB", text, re.M)[1]) * 1024 for name in names]
class Memory(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, number):
        if number:
            gc.collect()
        return torch.tensor(sum(sizes("/proc/self/smaps_rollup", ("Private_Clean", "Private_Dirty"))))
names = ("VmHWM", "RssAnon", "VmSize", "VmPeak", "VmData", "VmPTE")
found = dict(zip(("resident", "anonymous", "address_space", "address_space_peak", "data", "page_tables"),
                 sizes("/proc/self/status", names)))
try:
    found["worker"], found["worker_most"] = (int(each) for each in DataLoader(Memory(), num_workers=1))
except Exception:
    pass
print(json.dumps(found))
"""
_TIMEOUT_S = 180


@dataclass(frozen=True)
class EmptyProcess:
    """A process that trains nothing by the accounts of the kernel, B; `worker`: pages of its own of a DataLoader's
    worker, and after it collected garbage. None: not measured."""

    resident: int  # at its highest
    anonymous: int | None = None  # of it, without a file behind
    address_space: int | None = None  # at the end
    address_space_peak: int | None = None
    data: int | None = None  # private and writable
    page_tables: int | None = None
    worker: int | None = None
    worker_most: int | None = None


def empty_process(
    allocator: str = "default", threads: int = 1, imports: Iterable[str] = (), cache: Path | None = None
) -> EmptyProcess | None:
    """Return the cached figures, else measure them now (seconds); None where that is impossible."""
    return cached_empty_process(allocator, threads, imports, cache) or measure_empty_process(
        allocator, threads, imports, cache
    )


def cached_empty_process(
    allocator: str = "default", threads: int = 1, imports: Iterable[str] = (), cache: Path | None = None
) -> EmptyProcess | None:
    """Return the cached figures; None where they were not measured before."""
    return _figures_from_json(_cached(cache).get(_key(allocator, threads, imports)))


def measure_empty_process(
    allocator: str = "default", threads: int = 1, imports: Iterable[str] = (), cache: Path | None = None
) -> EmptyProcess | None:
    """Measure the figures now, and cache them."""
    names: Sequence[str] = sorted(imports)
    command = [sys.executable, "-c", _PROGRAM, json.dumps([names, threads])]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        ended = subprocess.run(
            command,
            env={**child_environment(allocator), "PYTHONPATH": path} if names else child_environment(allocator),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        figures = _figures_from_json(json.loads(ended.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    if figures is not None:
        _store(_key(allocator, threads, names), figures, cache)
    return figures


def write_empty_process_bytes(run: Path, says: Callable[[str], object] = lambda _: None) -> None:
    """Write it into a run that lacks it, measured now where it is not known (seconds): after the run, not beside it."""
    from stepscope.runfolder import RunWriter

    try:
        writer = RunWriter.attach(run)
    except (StepscopeError, OSError):  # the training has removed it: the report says so
        return
    malloc = writer.header.get("malloc") or {}
    if "name" not in malloc or malloc.get("empty_process_bytes") is not None:
        return
    says("measuring the memory of an empty training process: once per device, a few seconds")
    figures = empty_process(malloc["name"])
    if figures is None:
        says("it could not be measured: the peak of the process will not be split into parts")
    else:
        writer.update(malloc={**malloc, "empty_process_bytes": figures.resident})


def _figures_from_json(content: object) -> EmptyProcess | None:
    """Return the figures from JSON; None for a damaged file, or one of an older version."""
    if not isinstance(content, dict) or not all(isinstance(value, int) for value in content.values()):
        return None
    figures = {
        name: value for name, value in content.items() if name in EmptyProcess.__dataclass_fields__ and value > 0
    }
    return EmptyProcess(**figures) if "resident" in figures else None


def _cached(cache: Path | None) -> dict[str, Any]:
    with contextlib.suppress(RuntimeError):
        return read_json_object(_file(cache))
    return {}


def _store(key: str, figures: EmptyProcess, cache: Path | None) -> None:
    """Cache the figures; where that cannot be, the next run measures again."""
    entry = {name: value for name, value in asdict(figures).items() if value is not None}
    with contextlib.suppress(RuntimeError):
        try_store_json(_file(cache), {**_cached(cache), key: entry})


def installed_version(package: str) -> str | None:
    """The version of an installed package, not imported; its description is not parsed, which takes 7 ms."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        stated = re.search(r"^Version: *(\S+)", distribution(package).read_text("METADATA") or "", re.MULTILINE)
    except PackageNotFoundError:
        return None
    return None if stated is None else stated[1]


def _key(allocator: str, threads: int, imports: Iterable[str]) -> str:
    """The environment; wheels of one version for CUDA and for the CPU differ in the size of their library."""
    names = sorted(imports)
    versions = {name.partition(".")[0]: installed_version(name.partition(".")[0]) for name in names}
    more = f" imports {hashlib.sha256(json.dumps([names, versions]).encode()).hexdigest()[:12]}" if names else ""
    return (
        f"{allocator} torch {installed_version('torch') or 'unknown'} of {_build()} python {platform.python_version()} "
        f"{platform.machine()} {threads} threads{more}"
    )


def _build() -> str:
    """The library that is as large as the build: libtorch_cpu's size, B, and whether there is one for CUDA."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        folder = Path(str(distribution("torch").locate_file("torch/lib")))
        sizes = [library.stat().st_size for library in sorted(folder.glob("*torch_c*"))]
    except (PackageNotFoundError, OSError):
        return "unknown"
    return "+".join(map(str, sizes)) or "unknown"


def _file(cache: Path | None) -> Path:
    """Return the cache file below XDG_CACHE_HOME; RuntimeError without a home."""
    return (user_cache() if cache is None else cache / "stepscope") / "empty_process.json"
