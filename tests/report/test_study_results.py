"""Findings of studies and of tune where the libraries of pages are not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from stepscope.analysis.results import Findings
from stepscope.report.study_results import pictures_hint, write_pictures


def test_without_the_libraries_of_pages_findings_stand_and_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else found(name))

    def charts() -> Any:
        raise AssertionError("nothing can be drawn")

    write_pictures(Findings("Faster", "Cannot tell yet.", (), ()), charts, tmp_path, ("svg",))
    assert list(tmp_path.iterdir()) == []
    said = pictures_hint(tmp_path)
    assert "findings.json" in said
    assert "the page needs altair, which is not installed; pip install 'stepscope[report]'" in said
