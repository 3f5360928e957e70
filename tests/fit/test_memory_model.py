"""Budgets, boards and allocators: what is left for training, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.memory import limits
from stepscope.analysis.memory.limits import ALLOCATORS, Limit, ProcessPeak, fit_verdict, process_peak
from stepscope.errors import UnknownName, UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8e9),
        ("8 gb", 8e9),
        ("7.5GiB", 7.5 * 2**30),
        ("512M", 512e6),
        ("100", 100),
        ("2Ki", 2048),
        ("1b", 1),
        ("8e9", 8e9),
        (8e9, 8e9),
    ],
)
def test_an_amount_of_memory_is_read_as_people_write_it(text: float | str, size: float) -> None:
    assert limits.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-3GB", "8 apples", "0GB", "8GBB", "1e999"])
def test_what_is_no_amount_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        limits.parse_size(text)
    assert "8GB" in str(caught.value.hint)


@given(st.text(max_size=12))
@settings(max_examples=50)
def test_any_text_is_an_amount_or_a_refusal(text: str) -> None:
    try:
        size = limits.parse_size(text)
    except UsageError:
        return
    assert size >= 0


@pytest.mark.parametrize(
    ("name", "board"),
    [("tx2", "jetson_tx2"), ("Jetson TX2", "jetson_tx2"), ("orin-nano", "jetson_orin_nano"), ("rpi5", "raspberry_pi_5"),
     ("Pi 4", "raspberry_pi_4"), ("agx_orin", "jetson_agx_orin"), ("nano", "jetson_nano")],
)  # fmt: skip
def test_a_board_is_known_by_the_names_that_people_use(name: str, board: str) -> None:
    assert limits.board_named(name).name == board


def test_a_slip_of_the_pen_gets_the_nearest_board() -> None:
    with pytest.raises(UnknownName) as caught:
        limits.board_named("tx3")
    assert "did you mean tx2" in str(caught.value.hint)


def test_a_board_keeps_a_part_for_its_system_and_its_size_may_be_said() -> None:
    whole, half = limits.limit_of_board("tx2"), limits.limit_of_board("tx2", "4GiB")
    assert whole.device_bytes == 8 << 30
    assert whole.bytes == (8 << 30) - 1_400_000_000
    assert half.bytes == (4 << 30) - 1_400_000_000


def test_a_board_smaller_than_its_own_system_is_refused() -> None:
    with pytest.raises(UsageError, match="system"):
        limits.limit_of_board("tx2", "1GB")


def test_this_machine_leaves_what_is_available_or_what_its_control_group_leaves(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n")
    assert limits.limit_of_this_machine(tmp_path).bytes == 6_000_000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert limits.limit_of_this_machine(tmp_path).bytes == 6_000_000 * 1024
    (group / "memory.max").write_text("2000000000\n")
    limit = limits.limit_of_this_machine(tmp_path, {})
    assert (limit.bytes, limit.source) == (1_999_999_000, "this process's control group, now")


def test_every_limit_of_a_process_is_kept_by_its_own_account(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/jobs/mine\n0::/\n")
    parent = tmp_path / "sys/fs/cgroup/memory/jobs"
    (parent / "mine").mkdir(parents=True)
    for folder, most in ((parent / "mine", 9223372036854771712), (parent, 900_000_000)):
        (folder / "memory.limit_in_bytes").write_text(f"{most}\n")
        (folder / "memory.usage_in_bytes").write_text("500000000\n")
        (folder / "memory.stat").write_text("cache 300000000\ntotal_inactive_file 100000000\ntotal_active_file 0\n")
    limit = limits.limit_of_this_machine(tmp_path, {limits.ADDRESSES: 1_000_000_000})
    assert [(each.account, each.bytes) for each in limit.all] == [
        (limits.CHARGED, 500_000_000),  # of a parent; pages of files are dropped before anybody is killed
        (limits.ADDRESSES, 1_000_000_000),
        (limits.RESIDENT, 6_000_000 * 1024),
    ]
    takes = {limits.RESIDENT: 400, limits.CHARGED: 300, limits.ADDRESSES: 1200}
    verdict, decides = limits.worst_verdict(
        lambda account: ProcessPeak((takes[account] * 1_000_000,) * 2, (0, 0), (0, 0), (0, 0)), limit
    )
    assert (verdict, decides.account) == ("does not fit", limits.ADDRESSES)


def test_without_a_measured_environment_a_yes_is_only_likely() -> None:
    peak = ProcessPeak((900, 1000), (0, 0), (0, 0), (0, 0))
    assert fit_verdict(peak, Limit(2000, ""), sure=False) == "likely fits"
    assert fit_verdict(peak, Limit(800, ""), sure=False) == "does not fit"


def test_a_machine_that_does_not_say_is_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        limits.limit_of_this_machine(tmp_path)
    assert "--memory" in str(caught.value.hint)


def test_a_yes_keeps_a_margin_and_between_yes_and_no_it_is_too_close() -> None:
    peak = ProcessPeak((900, 1000), (0, 0), (0, 0), (0, 0))
    assert fit_verdict(peak, Limit(1011, "")) == "fits"
    assert fit_verdict(peak, Limit(1005, "")) == "too close"
    assert fit_verdict(peak, Limit(950, "")) == "too close"
    assert fit_verdict(peak, Limit(899, "")) == "does not fit"


@pytest.mark.parametrize(
    ("live", "mapped", "grown"),
    [  # MB: live bytes, those in blocks above 32 MiB, and how much a process grew with glibc as it comes
        (201.4, 0, 253.5), (246.1, 0, 318.7), (422.2, 0, 618.2), (85.4, 0, 113.0), (1240.9, 0, 1614.7),
        (294.9, 0, 446.1), (736.1, 0, 902.8), (744.9, 0, 923.7), (704, 0, 988),
    ],
)  # fmt: skip
def test_the_interval_of_glibc_holds_what_was_measured_and_is_at_most_a_quarter_wide(
    live: float, mapped: float, grown: float
) -> None:
    size = round(live * 1e6)
    empty, code = (319_000_000, 326_000_000), (12_000_000, 21_000_000)  # as calibrated, and as a dry run says
    peak = process_peak((size, size), round(mapped * 1e6), ALLOCATORS["default"], empty, code)
    assert peak.low - peak.empty_process[0] <= grown * 1e6 <= peak.high - peak.empty_process[1]
    assert (peak.high - peak.low) / peak.middle <= 0.25


def test_large_blocks_are_mapped_one_by_one_and_waste_little() -> None:
    scattered = process_peak((1 << 30, 1 << 30), 0, ALLOCATORS["default"])
    mapped = process_peak((1 << 30, 1 << 30), 1 << 30, ALLOCATORS["default"])
    assert mapped.high < scattered.high


def test_a_heap_keeps_what_it_had_when_large_blocks_come_later() -> None:
    """A teacher of 151 MB in large blocks after a student of 84 MB in small ones: its process grew by 309 MB."""
    empty, code = (320_000_000, 327_000_000), (9_000_000, 18_000_000)
    live, mapped, hole = (168_600_000, 168_600_000), 151_000_000, 18_900_000
    for allocator, taken in (("default", 643_000_000), ("pinned", 500_000_000)):
        by = ALLOCATORS[allocator].for_script()
        peak = process_peak(live, mapped, by, empty, code, hole, (84_000_000, 151_000_000))
        assert peak.low <= taken <= peak.high
    assert peak.high == process_peak(live, mapped, by, empty, code, hole).high  # pinned: it keeps nothing


def test_an_unknown_allocator_gets_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        limits.allocator_of("tcmaloc")
    assert "tcmalloc" in str(caught.value.hint)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_more_live_bytes_take_no_less_and_no_least_is_above_its_most(name: str) -> None:
    for by in (ALLOCATORS[name], ALLOCATORS[name].for_script(), replace(ALLOCATORS[name], low=1.4)):
        most = [by.resident((size, size), 0) for size in range(100_000_000, 2_000_000_000, 10_000_000)]
        assert all(low <= high for low, high in most)
        assert all(later >= earlier for (_, earlier), (_, later) in pairwise(most))
