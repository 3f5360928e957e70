"""An Atari 2600 for reinforcement learning, emulated by ale-py, and the memory of what happened on it.

Preprocessing as in V. Mnih et al., Nature 518, 2015: every action is held for 4 frames, the last two are merged, shown
in grey at 84 x 84, four of these are a state; the loss of a life ends an episode, rewards are clipped to -1..1.

Deep Q-learning on an emulated Atari 2600: the network plays in the data phase and learns from its memory of it.

References
  V. Mnih et al., "Playing Atari with deep reinforcement learning", 2013, arXiv:1312.5602: the smaller network, which
    learns from its own estimate.
  V. Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015: the larger network, which
    learns from the estimate of a copy of itself, renewed now and then.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope import clock
from stepscope.workloads.contract import Batch, Extra, Published, Tier, Training, Workload, rates
from stepscope.workloads.data.source import DataFacts, Source, Splits

SIDE, HISTORY, HELD = 84, 4, 4
_MOST_IDLE = 30  # actions that do nothing at the start of a game, at random, so that games differ


@dataclass(frozen=True)
class ActionResult:
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
        self._ale.loadROM(rom_path(game))
        self._actions = self._ale.getMinimalActionSet()
        self._random = np.random.default_rng(seed)
        self._lives, self._sum = 0, 0.0
        self.frames, self.games, self.score = 0, 0, 0.0
        self.restart()

    @property
    def actions(self) -> int:
        """Return how many different actions there are."""
        return len(self._actions)

    def act(self, action: int) -> ActionResult:
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
        last_screens = screens or [self._ale.getScreenGrayscale()]
        return ActionResult(downscale_screen(np.maximum.reduce(last_screens)), float(np.clip(reward, -1, 1)), over)

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

    def add(self, action: int, result: ActionResult) -> None:
        """Store what an action led to in the place of the oldest."""
        place = self._written % self._capacity
        self._pictures[place], self._actions[place] = result.picture, action
        self._rewards[place], self._over[place] = result.reward, result.over
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
        before = self._states(after - 1), self._actions[place], self._rewards[place]
        return (*before, self._states(after), self._over[place])

    def _states(self, last: Tensor) -> Tensor:
        places = last[:, None] + torch.arange(1 - HISTORY, 1)  # [B, 4], oldest first
        places = places.clamp(min=0) % self._capacity
        pictures = self._pictures[places]
        # A picture belongs to the state only if no episode ended at it or after it: a new one starts in the dark.
        pictures[self._over[places].flip(1).cumsum(1).flip(1) > 0] = 0
        return pictures


def downscale_screen(screen: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """A grey screen [210, 160] as a picture [84, 84], each point the mean of its area."""
    values = torch.from_numpy(screen.astype(np.float32))[None, None]
    return functional.interpolate(values, (SIDE, SIDE), mode="area")[0, 0].round().to(torch.uint8)


def rom_path(game: str) -> Path:
    """The file of a game in ale-py's own package, whatever ALE_ROMS_DIR says: the result names its hash."""
    folder = importlib.import_module("ale_py.roms").__file__
    return Path(str(folder)).with_name(f"{game}.bin")


def source(game: str) -> Source:
    """The emulator as a source: it makes its samples while it is played."""

    def load() -> Splits:
        digest = hashlib.sha256(rom_path(game).read_bytes()).hexdigest()
        origin = "emulated Atari 2600, ale-py"
        facts = DataFacts(f"atari-{game}", "real-full", digest, "GPL-2.0 (ale-py)", origin, 0, 0)
        return Splits(None, None, facts)

    return Source(f"atari-{game}", "real-full", load)


GAME, ACTIONS = "breakout", 4
DISCOUNT = 0.99
CAPACITY = 20_000  # pictures: 141 MB; the papers keep a million, which no small board can
FIRST = 500  # actions at random before the first step
ACTIONS_A_STEP = 4
RENEWED_EVERY = 2_500  # steps: the 10,000 actions of the paper
GREEDY_AFTER = 250_000  # actions, while the share of random ones falls from 1 to 0.1


@dataclass(frozen=True)
class Variant:
    """Convolutions as (channels, kernel, stride), hidden units, and whether there is a target network."""

    convolutions: tuple[tuple[int, int, int], ...]
    features: int
    hidden: int
    has_target: bool


PLAYING_2013 = Variant(((16, 8, 4), (32, 4, 2)), features=32 * 9 * 9, hidden=256, has_target=False)
NATURE = Variant(((32, 8, 4), (64, 4, 2), (64, 3, 1)), features=64 * 7 * 7, hidden=512, has_target=True)


def q_network(variant: Variant) -> nn.Sequential:
    """States [B, 4, 84, 84] in 0..1 to the worth of each action [B, actions]."""
    parts: list[nn.Module] = []
    channels = HISTORY
    for out, kernel, stride in variant.convolutions:
        parts += [nn.Conv2d(channels, out, kernel, stride=stride), nn.ReLU()]
        channels = out
    parts += [nn.Flatten(), nn.Linear(variant.features, variant.hidden), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(variant.hidden, ACTIONS))


