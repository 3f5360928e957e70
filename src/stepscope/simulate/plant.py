"""The power model: watts of every rail from what runs, constant between two marks, and integrated exactly.

A rail's power is idle * idle_gain + above_idle[state] * gain, where gain holds the noise of this execution, heat and
throttling. Everything is drawn from the seed and the names of states, so that a state has the same power in each run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.simulate.boards import Board
from stepscope.simulate.options import Options
from stepscope.simulate.ring import Ints
from stepscope.simulate.states import HOST, IDLE, State

Floats = np.ndarray[Any, np.dtype[np.float64]]
SEGMENT = np.dtype([("t_ns", "<i8"), ("state", "<i4"), ("gain", "<f4"), ("idle_gain", "<f4")])
Segments = np.ndarray[Any, np.dtype[np.void]]
_SLOW_NS = 100_000_000  # heat, throttling and idle power are followed at this pace
_SHARE_SPREAD = 0.3


class PowerTable:
    """Watts by rail: `idle_w` [rails] and `above_idle_w` [states, rails]."""

    def __init__(self, board: Board, options: Options, seed: int) -> None:
        self._board, self._options, self._seed = board, options, seed
        names = list(board.components)
        feeds = [[float(name in fed) for name in names] for fed in board.rails.values()]
        self._feeds: Floats = np.array(feeds)  # [rails, components]
        self._shares: Floats = np.array([part.share for part in board.components.values()])
        self.idle_w: Floats = self._feeds @ np.array([part.idle_w for part in board.components.values()])
        self.above_idle_w: Floats = np.zeros((0, len(board.rails)))
        self.states: list[State] = []

    def add(self, states: Iterable[State]) -> None:
        """Give new states their power, in order of their ids."""
        rows = [self._feeds @ self._component_w(state, len(self.states) + place) for place, state in enumerate(states)]
        self.states += states
        if rows:
            self.above_idle_w = np.concatenate([self.above_idle_w, rows])

    def _component_w(self, state: State, state_id: int) -> Floats:
        """Power above idle of each component in a state, W."""
        kind = f"{state.kind} {state.phase}"
        drawn = self._draw(kind)
        total = self._board.scale * (drawn.uniform(0.3, 1.2) if state_id == HOST else drawn.uniform(1.0, 8.2))
        shares = self._shares * np.exp(drawn.normal(0, _SHARE_SPREAD, len(self._shares)))
        by_signature = self._draw(f"{kind} {state.signature}").normal(0, self._options.signature_spread)
        by_place = self._draw(f"{kind} {state.place}").normal(0, self._options.place_spread)
        watts: Floats = (0.0 if state_id == IDLE else total * math.exp(by_signature + by_place)) * shares / shares.sum()
        return watts

    def _draw(self, text: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(text.encode())])


@dataclass(frozen=True)
class Stretch:
    """A stretch of time with the energy of every rail since the start, J, at the edges of constant power."""

    t_ns: Ints  # [n + 1], ascending
    joules: Floats  # [n + 1, rails]
    watts: Floats  # [n, rails]

    def at(self, t_ns: Floats | Ints) -> Floats:
        """Energy since the start at moments within the stretch, J: [moments, rails]."""
        place = np.maximum(self.t_ns[:-1].searchsorted(t_ns, side="right") - 1, 0)
        since_s = (t_ns - self.t_ns[place]) * 1e-9
        found: Floats = self.joules[place] + self.watts[place] * since_s[:, None]
        return found

    @property
    def end_ns(self) -> int:
        return int(self.t_ns[-1])


class Plant:
    """Follows the marks; `record` is given every segment of constant power that begins."""

    def __init__(
        self, table: PowerTable, options: Options, seed: int, t0_ns: int, record: Callable[[Segments], None]
    ) -> None:
        self._table, self._options, self._record = table, options, record
        self._noise = np.random.default_rng([seed, 1])
        self._began_ns = self._now_ns = t0_ns
        self._joules: Floats = np.zeros(len(table.idle_w))
        self._waiting_t: Ints = np.zeros(0, dtype=np.int64)
        self._waiting_state: Ints = np.zeros(0, dtype=np.int64)
        self._state, self._visit_gain = IDLE, 1.0
        self._common, self._idle_gain, self._wander = 1.0, np.float32(1.0), 0.0
        self._slow_due_ns = t0_ns

    def advance(self, until_ns: int, t_ns: Ints, states: Ints) -> Stretch:
        """Go on to `until_ns`; marks (time, state) from later than that wait for the next call."""
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
        return Stretch(edges, joules, watts)

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
        if options.throttle_at_s is not None and elapsed_s >= options.throttle_at_s:
            self._common *= options.throttle
        if options.idle_wander:
            self._wander = 0.98 * self._wander + options.idle_wander * 0.2 * float(self._noise.standard_normal())
            self._idle_gain = np.float32(max(0.0, 1 + self._wander))
