"""The page about --json names the keys that commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.fabricate import fabricate_run

from stepscope.__main__ import main

PAGE = Path(__file__).parents[1] / "docs" / "json.md"


def documented(command: str) -> set[str]:
    """Return the keys of a command's row: those in backticks, outside parentheses."""
    rows = dict(re.findall(r"^\| (`.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M))
    (row,) = (keys for names, keys in rows.items() if f"`{command}`" in names)
    outside = re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "", row)
    return set(re.findall(r"`(\w+)`", outside))


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("compare", "{a} {b}"),
        ("check", "{a} --against {b}"),
        ("doctor", ""),
        ("forecast", "{a} --steps 1000"),
        ("suite list", ""),
        ("workloads", ""),
        ("data list", ""),
        ("tune", ""),
    ],
)
def test_a_command_prints_the_keys_that_are_documented(
    command: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if command == "tune":
        from stepscope.analysis.results import Findings

        printed = json.loads(Findings("", "", (), ()).to_json())
    else:
        a, b = (fabricate_run(tmp_path / name, steps=20, power_w=5.0, noise=0.02) for name in "ab")
        main([*command.split(), *arguments.format(a=a, b=b).split(), "--json"])
        printed = json.loads(capsys.readouterr().out)
    assert set(printed[0] if isinstance(printed, list) else printed) == documented(command)


def test_fit_prints_the_keys_that_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["fit", "lenet", "--no-options", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == documented("fit")
