"""The question as users ask it: from Python, with their own objects."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fit import jobs
from torch import Tensor, nn
from torch.nn import functional

from stepscope.analysis.memory.limits import MARGIN, ProcessPeak, limit_of_memory
from stepscope.errors import StepscopeError, UnknownName, UsageError
from stepscope.footprint import batch_line, transforms
from stepscope.footprint import calibration as kept_file
from stepscope.footprint.calibration import DeviceCalibration
from stepscope.footprint.jobs import job_of_function, job_of_target
from stepscope.footprint.prediction import JobQuestion, fit, predict_fit
from stepscope.footprint.savings import chosen_segments
from stepscope.footprint.simulator import largest_batch
from stepscope.record.dry.dry_run import dry_run
from stepscope.record.dry.platform import this_platform
from stepscope.record.dry.probes import OpCallRecorder, probe_all
from stepscope.record.dry.workspaces import Probed, Workspaces


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def asked(memory: str = "400MB", samples: int = 16, **more: Any) -> Any:
    return predict_fit(
        JobQuestion(jobs.job(), samples, limit_of_memory(memory), **{"calibration": jobs.MEASURED, **more})
    )


def test_the_answer_holds_peak_interval_breakdown_and_verdict() -> None:
    model = jobs.blocks_model()
    found = fit(model, torch.optim.Adam(model.parameters()), jobs.job().batch, jobs.loss, memory="8GB", options=False)
    assert found.fits is True
    assert found.verdict == "fits"
    assert found.interval[0] < sum(found.breakdown.values()) < found.process.high
    assert found.peak_bytes == sum(found.live.breakdown.values())
    assert found.peak_op.startswith("aten.")
    assert json.loads(json.dumps(found.as_dict()))["peak_bytes"] == found.peak_bytes
    assert found.events["bytes"].sum() > 0


def test_a_program_whose_imports_are_not_known_gets_a_likely_yes() -> None:
    model = jobs.blocks_model()

    def batch(samples: int) -> Any:
        return jobs.job().batch(samples)

    batch.__module__ = "a cell of a notebook"
    found = fit(model, torch.optim.Adam(model.parameters()), batch, jobs.loss, memory="8GB", options=False)
    assert found.verdict == "likely fits"
    assert "imports" in found.unsure[0]


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    found = asked("400MB", options=False)
    most = 400e6 * (1 - MARGIN)
    peaks = [asked("400MB", found.largest_batch + more, options=False, largest=False).process.high for more in (0, 1)]
    assert found.largest_batch > 16
    assert peaks[0] <= most < peaks[1]


def test_a_limit_smaller_than_the_parameters_fits_no_batch_and_says_why() -> None:
    found = asked("500kB", options=False)
    assert found.fits is False
    assert found.largest_batch == 0
    assert "parameters alone" in " ".join(found.notes)


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(0, 500), st.integers(1, 2000), st.integers(0, 10**10))
@settings(max_examples=60)
def test_bisection_finds_the_last_batch_below_the_limit(
    fixed: int, slope: int, bend: int, start: int, limit: int
) -> None:
    def peak(batch: int) -> int:
        return fixed + slope * batch + (slope * (batch - bend) if batch > bend else 0)

    found = largest_batch(peak, limit, start)
    assert found == 0 or peak(found) <= limit
    assert found == 1 << 20 or peak(found + 1) > limit


def test_the_largest_batch_takes_few_dry_runs() -> None:
    runs: list[int] = []

    def peak(batch: int) -> int:
        runs.append(batch)
        return 10_000_000 + 1_234_567 * batch

    assert largest_batch(peak, 1e9, 16) == 801
    assert len(runs) <= 6


def test_ways_to_need_less_are_sorted_by_gain_and_each_has_its_price() -> None:
    found = asked(samples=2048, largest=False)
    gains = [option.gain for option in found.options]
    names = " / ".join(option.name for option in found.options)
    assert gains == sorted(gains, reverse=True)
    assert all(option.price and option.gain > 0 for option in found.options)
    for word in ("accumulated", "checkpoint the repeated blocks", "last layers", "pinned", "SGD without"):
        assert word in names
    checkpoints = next(o for o in found.options if o.name == "checkpoint the repeated blocks")
    assert checkpoints.compute > 1.1
    assert checkpoints.peak_bytes < found.peak_bytes


def test_bf16_is_offered_only_where_the_device_can() -> None:
    with_it, without = (asked(samples=2048, has_bf16=can, largest=False).options for can in (True, False))
    assert "bf16 throughout" in {option.name for option in with_it}
    assert "bf16 throughout" not in {option.name for option in without}


def test_half_the_adam_state_is_gone_with_sgd() -> None:
    plain, sgd = (
        dry_run(jobs.job(), 4, change=change).log
        for change in (None, transforms.replace_optimizer(torch.optim.SGD, lr=1e-3, momentum=0.9))
    )
    state = [sum(s.bytes for s in log.storages if s.category == "optimizer") for log in (plain, sgd)]
    assert state[1] == pytest.approx(state[0] / 2, rel=0.01)


def test_segments_are_chosen_by_saved_bytes_for_each_flop_and_never_nested() -> None:
    plain = dry_run(jobs.job(), 2048)
    total = sum(s.flops for s in plain.segments if "." not in s.module)
    chosen = chosen_segments(plain.segments, total)
    assert chosen
    assert not [a for a in chosen for b in chosen if a != b and a.startswith(f"{b}.")]
    again = dry_run(jobs.job(), 2048, change=transforms.checkpointed(chosen))
    assert again.peak_bytes < plain.peak_bytes


class Decides(nn.Module):
    """A model that fake tensors cannot run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = jobs.blocks_model()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y * 2 if y.sum() > 0 else y


