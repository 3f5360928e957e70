"""The line of the training's code that calls each layer and each operator, from one profiled step.

No tracer runs for it. Where a module is called, a backward pass begins, an optimizer updates or a batch is fetched, our
code runs anyhow and looks at the frames above it: these lines are exact. An operator that is called by a function lies
between two of them, and the bytecode of that function tells which of its lines call such an operator: where one does
it is that line, where several may it is their range ("model.py:12-15"). A backward operator has the line of the forward
operator that made its node. Code of torch and of the standard library is passed over for what called it; of other
libraries only where none of the training's own lies nearer.
"""

from __future__ import annotations

import contextlib
import dis
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from stepscope.arrays import Ints
from stepscope.clock import monotonic_ns
from stepscope.record.fault_boundary import INSTALLED
from stepscope.record.ops.events import (
    BACKWARD_NODE,
    MODULE_SCOPE,
    NO_PARENT,
    OPTIMIZER_STEP,
    Names,
    phase_marked_by,
)
from stepscope.record.ops.modules import ModuleRegistry
from stepscope.record.ops.rows import LabelledEvents, StepSpan, row_name
from stepscope.runfolder import DATA_LOADER, PHASES, RunWriter

MOST_CALLS = 20_000  # of modules in the step: of a larger one the first
MOST_ROWS = 20_000  # of a step: of a larger one only modules, updates and batches have their lines
_DEEPEST = 4  # functions that call functions
_MOST_SITES = 4_000  # of one function with those that it calls
_BACKWARD, _OPTIMIZER, _DATA = "backward", "optimizer", "data"
_NOTED = (MODULE_SCOPE, OPTIMIZER_STEP, DATA_LOADER)  # begins of names of what was noted as it was called

_PASSED_OVER, _LIBRARY, _OWN = range(3)
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep  # torchvision is not torch
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_ROUTES = str(Path(__file__).parents[1] / "torch_hooks.py")
_TRAINED_HERE = (str(Path(_PACKAGE) / "workloads"), str(Path(_PACKAGE) / "record" / "train.py"))


class SourceRange(NamedTuple):
    """Lines of a file; they are one where it is known which."""

    file: str
    first: int
    last: int


def _code_origin(file: str) -> int:
    """Whose code a file holds: what is passed over, a library's, or the training's own."""
    if file.startswith(_TRAINED_HERE):
        return _OWN
    if file.startswith((_PACKAGE, _TORCH)) or (file.startswith("<") and not file.startswith("<ipython")):
        return _PASSED_OVER
    if any(part in file for part in INSTALLED):
        return _LIBRARY
    return _PASSED_OVER if file.startswith(_STANDARD) else _OWN


@dataclass(frozen=True)
class _CallSite:
    """The place of a call: the nearest lines of own and of library code, and whether it is outside all modules."""

    own: SourceRange | None
    library: SourceRange | None
    outermost: bool


