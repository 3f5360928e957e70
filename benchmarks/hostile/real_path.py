"""The real path: `stepscope run train.py`, default options, beside a process that plays the board under STEPSCOPE_ROOT.

The training marks what it does in shared memory, through hooks of its own. The board's process gives each state a
power, lets its sensor see it, and writes hwmon or powercap files. Truth is that power over the times of the op calls
that the product recorded: watts of kinds and layers are compared, since only those steps are known op by op.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import stepscope
from benchmarks.hostile.folder import Parts, Score, parts_beside
from benchmarks.hostile.plant import Timeline, first_order
from benchmarks.hostile.structures import BETWEEN_OPERATIONS, OUTSIDE, lane_of
from stepscope.arrays import Floats

MARK = np.dtype([("t_ns", "<i8"), ("state", "<i8")])
MARKS = 1 << 20
WARM_UP = 3
REGISTER_S, LATENCY_S = 0.01, 0.002


@dataclass(frozen=True)
class Board:
    """Law and sensor of a board; states are drawn by their kind."""

    title: str
    sensor: str = "ina3221"  # or ina226, rapl
    by_size: bool = False
    ramp_s: float = 0.0
    leakage: float = 0.0
    background_w: float = 0.0
    step_w: float = 0.04
    two_states: bool = False
    idle_w: float = 1.6
    seed: int = 0


BOARDS = (
    Board("W by kind; mean over 10 ms, stated as spot"),
    Board("4x W by size; INA226, window stated", "ina226", by_size=True, seed=1),
    Board("ramp of 5 ms; mean over 10 ms, stated as spot", ramp_s=0.005, seed=2),
    Board("background and leakage; RAPL", "rapl", background_w=2.5, leakage=0.15, seed=3),
    Board("W by kind; steps of 1 W", step_w=1.0, seed=4),
    Board("two states alone; INA226, window stated", "ina226", two_states=True, seed=5),
)

TRAINING = """
import mmap, struct, sys, time
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
steps = int(sys.argv[1])
pack, states = struct.Struct("<qq"), []
with open(sys.argv[2], "r+b") as file:
    ring = mmap.mmap(file.fileno(), 0)
count = 0

def mark(state):
    global count
    pack.pack_into(ring, 16 + 16 * count, time.monotonic_ns(), state)
    count += 1
    struct.pack_into("<q", ring, 0, count)

def state(kind, size):
    states.append(f"{kind} {size}")
    return len(states)

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inside, self.outside = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.inside(self.norm(x)).chunk(3, -1)
        return x + self.outside(nn.functional.scaled_dot_product_attention(q, k, v))

def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())

class Flat(nn.Module):
    def forward(self, x):
        return x.flatten(2).transpose(1, 2)

model = nn.Sequential(block(3, 32), block(32, 48), block(48, 96), Flat(), Attention(96), Attention(96), nn.Flatten(),
                      nn.Linear(96 * 64, 10))
for module in model.modules():
    if not list(module.children()):
        size = sum(p.numel() for p in module.parameters()) or 1
        ahead = state(f"{type(module).__name__}.forward", size)
        back = state(f"{type(module).__name__}.backward", size)
        module.register_forward_pre_hook(lambda *_, s=ahead: mark(s))
        module.register_full_backward_pre_hook(lambda *_, s=back: mark(s))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
update, host = state("optimizer", 1), state("host", 1)
optimizer.register_step_pre_hook(lambda *_: mark(update))
text = "\\n".join(states).encode()
with open(sys.argv[2] + ".states", "wb") as file:
    file.write(text)
x, y = torch.randn(24, 3, 64, 64), torch.randint(0, 10, (24,))
for _ in range(steps):
    mark(host)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
