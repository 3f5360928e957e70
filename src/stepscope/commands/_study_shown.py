"""The end of every study: what was found goes to the terminal, the page and the figures."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stepscope.commands._called import by_program

if TYPE_CHECKING:
    from stepscope.analysis.findings import Findings
    from stepscope.report.findings import Charts
    from stepscope.studies.study_folder import StudyFolder

FORMS = ("png", "svg", "pdf")
_PAGE = 140  # columns, where nobody has a terminal


def study_out(out: Path | None, study: str, subject: str = "") -> Path:
    """The folder of a study: the one given, else studies/<UTC time>-<study>[-<subject>]."""
    if out is not None:
        return out
    name = "-".join(part for part in (study, re.sub(r"[^A-Za-z0-9._-]+", "_", subject)) if part)
    return Path("studies") / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{name}"


def concluded(folder: StudyFolder, findings: Findings, charts: Charts, *, quiet: bool, json: bool) -> None:
    """Keep the findings with page and figures, and show them; a program that called gets them instead."""
    from rich.console import Console

    from stepscope.report.findings import render, save_figures, text
    from stepscope.report.html import write_text

    folder.conclude(findings)
    save_figures(charts, folder.path / "figures", findings.title, FORMS)
    page = write_text(folder.path / "page.html", render(findings, charts))
    called = by_program()
    if called is not None:
        called.found.append(findings)
        return
    if json:
        typer.echo(findings.to_json(), nl=False)
    elif not quiet:
        width = None if sys.stdout.isatty() else _PAGE
        Console(highlight=False, width=width).print(*text(findings), sep="\n")
    sys.stderr.write(f"page and figures: {page}\n")