@dataclass
class CallSites:
    """The source lines that the calls of one thread come from, noted for one step."""

    index: Callable[[Any], int]
    also: Any = None  # a listener that would hear of the calls otherwise
    calls: list[tuple[int, type, _CallSite]] = field(default_factory=list)
    marks: dict[str, list[tuple[int, _CallSite]]] = field(default_factory=dict)
    codes: dict[CodeType, dict[str, Any]] = field(default_factory=dict)  # of loops, with the names that they know
    _depth: int = 0
    _thread: int = field(default_factory=threading.get_ident)

    def enter(self, module: Any, args: Any = (), kwargs: Any = None) -> None:
        """A module is called."""
        if self.also is not None:
            self.also.enter(module, args, kwargs)
        if threading.get_ident() == self._thread:
            if len(self.calls) < MOST_CALLS:
                self.calls.append((self.index(module), type(module), self._call_site(sys._getframe(1))))
            self._depth += 1

    def leave(self) -> None:
        """The last one that was called returns."""
        if self.also is not None:
            self.also.leave()
        if threading.get_ident() == self._thread:
            self._depth = max(self._depth - 1, 0)

    def mark(self, kind: str) -> None:
        """A backward pass begins, an optimizer updates, or a batch was fetched."""
        if threading.get_ident() == self._thread:
            self.marks.setdefault(kind, []).append((monotonic_ns(), self._call_site(sys._getframe(1))))

    def _call_site(self, frame: FrameType | None) -> _CallSite:
        """Look outwards from a frame of ours, from one call of a module to the next."""
        crossed, library = -1, None
        inside = False
        while frame is not None:
            file = frame.f_code.co_filename
            if file == _ROUTES:
                if library is not None:
                    break
                crossed += not inside
                inside = True
            else:
                inside = False
                kind = _cached_code_origin(file)
                if kind == _OWN or (kind == _LIBRARY and library is None):
                    site = SourceRange(file, frame.f_lineno, frame.f_lineno)
                    if crossed >= self._depth and len(self.codes) < 50:
                        self.codes.setdefault(frame.f_code, frame.f_globals)
                    if kind == _OWN:
                        return _CallSite(site, library, crossed >= self._depth)
                    library = site
            frame = frame.f_back
        return _CallSite(None, library, crossed >= self._depth)

    def chosen(self, place: _CallSite) -> SourceRange | None:
        """Outside all modules a line of the training's own tells nothing where the whole step comes from it."""
        if place.own is None or place.library is None:
            return place.own or place.library
        if not place.outermost:
            return place.own
        marks = (mark for noted in self.marks.values() for _, mark in noted)
        lines = {site.own for site in (*(call[2] for call in self.calls), *marks) if site.outermost}
        return place.own if len(lines) > 1 else place.library


_known_kinds: dict[str, int] = {}


def _cached_code_origin(file: str) -> int:
    origin = _known_kinds.get(file)
    if origin is None:
        origin = _known_kinds[file] = _code_origin(file)
    return origin


# What a function calls, read from its bytecode: names of functions and methods, and signs of operators.

_SIGNS = {
    "BINARY_ADD": "+", "INPLACE_ADD": "+", "BINARY_SUBTRACT": "-", "INPLACE_SUBTRACT": "-", "BINARY_MULTIPLY": "*",
    "INPLACE_MULTIPLY": "*", "BINARY_TRUE_DIVIDE": "/", "INPLACE_TRUE_DIVIDE": "/", "BINARY_POWER": "**",
    "BINARY_MATRIX_MULTIPLY": "@", "INPLACE_MATRIX_MULTIPLY": "@", "BINARY_FLOOR_DIVIDE": "//",
    "BINARY_SUBSCR": "[]", "BINARY_SLICE": "[]", "STORE_SUBSCR": "[]=", "STORE_SLICE": "[]=", "UNARY_NEGATIVE": "neg",
    "BINARY_AND": "&", "BINARY_OR": "|",
}  # fmt: skip
_CALLED_AS = {
    "add": ("+",), "sub": ("-",), "rsub": ("-",), "mul": ("*",), "div": ("/", "true_divide"), "pow": ("**", "square"),
    "matmul": ("@",), "mm": ("@",), "bmm": ("@",), "floor_divide": ("//",), "neg": ("-",), "reciprocal": ("/",),
    "slice": ("[]",), "select": ("[]",), "index": ("[]",), "index_put": ("[]=",), "copy": ("[]=",),
    "unsqueeze": ("[]",), "fill": ("[]=", "full", "ones"), "cross_entropy_loss": ("cross_entropy",),
    "nll_loss_nd": ("nll_loss",),
    "to": ("float", "half", "bfloat16", "double", "long", "int", "type", "cuda", "cpu", "type_as"),
    "item": ("float", "int"), "is_nonzero": ("bool",), "linalg_vector_norm": ("norm",), "t": ("T",), "numpy_T": ("T",),
    "lift_fresh": ("tensor",), "_softmax": ("softmax",), "le": ("<=",), "lt": ("<",), "ge": (">=",), "gt": (">",),
    "eq": ("==",), "ne": ("!=",), "bitwise_and": ("&",), "bitwise_or": ("|",), "__and__": ("&",), "__or__": ("|",),
    "upsample_nearest2d": ("interpolate",), "upsample_bilinear2d": ("interpolate",), "permute": ("transpose",),
}  # fmt: skip


