"""Judge what Stepscope made of each layout of JetPack: what is found, readings, energy, power modes; a row a check."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from lab.jetpack.board import LAYOUTS, RAIL
from lab.kernel.truth import ENERGY_WITHIN, channel_of, covered_energy, registers
from lab.table import Row, write_rows

from stepscope.analysis.energy.power_sources import channel_readings, power_sources
from stepscope.runfolder import RunReader

_STEP_W = 0.001  # of the files


def found(root: Path, name: str) -> Iterator[Row]:
    """Commands end well; doctor names the release, the power mode, the rails, and the GPU where it has files."""
    codes = dict(line.rsplit(" ", 1) for line in (root / "codes").read_text().splitlines())
    yield Row(name, "commands end well", set(codes.values()) == {"0"}, ", ".join(f"{k} {v}" for k, v in codes.items()))
    told = json.loads((root / "doctor.out").read_text())
    device, layout = told["device"], LAYOUTS[name]
    known = device["power_mode"] == layout.modes[0] and f"R{layout.release[0]}" in (device["l4t"] or "")
    yield Row(name, "release and power mode are known", known, f"{device['l4t']}, mode {device['power_mode']}")
    channels = {channel["id"]: channel for channel in told["channels"]}
    rails = [channel["rail"] for channel in channels.values() if channel["quantity"] == "power"]
    sensors = {channel["sensor"] for channel in channels.values() if channel["quantity"] == "power"}
    yield Row(
        name, "the supply is a rail", RAIL in rails, f"{', '.join(sorted(rails))} by {', '.join(sorted(sensors))}"
    )
    if (root / "sys/class/devfreq").exists():
        gpu = [key for key in channels if key.startswith("gpu.0.")]
        yield Row(name, "load and clock of the GPU", len(gpu) == 2, ", ".join(gpu))


def measured(root: Path, name: str) -> Iterator[Row]:
    """Readings are what the files said, and so is energy."""
    run = RunReader(next((root / "runs").iterdir()))
    truth, channel = registers(root)[RAIL], channel_of(run, RAIL)
    if channel is None:
        yield Row(name, "the supply is sampled", False, "no channel")
        return
    t0_ns, t1_ns, watts = channel_readings(run, channel)
    good = np.isfinite(watts)
    of_a_line = channel["sensor"] == "tegrastats"  # up to one interval old: a level, but not always the present one
    whole = good if of_a_line else good & ~truth.torn(t0_ns, t1_ns)
    said = truth.watts if of_a_line else truth.said(t0_ns.astype(np.float64))[whole][:, None]
    off = np.abs(watts[whole][:, None] - said).min(axis=1)
    wrong = int((off > _STEP_W).sum())
    detail = f"{int(whole.sum()):,} readings, {wrong} wrong, {len(set(watts[whole]))} levels"
    yield Row(name, f"{RAIL}: readings are what was written", bool(wrong == 0 < whole.sum()), detail)
    begin_ns, end_ns = float(t0_ns[good][2]), float(t0_ns[good][-2])
    growth = next(source for source in power_sources(run) if source.id == channel["id"]).growth
    seen, true, covered_s = covered_energy(growth, truth, begin_ns, end_ns)
    within = 0.1 * float(np.ptp(truth.watts)) / true + ENERGY_WITHIN if of_a_line else ENERGY_WITHIN
    detail = f"{seen:.2f} J against {true:.2f} J ({100 * (seen / true - 1):+.2f} %), {covered_s:.1f} s covered"
    yield Row(name, f"{RAIL}: energy within {100 * within:.1f} %", bool(abs(seen / true - 1) <= within), detail)


def modes(root: Path, name: str) -> Iterator[Row]:
    """The study of power modes sets each, and at the end the one of before."""
    if not (root / "modes").exists():
        return
    calls = [line for line in (root / "log").read_text().splitlines() if line.startswith("-m")]
    now = (root / "mode").read_text().strip()
    yield Row(name, "study power-modes sets both, and the first again", calls == ["-m 1", "-m 0"] and now == "0",
              f"nvpmodel {', '.join(calls)}; at the end {now}")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Judge every layout; 0 where all checks hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder that go has filled")
    parser.add_argument("--rows", type=Path, required=True, help="JSON file for the rows")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    for name in LAYOUTS:
        for scene in (found, measured, modes):
            try:
                rows += scene(options.out / name, name)
            except Exception as error:
                rows.append(Row(name, f"{scene.__name__}: can be judged", False, f"{type(error).__name__}: {error}"))
    write_rows(options.rows, "jetpack", rows)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
