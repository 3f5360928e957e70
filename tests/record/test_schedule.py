"""Which steps are recorded: fixed choices, the familiar schedule, and the adaptive plan on a machine of our own."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.errors import UsageError
from stepscope.record.ops.rows import StepProfile
from stepscope.record.plan import WARMUP_STEPS, Plan
from stepscope.record.settings import parse_schedule, schedule

MS = 1_000_000


def chosen(record: str, steps: int = 12) -> list[int]:
    choice = parse_schedule(record)
    return [step for step in range(steps) if choice.records(step)]


def test_fixed_choices_record_the_steps_that_they_name() -> None:
    assert chosen("all", 3) == [0, 1, 2]
    assert chosen("none") == []
    assert chosen("first:4") == [0, 1, 2, 3]
    assert chosen("every:5") == [0, 5, 10]


@pytest.mark.parametrize("wrong", ["", "first", "first:0", "first:-1", "every:x", "sometimes", "all:3"])
def test_a_choice_that_is_none_is_refused_with_the_forms(wrong: str) -> None:
    with pytest.raises(UsageError, match="cannot record") as refused:
        parse_schedule(wrong)
    assert "every:N" in (refused.value.hint or "")


def test_the_schedule_of_torch_profiler_means_the_same_here() -> None:
    torch_schedule = schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
    assert [step for step in range(15) if torch_schedule.records(step)] == [3, 4, 7, 8]


def test_a_schedule_without_active_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="active"):
        schedule(wait=1, warmup=1, active=0)


class Machine:
    """A training whose steps, recording and writing take known times."""

    def __init__(self, step_ms: float, recording_ms: float, window_ms: float, noise: float) -> None:
        self.step_ns, self.extra_ns = int(step_ms * MS), int(recording_ms * MS)
        self.window_ns, self.noise = int(window_ms * MS), noise
        self.random = np.random.default_rng(0)

    def train(self, plan: Plan, steps: int) -> list[int]:
        """The profiled steps."""
        now, block = 0, 0
        recorded: list[int] = []
        for step in range(steps):
            wanted = plan.records(step, now)
            if block and not wanted:
                plan.learn([self.profile(recorded[-block + i]) for i in range(block)])
                plan.note_cost(self.window_ns)
                now, block = now + self.window_ns, 0
            took = self.length_ns(step) + (self.extra_ns if wanted else 0)
            plan.note_step_length(wanted, took)
            now += took
            if wanted:
                recorded.append(step)
                block += 1
        self.elapsed_ns = now
        return recorded

    def length_ns(self, step: int) -> int:
        return self.step_ns

    def profile(self, step: int) -> StepProfile:
        times = np.array([1_000_000, 500_000, 20_000, 300]) * self.random.normal(1, self.noise, 4)
        return StepProfile(step, 7, times.astype(np.int64))


def test_adaptive_recording_stops_when_the_medians_are_known() -> None:
    plan = Plan(parse_schedule("adaptive"))
    recorded = Machine(step_ms=100, recording_ms=1, window_ms=1, noise=0.01).train(plan, 1000)
    assert plan.known_share is not None
    assert plan.known_share >= 0.99
    assert 6 <= len([step for step in recorded if step < 300]) <= 60


def test_adaptive_recording_comes_back_now_and_then_to_notice_drift() -> None:
    recorded = Machine(100, 1, 1, noise=0.01).train(Plan(parse_schedule("adaptive")), 2000)
    late = [step for step in recorded if step > 300]
    assert 8 <= len(late) <= 40
    assert max(late) > 1700


def test_noisy_ops_are_recorded_for_longer_than_steady_ones() -> None:
    steady = Machine(100, 1, 1, noise=0.01).train(Plan(parse_schedule("adaptive")), 400)
    noisy = Machine(100, 1, 1, noise=0.15).train(Plan(parse_schedule("adaptive")), 400)
    assert len(noisy) > 2 * len(steady)


def test_an_operator_of_some_seconds_whose_time_varies_is_not_taken_for_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def varying(self: Machine, step: int) -> StepProfile:
        return StepProfile(step, 7, np.array([4e9 * self.random.normal(1, 0.15), 1e6]).astype(np.int64))

    monkeypatch.setattr(Machine, "profile", varying)
    plan = Plan(parse_schedule("adaptive"))
    Machine(step_ms=5_000, recording_ms=1, window_ms=1, noise=0).train(plan, 60)
    assert plan.known_share is not None
    assert plan.known_share < 0.01


def test_recording_that_costs_much_stays_within_its_share_of_the_run() -> None:
    machine = Machine(step_ms=3, recording_ms=2, window_ms=40, noise=0.3)
    recorded = machine.train(Plan(parse_schedule("adaptive")), 20_000)
    spent_ns = machine.elapsed_ns - 20_000 * machine.step_ns
    assert spent_ns < 0.05 * machine.elapsed_ns
    assert len(recorded) > 40


def test_a_training_that_becomes_faster_after_the_first_block_is_profiled_further() -> None:
    class Hurried(Machine):
        def length_ns(self, step: int) -> int:
            """Another program ends: what the steps of the first block took longer is not ours."""
            return self.step_ns if step < 14 else self.step_ns // 2

    plan = Plan(parse_schedule("adaptive"), events_per_step=1000, event_ns=6_000)
    recorded = Hurried(step_ms=1000, recording_ms=6, window_ms=2, noise=0.3).train(plan, 100)
    assert len([step for step in recorded if step > 30]) >= 8


def test_even_a_short_and_dear_run_has_some_recorded_steps_after_warm_up() -> None:
    recorded = Machine(step_ms=1, recording_ms=1, window_ms=80, noise=0.1).train(Plan(parse_schedule("adaptive")), 40)
    assert len([step for step in recorded if step >= WARMUP_STEPS]) >= 1


def test_the_first_block_follows_the_warm_up_and_begins_with_its_last_step() -> None:
    every = Machine(100, 1, 1, noise=0.2).train(Plan(parse_schedule("adaptive")), 40)
    recorded = [step for step in every if step >= WARMUP_STEPS - 1]  # one before it for the shapes
    assert recorded[:9] == list(range(WARMUP_STEPS - 1, WARMUP_STEPS + 8))
    assert recorded[9] > WARMUP_STEPS + 9  # unprofiled steps follow, to compare with


def test_a_run_of_six_steps_has_profiled_ones() -> None:
    recorded = Machine(100, 1, 1, noise=0.2).train(Plan(parse_schedule("adaptive")), 6)
    assert recorded[-4:] == [2, 3, 4, 5]


def test_later_blocks_meet_every_phase_of_a_period_of_the_training() -> None:
    recorded = Machine(100, 1, 1, noise=0.3).train(Plan(parse_schedule("adaptive")), 2000)
    for period in (2, 5, 7, 10):
        met = np.bincount([step % period for step in recorded if step > 20], minlength=period)
        assert met.min() > 0.4 * met.mean()


def test_a_step_with_so_many_events_that_one_is_all_that_is_affordable_is_profiled_once() -> None:
    plan = Plan(parse_schedule("adaptive"), events_per_step=4200)
    recorded = Machine(step_ms=2.7, recording_ms=1, window_ms=22, noise=0.1).train(plan, 500)
    assert recorded == [WARMUP_STEPS]


def test_cost_and_allowance_are_on_the_same_clock() -> None:
    """On a machine that is five times as slow for its load, as many steps are profiled."""
    quiet, busy = (
        Machine(3 * load, 0.3 * load, 3 * load, noise=0.3).train(
            Plan(parse_schedule("adaptive"), events_per_step=700, window_ns=2e6 * load, event_ns=6e3 * load), 4000
        )
        for load in (1, 5)
    )
    assert len(quiet) == pytest.approx(len(busy), rel=0.1)


def test_ranks_of_one_training_profile_the_same_steps() -> None:
    fast, slow = (
        Machine(step, 1, window, noise=0.3).train(Plan(parse_schedule("adaptive"), same_steps_on_all_ranks=True), 1500)
        for step, window in ((1, 30), (100, 1))
    )
    assert fast == slow
    assert max(fast) > 1000


def test_a_short_run_of_cheap_steps_has_as_many_as_an_interval_needs() -> None:
    plan = Plan(parse_schedule("adaptive"))
    plan.events_per_step = 700
    recorded = Machine(step_ms=1, recording_ms=0.3, window_ms=4, noise=0.1).train(plan, 40)
    assert len([step for step in recorded if step >= WARMUP_STEPS]) >= 6


def test_shapes_are_looked_at_one_step_later_where_the_first_could_not_be_profiled() -> None:
    plan = Plan(parse_schedule("adaptive"))
    plan.events_per_step = 700
    asked = {}
    for step in range(WARMUP_STEPS):
        asked[step] = plan.records(step, 0), plan.wants_shapes(step, 0)
        plan.note_step_length(asked[step][0] and step != 1, MS)
    assert asked == {0: (False, False), 1: (True, True), 2: (True, True)}


def test_shapes_are_looked_at_one_step_later_where_the_first_was_profiled_in_parts() -> None:
    plan = Plan(parse_schedule("adaptive"))
    plan.events_per_step = 700
    assert not plan.records(0, 0)
    plan.note_step_length(False, MS)
    assert plan.records(1, 0)
    assert plan.wants_shapes(1, 0)
    plan.postpone_shapes()
    assert plan.records(2, 0)
    assert plan.wants_shapes(2, 0)
    plan.postpone_shapes()
    plan.records(3, 0)
    assert not plan.wants_shapes(3, 0), "a step that is too large stays so"


@pytest.mark.parametrize("record", ["all", "none", "first:3", "every:1", "every:7", "every:500", "schedule"])
def test_the_next_recorded_step_is_the_first_one_of_those_that_follow(record: str) -> None:
    choice = parse_schedule(schedule(wait=2, warmup=1, active=2, repeat=2) if record == "schedule" else record)
    for step in range(30):
        steps = [ahead for ahead in range(1, 200) if choice.records(step + ahead)]
        assert choice.steps_until_recorded(step, 200) == min(steps, default=200)
