"""DRAM bandwidth as docs/add-a-quantity.md adds it: a sensor and a row, and it is shown everywhere."""

from __future__ import annotations

import io
import json
import re
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from tests.analysis.attribution.powered_run import OTHER_W, WATTS, powered_run
from tests.fabricate import Sampled, fabricate_run
from tests.report import perfetto_reader

from stepscope import quantities
from stepscope.analysis.compare import compare
from stepscope.analysis.energy import operators
from stepscope.analysis.run import Run
from stepscope.quantities import Quantity
from stepscope.record.sensors.contract import OpenSensor, Target
from stepscope.report import html, terminal_report
from stepscope.report.comparison import render as compared
from stepscope.report.exports import perfetto
from stepscope.report.exports._excerpt import excerpt
from stepscope.report.live.run_state import RunWatcher
from stepscope.report.live.screen import status_line

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-quantity.md").read_text(encoding="utf-8")
SENSOR, ROW = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
GB = 1e9


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of the page, among the others."""
    quantity = eval(ROW, {"Quantity": Quantity})
    monkeypatch.setitem(quantities._KNOWN, quantity.name, quantity)
    monkeypatch.setattr(operators, "CHANNELS", (*quantities.CHANNELS, quantity))


def channel(tmp_path: Path) -> dict[str, Any]:
    """The channel that the sensor of the page gives, read once below a root of its own."""
    for number, reading in enumerate((b"8000000000\n", b"4000000000\n")):
        file = tmp_path / f"root/sys/class/dram/channel{number}/bandwidth"
        file.parent.mkdir(parents=True)
        file.write_bytes(reading)
    module = types.ModuleType("dram")
    exec(compile(SENSOR, "add-a-quantity.md", "exec"), module.__dict__)
    found = module.SENSORS[0].discover(tmp_path / "root", Target(1))
    assert isinstance(found, OpenSensor)
    assert list(found.read()) == [8 * GB, 4 * GB]
    found.close()
    described = found.channels[0]
    return {name: getattr(described, name) for name in ("sensor", "id", "quantity", "unit", "kind", "scope", "source")}


def measured(tmp_path: Path, status: str | None = "ok") -> Path:
    t_ns = np.arange(0, 320_000_000, 4_000_000)
    read = Sampled(channel(tmp_path), t_ns, np.full(len(t_ns), 8 * GB))
    return fabricate_run(tmp_path / "run", sampled=(read,), status=status)


def screen(drawn: Any) -> str:
    console = Console(width=100, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get()


def test_it_is_shown_by_terminal_page_perfetto_and_comparison(tmp_path: Path) -> None:
    run = Run(measured(tmp_path))

    assert "DRAM bandwidth, dram 0: 8 GB/s" in screen(terminal_report.render(run))
    assert "DRAM bandwidth, dram 0" in html.render(run)
    tracks = perfetto_reader.read(b"".join(perfetto.trace_parts(excerpt(run)))).values()
    assert [(track.name, track.unit) for track in tracks if "dram" in track.name] == [("dram bandwidth dram:0", "B/s")]
    both = compare([run, Run(run.path)])
    assert both.quantities.filter(metric="dram_bandwidth")["value"].to_list() == [8 * GB, 8 * GB]
    assert "DRAM bandwidth" in screen(compared(both))


def test_the_live_view_follows_it(tmp_path: Path) -> None:
    watch = RunWatcher(measured(tmp_path, status=None))
    now = watch.read_state()
    watch.close()
    assert ("DRAM bandwidth dram 0", 8 * GB, "B/s") in now.others
    assert "DRAM bandwidth dram 0 8 GB/s" in status_line(replace(now, status="running"))


def test_each_op_has_what_moved_while_it_ran(tmp_path: Path) -> None:
    """The watts of a powered run stand for GB/s: the truth of each op is known, and lies above 1."""
    path = powered_run(tmp_path / "runs")
    described = json.loads((path / "channels.json").read_text(encoding="utf-8"))
    for entry in described["channels"]:
        if entry["id"] == "vdd_in":
            entry |= {name: value for name, value in channel(tmp_path).items() if name in ("quantity", "unit", "scope")}
            entry |= {"rail": None}
    (path / "channels.json").write_text(json.dumps(described), encoding="utf-8")
    samples = path / "samples" / "power.parquet"
    pl.read_parquet(samples).with_columns(pl.col("vdd_in") * GB).write_parquet(samples)
    run = Run(path)
    resolved = run.utilisation(by="kind").filter(quantity="dram_bandwidth", verdict="resolved")
    named = [entry for entry in resolved.iter_rows(named=True) if not entry["name"].startswith("(")]
    assert named

    for entry in named:
        assert entry["mean"] == pytest.approx(WATTS.get(entry["name"], OTHER_W) * GB, rel=0.1)
    assert set(run.utilisation(by="module")["quantity"]) >= {"dram_bandwidth"}
    assert re.search(r"dram:0 dram bandwidth: .* [\d.]+ GB/s", screen(terminal_report.render(run)))