def test_a_model_that_looks_at_numbers_is_measured_at_small_batches_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_line, "_TRAINED_HERE", 0)
    found = predict_fit(JobQuestion(jobs.job(Decides), 64, limit_of_memory("8GB")))
    assert found.method == "measured at small batches and extrapolated"
    assert "local_scalar" in str(found.stopped)
    assert found.live.low < found.live.bytes < found.live.high
    assert found.peak_bytes == pytest.approx(jobs.really_live(jobs.job(Decides), 64), rel=0.06)
    assert found.largest_batch is not None
    assert not found.options


def test_an_error_of_the_model_itself_comes_through_as_its_cause() -> None:
    of = jobs.job(lambda: nn.Sequential(nn.Linear(63, jobs.CLASSES)))
    with pytest.raises(StepscopeError, match=r"fails on real tensors too: RuntimeError: .*shapes") as raised:
        predict_fit(JobQuestion(of, 4, limit_of_memory("8GB")))
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_model_that_lies_on_another_device_is_not_moved() -> None:
    model = jobs.blocks_model().to("meta")
    found = fit(
        model, torch.optim.SGD(model.parameters(), lr=0.1), jobs.job().batch, jobs.loss, memory="8GB", options=False
    )
    assert found.peak_bytes > 1e5
    assert all(p.device.type == "meta" for p in model.parameters())


@dataclass
class Pair:
    """A batch as an object."""

    x: Tensor
    y: Tensor


def test_batches_may_be_dictionaries_and_objects() -> None:
    model = jobs.blocks_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = jobs.job().batch(16)
    makers: list[tuple[Any, Any]] = [
        (lambda n: {"x": x[:n], "y": y[:n]}, lambda m, b: functional.cross_entropy(m(b["x"]), b["y"])),
        (lambda n: Pair(x[:n], y[:n]), lambda m, b: functional.cross_entropy(m(b.x), b.y)),
        (lambda n: (x[:n], y[:n]), functional.cross_entropy),
        (lambda n: (x[:n], y[:n]), nn.CrossEntropyLoss()),
    ]
    peaks = {
        fit(model, optimizer, maker, loss, memory="8GB", options=False).peak_bytes for maker, loss in makers
    }  # fmt: skip
    assert len(peaks) == 1