mark(0)
"""


def watts_of(board: Board, states: list[str]) -> Floats:
    """Power above idle of each state, W; the first is what no mark stands for: nothing trains."""
    watts = [0.0]
    kinds = sorted({text.split()[0] for text in states})
    drawn = dict(zip(kinds, np.random.default_rng(board.seed).uniform(2.0, 9.0, len(kinds)), strict=True))
    for place, text in enumerate(states):
        kind, size = text.split()
        if board.two_states:
            watts.append(8.0 if place // 2 % 2 else 2.5)
        else:
            watts.append(drawn[kind] * (float(size) ** 0.12 if board.by_size else 1.0))
    return np.array(watts)


def _leakage(board: Board, since_s: Any) -> Any:
    return 1 + board.leakage * (1 - np.exp(-since_s / 20.0))


def _background(board: Board, t_s: Any) -> Any:
    """What another program draws: on and off by a pattern without a period."""
    on = np.sin(2 * np.pi * t_s / 3.1) + np.sin(2 * np.pi * t_s / 4.7) > 0.3
    return board.background_w * on


class Playing:
    """The board's process: files first, then marks in and readings out, until the file `stop` is there."""

    def __init__(self, home: Path, board: Board) -> None:
        self.home, self.board = home, board
        with (home / "marks").open("r+b") as file:
            self.ring = mmap.mmap(file.fileno(), 0)
        self.watts: Floats | None = None
        self.files = _tree(home / "root", board)
        self.t_s = self.begin_s = time.monotonic()
        self.seen, self.state, self.shown_w, self.joules = 0, 0, board.idle_w, 0.0

    def play(self) -> None:
        every_s = 0.001 if self.board.sensor == "rapl" else REGISTER_S
        due_s, before_j = self.begin_s + every_s, 0.0
        while not (self.home / "stop").exists():
            time.sleep(max(due_s + LATENCY_S - time.monotonic(), 0.0002))
            while due_s + LATENCY_S <= time.monotonic():
                self._go_to(due_s)
                last = due_s + every_s + LATENCY_S > time.monotonic()
                if last or self.board.sensor != "rapl":
                    self._show(before_j, every_s)
                before_j, due_s = self.joules, due_s + every_s

    def _go_to(self, until_s: float) -> None:
        count = int(np.frombuffer(self.ring, "<i8", 1)[0])
        marks = np.frombuffer(self.ring, MARK, count - self.seen, 16 + 16 * self.seen)
        if count and self.watts is None:
            self.watts = watts_of(self.board, Path(f"{self.home / 'marks'}.states").read_text().splitlines())
        for t_ns, state in marks.tolist():
            if t_ns * 1e-9 > until_s:
                break
            self._spend(t_ns * 1e-9)
            self.state, self.seen = state, self.seen + 1
        self._spend(until_s)

    def _spend(self, until_s: float) -> None:
        board, length = self.board, until_s - self.t_s
        if length <= 0:
            return
        above = 0.0 if self.watts is None else float(self.watts[self.state])
        target = board.idle_w + above * _leakage(board, self.t_s - self.begin_s) + _background(board, self.t_s)
        if board.ramp_s:
            kept = float(np.exp(-length / board.ramp_s))
            self.joules += target * length + (self.shown_w - target) * board.ramp_s * (1 - kept)
            self.shown_w = target + (self.shown_w - target) * kept
        else:
            self.joules += target * length
        self.t_s = until_s

    def _show(self, before_j: float, every_s: float) -> None:
        watts = (self.joules - before_j) / every_s
        step = self.board.step_w
        for name, file in self.files.items():
            value = {
                "energy": int(self.joules * 1e6),
                "power": int(round(watts / step) * step * 1e6),
                "current": int(round(watts / step) * step / 5.0 * 1e3),
            }[name]
            os.pwrite(file, str(value).encode().ljust(16, b"\n"), 0)


