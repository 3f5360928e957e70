"""Every number on the page is one of the run's: the visible text, and the data that its script draws, are walked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.analysis.powered import powered, rail, rapl, times
from tests.fabricate import STEP, Core, fabricate_run

from stepscope.analysis.device.ceilings import roofline, roofs
from stepscope.analysis.first_screen import setting_facts
from stepscope.analysis.run import Run
from stepscope.analysis.summary import module_quantities, resolution_sentences, summary
from stepscope.analysis.time.tracks import drift, step_lanes, step_tracks
from stepscope.report import html
from stepscope.report.page.parts import Anatomy
from stepscope.report.sections import anatomy, power
from stepscope.units import amount, count, milliseconds, number, percent, si

_NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
# Said by the page itself: intervals of 95 %, within 10 %, the year of the paper, CUSUM over 5 steps, warm-up 3,
# rounds of the text such as "less than 6".
_OWN = {"95", "10", "2019", "5", "3", "1", "2", "0", "6"}
_UNITS = ("ns", "s", "B", "W", "J", "1", "FLOP", "samples/s", "cores", "1/s")


class _Text(HTMLParser):
    """The visible text outside charts, piece by piece; the data of scripts apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.data: list[Any] = []
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "svg", "title"):
            self._inside.append("data" if dict(attributes).get("type") == "application/json" else tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "svg", "title") and self._inside:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.pieces.append(data)
        elif self._inside[-1] == "data":
            self.data.append(json.loads(data))


def _leaves(value: object) -> Iterator[object]:
    """Everything in nested lists, objects and frames that is none of them."""
    if isinstance(value, pl.DataFrame):
        yield from _leaves(value.to_dicts())
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _known(run: Run) -> list[object]:
    """What summary.json and `Run` hold, number by number and text by text."""
    steps = run.steps.with_columns(length=pl.col("t1_ns") - pl.col("t0_ns"))
    found, points = drift(run), roofline(run)
    frames = [summary(run), run.meta, run.device, run.channels, steps, run.modules(), run.operators(), run.phases()]
    frames += [run.metrics(), run.overhead(), run.energy_totals(), run.rail_energy(), module_quantities(run), run.id]
    frames += [run.layers(), setting_facts(run)]
    frames += [
        run.attained("module"),
        run.attained("operator"),
        points,
        roofs(run),
        run.model,
        *(() if found is None else (found.first.row, found.last.row, found.steps)),
    ]
    frames += [len(run.operators()) - 1, len(run.anatomy()), found.ratio if found else None, len(run.modules()) - 2]
    frames += [run.energy(by) for by in ("kind", "module", "component")] if run.rails.lines else []
    frames += [run.energy_resolution(), resolution_sentences(run.energy_resolution())]
    frames += [list(run.board.traps), run.board.title, run.board.os_keeps_bytes]
    frames += [list(_core_windows_ns(run)), run.utilisation(by="kind"), run.utilisation(by="module")]
    return [leaf for frame in frames for leaf in _leaves(frame)]