def test_a_model_with_its_own_loss_needs_no_other() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = jobs.blocks_model()

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"loss": functional.cross_entropy(self.inner(x), y)}

    model, (x, y) = WithLoss(), jobs.job().batch(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert fit(model, optimizer, lambda n: {"x": x[:n], "y": y[:n]}, memory="8GB", options=False).fits


@pytest.mark.parametrize(
    ("change", "words"),
    [({"model": 3}, "not an nn.Module"), ({"optimizer": ()}, "optimizer"), ({"make_batch": 3}, "make_batch"),
     ({"batch": 0}, "batch of 0"), ({"loss": 3}, "cannot be called"), ({"memory": "much"}, "not an amount")],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    model = jobs.blocks_model()
    given_: dict[str, Any] = {
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "make_batch": jobs.job().batch,
        "loss": jobs.loss, "memory": "8GB", **change,
    }  # fmt: skip
    with pytest.raises(UsageError, match=words) as caught:
        fit(**given_)
    assert caught.value.hint


def test_a_board_that_does_not_exist_gets_the_nearest() -> None:
    model = jobs.blocks_model()
    with pytest.raises(UnknownName) as caught:
        fit(model, torch.optim.SGD(model.parameters(), lr=0.1), jobs.job().batch, jobs.loss, board="orin-nan0")
    assert "orin" in str(caught.value.hint)


def test_batch_norm_that_needs_two_samples_is_no_obstacle_to_the_largest_batch() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, jobs.CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.head(self.norm(x)))

    found = predict_fit(
        JobQuestion(jobs.job(Pooled), 16, limit_of_memory("400MB"), calibration=jobs.MEASURED, options=False)
    )
    assert found.largest_batch is not None
    assert found.largest_batch > 1000


def test_what_probes_of_a_device_showed_is_kept_and_widens_the_interval(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept.json"
    kept_file.save_calibration(DeviceCalibration({"convolution": Probed(1.0, 2.5)}, ratios=(1.1, 0.95)), path)
    kept = kept_file.load_calibration(path)
    assert kept.probed["convolution"].bytes(4) == 11
    assert kept.widened_by_errors(1000, 2000) == (950, 2200)
    with_it = asked(calibration=replace(kept, environment=jobs.MEASURED.environment), options=False, largest=False)
    without = asked(options=False, largest=False)
    assert with_it.process.high > without.process.high


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": 99}', '{"version": 1, "probed": 3}'])
def test_a_damaged_file_of_what_was_learnt_is_as_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(content)
    assert kept_file.load_calibration(tmp_path / "kept.json") == DeviceCalibration()


def test_single_ops_measured_here_give_the_workspace_of_a_convolution() -> None:
    of = jobs.job(jobs.convolutions, (3, 16, 16))
    book = OpCallRecorder(Workspaces(this_platform()), 13)
    dry_run(of, 13, book, steps=1)
    probed = probe_all(book.calls)
    said = dry_run(of, 32, Workspaces(this_platform(), probed)).peak_bytes
    assert len(probed) >= 4
    assert said == pytest.approx(jobs.really_live(of, 32), rel=0.02)


def test_a_process_peak_adds_up() -> None:
    peak = ProcessPeak((100, 120), (5, 30), (300, 310), (7, 9))
    assert (peak.low, peak.high, peak.middle) == (412, 469, 440)


def test_the_parts_of_a_function_are_one_model_at_a_time_and_its_batches_may_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import weakref, torch
alive = weakref.WeakSet()
def training():
    assert not len(alive)
    model = torch.nn.Linear(4, 1)
    alive.add(model)
    batches = iter([torch.randn(2, 4)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return model, optimizer, lambda samples: next(batches), lambda model, x: model(x).sum()
"""
    (tmp_path / "ends_soon.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    job = job_of_function("ends_soon:training")
    model, _ = job.build()
    assert tuple(job.batch(2).shape) == (2, 4)
    with pytest.raises(StopIteration):
        job.batch(2)
    del model
    assert job.build()


def test_a_batch_maker_with_so_many_samples_ends_the_search_for_the_largest_batch() -> None:
    model = jobs.blocks_model()

    def make_batch(samples: int) -> tuple[Tensor, ...]:
        if samples > 100:
            raise ValueError("only 100 samples")
        return tuple(jobs.job().batch(samples))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = fit(model, optimizer, make_batch, jobs.loss, memory="8GB", options=False)
    assert found.largest_batch == 100


def test_batches_of_a_model_that_wants_multiples_are_multiples() -> None:
    class Grouped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).view(4, -1, 10).reshape(-1, 10)

    model = Grouped(32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def make_batch(samples: int) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 32), torch.zeros(samples, dtype=torch.long)

    found = fit(model, optimizer, make_batch, functional.cross_entropy, batch=8, memory="8GB", options=False)
    assert found.largest_batch is not None
    assert found.largest_batch > 1000
    assert found.largest_batch % 4 == 0


def test_no_batch_is_larger_than_the_data_that_make_it() -> None:
    model, data = nn.Linear(32, 10), torch.randn(100, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def make_batch(samples: int) -> tuple[Tensor, Tensor]:
        return data[:samples], torch.zeros(100, dtype=torch.long)[:samples]

    assert fit(model, optimizer, make_batch, functional.cross_entropy, memory="8GB", options=False).largest_batch == 100
    with pytest.raises(UsageError, match="200 samples were asked for, and there are 100"):
        fit(model, optimizer, make_batch, functional.cross_entropy, batch=200, memory="8GB", options=False)


def test_a_workload_of_a_file_of_the_user_s_own_is_one_that_fit_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import replace\nfrom stepscope import workloads\n"
        "WORKLOADS = (replace(workloads.find('lenet'), name='own'),)\n"
    )
    assert job_of_target(f"{file}:own", None).name == "own"
    with pytest.raises(UnknownName, match="unknown workload of"):
        job_of_target(f"{file}:other", None)


def test_a_function_may_import_modules_beside_it_and_must_return_an_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    (tmp_path / "beside_mine.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(4, 2)\n")
    (tmp_path / "mine_imports.py").write_text(
        "import torch\n"
        "def training():\n    from beside_mine import net\n    model = net()\n"
        "    return model, torch.optim.SGD(model.parameters()), lambda n: torch.randn(n, 4), lambda m, x: m(x).sum()\n"
        "def without():\n    return torch.nn.Linear(4, 2), None, lambda n: torch.randn(n, 4), None\n"
    )
    (tmp_path / "mine_exits.py").write_text("raise SystemExit(2)\n")
    assert isinstance(job_of_function("mine_imports:training").build()[0], nn.Linear)
    with pytest.raises(UsageError, match=r"no torch\.optim\.Optimizer, but NoneType"):
        job_of_function("mine_imports:without")
    with pytest.raises(UsageError, match="the module 'mine_exits' raised SystemExit: 2"):
        job_of_function("mine_exits:training")
