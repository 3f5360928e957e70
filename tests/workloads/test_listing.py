from __future__ import annotations

import json

import pytest

from stepscope import workloads as suite
from stepscope.commands.workloads import workloads


@pytest.fixture(autouse=True)
def four_of_all(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counting the FLOPs of all takes many seconds, and test_figures.py does it."""
    four = [suite.find(name) for name in ("char-lstm-80", "dqn-2013-84", "lenet", "resnet18-c32")]
    monkeypatch.setattr(suite, "every", lambda: four)
    return [workload.name for workload in four]


def test_the_table_names_every_workload_with_its_parameters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, four_of_all: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    workloads()
    shown = capsys.readouterr().out
    assert all(name in shown for name in four_of_all)
    assert "21,840" in shown
    assert "1.11 G" in shown


def test_on_80_columns_every_name_is_whole_and_on_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = suite.find("inception-v1-narrow-c32")
    monkeypatch.setattr(suite, "every", lambda: [longest, suite.find("lenet")])
    monkeypatch.setenv("COLUMNS", "80")
    workloads()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if longest.name in line)
    assert "5.61 M" in row
    assert "subset" in row


def test_the_json_holds_the_same_in_numbers(capsys: pytest.CaptureFixture[str], four_of_all: list[str]) -> None:
    workloads(json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert sorted(rows) == four_of_all
    assert rows["lenet"]["parameters"] == 21_840
    assert rows["lenet"]["flops_training"] == 2_595_000
    assert rows["resnet18-c32"]["data_kind"] == "real-subset"
    assert rows["resnet18-c32"]["flops_not_counted"] is None
