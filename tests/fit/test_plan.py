"""The cheapest way to train within a limit, and that its settings do what they say."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.fit import jobs
from torch import nn

from stepscope.analysis.memory.limits import ADDRESSES, DATA, RESIDENT, Limit, limit_of_memory
from stepscope.api.requests import FitRequest
from stepscope.cli.fit import _make_and_prove_plan
from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint import plan as plan_module
from stepscope.footprint import prediction_trials
from stepscope.footprint.plan import Plan, Search, StepTime, make_plan, measured_step_time, with_measured_times
from stepscope.footprint.prediction import JobQuestion
from stepscope.footprint.prediction_trials import prove_under_limit
from stepscope.footprint.real_steps import RealSteps
from stepscope.footprint.transforms import CHANGES, Variant
from stepscope.record.dry.allocator_costs import StepCost
from stepscope.record.dry.platform import Platform

BATCH = 4096


def blocks() -> nn.Module:
    """Two blocks and a head: few ops, so that a search takes little."""
    return nn.Sequential(jobs.Block(), jobs.Block(), nn.Linear(64, jobs.CLASSES))


def question(size: str) -> JobQuestion:
    return JobQuestion(jobs.job(blocks), BATCH, limit_of_memory(size), "default", Platform(), jobs.MEASURED, False)


@functools.cache
def search() -> Search:
    return Search(question("1TB"))


@functools.cache
def planned(size: str, price: StepTime | None = None) -> Plan:
    return make_plan(question(size), price, search())


def test_a_combination_is_found_where_no_single_change_fits() -> None:
    plan = planned("380MB")
    alone = [
        each for each in plan.candidates
        if (each.settings.parts > 1) + bool(each.settings.recomputed) + (each.settings.allocator != "default") == 1
    ]  # fmt: skip
    assert plan.chosen is not None
    assert plan.chosen.verdict == "fits"
    cheaper = [each for each in plan.candidates if each.verdict == "fits" and each.price < plan.chosen.price]
    assert cheaper == []
    assert min(each.process.high for each in plan.candidates) < min(each.process.high for each in alone)


def test_as_it_is_comes_first_where_it_fits_and_nothing_changes_the_training() -> None:
    plan = planned("2GB", StepTime((512, 1024), (0.522,) * 3, (1.034,) * 3))
    assert plan.chosen is not None
    assert plan.chosen.settings == Variant()
    assert plan.chosen.seconds == pytest.approx((0.01 + 0.001 * BATCH,) * 2)
    assert {each.settings.change for each in plan.candidates} == {""}
    assert plan.chosen.settings.code(BATCH) == ""


def test_nothing_on_the_front_is_beaten_in_both_memory_and_time() -> None:
    plan = planned("380MB")
    for each in plan.front:
        better = [
            other for other in plan.candidates if other.process.high < each.process.high and other.price < each.price
        ]
        assert better == []
    assert plan.frame()["nothing_beats"].sum() == len(plan.front)


@pytest.mark.parametrize("size", ["345MB", "360MB", "380MB", "420MB"])
def test_the_search_finds_what_a_look_at_every_combination_finds(size: str) -> None:
    asked, price = question(size), StepTime((512, 1024), (0.522,) * 3, (1.034,) * 3)
    assert asked.limit is not None
    found = [search().candidate(each, asked.limit, price) for each in search().combinations(("",))]
    least = min((each.price for each in found if each is not None and each.verdict == "fits"), default=None)
    chosen = make_plan(asked, price, search()).chosen
    if least is None:
        assert chosen is None or chosen.settings.change
    else:
        assert chosen is not None
        assert chosen.price == pytest.approx(least)


def test_where_nothing_fits_each_change_is_looked_at_in_one_pass_and_in_most() -> None:
    plan = make_plan(question("100MB"), None, search())
    assert plan.chosen is None
    smallest = {each.settings.parts for each in plan.candidates if each.settings.change}
    assert smallest == {1, 16}


def test_two_passes_stand_for_four() -> None:
    settings = Variant(4)
    found = search().simulate(settings)
    of, small = settings.apply(question("1TB").job, BATCH)
    whole = search().simulator.run(of, small)
    assert found is not None
    assert found[0].bytes == whole.peak_bytes
    assert found[1] == pytest.approx(whole.flops / search().plain.flops)


def test_without_a_limit_there_is_nothing_to_plan_for() -> None:
    with pytest.raises(UsageError, match="limit"):
        make_plan(JobQuestion(jobs.job(), 16))


def test_settings_train_the_same_update_as_before() -> None:
    def weights(settings: Variant) -> list[torch.Tensor]:
        torch.manual_seed(0)
        of = jobs.job(kind=torch.optim.SGD)
        batch = of.batch(8)
        of = jobs.replace_batch(of, batch)
        changed, small = settings.apply(of, 8)
        model, optimizers = changed.build()
        changed.step(model, optimizers, of.batch(small))
        return [parameter.detach() for parameter in model.parameters()]

    plain = weights(Variant())
    again = weights(Variant(2, ("0", "1")))
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(plain, again, strict=True))


def test_the_code_of_settings_runs() -> None:
    settings = Variant(recomputed=("0", "2"))
    model = jobs.blocks_model()
    exec(settings.code(8), {"model": model})
    model(torch.randn(2, 64)).sum().backward()
    assert model[0].up.weight.grad is not None  # type: ignore[index]


def test_seconds_are_a_line_through_real_steps() -> None:
    def step(samples: int) -> StepCost:
        took = 0.1 + 0.01 * samples
        return StepCost(1, 2, 9.0, (took * 1.1, took, took * 0.9))

    found = measured_step_time(step, 64)
    assert found is not None
    assert found.samples == (8, 16)
    low, high = found.of(64, 4)  # four passes of 16: a batch that was measured
    assert (low, high) == pytest.approx((4 * 0.26 * 0.9, 4 * 0.26 * 1.1))
    far_low, far_high = found.of(64, 1)
    assert far_low < 0.74 < far_high
    assert (far_high - far_low) / 0.74 > (high - low) / (4 * 0.26), "far from what was measured less is known"


def test_the_seconds_that_are_said_are_of_real_steps_and_a_cheaper_combination_is_run_too() -> None:
    plan = planned("380MB", StepTime((512, 1024), (0.522,) * 3, (1.034,) * 3))
    assert plan.chosen is not None
    first, ran = plan.chosen.settings, list[Variant]()

    def steps(settings: Variant) -> StepCost:
        ran.append(settings)
        return StepCost(1, 2, 0.0, (90.0, 100.0, 110.0) if settings == first else (2.0, 1.9, 2.1))

    found = with_measured_times(plan, steps)
    assert found.chosen is not None
    assert ran == [first, found.chosen.settings]
    assert (found.chosen.seconds, found.chosen.timed, found.chosen.verdict) == ((1.9, 2.1), True, plan.chosen.verdict)
    assert found.chosen in found.front
    assert {c.settings for c in found.candidates} == {c.settings for c in plan.candidates}


def test_passes_of_as_many_samples_as_one_that_was_run_are_corrected_alike() -> None:
    plan = planned("380MB", StepTime((512, 1024), (0.522,) * 3, (1.034,) * 3))
    assert plan.chosen is not None
    ran = list[Variant]()

    def twice_as_long(settings: Variant) -> StepCost:
        ran.append(settings)
        return StepCost(1, 2, 0.0, (2 * before[settings],) * 3)

    before = {candidate.settings: candidate.price for candidate in plan.candidates}
    found = with_measured_times(plan, twice_as_long)
    parts = {settings.parts for settings in ran}
    assert len(parts) == len(ran), "a pass of as many samples was run again"
    for candidate in found.candidates:
        factor = 2 if candidate.settings.parts in parts else 1
        assert candidate.price == pytest.approx(factor * before[candidate.settings])


def test_of_combinations_that_all_take_longer_than_was_thought_the_cheapest_of_three_is_chosen() -> None:
    plan = planned("380MB", StepTime((512, 1024), (0.522,) * 3, (1.034,) * 3))
    found = with_measured_times(plan, lambda settings: StepCost(1, 2, 0.0, (80.0 - settings.parts,) * 3))
    ran = [candidate for candidate in found.candidates if candidate.timed]
    assert 1 <= len(ran) <= 3
    assert found.chosen == min(ran, key=lambda candidate: candidate.price)


def test_a_plan_that_cannot_be_run_keeps_the_seconds_of_the_line() -> None:
    def fails(_: Variant) -> StepCost:
        raise StepscopeError("killed")

    plan = planned("380MB", StepTime((512, 1024), (0.522,) * 3, (1.034,) * 3))
    assert with_measured_times(plan, fails).chosen == plan.chosen


def test_more_samples_are_never_said_to_take_less_than_those_that_were_measured() -> None:
    found = StepTime((8, 16), (0.9, 1.0, 1.1), (0.8, 0.9, 1.0))
    assert found.of(64, 1)[0] >= 0.9


def test_fewer_samples_are_said_to_take_no_more_and_no_less_than_in_proportion() -> None:
    found = StepTime((8, 16), (0.05, 0.06, 0.07), (0.15, 0.16, 0.17))
    low, high = found.of(32, 16)
    assert 16 * 0.05 * 2 / 8 <= low <= high <= 16 * 0.07


def test_samples_are_never_said_to_take_more_than_in_proportion() -> None:
    found = StepTime((8, 16), (0.05, 0.06, 0.07), (0.15, 0.16, 0.17))
    assert found.of(64, 1)[1] == pytest.approx(4 * 0.17)


@pytest.mark.skipif(sys.platform != "linux", reason="resource limits of Linux")
@pytest.mark.parametrize(("size", "words"), [(1 << 40, "trained under the limit"), (1 << 20, "failed under the limit")])
def test_a_proof_runs_under_the_limit_that_the_kernel_keeps(size: int, words: str, tmp_path: Path) -> None:
    says = 'held = bytearray(64 << 20); print(\'{"before_bytes": 1, "peak_bytes": 2, "step_s": 0.5}\')'
    said = prove_under_limit([sys.executable, "-S", "-c", says], "default", Limit(size, "", account=DATA), tmp_path)
    assert words in said


def test_one_pass_that_takes_less_than_two_is_found() -> None:
    """Gradients are made in one pass; the second finds them, and makes the embedding's once more beside them."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(50_000, 256), nn.Linear(256, jobs.CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.head(self.table(x).mean(1)))

    def batch(samples: int) -> Any:
        return torch.zeros(samples, 4, dtype=torch.long), torch.zeros(samples, dtype=torch.long)

    def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)

    of = replace(jobs.job(Words, kind=sgd), batch=batch)
    asked = JobQuestion(of, 16, limit_of_memory("505MB"), "pinned", Platform(), jobs.MEASURED, False)
    search = Search(asked)
    assert asked.limit is not None
    one, many = (search.candidate(Variant(parts, allocator="pinned"), asked.limit, None) for parts in (1, 16))
    assert one is not None
    assert many is not None
    assert one.process.high < 500e6 < many.process.low
    plan = make_plan(asked, None, search)
    assert plan.chosen is not None
    assert plan.chosen.settings == Variant(allocator="pinned")


