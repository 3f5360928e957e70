"""The events of a torch.profiler JSON: read one by one, since the file does not fit into memory, and held as columns.

Each event is decoded by the standard library's C scanner out of a sliding buffer, at some 100 MB/s of one core; the
events that are wanted are kept as columns by whoever takes them.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.arrays import Flags, Ints
from stepscope.errors import UsageError
from stepscope.record.ops.costs import count_op_bytes, count_op_flops, has_formula
from stepscope.record.ops.events import BACKWARD_NODE, MODULE_SCOPE, Events, Names
from stepscope.runfolder import AUTOGRAD_NODE

CHUNK = 4 << 20
MOST_EVENT = 64 << 20  # characters of one event, or of one other entry of the file
MOST_BYTES = 64 << 30  # of JSON, unpacked
_GAP = re.compile(r"[\s,]*")
_CUT = object()
_GZIP = b"\x1f\x8b"
_DECODE = json.JSONDecoder(strict=False).raw_decode  # names of kernels can hold control characters
Take = Callable[[dict[str, Any]], None]


def read_beginning(path: Path, most: int) -> tuple[bytes, bool]:
    """Return the first bytes of a file, unpacked where gzip has packed it (empty if damaged), and whether it has."""
    with path.open("rb") as file:
        begin = file.read(most)
    if not begin.startswith(_GZIP):
        return begin, False
    try:
        return zlib.decompressobj(wbits=31).decompress(begin, most), True
    except zlib.error:
        return b"", True


def read_events(path: Path, take: Take, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Hand every event of a file to `take`; returns the file's other entries, and `cut_off` where it ends too early.

    Both forms of the format are taken: {"traceEvents": [...], ...} and a bare list. Raises UsageError where it is
    neither or grows beyond `most_bytes`.
    """
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        source = _Unpacked(fileobj=file) if packed else file
        text = io.TextIOWrapper(source, encoding="utf-8", errors="replace")
        try:
            return _Scan(text, path.name, most_bytes).all(take)
        except (gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"'{path}' is damaged: {error}", "copy it again") from error


class _Unpacked(gzip.GzipFile):
    """A packed file that ends where it is cut off."""

    def read1(self, size: int = -1) -> bytes:
        """Unpack a piece; nothing where no more can be."""
        try:
            return super().read1(size)
        except EOFError:
            return b""


class _Scan:
    """A buffer that slides over the text, and the place in it."""

    def __init__(self, text: io.TextIOWrapper, name: str, most: int) -> None:
        self.text, self.name, self.left = text, name, most
        self.buffer, self.at, self.ended = "", 0, False

    def all(self, take: Take) -> dict[str, Any]:
        """The whole file."""
        opening = self._next()
        self.at += 1
        if opening == "[":
            return {} if self._events(take) else {"cut_off": True}
        if opening != "{":
            raise UsageError(
                f"'{self.name}' is no Chrome trace: it begins with '{opening}'", "give a torch.profiler JSON"
            )
        facts: dict[str, Any] = {}
        while (character := self._next()) not in ("}", ""):
            key = self._value()
            if character != '"' or self._next() != ":":
                raise self._broken("a name and a colon were expected")
            self.at += 1
            begins = self._next()
            if key == "traceEvents" and begins == "[":
                self.at += 1
                if not self._events(take):
                    return {**facts, "cut_off": True}
            else:
                facts[key] = self._value()
        return facts

    def _events(self, take: Take) -> bool:
        """The list of events up to its end; False where the file ends before it does."""
        while (character := self._next()) != "]":
            if character == "":
                return False
            event = self._value(may_end=True)
            if event is _CUT:
                return False
            if isinstance(event, dict):
                take(event)
        self.at += 1
        return True

    def _next(self) -> str:
        """The next character that is neither blank nor comma, without taking it; empty at the end of the file."""
        while True:
            gap = _GAP.match(self.buffer, self.at)
            self.at = gap.end() if gap else self.at
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self._more():
                return ""

    def _value(self, may_end: bool = False) -> Any:
        """The JSON value here; _CUT where the file ends within it and `may_end`."""
        while True:
            try:
                value, end = _DECODE(self.buffer, self.at)
            except json.JSONDecodeError as error:
                if len(self.buffer) - self.at > MOST_EVENT:
                    raise self._broken(error.msg) from error
                if not self._more():
                    if may_end and _is_cut(self.buffer, error):
                        return _CUT
                    raise self._broken(error.msg) from error
                continue
            except RecursionError as error:
                raise self._broken("values are nested too deep") from error
            except ValueError as error:
                raise self._broken("a number of too many digits") from error
            if end == len(self.buffer) and self._more():
                continue  # a number could go on
            self.at = end
            return value

    def _more(self) -> bool:
        """Bring in more of the file; False at its end."""
        if self.ended:
            return False
        piece = self.text.read(CHUNK)
        self.left -= len(piece)
        if self.left < 0:
            raise UsageError(
                f"'{self.name}' unpacks to more than the limit",
                "record fewer steps, or in Python: Options(most_bytes=...)",
            )
        if not piece:
            self.ended = True
            return False
        self.buffer, self.at = self.buffer[self.at :] + piece, 0
        return True

    def _broken(self, why: str) -> UsageError:
        near = " ".join(self.buffer[self.at : self.at + 60].split())
        return UsageError(
            f"'{self.name}' is no Chrome trace: {why}, at: {near}", "give a torch.profiler JSON, or its .gz"
        )


