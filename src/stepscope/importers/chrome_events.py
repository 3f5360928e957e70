"""The events of a Chrome trace one by one, as they come out of the file: it is never in memory as a whole.

Each event is decoded by the standard library's C scanner out of a sliding buffer, at some 100 MB/s of one core; the
events that are wanted are kept as columns by whoever takes them.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError

CHUNK = 4 << 20
MOST_EVENT = 64 << 20  # characters of one event, or of one other entry of the file
MOST_BYTES = 64 << 30  # of JSON, unpacked
_GAP = re.compile(r"[\s,]*")
_CUT = object()
_GZIP = b"\x1f\x8b"
_DECODE = json.JSONDecoder(strict=False).raw_decode  # names of kernels can hold control characters
Take = Callable[[dict[str, Any]], None]


def read_events(path: Path, take: Take, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Hand every event of a file to `take`; returns the file's other entries, and `cut_off` where it ends too early.

    Both forms of the format are taken: {"traceEvents": [...], ...} and a bare list. Raises UsageError where it is
    neither or grows beyond `most_bytes`.
    """
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        source = gzip.GzipFile(fileobj=file) if packed else file
        text = io.TextIOWrapper(source, encoding="utf-8", errors="replace")
        try:
            return _Scan(text, path.name, most_bytes).all(take)
        except (EOFError, gzip.BadGzipFile) as error:
            raise UsageError(f"'{path}' is damaged: {error}", "copy it again") from error


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
                f"'{self.name}' unpacks to more than the limit", "record fewer steps, or allow it: --max-size"
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
    """Whether the text ends where more was to come, and is not wrong before: in a string, a word or between values."""
    rest = text[error.pos :].rstrip()
    in_word = len(rest) < len("Infinity") and rest.replace("-", "").isalpha()
    in_escape = len(rest) < len("u00e9") + 2 and "escape" in error.msg
    return not rest or rest == "-" or in_word or in_escape or error.msg.startswith("Unterminated")
