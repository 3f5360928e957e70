"""A quantity of a plug-in's sensor that nobody knows is shown everywhere, plainly, under its own name and unit."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.fabricate import Sampled, fabricate_run
from tests.report import perfetto_reader

from stepscope.analysis.compare import compare
from stepscope.analysis.run import Run
from stepscope.report import html, terminal_report
from stepscope.report.exports import csv, perfetto
from stepscope.report.exports._excerpt import excerpt
from stepscope.report.live.run_state import RunWatcher
from stepscope.report.live.screen import Screen, status_line

STEP_NS = 16_000_000
FAN: dict[str, Any] = {
    "sensor": "fan", "id": "fan.load", "quantity": "fan_load", "unit": "%", "kind": "gauge", "scope": "fan:0",
    "source": "/sys/class/hwmon/hwmon0/pwm1",
}  # fmt: skip


def fan(**stated: Any) -> Sampled:
    t_ns = np.arange(0, 20 * STEP_NS, STEP_NS // 4)
    return Sampled({**FAN, **stated}, t_ns, np.full(len(t_ns), 42.0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(fabricate_run(tmp_path_factory.mktemp("fan"), sampled=(fan(),)))


def _screen(drawn: Any) -> str:
    console = Console(width=100, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get()


def test_it_is_a_metric_with_an_interval(run: Run) -> None:
    row = run.metrics().filter(metric="fan_load").row(0, named=True)
    assert (row["scope"], row["value"], row["unit"], row["low"], row["high"]) == ("fan:0", 42.0, "%", 42.0, 42.0)


def test_it_is_in_the_terminal_report_and_among_the_key_figures_of_the_page(run: Run) -> None:
    assert "fan load, fan 0: 42 %" in _screen(terminal_report.render(run))
    page = html.render(run)
    assert "Fan load, fan 0" in page
    assert "42 %" in page


def test_it_is_in_perfetto_and_in_the_tables(run: Run, tmp_path: Path) -> None:
    tracks = perfetto_reader.read(b"".join(perfetto.trace_parts(excerpt(run)))).values()
    assert [(track.name, track.unit) for track in tracks if "fan" in track.name] == [("fan load fan:0", "%")]
    csv.write(excerpt(run), tmp_path)
    assert "fan_load" in "".join(file.read_text() for file in tmp_path.glob("*.csv"))


def test_it_is_compared(run: Run, tmp_path: Path) -> None:
    other = Run(fabricate_run(tmp_path, sampled=(fan(),)))
    rows = compare([run, other]).quantities.filter(metric="fan_load")
    assert rows["value"].to_list() == [42.0, 42.0]


def test_it_is_in_the_live_view(tmp_path: Path) -> None:
    watch = RunWatcher(fabricate_run(tmp_path, sampled=(fan(),), status=None))
    now = watch.read_state()
    watch.close()
    assert now.others == (("fan load fan 0", 42.0, "%"),)
    assert "fan load fan 0 42 %" in _screen(Screen(now))
    assert "fan load fan 0 42 %" in status_line(replace(now, status="running"))


def test_an_estimate_of_it_says_so(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, sampled=(fan(kind="estimate"),)))
    assert "estimated fan load, fan 0: 42 %" in _screen(terminal_report.render(run))


def test_what_a_packaged_sensor_could_have_given_is_empty_where_it_was_not_sampled(run: Run) -> None:
    for quantity in ("memory_utilisation", "nvmap_used", "gpu_memory"):
        assert run.samples(quantity).is_empty()
    assert len(run.samples("fan_load"))
