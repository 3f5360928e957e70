"""The report on one screen of 24 lines: how fast, at what cost, what limits it, what next, and where the step goes.

`report.terminal_report` has the rest, which `stepscope report -v` prints.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.table import Table as Grid
from rich.text import Text

from stepscope.analysis.bottleneck import SYSTEM
from stepscope.analysis.caveats import ENERGY
from stepscope.analysis.first_screen import Headline, headline, setting_facts
from stepscope.analysis.memory.headroom import size_verdicts_text, training_peak
from stepscope.analysis.run import Run
from stepscope.analysis.suggested_changes import what_to_change
from stepscope.analysis.summary import energy_kinds
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.analysis.time.steps import are_steps_whole
from stepscope.analysis.verdict import TITLES
from stepscope.errors import StepscopeError
from stepscope.fault_isolation import FailedPart, result_or_failed_part
from stepscope.quantities import simulated_badge
from stepscope.report.table import Column, FittedTable, Table, labels, number_column, text_column, whole_percent
from stepscope.report.terminal_report import STATUS_STYLES, rank_sentences, relative_path
from stepscope.report.terminal_tables import short_source
from stepscope.run_paths import NEWEST, RUNS, find_run
from stepscope.units import (
    NOT_MEASURED,
    bytes_,
    capitalize_first,
    distinct_width,
    duration,
    estimate,
    number,
    percent,
)

LINES, WIDTH = 24, 100
_LABEL = 14
_MOST_LAYERS, _LEAST_LAYERS = 8, 3
_EVIDENCE = 2
_MOST_ENDINGS = 2  # ranks that did not end well, on the first screen
_MOST_PROCESSES = 8  # whose steps one line holds
_ROOM = ((3, 2), (2, 2), (2, 1), (1, 1))  # cautions and what to do next, the more the better
_NAME = 18  # characters of a name for which columns give way
_SMALL = 0.005  # of the step: phases below it are no line of the answer
_NOTABLE_OVERHEAD = 0.05  # of the run
_PHASE_STYLES = {"data": "yellow", "forward": "blue", "backward": "red", "optimizer": "green"}
_PER = {"step_time": "/step", "energy_per_step": "/step"}


def render(run: Run) -> RenderableType:
    """The answer of a run on one screen, whatever of it exists."""
    return Constrain(_Screen(run), WIDTH)


@dataclass(frozen=True)
class _Screen:
    """Everything but the layers as it comes, and as many layers as there is room for."""

    run: Run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        run = self.run
        below = [*_part_or_failure("what is not measured", lambda: _not_measured(run)), *_footer(run)]
        for cautions, following in _ROOM:
            above = [
                *_part_or_failure("the setting", lambda: _heading(run)),
                *_part_or_failure("the headline", lambda: _headline(run)),
                *_part_or_failure("the bottleneck", partial(_answer, run, cautions)),
                *_part_or_failure("what to change", partial(_suggested_changes, run, following)),
                *_part_or_failure("the phases", lambda: _phases(run)),
            ]
            lines_left = LINES - 1 - len(console.render_lines(Group(*above, *below), options, pad=False))
            if lines_left >= _LEAST_LAYERS:
                break
        most = min(max(lines_left, _LEAST_LAYERS), _MOST_LAYERS)
        yield from (*above, *_part_or_failure("the layers", lambda: _layers(run, most)), *below)


def _part_or_failure(name: str, make: Callable[[], list[RenderableType]]) -> list[RenderableType]:
    """Return a part of the answer, or the line that says why it is none."""
    part = result_or_failed_part(make)
    return [Text(part.sentence(name), style="red")] if isinstance(part, FailedPart) else part


def _heading(run: Run) -> list[RenderableType]:
    """Return the setting of the run, and on the right its name and how it ended; below it why, where it went wrong."""
    right = Text.assemble(
        (f"{run.id.rpartition('-')[2]}  ", "dim"), (run.status, STATUS_STYLES.get(run.status, "bold red"))
    )
    line = Grid.grid(expand=True, padding=(0, 1, 0, 0))
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(_Setting(tuple(setting_facts(run))), right)
    reason = run.meta.get("reason")
    return [line, *([Text(str(reason), style="red")] if reason else [])]


@dataclass(frozen=True)
class _Setting:
    """The facts of a setting on one line; where it is narrow the last ones go, but not the first three."""

    facts: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fits = (
            count for count in range(len(self.facts), 3, -1)
            if cell_len(" · ".join(self.facts[:count])) <= options.max_width
        )  # fmt: skip
        name, *facts = self.facts[: next(fits, 3)]
        yield Text.assemble((name, "bold"), *(part for fact in facts for part in ((" · ", "dim"), fact)))


def _headline(run: Run) -> list[RenderableType]:
    """Return the headline numbers, as many on a line as fit; none is broken."""
    peak = training_peak(run)
    fits = "" if peak is None else f", {'all processes: ' * peak.several}{size_verdicts_text(peak)}"
    rows = headline(run)
    host = "host " if any(row.metric == "gpu_memory" for row in rows) else ""  # two memories: whose the peak is
    parts = tuple(
        Text.assemble((host + figure_text(row), "bold"), fits)
        if row.metric == "peak_memory"
        else Text(figure_text(row), "bold")
        for row in rows
    )
    return [_WrappedPhrases(parts)] if parts else []


def figure_text(row: Headline) -> str:
    """Return a headline number as a phrase: "4.91 ms/step [4.81, 5.01]", "peak 374 MB of 8.2 GB"."""
    if row.metric == "peak_memory":
        return f"peak {_bytes_of_total(row)}"
    if row.metric == "gpu_memory":
        return f"GPU peak {_bytes_of_total(row)}"
    if row.metric == "accuracy":
        return f"accuracy {percent(row.value)}"
    value, _, interval = estimate(row.value, row.low, row.high, row.unit).partition(" [")
    text = f"{value}{_PER.get(row.metric, '')}{f' [{interval}' if interval else ''}"
    note = f", {row.note}" if row.metric in ("temperature", "throughput") and row.note else ""
    return f"{row.kind.upper()} {text}{note}".strip()


def _bytes_of_total(row: Headline) -> str:
    return f"{bytes_(row.value)}{f' of {bytes_(row.whole)}' if row.whole else ''}"


@dataclass(frozen=True)
class _WrappedPhrases:
    """Phrases on lines, some spaces apart; a phrase stays whole."""

    phrases: tuple[Text, ...]
    gap: str = "   "

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines: list[Text] = []
        for phrase in self.phrases:
            if lines and lines[-1].cell_len + len(self.gap) + phrase.cell_len <= options.max_width:
                lines[-1] = Text.assemble(lines[-1], self.gap, phrase)
            else:
                lines.append(phrase)
        yield Text("\n", overflow="fold").join(lines)  # a path that is wider than the terminal stays whole


def _answer(run: Run, most: int) -> list[RenderableType]:
    """Return what limits the step, with its evidence, and what to know before a number is used."""
    verdict = run.verdict()
    if verdict.causes:
        first = verdict.causes[0]
        named = f"{TITLES[first.bound]}: {first.name}", "bold"
        evidence = "; ".join(entry.text for entry in first.evidence[:_EVIDENCE])
        parts = [Text.assemble(named, f" ({first.confidence} confidence)"), Text(evidence)]
    else:
        parts = [Text(verdict.why or verdict.sentence, style="bold")]
    lines = [_labelled("BOTTLENECK", *parts)]
    lines += _processes(run)
    cautions = [Text(caution) for caution in (*_simulated_caution_first(run, verdict.cautions), *_overhead(run))][:most]
    return [*lines, *([_labelled("CAUTION", *cautions, style="yellow")] if cautions else [])]


def _processes(run: Run) -> list[RenderableType]:
    """Return what several processes of one training, or of one script, have to do with each other."""
    if len(run.ranks) < 2:
        return []
    table = run.rank_table()
    last = [*run.side_by_side.endings[:_MOST_ENDINGS], *rank_sentences(table)]
    if last:
        return [_labelled("RANKS", Text(f"{len(run.ranks)} ranks; {'; '.join(last)}"))]
    steps = [f"{count:,}" for count in table["steps"].to_list()[:_MOST_PROCESSES]]
    steps += ["..."] if len(run.ranks) > _MOST_PROCESSES else []
    text = f"{len(run.ranks)} trained, {', '.join(steps)} steps; this is the first, stepscope report -v lists them"
    return [_labelled("PROCESSES", Text(text))]


def _simulated_caution_first(run: Run, cautions: Sequence[str]) -> list[str]:
    badge = simulated_badge(run.simulated)
    return sorted(cautions, key=lambda caution: not (badge and caution.startswith(badge)))


def _overhead(run: Run) -> list[str]:
    overheads = run.overhead().filter((pl.col("metric") == "run_overhead_share") & pl.col("value").is_not_null())
    share = float(overheads["value"][0]) if len(overheads) else 0.0
    if share <= _NOTABLE_OVERHEAD:
        return []
    return [f"Profiling overhead: {percent(share)} of the run; a longer run has less."]


def _suggested_changes(run: Run, most: int) -> list[RenderableType]:
    following = [Text(step) for step in advice_sentences(run)[:most]]
    return [_labelled("NEXT", *following)] if following else []


def advice_sentences(run: Run) -> list[str]:
    """Return what to change: what a tune run found, or how to find it; causes outside of the step go before."""
    verdict, changes = run.verdict(), what_to_change(run)
    parts = list(verdict.next)
    if changes.tables or (changes.untried and len(run.steps)):
        names = ", ".join(name for name, _ in changes.untried)
        tune = changes.sentence if changes.tables else f"{changes.command} tries {names}, and measures each"
        parts = [line for line in parts if "stepscope tune" not in line]
        first = bool(verdict.causes) and verdict.causes[0].bound not in {*SYSTEM, "input"}
        parts.insert(0 if first and not "".join(parts[:1]).startswith("first ") else len(parts[:1]), tune)
    if changes.gain:
        parts.insert(1, changes.gain)
    code = re.compile(r"stepscope |\S*[_=]")  # a command, or the name of a change, keeps its letters
    return [line if code.match(line) else capitalize_first(line) for line in parts]


def _phases(run: Run) -> list[RenderableType]:
    """Return where the step goes, as shares of the step time and as a bar."""
    phases = run.phases()
    if phases.is_empty():
        return []
    sentences = tuple(
        Text.assemble(
            ("■ ", _PHASE_STYLES.get(row["phase"], "dim")),
            f"{phase_name(row['phase'], phases)} {percent(row['share'], 0)}",
        )
        for row in phases.iter_rows(named=True)
        if row["share"] >= _SMALL
    )
    parts = () if are_steps_whole(run) else (Text("of the parts profiled", style="dim"),)
    return [Text(""), _labelled("OF THE STEP", _WrappedPhrases((*sentences, *parts), "  "))]


def phase_name(name: str, phases: pl.DataFrame) -> str:
    """Return a phase as the answer calls it; of framework overhead it says what that is."""
    if name != FRAMEWORK_OVERHEAD:
        return name
    if phases["device_ns"].is_not_null().any():
        return "outside operators (Python, or waiting for the accelerator)"
    return "framework (Python outside operators, yours and PyTorch's)"


def _layers(run: Run, most: int) -> list[RenderableType]:
    """The layers with the most self time, with what was measured of each, in the columns that fit."""
    layers = run.layers().filter((pl.col("total_ns") > 0) | (pl.col("device_ns") > 0))
    if layers.is_empty():
        return []
    rows = layers.head(most)
    if not (rows["optimizer_ns"] > _NOTABLE * rows["total_ns"]).any():
        rows = rows.with_columns(optimizer_ns=pl.lit(None, pl.Float64))  # "of step" has it, and hardly any
    peak = run.peak()
    named = {"J/step": " ".join([*(f"{kind[:3]}." for kind in energy_kinds(run)), "J/step"])}
    named |= {"live at peak": "computed peak"} if peak is not None and peak.computed else {}
    names = [name or "(the model)" for name in rows["layer"]]
    have = [column for column in _COLUMNS if rows[column.key].is_not_null().any()]
    titled = [replace(column, title=named.get(column.title, column.title)) for column in have]
    first = Column("layer", False, of=lambda row: row["layer"] or "(the model)", names=True)
    table = Table.from_rows("layers", (first, *titled), rows.iter_rows(named=True))
    # On a narrow terminal columns go, the least telling first.
    keep = [
        [column.key for column in have if column.key not in _FIRST_TO_GO[:removed_columns]]
        for removed_columns in range(len(_FIRST_TO_GO) + 1)
    ]
    title = f"layers ({len(layers)})"
    name_width = max(len(title), distinct_width(names), min(_NAME, max(map(len, names))))
    return [FittedTable(table, keep, title, name_width)]


_COLUMNS = (
    text_column("type", "type", missing=NOT_MEASURED),
    number_column("forward", "forward_ns", duration, wide=8),
    number_column("backward", "backward_ns", duration, wide=8),
    number_column("update", "optimizer_ns", duration, wide=8),
    number_column("of step", "share", percent, wide=8),
    number_column("kernels", "device_ns", duration),
    number_column("J/step", "joules", "J"),
    number_column("live at peak", "live_bytes", "B"),
    number_column("FLOP/s", "flops_per_s", "FLOP/s"),
    number_column("attained", "attained", whole_percent),
    text_column("line", "source", short_source, missing=NOT_MEASURED),
)
_NOTABLE = 0.1  # of the time of a layer
_FIRST_TO_GO = ("attained", "live_bytes", "type", "flops_per_s", "source")


def _not_measured(run: Run) -> list[RenderableType]:
    entries = run.not_measured()
    if not entries:
        return []
    entries = sorted(entries, key=lambda entry: entry.group != ENERGY)
    names = list(dict.fromkeys(entry.what.replace("_", " ") for entry in entries))
    if entries[0].group == ENERGY:
        names[0] += " (see stepscope doctor)"
    return [_labelled("NOT MEASURED", _Names(tuple(names)), style="dim")]


@dataclass(frozen=True)
class _Names:
    """Names that fit into a line, and the number of the others."""

    names: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for count in range(len(self.names), 0, -1):
            more = len(self.names) - count
            sentence = ", ".join(self.names[:count]) + (f" and {number(more)} more" if more else "")
            if cell_len(sentence) <= options.max_width or count == 1:
                yield Text(sentence, no_wrap=True, overflow="ellipsis")
                return


def _footer(run: Run) -> list[RenderableType]:
    page = run.path / "report.html"
    try:
        is_newest = find_run(NEWEST).resolve() == run.path.resolve()
    except (StepscopeError, OSError):
        is_newest = False
    there = f"page: {relative_path(page)}" if page.exists() else "or --html for the page"
    phrases = (f"stepscope report {'' if is_newest else f'{run_argument(run.path)} '}-v", there)
    return [_labelled("MORE", _WrappedPhrases(tuple(map(Text, phrases))), style="dim")]


def run_argument(path: Path) -> str:
    """Return a run as an argument of a command would name it here."""
    inside = relative_path(path)
    return shlex.quote(inside.name if inside.parent == RUNS else str(inside))


_GLUE = "\ue000"  # takes the place of a space at which no line is broken
_GLUED = re.compile(r" (?=%)|(?<=[\[,]) (?=[^\[\]]*\])")


@dataclass(frozen=True)
class _Sentence:
    """A sentence on lines that break neither within brackets nor between a number and its percent sign."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glued = Text(_GLUED.sub(_GLUE, self.text.plain), style=self.text.style)
        for line in glued.wrap(console, options.max_width):
            yield Text(line.plain.replace(_GLUE, " "), style=self.text.style)


def _labelled(label: str, *renderables: RenderableType, style: str = "") -> RenderableType:
    line = labels(_LABEL, style=style)
    for row, text in enumerate(renderables):
        plain = isinstance(text, Text) and not text.spans and text.overflow is None
        line.add_row(Text(label if row == 0 else ""), _Sentence(text) if plain else text)  # type: ignore[arg-type]
    return line
