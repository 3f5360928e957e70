"""The page about --json names the keys that commands print."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fabricate import fabricate_run
from tests.importers.profiler_json import step as mark
from tests.importers.profiler_json import write
from tests.patience import HANG_S
from typer.main import get_command

from stepscope.__main__ import build_app, main
from stepscope.cli._options import print_json

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
        ("brief", "{a}"),
        ("live", "{a}"),
        ("figure list", ""),
        ("export", "{a} --to csv --out out"),
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


SERVERS = {"view", "mcp"}  # which have no answer


def test_every_command_has_it_and_is_on_the_page() -> None:
    def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
        for word, inner in getattr(command, "commands", {}).items():
            yield from leaves(inner, f"{name} {word}".strip())
        if not getattr(command, "commands", {}):
            yield name, command

    found = dict(leaves(get_command(build_app())))
    without = {name for name, command in found.items() if not any("--json" in option.opts for option in command.params)}
    assert without == SERVERS
    text = PAGE.read_text(encoding="utf-8")
    named = {name for name in found if f"`{name}`" in text or f"`{name} " in text or f"`{name.split()[0]} ..." in text}
    assert set(found) - named == set()


def test_commands_of_a_store_print_the_keys_that_are_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_STORE", str(tmp_path / "store"))
    name = fabricate_run(tmp_path / "runs", steps=20).name
    for command, arguments in (
        ("push", "last"),
        ("show", name),
        ("tag", f"{name} --add baseline"),
        ("verify", ""),
        ("pull", f"{name} --out pulled"),
        ("gc", ""),
        ("rm", f"{name} --yes"),
    ):
        assert main(["runs", command, *arguments.split(), "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        keys = set(printed[0] if isinstance(printed, list) else printed)
        assert documented(f"runs {command}") <= keys, command
        assert command == "show" or keys == documented(f"runs {command}"), command


def test_a_list_of_runs_says_how_many_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        fabricate_run(tmp_path / "runs", steps=0)
    monkeypatch.setenv("STEPSCOPE_STORE", str(tmp_path / "runs"))
    assert main(["runs", "list", "--json", "--most", "2"]) == 0
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) == 2
    assert "1 more not shown: --most 3" in shown.err


def test_a_calibration_says_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepscope.api import calibration

    done = calibration.CalibrationOutcome({}, {"ina": "no reading"}, tmp_path / "device.json")
    monkeypatch.setattr(calibration, "calibrate_device", lambda *_: done)
    assert main(["calibrate", "--plug", "shelly=192.168.1.20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path)}


def test_the_state_of_a_fleet_has_the_keys_that_are_documented() -> None:
    from stepscope.cli.fleet import _device_json
    from stepscope.experiments.fleet.devices import DeviceState
    from stepscope.experiments.fleet.gatherer import Device, DeviceInfo

    device = Device("pi-1", "pi5", "tls://1.2.3.4:5")
    met = DeviceInfo({"versions": {"stepscope": "0.1.0", "torch": None}}, 0.02, 0.001)
    free, busy, refused = (
        _device_json(state)
        for state in (DeviceState(device, met), DeviceState(device, None), DeviceState(device, None, "old"))
    )
    assert set(free) == set(busy) == documented("fleet status")
    assert [state["state"] for state in (free, busy, refused)] == ["free", "at work", "not used"]


def test_an_import_prints_the_keys_that_are_documented_also_of_a_file_of_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = write(tmp_path / "trace.json", [mark(number, 1e4 * number, 1e4) for number in range(6)])
    assert main(["import", str(trace), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == documented("import")
    assert printed["steps"] == 6


def test_run_prints_the_metrics_of_a_script_behind_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepscope.cli import run as command

    path = fabricate_run(tmp_path / "runs", steps=20)
    monkeypatch.setattr(command, "script_run", lambda *_: (path, 3))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    assert main(["run", "--json", "--no-ceilings", "train.py"]) == 3
    assert json.loads(capsys.readouterr().out)["id"] == path.name


def test_run_prints_the_metrics_of_a_script_that_a_signal_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", encoding="utf-8")
    command = [sys.executable, "-m", "stepscope", "run", "--json", "train.py"]
    ended = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=HANG_S, check=False)
    assert json.loads(ended.stdout)["status"] == "interrupted"
    assert ended.returncode == -signal.SIGINT


def test_a_script_that_removes_its_run_keeps_its_exit_code_also_with_json_and_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('changes = ["matmul=medium"]\n', encoding="utf-8")
    (tmp_path / "train.py").write_text("import shutil, sys\nshutil.rmtree('runs')\nsys.exit(3)\n", encoding="utf-8")
    command = [sys.executable, "-m", "stepscope", "run", "--json", "--with", "x.toml", "train.py"]
    ended = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=HANG_S, check=False, text=True)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "Traceback" not in ended.stderr


def test_a_number_that_is_none_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": math.inf, "rows": [(math.nan, 1.5)], "at": Path("x")})
    assert json.loads(capsys.readouterr().out) == {"loss": None, "rows": [[None, 1.5]], "at": "x"}


def test_fit_prints_the_keys_that_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["fit", "lenet", "--no-options", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == documented("fit")
