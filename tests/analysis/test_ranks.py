"""Ranks side by side: who the others wait for, and what is said where that cannot be known."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from tests.analysis.parts import Row, call, join, mm, reduce, write_part
from tests.fabricate import fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.summary import summary
from stepscope.report import terminal_report
from stepscope.report.page.parts import Section
from stepscope.report.sections import ranks as section
from stepscope.run_paths import find_run

LATE_US = 50_000
LENGTH_US = 100_000


def _first(_: int) -> list[Row]:
    """Rank 0: backward for 20 ms, then it waits for rank 1 and for the transfer."""
    return [mm(0, 20_000), call(20_000, 20_100), reduce(20_100, 80_000), Row("aten::add_", "optimizer", 80_000, 1e5)]


def _second(_: int) -> list[Row]:
    """Rank 1: arrives 50 ms later."""
    rows = [mm(50_000, 70_000), call(70_000, 70_100), reduce(70_100, 80_000)]
    return [*rows, Row("aten::add_", "optimizer", 80_000, 1e5)]


def _pair(tmp_path: Path, first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> Run:
    part = write_part(tmp_path, **{"step": _second, "length_us": LENGTH_US, "rank": 1, **(second or {})})
    run = write_part(tmp_path, **{"step": _first, "length_us": LENGTH_US, **(first or {})})
    return Run(join(run, part))


def _screen(run: Run) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(terminal_report.render(run))
    return console.export_text()


def _row(run: Run, rank: int) -> dict[str, Any]:
    return run.rank_table().row(rank, named=True)


def test_the_late_rank_is_named_with_how_late_it_is_and_what_the_other_waited(tmp_path: Path) -> None:
    run = _pair(tmp_path)
    first, second = _row(run, 0), _row(run, 1)
    assert (first["late_ns"], second["late_ns"]) == (0, LATE_US * 1000)
    assert (first["last_share"], second["last_share"]) == (0, 1)
    assert first["waiting_ns"] == pytest.approx((LATE_US - 100) * 1000), "its own call is exposed, and no waiting"
    assert second["waiting_ns"] == 0
    assert first["exposed_ns"] == 60_000_000
    assert second["exposed_ns"] == 10_000_000
    assert first["samples_per_s"] == pytest.approx(80)
    skew = run.skew()
    assert set(skew["last_to_arrive"]) == {1}
    assert set(skew["ends_apart_ns"]) == {0}
    assert set(skew["arrivals_apart_ns"]) == {LATE_US * 1000}


def test_the_report_has_a_block_for_ranks_and_none_for_a_run_of_one_process(tmp_path: Path) -> None:
    run = _pair(tmp_path)
    assert [part.meta["rank"] for part in run.ranks] == [0, 1]
    shown = _screen(run)
    assert "rank 1 arrives last in 100 % of the steps, 50 ms after the first" in shown
    assert "60 ms a step, of which 60 ms exposed" in shown
    assert "Communication bound: collectives that nothing overlaps take 60 %" in shown
    assert section.build(run).parts
    assert summary(run)["ranks"][1]["late_ns"] == LATE_US * 1000
    alone = Run(fabricate_run(tmp_path / "alone"))
    assert alone.ranks == [alone]
    assert alone.rank_table()["last_share"].null_count() == 1
    assert "rank" not in _screen(alone).replace("ranks/", "")
    assert section.build(alone) == Section("")


def test_a_part_opens_as_a_run_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _pair(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert find_run("last/ranks/1") == Path("runs", run.path.name, "ranks", "1")
    part = Run(f"{run.path.name}/ranks/1")
    assert (part.is_part, part.meta["rank"], len(part.ranks)) == (True, 1, 1)
    said = {entry.what: entry.remedy for entry in part.not_measured()}
    assert str(run.path.name) in str(said["utilisation, memory and energy"])
    assert "energy" not in said
    assert _screen(part)


def test_ranks_of_unequal_length_are_compared_where_both_have_steps(tmp_path: Path) -> None:
    run = _pair(tmp_path, second={"steps": 7})
    assert run.rank_table()["steps"].to_list() == [12, 7]
    assert run.skew()["step"].to_list() == [3, 4, 5, 6]
    assert _row(run, 1)["late_ns"] == LATE_US * 1000
    assert any("7 to 12 steps" in note for note in run.side_by_side.notes)


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ({"status": "failed", "reason": "ValueError: nan"}, "'failed' after 5 steps: ValueError: nan"),
        ({"status": "running"}, "'interrupted' after 5 steps"),
        ({"status": "oom"}, "'oom' after 5 steps"),
    ],
)
def test_a_rank_that_died_is_named(tmp_path: Path, ending: dict[str, Any], said: str) -> None:
    run = _pair(tmp_path, second={"steps": 5, **ending})
    assert any(f"rank 1 ended as {said}" in note for note in run.side_by_side.notes)
    assert said.split("'")[1] in _screen(run)
    assert "ranks" in {entry.what for entry in run.not_measured()}


def _ended_at(seconds: float) -> dict[str, Any]:
    return {"header": {"clock_end": {"monotonic_ns": round(seconds * 1e9)}}}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("failed", "rank 1 ended as 'failed' after 5 steps, before the others: ValueError: nan"),
        ("ok", "rank 1 ended after 5 steps, before the others, by sys.exit or without an error that was seen"),
    ],
)
def test_of_a_training_that_failed_the_rank_that_ended_first_comes_first(
    tmp_path: Path, status: str, said: str
) -> None:
    reason = "ValueError: nan" if status == "failed" else None
    second = {"steps": 5, "status": status, "reason": reason, **_ended_at(10.0)}
    run = _pair(tmp_path, {"status": "failed", "reason": "Connection closed", **_ended_at(10.5)}, second)
    assert run.side_by_side.endings[0] == said


def test_a_rank_that_wrote_nothing_and_one_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    run = _pair(tmp_path, first={"world": 4})
    broken = run.path / "ranks" / "2"
    broken.mkdir()
    (broken / "run.json").write_text("{", encoding="utf-8")
    notes = " ".join(Run(run.path).side_by_side.notes)
    assert "part '2' cannot be read" in notes
    assert "ranks 2, 3 of 4 wrote no part" in notes


def test_a_world_of_more_ranks_than_there_can_be_is_told_in_a_line(tmp_path: Path) -> None:
    run = _pair(tmp_path, first={"world": 1 << 31})
    notes = " ".join(run.side_by_side.notes)
    assert "ranks 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2,147,483,637 more of 2147483648 wrote no part" in notes
    assert len(Run(run.path).ranks) == 2


def test_a_rank_without_a_step_is_listed(tmp_path: Path) -> None:
    run = _pair(tmp_path, second={"steps": 0, "status": "failed"})
    assert run.rank_table()["steps"].to_list() == [12, 0]
    assert run.skew().is_empty()
    assert _row(run, 1)["step_ns"] is None
    assert _screen(run)


def test_without_collectives_only_the_ends_of_steps_are_compared(tmp_path: Path) -> None:
    rows = [mm(0, 20_000)]
    run = _pair(tmp_path, first={"step": rows}, second={"step": rows, "start_us": 700})
    assert set(run.skew()["ends_apart_ns"]) == {700_000}
    assert run.skew()["arrivals_apart_ns"].null_count() == 9
    assert run.rank_table()["late_ns"].null_count() == 2
    assert "who waits for whom is not known: no collective was profiled" in run.side_by_side.notes


def test_steps_that_only_one_rank_profiled_are_not_compared(tmp_path: Path) -> None:
    run = _pair(tmp_path, first={"recorded": lambda step: step < 6}, second={"recorded": lambda step: step >= 6})
    assert "who waits for whom is not known: no step was profiled in all ranks" in run.side_by_side.notes
    assert _screen(run)


def test_ranks_that_called_different_collectives_in_a_step_are_not_compared_there(tmp_path: Path) -> None:
    def other(step: int) -> list[Row]:
        return [*_second(step), call(90_000, 90_100, "broadcast_")] if step == 7 else _second(step)

    run = _pair(tmp_path, second={"step": other})
    assert run.skew().filter(pl.col("arrivals_apart_ns").is_null())["step"].to_list() == [7]
    assert any("in 1 step the ranks called different collectives" in note for note in run.side_by_side.notes)


def _boots(tmp_path: Path) -> Run:
    return _pair(tmp_path, {"header": {"boot_id": "a"}}, {"header": {"boot_id": "b"}})


def _hosts(tmp_path: Path) -> Run:
    return _pair(tmp_path, {"header": {"host": "a", "boot_id": "x"}}, {"header": {"host": "b", "boot_id": "x"}})


def _clocks(tmp_path: Path) -> Run:
    run = _pair(tmp_path)
    path = run.path / "ranks" / "1" / "run.json"
    header = json.loads(path.read_text(encoding="utf-8"))
    header["clock"]["monotonic_ns"] += 5_000_000_000
    path.write_text(json.dumps(header), encoding="utf-8")
    return Run(run.path)


def _no_group(tmp_path: Path) -> Run:
    first = {"rank": None, "header": {"process": 0}}
    return _pair(tmp_path, first, {"rank": None, "header": {"process": 1}})


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_boots, "different boots"),
        (_hosts, "different machines"),
        (_clocks, "count from different times"),
        (_no_group, "no members of one process group"),
    ],
)
def test_what_has_no_common_clock_or_group_is_listed_and_not_compared(
    tmp_path: Path, make: Callable[[Path], Run], why: str
) -> None:
    run = make(tmp_path)
    assert any(why in note for note in run.side_by_side.notes)
    assert run.skew().is_empty()
    assert run.rank_table()["late_ns"].null_count() == 2
    assert run.rank_table()["exposed_ns"].to_list() == [60_000_000, 10_000_000]
    assert "arrives last" not in _screen(run)


def _restarted(tmp_path: Path) -> Run:
    first = _pair(tmp_path)
    again = write_part(tmp_path, _second, LENGTH_US, rank=1, start_us=60_000_000)
    again.rename(first.path / "ranks" / "2")
    return Run(first.path)


def _in_turn(tmp_path: Path) -> Run:
    return _pair(tmp_path, second={"start_us": 60_000_000})


@pytest.mark.parametrize(
    ("make", "why"),
    [(_restarted, "rank 1 trained more than once"), (_in_turn, "they trained in turn, and not at the same time")],
)
def test_trainings_that_ran_one_after_the_other_are_not_compared(
    tmp_path: Path, make: Callable[[Path], Run], why: str
) -> None:
    run = make(tmp_path)
    assert any(f"not compared with each other: {why}" in note for note in run.side_by_side.notes)
    assert run.skew().is_empty()
    assert run.rank_table()["last_share"].is_null().all()


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"trainer": {"library": "lightning", "processes": 2}}, "a callback records the first process only"),
        ({"recorder": {"steps_from": "calls"}}, "each process that calls stepscope.profile has a run of its own"),
        ({"launcher_pid": 5}, "rank 1 of 2 wrote no part"),
    ],
)
def test_ranks_that_were_never_to_be_recorded_are_not_called_lost(
    tmp_path: Path, header: dict[str, Any], why: str
) -> None:
    run = Run(write_part(tmp_path, _first, LENGTH_US, header=header))
    notes = [entry.why for entry in run.not_measured() if entry.what == "ranks"]
    assert len(notes) == 1
    assert why in notes[0]
    assert ("wrote no part" in notes[0]) is ("launcher_pid" in header)


def test_steps_after_a_pause_of_one_rank_are_left_out_of_who_is_late(tmp_path: Path) -> None:
    """Rank 0 writes after every fourth step for 30 ms: rank 1 waits for that, and not for its training."""

    def pause(step: int) -> float:
        return 30_000 if step % 4 == 0 and step else 0

    run = _pair(tmp_path, first={"gap_us": pause, "steps": 14}, second={"gap_us": pause, "steps": 14})
    skew = run.skew()
    assert skew.filter("after_pause")["step"].to_list() == [4, 8, 12]
    assert not run.side_by_side.notes
    short = _pair(tmp_path, first={"gap_us": lambda step: 9_000}, second={"gap_us": lambda step: 9_000})
    assert any("apart from pauses" in note for note in short.side_by_side.notes)


def test_ranks_that_take_turns_are_not_blamed(tmp_path: Path) -> None:
    def turns(step: int) -> list[Row]:
        return _first(step) if step % 2 else _second(step)

    def other(step: int) -> list[Row]:
        return _second(step) if step % 2 else _first(step)

    run = _pair(tmp_path, first={"step": turns}, second={"step": other})
    assert "none holds up the others" in _screen(run)
