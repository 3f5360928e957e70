"""Points in which nothing is timed are measured side by side; those in which something is, alone."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.patience import HANG_S

from stepscope.analysis.memory.limits import Limit
from stepscope.analysis.results import Findings
from stepscope.errors import OutputNotWritable, RunDamaged
from stepscope.experiments.engine.engine import Plan, Point, ProgressCallbacks, answer_study, places_side_by_side
from stepscope.experiments.engine.folder import StudyFolder
from stepscope.experiments.paper_2019 import Paper2019

_HERE = "tests.studies.test_untimed_points"
_LONG_S = 3600.0


def meet(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Wait until another point is being measured as well, and say at which place this one ended."""
    folder = Path(orders["study"])
    (folder / f"here-{orders['name']}").touch()
    until = time.monotonic() + HANG_S
    while not (folder / f"here-{orders['other']}").exists():
        if time.monotonic() > until:
            return {"status": "failed", "reason": "nobody came"}
        time.sleep(0.01)
    return {"seen": orders["other"]}


def alone(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Return the points that were about when this one began."""
    folder = Path(orders["study"])
    return {"ended": sorted(path.parent.name for path in (folder / "runs").glob("*/ended.json"))}


def wait_for_ever(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the number of this process, and stay."""
    import os

    (Path(orders["study"]) / "pid").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(_LONG_S)
    return {}


def fail_once(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Fail, and leave a line for each time that this was tried."""
    with (Path(orders["study"]) / "tries").open("a", encoding="utf-8") as tries:
        tries.write("tried\n")
    return {"status": "failed", "reason": "as it should"}


def point(name: str, task: str, timed: bool = False, **orders: Any) -> Point:
    return Point(name, name, f"{_HERE}:{task}", {"name": name, **orders}, timed=timed)


def answered(plan: Plan, folder: Path, watch: ProgressCallbacks | None = None) -> Findings:
    return answer_study(Paper2019(), folder, plan=plan, watch=watch)


def findings(results: Mapping[str, Any]) -> Findings:
    return Findings("", str({name: result.get("seen", result["status"]) for name, result in results.items()}), ())


@pytest.fixture(autouse=True)
def _two_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.experiments.engine.engine.usable_cores", lambda: 2)
    memory = Limit(8_000_000_000, "here")
    monkeypatch.setattr("stepscope.experiments.engine.engine.limit_of_this_machine", lambda: memory)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_points_in_which_nothing_is_timed_are_measured_at_once(tmp_path: Path) -> None:
    points = [point("a", "meet", other="b"), point("b", "meet", other="a")]
    assert answered(Plan(points, findings), tmp_path / "study").answer == "{'a': 'b', 'b': 'a'}"


def test_a_point_in_which_something_is_timed_has_the_machine_for_itself(tmp_path: Path) -> None:
    results: dict[str, Any] = {}

    def judge(of: Mapping[str, Any]) -> Findings:
        results.update(of)
        return findings(of)

    points = [point(name, "fail_once") for name in "abc"]
    points += [point("d", "alone", timed=True), point("e", "fail_once")]
    answered(Plan(points, judge), tmp_path / "study")
    assert results["d"]["ended"] == ["a", "b", "c"]


def test_what_fails_ahead_of_its_turn_is_tried_once_and_again_by_the_next_command(tmp_path: Path) -> None:
    plan, ends = Plan([point("a", "fail_once"), point("b", "fail_once")], findings), []
    watch = ProgressCallbacks(ends=lambda point, place, count, result: ends.append((point.id, place, result["status"])))
    answered(plan, tmp_path / "study", watch)
    assert ends == [("a", 0, "failed"), ("b", 1, "failed")]
    assert len((tmp_path / "study" / "tries").read_text().splitlines()) == 2
    answered(plan, tmp_path / "study")
    assert len((tmp_path / "study" / "tries").read_text().splitlines()) == 4


def test_an_interruption_ends_what_was_begun_ahead_and_loses_nothing_that_had_ended(tmp_path: Path) -> None:
    folder, points = tmp_path / "study", [point("a", "wait_for_ever"), point("b", "fail_once")]

    until = time.monotonic() + HANG_S

    def stop_when_b_has_ended() -> None:
        assert time.monotonic() < until
        if (folder / "pid").exists() and list(folder.rglob("b.json")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answered(Plan(points, findings), folder, ProgressCallbacks(ticks=stop_when_b_has_ended))
    pid = int((folder / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
    assert not list(folder.rglob("a.json"))
    kept = answered(Plan(points[1:], findings), folder)
    assert kept.answer == "{'b': 'failed'}"


def need_the_machine(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Find no memory while another point is about, and end well alone."""
    folder = Path(orders["study"])
    (folder / f"here-{orders['name']}").touch()
    until = time.monotonic() + HANG_S
    while not (folder / f"here-{orders['other']}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    ended = (folder / "runs" / orders["other"] / "ended.json").exists()
    return {"seen": "alone"} if ended else {"status": "oom", "reason": "no memory"}


def write_on_a_full_disk(orders: Mapping[str, Any]) -> dict[str, Any]:
    """End well after the disk was full for a while."""
    print("OSError: [Errno 28] No space left on device")  # noqa: T201  what the log of a process holds
    return {}


def test_what_found_no_memory_beside_others_is_measured_once_more_alone(tmp_path: Path) -> None:
    points = [point("a", "need_the_machine", other="b"), point("b", "need_the_machine", other="a")]
    assert answered(Plan(points, findings), tmp_path / "study").answer == "{'a': 'alone', 'b': 'alone'}"


@pytest.mark.parametrize(("gigabytes", "places"), [(0.5, 1), (3.5, 3), (100, 4)])
def test_points_side_by_side_have_a_core_and_memory_each(
    gigabytes: float, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Limit(round(gigabytes * 1e9), "here")
    monkeypatch.setattr("stepscope.experiments.engine.engine.usable_cores", lambda: 16)
    monkeypatch.setattr("stepscope.experiments.engine.engine.limit_of_this_machine", lambda: limit)
    assert places_side_by_side() == places


def test_a_result_made_while_the_disk_was_full_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    with pytest.raises(OutputNotWritable, match="No space left"):
        answered(Plan([point("a", "write_on_a_full_disk")], findings), folder)
    assert not list((folder / "cells").iterdir())


def test_a_disk_without_room_for_a_point_s_folder_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.parent.name == "runs":
            raise OSError(errno.ENOSPC, "No space left on device")
        make(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(OutputNotWritable) as raised:
        answered(Plan([point("a", "fail_once")], findings), tmp_path / "study")
    assert "the same command goes on" in str(raised.value.hint)


def test_a_study_that_times_out_names_the_option_for_more_time(tmp_path: Path) -> None:
    results: dict[str, Any] = {}

    def judge(of: Mapping[str, Any]) -> Findings:
        results.update(of)
        return findings(of)

    answered(Plan([point("a", "wait_for_ever")], judge, time_limit_s=0.05), tmp_path / "study")
    assert results["a"]["reason"] == "did not end within 0.05 s (longer: --time-limit)"


def test_a_folder_with_somebody_s_links_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to("elsewhere.py")
    with pytest.raises(RunDamaged) as raised:
        StudyFolder(tmp_path, "batch", {})
    assert raised.value.hint == "choose another folder: --out DIR"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_project_s_own_folders_are_not_walked(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    with StudyFolder(tmp_path, "batch", {}).locked():
        pass
