"""The page in a real browser, where one is installed: it runs without an error, sorts, filters and zooms."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.fabricate import fabricate_run

from stepscope.analysis.run import Run
from stepscope.report import html

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --virtual-time-budget=3000"
)
SCRIPT = """
const said = {};
const first = (name) => document.querySelector(`[data-name="${name}"] tbody td`).textContent;
const heading = document.querySelector('[data-name="operations"] th button');
heading.click();
said.ascending = first("operations");
heading.click();
said.descending = first("operations");
const filter = document.querySelector('[data-name="operations"] input');
filter.value = "ADDMM"; filter.dispatchEvent(new Event("input"));
said.filtered = document.querySelectorAll('[data-name="operations"] tbody tr').length;
said.cells = document.querySelectorAll(".icicle .cell").length;
[...document.querySelectorAll(".icicle .cell")].find((cell) => cell.textContent.startsWith("features")).click();
said.zoomed = [...document.querySelectorAll(".icicle .cell b")].map((label) => label.textContent).join(",");
said.errors = window.errors.length;
document.title = JSON.stringify(said);
"""


pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


@pytest.fixture
def page(tmp_path: Path) -> str:
    return html.render(Run(fabricate_run(tmp_path, steps=10)))


def test_tables_sort_and_filter_and_the_icicle_zooms_without_an_error(page: str, tmp_path: Path) -> None:
    watched = "<script>window.errors = []; onerror = (e) => errors.push(e)</script>"
    page = re.sub(r"<meta http-equiv[^>]*>", watched, page)  # the policy would stop this test's scripts
    loaded = _loaded(page.replace("</body>", f"<script>{SCRIPT}</script></body>"), tmp_path)
    found = re.search(r"<title>(.*?)</title>", loaded, flags=re.DOTALL)
    assert found is not None
    assert json.loads(found[1]) == {
        "ascending": "(between operations)",
        "descending": "ReluBackward0",
        "filtered": 3,  # aten::addmm, AddmmBackward0 and what evaluates it
        "cells": 5,
        "zoomed": "features,0,1",
        "errors": 0,
    }


def test_the_policy_lets_our_script_run_and_no_other(page: str, tmp_path: Path) -> None:
    intruder = "<script>document.title = 'intruded'</script></body>"
    loaded = _loaded(page.replace("</body>", intruder), tmp_path)
    assert 'class="tools"' in loaded
    assert "<title>intruded" not in loaded


def _loaded(page: str, folder: Path) -> str:
    """The document after its scripts have run."""
    target = folder / "page.html"
    target.write_text(page, encoding="utf-8")
    command = [str(BROWSER), *FLAGS.split(), f"--user-data-dir={folder / 'browser'}", "--dump-dom", target.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
