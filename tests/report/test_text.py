"""The one-screen report: whatever of a run exists, it is drawn, and what does not exist is said."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from tests.fabricate import Op, Sampled, fabricate_run
from tests.report.stored_runs import READ, simulated_board
from typer import Typer
from typer.testing import CliRunner

from stepscope import run_paths
from stepscope.analysis.caveats import NotMeasured
from stepscope.analysis.first_screen import setting_facts
from stepscope.analysis.run import Run
from stepscope.analysis.summary import write_summary
from stepscope.analysis.time.ranks import KILLED
from stepscope.cli._options import replace_unprintable_output
from stepscope.cli.report import report
from stepscope.errors import RunNotFound, StepscopeError
from stepscope.files import read_json_object, replace_json
from stepscope.report.terminal_report import render
from stepscope.report.terminal_tables import not_measured_lines, profiling_overhead
from stepscope.run_paths import find_run, last_runs
from stepscope.runfolder import RunReader, RunWriter


def screen(path: Path, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(render(Run(path)))
    return captured.get()


def test_a_whole_run_fits_one_screen_and_says_what_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = screen(fabricate_run(tmp_path, steps=60, noise=0.02, overhead=0.05))
    lines = text.splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 100
    for said in ("Compute bound", "samples/s", "backward", "features.0", "aten::convolution_backward", "(framework"):
        assert said in text
    for said in ("75.0 %", "510 MB (peak_rss)", "a profiled step", "energy: no sensor", "91.2 % on mnist real-subset"):
        assert said in text


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ({"steps": 0, "status": None, "ops": (), "samples": False}, "No training step was recorded"),
        ({"steps": 1, "status": None}, "1 step, which was warm-up"),
        ({"steps": 3}, "3 steps, all of them warm-up"),
        ({"steps": 20, "recorded": lambda step: False}, "no operator was recorded"),
        ({"steps": 20, "samples": False}, "nothing was sampled"),
        ({"steps": 20, "model": ()}, "features.0"),
        ({"steps": 20, "status": None}, "interrupted"),
        ({"steps": 4}, "too few for an interval"),
        ({"steps": 20, "power_w": 5.0}, "5 W 80 mJ"),
    ],
)
def test_a_run_that_lacks_something_is_drawn_and_says_so(tmp_path: Path, kind: dict[str, Any], expected: str) -> None:
    assert expected in " ".join(screen(fabricate_run(tmp_path, **kind)).split())


def test_a_folder_with_a_header_alone_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "20260101T000000Z-x-000000"
    path.mkdir()
    (path / "run.json").write_text('{"schema": 1}', encoding="utf-8")
    assert "interrupted" in screen(path)


def test_a_name_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    ops = (Op("aten::[red]x[/nope]", "layer[0]", "forward", 500),)
    text = screen(fabricate_run(tmp_path, ops=ops))
    assert "aten::[red]x[/nope]" in text
    assert "layer[0]" in text


def test_on_a_narrow_terminal_operations_and_phases_keep_names_that_tell_them_apart(tmp_path: Path) -> None:
    names = ("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward")
    ops = tuple(Op(name, "pool", phase, 500) for name, phase in zip(names, ("forward", "backward"), strict=True))
    text = screen(fabricate_run(tmp_path, steps=40, ops=ops), width=80)
    assert max(map(len, text.splitlines())) <= 80
    for whole in (*(f"{name} " for name in names), "(framework overhead)", "where the step goes"):
        assert whole in text


@pytest.mark.parametrize("width", [80, 100])
def test_an_operation_of_the_loop_shows_the_time_that_its_share_is_of(tmp_path: Path, width: int) -> None:
    ops = (Op("aten::addmm", "layer", "forward", 500), Op("aten::stack", None, "data", 300))
    lines = screen(fabricate_run(tmp_path, steps=40, ops=ops), width).splitlines()
    row = next(line for line in lines if line.startswith("aten::stack"))
    assert "300 us" in row
    assert "data" in row or any("data" in line for line in lines if line.startswith("operators ("))


def test_the_reason_of_a_failed_run_is_told(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, status=None)
    RunWriter(path, json.loads((path / "run.json").read_text())).close("failed", "ValueError: boom")
    assert "failed: ValueError: boom" in screen(path)
    assert "ranks" not in {entry.what for entry in Run(path).not_measured()}, "one process trained"


def test_of_a_training_that_was_killed_is_said_that_nobody_knows_why(tmp_path: Path) -> None:
    (entry,) = [entry for entry in Run(fabricate_run(tmp_path, status=None)).not_measured() if "ended" in entry.what]
    assert (entry.what, entry.why) == ("why the training ended", KILLED)


def test_the_heading_has_what_the_first_screen_has_of_the_setting(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, header={"workload": {"name": "script"}})
    facts = setting_facts(Run(path))
    assert "batch 16" in facts, "as it was seen: a script does not state it"
    assert screen(path, 200).splitlines()[1].startswith(" · ".join(facts[:-1])), "but for the day, which the name has"
    summary = json.loads(write_summary(Run(path)).read_text(encoding="utf-8"))
    assert summary["workload"] == {"name": "script", "batch_size": 16}


def test_where_the_bars_of_the_phases_have_no_room_they_make_no_table_of_their_own(tmp_path: Path) -> None:
    text = screen(fabricate_run(tmp_path, steps=60, noise=0.02), 60)
    assert text.count("where the step goes") == 1
    assert "[975 us, 1.03 ms]" in text


def test_a_temperature_that_was_read_is_not_said_to_be_missing_where_another_sensor_of_it_is_absent(
    tmp_path: Path,
) -> None:
    assert "temperature" not in {entry.what for entry in Run(simulated_board(tmp_path)).not_measured()}
    assert "temperature" in {entry.what for entry in Run(fabricate_run(tmp_path)).not_measured()}


def test_what_is_not_measured_is_called_by_words() -> None:
    console = Console(width=100, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(*not_measured_lines([NotMeasured("cpu_frequency", "there is none")]))
    assert "cpu frequency: there is none" in captured.get()


def run_command(*arguments: str) -> Any:
    app = Typer()
    app.command()(report)
    return CliRunner().invoke(app, list(arguments))


def test_the_command_prints_the_screen(tmp_path: Path) -> None:
    result = run_command(str(fabricate_run(tmp_path)))
    assert result.exit_code == 0
    assert "Compute bound" in result.output


def test_the_first_report_of_a_run_keeps_its_headline_for_lists_of_runs(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=20)
    (path / "summary.json").unlink(missing_ok=True)
    assert run_command(str(path)).exit_code == 0
    assert json.loads((path / "summary.json").read_text(encoding="utf-8"))["steps"] == 20


def test_a_headline_of_other_files_is_made_anew_and_one_of_these_is_left(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=20)
    (path / "summary.json").write_text('{"steps": 7}', encoding="utf-8")  # as versions wrote it that stated no key
    assert run_command(str(path)).exit_code == 0
    first = (path / "summary.json").stat()
    assert json.loads((path / "summary.json").read_text(encoding="utf-8"))["steps"] == 20
    assert run_command(str(path)).exit_code == 0
    assert (path / "summary.json").stat().st_mtime_ns == first.st_mtime_ns
    pl.read_parquet(path / "steps.parquet").head(15).write_parquet(path / "steps.parquet")
    assert run_command(str(path)).exit_code == 0
    assert json.loads((path / "summary.json").read_text(encoding="utf-8"))["steps"] == 15


def test_a_run_that_is_going_on_has_no_headline_yet(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=20)
    (path / "summary.json").unlink(missing_ok=True)
    header = json.loads((path / "run.json").read_text(encoding="utf-8"))
    (path / "run.json").write_text(json.dumps({**header, "status": "running", "pid": os.getpid()}), encoding="utf-8")
    assert run_command(str(path)).exit_code == 0
    assert Run(path).status == "running"
    assert not (path / "summary.json").exists()


def test_json_holds_metrics_and_what_is_missing_and_no_nan(tmp_path: Path) -> None:
    content = json.loads(run_command(str(fabricate_run(tmp_path)), "--json").output)
    assert {"step_time", "throughput", "core_utilisation"} <= {row["metric"] for row in content["metrics"]}
    assert content["verdict"]["bound"] == "compute"
    assert content["not_measured"]


def test_the_newest_run_is_found_by_its_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    older, newer = fabricate_run(Path("runs")), tmp_path / "runs" / "20990101T000000Z-x-000000"
    newer.mkdir()
    (newer / "run.json").write_text('{"schema": 1}', encoding="utf-8")
    assert find_run(Path("last")).name == newer.name
    assert find_run(Path(older.name)).resolve() == older


def test_of_runs_of_one_second_the_newest_is_that_of_the_latest_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read: list[Path] = []

    def noted(path: Path) -> dict[str, Any]:
        read.append(path)
        return read_json_object(path)

    monkeypatch.setattr(run_paths, "read_json_object", noted)
    began = {"20260101T000000Z-z-0000ff": 9, "20260101T000001Z-b-ffffff": 1, "20260101T000001Z-a-000000": 2}
    for name, unix_ns in began.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "steps.rows").write_bytes(bytes(64))
        replace_json(tmp_path / "runs" / name / "run.json", {"schema": 1, "clock": {"unix_ns": unix_ns}})
    assert find_run("last").name == "20260101T000001Z-a-000000"
    assert [path.name for path in last_runs(2)] == ["20260101T000001Z-b-ffffff", "20260101T000001Z-a-000000"]
    assert not [path for path in read if "000000Z" in str(path)]  # a long list is not read


@pytest.mark.parametrize("unix_ns", [1_700_000_000_000_000_000, None, 1 << 80])
def test_a_run_that_was_renamed_is_the_newest_no_longer_than_by_its_clock(unix_ns: int | None, tmp_path: Path) -> None:
    began = {"baseline": unix_ns, "20260101T000001Z-b-ffffff": 1_767_225_601_000_000_000}
    for name, ns in began.items():
        (tmp_path / name).mkdir()
        replace_json(tmp_path / name / "run.json", {"schema": 1, "clock": {"unix_ns": ns}})
    newest = "baseline" if unix_ns == 1 << 80 else "20260101T000001Z-b-ffffff"
    assert find_run("last", tmp_path).name == newest
    with pytest.raises(RunNotFound) as refused:
        RunReader(tmp_path)
    assert newest in str(refused.value.hint)


def test_without_a_run_the_error_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunNotFound) as refused:
        find_run(Path("last"))
    assert "stepscope run" in str(refused.value.hint)


def test_options_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    result = run_command(str(tmp_path), "--html", "--json")
    assert isinstance(result.exception, StepscopeError)


def test_what_grows_once_steps_are_profiled_may_be_the_profilers(tmp_path: Path) -> None:
    """What the profiler allocates between the tensors of a step scatters the heap, and is more than what it holds."""

    def late(step: int) -> bool:
        return step > 20

    steps = Run(fabricate_run(tmp_path / "first", steps=40, recorded=late)).steps
    first_ns = int(steps.filter("recorded")["t0_ns"].to_numpy().min() - steps["t0_ns"].to_numpy().min())
    t_ns = np.arange(0, 2 * first_ns, 1_000_000)
    channel = {"id": "own.rss", "sensor": "own", "quantity": "rss", "scope": "process", "unit": "B", "kind": "gauge"}
    sampled = (Sampled({**channel, **READ}, t_ns, np.where(t_ns < first_ns, 900e6, 1.5e9)),)
    header = {"recorder": {"mode": "adaptive", "held_bytes": 30_000_000}}
    folder = fabricate_run(tmp_path / "second", steps=40, recorded=late, sampled=sampled, header=header)
    said = " ".join(screen(folder).split())
    assert "the training alone peaks at [900 MB, 1.5 GB]" in said


@pytest.mark.parametrize("width", [80, 100])
def test_operators_with_long_names_stay_different_in_their_tables(tmp_path: Path, width: int) -> None:
    names = [f"extension_of_ours::attention_with_rotary_positions_{kind}_forward" for kind in ("wide", "long", "half")]
    ops = tuple(Op(name, "features.0", "forward", 900 + place) for place, name in enumerate(names))
    text = screen(fabricate_run(tmp_path, steps=60, ops=ops), width)
    below = text.split("operators (")[1].split("\n\n")[0]
    shown = [line.split()[0] for line in below.splitlines() if line.startswith("ext")]
    assert len(shown) == len(set(shown)) == 3, below
    assert max(map(len, text.splitlines())) <= width


def test_the_reason_of_a_failed_run_stands_with_its_status_and_not_with_the_simulated_sensors(tmp_path: Path) -> None:
    path = simulated_board(tmp_path)
    header = json.loads((path / "run.json").read_text())
    replace_json(path / "run.json", {**header, "status": "oom", "reason": "out of memory at step 12"})
    said = " ".join(screen(path, width=200).split())
    assert "oom: out of memory at step 12 SIMULATED sensors: jetson-tx2" in said


def test_an_overhead_whose_ci_was_cut_at_nothing_is_given_no_bound(tmp_path: Path) -> None:
    row = {"unit": "1", "source": "", "n": 9, "note": None, "scope": "run", "low": 0.0, "high": 0.0}
    step = {"metric": "recorded_step_overhead", "value": -2e5, **row}
    share = {"metric": "recorded_step_overhead_share", "value": -0.01, **row}
    console = Console(width=100, file=io.StringIO())
    for high, bounded in ((0.0, False), (0.02, True)):
        table = pl.DataFrame([step, {**share, "high": high}])
        with console.capture() as captured:
            console.print(*profiling_overhead(table, "9 of 12 steps were profiled"))
        assert ("at most" in captured.get()) is bounded
        assert "too small to tell" in captured.get()


def test_a_simulated_run_of_a_machine_without_a_name_says_so(tmp_path: Path) -> None:
    path = simulated_board(tmp_path)
    device = json.loads((path / "device.json").read_text())
    replace_json(path / "device.json", {**device, **dict.fromkeys(("cpu", "machine", "board"))})
    assert "times of this machine" in setting_facts(Run(path))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_bars_are_drawn_on_a_terminal_of_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding=encoding))
    replace_unprintable_output()
    written = "forward ████▁ batch 16 · sgd DataLo…Process 45 °C \u4e2d"
    sys.stdout.write(written)
    sys.stdout.flush()
    text = out.getvalue().decode(encoding)
    assert len(text) == len(written)
    assert text.count("?") == (0 if encoding == "utf-8" else 1)
    assert ("forward ####_" in text) is (encoding != "utf-8")
