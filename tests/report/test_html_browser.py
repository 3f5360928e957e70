"""The page in a real browser, where one is installed: it runs without an error, sorts, filters and zooms."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fabricate import fabricate_run
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
const heading = (name, text) => [...document.querySelectorAll(`[data-name="${name}"] th button`)].find((b) => b.textContent === text);
heading("operations", "Operation").click();
said.ascending = first("operations");
heading("operations", "Operation").click();
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


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_tables_sort_and_filter_and_the_icicle_zooms_without_an_error(tmp_path: Path) -> None:
    page = html.render(Run(fabricate_run(tmp_path, steps=10)))
    page = re.sub(
        r"<meta http-equiv[^>]*>", "<script>window.errors = []; onerror = (e) => errors.push(e)</script>", page
    )
    target = tmp_path / "page.html"
    target.write_text(page.replace("</body>", f"<script>{SCRIPT}</script></body>"), encoding="utf-8")
    said = _title(target, tmp_path)
    assert '"ascending":"(between operations)"' in said
    assert '"descending":"Optimizer.step#SGD.step"' in said or '"descending":"ThresholdBackward0"' in said, said
    assert '"filtered":2' in said or '"filtered":1' in said, said
    assert '"cells":5' in said
    assert '"zoomed":"features,0,1"' in said
    assert '"errors":0' in said


def _title(page: Path, folder: Path) -> str:
    command = [str(BROWSER), *FLAGS.split(), f"--user-data-dir={folder / 'browser'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"<title>(.*?)</title>", done.stdout, flags=re.DOTALL)
    assert found is not None
    return found[1]
