"""`--device cuda`: what a GPU's allocator reserves and its context, never glibc's factors, and at most likely."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepscope.analysis.memory.limits import limit_of_memory
from stepscope.errors import StepscopeError
from stepscope.footprint.calibration import DeviceCalibration
from stepscope.footprint.jobs import job_of
from stepscope.footprint.prediction import JobQuestion, predict_fit
from stepscope.footprint.result import FitResult
from stepscope.footprint.simulator import Simulator, as_on_cuda, live_peak, use_foreach
from stepscope.record.dry import Job
from stepscope.record.dry.platform import Platform, other_platform

GPU = Platform("cuda", 16, True)


class Wide(nn.Module):
    """Layers of the same width with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)), nn.Dropout(0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layers(x))


def job(**options: object) -> Job:
    model = Wide()
    optimizer = torch.optim.Adam(model.parameters(), **options)  # type: ignore[arg-type]
    return job_of(model, optimizer, lambda n: (torch.rand(n, 512), torch.rand(n, 512)), nn.MSELoss())


def answer(
    memory: str = "4GB", platform: Platform = GPU, allocator: str = "default", options: bool = False
) -> FitResult:
    return predict_fit(JobQuestion(job(), 8, limit_of_memory(memory), allocator, platform, options=options))


def test_segments_and_context_are_what_counts_and_a_yes_is_likely() -> None:
    found = answer()
    assert found.live.reserved is not None
    low, high = found.live.reserved
    assert found.live.bytes < low <= high
    assert found.verdict == "likely fits"
    assert found.fits is None
    assert found.interval[0] > low
    assert found.process.high > high + 500_000_000
    assert sum(found.breakdown.values()) == found.process.middle


def test_workspaces_of_cublas_are_there_where_something_multiplies_alone() -> None:
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    optimizer = torch.optim.SGD(pooled.parameters(), 0.1)
    alone = job_of(pooled, optimizer, lambda n: (torch.rand(n, 3, 8, 8), torch.rand(n, 8)), nn.MSELoss())
    simulator = Simulator(GPU, DeviceCalibration(), "default")
    without, with_products = (live_peak(simulator.run(own, 2).log).reserved or (0, 0) for own in (alone, job()))
    assert 0 < without[1] < 2 * 33_554_432 < with_products[1]


def test_optimizers_take_all_parameters_at_once_as_on_a_gpu() -> None:
    plain, foreach = (
        Simulator(Platform(), DeviceCalibration(), "default"),
        Simulator(GPU, DeviceCalibration(), "default"),
    )
    weights = 4 * (512 * 512 + 512) * 4
    on_cpu = live_peak(plain.run(job(), 8).log)
    on_gpu = live_peak(foreach.run(job(), 8).log)
    assert on_gpu.bytes - on_cpu.bytes == pytest.approx(weights - 2 * 512 * 512 * 4, rel=0.01)
    alone = live_peak(foreach.run(job(foreach=False), 8).log)
    assert alone.bytes < on_gpu.bytes


def test_dropout_keeps_a_byte_an_element() -> None:
    def of_a_byte(platform: Platform) -> int:
        log = Simulator(platform, DeviceCalibration(), "default").run(job(), 8).log
        return sum(storage.bytes == 8 * 512 and storage.shape == "8x512" for storage in log.storages)

    assert of_a_byte(GPU) > of_a_byte(Platform()) == 0


def test_the_job_itself_is_left_as_it_was() -> None:
    own = job()
    _, (optimizer,) = own.build()
    Simulator(GPU, DeviceCalibration(), "default").run(own, 8)
    assert [group["foreach"] for group in optimizer.param_groups] == [None]
    assert as_on_cuda(own).name == own.name


def test_a_board_has_one_memory_for_the_gpu_and_its_host() -> None:
    alone, board = answer(), answer(platform=other_platform("cuda"))
    assert board.interval[0] > alone.interval[0]
    assert board.process.high > alone.process.high + 1_000_000_000


def test_allocators_of_the_host_are_no_option_and_segments_that_grow_are_looked_at() -> None:
    names = [option.name for option in answer(options=True).options]
    assert not {"allocator: pinned", "allocator: tcmalloc"} & set(names)


def test_settings_of_the_allocator_are_the_users() -> None:
    assert answer(allocator="expandable_segments:True").allocator == "expandable_segments:True"
    with pytest.raises(StepscopeError):
        answer(allocator="max_split_size_mb:none")


def peak_on_a_gpu(model: nn.Module, optimizer: torch.optim.Optimizer, cast: bool = False) -> int:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=cast):
            return torch.as_tensor(model(batch)).sum()

    of = job_of(model, optimizer, lambda n: torch.randn(n, 64, 64), loss)
    return Simulator(GPU, DeviceCalibration(), "default").run(of, 4).peak_bytes


def test_adafactor_takes_its_parameters_one_by_one_unless_told_otherwise() -> None:
    model = nn.Linear(8, 8)
    optimizers = tuple(kind(model.parameters()) for kind in (torch.optim.Adafactor, torch.optim.Adam))
    changed = use_foreach()(model, optimizers)
    assert [optimizer.param_groups[0]["foreach"] for optimizer in changed] == [None, True]


def test_attention_with_dropout_stays_fused_also_within_a_layer_of_torch() -> None:
    def taken(dropout: float) -> int:
        model = nn.TransformerEncoderLayer(64, 4, 128, dropout=dropout, batch_first=True)
        return peak_on_a_gpu(model, torch.optim.SGD(model.parameters()))

    assert taken(0.0) < taken(0.1) < 1.3 * taken(0.0)


def test_layers_under_autocast_of_cuda_are_in_16_bits() -> None:
    def taken(cast: bool) -> int:
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
        return peak_on_a_gpu(model, torch.optim.SGD(model.parameters()), cast)

    assert taken(True) < 0.8 * taken(False)
