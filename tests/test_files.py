"""Files replaced as a whole: the old content or the new, whatever happens in between."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from stepscope.files import (
    CHANGED,
    MENDED,
    add_checksum,
    atomic_write,
    check_and_strip_checksum,
    read_json_object,
    remove_partial_files,
    replace_json,
    try_store_json,
    user_cache,
    user_data,
)

NO_PROCESS = 2**22 + 1  # above the largest pid_max of Linux


def test_a_reader_sees_the_old_content_until_the_new_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    replace_json(path, {"status": "running", "where": tmp_path})
    with atomic_write(path) as part:
        part.write_text("half")
        assert json.loads(path.read_text()) == {"status": "running", "where": str(tmp_path)}
    assert path.read_text() == "half"


@pytest.mark.parametrize("raised", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt(), ValueError("no")])
def test_what_could_not_be_written_leaves_the_old_content_and_nothing_beside_it(
    tmp_path: Path, raised: BaseException
) -> None:
    path = tmp_path / "run.json"
    replace_json(path, {}, durable=True)
    with contextlib.suppress(type(raised)), atomic_write(path, durable=True) as part:
        part.write_text("half")
        raise raised
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    assert json.loads(path.read_text()) == {}


def test_the_error_names_the_file_that_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "plan.json"
    with pytest.raises(FileNotFoundError) as raised:
        replace_json(path, {})
    assert raised.value.filename == str(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder'$"):
        replace_json(tmp_path / "folder", {})


def test_what_a_killed_writer_had_begun_is_cleared_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / f".000000.part.1f.{NO_PROCESS}.part").touch()
    (tmp_path / f".run.json.1f.{NO_PROCESS}.part").touch()
    (tmp_path / f".run.json.1f.{os.getpid()}.part").touch()
    (tmp_path / "ops" / "000000.part").touch()
    remove_partial_files(tmp_path)
    left = sorted(file.name for file in tmp_path.rglob("*") if file.is_file())
    assert left == [f".run.json.1f.{os.getpid()}.part", "000000.part"]


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", "\x00\x00", '{"a": ' * 200_000])
def test_what_is_no_json_object_is_read_as_an_empty_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "kept.json").write_text(content, encoding="utf-8")
    assert read_json_object(tmp_path / "kept.json") == read_json_object(tmp_path / "absent.json") == {}


def test_an_object_is_stored_with_its_folder_and_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    assert try_store_json(tmp_path / "new" / "kept.json", {"a": 1})
    assert read_json_object(tmp_path / "new" / "kept.json") == {"a": 1}
    assert not try_store_json(tmp_path / "new" / "kept.json" / "below.json", {"a": 1})


def test_the_folders_of_a_user_follow_the_base_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/counts/as/none")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert (user_cache(), user_data()) == (tmp_path / ".cache" / "stepscope", tmp_path / "data" / "stepscope")


def test_each_bit_that_is_flipped_in_sealed_json_is_seen_and_set_right() -> None:
    text = json.dumps({"a": {"b": 1}, "c": "}"})
    whole = add_checksum(text).encode() + b"\n"
    assert check_and_strip_checksum(whole) == (text.encode(), "")
    assert json.loads(whole) == json.loads(text)
    for bit in range(8 * (len(whole) - 1)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        assert check_and_strip_checksum(bytes(changed)) == (text.encode(), MENDED if bit < 8 * len(text) else CHANGED)


def test_two_flipped_bits_in_sealed_json_are_seen() -> None:
    whole = add_checksum('{"a": 1234}').encode()
    for first in range(8 * 11):
        changed = bytearray(whole)
        changed[first // 8] ^= 1 << first % 8
        changed[5] ^= 3
        assert check_and_strip_checksum(bytes(changed))[1]


@pytest.mark.parametrize("text", [b'{"a": 1}', b'{"a": 1}\n', b'{"a": 1}\r\n', b"[1]", b""])
def test_json_without_a_seal_is_taken_as_it_is(text: bytes) -> None:
    found, changed = check_and_strip_checksum(text)
    assert not changed
    assert found.strip() == text.strip()
