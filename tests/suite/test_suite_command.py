"""`stepscope suite`: real sweeps of a small network, and what is refused before anything runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.suite.small_sweeps import small_sweep

import stepscope
from stepscope import __main__ as cli
from stepscope.analysis.time.steps import timed_steps
from stepscope.errors import UsageError
from stepscope.runfolder import RunReader

CommandLine = Callable[..., "subprocess.CompletedProcess[str]"]
MINE = """
from dataclasses import replace
from stepscope.workloads import find
from stepscope.workloads.contract import Extra

LENET = find("lenet")

def broken(model, batch):
    raise ValueError("this loss is broken")

WORKLOADS = (
    replace(LENET, name="plain"),
    replace(LENET, name="broken", loss=broken),
    replace(LENET, name="needy", needs=(Extra("no_such_module", "atari"),)),
)
"""


def _suite(*arguments: str) -> int:
    """The exit code of `stepscope suite ...` in this process."""
    try:
        return cli.main(["suite", *arguments])
    except SystemExit as end:
        return int(end.code or 0)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert _suite(*arguments) == 2
    return capsys.readouterr().err


def _run(*arguments: str) -> int:
    return _suite("run", "--quiet", "--threads", "1", "--steps", "7", "--repeats", "1", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--tier", "smok"], "did you mean smoke?"),
        (["run", "lenett"], "did you mean lenet"),
        (["run", "--batch", "0"], "--batch 0: must be 1 or more"),
        (["run", "--repeats", "0"], "--repeats 0"),
        (["run", "--precisions", "fp8"], "unknown precision 'fp8'"),
        (["run", "lenet", "--optimizers", "adm"], "unknown optimizer of 'lenet' 'adm'"),
        (["run", "--device", "tpu"], "unknown device 'tpu'"),
        (["run", "--steps", "0"], "--steps 0"),
        (["run", "--seconds", "-1"], "--seconds -1"),
        (["run", "--interval", "2"], "must be 1 or less"),
        (["run", "--time-limit", "0s"], "must be above 0"),
        (["run", "--cooldown", "cold"], "not a length of time"),
        (["run", "--memory", "10MB"], "less than torch alone"),
        (["run", "--resume"], "no sweep"),
        (["shwo"], "did you mean show?"),
        (["export", "x", "--to", "xlsx"], "unknown format 'xlsx'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in _refused(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_a_sweep_is_run_shown_exported_and_resumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    names = "lenet,mine.py:broken,mine.py:needy"
    options = (names, "--precisions", "bf16", "--batch", "2,2", "--out", "s")
    assert _run(*options) == 0
    assert "given more than once" in capsys.readouterr().err
    assert _suite("show", "s", "--out", "x.html") == 2
    assert "--out and --open belong to --html" in capsys.readouterr().err
    assert _suite("show", "s", "--json") == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    rows = {row["workload"]: row for row in shown["settings"]}
    lenet = rows["lenet"]
    assert (lenet["status"], lenet["precision"], lenet["batch"], lenet["threads"]) == ("ok", "bf16", 2, 1)
    steps, _ = timed_steps(RunReader(next(Path("s/runs").glob("lenet*/*/run.json")).parent))
    assert lenet["step_time_ms"] == pytest.approx(steps["length_ns"].median() / 1e6)  # type: ignore[operator]
    assert lenet["samples_per_s"] == pytest.approx(2e9 * len(steps) / int(steps["length_ns"].sum()))
    assert rows["mine.py:broken"]["status"] == "failed"
    assert "this loss is broken" in rows["mine.py:broken"]["reason"]
    assert rows["mine.py:needy"]["status"] == "not installed"
    assert "pip install 'stepscope[atari]'" in rows["mine.py:needy"]["reason"]
    _shown_and_exported(capsys)
    _resumed(capsys, options)


def _shown_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    for to, name in (("csv", "s.csv"), ("parquet", "s.parquet"), ("markdown", "s.md"), ("mlperf", "s.log")):
        assert _suite("export", "s", "--to", to) == 0
        assert capsys.readouterr().out == f"{name}\n"
        assert Path(name).stat().st_size > 100
    assert _suite("export", "s", "--to", "csv", "--runs", "--out", "runs.csv") == 0
    assert len(Path("runs.csv").read_text().splitlines()) == 4
    assert _suite("export", "s") == 0
    assert _suite("show", "s.json", "--against", "s.json", "--models") == 0
    assert "speed score 1" in capsys.readouterr().out
    assert _suite("list", ".") == 0
    assert "s: 3 of 3 runs" in capsys.readouterr().out


def _resumed(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    run = next(Path("s/runs").glob("lenet*/*/run.json"))
    before = run.read_bytes()
    assert json.loads(before)["workload"]["precision"] == "bfloat16 (autocast)"
    assert _run(*options, "--resume") == 0
    assert run.read_bytes() == before, "what has ended is not run again"
    assert _suite("run", "--resume", "--out", "s", "--steps", "9", "lenet") == 2
    said = capsys.readouterr().err
    assert "steps: 7 -> 9" in said
    assert "leave these options out" in said
    Path("mine.py").write_text(MINE + "# changed\n")
    assert _suite("run", "--resume", "--out", "s") == 2
    said = capsys.readouterr().err
    assert "mine.py:broken: source_sha256" in said
    assert "+# changed" in said


def test_a_training_that_exceeds_the_memory_limit_is_out_of_memory(tmp_path: Path) -> None:
    out = tmp_path / "s"
    assert _run("vgg16-c32", "--batch", "256", "--memory", "700MB", "--out", str(out)) == 0
    result = json.loads(next((out / "points").glob("*.json")).read_text())
    assert result["status"] == "oom", result
    assert "numbers" not in result


def test_a_sweep_is_shown_without_torch(tmp_path: Path, cold_python: CommandLine) -> None:
    small_sweep(tmp_path / "s")
    script = "import sys; sys.modules['torch'] = None\nfrom stepscope.__main__ import main\nsys.exit(main())"
    listed = cold_python("-c", script, "suite", "list", ".")
    assert (listed.returncode, "s: 0 of 1 runs" in listed.stdout) == (0, True), listed.stderr
    shown = cold_python("-c", script, "suite", "show", "s")
    assert (shown.returncode, "not run yet" in shown.stdout) == (0, True), shown.stderr


def test_what_is_left_out_on_a_fleet_has_to_be_left_out_by_each_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("asyncssh")
    from stepscope.api import suite
    from stepscope.experiments.fleet import hosts

    monkeypatch.setenv("STEPSCOPE_PRIVATE", "argv")

    monkeypatch.setattr(hosts, "scheduler_of_hosts", lambda known: hosts.SchedulerAddress("", tmp_path, known))
    monkeypatch.setattr("stepscope.experiments.fleet.scheduling.new_fleet", lambda *_: 1 / 0)

    def begin(*environments: str) -> None:
        file = tmp_path / "hosts.toml"
        listed = (f'[[host]]\nname = "{"xy"[n]}"\nlocal = true\n{said}\n' for n, said in enumerate(environments))
        file.write_text("\n".join(listed))
        suite.run("smoke", fleet=str(file), out=tmp_path / "sweep")

    private = 'environment = { STEPSCOPE_PRIVATE = "1" }'
    for environments in (("", ""), (private, 'environment = { STEPSCOPE_PRIVATE = "names" }')):
        with pytest.raises(UsageError, match="do not reach the boards"):
            begin(*environments)
    with pytest.raises(ZeroDivisionError):  # it begins
        begin(private, 'environment = { STEPSCOPE_PRIVATE = "argv" }')
    monkeypatch.delenv("STEPSCOPE_PRIVATE")
    with pytest.raises(ZeroDivisionError):
        begin("", "")


def test_the_newest_sweep_is_exported_and_read_by_the_name_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small_sweep(tmp_path / "suites" / "newest")
    assert _suite("export", "last", "--to", "csv") == 0
    assert capsys.readouterr().out == "suites/newest.csv\n"
    assert stepscope.suite.table("last").height == 1
    assert stepscope.suite.results("last").name == "newest"
