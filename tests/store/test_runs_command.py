"""`stepscope runs` on a folder: what the user sees, and what is refused with a next step."""

from __future__ import annotations

import errno
import io
import json
import sys
from pathlib import Path

import pytest
from tests.store.command_line import exit_code
from tests.store.test_store_of_runs import make_run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_STORE", str(tmp_path / "store"))


def test_push_list_show_tag_pull_rm_and_gc_work_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    names = [make_run(Path("runs"), f"net{number}", 1.7e9 + number).name for number in range(3)]
    assert exit_code(["runs", "push", "runs", "--tag", "sweep"]) == 0
    assert capsys.readouterr().out.count(": pushed (") == 3
    assert exit_code(["runs", "push", "last"]) == 0
    assert "already there" in capsys.readouterr().out
    assert exit_code(["runs", "list", "--workload", "net*", "--most", "2", "--where", "batch_size = 32"]) == 0
    assert "3 runs, 1 of them not shown" in capsys.readouterr().out
    assert exit_code(["runs", "tag", names[0], "--add", "baseline", "--drop", "sweep"]) == 0
    capsys.readouterr()
    assert exit_code(["runs", "list", "--tag", "baseline", "--json"]) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == [names[0]]
    assert exit_code(["runs", "show", names[0]]) == 0
    assert json.loads(capsys.readouterr().out)["tags"] == ["baseline"]
    assert exit_code(["runs", "pull", names[0], "--out", "pulled"]) == 0
    assert (Path("pulled") / names[0] / "run.json").exists()
    assert exit_code(["runs", "verify"]) == 0
    assert "files of 3 runs" in capsys.readouterr().out
    next(Path("store").glob(f"runs/{names[1]}/*/run.json")).write_text("{}", encoding="utf-8")
    assert exit_code(["runs", "verify", names[0]]) == 0
    assert exit_code(["runs", "verify"]) == 8
    assert f"{names[1]}: run.json: 2 bytes" in capsys.readouterr().out
    assert exit_code(["runs", "rm", names[1], "--yes"]) == 0
    capsys.readouterr()
    assert exit_code(["runs", "gc"]) == 0
    assert "2 runs" in capsys.readouterr().out


def test_the_list_breaks_no_name_and_no_number_where_the_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_run(Path("runs"), "net", 1.7e9).name
    assert exit_code(["runs", "push", "runs", "--tag", "baseline", "--tag", "power=15W"]) == 0
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        assert exit_code(["runs", "list"]) == 0
        text = capsys.readouterr().out
        row = next(line for line in text.splitlines() if line.startswith(name))
        assert "baseline power=15W" in row or "baseline power=15W" in text.partition(row)[2]
        assert "900 ns" in text


def test_where_nobody_can_be_asked_a_run_is_not_removed_and_the_way_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_run(Path("runs"), "net", 1.7e9).name
    assert exit_code(["runs", "push", "runs"]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert exit_code(["runs", "rm", name]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert exit_code(["runs", "show", name]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["push", "nowhere"], 4, "no run folder"),
        (["pull", "no-such-run"], 4, "holds no run"),
        (["pull", "../x"], 8, "not a valid name of a run"),
        (["tag", "x"], 2, "no tag was given"),
        (["list", "--since", "yesterday"], 2, "not a date"),
        (["list", "--where", "nonsense("], 2, "--where"),
        (["list", "--timeout", "0"], 2, "above 0 s"),
        (["verify", "--timeout", "nan"], 2, "above 0 s"),
        (["pull", "x", "--max-size", "much"], 2, "not an amount of memory"),
        (["list", "--store", "nosuchthing://x"], 2, "not a store address"),
    ],
)
def test_what_cannot_be_done_is_refused(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("store").mkdir()
    assert exit_code(["runs", *arguments]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "hint: " in shown


def test_without_a_store_the_way_to_name_one_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("STEPSCOPE_STORE")
    assert exit_code(["runs", "list"]) == 2
    assert "--store" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_told_from_an_empty_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["runs", "list"]) == 4
    assert "no store" in capsys.readouterr().err
    Path("store").mkdir()
    assert exit_code(["runs", "list"]) == 0
    assert "0 runs" in capsys.readouterr().out


def test_a_file_in_the_place_of_a_store_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(Path("runs"))
    Path("taken.txt").touch()
    assert exit_code(["runs", "push", str(run), "--store", "taken.txt"]) == 8
    assert "'taken.txt' is not a folder" in capsys.readouterr().err


def test_a_folder_without_room_for_what_leaves_without_secrets_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    run = make_run(Path("runs"))
    monkeypatch.setattr("tempfile.TemporaryDirectory", refused)
    monkeypatch.setenv("STEPSCOPE_PRIVATE", "")  # that the option sets, and the next test has not
    assert exit_code(["runs", "push", str(run), "--no-argv"]) == 5
    shown = capsys.readouterr().err
    assert "Read-only file system" in shown
    assert "hint: copy the run to a folder that you can write" in shown
