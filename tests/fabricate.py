"""Builds synthetic run folders through RunWriter, with a truth that tests can state in advance.

The network is small: conv -> relu -> fc, then a loss, its backward pass and an SGD step. Every time is a
multiple of the template below, so a test knows each sum; `noise` and `overhead` scale whole steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.runfolder import RunWriter, part_of, sample_dtype
from stepscope.runfolder.checksums import CHECKSUMS
from stepscope.runfolder.pack import pack

# Of a slow device: the template's convolutions reach 2 of its 2.2 GFLOP/s, its products 1.1 of 1.2.
CEILINGS: dict[str, Any] = {
    "format": 2,
    "device": "cpu",
    "precision": "float32",
    "threads": 2,
    "arithmetic": [
        {"kind": kind, "what": "products", "flops": flops, "flops_per_s": rate}
        for kind, rate in (("gemm", 1.2e9), ("convolution", 2.2e9))
        for flops in (10_000, 1_000_000_000)
    ],
    "bandwidth": [
        {"kind": kind, "bytes": size, "bytes_per_s": 8e9}
        for kind in ("copy", "triad", "fresh")
        for size in (16_384, 67_108_864)
    ],
    "dispatch": {"op_ns": 1_000.0, "module_ns": 1_000.0, "backward_node_ns": 2_000.0, "python_call_ns": 50.0},
    "run_queue_share": 0.0,
}
START_NS = 1_000_000_000_000
EVALUATE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Op:
    """One op call of a step: its own time on the CPU, us, and what it calls."""

    name: str
    module: str | None
    phase: str
    self_us: int
    calls: tuple[Op, ...] = ()
    flops: int | None = None
    bytes: int | None = None
    device: str = "cpu"
    thread: int = 1


def _backward(node: str, module: str, self_us: int, kernel: str, flops: int | None = None) -> Op:
    run = Op(f"aten::{kernel}", module, "backward", self_us - 20, flops=flops)
    return Op(f"{EVALUATE}{node}", module, "backward", 10, (Op(node, module, "backward", 10, (run,)),))


# Self time: data 1000, forward 5000, backward 8200, optimizer 800 us = 15.0 ms an operator.
STEP: tuple[Op, ...] = (
    Op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", None, "data", 1000),
    Op(
        "nn.Net",
        "",
        "forward",
        100,
        (
            Op(
                "nn.Sequential",
                "features",
                "forward",
                50,
                (
                    Op(
                        "nn.Conv2d",
                        "features.0",
                        "forward",
                        150,
                        (Op("aten::mkldnn_convolution", "features.0", "forward", 3000, flops=6_000_000, bytes=50_000),),
                    ),
                    Op("nn.ReLU", "features.1", "forward", 50, (Op("aten::clamp_min", "features.1", "forward", 350),)),
                ),
            ),
            Op(
                "nn.Linear",
                "fc",
                "forward",
                100,
                (Op("aten::addmm", "fc", "forward", 900, flops=1_000_000, bytes=9_000),),
            ),
        ),
    ),
    Op("aten::cross_entropy_loss", None, "forward", 300),
    _backward("AddmmBackward0", "fc", 1800, "mm", flops=2_000_000),
    _backward("ReluBackward0", "features.1", 400, "threshold_backward"),
    _backward("ConvolutionBackward0", "features.0", 6000, "convolution_backward", flops=12_000_000),
    Op("Optimizer.step#SGD.step", None, "optimizer", 200, (Op("aten::_foreach_add_", None, "optimizer", 600),)),
)
RESIDUAL_US = 1000  # spread after the ops of a step: the step takes 16.0 ms
MODEL: tuple[tuple[str, str, str | None, int], ...] = (
    ("", "Net", None, 0),
    ("features", "Sequential", "", 0),
    ("features.0", "Conv2d", "features", 520),
    ("features.1", "ReLU", "features", 0),
    ("fc", "Linear", "", 1290),
)


@dataclass(frozen=True)
class Core:
    """A core that is busy for `busy` of each `cycle_ns`; it starts to work at `from_share` of the sampled time."""

    busy: float
    cycle_ns: int = 7_000_000
    from_share: float = 0.0


@dataclass(frozen=True)
class Sampled:
    """A channel as channels.json has it, and what was read of it: times since the first step, ns, and values (NaN)."""

    channel: dict[str, Any]
    t_ns: np.ndarray
    values: np.ndarray


def every_step(_: int) -> bool:
    """Record the ops of each step."""
    return True


def four_of_five(step: int) -> bool:
    """Record four steps, leave the fifth unprofiled, and so on."""
    return step % 5 != 4


def fabricate_run(
    out: Path,
    *,
    steps: int = 20,
    recorded: Callable[[int], bool] = four_of_five,
    ops: tuple[Op, ...] = STEP,
    residual_us: int = RESIDUAL_US,
    batch: int = 16,
    noise: float = 0.0,
    overhead: float = 0.0,
    drift: float = 0.0,
    stretch: Callable[[int], float] = lambda _: 1.0,
    cores: tuple[Core, ...] = (Core(0.75), Core(0.25)),
    process_cores: float | None = None,
    idle_counters: bool = False,
    period_ns: int = 10_000_000,
    refresh_ns: int = 1_000,
    gap: tuple[float, float] | None = None,
    samples: bool = True,
    power_w: float | None = None,
    model: tuple[tuple[str, str, str | None, int], ...] = MODEL,
    status: str | None = "ok",
    steps_per_part: int = 8,
    seed: int = 0,
    header: dict[str, Any] | None = None,
    device: dict[str, Any] | None = None,
    sampled: tuple[Sampled, ...] = (),
    missing: tuple[dict[str, Any], ...] = (),
) -> Path:
    """Write a run and return its folder.

    noise: relative standard deviation of a step's length; overhead: relative cost of recording a step;
    process_cores: CPU utilisation of the process, cores; that of all cores where None;
    drift: relative growth of a step from the first to the last; stretch: of a step; gap: part of the sampled time,
    as two shares, in which nothing could be read; status None leaves the run open, as after a kill -9;
    device: more of device.json; sampled: channels of any sensors besides, one sensor with the times of its first
    channel; missing: sensors that gave nothing.
    """
    writer = RunWriter.create(out, "fabricated", unix_s=1_700_000_000)
    writer.update(**{**_header(batch, period_ns), **(header or {})})
    writer.write_device(
        {
            "board": {"name": "test board"},
            "memory": {"total_bytes": 8_000_000_000},
            "ceilings": CEILINGS,
            **(device or {}),
        }
    )
    writer.write_model([_module(*row) for row in model])
    template = _Template.of(ops, residual_us)
    random = np.random.default_rng(seed)
    number = np.arange(steps)
    was_recorded = np.array([recorded(int(step)) for step in number], dtype=bool)
    scale = (1 + noise * random.standard_normal(steps)) * (1 + overhead * was_recorded)
    scale = np.maximum(scale * (1 + drift * number / max(steps - 1, 1)), 0.1)
    scale *= [stretch(int(step)) for step in number]
    length_ns = np.rint(template.length_ns * scale).astype(np.int64)
    t0_ns = START_NS + np.concatenate([[0], np.cumsum(length_ns)[:-1]]) if steps else np.empty(0, np.int64)
    for step in number:
        start = int(t0_ns[step])
        writer.append_step(
            int(step), start, start + int(length_ns[step]), batch, 2.0 / (step + 1), bool(was_recorded[step])
        )
    writer.flush_steps()
    chosen = number[was_recorded]
    for first in range(0, len(chosen), steps_per_part) if ops else ():
        part = chosen[first : first + steps_per_part]
        writer.write_ops(part_of(template.frame(part, t0_ns[part], scale[part]), "ops"))
    if samples:
        _sample(
            writer.path, int(length_ns.sum()), cores, idle_counters, period_ns, refresh_ns, gap, power_w, process_cores
        )  # fmt: skip
        _sample_besides(writer.path, sampled, missing)
    if status is not None:
        writer.close(status)
        pack(writer.path)
        (writer.path / CHECKSUMS).unlink(missing_ok=True)  # a test may rewrite what it likes
    return writer.path


def _header(batch: int, period_ns: int) -> dict[str, Any]:
    data = {"name": "mnist", "kind": "real-subset", "sha256": "0" * 64}
    workload = {"name": "fabricated", "batch_size": batch, "optimizer": "sgd", "precision": "float32"}
    return {
        "workload": {**workload, "device": "cpu", "input_shape": [1, 28, 28], "parameters": 1810, "data": data},
        "argv": ["stepscope", "run", "fabricated"],
        "seed": 0,
        "versions": {"python": "3.11", "torch": "2.13.0", "stepscope": "0.1.0"},
        "warmup_steps": 3,
        "recorder": {"mode": "adaptive", "flops_source": "formula", "lost": 0},
        "sampler": {"period_ns": period_ns},
        "overhead": {"paused_ns": 2_000_000},
        "result": {"accuracy": 0.9123},
        "pid": 2**22 + 1,  # above the kernel's largest pid: never alive
        "threads": 2,
    }


def _module(module: str, kind: str, parent: str | None, parameters: int) -> dict[str, Any]:
    shared = {"parameters": parameters, "bytes": 4 * parameters, "trainable": parameters > 0}
    return {
        "module": module,
        "type": kind,
        "parent": parent,
        **shared,
        "flops_forward": 1000 * parameters,
        "flops_backward": 2000 * parameters,
    }


@dataclass(frozen=True)
class _Template:
    """The ops of one step as columns, times relative to its start."""

    columns: pl.DataFrame
    length_ns: int

    @classmethod
    def of(cls, ops: tuple[Op, ...], residual_us: int) -> _Template:
        rows: list[dict[str, Any]] = []
        now = 0
        for op in ops:
            now = _lay_out(op, None, now, rows)
        schema = {"t0_ns": pl.Int64, "t1_ns": pl.Int64, "parent": pl.Int32, "name": pl.String, "module": pl.String}
        rest = {"phase": pl.String, "thread": pl.UInt32, "device": pl.String, "flops": pl.Int64, "bytes": pl.Int64}
        return cls(pl.DataFrame(rows, schema={**schema, **rest}), now + residual_us * 1000)

    def frame(self, steps: np.ndarray, t0_ns: np.ndarray, scale: np.ndarray) -> pl.DataFrame:
        """These steps' op calls, columns as `runfolder.OPS`."""
        count, size = len(steps), len(self.columns)
        start, end = (
            np.rint(self.columns[name].to_numpy()[None, :] * scale[:, None]).astype(np.int64)
            for name in ("t0_ns", "t1_ns")
        )
        own = end - start
        parents, on_cpu = self.columns["parent"].to_list(), (self.columns["device"] == "cpu").to_list()
        for row, parent in enumerate(parents):
            if parent is not None and on_cpu[row]:
                own[:, parent] -= end[:, row] - start[:, row]
        repeated = pl.concat([self.columns] * count) if count else self.columns.clear()
        return repeated.with_columns(
            pl.Series("step", np.repeat(steps, size)),
            pl.Series("t0_ns", (start + t0_ns[:, None]).ravel()),
            pl.Series("t1_ns", (end + t0_ns[:, None]).ravel()),
            pl.Series("self_ns", own.ravel()),
        )


