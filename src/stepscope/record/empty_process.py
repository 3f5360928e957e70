"""Memory of a training process that trains nothing: Python, torch, an optimizer, one step of a tiny network."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from stepscope.files import replace_json
from stepscope.record.allocators import child_environment

_PROGRAM = """
import json, torch
from stepscope.record.dry.allocator_costs import measured_steps, report
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    optimizer.step()
print(report(measured_steps(step, 1)))
"""
_TIMEOUT_S = 180


def empty_process_bytes(allocator: str = "default", cache: Path | None = None) -> int | None:
    """Peak resident memory, B: as kept, else measured now (seconds); None where it cannot be measured."""
    kept = cached_empty_process_bytes(allocator, cache)
    return measure_empty_process_bytes(allocator, cache) if kept is None else kept


def cached_empty_process_bytes(allocator: str = "default", cache: Path | None = None) -> int | None:
    """The same where an earlier run measured it."""
    value = _cached(cache).get(_key(allocator))
    return value if isinstance(value, int) and value > 0 else None


def measure_empty_process_bytes(allocator: str = "default", cache: Path | None = None) -> int | None:
    """The same measured now, and kept."""
    command = [sys.executable, "-c", _PROGRAM]
    try:
        ended = subprocess.run(
            command,
            env=child_environment(allocator),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        peak = int(json.loads(ended.stdout.splitlines()[-1])["peak_bytes"])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, KeyError):
        return None
    _store(allocator, peak, cache)
    return peak


def write_empty_process_bytes(run: Path, says: Callable[[str], object] = lambda said: None) -> None:
    """Write it into a run that lacks it, measured now where it is not known (seconds): after the run, not beside it."""
    from stepscope.runfolder import RunReader, RunWriter

    meta = RunReader(run).meta
    malloc = meta.get("malloc") or {}
    if "name" not in malloc or malloc.get("empty_process_bytes") is not None:
        return
    says("once for this device: the memory of an empty training process (seconds)")
    size = empty_process_bytes(malloc["name"])
    if size is None:
        says("it could not be measured; the process's peak will not be taken apart")
    else:
        RunWriter(run, meta).update(malloc={**malloc, "empty_process_bytes": size})


def _cached(cache: Path | None) -> dict[str, object]:
    try:
        known = json.loads(_file(cache).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return known if isinstance(known, dict) else {}


def _store(allocator: str, peak: int, cache: Path | None) -> None:
    """A cache that cannot be written costs the next run some seconds, and nothing else."""
    try:
        path = _file(cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, {**_cached(cache), _key(allocator): peak})
    except (OSError, RuntimeError):
        return


def installed_version(package: str) -> str | None:
    """The version of an installed package, not imported; its description is not parsed, which takes 7 ms."""
    try:
        stated = re.search(r"^Version: *(\S+)", distribution(package).read_text("METADATA") or "", re.MULTILINE)
    except PackageNotFoundError:
        return None
    return None if stated is None else stated[1]


def _key(allocator: str) -> str:
    torch = installed_version("torch") or "unknown"
    return f"{allocator} torch {torch} python {platform.python_version()} {platform.machine()}"


def _file(cache: Path | None) -> Path:
    """Below XDG_CACHE_HOME (freedesktop.org base directories); RuntimeError without a home."""
    if cache is None:
        stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
        cache = stated if stated.is_absolute() else Path.home() / ".cache"
    return cache / "stepscope" / "empty_process.json"
