"""Measured memory of real small trainings, against sums counted by hand and against what torch's own hooks say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.record.loops import Loop, record, simple_loop
from torch import nn
from torch.utils.checkpoint import checkpoint

import stepscope
from stepscope.analysis.run import Run
from stepscope.record import kineto
from stepscope.record.memory.tensor_watch import MemoryWatch

WIDE, DEEP, BATCH = 64, 8, 32
F32 = 4


def measured(loop: Loop, out: Path, model: Any = None, **options: Any) -> Run:
    """A run whose every step has its memory recorded."""
    torch.set_num_threads(1)
    return Run(record(loop, out, model, **{"memory": "all", **options}).path)


def texts(run: Run) -> pl.DataFrame:
    names = ("category", "module", "op", "phase", "device", "shape")
    return run.memory_events.with_columns(pl.col(names).cast(pl.String))


def allocated(run: Run, category: str, step: int | None = None) -> pl.DataFrame:
    """What a step allocated of a category; of the last step unless it is named."""
    rows = texts(run).filter((pl.col("bytes") > 0) & (pl.col("category") == category) & pl.col("op").is_not_null())
    return rows.filter(pl.col("step") == (rows["step"].max() if step is None else step))


def two_layers() -> nn.Module:
    """Linear, ReLU, Linear: saves its input, the ReLU's output, and nothing else."""
    return nn.Sequential(nn.Linear(DEEP, WIDE), nn.ReLU(), nn.Linear(WIDE, DEEP))


def parameter_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def test_every_category_of_a_small_training_is_what_one_counts_by_hand(tmp_path: Path) -> None:
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters())

    def loop(step: Callable[[], None]) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(BATCH, DEEP)).sum().backward()
            optimizer.step()
            step()

    found = measured(loop, tmp_path, model).peak()
    assert found is not None
    held = dict(found.categories.select("category", "bytes").iter_rows())
    parameters = parameter_bytes(model)
    assert held["parameter"] == parameters
    assert held["optimizer"] == 2 * parameters + F32 * len(
        list(model.parameters())
    )  # two moments and a step count each
    assert held["input"] == BATCH * DEEP * F32
    assert sum(held.values()) == found.bytes


def test_the_feature_maps_that_backward_needs_are_saved_and_have_layer_and_shape(tmp_path: Path) -> None:
    model = two_layers()
    run = measured(simple_loop(model, 4, BATCH, DEEP), tmp_path, model)
    saved = allocated(run, "saved").filter(pl.col("bytes") > 100)
    assert saved.select("module", "shape", "bytes").rows() == [("1", f"{BATCH}x{WIDE}", BATCH * WIDE * F32)]


def test_live_bytes_are_nothing_before_and_after_and_never_negative(tmp_path: Path) -> None:
    model = two_layers()
    run = measured(simple_loop(model, 5, BATCH, DEEP), tmp_path, model)
    live = run.memory()["live"]
    assert live.min() == 0
    assert live[-1] == 0


def test_categories_add_up_to_the_live_bytes_at_each_instant(tmp_path: Path) -> None:
    model = two_layers()
    over_time = measured(simple_loop(model, 4), tmp_path, model).memory()
    summed = over_time.select(pl.sum_horizontal(pl.exclude("step", "t_ns", "live", "residual"))).to_series()
    assert summed.to_list() == over_time["live"].to_list()


def test_gradients_have_their_module_and_parameters_shape(tmp_path: Path) -> None:
    model = two_layers()
    run = measured(simple_loop(model, 4, BATCH, DEEP), tmp_path, model)
    gradients = allocated(run, "gradient").select("module", "shape", "phase").rows()
    assert set(gradients) == {
        ("0", f"{WIDE}x{DEEP}", "backward"),
        ("0", f"{WIDE}", "backward"),
        ("2", f"{DEEP}x{WIDE}", "backward"),
        ("2", f"{DEEP}", "backward"),
    }


