"""Figures of a run of several processes are those of its training processes, never those of the launcher."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from tests.analysis.parts import START_NS, join, mm, write_part
from tests.fabricate import fabricate_run

from stepscope.analysis.process_scopes import HeldReadings, is_writer_watched, writer_scope
from stepscope.analysis.run import Run
from stepscope.analysis.summary import summary
from stepscope.report import terminal_report
from stepscope.report.html import render as page
from stepscope.runfolder.schema import sample_dtype

LAUNCHER_PID, PIDS = 700, (2**22 + 1, 2**22 + 2)
PERIOD_NS, END_S = 20_000_000, 2.0
MB = 1e6
Load = Callable[[np.ndarray], np.ndarray]


def flat(value: float) -> Load:
    """A gauge that stays as it is."""
    return lambda t_s: np.full(len(t_s), value)


def busy(cores: float, before: float = 0.0) -> Load:
    """A counter of CPU time, ns, of a process that uses so many cores."""
    return lambda t_s: before * 1e9 + cores * t_s * 1e9


LAUNCHER = {("process", "process_cpu_time"): busy(0.01), ("process", "rss"): flat(200 * MB)}
LAUNCHER_PSS = {("process", "pss"): flat(100 * MB)}
CHILDREN = {("children", "process_cpu_time"): busy(1.5), ("children", "rss"): flat(900 * MB)}
RANKS: dict[tuple[str, str], Load] = {
    ("rank:0", "process_cpu_time"): busy(0.5, before=9),
    ("rank:0", "rss"): flat(400 * MB),
    ("rank:0", "peak_rss"): flat(410 * MB),
    ("rank:1", "process_cpu_time"): busy(0.9),
    ("rank:1", "rss"): flat(500 * MB),
    ("rank:1", "peak_rss"): flat(530 * MB),
}
PSS = {("rank:0", "pss"): flat(300 * MB), ("rank:1", "pss"): flat(350 * MB), ("children", "pss"): flat(0)}


def sample(
    run: Path,
    loads: dict[tuple[str, str], Load],
    spans: dict[str, tuple[float, float]] | None = None,
    pid: int | None = LAUNCHER_PID,
    source: str = "synthetic",
) -> None:
    """Write what the sampler reads of processes: a sensor a channel, from 0 to 2 s after the first step began."""
    channels: list[dict[str, Any]] = []
    (run / "samples").mkdir(exist_ok=True)
    for (scope, quantity), load in loads.items():
        name = f"{scope.replace(':', '-')}.{quantity}"
        begin, end = (spans or {}).get(name, (spans or {}).get(scope, (0.0, END_S)))
        t_ns = np.arange(round(begin * 1e9), round(end * 1e9), PERIOD_NS, dtype=np.int64)
        counter = quantity == "process_cpu_time"
        channels.append(
            {"id": name, "sensor": name, "quantity": quantity, "unit": "ns" if counter else "B", "scope": scope}
            | {"kind": "counter" if counter else "gauge", "refresh_ns": 1_000_000, "source": source}
        )
        rows = np.zeros(len(t_ns), dtype=sample_dtype([name]))
        rows["t0_ns"], rows["t1_ns"] = START_NS + t_ns, START_NS + t_ns + 1_000
        rows[name] = load(t_ns / 1e9)
        (run / "samples" / f"{name}.rows").write_bytes(rows.tobytes())
    stated = {} if pid is None else {"pid": pid}
    (run / "channels.json").write_text(json.dumps({**stated, "channels": channels, "missing": []}))


def pair(tmp_path: Path, loads: dict[tuple[str, str], Load] | None = None, **options: Any) -> Run:
    """Two ranks below a launcher."""
    parts = [
        write_part(tmp_path / str(rank), [mm(0, 90_000)], 100_000, rank=rank, header={"pid": pid})
        for rank, pid in enumerate(PIDS)
    ]
    path = join(*parts)
    sample(path, LAUNCHER | CHILDREN | RANKS if loads is None else loads, **options)
    return Run(path)


def value(run: Run, metric: str, scope: str, source: str | None = None) -> float | None:
    """The value of a metric, None where it has no row."""
    rows = run.metrics().filter(metric=metric, scope=scope)
    rows = rows if source is None else rows.filter(source=source)
    return None if rows.is_empty() else rows["value"][0]


def screen(run: Run) -> str:
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(terminal_report.render(run))
    return console.export_text()


def missing(run: Run) -> dict[str, str]:
    return {entry.what: entry.why for entry in run.not_measured()}


def test_each_rank_has_its_own_memory_and_cpu_utilisation_and_the_headline_is_their_sum(tmp_path: Path) -> None:
    run = pair(tmp_path)
    table = run.rank_table()
    assert table["peak_memory_bytes"].to_list() == [410 * MB, 530 * MB]
    assert table["cpu_cores"].to_list() == pytest.approx([0.5, 0.9], abs=1e-6)
    assert value(run, "peak_memory", "processes") == 1_100 * MB
    assert value(run, "process_cpu_utilisation", "processes") == pytest.approx(1.51, abs=1e-6)
    assert value(run, "process_cpu_utilisation", "launcher") == pytest.approx(0.01, abs=1e-6)
    assert run.metrics().filter(pl.col("scope").is_in(["process", "children"])).is_empty()
    assert [row["peak_memory_bytes"] for row in summary(run)["ranks"]] == [410 * MB, 530 * MB]


def test_the_screen_and_the_page_show_no_figure_of_the_launcher_as_that_of_the_training(tmp_path: Path) -> None:
    run = pair(tmp_path)
    shown, drawn = screen(run), page(run)
    assert "all processes peak 1.1 GB (rss, shared pages in each)" in shown
    assert "all processes 1.51 cores" in shown
    assert "410 MB" in shown
    assert "530 MB" in shown
    assert "200 MB" not in shown
    assert "Peak memory of all processes" in drawn
    assert "CPU utilisation of all processes" in drawn
    assert "Peak memory of the training process" not in drawn
    assert "trainer" not in shown + drawn


def test_a_page_that_processes_share_is_counted_once_in_proportional_memory(tmp_path: Path) -> None:
    run = pair(tmp_path, LAUNCHER | LAUNCHER_PSS | CHILDREN | RANKS | PSS)
    assert value(run, "peak_memory", "processes", "pss") == 750 * MB
    assert run.rank_table()["peak_pss_bytes"].to_list() == [300 * MB, 350 * MB]
    assert value(run, "peak_memory", "processes") == 1_100 * MB, "the headline is what was read often"


def test_a_process_that_was_read_with_the_others_before_it_trained_is_not_counted_twice(tmp_path: Path) -> None:
    others: Load = lambda t_s: np.where(t_s < 0.6, 650 * MB, 0.0)  # noqa: E731 - both ranks, until read by themselves
    loads = LAUNCHER | LAUNCHER_PSS | CHILDREN | RANKS | {**PSS, ("children", "pss"): others}
    spans = {"children.pss": (0.0, END_S), "rank-0.pss": (0.59, END_S), "rank-1.pss": (0.59, END_S)}
    run = pair(tmp_path, loads, spans=spans)
    assert value(run, "peak_memory", "processes", "pss") == 750 * MB


def test_workers_that_are_gone_are_not_carried_on_in_proportional_memory(tmp_path: Path) -> None:
    workers: Load = lambda t_s: np.where(t_s < 0.1, 5_000 * MB, 0.0)  # noqa: E731 - read twice, and then long after
    loads = LAUNCHER | LAUNCHER_PSS | CHILDREN | RANKS | {**PSS, ("children", "pss"): workers}
    run = pair(tmp_path, loads, spans={"rank-0.pss": (0.0, 0.1), "rank-1.pss": (0.0, 0.1)})
    rows = run.metrics().filter(metric="resident_memory", scope="processes", source="pss")
    assert rows["value"].to_list() == [750 * MB], "of the ranks the last reading holds while they live"
    assert rows["low"].to_list() == [None], "what is held is no reading"


def test_a_rank_that_died_is_in_the_sum_only_while_it_lived(tmp_path: Path) -> None:
    loads = LAUNCHER | LAUNCHER_PSS | RANKS | {**PSS, ("rank:1", "pss"): flat(2_000 * MB)}
    spans = {"rank:1": (0.0, 0.5)}
    run = pair(tmp_path, loads, spans=spans)
    resident = run.metrics().filter(metric="resident_memory", scope="processes", source="rss")["value"][0]
    assert resident == 600 * MB, "median over steps most of which it did not see"
    assert value(run, "peak_memory", "processes", "rss") == 1_100 * MB
    assert value(run, "peak_memory", "rank:1", "peak_rss") == 530 * MB


def test_a_rank_that_was_never_read_is_absent_with_the_reason_and_no_zero(tmp_path: Path) -> None:
    without = {key: load for key, load in RANKS.items() if key[0] != "rank:1"}
    run = pair(tmp_path, LAUNCHER | CHILDREN | without)
    assert run.rank_table()["peak_memory_bytes"].to_list() == [410 * MB, None]
    assert run.rank_table()["cpu_cores"].to_list()[1] is None
    why = "the process had ended, or could not be read, when the sampler looked for it"
    assert missing(run)["memory of rank 1"] == missing(run)["CPU utilisation of rank 1"] == why
    assert value(run, "peak_memory", "processes") == 1_100 * MB


def test_without_child_processes_the_ranks_are_added_up_and_without_all_of_them_nothing_is(tmp_path: Path) -> None:
    run = pair(tmp_path, LAUNCHER | RANKS)
    assert value(run, "peak_memory", "processes") == 1_100 * MB
    assert value(run, "process_cpu_utilisation", "processes") == pytest.approx(1.41, abs=1e-6)
    without = {key: load for key, load in RANKS.items() if key[0] != "rank:1"}
    less = pair(tmp_path / "less", LAUNCHER | without)
    assert value(less, "peak_memory", "processes") is None
    assert value(less, "process_cpu_utilisation", "processes") is None
    assert missing(less)["memory of all processes"] == "child processes could not be read"
    assert "Peak memory of all processes" not in page(less)


def test_an_old_run_opens_with_the_sum_and_says_why_its_ranks_have_no_figures(tmp_path: Path) -> None:
    run = pair(tmp_path, LAUNCHER | CHILDREN, pid=None, source=f"/proc/{LAUNCHER_PID}/statm")
    assert not is_writer_watched(run)
    assert value(run, "peak_memory", "processes") == 1_100 * MB
    assert run.rank_table()["peak_memory_bytes"].null_count() == 2
    assert "from before training processes were sampled each" in missing(run)["memory of ranks 0, 1"]
    assert "peak RSS" not in screen(run)
    bare = pair(tmp_path / "bare", {}, pid=None)
    assert bare.rank_table()["cpu_cores"].null_count() == 2
    screen(bare)


def test_a_first_process_that_starts_the_others_and_trains_itself_is_rank_0(tmp_path: Path) -> None:
    others = {key: load for key, load in RANKS.items() if key[0] == "rank:1"}
    run = pair(tmp_path, LAUNCHER | CHILDREN | others, pid=PIDS[0])
    assert is_writer_watched(run)
    assert writer_scope(run) == "process"
    assert run.rank_table()["peak_memory_bytes"].to_list() == [200 * MB, 530 * MB]
    assert run.rank_table()["cpu_cores"].to_list() == pytest.approx([0.01, 0.9], abs=1e-6)
    assert value(run, "peak_memory", "launcher") is None


def test_one_training_process_below_a_launcher_has_its_own_figures(tmp_path: Path) -> None:
    path = write_part(tmp_path, [mm(0, 90_000)], 100_000, rank=None, header={"pid": PIDS[0]})
    sample(path, LAUNCHER | CHILDREN | {key: load for key, load in RANKS.items() if key[0] == "rank:0"})
    shown = screen(Run(path))
    assert "training process peak 410 MB (peak_rss)" in shown
    assert "training process 0.5 cores" in shown
    assert "200 MB" not in shown


def test_a_run_of_one_process_keeps_its_scopes(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path))
    assert value(run, "peak_memory", "process") is not None
    assert value(run, "peak_memory", "processes") is None
    assert writer_scope(run) == "process"
    assert "Peak memory of the training process" in page(run)


@pytest.mark.parametrize("stated", ["", "[]", "null", '{"pid": "x"}', '{"pid": null, "channels": []}'])
def test_a_damaged_list_of_channels_leaves_the_ranks_without_figures_and_the_report_whole(
    tmp_path: Path, stated: str
) -> None:
    run = pair(tmp_path)
    (run.path / "channels.json").write_text(stated)
    again = Run(run.path)
    assert again.rank_table()["steps"].to_list() == [12, 12]
    assert again.rank_table()["peak_memory_bytes"].null_count() == 2
    screen(again)


def test_a_reading_holds_until_the_next_and_not_for_ever() -> None:
    held = HeldReadings(np.array([10.0, 20.0, 30.0]), np.array([1.0, 2.0, 3.0]), 3)
    assert held.at(np.array([9.0, 10.0, 29.0, 30.0, 60.0, 61.0])).tolist() == [0, 1, 2, 3, 3, 0]
    once = HeldReadings(np.array([10.0]), np.array([1.0]), 1)
    assert once.at(np.array([9.0, 10.0, 11.0])).tolist() == [0, 1, 0]
    assert once.at(np.array([9.0, 10.0, 11.0]), until_ns=11.0).tolist() == [0, 1, 1]
