"""One browser for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.report.browser import Browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