class _Call(NamedTuple):
    name: str
    site: SourceRange


def _calls_in(
    code: CodeType, names: dict[str, Any], owner: type | None, depth: int = 0, at: SourceRange | None = None
) -> Iterator[_Call]:
    """Yield what a function calls, in the order of its code, and what the functions call that can be told from names.

    owner: the class whose method it is. at: the line to say for all of it, of a function of torch.
    """
    target: Any = None
    first = code.co_varnames[0] if code.co_argcount else None
    line = code.co_firstlineno
    within: dict[str, CodeType] = {}
    for instruction in dis.get_instructions(code):
        opcode, value = instruction.opname, instruction.argval
        line = _line_of(instruction) or line
        site = at or SourceRange(code.co_filename, line, line)
        if opcode in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_METHOD", "LOAD_ATTR"):
            yield _Call(value, site)
            if opcode in ("LOAD_GLOBAL", "LOAD_NAME"):
                target = names.get(value)
            elif isinstance(target, ModuleType):
                target = vars(target).get(value)
            elif target is owner and owner is not None:
                target = next((vars(kind)[value] for kind in owner.__mro__ if value in vars(kind)), None)
            else:
                target = None
            if type(target) is FunctionType and depth < _DEEPEST:
                yield from _calls_within_function(target, owner if opcode != "LOAD_GLOBAL" else None, depth, site, at)
            elif isinstance(value, str) and value in within and depth < _DEEPEST:
                yield from _calls_in(within[value], names, owner, depth + 1, at)
        elif opcode == "LOAD_CONST" and isinstance(value, CodeType):
            if value.co_name.startswith("<"):
                yield from _calls_in(value, names, owner, depth + 1, at)
            else:
                within[value.co_name] = value
        elif opcode.startswith(("LOAD_FAST", "LOAD_DEREF")):
            value = value[-1] if isinstance(value, tuple) else value
            target = owner if value == first else None
            if value in within and depth < _DEEPEST:
                yield from _calls_in(within[value], names, owner, depth + 1, at)
        elif opcode == "BINARY_OP":
            yield _Call(instruction.argrepr.rstrip("="), site)
        elif opcode == "COMPARE_OP":
            yield _Call(str(value), site)
        elif opcode in _SIGNS:
            yield _Call(_SIGNS[opcode], site)


def _calls_within_function(
    function: FunctionType, owner: type | None, depth: int, site: SourceRange, at: SourceRange | None
) -> Iterator[_Call]:
    own = _cached_code_origin(function.__code__.co_filename) != _PASSED_OVER
    if own:
        yield from _calls_in(function.__code__, function.__globals__, owner, depth + 1, at)
    elif at is None:
        yield from _calls_in(function.__code__, function.__globals__, None, _DEEPEST - 1, site)


def _line_of(instruction: dis.Instruction) -> int | None:
    positions = getattr(instruction, "positions", None)
    if positions is not None and positions.lineno is not None:
        return int(positions.lineno)
    begins = getattr(instruction, "line_number", None) or instruction.starts_line
    return begins if type(begins) is int else None


def _names_of(text: str) -> frozenset[str]:
    """How an operator is called in Python."""
    base = text.removeprefix("aten::")
    if text.startswith("Optimizer."):
        return frozenset({text.rpartition(".")[2]})
    plain = base.rstrip("_") if not base.startswith("__") else base
    return frozenset({base, plain, plain.lstrip("_"), *_CALLED_AS.get(plain, ())})


# From the lines of calls to those of all op calls of the step.