class DQN(nn.Module):
    """`online` is trained; `target` is its copy, whose weights are buffers: kept with the model and not trained."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.online = q_network(variant)
        self.target = _frozen_copy(self.online) if variant.has_target else None

    def forward(self, states: Tensor) -> Tensor:
        worth: Tensor = self.online(states.float() / 255)
        return worth

    def best_future_worth(self, states: Tensor) -> Tensor:
        """Return the worth of the best action in each state [B], without a graph."""
        with torch.no_grad():
            best: Tensor = (self.target or self.online)(states.float() / 255).amax(1)
        return best

    def update_target(self) -> None:
        """Bring the target network up to date."""
        if self.target is not None:
            self.target.load_state_dict(self.online.state_dict())


def _frozen_copy(network: nn.Sequential) -> nn.Sequential:
    target = copy.deepcopy(network)
    for module in target.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, parameter.detach())
    return target


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Huber loss between the worth of the actions taken and reward plus discounted future."""
    assert isinstance(model, DQN)
    states, actions, rewards, following, over = batch
    aim = rewards + DISCOUNT * model.best_future_worth(following) * (~over).float()
    worth = model(states).gather(1, actions[:, None]).squeeze(1)
    return functional.smooth_l1_loss(worth, aim)


def step(training: Training, batch: Batch) -> Tensor:
    """One update, and now and then a new target network."""
    assert isinstance(training.model, DQN)
    training.optimizer.zero_grad()
    value = loss(training.model, batch)
    value.backward()  # type: ignore[no-untyped-call]
    training.optimizer.step()
    training.counters["updates"] = training.counters.get("updates", 0) + 1
    if training.counters["updates"] % RENEWED_EVERY == 0:
        training.model.update_target()
    return value.detach()


def play_for_batches(training: Training) -> Iterator[Batch]:
    """Batches from memory; before each, the network plays on for four actions of four frames.

    Counts `frames`, `frames_per_s` (of playing alone), `games` and the `score` of the last game.
    """
    emulator, replay = Emulator(GAME, training.seed), Replay(CAPACITY, training.seed)
    random = torch.Generator().manual_seed(training.seed)
    played_ns, actions, idle = 0, 0, emulator.frames
    while True:
        began_ns = clock.monotonic_ns()
        for _ in range(ACTIONS_A_STEP if actions else max(FIRST, 2 * training.batch_size)):
            action = _choose_action(training, replay, actions, random)
            result = emulator.act(action)
            replay.add(action, result)
            actions += 1
            if result.over:
                emulator.restart()
        played_ns += clock.monotonic_ns() - began_ns
        training.counters.update(
            frames=emulator.frames,
            frames_per_s=(emulator.frames - idle) * 1e9 / max(1, played_ns),
            games=emulator.games,
            score=emulator.score,
        )
        yield replay.sample(training.batch_size)


def _choose_action(training: Training, replay: Replay, actions: int, random: torch.Generator) -> int:
    """A random action with a share that falls from 1 to 0.1, else the one that is worth most."""
    share = 1 - 0.9 * min(1.0, max(0, actions - FIRST) / GREEDY_AFTER)
    if actions < FIRST or float(torch.rand((), generator=random)) < share:
        return int(torch.randint(0, ACTIONS, (), generator=random))
    with torch.no_grad():
        return int(training.model(replay.state()[None].to(training.device)).argmax())


def example(samples: int) -> Batch:
    """Black pictures in which nothing happens."""
    states = torch.zeros(samples, HISTORY, SIDE, SIDE, dtype=torch.uint8)
    nothing = torch.zeros(samples, dtype=torch.long), torch.zeros(samples)
    return (states, *nothing, states.clone(), torch.zeros(samples, dtype=torch.bool))


def _workload(
    name: str, variant: Variant, summary: str, remark: str, tiers: tuple[Tier, ...] = ("paper-2019",)
) -> Workload:
    return Workload(
        name=name,
        domain="reinforcement learning",
        summary=summary,
        dominant_layer="convolution",
        input_shape=(HISTORY, SIDE, SIDE),
        default_batch=32,
        default_optimizer="rmsprop",
        references=(
            "Mnih et al., Playing Atari with deep reinforcement learning, 2013, arXiv:1312.5602",
            "Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015",
        ),
        build=functools.partial(DQN, variant),
        sources=(source(GAME),),
        example=example,
        loss=loss,
        loss_name="Huber loss of the worth of actions",
        step=step,
        stream=play_for_batches,
        needs=(Extra("ale_py", "atari"),),
        hyperparameters={
            **rates(sgd=1e-3, momentum=1e-4, adam=1e-4, rmsprop=2.5e-4),
            "rmsprop": {"lr": 2.5e-4, "alpha": 0.95, "eps": 0.01},
        },
        published=(Published("samples a second at batch 64", "13,618", "paper of 2019", remark),),
        tiers=tiers,
    )


WORKLOADS = (
    _workload(
        "dqn-2013-84",
        PLAYING_2013,
        "Q-learning on Breakout with the network of 2013: the emulator takes longer than the step",
        "needs 199 GFLOPS with this network of 4 layers, which the paper's table names: likely this one",
        tiers=("smoke", "paper-2019"),
    ),
    _workload(
        "dqn-nature-84",
        NATURE,
        "Q-learning on Breakout with the network of 2015 and a target network",
        "needs 675 GFLOPS with this network of 5 layers, near the peak of the board: unlikely this one",
    ),
)