def _lay_out(op: Op, parent: int | None, now_ns: int, rows: list[dict[str, Any]]) -> int:
    """Append an op and what it calls; half of its own time lies before its children. Returns its end."""
    index = len(rows)
    fields = ("name", "module", "phase", "thread", "device", "flops", "bytes")
    rows.append({"t0_ns": now_ns, "parent": parent, **{name: getattr(op, name) for name in fields}})
    end = now_ns + op.self_us * 500
    for child in op.calls:
        after = _lay_out(child, index, end, rows)
        end = after if child.device == "cpu" else end
    end += op.self_us * 500
    rows[index]["t1_ns"] = end
    return end


def walk(ops: tuple[Op, ...] = STEP) -> Iterator[Op]:
    """Every op of a step, callers first."""
    for op in ops:
        yield op
        yield from walk(op.calls)


def _sample(
    path: Path,
    span_ns: int,
    cores: tuple[Core, ...],
    idle_counters: bool,
    period_ns: int,
    refresh_ns: int,
    gap: tuple[float, float] | None,
    power_w: float | None,
    process_cores: float | None,
) -> None:
    """Sample a machine of known load from one period before the first step to one after the last."""
    t0_ns = np.arange(-period_ns, span_ns + period_ns + 1, period_ns, dtype=np.int64)
    busy = [_busy_ns(core, t0_ns, span_ns) for core in cores]
    elapsed = t0_ns - t0_ns[0]
    columns: dict[str, np.ndarray] = {}
    channels: list[dict[str, Any]] = []

    def add(sensor: str, name: str, quantity: str, unit: str, kind: str, scope: str, values: np.ndarray) -> None:
        columns[name] = values
        shared = {"sensor": sensor, "refresh_ns": refresh_ns, "source": "synthetic"}
        channels.append({"id": name, "quantity": quantity, "unit": unit, "kind": kind, "scope": scope, **shared})

    for index, work in enumerate(busy):
        counter = elapsed - work if idle_counters else work
        what = "idle" if idle_counters else "busy"
        ticked = counter // refresh_ns * refresh_ns
        add("cpu", f"core{index}_{what}", f"core_{what}_time", "ns", "counter", f"core:{index}", ticked)
    own_ns = np.sum(busy, axis=0) if process_cores is None else (process_cores * elapsed).astype(np.int64)
    add("process", "cpu_time", "process_cpu_time", "ns", "counter", "process", own_ns)
    rss = np.linspace(3e8, 5e8, len(t0_ns))
    add("process", "rss", "rss", "B", "gauge", "process", rss)
    add("process", "peak_rss", "peak_rss", "B", "gauge", "process", rss + 1e7)
    own = np.arange(len(t0_ns)) * period_ns * 0.01 // refresh_ns * refresh_ns
    add("sampler", "sampler_cpu_time", "sampler_cpu_time", "ns", "counter", "sampler", own)
    if power_w is not None:
        add("power", "vdd_in", "power", "W", "gauge", "board", np.full(len(t0_ns), power_w))
    missing = [{"sensor": "temperature", "reason": "absent", "detail": "no thermal zone", "remedy": None}]
    content = {"channels": channels, "missing": missing}
    (path / "channels.json").write_text(json.dumps(content), encoding="utf-8")
    dark = np.zeros(len(t0_ns), dtype=bool)
    if gap is not None:
        dark = (t0_ns >= gap[0] * span_ns) & (t0_ns < gap[1] * span_ns)
    for sensor in dict.fromkeys(channel["sensor"] for channel in channels):
        names = [channel["id"] for channel in channels if channel["sensor"] == sensor]
        rows = np.zeros(len(t0_ns), dtype=sample_dtype(names))
        rows["t0_ns"], rows["t1_ns"] = START_NS + t0_ns - 10_000, START_NS + t0_ns + 10_000
        for name in names:
            rows[name] = np.where(dark, np.nan, columns[name])
        (path / "samples" / f"{sensor}.rows").write_bytes(rows.tobytes())


