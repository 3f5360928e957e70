"""Where steps begin and end, on real loops and on a clock of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.record.loops import record, simple_loop
from torch import nn

from stepscope.record.steps import OptimizerRounds, first_tensor


def rounds(calls: str, per_round: int | None = None) -> list[int]:
    """Times at which rounds end when optimizers step in this order, one time unit apart."""
    ended: list[int] = []
    now = iter(range(1, 1000))
    optimizers = {name: object() for name in sorted(set(calls))}
    watch = OptimizerRounds(lambda t, late: ended.append(t), per_round, clock=lambda: next(now))
    for name in calls:
        watch.stepped(optimizers[name])
    watch.finish()
    return ended


def test_each_update_of_a_single_optimizer_is_a_step() -> None:
    assert rounds("AAAA") == [1, 2, 3, 4]


def test_a_round_of_two_optimizers_ends_with_the_second() -> None:
    assert rounds("DGDGDG") == [2, 4, 6]


def test_a_script_that_updates_once_has_one_step() -> None:
    assert rounds("A") == [1]


def test_the_number_of_updates_in_a_step_can_be_given() -> None:
    assert rounds("DDGDDG", per_round=3) == [3, 6]


def test_the_first_tensor_is_found_in_nested_arguments() -> None:
    x = torch.zeros(3)
    assert first_tensor((None, {"a": [1, x]}, torch.ones(1))) is x
    assert first_tensor(("text", 3)) is None


class Generator(nn.Linear):
    pass


class Discriminator(nn.Linear):
    pass


def test_both_networks_of_a_gan_are_in_each_step_and_named_by_their_type(tmp_path: Path) -> None:
    generator, discriminator = Generator(4, 4), Discriminator(4, 1)
    adam_g, adam_d = (torch.optim.Adam(m.parameters()) for m in (generator, discriminator))

    def loop(_: Any) -> None:
        for _ in range(6):
            fake = generator(torch.randn(5, 4))
            adam_d.zero_grad()
            (discriminator(torch.randn(5, 4)) - discriminator(fake.detach())).sum().backward()
            adam_d.step()
            adam_g.zero_grad()
            discriminator(fake).sum().backward()
            adam_g.step()

    run = record(loop, tmp_path, steps="optimizer")
    assert run.steps.height == 6
    assert run.steps["samples"].to_list() == [5] * 6
    assert set(run.model["module"]) == {"Generator", "Discriminator"}
    updated = run.ops.filter((pl.col("step") == 5) & (pl.col("phase") == "optimizer"))["module"].cast(pl.String)
    assert {"Generator", "Discriminator"} <= set(updated)


def test_gradient_accumulation_is_one_step_with_the_samples_of_all_its_batches(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: Any) -> None:
        for _ in range(5):
            for _ in range(3):
                model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run = record(loop, tmp_path, steps="optimizer")
    assert run.steps.height == 5
    assert run.steps["samples"].to_list() == [12] * 5


@pytest.mark.parametrize("choice", ["all", "every:2", "adaptive"])
def test_evaluation_between_steps_is_not_in_any_step(tmp_path: Path, choice: str) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: Any) -> None:
        for _ in range(8):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    model(torch.randn(100, 8)).exp()
            model.train()

    run = record(loop, tmp_path, steps="optimizer", record=choice)
    assert run.steps.height == 8
    assert set(run.steps["samples"].to_list()) == {4}
    linears = run.ops.filter(pl.col("name").cast(pl.String) == "nn.Linear").group_by("step").len()
    assert set(linears["len"].to_list()) <= {1}


def test_target_networks_and_acting_without_gradients_stay_in_the_step(tmp_path: Path) -> None:
    model, target = nn.Linear(8, 1), nn.Linear(8, 1).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Any) -> None:
        for _ in range(5):
            with torch.no_grad():
                wanted = target(torch.randn(4, 8))
            (model(torch.randn(4, 8)) - wanted).sum().backward()
            optimizer.step()
            step()

    run = record(loop, tmp_path, {"policy": model, "target": target})
    per_step = run.ops.filter(pl.col("name").cast(pl.String) == "nn.Linear").group_by("step").len()
    assert set(per_step["len"].to_list()) == {2}


def test_every_step_has_a_time_whether_its_ops_are_recorded_or_not(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    run = record(simple_loop(model, 30), tmp_path, model, record="every:10")
    steps = run.steps
    assert steps["step"].to_list() == list(range(30))
    assert steps.filter("recorded")["step"].to_list() == [0, 10, 20]
    assert run.ops["step"].unique().sort().to_list() == [0, 10, 20]
    assert (steps["t1_ns"] > steps["t0_ns"]).all()
    assert (steps["t0_ns"][1:] >= steps["t1_ns"][:-1]).all()
