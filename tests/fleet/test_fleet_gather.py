"""A run folder comes home: whole or not at all, never outside its place, and again from where it broke off."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.suite.small_sweeps import small_sweep

from stepscope.errors import OutputNotWritable, RunDamaged
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.fleet.gatherer import clock_offset
from stepscope.experiments.fleet.scheduling import LOST, TRIES, BoardQueue
from stepscope.experiments.fleet.worker import (
    MOST_BYTES,
    MOST_FILES,
    PIECE_BYTES,
    Piece,
    check_files,
    gather_run,
    list_files,
)

SHA256 = hashlib.sha256(b"").hexdigest()


def _offered(name: object, size: object = 0, sha256: object = SHA256) -> dict[str, object]:
    return {"name": name, "size_bytes": size, "sha256": sha256}


class _Device:
    """Pieces of a folder, and how many were asked for; it breaks off after some."""

    def __init__(self, folder: Path, most: int = 1000) -> None:
        self.folder, self.most, self.sent = folder, most, list[Piece]()

    async def fetch(self, wanted: Sequence[Piece]) -> list[bytes]:
        if len(self.sent) >= self.most:
            raise ConnectionResetError
        self.sent += wanted
        return [(self.folder / name).read_bytes()[offset : offset + size] for name, offset, size in wanted]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "device"
    (folder / "ops").mkdir(parents=True)
    (folder / "run.json").write_text("{}", encoding="utf-8")
    (folder / "ops" / "0.parquet").write_bytes(b"x" * (2 * PIECE_BYTES + 7))
    (folder / "empty").touch()
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    return small_sweep(tmp_path / "s")


def _gathered(sweep: SweepFolder, offered: Sequence[object], device: _Device) -> Path:
    where = sweep.run_folder(sweep.order[0])
    asyncio.run(gather_run(sweep, where, [asdict(each) for each in offered], device.fetch))  # type: ignore[call-overload]
    return where


def test_a_gathered_folder_is_the_one_on_the_device(source: Path, sweep: SweepFolder) -> None:
    where = _gathered(sweep, list_files(source), _Device(source))
    assert list_files(where) == list_files(source)
    assert not list(where.parent.glob(".coming*"))


def test_what_broke_off_goes_on_where_it_was(source: Path, sweep: SweepFolder) -> None:
    broken, again = _Device(source, most=2), _Device(source)
    with pytest.raises(ConnectionResetError):
        _gathered(sweep, list_files(source), broken)
    assert not sweep.run_folder(sweep.order[0]).exists()
    where = _gathered(sweep, list_files(source), again)
    assert list_files(where) == list_files(source)
    assert not set(broken.sent) & set(again.sent), "nothing is fetched twice"


def test_what_another_run_has_left_is_not_gone_on_with(source: Path, sweep: SweepFolder) -> None:
    with pytest.raises(ConnectionResetError):
        _gathered(sweep, list_files(source), _Device(source, most=2))
    (source / "ops" / "0.parquet").write_bytes(b"y" * (2 * PIECE_BYTES + 7))
    assert list_files(_gathered(sweep, list_files(source), _Device(source))) == list_files(source)


def test_a_file_that_changes_on_the_way_is_refused_and_nothing_of_it_stays(source: Path, sweep: SweepFolder) -> None:
    offered = list_files(source)
    (source / "run.json").write_text("[]", encoding="utf-8")
    with pytest.raises(RunDamaged, match="another SHA-256"):
        _gathered(sweep, offered, _Device(source))
    assert list((sweep.path / "runs").iterdir()) == []


def test_a_device_that_sends_more_or_less_than_it_offered_is_refused(source: Path, sweep: SweepFolder) -> None:
    offered = list_files(source)
    (source / "run.json").write_text("", encoding="utf-8")
    with pytest.raises(RunDamaged, match="sent 0 bytes"):
        _gathered(sweep, offered, _Device(source))


def test_no_room_for_a_run_stops_the_sweep_before_anything_is_fetched(
    source: Path, sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    device = _Device(source)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage(10, 9, PIECE_BYTES))
        with pytest.raises(OutputNotWritable, match="is full"):
            _gathered(sweep, list_files(source), device)
    assert device.sent == []


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/../../x",
        "",
        ".",
        "a//b",
        "a/",
        "c:\\x",
        "a\\b",
        "a\0b",
        "a\nb",
        "x" * 256,
        "a/" * 16 + "b",
        "/".join(["x" * 200] * 6),
        7,
        None,
        "./a",
    ],
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name: object) -> None:
    with pytest.raises(RunDamaged, match="the device offers"):
        check_files([_offered(name)])


@pytest.mark.parametrize(
    "offered",
    [
        [_offered("a", -1)],
        [_offered("a", True)],
        [_offered("a", "7")],
        [_offered("a", 1, "00")],
        [_offered("a", MOST_BYTES + 1)],
        [_offered("a"), _offered("a")],
        [_offered("a"), _offered("A")],
        [_offered("a"), _offered("a/b")],
        [{"name": "a"}],
        [None],
        [_offered(str(place)) for place in range(MOST_FILES + 1)],
    ],
    ids=range(11),
)
def test_a_list_that_cannot_be_true_is_refused(offered: list[dict[str, object]]) -> None:
    with pytest.raises(RunDamaged, match="the device offers"):
        check_files(offered)


@given(st.lists(st.text(max_size=12), max_size=4))
def test_whatever_name_is_taken_stays_below_the_folder(names: list[str]) -> None:
    try:
        files = check_files([_offered(name) for name in names])
    except RunDamaged:
        return
    below = Path("/somewhere/below")
    assert all((below / file.name).resolve().is_relative_to(below) for file in files)


def test_a_run_that_loses_its_device_each_time_is_lost_and_made_anew_by_a_later_sweep(sweep: SweepFolder) -> None:
    board = BoardQueue("b", sweep)
    (point,) = board.waiting
    found = [board.count_failure(point, "pi-1 went away") for _ in range(TRIES)]
    assert found[:-1] == [None] * (TRIES - 1)
    assert found[-1] is not None
    board.record_result(point, found[-1])
    assert (found[-1]["status"], found[-1]["reason"]) == (LOST, "tried 3 times: pi-1 went away")
    assert (board.remaining(), list(BoardQueue("b", sweep).waiting)) == ([], [point])


def test_the_clock_of_a_device_is_known_to_half_of_how_long_it_took_to_ask() -> None:
    assert clock_offset(here_ns=0, there_ns=10_000_000_000, took_ns=2_000_000_000) == (9.0, 1.0)
