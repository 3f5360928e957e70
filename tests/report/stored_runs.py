"""Runs that every first screen must answer: simulated, of a GPU, compiled, failed, empty, of two ranks, large."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.analysis.parts import Row, call, join, mm, reduce, write_part
from tests.fabricate import MODEL, STEP, Op, Sampled, every_step, fabricate_run, walk
from tests.importers.profiler_json import op, write
from tests.importers.profiler_json import step as mark

from stepscope.importers import Options, import_file
from stepscope.runfolder import RunWriter

READ = {"refresh_ns": 1_000, "source": "synthetic"}
POWER = {"sensor": "ina3221", "quantity": "power", "unit": "W", "kind": "gauge", "parent_scope": "board", **READ}


def simulated_board(out: Path, steps: int = 60, **options: Any) -> Path:
    """Return a run with five rails of a simulated board, and a zone that grows warm; options of its network."""
    length_us = sum(op.self_us for op in walk(options.get("ops", STEP)))
    t_ns = np.arange(-10_000_000, max(1_000_000_000, steps * length_us * 1_100), 10_000_000, dtype=np.int64)
    rails = [("VDD_IN", 6.0), ("VDD_SYS_CPU", 2.0), ("VDD_SYS_GPU", 0.2),
             ("VDD_SYS_DDR", 1.2), ("VDD_SYS_SOC", 0.9)]  # fmt: skip
    rows = [({"id": f"rail.{name}.power", "scope": f"rail:{name}", "rail": name}, watts) for name, watts in rails]
    sampled = [Sampled({**POWER, **channel}, t_ns, 0 * t_ns + watts) for channel, watts in rows]
    zone = {"sensor": "temperature", "id": "zone0", "quantity": "temperature", "unit": "degC", "scope": "zone:CPU"}
    sampled.append(Sampled({**zone, "kind": "gauge", **READ}, t_ns, np.linspace(40.0, 61.5, len(t_ns))))
    header = {"simulated": "jetson-tx2"}
    device = {
        "board": "quill",
        "compatible": "nvidia,quill nvidia,tegra186",
        "cpu": "AMD EPYC",
        "memory_bytes": 8_000_000_000,
    }
    return fabricate_run(out, steps=steps, header=header, device=device, sampled=tuple(sampled), noise=0.02, **options)


def failed(out: Path) -> Path:
    path = fabricate_run(out, status=None)
    RunWriter(path, json.loads((path / "run.json").read_text())).close("failed", "ValueError: boom")
    return path


def two_ranks(out: Path) -> Path:
    """Rank 1 arrives 50 ms after rank 0, which waits for it."""
    update = Row("aten::add_", "optimizer", 80_000, 1e5)
    first = [mm(0, 20_000), call(20_000, 20_100), reduce(20_100, 80_000), update]
    second = [mm(50_000, 70_000), call(70_000, 70_100), reduce(70_100, 80_000), update]
    part = write_part(out, step=lambda _: second, length_us=100_000, rank=1)
    return join(write_part(out, step=lambda _: first, length_us=100_000), part)


def many_layers(out: Path) -> Path:
    names = [f"encoder.layers.{number}.attention.projection" for number in range(40)]
    ops = (*STEP, *(Op("aten::addmm", name, "forward", 300, flops=1_000_000, bytes=8_000) for name in names))
    model = (*MODEL, *((name, "NonDynamicallyQuantizableLinear", "", 10) for name in names))
    return fabricate_run(out, steps=40, ops=ops, model=model, noise=0.3, overhead=0.6)


_LAYERS = (("Conv2d_0", "conv2d", 900), ("BatchNorm2d_0", "batch_norm", 250), ("Linear_0", "linear", 400))  # us


def imported_from_a_gpu(out: Path) -> Path:
    """A torch.profiler file of twelve steps of 10 ms whose kernels run on a GPU behind the CPU that launches them."""
    out.mkdir(parents=True, exist_ok=True)
    events = [event for number in range(12) for event in _gpu_step(number, 10_000.0 * number)]
    facts = {"deviceProperties": [{"id": 0, "name": "Orin"}], "with_stack": 1, "record_shapes": 0}
    return import_file(write(out / "trace.json", events, **facts), out=out, options=Options(batch_size=32))


def _gpu_step(number: int, t0_us: float) -> list[dict[str, Any]]:
    """The marks of a step: each layer launches a kernel forward and, in the thread of autograd, two backward."""
    events = [mark(number, t0_us, 10_000.0)]
    on_gpu = t0_us + 300.0
    names = [*_LAYERS, *((layer, f"{name}_backward", 2 * length) for layer, name, length in reversed(_LAYERS))]
    for place, (layer, name, length) in enumerate(names):
        at, label, backward = t0_us + 100 + 200 * place, 100 * number + place + 1, name.endswith("_backward")
        sequence = 100 * number + (5 - place if backward else place)
        said = {"External id": label, "Sequence number": sequence, "Fwd thread id": 1 if backward else 0}
        if not backward:
            events.append(op(f"nn.Module: {layer}", at - 10, 180, "python_function"))
        thread = 8 if backward else 7
        if backward:
            node = f"{name.removesuffix('_backward').title()}Backward0"
            events.append(op(f"autograd::engine::evaluate_function: {node}", at - 20, 180, tid=thread, args=said))
            events.append(op(node, at - 10, 170, tid=thread, args=said))
        events.append(op(f"aten::{name}", at, 150, tid=thread, args=said))
        launch = {"External id": label, "correlation": label}
        events.append(op("cudaLaunchKernel", at + 50, 20, "cuda_runtime", thread, launch))
        stream = {"device": 0, "stream": 7, "correlation": label}
        events.append(op(f"void {name}_kernel<float, 4>(...)", on_gpu, float(length), "kernel", 7, stream))
        on_gpu += length
    return [*events, op("Optimizer.step#SGD.step", t0_us + 1_500, 300, "user_annotation")]


def compiled(out: Path) -> Path:
    """The network in one compiled region: neither calls of its layers nor kernels are seen, only two graphs."""
    forward = Op("## Call CompiledFxGraph f0a1 ##", "", "forward", 4_000)
    called = Op("CompiledFunction", "", "forward", 50, (forward,))
    region = Op("Torch-Compiled Region: 0/0", "", "forward", 200, (called,))
    graph = Op("## Call CompiledFxGraph f0a2 ##", "", "backward", 8_000)
    backward = Op("CompiledFunctionBackward", "", "backward", 100, (graph,))
    ops = (STEP[0], Op("nn.Net", "", "forward", 50, (region,)), backward, STEP[-1])
    path = fabricate_run(out, steps=60, ops=ops, noise=0.02, header={"compile_s": 21.5})
    rows = json.loads((path / "model.json").read_text())
    for row in rows if isinstance(rows, list) else rows["modules"]:
        row["region"] = "compiled" if row["module"] else None
    (path / "model.json").write_text(json.dumps(rows))
    return path


_BLOCKS, _MANY_STEPS = 50, 800


def a_million_operators(out: Path) -> Path:
    """A network of 200 layers whose every step was profiled: 800 steps of 1,250 op calls."""
    blocks = tuple(
        Op(f"aten::addmm_{call}", f"blocks.{block}.{layer}", phase, 30, flops=1_000_000, bytes=8_000)
        for block in range(_BLOCKS)
        for layer in ("query", "key", "value", "feed")
        for phase in ("forward", "backward")
        for call in range(3)
    )
    names = [(f"blocks.{block}", "Block", "") for block in range(_BLOCKS)]
    names += [(f"blocks.{block}.{layer}", "Linear", f"blocks.{block}")
              for block in range(_BLOCKS) for layer in ("query", "key", "value", "feed")]  # fmt: skip
    model = (("", "Net", None, 0), *((name, kind, parent, 10) for name, kind, parent in names))
    ops = (STEP[0], *blocks, *(Op("aten::add_", None, "optimizer", 5) for _ in range(50 - 1)))
    return fabricate_run(
        out, steps=_MANY_STEPS, ops=ops, model=model, recorded=every_step, noise=0.03, power_w=5.0, steps_per_part=200
    )


RUNS: dict[str, Callable[[Path], Path]] = {
    "without sensors": lambda out: fabricate_run(out, steps=60, noise=0.02, overhead=0.05),
    "with power": lambda out: fabricate_run(out, steps=60, power_w=5.0),
    "of a simulated board": simulated_board,
    "imported from a GPU": imported_from_a_gpu,
    "compiled": compiled,
    "failed": failed,
    "empty": lambda out: fabricate_run(out, steps=0, ops=(), samples=False),
    "warm-up alone": lambda out: fabricate_run(out, steps=3),
    "without operators": lambda out: fabricate_run(out, steps=20, recorded=lambda step: False),
    "of two ranks": two_ranks,
    "of many layers": many_layers,
}
