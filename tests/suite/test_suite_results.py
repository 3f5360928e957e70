"""Tables over repeats, the file that travels, the score against a reference, and the formats of others."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from tests.analysis.powered import channel, powered, rapl, times
from tests.fabricate import Sampled

from stepscope.analysis.run import Run
from stepscope.api.suite import score_line
from stepscope.errors import RunDamaged, RunNotFound, SchemaTooNew, UnknownName
from stepscope.experiments.suite.results import (
    KIND,
    Results,
    published_figure_rows,
    read_reference,
    read_results,
    reference_names,
    runs_table,
    save_results,
    score,
    settings_table,
)
from stepscope.experiments.suite.sweep import read_run, run_flags
from stepscope.report.suite_report import (
    markdown,
    mlperf_log_lines,
    model_table,
    results_table,
    score_table,
    setting_notes,
)
from stepscope.runfolder import RunWriter

MS = 1_000_000


def _run(
    workload: str, repeat: int, ms: float | None, status: str = "ok", batch: int = 8, **more: Any
) -> dict[str, Any]:
    point = {"workload": workload, "batch": batch, "optimizer": "sgd", "precision": "fp32", "threads": None}
    run: dict[str, Any] = {"point": {**point, "device": "cpu", "repeat": repeat}, "status": status, "reason": None}
    if ms is not None:
        run["numbers"] = {"step_time_ms": {"value": ms, "low": ms * 0.9, "high": ms * 1.1}}
    return {**run, "data": {"kind": "synthetic", "sha256": "abc"}, **more}


def _results(*runs: dict[str, Any], **definition: Any) -> Results:
    names = {run["point"]["workload"] for run in runs}
    printed = {"quantity": "parameters", "value": "98M", "source": "a paper", "remark": "megabytes of weights"}
    about = {"definition": {"parameters": 25_557_032, **definition}, "about": {"published": [printed]}}
    return Results(
        {
            "kind": KIND, "schema": 1, "name": "board", "created": "now", "tier": None, "rules": {"seed": 0},
            "limits": {"memory": None}, "device": {"cpu": "A57"}, "versions": {"torch": "2"},
            "workloads": dict.fromkeys(sorted(names), about), "runs": list(runs),
        }
    )  # fmt: skip


def _drawn(part: Any) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(part)
    return captured.get()


def test_repeats_become_one_row_with_the_interval_of_their_mean() -> None:
    row = settings_table(_results(*(_run("a", repeat, ms) for repeat, ms in enumerate([10.0, 12.0, 11.0])))).row(
        0, named=True
    )
    assert row["step_time_ms"] == pytest.approx((10 * 12 * 11) ** (1 / 3))
    half = 4.303 * np.log([10, 12, 11]).std(ddof=1) / math.sqrt(3)
    assert math.log(row["step_time_ms_high"] / row["step_time_ms"]) == pytest.approx(half, rel=1e-3)
    assert (row["repeats"], row["interval_of"], row["status"], row["data"]) == (3, "repeats", "ok", "synthetic")
    assert row["energy_per_step_j"] is None


def test_a_single_repeat_has_the_interval_within_its_run() -> None:
    row = settings_table(_results(_run("a", 0, 10.0))).row(0, named=True)
    assert (row["step_time_ms_low"], row["step_time_ms_high"], row["interval_of"]) == (9.0, 11.0, "steps")


def test_what_went_wrong_is_counted_and_never_a_number() -> None:
    failed = _run("a", 1, None, "oom", reason="no memory")
    frame = settings_table(_results(_run("a", 0, 10.0), failed, _run("b", 0, None, "timeout", reason="slow")))
    assert frame["status"].to_list() == ["ok 1 of 2, oom 1 of 2", "timeout"]
    assert frame["step_time_ms"].to_list() == [10.0, None]
    assert "a batch 8: ok 1 of 2, oom 1 of 2: no memory" in setting_notes(frame)


def test_flags_of_one_kind_are_one_note_that_names_all_settings_that_have_it() -> None:
    busy = [f"background CPU load: {cores} cores" for cores in (1.5, 1.7, 0.9)]
    few = [[], ["only 3 steps after the warm-up"], ["only 5 steps after the warm-up"]]
    runs = [_run(name, 0, 10.0, flags=[*few[n], busy[n]]) for n, name in enumerate("abc")]
    assert setting_notes(settings_table(_results(*runs))) == [
        f"a batch 8: {busy[0]}; of the same kind: all 3 settings",
        "b batch 8: only 3 steps after the warm-up; of the same kind: c batch 8",
    ]


def test_a_share_stays_between_0_and_1() -> None:
    runs = [_run("a", place, 10.0) for place in (0, 1)]
    for run, share in zip(runs, (0.9, 1.0), strict=True):
        run["numbers"]["cpu_utilisation"] = {"value": share, "low": None, "high": None}
    row = settings_table(_results(*runs)).row(0, named=True)
    assert 0 <= row["cpu_utilisation_low"] < row["cpu_utilisation"] < row["cpu_utilisation_high"] <= 1


def test_flags_of_repeats_are_said_once_with_how_many_have_them() -> None:
    busy = [_run("a", place, 10.0, flags=[f"background CPU load: {place} cores"]) for place in (0, 1)]
    assert (
        settings_table(_results(*busy, _run("a", 2, 10.0)))["flags"][0]
        == "background CPU load: 0 cores (2 of 3 repeats)"
    )


def test_the_file_that_travels_is_read_back_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    results, path = _results(_run("a", 0, 10.0)), tmp_path / "board.json"
    digest = save_results(results, path)
    assert settings_table(read_results(path)).equals(settings_table(results))
    content = json.loads(path.read_text())
    assert content["sha256"] == digest
    content["runs"][0]["numbers"]["step_time_ms"]["value"] = 1.0
    path.write_text(json.dumps(content))
    with pytest.raises(RunDamaged, match="another hash"):
        read_results(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [("{", RunDamaged), ("{}", RunNotFound), ("[]", RunNotFound), (f'{{"kind": "{KIND}", "schema": 9}}', SchemaTooNew)],
)
def test_what_is_no_result_file_is_refused(text: str, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(error):
        read_results(tmp_path / "x.json")


def test_the_score_is_the_geometric_mean_of_the_parts_that_both_measured() -> None:
    slow = _results(_run("a", 0, 10.0), _run("b", 0, 40.0), _run("c", 0, 5.0), _run("d", 0, None, "oom"))
    fast = _results(_run("a", 0, 5.0), _run("b", 0, 5.0), _run("d", 0, 1.0))
    found = score(fast, slow)
    assert found.value == pytest.approx(4.0)
    assert score(slow, fast).value == pytest.approx(1 / 4.0)
    assert (found.counted, len(found.parts)) == (2, 4)
    assert dict(found.parts.select("workload", "remark").iter_rows()) == {
        "a": None, "b": None, "c": "not in this sweep", "d": "the reference: oom",
    }  # fmt: skip
    assert found.low is not None
    assert found.high is not None
    assert found.low < 4.0 < found.high


def test_a_workload_that_is_defined_differently_is_not_compared() -> None:
    found = score(_results(_run("a", 0, 5.0), model_sha256="x"), _results(_run("a", 0, 10.0), model_sha256="y"))
    assert found.value is None
    assert found.parts["remark"].to_list() == ["the workload is defined differently"]


def test_a_part_that_was_trained_on_other_data_counts_and_says_so() -> None:
    there = _results(_run("a", 0, 10.0), _run("b", 0, 10.0))
    here = _results(_run("a", 0, 5.0, data={"sha256": "other"}), _run("b", 0, 5.0))
    found = score(here, there)
    assert found.parts["remark"].to_list() == ["trained on other data", None]
    assert score_line(found).endswith("2 of 2 parts, 1 of them on other data")
    assert "other" not in score_line(score(there, there))


def test_every_stored_device_has_its_hash_and_scores_1_against_itself() -> None:
    assert reference_names()
    for name in reference_names():
        stored = read_reference(name)
        assert score(stored, stored).value == pytest.approx(1.0)
        assert stored.name == name
    with pytest.raises(UnknownName):
        read_reference("no such board")


def test_the_corrected_table_has_what_is_printed_what_it_means_and_what_is_true() -> None:
    rows = published_figure_rows(
        _results(_run("resnet50-224", 0, 5.0, flops_forward=100, flops_backward=200, parameters=1))
    )
    assert rows == [
        {
            "workload": "resnet50-224", "quantity": "parameters", "printed": "98M (a paper)",
            "meaning": "megabytes of weights", "parameters": 25_557_032, "flops_forward": 100, "flops_training": 300,
        }
    ]  # fmt: skip
    assert "25,557,032" in _drawn(model_table(rows))


def test_the_tables_show_only_columns_that_somebody_measured() -> None:
    results = _results(_run("a", 0, 10.0), _run("a", 0, 20.0, batch=16))
    shown = _drawn(results_table(settings_table(results)))
    assert "ms a step" in shown
    assert " J a step" not in shown
    assert "setting" not in shown
    assert "times better" in _drawn(score_table(score(results, results).parts))


def test_markdown_has_a_row_for_each_setting() -> None:
    page = markdown(settings_table(_results(_run("a", 0, 10.0), _run("b", 0, None, "oom"))), "board", ["a line"])
    assert "| a | 8 | sgd | fp32 | - | cpu | 10 [9, 11] | ok | synthetic | - |" in page
    assert "| b | 8 | sgd | fp32 | - | cpu | - | oom | synthetic | - |" in page


def test_log_lines_are_json_behind_the_mark_of_mlperf() -> None:
    results = _results(_run("a", 0, 10.0, ended_unix_ms=5), _run("b", 0, None, "oom", reason="no memory"))
    lines = list(mlperf_log_lines(results.runs, results.device, results.content["versions"]))
    assert all(line.startswith(":::MLLOG {") for line in lines)
    told = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    assert {"namespace", "time_ms", "event_type", "key", "value", "metadata"} == set(told[0])
    assert [each["metadata"]["status"] for each in told if each["key"] == "run_stop"] == ["success", "aborted"]
    assert next(each for each in told if each["key"] == "stepscope_step_time_ms")["value"] == 10.0
    assert all(isinstance(each["time_ms"], int) for each in told)


def test_a_row_a_run_has_the_conditions_at_both_ends() -> None:
    ends = {"temperatures_celsius": {"cpu": 51.0, "gpu": 49.0, "dead": None}, "frequencies_hz": {}}
    frame = runs_table(_results(_run("a", 0, 10.0, at_start=ends), _run("b", 0, None, "oom")))
    assert frame["celsius_at_start"].to_list() == [51.0, None]
    assert frame["hz_at_start"].dtype == pl.Null or frame["hz_at_start"].to_list() == [None, None]


def _with_steps(writer: RunWriter, lengths_ms: list[float], clocks: tuple[float, float]) -> Run:
    now = 10**12
    for step, length in enumerate(lengths_ms):
        end = now + round(length * MS)
        writer.append_step(step, now, end, 8, 0.5, False)
        now = end
    names = ("at_start", "at_end")
    writer.write_device({name: {"frequencies_hz": {"policy0": hz}} for name, hz in zip(names, clocks, strict=True)})
    writer.close("ok")
    return Run(writer.path)


def test_steps_that_become_slower_with_a_falling_clock_are_flagged_as_throttling(writer: RunWriter) -> None:
    lengths = [10.0 + 0.05 * (step % 3) for step in range(200)] + [15.0 + 0.05 * (step % 3) for step in range(200)]
    found = list(run_flags(_with_steps(writer, lengths, (2e9, 1.2e9))))
    assert len(found) == 1
    assert re.fullmatch(r"throttled: steps took 1.50x the time from step (19\d|20\d) on, and the clock fell", found[0])


def test_steps_that_become_slower_without_that_are_flagged_without_the_word(writer: RunWriter) -> None:
    lengths = [10.0 + 0.05 * (step % 3) for step in range(200)] + [15.0 + 0.05 * (step % 3) for step in range(200)]
    assert [each.partition(":")[0] for each in run_flags(_with_steps(writer, lengths, (2e9, 2e9)))] == ["slowed down"]


def test_quiet_steps_raise_no_flag_and_few_steps_do(writer: RunWriter) -> None:
    assert list(run_flags(_with_steps(writer, [10.0 + 0.05 * (s % 3) for s in range(300)], (2e9, 2e9)))) == []


def test_a_run_that_failed_has_no_numbers(writer: RunWriter) -> None:
    path = _with_steps(writer, [10.0] * 7, (2e9, 2e9)).path
    assert "numbers" not in read_run(path, ended_well=False)
    well = read_run(path, ended_well=True)
    assert well["numbers"]["step_time_ms"]["value"] == 10.0
    assert well["flags"] == ["only 4 steps after the warm-up"]


def test_energy_of_a_component_alone_is_not_that_of_the_training(tmp_path: Path) -> None:
    t_ns = times(600, 50)
    facts = {"sensor": "nvml", "parent_scope": "system", "refresh_ns": 100_000_000}
    card = Sampled(channel("gpu.0.power", "power", "gpu:0", **facts), t_ns, np.full(len(t_ns), 50.0))
    found = {}
    for name, sensors in (("card", (card,)), ("all", (card, rapl("psys", 90, t_ns)))):
        run = powered(tmp_path / name, *sensors, steps=600, device={"cpu": "Intel(R) Core(TM) i7-8650U CPU"})
        found[name] = read_run(run.path, ended_well=True)["numbers"]
        assert run.metrics().filter(metric="energy_per_step", scope="gpu").height == 1
    assert not [name for name in found["card"] if "energy" in name]
    assert found["all"]["energy_per_step_j"]["value"] > 1.5 * 50 * found["all"]["step_time_ms"]["value"] / 1e3
