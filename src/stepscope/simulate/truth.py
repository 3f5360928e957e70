"""What was really spent: every segment of constant power that a simulated board went through, and its integrals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from stepscope.simulate.plant import Floats, Segments
from stepscope.simulate.ring import Ints
from stepscope.simulate.states import State

TRUTH_FILE = "truth.npz"


@dataclass(frozen=True)
class Truth:
    """Power of every rail from the first segment to `end_ns`; energies are its exact integrals."""

    board: str
    rails: tuple[str, ...]
    states: tuple[State, ...]
    idle_w: Floats  # [rails]
    above_idle_w: Floats  # [states, rails]
    segments: Segments  # of plant.SEGMENT, ascending
    end_ns: int
    lost_marks: int  # marks that came faster than they were read: 0 in a sound simulation
    _cumulative: dict[str, Floats] = field(default_factory=dict, repr=False, compare=False)

    @property
    def start_ns(self) -> int:
        """When the board was ready."""
        return int(self.edges_ns[0])

    @cached_property
    def edges_ns(self) -> Ints:
        """Where power changes, and the end: [segments + 1]."""
        return np.append(self.segments["t_ns"], self.end_ns)

    def watts(self, rail: str) -> Floats:
        """Power of a rail in each segment, W."""
        column = self._column(rail)
        above = self.above_idle_w[self.segments["state"], column] * self.segments["gain"].astype(np.float64)
        found: Floats = self.idle_w[column] * self.segments["idle_gain"].astype(np.float64) + above
        return found

    def energy_between(self, rail: str, t0_ns: Ints | int, t1_ns: Ints | int) -> Floats:
        """Energy of a rail in each interval, J; NaN for one that reaches outside the simulation."""
        return self._energy_until(rail, t1_ns) - self._energy_until(rail, t0_ns)

    def own_energy(
        self, rail: str, t0_ns: Ints, t1_ns: Ints, parent: Ints, step: Ints | None = None, lane: Ints | None = None
    ) -> Floats:
        """Energy of each op instance in its own time, J: its interval without those of its children.

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
        facts = {"board": self.board, "rails": self.rails, "end_ns": self.end_ns, "lost_marks": self.lost_marks}
        states = [asdict(state) for state in self.states]
        path = folder / TRUTH_FILE
        with path.open("wb") as file:
            np.savez(
                file,
                facts=np.array(json.dumps({**facts, "states": states})),
                idle_w=self.idle_w,
                above_idle_w=self.above_idle_w,
                segments=self.segments,
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
        found = joules[place] + part * (joules[place + 1] - joules[place])
        return np.where((times >= edges[0]) & (times <= edges[-1]), found, np.nan)

    def _joules(self, rail: str) -> Floats:
        """Energy since the start at each edge, J."""
        if rail not in self._cumulative:
            spent = self.watts(rail) * (np.diff(self.edges_ns) * 1e-9)
            self._cumulative[rail] = np.concatenate([[0.0], np.cumsum(spent)])
        return self._cumulative[rail]


def sums(labels: Sequence[str | None], joules: Floats) -> dict[str | None, float]:
    """Energy by label (op kind, module, phase), J."""
    found: dict[str | None, float] = {}
    for label, energy in zip(labels, joules.tolist(), strict=True):
        found[label] = found.get(label, 0.0) + energy
    return found


def load(path: Path) -> Truth:
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
        )
