"""`stepscope log` and `stepscope live --prometheus`: from the command line to the tool."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fabricate import fabricate_run
from tests.integrations.trainings import library

from stepscope.__main__ import main

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run with power."""
    return fabricate_run(tmp_path / "runs", power_w=5.0)


def _exit_code(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def test_the_place_where_the_run_went_is_printed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        _exit_code("log", str(folder), "--to", "codecarbon", "--out", str(tmp_path), "--carbon-intensity", "380") == 0
    )
    assert capsys.readouterr().out.strip() == str(tmp_path / "emissions.csv")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "mlfow"), "did you mean mlflow?"),
        (("--to", "prometheus", "--carbon-intensity", "380"), "--carbon-intensity means nothing to prometheus"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    folder: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("log", str(folder), *arguments) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_has_ended_leaves_its_last_gauges_in_the_file(folder: Path, tmp_path: Path) -> None:
    library("prometheus_client")
    target = tmp_path / "live.prom"
    assert _exit_code("live", str(folder), "--prometheus", str(target)) == 0
    assert 'status="ok"' in target.read_text(encoding="utf-8")


def test_the_address_of_the_gauges_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library("prometheus_client")
    assert _exit_code("live", str(folder), "--prometheus", "0") == 0
    assert "gauges at http://127.0.0.1:" in capsys.readouterr().err
