"""A run and a comparison as a notebook shows them: small, escaped, without scripts, in the notebook's own colours."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.own_time import RESIDUAL
from stepscope.units import duration, percent

if TYPE_CHECKING:
    from stepscope.analysis.compare import Comparison
    from stepscope.analysis.run import Run

_NEEDED = ("jinja2", "altair")
_TOP = 5
_MOST_NAME = 80  # characters


def run_html(run: Run) -> str | None:
    """Verdict, key figures, dearest modules and kinds of op; None where the extra `report` is not installed."""
    if not _can_draw():
        return None
    from stepscope.report.html import about_of, alert_of
    from stepscope.report.page.parts import KeyFigures
    from stepscope.report.sections import overview

    section = overview.build(run)
    figures = [item for part in section.parts if isinstance(part, KeyFigures) for item in part.items]
    workload = run.meta.get("workload")
    name = workload.get("name") if isinstance(workload, dict) else workload
    return _drawn(
        title=str(name or run.id),
        about=about_of(run),
        alert=alert_of(run),
        said=[section.lede],
        figures=figures,
        tables=[_modules(run), _kinds(run)],
        missing=len(run.not_measured()),
    )


def comparison_html(comparison: Comparison) -> str | None:
    """The numbers side by side and what explains the difference; None where the extra `report` is not installed."""
    if not _can_draw():
        return None
    from stepscope.report.compare_rows import legend, quantity_rows

    rows = [
        (row.label, row.letter, row.value, row.interval, row.ratio, row.ratio_interval, row.outcome)
        for row in quantity_rows(comparison)
    ]
    titles = ("", "", "value", "95 % interval", "/ A", "95 % interval", "")
    table = {"title": "Side by side", "heads": titles, "rows": [(None, row) for row in rows]}
    about = [f"{mark} {name}: {facts}" for mark, name, facts in legend(comparison)]
    shown: dict[str, Any] = {"alert": None, "figures": [], "missing": 0}
    return _drawn(title="Comparison", about=about, said=comparison.sentences(), tables=[table], **shown)


def _can_draw() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


def _modules(run: Run) -> dict[str, Any]:
    """The modules with the most own time."""
    named = run.modules().filter(pl.col("module").is_not_null(), pl.col("module") != RESIDUAL, pl.col("share") > 0)
    rows = named.sort("share", "module", descending=[True, False]).head(_TOP).iter_rows(named=True)
    cells = [
        (row["share"], (_short(row["module"]) or "the model itself", row["type"] or "", *_own(row))) for row in rows
    ]
    return {"title": "Modules, own time", "heads": ("module", "type", "a step", "share"), "rows": cells}


def _kinds(run: Run) -> dict[str, Any]:
    """The kinds of op with the most own time."""
    named = run.op_kinds().filter(pl.col("name") != RESIDUAL).head(_TOP)
    cells = [(row["share"], (_short(row["name"]), row["device"], *_own(row))) for row in named.iter_rows(named=True)]
    return {"title": "Operations, own time", "heads": ("kind", "on", "a step", "share"), "rows": cells}


def _own(row: dict[str, Any]) -> tuple[str, str]:
    return duration(row["total_ns"]), percent(row["share"])


def _short(name: str) -> str:
    return name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME - 1]}…"


def _drawn(**content: Any) -> str:
    import jinja2

    template = files("stepscope.report.page").joinpath("notebook.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(**content)
