"""Ops without a rule of workspaces: an interval as long as nobody ran them, exact once a child process did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fit import jobs
from tests.fit.measured import predicted_and_measured
from torch import Tensor, nn
from torch.nn import functional

from stepscope.analysis.memory.limits import UNMEASURED
from stepscope.footprint.jobs import job_of
from stepscope.footprint.prediction import JobQuestion, predict_fit, predict_script_fit
from stepscope.footprint.result import LivePeak
from stepscope.record.dry import Job, probes
from stepscope.record.dry.dry_run import dry_run
from stepscope.record.dry.platform import Platform, this_platform
from stepscope.record.dry.probes import Call, OpCallRecorder, probe_in_child
from stepscope.record.dry.workspaces import Workspaces


class Applied(nn.Module):
    """A function of inputs times a parameter."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.ones(1)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.scale)


def spectrum(x: Tensor) -> Tensor:
    """Along a dimension that is not the last, which the library copies."""
    return torch.view_as_real(torch.fft.fft(x, dim=1))


def turned(x: Tensor) -> Tensor:
    """A softmax whose gradient lies otherwise than in rows, which the library copies."""
    return x.softmax(-1).transpose(1, 2).contiguous()


def enlarged(x: Tensor) -> Tensor:
    return functional.interpolate(x[:, None], scale_factor=2.5, mode="bicubic")


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(model(x)).square().mean()


def trained(model: nn.Module, x: Tensor, loss: Callable[[nn.Module, Tensor], Tensor] = squares) -> Job:
    return job_of(model, torch.optim.SGD(model.parameters()), lambda n: x[:n], loss)


def answer(model: nn.Module, x: Tensor) -> LivePeak:
    return predict_fit(JobQuestion(trained(model, x), len(x), options=False, largest=False)).live


@pytest.fixture(autouse=True)
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("function", [spectrum, enlarged, turned])
def test_an_op_without_a_rule_is_an_interval_that_holds_and_exact_once_it_was_run(function: Any) -> None:
    x = torch.rand(4, 40, 64)
    _, measured = predicted_and_measured(Applied(function), x)
    rules = Workspaces(this_platform())
    log = dry_run(trained(Applied(function), x), len(x), rules).log
    assert rules.uncovered
    assert not rules.not_modelled
    said = answer(Applied(function), x)
    assert said.least == said.most == said.bytes == pytest.approx(measured, rel=1e-3)
    assert max(s.most for s in log.storages if s.category == "workspace") > 0


@pytest.mark.parametrize(
    "function",
    [lambda x: x.prod(-1), lambda x: torch.prod(x, 1, keepdim=True), lambda x: x.prod(), lambda x: x.cumprod(dim=1)],
    ids=["of rows", "of columns", "of all", "cumulative"],
)
def test_a_product_takes_the_memory_of_numbers_none_of_which_is_0(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4, 40, 64) + 0.5
    _, measured = predicted_and_measured(Applied(function), x)
    said = answer(Applied(function), x)
    assert said.least == said.most == said.bytes == pytest.approx(measured, rel=1e-3)


def test_what_is_folded_keeps_the_memory_of_its_columns() -> None:
    def folded(x: Tensor) -> Tensor:
        return functional.fold(functional.unfold(x[:, None], 3, padding=1), (40, 64), 3, padding=1)

    x = torch.rand(4, 40, 64)
    _, measured = predicted_and_measured(Applied(folded), x)
    said = answer(Applied(folded), x)
    assert said.least == said.most == said.bytes == pytest.approx(measured, rel=1e-3)


class Outputs(nn.Module):
    """The outputs of a recurrent layer, without its last states."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x)[0])


@pytest.mark.parametrize("layer", [nn.RNN(20, 32, 2, batch_first=True), nn.GRU(20, 32, bidirectional=True)])
def test_the_parts_of_states_that_begin_as_zeros_take_no_memory_of_their_own(layer: nn.RNNBase) -> None:
    predicted, measured = predicted_and_measured(Outputs(layer), torch.rand(6, 5, 20))
    assert predicted == pytest.approx(measured, rel=1e-3)


def test_the_gradient_of_a_sum_is_one_number_which_a_convolution_writes_out() -> None:
    layer, x = nn.Conv1d(16, 32, 5), torch.rand(16, 16, 200)

    def workspace(loss: Callable[[nn.Module, Tensor], Tensor]) -> int:
        log = dry_run(trained(layer, x, loss), len(x), Workspaces(Platform())).log
        return max(s.bytes for s in log.storages if s.category == "workspace" and "convolution_backward" in s.op)

    one, many = workspace(lambda model, x: model(x).sum()), workspace(lambda model, x: model(x).square().sum())
    assert one - many == 16 * 32 * 196 * 4


def test_what_an_lstm_asks_for_is_an_interval_around_what_is_said_though_less_becomes_resident() -> None:
    said = answer(nn.Sequential(nn.LSTM(40, 48, batch_first=True), First()), torch.rand(8, 30, 40))
    assert said.least <= said.bytes <= said.most
    assert said.high < said.bytes


class First(nn.Module):
    """The outputs of a recurrent layer."""

    def forward(self, x: tuple[Tensor, Any]) -> Tensor:
        return x[0]


def test_an_op_that_cannot_run_alone_costs_the_others_nothing() -> None:
    x = torch.rand(4, 40, 64)
    rules = Workspaces(this_platform())
    book = OpCallRecorder(rules, 4, rules.uncovered)
    dry_run(trained(Applied(spectrum), x), 4, book, steps=1)
    meta = Call(torch.ops.aten.abs.default, (torch.empty(4, device="meta").untyped_storage(),), 4)
    bad = {"no tensor": Call(torch.ops.aten.abs.default, ("no tensor",), 4, kind="any"), "no data": meta}
    found = probe_in_child({**bad, **book.calls})
    assert book.calls
    assert set(book.calls) <= set(found)
    assert not {"no tensor", "no data"} & set(found)


def test_a_script_has_its_ops_run_alone_as_well(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
weight = torch.nn.Parameter(torch.ones(64))
optimizer = torch.optim.SGD([weight], lr=0.1)
x = torch.rand(4, 40, 64)
for _ in range(3):
    optimizer.zero_grad()
    torch.view_as_real(torch.fft.fft(x * weight, dim=1)).square().mean().backward()
    optimizer.step()
"""
    )
    found = predict_script_fit(str(script), (), None, environment=lambda _: UNMEASURED)
    assert found.live.least == found.live.most == found.live.bytes
    assert not found.not_modelled


