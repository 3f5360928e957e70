"""A store holds what was pushed, lists it only when it is whole, and gives back exactly that or nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.patience import HANG_S

from stepscope import store
from stepscope.errors import MissingDependency, OutputNotWritable, RunDamaged, RunNotFound, StoreError, UsageError
from stepscope.liveness import process_identity
from stepscope.run_paths import run_folders
from stepscope.runfolder import RunReader, RunWriter
from stepscope.runfolder.pack import pack
from stepscope.store import Choice, Store, open_store
from stepscope.store import index as store_listing
from stepscope.store import manifest as manifests
from stepscope.store.storage import call_with_timeout


def make_run(out: Path, workload: str = "lenet", started_s: float = 1.7e9, batch: int = 32) -> Path:
    """A finished run folder with two steps and a summary."""
    writer = RunWriter.create(out, workload, unix_s=started_s)
    clock = {"monotonic_ns": 0, "unix_ns": int(started_s * 1e9)}
    writer.update(workload={"name": workload, "batch_size": batch}, clock=clock, warmup_steps=0)
    for step in range(2):
        writer.append_step(step, step * 1000, step * 1000 + 900, batch, 0.5, False)
    metric = {"metric": "step_time", "scope": "run", "value": 900.0}
    (writer.path / "summary.json").write_text(json.dumps({"steps": 2, "metrics": [metric]}), encoding="utf-8")
    writer.close("ok")
    return writer.path


@pytest.fixture(params=["folder", "file://", "memory://"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    name = uuid.uuid4().hex
    address = {"folder": str(tmp_path / name), "file://": f"file://{tmp_path}/{name}", "memory://": f"memory://{name}"}
    return open_store(address[request.param])


@pytest.fixture
def local(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return open_store(tmp_path / "store")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pulled_run_is_the_run_that_was_pushed(opened: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(opened, [run])
    [pulled] = store.pull(opened, [run.name], tmp_path / "pulled")
    assert files_of(pulled) == files_of(run)
    assert RunReader(pulled).steps.equals(RunReader(run).steps)


def test_a_push_into_a_folder_of_runs_is_refused_since_it_would_hide_them(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "runs"), make_run(tmp_path / "more")
    with pytest.raises(UsageError, match="a store is another folder"):
        store.push(open_store(tmp_path / "runs"), [second])
    assert store.listed(open_store(tmp_path / "runs"))["id"].to_list() == [first.name]


def test_of_two_pushes_at_once_the_tags_of_both_stay(
    opened: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    write = Store.write
    rivals = [("rival",)]

    def write_beside(self: Store, path: str, content: bytes) -> None:
        if path.startswith(manifests.FOLDER) and rivals:
            store.push(opened, [run], rivals.pop())
        write(self, path, content)

    monkeypatch.setattr(Store, "write", write_beside)
    store.push(opened, [run], ["mine"])
    assert store.listed(opened)["tags"].to_list() == [["mine", "rival"]]


@pytest.mark.parametrize("rival_writes_first", [True, False])
def test_a_tag_that_is_dropped_while_another_is_added_stays_dropped_and_that_one_added(
    rival_writes_first: bool, opened: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    store.push(opened, [run], ["kept", "old"])
    write = Store.write
    rivals = [("new",)]

    def write_beside(self: Store, path: str, content: bytes) -> None:
        if path.startswith(manifests.FOLDER) and rivals:
            added = rivals.pop()
            if rival_writes_first:
                store.tag(opened, [run.name], add=added)
            else:  # it has read the manifest already, and writes its own once ours is done
                name, before = manifests.find(opened, run.name)
                write(self, path, content)
                store.transfer.save_manifest(opened, manifests.with_tags(before, added, ()), before, [name])
                return
        write(self, path, content)

    monkeypatch.setattr(Store, "write", write_beside)
    assert store.tag(opened, [run.name], drop=["old"]) == {run.name: ("kept", "new")}
    assert store.listed(opened)["tags"].to_list() == [["kept", "new"]]
    assert manifests.find(opened, run.name)[1].tags == ("kept", "new")


def test_a_file_is_in_its_place_when_it_is_whole(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    before = files_of(Path(local.root))
    path = next(name for name in before if name.endswith("run.json"))

    def breaks_off() -> Iterator[bytes]:
        yield b"half"
        assert files_of(Path(local.root)).items() >= before.items()
        raise StoreError("the network is gone")

    with pytest.raises(StoreError, match="network"):
        local.send(path, breaks_off())
    assert files_of(Path(local.root)) == before


def test_what_a_killed_push_left_in_the_folder_of_a_run_is_no_damage_and_is_collected(
    local: Store, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    before = files_of(Path(local.root))
    folder = next(Path(local.root).glob("runs/*/*"))
    (folder / ".steps.rows.1f.77.part").write_bytes(b"half")
    assert store.verify(local)[0].wrong == {}
    assert store.collect(local).too_young == (f"runs/{run.name}/{folder.name}/.steps.rows.1f.77.part",)
    assert store.collect(local, 0.0).bytes == 4
    assert {**files_of(Path(local.root)), "index.parquet": b""} == {**before, "index.parquet": b""}


def test_pushing_a_run_twice_leaves_one_and_says_so(opened: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    first, second = store.push(opened, [run])[0], store.push(opened, [run])[0]
    assert (first.outcome, second.outcome) == ("pushed", "already there")
    assert store.listed(opened)["id"].to_list() == [run.name]


def test_a_run_that_was_removed_can_be_pushed_again(opened: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(opened, [run])
    store.remove(opened, [run.name])
    assert store.push(opened, [run])[0].outcome == "pushed"
    [pulled] = store.pull(opened, [run.name], tmp_path / "pulled")
    assert files_of(pulled) == files_of(run)


def test_a_run_that_has_gained_a_file_replaces_itself_and_keeps_its_tags(opened: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(opened, [run], ["baseline"])
    (run / "report.html").write_text("page", encoding="utf-8")
    assert store.push(opened, [run])[0].outcome == "replaced"
    [row] = store.listed(opened).to_dicts()
    assert (row["tags"], row["revision"]) == (["baseline"], 2)
    assert (store.pull(opened, [run.name], tmp_path / "pulled")[0] / "report.html").exists()


def test_the_index_is_a_parquet_file_that_is_queried_in_place(local: Store, tmp_path: Path) -> None:
    store.push(local, [make_run(tmp_path / "runs", batch=8), make_run(tmp_path / "runs", "resnet18", 1.8e9)])
    index = pl.scan_parquet(Path(local.root) / "index.parquet")
    found = index.filter(pl.col("batch_size") < 16).select("workload", "step_time_ns", "steps").collect()
    assert found.rows() == [("lenet", 900.0, 2)]


def test_what_a_run_does_not_say_is_null_in_the_index(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    (run / "summary.json").write_text("{}", encoding="utf-8")
    for steps in run.glob("steps.*"):
        steps.unlink()
    store.push(local, [run])
    [row] = store.listed(local).to_dicts()
    assert (row["step_time_ns"], row["energy_per_step_j"], row["steps"]) == (None, None, None)


def test_a_run_without_a_report_has_its_steps_and_their_time_in_the_index(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    (run / "summary.json").unlink()
    store.push(local, [run])
    [row] = store.listed(local).to_dicts()
    assert row["steps"] == 2
    assert row["energy_per_step_j"] is None


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (Choice(), ["late", "middle", "early"]),
        (Choice(workload="M*"), ["middle"]),
        (Choice(workload="ear.*"), []),
        (Choice(tags=("first",)), ["early"]),
        (Choice(since="2027-01-01"), ["late"]),
        (Choice(where="batch_size >= 16 AND workload <> 'late'"), ["middle"]),
        (Choice(status="failed"), []),
    ],
)
def test_runs_are_listed_newest_first_and_by_filters(
    local: Store, tmp_path: Path, choice: Choice, wanted: list[str]
) -> None:
    store.push(local, [make_run(tmp_path / "runs", "early", 1.6e9, 8)], ["first"])
    store.push(
        local, [make_run(tmp_path / "runs", "middle", 1.7e9, 16), make_run(tmp_path / "runs", "late", 1.8e9, 32)]
    )
    assert store.listed(local, choice)["workload"].to_list() == wanted


@pytest.mark.parametrize("where", ["nonsense >", "no_such_column = 1", "1=1 UNION SELECT 1"])
def test_a_condition_that_cannot_be_understood_is_refused_with_the_columns(local: Store, where: str) -> None:
    with pytest.raises(UsageError) as refused:
        store.listed(local, Choice(where=where))
    assert "condition" in str(refused.value) or "batch_size" in str(refused.value.hint)


def test_a_push_that_breaks_off_is_not_listed_and_the_next_one_goes_on(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, send, sent = make_run(tmp_path / "runs"), Store.send, list[str]()

    def breaks(self: Store, path: str, pieces: Any) -> None:
        if len(sent) == 2:
            raise StoreError("the network is gone")
        sent.append(path)
        send(self, path, pieces)

    monkeypatch.setattr(Store, "send", breaks)
    with pytest.raises(StoreError, match="network"):
        store.push(local, [run])
    assert store.listed(local).is_empty()
    with pytest.raises(RunNotFound):
        store.pull(local, [run.name], tmp_path / "pulled")

    def counts(self: Store, path: str, pieces: Any) -> None:
        sent.append(path)
        send(self, path, pieces)

    monkeypatch.setattr(Store, "send", counts)
    assert store.push(local, [run])[0].outcome == "pushed"
    assert len(sent) == len(set(sent)) == len(files_of(run))


def test_half_a_manifest_lists_nothing(local: Store, tmp_path: Path) -> None:
    store.push(local, [make_run(tmp_path / "runs")])
    [file] = (Path(local.root) / "manifests").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    (Path(local.root) / "index.parquet").unlink()
    assert store.listed(local).is_empty()


def test_an_index_that_is_lost_damaged_or_behind_changes_nothing_of_the_list(local: Store, tmp_path: Path) -> None:
    index = Path(local.root) / "index.parquet"
    store.push(local, [make_run(tmp_path / "runs", "one")])
    old = index.read_bytes()
    store.push(local, [make_run(tmp_path / "runs", "two", 1.8e9)])
    for content in (old, b"no parquet", None):
        index.write_bytes(content) if content is not None else index.unlink()
        assert store.listed(local)["workload"].to_list() == ["two", "one"]


def test_listing_opens_the_index_alone_however_many_runs_there_are(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(local, 300)
    opened: list[str] = []
    read = Store.read

    def noting(self: Store, path: str, most_bytes: int) -> bytes:
        opened.append(path)
        return read(self, path, most_bytes)

    monkeypatch.setattr(Store, "read", noting)
    assert len(store.listed(local)) == 300
    assert opened == ["index.parquet"]


def fill(opened: Store, count: int) -> None:
    """So many runs by their manifests alone."""
    file = manifests.FileEntry("run.json", 2, hashlib.sha256(b"{}").hexdigest())
    for number in range(count):
        name, content = manifests.to_file(manifests.Manifest(f"run-{number}", (file,), {"started_s": float(number)}))
        opened.write(f"manifests/{name}", content)
    store_listing.write_index(opened)


def test_a_run_that_is_still_written_is_not_pushed(local: Store, tmp_path: Path) -> None:
    import os

    run = make_run(tmp_path / "runs")
    header = json.loads((run / "run.json").read_text(encoding="utf-8"))
    running = {**header, "status": "running", **process_identity(os.getpid())}
    (run / "run.json").write_text(json.dumps(running), encoding="utf-8")
    with pytest.raises(UsageError, match="still being written"):
        store.push(local, [run])


def test_another_run_of_the_same_name_is_refused(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    header = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps({**header, "clock": {"unix_ns": 5}}), encoding="utf-8")
    with pytest.raises(StoreError, match="another run"):
        store.push(local, [run])


def test_a_folder_with_a_link_is_not_pushed(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    (run / "samples" / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(RunDamaged, match="not a regular file"):
        store.push(local, [run])


def test_tags_are_added_and_dropped_and_a_bad_one_is_refused(opened: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(opened, [run])
    assert store.tag(opened, [run.name], ["a", "power=15W"]) == {run.name: ("a", "power=15W")}
    assert store.tag(opened, [run.name], drop=["a"]) == {run.name: ("power=15W",)}
    assert store.listed(opened)["tags"].to_list() == [["power=15W"]]
    with pytest.raises(UsageError, match="not a tag"):
        store.tag(opened, [run.name], ["../x y"])


def test_a_removed_run_is_gone_with_its_files(opened: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(opened, [run])
    assert store.remove(opened, [run.name]) == [run.name]
    assert store.listed(opened).is_empty()
    assert opened.sizes("runs") == {}
    with pytest.raises(RunNotFound, match="holds no run"):
        store.remove(opened, [run.name])


def test_collecting_removes_what_no_manifest_names_once_it_is_old(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    local.write("runs/broken/0123456789abcdef/run.json", b"{}")
    kept = store.collect(local)
    assert (kept.removed, kept.too_young) == ((), ("runs/broken/0123456789abcdef",))
    assert store.collect(local, 0.0, dry_run=True).bytes == 2
    assert store.collect(local, 0.0).removed == ("runs/broken/0123456789abcdef",)
    assert store.listed(local)["id"].to_list() == [run.name]
    store.pull(local, [run.name], tmp_path / "pulled")


def test_collecting_in_a_folder_that_is_no_store_touches_no_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    before = files_of(tmp_path)
    for what in (store.collect, partial(store.remove, run_ids=["x"]), partial(store.tag, run_ids=["x"], add=["y"])):
        with pytest.raises(RunNotFound, match=r"no store|holds no run"):
            what(open_store(tmp_path))
    assert files_of(tmp_path) == before, run.name


def test_a_folder_of_runs_is_said_to_be_no_store_by_every_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    before = files_of(tmp_path)
    opened, names = open_store(tmp_path / "runs"), [run.name]
    commands = (
        partial(store.remove, opened, names),
        partial(store.find, opened, run.name),
        partial(store.tag, opened, names, ["y"]),
        partial(store.pull, opened, names, tmp_path / "out"),
        partial(store.collect, opened, 0.0),
    )
    for command in commands:
        with pytest.raises(UsageError, match="a store is another folder"):
            command()
    assert files_of(tmp_path) == before


def test_a_store_that_lives_on_takes_what_another_has_removed(opened: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(opened, [run])
    other = open_store(opened.address)
    store.remove(other, [run.name])
    store.push(opened, [run])
    assert [result.wrong for result in store.verify(other)] == [{}]


def test_a_run_that_is_pushed_while_it_is_removed_is_there_as_a_whole_or_not(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    remove, pushes = Store.remove, [(local, [run], ["again"])]

    def push_before(self: Store, path: str, recursive: bool = False) -> None:
        if recursive and pushes:
            store.push(*pushes.pop())
        remove(self, path, recursive)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove", push_before)
        store.remove(local, [run.name])
    assert store.listed(local).is_empty()
    send, removals = Store.send, [False, True]

    def remove_before(self: Store, path: str, pieces: Any) -> None:
        send(self, path, pieces)
        if path.endswith("run.json") and removals.pop():
            shutil.rmtree(Path(local.root) / "runs")

    monkeypatch.setattr(Store, "send", remove_before)
    with pytest.raises(StoreError, match="were removed while it was pushed"):
        store.push(local, [run])
    assert store.listed(local).is_empty()
    assert store.push(local, [run])[0].outcome == "pushed"


def test_where_one_of_several_runs_is_not_there_none_is_touched(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    before = files_of(Path(local.root))
    for call in (store.remove, partial(store.tag, add=["y"]), partial(store.pull, out=tmp_path / "out")):
        with pytest.raises(RunNotFound, match="holds no run"):
            call(local, [run.name, "20260101T000000Z-lenet-0a1b2c"])
    assert files_of(Path(local.root)) == before
    assert not (tmp_path / "out").exists()


def test_a_file_that_stops_in_the_midst_is_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, release = open_store(f"memory://{uuid.uuid4().hex}", timeout_s=HANG_S), threading.Event()
    run = make_run(tmp_path / "runs")
    store.push(opened, [run])

    class Stuck:
        def read(self, _: int) -> bytes:
            return b"x" if release.wait() else b""

        def close(self) -> None:
            release.set()

    monkeypatch.setattr(opened.fs, "open", lambda *_: Stuck())
    with pytest.raises(StoreError, match="did not answer"):
        store.pull(dataclasses.replace(opened, timeout_s=0.02), [run.name], tmp_path / "pulled")
    assert list((tmp_path / "pulled").iterdir()) == []


def test_without_fsspec_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependency) as refused:
        open_store(tmp_path)
    assert "stepscope[store]" in str(refused.value.hint)


def test_a_content_that_was_replaced_is_collected(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    (run / "report.html").write_text("page", encoding="utf-8")
    store.push(local, [run])
    assert len(store.collect(local, 0.0).removed) == 1
    assert store.pull(local, [run.name], tmp_path / "pulled")[0].is_dir()


@pytest.mark.parametrize("harm", ["flipped", "gone", "half"])
def test_a_damaged_copy_replaces_no_sound_run_of_the_store(local: Store, tmp_path: Path, harm: str) -> None:
    run = make_run(tmp_path / "runs")
    pack(run)
    store.push(local, [run])
    packed = run / "steps.parquet"
    packed.write_bytes(packed.read_bytes()[:-1] + b"?") if harm == "flipped" else packed.unlink()
    (run / "checksums.json").unlink() if harm == "half" else None
    with pytest.raises(StoreError, match="this copy of it is damaged"):
        store.push(local, [run])
    assert not store.verify(local)[0].wrong
    assert store.collect(local, 0.0).removed == ()
    store.remove(local, [run.name])
    assert store.push(local, [run])[0].outcome == "pushed"


def test_a_run_on_its_way_from_a_store_is_no_run_of_the_folder(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    shutil.copytree(run, run.parent / f".pull-{run.name}-0123abcd.999999")
    assert run_folders(run.parent) == [run]
    assert store.listed(open_store(run.parent))["id"].to_list() == [run.name]


def test_collecting_keeps_the_files_of_a_damaged_manifest(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    manifest = next((Path(local.root) / "manifests").iterdir())
    manifest.write_bytes(manifest.read_bytes().replace(b"run.json", b"run.jsom", 1))
    assert store.collect(local, 0.0).removed == ()
    assert store.push(local, [run])[0].outcome == "pushed", "the files were all there"
    assert not store.verify(local)[0].wrong


def test_collecting_removes_nothing_of_a_run_that_is_tagged_meanwhile(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    listed, lists = type(local).list_folder, 0

    def tagged_meanwhile(self: Store, folder: str, prefix: str = "") -> list[str]:
        nonlocal lists
        names = listed(self, folder, prefix)
        lists += folder == "manifests"
        if (folder, lists) == ("manifests", 1):
            lists += 1
            store.tag(local, [run.name], ["good"])
        return names

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(local), "list_folder", tagged_meanwhile)
        assert store.collect(local, 0.0).removed == ()
    assert store.pull(local, [run.name], tmp_path / "pulled")[0].is_dir()


def test_verifying_a_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="there is no store"):
        store.verify(open_store(tmp_path / "not mounted"))


def test_a_changed_file_is_found_out_and_nothing_of_the_run_is_left(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    _, manifest = manifests.find(local, run.name)
    path = Path(local.root) / manifest.folder / "steps.rows"
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    with pytest.raises(StoreError, match="checksum"):
        store.pull(local, [run.name], tmp_path / "pulled")
    assert list((tmp_path / "pulled").iterdir()) == []


def test_a_file_that_is_missing_in_the_store_is_said(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    _, manifest = manifests.find(local, run.name)
    (Path(local.root) / manifest.folder / "steps.rows").unlink()
    with pytest.raises(StoreError, match="missing"):
        store.pull(local, [run.name], tmp_path / "pulled")
    assert store.push(local, [run])[0].outcome == "replaced"  # pushing again mends it
    store.pull(local, [run.name], tmp_path / "pulled")


def test_a_link_in_a_store_is_not_followed(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    _, manifest = manifests.find(local, run.name)
    path = Path(local.root) / manifest.folder / "steps.rows"
    path.unlink()
    path.symlink_to(run / "steps.rows")
    with pytest.raises(StoreError, match="a link"):
        store.pull(local, [run.name], tmp_path / "pulled")


def write_hostile(opened: Store, change: Callable[[dict[str, Any]], None]) -> None:
    sha = hashlib.sha256(b"{}").hexdigest()
    stated: dict[str, Any] = {
        **{"format": 1, "id": "bad-run", "facts": {}, "tags": [], "pushed_s": 0.0, "revision": 1},
        "files": [{"path": "run.json", "bytes": 2, "sha256": sha}],
    }
    change(stated)
    content = json.dumps(stated).encode()
    opened.write(f"manifests/bad-run~{hashlib.sha256(content).hexdigest()[:16]}.json", content)


SHA = "0" * 64


@pytest.mark.parametrize(
    "path", ["../evil", "/etc/cron.d/x", "a/../../x", "a\\..\\x", "C:/x", ".hidden", "a//b", "x\n", "a/" * 9 + "b", ""]
)
def test_a_path_that_leads_out_of_the_folder_is_refused(local: Store, tmp_path: Path, path: str) -> None:
    write_hostile(local, lambda stated: stated["files"].append({"path": path, "bytes": 1, "sha256": SHA}))
    with pytest.raises(StoreError, match="not a path inside a run folder"):
        store.pull(local, ["bad-run"], tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"path": "bomb", "bytes": 1 << 50, "sha256": SHA}, "larger"),
        ({"path": "x", "bytes": -1, "sha256": SHA}, "size or checksum"),
        ({"path": "x", "bytes": 1, "sha256": "short"}, "size or checksum"),
        ({"path": "RUN.json", "bytes": 1, "sha256": SHA}, "twice"),
        ({"path": "x"}, "not a manifest"),
        ({"path": "\udcff", "bytes": 1, "sha256": SHA}, "not a path"),
        ({"path": "\u202ex", "bytes": 1, "sha256": SHA}, "not a path"),
    ],
)
def test_a_manifest_that_could_harm_is_refused(local: Store, tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    write_hostile(local, lambda stated: stated["files"].append(entry))
    with pytest.raises(StoreError, match=said):
        store.pull(local, ["bad-run"], tmp_path / "pulled")


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda stated: stated["files"].append({"path": "\udcff", "bytes": 1, "sha256": SHA}),
        lambda stated: stated.update(tags=["\x1b]0;mine\x07"]),
        lambda stated: stated.update(format=99),
        lambda stated: stated.update(files={}),
        _a_folder,
        _a_pipe,
        lambda path: os.truncate(path, manifests.MOST_MANIFEST_BYTES + 1),
    ],
)
def test_a_hostile_manifest_costs_no_run_of_another(
    local: Store, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    on_disk = change in (_a_folder, _a_pipe) or "path" in change.__code__.co_varnames
    write_hostile(local, (lambda _: None) if on_disk else change)
    if on_disk:
        change(next(path for path in (Path(local.root) / "manifests").iterdir() if path.name.startswith("bad-run")))
    known = dict(store.listed(local).select("id", "status").iter_rows())
    assert known == {run.name: "ok", "bad-run": "unreadable"}
    assert not set("".join(map(str, store.listed(local).to_dicts()))) & set("\x1b\x07\udcff")
    assert store.tag(local, [run.name], ["x"]) == {run.name: ("x",)}
    assert [bool(verified.wrong) for verified in store.verify(local)] == [False, True] or on_disk
    assert len(store.pull(local, [run.name], tmp_path / "pulled")) == 1
    store.collect(local, 0)
    assert store.listed(local).height == 2, "a later version may read it"
    with pytest.raises(StoreError):
        store.pull(local, ["bad-run"], tmp_path / "pulled")
    store.remove(local, ["bad-run"]) if change is not _a_folder else None


@pytest.mark.parametrize("column", ["id", "workload", "verdict", "tags"])
def test_an_index_that_somebody_else_wrote_steers_no_terminal(local: Store, tmp_path: Path, column: str) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    said = "\x1b]0;mine\x07\x9b\u202e"
    index = pl.read_parquet(Path(local.root) / "index.parquet")
    other = pl.Series([[said]]) if column == "tags" else pl.lit(said)
    index.with_columns(other.alias(column)).write_parquet(Path(local.root) / "index.parquet")
    (row,) = store.listed(local).to_dicts()
    assert (row["id"], row["workload"], row["tags"]) == (run.name, "lenet", [])
    assert said not in str(row)


def test_texts_of_a_manifest_do_not_steer_the_terminal(local: Store) -> None:
    write_hostile(local, lambda stated: stated.update(facts={"workload": "\x1b]0;mine\x07\x9b\u202e" + "x" * 9999}))
    (row,) = store.listed(local).to_dicts()
    assert row["workload"].isprintable()
    assert len(row["workload"]) < 2000


def test_a_file_that_is_longer_than_its_manifest_says_is_cut_off_and_refused(local: Store, tmp_path: Path) -> None:
    write_hostile(local, lambda _: None)
    [manifest] = manifests.read_manifests(local, local.list_folder("manifests")).values()
    local.write(f"{manifest.folder}/run.json", b"{}" * 1000)
    with pytest.raises(StoreError, match="checksum"):
        store.pull(local, ["bad-run"], tmp_path / "pulled")


def test_a_run_with_a_name_of_any_script_is_pushed_listed_and_pulled(local: Store, tmp_path: Path) -> None:
    names = ["größe", "gro\u0308ße", "训练模型", "x" * 400]
    runs = [make_run(tmp_path / "runs", name) for name in names]
    assert [run.name.split("-")[1] for run in runs[:3]] == ["größe", "größe", "训练模型"]
    store.push(local, runs)
    assert set(store.listed(local)["id"]) == {run.name for run in runs}
    pulled = store.pull(local, [run.name for run in runs], tmp_path / "pulled")
    assert [files_of(path) for path in pulled] == [files_of(run) for run in runs]


def test_a_run_that_is_refused_does_not_keep_the_others_from_the_store(local: Store, tmp_path: Path) -> None:
    refused = make_run(tmp_path / "runs")
    (refused / "link.json").symlink_to("run.json")
    whole = [make_run(tmp_path / "runs", f"net{number}") for number in range(2)]
    with pytest.raises(RunDamaged, match=r"link\.json"):
        store.push(local, [refused, *whole])
    assert set(store.listed(local)["id"]) == {run.name for run in whole}
    with pytest.raises(StoreError, match=r"2 runs were not pushed: .*; "):
        store.push(local, [refused, *whole, refused])


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".x", "x~y", "x" * 300, "a\u202eb", "o\u0308", "a\nb", "训" * 80])
def test_a_name_that_is_no_run_is_refused(local: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="not a valid name of a run"):
        store.pull(local, [name], tmp_path)


def test_a_run_above_the_limit_is_refused_before_anything_is_read(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    with pytest.raises(StoreError, match="more than 10"):
        store.pull(local, [run.name], tmp_path / "pulled", most_bytes=10)


def test_a_full_disk_is_said_and_leaves_nothing(local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5))
    with pytest.raises(OutputNotWritable, match="5 are free") as refused:
        store.pull(local, [run.name], tmp_path / "pulled")
    assert "--out" in str(refused.value.hint)
    assert list((tmp_path / "pulled").iterdir()) == []


def test_pulling_twice_is_harmless_and_other_content_is_never_overwritten(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    [pulled] = store.pull(local, [run.name], tmp_path / "pulled")
    assert store.pull(local, [run.name], tmp_path / "pulled") == [pulled]
    (pulled / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputNotWritable, match="other content"):
        store.pull(local, [run.name], tmp_path / "pulled")


def test_a_store_that_may_take_for_ever_is_waited_for_as_long_as_the_system_can() -> None:
    assert call_with_timeout(math.inf, lambda: 3, "s3://bucket") == 3


def test_a_store_that_does_not_answer_is_said_in_time() -> None:
    release = threading.Event()
    with pytest.raises(StoreError, match=r"did not answer within 0\.02 s") as refused:
        call_with_timeout(0.02, release.wait, "s3://bucket")
    release.set()
    assert "--timeout" in str(refused.value.hint)


def test_what_a_store_complains_of_is_passed_on(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(13, "Access Denied")

    monkeypatch.setattr("os.scandir", refuses)
    with pytest.raises(StoreError, match="Access Denied"):
        store.listed(local)


def test_an_address_of_no_known_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="not a store address"):
        open_store("nosuchthing://x")


def test_a_plain_folder_of_runs_can_be_listed_too(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    assert store.listed(open_store(tmp_path / "runs"))["id"].to_list() == [run.name]


def test_a_run_whose_manifest_is_cut_off_is_listed_as_unreadable(tmp_path: Path) -> None:
    sound, cut = (make_run(tmp_path / "runs", started_s=1.7e9 + number) for number in range(2))
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "notes" / "run.json").write_text("{")
    folder = open_store(tmp_path / "runs")
    store.listed(folder)
    (cut / "run.json").write_text((cut / "run.json").read_text()[:100])
    found = store.listed(folder)
    assert dict(found.select("id", "status").iter_rows()) == {sound.name: "ok", cut.name: "unreadable"}


def test_a_folder_of_runs_has_nothing_to_be_verified_against(tmp_path: Path) -> None:
    make_run(tmp_path / "runs")
    with pytest.raises(UsageError, match="as they were recorded"):
        store.verify(open_store(tmp_path / "runs"))


def test_of_a_plain_folder_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = open_store(tmp_path / "runs")
    first, second = (make_run(tmp_path / "runs", started_s=1.7e9 + number) for number in range(2))
    going_on = RunWriter.create(tmp_path / "runs", "lenet")
    going_on.update(**process_identity(os.getpid()))
    opened: list[str] = []

    def reader(path: Path) -> RunReader:
        opened.append(path.name)
        return RunReader(path)

    monkeypatch.setattr(store_listing, "RunReader", reader)
    before = store.listed(folder)
    assert sorted(opened) == sorted([first.name, second.name, going_on.path.name])
    opened.clear()
    assert store.listed(folder).equals(before)
    assert opened == [going_on.path.name], "what goes on is read each time"
    summary = json.loads((second / "summary.json").read_text())
    (second / "summary.json").write_text(json.dumps({**summary, "steps": 77}))
    shutil.rmtree(first)
    going_on.close("failed")
    opened.clear()
    now = store.listed(folder)
    assert sorted(opened) == sorted([second.name, going_on.path.name])
    assert dict(now.select("id", "steps").iter_rows())[second.name] == 77
    assert set(now["id"]) == {second.name, going_on.path.name}
    (cache,) = (tmp_path / "cache/stepscope/stores").iterdir()
    assert cache.stat().st_mode & 0o077 == 0
    cache.write_text("{")
    assert store.listed(folder).equals(now)


def test_collecting_removes_nothing_through_a_link(local: Store, tmp_path: Path) -> None:
    store.push(local, [make_run(tmp_path / "runs")])
    theirs = tmp_path / "elsewhere" / "0123456789abcdef"
    theirs.mkdir(parents=True)
    (theirs / "letters").write_text("dear")
    runs = Path(local.full_path("runs"))
    (runs / "evil").symlink_to(theirs.parent)
    (next(path for path in runs.iterdir() if path.name != "evil") / "fedcba9876543210").symlink_to(theirs)
    store.collect(local, older_than_s=0)
    assert (theirs / "letters").read_text() == "dear"


@pytest.mark.parametrize("planted", ["file", "content", "run"])
def test_a_push_writes_nothing_through_a_link(local: Store, tmp_path: Path, planted: str) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    (content,) = Path(local.full_path(f"runs/{run.name}")).iterdir()
    theirs = tmp_path / "elsewhere"
    theirs.mkdir()
    (theirs / "run.json").write_text("dear")
    opened = {"file": content / "run.json", "content": content, "run": content.parent}[planted]
    opened.rename(tmp_path / "moved")
    opened.symlink_to(theirs / "run.json" if planted == "file" else theirs)
    with pytest.raises(StoreError, match="is a link"):
        store.push(local, [run])
    assert [path.name for path in theirs.iterdir()] == ["run.json"]
    assert (theirs / "run.json").read_text() == "dear"


def test_a_circle_of_links_in_a_store_is_not_walked(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    (content,) = Path(local.full_path(f"runs/{run.name}")).iterdir()
    for name in "abcd":
        (content / name).symlink_to("..")
    (verified,) = store.verify(local)
    assert verified.wrong == dict.fromkeys("abcd", "no manifest names it")


def test_a_push_redacts_what_an_earlier_version_wrote(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    header = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**header, "argv": ["train.py", "--api-key", "hunter2"]}))
    store.push(local, [run])
    pushed = [path.read_bytes() for path in Path(local.root).rglob("*") if path.is_file()]
    assert pushed
    assert not any(b"hunter2" in content for content in pushed)


def test_verifying_names_every_file_that_is_not_what_was_pushed(opened: Store, tmp_path: Path) -> None:
    names = [make_run(tmp_path / "runs", f"net{number}", 1.7e9 + number).name for number in range(3)]
    store.push(opened, [tmp_path / "runs" / name for name in names])
    assert [run.wrong for run in store.verify(opened)] == [{}, {}, {}]
    _, manifest = store.find(opened, names[1])
    first, second, *_ = manifest.files
    flipped = bytearray(opened.read(f"{manifest.folder}/{first.path}", 1 << 20))
    flipped[len(flipped) // 2] ^= 1
    opened.write(f"{manifest.folder}/{first.path}", bytes(flipped))
    opened.remove(f"{manifest.folder}/{second.path}")
    opened.write(f"{manifest.folder}/more.txt", b"more")
    told: list[str] = []
    found = {run.id: run.wrong for run in store.verify(opened, done=lambda run: told.append(run.id))}
    assert told == sorted(names)
    assert found[names[0]] == found[names[2]] == {}
    assert sorted(found[names[1]]) == sorted([first.path, second.path, "more.txt"])
    assert "SHA-256" in found[names[1]][first.path]
    assert found[names[1]][second.path] == "missing"
    assert store.verify(opened, [names[0]])[0].files == len(manifest.files)
    with pytest.raises(RunNotFound):
        store.verify(opened, ["no-such-run"])


def test_a_damaged_manifest_is_a_run_that_is_not_what_was_pushed(local: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    (name,) = local.list_folder("manifests")
    local.write(f"manifests/{name}", b"{")
    assert store.verify(local)[0].wrong == {"manifests": "the manifest is damaged"}


def test_a_folder_that_refuses_a_file_refuses_the_push_with_a_sentence(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    opened = local.fs.open

    def full(path: str, mode: str) -> Any:
        file = opened(path, mode)
        if "w" in mode:
            monkeypatch.setattr(
                file, "write", lambda data: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
        return file

    monkeypatch.setattr(local.fs, "open", full)
    with pytest.raises(StoreError, match="No space left on device"):
        store.push(local, [run])
    monkeypatch.undo()
    assert store.push(local, [run])[0].outcome == "pushed"


@pytest.mark.parametrize("name", ["ops", "000000.parquet"])
def test_a_run_of_which_something_cannot_be_read_is_not_pushed_in_part(
    name: str, local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, other = make_run(tmp_path / "runs"), make_run(tmp_path / "runs", "resnet")
    (unreadable / "ops" / "000000.parquet").write_bytes(b"x")
    scandir, opened = os.scandir, Path.open

    def refused(path: object) -> None:
        if name in Path(str(path)).parts and Path(str(path)).is_relative_to(unreadable):
            raise PermissionError(13, "Permission denied", str(path))

    def scan(path: object) -> object:
        refused(path)
        return scandir(path)  # type: ignore[call-overload]

    def open_path(self: Path, *args: Any, **more: Any) -> object:
        refused(self)
        return opened(self, *args, **more)

    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(Path, "open", open_path)
    with pytest.raises(RunDamaged, match=f"{name}' cannot be read: Permission denied"):
        store.push(local, [unreadable, other])
    assert store.listed(local)["id"].to_list() == [other.name]


def test_finding_one_run_looks_at_no_name_of_another(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    store.push(local, [run])
    for number in range(20):
        (Path(local.root) / f"manifests/20260101T000000Z-x{number}-000000~0000000000000000.json").write_text("{}")
    asked: list[str] = []
    run_id_of_file_name = manifests.run_id_of_file_name

    def noting(name: str) -> str | None:
        asked.append(name)
        return run_id_of_file_name(name)

    monkeypatch.setattr(manifests, "run_id_of_file_name", noting)
    name, _ = manifests.find(local, run.name)
    assert set(asked) == {name}
