"""Our rows against torch.profiler's own reading of the very same events."""

from __future__ import annotations

import time
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

from stepscope.clock import unix_minus_monotonic_ns
from stepscope.record import torch_private
from stepscope.record.fault_boundary import Boundary
from stepscope.record.ops.events import MODULE_SCOPE, Names
from stepscope.record.ops.modules import ModuleRegistry
from stepscope.record.ops.rows import OpCostsByShape, StepSpan, Window, rows_of
from stepscope.record.ops.updates import OptimizerCalls
from stepscope.record.torch_hooks import TorchHooks
from stepscope.runfolder.tables import frame_of


class ScopesAlone:
    """A listener that only names the ranges of module calls."""

    def __init__(self, book: ModuleRegistry) -> None:
        self._book = book

    def makes_scope(self, module: nn.Module) -> torch_private.Scope:
        return torch_private.make_call_scope(f"{MODULE_SCOPE}{self._book.index(module)}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


LAYERS = {"0": "ConvolutionBackward0", "1": "NativeBatchNormBackward0", "2": "ReluBackward0", "4": "AddmmBackward0"}


@pytest.fixture(scope="module")
def both() -> tuple[pl.DataFrame, Any, ModuleRegistry]:
    """Three steps recorded once: (our rows, torch's FunctionEvents, the modules)."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    book = ModuleRegistry()
    book.add_root(model)
    routes, spans = TorchHooks(Boundary(lambda _: None), ScopesAlone(book)), []
    offset = unix_minus_monotonic_ns()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        routes.install()
        routes.modules.profile(True)
        for step in range(3):
            began = time.monotonic_ns()
            optimizer.zero_grad()
            model(torch.randn(8, 3, 16, 16)).sum().backward()
            optimizer.step()
            spans.append(StepSpan(step, began, time.monotonic_ns(), 8))
        routes.remove()
    raw = profiler.profiler.kineto_results.events()
    window = Window(raw, spans, offset, OptimizerCalls(), shapes=False, cuda=False)
    rows = frame_of(rows_of(window, Names(), book.names(), OpCostsByShape()).part, "ops")
    return rows.with_columns(pl.col("name", "module", "phase").cast(pl.String)), profiler.events(), book


@pytest.mark.parametrize("layer", LAYERS)
def test_forward_and_backward_of_a_layer_agree_with_torch_profiler(both: Any, layer: str) -> None:
    rows, events, book = both
    index = next(i for i, (name, _) in enumerate(book.names()) if name == layer)
    theirs_forward = sum(e.cpu_time_total for e in events if e.name == f"#stepscope.module:{index}")
    node = f"autograd::engine::evaluate_function: {LAYERS[layer]}"
    theirs_backward = sum(e.cpu_time_total for e in events if e.name == node)
    own = rows.filter(pl.col("module") == layer)
    forward = own.filter(pl.col("phase") == "forward")["self_ns"].sum() / 1e3
    nodes = own.filter(pl.col("name") == node)
    backward = (nodes["t1_ns"] - nodes["t0_ns"]).sum() / 1e3
    assert forward == pytest.approx(theirs_forward, rel=0.03)
    assert backward == pytest.approx(theirs_backward, rel=0.03)


def test_self_times_agree_with_torch_profiler_op_by_op(both: Any) -> None:
    rows, events, _ = both
    ours = {name: us for name, us in rows.group_by("name").agg(pl.col("self_ns").sum() / 1e3).iter_rows()}  # noqa: C416
    theirs: dict[str, float] = {}
    for event in events:
        theirs[event.name] = theirs.get(event.name, 0.0) + event.self_cpu_time_total
    always = {"aten::mkldnn_convolution", "aten::convolution_backward", "aten::native_batch_norm"}
    assert always <= set(ours) & set(theirs)
    long = {name for name in ours if theirs.get(name, 0.0) > 100}  # us: torch rounds each instance
    for name in always | long:
        assert ours[name] == pytest.approx(theirs[name], rel=0.03), name
