"""Parts of a section: figures, tables, facts, notes. Nothing here computes.

A part names its macro in parts.html.j2 by `kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Union

from stepscope.fault_isolation import FailedPart, result_or_failed_part
from stepscope.report.table import Table


@dataclass(frozen=True)
class Figure:
    """A chart: a function that builds it for a width in px, as SVG when it is drawn.

    `name` is what `stepscope figure` calls it; the section lists it in FIGURES.
    """

    chart: Callable[[int], Any]
    caption: str
    name: str = ""
    kind: ClassVar[str] = "figure"

    @cached_property
    def wide(self) -> str:
        """SVG text; a phone scrolls it sideways."""
        from stepscope.report.charts.style import WIDE, draw_svg

        return draw_svg(self.chart(WIDE))

    @property
    def wide_or_failure(self) -> str | FailedPart:
        """SVG text, or why it cannot be drawn: that costs the page this figure alone."""
        return result_or_failed_part(lambda: self.wide)


@dataclass(frozen=True)
class KeyFigure:
    """One headline number with what surrounds it; `interval`, in its unit, is empty where it was not sampled.

    kind: "simulated" or "estimated", where it is.
    """

    label: str
    value: str
    interval: str = ""
    note: str = ""
    kind: str = ""

    @property
    def number(self) -> str:
        """Return the value without its unit; a percent sign stays with it."""
        return self.value if self.value.endswith(" %") else self.value.partition(" ")[0]

    @property
    def unit(self) -> str:
        """Return the unit, empty where the value has none."""
        return self.value.removeprefix(self.number).strip()


@dataclass(frozen=True)
class KeyFigures:
    """The headline numbers side by side."""

    items: tuple[KeyFigure, ...]
    kind: ClassVar[str] = "key_figures"


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
class More:
    """Parts that are closed until somebody opens them."""

    heading: str
    parts: tuple[Part, ...]
    kind: ClassVar[str] = "more"


@dataclass(frozen=True)
class TabbedViews:
    """Several views of the same content, one visible at a time: a heading and a part each."""

    parts: tuple[tuple[str, Part], ...]
    kind: ClassVar[str] = "views"


@dataclass(frozen=True)
class BottleneckAnswer:
    """The bottleneck of a run, how sure that is, the evidence, what to know before a number is used, the next step.

    fits: which sizes of memory the training fits, as it was measured; layer: the one that takes longest.
    """

    title: str
    confidence: str
    evidence: tuple[str, ...]
    cautions: tuple[str, ...]
    next: tuple[str, ...]
    fits: str = ""
    layer: str = ""
    kind: ClassVar[str] = "answer"


@dataclass(frozen=True)
class Shares:
    """One bar of parts that add up: name, phase (its colour) and share of each."""

    heading: str
    rows: tuple[tuple[str, str, float], ...]
    kind: ClassVar[str] = "shares"


@dataclass(frozen=True)
class Bars:
    """A list of layers with one bar each: `data` is what page/layers.js draws, a row a layer and a value a metric."""

    data: dict[str, Any]
    caption: str
    kind: ClassVar[str] = "bars"


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
class Layer:
    """One quantity of an icicle's modules: total, forward, backward, optimizer and own of each row, or None."""

    key: str
    title: str
    unit: str
    source: str
    rows: Sequence[Sequence[float | None] | None]


@dataclass(frozen=True)
class Icicle:
    """A tree of modules: `columns` names the fields of each row of `rows`, parents before children.

    The first of `layers` is what is shown at first.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    layers: tuple[Layer, ...]
    caption: str
    name: str = ""  # as of a Figure
    kind: ClassVar[str] = "icicle"

    @property
    def layers_data(self) -> list[dict[str, Any]]:
        """The layers for the page's script."""
        return [asdict(layer) for layer in self.layers]


@dataclass(frozen=True)
class Anatomy:
    """One step on a time axis: `data` is what page/anatomy.js draws, `chart` the same as a figure on paper."""

    data: dict[str, Any]
    chart: Callable[[int], Any]
    caption: str
    name: str = ""  # as of a Figure
    kind: ClassVar[str] = "anatomy"


Part = Union[  # noqa: UP007 - Python 3.10
    Figure, KeyFigures, Table, Facts, Items, More, TabbedViews, BottleneckAnswer, Shares, Bars, Note,
    Command, Icicle, Anatomy
]  # fmt: skip


@dataclass(frozen=True)
class Section:
    """One section of the page: a sentence that says what it shows, and its parts from top to bottom.

    Without parts it is no section of the page: its lede, where it has one, is a phrase of the last line, which says
    what is missing. A closed one is opened by its heading.
    """

    lede: str
    parts: tuple[Part, ...] = ()
    closed: bool = False


def walk_parts(parts: Iterable[Part]) -> Iterator[Part]:
    """Every part, those inside others after them."""
    for part in parts:
        yield part
        if isinstance(part, More):
            yield from walk_parts(part.parts)
        elif isinstance(part, TabbedViews):
            yield from walk_parts(inner for _, inner in part.parts)
