"""Real power sensors beside a real meter, through `stepscope import`: the meter is the truth."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.importers.profiler_json import FIRST_US

from stepscope.analysis.energy.accuracy import GPU_LINES
from stepscope.analysis.energy.readings import from_gauge
from stepscope.analysis.run import Run
from stepscope.importers import Options, import_file
from stepscope.importers.sensor_logs import Clock

RECORDINGS = Path(__file__).parent / "real_power"
STEPS = ("step-A100_TR", "step-3090_TR", "step-4090_TR")
REFRESH_S = {"A100-square": 0.102, "step-A100_TR": 0.102, "step-3090_TR": 0.1, "step-4090_TR": 0.1}
A_PIECE_US = 100_000  # a load of seconds is told as steps of this length


@dataclass(frozen=True)
class Recording:
    """What was read, when the load changed, and what the meter measured of each load, W."""

    name: str
    facts: dict[str, Any]

    @property
    def family(self) -> str:
        return max((name for name in GPU_LINES if name.lower() in self.facts["gpu"].lower()), key=len)

    @property
    def shown_w(self) -> dict[str, float]:
        """What this kind of sensor shows of what the meter measures."""
        gain, offset_w = GPU_LINES[self.family]
        return {load: gain * watts + offset_w for load, watts in self.facts["meter_w"].items()}

    def imported(self, out: Path) -> Run:
        """The loads as a profiler file, and the readings as a log of nvidia-smi beside it."""
        changes = self.facts["load_changes_us"]
        events: list[dict[str, Any]] = []
        for number, (begin, end) in enumerate(pairwise(changes)):
            pieces = max(round((end - begin) / A_PIECE_US), 1)
            edges = np.linspace(begin, end, pieces + 1).tolist()
            load = ("high", "low")[number % 2]
            events += [event(load, t0 + 0.5, t1 - t0 - 1) for t0, t1 in pairwise(edges)]
            if pieces > 1:
                events += [mark(t0, t1 - t0) for t0, t1 in pairwise(edges)]
            elif number % 2 == 0 and number + 2 < len(changes):
                events.append(mark(begin, changes[number + 2] - begin))
        base_ns = self.facts["begin_unix_ms"] * 1_000_000 - round(FIRST_US * 1000)
        stated = {"deviceProperties": [{"id": 0, "name": self.facts["gpu"]}], "traceEvents": events}
        (out / "trace.json").write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base_ns, **stated}))
        read = zip(self.facts["read_ms"], self.facts["watts"], strict=True)
        lines = [f"{stamp(self.facts['begin_unix_ms'] + ms)}, {watts}" for ms, watts in read]
        (out / "log.csv").write_text("\n".join(["timestamp, power.draw [W]", *lines]))
        beside = Options(clock=Clock(zone=timezone.utc))
        return Run(import_file(out / "trace.json", [out / "log.csv"], out=out / "runs", options=beside))


def event(name: str, t0_us: float, dur_us: float, cat: str = "cpu_op") -> dict[str, Any]:
    where = {"pid": 1, "tid": 7, "ts": FIRST_US + t0_us, "dur": dur_us}
    return {"ph": "X", "cat": cat, "name": name, **where, "args": {}}


def mark(t0_us: float, dur_us: float) -> dict[str, Any]:
    return event("ProfilerStep#1", t0_us, dur_us, "user_annotation")


def stamp(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1e3, timezone.utc).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]


def recording(name: str) -> Recording:
    return Recording(name, json.loads((RECORDINGS / f"{name}.json").read_text()))


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return recording("A100-square").imported(tmp_path_factory.mktemp("square"))


def watts_of(run: Run) -> dict[str, float]:
    return {row["name"]: row["watts"] for row in run.energy(by="kind").iter_rows(named=True)}


def test_loads_of_52_ms_behind_an_a100_are_told_apart_within_3_percent(square: Run) -> None:
    found = watts_of(square)
    for load, watts in recording("A100-square").shown_w.items():
        assert found[load] == pytest.approx(watts, rel=0.03)


def test_the_interval_of_a_meter_holds_what_the_meter_measured(square: Run) -> None:
    meter = recording("A100-square").facts["meter_w"]
    (row,) = square.energy_totals().iter_rows(named=True)
    spent = {one["name"]: one["seconds_per_step"] for one in square.energy(by="kind").iter_rows(named=True)}
    shares = {load: spent[load] / (spent["high"] + spent["low"]) for load in meter}
    true_w = sum(meter[load] * shares[load] for load in meter)
    assert row["meter_source"].startswith("A100")
    assert row["meter_low"] <= true_w * row["covered_s"] <= row["meter_high"]


def test_the_response_of_an_a100_is_a_filter_whose_two_time_constants_are_its_window(square: Run) -> None:
    """The publication fits a window of 25 ms; the recording falls and rises exponentially."""
    (row,) = square.energy_resolution().iter_rows(named=True)
    assert 2 * row["rc_s"] == pytest.approx(0.025, rel=0.15)


@pytest.mark.parametrize("name", REFRESH_S)
def test_the_refresh_is_found_from_the_values_that_repeat(name: str) -> None:
    facts = recording(name).facts
    at = np.array(facts["read_ms"]) / 1e3
    assert from_gauge(at, at, np.array(facts["watts"])).tick == pytest.approx(REFRESH_S[name], rel=0.15)


@pytest.mark.parametrize("name", STEPS)
def test_what_is_claimed_of_a_load_of_seconds_is_what_the_meter_measured(name: str, tmp_path: Path) -> None:
    one = recording(name)
    run = one.imported(tmp_path)
    shown = one.shown_w
    rows = {row["name"]: row for row in run.energy(by="kind").iter_rows(named=True) if row["name"] in shown}
    for load, watts in shown.items():
        assert rows[load]["watts"] == pytest.approx(watts, rel=0.03)
        if rows[load]["verdict"] == "resolved":
            low, high = (rows[load][end] / rows[load]["seconds_per_step"] for end in ("low", "high"))
            assert max(low - watts, watts - high, 0.0) <= 0.03 * watts  # the sensor's own line is as sure as that