def saved_by_hooks(model: nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """Bytes of what one forward pass saves, other than parameters and buffers, as torch's own hooks see it."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = forward()
    total = sum(seen.values())
    del kept
    return total


def small_cnn() -> nn.Module:
    convolution = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(convolution, nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 64, 10))


def test_saved_bytes_agree_with_the_hooks_of_torch(tmp_path: Path) -> None:
    model, batch = small_cnn(), torch.randn(4, 3, 16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    target = torch.randint(0, 10, (4,))

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch), target)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step()

    expected = saved_by_hooks(model, loss) - batch.untyped_storage().nbytes() - target.untyped_storage().nbytes()
    ours = allocated(measured(loop, tmp_path, model), "saved")["bytes"].sum()
    assert ours == pytest.approx(expected, rel=0.01)


def test_allocations_agree_with_the_profiler_of_torch(tmp_path: Path) -> None:
    """torch.profiler's own memory events of a step, summed, against ours of a step that does the same."""
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.randn(4, 3, 16, 16)

    def one() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    def loop(step: Callable[[], None]) -> None:
        for _ in range(5):
            one()
            step()

    run = measured(loop, tmp_path, model)
    ours = texts(run).filter((pl.col("step") == 4) & (pl.col("bytes") > 0) & pl.col("op").is_not_null())["bytes"].sum()
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        one()
    events = profiler.profiler.kineto_results.events()
    theirs = sum(e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0)
    assert ours == pytest.approx(theirs, rel=0.001)


def test_recomputed_feature_maps_are_saved_only_while_their_segment_is_recomputed(tmp_path: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = two_layers(), two_layers()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in (self.first, self.second):
                x = checkpoint(part, x, use_reentrant=False)
            return x

    model = Checkpointed()
    run = measured(simple_loop(model, 4, BATCH, DEEP), tmp_path, model)
    maps = allocated(run, "saved").filter(pl.col("bytes") == BATCH * WIDE * F32)
    assert maps["phase"].to_list() == ["backward", "backward"]
    assert maps["module"].to_list() == ["second.1", "first.1"]


def test_a_gan_has_the_gradients_and_states_of_both_its_models(tmp_path: Path) -> None:
    generator, discriminator = two_layers(), two_layers()
    optimizers = [torch.optim.Adam(m.parameters()) for m in (generator, discriminator)]

    def loop(step: Callable[[], None]) -> None:
        for _ in range(4):
            fake = generator(torch.randn(BATCH, DEEP))
            optimizers[1].zero_grad()
            discriminator(fake.detach()).sum().backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            discriminator(fake).sum().backward()
            optimizers[0].step()
            step()

    run = measured(loop, tmp_path, {"G": generator, "D": discriminator})
    found = run.peak()
    assert found is not None
    assert found.residual_share < 0.02
    held = dict(found.categories.select("category", "bytes").iter_rows())
    both = parameter_bytes(generator) + parameter_bytes(discriminator)
    assert held["parameter"] == both
    assert held["optimizer"] == 2 * both + F32 * 8
    assert {m.split(".")[0] for m in allocated(run, "gradient")["module"]} == {"G", "D"}


def test_frozen_layers_have_no_gradients_and_save_nothing_of_their_own(tmp_path: Path) -> None:
    model = two_layers()
    model[0].requires_grad_(False)  # type: ignore[index]
    run = measured(simple_loop(model, 4, BATCH, DEEP), tmp_path, model)
    assert set(allocated(run, "gradient")["module"]) == {"2"}
    assert allocated(run, "saved").filter(pl.col("bytes") > 100)["module"].to_list() == [
        "1"
    ]  # input of the layer above


def test_accumulated_gradients_are_allocated_once_a_round(tmp_path: Path) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(3):
                model(torch.randn(BATCH, DEEP)).sum().backward()
            optimizer.step()
            step()

    run = measured(loop, tmp_path, model)
    assert allocated(run, "gradient")["bytes"].sum() == parameter_bytes(model)


def test_a_custom_function_saves_what_it_asks_for(tmp_path: Path) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            kept = x * 2
            ctx.save_for_backward(kept)
            return x * x

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (kept,) = ctx.saved_tensors
            return torch.mul(gradients[0], kept)

    weight = torch.randn(BATCH, WIDE, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            Square.apply(weight).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step()

    run = measured(loop, tmp_path)
    assert BATCH * WIDE * F32 in allocated(run, "saved")["bytes"].to_list()
    found = run.peak()
    assert found is not None
    held = dict(found.categories.select("category", "bytes").iter_rows())
    assert held["parameter"] == weight.untyped_storage().nbytes()  # a parameter that no module has


def test_memory_kept_by_the_user_is_there_and_called_held(tmp_path: Path) -> None:
    kept = torch.zeros(50_000)
    model = two_layers()
    found = measured(simple_loop(model, 4), tmp_path, model).peak()
    assert found is not None
    held = found.tensors.filter((pl.col("bytes") == kept.untyped_storage().nbytes()) & (pl.col("op") == "held"))
    assert len(held) == 1
    assert found.residual_bytes == 0


def test_a_batch_from_before_the_window_is_input_of_its_own_size(tmp_path: Path) -> None:
    model, data = two_layers(), torch.randn(1000, DEEP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for first in range(0, 80, 20):
            optimizer.zero_grad()
            model(data[first : first + 20]).sum().backward()  # a view: the whole data set is what is held
            optimizer.step()
            step()

    found = measured(loop, tmp_path, model).peak()
    assert found is not None
    inputs = found.tensors.filter(pl.col("category") == "input")
    assert inputs["bytes"].to_list() == [1000 * DEEP * F32]


def test_gradients_from_before_the_window_end_where_they_are_set_to_none(tmp_path: Path) -> None:
    model = two_layers()
    run = measured(simple_loop(model, 6, BATCH, DEEP), tmp_path, model, memory="auto", record="every:2")
    rows = texts(run).filter((pl.col("category") == "gradient") & pl.col("op").is_null())
    first, last = rows.filter(pl.col("bytes") > 0), rows.filter(pl.col("bytes") < 0)
    assert len(first) == len(last) == 8  # four gradients in each of the two windows
    steps = run.steps.filter(pl.col("step").is_in(first["step"].unique().to_list()))
    assert set(last["t_ns"]).isdisjoint(steps["t1_ns"])  # within the step, not at its end


def test_auto_takes_one_step_of_warm_up_and_one_after_it(tmp_path: Path) -> None:
    model = two_layers()
    run = measured(simple_loop(model, 10), tmp_path, model, memory="auto")
    assert run.memory_events["step"].unique().sort().to_list() == [1, 3]


def test_a_step_that_repeats_another_takes_its_shapes(tmp_path: Path) -> None:
    model = two_layers()
    run = measured(simple_loop(model, 10, BATCH, DEEP), tmp_path, model, memory="auto")
    assert f"{BATCH}x{WIDE}" in allocated(run, "saved", step=3)["shape"].to_list()


def test_memory_that_is_off_records_nothing(tmp_path: Path) -> None:
    model = two_layers()
    run = measured(simple_loop(model, 6), tmp_path, model, memory="off")
    assert run.memory_events.is_empty()
    assert run.peak() is None
    assert len(run.ops) > 0


def test_a_slip_of_the_pen_is_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(stepscope.errors.UsageError, match="cannot record memory 'some'"):
        measured(simple_loop(two_layers(), 1), tmp_path, memory="some")


def test_the_training_and_its_ops_go_on_where_looking_at_memory_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_watch: MemoryWatch) -> None:
        raise RuntimeError("no storage")

    monkeypatch.setattr(MemoryWatch, "before_optimizer", broken)
    model = two_layers()
    run = measured(simple_loop(model, 5), tmp_path, model)
    assert [event["message"] for event in run.events if event["kind"] == "memory-lost"] == ["RuntimeError: no storage"]
    assert run.steps["recorded"].all()


def test_nothing_appears_on_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The CPU allocator of torch would warn of every 1,000th free of what is older than the profile."""
    kept = [torch.empty(10) for _ in range(3000)]
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(BATCH, DEEP)).sum().backward()
            optimizer.step()
            del kept[:1000]
            step()

    measured(loop, tmp_path, model)
    assert capfd.readouterr().err == ""


def test_a_sparse_parameter_is_left_out_and_breaks_nothing(tmp_path: Path) -> None:
    table = nn.Embedding(100, 8, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            table(torch.randint(0, 100, (16,))).sum().backward()
            optimizer.step()
            step()

    run = measured(loop, tmp_path, table)
    assert not [event for event in run.events if event["kind"] in ("memory-lost", "ops-lost")]
    assert run.peak() is not None


def test_the_run_says_what_the_allocator_is_and_holds(tmp_path: Path) -> None:
    model = two_layers()
    run = measured(simple_loop(model, 4), tmp_path, model)
    assert run.meta["malloc"]["name"] in ("default", "pinned")
    reserved = run.meta["recorder"]["reserved_bytes"]
    found = run.peak()
    assert found is not None
    if str(run.meta["malloc"]["library"]).startswith("glibc"):
        assert reserved["cpu"] > 0


def test_a_torch_without_the_event_tree_still_records_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = kineto.KinetoWindow.stop

    def without_tree(window: kineto.KinetoWindow, end_scopes: Callable[[], None]) -> list[Any]:
        events = original(window, end_scopes)
        window.tree = [object()]
        return events

    monkeypatch.setattr(kineto.KinetoWindow, "stop", without_tree)
    model = two_layers()
    run = measured(simple_loop(model, 4), tmp_path, model)
    assert run.memory_events.is_empty()
    assert len(run.ops) > 0
    assert [event["kind"] for event in run.events if "lost" in event["kind"]] == ["memory-lost"]
