"""A training with known power: lengths of every op call, watts of every stretch, and the joules that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.signal import fftconvolve  # type: ignore[import-untyped]

from benchmarks.hostile.structures import BETWEEN_OPERATIONS, BETWEEN_STEPS, OUTSIDE, PAUSES, Step, credited
from stepscope.arrays import Floats, Ints

BEGIN_S = 1000.0  # of the first step, s on the monotonic clock
REST_S = 1.0  # what is sampled before and after the steps
WARM_UP = 3
GRID_S = 20e-6  # of filters that have no closed form


@dataclass(frozen=True)
class Timeline:
    """Energy since the begin as a function of time, J: straight lines between `t_s`."""

    t_s: Floats
    joules: Floats

    def __call__(self, t_s: Floats) -> Floats:
        found: Floats = np.interp(t_s, self.t_s, self.joules)
        return found

    def mean(self, t_s: Floats, width_s: float) -> Floats:
        """Mean power of the time `width_s` before each moment, W."""
        found: Floats = (self(t_s) - self(t_s - width_s)) / width_s
        return found

    def filtered(self, kernel: Callable[[Floats], Floats], grid_s: float = GRID_S) -> Timeline:
        """Power through a filter: the shares of power that reach the sensor so long after, on an even grid."""
        t_s = np.arange(self.t_s[0], self.t_s[-1], grid_s)
        watts = np.diff(self(t_s)) / grid_s
        age_s = np.arange(0.0, t_s[-1] - t_s[0], grid_s)
        weight = kernel(age_s)
        weight = weight[: int(np.flatnonzero(weight > 1e-9 * weight.max())[-1]) + 1]
        weight /= weight.sum()
        before = np.concatenate([np.full(len(weight) - 1, watts[0]), watts])
        after = fftconvolve(before, weight, mode="valid")
        return Timeline(t_s, np.concatenate([[0.0], np.cumsum(after * grid_s)]))


def first_order(tau_s: float) -> Callable[[Floats], Floats]:
    """A response that follows with this time constant."""
    return lambda age_s: np.exp(-age_s / tau_s)


def logarithmic(whole_s: float, bend_s: float) -> Callable[[Floats], Floats]:
    """A response that grows with the logarithm of time and is complete after `whole_s`."""
    return lambda age_s: np.where(age_s < whole_s, 1.0 / (age_s + bend_s), 0.0)


@dataclass(frozen=True)
class Law:
    """Law of the power of a stretch of work; all of it above idle, and all combine."""

    idle_w: float = 1.6
    watts: tuple[float, float] = (2.0, 9.0)  # a kind draws something between, above idle
    by_size: float = 1.0  # the longest call of a kind draws so many times what the shortest does
    by_place: float = 0.0  # spread from place to place in the step
    by_call: float = 0.0  # half width of what differs from call to call, evenly
    by_module: float = 1.0  # every second layer draws so many times what the others do
    leakage: float = 0.0  # growth over the run, which approaches its end value
    ramp_s: float = 0.0  # power follows its target with this time constant
    rise_s: float = 0.0  # each op begins with a quarter of its power and rises with this time constant
    clock_s: tuple[float, float] | None = None  # a second clock (0.6 x power, 1.3 x time) comes and goes after so long
    switch: bool = False  # to that clock once, in mid-run
    background_w: float = 0.0  # of another program that comes and goes
    background_s: tuple[float, float] = (1.0, 4.0)
    drift: float = 0.0  # growth over the run, linear
    by_step: float = 0.0  # spread from step to step, the same for all that runs in it
    by_step_and_kind: float = 0.0  # the same, each kind for itself
    off: tuple[float, float] | None = None  # from this share of the run to that one the rail draws nothing at all
    pause_w: float = 0.0  # above idle, in pauses between steps


@dataclass(frozen=True)
class Pace:
    """Law of the lengths."""

    step_s: float = 0.2
    steps: int = 100
    call_jitter: float = 0.03
    step_jitter: float = 0.02
    stalls: float = 0.01  # share of steps in which another program holds the core
    stall_s: float = 0.02
    between_s: float = 2e-4
    spread: float = 0.0  # of the logarithm of a step's length: sequences of other lengths
    pause_every: int = 0  # after so many steps a pause, e.g. an evaluation
    pause_s: float = 0.0
    profiled: int | None = None  # steps with op calls, in bursts of four; None: all
    overhead: float = 0.03  # of a profiled step, where not all are


@dataclass(frozen=True)
class Plant:
    """A run that took place: `edges` of every segment of every step, and the energy under them."""

    step: Step
    pace: Pace
    edges: tuple[Floats, ...]  # a lane each: steps x (segments + 1), s
    profiled: Any  # of each step
    power: Timeline  # of the rail
    caused: Timeline  # the same before the ramp
    lane: int  # that draws this power
    truth: dict[str, dict[Any, float]] = field(default_factory=dict)  # J a step by kind and module, during
    truth_caused: dict[str, dict[Any, float]] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        return float(self.edges[0][-1, -1])


def build(step: Step, law: Law, pace: Pace, seed: int) -> Plant:
    """A run of this law and pace."""
    rng = np.random.default_rng([seed, 77])
    step = step.scaled(pace.step_s * 1e9)
    lane = len(step.lanes) - 1
    profiled = _profiled(pace, rng)
    lengths = _lengths(step, pace, profiled, rng)
    slow = _slow_clock(law, lengths[0], rng)
    if slow is not None:
        lengths = [part * (1 + 0.3 * slow(lengths[0].sum(1))[:, None]) for part in lengths]
    edges = _edges(lengths, pace)
    watts = _watts(step, law, lane, pace.steps, rng) * _of_steps(step, law, lane, pace.steps, rng)
    if slow is not None:
        watts = watts * (1 - 0.4 * slow(lengths[0].sum(1))[:, None])
    if law.leakage:
        elapsed = (edges[lane][:, 0] - BEGIN_S) / (edges[lane][-1, -1] - BEGIN_S)
        watts = watts * (1 + law.leakage * (1 - np.exp(-3 * elapsed))[:, None])
    if law.drift:
        watts = watts * np.linspace(1.0, 1.0 + law.drift, pace.steps)[:, None]
    caused = _timeline(edges[lane], watts, law, _pauses(pace))
    if law.background_w:
        caused = _with_background(caused, law, rng)
    if law.off is not None:
        caused = _without(caused, law.off, float(edges[0][-1, -1]))
    power = caused.filtered(first_order(law.ramp_s)) if law.ramp_s else caused
    plant = Plant(step, pace, tuple(edges), profiled, power, caused, lane)
    return replace(plant, truth=_truth(plant, power), truth_caused=_truth(plant, caused))


def as_shown(plant: Plant, gain: float, offset_w: float, warming: float = 0.0) -> Plant:
    """The same plant whose truth is what a sensor with this error shows: its own error is no fault of the fit's."""

    def seen(energy: Timeline) -> dict[str, dict[Any, float]]:
        joules = energy.joules * gain + offset_w * (energy.t_s - energy.t_s[0])
        if warming:
            warm = warmed((energy.t_s[1:] + energy.t_s[:-1]) / 2, plant.end_s, warming)
            joules = np.concatenate([[0.0], np.cumsum(np.diff(joules) * warm)])
        return _truth(plant, Timeline(energy.t_s, joules))

    return replace(plant, truth=seen(plant.power), truth_caused=seen(plant.caused))