def _core_windows_ns(run: Run) -> Iterator[int]:
    """The longest window of `Run.core_timeline` over any few steps from the middle of the steady ones."""
    steady = run.steps.slice(run.warmup_steps)
    for shown in (steady.slice((len(steady) - many) // 2, many) for many in range(1, len(steady) + 1)):
        found = run.core_timeline(int(shown["t0_ns"][0]), int(shown["t1_ns"][-1]))
        yield int((found["t1_ns"] - found["t0_ns"]).to_numpy().max())


def _ways(value: object) -> Iterator[str]:
    """Each way in which the page may write a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (amount(value, unit) for unit in _UNITS)
        yield from (percent(value, digits) for digits in (0, 1, 2))
        yield from (number(value, digits) for digits in (2, 3, 6))
        yield from (milliseconds(value), count(value), si(value, ""), str(value))


def _strangers(page: str, run: Run) -> list[str]:
    """Numbers of the page that the run does not know, each with the text around it."""
    known = {token for value in _known(run) for said in _ways(value) for token in _NUMBER.findall(said)} | _OWN
    return [
        f"{token} in '{piece.strip()[:120]}'"
        for piece in _Text(page).pieces
        for token in _NUMBER.findall(piece)
        if token not in known
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    return Run(fabricate_run(folder, steps=60, noise=0.03, gap=(0.45, 0.5), cores=(Core(0.75), Core(0.25))))


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return html.render(run)


def test_every_number_of_the_text_is_in_the_summary_or_in_run(run: Run, page: str) -> None:
    assert _strangers(page, run) == []


def test_the_numbers_of_a_run_with_power_are_its_own(tmp_path: Path) -> None:
    run = powered(tmp_path, rail("VDD_IN", 5.25, times(60)), steps=60, ops=STEP, residual_us=1000)
    assert _strangers(html.render(run), run) == []


def test_the_walk_finds_a_number_that_is_not_the_runs(run: Run, page: str) -> None:
    forged = page.replace("<footer>", "<p>the step takes 12,345.678 ms</p><footer>")
    (found,) = _strangers(forged, run)
    assert found.startswith("12,345.678 in ")


def test_the_drawn_operations_are_those_of_the_step(run: Run, page: str) -> None:
    (data,) = [one for one in _Text(page).data if "lanes" in one]
    lanes = step_lanes(run)
    drawn = list(zip(data["ops"]["start"], data["ops"]["length"], data["ops"]["name"], strict=True))
    stored = lanes.select("start_ns", pl.col("end_ns") - pl.col("start_ns"), "name").rows()
    assert sorted((start, length, data["names"][name]) for start, length, name in drawn) == sorted(stored)


def test_the_drawn_samples_are_those_of_the_step(run: Run, page: str) -> None:
    (data,) = [one for one in _Text(page).data if "lanes" in one]
    tracks = step_tracks(run, data["step"])
    cores = [track for track in data["tracks"] if track["track"] == "core"]
    drawn = [value for track in cores for layer in track["layers"] for value in layer["values"]]
    assert drawn == pytest.approx(tracks.filter(pl.col("track") == "core")["value"].to_list(), rel=1e-4)


def test_the_layers_of_the_icicle_are_those_of_the_modules(run: Run, page: str) -> None:
    (data,) = [one for one in _Text(page).data if "layers" in one]
    quantities = module_quantities(run)
    assert [layer["key"] for layer in data["layers"]] == ["time", "flops"]
    for layer in data["layers"]:
        stored = quantities.filter(pl.col("quantity") == layer["key"]).sort("module")["total"].to_list()
        order = sorted(range(len(data["rows"])), key=lambda at: data["rows"][at][0])
        assert [layer["rows"][at][0] for at in order] == pytest.approx(stored, rel=1e-4)


def test_a_row_of_rails_holds_none_that_lies_inside_another_of_it(tmp_path: Path) -> None:
    t_ns = times(100, period_ms=2.0)
    inside = {"package-0": "rapl:psys", "core": "rapl:package-0", "uncore": "rapl:package-0"}
    domains = [
        rapl(name, watts, t_ns, rail=name, parent_scope=inside.get(name))
        for name, watts in (("psys", 20.0), ("package-0", 12.0), ("core", 8.0), ("uncore", 1.0))
    ]
    (part,) = anatomy.build(powered(tmp_path, *domains, steps=100, ops=STEP, residual_us=1000)).parts
    assert isinstance(part, Anatomy)
    rows = {row["label"]: row for row in part.data["tracks"] if row["track"] == "power"}
    assert list(rows) == ["psys", "package-0", "rails inside package-0"]
    inner = rows["rails inside package-0"]
    assert [layer["name"] for layer in inner["layers"]] == ["core", "uncore"]
    assert inner["top"] < rows["package-0"]["top"]


def test_many_rails_read_together_are_one_row_with_the_smaller_ones_as_one_layer(tmp_path: Path) -> None:
    t_ns = times(100, period_ms=2.0)
    rails = [rapl(f"rail{number}", 20.0 / 2**number, t_ns, rail=f"rail{number}") for number in range(9)]
    (part,) = anatomy.build(powered(tmp_path, *rails, steps=100, ops=STEP, residual_us=1000)).parts
    assert isinstance(part, Anatomy)
    rows = {row["label"]: row for row in part.data["tracks"] if row["track"] == "power"}
    assert list(rows) == ["rail0", "other rails"]
    layers = rows["other rails"]["layers"]
    assert [layer["name"] for layer in layers] == ["rail1", "rail2", "rail3", "rail4", "rail5", "3 smaller rails"]
    assert layers[-1]["values"] == pytest.approx([20 / 64 + 20 / 128 + 20 / 256] * len(layers[-1]["values"]), rel=1e-3)


def test_power_over_time_is_that_of_the_rails_which_make_the_total(tmp_path: Path) -> None:
    t_ns = times(100, period_ms=2.0)
    domains = [rapl(name, watts, t_ns, rail=name) for name, watts in (("dram", 1.0), ("package-0", 12.0))]
    cpu = {"cpu": "Intel(R) Core(TM) i5-13500"}
    run = powered(tmp_path, *domains, steps=100, ops=STEP, residual_us=1000, device=cpu)
    assert {line.name for line in run.rails.total or ()} == {"dram", "package-0"}
    windows = power._whole_device(run, run.power_timeline(int(run.steps["t0_ns"][0]), int(run.steps["t1_ns"][-1])))
    assert windows["rail"].n_unique() == 1
    assert windows["watts"].drop_nulls().to_list() == pytest.approx([13.0] * windows["watts"].count(), rel=1e-3)
