"""Where steps begin and end, on real loops and on a clock of our own."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
import torch
from tests.patience import HANG_S
from tests.record.loops import last_step, record, simple_loop
from torch import nn

import stepscope
from stepscope import Run
from stepscope.clock import monotonic_ns
from stepscope.record import torch_private
from stepscope.record.gradient_threads import GradientThreads
from stepscope.record.kineto import runs_elsewhere, start_window
from stepscope.record.optimizer_identity import CopyUpdateWitness, ObjectNumbers, OptimizerNumbers, SharedModelWitness
from stepscope.record.sample_count import SampleCount, first_tensor
from stepscope.record.steps import EvaluationGaps, StepFinder
from stepscope.record.torch_private import first_bytes
from stepscope.record.update_rounds import ROUNDS, Fingerprint, ManualRounds, OptimizerRounds
from stepscope.runfolder import RunReader


def fails() -> float:
    raise ValueError


def lazy_rounds(calls: str) -> tuple[list[int], bool]:
    """The same as `rounds_and_doubt`, where a capital letter is an update with a penalty."""
    ended: list[int] = []
    watch = OptimizerRounds(lambda t, late: ended.append(t), clock=iter(range(1, 1000)).__next__)
    for name in calls:
        watch.stepped(name.lower(), penalty=name.isupper())
    watch.finish(over=True)
    return ended, watch.uncertain


def rounds(calls: str, per_round: int | None = None) -> list[int]:
    """Times at which rounds end when optimizers step in this order, one time unit apart; + is one that joins."""
    return rounds_and_doubt(calls, per_round)[0]


def rounds_and_doubt(calls: str, per_round: int | None = None) -> tuple[list[int], bool]:
    """The same, and whether they are uncertain."""
    ended: list[int] = []
    now = iter(range(1, 1000))

    def joined(first: int, ends: tuple[int, ...]) -> bool:
        ended[:] = [*(t for t in ended if t < first), *ends]
        return True

    watch = OptimizerRounds(lambda t, late: ended.append(t), per_round, clock=lambda: next(now), joined=joined)
    for before, name in pairwise(f" {calls}"):
        if name != "+":
            watch.stepped(name, before == "+")
    watch.finish(over=True)
    return ended, watch.uncertain


def test_each_update_of_a_single_optimizer_is_a_step() -> None:
    assert rounds("AAAA") == [1, 2, 3, 4]


def test_a_round_of_two_optimizers_ends_with_the_second() -> None:
    assert rounds("DGDGDG") == [2, 4, 6]


def test_a_script_that_updates_once_has_one_step() -> None:
    assert rounds("A") == [1]


def test_the_number_of_updates_in_a_step_can_be_given() -> None:
    assert rounds("DDGDDG", per_round=3) == [3, 6]


def test_an_optimizer_that_takes_over_is_counted_from_its_first_step() -> None:
    assert rounds("AAABBBC") == [1, 2, 3, 4, 5, 6, 7]


def test_optimizers_that_are_made_anew_for_each_step_and_dropped_make_a_step_each() -> None:
    ended: list[int] = []
    alive: set[object] = set()
    watch = OptimizerRounds(
        lambda t, late: ended.append(t), clock=iter(range(1, 100)).__next__, alive=alive.__contains__
    )
    for pair in ("ab", "cd", "ef"):  # two of them in each step
        alive |= set(pair)
        for name in pair:
            watch.stepped(name)
        alive -= set(pair)
    watch.finish()
    assert ended == [2, 4, 6]


def test_a_loop_that_makes_its_optimizer_anew_has_a_step_for_each_update(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with stepscope.profile(model, steps="optimizer", out=tmp_path, record="none") as scope:
        for _ in range(12):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
    assert scope.run.steps["samples"].to_list() == [8] * 12


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        ("ddg" * 4, [3, 6, 9, 12]),  # two critics and a generator
        ("dgddddgddddgddddg", [2, 7, 12, 17]),
        ("ccaccacacca", [3, 6, 8, 11]),  # the critic is held back now and then
        ("ccaccaccacccccccacca", [3, 6, 9, 17, 20]),
        (("c" * 100 + "g") * 3 + "cccccg" * 3, [101, 202, 303, 309, 315, 321]),  # as WGAN begins
        ("aaaa" + "ccg" * 3, [1, 2, 3, 4, 7, 10, 13]),  # a model is pretrained
        ("ccg" * 3 + "cc", [3, 6, 9]),  # a round that was not completed
        ("ccg" * 3 + "ccc", [3, 6, 9, 10, 11, 12]),  # and another training of one of them
        ("ccg" * 3 + "aaaa", [3, 6, 9, 10, 11, 12, 13]),
    ],
)
def test_an_optimizer_that_updates_more_often_than_another_makes_no_step_of_its_own(
    calls: str, ends: list[int]
) -> None:
    assert rounds_and_doubt(calls) == (ends, False)


def test_updates_of_copies_train_within_the_rounds_of_an_optimizer_that_stays() -> None:
    now = iter(range(1, 1000))
    ended: list[int] = []

    def joined(first_ns: int, ends_ns: tuple[int, ...]) -> bool:
        ended[:] = [end for end in ended if end < first_ns] + list(ends_ns)
        return True

    watch = OptimizerRounds(lambda t, late: ended.append(t), clock=lambda: next(now), joined=joined, of_copies={"i"})
    for call in "aaa" + "iiiiO" + "iiO" + "iiiO":  # Reptile's outer update has nothing computed for it
        watch.stepped(call.lower() if call == "O" else call, call == "O")
    watch.finish(over=True)
    assert (ended, watch.uncertain) == ([1, 2, 3, 8, 11, 15], False)


def test_models_that_are_trained_one_after_another_have_a_step_for_each_update_whatever_comes_then() -> None:
    ended: list[int] = []
    watch = OptimizerRounds(lambda t, late: ended.append(t), clock=iter(range(1, 100)).__next__, of_copies={"i"})
    for call in "iiiiiiooo":  # folds, and the whole
        watch.stepped(call)
    watch.finish(over=True)
    assert len(ended) == 9


@pytest.mark.parametrize("calls", ["awwawwawwaww", "wwwawwwawwwa"])
def test_each_update_of_the_weights_is_a_step_where_another_optimizer_is_of_the_same_model(calls: str) -> None:
    ended: list[int] = []
    watch = OptimizerRounds(
        lambda t, late: ended.append(t), clock=iter(range(1, 100)).__next__, one_model=lambda numbers: True
    )
    for call in calls:
        watch.stepped(call)
    watch.finish(over=True)
    assert (len(ended), watch.uncertain) == (calls.count("w"), False)


@pytest.mark.parametrize(
    ("calls", "uncertain"),
    [
        ("ccgcccgcgccccgccg", True),  # no two rounds are the same
        ("cccccg", True),  # one round, and none like it
        ("cccccgcc", True),
        ("cgcgcg", False),
        ("aaabbbccc", False),
        ("aaaabababab", False),
        ("a+ba+ba+b+c" * 4, False),
    ],
)
def test_steps_of_which_no_two_rounds_were_the_same_are_uncertain(calls: str, uncertain: bool) -> None:
    assert rounds_and_doubt(calls)[1] == uncertain


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        ("cCgcgcg" * 3, [3, 5, 7, 10, 12, 14, 17, 19, 21]),  # a lazy penalty of the critic
        ("cgcgcCg" * 2, [2, 4, 7, 9, 11, 14]),
        ("gGcCgcgc" * 2, [4, 6, 8, 11, 14, 16]),  # of both
        ("CgCgCg", [2, 4, 6]),  # with each update of the critic
        ("cCcC", [1, 2, 3, 4]),  # by the one optimizer that there is
    ],
)
def test_an_update_for_a_penalty_alone_belongs_to_the_one_before_it_where_there_are_several_optimizers(
    calls: str, ends: list[int]
) -> None:
    assert lazy_rounds(calls) == (ends, False)


@pytest.mark.parametrize("calls", ["a+ba+ba+b+c" * 8, "a+ba+bc+a+b" * 8, "aaa+c" * 8, "a+c+baa" * 8])
def test_an_optimizer_that_joins_others_now_and_then_makes_no_step_more_or_less(calls: str) -> None:
    assert len(rounds(calls)) == calls.replace("+b", "").replace("+c", "").replace("c+", "").count("a")


def test_optimizers_that_take_turns_for_whole_epochs_have_a_step_for_each_update() -> None:
    assert len(rounds("a" * 50 + "b" * 50 + "a" * 50)) >= 147


def test_optimizers_that_step_within_one_backward_pass_are_one_round() -> None:
    assert rounds("XYZXYZ") == [3, 6]


def test_an_object_at_the_address_of_one_that_is_gone_has_a_number_of_its_own() -> None:
    identities = ObjectNumbers()
    numbers = {identities.number(nn.Identity()) for _ in range(50)}
    assert len(numbers) == 50


class _Made:
    """An optimizer of one parameter."""

    def __init__(self, parameter: object) -> None:
        self.param_groups = [{"params": [parameter]}]


def test_an_optimizer_made_anew_for_the_same_parameters_has_the_number_of_the_one_before_it() -> None:
    numbers, weight = OptimizerNumbers(), object()
    made = [_Made(weight) for _ in range(3)]  # all alive, as in cycles that are not collected yet
    assert len({numbers.number(optimizer, False) for optimizer in made}) == 1
    assert numbers.number(_Made(object()), False) != numbers.number(made[-1], False)
    joins = _Made(weight)
    assert numbers.number(joins, True) != numbers.number(made[-1], False)


def test_two_optimizers_of_the_same_parameters_that_take_turns_have_numbers_of_their_own() -> None:
    numbers, weight = OptimizerNumbers(), object()
    first, second = _Made(weight), _Made(weight)
    given = [(numbers.number(first, False), numbers.number(second, False)) for _ in range(3)]
    assert given[1] == given[2]
    assert given[2][0] != given[2][1]


def test_an_optimizer_of_a_copy_has_the_number_of_the_one_before_it_once_that_is_gone() -> None:
    numbers = OptimizerNumbers()
    first, other = (torch.optim.SGD(nn.Linear(4, 3).parameters(), 0.1) for _ in range(2))
    two = numbers.number(first, False), numbers.number(other, False)
    assert len({*two}) == 2
    assert not numbers.of_copies
    del first, other
    made = [torch.optim.SGD(nn.Linear(4, 3).parameters(), 0.1) for _ in range(2)]
    assert tuple(numbers.number(optimizer, False) for optimizer in made) == two
    assert numbers.of_copies == {*two}
    assert numbers.number(torch.optim.SGD(nn.Linear(4, 2).parameters(), 0.1), False) not in two


def test_many_copies_that_come_one_after_another_have_one_number() -> None:
    numbers = OptimizerNumbers()
    assert len({numbers.number(torch.optim.SGD(nn.Linear(4, 3).parameters(), 0.1), False) for _ in range(300)}) == 1


@pytest.mark.parametrize(("rate", "moves"), [(0.5, True), (0.0, False), (1.0, False)])
def test_a_model_moves_where_a_new_copy_begins_on_the_way_of_those_before_it(rate: float, moves: bool) -> None:
    torch.manual_seed(0)
    model, witness = nn.Linear(4, 3), CopyUpdateWitness()
    for _ in range(6):
        ways = []
        for _ in range(2 if rate < 1 else 1):
            copy = nn.Linear(4, 3)
            copy.load_state_dict(model.state_dict())
            ways.append(trained(copy, 3, witness) - model.weight.detach())
        with torch.no_grad():
            model.weight += rate * sum(ways) / len(ways)
    assert witness.model_follows_copies == moves


@pytest.mark.parametrize("updates", [5, 200])
@pytest.mark.parametrize("width", [1, 4, 16])
def test_models_that_begin_anywhere_are_no_copies_of_one_that_moves(width: int, updates: int) -> None:
    torch.manual_seed(0)
    witness = CopyUpdateWitness()
    for _ in range(20):
        trained(nn.Linear(width, 4), updates, witness)
        assert not witness.model_follows_copies


def trained(model: nn.Linear, updates: int, witness: CopyUpdateWitness) -> torch.Tensor:
    """The weights of a model after so many updates by an optimizer of its own."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(updates):
        model(torch.randn(8, model.in_features)).square().mean().backward()
        witness.begins(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        witness.updated()
    return model.weight.detach()


@pytest.mark.parametrize(("shared", "detached"), [(True, False), (True, True), (False, False)])
def test_optimizers_are_of_one_model_where_it_holds_the_parameters_and_each_pass_reaches_them(
    shared: bool, detached: bool
) -> None:
    nets = [nn.Linear(4, 4), nn.Linear(4, 1)]
    both, witness = nn.Sequential(*nets), SharedModelWitness()
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    for number in (0, 1, 1, 0, 1, 1):
        for model in [both] if shared else nets:
            witness.called(model)
        hidden = nets[0](torch.randn(8, 4))
        optimizers[number].zero_grad()
        witness.before_pass()
        nets[1](hidden.detach() if number and detached else hidden).sum().backward()
        witness.passed(replayed=False)
        optimizers[number].step()
        witness.updated(number, optimizers[number])
    assert witness.is_one_model({0, 1}) == (shared and not detached)


def test_one_that_is_followed_twice_by_another_had_a_step_of_its_own() -> None:
    assert rounds("ABBB") == [1, 2, 3, 4]
    assert rounds("A+BA+BA+B") == [2, 4, 6]


@pytest.mark.parametrize("repeated", [0, 2, 3])
def test_a_rhythm_is_learnt_though_some_updates_are_only_counted(repeated: int) -> None:
    ended: list[int] = []
    watch = OptimizerRounds(lambda t, late: ended.append(t), clock=iter(range(1, 100)).__next__)
    for _ in range(2):
        for _ in range(5 - repeated):
            watch.stepped("critic")
        watch.repeated([0] * repeated)
        watch.stepped("generator")
    before = len(ended)
    for name in ["critic"] * 5 + ["generator"]:
        watch.stepped(name)
    assert len(ended) == before + 1


def test_passes_before_the_first_update_are_no_steps_unless_parameters_changed_by_hand(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def sampled(_: object) -> None:
        sample = torch.rand(4, 8, requires_grad=True)
        for _ in range(6):
            model.requires_grad_(False)
            for _ in range(5):
                model(sample).sum().backward()
                assert sample.grad is not None
                sample.data.sub_(sample.grad, alpha=0.1)
                sample.grad = None
            model.requires_grad_(True)
            optimizer.zero_grad()
            model(sample.detach()).sum().backward()
            optimizer.step()

    def by_hand_first(_: object) -> None:
        for number in range(12):
            model(torch.randn(4, 8)).sum().backward()
            if number < 5:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.data.sub_(parameter.grad, alpha=0.1)
            else:
                optimizer.step()
            model.zero_grad()

    run = record(sampled, tmp_path, steps="optimizer")
    assert run.steps["samples"].to_list()[1:] == [4] * 5
    assert run.ops["step"].unique().sort().to_list() == run.steps.filter("recorded")["step"].to_list()
    assert record(by_hand_first, tmp_path, steps="optimizer").steps.height == 12


def test_passes_for_an_attack_before_the_first_update_are_no_steps(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepscope.profile(model, steps="optimizer", out=tmp_path, record="none") as scope:
        for number in range(6):
            inputs = torch.randn(8, 4)
            moved = torch.zeros_like(inputs)
            for _ in range(3):
                moved.requires_grad_()
                loss = model(inputs + moved).square().sum()
                if number % 2:
                    moved = (moved + torch.autograd.grad(loss, moved)[0]).detach()
                else:
                    loss.backward()
                    assert moved.grad is not None
                    moved = (moved + moved.grad).detach()
                    model.zero_grad()
            model(inputs + moved).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert scope.run.steps.height == 6
    assert scope.run.steps["samples"].to_list() == [8] * 6


def by_hand(*happenings: Any) -> list[tuple[int, bool]]:
    """(when, late) of each step that ends: what is found when something else begins, before and after each pass."""
    ended: list[tuple[int, bool]] = []
    now = iter(range(1, 1000))
    manual = ManualRounds(lambda t, late: ended.append((t, late)), clock=lambda: next(now))
    for before, at_pass, after in happenings:
        manual.something_else(state(before))
        manual.begins(state(at_pass))
        manual.passed(state(after))
    manual.something_else(state("updated"))
    manual.finish(state("updated"))
    return ended


def state(values: str | None, gradients: str = "", seen: bool = True) -> Fingerprint | None:
    """A fingerprint of parameters with these values and gradients; seen: the values can be read."""
    return None if values is None else Fingerprint((values,), (gradients,), seen)


@pytest.mark.parametrize(("seen", "steps"), [(True, 0), (False, 2)])
def test_gradients_that_are_dropped_are_an_update_only_where_values_cannot_be_read(seen: bool, steps: int) -> None:
    ended: list[int] = []
    manual = ManualRounds(lambda t, late: ended.append(t), clock=lambda: 1)
    for _ in range(3):
        manual.begins(state("values", "dropped", seen))
        manual.passed(state("values", "made", seen))
    manual.finish(state("values", "made", seen))
    assert len(ended) == steps


@pytest.mark.parametrize("read", [True, False])
def test_passes_of_copies_with_the_same_values_are_of_one_step_where_values_can_be_read(read: bool) -> None:
    ended: list[int] = []
    manual = ManualRounds(lambda t, late: ended.append(t), clock=lambda: 1)
    for choice, values in enumerate((b"old", b"old", b"old", b"new", b"new")):
        manual.something_else(None)
        copied = Fingerprint((choice,), (), read, contents=(values if read else None,), choice=choice)
        manual.begins(copied)
        manual.passed(copied)
    assert len(ended) == (1 if read else 4)
    manual.finish(copied)
    assert len(ended) == (2 if read else 5)


def test_a_product_with_a_jacobian_by_two_passes_is_no_step_of_what_weights_the_first(tmp_path: Path) -> None:
    weights, inputs = torch.zeros(8), torch.randn(32, 8)
    functional: Any = torch.autograd.functional

    def loss(weights: torch.Tensor) -> torch.Tensor:
        return (inputs @ weights - 1).square().mean()

    with stepscope.profile(steps="optimizer", out=tmp_path, record="none") as scope:
        for _ in range(7):
            gradient = torch.func.grad(loss)(weights)
            for _ in range(3):
                product = functional.hvp(loss, weights, gradient)[1]
            weights = weights - 0.1 * gradient / product.norm()
    assert scope.run.steps.height == 7


def test_a_model_that_is_called_with_changed_parameters_has_a_step_before_it() -> None:
    assert by_hand(("a", "a", "b"), ("c", "c", "d"), ("e", "e", "f")) == [(1, False), (2, False), (3, False)]


def test_an_update_that_shows_only_when_gradients_are_reset_ended_before_the_model_was_called() -> None:
    assert by_hand(("a", "a", "b"), ("b", "c", "d"), ("d", "e", "f")) == [(1, True), (2, True), (3, False)]


def test_passes_that_find_what_the_last_one_left_are_one_step() -> None:
    assert len(by_hand(("a", "a", "b"), ("b", "b", "c"), ("d", "d", "e"))) == 2


def test_parameters_that_are_found_with_the_second_pass_have_not_changed_since_the_first() -> None:
    """A model that is compiled in its first pass shows none before."""
    ended: list[int] = []
    manual = ManualRounds(lambda t, late: ended.append(t), clock=lambda: 1)
    manual.passed(None)
    manual.begins(state("a"))
    manual.passed(state("b"))
    assert ended == []
    manual.finish(state("updated"))
    assert ended == [1]


def test_passes_of_a_training_without_parameters_to_look_at_are_steps() -> None:
    assert len(by_hand((None, None, None), (None, None, None))) == 2


def test_a_closure_that_is_called_often_makes_one_step_from_the_first_on(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    inputs = torch.randn(6, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(inputs).pow(2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def loop(_: Any) -> None:
        for _ in range(4):
            optimizer.step(closure)  # type: ignore[no-untyped-call]

    run = record(loop, tmp_path, steps="optimizer")
    assert run.steps.height == 4
    assert run.steps["samples"].to_list() == [6] * 4


def test_the_layers_of_a_training_without_an_optimizer_are_profiled(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)

    def loop(_: Any) -> None:
        for _ in range(9):
            model(torch.randn(4, 8)).sum().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=-0.1)
            model.zero_grad()

    run = record(loop, tmp_path, steps="optimizer")
    assert run.steps.height == 9
    assert run.steps["samples"].to_list() == [4] * 9
    assert {"forward", "backward"} <= set(last_step(run)["phase"])


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_last_update_through_data_is_a_step_though_no_gradient_is_reset_after_it(
    tmp_path: Path, steps: int
) -> None:
    model = nn.Linear(4, 1)

    def loop(_: Any) -> None:
        for _ in range(steps):
            model.zero_grad()
            model(torch.randn(32, 4)).sum().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=-0.1)

    assert record(loop, tmp_path, steps="optimizer").steps.height == steps


def test_a_last_pass_that_nothing_was_updated_after_is_no_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)

    def loop(_: Any) -> None:
        for step in range(4):
            model.zero_grad()
            model(torch.randn(32, 4)).sum().backward()
            for parameter in model.parameters() if step < 3 else ():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=-0.1)

    assert record(loop, tmp_path, steps="optimizer").steps.height == 3


@pytest.mark.parametrize("in_accumulation", [True, False])
def test_updates_in_hooks_of_gradients_make_a_step_of_each_pass(in_accumulation: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def update(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        parameter.data.sub_(gradient, alpha=0.1)

    def accumulated(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        update(parameter, parameter.grad)
        parameter.grad = None

    weights: list[Any] = list(model.parameters())
    for weight in weights:
        if in_accumulation:
            weight.register_post_accumulate_grad_hook(accumulated)
        else:
            weight.register_hook(functools.partial(update, weight))
    with stepscope.profile(steps="optimizer", out=tmp_path, record="none") as scope:
        for _ in range(7):
            model(torch.randn(3, 4)).square().sum().backward()
            model.zero_grad()
    assert scope.run.steps["samples"].to_list() == [3] * 7


def test_weights_whose_storage_was_given_back_are_not_read() -> None:
    weight = nn.Parameter(torch.ones(32))
    assert first_bytes(weight) == b"\x00\x00\x80?" * 16
    weight.untyped_storage().resize_(0)
    assert first_bytes(weight) is None
    assert first_bytes(nn.Parameter(torch.ones(32, device="meta"))) is None
    assert first_bytes(nn.Parameter(torch.ones(0))) is None


def samples(*happenings: Any) -> int | None:
    """The samples of a step in which these happen: ("batch", n), ("call", model, n), "backward", "update"."""
    count = SampleCount()
    for what in happenings:
        if what == "backward":
            count.backward()
        elif what == "update":
            count.updated()
        elif what == "updating":
            count.updating()
        elif what == "shown":
            count.note_untrained_call(-1)
        elif what[0] == "batch":
            count.batch(what[2] if len(what) > 2 else 0, what[1])
        else:
            count.called(what[1], what[2], what[3] if len(what) > 3 else True)
    return count.take()


def test_the_samples_of_a_step_are_those_of_its_loader() -> None:
    assert samples(("batch", 16), ("call", 0, 16), ("call", 0, 16), "backward", "update") == 16


def test_a_batch_that_is_fetched_ahead_belongs_to_the_next_step() -> None:
    count, taken = SampleCount(), []
    for fetched in ([8, 8], [8], [5], []):
        for size in fetched:
            count.batch(0, size)
        count.backward()
        count.updated()
        taken.append(count.take())
    assert taken == [8, 8, 8, 5]


def test_a_batch_that_a_teacher_sees_first_is_trained_on() -> None:
    """Pairs, of which the model is called with both halves: the loader tells, the calls do not."""
    assert samples(("batch", 4), ("batch", 4), "shown", ("call", 0, 8), "backward", "update") == 4


def test_batches_that_an_average_of_the_model_is_evaluated_on_are_not_trained_on() -> None:
    evaluation = [("batch", 100, 1), "shown"]
    assert samples(*evaluation * 3, ("batch", 4), ("call", 0, 4), "backward", "update") == 4
    assert samples(("batch", 4), *evaluation * 3, ("call", 0, 4), "backward", "update") == 4


def test_a_batch_that_the_model_itself_is_looked_at_with_first_counts_what_is_chosen_of_it() -> None:
    count = SampleCount()
    count.batch(0, 64)
    count.note_untrained_call(1)  # the hardest of them are trained on
    count.called(1, 16, True)
    count.backward()
    count.updated()
    assert count.take() == 16


def test_passes_of_the_very_same_tensor_are_of_the_same_samples() -> None:
    count, inputs = SampleCount(), torch.ones(16, 2)
    taken: list[int | None] = []
    for filled in (False, True, False, False):
        for number in range(3):
            if filled:
                inputs.fill_(2.0)  # a buffer for batch after batch
            count.note_input(inputs)
            count.called(1, 16, True)
            if len(taken) == 3 and not number:  # an update by hand is seen when the next pass begins
                count.updated()
            count.backward()
        count.updated()
        taken.append(count.take())
    assert taken == [16, 48, 16, 16]


def test_batches_that_are_skipped_after_a_call_are_of_no_step() -> None:
    count, taken = SampleCount(), []
    for sizes in [(4,)] * 3 + [(5, 4), (6, 7, 4), (4,), (9, 3)]:  # of those with others the last is trained on
        for size in sizes:
            count.batch(0, size)
            count.called(1, size, True)
        count.backward()
        count.updated()
        taken.append(count.take())
    assert taken == [4, 4, 4, 4, 4, 4, 3]


def test_two_batches_of_each_pass_are_both_trained_on() -> None:
    count, taken = SampleCount(), []
    for _ in range(6):
        for _ in range(2):
            count.batch(0, 4)
            count.called(1, 4, True)
        count.backward()
        count.updated()
        taken.append(count.take())
    assert taken[2:] == [8] * 4  # at first the second may be of a step to come


def test_a_step_that_is_known_only_later_takes_no_batch_that_came_after_its_update() -> None:
    count = SampleCount()
    for _ in range(2):
        count.batch(0, 64)
        for _ in range(4):
            count.called(1, 16, True)
            count.backward()
        count.updated()
    assert (count.take(ahead=1), count.take()) == (64, 64)


def test_gradients_that_are_dropped_at_the_end_of_an_epoch_are_of_no_step() -> None:
    count = SampleCount()
    for _ in range(3):
        count.batch(0, 16)
        count.called(1, 16, True)
        count.backward()
    count.batch(1, 16)  # of the next epoch
    count.called(1, 16, True)
    count.passes_dropped()
    count.backward()
    count.updated()
    assert count.take() == 16


def test_accumulated_batches_add_up() -> None:
    assert samples(*[("batch", 4), ("call", 0, 4), "backward"] * 3, "update") == 12


def test_acting_in_an_environment_counts_no_samples_beside_the_batch_that_is_trained_on() -> None:
    assert samples(*[("call", 0, 1)] * 10, ("call", 0, 128), "backward", "update") == 128


def test_unbatched_calls_are_a_sample_each() -> None:
    assert samples(*[("call", 0, 1, False)] * 7, "backward", "update") == 7


def test_a_discriminator_that_sees_real_and_made_ones_does_not_double_the_batch() -> None:
    discriminator = [("call", 1, 64), "backward", ("call", 1, 64), "backward", "update"]
    assert samples(*discriminator, ("call", 0, 64), ("call", 1, 64), "backward", "update") == 64


def test_a_closure_that_is_called_often_counts_its_samples_once() -> None:
    assert samples("updating", *[("call", 0, 100), "backward"] * 20, "update") == 100


def test_a_pass_of_unknown_size_leaves_the_samples_of_its_update_unknown() -> None:
    assert samples(("call", 0, None), "backward", ("call", 0, 20), "backward", "update") is None
    assert samples(("call", 0, None), ("call", 1, 700), "backward", "update") is None


class Tagger(nn.Module):
    """Time first: (words, sentences) of numbers, as nn.LSTM has it unless it is told otherwise."""

    def __init__(self, inner: nn.Module, flips: bool = False) -> None:
        super().__init__()
        self.embedding, self.inner, self.flips = nn.Embedding(30, 8), inner, flips

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(words.t() if self.flips else words)
        output = self.inner(embedded)
        final: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return final.exp()


def samples_of(model: nn.Module, folder: Path, *shapes: tuple[int, ...]) -> list[int | None]:
    """Samples that are counted in steps with words of these shapes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: Any) -> None:
        for shape in shapes:
            nn.NLLLoss()(model(torch.randint(30, shape)).flatten(0, -2), torch.zeros(shape, dtype=torch.long).flatten())
            model(torch.randint(30, shape)).sum().backward()
            optimizer.step()

    return record(loop, folder, steps="optimizer").steps["samples"].to_list()


@pytest.mark.parametrize(
    "inner",
    [
        nn.LSTM(8, 8),
        nn.GRU(8, 8, bidirectional=True),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False),
    ],
    ids=["LSTM", "GRU", "Transformer"],
)
def test_samples_of_batches_with_time_first_are_counted_across(tmp_path: Path, inner: nn.Module) -> None:
    assert samples_of(Tagger(inner), tmp_path, (35, 20), (7, 20), (20, 20), (35, 6)) == [20, 20, 20, 6]


def test_a_model_that_turns_its_batch_round_for_a_layer_has_it_first(tmp_path: Path) -> None:
    assert samples_of(Tagger(nn.LSTM(8, 8), flips=True), tmp_path, (20, 35), (20, 7)) == [20, 20]
    assert samples_of(Tagger(nn.LSTM(8, 8, batch_first=True)), tmp_path, (20, 35), (20, 7)) == [20, 20]


def test_a_square_batch_tells_nothing_of_the_next_one(tmp_path: Path) -> None:
    assert samples_of(Tagger(nn.LSTM(8, 8)), tmp_path, (20, 20), (35, 20)) == [20, 20]


class Windows(Tagger):
    """Each sentence is cut in two: the layer's batch is no side of the input."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(words)
        output = self.inner(embedded.reshape(len(words) // 2, -1, 8))[0]
        return torch.exp(output)


def test_samples_that_nothing_tells_are_not_measured(tmp_path: Path) -> None:
    assert samples_of(Windows(nn.LSTM(8, 8)), tmp_path, (36, 20), (36, 20)) == [None, None]


def test_a_model_whose_call_fails_is_asked_again(tmp_path: Path) -> None:
    model = Tagger(nn.LSTM(8, 8))

    def loop(_: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for numbers in (99, 30, 30):
            try:
                model(torch.full((35, 20), numbers - 1)).sum().backward()
            except IndexError:
                continue
            optimizer.step()

    assert record(loop, tmp_path, steps="optimizer").steps["samples"].to_list() == [20, 20]


def gap(gaps: EvaluationGaps, *models: int) -> int | None:
    """When evaluation ended that is excluded from the step after this gap."""
    gaps.begins()
    for t_ns, model in enumerate(models, 1):
        gaps.evaluated(model, t_ns)
    return gaps.ends()


def test_what_is_called_without_gradients_now_and_then_is_evaluation() -> None:
    gaps = EvaluationGaps()
    assert [gap(gaps, *([7] if step % 5 == 4 else [])) for step in range(10)] == [*[None] * 4, 1, *[None] * 4, 1]


def test_what_is_called_without_gradients_before_every_step_is_part_of_it() -> None:
    gaps = EvaluationGaps()
    assert [gap(gaps, 7) for _ in range(5)] == [None] * 5


def test_the_first_tensor_is_found_in_nested_arguments() -> None:
    x = torch.zeros(3)
    assert first_tensor((None, {"a": [1, x]}, torch.ones(1))) is x
    assert first_tensor(("text", 3)) is None


class Generator(nn.Linear):
    pass


class Discriminator(nn.Linear):
    pass


def test_both_networks_of_a_gan_are_in_each_step_and_named_by_their_type(tmp_path: Path) -> None:
    generator, discriminator = Generator(4, 4), Discriminator(4, 1)
    adam_g, adam_d = (torch.optim.Adam(m.parameters()) for m in (generator, discriminator))

    def loop(_: Any) -> None:
        for _ in range(6):
            fake = generator(torch.randn(5, 4))
            adam_d.zero_grad()
            (discriminator(torch.randn(5, 4)) - discriminator(fake.detach())).sum().backward()
            adam_d.step()
            adam_g.zero_grad()
            discriminator(fake).sum().backward()
            adam_g.step()

    run = record(loop, tmp_path, steps="optimizer")
    assert run.steps.height == 6
    assert run.steps["samples"].to_list() == [5] * 6
    assert set(run.model["module"]) == {"Generator", "Discriminator"}
    updated = run.ops.filter((pl.col("step") == 5) & (pl.col("phase") == "optimizer"))["module"].cast(pl.String)
    assert {"Generator", "Discriminator"} <= set(updated)


def test_gradient_accumulation_is_one_step_with_the_samples_of_all_its_batches(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: Any) -> None:
        for _ in range(5):
            for _ in range(3):
                model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run = record(loop, tmp_path, steps="optimizer")
    assert run.steps.height == 5
    assert run.steps["samples"].to_list() == [12] * 5


@pytest.mark.parametrize("choice", ["all", "every:2", "adaptive"])
def test_evaluation_between_steps_is_not_in_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    monkeypatch.setattr("stepscope.record.plan._CHEAP_NS", 10**12)  # a first block also on a busy machine
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: Any) -> None:
        for _ in range(8):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    model(torch.randn(100, 8)).exp()
            model.train()

    run = record(loop, tmp_path, steps="optimizer", record=choice)
    assert run.steps.height == 8
    assert set(run.steps["samples"].to_list()) == {4}
    linears = run.ops.filter(pl.col("name").cast(pl.String) == "nn.Linear").group_by("step").len()
    assert set(linears["len"].to_list()) == {1}
    assert run.steps.filter("recorded")["step"].to_list()[-1] >= 4


@pytest.mark.parametrize("choice", ["all", "adaptive"])
@pytest.mark.parametrize("loaded", [False, True])
def test_evaluation_that_forgets_no_grad_is_not_in_any_step(tmp_path: Path, choice: str, loaded: bool) -> None:
    def batches(count: int, size: int) -> list[torch.Tensor] | Iterator[torch.Tensor]:
        data: Any = torch.randn(count, 8)
        return iter(torch.utils.data.DataLoader(data, size)) if loaded else list(torch.chunk(data, count // size))

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: Any) -> None:
        for _ in range(8):
            for inputs in batches(4, 4):
                model(inputs).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            for inputs in batches(300, 100):
                time.sleep(0.01)
                model(inputs).exp()
            model.train()

    run = record(loop, tmp_path, steps="optimizer", record=choice)
    assert run.steps["samples"].to_list() == [4] * 8
    assert run.steps.select((pl.col("t1_ns") - pl.col("t0_ns")).median()).item() < 20e6
    linears = run.ops.filter(pl.col("name").cast(pl.String) == "nn.Linear").group_by("step").len()
    assert set(linears["len"].to_list()) == {1}


@pytest.mark.parametrize("choice", ["all", "every:2", "adaptive"])
def test_steps_that_begin_with_a_pause_are_profiled_from_its_end_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    monkeypatch.setattr("stepscope.record.plan._CHEAP_NS", 10**12)  # a first block also on a busy machine
    model, resumed_ns = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepscope.profile(model, out=tmp_path, record=choice) as scope:
        for _ in range(12):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scope.step()
            scope.pause()
            with torch.no_grad():
                model(torch.randn(100, 8)).exp()
            resumed_ns.append(monotonic_ns())
            scope.resume()
    run = RunReader(scope.path)
    assert run.steps["samples"].to_list() == [4] * 12
    begins, ends = run.steps["t0_ns"].to_list(), run.steps["t1_ns"].to_list()
    assert all(before < at <= begin for before, at, begin in zip(ends, resumed_ns, begins[1:], strict=False))
    profiled = run.steps.filter("recorded")["step"].to_list()
    assert len([step for step in profiled if step > 0]) >= (11 if choice == "all" else 5)
    ops = run.ops.with_columns(pl.col("name", "module").cast(pl.String))
    linears = ops.filter(pl.col("name") == "nn.Linear").group_by("step").agg(pl.len(), pl.col("module").n_unique())
    assert set(linears.select("len", "module").rows()) == {(2, 2)}
    assert sorted(linears["step"].to_list()) == profiled


@pytest.mark.parametrize("again", [False, True])
def test_a_resume_without_a_pause_of_this_step_profiles_nothing_more(tmp_path: Path, again: bool) -> None:
    model = nn.Linear(8, 1)

    with stepscope.profile(model, out=tmp_path, record="every:2") as scope:
        for _ in range(6):
            scope.resume()
            if again:
                scope.pause()
                scope.resume()
            model(torch.randn(4, 8)).sum().backward()
            if not again:
                scope.pause()
            scope.step()
    assert RunReader(scope.path).steps["recorded"].to_list() == [again, False] * 3


@pytest.mark.parametrize(("steps", "where"), [("calls", "the step that scope.step() ends"), ("optimizer", "no step")])
def test_a_skipped_update_is_said_to_be_in_a_step_where_the_training_says_its_steps(
    tmp_path: Path, steps: str, where: str
) -> None:
    model = nn.Linear(8, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")

    def loop(step: Any) -> None:
        for number in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).sum()
            scaler.scale(loss * float("inf") if number == 2 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if steps == "calls":
                step()

    run = record(loop, tmp_path, steps=steps)
    assert run.steps.height == (4 if steps == "calls" else 3)
    skipped = [event["message"] for event in run.events if event["kind"] == "update-skipped"]
    assert skipped == [f"a gradient scaler skipped an update: its time is in {where}"]


def test_target_networks_and_acting_without_gradients_stay_in_the_step(tmp_path: Path) -> None:
    model, target = nn.Linear(8, 1), nn.Linear(8, 1).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Any) -> None:
        for _ in range(5):
            with torch.no_grad():
                wanted = target(torch.randn(4, 8))
            (model(torch.randn(4, 8)) - wanted).sum().backward()
            optimizer.step()
            step()

    run = record(loop, tmp_path, {"policy": model, "target": target})
    per_step = run.ops.filter(pl.col("name").cast(pl.String) == "nn.Linear").group_by("step").len()
    assert set(per_step["len"].to_list()) == {2}


def test_every_step_has_a_time_whether_its_ops_are_recorded_or_not(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    run = record(simple_loop(model, 30), tmp_path, model, record="every:10")
    steps = run.steps
    assert steps["step"].to_list() == list(range(30))
    assert steps.filter("recorded")["step"].to_list() == [0, 10, 20]
    assert run.ops["step"].unique().sort().to_list() == [0, 10, 20]
    assert (steps["t1_ns"] > steps["t0_ns"]).all()
    assert (steps["t0_ns"][1:] >= steps["t1_ns"][:-1]).all()


@pytest.mark.parametrize("direct", [True, False])
def test_layers_that_are_called_past_their_call_are_said_to_be_unknown_and_why(
    tmp_path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_private, "compile_seconds", lambda: None)  # another test may have compiled here
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: Any) -> None:
        for _ in range(6):
            (model.forward if direct else model)(torch.randn(4, 8)).sum().backward()
            optimizer.step()
        model(torch.randn(4, 8))  # in the end it is asked what it has learnt

    run = Run(record(loop, tmp_path, steps="optimizer").path)
    said = [item.why for item in run.not_measured() if item.what == "layers"]
    assert ["'forward' of its modules itself" in why for why in said] == ([True] if direct else [])


def test_an_optimizer_whose_step_calls_that_of_its_base_class_updates_once(tmp_path: Path) -> None:
    class Centred(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    torch.optim.Adam([nn.Parameter(torch.ones(1))])  # torch routes the base class too from here on
    model = nn.Linear(4, 1)
    optimizer = Centred(model.parameters())
    with stepscope.profile(steps="optimizer", out=tmp_path) as scope:
        for number in range(20):
            model(torch.randn(3, 4)).mean().backward()
            with contextlib.suppress(ValueError):
                optimizer.step(fails if number == 7 else None)
    assert Run(scope.path).steps.height == 19


@pytest.mark.parametrize("how", ["none", "all", "every:3", "adaptive"])
@pytest.mark.parametrize("before", [0, 20])
def test_what_was_taken_for_steps_of_critics_is_no_step_once_a_round_is_known(
    tmp_path: Path, how: str, before: int
) -> None:
    nets = [nn.Linear(8, 8), nn.Linear(8, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), 0.01) for net in nets]

    def update(number: int) -> None:
        nets[number](torch.randn(4, 8)).sum().backward()
        optimizers[number].step()

    def loop(_: object) -> None:
        for _ in range(before):
            update(0)
        for _ in range(12):
            for number in (0, 0, 0, 1):
                update(number)

    run = record(loop, tmp_path, steps="optimizer", record=how, memory="all")
    steps = run.steps
    assert steps["step"].to_list() == list(range(before + 12))
    assert (steps["t0_ns"][1:] >= steps["t1_ns"][:-1]).all()
    assert [event["step"] for event in run.events if event["kind"] == "steps-joined"] == [before]
    profiled = steps.filter("recorded")["step"].to_list()
    assert profiled or how == "none"
    assert run.ops["step"].unique().sort().to_list() == profiled
    assert set(run.memory_events["step"].unique()) <= set(profiled)
    rows = run.ops.filter(pl.col("step") >= before).join(steps.cast({"step": pl.UInt32}), on="step")
    assert (rows["t0_ns"] >= rows["t0_ns_right"]).all()
    calls = rows.filter(pl.col("name").cast(pl.String) == "nn.Linear").group_by("step").len()
    assert set(calls["len"].to_list()) <= {4}


def test_a_run_whose_steps_are_uncertain_says_so_and_what_helps(tmp_path: Path) -> None:
    nets = [nn.Linear(8, 8), nn.Linear(8, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), 0.01) for net in nets]

    def loop(_: object) -> None:
        for number in (0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1):
            nets[number](torch.randn(4, 8)).sum().backward()
            optimizers[number].step()

    run = Run(record(loop, tmp_path, steps="optimizer").path)
    said = run.not_measured()
    assert ["--updates-per-step" in str(item.remedy) for item in said if item.what == "what a step is"] == [True]
    assert "--updates-per-step" in run.verdict().cautions[0]


def test_a_round_of_critics_is_named_as_what_a_step_is(tmp_path: Path) -> None:
    nets = [nn.Linear(8, 8), nn.Linear(8, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), 0.01) for net in nets]

    def loop(_: object) -> None:
        for number in (0, 0, 1) * 5:
            nets[number](torch.randn(4, 8)).sum().backward()
            optimizers[number].step()

    run = Run(record(loop, tmp_path, steps="optimizer").path)
    assert [item.why for item in run.not_measured() if item.what == "what a step is"] == [ROUNDS]
    assert not any("--updates-per-step" in said for said in run.verdict().cautions)


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_run_of_three_steps_shows_its_layers_and_a_shorter_one_says_what_it_would_take(
    tmp_path: Path, count: int, evaluated: bool
) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: object) -> None:
        for _ in range(count):
            model.train()(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            if evaluated:
                with torch.no_grad():
                    model.eval()(torch.randn(4, 8))

    run = Run(record(loop, tmp_path, steps="optimizer", record="adaptive").path)
    assert run.steps.filter("recorded")["step"].to_list() == list(range(2, count))
    missing = [item.why for item in run.not_measured() if item.what == "operators and modules"]
    assert ["profiling begins with the third" in why for why in missing] == ([True] if count < 3 else [])


class Several:
    """Several optimizers behind one step, of which the last updates every third time."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers, self.steps = optimizers, 0

    def step(self) -> None:
        self.steps += 1
        for optimizer in self.optimizers[: None if self.steps % 3 == 0 else -1]:
            optimizer.step()


def test_one_step_over_three_optimizers_of_which_one_rests_is_a_step_each_time(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    several = Several(*(torch.optim.SGD(layer.parameters(), 0.01) for layer in model))

    def loop(_: object) -> None:
        for _ in range(24):
            model.zero_grad()
            model(torch.randn(5, 4)).sum().backward()
            several.step()

    run = record(loop, tmp_path, steps="optimizer", record="every:5")
    assert run.steps["samples"].to_list() == [5] * 24


def test_a_profile_of_another_thread_is_known_to_run_elsewhere() -> None:
    runs, over = threading.Event(), threading.Event()
    seen: list[bool] = []

    def work() -> None:
        window = start_window(shapes=False, cuda=False)
        seen.append(runs_elsewhere())
        runs.set()
        over.wait(HANG_S)
        window.stop()

    thread = threading.Thread(target=work)
    thread.start()
    assert runs.wait(HANG_S)
    seen.append(runs_elsewhere())
    over.set()
    thread.join()
    assert [*seen, runs_elsewhere()] == [False, True, False]


class _Looked(nn.Parameter):
    """A parameter that notes each look at its gradient."""

    looks: ClassVar[list[str]] = []

    @property
    def grad(self) -> Any:  # type: ignore[override]
        self.looks.append("grad")
        return None


@pytest.mark.parametrize("others", [False, True])
def test_gradients_are_not_looked_at_while_another_thread_trains(others: bool) -> None:
    class Others(GradientThreads):
        def others(self) -> bool:
            return others

    _Looked.looks.clear()
    model = nn.Linear(2, 2, bias=False)
    model.weight = _Looked(torch.zeros(2, 2))
    finder = StepFinder(Others(), False, None, lambda *_: None, lambda *_: False, lambda _: None, lambda _: True)
    for _ in range(2):
        finder.called(model, (torch.ones(1, 2),), {})
        finder.before_backward((model(torch.ones(1, 2)).sum(),), None)
        finder.after_backward()
    assert bool(_Looked.looks) != others