def warmed(t_s: Floats, end_s: float, share: float) -> Floats:
    """Gain of a sensor that shows this share more when the run has made it warm."""
    elapsed = np.clip((t_s - BEGIN_S) / (end_s - BEGIN_S), 0.0, 1.0)
    gain: Floats = 1 + share * (1 - np.exp(-3 * elapsed))
    return gain


def _pauses(pace: Pace) -> Any:
    """After which steps there is a pause."""
    number = np.arange(1, pace.steps + 1)
    return number % pace.pause_every == 0 if pace.pause_every else np.zeros(pace.steps, dtype=bool)


def _of_steps(step: Step, law: Law, lane: int, steps: int, rng: np.random.Generator) -> Floats:
    """Factor of each segment in each step: what depends on the data of the step."""
    factor = np.ones((steps, 1))
    if law.by_step:
        factor = factor * np.exp(law.by_step * rng.standard_normal((steps, 1)))
    if law.by_step_and_kind:
        names, owner = step.columns["name"], step.lanes[lane].owner
        place = {name: number for number, name in enumerate(sorted(set(names)))}
        of_kind = np.exp(law.by_step_and_kind * rng.standard_normal((steps, len(place) + 1)))
        factor = factor * of_kind[:, [-1 if row < 0 else place[names[row]] for row in owner]]
    return factor