def test_what_lies_above_a_limit_of_resident_memory_is_told_also_where_a_control_group_held_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cost = StepCost(before_bytes=1, peak_bytes=900_000_000, step_s=0.5)
    monkeypatch.setattr(prediction_trials, "train_under_limit", lambda *_: ("/sys/fs/cgroup/one", cost))
    assert "above the limit by what is resident" in prove_under_limit([], "default", Limit(800_000_000, ""))
    assert "trained under the limit, kept" in prove_under_limit([], "default", Limit(1_000_000_000, ""))


def test_a_control_group_of_a_proof_has_no_swap(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    seen = {}
    with prediction_trials._memory_account(Limit(1 << 30, ""), tmp_path) as kind:
        seen = {path.name: path.read_text() for path in Path(str(kind)).iterdir()}
        for path in Path(str(kind)).iterdir():
            path.unlink()
    assert seen == {"memory.max": str(1 << 30), "memory.swap.max": "0"}


def test_the_code_of_a_change_of_the_training_does_what_was_simulated() -> None:
    def updated(change: str, by_code: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = jobs.convolutions()
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
        x, y = torch.randn(8, 3, 16, 16), torch.zeros(8, dtype=torch.long)
        if by_code:
            names = {"model": model, "optimizer": optimizer}
            exec(Variant(change=change).code(8), names)
            optimizer = names["optimizer"]
        else:
            (optimizer,) = Variant(change=change).apply_to_model(model, (optimizer,))
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return [*model.parameters(), *model.buffers()]

    for change in CHANGES:
        as_simulated, by_code = updated(change, by_code=False), updated(change, by_code=True)
        assert [x.requires_grad for x in by_code] == [x.requires_grad for x in as_simulated]
        assert [x.dtype for x in by_code] == [x.dtype for x in as_simulated]
        assert all(torch.equal(one, other) for one, other in zip(by_code, as_simulated, strict=True)), change


def test_a_plan_says_where_its_update_is_another_one() -> None:
    model = jobs.convolutions()
    assert Variant().differences(model, 8) == []
    (again,) = Variant(recomputed=("1",)).differences(model, 8)
    assert "1 layers are updated twice" in again
    assert Variant(recomputed=("2",)).differences(model, 8) == []
    samples, loss = Variant(4).differences(model, 8)
    assert "2 layers of batch normalization see 2 samples, not 8" in samples
    assert "mean over samples" in loss
    assert len(Variant(4).differences(model.eval(), 8)) == 1


def test_a_search_without_time_proposes_what_keeps_the_training_where_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_module, "_MOST_S", -1.0)
    plan = planned("381MB")
    assert plan.time_over
    assert plan.chosen is not None
    assert plan.chosen.settings.change == ""
    assert {each.settings.change for each in plan.candidates} == {""}
    assert "time was over" in plan.notes(blocks())[-1]


def test_a_change_of_the_training_is_chosen_only_where_nothing_else_fits() -> None:
    same = search().candidate(Variant(), limit_of_memory("1TB"), None)
    assert same is not None
    cheaper = replace(same, settings=Variant(change="SGD"), compute=0.01)
    assert plan_module._best_candidate([cheaper, same]) == same
    assert plan_module._best_candidate([cheaper, replace(same, verdict="does not fit")]) == cheaper


def test_a_line_in_the_batch_has_no_step_of_a_single_sample() -> None:
    seen = list[int]()

    def step(samples: int) -> StepCost:
        seen.append(samples)
        return StepCost(1, 2, 9.0, (1.0,))

    for batch in (1, 4, 8, 15):
        measured_step_time(step, batch)
    assert min(seen) > 1
    assert all(small < large for small, large in zip(seen[::2], seen[1::2], strict=True))


def test_small_batches_are_timed_under_the_default_allocator_and_a_failure_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    under = list[str]()

    def fails(_: Any, allocator: str) -> StepCost:
        under.append(allocator)
        raise StepscopeError("out of order")

    def made(_: JobQuestion, priced: StepTime | None) -> Plan:
        return Plan(BATCH, None, (), (), priced, complete=True, search_s=0.0)

    monkeypatch.setattr(prediction_trials, "train_in_child", fails)
    monkeypatch.setattr(plan_module, "make_plan", made)
    asked = replace(question("2GB"), allocator="pinned")
    request = FitRequest(target="lenet", plan=True, malloc="pinned")
    plan, notes = _make_and_prove_plan(Console(), asked, request, RealSteps("lenet"))
    assert under == ["default"]
    assert plan.step_time is None
    assert "out of order" in notes[0]


def test_a_combination_is_judged_by_the_limit_of_each_account_alone() -> None:
    limit = Limit(5_000_000_000, "available", beside=(Limit(16_000_000_000, "ulimit -v", account=ADDRESSES),))
    evaluator = plan_module._CandidateEvaluator(search(), limit, None)
    for parts in (2, 16):
        evaluator.candidates[Variant(parts=parts)] = search().candidate(Variant(parts=parts), limit, None)
        assert evaluator.fits(Variant(parts=parts))
    far = replace(limit, bytes=search().process(Variant(parts=2), RESIDENT).high)
    assert far.bytes < search().process(Variant(parts=2), ADDRESSES).high
    evaluator._limit = far
    assert not evaluator.fails(Variant(parts=4))


def test_what_fails_when_it_is_run_is_not_chosen_and_told() -> None:
    plan = planned("380MB", StepTime((512, 1024), (0.522,) * 3, (1.034,) * 3))

    def steps(settings: Variant) -> StepCost:
        if plan.chosen is not None and settings == plan.chosen.settings:
            raise StepscopeError("killed")
        return StepCost(1, 2, 0.0, (1.0,) * 3)

    timed = with_measured_times(plan, steps)
    assert timed.chosen is not None
    assert timed.chosen.timed
    assert timed.chosen.settings != plan.chosen.settings if plan.chosen else False
    assert any("killed" in note for note in timed.notes(blocks()))
