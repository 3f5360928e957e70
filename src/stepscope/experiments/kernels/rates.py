"""Rates of kernels, measured or from old profiler tables: best kernels, cliffs, and 5x5 with 3x3 against 7x7."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.estimate import mean_interval, median_interval, null_if_nan
from stepscope.arrays import Floats
from stepscope.errors import UsageError
from stepscope.experiments.kernels.shapes import Kernel, axis_centre
from stepscope.experiments.kernels.timing import median_ratio, time_in_turn, times_a_step
from stepscope.record.ops.costs import convolution_flops

JUMP = 1.25  # times slower per useful FLOP than its neighbour on the axis: a cliff
ROUNDS = 9
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"
_SMALL, _MIDDLE, _LARGE = 3, 5, 7


@dataclass(frozen=True)
class Cliff:
    """A place on an axis after which a useful FLOP is `jump` times slower; `low` is the lower bound of that factor."""

    source: str
    op: str
    part: str
    axis: str
    before: int
    after: int
    beside: str
    jump: float
    low: float | None


@dataclass(frozen=True)
class BestKernel:
    """The kernel of an op and part that takes least time for a useful FLOP, and the one that takes most."""

    best: KernelRate
    worst: KernelRate
    alike: int  # others whose interval reaches into that of the best
    of: int


def cliffs(rows: Sequence[KernelRate]) -> list[Cliff]:
    """Jumps between neighbours on an axis that are by JUMP or more within their whole intervals, highest first."""
    lines: dict[tuple[str, str, str, str, str], dict[int, KernelRate]] = defaultdict(dict)
    for row in rows:
        for axis, at in row.kernel.place.items():
            if isinstance(at, int):
                lines[row.source, row.kernel.op, row.part, axis, other_axes(row.kernel, axis)][at] = row
    jumps = [cliff for key, line in lines.items() for cliff in _cliffs_along_axis(key, line)]
    return sorted(jumps, key=lambda cliff: -cliff.jump)


def best_kernels(rows: Sequence[KernelRate]) -> list[BestKernel]:
    """One for each op and part of this device and of every imported source."""
    groups: dict[tuple[str, str, str], list[KernelRate]] = defaultdict(list)
    for row in rows:
        groups[row.source, row.kernel.op, row.part].append(row)
    return [_best_kernel(group) for group in groups.values()]


def below_one_verdict(ratio: Mapping[str, Any]) -> str:
    """Return whether a ratio is surely below 1."""
    if ratio["low"] is None or ratio["high"] is None:
        return OPEN
    return HOLDS if ratio["high"] < 1 else FAILS if ratio["low"] > 1 else OPEN


def measured_five_three(
    calls: Mapping[int, Mapping[str, Callable[[], Any]]], seconds: float
) -> dict[str, dict[str, Any]]:
    """Times of kernels 3, 5 and 7 in turn, and the ratio (5x5 then 3x3) / 7x7, by part."""
    ratios = {}
    for part in calls[_LARGE]:
        times_s = time_in_turn({str(size): calls[size][part] for size in (_SMALL, _MIDDLE, _LARGE)}, ROUNDS, seconds)
        ratio = median_ratio([times_s[str(_MIDDLE)], times_s[str(_SMALL)]], times_s[str(_LARGE)])
        ratios[part] = {**ratio, **{f"ms_{size}": float(np.median(times)) * 1e3 for size, times in times_s.items()}}
    return ratios


def imported_conv_5_vs_3(repeats: Mapping[tuple[str, str, str], Mapping[int, Floats]]) -> Iterator[dict[str, Any]]:
    """Return the table from imported repeats, ms by (source, where, part) and size; Student's interval over repeats."""
    for (source, where, part), sizes in repeats.items():
        if {_SMALL, _MIDDLE, _LARGE} <= set(sizes):
            count = min(len(sizes[size]) for size in (_SMALL, _MIDDLE, _LARGE))
            three, five, seven = (sizes[size][:count] for size in (_SMALL, _MIDDLE, _LARGE))
            mean, low, high = mean_interval((three + five) / seven)
            times = {"ms_3": float(np.median(three)), "ms_5": float(np.median(five)), "ms_7": float(np.median(seven))}
            ratio = {"ratio": mean, "low": null_if_nan(low), "high": null_if_nan(high)}
            yield {"source": source, "where": where, "part": part, **ratio, **times}


