"""A run as it may leave this machine: without secrets, and without what the user wants to be omitted."""

from __future__ import annotations

import codecs
import json
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stepscope.errors import OutputNotWritable, RunDamaged
from stepscope.files import add_checksum, atomic_write, read_json
from stepscope.liveness import is_running, process_identity
from stepscope.part_names import STEPS, parsed
from stepscope.privacy import (
    clean_and_redact,
    cleaned_fields,
    contains_secret,
    redacted_sources,
    redacted_texts,
    withheld_kinds,
    withhold_names,
)
from stepscope.runfolder import RunReader, RunWriter, validation
from stepscope.runfolder.checksums import CHECKSUMS
from stepscope.runfolder.schema import PARTS
from stepscope.store.storage import refuse_unreadable

_TRACES = (".pftrace", ".pftrace.gz")
_COPY = ".push-"  # process number, its start, and random letters follow
_TEXTS = {*validation.SHAPES, "run.json", "summary.json", CHECKSUMS}
_TABLES = {".parquet", ".rows", ".part"}
_REDACTED = "redacted"  # of run.json: pages and exports that lie beside it may be of before
_MOST_TOLD_BYTES = 64 << 20  # a larger trace is drawn from the run
_TOLD_AT_ONCE, _TOLD_OVERLAP, _READ_AT_ONCE = 8 << 20, 1 << 16, 1 << 16  # bytes


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of a run folder but hidden ones; RunDamaged for a link or a special file."""
    for parent, folders, names in os.walk(folder, onerror=refuse_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if name.startswith("."):
                continue
            if not stat.S_ISREG(path.lstat().st_mode):
                raise RunDamaged(f"'{path}' is not a regular file", "remove it: a run folder has no links or pipes")
            yield path
        for name in folders:
            if Path(parent, name).is_symlink():
                raise RunDamaged(f"'{Path(parent, name)}' is a link", "remove it: a run folder holds no links")


@contextmanager
def redacted_run(run: RunReader) -> Iterator[tuple[RunReader, tuple[str, ...]]]:
    """Yield the run to push, and the files that stay here: itself, redacted in its place, or a copy beside it.

    The copy has the files of the contract alone where something is to be omitted or a file says a secret: a page or an
    export in the folder could say it as well. Else it lacks what cannot be read: what is packed, and what is no text.
    """
    omitted: set[str] = set()
    plain = not withheld_kinds()
    if plain:
        with _writable(run.path):
            for stated in (run, *(part for part in run.parts.values() if isinstance(part, RunReader))):
                _redact(stated)
        plain = not read_json(run.path / "run.json").get(_REDACTED)
    others = [path for path in files_of(run.path) if not is_contract_file(path.relative_to(run.path))]
    secrets = {path: _has_secret(path) for path in others} if plain else {}
    plain = plain and True not in secrets.values()
    omitted = {path.relative_to(run.path).as_posix() for path in others if not plain or secrets[path] is None}
    if plain and not omitted:
        yield run, ()
        return
    beside = run.path.absolute().parent
    _clear_copies(beside)
    own = process_identity(os.getpid())
    prefix = f"{_COPY}{own['pid']}-{own['pid_started'] or 0}-"
    with _writable(beside):
        folder = tempfile.TemporaryDirectory(prefix=prefix, dir=beside)
    with folder:
        copy = Path(folder.name) / run.path.absolute().name
        with _writable(beside):
            _copy(run.path, copy, omitted, as_they_are=plain)
        yield RunReader(copy), tuple(sorted(omitted))


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write in '{folder}' what leaves without secrets: {error.strerror or error}",
            "copy the run to a folder that you can write, and push it from there",
        ) from error


def _clear_copies(folder: Path) -> None:
    """Remove the copies of pushes that were killed."""
    for copy in folder.glob(f"{_COPY}*"):
        pid, _, suffix = copy.name.removeprefix(_COPY).partition("-")
        started = suffix.partition("-")[0]
        if pid.isdecimal() and started.isdecimal() and not is_running(int(pid), int(started) or None):
            shutil.rmtree(copy, ignore_errors=True)


def _redact(run: RunReader) -> None:
    """Redact the secrets that an earlier version wrote as they were: of the command line, and of what was said."""
    stated = read_json(run.path / "run.json")
    changed = {name: new for name, old in stated.items() if name != "id" and (new := redacted_texts(old)) != old}
    for name in ("events.jsonl", "summary.json", "device.json", "channels.json"):
        with suppress(FileNotFoundError):
            changed |= {_REDACTED: True} if _redact_texts(run.path / name) else {}
    with suppress(FileNotFoundError):
        places = _json(
            validation.read_regular(run.path / "sources.json", validation.MOST_BYTES).decode(errors="replace")
        )
        if isinstance(places, dict) and redacted_sources(places) != places:
            RunWriter.attach(run.path).write_source_lines(places)
            changed |= {_REDACTED: True}
    if changed:
        RunWriter.attach(run.path).update(**(changed | {_REDACTED: True}))


def is_contract_file(path: Path) -> bool:
    """Return whether a path below a run folder is that of a file of the contract (docs/run-folder.md)."""
    parts = path.parts[2:] if path.parts[0] == PARTS and path.parts[1:2] and path.parts[1].isdecimal() else path.parts
    if len(parts) == 1:
        rows = parsed(parts[0])
        return parts[0] in {*_TEXTS, "events.jsonl"} or (rows is not None and rows.stem == STEPS)
    return len(parts) == 2 and parts[0] in validation.FOLDERS and path.suffix in _TABLES


def _has_secret(path: Path) -> bool | None:
    """Return whether a page, a table or notes that lie in a run folder say a secret; None where nobody can tell."""
    before = b""
    try:
        for piece in _text_pieces(path):
            if contains_secret(before + piece, as_page=path.suffix == ".html"):
                return True
            before = piece[-_TOLD_OVERLAP:]
    except ValueError:
        return None
    return False


def _text_pieces(path: Path) -> Iterator[bytes]:
    """Yield the text of a file in pieces, also of one that gzip has packed; ValueError where it is too large, or none.

    A trace for Perfetto is no text: its words stand in it as they are.
    """
    size, text = 0, None if path.name.endswith(_TRACES) else codecs.getincrementaldecoder("utf-8")()
    for piece in _read_pieces(path):
        size += len(piece)
        if size > _MOST_TOLD_BYTES or (text is not None and "\0" in text.decode(piece)):
            raise ValueError("too large, or no text")
        yield piece
    if text is not None:
        text.decode(b"", final=True)


def _read_pieces(path: Path) -> Iterator[bytes]:
    """Yield a file in pieces, unpacked where gzip has packed it; ValueError where that cannot be as a whole."""
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(0)
            yield from iter(lambda: file.read(_TOLD_AT_ONCE), b"")
            return
        file.seek(0)
        packed = zlib.decompressobj(wbits=31)
        try:
            while chunk := file.read(_READ_AT_ONCE):
                while chunk:
                    yield packed.decompress(chunk, _TOLD_AT_ONCE)
                    chunk = packed.unconsumed_tail
            yield packed.flush()
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not packed.eof or packed.unused_data:
            raise ValueError("more, or less, than one file is packed there")


def _redact_texts(path: Path) -> bool:
    """Redact the secrets in the texts of a JSON file, or of one with an object a line; no other line is touched."""
    content = validation.read_regular(path, validation.MOST_BYTES).decode("utf-8", errors="replace")
    lines = content.splitlines() if path.suffix == ".jsonl" else [content.rstrip()]
    texts = [(line, _json(line)) for line in lines]
    parts = [
        add_checksum(json.dumps(new)) if (new := clean_and_redact(there)) != there else line for line, there in texts
    ]
    if parts != lines:
        with atomic_write(path, whole=True) as part:
            part.write_text("".join(f"{line}\n" for line in parts), encoding="utf-8")
    return parts != lines


def _copy(run: Path, target: Path, omitted: Collection[str], as_they_are: bool) -> None:
    """Copy a run without the files that are left; as_they_are: what they say was redacted in its place."""
    for source in files_of(run):
        name = source.relative_to(run)
        if name.as_posix() in omitted:
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if as_they_are or source.suffix in _TABLES:
            _link_or_copy(source, target / name)
        else:
            (target / name).write_text(_redacted_content(source), encoding="utf-8")


def _redacted_content(path: Path) -> str:
    """Return the cleaned content of a JSON file or of one with an object a line; what is damaged is omitted."""
    content = path.read_bytes().decode("utf-8", errors="replace")
    if path.suffix == ".jsonl":
        lines = [_json(line) for line in content.splitlines()]
        return "".join(json.dumps(clean_and_redact(line)) + "\n" for line in lines if line is not None)
    value = _json(content)
    if path.name == "run.json" and isinstance(value, dict):
        plain = {name: old if name == "id" else redacted_texts(old) for name, old in value.items()}
        return json.dumps(cleaned_fields(plain), indent=1) + "\n"
    named = path.name in ("model.json", "sources.json", "accesses.json")  # names of layers, which tables have too
    value = redacted_sources(value) if path.name == "sources.json" and isinstance(value, dict) else value
    return json.dumps(withhold_names(value) if named else clean_and_redact(value), indent=1) + "\n"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _link_or_copy(source: Path, target: Path) -> None:
    """A second name for the file where the disk has such, else a copy; `entries_of` refuses what is no plain file."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)
