"""axe-core on every kind of page, light, dark and on a phone, folds open: no serious or critical finding."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fabricate import fabricate_run
from tests.report.browser import Browser
from tests.report.stored_runs import RUNS
from tests.report.test_page_limits import SCREEN_PX, WORDS
from tests.report.test_suite_page import results

import stepscope
from stepscope.analysis.results import Findings
from stepscope.analysis.run import Run
from stepscope.experiments.suite.results import settings_table
from stepscope.report import compare_page, html, study_results, suite_page
from stepscope.report.view.site import Access, Site

HERE = {"Host": "localhost"}

_GRAVE = ("serious", "critical")
_OPENED = "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"
_ASKED = "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)"


def grave(chromium: Browser) -> list[tuple[str, list[str]]]:
    """What axe-core finds grave on the page that is open, with every fold open: rule, and the places."""
    script = pytest.importorskip("axe_playwright_python.base").AXE_SCRIPT
    chromium.run(_OPENED)
    chromium.run(script + ";0")
    found: list[dict[str, Any]] = chromium.run(_ASKED)
    return [
        (rule["id"], [place["html"][:120] for place in rule["nodes"][:3]]) for rule in found if rule["impact"] in _GRAVE
    ]


@pytest.mark.parametrize("name", RUNS)
def test_nothing_grave_is_found_on_the_page_of_a_run(chromium: Browser, tmp_path: Path, name: str) -> None:
    page = html.write(Run(RUNS[name](tmp_path)), tmp_path / "page.html")
    for width, dark in ((1400, False), (1400, True), (390, False)):
        chromium.open(page, width, dark=dark)
        assert grave(chromium) == []


def compared(folder: Path) -> str:
    paths = [RUNS["with power"](folder / side) for side in "ab"]
    return compare_page.render(stepscope.compare(paths))


def suite(folder: Path) -> str:
    return suite_page.render("a board", [("Suite", "on a board")], settings_table(results("lenet", "resnet8-c32")))


def study(folder: Path) -> str:
    pytest.importorskip("torch")
    from stepscope.experiments.breakdown import Breakdown
    from stepscope.experiments.engine.engine import answer_study
    from stepscope.report.charts.operators import breakdown_charts

    findings = answer_study(Breakdown(("lenet",), batch=4, memory_only=True), folder, child=("false",))
    return study_results.render(findings, breakdown_charts(findings.frames))


def tuned(folder: Path) -> str:
    from tests.tune.fake_training import FakeTraining

    from stepscope.experiments.tune.judge import judge
    from stepscope.report.charts.comparison import tuning_charts

    findings = judge(FakeTraining({"channels_last": 0.8, "bf16": 1.3}).tuning(), "What makes lenet faster")
    return study_results.render(findings, tuning_charts(findings.frames))


def viewed(address: str) -> Callable[[Path], str]:
    def page(folder: Path) -> str:
        for seed in range(2):
            fabricate_run(folder, steps=12, power_w=5.0, seed=seed)
        header = {"pid": os.getpid(), "planned_steps": 100}
        running = fabricate_run(folder, steps=8, status=None, header=header, seed=3).name
        site = Site(folder, Access())
        answer = site.answer(address.format(running=running), HERE)
        site.close()
        assert answer.status == 200
        return str(answer.body)

    return page


OTHERS = {
    "a comparison": compared,
    "a suite": suite,
    "a study": study,
    "a tuning": tuned,
    "the list of runs": viewed("/"),
    "runs over time": viewed("/over-time"),
    "a run that is going on": viewed("/live/{running}"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_nothing_grave_is_found_on_the_other_pages_and_they_are_short(
    chromium: Browser, tmp_path: Path, kind: str
) -> None:
    page = html.write_text(tmp_path / "page.html", OTHERS[kind](tmp_path / "runs"))
    for width, dark in ((1400, False), (1400, True), (390, False)):
        chromium.open(page, width, SCREEN_PX, dark)
        assert chromium.said == []
        assert chromium.run("document.documentElement.scrollHeight") <= 5 * SCREEN_PX or width < 1400
        assert chromium.run("document.documentElement.scrollWidth") <= width
        assert chromium.run("document.body.innerText.trim().split(/\\s+/).length") <= WORDS
        assert grave(chromium) == []


def test_an_answer_without_a_figure_is_the_first_thing_on_its_page() -> None:
    page = study_results.render(Findings("Faster", "Cannot tell yet.", (), ()), {})
    assert "Not on this page" not in page
    assert '<p class="aside">Cannot tell yet.</p>' in page


def test_a_picture_without_a_name_is_found(chromium: Browser, tmp_path: Path) -> None:
    page = "<!doctype html><html lang=en><title>t</title><main><img src='data:,'></main>"
    chromium.open(html.write_text(tmp_path / "page.html", page))
    assert [rule for rule, _ in grave(chromium)] == ["image-alt"]
