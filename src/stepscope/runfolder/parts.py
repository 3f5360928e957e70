"""Op calls and memory events of one window as columns of numpy, and as a file; no polars, which the training forbids.

A .part file is `SSPART1\\n`, the length and CRC32 of a JSON header (u32 each, little endian), the header, and one
zlib block a column. The header has `version`, `rows`, `texts` (of text columns) and `columns`, in the order of the
blocks: name, dtype, form, base, bytes and CRC32 of the block. Within a block the bytes of a dtype lie apart: all the
lowest, then all the next. `form` says what the numbers are: "plain"; "delta", each less the one before it, the first
less `base`; "after t0_ns", less that column; "within t0_ns t1_ns", the part of that span that is not in the column.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.runfolder.schema import NULL_BELOW_ZERO, TABLES, TEXT

MAGIC = b"SSPART1\n"
VERSION = 1
_HEAD = struct.Struct("<II")
_DTYPES = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<i8")
_FORMS = {"t0_ns": "delta", "t_ns": "delta", "tensor": "delta", "parent": "delta", "t1_ns": "after t0_ns",
          "self_ns": "within t0_ns t1_ns"}  # fmt: skip
_LEVEL = 1
# What a file that is damaged, or was never ours, can raise besides ValueError.
_DAMAGE = (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error, zlib.error)
Column = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Part:
    """Columns of one length; a text column holds places in its list of texts, -1 where it is null.

    Integer columns of `NULL_BELOW_ZERO` are null where they are below zero.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


def null_below_zero(table: str, name: str) -> bool:
    """Return whether a number below zero in this column stands for null."""
    return TABLES[table][name] == TEXT or name in NULL_BELOW_ZERO[table]


def to_bytes(part: Part, table: str) -> bytes:
    """Return the file of a part; columns that the table does not have are excluded."""
    blocks, columns, texts = [], [], {}
    for name, kind in TABLES[table].items():
        values = part.columns[name]
        if kind == TEXT:
            values, texts[name] = _compact_texts(values, part.texts[name])
        form = _FORMS.get(name, "plain")
        whole = np.asarray(values, dtype=np.int64)
        base = int(whole[0]) if form == "delta" and len(whole) else 0
        narrow = _narrowest_integers(_encode_column(whole, form, base, part.columns))
        block = zlib.compress(_split_byte_planes(narrow), _LEVEL)
        blocks.append(block)
        column_facts = {"name": name, "dtype": narrow.dtype.str.replace("|", "<"), "form": form, "base": base}
        columns.append({**column_facts, "bytes": len(block), "crc": zlib.crc32(block)})
    about = {"version": VERSION, "rows": len(part), "columns": columns, "texts": texts}
    header = json.dumps(about, separators=(",", ":")).encode()
    return b"".join([MAGIC, _HEAD.pack(len(header), zlib.crc32(header)), header, *blocks])


def from_bytes(data: bytes, table: str) -> Part:
    """Return the part of a file; ValueError where it is damaged, cut off, or of another table."""
    try:
        return _from_bytes(data, table)
    except _DAMAGE as error:
        raise ValueError(f"not a part of {table}: {error!r}") from error


def read_part(path: Path, table: str) -> Part:
    """Return the part of a file; ValueError where it is damaged, OSError where it cannot be read."""
    return from_bytes(path.read_bytes(), table)


def bytes_before_step(path: Path, step: int) -> bytes:
    """Return the file of a part, `<table>/<number>.part`, without the rows of this step and later ones."""
    table = path.parent.name
    part = read_part(path, table)
    is_before = part.columns["step"] < step
    return to_bytes(Part({name: values[is_before] for name, values in part.columns.items()}, part.texts), table)


def _from_bytes(data: bytes, table: str) -> Part:
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("it does not begin as a part does")
    begin = len(MAGIC) + _HEAD.size
    length, crc = _HEAD.unpack(data[len(MAGIC) : begin])
    header = data[begin : begin + length]
    if zlib.crc32(header) != crc:
        raise ValueError("the header is damaged")
    about = json.loads(header)
    if about["version"] != VERSION:
        raise ValueError(f"version {about['version']} is not known")
    columns: dict[str, Column] = {}
    at = begin + length
    for column in about["columns"]:
        block = data[at : at + column["bytes"]]
        at += column["bytes"]
        if zlib.crc32(block) != column["crc"]:
            raise ValueError(f"column {column['name']} is damaged")
        values = _join_byte_planes(block, column["dtype"], about["rows"])
        columns[column["name"]] = _decode_column(values, column["form"], column["base"], columns)
    texts = about["texts"]
    for name, kind in TABLES[table].items():
        values = columns[name]
        if kind != TEXT:
            continue
        if not isinstance(texts[name], list) or not all(isinstance(text, str) for text in texts[name]):
            raise ValueError(f"column {name} has no list of texts")
        if values.max(initial=-1) >= len(texts[name]):
            raise ValueError(f"column {name} has no such text")
    return Part(columns, texts)


def _compact_texts(values: Column, texts: Sequence[str]) -> tuple[Column, list[str]]:
    """Return the texts as indices into a list of the distinct texts that are used."""
    used = np.flatnonzero(np.bincount(values + 1, minlength=1)[1:]).tolist()
    places: dict[str, int] = {}
    new = np.full(len(texts) + 1, -1, dtype=np.int64)  # the last is the place of null
    for place in used:
        # A name of the user's may hold half a surrogate pair, which no table can.
        text = texts[place].encode("utf-8", "replace").decode()
        new[place] = places.setdefault(text, len(places))
    return new[values], list(places)


def _encode_column(values: Column, form: str, base: int, columns: Mapping[str, Column]) -> Column:
    if form == "delta":
        return np.diff(values, prepend=np.int64(base))
    other = _reference_column(form, columns)
    difference: Column = other - values if form.startswith("within") else values - other
    return difference


def _decode_column(values: Column, form: str, base: int, columns: Mapping[str, Column]) -> Column:
    if form == "delta":
        whole: Column = np.cumsum(values, dtype=np.int64) + np.int64(base)
        return whole
    other = _reference_column(form, columns)
    column: Column = other - values if form.startswith("within") else values + other
    return column


def _reference_column(form: str, columns: Mapping[str, Column]) -> Column | int:
    """Return the number that those of a column are counted from."""
    match form.split():
        case ["plain"]:
            return 0
        case ["after", first]:
            return columns[first]
        case ["within", first, last]:
            length: Column = columns[last] - columns[first]
            return length
        case _:
            raise ValueError(f"form {form!r} is not known")


def _narrowest_integers(values: Column) -> Column:
    """Return the numbers in the smallest dtype that holds them."""
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for dtype in _DTYPES:
        limits = np.iinfo(dtype)
        if limits.min <= least and most <= limits.max:
            return values.astype(dtype)
    return values


def _split_byte_planes(values: Column) -> bytes:
    """Bytes of the same weight side by side, which compress better."""
    return values.view(np.uint8).reshape(len(values), -1).T.tobytes() if len(values) else b""


def _join_byte_planes(block: bytes, dtype: str, rows: int) -> Column:
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is not known")
    if not isinstance(rows, int) or rows < 0:
        raise ValueError("no number of rows")
    size = np.dtype(dtype).itemsize * rows
    inflate = zlib.decompressobj()
    plain = inflate.decompress(block, size + 1)
    if len(plain) != size:
        raise ValueError("a column has another number of rows")
    apart = np.frombuffer(plain, dtype=np.uint8).reshape(-1 if rows else 1, rows)
    return np.ascontiguousarray(apart.T).view(dtype).reshape(rows).astype(np.int64)
