"""Modules that are made anew for every step: losses, in some libraries."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import torch
from torch import nn

import stepscope
from stepscope.record.recorders.modules import ModuleBook

_Held = weakref.ReferenceType[nn.Module]


def _train(out: Path, steps: int) -> tuple[stepscope.Run, list[_Held]]:
    model, made = nn.Linear(4, 3), list[_Held]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepscope.profile(model, optimizer, out=out, record="all") as scope:
        for _ in range(steps):
            loss = nn.CrossEntropyLoss()
            made.append(weakref.ref(loss))
            loss(model(torch.ones(2, 4)), torch.zeros(2, dtype=torch.long)).backward()
            optimizer.step()
            scope.step()
            del loss
    return scope.run, made


def test_a_loss_that_is_made_for_each_batch_is_one_row(tmp_path: Path) -> None:
    run, _ = _train(tmp_path, 8)
    losses = run.modules()["module"].str.contains("CrossEntropyLoss")
    assert int(losses.sum()) == 1
    assert run.model.filter(run.model["type"] == "CrossEntropyLoss")["module"].to_list() == ["CrossEntropyLoss"]


def test_a_loss_that_is_made_for_each_batch_is_not_kept_alive(tmp_path: Path) -> None:
    _, made = _train(tmp_path, 6)
    gc.collect()
    assert [loss for loss in made if loss() is not None] == []


def test_two_losses_that_live_at_once_are_two_modules() -> None:
    book, one, other = ModuleBook(), nn.MSELoss(), nn.MSELoss()
    assert book.index(one) != book.index(other)
    assert book.index(one) == book.index(one)
    assert [name for name, _ in book.names()] == ["MSELoss", "MSELoss#2"]


def test_the_place_of_a_loss_that_is_gone_is_not_given_to_another_kind() -> None:
    book = ModuleBook()
    first = book.index(nn.MSELoss())
    second = book.index(nn.L1Loss())
    assert first != second
    assert book.index(nn.MSELoss()) == first


def test_a_model_is_kept_alive_though_nobody_else_holds_it() -> None:
    book = ModuleBook()
    book.add_root(nn.Linear(2, 2))
    gc.collect()
    assert isinstance(book.modules()[0], nn.Linear)
