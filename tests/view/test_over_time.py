"""Several runs over each other by time: their numbers, what is refused, and the page in a browser."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.fabricate import Sampled, fabricate_run
from tests.report.browser import Browser
from tests.report.stored_runs import READ, simulated_board

from stepscope.analysis.run import Run
from stepscope.analysis.time.tracks import MOST_POINTS, lines_over_time

pytest.importorskip("altair")
from stepscope.report.view.access import Access, HttpAnswer
from stepscope.report.view.server import BoundedServer, make_server
from stepscope.report.view.site import Site

HERE = {"Host": "localhost:8321"}


def _clocked(out: Path, **options: Any) -> Path:
    """A run whose only core has 1 GHz in its first half and 2 GHz in its second, with a reading that is missing."""
    t_ns = np.arange(0, 1_000_000_000, 10_000_000, dtype=np.int64)
    hertz = np.where(t_ns < 480_000_000, 1e9, 2e9)
    hertz[70] = np.nan
    clock = {"sensor": "cpufreq", "id": "cpu0", "quantity": "core_frequency", "unit": "Hz", "kind": "gauge", **READ}
    return fabricate_run(out, steps=60, sampled=(Sampled({**clock, "scope": "core:0"}, t_ns, hertz),), **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs with steps and one without."""
    root = tmp_path / "runs"
    _clocked(root, batch=32)
    simulated_board(root)
    fabricate_run(root, steps=900, ops=(), power_w=5.0, batch=8)
    fabricate_run(root, steps=0, ops=(), samples=False)
    return root


def _data(answer: HttpAnswer) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', answer.body, re.DOTALL)
    data: dict[str, Any] = json.loads(found)
    return data


def test_step_times_are_those_of_the_steps_at_their_time_and_number(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=50, noise=0.1))
    line = next(line for line in lines_over_time(run) if line.quantity == "step time")
    lengths = run.steps.select((pl.col("t1_ns") - pl.col("t0_ns")) / 1e6).to_series()
    begins = run.steps.select((pl.col("t0_ns") - pl.col("t0_ns").first()) / 1e9).to_series()
    assert line.values.tolist() == pytest.approx(lengths.to_list())
    assert line.t_s.tolist() == pytest.approx(begins.to_list())
    assert line.step.tolist() == pytest.approx(run.steps["step"].to_list())


def test_power_memory_and_clock_are_those_of_the_sensors_and_say_what_was_simulated(tmp_path: Path) -> None:
    board = {line.quantity: line for line in lines_over_time(Run(simulated_board(tmp_path / "a")))}
    assert set(board) == {"step time", "power", "memory"}
    assert (board["power"].kind, board["memory"].kind) == ("simulated", "measured")
    assert np.nanmedian(board["power"].values) == pytest.approx(6.0, rel=0.01)
    clock = next(line for line in lines_over_time(Run(_clocked(tmp_path / "b"))) if line.quantity == "clock")
    assert set(clock.values[np.isfinite(clock.values)]) == {1.0, 2.0}
    assert np.isnan(clock.values).sum() == 1
    assert clock.t_s[clock.values == 2.0].min() > clock.t_s[clock.values == 1.0].max()


def test_a_long_run_has_few_points_which_keep_its_level(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=2_000, ops=(), samples=False, noise=0.05))
    (line,) = lines_over_time(run)
    lengths = (run.steps["t1_ns"] - run.steps["t0_ns"]).to_numpy() / 1e6
    assert len(line.values) <= MOST_POINTS
    assert np.median(line.values) == pytest.approx(np.median(lengths), rel=0.02)


def test_without_a_choice_the_newest_runs_with_steps_are_shown(folder: Path) -> None:
    answer = Site(folder, Access()).answer("/over-time", HERE)
    assert answer.status == 200
    assert "script-src 'sha256-" in answer.all_headers()["Content-Security-Policy"]
    data = _data(answer)
    assert len(data["runs"]) == 3
    assert sum("SIMULATED" in run["badge"] for run in data["runs"]) == 1


def test_runs_that_cannot_be_drawn_are_named_or_refused(folder: Path) -> None:
    site = Site(folder, Access())
    rows = json.loads(site.answer("/runs.json", HERE).body)["rows"]
    empty = next(row["key"] for row in rows if not row["steps"])
    other = next(row["key"] for row in rows if row["steps"])
    assert _data(site.answer(f"/over-time?run={empty}&run={other}", HERE))["absent"] == [f"{empty} (no step)"]
    assert site.answer(f"/over-time?run={empty}", HERE).status == 409
    assert site.answer("/over-time?run=../secret", HERE).status == 404
    for seed in range(11):
        fabricate_run(folder, steps=4, ops=(), samples=False, seed=seed)
    every = "&".join(
        f"run={row['key']}" for row in json.loads(Site(folder, Access()).answer("/runs.json", HERE).body)["rows"]
    )
    answer = Site(folder, Access()).answer(f"/over-time?{every}", HERE)
    assert (answer.status, "at most 10" in answer.body) == (409, True)


@pytest.fixture
def server(folder: Path) -> Iterator[BoundedServer]:
    made = make_server(folder, port=0)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


_READY = (
    "new Promise((done) => { const look = () => document.querySelector('path[data-run]') ? done(1) :"
    " setTimeout(look, 20); look(); })"
)
_ENDS = (
    "[...document.querySelectorAll('.plot')].map((plot) => [...plot.querySelectorAll('text')]"
    ".map((text) => text.textContent).join())"
)
_PALETTE = (
    "Array.from({ length: 10 }, (_, at) => getComputedStyle(document.documentElement)"
    ".getPropertyValue('--run-' + at).trim())"
)


def test_check_boxes_choose_runs_and_quantities_and_no_two_lines_look_alike(
    server: BoundedServer, tmp_path: Path
) -> None:
    paths = "[...document.querySelectorAll('[data-quantity=\"step time\"] path[data-run]')]"
    with Browser(tmp_path / "profile") as opened:
        opened.call("Page.navigate", url=server.address_of("over-time"))
        while opened.run("location.protocol") != "http:":
            pass
        opened.run(_READY)
        looks = opened.run(f"{paths}.map((path) => getComputedStyle(path).stroke)")
        assert len(looks) == len(set(looks)) == 3
        quantities = "[...document.querySelectorAll('[data-quantity]')].map((plot) => plot.dataset.quantity)"
        assert opened.run(quantities) == ["step time", "power", "memory", "clock"]
        assert len(set(opened.run(_PALETTE))) == 10
        before = opened.run(_ENDS)
        opened.run("document.querySelector('input[value=step]').click()")
        assert opened.run(_ENDS) != before
        opened.run("document.querySelector('input[name=run]').click()")
        assert len(opened.run(f"{paths}.map((path) => path.dataset.run)")) == 2
        opened.run("document.querySelector('input[value=memory]').click()")
        assert "memory" not in opened.run(quantities)
        assert opened.said == []


def test_no_more_runs_are_looked_through_than_are_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepscope.report.view import listing

    for seed in range(8):
        fabricate_run(folder, steps=6, seed=10 + seed)
    looked: list[Path] = []
    monkeypatch.setattr(listing, "has_link_outside", lambda path, root: looked.append(path))
    rows = listing.Listing(folder).list_runs()
    chosen = listing.newest_with_steps(rows, folder)
    assert len(chosen) == len(looked) == 6
    assert len(rows) > 6
    starts = [row.facts["started_s"] or 0.0 for row in chosen]
    assert starts == sorted(starts)
