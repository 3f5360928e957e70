"""Other load that comes and goes while changes are measured: it gives nothing up and changes no ranking."""

from __future__ import annotations

import bisect
import math
import random

import pytest
from tests.tune.fake_training import FakeTraining

from stepscope.experiments.tune.experiment import Tuning
from stepscope.experiments.tune.pair_statistics import Arm

GAINS = {"channels_last": 0.70, "fused": 0.80, "foreach": 0.87, "threads=1": 0.93, "flush-denormals": 1.3}
NAMES = tuple(GAINS)


def _bursts(seed: int, share: float, length_s: float) -> list[tuple[float, float]]:
    draw = random.Random(seed)
    bursts, at_s = [], 0.0
    while at_s < 400:
        at_s += draw.expovariate(share / length_s)
        bursts.append((at_s, at_s + draw.uniform(0.1, 2) * length_s))
        at_s = bursts[-1][1]
    return bursts


def _under_load(seed: int, length_s: float) -> FakeTraining:
    training = FakeTraining(GAINS, noise=0.02)
    training.random = random.Random(seed)
    bursts = _bursts(seed, 0.5, length_s)
    edges = [edge for burst in bursts for edge in burst]
    training.load = lambda at_s: 1.9 if bisect.bisect_right(edges, at_s) % 2 else 1.0
    return training


def _given_up(tuned: Tuning) -> set[str]:
    return {name for name, arm in tuned.arms.items() if arm.given_up}


@pytest.mark.parametrize("seed", range(4))
def test_load_of_some_seconds_changes_no_ranking_of_gains_above_5_percent(seed: int) -> None:
    tuned = _under_load(seed, 3.0).tuning(only=NAMES, seed=seed)
    assert [arm.name for arm in tuned.winners()] == ["channels_last", "fused", "foreach", "threads=1"]
    assert _given_up(tuned) <= {"flush-denormals"}


@pytest.mark.parametrize("length_s", [0.05, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_load_as_short_as_a_block_puts_no_smaller_gain_surely_before_a_larger(seed: int, length_s: float) -> None:
    tuned = _under_load(seed, length_s).tuning(only=NAMES, seed=seed)
    intervals = {name: tuned.arms[name].interval() for name in NAMES}
    for place, larger in enumerate(NAMES):
        assert all(intervals[smaller][2] > intervals[larger][1] for smaller in NAMES[place + 1 :])
    assert tuned.winners()[0].name == "channels_last"
    assert _given_up(tuned) <= {"flush-denormals"}


@pytest.mark.parametrize("seed", range(4))
def test_pairs_beside_load_that_the_kernel_tells_of_are_made_again(seed: int) -> None:
    def disturbed(tells: bool) -> float:
        training = _under_load(seed, 3.0)
        training.tells_load = tells
        tuned = training.tuning(only=NAMES, seed=seed)
        assert bool(tuned.quiet.set_aside) == tells
        assert [arm.name for arm in tuned.winners()] == ["channels_last", "fused", "foreach", "threads=1"]
        off = [abs(log - math.log(GAINS[name])) > 0.2 for name in NAMES for log, _ in tuned.arms[name].pairs]
        return sum(off) / len(off)

    assert disturbed(tells=True) < disturbed(tells=False) / 2


def test_a_burst_over_the_first_pairs_of_a_change_gives_it_up_for_a_while_only() -> None:
    training = FakeTraining({"fused": 0.8})
    pairs = [0]

    def hit_the_changed_blocks(_: float) -> float:
        """The worst case: load in each changed block of the first three pairs, and in no other."""
        block = training.blocks[-1]
        pairs[0] = training.blocks.count(("fused",))
        return 2.0 if block == ("fused",) and pairs[0] <= 3 else 1.0

    training.load = hit_the_changed_blocks
    tuned = training.tuning(only=("fused", "foreach"))
    assert [arm.name for arm in tuned.winners()] == ["fused"]


def test_a_pair_whose_fastest_step_is_as_fast_is_not_slower() -> None:
    arm = Arm("fused", ("fused",), pairs=[(0.3, 0)] * 3, fastest=[0.3, 0.3, 0.0])
    assert not arm.slower_by(1.1)
    assert Arm("fused", ("fused",), pairs=[(0.3, 0)] * 3, fastest=[0.3] * 3).slower_by(1.1)
