"""What surrounds a training: other load, control groups with limits, and a system tree whose clock can fall.

A surrounding is entered before the process starts, `begin` is called when its training begins and `end` when that ends,
so that imports and the report do not suffer from it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SETTLED_S = 1.0  # of training until private memory has stopped to grow


class NotPossibleError(Exception):
    """This machine has no way to plant the cause; the text says why."""


@dataclass
class Surrounding:
    """Nothing: the process runs as it is. `prefix` is put before its command, `env` into its environment."""

    prefix: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def begin(self) -> None:
        """Plant the cause."""

    def end(self) -> None:
        """Take it away; also called where `begin` was not."""

    def took_hold(self) -> str | None:
        """Return why the cause was not really there, None where it was."""
        return None


@dataclass
class Load(Surrounding):
    """`processes` that compute without end beside the training, of the same priority."""

    processes: int = 1
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self) -> None:
        busy = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100000))"  # ends with us, however we end
        command = [sys.executable, "-S", "-c", busy]
        self._running = [subprocess.Popen(command) for _ in range(self.processes)]

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
        self._running = []


@dataclass(frozen=True)
class Group:
    """A control group below this process's own; `version` of the interface is 1 or 2."""

    path: Path
    version: int

    def read(self, name: str) -> str:
        return (self.path / name).read_text()

    def write(self, name: str, value: int | str) -> None:
        (self.path / name).write_text(f"{value}\n")

    def counted(self, name: str, key: str) -> int:
        """Return a number of a file of lines `key value`, 0 where it is not there."""
        pairs = (line.split() for line in self.read(name).splitlines())
        return next((int(pair[1]) for pair in pairs if pair[0] == key), 0)

    @property
    def joined(self) -> Sequence[str]:
        """Words before a command that then runs in the group."""
        return ("/bin/sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "join")


@contextlib.contextmanager
def group(controller: str) -> Iterator[Group]:
    """Make a control group in which a controller works; NotPossibleError where that is not allowed."""
    version, parent = _parent(controller)
    path = parent / f"planted-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        raise NotPossibleError(f"no control group can be made in {parent}: {error.strerror}") from None
    try:
        if version == 2 and controller not in (path / "cgroup.controllers").read_text().split():
            raise NotPossibleError(f"the controller {controller} is not enabled below {parent}")
        yield Group(path, version)
    finally:
        _remove(path)


def _parent(controller: str) -> tuple[int, Path]:
    """Return the version of the interface, and the group of this process."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mounted, kind, options = line.split()[:4]
        if kind == "cgroup" and controller in options.split(","):
            named = next((path for names, path in own.items() if controller in names.split(",")), "/")
            return 1, Path(mounted + named)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mounted, kind, _ = line.split()[:4]
        if kind == "cgroup2":
            return 2, Path(mounted + own.get("", "/"))
    raise NotPossibleError("control groups are not mounted")


def _remove(path: Path) -> None:
    """Remove a group once its last process is gone; after five seconds it is left to the system."""
    for _ in range(100):
        try:
            path.rmdir()
            return
        except OSError:
            time.sleep(0.05)


@dataclass
class Quota(Surrounding):
    """A control group that may use `cores` in each `period_us`."""

    of: Group | None = None
    cores: float = 1.0
    period_us: int = 100_000
    _throttled: int = 0

    def begin(self) -> None:
        assert self.of is not None
        quota = int(self.cores * self.period_us)
        if self.of.version == 2:
            self.of.write("cpu.weight", 10_000)  # only the quota holds it back, not what else runs
            self.of.write("cpu.max", f"{quota} {self.period_us}")
        else:
            self.of.write("cpu.shares", 100_000)
            self.of.write("cpu.cfs_period_us", self.period_us)
            self.of.write("cpu.cfs_quota_us", quota)

    def end(self) -> None:
        assert self.of is not None
        self._throttled = self.of.counted("cpu.stat", "nr_throttled")
        if self.of.version == 2:
            self.of.write("cpu.max", f"max {self.period_us}")
        else:
            self.of.write("cpu.cfs_quota_us", -1)

    def took_hold(self) -> str | None:
        return None if self._throttled > 3 else "the quota was never reached"


@dataclass
class LittleMemory(Surrounding):
    """A control group whose memory holds only a `part` of the files that the process has mapped.

    A limit below what is used makes the kernel reclaim: what has no swap to go to is read from its file again and
    again. With `hog`, the limit holds from a process that takes the rest.
    """

    of: Group | None = None
    files: Path = Path()
    part: float = 0.3
    hog: bool = False
    _running: subprocess.Popen[bytes] | None = None
    _faults: int = 0

    def begin(self) -> None:
        assert self.of is not None
        time.sleep(_SETTLED_S)
        mapped = sum(path.stat().st_size for path in self.files.glob("*.bin"))
        room = self.of.counted("memory.stat", self._name("total_rss", "anon")) + int(self.part * mapped) + (48 << 20)
        if self.hog:
            taken = 192 << 20
            code = f"import time; held = bytearray(b'x' * {taken}); time.sleep(1e6)"
            self._running = subprocess.Popen([*self.of.joined, sys.executable, "-S", "-c", code])
            room += taken + (16 << 20)
            time.sleep(0.3)
        for _ in range(20):  # EBUSY while pages that are in use cannot go yet
            with contextlib.suppress(OSError):
                self.of.write(self._name("memory.limit_in_bytes", "memory.high"), room)
                break
            time.sleep(0.05)

    def end(self) -> None:
        assert self.of is not None
        self._faults = self.of.counted("memory.stat", self._name("total_pgmajfault", "pgmajfault"))
        self.of.write(self._name("memory.limit_in_bytes", "memory.high"), self._name("-1", "max"))
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None

    def took_hold(self) -> str | None:
        return None if self._faults > 500 else f"only {self._faults} major page faults"

    def _name(self, first: str, second: str) -> str:
        """Return what version 1 or version 2 of the interface calls something."""
        return second if self.of is not None and self.of.version == 2 else first


def system_tree(folder: Path, max_khz: int, trip_degrees: float) -> Path:
    """Make a tree of this machine's /proc and /sys with a clock and a thermal zone that can be written.

    All else is a link to what is really there, so that `STEPSCOPE_ROOT` shows this machine with these sensors.
    """
    folder.mkdir(parents=True)
    (folder / "proc").symlink_to("/proc")
    cores = sorted(path.name for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*"))
    _linked(folder, "sys", {"devices", "class"})
    _linked(folder, "sys/devices", {"system"})
    _linked(folder, "sys/devices/system", {"cpu"})
    _linked(folder, "sys/devices/system/cpu", {"cpufreq", *cores})
    _linked(folder, "sys/class", {"thermal"})
    policy = folder / "sys/devices/system/cpu/cpufreq/policy0"
    numbers = " ".join(core.removeprefix("cpu") for core in cores)
    _written(
        policy,
        affected_cpus=numbers, related_cpus=numbers, scaling_cur_freq=max_khz, cpuinfo_cur_freq=max_khz,
        scaling_min_freq=max_khz // 6, scaling_max_freq=max_khz, cpuinfo_min_freq=max_khz // 6,
        cpuinfo_max_freq=max_khz, scaling_governor="performance", scaling_driver="acpi-cpufreq",
    )  # fmt: skip
    for core in cores:
        place = f"sys/devices/system/cpu/{core}"
        _linked(folder, place, {"cpufreq", "thermal_throttle"})
        (folder / place / "cpufreq").symlink_to(policy)
        _written(folder / place / "thermal_throttle", core_throttle_count=0, package_throttle_count=0)
    _written(
        folder / "sys/class/thermal/thermal_zone0",
        type="cpu-thermal", mode="enabled", temp=int((trip_degrees - 30) * 1000), trip_point_0_type="passive",
        trip_point_0_temp=int(trip_degrees * 1000),
    )  # fmt: skip
    return folder


def _linked(folder: Path, place: str, omitted: set[str]) -> None:
    """Make a folder of the tree whose entries link to the system's, but for some."""
    (folder / place).mkdir(exist_ok=True)
    for entry in (Path("/") / place).iterdir():
        if entry.name not in omitted:
            (folder / place / entry.name).symlink_to(entry)


def _written(folder: Path, **values: int | str) -> None:
    """Make a folder with a file for each value."""
    folder.mkdir(parents=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
