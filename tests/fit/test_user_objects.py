"""A question from Python leaves no trace in the model, the optimizer and the caches of who asks."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fit import jobs
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

import stepscope
from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint import batch_line
from stepscope.footprint.jobs import job_of
from stepscope.footprint.result import FitResult
from stepscope.record.dry.dry_run import dry_run


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Looking(nn.Module):
    """Looks at a number in a layer, which stops a dry run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.layer(x))
        return out * 2 if out.sum().item() > 1e9 else out


class LookingUnderLock(Looking):
    """Cannot be copied either."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Callback:
    """What deepcopy refuses."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot be copied")


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    return torch.as_tensor(model(batch)).square().mean()


def asked(model: nn.Module, optimizer: torch.optim.Optimizer) -> FitResult:
    # nothing fits into so little: no time goes into the largest batch that does
    return stepscope.fit(model, optimizer, lambda n: torch.randn(n, 8), squares, memory="1MB", options=False)


@pytest.mark.parametrize("make", [Looking, LookingUnderLock])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_model_that_must_be_trained_to_be_measured_is_afterwards_as_it_was(
    make: Callable[[], nn.Module], steps: int
) -> None:
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        squares(model, torch.randn(4, 8)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    numbers, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    assert asked(model, optimizer).stopped is not None
    assert all(torch.equal(tensor, numbers[name]) for name, tensor in model.state_dict().items())
    now = optimizer.state_dict()
    assert now["param_groups"] == state["param_groups"]
    assert now["state"].keys() == state["state"].keys()
    assert all(torch.equal(now["state"][key]["exp_avg"], own["exp_avg"]) for key, own in state["state"].items())
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is None if gradient is None else torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]


def test_a_model_that_can_be_neither_copied_nor_put_back_is_not_trained() -> None:
    model = Looking()
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.param_groups[0]["callback"] = Callback()
    before = model.layer.weight.detach().clone()
    with pytest.raises(StepscopeError, match="neither copied nor put back"):
        asked(model, optimizer)
    assert torch.equal(model.layer.weight, before)


@functools.lru_cache
def cached_mask(size: int) -> Tensor:
    return torch.triu(torch.full((size, size), float("-inf")), 1)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.as_tensor(self.layer(x)) @ x.mT + cached_mask(len(x))).softmax(-1)


def test_a_mask_that_is_cached_in_a_dry_run_has_numbers_in_the_training_after_it() -> None:
    model = Masked()
    asked(model, torch.optim.SGD(model.parameters()))
    assert not isinstance(cached_mask(16), FakeTensor)
    assert not isinstance(model(torch.randn(16, 8)), FakeTensor)


def test_what_else_keeps_a_tensor_of_a_dry_run_is_named() -> None:
    class Weighted:
        weights: Tensor | None = None

        def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
            if self.weights is None:
                self.weights = torch.ones(8)
            return (torch.as_tensor(model(batch)) * self.weights).sum()

    model = nn.Linear(8, 8)
    optimizer, weighted = torch.optim.SGD(model.parameters()), Weighted()
    with pytest.warns(RuntimeWarning, match="Weighted.weights"):
        stepscope.fit(model, optimizer, lambda n: torch.randn(n, 8), weighted, memory="1MB", options=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Tensor


class Circular:
    def __init__(self, x: Tensor) -> None:
        self.x, self.nest = x, {"itself": self}


@pytest.mark.parametrize("kind", [Frozen, Circular])
def test_a_batch_may_be_frozen_or_reach_itself(kind: Any) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    job = job_of(model, optimizer, lambda n: kind(torch.randn(n, 8)), lambda model, batch: model(batch.x).sum())
    log = dry_run(job, 16).log
    assert [storage.bytes for storage in log.storages if storage.category == "input"] == [16 * 8 * 4]


def test_a_model_that_differentiates_its_outputs_with_torch_func_is_asked_like_any_other() -> None:
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def residual(model: nn.Module, points: Tensor) -> Tensor:
        def value(point: Tensor) -> Tensor:
            parameters: dict[str, Tensor] = dict(model.named_parameters())
            return torch.as_tensor(torch.func.functional_call(model, parameters, (point,))).squeeze()

        return torch.as_tensor(torch.func.vmap(torch.func.grad(value))(points).pow(2).mean())

    optimizer = torch.optim.SGD(model.parameters())
    found = stepscope.fit(model, optimizer, lambda n: torch.randn(n, 1), residual, memory="1MB", options=False)
    assert found.stopped is None


def test_data_that_a_model_holds_are_in_its_dry_run_themselves() -> None:
    class WithData(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.lock = nn.Linear(8, 8), threading.Lock()
            self.rows, self.table = np.zeros(8), torch.zeros(1 << 17)

        def forward(self, x: Tensor) -> Tensor:
            seen.append((self.rows, self.table))
            return torch.as_tensor(self.layer(x)) + self.table[:8]

    model, seen = WithData(), list[tuple[Any, Tensor]]()
    job = job_of(model, torch.optim.SGD(model.parameters()), lambda n: torch.randn(n, 8), squares)
    dry_run(job, 4)
    assert all(rows is model.rows and isinstance(table, FakeTensor) for rows, table in seen)


def test_a_weight_that_is_computed_from_two_parameters_is_no_obstacle() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)))
    job = job_of(model, torch.optim.SGD(model.parameters()), lambda n: torch.randn(n, 8), squares)
    assert dry_run(job, 16).peak_bytes > 16 * 8 * 4


