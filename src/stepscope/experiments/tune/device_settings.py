"""Settings of the whole device, files of the kernel and limits of NVIDIA cards: what there is, and who changes them.

A process of its own writes them and puts them back: as it is told, and when whoever started it is gone, killed or not.
Run as `python -m stepscope.experiments.tune.device_settings`.
"""

from __future__ import annotations

import contextlib
import csv
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
_CARD = "nvidia-smi -i "  # stands for a path: the power limit of a card, whose driver has no file for it
_ANSWER_S = 20.0  # at most, of nvidia-smi

Writes = Mapping[str, str]


def settings_found(root: Path, *, asks_driver: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Return the files of each kind of setting below the top of a file system: path, value now, values to try.

    Kinds: cpu-clock (kHz), gpu-clock (Hz), power-limit (uW), gpu-power-limit (W, of NVIDIA cards: where their driver
    may be asked), governor. values: by share of the present limit, %, and of the governor by name. writable: whether
    this user may write it.
    """
    cpus = _paths(root, _CPU)
    gpus = [path for path in _paths(root, "sys/class/devfreq/*") if any(name in path.name for name in _GPU_NAMES)]
    limits = [path for pattern in _LIMITS for path in _paths(root, pattern)]
    names = ("scaling_max_freq", "scaling_min_freq", "scaling_available_frequencies")
    kinds = {
        "cpu-clock": [_limit(*(cpu / name for name in names)) for cpu in cpus],
        "gpu-clock": [_limit(gpu / "max_freq", gpu / "min_freq", gpu / "available_frequencies") for gpu in gpus],
        "power-limit": [_limit(path, path.with_name("power1_cap_min")) for path in limits],
        "gpu-power-limit": _card_limits() if asks_driver else [],
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


def _card_limits() -> list[dict[str, Any] | None]:
    """Return a row for each card whose limit the driver states, in W."""
    try:
        text = _ask_driver("nvidia-smi", "--query-gpu=index,power.limit,power.min_limit")
        rows = [(int(card), float(now), float(least)) for card, now, least in csv.reader(text.splitlines())]
    except (OSError, ValueError, subprocess.SubprocessError):  # no such program, or a board that has no limit
        return []
    return [
        {
            "path": f"{_CARD}{card}", "now": f"{now:.2f}", "writable": os.geteuid() == 0,
            "values": {str(share): str(int(now * share / 100)) for share in SHARES if now * share / 100 - 1 >= least},
        }
        for card, now, least in rows
    ]  # fmt: skip


def _ask_driver(*command: str) -> str:
    """Return the CSV that nvidia-smi answers a query with."""
    form = "--format=csv,noheader,nounits"
    done = subprocess.run([*command, form], capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    return done.stdout.strip()


def command_line(path: str, value: str) -> str:
    """Return the line for a shell that makes a setting until the next start of the device."""
    return f"sudo {path} -pl {value}" if path.startswith(_CARD) else f"echo {value} | sudo tee {path}"


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
        self.found, self.allowed = settings_found(Path(root or "/"), asks_driver=allowed and root is None), allowed
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
            except (OSError, ValueError, subprocess.SubprocessError) as error:
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
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                why = str(error)
    return why


def _text(path: str) -> str:
    if path.startswith(_CARD):
        return _ask_driver(*path.split(), "--query-gpu=power.limit")
    return Path(path).read_text(encoding="ascii").strip()


def _write(path: str, value: str) -> None:
    """Write a value; ValueError where the kernel took another one: of a number it may take the nearest that it has."""
    if path.startswith(_CARD):
        command = [*path.split(), "-pl", value]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
        if done.returncode:
            raise ValueError(f"{' '.join(command)}: {(done.stdout + done.stderr).strip() or 'it failed'}")
    else:
        Path(path).write_text(value, encoding="ascii")
    read_back = _text(path)
    if read_back != value and not _is_near(read_back, value):
        raise ValueError(f"{path} reads {read_back} after {value} was written")


def _is_near(read_back: str, value: str) -> bool:
    try:
        return abs(float(read_back) - float(value)) <= _NEAR * float(value)
    except ValueError:  # the name of a governor
        return False


def main() -> None:
    """Obey what comes through stdin until it ends; no signal but SIGKILL ends it before that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        obey(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
