"""Judge what the guest brought back: readings against registers, energy, faults; a row a check.

Reads the folder that the guest wrote, with stepscope's own analysis. The truth is truth.csv of a scene: what the
registers said from when to when.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from lab.kernel.judge_load import characterised, training
from lab.kernel.truth import ENERGY_WITHIN, STEP_W, channel_of, covered_energy, registers, run_of
from lab.table import Row, write_rows

from stepscope.analysis.energy.power_sources import channel_readings, power_sources
from stepscope.runfolder import RunReader


def doctor(out: Path) -> Iterator[Row]:
    """Doctor names every driver that is there."""
    codes = {path.stem: path.read_text() for path in (out / "doctor").glob("*.code")}
    found = json.loads((out / "doctor/doctor-json.out").read_text())
    power = sorted(channel["id"] for channel in found["channels"] if channel["quantity"] == "power")
    yield Row("doctor", "ends well", set(codes.values()) == {"0"}, ", ".join(f"{k} {v}" for k, v in codes.items()))
    yield Row("doctor", "finds all seven sources of power", len(power) == 7, ", ".join(power))
    lm75 = [c["id"] for c in found["channels"] if c["quantity"] == "temperature" and "lm75" in c["id"] + c["source"]]
    yield Row("doctor", "finds the temperature chip (lm75)", bool(lm75), ", ".join(lm75) or "not read")


def programs(out: Path) -> Iterator[Row]:
    """Readings equal the registers, and energy is theirs, for each rail and program."""
    scene = out / "programs"
    run, marks = run_of(scene), json.loads((scene / "marks.json").read_text())
    sources = {source.id: source for source in power_sources(run)}
    spans = [marks[name] for name in ("square", "ramp", "recorded")]
    began = [told.end_ns[0] for told in registers(scene).values()]
    begin_ns, end_ns = max(began) + 0.2e9, spans[-1][1] - 0.5e9
    for rail, truth in registers(scene).items():
        channel = channel_of(run, rail)
        if channel is None:
            yield Row("programs", f"{rail}: is sampled", False, "no channel")
            continue
        t0_ns, t1_ns, watts = channel_readings(run, channel)
        inside = (t0_ns > begin_ns) & (t1_ns < end_ns) & np.isfinite(watts)
        whole = inside & ~truth.torn(t0_ns, t1_ns)
        off = np.abs(watts - truth.said(t0_ns.astype(np.float64)))[whole]
        step = STEP_W[rail.partition(".")[0]]
        wrong = int((~(off <= step * 1.001)).sum())
        detail = f"{len(off):,} whole readings of {int(inside.sum()):,}, worst {1000 * off.max():.3g} mW off"
        what = f"{rail}: readings are the registers to a step ({1000 * step:.3g} mW)"
        yield Row("programs", what, wrong == 0, detail)
        if rail in ("sbs", "test_power"):  # a battery is read too seldom for the energy of a second
            continue
        seen, true, covered_s = covered_energy(sources[channel["id"]].growth, truth, begin_ns, end_ns)
        share = seen / true - 1
        detail = f"{seen:.2f} J against {true:.2f} J ({100 * share:+.3f} %), {covered_s:.1f} s of "
        detail += f"{(end_ns - begin_ns) / 1e9:.1f} s covered, read every {np.median(np.diff(t0_ns)) / 1e6:.0f} ms, "
        detail += f"at worst after {np.diff(t0_ns).max() / 1e6:.0f} ms"
        yield Row("programs", f"{rail}: energy within 0.5 %", abs(share) <= ENERGY_WITHIN, detail)


def faults(out: Path) -> Iterator[Row]:
    """What was taken away is a gap and an event, the rest goes on, and what came back is read again."""
    scene = out / "faults"
    run, marks = run_of(scene), json.loads((scene / "marks.json").read_text())
    truth = registers(scene)
    yield Row("faults", "the sampler lives to the end", marks["alive until the end"][0] == 1, run.meta["status"])
    hit = {
        "unbound": ("ina3221.1", "ina3221"), "no answer": ("ina3221.1", "ina3221"),
        "module removed": ("ina238", "ina238"), "battery removed": ("test_power", "battery"),
        "bus removed": ("ina3221.1", "ina3221"),
    }  # fmt: skip
    for what, (rail, sensor) in hit.items():
        begin_ns, end_ns = marks[what]
        channel = channel_of(run, rail)
        if channel is None:
            yield Row("faults", what, False, f"no channel of {rail}")
            continue
        t0_ns, _, watts = channel_readings(run, channel)
        good = np.isfinite(watts)
        inside = good & (t0_ns > begin_ns + 0.3e9) & (t0_ns < end_ns - 0.7e9)
        after = t0_ns[good & (t0_ns > end_ns)]
        back_s = (after[0] - end_ns) / 1e9 if len(after) else np.nan
        events = [
            event["kind"] for event in run.events
            if event.get("sensor") == sensor and begin_ns - 1e8 < event["t_ns"] < end_ns + 6e9
        ]  # fmt: skip
        others = [
            name for name in truth
            if name not in (rail, "ina3221.2", "ina3221.3", "test_power", "sbs")
            and not _went_on(run, name, begin_ns, end_ns)
        ]  # fmt: skip
        others = [] if what == "bus removed" else others
        sound = not inside.any() and back_s < 3 and any("lost" in kind for kind in events)
        sound = sound and any("recovered" in kind for kind in events) and not others
        detail = (
            f"{int(inside.sum())} readings while away, read again after {back_s:.1f} s, events: {', '.join(events)}"
        )
        yield Row("faults", f"{what} ({sensor})", bool(sound), detail + (f"; stopped too: {others}" if others else ""))
    begin_ns, end_ns = marks["slow"]
    for rail in ("ina3221.1", "ina226"):
        channel = channel_of(run, rail)
        assert channel is not None
        t0_ns, t1_ns, watts = channel_readings(run, channel)
        inside = np.isfinite(watts) & (t0_ns > begin_ns) & (t0_ns < end_ns)
        took = (t1_ns - t0_ns)[inside] / 1e6
        detail = f"{int(inside.sum())} readings, each {np.median(took) if len(took) else np.nan:.1f} ms"
        yield Row("faults", f"slow bus, 3 ms a transfer: {rail} is still read", int(inside.sum()) >= 10, detail)


def _went_on(run: RunReader, rail: str, begin_ns: float, end_ns: float) -> bool:
    channel = channel_of(run, rail)
    if channel is None:
        return False
    t0_ns, _, watts = channel_readings(run, channel)
    return bool((np.isfinite(watts) & (t0_ns > begin_ns) & (t0_ns < end_ns)).any())


SCENES = (doctor, programs, characterised, training, faults)


def main(argv: Sequence[str] | None = None) -> int:
    """Judge every scene that is there; 0 where all checks hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the folder that the guest wrote")
    parser.add_argument("--rows", type=Path, required=True, help="JSON file for the rows")
    parser.add_argument("--scenes", nargs="+", default=[scene.__name__ for scene in SCENES])
    options = parser.parse_args(argv)
    rows: list[Row] = []
    for scene in SCENES:
        if scene.__name__ not in options.scenes:
            continue
        try:
            rows += scene(options.out)
        except Exception as error:
            rows.append(Row(scene.__name__, "can be judged", False, f"{type(error).__name__}: {error}"))
    write_rows(options.rows, "kernel", rows)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
