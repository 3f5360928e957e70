"""`stepscope study kernels` in Python: time every kernel that was asked for, judge, and hand back Findings."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from stepscope.analysis.findings import Findings
from stepscope.analysis.memory_model import limit_of_this_machine
from stepscope.studies.here import device_name, versions
from stepscope.studies.kernels import imported as tables
from stepscope.studies.kernels.ceilings import ceilings
from stepscope.studies.kernels.found import Evidence, found
from stepscope.studies.kernels.judged import five_three_places, measured_five_three
from stepscope.studies.kernels.of_model import kernels_of
from stepscope.studies.kernels.parts import FORWARD, parts_of
from stepscope.studies.kernels.rows import HERE, Row
from stepscope.studies.kernels.shapes import OPS, Kernel, Sweep, square, wanted
from stepscope.studies.kernels.timing import against_bare_loop, timed
from stepscope.studies.study_folder import StudyFolder

NAME = "kernels"
_MOST = 0.5  # of the memory that is free: a kernel may want as much again for its own
Tell = Callable[[int, int, str], None]  # about to measure: place, of how many, what


@dataclass(frozen=True)
class Asked:
    """All that a repetition needs. of: a workload whose shapes are taken instead of a sweep's.

    seconds: of timing for each part of a kernel, at the least. imported: a folder of profiler tables.
    """

    ops: tuple[str, ...] = OPS
    sweep: Sweep = field(default_factory=Sweep)
    of: str | None = None
    batch: int | None = None
    seconds: float = 0.2
    device: str = "cpu"
    threads: int = 1
    quick: bool = False
    imported: str | None = None
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def kernels(out: str | Path, asked: Asked | None = None, *, tell: Tell | None = None, command: str = "") -> Findings:
    """Time the kernels in a study's folder, which is begun or gone on with; what was timed is not timed again."""
    asked = asked or Asked()
    brought = None if asked.imported is None else tables.read(Path(asked.imported))
    todo = _kernels(asked)
    folder = StudyFolder(Path(out), NAME, asked.to_dict())
    before = torch.get_num_threads()
    torch.set_num_threads(asked.threads)
    try:
        with folder.locked():
            evidence = _measured(folder, asked, todo, tell or (lambda place, count, what: None))
    finally:
        torch.set_num_threads(before)
    said = command or f"stepscope study kernels --out {out}"
    facts = {"device": f"{device_name()}, {asked.device}", "versions": versions(), "command": said}
    return found(evidence, brought, asked.to_dict(), facts)


def _kernels(asked: Asked) -> list[Kernel]:
    if asked.of is None:
        return wanted(asked.ops, asked.sweep)
    from stepscope import workloads

    return kernels_of(workloads.find(asked.of), asked.batch, asked.ops)


def _measured(folder: StudyFolder, asked: Asked, todo: Sequence[Kernel], tell: Tell) -> Evidence:
    places = five_three_places(todo)
    total, order = len(todo) + len(places) + 2, list(todo)
    random.Random(asked.seed).shuffle(order)  # what drifts must not look like an axis
    tell(0, total, "the ceilings of this device")
    roofs = folder.answered("ceilings", lambda: ceilings(asked.device, asked.quick))
    cells = {}
    for place, kernel in enumerate(order, 1):
        tell(place, total, kernel.called)
        cells[kernel.id] = folder.answered(kernel.id, lambda kernel=kernel: _cell(kernel, asked))  # type: ignore[misc]
    pairs = {}
    for place, where in enumerate(places, len(order) + 1):
        name = ", ".join(f"{axis} {at}" for axis, at in where.items())
        tell(place, total, f"5x5 then 3x3 against 7x7, {name}")
        cell_id = "five-three-" + "-".join(f"{axis}{at}" for axis, at in where.items())
        pairs[name] = folder.answered(cell_id, lambda where=where: _pair(where, asked))  # type: ignore[misc]
    tell(total - 1, total, "the timer against a bare loop")
    timed_ones = [kernel for kernel in todo if "parts" in cells[kernel.id]]
    bare = folder.answered("bare-loop", lambda: _bare(timed_ones, asked))
    rows = [row for kernel in todo for row in _rows(kernel, cells[kernel.id])]
    skipped = {kernel.called: cells[kernel.id]["skipped"] for kernel in todo if "skipped" in cells[kernel.id]}
    return Evidence(rows, roofs, pairs, bare, skipped)


def _cell(kernel: Kernel, asked: Asked) -> dict[str, Any]:
    """The parts of a kernel with their times; or why it was not timed."""
    why = _does_not_fit(kernel, asked.device)
    if why is not None:
        return {"skipped": why}
    try:
        return {
            "parts": {
                name: {**timed(part.call, asked.seconds, asked.threads).to_dict(), "flops": part.flops,
                       "bytes": part.bytes}
                for name, part in parts_of(kernel, asked.device).items()
            }
        }  # fmt: skip
    except (RuntimeError, MemoryError) as error:  # a kernel that this build lacks, or memory that ran out
        return {"skipped": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def _does_not_fit(kernel: Kernel, device: str) -> str | None:
    """Before anything is allocated: on tensors without numbers."""
    needs = max(part.bytes for part in parts_of(kernel, "meta").values())
    free = torch.cuda.mem_get_info()[0] if device != "cpu" else limit_of_this_machine().bytes
    if needs <= _MOST * free:
        return None
    return f"its tensors need {needs / 1e6:.0f} MB and {free / 1e6:.0f} MB are free"


def _pair(where: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """5x5 then 3x3 against 7x7 at a place, measured in turn."""
    made = {size: Kernel("conv", square({**where, "kernel": size}), {**where, "kernel": size}) for size in (3, 5, 7)}
    for kernel in made.values():
        why = _does_not_fit(kernel, asked.device)
        if why is not None:
            return {"skipped": why}
    calls = {
        size: {name: part.call for name, part in parts_of(kernel, asked.device).items()}
        for size, kernel in made.items()
    }
    return {"parts": measured_five_three(calls, 3 * asked.seconds)}


def _bare(todo: Sequence[Kernel], asked: Asked) -> dict[str, Any]:
    """For the first kernel of each op: the timer over a bare loop."""
    first = {kernel.op: kernel for kernel in reversed(todo) if _does_not_fit(kernel, asked.device) is None}
    result = {}
    for op, kernel in first.items():
        parts = parts_of(kernel, asked.device)
        name = FORWARD if FORWARD in parts else next(iter(parts))
        result[op] = {"called": kernel.called, "part": name, **against_bare_loop(parts[name].call, asked.threads)}
    return result


def _rows(kernel: Kernel, cell: Mapping[str, Any]) -> Iterator[Row]:
    for part, of in cell.get("parts", {}).items():
        yield Row(HERE, kernel, part, of["ns"], of["low_ns"], of["high_ns"], of["flops"], of["bytes"])
