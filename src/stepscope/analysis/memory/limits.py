"""From live bytes to a verdict: allocator, empty process, and the memory that a device leaves for training.

All sizes in B. Factors are measured with glibc 2.36 and torch 2.13 on x86 (100 trainings, clean processes); docs on
memory say how. The process of an empty training (Python, torch, an optimizer, one tiny step) is a part of its own.

A limit is kept by somebody, who counts in his own way: the RAM of a board and what is available hold resident memory; a
control group is charged for pages without a file behind them, and for pages of files that it read first, which the
kernel drops before it kills; RLIMIT_AS (`ulimit -v`) counts addresses, used or not; RLIMIT_DATA private writable ones.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.analysis.device import all_boards
from stepscope.analysis.device.contract import Board
from stepscope.errors import UnknownName, UsageError
from stepscope.request import parse_amount

RESIDENT, CHARGED, ADDRESSES, DATA = "resident", "cgroup", "address-space", "data"
ACCOUNTS = {
    RESIDENT: "resident memory",
    CHARGED: "memory charged to the control group",
    ADDRESSES: "address space",
    DATA: "private writable memory",
}
PAGED_IN = (6_000_000, 30_000_000)  # code and primitives that the first real step brings in, whatever the model
ALWAYS_MAPPED = 32 << 20  # glibc maps larger blocks one by one and gives them back at once (DEFAULT_MMAP_THRESHOLD_MAX)
UNSETTLED, SETTLED = 400_000_000, 1_200_000_000  # B in glibc's heap, between which it wastes a smaller share
LITTLE_WASTE, HOLES_OF_LARGEST = 1.1, 4  # a heap of few large blocks: rounding, and holes of the size of the largest
_NO_MEMORY = 1_000_000  # B; a bare number below it is one of which the unit was forgotten
MARGIN = 0.01  # of the limit: a yes keeps this much away from it
_SHORT = {"rpi": "raspberry_pi", "pi": "raspberry_pi", "raspi": "raspberry_pi"}


@dataclass(frozen=True)
class BaselineMemory:
    """Memory of a process before its first tensor, by who counts it, and a worker of a DataLoader: least, most, B.

    Where it was not measured (another machine, another build of torch) the ends lie far apart, and a yes is "likely".
    """

    resident: tuple[int, int]
    charged: tuple[int, int]
    addresses: tuple[int, int]
    data: tuple[int, int]
    worker: tuple[int, int]  # pages of its own: as it starts, and once it has collected garbage
    measured: bool = True

    def of(self, account: str) -> tuple[int, int]:
        """Return the memory as this account counts it, B (least, most); UnknownName suggests the nearest."""
        by_account = {RESIDENT: self.resident, CHARGED: self.charged, ADDRESSES: self.addresses, DATA: self.data}
        if account not in by_account:
            raise UnknownName("account", account, ACCOUNTS)
        return by_account[account]


# Builds for the CPU took 225 to 337 MB, one for CUDA 734 (x86, torch 2.13 and 2.14); NVIDIA's for Jetson were not seen.
_BUILDS = (200_000_000, 900_000_000)
UNMEASURED = BaselineMemory(
    _BUILDS, (140_000_000, _BUILDS[1]), (600_000_000, 12_000_000_000), (250_000_000, 2_000_000_000),
    (5_000_000, 200_000_000), measured=False,
)  # fmt: skip


@dataclass(frozen=True)
class Allocator:
    """Resident memory for each live byte: in blocks that glibc keeps in its heap, and in those it maps."""

    name: str
    low: float
    high: float
    high_of_much: float  # where SETTLED or more lie in its heap: holes are reused
    mapped_high: float  # of blocks above ALWAYS_MAPPED
    high_recomputed: float  # where forward runs again in backward: kept inputs lie between what comes and goes
    holes: int  # B at most in its heap whatever the model; 0: no heap that keeps pages
    time: tuple[float, float]  # CPU time of a step against the default
    how: str
    high_of_scripts: float = 0.0  # where sizes change from step to step, or models take turns; 0: as `high`

    def for_script(self) -> Allocator:
        """Return the allocator for a whole script, whose steps need not be alike."""
        return replace(self, high=max(self.high, self.high_of_scripts))

    def resident(
        self, live: tuple[int, int], mapped: int, largest: int = 0, mark: tuple[int, int] = (0, 0)
    ) -> tuple[int, int]:
        """Resident bytes, least and most, of live bytes of which so many lie in large blocks.

        `largest`: of the blocks that come and go in the heap. Where they make up most of it, holes are as large.
        `mark`: bytes in the heap at their highest, and the large blocks that came then or later: of the heap nothing
        need be given back before.
        """
        small = (max(0, live[0] - mapped), max(0, live[1] - mapped))
        most = self._heap(small[1], largest) + min(mapped, live[1]) * self.mapped_high
        if self.holes:
            most = max(most, self._heap(mark[0], largest) + mark[1] * self.mapped_high)
        least = small[0] * self.low + min(mapped, live[0])
        return round(least), round(max(least, most)) + self.holes

    def _heap(self, live: int, largest: int) -> float:
        """Return the most that glibc's heap takes for so many live bytes in it; for more bytes it is no less."""
        slope = (self.high - self.high_of_much) / (SETTLED - UNSETTLED)
        turns = (self.high / slope + UNSETTLED) / 2 if slope > 0 else SETTLED
        sizes = (live, min(live, max(UNSETTLED, min(SETTLED, turns))))
        heap = max(size * (self.high - slope * (min(max(size, UNSETTLED), SETTLED) - UNSETTLED)) for size in sizes)
        return max(heap, live * LITTLE_WASTE + HOLES_OF_LARGEST * largest) if self.holes else heap


