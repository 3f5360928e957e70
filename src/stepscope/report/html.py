"""The page of a run as one self-contained HTML file that asks no network, and its short form in a notebook."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.first_screen import setting_facts, workload_facts
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.errors import MissingDependency, OutputNotWritable
from stepscope.fault_isolation import FailedPart, result_or_failed_part
from stepscope.files import atomic_write
from stepscope.quantities import SIMULATED_MEANS, simulated_badge
from stepscope.report.table import Table, number_column, percent_bar_column, text_column
from stepscope.units import NOT_MEASURED, duration, escape_control_characters, page_name, without_long_words

if TYPE_CHECKING:
    import jinja2

    from stepscope.analysis.compare import Comparison
    from stepscope.analysis.run import Run
    from stepscope.report.page.parts import Section


_PAGE_NEEDS = {"altair": "altair", "jinja2": "jinja2", "vl_convert": "vl-convert-python"}
_STEERING = re.compile(  # the JSON escapes of what `reading.visible` spells out
    r"(?<!\\)((?:\\\\)*)\\u(00[01][0-9a-f]|007f|00[89][0-9a-f]|061c|200[ef]|202[a-e]|206[6-9])"
)
_TIMES = "The step time is a median; its parts are means."
_SCRIPTS = ("page.js", "layers.js", "icicle.js", "anatomy.js")


@dataclass(frozen=True)
class PageSection:
    """A section with its place on the page."""

    anchor: str
    title: str
    section: Section


_WRITABLE = "choose a file in a folder that exists and that you can write"
_BACKTICKS = re.compile(r"`([^`\n]+)`")
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


def write(run: Run, path: str | Path) -> Path:
    """Write the page of a run to a file and return its path."""
    if not Path(path).absolute().parent.is_dir():  # drawing takes seconds
        raise OutputNotWritable(f"cannot write the page to '{path}': there is no such folder", _WRITABLE)
    return write_text(path, render(run))


def write_text(path: str | Path, content: str) -> Path:
    """Write a page to a file and return its path; OutputNotWritable says what to do."""
    target = Path(path)
    try:
        if (target.parent / "run.json").is_file():  # a link that lies in a run folder is not written through
            with atomic_write(target) as part:
                part.write_text(content, encoding="utf-8", newline="\n")
        else:
            target.write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise OutputNotWritable(f"cannot write the page to '{target}': {error.strerror or error}", _WRITABLE) from error
    return target


def render(run: Run) -> str:
    """The page of a run as HTML text."""
    refuse_without_libraries()
    from stepscope.report import sections

    registry = sections.discover_sections()
    badge = simulated_badge(run.simulated)
    entries = _page_sections(run, registry.modules)
    return render_page(
        page_name(_title(run)), subtitle_facts(run), failed_run_alert(run), entries, registry.warnings, badge, _TIMES
    )


def _title(run: Run) -> str:
    return str(workload_facts(run).get("name") or run.id)


def render_page(
    title: str,
    about: Sequence[str],
    alert: str | None,
    entries: Sequence[PageSection],
    warnings: Sequence[str] = (),
    badge: str = "",
    times: str = "",
) -> str:
    """A page as HTML text, whatever it is about: a run, a comparison, a sweep, a study.

    Sections without parts become phrases of its last line; a badge says that sensors were simulated, and frames it;
    times: what its times are, a sentence.
    """
    refuse_without_libraries()
    from stepscope import __version__
    from stepscope.report.charts.style import DARK, LIGHT

    page = files("stepscope.report.page")
    script = "".join((page / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return (
        page_environment("stepscope.report.page")
        .get_template("page.html.j2")
        .render(
            title=title,
            about=about,
            alert=alert,
            sections=[entry for entry in entries if entry.section.parts],
            absent=[_missing_entry_text(entry) for entry in entries if not entry.section.parts and entry.section.lede],
            badge=badge,
            badge_means=SIMULATED_MEANS,
            warnings=warnings,
            times=f"{times} ".lstrip(),
            css=(page / "page.css").read_text(encoding="utf-8"),
            light=css_variables(LIGHT),
            dark=css_variables(DARK),
            script=script,
            script_hash=script_hash(script),
            version=__version__,
            not_measured=NOT_MEASURED,
        )
    )


def page_environment(package: str) -> jinja2.Environment:
    """Return what fills the templates of a package: text is escaped, and a value that is missing is an error."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files(package).joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: escape_control_characters(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["embedded"] = json_for_page
    environment.filters["coded"] = backticks_to_code
    return environment


def _missing_entry_text(entry: PageSection) -> str:
    """What is missing, and why: "energy (no power was measured)"."""
    reason = entry.section.lede.rstrip(".")
    return f"{entry.title.lower()} ({reason[:1].lower()}{reason[1:]})"


