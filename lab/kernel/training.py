"""A training in plain Python and numpy, for the guest: two dense layers on a made-up task; a run with its steps.

Each phase says what share of its range the board draws from now on (`board.py follow`): its power follows the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from stepscope.arrays import Floats
from stepscope.runfolder import RunWriter

BATCH, INPUTS, HIDDEN, CLASSES, RATE = 32, 64, 96, 8, 0.1
_WAIT_S = 0.05  # for the next batch: a step is not all load
_ROUNDS = 12  # a phase is some tens of ms of a slow core


def batches(seed: int = 1) -> Iterator[tuple[Floats, Floats]]:
    """Yield inputs (batch, inputs) and one-hot classes (batch, classes): the sign pattern of a hidden projection."""
    random = np.random.default_rng(seed)
    hidden = random.normal(size=(INPUTS, CLASSES))
    while True:
        inputs = random.normal(size=(BATCH, INPUTS))
        yield inputs, np.eye(CLASSES)[(inputs @ hidden).argmax(axis=1)]


def train(writer: RunWriter, seconds: float, draw: Callable[[float], None]) -> list[float]:
    """Train for so long, write a step each, and return the loss of every step; `draw(share)` as a phase begins."""
    random = np.random.default_rng(0)
    first = random.normal(size=(INPUTS, HIDDEN)) / INPUTS**0.5
    second = random.normal(size=(HIDDEN, CLASSES)) / HIDDEN**0.5
    losses: list[float] = []
    data, until, begin_ns = batches(), time.monotonic() + seconds, time.monotonic_ns()
    while time.monotonic() < until:
        draw(0.1)
        inputs, wanted = next(data)
        time.sleep(_WAIT_S)
        draw(0.6)
        for _ in range(_ROUNDS):
            active = np.maximum(inputs @ first, 0.0)
            scores = np.exp(active @ second - (active @ second).max(axis=1, keepdims=True))
            chances = scores / scores.sum(axis=1, keepdims=True)
        draw(1.0)
        for _ in range(_ROUNDS):
            error = (chances - wanted) / BATCH
            back = (error @ second.T) * (active > 0)
            second -= RATE / _ROUNDS * active.T @ error
            first -= RATE / _ROUNDS * inputs.T @ back
        loss = float(-np.log((chances * wanted).sum(axis=1)).mean())
        end_ns = time.monotonic_ns()
        writer.append_step(len(losses), begin_ns, end_ns, BATCH, loss, False)
        begin_ns = end_ns
        losses.append(loss)
    writer.flush_steps()
    return losses
