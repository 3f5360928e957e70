"""The worker of a device, and its runs: made once, kept, fetched home in pieces, and checked by hashes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stepscope.errors import OutputNotWritable, RunDamaged, StepscopeError
from stepscope.experiments.engine.engine import installed_versions
from stepscope.experiments.engine.folder import SweepFolder, translate_sweep_write_errors
from stepscope.experiments.engine.process import disk_was_full, run_child
from stepscope.experiments.fleet.agent import hold_folder, publish_state, set_event_when_unneeded
from stepscope.experiments.fleet.certificates import CERTIFICATE, sign
from stepscope.experiments.fleet.protocol import BadMessage, Link, open_link, with_timeout
from stepscope.experiments.suite.rules import RunRules, cool_down
from stepscope.files import read_json_object, replace_json, sha256_of, sync

_AGAIN_S = 0.5  # grows to
_AGAIN_MOST_S = 10.0
_SILENT_PINGS = 4  # the scheduler has gone without a word


def run_worker(orders: Mapping[str, Any]) -> None:
    """Run the worker until SIGTERM. A scheduler that goes away is waited for; a run continues meanwhile.

    orders: folder (its `tls` holds key and certificate), scheduler (url), name, board. Where it is given, the worker
    ends with the process that it `lives_with`, and after `alone_s` seconds in which no scheduler let it in.
    """
    folder = Path(orders["folder"])
    os.environ[FOLDER_VARIABLE] = str(folder)
    with hold_folder(folder):
        asyncio.run(_worker_loop(folder, orders))
    os._exit(0)  # a run in its thread would be waited for; its child ends with this process


async def _worker_loop(folder: Path, orders: Mapping[str, Any]) -> None:
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    place = {key: orders[key] for key in ("scheduler", "name", "board")}
    publish_state(folder, {**place, "error": "no scheduler has answered yet"})
    remove_old_runs(folder / "runs")
    wait_s = _AGAIN_S
    work = ThreadPoolExecutor(1)  # one run at a time, also from one connection to the next
    watch = asyncio.ensure_future(set_event_when_unneeded(folder, orders.get("lives_with"), end))
    alone_s, alone_since = float(orders.get("alone_s") or math.inf), time.monotonic()
    while not end.is_set() and (time.monotonic() - alone_since < alone_s or _is_run_in_progress()):
        try:
            link, hello = await open_link(orders["scheduler"], folder / "tls")
            try:
                publish_state(folder, place)
                await _work_connected(link, hello, work, end)
            finally:
                wait_s, alone_since = _AGAIN_S, time.monotonic()
        except (StepscopeError, BadMessage, OSError, ValueError) as error:
            publish_state(folder, {**place, "error": str(error)})
            wait_s = min(2 * wait_s, _AGAIN_MOST_S)
        with contextlib.suppress(asyncio.TimeoutError):
            await with_timeout(end.wait(), wait_s)
    watch.cancel()


async def _work_connected(link: Link, hello: Mapping[str, Any], work: ThreadPoolExecutor, end: asyncio.Event) -> None:
    """Serve one connection, from its beginning to its end."""
    ends = {
        asyncio.ensure_future(_serve_orders(link, hello.get("ping_s", 10.0), work)),
        asyncio.ensure_future(end.wait()),
    }
    try:
        ended_tasks, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ended_tasks:
            with contextlib.suppress(ConnectionError):
                task.result()
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        link.close()


async def _serve_orders(link: Link, ping_s: float, work: ThreadPoolExecutor) -> None:
    """Do order after order; pings are answered meanwhile."""
    answers: set[asyncio.Task[None]] = set()
    try:
        while True:
            head, body = await link.receive(_SILENT_PINGS * ping_s)
            if head.get("ping"):
                await link.send({"pong": True})
                continue
            answers.add(asyncio.ensure_future(_answer_order(link, head["id"], str(head["do"]), body, work)))
            answers = {answer for answer in answers if not answer.done()}
    finally:
        for answer in answers:
            answer.cancel()


async def _answer_order(link: Link, number: int, do: str, body: bytes, work: ThreadPoolExecutor) -> None:
    ok, answer = await asyncio.get_running_loop().run_in_executor(work, _carry_out_order, do, body)
    with contextlib.suppress(ConnectionError):
        await link.send({"id": number, "ok": ok}, answer)


def _carry_out_order(do: str, body: bytes) -> tuple[bool, bytes]:
    """Whether an order was carried out, and the body of the answer: whatever goes wrong is an answer as well."""
    try:
        answer = _ORDERS[do](**json.loads(body))
    except Exception as error:
        return False, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()
    return True, answer if isinstance(answer, bytes) else json.dumps(answer).encode()


# A run that has ended is found again by whoever asks for it next: a scheduler that is restarted, a gatherer that is
# resumed or a connection that breaks costs no second run.

FOLDER_VARIABLE = "STEPSCOPE_FLEET_FOLDER"  # where this device keeps runs that have not been gathered
_ENDED = "ended.json"
_SOURCES = "sources"  # beside the runs of a sweep: the files of its own workloads
_UNCLAIMED_S = 30 * 86_400.0  # a sweep that was given up is not kept on the card of a board for ever


def device_facts() -> dict[str, Any]:
    """The device, the versions on it, and its clock: `unix_ns` is read last."""
    from stepscope.record.device import describe_device

    device = describe_device()
    return {"device": device, "versions": installed_versions(), "pid": os.getpid(), "unix_ns": time.time_ns()}


def signed_run(sweep: str, name: str, **orders: Any) -> dict[str, str]:
    """Make a run, and return how it ended as a text (JSON), with this device's signature and certificate."""
    tls = _device_folder() / "tls"
    text = json.dumps({"sweep": sweep, "name": name, **make_run(sweep, name, **orders)})
    signature = base64.b64encode(sign(tls, text.encode())).decode("ascii")
    return {"signed": text, "signature": signature, "certificate": (tls / CERTIFICATE).read_text(encoding="ascii")}


