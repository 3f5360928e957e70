"""axe-core on every kind of page, light, dark and on a phone, folds open: no serious or critical finding."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fabricate import fabricate_run
from tests.report.browser import Browser
from tests.report.stored_runs import RUNS
from tests.report.test_page_limits import SCREEN_PX, WORDS
from tests.report.test_suite_report import results

import stepscope
from stepscope.analysis.results import Findings
from stepscope.analysis.run import Run
from stepscope.experiments.suite.results import settings_table
from stepscope.experiments.sweeps import BatchSweep
from stepscope.experiments.sweeps.results import axis_sweep, build_findings
from stepscope.experiments.sweeps.trainings import TrainingRun
from stepscope.report import compare_page, html, study_results, suite_report
from stepscope.report.charts.comparison import setting_charts
from stepscope.report.view.access import Access
from stepscope.report.view.site import Site

HERE = {"Host": "localhost"}

_GRAVE = ("serious", "critical")
_OPENED = "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"
_ALL = "{resultTypes: ['violations']}"


def grave(chromium: Browser, rules: str = _ALL) -> list[tuple[str, list[str]]]:
    """What axe-core finds grave on the page that is open, with every fold open: rule, and the places."""
    script = pytest.importorskip("axe_playwright_python.base").AXE_SCRIPT
    chromium.run(_OPENED)
    chromium.run(script + ";0")
    found: list[dict[str, Any]] = chromium.run(f"axe.run(document, {rules}).then((found) => found.violations)")
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
    return suite_report.render("a board", [("Suite", "on a board")], settings_table(results("lenet", "resnet8-c32")))


def study(folder: Path) -> str:
    """Two batch sizes of a workload, as `study batch` judges and draws them."""
    asked = BatchSweep("lenet", batch=(4, 32), repeats=2, steps=60)
    runs = [_trained(asked, batch, repeat) for batch in (4, 32) for repeat in range(2)]
    findings = build_findings(axis_sweep("batch", "lenet"), runs, asked.rules)
    assert "Best by" in findings.answer
    return study_results.render(findings, setting_charts(findings.frames))


def _trained(asked: BatchSweep, batch: int, repeat: int) -> TrainingRun:
    speed, joules = 900.0 * batch**0.5 + 9 * repeat, 0.01 / batch**0.5
    numbers = {
        "samples_per_s": {"value": speed, "low": speed - 20, "high": speed + 20},
        "step_time_ms": {"value": 1e3 * batch / speed, "low": 990 * batch / speed, "high": 1010 * batch / speed},
        "energy_per_sample_j": {"value": joules, "low": 0.9 * joules, "high": 1.1 * joules},
        "peak_process_bytes": {"value": 3e8 + 1e6 * batch, "low": None, "high": None},
    }
    setting, steps = replace(asked.base, batch=batch), range(60)
    losses = [2.3 / (1 + step / 9) for step in steps]
    times = [step * batch / speed for step in steps]
    return TrainingRun(setting, repeat, "ok", numbers=numbers, losses=losses, times_s=times)


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