def conv_5_vs_3_places(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """Places of a sweep where convolutions of 3, 5 and 7 are asked for."""
    sizes: dict[str, set[int]] = defaultdict(set)
    places: dict[str, dict[str, Any]] = {}
    for kernel in kernels:
        if kernel.op == "conv" and kernel.place:
            where = other_axes(kernel, "kernel")
            sizes[where].add(kernel.place["kernel"])
            places[where] = {name: at for name, at in kernel.place.items() if name != "kernel"}
    return [places[where] for where, has in sizes.items() if {_SMALL, _MIDDLE, _LARGE} <= has]


def _cliffs_along_axis(key: tuple[str, str, str, str, str], line: Mapping[int, KernelRate]) -> Iterator[Cliff]:
    source, op, part, axis, others = key
    ordered = sorted(line)
    for before, after in itertools.pairwise(ordered):
        jump = line[after].ps_per_flop / line[before].ps_per_flop
        low = line[after].bound("low") / line[before].bound("high")
        has_interval = line[after].low_ns is not None and line[before].high_ns is not None
        if low >= JUMP:
            yield Cliff(source, op, part, axis, before, after, others, jump, low if has_interval else None)


def _best_kernel(rows: Sequence[KernelRate]) -> BestKernel:
    ordered = sorted(rows, key=lambda row: row.ps_per_flop)
    best = ordered[0]
    alike = sum(row.bound("low") <= best.bound("high") for row in ordered[1:])
    return BestKernel(best, ordered[-1], alike, len(ordered))


HERE = "this device"
SCHEMA = {
    "source": pl.String, "op": pl.String, "kernel_id": pl.String, "kernel": pl.String, "part": pl.String,
    "count": pl.Int64, "ns": pl.Float64, "low_ns": pl.Float64, "high_ns": pl.Float64, "flops": pl.Float64,
    "bytes": pl.Float64, "flops_per_s": pl.Float64, "bytes_per_s": pl.Float64, "ps_per_flop": pl.Float64,
    "axis": pl.String, "at": pl.Float64, "beside": pl.String, "central": pl.Boolean,
}  # fmt: skip


@dataclass(frozen=True)
class KernelRate:
    """Median ns of one call of a part, with its interval where there is one; useful FLOPs and bytes of the call."""

    source: str
    kernel: Kernel
    part: str
    ns: float
    low_ns: float | None
    high_ns: float | None
    flops: int
    bytes: int

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.ns * 1e9

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.ns * 1e9

    @property
    def ps_per_flop(self) -> float:
        """Time for one useful FLOP, ps."""
        return self.ns * 1e3 / self.flops

    @property
    def times(self) -> int:
        """Return how often a step runs this part."""
        return times_a_step(self.kernel, self.part)

    def bound(self, side: str) -> float:
        """ps for one useful FLOP at an end of the interval ("low" or "high"); the median where there is none."""
        ns = self.low_ns if side == "low" else self.high_ns
        return (self.ns if ns is None else ns) * 1e3 / self.flops


def rates_frame(rows: Sequence[KernelRate]) -> pl.DataFrame:
    """A row a measurement, and again for each axis of the sweep that it lies on; columns as SCHEMA.

    central: whether it lies at the centre of the other axes.
    """
    records, centre = [], _centres(rows)
    for row in rows:
        plain = {
            "source": row.source, "op": row.kernel.op, "kernel_id": row.kernel.id, "kernel": row.kernel.label,
            "part": row.part, "count": row.kernel.count, "ns": row.ns, "low_ns": row.low_ns, "high_ns": row.high_ns,
            "flops": row.flops, "bytes": row.bytes, "flops_per_s": row.flops_per_s, "bytes_per_s": row.bytes_per_s,
            "ps_per_flop": row.ps_per_flop,
        }  # fmt: skip
        axes = [name for name, at in row.kernel.place.items() if isinstance(at, int)]
        records += [
            {
                **plain, "axis": axis, "at": row.kernel.place[axis], "beside": other_axes(row.kernel, axis),
                "central": all(row.kernel.place[other] == centre[row.source, row.kernel.op, other]
                               for other in axes if other != axis),
            }
            for axis in axes
        ]  # fmt: skip
        if not axes:
            records.append({**plain, "axis": None, "at": None, "beside": None, "central": None})
    return pl.DataFrame(records, schema=SCHEMA)


def _centres(rows: Sequence[KernelRate]) -> dict[tuple[str, str, str], int]:
    """Return where an axis is while another is gone through, by source, op and axis."""
    places: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for row in rows:
        for axis, at in row.kernel.place.items():
            if isinstance(at, int):
                places[row.source, row.kernel.op, axis].add(at)
    return {key: axis_centre(key[2], tuple(sorted(values))) for key, values in places.items()}


def other_axes(kernel: Kernel, axis: str) -> str:
    """Return the place of a kernel on the other axes."""
    return ", ".join(f"{name} {at}" for name, at in kernel.place.items() if name != axis)


# Files are named <batch>_<inputs>_<side>_<outputs>_<kernel>_<word>_<forward|backward>_<repeat>.txt, as those that the
# authors of the 2020 paper stored for a Jetson TX2, a P100 and a cloud CPU. The word is "jetson" on all three: it tells
# no device. So each folder of tables is a source of its own, named by whoever imports it. Such a file begins with its
# sizes, a line each: ('kernel_size', 3). Its columns are Name, CPU time, CUDA time, Calls, CPU total, CUDA total; a
# table of a machine without a GPU has no times of CUDA, or zeros. The input of those convolutions asked for no
# gradient, so that "backward" is the gradient of the weights alone, and their images were not padded. The first repeat
# holds the cost of first calls, and is excluded where there are others.

FORWARD, WEIGHT, IMPORTED = "forward", "weight gradient", "imported"
_FILE_NAME = re.compile(r"(\d+)_(\d+)_(\d+)_(\d+)_(\d+)_\w+?_(forward|backward)_(\d+)\.txt")
_SIZE = re.compile(r"^\('(\w+)',\s*(\d+)\)\s*$", re.MULTILINE)
_TIME = re.compile(r"([\d.]+)(us|ms|s)")
_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_SIZES = ("batch_size", "input_channels", "image_size", "output_channels", "kernel_size")
_BACKWARD = re.compile(r"\w*Convolution\w*Backward\d*|\w*Conv2[dD]Backward\d*")


@dataclass(frozen=True)
class ProfilerTable:
    """One file: sizes, which part, which repeat, and the time of the convolution in it, ms; source: of which device."""

    source: str
    batch: int
    inputs: int
    side: int
    outputs: int
    kernel: int
    part: str
    repeat: int
    ms: float


@dataclass(frozen=True)
class ProfilerTables:
    """Tables that were read, and the files that could not be, each with the reason."""

    tables: tuple[ProfilerTable, ...]
    refused: tuple[str, ...]
    unnamed: tuple[str, ...] = ()  # folders whose device nobody named

    def rows(self) -> list[KernelRate]:
        """Median over the repeats of each kernel and part."""
        return [_row_of_tables(tables) for tables in self._groups().values()]

    def by_size(self) -> dict[tuple[str, str, str], dict[int, Floats]]:
        """Repeats in ms by (source, where, part) and side of the kernel; as many channels out as in."""
        repeats: dict[tuple[str, str, str], dict[int, Floats]] = defaultdict(dict)
        for tables in self._groups().values():
            first = tables[0]
            if first.inputs == first.outputs:
                where = f"batch {first.batch}, channels {first.inputs}, size {first.side}"
                repeats[first.source, where, first.part][first.kernel] = np.array([table.ms for table in tables])
        return dict(repeats)

    def _groups(self) -> dict[tuple[object, ...], list[ProfilerTable]]:
        groups: dict[tuple[object, ...], list[ProfilerTable]] = defaultdict(list)
        for row in sorted(self.tables, key=lambda table: table.repeat):
            groups[row.source, row.batch, row.inputs, row.side, row.outputs, row.kernel, row.part].append(row)
        return {key: [t for t in tables if t.repeat > 0] or tables for key, tables in groups.items()}


def read_tables(path: Path, devices: Sequence[str] = ()) -> ProfilerTables:
    """All tables below a folder, or one file; UsageError where there is none.

    devices: the name of the device that all of them are of, or FOLDER=NAME for each folder below; tables of a folder
    that has no name are "imported", with the folder.
    """
    if not path.exists():
        raise UsageError(f"--import: there is no '{path}'", "give the folder of the profiler's tables, or one of them")
    files = [path] if path.is_file() else sorted(path.rglob("*.txt"))
    named = dict(_device_of_folder(text) for text in devices)
    tables, refused, unnamed = [], [], dict[str, None]()
    for file in files:
        below = "" if path.is_file() else file.parent.relative_to(path).as_posix().removeprefix(".")
        source = named.get(below) or named.get("")
        if source is None:
            source = f"{IMPORTED}, {below}" if below else IMPORTED
        try:
            tables.append(parse_table(file.name, file.read_text(encoding="utf-8", errors="replace"), source))
        except ValueError as error:
            refused.append(f"{file.name}: {error}")
            continue
        if source.startswith(IMPORTED):
            unnamed[below or path.name] = None
    if not tables:
        why = f" ({refused[0]})" if refused else ""
        hint = "files are named like 32_32_256_32_3_jetson_forward_1.txt"
        raise UsageError(f"--import: no profiler table in '{path}'{why}", hint)
    return ProfilerTables(tuple(tables), tuple(refused), tuple(unnamed))


def _device_of_folder(text: str) -> tuple[str, str]:
    """The folder below the imported one ("" is all of it) and the device that its tables are of."""
    folder, equals, name = text.rpartition("=")
    if not name.strip() or (equals and not folder.strip()):
        raise UsageError(f"--import-device: '{text}' names no device", "NAME, or FOLDER=NAME for each folder")
    return folder.strip().strip("/").removeprefix("./"), name.strip()


def parse_table(name: str, text: str, source: str = IMPORTED) -> ProfilerTable:
    """One table from the name of its file and its text; ValueError says what is wrong with it."""
    named = _FILE_NAME.fullmatch(name)
    if named is None:
        raise ValueError("the name does not say the sizes")
    sizes = dict(zip(_SIZES, (int(value) for value in named.groups()[:5]), strict=True))
    stated = {key: int(value) for key, value in _SIZE.findall(text)}
    differ = [key for key in sizes if stated.get(key, sizes[key]) != sizes[key]]
    if differ:
        raise ValueError(f"name and content differ in {', '.join(differ)}")
    if min(sizes.values()) < 1 or sizes["kernel_size"] > sizes["image_size"]:
        raise ValueError("no convolution has these sizes")
    part = FORWARD if named[6] == "forward" else WEIGHT
    batch, inputs, side, outputs, kernel = sizes.values()
    return ProfilerTable(source, batch, inputs, side, outputs, kernel, part, int(named[7]), _convolution_ms(text, part))


def _convolution_ms(text: str, part: str) -> float:
    """Total time of the convolution: on the GPU where the table has it, else on the CPU."""
    for name, totals in _table_lines(text):
        is_convolution = name in ("conv2d", "aten::conv2d") if part == FORWARD else _BACKWARD.fullmatch(name)
        if is_convolution:
            convolution_us = (totals[3] if len(totals) == 4 else 0.0) or totals[min(2, len(totals) - 1)]
            if convolution_us > 0:
                return convolution_us / 1e3
    raise ValueError(f"no line of a convolution's {part}")


def _table_lines(text: str) -> Iterator[tuple[str, list[float]]]:
    """Name and times in us of each line of the table."""
    for line in text.splitlines():
        words = line.split()
        matches = filter(None, map(_TIME.fullmatch, words[1:]))
        times = [float(match[1]) * _US[match[2]] for match in matches]
        if times:
            yield words[0].rpartition("::")[2], times


def _row_of_tables(tables: list[ProfilerTable]) -> KernelRate:
    first = tables[0]
    ms, low, high = median_interval(np.array([table.ms for table in tables]))
    sizes = {
        "batch": first.batch, "inputs": first.inputs, "height": first.side, "width": first.side,
        "outputs": first.outputs, "kernel_height": first.kernel, "kernel_width": first.kernel, "stride": 1,
        "padding_height": 0, "padding_width": 0, "dilation": 1, "groups": 1,
    }  # fmt: skip
    channels = first.inputs if first.inputs == first.outputs else f"{first.inputs} to {first.outputs}"
    place = {"kernel": first.kernel, "batch": first.batch, "channels": channels, "size": first.side}
    weight, output_side = (first.outputs, first.inputs, first.kernel, first.kernel), first.side - first.kernel + 1
    flops = convolution_flops(first.batch, (output_side, output_side), weight)
    images = first.batch * (first.inputs * first.side**2 + first.outputs * output_side**2)
    moved = 4 * (images + math.prod(weight))
    kernel = Kernel("conv", sizes, place)
    bounds = [None if null_if_nan(float(ns)) is None else float(ns) * 1e6 for ns in (low, high)]
    return KernelRate(first.source, kernel, first.part, float(ms) * 1e6, bounds[0], bounds[1], flops, moved)
