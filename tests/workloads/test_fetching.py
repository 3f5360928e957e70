"""Downloads against a server on the loopback: whole, resumed, from a mirror; or refused with what to do."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import pytest
from tests.patience import HANG_S
from tests.workloads.web import Site, site

from stepscope.cli.data import data
from stepscope.errors import DataUnavailable, MissingDependency, UnknownName, UsageError
from stepscope.workloads.data import cache, catalogue
from stepscope.workloads.data.cache import DataSet, RemoteFile

__all__ = ["site"]
CONTENT = bytes(range(256)) * 700  # 179,200 bytes, so that a download takes several blocks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
DEAD = "http://127.0.0.1:9/gone"  # the discard port: nobody listens

pooch = pytest.importorskip("pooch", reason="pip install 'stepscope[data]'")


def a_set(*urls: str, checksum: str = f"sha256:{SHA256}") -> DataSet:
    return DataSet("numbers", "bytes in order", "none", (RemoteFile("numbers.bin", urls, checksum),), "this test")


def test_a_file_is_fetched_once_and_kept_whole(site: Site, data_folder: Path) -> None:
    site.files["numbers.bin"] = CONTENT
    dataset = a_set(site.url("numbers.bin"))
    seen: list[tuple[str, int, int | None]] = []
    paths = cache.fetch(dataset, lambda *progress: seen.append(progress))
    assert paths == [data_folder / "numbers" / "numbers.bin"]
    assert paths[0].read_bytes() == CONTENT
    assert seen[-1] == ("numbers.bin", len(CONTENT), len(CONTENT))
    assert cache.is_present(dataset)
    assert cache.verify(dataset) == {"numbers.bin": "ok"}
    cache.fetch(dataset)
    assert len(site.asked) == 1
    assert [path.name for path in paths[0].parent.iterdir()] == ["numbers.bin"]


@pytest.mark.parametrize(
    "checksum", [f"md5:{hashlib.md5(CONTENT).hexdigest()}", f"sha1:{hashlib.sha1(CONTENT).hexdigest()}"]
)
def test_older_checksums_are_known_too(site: Site, checksum: str) -> None:
    site.files["numbers.bin"] = CONTENT
    dataset = a_set(site.url("numbers.bin"), checksum=checksum)
    assert cache.fetch(dataset)[0].read_bytes() == CONTENT
    assert cache.read(dataset, "numbers.bin") == CONTENT


def test_a_download_that_breaks_off_goes_on_where_it_was(site: Site, data_folder: Path) -> None:
    site.files["numbers.bin"] = CONTENT
    site.broken_after["numbers.bin"] = 100_000
    dataset = a_set(site.url("numbers.bin"))
    with pytest.raises(DataUnavailable, match="broke off"):
        cache.fetch(dataset)
    assert (data_folder / "numbers" / "numbers.bin.part").stat().st_size == 100_000
    assert cache.fetch(dataset)[0].read_bytes() == CONTENT
    assert site.asked[-1] == ("numbers.bin", "bytes=100000-")


def test_a_server_without_ranges_starts_over(site: Site, data_folder: Path) -> None:
    site.files["numbers.bin"], site.ranges = CONTENT, False
    part = data_folder / "numbers" / "numbers.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:5000])
    assert cache.fetch(a_set(site.url("numbers.bin")))[0].read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_taken(site: Site, data_folder: Path) -> None:
    site.files["numbers.bin"] = CONTENT
    part = data_folder / "numbers" / "numbers.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert cache.fetch(a_set(site.url("numbers.bin")))[0].read_bytes() == CONTENT


def test_mirrors_are_tried_in_turn(site: Site) -> None:
    site.files["numbers.bin"] = CONTENT
    site.files["changed.bin"] = CONTENT[:-1] + b"?"
    dataset = a_set(DEAD, site.url("missing.bin"), site.url("changed.bin"), site.url("numbers.bin"))
    assert cache.fetch(dataset)[0].read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(site: Site, data_folder: Path) -> None:
    site.files["numbers.bin"] = b"<html>this page has moved</html>"
    with pytest.raises(DataUnavailable, match="checksum is wrong") as caught:
        cache.fetch(a_set(site.url("numbers.bin")))
    assert "copy the file from another machine" in str(caught.value.hint)
    assert not list((data_folder / "numbers").iterdir())


def test_dead_links_are_named_one_by_one_with_what_to_do(site: Site, data_folder: Path) -> None:
    with pytest.raises(DataUnavailable) as caught:
        cache.fetch(a_set(DEAD, site.url("missing.bin")))
    assert f"{DEAD}: no connection" in str(caught.value)
    assert "the server answers 404" in str(caught.value)
    assert str(data_folder / "numbers" / "numbers.bin") in str(caught.value.hint)


def test_a_damaged_file_in_the_cache_is_fetched_again(site: Site, data_folder: Path) -> None:
    site.files["numbers.bin"] = CONTENT
    dataset = a_set(site.url("numbers.bin"))
    where = data_folder / "numbers" / "numbers.bin"
    where.parent.mkdir(parents=True)
    where.write_bytes(CONTENT[:1000])
    with pytest.raises(DataUnavailable, match="not what was published") as caught:
        cache.read(dataset, "numbers.bin")
    assert caught.value.hint == "stepscope data fetch numbers"
    assert "sha256 is" in cache.verify(dataset)["numbers.bin"]
    cache.fetch(dataset)
    assert cache.read(dataset, "numbers.bin") == CONTENT


def test_a_folder_that_cannot_be_written_is_said_so(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.files["numbers.bin"] = CONTENT

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_append_missing_bytes", full)
    with pytest.raises(DataUnavailable, match="No space left") as caught:
        cache.fetch(a_set(site.url("numbers.bin"), DEAD))
    assert "STEPSCOPE_DATA" in str(caught.value.hint)


def test_without_pooch_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pooch") as caught:
        cache.fetch(a_set(DEAD))
    assert "stepscope[data]" in str(caught.value.hint)


def test_the_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSCOPE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.data_root() == tmp_path / "stepscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.data_root() == Path("~/.cache/stepscope").expanduser()


def test_a_part_that_does_not_belong_to_the_file_is_dropped_and_fetched_anew(site: Site, data_folder: Path) -> None:
    site.files["numbers.bin"] = CONTENT
    (data_folder / "numbers").mkdir(parents=True)
    (data_folder / "numbers/numbers.bin.part").write_bytes(b"of another version" * 100)
    (kept,) = cache.fetch(a_set(site.url("numbers.bin")))
    assert kept.read_bytes() == CONTENT
    assert [path.name for path in kept.parent.iterdir()] == ["numbers.bin"]


def test_two_that_fetch_one_file_at_once_take_turns_and_download_it_once(site: Site, data_folder: Path) -> None:
    site.files["numbers.bin"] = CONTENT
    dataset = a_set(site.url("numbers.bin"))
    begun, found = threading.Event(), list[list[Path]]()

    def fetch() -> None:
        begun.set()
        found.append(cache.fetch(dataset))

    with cache._alone_in(_made(data_folder / "numbers")):
        second = threading.Thread(target=fetch)
        second.start()
        assert begun.wait(HANG_S)
        second.join(0.05)
        assert second.is_alive()
        assert not site.asked
        (data_folder / "numbers/numbers.bin").write_bytes(CONTENT)  # as the first leaves it
    second.join(HANG_S)
    assert found == [[data_folder / "numbers/numbers.bin"]]
    assert not site.asked


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_without_a_home_nothing_is_present_and_fetching_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEPSCOPE_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert not cache.is_present(a_set(DEAD))
    assert not [row for row in catalogue.listed() if row["present"] is True and row["name"] == "mnist"]
    with pytest.raises(DataUnavailable, match="home") as caught:
        cache.fetch(a_set(DEAD))
    assert "STEPSCOPE_DATA" in str(caught.value.hint)


@pytest.mark.parametrize("dataset", catalogue.DATA_SETS, ids=lambda each: each.name)
def test_every_data_set_names_its_files_mirrors_and_checksums(dataset: DataSet) -> None:
    sizes = {"md5": 32, "sha1": 40, "sha256": 64}
    assert dataset.summary
    assert dataset.licence
    assert dataset.source
    assert len({file.name for file in dataset.files}) == len(dataset.files) > 0
    for file in dataset.files:
        algorithm, _, digest = file.checksum.partition(":")
        assert len(digest) == sizes[algorithm]
        assert int(digest, 16)
        assert all(url.startswith(("https://", "http://")) and url.endswith(file.name) for url in file.urls)


def known(dataset: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "DATA_SETS", (dataset,))


def test_the_commands_fetch_list_and_verify(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_folder: Path
) -> None:
    site.files["numbers.bin"] = CONTENT
    known(a_set(site.url("numbers.bin")), monkeypatch)
    data(action="verify")
    assert "no data set has been fetched" in capsys.readouterr().out
    data(action="fetch", names=["numbers"])
    assert capsys.readouterr().out == f"numbers: 1 file in {data_folder / 'numbers'}\n"
    data(action="fetch", names=["numbers"], json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"name": "numbers", "files": [str(data_folder / "numbers" / "numbers.bin")]}
    ]
    data(action="list", json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["numbers"]["present"] is True
    assert rows["mnist-5k"]["present"] is True
    data(action="verify", json=True)
    assert json.loads(capsys.readouterr().out) == [{"data set": "numbers", "file": "numbers.bin", "state": "ok"}]
    data(action="verify", names=["numbers"])
    assert capsys.readouterr().out == "numbers/numbers.bin: ok\n"


def test_the_list_is_a_table_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    data(action="list")
    shown = capsys.readouterr().out
    assert all(each.name in shown for each in (*catalogue.DATA_SETS, *catalogue.PACKAGED))
    assert "stepscope[atari]" in shown


def test_verify_fails_where_a_file_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    known(a_set(DEAD), monkeypatch)
    with pytest.raises(DataUnavailable, match="not whole: numbers") as caught:
        data(action="verify", names=["numbers"])
    assert caught.value.hint == "stepscope data fetch numbers"


def test_commands_refuse_what_they_do_not_know() -> None:
    with pytest.raises(UnknownName) as caught:
        data(action="fecth")
    assert caught.value.hint == "did you mean fetch?"
    with pytest.raises(UnknownName) as caught:
        data(action="fetch", names=["mnits"])
    assert "mnist" in str(caught.value.hint)
    with pytest.raises(UsageError, match="needs the name"):
        data(action="fetch")
    with pytest.raises(UsageError, match="takes no names"):
        data(action="list", names=["mnist"])