def make_run(
    sweep: str, name: str, child: Sequence[str], spec: Mapping[str, Any], source: str | None
) -> dict[str, Any]:
    """Make a run, unless it was made before, and say how it ended and which files it has left.

    child: what follows the Python of this device in the command; source: the text of a workload of the user's own.
    """
    with _hold_device():
        folder = _run_folder(sweep, name)
        if ended := read_json_object(folder / _ENDED):
            return ended
        ended = _run_child_and_list_files(folder, child, _with_source_file(folder.parent, spec, source))
        replace_json(folder / _ENDED, ended, durable=True)
        return ended


def read_pieces(sweep: str, name: str, pieces: Sequence[tuple[str, int, int]]) -> bytes:
    """Return parts of the files of a run, (name, offset, size in bytes) each, one after the other."""
    contents = []
    for file_name, offset, size in pieces:
        with path_inside(_run_folder(sweep, name) / "run", file_name).open("rb") as file:
            file.seek(offset)
            contents.append(file.read(size))
    return b"".join(contents)


def forget_run(sweep: str, name: str) -> None:
    """Remove a run that has been gathered, and with the last one what its sweep has left."""
    folder = _run_folder(sweep, name)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        if {path.name for path in folder.parent.iterdir()} <= {_SOURCES}:
            shutil.rmtree(folder.parent, ignore_errors=True)