_DEFAULT = Allocator(
    name="default", low=1.12, high=1.60, high_of_much=1.40, mapped_high=1.10, high_recomputed=2.2, holes=8_000_000,
    time=(1.0, 1.0), how="glibc as it comes", high_of_scripts=2.5,
)  # fmt: skip
_PINNED = Allocator(
    name="pinned", low=0.995, high=1.005, high_of_much=1.005, mapped_high=1.005, high_recomputed=1.005, holes=0,
    time=(1.09, 2.1), how="GLIBC_TUNABLES=glibc.malloc.mmap_threshold=65536",
)  # fmt: skip
_TCMALLOC = Allocator(
    name="tcmalloc", low=0.98, high=1.20, high_of_much=1.15, mapped_high=1.05, high_recomputed=1.20, holes=4_000_000,
    time=(0.8, 1.0), how="LD_PRELOAD=libtcmalloc_minimal.so.4",
)  # fmt: skip
ALLOCATORS = {allocator.name: allocator for allocator in (_DEFAULT, _PINNED, _TCMALLOC)}


@dataclass(frozen=True)
class Limit:
    """The memory that one training process may take, and where the number comes from."""

    bytes: int
    source: str
    device_bytes: int | None = None
    os_bytes: int | None = None
    account: str = RESIDENT  # who counts: a key of ACCOUNTS
    beside: tuple[Limit, ...] = ()  # that are kept too, by others

    @property
    def all(self) -> tuple[Limit, ...]:
        """Return this limit and those beside it."""
        return (self, *self.beside)


@dataclass(frozen=True)
class ProcessPeak:
    """Peak of the whole process, and of those that it starts: its parts as intervals that add up."""

    live: tuple[int, int]
    allocator: tuple[int, int]  # beyond the live bytes
    empty_process: tuple[int, int]
    code: tuple[int, int]  # of kernels, and oneDNN's primitives, beyond the empty process
    data: tuple[int, int] = (0, 0)  # arrays that are no tensors: of numpy, and bytes
    workers: tuple[int, int] = (0, 0)  # of data loaders, with the batches that wait in shared memory

    @property
    def low(self) -> int:
        """The least it will be."""
        return sum(part[0] for part in self._parts())

    @property
    def high(self) -> int:
        """The most it will be."""
        return sum(part[1] for part in self._parts())

    def _parts(self) -> tuple[tuple[int, int], ...]:
        return self.live, self.allocator, self.empty_process, self.code, self.data, self.workers

    @property
    def middle(self) -> int:
        """Half way between."""
        return (self.low + self.high) // 2


def process_peak(
    live: tuple[int, int],
    mapped: int,
    allocator: Allocator,
    empty: tuple[int, int] = UNMEASURED.resident,
    code: tuple[int, int] = PAGED_IN,
    largest: int = 0,
    mark: tuple[int, int] = (0, 0),
) -> ProcessPeak:
    """Return the process peak from live bytes; `mapped`: above ALWAYS_MAPPED; `largest`: of blocks that come and go.

    mark: as Allocator.resident takes it.
    """
    low, high = allocator.resident(live, mapped, largest, mark)
    return ProcessPeak(live, (low - live[0], high - live[1]), empty, code)


