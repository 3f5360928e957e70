"""Settings of the whole device that are files of the kernel: what there is, and the process that changes them.

A process of its own writes them and puts them back: as it is told, and when whoever started it is gone, killed or not.
Run as `python -m stepscope.experiments.tune.device_settings`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import stepscope
from stepscope.errors import UsageError

SHARES = (75, 50)  # of the present limit, %
_CPU = "sys/devices/system/cpu/cpufreq/policy*"
_GPU_NAMES = ("gpu", "gv11b", "gp10b", "ga10b", "gb10b", "mali")  # of Jetson, and of boards with Mali
_LIMITS = ("sys/class/powercap/intel-rapl:*/constraint_0_power_limit_uw", "sys/class/hwmon/hwmon*/power1_cap")
_NEAR = 0.05  # of a value: what the kernel may round it by

Writes = Mapping[str, str]


def settings_found(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the files of each kind of setting below the top of a file system: path, value now, values to try.

    Kinds: cpu-clock (kHz), gpu-clock (Hz), power-limit (uW), governor. values: by share of the present limit, %, and of
    the governor by name. writable: whether this user may write it.
    """
    cpus = _paths(root, _CPU)
    gpus = [path for path in _paths(root, "sys/class/devfreq/*") if any(name in path.name for name in _GPU_NAMES)]
    limits = [path for pattern in _LIMITS for path in _paths(root, pattern)]
    names = ("scaling_max_freq", "scaling_min_freq", "scaling_available_frequencies")
    kinds = {
        "cpu-clock": [_limit(*(cpu / name for name in names)) for cpu in cpus],
        "gpu-clock": [_limit(gpu / "max_freq", gpu / "min_freq", gpu / "available_frequencies") for gpu in gpus],
        "power-limit": [_limit(path, path.with_name("power1_cap_min")) for path in limits],
        "governor": [_governor(cpu) for cpu in cpus],
    }
    return {kind: [row for row in rows if row is not None] for kind, rows in kinds.items()}


def _paths(root: Path, pattern: str) -> list[Path]:
    return sorted(root.glob(pattern))


def _limit(path: Path, least: Path, available: Path | None = None) -> dict[str, Any] | None:
    """Return the row of a file that holds a limit; shares are rounded down to what is available."""
    now = _whole_number(path)
    if not now:
        return None
    lowest, listed = _whole_number(least) or 0, [] if available is None else _whole_numbers(available)
    values = {}
    for share in SHARES:
        target = now * share // 100
        value = max((other for other in listed if other <= target), default=0) if listed else target
        if lowest <= value < now and value:
            values[str(share)] = str(value)
    return {"path": str(path), "now": str(now), "values": values, "writable": os.access(path, os.W_OK)}


def _governor(policy: Path) -> dict[str, Any] | None:
    path, names = policy / "scaling_governor", _read(policy / "scaling_available_governors").split()
    now = _read(path)
    if not now:
        return None
    return {"path": str(path), "now": now, "values": {name: name for name in names if name != now},
            "writable": os.access(path, os.W_OK)}  # fmt: skip


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _whole_numbers(path: Path) -> list[int]:
    return [int(word) for word in _read(path).split() if word.isdecimal()]


def _whole_number(path: Path) -> int | None:
    return next(iter(_whole_numbers(path)), None)


class DeviceSettings:
    """Settings of the device that can be changed, and the process that does it, where allowed; a context manager."""

    def __init__(self, root: str | None = None, *, allowed: bool = False) -> None:
        self.found, self.allowed = settings_found(Path(root or "/")), allowed
        self._process: subprocess.Popen[str] | None = None

    @contextlib.contextmanager
    def changed(self, writes: Writes) -> Iterator[None]:
        """Write these values, by path, and put back what was there. UsageError where the kernel does not take one."""
        if not writes:
            yield
            return
        self._tell({"set": dict(writes)})
        try:
            yield
        finally:
            self._tell({"restore": list(writes)})

    def __enter__(self) -> DeviceSettings:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, which puts back what is not yet as it was."""
        if self._process is not None:
            assert self._process.stdin is not None
            with self._process, contextlib.suppress(OSError):
                self._process.stdin.close()

    def _tell(self, order: Mapping[str, Any]) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                cwd=Path(stepscope.__file__).parent.parent,  # the user's signal.py must not become ours
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        why = json.loads(answer)["failed"] if answer else "the process that changes it has ended"
        if why:
            raise UsageError(f"a setting of the device could not be changed: {why}", "take it out with --not")


def obey(orders: IO[str], answers: IO[str]) -> None:
    """Write and put back as told, line by line; at the end put back all that is not as it was."""
    before: dict[str, str] = {}
    try:
        for line in orders:
            order, why = json.loads(line), ""
            try:
                for path, value in order.get("set", {}).items():
                    before.setdefault(path, _text(path))
                    _write(path, value)
            except (OSError, ValueError) as error:
                why, order = str(error), {"restore": list(order["set"])}
            not_put_back = _put_back(before, order.get("restore", ()))
            answers.write(json.dumps({"failed": why or not_put_back}) + "\n")
            answers.flush()
    finally:
        _put_back(before, list(before))


def _put_back(before: dict[str, str], paths: Any) -> str:
    """Write back what was there before; return why one could not be, "" where all could."""
    why = ""
    for path in paths:
        if path in before:
            try:
                _write(path, before[path])
                del before[path]
            except (OSError, ValueError) as error:
                why = str(error)
    return why


def _text(path: str) -> str:
    return Path(path).read_text(encoding="ascii").strip()


def _write(path: str, value: str) -> None:
    """Write a value; ValueError where the kernel took another one: of a number it may take the nearest that it has."""
    Path(path).write_text(value, encoding="ascii")
    read_back = _text(path)
    near = value.isdecimal() and read_back.isdecimal() and abs(int(read_back) - int(value)) <= _NEAR * int(value)
    if read_back != value and not near:
        raise ValueError(f"{path} reads {read_back} after {value} was written")


def main() -> None:
    """Obey what comes through stdin until it ends; no signal but SIGKILL ends it before that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        obey(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
