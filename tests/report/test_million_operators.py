"""The answer of a run with a million op calls: as short, and its page as small, as that of any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.browser import Browser
from tests.report.stored_runs import a_million_operators
from tests.report.test_page_limits import BYTES, SCREEN_PX, WORDS
from tests.report.test_screen import screen

from stepscope.analysis.run import Run
from stepscope.report import html
from stepscope.report.first_screen import LINES


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_million_operators(tmp_path_factory.mktemp("runs"))


def test_a_million_operators_are_answered_on_one_screen_and_on_a_small_page(path: Path, tmp_path: Path) -> None:
    run = Run(path)
    assert run.ops.height >= 1_000_000
    page = html.write(run, tmp_path / "page.html")
    assert page.stat().st_size <= BYTES
    for width in (80, 100):
        lines = screen(path, width).splitlines()
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= width
    with Browser(tmp_path / "profile") as chromium:
        chromium.open(page, 1400, SCREEN_PX)
        assert chromium.said == []
        assert chromium.run("document.documentElement.scrollHeight") <= 5 * SCREEN_PX
        assert chromium.run("document.body.innerText.trim().split(/\\s+/).length") <= WORDS
