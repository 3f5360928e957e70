"""Changes of the arithmetic and of the model: what each does to a training, and that nothing of it stays."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from stepscope.experiments.tune.changes import Change, all_changes, changes_applied, select_changes
from stepscope.experiments.tune.changes.precision import LossScale
from stepscope.experiments.tune.training import Targets, facts_of, observe_training


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) + x


class _Distillation:
    """A student of four blocks that learns from a teacher, with clipped gradients."""

    def __init__(self, blocks: int = 4) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 16), *[_Block() for _ in range(blocks)], nn.Linear(16, 2))
        self.teacher = nn.Linear(16, 2)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.batch = torch.randn(8, 16)
        self.in_inference = list[bool]()
        self.teacher.register_forward_hook(lambda *_: self.in_inference.append(torch.is_inference_mode_enabled()))
        with observe_training() as observer:
            self.step()
        called = tuple(observer.called_modules.values())
        self.targets = Targets((self.model,), (self.optimizer,), called, observer.evaluated_modules)
        self.facts = facts_of(self.targets, observer)

    def step(self) -> float:
        self.optimizer.zero_grad()
        with torch.no_grad():
            target = self.teacher(self.batch)
        loss = (self.model(self.batch) - target).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return float(loss.item())

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def changes(self, *names: str) -> list[Change]:
        known = all_changes({**self.facts, "half_precision": True})
        return [known[name] for name in names]


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("parts", [1, 2], ids=["one pass", "two passes"])
def test_fp16_trains_as_with_a_gradient_scaler_of_torch(parts: int) -> None:
    """Also in the steps that are left out because a gradient overflows."""

    ours, theirs = _Distillation(), _Distillation()
    with changes_applied(ours.changes("fp16"), ours.targets):
        for _ in range(12):
            ours.optimizer.zero_grad()
            for part in ours.batch.chunk(parts):
                (ours.model(part).square().mean() / parts).backward()
            nn.utils.clip_grad_norm_(ours.model.parameters(), 0.1)
            ours.optimizer.step()
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(12):
        theirs.optimizer.zero_grad()
        for part in theirs.batch.chunk(parts):
            with torch.autocast("cpu", dtype=torch.float16):
                output = theirs.model(part)
            scaler.scale(output.float().square().mean() / parts).backward()
        scaler.unscale_(theirs.optimizer)
        nn.utils.clip_grad_norm_(theirs.model.parameters(), 0.1)
        scaler.step(theirs.optimizer)
        scaler.update()
    assert (
        _same(ours.weights(), theirs.weights())
        if parts == 1
        else all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours.weights(), theirs.weights(), strict=True))
    )


def test_an_update_with_a_gradient_that_overflows_is_left_out_and_the_scale_halved() -> None:
    training = _Distillation()
    before, state = training.weights(), copy.deepcopy(training.optimizer.state_dict()["state"])
    with LossScale(training.targets) as scale:
        scale.scale.fill_(2.0**127)
        training.batch *= 1e4
        training.step()
        assert scale.scale.item() == 2.0**126
        assert _same(before, training.weights())
        assert all(torch.equal(state[key]["exp_avg"], value["exp_avg"])
                   for key, value in training.optimizer.state_dict()["state"].items())  # fmt: skip
        scale.scale.fill_(1.0)
        training.step()
        assert not _same(before, training.weights())
    assert not training.optimizer._optimizer_step_pre_hooks
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert "__wrapped__" not in vars(torch.autograd.backward)


def test_fp16_is_not_tried_where_the_cpu_would_emulate_it() -> None:
    assert "no arithmetic of fp16" in all_changes({"half_precision": False})["fp16"].refused
    assert all_changes({"half_precision": True})["fp16"].refused == ""


def test_frozen_blocks_have_no_gradient_and_learn_again_afterwards() -> None:
    training = _Distillation()
    before = training.weights()
    half = training.changes("freeze=half")
    with changes_applied(half, training.targets):
        training.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, training.weights(), strict=True)]
    assert moved == [False] * 6 + [True] * 6  # the first layer and two blocks; two blocks and the last layer
    assert all(parameter.requires_grad for parameter in training.model.parameters())
    training.step()
    assert not torch.equal(before[0], training.weights()[0])


def test_the_code_to_freeze_does_what_the_change_does() -> None:
    training = _Distillation()
    (most,) = training.changes("freeze=most")
    exec(most.code, {"model": training.model})
    learning = [name for name, parameter in training.model.named_parameters() if parameter.requires_grad]
    assert learning == ["4.linear.weight", "4.linear.bias", "5.weight", "5.bias"]


def test_freezing_is_tried_where_it_is_named_alone() -> None:
    known = all_changes(_Distillation().facts).values()
    assert not [change.name for change in select_changes(known, "time", (), ()) if change.group == "freeze"]
    named = [change.name for change in select_changes(known, "time", ("freeze",), ())]
    assert named == ["freeze=half", "freeze=most"]
    few = all_changes(_Distillation(blocks=1).facts)
    assert "too few blocks" in few["freeze=half"].refused


def test_a_teacher_runs_in_inference_mode_and_the_training_is_the_same() -> None:
    changed, plain = _Distillation(), _Distillation()
    with changes_applied(changed.changes("inference-mode"), changed.targets):
        losses = [changed.step() for _ in range(3)]
    assert losses == [plain.step() for _ in range(3)]
    assert _same(changed.weights(), plain.weights())
    assert changed.in_inference == [False, True, True, True]
    changed.step()
    assert changed.in_inference[-1] is False


def test_a_model_that_learns_is_never_called_in_inference_mode() -> None:
    """It may keep what it computes there, and autograd takes no such tensor."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with observe_training() as observer:
        with torch.no_grad():
            model(torch.randn(2, 4))
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    assert observer.evaluated_modules == ()
    facts = facts_of(Targets((model,), (optimizer,), (model,), observer.evaluated_modules), observer)
    assert "called with gradients" in all_changes(facts)["inference-mode"].refused
