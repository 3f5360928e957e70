"""Memory that no op of a dry run shows: copies, sums in place, numbers of optimizers, sparse gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fit.measured import predicted_and_measured
from torch import Tensor, nn

from stepscope.footprint import batch_line, result
from stepscope.footprint.jobs import job_of
from stepscope.footprint.prediction import JobQuestion, predict_fit
from stepscope.record.dry.storage_log import StorageLog


class Rows(nn.Module):
    """Rows of a product, by a function."""

    def __init__(self, picked: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.picked = nn.Linear(32, 64), nn.Linear(64, 4), picked

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.last(self.picked(self.first(x))))


_ORDER = torch.arange(2000) % 400
_OF_ORDER = ("index_select", "gather", "index")

CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "index_select": lambda x: x.index_select(0, _ORDER[: 5 * x.shape[0]]),
    "gather": lambda x: x.gather(0, _ORDER[: 5 * x.shape[0], None].expand(-1, 64)),
    "index": lambda x: x[_ORDER[: 5 * x.shape[0]]],
    "product with a mask of bytes": lambda x: x * (x > 0),
    "sum with whole numbers": lambda x: x + torch.ones(x.shape, dtype=torch.long),
}


@pytest.mark.parametrize("name", list(CHOICES))
def test_copies_and_sums_that_no_op_shows_are_counted(name: str) -> None:
    predicted, measured = predicted_and_measured(Rows(CHOICES[name]), torch.rand(400, 32))
    assert predicted == pytest.approx(measured + (_ORDER.nbytes if name in _OF_ORDER else 0), rel=2e-3)


@pytest.mark.parametrize("rule", [torch.optim.Adagrad, torch.optim.Adafactor, torch.optim.RAdam])
def test_optimizers_that_ask_for_numbers_are_followed(rule: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Linear(64, 64)
    job = job_of(model, rule(model.parameters()), lambda n: torch.rand(n, 64), lambda m, b: m(b).mean())
    assert predict_fit(JobQuestion(job, 4, options=False)).method == result.DRY_RUN


def test_sparse_gradients_are_counted_as_what_they_consist_of() -> None:
    table = nn.Embedding(1000, 16, sparse=True)
    job = job_of(
        table, torch.optim.SparseAdam(table.parameters()), lambda n: torch.zeros(n, 5, dtype=torch.long),
        lambda model, batch: model(batch).square().mean(),
    )  # fmt: skip
    found = predict_fit(JobQuestion(job, 8, options=False))
    assert found.peak_bytes > 3 * table.weight.nbytes
    log = StorageLog()
    values = torch.rand(3, 16)
    gradient = torch.sparse_coo_tensor(torch.tensor([[0, 4, 9]]), values, (10, 16), check_invariants=True)
    log.adopt(gradient, "gradient")
    assert log.alive_bytes() == values.nbytes + 3 * 8


class Branches(nn.Module):
    """A model that looks at its numbers, with more rows the larger the batch is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.sum() > 0 else -x
        return torch.as_tensor(self.layer(x.repeat(x.shape[0], 1)))


def test_a_batch_that_can_be_trained_here_is_measured_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Branches()
    job = job_of(
        model, torch.optim.SGD(model.parameters()), lambda n: torch.rand(n, 16), lambda m, batch: m(batch).mean()
    )
    itself = predict_fit(JobQuestion(job, 64, options=False))
    assert itself.method == result.ITS_BATCH
    assert itself.peak_bytes > 64 * 64 * 16 * 4
    monkeypatch.setattr(batch_line, "_TRAINED_HERE", 0)
    line = predict_fit(JobQuestion(job, 64, options=False))
    assert line.method == result.SMALL_BATCHES
    assert line.peak_bytes < itself.peak_bytes


class PackedTagger(nn.Module):
    """Texts of different lengths, packed: fake tensors cannot run it. [B, 30] to [B, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(500, 64), nn.GRU(64, 64, batch_first=True), nn.Linear(64, 8)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        return torch.as_tensor(self.head(self.layers(packed)[1][-1]))


def test_a_packed_recurrent_model_is_told_from_the_largest_batches_that_may_be_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lengths that are drawn differ much from sample to sample: two and four say little of a thousand."""
    torch.manual_seed(0)

    def batch(samples: int) -> Any:
        return torch.randint(500, (samples, 30)), torch.randint(1, 31, (samples,))

    model = PackedTagger()
    job = job_of(model, torch.optim.SGD(model.parameters()), batch, lambda m, inputs: m(*inputs).mean())
    itself = predict_fit(JobQuestion(job, 1024, options=False))
    assert (itself.method, "pack_padded" in str(itself.stopped)) == (result.ITS_BATCH, True)
    monkeypatch.setattr(batch_line, "_TRAINED_HERE", itself.peak_bytes // 3)
    line = predict_fit(JobQuestion(job, 1024, options=False))
    assert line.method == result.SMALL_BATCHES
    assert line.live.low <= itself.peak_bytes <= line.live.high
    assert line.live.high < 1.3 * line.live.low
