"""Whose parameter each op of an optimizer's update belongs to, with any number of parameter groups."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
import torch._dynamo
from tests.patience import HANG_S
from tests.record.loops import last_step, record
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import stepscope
from stepscope.analysis.run import Run
from stepscope.record.fault_boundary import Boundary
from stepscope.record.ops.updates import Update, UpdateCache, ops_of_a_parameter, shares_of
from stepscope.record.torch_hooks import TorchHooks
from stepscope.record.torch_private import remove_optimizer_hook

DECAYED, PLAIN = [3, 1, 2, 2], [1, 2, 2]  # ops of a parameter with weight decay, and of one without


def divided(ops: list[int], *groups: tuple[int, int]) -> tuple[int, ...] | None:
    return ops_of_a_parameter(np.array(ops, dtype=np.int64).tobytes(), groups)


def test_groups_with_other_options_have_other_ops_a_parameter() -> None:
    assert divided(DECAYED * 5 + PLAIN * 3, (5, 0), (3, 1)) == (4, 3)


def test_a_group_for_each_parameter_is_told_by_the_options_that_groups_share() -> None:
    assert divided(DECAYED + PLAIN + DECAYED + PLAIN, (1, 0), (1, 1), (1, 0), (1, 1)) == (4, 3, 4, 3)


def test_ops_that_no_division_explains_are_nobodys() -> None:
    assert divided([1, 2, 3, 4, 5], (2, 0), (2, 1)) is None


def test_shares_are_by_elements_and_leave_out_what_has_no_module() -> None:
    update = Update(((0, 0, 1), (-1,)), ((6, 2, 4), (4,)), (0, 1))
    assert shares_of([update]) == {0: 0.5, 1: 0.25}


@pytest.mark.parametrize("groups", [2, 4])
def test_layers_have_their_updates_whatever_the_groups(groups: int, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    parameters = list(model.parameters())
    splits: dict[int, list[dict[str, Any]]] = {
        2: [{"params": parameters[::2], "weight_decay": 0.1}, {"params": parameters[1::2]}],
        4: [{"params": [p], "weight_decay": 0.1 * (p.dim() > 1)} for p in parameters],
    }
    rows = last_step(record(loop_of(model, torch.optim.AdamW(splits[groups], weight_decay=0)), tmp_path, model))
    updates = rows.filter((pl.col("phase") == "optimizer") & (pl.col("name") == "aten::addcdiv_"))
    wanted = ["0", "2", "0", "2"] if groups == 2 else ["0", "0", "2", "2"]
    assert updates["module"].to_list() == wanted


class Derived(torch.optim.SGD):
    """Its update is that of its base class, which torch makes a range of its own for."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_layers_have_their_updates_where_a_step_calls_that_of_its_base_class(tmp_path: Path) -> None:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)  # torch routes the step of a class with its first object
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    rows = last_step(record(loop_of(model, Derived(model.parameters(), lr=0.01, foreach=False)), tmp_path, model))
    updates = rows.filter((pl.col("phase") == "optimizer") & (pl.col("name") == "aten::add_"))
    assert updates["module"].to_list() == ["0", "0", "2", "2"]


def loop_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def loop(step: Any) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            step()

    return loop


@pytest.mark.parametrize("one_kernel", ["foreach", "fused"])
def test_the_time_of_one_kernel_for_many_layers_is_shared_out_by_elements(one_kernel: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 24, bias=False), nn.Linear(24, 8, bias=False), nn.Linear(8, 3, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=one_kernel == "foreach", fused=one_kernel == "fused")
    run = record(loop_of(model, optimizer), tmp_path, model)
    shares = dict(run.model.select("module", "update_share").drop_nulls().iter_rows())
    assert shares == pytest.approx({"0": 192 / 408, "1": 192 / 408, "2": 24 / 408})
    modules = Run(run.path).modules().filter(pl.col("module").is_in(list(shares)))
    spent = dict(modules.select("module", "optimizer_ns").iter_rows())
    assert spent["0"] > 0
    assert spent == pytest.approx({each: share / shares["0"] * spent["0"] for each, share in shares.items()}, rel=0.01)
    assert modules["optimizer_shared"].all()
    assert float(Run(run.path).modules()["share"].sum()) == pytest.approx(1)


def test_heads_that_take_turns_each_have_their_own_updates(tmp_path: Path) -> None:
    trunk, heads = nn.Linear(8, 8), [nn.Linear(8, 1), nn.Linear(8, 1)]
    model = nn.ModuleDict({"trunk": trunk, "a": heads[0], "b": heads[1]})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Any) -> None:
        for number in range(6):
            optimizer.zero_grad()
            heads[number % 2](trunk(torch.randn(4, 8))).sum().backward()
            optimizer.step()
            step()

    ops = record(loop, tmp_path, model).ops.with_columns(pl.col("name", "module", "phase").cast(pl.String))
    updates = ops.filter(pl.col("phase") == "optimizer", pl.col("name") == "aten::add_")
    for step in range(6):
        head = "ab"[step % 2]
        assert updates.filter(pl.col("step") == step)["module"].to_list() == ["trunk", "trunk", head, head]


