"""An Atari 2600 for reinforcement learning, emulated by ale-py, and the memory of what happened on it.

Preprocessing as in V. Mnih et al., Nature 518, 2015: every action is held for 4 frames, the last two are merged, shown
in grey at 84 x 84, four of these are a state; the loss of a life ends an episode, rewards are clipped to -1..1.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stepscope.workloads.data.source import Batch, DataFacts, Source, Splits

SIDE, HISTORY, HELD = 84, 4, 4
_MOST_IDLE = 30  # actions that do nothing at the start of a game, at random, so that games differ


@dataclass(frozen=True)
class Seen:
    """Result of an action: a picture [84, 84] uint8, the clipped reward, whether the episode is over."""

    picture: Tensor
    reward: float
    over: bool


class Emulator:
    """One game; `frames` counts what the emulator has shown, `games` and `score` what was played to the end."""

    def __init__(self, game: str, seed: int) -> None:
        library = importlib.import_module("ale_py")
        library.ALEInterface.setLoggerMode(library.LoggerMode.Error)
        self._ale: Any = library.ALEInterface()
        self._ale.setInt("random_seed", seed)
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.loadROM(rom(game))
        self._actions = self._ale.getMinimalActionSet()
        self._random = np.random.default_rng(seed)
        self._lives, self._sum = 0, 0.0
        self.frames, self.games, self.score = 0, 0, 0.0
        self.restart()

    @property
    def actions(self) -> int:
        """Return how many different actions there are."""
        return len(self._actions)

    def act(self, action: int) -> Seen:
        """Hold an action for four frames; `restart` where the episode is over."""
        reward, screens = 0.0, []
        for number in range(HELD):
            reward += self._ale.act(self._actions[action])
            self.frames += 1
            if number >= HELD - 2:
                screens.append(self._ale.getScreenGrayscale())
            if self._ale.game_over():
                break
        self._sum += reward
        over = bool(self._ale.game_over()) or self._ale.lives() < self._lives
        self._lives = self._ale.lives()
        shown = screens or [self._ale.getScreenGrayscale()]
        return Seen(small(np.maximum.reduce(shown)), float(np.clip(reward, -1, 1)), over)

    def restart(self) -> None:
        """A new game if the last one is over; after the loss of a life the same game goes on."""
        if self._ale.game_over():
            self.games, self.score = self.games + 1, self._sum
        if self._ale.game_over() or self.frames == 0:
            self._ale.reset_game()
            self._sum = 0.0
            for _ in range(int(self._random.integers(1, _MOST_IDLE))):
                self._ale.act(self._actions[0])
                self.frames += 1
        self._lives = self._ale.lives()


class Replay:
    """The last `capacity` actions on the host: a picture each, since the states share theirs."""

    def __init__(self, capacity: int, seed: int) -> None:
        self._pictures = torch.zeros(capacity, SIDE, SIDE, dtype=torch.uint8)
        self._actions = torch.zeros(capacity, dtype=torch.long)
        self._rewards = torch.zeros(capacity)
        self._over = torch.zeros(capacity, dtype=torch.bool)
        self._random = torch.Generator().manual_seed(seed)
        self._capacity, self._written = capacity, 0

    def __len__(self) -> int:
        return min(self._written, self._capacity)

    def add(self, action: int, seen: Seen) -> None:
        """Store what an action led to in the place of the oldest."""
        place = self._written % self._capacity
        self._pictures[place], self._actions[place] = seen.picture, action
        self._rewards[place], self._over[place] = seen.reward, seen.over
        self._written += 1

    def state(self) -> Tensor:
        """The last four pictures [4, 84, 84], black before the start of the episode."""
        return self._states(torch.tensor([self._written - 1]))[0]

    def sample(self, size: int) -> Batch:
        """States [B, 4, 84, 84], actions [B], rewards [B], next states and whether the episode ended there [B]."""
        newest = self._written - 1
        oldest = self._written - len(self) + HISTORY  # so that no state reaches back to what was overwritten
        after = torch.randint(oldest, newest + 1, (size,), generator=self._random)
        place = after % self._capacity
        rest = self._states(after - 1), self._actions[place], self._rewards[place]
        return (*rest, self._states(after), self._over[place])

    def _states(self, last: Tensor) -> Tensor:
        places = last[:, None] + torch.arange(1 - HISTORY, 1)  # [B, 4], oldest first
        places = places.clamp(min=0) % self._capacity
        pictures = self._pictures[places]
        # A picture belongs to the state only if no episode ended at it or after it: a new one starts in the dark.
        pictures[self._over[places].flip(1).cumsum(1).flip(1) > 0] = 0
        return pictures


def small(screen: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """A grey screen [210, 160] as a picture [84, 84], each point the mean of its area."""
    values = torch.from_numpy(screen.astype(np.float32))[None, None]
    return functional.interpolate(values, (SIDE, SIDE), mode="area")[0, 0].round().to(torch.uint8)


def rom(game: str) -> Path:
    """The file of a game in ale-py's own package, whatever ALE_ROMS_DIR says: the result names its hash."""
    folder = importlib.import_module("ale_py.roms").__file__
    return Path(str(folder)).with_name(f"{game}.bin")


def source(game: str) -> Source:
    """The emulator as a source: it makes its samples while it is played."""

    def load() -> Splits:
        digest = hashlib.sha256(rom(game).read_bytes()).hexdigest()
        origin = "emulated Atari 2600, ale-py"
        facts = DataFacts(f"atari-{game}", "real-full", digest, "GPL-2.0 (ale-py)", origin, 0, 0)
        return Splits(None, None, facts)

    return Source(f"atari-{game}", "real-full", load)
