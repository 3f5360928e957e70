"""Steps that were really recorded once, kept small in steps.npz: `python -m benchmarks.hostile.structures` writes it.

What is kept of a step is who called whom, names, layers, phases, lengths, FLOPs and bytes; plants give it new lengths.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.arrays import Floats, Ints

FILE = Path(__file__).with_name("steps.npz")
TEXTS = ("name", "module", "phase")
NUMBERS = ("t0_ns", "t1_ns", "parent", "flops", "bytes")
GPU_STREAM = 7
BETWEEN_OPERATIONS, BETWEEN_STEPS, OUTSIDE = "(between operations)", "(between steps)", "(outside any module)"
PAUSES = "(pauses between steps)"


NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Lane:
    """What runs one after another on a thread or a stream: segments that fill the step, none beside another.

    `owner[s]` is the row whose own time segment s is, -1 where nothing runs; `first[r]`, `last[r]`: the segment that
    row r begins with, and the one that comes after its end.
    """

    rows: Ints  # rows of the step that run here
    owner: Ints
    length_ns: Floats
    first: Ints
    last: Ints


@dataclass(frozen=True)
class Step:
    """Rows of a step in columns; `lanes[0]` is the thread of the training, `lanes[1]` the stream of a GPU, if any."""

    columns: dict[str, Any]  # of ops, texts as lists
    modules: list[dict[str, Any]]
    lanes: tuple[Lane, ...]

    @property
    def length_ns(self) -> float:
        """Length of the step as it was recorded, ns."""
        return float(self.lanes[0].length_ns.sum())

    def scaled(self, length_ns: float) -> Step:
        """The same step, so long."""
        factor = length_ns / self.length_ns
        return replace(self, lanes=tuple(replace(lane, length_ns=lane.length_ns * factor) for lane in self.lanes))


@cache
def recorded(name: str) -> Step:
    """A step of this name of steps.npz."""
    with np.load(FILE) as file:
        texts = json.loads(bytes(file[f"{name}.texts"]).decode())
        columns: dict[str, Any] = {number: file[f"{name}.{number}"].astype(np.int64) for number in NUMBERS}
        length_ns = int(file[f"{name}.length_ns"])
        for text in TEXTS:
            columns[text] = [None if place < 0 else texts[text][place] for place in file[f"{name}.{text}"]]
    count = len(columns["t0_ns"])
    columns |= {"device": ["cpu"] * count, "thread": np.ones(count, dtype=np.int64)}
    return Step(columns, texts["modules"], (lane_of(columns, np.arange(count), length_ns),))


def lane_of(columns: dict[str, Any], rows: Ints, length_ns: int) -> Lane:
    """The segments of nested rows, in the order of their begin."""
    t0_ns, t1_ns = columns["t0_ns"], columns["t1_ns"]
    owner, edges, stack, first, last = [], [0], [-1], {}, {}

    def until(moment_ns: int) -> None:
        owner.append(stack[-1])
        edges.append(moment_ns)

    for row in rows.tolist():
        while stack[-1] >= 0 and t1_ns[stack[-1]] <= t0_ns[row]:
            until(int(t1_ns[stack[-1]]))
            last[stack.pop()] = len(owner)
        until(int(t0_ns[row]))
        first[row] = len(owner)
        stack.append(row)
    while stack[-1] >= 0:
        until(int(t1_ns[stack[-1]]))
        last[stack.pop()] = len(owner)
    until(max(length_ns, edges[-1]))
    places = [np.array([known[row] for row in rows.tolist()], dtype=np.int64) for known in (first, last)]
    length = np.maximum(np.diff(np.array(edges, dtype=np.float64)), 0.0)
    return Lane(rows, np.array(owner, dtype=np.int64), length, *places)


def credited(step: Step, lane: Lane) -> Ints:
    """Owner of each segment by docs/energy.md: time between two nodes of a backward pass is the earlier one's."""
    node = np.array([
        above < 0 and name.startswith(NODE)
        for above, name in zip(step.columns["parent"], step.columns["name"], strict=True)
    ])  # fmt: skip
    owner: Ints = lane.owner.copy()
    for gap in np.flatnonzero(lane.owner[1:-1] < 0) + 1:
        before, after = lane.owner[gap - 1], lane.owner[gap + 1]
        if before >= 0 and after >= 0 and node[before] and node[after]:
            owner[gap] = before
    return owner


