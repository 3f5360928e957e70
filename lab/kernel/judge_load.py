"""Judge the scenes whose power follows what the guest does: what doctor measures of the sensors, and a training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from lab.kernel.truth import ENERGY_WITHIN, STEP_W, channel_of, covered_energy, registers, run_of
from lab.table import Row

from stepscope.analysis.energy.power_sources import power_sources

CONVERSION_S = 0.01  # of the chips of `board.py load`
_REFRESH_WITHIN = 0.1


def characterised(out: Path) -> Iterator[Row]:
    """What doctor measured of each sensor is what the chips are: power step and time between conversions."""
    scene = out / "characterised"
    code = (scene / "doctor-characterise-json.code").read_text()
    yield Row("characterised", "doctor --characterise ends well", code == "0", f"exit code {code}")
    found = json.loads((scene / "doctor-characterise-json.out").read_text())
    channels = {channel["id"]: channel for channel in found["channels"] if channel["quantity"] == "power"}
    stated = channels["rail.0-0040.1.power"]
    detail = f"{(stated['refresh_ns'] or np.nan) / 1e6:.2f} ms, from {_origin(stated, 'refresh_ns')}"
    yield Row("characterised", "ina3221: the driver's round (7 ms) stands", stated["refresh_ns"] == 7_000_000, detail)
    refresh_s = (channels["rail.ina238.power"]["refresh_ns"] or np.nan) / 1e9
    detail = f"{1000 * refresh_s:.2f} ms, from {_origin(channels['rail.ina238.power'], 'refresh_ns')}"
    what = f"ina238, which states none: refresh is the chip's ({1000 * CONVERSION_S:.0f} ms)"
    yield Row("characterised", what, abs(refresh_s / CONVERSION_S - 1) <= _REFRESH_WITHIN, detail)
    for rail, name in (("ina3221", "rail.0-0040.1.power"), ("ina238", "rail.ina238.power")):
        step = channels[name]["step_size"] or np.nan
        detail = f"{1000 * step:.4g} mW, from {_origin(channels[name], 'step_size')}"
        holds = abs(step / STEP_W[rail] - 1) < 0.01
        yield Row("characterised", f"{rail}: resolution is the chip's ({1000 * STEP_W[rail]:.3g} mW)", holds, detail)
    costs = {name: channel.get("read_cost_p99_ns") for name, channel in channels.items()}
    told = ", ".join(f"{name} {cost / 1e6:.2f} ms" for name, cost in costs.items() if cost)
    yield Row("characterised", "read cost of every rail of a chip is known", bool(told) and None not in
              [cost for name, cost in costs.items() if name.startswith("rail.")], told)  # fmt: skip


def _origin(channel: dict[str, object], field: str) -> str:
    measured = channel.get("measured")
    return "measuring" if isinstance(measured, list | tuple) and field in measured else "the driver"


def training(out: Path) -> Iterator[Row]:
    """A training in numpy ends, has its steps in the run, learns, and its energy is the registers'."""
    scene = out / "training"
    run, marks = run_of(scene), json.loads((scene / "marks.json").read_text())
    losses = json.loads((scene / "losses.json").read_text())
    steps, made = run.steps, marks["steps"][0]
    what = "every step of the numpy training is in the run, and the loss falls"
    holds = len(steps) == made > 20 and np.mean(losses[-10:]) < np.mean(losses[:10])
    detail = f"{len(steps)} steps of {made}, loss {np.mean(losses[:10]):.2f} to {np.mean(losses[-10:]):.2f}"
    yield Row("training", what, bool(holds), detail)
    begin_ns, end_ns = float(steps["t0_ns"][0]), float(steps["t1_ns"][-1])
    sources = {source.id: source for source in power_sources(run)}
    for rail, truth in registers(scene).items():
        channel = channel_of(run, rail)
        if rail not in ("ina3221.1", "ina238") or channel is None:  # the INA226 states an average that the stub lacks
            continue
        seen, true, covered_s = covered_energy(sources[channel["id"]].growth, truth, begin_ns, end_ns)
        detail = f"{seen / made:.4f} J a step against {true / made:.4f} J ({100 * (seen / true - 1):+.3f} %), "
        detail += f"{covered_s:.1f} s of {(end_ns - begin_ns) / 1e9:.1f} s covered"
        yield Row("training", f"{rail}: energy a step within 0.5 %", abs(seen / true - 1) <= ENERGY_WITHIN, detail)
    report = (scene / "report.out").read_text()
    code = (scene / "report.code").read_text()
    yield Row("training", "its report is made in the guest", code == "0" and "J" in report, f"exit code {code}")