FITS, LIKELY_FITS, TOO_CLOSE, NO_FIT = VERDICTS = ("fits", "likely fits", "too close", "does not fit")


def fit_verdict(peak: ProcessPeak, limit: Limit, sure: bool = True) -> str:
    """One of VERDICTS. `sure`: the environment was measured and the whole program followed; else a yes is likely."""
    if peak.high <= limit.bytes * (1 - MARGIN):
        return FITS if sure else LIKELY_FITS
    return NO_FIT if peak.low > limit.bytes else TOO_CLOSE


def worst_verdict(peak: Callable[[str], ProcessPeak], limit: Limit, sure: bool = True) -> tuple[str, Limit]:
    """The verdict under a limit and those beside it, and the one that decides: the worst, then the nearest.

    peak: of the process by an account.
    """

    def rank(single: Limit) -> tuple[int, float]:
        predicted = peak(single.account)
        return VERDICTS.index(fit_verdict(predicted, single, sure)), predicted.high / single.bytes

    decides = max(limit.all, key=rank)
    return fit_verdict(peak(decides.account), decides, sure), decides


def allocator_of(name: str) -> Allocator:
    """Return the allocator of this name; UnknownName suggests the nearest."""
    if name not in ALLOCATORS:
        raise UnknownName("allocator", name, ALLOCATORS)
    return ALLOCATORS[name]


def parse_size(size: float | str) -> int:
    """Bytes of 8e9, "8GB", "7.5 GiB" or "512M"; decimal unless it says "i"."""
    amount = parse_amount("--memory", size, "B") if isinstance(size, str) else size
    if not 0 < amount < math.inf:
        raise UsageError(f"--memory {size}: not an amount of memory", "for example --memory 8GB, 512MB or 7.5GiB")
    return round(amount)


def limit_of_memory(text: float | str, account: str = RESIDENT) -> Limit:
    """The process may take this much, as the user says, by an account of ACCOUNTS."""
    if account not in ACCOUNTS:
        raise UnknownName("account", account, ACCOUNTS)
    if str(text).strip().replace(".", "", 1).isdecimal() and float(text) < _NO_MEMORY:
        raise UsageError(f"--memory {text}: {text} bytes hold no training", f"did you mean --memory {text}GB?")
    sentence = "" if account == RESIDENT else f", {ACCOUNTS[account]}"
    return Limit(parse_size(text), f"as given: {text}{sentence}", account=account)


def limit_of_board(name: str, memory: float | str | None = None) -> Limit:
    """Return the memory that a board leaves beside its system, B: its first size that is sold, or the one given."""
    board = board_named(name)
    if not board.memory_bytes and memory is None:
        raise UsageError(f"how much memory '{board.title}' has is not known", "give it with --memory")
    total = board.memory_bytes[0] if memory is None else parse_size(memory)
    system_bytes = board.os_keeps_bytes or 0
    text = "" if board.os_keeps_bytes else "; what its system keeps is not known and counts as nothing"
    if system_bytes >= total:
        raise UsageError(
            f"the system of '{board.title}' alone keeps {system_bytes} B", "give the size of the board with --memory"
        )
    return Limit(total - system_bytes, f"{board.title}{text}", total, system_bytes)


def limit_of_this_machine(root: Path = Path("/"), rlimits: Mapping[str, int] | None = None) -> Limit:
    """Return the memory that is available here now, B, with what control groups and resource limits leave beside it.

    `root`: of the file system. `rlimits`: of ADDRESSES and DATA where they are limited; None asks this process.
    The least is first.
    """
    available = _meminfo(root, "MemAvailable")
    total = _meminfo(root, "MemTotal")
    if available is None:
        raise UsageError("this machine does not say how much memory is available", "give it with --memory")
    limits = [Limit(available, "available on this machine now", total, None if total is None else total - available)]
    limits += [Limit(free, "this process's control group, now", total, None, CHARGED) for free in _control_groups(root)]
    for account, size in (_rlimits() if rlimits is None else rlimits).items():
        name = {ADDRESSES: "ulimit -v", DATA: "ulimit -d"}[account]
        limits.append(Limit(size, f"{ACCOUNTS[account]} of this process: {name}", account=account))
    first, *others = sorted(limits, key=lambda limit: limit.bytes)
    return replace(first, beside=tuple(others))