class _SourceLineAssigner:
    """Gives the rows of one step their sites."""

    def __init__(self, sites: CallSites, table: LabelledEvents, texts: list[str], span: StepSpan) -> None:
        self._sites, self._table, self._texts = sites, table, texts
        events = table.events
        self._step = (table.t0_ns >= span.t0_ns) & (table.t0_ns < span.t1_ns) & (events.gpu < 0)
        if np.count_nonzero(self._step) > MOST_ROWS:
            name_numbers = [number for number, text in enumerate(texts) if text.startswith(_NOTED)]
            self._step &= np.isin(events.name, name_numbers)
        self.ranges: list[SourceRange | None] = [None] * len(table.t0_ns)
        self._static: dict[Any, list[_Call]] = {}
        self._names: dict[int, frozenset[str]] = {}
        self._kinds: dict[int, type] = {}  # of module rows

    def rows(self) -> Ints:
        """Return the rows that are given lines."""
        return np.flatnonzero(self._step)

    def read(self) -> None:
        """Exact lines first, then what lies between them, then backward and all that these call."""
        events, texts = self._table.events, self._texts
        rows = self.rows()
        rows = rows[np.argsort(self._table.t0_ns[rows], kind="stable")]
        marked = {name: phase_marked_by(texts[name]) for name in set(events.name[rows].tolist())}
        scoped = {name for name in marked if texts[name].startswith(MODULE_SCOPE)}
        self._assign_lines_of_modules([row for row in rows.tolist() if int(events.name[row]) in scoped])
        starts = {_OPTIMIZER: OPTIMIZER_STEP, _DATA: DATA_LOADER}
        for kind, begin in starts.items():
            self._assign_marked_lines(
                kind, [row for row in rows.tolist() if texts[int(events.name[row])].startswith(begin)]
            )
        contexts: dict[int, list[int]] = {}
        for row in rows.tolist():
            above = int(self._table.parent[row])
            outside = above == NO_PARENT or int(events.name[above]) in scoped
            if (
                outside
                and events.scope[row] != BACKWARD_NODE
                and not texts[int(events.name[row])].startswith("autograd::")
            ):
                contexts.setdefault(above, []).append(row)
        for context, children in contexts.items():
            self._assign_lines_between(context, children)
        self._assign_lines_of_backward(rows)
        for row in rows.tolist():  # parents come before children
            above = int(self._table.parent[row])
            if self.ranges[row] is None and above != NO_PARENT:
                self.ranges[row] = self.ranges[above]

    def _assign_lines_of_modules(self, rows: list[int]) -> None:
        """The n-th call of a module is its n-th row."""
        of_module: dict[int, list[tuple[type, SourceRange | None]]] = {}
        for index, kind, place in self._sites.calls:
            of_module.setdefault(index, []).append((kind, self._sites.chosen(place)))
        for row in rows:
            noted = of_module.get(int(self._texts[int(self._table.events.name[row])][len(MODULE_SCOPE) :]))
            if noted:
                self._kinds[row], self.ranges[row] = noted.pop(0)

    def _assign_marked_lines(self, kind: str, rows: list[int]) -> None:
        noted = [self._sites.chosen(place) for _, place in self._sites.marks.get(kind, ())]
        for number, row in enumerate(rows):
            if noted:
                self.ranges[row] = noted[min(number, len(noted) - 1)]

    def _assign_lines_between(self, context: int, rows: list[int]) -> None:
        """Ops that a function calls itself: within the call of a module, or outside all."""
        calls = self._calls_of(context)
        if calls is None:
            return  # a module of torch's own: what it calls has the line that calls it
        events = self._table.events
        exact = [(int(self._table.t0_ns[row]), site) for row in rows if (site := self.ranges[row]) is not None]
        if context == NO_PARENT:
            passes = self._sites.marks.get(_BACKWARD, ())
            exact += [(at, site) for at, place in passes if (site := self._sites.chosen(place)) is not None]
        exact.sort(key=lambda entry: entry[0])
        times = [at for at, _ in exact]
        gaps: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            if self.ranges[row] is None:
                gap = int(np.searchsorted(times, self._table.t0_ns[row]))
                gaps.setdefault((gap, int(events.name[row])), []).append(row)
        for (gap, name), alike in gaps.items():
            before = exact[gap - 1][1] if gap else None
            after = exact[gap][1] if gap < len(exact) else None
            names = self._names.get(name)
            if names is None:
                names = self._names[name] = _names_of(self._texts[name])
            possible = [call.site for call in calls if call.name in names]
            near = [site for site in possible if _lies_between(site, before, after)] or possible
            for row, site in zip(alike, _distribute_lines(near, len(alike)), strict=True):
                self.ranges[row] = site

    def _calls_of(self, context: int) -> list[_Call] | None:
        kind = self._kinds.get(context) if context != NO_PARENT else None
        if context != NO_PARENT and kind is None:
            return None
        if kind not in self._static:
            self._static[kind] = list(islice(self._read_code(kind), _MOST_SITES))
        return self._static[kind] if kind is None or self._static[kind] else None

    def _read_code(self, kind: type | None) -> Iterator[_Call]:
        if kind is None:
            for code, names in self._sites.codes.items():
                yield from _calls_in(code, names, None)
            return
        forward = next((vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base)), None)
        for _ in range(_DEEPEST):
            forward = getattr(forward, "__wrapped__", forward)
        if type(forward) is FunctionType and _cached_code_origin(forward.__code__.co_filename) != _PASSED_OVER:
            yield from _calls_in(forward.__code__, forward.__globals__, kind)

    def _assign_lines_of_backward(self, rows: Ints) -> None:
        """A node has the line of the op that made it; what gathers a gradient, that of the node before it."""
        events, table = self._table.events, self._table
        passes = [(at, self._sites.chosen(place)) for at, place in self._sites.marks.get(_BACKWARD, ())]
        times = [at for at, _ in passes]
        before: dict[int, SourceRange | None] = {}
        for row in rows[events.scope[rows] == BACKWARD_NODE].tolist():
            made_by, thread = int(table.made_by[row]), int(events.thread[row])
            if made_by >= 0:
                before[thread] = self._line_of_maker(made_by)
            elif "AccumulateGrad" not in self._texts[int(events.name[row])]:
                before[thread] = None
            self.ranges[row] = before.get(thread)
            above = int(table.parent[row])
            if above != NO_PARENT and self.ranges[above] is None:
                self.ranges[above] = self.ranges[row]
        for row in rows.tolist():
            name = self._texts[int(events.name[row])]
            if (
                self.ranges[row] is None
                and table.parent[row] == NO_PARENT
                and name.startswith(("autograd::", "torch::"))
            ):
                number = int(np.searchsorted(times, table.t0_ns[row])) - 1
                self.ranges[row] = passes[number][1] if number >= 0 else None

    def _line_of_maker(self, row: int) -> SourceRange | None:
        while row != NO_PARENT and self.ranges[row] is None:
            row = int(self._table.parent[row])
        return None if row == NO_PARENT else self.ranges[row]