def _is_cut(text: str, error: json.JSONDecodeError) -> bool:
    """Return whether the text ends where more was to come, and is not wrong before: in a string, a word or between
    values.
    """
    remainder = text[error.pos :].rstrip()
    in_word = len(remainder) < len("Infinity") and remainder.replace("-", "").isalpha()
    in_escape = len(remainder) < len("u00e9") + 2 and "escape" in error.msg
    return not remainder or remainder == "-" or in_word or in_escape or error.msg.startswith("Unterminated")


# Releases differ: categories were "Operator" and "Kernel" before torch 1.12; times count from `baseTimeNanoseconds`
# since 2.3 and from 1970 before; "Fwd thread id" is torch's own number of a thread and not the system's.

UNKNOWN = -1
MODULE = "nn.Module: "
_OPS = {"cpu_op", "user_annotation", "operator"}
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime"}
_COLUMNS = ("name", "t0", "t1", "thread", "sequence", "forward", "gpu", "correlation", "link", "flops", "bytes")


@dataclass
class EventColumns:
    """Content of a file so far; times in ns from the file's own zero."""

    names: Names = field(default_factory=Names)
    modules: dict[str, int] = field(default_factory=dict)  # "Linear_0" -> number
    threads: dict[str, int] = field(default_factory=dict)
    columns: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in _COLUMNS})
    launches: dict[int, int] = field(default_factory=dict)  # correlation -> External id of the op
    excluded: Counter[str] = field(default_factory=Counter)  # events by category
    with_shapes: bool = False

    def take(self, event: dict[str, Any]) -> None:
        """Keep an event if it is an op, a range, a kernel or the call of a module."""
        category = str(event.get("cat", "cpu_op")).lower()
        if event.get("ph") != "X":
            self.excluded[str(event.get("name")) if category == "cpu_instant_event" else "mark"] += 1
            return
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if category in _LAUNCHES:
            self._launch(args)
        elif category in _ON_GPU:
            self._append_row(event, args, _int_or(args.get("device"), 0))
        elif category in _OPS:
            self._append_row(event, args, -1)
        elif category == "python_function" and str(event.get("name", "")).startswith(MODULE):
            self._keep_module(event)
        else:
            self.excluded[category] += 1

    def _launch(self, args: dict[str, Any]) -> None:
        op = _int_or(args.get("External id", args.get("external id")), 0)
        if op > 0:
            self.launches[_int_or(args.get("correlation"), -1)] = op

    def _keep_module(self, event: dict[str, Any]) -> None:
        number = self.modules.setdefault(str(event["name"])[len(MODULE) :], len(self.modules))
        self._append_row({**event, "name": f"{MODULE_SCOPE}{number}"}, {}, -1)

    def _append_row(self, event: dict[str, Any], args: dict[str, Any], gpu: int) -> None:
        try:
            t0 = _us_to_ns(event["ts"])
            t1 = t0 + max(_us_to_ns(event.get("dur", 0)), 0)
            name = str(event["name"])
        except (KeyError, TypeError, ValueError, OverflowError):
            self.excluded["event without a time or a name"] += 1
            return
        if not -(1 << 62) < t0 <= t1 < 1 << 62:
            self.excluded["event without a time or a name"] += 1
            return
        external = _int_or(args.get("External id", args.get("external id")), 0)
        flops, read = self._costs(name, args) if gpu < 0 else (UNKNOWN, UNKNOWN)
        sequence, forward = _int_or(args.get("Sequence number"), -1), _int_or(args.get("Fwd thread id"), 0)
        on = _int_or(args.get("stream"), 0)
        if gpu < 0:
            on = self.threads.setdefault(f"{event.get('pid')}/{event.get('tid')}", len(self.threads))
        link, correlation = (0, external) if gpu < 0 else (external, _int_or(args.get("correlation"), -1))
        row = (self.names.intern(name), t0, t1, on, sequence, forward, gpu, correlation, link, flops, read)
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)

    def _costs(self, name: str, args: dict[str, Any]) -> tuple[int, int]:
        """FLOPs and bytes, where the file states shapes."""
        shapes = args.get("Input Dims", args.get("Input dims"))
        if not isinstance(shapes, list):
            return UNKNOWN, UNKNOWN
        self.with_shapes = True
        types = args.get("Input type", [])
        try:
            flops = count_op_flops(name, shapes, _concrete(args)) if has_formula(name) else None
            read = count_op_bytes(shapes, types) if isinstance(types, list) else None
        except (TypeError, ValueError):
            return UNKNOWN, UNKNOWN
        return tuple(v if isinstance(v, int) and 0 <= v < 1 << 62 else UNKNOWN for v in (flops, read))  # type: ignore[return-value]


