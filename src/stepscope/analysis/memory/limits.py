"""From live bytes to a verdict: allocator, empty process, and the memory that a device leaves for training.

All sizes in B. Factors are measured with glibc 2.36 and torch 2.13 on x86 (100 trainings, clean processes); docs on
memory say how. The process of an empty training (Python, torch, an optimizer, one tiny step) is a part of its own.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.analysis.device import all_boards
from stepscope.analysis.device.contract import Board
from stepscope.errors import UnknownName, UsageError
from stepscope.request import parse_amount

EMPTY_PROCESS = (316_000_000, 329_000_000)  # Python, torch, an optimizer and one tiny step (torch 2.13, x86)
EMPTY_ELSEWHERE = (225_000_000, 340_000_000)  # another processor's libraries are smaller or larger: not measured
PAGED_IN = (6_000_000, 30_000_000)  # code and primitives that the first real step brings in, whatever the model
ALWAYS_MAPPED = 32 << 20  # glibc maps larger blocks one by one and gives them back at once (DEFAULT_MMAP_THRESHOLD_MAX)
UNSETTLED, SETTLED = 400_000_000, 1_200_000_000  # B in glibc's heap, between which it wastes a smaller share
LITTLE_WASTE, HOLES_OF_LARGEST = 1.1, 4  # a heap of few large blocks: rounding, and holes of the size of the largest
MARGIN = 0.01  # of the limit: a yes keeps this much away from it
_SHORT = {"rpi": "raspberry_pi", "pi": "raspberry_pi", "raspi": "raspberry_pi"}


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

    def resident(self, live: tuple[int, int], mapped: int, largest: int = 0) -> tuple[int, int]:
        """Resident bytes, least and most, of live bytes of which so many lie in large blocks.

        `largest`: of the blocks that come and go in the heap. Where they make up most of it, holes are as large.
        """
        small = (max(0, live[0] - mapped), max(0, live[1] - mapped))
        settled = min(1.0, max(0.0, (small[1] - UNSETTLED) / (SETTLED - UNSETTLED)))
        high = self.high + settled * (self.high_of_much - self.high)
        heap = small[1] * high
        if self.holes:
            heap = max(heap, small[1] * LITTLE_WASTE + HOLES_OF_LARGEST * largest)
        return (
            round(small[0] * self.low + min(mapped, live[0])),
            round(heap + min(mapped, live[1]) * self.mapped_high) + self.holes,
        )


_DEFAULT = Allocator(
    name="default",
    low=1.12,
    high=1.60,
    high_of_much=1.40,
    mapped_high=1.10,
    high_recomputed=2.07,
    holes=8_000_000,
    time=(1.0, 1.0),
    how="glibc as it comes",
)
_PINNED = Allocator(
    name="pinned",
    low=0.995,
    high=1.005,
    high_of_much=1.005,
    mapped_high=1.005,
    high_recomputed=1.005,
    holes=0,
    time=(1.09, 2.1),
    how="GLIBC_TUNABLES=glibc.malloc.mmap_threshold=65536",
)
_TCMALLOC = Allocator(
    name="tcmalloc",
    low=0.98,
    high=1.20,
    high_of_much=1.15,
    mapped_high=1.05,
    high_recomputed=1.20,
    holes=4_000_000,
    time=(0.8, 1.0),
    how="LD_PRELOAD=libtcmalloc_minimal.so.4",
)
ALLOCATORS = {allocator.name: allocator for allocator in (_DEFAULT, _PINNED, _TCMALLOC)}


@dataclass(frozen=True)
class Limit:
    """The memory that one training process may take, and where the number comes from."""

    bytes: int
    source: str
    device_bytes: int | None = None
    os_bytes: int | None = None


@dataclass(frozen=True)
class ProcessPeak:
    """Peak of the whole process: its parts as intervals that add up."""

    live: tuple[int, int]
    allocator: tuple[int, int]  # beyond the live bytes
    empty_process: tuple[int, int]
    code: tuple[int, int]  # of kernels, and oneDNN's primitives, beyond the empty process

    @property
    def low(self) -> int:
        """The least it will be."""
        return self.live[0] + self.allocator[0] + self.empty_process[0] + self.code[0]

    @property
    def high(self) -> int:
        """The most it will be."""
        return self.live[1] + self.allocator[1] + self.empty_process[1] + self.code[1]

    @property
    def middle(self) -> int:
        """Half way between."""
        return (self.low + self.high) // 2


def process_peak(
    live: tuple[int, int],
    mapped: int,
    allocator: Allocator,
    empty: tuple[int, int] = EMPTY_PROCESS,
    code: tuple[int, int] = PAGED_IN,
    largest: int = 0,
) -> ProcessPeak:
    """Of live bytes (least, most), `mapped` in blocks above ALWAYS_MAPPED, `largest` of those that come and go."""
    low, high = allocator.resident(live, mapped, largest)
    return ProcessPeak(live, (low - live[0], high - live[1]), empty, code)


def fit_verdict(peak: ProcessPeak, limit: Limit) -> str:
    """One of "fits", "too close" and "does not fit"."""
    if peak.high <= limit.bytes * (1 - MARGIN):
        return "fits"
    return "does not fit" if peak.low > limit.bytes else "too close"


def allocator_of(name: str) -> Allocator:
    """By name; UnknownName with the nearest."""
    if name not in ALLOCATORS:
        raise UnknownName("allocator", name, ALLOCATORS)
    return ALLOCATORS[name]


def parse_size(size: float | str) -> int:
    """Bytes of 8e9, "8GB", "7.5 GiB" or "512M"; decimal unless it says "i"."""
    amount = parse_amount("--memory", size, "B") if isinstance(size, str) else size
    if not 0 < amount < math.inf:
        raise UsageError(f"--memory {size}: not an amount of memory", "for example --memory 8GB, 512MB or 7.5GiB")
    return round(amount)


def limit_of_memory(text: float | str) -> Limit:
    """The process may take this much, as the user says."""
    return Limit(parse_size(text), f"as given: {text}")


def limit_of_board(name: str, memory: float | str | None = None) -> Limit:
    """Return the memory that a board leaves beside its system, B: its first size that is sold, or the one given."""
    board = board_named(name)
    if not board.memory_bytes and memory is None:
        raise UsageError(f"how much memory '{board.title}' has is not known", "say it with --memory")
    total = board.memory_bytes[0] if memory is None else parse_size(memory)
    kept = board.os_keeps_bytes or 0
    said = "" if board.os_keeps_bytes else "; what its system keeps is not known and counts as nothing"
    if kept >= total:
        raise UsageError(
            f"the system of '{board.title}' alone keeps {kept} B", "say the size of the board with --memory"
        )
    return Limit(total - kept, f"{board.title}{said}", total, kept)


def limit_of_this_machine(root: Path = Path("/")) -> Limit:
    """Return the memory that is available here now, or what the control group leaves if that is less, B."""
    available = _meminfo(root, "MemAvailable")
    total = _meminfo(root, "MemTotal")
    if available is None:
        raise UsageError("this machine does not say how much memory is available", "say it with --memory")
    group = _control_group(root)
    if group is not None and group < available:
        return Limit(group, "this process's control group, now", total, None)
    return Limit(available, "available on this machine now", total, None if total is None else total - available)


def board_named(name: str) -> Board:
    """A board by a part of its name that no other has ("tx2", "orin nano", "rpi5"); UnknownName with the nearest."""
    known = {board.name: board for board in all_boards() if board.memory_bytes}
    asked = _normalised(name)
    if asked in known:
        return known[asked]
    ending = [known[full] for full in known if full.endswith(f"_{asked}")]
    return ending[0] if len(ending) == 1 else _unknown_board(name, asked, known)


def _unknown_board(name: str, asked: str, known: dict[str, Board]) -> Board:
    short = {full.removeprefix("jetson_"): full for full in known}
    near = UnknownName("device", asked, {*short, *known})
    raise UnknownName("device", name, _dashed([*known]), near.hint and near.hint.replace("_", "-"))


def _dashed(names: Iterable[str]) -> list[str]:
    return [name.replace("_", "-") for name in names]


def _normalised(name: str) -> str:
    text = re.sub(r"[\s.-]+", "_", name.strip().lower())
    found = re.fullmatch(r"(rpi|raspi|pi)_?(\d.*)", text)
    return f"{_SHORT[found[1]]}_{found[2]}" if found else text.removeprefix("nvidia_")


def _meminfo(root: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _control_group(root: Path) -> int | None:
    """Bytes that a limited control group (version 2, then 1) has left; None without a limit."""
    folder = root / "sys/fs/cgroup"
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return int((folder / most).read_text()) - int((folder / used).read_text())
        except (OSError, ValueError):
            continue  # "max": no limit
    return None


_SHARED_OPTIONS = ("--optimizer", "--threads", "--malloc")  # options that run and fit have in common
_PRECISION = "float32"  # autocast, which a run may be under, is no precision of fit


def fit_command(meta: Mapping[str, Any]) -> str | None:
    """The command line for a run that `stepscope run WORKLOAD` made; None for other runs, of which it is not known."""
    about = meta.get("workload")
    workload: Mapping[str, Any] = about if isinstance(about, Mapping) else {}
    argv, name = [str(word) for word in meta.get("argv") or []], workload.get("name")
    if workload.get("precision") != _PRECISION:
        return None
    if argv[1:2] != ["run"] or name not in argv or not workload.get("batch_size") or "domain" not in workload:
        return None
    words = ["stepscope", "fit", str(name), "--batch", str(workload["batch_size"])]
    for option in _SHARED_OPTIONS:
        value = _option_value(argv, option)
        words += [] if value is None else [option, value]
    words += ["--on", "cuda"] if str(workload.get("device")).startswith("cuda") else []
    return shlex.join(words)


def _option_value(argv: list[str], option: str) -> str | None:
    """The value of an option, given as one word or as two."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else following
    return None
