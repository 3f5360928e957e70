"""Tables that torch's old autograd profiler printed for single convolutions, as a run to compare with.

Files are named <batch>_<inputs>_<side>_<outputs>_<kernel>_<device>_<forward|backward>_<repeat>.txt, as those that the
authors of the 2020 paper stored for a Jetson TX2, a P100 and a cloud CPU. Such a file begins with its sizes, a line
each: ('kernel_size', 3). Its columns are Name, CPU time, CUDA time, Calls, CPU total, CUDA total; a table of a machine
without a GPU has no times of CUDA, or zeros. The input of those convolutions asked for no gradient, so that "backward"
is the gradient of the weights alone, and their images were not padded. The first repeat holds the cost of first calls,
and is left out where there are others.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.analysis.intervals import Floats, known, median_interval
from stepscope.errors import UsageError
from stepscope.record.op_cost import convolution_flops
from stepscope.studies.kernels.rows import Row
from stepscope.studies.kernels.shapes import Kernel

FORWARD, WEIGHT = "forward", "weight gradient"
_NAME = re.compile(r"(\d+)_(\d+)_(\d+)_(\d+)_(\d+)_(\w+?)_(forward|backward)_(\d+)\.txt")
_SIZE = re.compile(r"^\('(\w+)',\s*(\d+)\)\s*$", re.MULTILINE)
_TIME = re.compile(r"([\d.]+)(us|ms|s)")
_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_SIZES = ("batch_size", "input_channels", "image_size", "output_channels", "kernel_size")
_BACKWARD = re.compile(r"\w*Convolution\w*Backward\d*|\w*Conv2[dD]Backward\d*")


@dataclass(frozen=True)
class Table:
    """One file: sizes, which part, which repeat, and the time of the convolution in it, ms."""

    device: str
    batch: int
    inputs: int
    side: int
    outputs: int
    kernel: int
    part: str
    repeat: int
    ms: float


@dataclass(frozen=True)
class Imported:
    """Tables that were read, and the files that could not be, each with the reason."""

    tables: tuple[Table, ...]
    refused: tuple[str, ...]

    def rows(self) -> list[Row]:
        """Median over the repeats of each kernel and part."""
        return [_row(tables) for tables in self._groups().values()]

    def by_size(self) -> dict[tuple[str, str], dict[int, Floats]]:
        """Repeats in ms by (where, part) and size of the kernel, of convolutions with as many channels out as in."""
        found: dict[tuple[str, str], dict[int, Floats]] = defaultdict(dict)
        for tables in self._groups().values():
            one = tables[0]
            if one.inputs == one.outputs:
                where = f"{one.device}: batch {one.batch}, channels {one.inputs}, size {one.side}"
                found[where, one.part][one.kernel] = np.array([table.ms for table in tables])
        return dict(found)

    def _groups(self) -> dict[tuple[object, ...], list[Table]]:
        groups: dict[tuple[object, ...], list[Table]] = defaultdict(list)
        for one in sorted(self.tables, key=lambda table: table.repeat):
            groups[one.device, one.batch, one.inputs, one.side, one.outputs, one.kernel, one.part].append(one)
        return {key: [t for t in tables if t.repeat > 0] or tables for key, tables in groups.items()}


def read(path: Path) -> Imported:
    """All tables below a folder, or one file; UsageError where there is none."""
    if not path.exists():
        raise UsageError(f"--import: there is no '{path}'", "give the folder of the profiler's tables, or one of them")
    files = [path] if path.is_file() else sorted(path.rglob("*.txt"))
    tables, refused = [], []
    for file in files:
        try:
            tables.append(table(file.name, file.read_text(encoding="utf-8", errors="replace")))
        except ValueError as error:
            refused.append(f"{file.name}: {error}")
    if not tables:
        why = f" ({refused[0]})" if refused else ""
        hint = "files are named like 32_32_256_32_3_jetson_forward_1.txt"
        raise UsageError(f"--import: no profiler table in '{path}'{why}", hint)
    return Imported(tuple(tables), tuple(refused))


def table(name: str, text: str) -> Table:
    """One table from the name of its file and its text; ValueError says what is wrong with it."""
    named = _NAME.fullmatch(name)
    if named is None:
        raise ValueError("the name does not say the sizes")
    sizes = dict(zip(_SIZES, (int(value) for value in named.groups()[:5]), strict=True))
    stated = {key: int(value) for key, value in _SIZE.findall(text)}
    differ = [key for key in sizes if stated.get(key, sizes[key]) != sizes[key]]
    if differ:
        raise ValueError(f"name and content differ in {', '.join(differ)}")
    if min(sizes.values()) < 1 or sizes["kernel_size"] > sizes["image_size"]:
        raise ValueError("no convolution has these sizes")
    part = FORWARD if named[7] == "forward" else WEIGHT
    batch, inputs, side, outputs, kernel = sizes.values()
    return Table(named[6], batch, inputs, side, outputs, kernel, part, int(named[8]), _convolution_ms(text, part))


def _convolution_ms(text: str, part: str) -> float:
    """Total time of the convolution: on the GPU where the table has it, else on the CPU."""
    for name, totals in _lines(text):
        wanted = name in ("conv2d", "aten::conv2d") if part == FORWARD else _BACKWARD.fullmatch(name)
        if wanted:
            found_us = (totals[3] if len(totals) == 4 else 0.0) or totals[min(2, len(totals) - 1)]
            if found_us > 0:
                return found_us / 1e3
    raise ValueError(f"no line of a convolution's {part}")


def _lines(text: str) -> Iterator[tuple[str, list[float]]]:
    """Name and times in us of each line of the table."""
    for line in text.splitlines():
        words = line.split()
        times = [float(number) * _US[unit] for number, unit in _found(words[1:])]
        if times:
            yield words[0].rpartition("::")[2], times


def _found(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        match = _TIME.fullmatch(word)
        if match is not None:
            yield match[1], match[2]


def _row(tables: list[Table]) -> Row:
    one = tables[0]
    ms, low, high = median_interval(np.array([table.ms for table in tables]))
    sizes = {
        "batch": one.batch, "inputs": one.inputs, "height": one.side, "width": one.side, "outputs": one.outputs,
        "kernel_height": one.kernel, "kernel_width": one.kernel, "stride": 1, "padding_height": 0,
        "padding_width": 0, "dilation": 1, "groups": 1,
    }  # fmt: skip
    channels = one.inputs if one.inputs == one.outputs else f"{one.inputs} to {one.outputs}"
    place = {"kernel": one.kernel, "batch": one.batch, "channels": channels, "size": one.side}
    weight, left = (one.outputs, one.inputs, one.kernel, one.kernel), one.side - one.kernel + 1
    flops = convolution_flops(one.batch, (left, left), weight)
    images = one.batch * (one.inputs * one.side**2 + one.outputs * left**2)
    moved = 4 * (images + math.prod(weight))
    kernel = Kernel("conv", sizes, place)
    bounds = [None if known(float(ns)) is None else float(ns) * 1e6 for ns in (low, high)]
    return Row(one.device, kernel, one.part, float(ms) * 1e6, bounds[0], bounds[1], flops, moved)