def test_attention_and_recurrent_layers_have_flops_in_a_dry_run() -> None:
    def attended(model: nn.Module, batch: Tensor) -> Tensor:
        query = torch.as_tensor(model(batch)).view(len(batch), 64, 2, 4).transpose(1, 2)
        return functional.scaled_dot_product_attention(query, query, query).sum()

    linear, recurrent = nn.Linear(8, 8), nn.LSTM(8, 16)
    attention = job_of(linear, torch.optim.SGD(linear.parameters()), lambda n: torch.randn(n, 64, 8), attended)
    forward, products = 2 * 16 * 64 * 8 * 8, 2 * 16 * 2 * 64 * 64 * 4
    assert dry_run(attention, 16).flops == 2 * forward + (2 + 5) * products
    lstm = job_of(
        recurrent, torch.optim.SGD(recurrent.parameters()), lambda n: torch.randn(5, n, 8), lambda m, b: m(b)[0].sum()
    )
    assert dry_run(lstm, 16).flops == 3 * 2 * 5 * 16 * (8 + 16) * 64


def _refuses(fewest: int, most: int) -> Callable[[nn.Module, Tensor], Tensor]:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        if not fewest <= len(batch) <= most:
            raise ValueError(f"{fewest} to {most} samples")
        return squares(model, batch)

    return loss


def test_a_batch_that_the_step_refuses_is_said_to_fail_and_not_told_from_smaller_ones() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    answer = functools.partial(stepscope.fit, model, optimizer, lambda n: torch.randn(n, 8), memory="2GB")
    with pytest.raises(UsageError, match="a batch of 64 cannot be trained: ValueError: 1 to 40 samples") as refused:
        answer(_refuses(1, 40), batch=64)
    assert "a batch of 2 samples runs" in str(refused.value.hint)
    assert answer(_refuses(1, 40), batch=16, options=False).largest_batch == 40


def test_a_step_that_wants_more_than_four_samples_is_measured_with_more() -> None:
    model = Looking()
    optimizer = torch.optim.SGD(model.parameters())
    asked = functools.partial(stepscope.fit, model, optimizer, lambda n: torch.randn(n, 8), options=False)
    result = asked(_refuses(8, 10**6), batch=64, memory="8GB")
    assert result.verdict == "likely fits"
    with pytest.raises(StepscopeError, match="fails on real tensors too: ValueError: 100 to 1000 samples"):
        asked(_refuses(100, 1000), batch=64, memory="8GB")


class Sharp(torch.optim.SGD):
    """Steps after a second look at the loss, as SAM does; what it needs is no argument without a default."""

    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "give a closure"
        with torch.enable_grad():
            closure()
        return super().step()


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, Sharp])
def test_an_optimizer_that_evaluates_the_loss_itself_is_asked_like_any_other(kind: Any) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = kind(model.parameters(), lr=0.1)
    result = stepscope.fit(model, optimizer, lambda n: torch.randn(n, 16), squares, memory="2GB", options=False)
    assert (result.method, optimizer.state_dict()["state"]) == ("dry run", {})


def test_a_sparse_matrix_of_neighbours_is_no_obstacle() -> None:
    layer = nn.Linear(16, 8)

    def batch(nodes: int) -> tuple[Tensor, Tensor]:
        edges = torch.randint(nodes, (2, 3 * nodes))
        near = torch.sparse_coo_tensor(edges, torch.rand(3 * nodes), (nodes, nodes)).coalesce()
        return near, torch.rand(nodes, 16)

    class Neighbours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, near: Tensor, x: Tensor) -> Tensor:
            product: Tensor = torch.sparse.mm(near, torch.as_tensor(self.layer(x)))
            return product

    model = Neighbours()
    job = job_of(model, torch.optim.Adam(model.parameters()), batch, lambda m, b: m(*b).square().mean())
    assert dry_run(job, 100).peak_bytes == pytest.approx(jobs.really_live(job, 100), rel=0.01)


def test_the_sparse_gradient_of_an_embedding_takes_what_it_takes_with_numbers() -> None:
    layer = nn.EmbeddingBag(5000, 32, mode="sum", sparse=True)

    def batch(samples: int) -> Tensor:
        return torch.randperm(5000)[: 4 * samples].view(samples, 4)

    job = job_of(layer, torch.optim.SparseAdam(layer.parameters()), batch, squares)
    said, took = dry_run(job, 500).peak_bytes, jobs.really_live(job, 500)
    assert said == pytest.approx(took, rel=0.01)


class Choosing(nn.Module):
    """Gives each sample to the layer that is its number: more samples reach more layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(32)])

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x[number :: len(self.layers)]) for number, layer in enumerate(self.layers) if number < len(x))
        return torch.cat(list(parts)) + x.sum().item()


def test_a_batch_that_small_ones_say_too_much_of_is_measured_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_line, "_TRAINED_HERE", 64_000_000)
    model = Choosing()
    job = job_of(model, torch.optim.SGD(model.parameters()), lambda n: torch.randn(n, 256), squares)
    line = batch_line.measure_batch(job, 512, None)
    assert line.large[0] == 512


def test_a_model_whose_layers_have_no_sizes_yet_has_a_dry_run_and_gets_none_by_it() -> None:
    model = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(samples: int) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 2, 50), torch.zeros(samples, dtype=torch.long)

    log = dry_run(job_of(model, optimizer, batch, nn.CrossEntropyLoss()), 8).log
    weights = {storage.shape for storage in log.storages if storage.category == "parameter"}
    assert {"10x192", "4x2x3"} <= weights
    assert model[3].in_features == 0