def _without(power: Timeline, off: tuple[float, float], end_s: float) -> Timeline:
    """The same power, and none at all from one share of the run to another."""
    begin, end = (BEGIN_S + share * (end_s - BEGIN_S) for share in off)
    t_s = np.union1d(power.t_s, [begin, end])
    gone = power(np.clip(t_s, begin, end)) - power(np.array([begin]))
    return Timeline(t_s, power(t_s) - gone)


def _profiled(pace: Pace, rng: np.random.Generator) -> Any:
    chosen = np.ones(pace.steps, dtype=bool)
    if pace.profiled is not None:
        chosen[:] = False
        bursts = np.linspace(1, pace.steps - 5, pace.profiled // 4) + rng.integers(0, 3, pace.profiled // 4)
        for burst in bursts.astype(int):
            chosen[burst : burst + 4] = True
    return chosen


def _lengths(step: Step, pace: Pace, profiled: Any, rng: np.random.Generator) -> list[Floats]:
    """Length of every segment, s, a lane each; a stall makes one segment longer."""
    whole = 1 + pace.step_jitter * rng.standard_normal((pace.steps, 1))
    if pace.profiled is not None:
        whole = whole * (1 + pace.overhead * profiled[:, None])
    if pace.spread:
        whole = whole * np.exp(pace.spread * rng.standard_normal((pace.steps, 1)))
    found = []
    for lane in step.lanes:
        jitter = np.exp(pace.call_jitter * rng.standard_normal((pace.steps, len(lane.owner))))
        found.append(lane.length_ns * 1e-9 * jitter * whole)
    for place in np.flatnonzero(rng.random(pace.steps) < pace.stalls):
        share = step.lanes[-1].length_ns / step.lanes[-1].length_ns.sum()
        found[-1][place, rng.choice(len(share), p=share)] += pace.stall_s
    if len(found) == 2:  # the thread waits at the end for what the GPU does
        found[0][:, -2] = np.maximum(found[0][:, -2] + found[1].sum(1) - found[0].sum(1), 1e-5)
        found[1][:, -1] = np.maximum(found[0].sum(1) - found[1][:, :-1].sum(1), 0.0)
    return found


def _slow_clock(law: Law, lengths: Floats, rng: np.random.Generator) -> Callable[[Floats], Floats] | None:
    """A function from the lengths of steps to 1 where the slow clock is on."""
    total = float(lengths.sum())
    if law.switch:
        changes = np.array([total / 2])
    elif law.clock_s is not None:
        changes = np.cumsum(rng.uniform(*law.clock_s, 1 + int(total / law.clock_s[0])))
    else:
        return None
    return lambda steps_s: np.asarray(np.searchsorted(changes, np.cumsum(steps_s) - steps_s) % 2, dtype=np.float64)


def _edges(lengths: list[Floats], pace: Pace) -> list[Floats]:
    between_s = pace.between_s + pace.pause_s * _pauses(pace)
    starts = BEGIN_S + np.concatenate([[0.0], np.cumsum(lengths[0].sum(1) + between_s)[:-1]])
    return [starts[:, None] + np.cumsum(np.concatenate([np.zeros((pace.steps, 1)), part], axis=1), axis=1)
            for part in lengths]  # fmt: skip


def _watts(step: Step, law: Law, lane: int, steps: int, rng: np.random.Generator) -> Floats:
    """Power of every segment of the lane above idle, W: steps x segments."""
    owner, length = step.lanes[lane].owner, step.lanes[lane].length_ns
    names, modules = step.columns["name"], step.columns["module"]
    kinds = sorted(set(names))
    drawn = dict(zip(kinds, rng.uniform(*law.watts, len(kinds)), strict=True))
    gap_w = rng.uniform(law.watts[0], sum(law.watts) / 2) if lane == 0 else 0.0
    watts = np.array([gap_w if row < 0 else drawn[names[row]] for row in owner])
    if law.by_size != 1.0:
        watts = watts * _by_size(owner, length, names, law.by_size)
    if law.by_module != 1.0:
        place = {name: number for number, name in enumerate(dict.fromkeys(modules))}
        watts = watts * np.array([law.by_module if row >= 0 and place[modules[row]] % 2 else 1.0 for row in owner])
    watts = watts * np.exp(law.by_place * rng.standard_normal(len(owner)))
    return np.asarray(watts * (1 + law.by_call * rng.uniform(-1, 1, (steps, len(owner)))))


def _by_size(owner: Ints, length: Floats, names: list[str], times: float) -> Floats:
    """Factor of each segment: by where the logarithm of its length lies among those of its kind."""
    factor = np.ones(len(owner))
    named = np.array([names[row] if row >= 0 else "" for row in owner])
    logarithm = np.log(np.maximum(length, 1.0))
    for name in set(named.tolist()):
        here = named == name
        low, high = logarithm[here].min(), logarithm[here].max()
        if high > low:
            factor[here] = times ** ((logarithm[here] - low) / (high - low) - 0.5)
    return factor


def _timeline(edges: Floats, watts: Floats, law: Law, pauses: Any) -> Timeline:
    """Energy over the whole run; idle before, between and after the steps."""
    rest = edges[0, :1] - REST_S * 2, edges[-1, -1:] + REST_S * 2
    t_s = np.concatenate([rest[0], edges.ravel(), rest[1]])
    between = law.idle_w + law.pause_w * pauses[:, None]
    power = np.concatenate([[law.idle_w], np.concatenate([watts + law.idle_w, between], axis=1).ravel()])
    length = np.diff(t_s)
    if not law.rise_s:
        return Timeline(t_s, np.concatenate([[0.0], np.cumsum(power * length)]))
    parts = np.maximum(np.ceil(length / 4e-4), 1).astype(np.int64)
    owner = np.repeat(np.arange(len(length)), parts)
    begin = (np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)) * (length / parts)[owner]
    end = begin + (length / parts)[owner]
    above, tau = power[owner] - law.idle_w, law.rise_s
    lacking = 0.75 * tau * (np.exp(-begin / tau) - np.exp(-end / tau))
    joules = law.idle_w * (end - begin) + above * (end - begin - lacking)
    return Timeline(np.append(t_s[owner] + begin, t_s[-1]), np.concatenate([[0.0], np.cumsum(joules)]))


