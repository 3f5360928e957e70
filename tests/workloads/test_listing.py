from __future__ import annotations

import json

import pytest

from stepscope import workloads as suite
from stepscope.commands.workloads import workloads


def test_the_table_names_every_workload_with_its_parameters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    workloads()
    shown = capsys.readouterr().out
    assert all(name in shown for name in suite.names())
    assert "21,840" in shown
    assert "1.11 G" in shown


def test_the_json_holds_the_same_in_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    workloads(json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert sorted(rows) == suite.names()
    assert rows["lenet"]["parameters"] == 21_840
    assert rows["lenet"]["flops_training"] == 2_595_000
    assert rows["resnet18-c32"]["data_kind"] == "real-subset"
    assert rows["resnet18-c32"]["flops_not_counted"] is None
