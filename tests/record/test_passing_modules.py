"""Modules that are made anew for every step: losses, in some libraries."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import stepscope
from stepscope.record.gradient_threads import GradientThreads
from stepscope.record.ops import modules
from stepscope.record.ops.modules import ModuleRegistry
from stepscope.record.run_facts import model_json_rows
from stepscope.record.steps import StepFinder
from stepscope.runfolder import RunReader

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


def _train_with_two_losses(out: Path, steps: int, record: str) -> RunReader:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepscope.profile(model, out=out, record=record) as scope:
        for _ in range(steps):
            given, wanted = model(torch.ones(2, 4)), torch.zeros(2, 3)
            (nn.MSELoss()(given, wanted) + nn.L1Loss()(given, wanted)).backward()  # one is where the other was
            optimizer.step()
            scope.step()
    return RunReader(scope.path)


def _calls(rows: pl.DataFrame) -> set[tuple[str, int]]:
    """How often which module is called in a step, over the steps."""
    named = rows.with_columns(pl.col("name", "module").cast(pl.String)).filter(pl.col("name").str.starts_with("nn."))
    return set(named.group_by("step", "module").len().select("module", "len").rows())


def test_a_module_at_the_address_of_one_that_is_gone_has_its_own_name(tmp_path: Path) -> None:
    run = _train_with_two_losses(tmp_path, 8, "all")
    assert _calls(run.ops) == {("", 1), ("MSELoss", 1), ("L1Loss", 1)}


def test_a_module_at_the_address_of_one_that_is_gone_has_its_own_name_where_layers_alone_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.record.plan.BUDGET", 1e6)  # everything is affordable
    run = _train_with_two_losses(tmp_path, 60, "adaptive")
    assert run.layer_calls.height > 0
    assert _calls(run.layer_calls) == {("", 1), ("MSELoss", 1), ("L1Loss", 1)}


def test_a_loss_that_is_made_for_each_batch_is_not_kept_alive(tmp_path: Path) -> None:
    _, made = _train(tmp_path, 6)
    gc.collect()
    assert [loss for loss in made if loss() is not None] == []


def test_two_losses_that_live_at_once_are_two_modules() -> None:
    book, one, other = ModuleRegistry(), nn.MSELoss(), nn.MSELoss()
    assert book.index(one) != book.index(other)
    assert book.index(one) == book.index(one)
    assert [name for name, _ in book.names()] == ["MSELoss", "MSELoss#2"]


def test_the_place_of_a_loss_that_is_gone_is_not_given_to_another_kind() -> None:
    book = ModuleRegistry()
    first = book.index(nn.MSELoss())
    second = book.index(nn.L1Loss())
    assert first != second
    assert book.index(nn.MSELoss()) == first


def test_a_model_that_is_gone_leaves_its_name_and_its_parameters() -> None:
    book, model = ModuleRegistry(), nn.Linear(2, 3)
    book.add_root(model)
    assert book.sizes()[0].parameters == 9
    gone = weakref.ref(model)
    del model
    assert gone() is None
    assert book.names() == [("", "Linear")]
    assert book.sizes()[0].parameters == 9


def test_a_model_of_each_fold_takes_the_place_of_the_last() -> None:
    book = ModuleRegistry()
    for _ in range(5):
        book.add_root(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert [name for name, _ in book.names()] == ["", "0", "1"]


def test_a_model_of_another_size_has_a_name_and_parameters_of_its_own() -> None:
    book = ModuleRegistry()
    for width in (2, 9, 2):
        model = nn.Sequential(nn.Linear(2, width))
        book.add_root(model)
        parameters = [sizes.parameters for sizes in book.sizes()]
        del model
    assert [name for name, _ in book.names()] == ["Sequential", "Sequential.0", "Sequential#2", "Sequential#2.0"]
    assert parameters == [6, 6, 27, 27]


def test_models_of_ever_other_sizes_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_MOST_SIZES", 5)
    book = ModuleRegistry()
    for width in range(1, 40):
        book.add_root(nn.Linear(1, width))
    assert len(book.roots) == 5


def test_a_second_training_of_another_model_is_profiled_too(tmp_path: Path) -> None:
    with stepscope.profile(None, out=tmp_path, steps="optimizer") as scope:
        for width in (4, 90):
            model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(40):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
    run = scope.run
    assert run.steps.filter(pl.col("recorded") & (pl.col("step") > 40)).height > 0
    assert run.model["parameters"].drop_nulls().max() == 4 * 90 + 90 + 90 + 1
    assert {"0", "2", "Sequential.0", "Sequential.2"} <= set(run.layers()["layer"])
    assert any(text.startswith("Another model was used from step 40 on") for text in run.verdict().cautions)


def test_modules_are_read_without_a_word_from_their_own_methods() -> None:
    class Hostile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.lazy = nn.Linear(2, 2), nn.LazyLinear(3)

        def named_modules(self, *_: object, **__: object) -> Any:
            raise ValueError("named_modules")

        parameters = __repr__ = __len__ = __bool__ = named_modules

    book, model = ModuleRegistry(), Hostile()
    model.layer.register_module("back", model)  # a cycle
    book.add_root(model)
    assert [name for name, _ in book.names()] == ["", "layer", "lazy"]
    assert [sizes.parameters for sizes in book.sizes()] == [None, None, None]


def test_the_variables_of_a_keras_layer_are_its_parameters() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._trainable_variables = [SimpleNamespace(_value=nn.Parameter(torch.zeros(3, 2)), path="kernel")]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = Layer()
            self.torch_params = nn.ParameterDict({"kernel": self.dense._trainable_variables[0]._value})

    book, model = ModuleRegistry(), Model()
    book.add_root(model)
    assert [sizes.parameters for sizes in book.sizes()] == [6, 6, 6]


def test_a_part_that_is_called_before_its_model_has_its_name_there() -> None:
    """To learn the size of its output, as many scripts do."""
    book = ModuleRegistry()
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 1))
    first = book.index(model[0])
    book.index(model)
    assert book.index(model[0]) == first
    assert sorted(name for name, _ in book.names()) == ["", "0", "0.0", "0.1", "1"]
    assert book.root_names() == {""}
    rows = model_json_rows(book, {}, {})
    assert [row["module"] for row in rows] == ["", "0", "0.0", "0.1", "1"]
    assert [row["parent"] for row in rows] == [None, "", "0", "0", ""]


def test_a_part_that_was_told_of_keeps_its_name() -> None:
    book, model = ModuleRegistry(), nn.Sequential(nn.Linear(2, 3))
    book.index(model[0])
    assert book.names() == [("", "Linear")]
    book.index(model)
    assert book.names() == [("", "Linear"), ("Sequential", "Sequential")]


@pytest.mark.parametrize("place", range(1, 7))
def test_an_exception_amid_the_registering_of_a_model_leaves_the_book_as_it_was(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that another thread sets, which no signal mask puts off."""
    book, part = ModuleRegistry(), nn.Linear(2, 2)
    book.add_root(part)
    model = nn.Sequential(nn.Sequential(part, nn.ReLU()), nn.Tanh())
    left, plain = place, modules._RegisteredModule

    def interrupted(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise TimeoutError
        return plain(*args)

    monkeypatch.setattr(modules, "_RegisteredModule", interrupted)
    adopt = ModuleRegistry._move_into_root
    monkeypatch.setattr(ModuleRegistry, "_move_into_root", lambda *args: (adopt(*args), interrupted(*[None] * 4)))
    with pytest.raises(TimeoutError) if place <= 5 else contextlib.nullcontext():
        book.add_root(model)
    assert book.knows(model) is (place > 5)
    left = 0
    book.add_root(model)
    assert book.names()[book.index(part)] == ("0.0", "Linear")
    assert sorted(name for name, _ in book.names()) == ["", "0", "0.0", "0.1", "1"]


def test_what_is_known_of_modules_that_are_made_anew_does_not_grow_with_the_steps() -> None:
    finder = StepFinder(
        GradientThreads(), True, None, lambda *_: None, lambda *_: False, lambda _: None, lambda _: True
    )
    inputs, targets = torch.ones(2, 4), torch.zeros(2, dtype=torch.long)

    def call(module: nn.Module, *given: torch.Tensor) -> torch.Tensor:
        finder.called(module, given, {})
        output: torch.Tensor = module(*given)
        finder.returned(module, output)
        return output

    for _ in range(1000):
        with torch.no_grad():
            call(nn.Softmax(-1), inputs)
        model = nn.Linear(4, 3)
        loss = call(nn.CrossEntropyLoss(), call(model, inputs), targets)
        finder.before_backward((loss,), None)
        loss.backward()  # type: ignore[no-untyped-call]
        finder.after_backward()
        optimizer = torch.optim.SGD(model.parameters())
        finder.before_update(optimizer)
        finder.after_update(optimizer)
        finder.step_ended()
    parts = [finder, *(part for part in vars(finder).values() if hasattr(part, "__dict__"))]
    containers = [held for part in parts for held in vars(part).values() if isinstance(held, (dict, set, list))]
    assert max(map(len, containers)) < 500


def test_a_thousand_models_of_a_list_are_told_apart_in_no_time() -> None:
    book, models = ModuleRegistry(), [nn.Linear(1, 1) for _ in range(1_000)]
    for model in models:
        book.index(model)
    assert book._searched < 200_000  # modules, at a microsecond each: of the last ones none was looked for
    names = [name for name, _ in book.names()]
    assert len(set(names)) == 1_000
    assert names[:3] == ["Linear", "Linear#2", "Linear#3"]


def test_a_layer_that_is_added_to_one_of_many_models_has_its_name_there() -> None:
    book, models = ModuleRegistry(), [nn.Sequential(nn.Linear(1, 1)) for _ in range(50)]
    for model in models:
        book.index(model)
    models[7].append(nn.Linear(1, 1))
    book.index(models[7][1])
    assert book.names()[-1][0].endswith(".1")
