"""The power model of a simulated board, integrated exactly, and the truth that it leaves behind.

A rail's power is idle * idle_gain + above_idle[state] * gain, where gain holds the noise of this execution, heat and
throttling. Everything is drawn from the seed and the names of states, so that a state has the same power in each run.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.arrays import Floats, Ints
from stepscope.simulate.boards import Board, Options
from stepscope.simulate.chip import activity
from stepscope.simulate.marks import HOST, IDLE, State

SEGMENT = np.dtype([("t_ns", "<i8"), ("state", "<i4"), ("gain", "<f4"), ("idle_gain", "<f4")])
Segments = np.ndarray[Any, np.dtype[np.void]]
_SLOW_NS = 100_000_000  # heat, throttling and idle power are followed at this pace
_SHARE_SPREAD = 0.3


class PowerTable:
    """Watts by rail, `idle_w` [rails] and `above_idle_w` [states, rails], and `busy` [states, processors]: shares."""

    def __init__(self, board: Board, options: Options, seed: int) -> None:
        self._board, self._options, self._seed = board, options, seed
        names = list(board.components)
        feeds = [[float(name in fed) for name in names] for fed in board.rails.values()]
        self._feeds: Floats = np.array(feeds)  # [rails, components]
        self._shares: Floats = np.array([part.share for part in board.components.values()])
        self.idle_w: Floats = self._feeds @ np.array([part.idle_w for part in board.components.values()])
        self.above_idle_w: Floats = np.zeros((0, len(board.rails)))
        self._chip = board.chip if options.computed else None
        self.processors = () if self._chip is None else self._chip.processors
        self.busy: Floats = np.zeros((0, len(self.processors)))
        self.states: list[State] = []

    def add(self, states: Iterable[State]) -> None:
        """Give new states their power, in order of their ids."""
        new = list(enumerate(states, len(self.states)))
        self.states += [state for _, state in new]
        if new:
            watts = [self._feeds @ self._component_w(state, state_id) for state_id, state in new]
            self.above_idle_w = np.concatenate([self.above_idle_w, watts])
            self.busy = np.concatenate([self.busy, [self._busy(state, state_id) for state_id, state in new]])

    def _component_w(self, state: State, state_id: int) -> Floats:
        """Power above idle of each component in a state, W."""
        kind = f"{state.kind} {state.phase}"
        by_signature = self._seeded_generator(f"{kind} {state.signature}").normal(0, self._options.signature_spread)
        by_place = self._seeded_generator(f"{kind} {state.place}").normal(0, self._options.place_spread)
        own = math.exp(by_signature + by_place)
        if self._chip is not None:
            doing = activity(self._chip, self._options, state, state_id)
            names, cores = self._board.components, len(self._chip.cores)
            return own * np.array(
                [doing.watts_above_idle(self._chip.draw[name], self._options, cores) for name in names]
            )
        drawn = self._seeded_generator(kind)
        total = self._board.scale * (drawn.uniform(0.3, 1.2) if state_id == HOST else drawn.uniform(1.0, 8.2))
        shares = self._shares * np.exp(drawn.normal(0, _SHARE_SPREAD, len(self._shares)))
        watts: Floats = (0.0 if state_id == IDLE else total * own) * shares / shares.sum()
        return watts

    def _busy(self, state: State, state_id: int) -> list[float]:
        """Busy share of each processor in a state; nothing where the board has none of its own."""
        if self._chip is None:
            return []
        return activity(self._chip, self._options, state, state_id).busy_shares(self._chip, self._options.spread)

    def _seeded_generator(self, text: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(text.encode())])


@dataclass(frozen=True)
class PowerInterval:
    """A stretch of time with the energy of every rail since the start, J, at the edges of constant power.

    busy_s: time that each processor was busy since the start; throttled: whether the chip's clocks are taken down.
    """

    t_ns: Ints  # [n + 1], ascending
    joules: Floats  # [n + 1, rails]
    watts: Floats  # [n, rails]
    busy_s: Floats = field(default_factory=lambda: np.zeros(0))  # [processors], at the end
    throttled: bool = False

    def energy_at(self, t_ns: Floats | Ints) -> Floats:
        """Energy since the start at moments within the stretch, J: [moments, rails]."""
        place = np.maximum(self.t_ns[:-1].searchsorted(t_ns, side="right") - 1, 0)
        since_s = (t_ns - self.t_ns[place]) * 1e-9
        joules: Floats = self.joules[place] + self.watts[place] * since_s[:, None]
        return joules

    @property
    def end_ns(self) -> int:
        return int(self.t_ns[-1])

    def with_sensor_error(self, gain: float, offset_w: float, t0_ns: int) -> PowerInterval:
        """Return the stretch as sensors with this error see it; `t0_ns`: when the board was switched on."""
        if gain == 1.0 and offset_w == 0.0:
            return self
        offset_j = offset_w * (self.t_ns - t0_ns) * 1e-9
        joules, watts = self.joules * gain + offset_j[:, None], self.watts * gain + offset_w
        return replace(self, joules=joules, watts=watts)


class PowerSimulator:
    """Follows the marks; `record` is given every segment of constant power that begins."""

    def __init__(
        self, table: PowerTable, options: Options, seed: int, t0_ns: int, record: Callable[[Segments], None]
    ) -> None:
        self._table, self._options, self._record = table, options, record
        self._noise = np.random.default_rng([seed, 1])
        self._began_ns = self._now_ns = t0_ns
        self._joules: Floats = np.zeros(len(table.idle_w))
        self._busy_s: Floats = np.zeros(len(table.processors))
        self._waiting_t: Ints = np.zeros(0, dtype=np.int64)
        self._waiting_state: Ints = np.zeros(0, dtype=np.int64)
        self._state, self._visit_gain = IDLE, 1.0
        self._common, self._idle_gain, self._wander = 1.0, np.float32(1.0), 0.0
        self._slow_due_ns = t0_ns
        self.too_hot: Callable[[], bool] = lambda: False
        self._throttled = False

    def advance(self, until_ns: int, t_ns: Ints, states: Ints) -> PowerInterval:
        """Advance to `until_ns`; later marks (time, state) wait for the next call."""
        if len(self._waiting_t):
            t_ns, states = np.append(self._waiting_t, t_ns), np.append(self._waiting_state, states)
        # A writer that lost the core between taking the time and writing comes late: its state begins now.
        t_ns = np.maximum.accumulate(np.maximum(t_ns, self._now_ns)) if len(t_ns) else t_ns
        due = int(t_ns.searchsorted(until_ns, side="right"))
        self._waiting_t, self._waiting_state = t_ns[due:], states[due:]
        segments = self._segments(t_ns[:due], states[:due])
        edges = np.empty(len(segments) + 1, dtype=np.int64)
        edges[:-1], edges[-1] = segments["t_ns"], until_ns
        watts = self._table.above_idle_w[segments["state"]]
        watts *= segments["gain"][:, None]
        watts += segments["idle_gain"][:, None] * self._table.idle_w
        joules = np.empty((len(edges), len(self._joules)))
        joules[0] = self._joules
        joules[1:] = watts * ((edges[1:] - edges[:-1]) * 1e-9)[:, None]
        joules.cumsum(axis=0, out=joules)
        self._joules, self._now_ns = joules[-1], until_ns
        if len(self._busy_s):
            lasted_s = (edges[1:] - edges[:-1]) * 1e-9
            self._busy_s = self._busy_s + lasted_s @ self._table.busy[segments["state"]]
        return PowerInterval(edges, joules, watts, self._busy_s, self._throttled)

    def _segments(self, t_ns: Ints, states: Ints) -> Segments:
        """The segment that goes on, then those that begin; only new ones are recorded."""
        slow = self._now_ns >= self._slow_due_ns
        if slow:
            self._follow_slow_changes()
        segments = np.empty(len(t_ns) + 1, dtype=SEGMENT)
        visits = np.maximum(0.0, 1.0 + self._options.noise * self._noise.standard_normal(len(t_ns)))
        segments["t_ns"][0], segments["t_ns"][1:] = self._now_ns, t_ns
        segments["state"][0], segments["state"][1:] = self._state, states
        segments["gain"][0], segments["gain"][1:] = self._visit_gain * self._common, visits * self._common
        segments["idle_gain"] = self._idle_gain
        if len(t_ns):
            self._state, self._visit_gain = int(states[-1]), float(visits[-1])
        new = segments if slow else segments[1:]
        if len(new):
            self._record(new)
        return segments

    def _follow_slow_changes(self) -> None:
        options = self._options
        self._slow_due_ns = self._now_ns + _SLOW_NS
        elapsed_s = (self._now_ns - self._began_ns) * 1e-9
        self._common = 1 + options.drift * (1 - math.exp(-elapsed_s / options.drift_tau_s))
        late = options.throttle_at_s is not None and elapsed_s >= options.throttle_at_s
        self._throttled = late or self.too_hot()
        if self._throttled:
            self._common *= options.throttle
        if options.idle_wander:
            self._wander = 0.98 * self._wander + options.idle_wander * 0.2 * float(self._noise.standard_normal())
            self._idle_gain = np.float32(max(0.0, 1 + self._wander))


TRUTH_FILE = "truth.npz"


@dataclass(frozen=True)
class Truth:
    """Power of every rail from the first segment to `end_ns`; energies are its exact integrals.

    processors, busy [states, processors]: of a board that computes, how busy each is in each state; else empty.
    """

    board: str
    rails: tuple[str, ...]
    states: tuple[State, ...]
    idle_w: Floats  # [rails]
    above_idle_w: Floats  # [states, rails]
    segments: Segments  # of plant.SEGMENT, ascending
    end_ns: int
    lost_marks: int  # marks that came faster than they were read: 0 in a sound simulation
    processors: tuple[str, ...] = ()
    busy: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    _cumulative: dict[str, Floats] = field(default_factory=dict, repr=False, compare=False)

    @property
    def start_ns(self) -> int:
        """Return when the board was ready."""
        return int(self.edges_ns[0])

    @cached_property
    def edges_ns(self) -> Ints:
        """Return the times where power changes, and the end: [segments + 1]."""
        return np.append(self.segments["t_ns"], self.end_ns)

    def watts(self, rail: str) -> Floats:
        """Power of a rail in each segment, W."""
        column = self._column(rail)
        above = self.above_idle_w[self.segments["state"], column] * self.segments["gain"].astype(np.float64)
        watts: Floats = self.idle_w[column] * self.segments["idle_gain"].astype(np.float64) + above
        return watts

    def energy_between(self, rail: str, t0_ns: Ints | int, t1_ns: Ints | int) -> Floats:
        """Energy of a rail in each interval, J; NaN for one that reaches outside the simulation."""
        return self._energy_until(rail, t1_ns) - self._energy_until(rail, t0_ns)

    def busy_share(self, processor: str, t0_ns: int, t1_ns: int) -> float:
        """Mean busy share of a processor between two moments of the simulation."""
        edges = np.clip(self.edges_ns, t0_ns, t1_ns)
        shares = self.busy[self.segments["state"], self.processors.index(processor)]
        return float(np.diff(edges) @ shares) / (t1_ns - t0_ns)

    def self_energy(
        self, rail: str, t0_ns: Ints, t1_ns: Ints, parent: Ints, step: Ints | None = None, lane: Ints | None = None
    ) -> Floats:
        """Energy of each op call in its self time, J: its interval without those of its children.

        Rows as in ops/*.parquet, by step and time. `parent` is the row of the parent, -1 for none; where `step` is
        given it counts within the step. Children in another `lane` (thread, GPU) run beside and are not taken off.
        """
        whole = self.energy_between(rail, t0_ns, t1_ns)
        above = np.array(parent, dtype=np.int64)
        if step is not None:
            above += np.where(above >= 0, np.searchsorted(step, step), 0)
        children = np.flatnonzero(above >= 0)
        if lane is not None:
            children = children[lane[children] == lane[above[children]]]
        over = above[children]
        begin = np.maximum(t0_ns[children], t0_ns[over])
        end = np.maximum(np.minimum(t1_ns[children], t1_ns[over]), begin)
        own: Floats = whole - np.bincount(over, self.energy_between(rail, begin, end), minlength=len(whole))
        return own

    def save(self, folder: Path) -> Path:
        """Write truth.npz."""
        facts = {
            "board": self.board,
            "rails": self.rails,
            "end_ns": self.end_ns,
            "lost_marks": self.lost_marks,
            "processors": self.processors,
        }
        states = [asdict(state) for state in self.states]
        path = folder / TRUTH_FILE
        with path.open("wb") as file:
            np.savez(
                file,
                facts=np.array(json.dumps({**facts, "states": states})),
                idle_w=self.idle_w,
                above_idle_w=self.above_idle_w,
                segments=self.segments,
                busy=self.busy,
            )
        return path

    def _column(self, rail: str) -> int:
        if rail not in self.rails:
            raise KeyError(f"{self.board} has no rail {rail}: it has {', '.join(self.rails)}")
        return self.rails.index(rail)

    def _energy_until(self, rail: str, t_ns: Ints | int) -> Floats:
        edges, joules = self.edges_ns, self._joules(rail)
        times = np.asarray(t_ns, dtype=np.int64)
        place = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)
        length = edges[place + 1] - edges[place]
        part = (times - edges[place]) / np.maximum(length, 1)
        energy = joules[place] + part * (joules[place + 1] - joules[place])
        return np.where((times >= edges[0]) & (times <= edges[-1]), energy, np.nan)

    def _joules(self, rail: str) -> Floats:
        """Energy since the start at each edge, J."""
        if rail not in self._cumulative:
            spent = self.watts(rail) * (np.diff(self.edges_ns) * 1e-9)
            self._cumulative[rail] = np.concatenate([[0.0], np.cumsum(spent)])
        return self._cumulative[rail]


def load_truth(path: Path) -> Truth:
    """Read truth.npz, given itself or its folder."""
    with np.load(path / TRUTH_FILE if path.is_dir() else path, allow_pickle=False) as stored:
        facts = json.loads(str(stored["facts"]))
        return Truth(
            board=facts["board"],
            rails=tuple(facts["rails"]),
            states=tuple(State(**state) for state in facts["states"]),
            idle_w=stored["idle_w"],
            above_idle_w=stored["above_idle_w"],
            segments=stored["segments"],
            end_ns=facts["end_ns"],
            lost_marks=facts["lost_marks"],
            processors=tuple(facts.get("processors", ())),
            busy=stored["busy"] if "busy" in stored else np.zeros((0, 0)),
        )
