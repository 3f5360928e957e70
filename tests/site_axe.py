"""axe-core on every page of the built site (`make docs` runs this): light, dark and on a phone, nothing grave."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Browser
from tests.report.test_axe import grave

SITE = Path(__file__).parents[1] / "build" / "site"
# CI has a limit of time: from then on pages are left out, each day others.
UNTIL_S = float(os.environ.get("SITE_UNTIL", "inf"))
DAY = "" if float("inf") == UNTIL_S else str(int(UNTIL_S // 86_400))
PAGES = sorted(SITE.rglob("*.html"), key=lambda page: (zlib.crc32(f"{page}{DAY}".encode()) if DAY else 0, page))
_SCHEME = "document.body.setAttribute('data-md-color-scheme', '{}')"
_STILL = (
    "document.head.append(Object.assign(document.createElement('style'),"
    " {textContent: '* {transition: none !important}'}))"
)
_IN_THE_DARK = "{runOnly: ['color-contrast'], resultTypes: ['violations']}"
_ON_A_PHONE = "{runOnly: ['scrollable-region-focusable', 'label', 'button-name'], resultTypes: ['violations']}"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_the_site_was_built() -> None:
    assert len(PAGES) > 40, "make docs builds it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SITE)))
def test_nothing_grave_is_found_on_a_page_of_the_site(chromium: Browser, page: Path) -> None:
    if time.time() > UNTIL_S:
        pytest.skip("no time is left for this page: make docs looks at all")
    chromium.open(page)
    chromium.run(_STILL)
    chromium.run(_SCHEME.format("default"))
    assert grave(chromium) == []
    chromium.run(_SCHEME.format("slate"))
    assert grave(chromium, _IN_THE_DARK) == []
    chromium.resize(390, 844)
    assert grave(chromium, _ON_A_PHONE) == []
    assert chromium.run("document.documentElement.scrollWidth") <= 390