def refuse_without_libraries() -> None:
    """Raise MissingDependency where a library is not installed that pages and figures need."""
    missing = [name for module, name in _PAGE_NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingDependency(
            f"the page needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            "pip install 'stepscope[report]'",
        )


def _page_sections(run: Run, modules: Iterable[ModuleType]) -> list[PageSection]:
    entries = [(module.ORDER, module.__name__.rpartition(".")[2], module) for module in modules]
    ordered = sorted(entries, key=lambda entry: entry[:2])
    return [
        PageSection(name.replace("_", "-"), module.TITLE, _section_or_fault(module, run)) for _, name, module in ordered
    ]


def _section_or_fault(module: ModuleType, run: Run) -> Section:
    """Return what a section has to show; one with a fault says so in its place."""
    from stepscope.report.page.parts import Note, Section

    built: Section | FailedPart = result_or_failed_part(lambda: module.build(run))
    return Section("", (Note(f"{built.sentence('this section')}."),)) if isinstance(built, FailedPart) else built


def subtitle_facts(run: Run) -> list[str]:
    """The line below the title: what was trained, on what, and which run it is."""
    return [*setting_facts(run)[1:], run.id]


def failed_run_alert(run: Run) -> str | None:
    """Return what a reader must know before any number: the run did not end as it should."""
    if run.status == "ok":
        return None
    reason = run.meta.get("reason")
    sentence = {
        "running": "This run has not ended: the page shows what was on disk when it was written.",
        "failed": "The training ended with an error.",
        "oom": "The training ran out of memory.",
        "interrupted": "The training was interrupted before its end.",
    }.get(run.status, f"The run ended as '{run.status}'.")
    return f"{sentence} {reason}" if reason else sentence


def css_variables(colours: dict[str, str]) -> str:
    """Return the declarations of colours by name, for a style sheet."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def json_for_page(data: object) -> str:
    """Data for the page's script as JSON that no name can break out of; characters that steer text are spelt out."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    text = _STEERING.sub(lambda match: f"{match[1]}\\\\u{match[2]}", text)
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("'", "\\u0027")):
        text = text.replace(sign, code)
    return text


def backticks_to_code(escaped: str) -> str:
    """Escaped text as HTML in which what stands between backticks is code; no line breaks in an option or before %."""
    whole = _OPTION.sub(
        r'<span class="whole">\1</span>', escape_control_characters(str(escaped)).replace(" %", "\u00a0%")
    )
    return _BACKTICKS.sub(r"<code>\1</code>", whole)


def script_hash(script: str) -> str:
    """Return the hash by which the content security policy knows our script; no other script on the page runs."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_NOTEBOOK_NEEDS = ("jinja2", "altair")
_TOP = 5


def run_html(run: Run) -> str | None:
    """Verdict, key figures, dearest modules and operators; None where the extra `report` is not installed."""
    if not _can_draw():
        return None
    from stepscope.report.sections import overview

    return _notebook_page(
        title=_title(run),
        about=subtitle_facts(run),
        alerts=[*filter(None, (simulated_badge(run.simulated), failed_run_alert(run)))],
        sentences=[without_long_words(run.verdict().sentence)],
        figures=[*overview.headlines(run)],
        tables=[_top_modules_table(run), _top_operators_table(run)],
        missing=len(run.not_measured()),
    )


def comparison_html(comparison: Comparison) -> str | None:
    """The numbers side by side and what explains the difference, of several settings the ratios over all of them.

    None where the extra `report` is not installed.
    """
    if not _can_draw():
        return None
    from stepscope.report.comparison import overall_table, quantity_table, side_legend

    several = len(comparison.settings) > 1
    sentences = [f"Over {len(comparison.settings)} shared settings."] if several else comparison.sentences()
    table = overall_table(comparison) if several else quantity_table(comparison)
    return _notebook_page(
        title="Comparison",
        about=[f"{mark} {name}: {facts}" for mark, name, facts in side_legend(comparison)],
        alerts=[],
        sentences=[*sentences, *comparison.notes],
        figures=[],
        tables=[table],
        missing=0,
    )


def _can_draw() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in _NOTEBOOK_NEEDS)


def _top_modules_table(run: Run) -> Table:
    named = run.modules().filter(
        pl.col("module").is_not_null(), pl.col("module") != FRAMEWORK_OVERHEAD, pl.col("share") > 0
    )
    columns = (
        text_column("module", "module", lambda name: page_name(name) or "(the model)"),
        text_column("type", "type"),
        *_TIME_COLUMNS,
    )
    rows = named.sort("share", "module", descending=[True, False]).head(_TOP).iter_rows(named=True)
    return Table.from_rows("modules, self time", columns, rows)


def _top_operators_table(run: Run) -> Table:
    named = run.operators().filter(pl.col("name") != FRAMEWORK_OVERHEAD).head(_TOP)
    columns = (text_column("operator", "name", page_name), text_column("on", "device"), *_TIME_COLUMNS)
    return Table.from_rows("operators, self time", columns, named.iter_rows(named=True))


_TIME_COLUMNS = (number_column("a step", "total_ns", duration), percent_bar_column("share", "share"))


def _notebook_page(**content: Any) -> str:
    return page_environment("stepscope.report.page").get_template("notebook.html.j2").render(**content)