def remove_old_runs(folder: Path, older_than_s: float = _UNCLAIMED_S) -> None:
    """Remove the runs below `runs/` that nobody has asked for in so long a time, s."""
    for sweep in [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else ():
        for run in list(sweep.iterdir()):
            if run.name != _SOURCES and time.time() - run.stat().st_mtime > older_than_s:
                shutil.rmtree(run, ignore_errors=True)
        if {path.name for path in sweep.iterdir()} <= {_SOURCES}:
            shutil.rmtree(sweep, ignore_errors=True)


_ORDERS: Mapping[str, Callable[..., Any]] = {
    "facts": device_facts,
    "clock": lambda: {"unix_ns": time.time_ns()},
    "make": signed_run,
    "pieces": read_pieces,
    "forget": forget_run,
}


def _run_child_and_list_files(folder: Path, child: Sequence[str], spec: Mapping[str, Any]) -> dict[str, Any]:
    rules, where = RunRules(**spec["rules"]), folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cooled, asleep_ns = cool_down(rules), _suspended_ns()
    outcome = run_child([sys.executable, *child], spec, where, rules.time_limit_s)
    files: list[FileEntry] = list_files(where)
    return {
        "status": outcome.status,
        "reason": outcome.reason,
        "wall_s": outcome.wall_s,
        "run": None if outcome.run is None else outcome.run.relative_to(where).as_posix(),
        "cooled": cooled,
        "slept_s": (_suspended_ns() - asleep_ns) / 1e9,
        "disk_full": disk_was_full(where),
        "files": [asdict(file) for file in files],
    }


def _suspended_ns() -> int:
    """Return how long this machine has been suspended since it started, ns: CLOCK_MONOTONIC stands still meanwhile."""
    if not hasattr(time, "CLOCK_BOOTTIME"):  # not Linux
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _with_source_file(folder: Path, spec: Mapping[str, Any], source: str | None) -> dict[str, Any]:
    """The orders with a workload of the user's own in a file of this device."""
    if source is None:
        return dict(spec)
    text = source.encode("utf-8")
    path = folder / _SOURCES / f"workload_{hashlib.sha256(text).hexdigest()[:16]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return {**spec, "workload": f"{path}:{str(spec['workload']).rpartition(':')[2]}"}


@contextlib.contextmanager
def _hold_device() -> Iterator[None]:
    """Hold the device: nothing else is measured meanwhile, not even by a task of a broken connection."""
    path = _device_folder() / "run.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_run_in_progress() -> bool:
    try:
        with (_device_folder() / "run.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _run_folder(sweep: str, name: str) -> Path:
    return path_inside(path_inside(_device_folder() / "runs", sweep), name)


def _device_folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


Piece = tuple[str, int, int]  # file, offset, size in bytes
Fetch = Callable[[Sequence[Piece]], Awaitable[Sequence[bytes]]]
PIECE_BYTES = 1 << 20  # a message of 60 s at 17 kB/s: nothing else gets through meanwhile
_BATCH_FILES = 500  # files
_LEAST_FREE_BYTES = 64_000_000
_ROOM_BYTES = 2_000_000_000  # a disk with more is not called full


class NoRoomForRun(Exception):
    """Error: a run is larger than what is free here; its device keeps it."""


async def gather_run(folder: SweepFolder, where: Path, offered: Sequence[Mapping[str, Any]], fetch: Fetch) -> None:
    """Fetch the files that a device offers for the run folder `where`; what an earlier try has fetched is kept.

    RunDamaged where the list is hostile or a file does not have its hash; OutputNotWritable where the disk is full, and
    NoRoomForRun where it is not and the run is larger still.
    """
    files = check_files(offered)
    coming = folder.path / "runs" / f".coming-{where.name}"
    with translate_sweep_write_errors(folder.path, _no_room_error):
        _prepare_download(coming, files)
        free, offered_bytes = shutil.disk_usage(folder.path).free, sum(file.size_bytes for file in files)
        if free < offered_bytes + _LEAST_FREE_BYTES:
            if free > _ROOM_BYTES:  # one device does not end the sweep of all
                raise NoRoomForRun(f"its run has {offered_bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free here")
            raise _no_room_error(folder.path)
        missing = list(_batch_pieces(_missing_pieces(coming / "files", files)))
    for batch in missing:
        contents = await fetch(batch)
        with translate_sweep_write_errors(folder.path, _no_room_error):
            _write_pieces(coming / "files", batch, contents)
    with translate_sweep_write_errors(folder.path, _no_room_error):
        _verify_hashes(coming, files)
        for file in files:  # the device forgets the run once it is here: no loss of power may take it
            sync(coming / "files" / file.name)
        shutil.rmtree(where, ignore_errors=True)
        (coming / "files").replace(where)
        sync(where.parent)
        shutil.rmtree(coming, ignore_errors=True)


def _no_room_error(path: Path) -> OutputNotWritable:
    return OutputNotWritable(
        f"the disk of '{path}' is full: the sweep has stopped; every run is kept, here or on its device",
        "make room, then: stepscope suite run --fleet ... --resume --out DIR",
    )


def _prepare_download(coming: Path, files: Sequence[FileEntry]) -> None:
    """Check that the device still offers what was begun, else refuse to go on with it."""
    offer = {"files": [asdict(file) for file in files]}
    if read_json_object(coming / "offered.json") == offer:
        return
    shutil.rmtree(coming, ignore_errors=True)
    (coming / "files").mkdir(parents=True)
    replace_json(coming / "offered.json", offer, durable=True)


def _missing_pieces(folder: Path, files: Sequence[FileEntry]) -> Iterator[Piece]:
    for file in files:
        path = folder / file.name
        have = min(path.stat().st_size, file.size_bytes) if path.exists() else 0
        if file.size_bytes == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for offset in range(have, file.size_bytes, PIECE_BYTES):
            yield file.name, offset, min(PIECE_BYTES, file.size_bytes - offset)


def _batch_pieces(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Small files travel together."""
    batch: list[Piece] = []
    for piece in pieces:
        if batch and (len(batch) == _BATCH_FILES or sum(size for *_, size in batch) + piece[2] > PIECE_BYTES):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _write_pieces(folder: Path, batch: Sequence[Piece], contents: Sequence[bytes]) -> None:
    if len(contents) != len(batch):
        raise RunDamaged("the device answered with other pieces than those requested", "look at the device")
    for (name, offset, size), content in zip(batch, contents, strict=True):
        if len(content) != size:
            raise RunDamaged(f"the device sent {len(content)} bytes of '{name}' instead of {size}", "try again")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(offset)
            file.truncate()
            file.write(content)


def _verify_hashes(coming: Path, files: Sequence[FileEntry]) -> None:
    wrong = [file.name for file in files if sha256_of(coming / "files" / file.name) != file.sha256]
    if wrong:
        shutil.rmtree(coming, ignore_errors=True)
        raise RunDamaged(f"'{wrong[0]}' did not arrive as the device has it: another SHA-256", "try again")


MOST_FILES = 20_000
MOST_BYTES = 16_000_000_000
_MOST_NAME = 255  # bytes: what file systems take
_MOST_PATH, _MOST_DEPTH = 1024, 16  # bytes and folders: below the folder of a sweep it is one that systems take
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """A file: its path below the folder with forward slashes, its size, and its SHA-256."""

    name: str
    size_bytes: int
    sha256: str


def list_files(folder: Path) -> list[FileEntry]:
    """Every plain file below a folder. Links and devices are excluded: they have no meaning elsewhere."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_of(path)) for path in paths]


def check_files(content: Iterable[Mapping[str, Any]]) -> list[FileEntry]:
    """A list that came from elsewhere; RunDamaged where a file would leave the folder, or it is beyond measure."""
    files: list[FileEntry] = []
    for entry in content:
        if len(files) == MOST_FILES:
            raise _damaged_offer_error(f"more than {MOST_FILES} files")
        files.append(_parse_file_entry(entry))
    if sum(file.size_bytes for file in files) > MOST_BYTES:
        raise _damaged_offer_error(f"more than {MOST_BYTES / 1e9:.0f} GB")
    names = {file.name.lower() for file in files}  # two that differ in case alone are one on some disks
    parents = {str(parent).lower() for file in files for parent in PurePosixPath(file.name).parents}
    if len(names) < len(files) or names & parents:
        raise _damaged_offer_error("two files of one name, or a file that is also a folder")
    return files


def path_inside(folder: Path, name: object) -> Path:
    """Return the path below a folder of a name that came from elsewhere; RunDamaged where it would leave it."""
    if not isinstance(name, str) or not _is_safe_relative_path(name):
        raise _damaged_offer_error(f"the name {name!r}")
    return folder / name


def _parse_file_entry(content: Mapping[str, Any]) -> FileEntry:
    try:
        name, size, digest = content["name"], content["size_bytes"], content["sha256"]
    except (KeyError, TypeError) as error:
        raise _damaged_offer_error("no name, size or hash") from error
    if not isinstance(name, str) or not _is_safe_relative_path(name):
        raise _damaged_offer_error(f"the name {name!r}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise _damaged_offer_error(f"the size {size!r} of {name!r}")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise _damaged_offer_error(f"the hash {digest!r} of {name!r}")
    return FileEntry(name, size, digest)


def _is_safe_relative_path(name: str) -> bool:
    """Return whether a name is the plain, relative path of a file below the folder, on any system."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= _MOST_NAME for part in parts)
    plain &= len(parts) <= _MOST_DEPTH and len(name.encode("utf-8", "replace")) <= _MOST_PATH
    return plain and name.isprintable() and not set(name) & set('\\:*?"<>|')


def _damaged_offer_error(what: str) -> RunDamaged:
    return RunDamaged(f"the device offers a run folder with {what}", "nothing of it was written; look at the device")
