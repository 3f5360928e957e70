"""Protocol Buffers as they lie on disk: single messages, and many alike at once from columns.

The wire format has few rules: a field is a tag (number * 8 + kind) and a value; kind 0 is a varint (7 bits a byte, the
lowest first), 1 is 8 bytes little endian, 2 a length with that many bytes. A generated library makes an object a
message: too slow for millions, which here are sized first and then written column by column.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from stepscope.arrays import Ints

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.uint64]]
Sizes = Ints
Value = Union[int, float, str, bytes]  # noqa: UP007 - a value on Python 3.10

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def varint(number: int) -> bytes:
    """A number below 2**64 as a varint; a negative one as its two's complement."""
    left, out = number & 0xFFFFFFFFFFFFFFFF, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def message(*fields: tuple[int, Value | None]) -> bytes:
    """One message from (field number, value): int as varint, float as 8 bytes, text and bytes with length."""
    return b"".join(_field(number, value) for number, value in fields if value is not None)


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | _FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    content = value.encode("utf-8", errors="replace") if isinstance(value, str) else value
    return varint(number << 3 | _LENGTH) + varint(len(content)) + content


@dataclass(frozen=True)
class Varints:
    """A field of many messages: values (n,) as varints; `where` (n,) leaves it out of some."""

    number: int
    values: Numbers
    where: Any = None

    def size(self) -> Sizes:
        return len(varint(self.number << 3)) + _lengths(self.values)

    def put(self, out: Bytes, at: Sizes, rows: Any) -> Sizes:
        return _put_varints(out, _put_tag(out, at, self.number << 3 | _VARINT), self.values[rows])


@dataclass(frozen=True)
class Fixed64s:
    """A field of many messages: values (n,) of 8 bytes each, whatever they mean."""

    number: int
    values: Numbers
    where: Any = None

    def size(self) -> Sizes:
        return np.full(len(self.values), len(varint(self.number << 3)) + 8, dtype=np.int64)

    def put(self, out: Bytes, at: Sizes, rows: Any) -> Sizes:
        at = _put_tag(out, at, self.number << 3 | _FIXED64)
        octets = np.ascontiguousarray(self.values[rows].astype("<u8")).view(np.uint8).reshape(-1, 8)
        for place in range(8):
            out[at + place] = octets[:, place]
        return at + 8


@dataclass(frozen=True)
class Messages:
    """A field of many messages that holds a message itself."""

    number: int
    fields: tuple[Field, ...]
    where: Any = None

    def size(self) -> Sizes:
        inside = sizes(self.fields)
        return len(varint(self.number << 3)) + _lengths(inside.astype(np.uint64)) + inside

    def put(self, out: Bytes, at: Sizes, rows: Any) -> Sizes:
        inside = sizes(self.fields)
        at = _put_varints(out, _put_tag(out, at, self.number << 3 | _LENGTH), inside[rows].astype(np.uint64))
        return _put_fields(out, at, self.fields, rows)


Field = Union[Varints, Fixed64s, Messages]  # noqa: UP007 - a value on Python 3.10


def sizes(fields: Sequence[Field]) -> Sizes:
    """Bytes of each of the messages that these columns make: (n,)."""
    total: Sizes = np.zeros(1, dtype=np.int64)
    for field in fields:
        total = total + (field.size() if field.where is None else np.where(field.where, field.size(), 0))
    return total


def encode(number: int, fields: Sequence[Field]) -> bytes:
    """Many messages one after the other, each as field `number` of what contains them."""
    whole = Messages(number, tuple(fields))
    length = whole.size()
    ends = np.cumsum(length)
    out: Bytes = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    whole.put(out, ends - length, slice(None))
    return out.tobytes()


def _put_fields(out: Bytes, at: Sizes, fields: Sequence[Field], rows: Any) -> Sizes:
    for field in fields:
        if field.where is None:
            at = field.put(out, at, rows)
            continue
        chosen = np.flatnonzero(field.where[rows])
        at = at.copy()
        at[chosen] = field.put(out, at[chosen], chosen if isinstance(rows, slice) else rows[chosen])
    return at


def _put_tag(out: Bytes, at: Sizes, tag: int) -> Sizes:
    for octet in varint(tag):
        out[at] = octet
        at = at + 1
    return at


def _put_varints(out: Bytes, at: Sizes, values: Numbers) -> Sizes:
    """All first bytes, then the second bytes of those that have one, and so on."""
    ends = at + _lengths(values)
    more = np.arange(len(values))
    at, left = at.copy(), values.copy()
    while len(more):
        low = (left[more] & np.uint64(0x7F)).astype(np.uint8)
        left[more] >>= np.uint64(7)
        goes_on = left[more] != 0
        out[at[more]] = low | (goes_on.astype(np.uint8) << 7)
        at[more] += 1
        more = more[goes_on]
    return ends


def _lengths(values: Numbers) -> Sizes:
    length = np.ones(len(values), dtype=np.int64)
    for place in range(1, 10):
        above = values >= np.uint64(1 << 7 * place)
        if not above.any():
            break
        length += above
    return length
