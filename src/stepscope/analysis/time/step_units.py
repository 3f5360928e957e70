"""The units of a step: outermost op calls, nodes of the backward pass, calls of the data loader, and kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.time.operators import CPU
from stepscope.arrays import Flags, Floats, Ints

MOST_UNITS = 40_000
_LOADS = r"^(?:enumerate\(DataLoader\)#|#stepscope\.data)"
_WAITS = re.compile(r"_local_scalar_dense|aten::item|aten::is_nonzero|aten::nonzero|aten::equal")
_TO_HOST = "DtoH"


@dataclass(frozen=True)
class StepUnits:
    """The units of a step in order of time, and its kernels behind them; times in ns from the step's start.

    earlier: device, t0, t1 of kernels that steps before it launched and that still ran; None where that is not known.
    """

    name: list[str]
    module: list[str | None]
    phase: list[str]
    lane: list[str]  # "cpu:<thread>", or the device and stream of a kernel
    t0: Floats
    t1: Floats
    row_unit: Ints  # unit of each row of the step; -1: in none
    inside: dict[int, list[int]]  # units in each row that is in none: calls of modules, and of custom functions
    launched_by: Ints  # unit that launched a kernel; -1: a unit, or not known
    calls: Ints  # op calls within it
    length_ns: float
    earlier: pl.DataFrame | None = None

    @property
    def kernel(self) -> Flags:
        """Return which are kernels of an accelerator."""
        return np.array([not lane.startswith("cpu:") for lane in self.lane], dtype=np.bool_)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Return what is the same in steps that ran the same units."""
        return tuple(zip(self.name, self.lane, strict=True))


def units_of(ops: pl.DataFrame, t0_ns: int, t1_ns: int) -> StepUnits | None:
    """Return the units of a step's rows, `ops` as `runfolder.OPS`; None where they are too many."""
    names, devices = ops["name"].cast(pl.String).to_list(), ops["device"].cast(pl.String).to_list()
    parent = ops["parent"].fill_null(-1).to_numpy().astype(np.int64)
    works = ops["name"].cast(pl.String)
    is_work = (works.str.contains("::", literal=True) | works.str.contains(_LOADS)).to_numpy()
    unit_row = np.full(len(ops), -1, dtype=np.int64)
    for row in range(len(ops)):
        above = parent[row]
        if devices[row] != CPU:
            unit_row[row] = row
        elif 0 <= above < row and unit_row[above] >= 0:
            unit_row[row] = unit_row[above]
        elif is_work[row]:
            unit_row[row] = row
    chosen = np.unique(unit_row[unit_row >= 0])
    if len(chosen) > MOST_UNITS:
        return None
    begin = ops["t0_ns"].to_numpy().astype(np.float64) - t0_ns
    end = np.minimum(ops["t1_ns"].to_numpy().astype(np.float64) - t0_ns, np.inf)
    kernel = np.array([device != CPU for device in devices], dtype=np.bool_)
    chosen = chosen[np.lexsort((chosen, begin[chosen], kernel[chosen]))]
    number = np.full(len(ops) + 1, -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    row_unit = np.where(unit_row >= 0, number[unit_row], -1)
    modules, phases = ops["module"].cast(pl.String).to_list(), ops["phase"].cast(pl.String).to_list()
    threads = ops["thread"].to_list()
    rows = chosen.tolist()
    inside: dict[int, list[int]] = {}
    for unit, row in enumerate(rows):
        above = -1 if kernel[row] else int(parent[row])
        while above >= 0:
            inside.setdefault(above, []).append(unit)
            above = int(parent[above])
    owner = np.array([parent[row] if kernel[row] else -1 for row in rows], dtype=np.int64)
    return StepUnits(
        name=[names[row] for row in rows],
        module=[modules[row] for row in rows],
        phase=[phases[row] for row in rows],
        lane=[f"{devices[row]}:{threads[row]}" for row in rows],
        t0=begin[chosen],
        t1=np.maximum(end[chosen], begin[chosen]),
        row_unit=row_unit,
        inside=inside,
        launched_by=np.where(owner >= 0, row_unit[owner], -1),
        calls=np.bincount(row_unit[row_unit >= 0], minlength=len(chosen)),
        length_ns=float(t1_ns - t0_ns),
    )


def kernels_by_unit(units: StepUnits) -> dict[int, list[int]]:
    """Return the kernels that each unit launched, in order of time."""
    kernels: dict[int, list[int]] = {}
    for kernel in np.flatnonzero(units.launched_by >= 0).tolist():
        kernels.setdefault(int(units.launched_by[kernel]), []).append(kernel)
    return kernels


def waits_for_device(units: StepUnits, unit: int, launched: Sequence[int]) -> bool:
    """Return whether the host waited in this unit until its last kernel had ended."""
    match = _WAITS.search(units.name[unit]) or _TO_HOST in units.name[launched[-1]]
    return bool(match) and float(units.t1[unit]) >= float(units.t1[launched[-1]])
