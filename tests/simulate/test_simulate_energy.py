"""A joule's whole way on a clock that the test turns: marks, board, sensor files, sampler, run folder, energy.

The same with real processes and a real training is `python -m benchmarks.energy`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from benchmarks.energy import CASES, Case, compare
from tests.patience import HANG_S
from tests.simulate.boards_in_hand import MS, Hand, board_in_hand

from stepscope.record.sampler.loop import Sampling, StreamOpener
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sampler.stream import Deadlines
from stepscope.record.sensors import survey_sensors
from stepscope.record.sensors.contract import Target
from stepscope.runfolder import RunReader, RunWriter

LAYERS = ("Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "ReLU", "Linear")
PASSES = [(kind, phase, str(place)) for phase in ("forward", "backward") for place, kind in enumerate(LAYERS)]


class Sampled:
    """A board in hand whose sensors are sampled, at the real sampler's deadlines, as its time passes."""

    def __init__(self, board: Hand, run: Path, period_ns: int) -> None:
        self._board = board
        target = Target(os.getpid(), clock=lambda: board.now_ns)
        events = EventLog(run / "events.jsonl", clock=target.clock)
        seen = survey_sensors(board.root, target, ("ina3221", "rapl", "hwmon_power", "battery"), patience_s=HANG_S)
        streams, readers = StreamOpener(run, board.root, target, events, period_ns, dither=True).open(seen, {})
        self._streams = [*streams, *(reader.stream for reader in readers)]  # threads would wait for the real clock
        self._sampling = Sampling(self._streams, events, target.pace, period_ns, dither=True)
        self._deadlines = Deadlines(board.now_ns, period_ns, dither=True)

    def go(self, ns: int) -> None:
        """Let time pass."""
        until = self._board.now_ns + ns
        while self._board.now_ns < until:
            at_ns = max(min(until, self._deadlines.at_ns), self._board.now_ns)
            self._board.go(at_ns - self._board.now_ns)
            if at_ns == self._deadlines.at_ns:
                self._sampling.tick(at_ns)
                self._deadlines.advance(at_ns)

    def close(self) -> None:
        """Bring every row to the disk."""
        for stream in self._streams:
            stream.close()


def step_ns(seed: int = 0) -> Iterator[list[int]]:
    """How long the pause before each step and each of its layers take, ns: such as a data loader makes."""
    random = np.random.default_rng(seed)
    while True:
        pause = random.exponential(10.0) if random.random() < 0.1 else 0.0
        yield [int(ms * MS) for ms in (pause, *random.uniform(0.05, 0.5, len(PASSES)))]


def train(board: Hand, sampled: Sampled, steps: Iterator[list[int]], ns: int) -> None:
    """Steps for so long; each layer is a state of the board."""
    until = board.now_ns + ns
    states = [0, *(board.state(*each) for each in PASSES)]
    while board.now_ns < until:
        for state, long_ns in zip(states, next(steps), strict=True):
            board.mark(state)
            sampled.go(long_ns)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3]], ids=lambda case: case.board)
def test_measured_energy_is_near_the_truth_even_over_a_second(case: Case, tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "runs", case.board)
    with board_in_hand(case.board, tmp_path, **case.options) as board:
        sampled, steps = Sampled(board, run.path, case.period_ms * MS), step_ns()
        train(board, sampled, steps, 300 * MS)
        t0_ns = board.now_ns
        train(board, sampled, steps, 800 * MS)
        t1_ns = board.now_ns
        train(board, sampled, steps, 200 * MS)
        sampled.close()
        board.run.finish(board.now_ns)
        truth = board.run.truth()
    run.close("ok")
    row = compare(case, RunReader(run.path), truth, t0_ns, t1_ns)
    assert row.lost_marks == 0
    assert abs(row.error) < 0.05
