"""Workloads whose training is not one update of one optimizer: two networks in turn, an emulator, adapters, noise."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from stepscope import workloads
from stepscope.errors import MissingDependency
from stepscope.workloads import dqn
from stepscope.workloads.dqn import DQN, RENEWED_EVERY, ActionResult, Emulator, Replay
from stepscope.workloads.language import Translator

BLACK = np.zeros((210, 160), dtype=np.uint8)


class FakeConsole:
    """Stands for `ale_py.ALEInterface`: a game of 40 frames and two lives, whose screen is as bright as its clock."""

    def __init__(self) -> None:
        self.frame, self.settings = 0, {}  # type: ignore[var-annotated]

    @staticmethod
    def setLoggerMode(mode: int) -> None:  # noqa: N802
        """Quiet anyway."""

    def setInt(self, name: str, value: int) -> None:  # noqa: N802
        self.settings[name] = value

    def setFloat(self, name: str, value: float) -> None:  # noqa: N802
        self.settings[name] = value

    def loadROM(self, path: object) -> None:  # noqa: N802
        self.rom = path

    def getMinimalActionSet(self) -> list[int]:  # noqa: N802
        return [0, 1, 3, 4]

    def reset_game(self) -> None:
        self.frame = 0

    def act(self, action: int) -> float:
        self.frame += 1
        return 3.0 if self.frame == 35 else 0.0

    def lives(self) -> int:
        return 2 if self.frame < 33 else 1

    def game_over(self) -> bool:
        return self.frame >= 40

    def getScreenGrayscale(self) -> Any:  # noqa: N802
        return np.full((210, 160), min(255, self.frame), dtype=np.uint8)


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Emulator:
    library = SimpleNamespace(ALEInterface=FakeConsole, LoggerMode=SimpleNamespace(Error=2), __path__=[])
    monkeypatch.setitem(sys.modules, "ale_py", library)
    roms = SimpleNamespace(__file__="/games/__init__.py")
    monkeypatch.setitem(sys.modules, "ale_py.roms", roms)
    return Emulator("breakout", seed=3)


def test_an_action_is_held_four_frames_and_shows_the_last_two(emulator: Emulator) -> None:
    idle = emulator.frames
    assert 1 <= idle < 30
    seen = emulator.act(0)
    assert emulator.frames == idle + 4
    assert seen.picture.shape == (84, 84)
    assert int(seen.picture[0, 0]) == idle + 4


def test_a_lost_life_ends_the_episode_and_the_end_of_the_game_counts_its_score(emulator: Emulator) -> None:
    overs, rewards = [], []
    while emulator.games == 0:
        seen = emulator.act(1)
        overs.append(seen.over)
        rewards.append(seen.reward)
        if seen.over:
            emulator.restart()
    assert overs.count(True) == 2
    assert sum(rewards) == 1.0  # clipped
    assert emulator.score == 3.0  # not clipped


def lived(replay: Replay, steps: int, over_at: tuple[int, ...] = ()) -> None:
    for step in range(steps):
        picture = torch.full((84, 84), step + 1, dtype=torch.uint8)
        replay.add(step % 4, ActionResult(picture, float(step), step in over_at))


def test_a_state_is_the_last_four_pictures_and_starts_dark_after_the_end_of_an_episode() -> None:
    replay = Replay(100, seed=0)
    lived(replay, 10)
    assert replay.state()[:, 0, 0].tolist() == [7, 8, 9, 10]
    replay = Replay(100, seed=0)
    lived(replay, 10, over_at=(7,))
    assert replay.state()[:, 0, 0].tolist() == [0, 0, 9, 10]
    replay = Replay(100, seed=0)
    lived(replay, 10, over_at=(9,))
    assert replay.state()[:, 0, 0].tolist() == [0, 0, 0, 0]


def test_samples_follow_one_another_and_reach_no_overwritten_picture() -> None:
    replay = Replay(20, seed=1)
    lived(replay, 50)
    states, actions, rewards, following, over = replay.sample(64)
    assert len(replay) == 20
    assert torch.equal(states[:, 1:], following[:, :-1])
    assert int(states.min()) > 30
    assert torch.equal(following[:, -1, 0, 0].float() - 1, rewards)
    assert torch.equal(actions, rewards.long() % 4)
    assert not over.any()


def test_a_small_picture_keeps_the_brightness() -> None:
    screen = BLACK.copy()
    screen[:105] = 200
    picture = dqn.downscale_screen(screen)
    assert set(picture[:42].flatten().tolist()) == {200}
    assert set(picture[42:].flatten().tolist()) == {0}


def test_the_judge_is_a_copy_that_is_renewed_and_never_trained() -> None:
    workload = workloads.find("dqn-nature-84")
    model = workload.build()
    assert isinstance(model, DQN)
    assert model.target is not None
    with torch.no_grad():
        for parameter in model.online.parameters():
            parameter.add_(1)
    states = torch.randint(0, 255, (2, 4, 84, 84), dtype=torch.uint8)
    before = model.best_future_worth(states)
    model.update_target()
    assert not torch.equal(before, model.best_future_worth(states))
    assert torch.equal(model.best_future_worth(states), model(states).amax(1))


def test_a_finished_episode_has_no_future() -> None:
    workload = workloads.find("dqn-2013-84")
    model = workload.build()
    states, actions, _, following, _ = workload.example(3)
    rewards, over = torch.tensor([1.0, 1.0, 1.0]), torch.ones(3, dtype=torch.bool)
    expected = torch.nn.functional.smooth_l1_loss(model(states)[:, 0], rewards)
    assert torch.equal(workload.loss(model, (states, actions, rewards, following, over)), expected)


def played() -> Any:
    try:
        return workloads.find("dqn-nature-84").prepare(batch=8)
    except MissingDependency as error:
        pytest.skip(f"{error}; {error.hint}")


def test_q_learning_plays_real_frames_in_the_data_phase_and_counts_them() -> None:
    training = played()
    batches = training.batches()
    first = next(batches)
    assert first[0].float().std() > 1  # a screen, not black
    frames = training.counters["frames"]
    assert frames >= 4 * 500
    assert training.counters["frames_per_s"] > 0
    training.step(first)
    next(batches)
    assert training.counters["frames"] >= frames + 13  # four actions of four frames, cut short at the end of a game
    assert training.data.name == "atari-breakout"
    assert training.evaluate() is None


def test_the_judge_is_renewed_after_its_number_of_steps() -> None:
    training = played()
    batch = training.workload.example(2)
    training.step(batch)
    model = training.model
    weights = [buffer.clone() for buffer in model.target.buffers()]
    training.counters["updates"] = RENEWED_EVERY - 1
    training.step((batch[0], batch[1], torch.ones(2), batch[3], batch[4]))
    assert any(not torch.equal(a, b) for a, b in zip(weights, model.target.buffers(), strict=True))


def test_the_two_networks_of_a_gan_learn_in_turn() -> None:
    training = workloads.find("dcgan-32").prepare(batch=4)
    generator, discriminator = (
        {id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in training.optimizers
    )
    assert not generator & discriminator
    assert len(generator | discriminator) == len(list(training.model.parameters()))
    before = [p.detach().clone() for p in training.model.parameters()]
    losses = [float(training.step(batch)) for batch in itertools.islice(training.batches(), 3)]
    assert all(not torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))
    assert len(set(losses)) == 3


def test_noise_in_a_picture_is_found_better_after_some_steps() -> None:
    training = workloads.find("diffusion-unet32-c32").prepare(batch=8)
    losses = [float(training.step(batch)) for batch in itertools.islice(training.batches(), 24)]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    assert training.evaluate() is None


@pytest.mark.parametrize("name", ["dcgan-32", "diffusion-unet32-c32"])
def test_a_network_that_makes_pictures_learns_from_those_in_the_range_that_it_can_make(name: str) -> None:
    pictures, _ = next(workloads.find(name).prepare(batch=16).batches())
    assert (float(pictures.min()), float(pictures.max())) == (-1.0, 1.0)


def test_a_translator_begins_with_what_its_sentence_says_however_long_the_padding_behind_it() -> None:
    torch.manual_seed(0)
    model = Translator(40, 40).eval()
    sentence = torch.tensor([[3, 9, 4]])
    starts: list[torch.Tensor] = []
    model.cells[0].register_forward_pre_hook(lambda _, args: starts.append(args[1][0]))
    with torch.no_grad():
        for padding in (0, 40):
            model(functional.pad(sentence, (0, padding)), torch.tensor([[1]]))
    assert torch.allclose(starts[0], starts[1], atol=1e-6)
