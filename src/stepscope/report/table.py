"""The one table: columns over rows, drawn by a terminal, a page, Markdown and LaTeX.

A column says once how the cell of a row is made, by its value, unit and CI. A page draws all of a table itself
(parts.html.j2), a terminal the columns that fit its width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Drawn
from rich.text import Text

from stepscope.units import (
    NOT_MEASURED,
    amount,
    cut_in_the_middle,
    distinct_width,
    escape_control_characters,
    interval,
    milliseconds,
    percent,
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """Text of a cell, what it sorts by (None sorts last), a share to draw as a bar, and what pointing tells.

    style: of the terminal.
    """

    text: str
    sort: float | str | None = None
    bar: float | None = None
    hint: str = ""
    style: str = ""


def _refuse_row(row: Any) -> Cell:
    raise TypeError("the rows of this table are given as cells")


@dataclass(frozen=True)
class Column:
    """A column of a table; `numeric` aligns to the right and sorts downwards first.

    of: makes the cell of a row. key: tells it from others of its title. wide: characters that a terminal keeps for it.
    fold: a terminal may break its cells. names: of a first column that gives way in the middle of its texts, which
    stay different so.
    """

    title: str
    numeric: bool = True
    meaning: str = ""
    of: Callable[[Any], Cell | str] = _refuse_row
    key: str = ""
    wide: int | None = None
    fold: bool = False
    names: bool = False


def text_column(title: str, key: str, form: Callable[[Any], str] = str, *, missing: str = "", **more: Any) -> Column:
    """Return a column of text, which sorts as it reads; missing: what stands for null."""

    def cell(row: Row) -> Cell:
        text = missing if row[key] is None else form(row[key])
        return Cell(text, None if row[key] is None else text)

    return Column(title, numeric=False, of=cell, key=key, **more)


def number_column(
    title: str, key: str, form: str | Callable[[Any], str], *, missing: str = NOT_MEASURED, **more: Any
) -> Column:
    """Return a column of numbers, right-aligned, which sorts by them; form: their unit, or what writes them."""
    write: Callable[[Any], str] = (lambda value: amount(value, form)) if isinstance(form, str) else form
    return Column(
        title, of=lambda row: Cell(missing if row[key] is None else write(row[key]), row[key]), key=key, **more
    )


def interval_column(
    low: str, high: str, form: str | Callable[[Any], str], *, title: str = "95 % CI", missing: str = "", **more: Any
) -> Column:
    """Return the column of a CI that stands behind its estimate; form: the unit, or what writes one end."""

    def cell(row: Row) -> Cell:
        bounds = (row[low], row[high])
        if None in bounds:
            return Cell(missing, row[low])
        return Cell(interval(*bounds, form) if isinstance(form, str) else f"[{', '.join(map(form, bounds))}]", row[low])

    return Column(title, of=cell, key=low, **more)


def percent_bar_column(title: str, key: str, *, digits: int = 1, **more: Any) -> Column:
    """Return a column of shares, which a page draws as bars too."""
    return Column(title, of=lambda row: Cell(percent(row[key], digits), row[key], row[key]), key=key, **more)


def whole_percent(share: float | None) -> str:
    """Return a share in percent without decimals."""
    return percent(share, 0)


def verdict_column() -> Column:
    """Return the column that says what an estimate is good for; pointing at it tells why it is not more."""
    from stepscope.analysis.summary import VERDICT_LABELS

    def cell(row: Row) -> Cell:
        label = VERDICT_LABELS[row["verdict"]]
        return Cell(label, label, hint=(row["reason"] or "") if row["verdict"] != "resolved" else "")

    return Column("Verdict", False, "within 10 %: half of the 99 % CI is at most 10 % of its lower end", cell)


@dataclass(frozen=True)
class Table:
    """A table that a page sorts, filters and copies; its `first_rows` are visible until all are asked for.

    named: columns that say what a row is of, the first ones; each part of one that is too wide begins with them.
    """

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
    caption: str = ""
    first_rows: int = 12
    lively: bool = True  # a few rows need no tools
    named: int = 1
    kind: ClassVar[str] = "table"

    @classmethod
    def from_rows(
        cls, name: str, columns: Iterable[Column], rows: Iterable[Any], caption: str = "", **more: Any
    ) -> Table:
        """Return the table of these columns, a row each."""
        header = tuple(columns)
        contents = ([column.of(row) for column in header] for row in rows)
        cells = [tuple(Cell(part, part) if isinstance(part, str) else part for part in row) for row in contents]
        return cls(name, header, cells, caption, **more)

    def __rich__(self) -> RenderableType:
        return SplitTable(self, look="ruled", leading=self.named, more={"caption": escape(self.caption) or None})

    def select_columns(self, keys: Iterable[str]) -> Table:
        """Return the table of the columns with these keys or titles."""
        names = set(keys)
        return self.columns_at(
            [index for index, column in enumerate(self.columns) if {column.key, column.title} & names]
        )

    def columns_at(self, places: Sequence[int]) -> Table:
        """Return the table of the columns at these places."""
        rows = [tuple(row[place] for place in places if place < len(row)) for row in self.rows]
        return Table(self.name, tuple(self.columns[place] for place in places), rows, self.caption)


_OF_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", "\n": " ", "\r": " ", "|": "\\|", "\\": "\\\\", "`": "\\`"})


def escaped_markdown(text: str) -> str:
    """Return a text as Markdown shows it, in a line: no HTML, link or end of a cell."""
    plain = escape_control_characters(text).translate(_OF_MARKDOWN)
    return plain.replace("](", "]\\(").replace("]:", "]\\:").replace("][", "]\\[")


def markdown(table: Table, escaped: Callable[[str], str] = escaped_markdown) -> list[str]:
    """Return the lines of the table in Markdown."""
    rows = [[column.title for column in table.columns], *([cell.text for cell in row] for row in table.rows)]
    lines = [f"| {' | '.join(escaped(text) or NOT_MEASURED for text in row)} |" for row in rows]
    return [lines[0], f"| {' | '.join(['---'] * len(table.columns))} |", *lines[1:]]


def latex(table: Table, label: str, escaped: Callable[[str], str]) -> str:
    """Return the table as LaTeX sets it with booktabs."""
    rows = [[column.title for column in table.columns], *([cell.text for cell in row] for row in table.rows)]
    head, *lines = [" & ".join(map(escaped, row)) + r" \\" for row in rows]
    above = [r"\begin{table}[t]", r"\centering\footnotesize\setlength{\tabcolsep}{4pt}"]
    above += [f"\\caption{{{escaped(table.caption)}}}", f"\\label{{tab:{label}}}"]
    sides = "".join("r" if column.numeric else "l" for column in table.columns)
    body = [f"\\begin{{tabular}}{{@{{}}{sides}@{{}}}}", r"\toprule", head, r"\midrule", *lines]
    return "\n".join([*above, *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def labels(width: int | None = None, *, style: str = "", gap: int = 0) -> Drawn:
    """Return a layout of two columns: labels, and what stands beside them on lines of its own."""
    drawn = Drawn.grid(padding=(0, gap))
    drawn.add_column(width=width, style=f"cyan {style}".strip(), no_wrap=True)
    drawn.add_column(style=style, ratio=None if gap else 1)
    return drawn


MARK = "* "  # of a share that its time contradicts
SHARE_MEANING = "Of the step time"


def share_cell(row: Mapping[str, Any], median: str = "total_ns", bar: bool = True) -> Cell:
    """The share with its bar; pointing at it tells the mean that it is of."""
    from stepscope.analysis.time.tables import mean_differs_from_median

    share = row["share"]
    if not mean_differs_from_median(row, median):
        return Cell(percent(share), share, share if bar else None)
    hint = f"mean of all profiled steps {milliseconds(row['mean_ns'])} ms, here {milliseconds(row[median])} ms"
    return Cell(f"{MARK}{percent(share)}", share, share if bar else None, hint)


def shares_sentence(rows: Iterable[Mapping[str, Any]], median: str = "total_ns") -> str:
    """A sentence for the caption."""
    from stepscope.analysis.time.tables import mean_differs_from_median

    text = " Times are of a step as it runs without the profiler, and add up to the step time."
    if any(mean_differs_from_median(row, median) for row in rows):
        text += (
            " * single steps were far from the others, and are excluded: point at a share to see the mean with them."
        )
    return text


NAMES = 18  # characters of a name that tell it apart
_GAP = 2
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    "report": {"box": None, "header_style": "cyan", "show_edge": False, "expand": True},
    "ruled": {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False},
    "result": {"box": box.SIMPLE_HEAD, "pad_edge": False},
    "list": {"box": None, "pad_edge": False, "header_style": "cyan"},
    "bold list": {"box": None, "pad_edge": False},
}


def terminal_table(table: Table, look: str = "report", *, heading: str = "", gap: int = _GAP, **more: Any) -> Drawn:
    """Return the table as a terminal draws it; of a report the names in the first column give way, never a number.

    heading: in place of the first title. more: what rich's table takes. A row of no cells is a gap.
    """
    report = look == "report"
    padding = {"padding": (0, gap, 0, 0)} if report else {}
    drawn = Drawn(title_justify="left", caption_justify="left", **{**_LOOKS[look], **padding, **more})
    for index, column in enumerate(table.columns):
        title = heading if heading and index == 0 else column.title if look == "result" else _lower(column.title)
        layout: dict[str, Any] = {
            "no_wrap": not column.fold,
            "overflow": "ellipsis" if report and not column.fold else "fold",
        }
        if report:
            layout |= {"ratio": 1} if index == 0 else {"min_width": column.wide or len(title)}
        drawn.add_column(
            escape(escape_control_characters(title)),
            justify="right" if column.numeric and (index or not report) else "left",
            **layout,
        )
    cut = {
        index: tuple(escape_control_characters(row[index].text) for row in table.rows if index < len(row))
        for index, column in enumerate(table.columns)
        if column.names
    }
    for row in table.rows:
        if row:
            drawn.add_row(
                *(
                    CutName(escape_control_characters(cell.text), cut[index]) if index in cut else _text(cell)
                    for index, cell in enumerate(row)
                )
            )
        else:
            drawn.add_section()
    return drawn


def _lower(title: str) -> str:
    """Return a title as terminals have it: "Forward" is "forward", "FLOP/s" stays."""
    return title[:1].lower() + title[1:] if title[1:2].islower() else title


def _text(cell: Cell) -> RenderableType:
    """Return the text, never as markup: a name may hold what rich takes for it; leading spaces indent each line."""
    text = escape_control_characters(cell.text)
    drawn = Text(text.lstrip(" "), style=cell.style)
    return Padding(drawn, (0, 0, 0, len(text) - len(drawn.plain))) if text[:1] == " " else drawn


@dataclass(frozen=True)
class CutName:
    """A name in a table that gives way in its middle, so that it stays different from the others there."""

    name: str
    among: tuple[str, ...]

    def __str__(self) -> str:
        return self.name

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(NAMES, cell_len(self.name)), cell_len(self.name))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cut = cut_in_the_middle(self.among, options.max_width)
        yield Text(cut[self.among.index(self.name)], no_wrap=True, overflow="ellipsis")


@dataclass(frozen=True)
class FittedTable:
    """A table of a report in the first of several choices of columns whose numbers are whole at the width there is.

    choices: keys or titles of columns, widest first. names: characters of a name that are wanted whole.
    """

    table: Table
    choices: Sequence[Iterable[str]]
    heading: str = ""
    names: int = NAMES

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first = self.table.columns[0]
        tables = [self.table.select_columns((first.key or first.title, *choice)) for choice in self.choices]
        fits = (table for table in tables if _needed_width(table, self.heading, self.names) <= options.max_width)
        fitting = next(fits, None)
        if fitting is None:
            yield SplitTable(tables[-1], self.heading, "report")
        else:
            yield terminal_table(fitting, heading=self.heading)


_LINES = (28, 16)  # characters of a text that are worth a line, in the first column and in others
_FRAMES = {"result": (2, 3), "ruled": (1, 2), "report": (2, 2)}  # around all columns, and between two of them


@dataclass(frozen=True)
class SplitTable:
    """A table in as many parts as its columns need, so that no word is broken; each begins with the first columns.

    title: of a report in place of the first title, of other looks above each part. leading: columns that each part
    begins with. more: what `terminal_table` takes, for the last part.
    """

    table: Table
    title: str = ""
    look: str = "result"
    leading: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        edges, between = _FRAMES[self.look]
        count = len(self.table.columns)
        natural = [self._width(place, whole=self.look != "report") for place in range(count)]
        fits = sum(natural) + edges + between * (count - 1) <= options.max_width
        widths = natural if fits else [self._width(place) for place in range(count)]
        first_columns = list(range(self.leading))
        whole = options.max_width - edges + between - sum(widths[place] + between for place in first_columns)
        parts = [list(range(self.leading, count))] if fits else _columns_of_parts(widths, self.leading, whole, between)
        for number, part in enumerate(parts, 1):
            places = [*first_columns, *part]
            if self.look == "report":
                yield from self._of_report(places, whole - sum(widths[place] + between for place in part) + widths[0])
                continue
            title = f"{self.title} ({number} of {len(parts)})" if len(parts) > 1 else self.title
            if self.title:
                yield Text(escape_control_characters(title), style="table.title")
            drawn = terminal_table(
                self.table.columns_at(places), self.look, **(self.more if number == len(parts) else {})
            )
            for column, place in zip(drawn.columns, places, strict=True):
                if self.look == "ruled" and not fits:
                    column.width, column.no_wrap = widths[place], False
            yield drawn

    def _of_report(self, places: Sequence[int], room: int) -> Iterator[RenderableType]:
        """Yield a part of a report; a heading stands above it where the first column has no room for it."""
        above = cell_len(self.title) > room
        if above:
            yield Text(escape_control_characters(self.title), style="cyan")
        part = self.table.columns_at(places)
        if above:
            part = replace(part, columns=(replace(part.columns[0], title=""), *part.columns[1:]))
        yield terminal_table(part, heading="" if above else self.title)

    def _width(self, place: int, whole: bool = False) -> int:
        """Return the width with which no word is broken, and no text is a column of single words."""
        column = self.table.columns[place]
        texts = [row[place].text for row in self.table.rows if place < len(row)]
        titles = [] if place == 0 and self.look == "report" else column.title.splitlines()
        longest = max(map(cell_len, (*texts, *titles)), default=0)
        if whole:
            return longest
        if self.look == "report":
            least = max(NAMES, distinct_width(texts)) if column.names else longest
            return max(min(longest, least), column.wide or 0)
        longest_word = max((cell_len(word) for text in (*texts, column.title) for word in text.split()), default=0)
        return max(longest_word, min(_LINES[place > 0], longest))


def _columns_of_parts(widths: Sequence[int], first_columns: int, whole: int, between: int) -> list[list[int]]:
    """Return the columns of each part, as many as there is room for."""
    parts: list[list[int]] = [[]]
    free = whole
    for index, width in enumerate(widths[first_columns:], first_columns):
        if parts[-1] and width + between > free:
            parts.append([])
            free = whole
        parts[-1].append(index)
        free -= width + between
    return parts


def _needed_width(table: Table, heading: str, least: int) -> int:
    """Columns of a terminal with which no number is cut, and of the names in the first column only their ends."""
    widths = []
    for index, column in enumerate(table.columns):
        title = heading if heading and index == 0 else column.title
        widths.append(max(cell_len(title), column.wide or 0, *(cell_len(row[index].text) for row in table.rows)))
    names, *numbers = widths
    return min(names, least) + sum(numbers) + _GAP * len(widths)
