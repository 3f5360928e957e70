"""LaTeX: the headline numbers and the layers as tables of booktabs, and a paragraph of methods, for a paper."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope import __version__
from stepscope.analysis.energy.accuracy import accuracy_of
from stepscope.analysis.energy.power_sources import power_sources
from stepscope.analysis.first_screen import Headline, headline, setting_facts
from stepscope.quantities import simulated_badge
from stepscope.report.exports._excerpt import Excerpt
from stepscope.report.table import Column, Table, latex, number_column, text_column
from stepscope.units import NOT_MEASURED, amount, capitalize_first, cut_in_the_middle, percent, plural
from stepscope.units import estimate as estimate_text

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "tables of booktabs and a paragraph of methods for a paper (\\input, \\usepackage{booktabs})"
SUFFIX = ".tex"

_MOST_LAYERS = 12
_FIXED, _PER_LAYER = 1_900, 70  # bytes, measured
_NAME, _TYPE = 18, 14  # characters: with the numbers as wide as one of two columns
_MICRO = re.compile(r"(?<=\d )u(?=[sJWV]\b)")
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "{''}"}
_SPECIAL |= {"µ": r"$\mu$", "°": r"$^\circ$", "…": r"\ldots{}"}
_SPECIAL |= {"ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}"}
_ACCENTS = {
    chr(0x300 + code): sign
    for code, sign in zip((0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 39), "`'^~=u.\"rHvc", strict=True)
}
_SPECIAL |= {"[": "{[}", "]": "{]}"}  # behind the end of a row a bracket would be an option
_SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    return _FIXED + _PER_LAYER * min(len(excerpt.run.model), _MOST_LAYERS)


def write(excerpt: Excerpt, path: Path) -> None:
    """Write two tables and a paragraph; what was not measured is a dash, and simulated sensors are named."""
    run = excerpt.run
    parts = [
        "% " + escaped(f"Stepscope {__version__}, run {run.id}"),
        _headline_table(run),
        _layer_table(run),
        _methods_paragraph(run),
    ]
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def escaped(text: str) -> str:
    """Return a text as LaTeX sets it; its code, U+4E2D, for what is neither ASCII nor a letter with an accent."""
    micro = _MICRO.sub("\N{MICRO SIGN}", text)  # which a terminal may lack and paper has
    return "".join(_SPECIAL.get(sign, sign if " " <= sign <= "~" else _accented_letter(sign)) for sign in micro)


def _accented_letter(sign: str) -> str:
    letter, accent = unicodedata.normalize("NFD", sign)[0], unicodedata.normalize("NFD", sign)[1:]
    return f"{{\\{_ACCENTS[accent]}{{{letter}}}}}" if letter.isascii() and accent in _ACCENTS else f"U+{ord(sign):04X}"


def _headline_table(run: Run) -> str:
    columns = (
        Column("", False, of=lambda row: capitalize_first(f"{row.kind} {row.label}".strip())),
        Column("value", of=lambda row: amount(row.value, row.unit)),
        Column("95 % CI", False, of=lambda row: _interval_in_brackets(row) or NOT_MEASURED),
    )
    badge = f" {simulated_badge(run.simulated)}." if run.simulated else ""
    caption = f"One training step: {', '.join(setting_facts(run)[:6])}.{badge} Brackets: 95 % CI."
    table = Table.from_rows("step", columns, headline(run), caption)
    return latex(table, "step", escaped) if table.rows else ""


def _interval_in_brackets(row: Headline) -> str:
    _, bracket, ends = estimate_text(row.value, row.low, row.high, row.unit).partition("[")
    return bracket + ends


def _layer_table(run: Run) -> str:
    layers = run.layers().filter(pl.col("total_ns") > 0).head(_MOST_LAYERS)
    if layers.is_empty():
        return ""
    names = cut_in_the_middle([str(name or "(the model)") for name in layers["layer"]], _NAME)
    energy = [number_column("energy", "joules", "J")] if layers["joules"].is_not_null().any() else []
    columns = (
        text_column("layer", "cut"),
        text_column("type", "type", lambda kind: cut_in_the_middle([kind], _TYPE)[0]),
        *(number_column(phase, f"{phase}_ns", "ns") for phase in ("forward", "backward")),
        number_column("share", "share", percent),
        *energy,
    )
    what = f"The {len(layers)} most expensive layers" if len(layers) == _MOST_LAYERS else "The layers"
    badge = f" Energy: {simulated_badge(run.simulated)}." if run.simulated and energy else ""
    rows = layers.with_columns(cut=pl.Series(names, dtype=pl.String)).iter_rows(named=True)
    return latex(Table.from_rows("layers", columns, rows, f"{what} of a step: self time.{badge}"), "layers", escaped)


def _sensor_sentences(run: Run) -> Iterator[str]:
    """Yield a sentence for each power sensor: how often, how finely and over what time it reads, how far off it is."""
    sources = power_sources(run)
    for sensor in sorted({source.sensor for source in sources}):
        own = [source for source in sources if source.sensor == sensor]
        facts = [plural(len(own), "channel")]
        for name, key, unit in _OF_SENSORS:
            stated = _value_range_text([(source.channel or {}).get(key) for source in own], unit or _UNITS[own[0].kind])
            facts += [f"{name} {stated}"] if stated else []
        error_sources = dict.fromkeys(
            accuracy.source for source in own if (accuracy := accuracy_of(source, run.device)) is not None
        )
        off = "; ".join(error_sources) or "not known"
        yield f"Power was read by {sensor} ({', '.join(facts)}); its own error ({off}) is in no CI."


_OF_SENSORS = (("update interval", "refresh_ns", "ns"), ("averaging window", "window_ns", "ns"),
               ("resolution", "step_size", ""))  # fmt: skip


_UNITS = {"counter": "J", "gauge": "W", "estimate": "W"}


def _value_range_text(values: list[float | None], unit: str) -> str:
    """The value that all channels have, or the least and the most; nothing where none is known."""
    numbers = [float(value) for value in values if value]
    return " to ".join(dict.fromkeys(amount(value, unit) for value in (min(numbers), max(numbers)))) if numbers else ""


def _methods_paragraph(run: Run) -> str:
    """What a reader needs to judge and repeat it: device, versions, steps, sensors, what was not measured."""
    versions = run.meta.get("versions")
    stated = versions if isinstance(versions, dict) else {}
    tools = ", ".join(f"{name} {stated[name]}" for name in ("python", "torch") if stated.get(name))
    profiled = int(run.steps["recorded"].sum()) if len(run.steps) else 0
    parts = [
        f"We measured with Stepscope {__version__}{f' ({tools})' if tools else ''}: {', '.join(setting_facts(run))}.",
        f"The first {run.warmup_steps} steps are warm-up and excluded; {profiled} steps were profiled, others timed.",
        "Step times are medians of unprofiled steps where there are enough; times of layers and operators are scaled "
        "to them, the profiler's overhead taken out. Intervals are 95 % CIs.",
    ]
    if run.simulated:
        parts.append(f"Power and energy are of {simulated_badge(run.simulated)}, not of a device.")
    parts += list(_sensor_sentences(run)) or ["No power was measured."]
    return "% Methods\n" + escaped(" ".join(parts))