def small_step(kinds: int = 8, places: int = 40, seed: int = 0) -> Step:
    """A step of few operators of few kinds, for many short runs: the shape that GPUs were simulated with outside."""
    rng = np.random.default_rng(seed)
    length = rng.lognormal(0.0, 0.7, places) * 1e6
    gap = np.full(places, 20_000.0)
    t1_ns = np.cumsum(length + gap)
    kind = np.concatenate([np.arange(kinds), rng.integers(0, kinds, places - kinds)])
    rng.shuffle(kind)
    module = [f"layer{place * 8 // places}" for place in range(places)]
    columns: dict[str, Any] = {
        "t0_ns": np.rint(t1_ns - length).astype(np.int64),
        "t1_ns": np.rint(t1_ns).astype(np.int64),
        "parent": np.full(places, -1),
        "flops": np.rint(length * 2).astype(np.int64),
        "bytes": np.rint(length).astype(np.int64),
        "name": [f"aten::op{number}" for number in kind],
        "module": list(module),
        "phase": ["forward" if place * 3 < places else "backward" for place in range(places)],
        "device": ["cpu"] * places,
        "thread": np.ones(places, dtype=np.int64),
    }
    modules = [_module("", None), *(_module(name, "") for name in dict.fromkeys(module))]
    return Step(columns, modules, (lane_of(columns, np.arange(places), int(t1_ns[-1]) + 20_000),))


