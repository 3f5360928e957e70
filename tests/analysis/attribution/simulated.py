"""A training run and power sensors with known truth: one lane of a ResNet-like step, seconds and watts.

A step has 493 op calls of 25 kinds and 136 (kind, shape) signatures, 20 us to 20 ms long, and host gaps between.
Power differs by kind, by signature within a kind, by place, by execution and by step, and grows while the chip warms.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
from scipy.signal import lfilter  # type: ignore[import-untyped]

from stepscope.analysis.energy.readings import Readings, from_counter
from stepscope.analysis.energy.timeline import Keys, Lane, Timeline
from stepscope.arrays import Floats, Ints

# kind: power W, median duration ms
KINDS = {
    "conv3_f": (9.0, 1.0),
    "conv1_f": (8.2, 0.55),
    "conv7_f": (8.6, 3.0),
    "bn_f": (6.0, 0.30),
    "relu_f": (5.6, 0.14),
    "add_f": (5.5, 0.22),
    "maxpool_f": (5.2, 0.6),
    "avgpool_f": (4.6, 0.05),
    "linear_f": (6.4, 0.12),
    "loss_f": (3.2, 0.04),
    "loss_b": (3.1, 0.03),
    "linear_b": (6.6, 0.2),
    "avgpool_b": (4.5, 0.05),
    "maxpool_b": (5.4, 1.0),
    "add_b": (5.3, 0.2),
    "relu_b": (5.8, 0.2),
    "bn_b": (6.3, 0.5),
    "conv1_bd": (8.8, 0.6),
    "conv1_bw": (9.6, 0.7),
    "conv3_bd": (9.5, 1.2),
    "conv3_bw": (10.2, 1.4),
    "conv7_bw": (9.8, 6.0),
    "sgd": (4.2, 0.035),
    "zero_grad": (3.8, 0.02),
    "h2d": (4.0, 2.0),
}
GAP_W = 2.0
_SCALED = 0.55  # sd of the logarithm of a signature's duration


@dataclass(frozen=True)
class Program:
    """One step: for each place its kind, signature, module (-1: none), phase, seconds, watts, and the gap after it."""

    kind: Ints
    signature: Ints
    module: Ints
    phase: Ints
    seconds: Floats
    watts: Floats
    gap: Floats

    @property
    def places(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Execution:
    """A program run many times: the timeline as recorded, and the truth: energy up to each instant, and by key."""

    timeline: Timeline
    program: Program
    at: Floats
    joules: Floats  # cumulative, as `at`
    truth: Floats  # J of each key over the run (P,), the gap last


def resnet_step(
    seed: int, step_ms: float = 200.0, shapes_differ: float = 0.08, places_differ: float = 0.02, exact: bool = False
) -> Program:
    """A ResNet50-like step; `exact` makes its length exactly `step_ms`."""
    random = np.random.default_rng(seed)
    sequence = _sequence()
    numbers = {name: index for index, name in enumerate(KINDS)}
    signatures = {shape: index for index, shape in enumerate(dict.fromkeys((op, sig) for op, sig, _, _ in sequence))}
    signature = np.array([signatures[op, sig] for op, sig, _, _ in sequence])
    power, median = (np.array([KINDS[op][column] for op, _ in signatures]) for column in (0, 1))
    own = median * np.exp(random.normal(0, _SCALED, len(signatures)))
    draws = power * np.exp(random.normal(0, shapes_differ, len(signatures)))
    seconds = own[signature] * np.exp(random.normal(0, 0.03, len(sequence)))
    gap = np.where(random.random(len(sequence)) < 0.25, random.exponential(0.03, len(sequence)), 0.003)
    gap[-1] = 6.0  # the host fetches the next batch
    scale = step_ms / (seconds.sum() + gap.sum())
    seconds, gap = np.clip(seconds * scale, 0.02, 20) * 1e-3, gap * scale * 1e-3
    if exact:
        gap[-1] += step_ms * 1e-3 - seconds.sum() - gap.sum()
    watts = draws[signature] * np.exp(random.normal(0, places_differ, len(sequence)))
    kind = np.array([numbers[op] for op, _, _, _ in sequence])
    module, phase = (np.array([row[column] for row in sequence]) for column in (2, 3))
    return Program(kind, signature, module, phase, seconds, watts, gap)


def _sequence() -> list[tuple[str, Hashable, int, int]]:
    """(kind, shape, module, phase) of each place; phases 0 forward, 1 backward, 2 optimizer, 3 other."""
    convolutions: list[tuple[str, tuple[int, str]]] = [("conv7", (0, "s"))]
    for block in range(16):
        stage, first = 1 + (block > 2) + (block > 6) + (block > 12), block in (0, 3, 7, 13)
        convolutions += [("conv1", (stage, "a0" if first else "a")), ("conv3", (stage, "b0" if first else "b"))]
        convolutions += [("conv1", (stage, "c")), *([("conv1", (stage, "d"))] if first else [])]

    def norm(shape: tuple[int, str]) -> tuple[int, str]:
        return shape[0], "n" if shape[1][0] in "ab" else "w"

    head = len(convolutions)
    steps: list[tuple[str, Hashable, int, int]] = [("zero_grad", i % 3, -1, 3) for i in range(30)]
    steps += [("h2d", 0, -1, 3)]
    for n, (op, shape) in enumerate(convolutions):
        steps += [(f"{op}_f", shape, n, 0), ("bn_f", norm(shape), n, 0)]
        steps += [("add_f", shape[0], n, 0)] if shape[1] == "c" else []
        steps += [("relu_f", norm(shape), n, 0)] if shape[1] != "d" else []
        steps += [("maxpool_f", 0, n, 0)] if n == 0 else []
    steps += [(op, 0, head, 0) for op in ("avgpool_f", "linear_f", "loss_f")]
    steps += [(op, 0, head, 1) for op in ("loss_b", "linear_b", "avgpool_b")]
    for n, (op, shape) in reversed(list(enumerate(convolutions))):
        steps += [("maxpool_b", 0, n, 1)] if n == 0 else []
        steps += [("relu_b", norm(shape), n, 1)] if shape[1] != "d" else []
        steps += [("add_b", shape[0], n, 1)] if shape[1] == "c" else []
        steps += [("bn_b", norm(shape), n, 1)]
        steps += [(f"{op}_bd", shape, n, 1)] if n else []
        steps += [(f"{op}_bw", shape, n, 1)]
    steps += [("sgd", i % 6, -1, 2) for i in range(60)]
    return steps


def execute(
    program: Program,
    steps: int,
    seed: int,
    *,
    op_jitter: float = 0.03,
    step_jitter: float = 0.02,
    execution_noise: float = 0.03,
    step_noise: float = 0.01,
    warm_up: float = 0.05,
    warm_up_s: float = 60.0,
    stamp_sd: float = 5e-6,
    stalls: float = 0.01,
) -> Execution:
    """Run a program: durations and powers vary by execution, stalls happen, the chip warms, stamps are a bit off."""
    random = np.random.default_rng(seed)
    n = program.places
    seconds = np.tile(program.seconds, (steps, 1)) * np.exp(random.normal(0, op_jitter, (steps, n)))
    seconds *= np.exp(random.normal(0, step_jitter, (steps, 1)))
    gap = np.tile(program.gap, (steps, 1)) * np.exp(random.normal(0, 0.25 if op_jitter else 0, (steps, n)))
    if stalls:
        gap[random.random(steps) < stalls, -1] += random.exponential(0.05)
    pieces = np.stack([seconds, gap], 2).reshape(-1)  # op, gap, op, gap ...
    at = np.concatenate([[0.0], np.cumsum(pieces)])
    per_op = np.exp(random.normal(0, execution_noise, (steps, n))) * np.exp(random.normal(0, step_noise, (steps, 1)))
    watts = np.stack([np.tile(program.watts, (steps, 1)) * per_op, np.full((steps, n), GAP_W)], 2).reshape(-1)
    watts *= 1 + warm_up * (1 - np.exp(-(at[1:] + at[:-1]) / 2 / warm_up_s))  # leakage grows with temperature
    spent = watts * pieces
    key = np.tile(np.stack([np.arange(n), np.full(n, n)], 1).reshape(-1), steps)
    begin, end = at[:-1][0::2].copy(), at[1:][0::2].copy()
    if stamp_sd:
        begin += random.normal(0, stamp_sd, begin.size)
        end = np.maximum(begin + 1e-6, end + random.normal(0, stamp_sd, end.size))
    edges = at[np.append(np.arange(steps) * 2 * n, -1)]
    lane = Lane(begin, end, np.tile(np.arange(n), steps))
    keys = Keys(
        np.append(program.kind, len(KINDS)),
        np.append(program.signature, program.signature.max() + 1),
        np.zeros(n + 1, dtype=bool),
    )
    timeline = Timeline((lane,), keys, edges[:-1], edges[1:], np.ones(steps, dtype=bool), stamp_sd)
    return Execution(
        timeline,
        program,
        at,
        np.append(0.0, np.cumsum(spent)),
        np.asarray(np.bincount(key, spent, n + 1), dtype=np.float64),
    )


@dataclass(frozen=True)
class Device:
    """A power source: `period` s between samples, each a mean over `width` s, behind an analogue filter `rc` s.

    offset, late: its stamps are so much late, always and at random; period_error: its clock against ours;
    register: weight of its running average; lsb, noise: W; dither: of the period, as a share.
    """

    period: float = 0.010
    width: float = 0.010
    lsb: float = 0.025
    noise: float = 0.010
    offset: float = 0.008
    late: float = 0.0003
    period_error: float = 0.01
    register: float | None = None
    dither: float = 0.0
    rc: float = 0.0


def sampled(run: Execution, seed: int, device: Device | None = None) -> Readings:
    """Readings of a gauge that gives each of its values once."""
    device = device or Device()
    random = np.random.default_rng(seed + 977)
    end = run.timeline.end
    period = device.period * (1 + device.period_error)
    count = int((end - 0.05) / period)
    step = np.full(count, period)
    if device.dither:
        step = period * (1 + device.dither * (random.random(count) - 0.5) * 2)
    t = 0.03 + random.random() * period + np.concatenate([[0], np.cumsum(step)[:-1]])
    t = t[t < end - 1e-3]
    watts = _means(run, t, device)
    if device.register:
        watts = running_average(watts, device.register)
    watts = watts + random.normal(0, device.noise, len(t))
    watts = np.round(watts / device.lsb) * device.lsb
    stamp = t + device.offset + np.abs(random.normal(0, device.late, len(t)))
    return Readings(stamp, watts)


def running_average(watts: Floats, weight: float) -> Floats:
    """A register that moves by `weight` of the difference at each conversion; it has run before."""
    start = (1 - weight) * watts[:200].mean()
    averaged: Floats = lfilter([weight], [1, -(1 - weight)], watts, zi=[start])[0]
    return averaged


def _means(run: Execution, t: Floats, device: Device) -> Floats:
    at, joules = (run.at, run.joules) if not device.rc else _filtered(run, device.rc)
    means: Floats = (np.interp(t, at, joules) - np.interp(t - device.width, at, joules)) / device.width
    return means


def _filtered(run: Execution, rc: float) -> tuple[Floats, Floats]:
    """The energy as seen behind a first-order filter, on a grid of 20 us."""
    dt = 2e-5
    grid = np.arange(0, run.timeline.end + dt, dt)
    power = np.diff(np.interp(grid, run.at, run.joules)) / dt
    weight = 1 - np.exp(-dt / rc)
    seen = lfilter([weight], [1, -(1 - weight)], power, zi=[(1 - weight) * power[:5000].mean()])[0]
    return grid, np.append(0.0, np.cumsum(seen) * dt)


def polled(readings: Readings, end: float, seed: int, poll: float, dither: float = 0.5) -> tuple[Floats, Floats]:
    """What a sampler of its own pace reads of a register: stamps and the value made last, some twice or never."""
    random = np.random.default_rng(seed + 57)
    stamp = np.cumsum(poll * (1 + dither * (2 * random.random(int(end / poll)) - 1)))
    stamp = stamp[(stamp > readings.stamp[0]) & (stamp < end)]
    return stamp, readings.watts[np.searchsorted(readings.stamp, stamp, side="right") - 1]


def counted(
    run: Execution,
    seed: int,
    *,
    update: float = 0.001,
    jitter: float = 0.02,
    step: float = 61e-6,
    poll: float = 0.001,
    dither: float = 0.5,
    lag: float = 0.0002,
    walks: bool = False,
) -> Readings:
    """A cumulative energy counter that moves every `update` s by multiples of `step` J, polled every `poll` s.

    `jitter` of an update is about the counter's clock or, where that `walks`, about the update before.
    """
    random = np.random.default_rng(seed + 31)
    end = run.timeline.end
    wobble = jitter * random.standard_normal(int(end / update) + 2)
    moves = update * (np.arange(len(wobble)) + 0.6 + (np.cumsum(wobble) if walks else wobble))
    holds = np.floor(np.interp(moves, run.at, run.joules) / step) * step
    polls = np.cumsum(poll * (1 + dither * (2 * random.random(int(end / poll)) - 1)))
    polls = polls[polls < end]
    last = np.searchsorted(moves + lag, polls, side="right") - 1
    value = np.where(last >= 0, holds[np.maximum(last, 0)], 0.0)
    return from_counter(polls, polls, value, refresh=update)


def thinned(run: Execution, every: int) -> tuple[Timeline, Ints]:
    """What an adaptive recorder keeps: the ops of each `every`th step alone. Returns it and the kept steps."""
    n, steps = run.program.places, run.timeline.steps
    kept = np.arange(0, steps, every)
    lane = run.timeline.lanes[0]
    rows = (kept[:, None] * n + np.arange(n)).ravel()
    recorded = np.isin(np.arange(steps), kept)
    sparse_lane = Lane(lane.t0[rows], lane.t1[rows], lane.key[rows])
    return replace(run.timeline, lanes=(sparse_lane,), recorded=recorded), kept