def _lies_between(site: SourceRange, before: SourceRange | None, after: SourceRange | None) -> bool:
    """Return whether code that runs from line to line could be here; a loop goes back, and everything could."""
    if before is not None and after is not None and before.file == after.file and before.first > after.first:
        return True
    early = before is not None and before.file == site.file and site.last < before.first
    late = after is not None and after.file == site.file and site.first > after.last
    return not (early or late)


def _distribute_lines(possible: list[SourceRange], count: int) -> list[SourceRange | None]:
    """Sites of so many op calls in order: each its own where there are as many, else the range of all."""
    lines = list(dict.fromkeys(possible))
    if len(lines) <= 1:
        return [lines[0] if lines else None] * count
    if len(possible) == count:
        return list(possible)
    if len(lines) == count:
        return list(lines)
    files = {site.file for site in lines}
    if len(files) > 1:
        return [None] * count
    return [SourceRange(files.pop(), min(site.first for site in lines), max(site.last for site in lines))] * count


LINES_WAIT_NS = 5_000_000_000  # later, a run is so long that to find lines takes little of it


class PendingSourceLines:
    """The calls of the first step that is profiled whole, until there is time to find their lines.

    That takes as long as to write a window. What fails in it is noted, and costs nothing else.
    """

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self.sites: CallSites | None = None  # of the window that is open, where its calls are noted
        self.wanted = True
        self._first_step: tuple[int, CallSites, LabelledEvents, StepSpan] | None = None  # and when it was stored, ns

    def note_window(self, index: Callable[[Any], int]) -> CallSites:
        """Return what notes the calls of the window that opens."""
        self.wanted, self.sites = False, CallSites(index)
        return self.sites

    def drop_window(self) -> None:
        """No step was profiled whole in the window that has closed: the next one is to note its calls."""
        self.wanted = self.wanted or self.sites is not None
        self.sites = None

    def store_first_step(self, table: LabelledEvents, spans: list[StepSpan]) -> None:
        """Keep the first of these steps, where its calls were noted."""
        if self.sites is None or not spans:
            self.drop_window()
            return
        self._first_step, self.sites = (monotonic_ns(), self.sites, table, spans[0]), None

    def write_first_step(self, writer: RunWriter, names: Names, modules: ModuleRegistry, after_ns: int = 0) -> None:
        """Write sources.json, once, where a step was stored so long ago."""
        if self._first_step is None or monotonic_ns() - self._first_step[0] < after_ns:
            return
        (_, sites, table, span), self._first_step = self._first_step, None
        try:
            writer.write_source_lines(sources_of(sites, table, names.texts(), modules.names(), span))
        except Exception as error:
            self._note("sources-lost", f"{type(error).__name__}: {error}")


