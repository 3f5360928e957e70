"""The verdict names the limit that was built into a run, and silence is never left to be read as 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fabricate import Op, fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.verdict import bound_of

_LINEAR = Op("nn.Linear", "fc", "forward", 20, (Op("aten::addmm", "fc", "forward", 1000),))
_MANY = tuple(Op("aten::addmm", "fc", "forward", 5) for _ in range(100))


def _kernel(name: str, us: int) -> tuple[Op, ...]:
    kernel = Op(name, "fc", "forward", us, device="cuda:0", thread=7)
    return (Op("nn.Linear", "fc", "forward", 100, (Op("aten::addmm", "fc", "forward", 100, (kernel,)),)),)


_SHOWN = {"data": "input", "dispatch": "overhead", "mixed": "no single bottleneck", "waiting": "idle"}


@pytest.mark.parametrize(  # by bound
    ("ops", "residual_us", "bound"),
    [
        ((Op("enumerate(DataLoader)#x.__next__", None, "data", 900), _LINEAR), 0, "data"),
        ((_LINEAR, Op("aten::_foreach_addcdiv_", None, "optimizer", 1500)), 100, "optimizer"),
        (_MANY, 200, "dispatch"),
        ((Op("nn.Linear", "fc", "forward", 3000), _LINEAR), 0, "dispatch"),
        ((_LINEAR,), 200, "compute"),
        ((Op("aten::native_batch_norm", "bn", "forward", 2000), _LINEAR), 100, "memory"),
        ((_LINEAR, Op("aten::relu", "act", "forward", 900)), 400, "mixed"),
        (_kernel("ampere_sgemm_128x64", 9000), 9000, "compute"),
        (_kernel("vectorized_elementwise_kernel", 9000), 9000, "memory"),
        (_kernel("ampere_sgemm_128x64", 1000), 9000, "dispatch"),
    ],
)
def test_the_limit_that_was_built_in_is_named(
    tmp_path: Path, ops: tuple[Op, ...], residual_us: int, bound: str
) -> None:
    verdict = Run(fabricate_run(tmp_path, ops=ops, residual_us=residual_us)).verdict()
    assert verdict.bound == bound
    assert verdict.sentence.lower().startswith(_SHOWN.get(bound, bound))
    assert verdict.next


def test_the_sentence_proves_itself_with_numbers(tmp_path: Path) -> None:
    sentence = Run(fabricate_run(tmp_path)).verdict().sentence
    assert "73 %" in sentence
    assert "Backward takes 51 %" in sentence
    assert "'features.0' (Conv2d) 57 %" in sentence


def test_without_ops_the_limit_is_unknown_and_not_guessed(tmp_path: Path) -> None:
    verdict = Run(fabricate_run(tmp_path, recorded=lambda step: False)).verdict()
    assert (verdict.bound, verdict.evidence) == ("unknown", None)


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
        RunWriter(path, {}).event("sensor-lost", "sensor rapl is lost", source="sampler")
    why = {entry.what: entry.why for entry in Run(path).not_measured()}["sensor-lost"]
    assert why == "sensor rapl is lost (3 times)"


def test_absent_sensors_are_told_with_their_reason(tmp_path: Path) -> None:
    said = {entry.what: entry for entry in Run(fabricate_run(tmp_path)).not_measured()}
    assert (said["temperature"].group, said["temperature"].detail) == ("not on this machine", "no thermal zone")
    assert said["accelerator utilisation"].why == "no kernel ran on an accelerator"


def test_a_verdict_on_few_recorded_steps_says_so(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=40, recorded=lambda step: step in (5, 6)))
    assert run.verdict().sentence.endswith("(From 2 profiled steps only.)")
    assert "--record all" in run.verdict().next[0]
    assert "intervals of modules and operators" in {entry.what for entry in run.not_measured()}


def test_a_loop_that_sleeps_between_operations_waits_and_is_not_told_to_merge_them(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, ops=(_LINEAR,), residual_us=9000)
    run = Run(path)
    shares = run.verdict().evidence
    assert shares is not None
    assert bound_of(replace(shares, process_cores=0.2)) == "waiting"
    assert bound_of(replace(shares, process_cores=1.0)) == "dispatch"


def test_slow_recorded_steps_are_said_where_they_bend_the_shares(tmp_path: Path) -> None:
    bent = Run(fabricate_run(tmp_path / "bent", steps=40, overhead=0.9)).verdict().sentence
    straight = Run(fabricate_run(tmp_path / "straight", steps=40, overhead=0.01)).verdict().sentence
    assert "Profiled steps are 1.9x slower" in bent
    assert "x slower" not in straight
