"""The verdict names the limit that was built into a run, and silence is never left to be read as 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fabricate import Op, fabricate_run

from stepscope.analysis.run import Run

_LINEAR = Op("nn.Linear", "fc", "forward", 20, (Op("aten::addmm", "fc", "forward", 1000, flops=1_000_000),))
_MANY = tuple(Op("aten::addmm", "fc", "forward", 5, flops=64, bytes=64) for _ in range(100))


def test_the_sentence_proves_itself_with_numbers(tmp_path: Path) -> None:
    sentence = Run(fabricate_run(tmp_path)).verdict().sentence
    assert sentence.startswith("Compute bound: operators limited by arithmetic take 73 % of the profiled steps")
    assert "they reach 92 % of what this device does" in sentence
    assert "Backward takes 51 %" in sentence
    assert "'features.0' (Conv2d) 57 %" in sentence


def test_without_ops_the_limit_is_unknown_and_not_guessed(tmp_path: Path) -> None:
    verdict = Run(fabricate_run(tmp_path, recorded=lambda step: False)).verdict()
    assert (verdict.bound, verdict.causes, verdict.confidence) == ("unknown", (), "none")
    assert verdict.would_tell


def test_a_run_without_a_step_is_told_to_look_for_the_step_and_not_to_run_longer(tmp_path: Path) -> None:
    found = Run(fabricate_run(tmp_path, steps=0, status=None, ops=(), samples=False)).verdict()
    assert "optimizer.step()" in found.next[0]
    assert "scope.step()" in found.next[0]


def test_a_damaged_part_is_left_out_and_said(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=40)
    part = path / "ops" / "000001.parquet"
    part.write_bytes(part.read_bytes()[:200])
    run = Run(path)
    assert run.modules()["share"].drop_nulls().sum() == pytest.approx(1)
    said = {entry.what: entry.why for entry in run.not_measured()}
    assert "ops/000001.parquet" in said
    assert "operators of 8 profiled steps" in said


def test_a_truncated_file_of_samples_is_said(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path)
    samples = path / "samples" / "cpu.parquet"
    samples.write_bytes(samples.read_bytes()[:100])
    run = Run(path)
    assert run.metrics().height > 0
    assert "samples/cpu.parquet" in {entry.what for entry in run.not_measured()}


def test_losses_are_told_once_a_kind_with_their_number(tmp_path: Path) -> None:
    from stepscope.runfolder import RunWriter

    path = fabricate_run(tmp_path)
    for _ in range(3):
        RunWriter(path, {}).append_event("sensor-lost", "sensor rapl is lost", source="sampler")
    why = {entry.what: entry.why for entry in Run(path).not_measured()}["sensor-lost"]
    assert why == "sensor rapl is lost (3 times)"


def test_absent_sensors_are_told_with_their_reason(tmp_path: Path) -> None:
    said = {entry.what: entry for entry in Run(fabricate_run(tmp_path)).not_measured()}
    assert (said["temperature"].group, said["temperature"].detail) == ("not on this machine", "no thermal zone")
    assert said["accelerator utilisation"].why == "no kernel ran on an accelerator"


def test_a_verdict_on_few_recorded_steps_says_so(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=40, recorded=lambda step: step in (5, 6)))
    assert run.verdict().sentence.endswith("From 2 profiled steps only.")
    assert "--record all" in run.verdict().next[0]
    assert "intervals of modules and operators" in {entry.what for entry in run.not_measured()}


def test_slow_recorded_steps_are_said_where_they_bend_the_shares(tmp_path: Path) -> None:
    bent = Run(fabricate_run(tmp_path / "bent", steps=40, overhead=0.9)).verdict().sentence
    straight = Run(fabricate_run(tmp_path / "straight", steps=40, overhead=0.01)).verdict().sentence
    assert "Profiled steps are 1.9x slower" in bent
    assert "x slower" not in straight
    uneven = fabricate_run(tmp_path / "uneven", steps=40, recorded=lambda step: step in (9, 20, 31), noise=0.9)
    overhead = Run(uneven).overhead().filter(metric="recorded_step_overhead_share")
    assert overhead["low"][0] == 0
    assert "x slower" not in Run(uneven).verdict().sentence


def _every_eighth(step: int) -> bool:
    return step % 8 == 1


def test_steps_that_get_longer_or_shorter_over_the_run_are_said(tmp_path: Path) -> None:
    drifting: dict[str, Any] = {"steps": 80, "noise": 0.02, "recorded": _every_eighth}
    sentences = [
        Run(fabricate_run(tmp_path / str(drift), drift=drift, **drifting)).verdict().sentence
        for drift in (1.0, -0.5, 0.1)
    ]
    assert "Steps got longer: 30" in sentences[0]
    assert "Steps got shorter" in sentences[1]
    assert "Steps got" not in sentences[2]
