"""The grid of a sweep: every combination once, shuffled by a seed, and what cannot be is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.suite.small_sweeps import entry

from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.engine.sweep_points import Grid, SweepPoint, names_of_tier
from stepscope.experiments.suite import SuiteRun

TIERS = {"lenet": ("smoke",), "resnet18-c32": ("smoke", "edge"), "vgg16-224": ("paper-2019",)}


def test_an_axis_that_is_not_given_is_the_workloads_own_default() -> None:
    assert Grid(repeats=1).points([entry("a")], 0) == [SweepPoint("a", 2, "sgd", "fp32", None, "cpu", 0)]


def test_points_that_are_asked_for_twice_are_run_once() -> None:
    grid = Grid(batches=(2, 4, 2), precisions=("fp32", "fp32"), repeats=1)
    assert sorted(point.batch or 0 for point in grid.points([entry()], 0)) == [2, 4]
    assert grid.duplicates([entry()]) == 4


def test_the_order_is_shuffled_by_the_seed_and_repeats_lie_in_rounds() -> None:
    grid = Grid(batches=tuple(range(1, 9)), repeats=3)
    order = grid.points([entry()], 5)
    assert order == grid.points([entry()], 5) != grid.points([entry()], 6)
    assert [point.repeat for point in order] == [0] * 8 + [1] * 8 + [2] * 8
    assert [point.batch for point in order[:8]] != list(range(1, 9))


def test_an_optimizer_that_a_workload_does_not_have_is_refused() -> None:
    with pytest.raises(UnknownName, match="optimizer of 'ok' 'adm'"):
        Grid(optimizers=("adm",)).settings([entry()])


def _batches(text: str) -> tuple[int, ...] | None:
    return SuiteRun(batch=text).batch  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,4,...,32", (1, 2, 4, 8, 16, 32)),
        ("10,20,...,50", (10, 20, 40, 50)),
        ("3, 5,...,9", (3, 5, 7, 9)),
        ("8", (8,)),
    ],
)
def test_dots_go_on_by_the_same_factor_or_difference(text: str, expected: tuple[int, ...]) -> None:
    assert _batches(text) == expected


@pytest.mark.parametrize(
    "text", ["0", "1,0", "-1", "2.5", "many", "", ",", "1,...,8", "1,2,...", "4,2,...,1", "2,4,...,3"]
)
def test_numbers_that_cannot_be_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        _batches(text)
    assert refused.value.hint


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 512), min_size=1, max_size=6))
def test_plain_numbers_are_read_back(values: list[int]) -> None:
    assert _batches(",".join(map(str, values))) == tuple(values)


def test_a_tier_is_narrowed_by_names_and_a_wrong_name_gets_the_nearest() -> None:
    assert names_of_tier(TIERS, "smoke", ()) == ["lenet", "resnet18-c32"]
    assert names_of_tier(TIERS, "all", ()) == list(TIERS)
    assert names_of_tier(TIERS, None, ("vgg16-224", "mine.py:net", "vgg16-224")) == ["vgg16-224", "mine.py:net"]
    with pytest.raises(UnknownName, match="tier 'smok'") as tier:
        names_of_tier(TIERS, "smok", ())
    with pytest.raises(UnknownName, match="workload 'lenett'") as name:
        names_of_tier(TIERS, None, ("lenett",))
    with pytest.raises(UnknownName, match="of the tier 'edge' 'lenet'"):
        names_of_tier(TIERS, "edge", ("lenet",))
    assert (tier.value.hint, name.value.hint) == ("did you mean smoke?", "did you mean lenet?")


def test_words_are_checked_where_the_known_ones_are_given() -> None:
    assert SuiteRun(precisions="fp32,bf16").precisions == ("fp32", "bf16")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="precision 'fp8'"):
        SuiteRun(precisions="fp8")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="empty"):
        SuiteRun(workloads=" , ")  # type: ignore[arg-type]


def test_the_name_of_a_point_is_a_file_name_and_its_own() -> None:
    own = [SweepPoint(name, 2, "sgd", "fp32", None, "cpu", 0).id for name in ("a/b.py:net", "a_b.py:net", "net")]
    assert len(set(own)) == 3
    assert not any("/" in name or ":" in name for name in own)


def test_only_the_same_training_with_as_large_a_batch_needs_more() -> None:
    small, large = (SweepPoint("a", batch, "sgd", "fp32", 1, "cpu", 0) for batch in (4, 8))
    other = SweepPoint("a", 8, "adam", "fp32", 1, "cpu", 0)
    assert large.would_need_more_than(small)
    assert not small.would_need_more_than(large)
    assert not other.would_need_more_than(small)
