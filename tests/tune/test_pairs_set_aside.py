"""Blocks beside other load: what is read of others, and which pairs are made again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import HANG_S

from stepscope.experiments.tune import other_load
from stepscope.experiments.tune.other_load import OtherLoad, QuietLevel

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def write(proc: Path, busy: int, processes: dict[int, tuple[int, int]]) -> None:
    """A /proc: ticks of all cores, and of each process its group and ticks."""
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 999999 5 0 0 0 0 0\ncpu0 1 2 3\n")
    for pid, (group, ticks) in processes.items():
        (proc / str(pid)).mkdir(exist_ok=True)
        (proc / str(pid) / "stat").write_text(
            f"{pid} (a (strange) name) S 1 {group} {group} 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0\n"
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [0]
    monkeypatch.setattr(other_load, "monotonic_ns", lambda: now[0])
    return now


def test_others_are_all_busy_time_less_that_of_the_training_s_process_group(tmp_path: Path, clock: list[int]) -> None:
    own, proc = os.getpgrp(), tmp_path / "proc"
    write(proc, 1000, {10: (own, 100), 11: (own, 50), 12: (own + 1, 70)})
    load = OtherLoad(proc)
    load.begin()
    clock[0] = 2_000_000_000
    write(proc, 1000 + round(3 / _TICK_S), {10: (own, 100 + round(1.5 / _TICK_S)), 11: (own, 50), 12: (own + 1, 500)})
    cores = load.busy_cores_of_others()
    assert cores == pytest.approx(0.75)


def test_a_kernel_that_does_not_tell_gives_none(tmp_path: Path) -> None:
    load = OtherLoad(tmp_path / "none")
    load.begin()
    assert load.busy_cores_of_others() is None
    (tmp_path / "stat").write_text("intr 1 2\n")
    load = OtherLoad(tmp_path)
    load.begin()
    assert load.busy_cores_of_others() is None


_WATCH = """
import subprocess, sys, time
from stepscope.experiments.tune.other_load import OtherLoad

load = OtherLoad()
with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as busy:
    load.begin()
    time.sleep(1.0)
    print(load.busy_cores_of_others())
    busy.kill()
"""


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc")
def test_a_busy_process_of_another_group_is_seen() -> None:
    # In a group of its own: what other tests of this one's group wait for adds its CPU time all at once.
    watched = subprocess.run(
        [sys.executable, "-c", _WATCH], start_new_session=True, check=True, capture_output=True, timeout=HANG_S
    )
    assert float(watched.stdout) > 0.2


def test_a_pair_with_more_beside_it_than_quiet_ones_is_made_again() -> None:
    level = QuietLevel()
    assert not any(level.should_repeat_pair((0.02, 0.05)) for _ in range(5))
    assert level.should_repeat_pair((0.02, 1.1))
    assert level.should_repeat_pair((0.9, 0.02))
    assert not level.should_repeat_pair((0.2, 0.1))
    assert level.set_aside == 2


def test_load_that_is_always_there_sets_nothing_aside() -> None:
    level = QuietLevel()
    assert not any(level.should_repeat_pair((1.0, 1.1)) for _ in range(30))


def test_no_more_pairs_are_set_aside_than_count_however_often_load_comes() -> None:
    level = QuietLevel()
    for _ in range(6):
        level.should_repeat_pair((0.0, 0.0))
    found = [level.should_repeat_pair((1.0, 0.0)) for _ in range(40)]
    assert sum(found) <= len(found) - sum(found) + 6
    assert not all(found)


def test_blocks_of_which_nothing_is_known_count() -> None:
    level = QuietLevel()
    assert not any(level.should_repeat_pair((None, None)) for _ in range(20))
    assert level.set_aside == 0
