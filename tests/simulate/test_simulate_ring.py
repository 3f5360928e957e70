"""Marks cross from one process to another, all of them and in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.simulate.marks import SLOTS, RingReader, create_ring, open_writer


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    create_ring(tmp_path / "ring")
    return tmp_path / "ring"


def test_marks_are_read_once_and_in_order(ring: Path) -> None:
    times = iter(range(100, 1000))
    mark, reader = open_writer(ring, lambda: next(times)), RingReader(ring)
    assert len(reader.read()[0]) == 0
    for state in range(300):
        mark(state)
    t_ns, states = reader.read()
    assert states.tolist() == list(range(300))
    assert t_ns.tolist() == list(range(100, 400))
    mark(7)
    assert [part.tolist() for part in reader.read()] == [[400], [7]]


def test_marks_go_on_over_the_end_of_the_ring(ring: Path) -> None:
    mark, reader = open_writer(ring, lambda: 5), RingReader(ring)
    read = 0
    for _ in range(3):
        for state in range(SLOTS // 2 + 11):
            mark(state & 0xFF)
        read += len(reader.read()[1])
    assert read == 3 * (SLOTS // 2 + 11)
    assert reader.lost == 0


def test_marks_that_were_overwritten_are_counted_as_lost(ring: Path) -> None:
    mark, reader = open_writer(ring, lambda: 5), RingReader(ring)
    for _ in range(SLOTS + 500):
        mark(3)
    read = len(reader.read()[0])
    assert reader.lost > 0
    assert read + reader.lost == SLOTS + 500
    mark(4)
    assert reader.read()[1].tolist() == [4]


def test_a_forked_child_marks_nothing(ring: Path) -> None:
    mark, reader = open_writer(ring), RingReader(ring)
    child = os.fork()
    if child == 0:
        mark(9)
        os._exit(0)
    os.waitpid(child, 0)
    mark(1)
    assert reader.read()[1].tolist() == [1]