def _with_background(power: Timeline, law: Law, rng: np.random.Generator) -> Timeline:
    """Add what another program draws, which knows nothing of the steps."""
    span = float(power.t_s[-1] - power.t_s[0])
    changes = power.t_s[0] + np.cumsum(rng.uniform(*law.background_s, 2 + int(span / law.background_s[0])))
    changes = np.concatenate([power.t_s[:1], changes[changes < power.t_s[-1]], power.t_s[-1:]])
    drawn = np.diff(changes) * law.background_w * (np.arange(len(changes) - 1) % 2)
    other = np.concatenate([[0.0], np.cumsum(drawn)])
    t_s = np.union1d(power.t_s, changes)
    return Timeline(t_s, power(t_s) + np.interp(t_s, changes, other))


def _truth(plant: Plant, power: Timeline) -> dict[str, dict[Any, float]]:
    """Mean energy of a step after warm-up, J: of each kind, of each layer and phase, and of the whole."""
    edges = plant.edges[plant.lane][WARM_UP:]
    joules = np.diff(power(edges), axis=1).mean(0)
    owner, columns = credited(plant.step, plant.step.lanes[plant.lane]), plant.step.columns
    step_edges = plant.edges[0][WARM_UP:]
    steps = power(step_edges[:, -1]) - power(step_edges[:, 0])
    gaps = (power(step_edges[1:, 0]) - power(step_edges[:-1, -1])) / len(step_edges)
    pauses = _pauses(plant.pace)[WARM_UP:-1] & (plant.pace.pause_s > plant.pace.step_s / 2)
    between, paused = float(gaps[~pauses].sum()), float(gaps[pauses].sum())
    kinds: dict[Any, float] = {BETWEEN_STEPS: between, PAUSES: paused}
    modules: dict[Any, float] = {(BETWEEN_STEPS, None): between, (PAUSES, None): paused}
    for row, energy in zip(owner.tolist(), joules.tolist(), strict=True):
        kind = columns["name"][row] if row >= 0 else BETWEEN_OPERATIONS
        module = columns["module"][row] if row >= 0 else BETWEEN_OPERATIONS
        place = OUTSIDE if module is None else module, columns["phase"][row] if row >= 0 else None
        kinds[kind] = kinds.get(kind, 0.0) + energy
        modules[place] = modules.get(place, 0.0) + energy
    return {"kind": kinds, "module": modules, "whole": {"": float(steps.mean()) + between + paused}}