def test_a_parameter_with_the_id_of_one_that_has_died_belongs_to_the_layer_that_it_is_in_now() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    owners = {id(parameter): 0}
    book, optimizer = UpdateCache(lambda: dict(owners), lambda: False), torch.optim.SGD([parameter], lr=0.1)
    book.window_begins()
    assert book.update_of_optimizer(optimizer).modules == ((0,),)
    owners[id(parameter)] = 1
    book.window_begins()
    assert book.update_of_optimizer(optimizer).modules == ((1,),)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_layers_in_compiled_and_scripted_code_are_null_never_zero(tmp_path: Path) -> None:
    torch._dynamo.reset()  # other tests may have compiled Sequential.forward as often as it may be
    inner: Any = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    compiled: Any = torch.compile(nn.Sequential(nn.Linear(8, 8)), backend="eager")
    model = nn.Sequential(compiled, inner, nn.Linear(8, 1))
    run = Run(record(loop_of(model, torch.optim.SGD(model.parameters(), lr=0.1)), tmp_path, model).path)
    known = {row["module"]: row for row in run.modules().iter_rows(named=True)}
    for hidden in ("0.0", "1.0", "1.1"):
        assert known[hidden]["forward_ns"] is known[hidden]["backward_ns"] is known[hidden]["calls"] is None
    assert known["1"]["backward_ns"] > 0
    assert known["2"]["forward_ns"] > 0
    said = {gap.what: gap.why for gap in run.not_measured()}
    assert "compiling took" in said["forward and backward of 1 module"]
    assert "scripted" in said["forward and backward of 2 modules"]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.parametrize("whole_step", [True, False])
def test_steps_of_which_a_compiled_function_makes_a_part_or_all_are_counted(whole_step: bool, tmp_path: Path) -> None:
    """Dynamo breaks its graph at a backward pass, and compiles what it comes to behind that, unless it is torch's."""
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss() -> torch.Tensor:
        return cast("torch.Tensor", model(torch.ones(4, 8)).square().mean())

    def train() -> None:
        optimizer.zero_grad()
        (loss() if whole_step else compiled_loss()).backward()
        optimizer.step()

    compiled_loss: Any = torch.compile(loss, backend="eager")
    train_one: Any = torch.compile(train, backend="eager") if whole_step else train
    with stepscope.profile(steps="optimizer", out=tmp_path, record="all") as scope:
        for _ in range(6):
            train_one()
    assert scope.run.steps.height == 6
    gaps = {gap.what: gap.why for gap in scope.run.not_measured()}
    assert "compiled functions" in gaps["layers"]
    assert "layers in forward" not in gaps


def test_a_hook_of_ours_may_go_while_an_optimizer_steps_and_others_have_hooks_of_their_own() -> None:
    """Torch walks through the hooks as they are: to remove one would end the step with a RuntimeError."""
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    seen: list[str] = []
    handles: list[Any] = []

    def leaves(*_: Any) -> None:
        seen.append("ours")
        remove_optimizer_hook(handles[0])

    handles.append(register_optimizer_step_post_hook(leaves))
    other = register_optimizer_step_post_hook(lambda *_: seen.append("theirs"))
    hooks = handles[0].hooks_dict_ref()
    before = len(hooks)
    try:
        parameter.grad = torch.ones(1)
        optimizer.step()
        optimizer.step()
    finally:
        other.remove()
    assert seen == ["ours", "theirs", "theirs"]
    remove_optimizer_hook(handles[0])  # nobody steps now
    assert len(hooks) == before - 2


def test_updates_of_two_threads_are_counted_apart() -> None:
    """The step of a class calls that of its base: torch calls the hooks twice, and another thread comes in between."""
    counted: list[str] = []
    listener = SimpleNamespace(after_optimizer=lambda optimizer: counted.append(threading.current_thread().name))
    hooks = TorchHooks(Boundary(lambda _: None), listener)
    inside, done = threading.Event(), threading.Event()

    class Waiting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            found = super().step(closure)
            inside.set()
            assert done.wait(HANG_S)
            return found

    def update(kind: Any) -> None:
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.ones(1)
        kind([parameter], lr=0.1).step()

    handles = [
        register_optimizer_step_pre_hook(hooks._before_update), register_optimizer_step_post_hook(hooks._after_update)
    ]  # fmt: skip
    try:
        first = threading.Thread(target=update, args=(Waiting,), name="first")
        first.start()
        assert inside.wait(HANG_S)
        update(torch.optim.SGD)
        done.set()
        first.join()
    finally:
        for handle in handles:
            handle.remove()
    assert sorted(counted) == ["MainThread", "first"]


def test_a_model_that_was_compiled_within_a_run_is_not_compiled_anew_after_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    compiled: Any = torch.compile(model, backend="eager")  # Dynamo notes what a module's plain call is

    def train() -> None:
        optimizer.zero_grad()
        compiled(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    with stepscope.profile(model, out=tmp_path) as scope:
        for _ in range(4):
            train()
            scope.step()
    with torch.compiler.set_stance("fail_on_recompile"):
        train()
        with stepscope.profile(model, out=tmp_path) as scope:
            train()
    assert nn.Module.__call__ is torch._dynamo.utils.unpatched_nn_module_call