def _rlimits() -> dict[str, int]:
    try:
        import resource
    except ModuleNotFoundError:  # not a Unix
        return {}
    soft = {
        account: resource.getrlimit(number)[0]
        for account, number in ((ADDRESSES, resource.RLIMIT_AS), (DATA, resource.RLIMIT_DATA))
    }
    return {account: size for account, size in soft.items() if size != resource.RLIM_INFINITY}


def board_named(name: str) -> Board:
    """A board by a part of its name that no other has ("tx2", "orin nano", "rpi5"); UnknownName with the nearest."""
    if name.partition(":")[0] in ("cpu", "cuda", "gpu", "mps"):
        raise UsageError(f"'{name}' is not a board", "name one, such as --board tx2; kernels of CUDA: --device cuda")
    boards = {board.name: board for board in all_boards() if board.memory_bytes}
    normalised = _normalised(name)
    for full in (normalised, f"jetson_{normalised}"):
        if full in boards:
            return boards[full]
    ending = [boards[full] for full in boards if full.endswith(f"_{normalised}")]
    return ending[0] if len(ending) == 1 else _unknown_board(name, normalised, boards)


def _unknown_board(name: str, normalised: str, boards: dict[str, Board]) -> Board:
    short = {full.removeprefix("jetson_"): full for full in boards}
    near = UnknownName("board", normalised, {*short, *boards})
    raise UnknownName(
        "board", name, [board.replace("_", "-") for board in boards], near.hint and near.hint.replace("_", "-")
    )


def _normalised(name: str) -> str:
    text = re.sub(r"[\s.-]+", "_", name.strip().lower())
    match = re.fullmatch(r"(rpi|raspi|pi)_?(\d.*)", text)
    return f"{_SHORT[match[1]]}_{match[2]}" if match else text.removeprefix("nvidia_")


def _meminfo(root: Path, name: str) -> int | None:
    try:
        match = re.search(rf"^{name}:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


_GROUP_FILES = (  # version 2, then 1: limit, usage, and what of it the kernel drops before it kills
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def _control_groups(root: Path) -> list[int]:
    """Bytes that each limited control group has left: this process's own, and those that it lies in."""
    available: dict[Path, int] = {}
    for folder in _group_folders(root):
        for most, used, files in _GROUP_FILES:
            try:
                limit, usage = (int((folder / name).read_text()) for name in (most, used))
            except (OSError, ValueError):
                continue  # "max": no limit
            if limit < _NO_LIMIT:
                available[folder] = max(1, limit - max(0, usage - _sum_of_memory_stats(folder, files)))
    return list(available.values())


_NO_LIMIT = 1 << 60  # version 1 writes the largest number of pages where there is none


def _group_folders(root: Path) -> Iterator[Path]:
    """Folders of this process's groups, the innermost first, as mounted here; in a container that is the top alone."""
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    paths = {"": "/", "memory": "/"}
    paths.update({kind: path for _, kind, path in (line.split(":", 2) for line in lines) if kind in paths})
    for kind, path in paths.items():
        mounted = top / kind if kind else top
        inner = mounted / path.strip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder == mounted or mounted in folder.parents)


def _sum_of_memory_stats(folder: Path, names: tuple[str, ...]) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in names)


_SHARED_OPTIONS = ("--optimizer", "--threads", "--malloc")  # options that run and fit have in common
_PRECISION = "float32"  # autocast, which a run may be under, is no precision of fit


def fit_command(meta: Mapping[str, Any]) -> str | None:
    """The command line for a run that `stepscope run WORKLOAD` made; None for others, and where it was tuned."""
    about = meta.get("workload")
    workload: Mapping[str, Any] = about if isinstance(about, Mapping) else {}
    argv, name = [str(word) for word in meta.get("argv") or []], workload.get("name")
    if workload.get("precision") != _PRECISION or meta.get("configuration"):
        return None
    if argv[1:2] != ["run"] or name not in argv or not workload.get("batch_size") or "domain" not in workload:
        return None
    words = ["stepscope", "fit", str(name), "--batch", str(workload["batch_size"])]
    for option in _SHARED_OPTIONS:
        value = _option_value(argv, option)
        words += [] if value is None else [option, value]
    words += ["--device", "cuda"] if str(workload.get("device")).startswith("cuda") else []
    return shlex.join(words)


def _option_value(argv: list[str], option: str) -> str | None:
    """The value of an option, given as one word or as two."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else following
    return None