def _tree(root: Path, board: Board) -> dict[str, int]:
    """Files of the board; descriptors of what changes."""
    ina3221 = "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon1"
    zone = "sys/class/powercap/intel-rapl:0"
    static, live = {
        "ina3221": (
            {f"{ina3221}/{name}": value for name, value in {
                "name": "ina3221", "samples": 1, "update_interval": 10, "in1_label": "VDD_IN", "in1_enable": 1,
                "in1_input": 5000, "shunt1_resistor": 5000}.items()},
            {"current": f"{ina3221}/curr1_input"}),
        "ina226": (
            {f"sys/class/hwmon/hwmon2/{name}": value for name, value in {
                "name": "ina226", "update_interval": 10, "shunt_resistor": 2000}.items()},
            {"power": "sys/class/hwmon/hwmon2/power1_input"}),
        "rapl": (
            {f"{zone}/name": "package-0", f"{zone}/max_energy_range_uj": 262_143_328_850, f"{zone}/enabled": 1},
            {"energy": f"{zone}/energy_uj"}),
    }[board.sensor]  # fmt: skip
    for path, value in static.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{value}\n")
    for path in ("proc", "sys/devices/system/cpu", "etc/os-release"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(Path("/") / path)
    files = {}
    for name, path in live.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        files[name] = os.open(root / path, os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(files[name], b"0\n", 0)
    return files


def truth_of(home: Path, board: Board, begin_s: float) -> Timeline:
    """Energy of the board over the whole run, from the marks."""
    data = (home / "marks").read_bytes()
    marks = np.frombuffer(data, MARK, int(np.frombuffer(data, "<i8", 1)[0]), 16)
    watts = watts_of(board, Path(f"{home / 'marks'}.states").read_text().splitlines())
    t_s = np.concatenate([[begin_s], marks["t_ns"] * 1e-9, [marks["t_ns"][-1] * 1e-9 + 2.0]])
    above = np.concatenate([[0.0], watts[marks["state"]]])
    t_s, above = _finer(t_s, above)
    power = board.idle_w + above * _leakage(board, t_s[:-1] - begin_s) + _background(board, t_s[:-1])
    whole = Timeline(t_s, np.concatenate([[0.0], np.cumsum(power * np.diff(t_s))]))
    return whole.filtered(first_order(board.ramp_s)) if board.ramp_s else whole


def _finer(t_s: Floats, above: Floats) -> tuple[Floats, Floats]:
    """The same power with an edge each 10 ms as well, as the board follows what is slow."""
    every = np.arange(t_s[0], t_s[-1], REGISTER_S)
    finer = np.union1d(t_s, every)
    return finer, above[np.clip(np.searchsorted(t_s, finer[:-1], side="right") - 1, 0, len(above) - 1)]


def run_board(board: Board, steps: int) -> Score:
    """Train beside one board, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with (home / "marks").open("wb") as file:
            file.truncate(16 + 16 * MARKS)
        (home / "train.py").write_text(TRAINING)
        (home / "board.json").write_text(json.dumps(asdict(board)))
        playing = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile.real_path", "--home", folder], stdout=subprocess.PIPE, text=True
        )
        assert playing.stdout is not None
        begin_s = float(playing.stdout.readline())
        environment = {**os.environ, "STEPSCOPE_ROOT": str(home / "root"), "XDG_CACHE_HOME": str(home / "cache")}
        command = ["-m", "stepscope", "run", "--out", str(home / "runs"), str(home / "train.py"), str(steps)]
        try:
            done = subprocess.run(
                [sys.executable, *command, str(home / "marks")], env=environment, capture_output=True, text=True
            )
        finally:
            (home / "stop").touch()
            playing.wait()
        if done.returncode:
            raise SystemExit(f"stepscope run failed:\n{done.stderr[-2000:]}")
        return _compared(stepscope.Run(next((home / "runs").iterdir())), truth_of(home, board, begin_s))


def _compared(run: stepscope.Run, energy: Timeline) -> Score:
    """Watts of kinds and layers in the steps that were recorded, and the whole over all steps."""
    kinds, modules = _watts(run, energy)
    steps = run.steps.filter(pl.col("step") >= WARM_UP)
    edges = steps["t0_ns"].to_numpy() * 1e-9, steps["t1_ns"].to_numpy() * 1e-9
    true = float(energy(edges[1][-1:])[0] - energy(edges[0][:1])[0]) / len(steps)
    whole = run.energy(by="component").row(0, named=True)
    rail = str(whole["rail"])
    found, low, high = whole["joules_per_step"], whole["low"], whole["high"]
    holds = None if low is None else bool(low <= true <= high)
    by_kind = _beside(run.energy(by="kind"), rail, kinds, lambda row: row["name"])
    by_module = _beside(
        run.energy(by="module"), rail, modules, lambda row: (row["module"] or row["name"], row["phase"])
    )
    note = str(run.energy_resolution()["note"][0] or "")
    off = float("nan") if found is None else found / true - 1
    return Score(
        by_kind, by_module, off, holds, None, float("nan"), note, None if by_kind else note or "no energy by kind"
    )


def _watts(run: stepscope.Run, energy: Timeline) -> tuple[dict[Any, float], dict[Any, float]]:
    """True watts of kinds and of layers by phase, in the recorded steps after warm-up."""
    kinds: dict[Any, list[float]] = {}
    modules: dict[Any, list[float]] = {}
    known = {row["step"]: row for row in run.steps.filter(pl.col("step") >= WARM_UP).iter_rows(named=True)}
    for (step,), rows in run.ops.lazy().collect().group_by("step", maintain_order=True):
        if step not in known:
            continue
        t0_ns, t1_ns = known[step]["t0_ns"], known[step]["t1_ns"]
        ops = rows.with_columns(pl.col("name", "module", "phase").cast(pl.String)).sort("t0_ns", maintain_order=True)
        columns = {
            name: np.clip(ops[name].to_numpy() - t0_ns, 0, t1_ns - t0_ns).astype(np.int64)
            for name in ("t0_ns", "t1_ns")
        }
        lane = lane_of(columns, np.arange(len(ops)), t1_ns - t0_ns)
        edges = t0_ns * 1e-9 + np.concatenate([[0.0], np.cumsum(lane.length_ns)]) * 1e-9
        joules, length = np.diff(energy(edges)), np.diff(edges)
        names, layers, phases = (ops[name].to_list() for name in ("name", "module", "phase"))
        for row, spent, seconds in zip(lane.owner.tolist(), joules.tolist(), length.tolist(), strict=True):
            kind = names[row] if row >= 0 else BETWEEN_OPERATIONS
            layer = BETWEEN_OPERATIONS if row < 0 else OUTSIDE if layers[row] is None else layers[row]
            for table, key in ((kinds, kind), (modules, (layer, phases[row] if row >= 0 else None))):
                sums = table.setdefault(key, [0.0, 0.0])
                sums[0] += spent
                sums[1] += seconds
    return tuple({key: j / s for key, (j, s) in table.items() if s > 0} for table in (kinds, modules))  # type: ignore[return-value]


def _beside(table: pl.DataFrame, rail: str, watts: dict[Any, float], key: Callable[..., Any]) -> Parts | None:
    """Joules as found, beside the true watts over the time that the product gives them."""
    length = {key(row): row["seconds_per_step"] for row in table.filter(pl.col("rail") == rail).iter_rows(named=True)}
    true = {name: power * length[name] for name, power in watts.items() if length.get(name)}
    return parts_beside(table, rail, true, key)


def main() -> None:
    """Play a board: of this module when it is started beside a training."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--home", type=Path, required=True)
    home = arguments.parse_args().home
    playing = Playing(home, Board(**json.loads((home / "board.json").read_text())))
    with contextlib.suppress(OSError):
        os.nice(-10)
    print(playing.begin_s, flush=True)
    playing.play()


if __name__ == "__main__":
    main()