def _sample_besides(path: Path, sampled: tuple[Sampled, ...], missing: tuple[dict[str, Any], ...]) -> None:
    """Add channels of further sensors to what was sampled."""
    content = json.loads((path / "channels.json").read_text(encoding="utf-8"))
    content["channels"] += [one.channel for one in sampled]
    content["missing"] += list(missing)
    (path / "channels.json").write_text(json.dumps(content), encoding="utf-8")
    for sensor in dict.fromkeys(one.channel["sensor"] for one in sampled):
        group = [one for one in sampled if one.channel["sensor"] == sensor]
        rows = np.zeros(len(group[0].t_ns), dtype=sample_dtype([one.channel["id"] for one in group]))
        rows["t0_ns"], rows["t1_ns"] = START_NS + group[0].t_ns - 10_000, START_NS + group[0].t_ns + 10_000
        for one in group:
            rows[one.channel["id"]] = one.values
        (path / "samples" / f"{sensor}.rows").write_bytes(rows.tobytes())


def _busy_ns(core: Core, t_ns: np.ndarray, span_ns: int) -> np.ndarray:
    """Work done by a core since the first reading, ns."""
    begin = max(int(core.from_share * span_ns), int(t_ns[0])) if core.from_share else int(t_ns[0])
    since = np.maximum(t_ns - begin, 0)
    worked = round(core.busy * core.cycle_ns)
    done: np.ndarray = since // core.cycle_ns * worked + np.minimum(since % core.cycle_ns, worked)
    return done
