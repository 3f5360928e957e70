"""A fault of one analysis costs its part of a report, which says so; it is no fault that a test overlooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.torture import SHOWN_FAULT
from tests.fabricate import fabricate_run

import stepscope
from stepscope.analysis.run import Run
from stepscope.cli._application import run_command_line
from stepscope.errors import AnalysisFailed, RunDamaged


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fabricate_run(tmp_path / "runs", steps=12, power_w=5.0)


@pytest.fixture
def _as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSCOPE_FAULTS")


def _breaks(monkeypatch: pytest.MonkeyPatch, error: BaseException, name: str = "operators") -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(Run, name, broken)


@pytest.mark.usefixtures("_as_users_have_it")
def test_a_fault_costs_the_parts_that_need_what_failed_and_they_are_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stepscope.text(run, verbose=True)
    _breaks(monkeypatch, IndexError("out of bounds"))
    broken = stepscope.text(run, verbose=True)
    assert "Operators and shares cannot be shown: IndexError" in broken
    assert "STEPSCOPE_FAULTS=raise" in broken
    kept = [line for line in whole.splitlines() if line in broken and line.strip()]
    assert len(kept) > len(whole.split("\n")) / 2


@pytest.mark.usefixtures("_as_users_have_it")
def test_the_answer_and_the_page_go_on_without_what_failed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("altair")
    _breaks(monkeypatch, ZeroDivisionError("by zero"), "layers")
    answer = stepscope.text(run)
    assert "The layers cannot be shown: ZeroDivisionError" in answer
    assert "/step" in answer
    page = stepscope.page(run).read_text(encoding="utf-8")
    assert "This section cannot be shown: ZeroDivisionError" in page
    assert "<svg" in page


@pytest.mark.usefixtures("_as_users_have_it")
def test_a_chart_that_cannot_be_drawn_costs_the_page_that_figure_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("altair")
    from stepscope.report.charts import memory

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no glyph")

    monkeypatch.setattr(memory, "build_memory", broken)
    page = stepscope.page(run).read_text(encoding="utf-8")
    assert "This figure cannot be shown: ValueError" in page
    assert "<svg" in page


@pytest.mark.usefixtures("_as_users_have_it")
def test_what_cannot_be_answered_in_part_is_an_error_with_the_line_that_failed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepscope.analysis.compare.match_settings", lambda _: [][1])
    with pytest.raises(AnalysisFailed, match=r"IndexError in analysis/compare/__init__\.py:\d+"):
        stepscope.compare([run, run])
    assert run_command_line(["compare", str(run), str(run)]) == AnalysisFailed.exit_code
    assert "hint: STEPSCOPE_FAULTS=raise" in capfd.readouterr().err


@pytest.mark.usefixtures("_as_users_have_it")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), ModuleNotFoundError("no altair", name="altair")])
def test_what_is_no_fault_is_not_contained(run: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    _breaks(monkeypatch, error)
    with pytest.raises(type(error)):
        stepscope.text(run, verbose=True)


def test_damage_that_only_an_analysis_sees_costs_its_part_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _breaks(monkeypatch, RunDamaged("the callers of this run's operators form a circle"))
    text = stepscope.text(run, verbose=True)
    assert "Operators and shares cannot be shown: the callers of this run's operators form a circle" in text
    assert "STEPSCOPE_FAULTS" not in text


@pytest.mark.usefixtures("_as_users_have_it")
def test_the_campaign_counts_a_fault_of_ours_and_no_damage_that_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _breaks(monkeypatch, RunDamaged("the callers of this run's operators form a circle"))
    assert SHOWN_FAULT.findall(stepscope.text(run, verbose=True)) == []
    _breaks(monkeypatch, IndexError("out of bounds"))
    found = SHOWN_FAULT.findall(stepscope.text(run, verbose=True))
    assert found
    assert all(fault.startswith("IndexError") for fault in found)


def test_a_fault_is_raised_whole_where_that_was_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _breaks(monkeypatch, IndexError("out of bounds"))
    with pytest.raises(IndexError, match="out of bounds"):
        stepscope.text(run, verbose=True)
