"""The simulated caching allocator: what torch's documentation and source say of rounding, pools, splits and merges."""

from __future__ import annotations

import itertools
import random

import pytest

from stepscope.errors import UsageError
from stepscope.footprint.cuda_allocator import (
    CachingAllocator,
    OutOfMemory,
    Settings,
    parse_settings,
    replay_allocations,
    rounded_block_size,
)

MIB = 1 << 20


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (4 * MIB + 1, 4 * MIB + 512)])
def test_sizes_are_rounded_up_to_512_bytes(size: int, block: int) -> None:
    assert rounded_block_size(size) == block


def test_sizes_are_rounded_to_steps_between_powers_of_two_where_asked() -> None:
    settings = parse_settings("roundup_power2_divisions:4")
    assert rounded_block_size(1200 << 10, settings.roundup_power2_divisions) == 1280 << 10
    by_size = parse_settings("roundup_power2_divisions:[256:1,512:2,>:8]").roundup_power2_divisions
    assert rounded_block_size(600 * MIB, by_size) == 768 * MIB
    assert rounded_block_size(1100 * MIB, by_size) == 1152 * MIB
    assert rounded_block_size(300 * MIB, by_size) == 300 * MIB


@pytest.mark.parametrize(("size", "block"), [(5.01, 5.5), (130, 130), (300, 320), (1100, 1280), (2100, 2100)])
def test_divisions_by_size_hold_below_the_first_boundary_and_in_the_interval_of_each_other(
    size: float, block: float
) -> None:
    divisions = parse_settings("roundup_power2_divisions:[64:8,256:4,1024:4,>:1]").roundup_power2_divisions
    assert rounded_block_size(int(size * MIB), divisions) == int(block * MIB)


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:5", "max_non_split_rounding_mb:19", "garbage_collection_threshold:5",
        "roundup_power2_divisions:3", "roundup_power2_divisions:[64:3]", "roundup_power2_divisions:[65:4]",
        "large_segment_size_mb:40", "per_process_memory_fraction:0.5",
    ],
)  # fmt: skip
def test_settings_that_torch_refuses_or_that_are_not_simulated_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_settings(text)
    parse_settings("throw_on_cudamalloc_oom:True,pinned_reserve_segment_size_mb:64")


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([1024, 1024], 2 * MIB),  # small blocks share a segment
        ([MIB] * 3, 4 * MIB),
        ([3 * MIB, 3 * MIB], 20 * MIB),  # so do large ones below 10 MiB
        ([1024, 3 * MIB], 22 * MIB),  # of a pool each
        ([11 * MIB], 12 * MIB),  # and from 10 MiB on each has its own
        ([9 * MIB, 9 * MIB, 3 * MIB], 40 * MIB),
    ],
)
def test_segments_are_asked_for_by_size(sizes: list[int], reserved: int) -> None:
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    assert allocator.reserved == reserved


def test_a_freed_block_is_merged_with_its_neighbours_and_used_again() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[1]):
        allocator.free(block)
    assert allocator.allocate(15 * MIB) == blocks[0]
    assert allocator.reserved == 20 * MIB


def test_holes_that_are_too_small_make_a_new_segment() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    allocator.allocate(6 * MIB)
    assert allocator.reserved == 40 * MIB


def test_a_rest_of_a_large_block_of_one_mebibyte_is_not_split_off() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(12 * MIB))
    allocator.allocate(11 * MIB)
    assert allocator.allocated == 12 * MIB


def test_segments_that_grow_leave_no_holes_between_them() -> None:
    events = [(0, 1), (1, 1), (0, -1), (2, 1)]
    sizes = [30 * MIB, 30 * MIB, 50 * MIB]
    assert replay_allocations(events, sizes).peak == 110 * MIB
    assert replay_allocations(events, sizes, Settings(expandable_segments=True)).peak == 120 * MIB  # steps of 20 MiB
    at_the_end = [(0, 1), (1, 1), (1, -1), (2, 1)]
    assert replay_allocations(at_the_end, sizes).peak == 110 * MIB
    assert replay_allocations(at_the_end, sizes, Settings(expandable_segments=True)).peak == 80 * MIB


def test_what_lies_unused_is_given_back_before_memory_is_said_to_be_out() -> None:
    allocator = CachingAllocator(Settings(capacity=60 * MIB))
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(50 * MIB)
    assert (allocator.reserved, allocator.retries) == (50 * MIB, 1)
    with pytest.raises(OutOfMemory):
        allocator.allocate(20 * MIB)


def test_an_expandable_segment_gives_back_what_nobody_uses() -> None:
    allocator = CachingAllocator(Settings(expandable_segments=True))
    first, second = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(first)
    allocator.release_unused_segments()
    assert allocator.reserved == 40 * MIB
    assert allocator.allocate(35 * MIB) == first
    allocator.free(second)
    assert allocator.reserved == 80 * MIB


def test_garbage_is_collected_above_the_threshold_from_what_lies_longest() -> None:
    settings = Settings(garbage_collection_threshold=0.5, capacity=100 * MIB)
    allocator = CachingAllocator(settings)
    old, new = allocator.allocate(20 * MIB), allocator.allocate(32 * MIB)
    allocator.free(old)
    allocator.free(allocator.allocate(1024))
    allocator.free(allocator.allocate(24 * MIB))
    allocator.free(new)
    allocator.allocate(40 * MIB)
    assert allocator.reserved < 20 * MIB + 32 * MIB + 2 * MIB + 24 * MIB + 40 * MIB
    assert allocator.retries == 0


def test_blocks_beyond_the_largest_to_split_are_kept_whole() -> None:
    allocator = CachingAllocator(parse_settings("max_split_size_mb:64"))
    allocator.free(allocator.allocate(100 * MIB))
    allocator.allocate(30 * MIB)
    assert allocator.reserved == 130 * MIB
    allocator.allocate(90 * MIB)
    assert allocator.reserved == 130 * MIB


@pytest.mark.parametrize("text", ["max_split_size_mb:much", "garbage_collection_threshold:x"])
def test_settings_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_settings(text)


@pytest.mark.parametrize(
    "text",
    ["pinned", "expandable_segment:True", "max_split_size:128", "backend:cudaMallocAsync", "expandable_segments:yes"],
)
def test_settings_that_are_not_simulated_are_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_settings(text)
    assert text.partition(":")[2] in str(told.value)
    assert "PYTORCH_CUDA_ALLOC_CONF" in str(told.value.hint)
    parse_settings("backend:native, pinned_use_cuda_host_register:True,garbage_collection_threshold:.8")
    parse_settings("roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:false")


@pytest.mark.parametrize("text", ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:8"])
def test_blocks_never_overlap_and_all_memory_comes_back(text: str) -> None:
    rng = random.Random(3)
    allocator = CachingAllocator(parse_settings(text))
    held: dict[int, int] = {}
    for _ in range(3000):
        if held and rng.random() < 0.48:
            place = rng.choice(list(held))
            held.pop(place)
            allocator.free(place)
        else:
            size = int(2 ** rng.uniform(6, 26))
            held[allocator.allocate(size)] = size
        if rng.random() < 0.01:
            allocator.release_unused_segments()
        assert allocator.allocated <= allocator.reserved
    places = sorted(held)
    assert all(first + held[first] <= second for first, second in itertools.pairwise(places))
    for place in places:
        allocator.free(place)
    allocator.release_unused_segments()
    assert allocator.reserved == 0
