"""What code and primitives a training brings in: seen in a dry run, counted for the platform that was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.fit import jobs
from torch import nn

from stepscope.analysis.memory.limits import ALLOCATORS, PAGED_IN
from stepscope.footprint import transforms
from stepscope.footprint.calibration import DeviceCalibration
from stepscope.footprint.prediction import JobQuestion, predict_fit
from stepscope.footprint.result import LivePeak, code_bytes
from stepscope.footprint.simulator import Simulator, live_peak
from stepscope.record.dry.dry_run import Change, dry_run
from stepscope.record.dry.platform import Platform
from stepscope.record.dry.workspaces import Workspaces

X86 = Platform()


def _live(
    make: Callable[[], nn.Module] = jobs.blocks_model, shape: tuple[int, ...] = (64,), change: Change | None = None
) -> LivePeak:
    return live_peak(dry_run(jobs.job(make, shape), 16, Workspaces(X86), change).log)


def _middle(live: LivePeak) -> float:
    return sum(code_bytes(live.code, X86)) / 2


def test_more_kernels_of_backward_bring_in_more_code() -> None:
    small = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, jobs.CLASSES))
    assert _middle(_live()) > _middle(_live(lambda: small)) + 500_000


def test_the_batch_does_not_change_the_code() -> None:
    run = dry_run(jobs.job(), 24, Workspaces(X86))
    assert live_peak(run.log).code == _live().code


def test_a_frozen_model_runs_fewer_kernels_of_backward() -> None:
    assert _middle(_live(change=transforms.all_but_last)) < _middle(_live()) - 500_000


def test_running_forward_again_is_seen_without_being_told() -> None:
    plain, again = _live().code, _live(change=transforms.checkpointed_blocks).code
    assert plain is not None
    assert again is not None
    assert (plain.recomputes, again.recomputes) == (False, True)


def test_the_weights_of_an_lstm_are_there_once_more() -> None:
    code = _live(jobs.Recurrent, (20, 32)).code
    assert code is not None
    assert code.packed_weights == sum(p.nbytes for p in nn.LSTM(32, 64, 2).parameters())


def test_what_some_cpus_compile_for_bf16_is_in_the_high_end_alone() -> None:
    code = _live().code
    assert code is not None
    low, high = code_bytes(replace(code, bf16=False), X86)
    low_in_bf16, high_in_bf16 = code_bytes(replace(code, bf16=True), X86)
    assert low_in_bf16 == low
    assert high_in_bf16 > high + 2_000_000


def test_another_platform_gets_an_interval_that_does_not_know_the_model() -> None:
    assert code_bytes(_live().code, Platform(block=0)) == PAGED_IN
    assert code_bytes(None, X86) == PAGED_IN


def test_the_empty_process_of_a_platform_that_nobody_measured_is_a_wide_interval() -> None:
    live = _live()
    known, other = (
        Simulator(X86, kept, "pinned").peak_of_process(live) for kept in (jobs.MEASURED, DeviceCalibration())
    )
    assert other.empty_process[0] < known.empty_process[0] - 50_000_000
    assert other.empty_process[1] > 734_000_000  # a build for CUDA, before its first tensor
    assert known.empty_process == (318_780_000, 325_220_000)


def test_the_heap_of_glibc_is_less_certain_where_forward_runs_again_but_not_above_what_it_was() -> None:
    simulator = Simulator(X86, DeviceCalibration(), "default")
    plain, again = _live(), _live(change=transforms.checkpointed_blocks)
    alone, beside = simulator.peak_of_process(again), simulator.peak_of_process(again, plain=plain)
    assert alone.allocator[1] / again.high > simulator.peak_of_process(plain).allocator[1] / plain.high
    assert beside.high <= max(simulator.peak_of_process(plain).high, alone.high)
    assert beside.allocator[0] >= alone.allocator[0]
    assert simulator.peak_of_process(again, ALLOCATORS["pinned"]).high < beside.high


def test_the_breakdown_with_its_code_adds_up_to_the_middle_of_the_peak() -> None:
    found = predict_fit(JobQuestion(jobs.job(), 16, options=False, largest=False, platform=X86))
    assert found.breakdown["kernels' code"] > 10_000_000
    assert sum(found.breakdown.values()) == found.process.middle
