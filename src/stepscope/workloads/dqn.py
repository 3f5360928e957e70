"""Deep Q-learning on an emulated Atari 2600: the network plays in the data phase and learns from its memory of it.

References
  V. Mnih et al., "Playing Atari with deep reinforcement learning", 2013, arXiv:1312.5602: the smaller network, which
    learns from its own estimate.
  V. Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015: the larger network, which
    learns from the estimate of a copy of itself, renewed now and then.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope import clock
from stepscope.workloads import _atari
from stepscope.workloads._atari import HISTORY, SIDE, Emulator, Replay
from stepscope.workloads._training import Training
from stepscope.workloads.contract import Batch, Extra, Published, Workload, rates

GAME, ACTIONS = "breakout", 4
DISCOUNT = 0.99
CAPACITY = 20_000  # pictures: 141 MB; the papers keep a million, which no small board can
FIRST = 500  # actions at random before the first step
ACTIONS_A_STEP = 4
RENEWED_EVERY = 2_500  # steps: the 10,000 actions of the paper
GREEDY_AFTER = 250_000  # actions, while the share of random ones falls from 1 to 0.1


@dataclass(frozen=True)
class Variant:
    """Convolutions as (channels, kernel, stride), hidden units, and whether a copy of the network is the judge."""

    convolutions: tuple[tuple[int, int, int], ...]
    features: int
    hidden: int
    judged_by_copy: bool


PLAYING_2013 = Variant(((16, 8, 4), (32, 4, 2)), features=32 * 9 * 9, hidden=256, judged_by_copy=False)
NATURE = Variant(((32, 8, 4), (64, 4, 2), (64, 3, 1)), features=64 * 7 * 7, hidden=512, judged_by_copy=True)


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
    """`online` is trained; `judge` is its copy, whose weights are buffers: kept with the model and not trained."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.online = q_network(variant)
        self.judge = _frozen_copy(self.online) if variant.judged_by_copy else None

    def forward(self, states: Tensor) -> Tensor:
        worth: Tensor = self.online(states.float() / 255)
        return worth

    def future(self, states: Tensor) -> Tensor:
        """Return the worth of the best action in each state [B], without a graph."""
        with torch.no_grad():
            best: Tensor = (self.judge or self.online)(states.float() / 255).amax(1)
        return best

    def renew(self) -> None:
        """Bring the judge up to date."""
        if self.judge is not None:
            self.judge.load_state_dict(self.online.state_dict())


def _frozen_copy(network: nn.Sequential) -> nn.Sequential:
    judge = copy.deepcopy(network)
    for module in judge.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, parameter.detach())
    return judge


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Huber loss between the worth of the actions taken and reward plus discounted future."""
    assert isinstance(model, DQN)
    states, actions, rewards, following, over = batch
    aim = rewards + DISCOUNT * model.future(following) * (~over).float()
    taken = model(states).gather(1, actions[:, None]).squeeze(1)
    return functional.smooth_l1_loss(taken, aim)


def step(training: Training, batch: Batch) -> Tensor:
    """One update, and now and then a new judge."""
    assert isinstance(training.model, DQN)
    training.optimizer.zero_grad()
    value = loss(training.model, batch)
    value.backward()  # type: ignore[no-untyped-call]
    training.optimizer.step()
    training.counters["updates"] = training.counters.get("updates", 0) + 1
    if training.counters["updates"] % RENEWED_EVERY == 0:
        training.model.renew()
    return value.detach()


def play(training: Training) -> Iterator[Batch]:
    """Batches from memory; before each, the network plays on for four actions of four frames.

    Counts `frames`, `frames_per_s` (of playing alone), `games` and the `score` of the last game.
    """
    emulator, replay = Emulator(GAME, training.seed), Replay(CAPACITY, training.seed)
    random = torch.Generator().manual_seed(training.seed)
    played_ns, actions, idle = 0, 0, emulator.frames
    while True:
        began_ns = clock.monotonic_ns()
        for _ in range(ACTIONS_A_STEP if actions else max(FIRST, 2 * training.batch_size)):
            action = _chosen(training, replay, actions, random)
            seen = emulator.act(action)
            replay.add(action, seen)
            actions += 1
            if seen.over:
                emulator.restart()
        played_ns += clock.monotonic_ns() - began_ns
        training.counters.update(
            frames=emulator.frames,
            frames_per_s=(emulator.frames - idle) * 1e9 / max(1, played_ns),
            games=emulator.games,
            score=emulator.score,
        )
        yield replay.sample(training.batch_size)


def _chosen(training: Training, replay: Replay, actions: int, random: torch.Generator) -> int:
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


def _workload(name: str, variant: Variant, summary: str, remark: str, **more: object) -> Workload:
    fields: dict[str, object] = {"tiers": ("paper-2019",), **more}
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
        sources=(_atari.source(GAME),),
        example=example,
        loss=loss,
        loss_name="Huber loss of the worth of actions",
        step=step,
        stream=play,
        needs=(Extra("ale_py", "atari"),),
        hyperparameters={
            **rates(sgd=1e-3, momentum=1e-4, adam=1e-4, rmsprop=2.5e-4),
            "rmsprop": {"lr": 2.5e-4, "alpha": 0.95, "eps": 0.01},
        },
        published=(Published("samples a second at batch 64", "13,618", "paper of 2019", remark),),
        **fields,  # type: ignore[arg-type]
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
        "Q-learning on Breakout with the network of 2015 and a copy of it as the judge",
        "needs 675 GFLOPS with this network of 5 layers, near the peak of the board: unlikely this one",
    ),
)
