"""What a section may hold. A part names its macro in parts.html.j2 by `kind`; nothing here draws or computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Union


@dataclass(frozen=True)
class Figure:
    """A chart as SVG text, drawn once for wide and once for narrow screens."""

    wide: str
    narrow: str
    caption: str
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class KeyFigure:
    """One headline number with what surrounds it; `interval` is empty where the number was not sampled."""

    label: str
    value: str
    interval: str = ""
    note: str = ""


@dataclass(frozen=True)
class KeyFigures:
    """The headline numbers side by side."""

    items: tuple[KeyFigure, ...]
    kind: ClassVar[str] = "key_figures"


@dataclass(frozen=True)
class Column:
    """A column of a table; `numeric` aligns to the right and sorts downwards first."""

    title: str
    numeric: bool = True
    meaning: str = ""


@dataclass(frozen=True)
class Cell:
    """What a cell says, what it sorts by (None sorts last), and a share of one to draw as a bar behind it."""

    text: str
    sort: float | str | None = None
    bar: float | None = None


@dataclass(frozen=True)
class Table:
    """A table that sorts, filters and copies; the first `shown` rows are visible until asked for the rest."""

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
    caption: str = ""
    shown: int = 12
    lively: bool = True  # a few rows need no tools
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Facts:
    """Names and values, one below the other."""

    rows: tuple[tuple[str, str], ...]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Items:
    """A list of short statements, each with a reason or remedy."""

    rows: tuple[tuple[str, str], ...]
    heading: str = ""
    kind: ClassVar[str] = "items"


@dataclass(frozen=True)
class Note:
    """A sentence in place of, or below, something drawn."""

    text: str
    kind: ClassVar[str] = "note"


@dataclass(frozen=True)
class Command:
    """A command line to copy."""

    text: str
    kind: ClassVar[str] = "command"


@dataclass(frozen=True)
class Icicle:
    """A tree of modules: `columns` names the fields of each row of `rows`, parents before children."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    caption: str
    kind: ClassVar[str] = "icicle"


Part = Union[Figure, KeyFigures, Table, Facts, Items, Note, Command, Icicle]  # noqa: UP007 - a value on Python 3.10


@dataclass(frozen=True)
class Section:
    """One section of the page: a sentence that says what it shows, and its parts from top to bottom."""

    lede: str
    parts: tuple[Part, ...] = ()
