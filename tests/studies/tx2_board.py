"""A board like a TX2 whose behaviour is known: run folders with six cores, a GPU and four rails, and daily training.

Every default is what the paper saw; a test turns one of them round and asks for the other verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tests.fabricate import STEP, Core, Sampled, fabricate_run

from stepscope.analysis.run import Run
from stepscope.experiments.observations._evidence import Evidence, gather_evidence

STEPS, PERIOD_NS = 14, 10_000_000
BATCHES = (4, 16, 64)
DENVER, A57 = "0x000000004e0f0030", "0x00000000411fd073"
CONV = (("", "Net", None, 0), ("conv", "Conv2d", "", 520), ("fc", "Linear", "", 1290))
LSTM = (("", "Net", None, 0), ("lstm", "LSTM", "", 520), ("fc", "Linear", "", 1290))
MODELS = {"convnet": CONV, "lstmnet": LSTM}


@dataclass(frozen=True)
class Behaviour:
    """How the board behaves; growths are exponents of the batch."""

    device: str = "cuda"
    gpu_use: float = 0.75  # of the convolutional network with the smallest batch
    gpu_use_recurrent: float = 0.45
    gpu_growth: float = 0.10  # of its use from the smallest to the largest batch
    cpu_growth: float = 0.0
    in_turn: bool = True
    use_repeats: bool = True
    denver: float = 0.05
    a57: float = 0.35
    watts: tuple[float, float, float] = (4.0, 1.5, 1.0)  # GPU, CPU and memory
    watts_recurrent: tuple[float, float, float] = (1.5, 1.0, 2.5)
    power_repeats: bool = True
    power_growth: float = 0.0
    step_growth: tuple[float, float] = (0.6, 0.2)  # convolutional, recurrent
    rails: tuple[str, ...] = ("VDD_IN", "VDD_SYS_GPU", "VDD_SYS_CPU", "VDD_SYS_DDR")
    gpu_sensor: bool = True
    power_kind: str = "gauge"
    threads: int = 2


@dataclass(frozen=True)
class _Setting:
    """One run that is to be made."""

    model: str
    batch: int
    repeat: int

    @property
    def recurrent(self) -> bool:
        return self.model == "lstmnet"

    @property
    def larger(self) -> float:
        """0 for the smallest batch, 1 for the largest, by its logarithm."""
        return math.log(self.batch / BATCHES[0]) / math.log(BATCHES[-1] / BATCHES[0])


def board_runs(out: Path, board: Behaviour, repeats: int = 2) -> list[Run]:
    """The runs of both models with every batch."""
    settings = [_Setting(model, batch, repeat) for model in MODELS for batch in BATCHES for repeat in range(repeats)]
    return [Run(_folder(out, board, setting)) for setting in settings]


def board_evidence(out: Path, board: Behaviour, repeats: int = 2, **more: pl.DataFrame) -> Evidence:
    """What is gathered from them."""
    return gather_evidence(board_runs(out, board, repeats), more, {})


def days(rise: float, seeds: int = 5, count: int = 12) -> pl.DataFrame:
    """Daily training that starts at 60 % and rises so much a day, up to noise."""
    random = np.random.default_rng(1)
    rows = [
        {"seed": seed, "batch": 16, "day": day, "accuracy": 0.6 + rise * day + 0.004 * random.standard_normal()}
        for seed in range(seeds)
        for day in range(count)
    ]
    return pl.DataFrame(rows)


def memory(**growth: float) -> pl.DataFrame:
    """Bytes of each holder with batches of 4 and 64, by how much it grows; by default only intermediate data do."""
    grows = {"parameters": 1.0, "gradients": 1.0, "input data": 1.0, "intermediate data": 16.0, **growth}
    rows = [
        {"workload": "convnet", "batch": batch, "part": part, "bytes": round(1e6 * (factor if batch == 64 else 1.0))}
        for part, factor in grows.items()
        for batch in (4, 64)
    ]
    return pl.DataFrame(rows)


def _folder(out: Path, board: Behaviour, setting: _Setting) -> Path:
    random = np.random.default_rng([setting.batch, setting.repeat, setting.recurrent])
    length_us = 150_000 * (setting.batch / BATCHES[0]) ** board.step_growth[setting.recurrent]
    length_us *= 1 + 0.004 * random.standard_normal()
    length_ns = round(length_us) * 1000
    cycle_ns = length_ns if board.use_repeats else round(length_ns * 0.377)
    busy = 1 + board.cpu_growth * setting.larger / board.a57
    cores = tuple(Core(share * busy, cycle_ns) for share in (board.a57, *[board.denver] * 2, *[board.a57] * 3))
    workload = {"name": setting.model, "batch_size": setting.batch, "device": board.device, "optimizer": "SGD"}
    return fabricate_run(
        out,
        steps=STEPS,
        recorded=lambda _: False,
        ops=STEP[:1],
        residual_us=round(length_us) - 1000,
        batch=setting.batch,
        cores=cores,
        period_ns=PERIOD_NS,
        model=MODELS[setting.model],
        header={"workload": {**workload, "data": None, "precision": "float32"}, "threads": board.threads},
        device=_device(),
        sampled=tuple(_sensors(board, setting, length_ns, cycle_ns, random)),
    )


def _device() -> dict[str, Any]:
    kinds = (A57, DENVER, DENVER, A57, A57, A57)
    cores = [{"core": number, "midr": midr} for number, midr in enumerate(kinds)]
    return {"compatible": "nvidia,p2597-0000+p3310-1000 nvidia,tegra186", "board": "quill", "cores": cores}


def _sensors(
    board: Behaviour, setting: _Setting, length_ns: int, cycle_ns: int, random: np.random.Generator
) -> list[Sampled]:
    t_ns = np.arange(-PERIOD_NS, STEPS * length_ns + PERIOD_NS, PERIOD_NS, dtype=np.float64)
    phase = (t_ns + PERIOD_NS) % cycle_ns / cycle_ns
    found = []
    if board.gpu_sensor:
        share = (board.gpu_use_recurrent if setting.recurrent else board.gpu_use) + board.gpu_growth * setting.larger
        channel: dict[str, Any] = {
            "id": "gpu.0.utilisation",
            "sensor": "jetson_gpu",
            "quantity": "utilisation",
            "unit": "1",
        }
        channel |= {"kind": "gauge", "scope": "gpu:0", "source": "synthetic", "refresh_ns": None}
        busy = _busy(share, board.a57, phase if board.in_turn else (phase + 1 - board.a57) % 1)
        found.append(Sampled(channel, t_ns, np.clip(busy + 0.01 * random.standard_normal(len(t_ns)), 0, 1)))
    watts = dict(zip(board.rails[1:], board.watts_recurrent if setting.recurrent else board.watts, strict=False))
    swing = (
        np.sin(2 * np.pi * (t_ns + PERIOD_NS) / length_ns) if board.power_repeats else random.uniform(-1, 1, len(t_ns))
    )
    grown = (setting.batch / BATCHES[0]) ** board.power_growth
    for rail in board.rails:
        mean = watts.get(rail, sum(watts.values()) + 1.0) * grown
        channel = {"id": f"ina3221.{rail}", "sensor": "ina3221", "quantity": "power", "unit": "W", "rail": rail}
        channel |= {"kind": board.power_kind, "scope": f"rail:{rail}", "source": "synthetic", "refresh_ns": None}
        noise = 1 + 0.4 * swing + 0.02 * random.standard_normal(len(t_ns))
        found.append(Sampled({**channel, "parent_scope": "board"}, t_ns, mean * noise))
    return found


def _busy(share: float, quiet: float, phase: np.ndarray) -> np.ndarray:
    """Of this mean: low in the first part of the cycle, where the cores are busy, high in the rest."""
    most = min(share / (1 - quiet), 1.0)
    rest = max(share - most * (1 - quiet), 0.0) / quiet
    return np.where(phase < quiet, rest, most)