def sources_of(
    sites: CallSites, table: LabelledEvents, texts: list[str], modules: list[tuple[str, str]], span: StepSpan
) -> dict[str, Any]:
    """Return the content of sources.json: for each phase, module and op name of the step the lines of its calls."""
    reader = _SourceLineAssigner(sites, table, texts, span)
    reader.read()
    label = _Labels()
    rows = reader.rows()
    rows = rows[np.lexsort((-table.events.t1[rows], table.t0_ns[rows]))]
    lines_by_key: dict[tuple[int, int, int], list[int]] = {}
    for row in rows.tolist():
        key = int(table.phase[row]), int(table.module[row]), int(table.events.name[row])
        lines_by_key.setdefault(key, []).append(label.number(reader.ranges[row]))
    lines_of_rows = [
        [
            PHASES[phase],
            modules[module][0] if module >= 0 else None,
            row_name(texts[name], modules),
            lines[:1] if len(set(lines)) == 1 else lines,
        ]
        for (phase, module, name), lines in lines_by_key.items()
        if any(line >= 0 for line in lines)
    ]
    return {"step": span.step, "sources": label.texts(), "rows": lines_of_rows}


class _Labels:
    """Sites as texts: a file below the working directory by its path there, an installed one by its package's."""

    def __init__(self) -> None:
        self._numbers: dict[SourceRange, int] = {}
        self._cells: Any = {}
        with contextlib.suppress(Exception):  # of a notebook: its kernel knows the number of each cell's file
            self._cells = sys.modules["IPython"].get_ipython().compile._filename_map

    def number(self, site: SourceRange | None) -> int:
        """A number for a site, -1 for none."""
        return -1 if site is None else self._numbers.setdefault(site, len(self._numbers))

    def texts(self) -> list[str]:
        """The sites in the order of their numbers: "model.py:12", or "model.py:12-15" where it is one of these."""
        return [f"{self._file(s.file)}:{s.first}" + (f"-{s.last}" if s.last > s.first else "") for s in self._numbers]

    def _file(self, file: str) -> str:
        if file in self._cells:
            return f"cell {self._cells[file]}"
        installed = next((file.rpartition(part)[2] for part in INSTALLED if part in file), None)
        if installed is not None:
            return installed
        if file.startswith(_PACKAGE):
            return os.path.relpath(file, Path(_PACKAGE).parent)
        with contextlib.suppress(ValueError, OSError):
            below = os.path.relpath(file)
            return file if below.startswith("..") else below
        return file