def test_the_mean_of_a_loss_keeps_the_loss_of_each_element() -> None:
    x = torch.rand(64, 5000)
    model = Applied(lambda x: x)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return functional.mse_loss(model(x), x).sqrt()

    said = dry_run(trained(model, x, loss), len(x), Workspaces(this_platform())).peak_bytes
    assert said == pytest.approx(4 * x.nbytes, rel=1e-3)  # batch, what the model gives, and both of the loss


def normalized(x: Tensor) -> Tensor:
    return functional.batch_norm(x[:, :, None], None, None, training=True)


def cross_entropy_of_shares(x: Tensor) -> Tensor:
    return functional.binary_cross_entropy(torch.sigmoid(x), torch.full_like(x, 0.5))


@pytest.mark.parametrize(
    "function",
    [normalized, cross_entropy_of_shares, lambda x: x.bfloat16().mean(), lambda x: x.half().mean(),
     lambda x: functional.mse_loss(x.bfloat16(), torch.zeros_like(x).bfloat16())],
    ids=["batch norm", "binary cross entropy", "mean in bf16", "mean in fp16", "square loss in bf16"],
)  # fmt: skip
def test_what_kernels_of_reductions_take_is_in_the_peak_before_anything_was_run(
    function: Callable[[Tensor], Tensor],
) -> None:
    predicted, measured = predicted_and_measured(Applied(function), torch.rand(64, 40, 64))
    assert predicted == pytest.approx(measured, rel=1e-3)


def test_a_soft_margin_keeps_the_memory_of_all_elements() -> None:
    op, x = torch.ops.aten.soft_margin_loss.default, torch.rand(64, 64)
    out = op(x, x)
    assert Workspaces(this_platform())(op, (x, x), {}, out).output_sizes == ((0, x.nbytes, x.nbytes),)
    assert out.untyped_storage().nbytes() == x.nbytes


@pytest.mark.parametrize(("size", "copied"), [(32, True), (96, False)])
def test_a_small_picture_is_copied_where_it_is_enlarged(size: int, copied: bool) -> None:
    x = torch.rand(8, 16, size, size)
    op = torch.ops.aten.upsample_nearest2d.default
    args = (x, [2 * size, 2 * size], 2.0, 2.0)
    out = op(*args)
    assert Workspaces(this_platform())(op, args, {}, out).expected == copied * (x.nbytes + out.nbytes)


def test_the_gradient_of_the_largest_element_takes_what_it_takes_with_numbers() -> None:
    x = torch.rand(64, 40, 64)
    _, measured = predicted_and_measured(Applied(lambda x: x.max()), x)
    assert answer(Applied(lambda x: x.max()), x).bytes == pytest.approx(measured, rel=1e-3)


def test_weights_with_as_many_channels_as_the_batch_has_samples_are_probed_whole() -> None:
    layer = nn.Conv2d(64, 64, 3, dilation=2, padding=2)
    x, op = torch.rand(64, 64, 8, 8), torch.ops.aten.convolution.default
    book = OpCallRecorder(Workspaces(this_platform()), 64)
    args = (x, layer.weight, layer.bias, [1, 1], [2, 2], [2, 2], False, [0, 0], 1)
    with torch.no_grad():
        book(op, args, {}, op(*args))
    (call,) = book.calls.values()
    assert [probes._made_up_arguments(call, 16)[0][place].shape[0] for place in (0, 1, 2)] == [16, 64, 64]


@pytest.mark.parametrize("in_step", [False, True])
def test_a_ctc_loss_is_dry_run_with_what_its_forward_and_backward_keep(in_step: bool) -> None:
    model = nn.Linear(20, 30)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        shares, targets = model(batch[0]).log_softmax(-1).transpose(0, 1), batch[1]
        steps, lengths = (torch.full((len(targets),), n) for n in (50, 40)) if in_step else batch[2:]
        return functional.ctc_loss(shares, targets.flatten(), steps, lengths)

    def batch(samples: int) -> tuple[Tensor, ...]:
        lengths = torch.full((samples,), 50), torch.full((samples,), 40)
        return torch.rand(samples, 50, 20), torch.randint(1, 30, (samples, 40)), *lengths

    job = job_of(model, torch.optim.SGD(model.parameters()), batch, loss)
    found = predict_fit(JobQuestion(job, 8, options=False, largest=False))
    assert (found.method, found.stopped) == ("dry run", None)
    assert found.live.bytes == pytest.approx(jobs.really_live(job, 8), rel=1e-3)
