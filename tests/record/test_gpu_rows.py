"""Which of a profiler's events on a GPU become rows, whatever the version of torch says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stepscope.record.ops.events import Names, read_event_columns
from stepscope.record.ops.rows import OpCostsByShape, StepSpan, UncostedRows, Window
from stepscope.record.ops.updates import OptimizerCalls

SEEN = [  # name, device, kind: as an H100 and torch 2.11 gave them
    ("aten::addmm", "CPU", "cpu_op"),
    ("cudaLaunchKernel", "CPU", "cuda_runtime"),
    ("cuLaunchKernelEx", "CPU", "cuda_driver"),
    ("Activity Buffer Request", "CPU", "overhead"),
    ("Optimizer.step#AdamW.step", "CPU", "user_annotation"),
    ("Optimizer.step#AdamW.step", "CUDA", "gpu_user_annotation"),
    ("cuda graph of mine", "CPU", "user_annotation"),
    ("sm80_xmma_gemm_f32f32_f32f32", "CUDA", "kernel"),
    ("Memcpy HtoD (Pinned -> Device)", "CUDA", "gpu_memcpy"),
    ("Memset (Device)", "CUDA", "gpu_memset"),
]
KEPT = [name for name, _, kind in SEEN if kind in ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset")]


@dataclass
class Older:
    """An event of a torch before 2.13: nothing says of what kind it is."""

    text: str
    on: str
    kind: str

    def name(self) -> str:
        return self.text

    def device_type(self) -> Any:
        return type("Device", (), {"name": self.on})

    def device_index(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        if name == "activity_type":
            raise AttributeError(name)
        return lambda: 0


class Newer(Older):
    """An event that says of what kind it is."""

    def activity_type(self) -> str:
        return self.kind


@pytest.mark.parametrize("kind", [Older, Newer])
def test_ops_scopes_kernels_and_copies_are_rows_and_nothing_of_cuda_itself(kind: type[Older]) -> None:
    for method in ("start_ns", "scope", "sequence_nr", "duration_ns", "start_thread_id"):
        setattr(kind, method, lambda _: 0)
    for method in ("correlation_id", "linked_correlation_id"):
        setattr(kind, method, lambda _: 0)
    names = Names()
    events = read_event_columns([kind(*seen) for seen in SEEN], names, cuda=True)
    assert sorted(np.array(names.texts())[events.name].tolist()) == sorted(KEPT)


def test_steps_are_the_same_for_the_plan_however_many_kernels_they_launched() -> None:
    names = Names()
    both = [names.intern("aten::mm"), names.intern("kernel")]
    gpu = np.array([-1, 0, -1, 0, 0])
    events = read_event_columns([], names, cuda=False)
    events.gpu = gpu
    name = np.array([both[0], both[1], both[0], both[1], both[1]])
    steps, modules, parent = np.array([0, 0, 1, 1, 1]), np.zeros(5, dtype=np.int64), np.array([-1, 0, -1, 0, 0])
    rows = UncostedRows(events, np.arange(5), steps, name, modules, np.full(5, 7), names.texts(), parent)
    spans = [StepSpan(1, 0, 10, 4), StepSpan(2, 10, 20, 4)]
    profiles, _, _ = OpCostsByShape().look_up(Window([], spans, 0, OptimizerCalls(), False, True), rows)
    assert profiles[0].signature == profiles[1].signature
    assert [len(profile.self_ns) for profile in profiles] == [1, 1]
