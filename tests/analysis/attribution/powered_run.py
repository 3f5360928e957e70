"""A fabricated run folder with a power gauge that follows the ops: each name draws a power that a test knows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tests.fabricate import fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import op_pieces
from stepscope.analysis.time.steps import steps_after_warmup

WATTS = {
    "aten::mkldnn_convolution": 9.0,
    "aten::clamp_min": 4.0,
    "aten::addmm": 7.0,
    "aten::mm": 8.0,
    "aten::convolution_backward": 10.0,
    "aten::threshold_backward": 5.0,
}
OTHER_W, GAP_W, PAUSE_W = 3.0, 2.0, 12.0


@dataclass(frozen=True)
class Apart:
    """After each step `gap_s`, after every so many of them `pause_s` more, at another power."""

    gap_s: float
    pause_s: float
    every: int

    def before(self, step: np.ndarray) -> np.ndarray:
        """By how much each step begins later, ns."""
        return ((step * self.gap_s + step // self.every * self.pause_s) * 1e9).astype(np.int64)


def powered_run(
    out: Path,
    *,
    steps: int = 400,
    period_s: float = 0.0103,
    channel: dict[str, Any] | None = None,
    keep_every: int = 1,
    apart: Apart | None = None,
    **how: Any,
) -> Path:
    """A run whose power rail is the mean over each period; how: as for `fabricate_run`.

    keep_every: of so many steps the ops of one are kept, as an adaptive recorder does; apart: what is between steps.
    """
    options = {"noise": 0.03, "power_w": 1.0, **how}
    path = fabricate_run(out, steps=steps, recorded=lambda _: True, **options)
    if apart is not None:
        _set_apart(path, apart)
    run = Run(path)
    origin = int(run.steps["t0_ns"][0])
    at, joules = _energy(run, origin)
    if apart is not None:
        at, joules = _with_pauses((pauses_of(run).ravel() - origin) / 1e9, at, joules)
    end = np.arange(period_s, at[-1], period_s)
    watts = np.round(np.diff(np.interp(np.append(end[0] - period_s, end), at, joules)) / period_s, 3)
    stamp = (origin + end * 1e9).astype(np.int64)
    pl.DataFrame({"t0_ns": stamp - 10_000, "t1_ns": stamp + 10_000, "vdd_in": watts}).write_parquet(
        path / "samples" / "power.parquet"
    )
    described = json.loads((path / "channels.json").read_text(encoding="utf-8"))
    for entry in described["channels"]:
        if entry["id"] == "vdd_in":
            entry.update(
                {"refresh_ns": int(period_s * 1e9), "scope": "rail:VDD_IN", "rail": "VDD_IN", **(channel or {})}
            )
    (path / "channels.json").write_text(json.dumps(described), encoding="utf-8")
    _forget(path, keep_every)
    return path


def _set_apart(path: Path, apart: Apart) -> None:
    """Move the steps and their ops apart."""
    for part in [path / "steps.parquet", *sorted((path / "ops").glob("*.parquet"))]:
        frame = pl.read_parquet(part)
        later = pl.Series(apart.before(frame["step"].cast(pl.Int64).to_numpy()))
        frame.with_columns(pl.col("t0_ns", "t1_ns") + later).write_parquet(part)


def pauses_of(run: Run) -> np.ndarray:
    """Begin and end of the stretches between two steps that are longer than a step, ns (n, 2)."""
    t0, t1 = run.steps["t0_ns"].to_numpy(), run.steps["t1_ns"].to_numpy()
    between = np.column_stack([t1[:-1], t0[1:]])
    long: np.ndarray = between[np.diff(between, axis=1)[:, 0] > np.median(t1 - t0)]
    return long


def _with_pauses(edges: np.ndarray, at: np.ndarray, joules: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative energy with the pauses' own power; edges: begin and end of each in turn, s."""
    paused = np.append(0.0, np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0)))
    everywhere = np.union1d(at, edges)
    more = (PAUSE_W - GAP_W) * np.interp(everywhere, edges, paused)
    return everywhere, np.interp(everywhere, at, joules) + more


def _forget(path: Path, keep_every: int) -> None:
    """Leave the ops of one step in so many."""
    kept = pl.col("step") % keep_every == 0
    for part in [path / "steps.parquet", *sorted((path / "ops").glob("*.parquet"))]:
        frame = pl.read_parquet(part)
        frame = frame.with_columns(recorded=kept) if "recorded" in frame.columns else frame.filter(kept)
        frame.write_parquet(part)


def true_joules(path: Path) -> dict[str, float]:
    """Energy of each name over the profiled steps after warm-up, J; the gap is not in it."""
    run = Run(path)
    pieces = op_pieces(run, int(steps_after_warmup(run)["t0_ns"][0]))
    names = pieces.ops["name"].to_list()
    spent: dict[str, float] = {}
    for track in pieces.tracks:
        for number, seconds in enumerate(np.bincount(track.op, track.t1 - track.t0, len(names))):
            name = names[number]
            spent[name] = spent.get(name, 0.0) + float(seconds) * WATTS.get(name, OTHER_W)
    return spent


def _energy(run: Run, origin: int) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative energy at the edges of pieces, of all steps (warm-up too)."""
    everything = Run(run.path)
    everything.meta["warmup_steps"] = 0
    pieces = op_pieces(everything, origin)
    (track,) = pieces.tracks
    watts = np.array([WATTS.get(name, OTHER_W) for name in pieces.ops["name"]])[track.op]
    edges = np.stack([track.t0, track.t1], 1).ravel()
    power = np.stack([watts, np.full(len(watts), GAP_W)], 1).ravel()[:-1]
    end = (int(run.steps["t1_ns"][-1]) - origin) / 1e9
    at = np.concatenate([[0.0], edges, [max(end, edges[-1])]])
    joules = np.cumsum(np.diff(at) * np.concatenate([[GAP_W], power, [GAP_W]]))
    return at, np.append(0.0, joules)