def to_events(caught: EventColumns, base_ns: int) -> tuple[Events, Ints, Ints]:
    """The columns in Unix ns, the numbers of the rows in `raw`; and FLOPs and bytes by those numbers."""
    c = {name: np.frombuffer(column, dtype=np.int64) for name, column in caught.columns.items()}
    nodes = _nodes(caught.names)[c["name"]] if len(c["name"]) else np.zeros(0, dtype=bool)
    nodes &= c["gpu"] < 0
    link = c["link"].copy()
    for row in np.flatnonzero((c["gpu"] >= 0) & (link <= 0)).tolist():
        link[row] = caught.launches.get(int(c["correlation"][row]), 0)
    events = Events(
        name=c["name"],
        t0=c["t0"] + base_ns,
        t1=c["t1"] + base_ns,
        thread=c["thread"],
        scope=np.where(nodes, BACKWARD_NODE, 0),
        sequence=c["sequence"],
        forward_thread=_forward_threads(c["forward"], c["thread"], c["sequence"], nodes, c["name"], caught.names),
        gpu=c["gpu"],
        correlation=np.where(c["gpu"] < 0, c["correlation"], 0),
        link=link,
        raw=list(range(len(link))),
    )
    return events, c["flops"], c["bytes"]


def _nodes(names: Names) -> Flags:
    """Return the names that are backward nodes: those that the engine says it evaluates."""
    evaluated = {text.removeprefix(AUTOGRAD_NODE) for text in names.ids if text.startswith(AUTOGRAD_NODE)}
    return np.array([text in evaluated for text in names.ids], dtype=bool)


def _forward_threads(forward: Ints, thread: Ints, sequence: Ints, nodes: Flags, name: Ints, names: Names) -> Ints:
    """The thread that each backward node's forward ran on: the one that has made most of its sequence numbers."""
    threads = np.zeros(len(forward), dtype=np.int64)
    engine = np.array([text.startswith(AUTOGRAD_NODE) for text in names.ids], dtype=bool)
    makes = (sequence >= 0) & ~nodes & ~engine[name] if len(name) else nodes
    for number in np.unique(forward[nodes]).tolist():
        rows = nodes & (forward == number)
        makers = makes & np.isin(sequence, np.unique(sequence[rows & (sequence >= 0)]))
        if makers.any():
            threads[rows] = int(np.bincount(thread[makers]).argmax())
    return threads


def _concrete(args: dict[str, Any]) -> list[Any]:
    """The inputs that are no tensors, which the file has as texts: "[1, 1]", "[True, False]", ""."""
    values = args.get("Concrete Inputs")
    return [_parsed(value) for value in values] if isinstance(values, list) else []


def _parsed(value: object) -> object:
    if value == "" or not isinstance(value, str):
        return None if value == "" else value
    try:
        return json.loads(value.replace("True", "true").replace("False", "false"))
    except ValueError:
        return None


def _int_or(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and -(1 << 62) < value < 1 << 62 else otherwise


def _us_to_ns(micros: float | str) -> int:
    """Microseconds as ns: whole ones apart, since the product of a time since 1970 has more digits than a float."""
    value = micros if isinstance(micros, int) else float(micros)
    whole = int(value)
    return whole * 1000 + round((value - whole) * 1000)