def of_name(name: str, seed: int) -> Step:
    """A step that is made up, by its name, or else one that was recorded."""
    made = {"small": (8, 40), "three operators": (3, 3), "600 operators": (600, 900), "one dominates": (8, 40)}
    if name not in made:
        return recorded(name)
    step = small_step(*made[name], seed=seed)
    if name != "one dominates":
        return step
    (lane,) = step.lanes
    length = lane.length_ns.copy()
    length[len(length) // 2 // 2 * 2 + 1] = 0.97 / 0.03 * length.sum()
    return replace(step, lanes=(replace(lane, length_ns=length),))


def on_gpu(step: Step, filled: float = 0.92) -> Step:
    """The same step on a GPU: what takes time there becomes kernels of a stream, and the thread waits for them."""
    old = step.lanes[0]
    own = np.bincount(old.owner[old.owner >= 0], old.length_ns[old.owner >= 0], len(step.columns["name"]))
    asked = [row for row in old.rows.tolist() if own[row] >= 0.001 * own.sum()]
    count, total = len(step.columns["name"]), step.length_ns
    asking = replace(old, length_ns=old.length_ns * 0.4)
    edges = np.concatenate([[0.0], np.cumsum(asking.length_ns)])
    columns = {name: list(values) for name, values in step.columns.items()}
    wait = {"t0_ns": edges[-1], "t1_ns": total, "parent": -1, "flops": 0, "bytes": 0, "name": "aten::item",
            "module": None, "phase": "other", "device": "cpu", "thread": 1}  # fmt: skip
    for name, value in wait.items():
        columns[name].append(value)
    cpu = Lane(np.append(old.rows, count), np.append(asking.owner, count), np.append(asking.length_ns, total * 0.6),
               np.append(old.first, len(old.owner)), np.append(old.last, len(old.owner) + 1))  # fmt: skip
    begin, owner, length, at = edges[old.first[asked]], [-1], [0.0], 0.0
    work = own[asked] * (total * filled / own[asked].sum())
    for place, row in enumerate(asked):
        idle = max(float(begin[place]) + 5_000.0 - at, 1_500.0)
        owner += [-1, count + 1 + place]
        length += [idle, float(work[place])]
        at += idle + float(work[place])
        for name in ("module", "phase", "flops", "bytes"):
            columns[name].append(step.columns[name][row])
        columns["name"].append(f"{step.columns['name'][row].removeprefix('aten::')}_kernel")
        for name, value in (("parent", row), ("device", "cuda:0"), ("thread", GPU_STREAM), ("t0_ns", 0), ("t1_ns", 0)):
            columns[name].append(value)
    if at > total:  # gaps between kernels took more than was left
        length = [part * total / at for part in length]
        at = total
    kernels = count + 1 + np.arange(len(asked))
    places = 2 + 2 * np.arange(len(asked))
    stream = Lane(kernels, np.array([*owner, -1]), np.array([*length, total - at]), places, places + 1)
    arrays = {name: np.array(columns[name], dtype=np.int64) for name in (*NUMBERS, "thread")}
    return Step({**columns, **arrays}, step.modules, (cpu, stream))


def _module(name: str, parent: str | None) -> dict[str, Any]:
    kind = "Net" if parent is None else "Layer"
    shared = {"parameters": 0, "bytes": 0, "trainable": True, "flops_forward": None, "flops_backward": None}
    return {"module": name, "type": kind, "parent": parent, **shared}


def _trainings() -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """Name, model and step of each training that is recorded; torch is needed here alone."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Attention(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.heads = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
            self.wide, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            x = x + self.heads(y, y, y, need_weights=False)[0]
            return x + self.back(nn.functional.gelu(self.wide(x)))

    class ConvAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            blocks = [(3, 24, 1), (24, 32, 2), (32, 48, 2), (48, 64, 2)]
            self.convolutions = nn.Sequential(
                *(nn.Sequential(nn.Conv2d(a, b, 3, s, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b, s in blocks)
            )
            self.attention = nn.Sequential(*(Attention(64) for _ in range(3)))
            self.head = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.attention(self.convolutions(x).flatten(2).transpose(1, 2)).mean(1))

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.lstm = nn.Embedding(80, 32), nn.LSTM(32, 96, 2, batch_first=True)
            self.head = nn.Linear(96, 80)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(self.embedding(x))[0]).flatten(0, 1)

    def training(model: nn.Module, x: Any, y: Any, optimizer: Any) -> Callable[[], Any]:
        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    net = ConvAttention()
    adam = torch.optim.AdamW(net.parameters(), foreach=False)
    yield "convolution-attention", net, training(net, torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)), adam)
    text = Text()
    letters = torch.randint(0, 80, (8, 40))
    sgd = torch.optim.SGD(text.parameters(), lr=0.1, momentum=0.9)
    yield "lstm", text, training(text, letters, torch.randint(0, 80, (320,)), sgd)
    many = nn.Sequential(*(part for _ in range(24) for part in (nn.Linear(32, 32), nn.ReLU())), nn.Linear(32, 10))
    sgd = torch.optim.SGD(many.parameters(), lr=0.1, momentum=0.9)
    yield "dispatch", many, training(many, torch.randn(8, 32), torch.randint(0, 10, (8,)), sgd)
    few = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(784, 10))
    sgd = torch.optim.SGD(few.parameters(), lr=0.1)
    yield "few", few, training(few, torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,)), sgd)


def record(steps: int = 12) -> None:
    """Train and record each network, and keep the step of median length of each."""
    import stepscope

    kept: dict[str, Any] = {}
    for name, model, step in _trainings():
        with tempfile.TemporaryDirectory() as out:
            with stepscope.profile(model, out=out, record="all", memory="off", characterise=False) as scope:
                for _ in range(steps):
                    step()
                    scope.step()
            run = stepscope.Run(next(Path(out).iterdir()))
            kept |= _kept(name, run.ops, run.steps, run.path)
    np.savez_compressed(FILE, **kept)


def _kept(name: str, ops: pl.DataFrame, steps: pl.DataFrame, path: Path) -> dict[str, Any]:
    steps = steps.filter(pl.col("step") >= 3).with_columns(length=pl.col("t1_ns") - pl.col("t0_ns")).sort("length")
    median = steps.row(len(steps) // 2, named=True)
    ops = (
        ops.lazy()
        .collect()
        .filter(pl.col("step") == median["step"])
        .with_columns(pl.col("parent", "flops", "bytes").fill_null(-1))
    )
    texts: dict[str, Any] = {"modules": json.loads((path / "model.json").read_text())["modules"]}
    kept: dict[str, Any] = {f"{name}.length_ns": np.int64(median["length"])}
    for number in NUMBERS:
        begin = median["t0_ns"] if number in ("t0_ns", "t1_ns") else 0
        kept[f"{name}.{number}"] = (ops[number].to_numpy() - begin).astype(np.int32 if begin else np.int64)
    for text in TEXTS:
        values = ops[text].cast(pl.String).to_list()
        texts[text] = sorted({value for value in values if value is not None})
        places = [-1 if value is None else texts[text].index(value) for value in values]
        kept[f"{name}.{text}"] = np.array(places, dtype=np.int16)
    kept[f"{name}.texts"] = np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)
    print(f"{name}: {len(ops)} rows, {len(texts['name'])} kinds, {median['length'] / 1e6:.1f} ms")
    return kept


if __name__ == "__main__":
    record()
