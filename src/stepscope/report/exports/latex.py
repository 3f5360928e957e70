"""LaTeX: the headline numbers and the layers as tables of booktabs, and a paragraph of methods, for a paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope import __version__
from stepscope.analysis.answer import headline, setting
from stepscope.quantities import simulated_badge
from stepscope.report.exports._excerpt import Excerpt
from stepscope.units import NOT_MEASURED, amount, cut_in_the_middle, percent
from stepscope.units import estimate as estimate_text

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "tables of booktabs and a paragraph of methods for a paper (\\input, \\usepackage{booktabs})"
SUFFIX = ".tex"

_MOST_LAYERS = 12
_FIXED, _PER_LAYER = 1_900, 70  # bytes, measured
_NAME, _TYPE = 18, 14  # characters: with the numbers as wide as one of two columns
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"µ": r"$\mu$", "°": r"$^\circ$", "…": r"\ldots{}"}
_SPECIAL |= {"[": "{[}", "]": "{]}"}  # behind the end of a row a bracket would be an option
_SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    return _FIXED + _PER_LAYER * min(len(excerpt.run.model), _MOST_LAYERS)


def write(excerpt: Excerpt, path: Path) -> None:
    """Write two tables and a paragraph; what was not measured is a dash, and simulated sensors are named."""
    run = excerpt.run
    parts = [f"% Stepscope {__version__}, run {run.id}", _headline(run), _layers(run), _methods(run)]
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def escaped(text: str) -> str:
    """Return a text as LaTeX sets it, whatever signs it has; others than printable ASCII are a question mark."""
    return "".join(_SPECIAL.get(sign, sign if " " <= sign <= "~" else "?") for sign in text)


def _table(caption: str, label: str, columns: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in rows]
    above = [r"\begin{table}[t]", r"\centering\footnotesize\setlength{\tabcolsep}{4pt}"]
    above += [f"\\caption{{{escaped(caption)}}}", f"\\label{{tab:{label}}}"]
    body = [
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        " & ".join(map(escaped, head)) + r" \\",
        r"\midrule",
    ]
    return "\n".join([*above, *body, *lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _headline(run: Run) -> str:
    rows = []
    for row in headline(run):
        value, _, interval = estimate_text(row.value, row.low, row.high, row.unit).partition(" [")
        rows.append(
            (f"{row.kind} {row.label}".strip().capitalize(), value, f"[{interval}" if interval else NOT_MEASURED)
        )
    badge = f" {simulated_badge(run.simulated)}." if run.simulated else ""
    caption = f"One training step: {', '.join(setting(run)[:6])}.{badge} Brackets: 95 % CI."
    return _table(caption, "step", "lrl", ("", "value", "95 % CI"), rows) if rows else ""


def _layers(run: Run) -> str:
    layers = run.layers().filter(pl.col("total_ns") > 0).head(_MOST_LAYERS)
    if layers.is_empty():
        return ""
    energy = bool(layers["joules"].is_not_null().any())
    names = cut_in_the_middle([str(name or "(the model)") for name in layers["layer"]], _NAME)
    types = [cut_in_the_middle([str(kind or "")], _TYPE)[0] for kind in layers["type"]]
    rows = [
        [
            name,
            kind,
            *(NOT_MEASURED if row[name] is None else _duration(row[name]) for name in ("forward_ns", "backward_ns")),
            NOT_MEASURED if row["share"] is None else percent(row["share"]),
            *([NOT_MEASURED if row["joules"] is None else amount(row["joules"], "J")] if energy else []),
        ]
        for name, kind, row in zip(names, types, layers.iter_rows(named=True), strict=True)
    ]
    head = ("layer", "type", "forward", "backward", "share", *(("energy",) if energy else ()))
    what = f"The {len(rows)} most expensive layers" if len(rows) == _MOST_LAYERS else "The layers"
    badge = f" Energy: {simulated_badge(run.simulated)}." if run.simulated and energy else ""
    return _table(f"{what} of a step: self time.{badge}", "layers", "ll" + "r" * (len(head) - 2), head, rows)


def _duration(ns: float) -> str:
    """A time with the sign of micro, which a terminal may lack and paper has."""
    return amount(ns, "ns").replace(" us", " µs")


def _methods(run: Run) -> str:
    """What a reader needs to judge and repeat it: device, versions, steps, sensors, what was not measured."""
    versions = run.meta.get("versions")
    stated = versions if isinstance(versions, dict) else {}
    tools = ", ".join(f"{name} {stated[name]}" for name in ("python", "torch") if stated.get(name))
    profiled = int(run.steps["recorded"].sum()) if len(run.steps) else 0
    sensors = sorted({str(channel["sensor"]) for channel in run.channels if channel.get("quantity") == "power"})
    said = [
        f"We measured with Stepscope {__version__}{f' ({tools})' if tools else ''}: {', '.join(setting(run))}.",
        f"The first {run.warmup_steps} steps are warm-up and excluded; {profiled} steps were profiled, others timed.",
        "Step times are medians of unprofiled steps where there are enough; times of layers and operators are scaled "
        "to them, the profiler's overhead taken out. Intervals are 95 % CIs.",
    ]
    if run.simulated:
        said.append(f"Power and energy are of {simulated_badge(run.simulated)}, not of a device.")
    elif sensors:
        said.append(f"Power was read by {', '.join(sensors)}.")
    else:
        said.append("No power was measured.")
    return "% Methods\n" + escaped(" ".join(said))
