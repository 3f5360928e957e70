"""A reader opens each file of a run once, and says what lay there when it was opened, also of a run that goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from tests.fabricate import every_step, fabricate_run
from tests.patience import HANG_S
from tests.report.test_memory_report import events
from tests.test_runfolder import STEP, _channel, _ops, _sampled

from stepscope.analysis.run import Run
from stepscope.runfolder import RunReader, RunWriter, part_of
from stepscope.runfolder.pack import pack

# Every file that Python opens is counted. Polars opens files out of Python's sight: it must be given bytes.
_COUNTED = """
import collections, json, os, sys
import polars as pl
from rich.console import Console
from stepscope.analysis.run import Run
from stepscope.analysis.summary import is_summary_current, write_summary
from stepscope.report import html, terminal_report

folder, opened = os.path.realpath(sys.argv[1]), collections.Counter()

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and not (arguments[2] & (os.O_WRONLY | os.O_CREAT)):
        path = os.path.realpath(arguments[0])
        if path.startswith(folder + os.sep):
            opened[os.path.relpath(path, folder)] += 1

def of_bytes(read):
    def guarded(source, *given, **named):
        assert not isinstance(source, (str, os.PathLike)), f"polars reads {source}"
        return read(source, *given, **named)
    return guarded

for name in ("read_parquet", "scan_parquet", "read_parquet_schema", "read_csv", "scan_csv", "read_ipc", "scan_ipc"):
    setattr(pl, name, of_bytes(getattr(pl, name)))
sys.addaudithook(watch)
run = Run(folder)
if sys.argv[2] == "text":
    with open(os.devnull, "w") as nowhere:
        Console(file=nowhere).print(terminal_report.render(run))
else:
    html.render(run)
if run.status != "running" and not is_summary_current(run):
    write_summary(run)
print(json.dumps(opened))
"""


def _opened(run: Path, report: str) -> dict[str, int]:
    """How often each file of the run was opened to be read for a whole report."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED, str(run), report], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes with ops, memory events, power and cores."""
    folder = tmp_path_factory.mktemp("runs")
    path = fabricate_run(folder, steps=60, noise=0.02, power_w=5.0, recorded=every_step, header={"world_size": 2})
    part = fabricate_run(folder, steps=60, noise=0.02, samples=False, header={"rank": 1, "world_size": 2})
    RunWriter(path, {}).write_memory_events(part_of(events(RunReader(path).steps["t0_ns"][4]), "memory"))
    (path / "ranks").mkdir()
    part.rename(path / "ranks" / "1")
    return path


@pytest.mark.parametrize("report", ["text", "page"])
@pytest.mark.parametrize("form", ["packed", "rows"])
def test_a_whole_report_opens_every_file_of_a_run_at_most_once(
    run: Path, tmp_path: Path, form: str, report: str
) -> None:
    path = tmp_path / "run"
    if form == "packed":
        shutil.copytree(run, path)
    else:
        fabricate_run(tmp_path, steps=30, power_w=5.0, status=None).rename(path)
    first, second = _opened(path, report), _opened(path, report)
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert max(first.values()) == max(second.values()) == 1
    assert {"run.json", "channels.json", "device.json", "model.json"} <= first.keys()
    assert {name for name in files if name.startswith(("steps", "ops/", "samples/", "memory/"))} <= first.keys()
    assert any(name.startswith(".cache/") for name in second)


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    """A run that goes on, with one of everything."""
    writer = RunWriter.create(tmp_path, "going-on")
    writer.update(pid=os.getpid())
    _add(writer, 0)
    return writer


def _add(writer: RunWriter, step: int) -> None:
    """What recording and sampling add with one step."""
    writer.write_device({"temperature": step})
    writer.append_step(step, *STEP)
    writer.flush_steps()
    writer.write_ops(_ops(step, ["nn.Conv2d"]))
    writer.append_event("note", f"step {step}")
    rows: list[tuple[float, ...]] = [(t, t + 1, float(t)) for t in range(step + 1)]
    _sampled(writer.path, "proc", [_channel("proc", "rss")], rows)


def _counts(run: RunReader) -> list[int]:
    return [len(run.steps), len(run.ops), len(run.events), len(run.sensor("proc")), run.device["temperature"] + 1]


def test_a_run_that_goes_on_is_read_as_it_was_when_it_was_opened(writer: RunWriter) -> None:
    opened, whole = RunReader(writer.path), RunReader(writer.path)
    assert _counts(whole) == [1] * 5
    _add(writer, 1)
    assert _counts(opened) == _counts(whole) == [1] * 5
    assert _counts(RunReader(writer.path)) == [2] * 5


def test_also_where_it_has_ended_and_was_packed_meanwhile(writer: RunWriter) -> None:
    opened = RunReader(writer.path)
    _add(writer, 1)
    writer.close("ok")
    assert pack(writer.path) == []
    assert _counts(opened) == [1] * 5
    assert (opened.status, RunReader(writer.path).status) == ("running", "ok")
    assert opened.damaged == []


def test_a_file_that_came_after_the_opening_is_not_there(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "begun")
    writer.update(pid=os.getpid())
    opened = RunReader(writer.path)
    _add(writer, 0)
    assert (len(opened.steps), len(opened.ops), len(opened.events), opened.channels) == (0, 0, 0, [])


def test_a_closed_run_does_not_change_under_its_reader(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=30)
    run = Run(path)
    assert (len(run.steps), run.steps is run.steps) == (30, True)
    (path / "steps.parquet").unlink()
    (path / "channels.json").write_text("{}")
    assert (len(run.steps), len(run.metrics()) > 0) == (30, True)


def test_an_energy_table_of_files_that_were_replaced_under_a_reader_is_not_given_to_the_next_one(
    tmp_path: Path,
) -> None:
    path = fabricate_run(tmp_path, steps=60, power_w=5.0, noise=0.02)
    opened = Run(path)
    before = opened.sensor("power")["vdd_in"].sum()
    frame = pl.read_parquet(path / "samples" / "power.parquet")
    frame.with_columns(pl.col("vdd_in") * 2).write_parquet(path / "samples" / "power.parquet")
    stale, fresh = (run.energy(by="kind")["joules_per_step"].sum() for run in (opened, Run(path)))
    assert opened.sensor("power")["vdd_in"].sum() == before
    assert fresh == pytest.approx(2 * stale, rel=1e-6)
