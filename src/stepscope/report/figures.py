"""The charts of the page, and those of several runs, as pictures: PNG, SVG, PDF, or the Vega-Lite specification."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import OutputNotWritable, StepscopeError, UnknownName, UsageError
from stepscope.fault_isolation import wrap_analysis_faults
from stepscope.report import multi_run_figures, sections
from stepscope.report.page.parts import Anatomy, Figure, Icicle, Part, walk_parts

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.analysis.run import Run

SUFFIXES = {"png": ".png", "svg": ".svg", "pdf": ".pdf", "vega": ".vl.json"}
DOUBLE_COLUMN_MM = 170.0
# Columns of the templates IEEEtran (conference) and acmart (sigconf): of one, and across two.
COLUMNS_MM = {"ieee": 88.5, "ieee-2": 181.3, "acm": 84.7, "acm-2": 177.9}
_MM = {"": 1.0, "mm": 1.0, "cm": 10.0, "in": 25.4, "pt": 25.4 / 72.27}
NARROWEST_MM, WIDEST_MM = 60.0, 420.0

_LEGEND_PX = 145  # of a column of a legend
_MOST_CORRECTED = 0.3  # of the width
_MOST_DRAWN = 4
_PX_PER_MM = 96 / 25.4  # CSS pixels: 12 px of type are 9 points on paper
_PT_PER_PX = 72 / 96
_PPI = 300
_SIZE = re.compile(r'(?P<head><svg[^>]*?) width="(?P<width>[\d.]+)" height="(?P<height>[\d.]+)"')


@dataclass(frozen=True)
class ListedFigure:
    """A figure that can be asked for, and the heading of the section that draws it."""

    name: str
    title: str


def entries() -> list[ListedFigure]:
    """Every figure by name, in the order of the page; last those that several runs share."""
    modules = sorted(sections.discover_sections().modules, key=lambda module: (module.ORDER, module.__name__))
    of_page = [ListedFigure(name, module.TITLE) for module in modules for name in getattr(module, "FIGURES", ())]
    return [*of_page, *(ListedFigure(name, title) for name, (title, _) in multi_run_figures.FIGURES.items())]


def parse_width(text: float | str) -> float:
    """Return a width on paper in mm: of 85, "85mm", "8.5cm", "3.5in", or of a column such as "ieee" or "acm-2"."""
    width = str(text).strip().lower()
    if width in COLUMNS_MM:
        return COLUMNS_MM[width]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|mm|cm|in|pt)", width)
    if match is None:
        raise UsageError(f"--width {text}: not a width", f"for example --width 85mm, or {', '.join(COLUMNS_MM)}")
    return float(match[1]) * _MM[match[2]]


def check(name: str, forms: Iterable[str] = (), width_mm: float = DOUBLE_COLUMN_MM) -> None:
    """UnknownName with the nearest where there is no such figure or format, UsageError for a width of no paper."""
    if name not in multi_run_figures.FIGURES:
        _section(name)
    for unknown in (form for form in forms if form not in SUFFIXES):
        raise UnknownName("format", unknown, SUFFIXES)
    if not NARROWEST_MM <= width_mm <= WIDEST_MM:
        limits = f"{NARROWEST_MM:.0f} to {WIDEST_MM:.0f}"
        raise UsageError(f"--width {width_mm:g}: must be {limits} mm", "for example --width 170")


@wrap_analysis_faults
def write(name: str, run: Run, folder: Path, form: str, width_mm: float = DOUBLE_COLUMN_MM) -> Path:
    """Write one figure of a run as png, svg, pdf or vega into a folder, which is made; returns its path.

    Raises StepscopeError where the run has nothing to draw, with the reason; OutputNotWritable where the folder fails;
    UsageError where a file is named in place of the folder.
    """
    if name in multi_run_figures.FIGURES:
        return write_multi_run_figure(name, [run], folder, form, width_mm)
    _refuse_file_as_folder(folder)
    chart, caption = _chart(name, run)
    return write_chart(chart, f"{run.id}: {caption}", folder, f"{name}-{run.id}", form, width_mm)


@wrap_analysis_faults
def write_multi_run_figure(
    name: str, runs: Sequence[Run], folder: Path, form: str, width_mm: float = DOUBLE_COLUMN_MM
) -> Path:
    """Write a figure of several runs (`multi_run_figures.FIGURES`) into a folder; returns its path."""
    _refuse_file_as_folder(folder)
    chart, caption = multi_run_figures.FIGURES[name][1](runs)
    description = "; ".join(multi_run_figures.described(caption, runs))
    return write_chart(chart, description, folder, multi_run_figures.figure_file_stem(name, runs), form, width_mm)


def is_multi_run_figure(name: str) -> bool:
    """Return whether a figure draws several runs in one picture."""
    return name in multi_run_figures.FIGURES


def _refuse_file_as_folder(folder: Path) -> None:
    if folder.suffix in SUFFIXES.values() and not folder.is_dir():
        hint = f"--out FOLDER --format {folder.suffix[1:]}: the file is named after the figure and the run"
        raise UsageError(f"'{folder}' is a file's name, and figures are written into a folder", hint)


def write_chart(
    chart: Callable[[int], Any],
    description: str,
    folder: Path,
    stem: str,
    form: str,
    width_mm: float = DOUBLE_COLUMN_MM,
) -> Path:
    """Write any chart (a function of the width in px) for paper as png, svg, pdf or vega; returns its path."""
    specification = _fit_to_width(chart, int(width_mm * _PX_PER_MM), description)
    path = folder / f"{stem}{SUFFIXES[form]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_file_bytes(specification, form))
    except OSError as error:
        hint = "choose a folder that you can write with --out DIR"
        raise OutputNotWritable(f"cannot write '{path}': {error.strerror or error}", hint) from error
    return path


def _section(name: str) -> ModuleType:
    by_name = {
        figure: module for module in sections.discover_sections().modules for figure in getattr(module, "FIGURES", ())
    }
    if name not in by_name:
        raise UnknownName("figure", name, [*by_name, *multi_run_figures.FIGURES])
    return by_name[name]


def _chart(name: str, run: Run) -> tuple[Callable[[int], Any], str]:
    section = _section(name).build(run)
    for part in walk_parts(section.parts):
        for figure_name, chart, caption in _charts(part):
            if figure_name == name:
                return chart, caption
    why = section.lede or "nothing of it was measured"
    hint = "stepscope doctor says what can be measured"
    raise StepscopeError(f"{run.id} has nothing to draw as '{name}': {why}", hint)


def _charts(part: Part) -> Iterator[tuple[str, Callable[[int], Any], str]]:
    if isinstance(part, Figure | Anatomy):
        yield part.name, part.chart, part.caption
    elif isinstance(part, Icicle):
        from stepscope.report.charts import steps

        cells = steps.icicle_cells(part)
        if not cells.is_empty():
            yield part.name, lambda width: steps.build_icicle(cells, width), part.caption


def _fit_to_width(chart: Callable[[int], Any], width: int, description: str) -> dict[str, Any]:
    """A chart as wide as the column, px: axes and titles take what only drawing tells, so that it is drawn again."""
    most = max(1, width // _LEGEND_PX)
    missing, specification = _draw_near_width(chart, width, description, most)
    while missing < 0 and most > 1:  # its legend is wider
        most -= 1
        missing, specification = _draw_near_width(chart, width, description, most)
    return specification


def _draw_near_width(
    chart: Callable[[int], Any], width: int, description: str, most: int
) -> tuple[int, dict[str, Any]]:
    """What a chart lacks of a width, px, as near as it comes, and itself; legends have at most so many columns."""
    import vl_convert

    best: tuple[int, dict[str, Any]] = (width, {})
    drawn_px = width
    for _ in range(_MOST_DRAWN):
        specification = _on_paper(chart(drawn_px), description, most)
        drawn = _SIZE.search(vl_convert.vegalite_to_svg(specification, allowed_base_urls=[]))
        missing = 0 if drawn is None else round(width - float(drawn["width"]))
        best = min(best, (missing, specification), key=lambda tried: abs(tried[0]))
        drawn_px += missing
        if missing == 0 or abs(drawn_px - width) > _MOST_CORRECTED * width:
            break
    return best


def _on_paper(chart: Any, description: str, columns: int) -> dict[str, Any]:
    from stepscope.report.charts.style import vega_lite

    specification = vega_lite(chart)
    specification["background"] = specification["config"]["background"] = "white"
    specification["description"] = description
    _narrow_legends(specification, columns)
    return specification


def _narrow_legends(part: Any, most: int) -> None:
    if isinstance(part, dict):
        legend = part.get("legend")
        if isinstance(legend, dict):
            legend["columns"] = min(int(legend.get("columns") or most), most)
    for spec in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _narrow_legends(spec, most)


def _file_bytes(specification: dict[str, Any], form: str) -> bytes:
    """The bytes of the file; nothing is fetched, whatever a name in the data looks like."""
    import vl_convert

    if form == "vega":
        return (json.dumps(specification, indent=1, default=str) + "\n").encode()
    if form == "png":
        png: bytes = vl_convert.vegalite_to_png(specification, scale=_PT_PER_PX, ppi=_PPI, allowed_base_urls=[])
        return png
    svg: str = vl_convert.vegalite_to_svg(specification, allowed_base_urls=[])
    if form == "svg":
        return svg.encode()
    pdf: bytes = vl_convert.svg_to_pdf(_SIZE.sub(_in_points, svg, count=1))
    return pdf


def _in_points(size: re.Match[str]) -> str:
    """Width and height of an SVG as the PDF's page takes them: it makes a point of what is a pixel in SVG."""
    width, height = (float(size[group]) * _PT_PER_PX for group in ("width", "height"))
    return f'{size["head"]} width="{width:.2f}" height="{height:.2f}"'
