"""A run as it may leave this machine: without secrets, and without what the user wants to be omitted."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.liveness import identity, is_running
from stepscope.privacy import cleaned, cleaned_fields, withheld
from stepscope.runfolder import RunReader, RunWriter
from stepscope.runfolder.checksums import CHECKSUMS
from stepscope.runfolder.validation import SHAPES
from stepscope.secrets import redacted

_COPY = ".push-"  # process number, its start, and random letters follow
_TEXTS = {*SHAPES, "run.json", "summary.json", CHECKSUMS}
_TABLES = {".parquet", ".rows", ".part"}


@contextmanager
def redacted_run(run: RunReader) -> Iterator[RunReader]:
    """Yield the run to push: itself, redacted in its place, or a copy beside it where something is to be omitted.

    The copy has the files of the contract alone: a page or an export in the folder would still say what is omitted.
    """
    if not withheld():
        for stated in (run, *(part for part in run.parts.values() if isinstance(part, RunReader))):
            _redact(stated)
        yield run
        return
    beside = run.path.absolute().parent
    _clear_copies(beside)
    own = identity(os.getpid())
    prefix = f"{_COPY}{own['pid']}-{own['pid_started'] or 0}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=beside) as folder:
        copy = Path(folder) / run.path.absolute().name
        _copy(run.path, copy)
        yield RunReader(copy)


def _clear_copies(folder: Path) -> None:
    """Remove the copies of pushes that were killed."""
    for copy in folder.glob(f"{_COPY}*"):
        pid, _, rest = copy.name.removeprefix(_COPY).partition("-")
        started = rest.partition("-")[0]
        if pid.isdecimal() and started.isdecimal() and not is_running(int(pid), int(started) or None):
            shutil.rmtree(copy, ignore_errors=True)


def _redact(run: RunReader) -> None:
    """Take the secrets out of a command line that an earlier version wrote as it was typed."""
    known = run.meta.get("argv")
    stated = json.loads((run.path / "run.json").read_bytes().decode("utf-8", errors="replace")).get("argv")
    if known and isinstance(stated, list) and len(stated) == len(known) and redacted(map(str, stated)) != stated:
        RunWriter.attach(run.path).update(argv=known)


def _copy(run: Path, target: Path) -> None:
    for folder, folders, names in os.walk(run):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        into = target / Path(folder).relative_to(run)
        into.mkdir()
        for name in names:
            source = Path(folder, name)
            if name in _TEXTS or name == "events.jsonl":
                (into / name).write_text(_text(source), encoding="utf-8")
            elif source.suffix in _TABLES and not name.startswith("."):
                _link(source, into / name)


def _text(path: Path) -> str:
    """Return the cleaned content of a JSON file or of one with an object a line; what is damaged is omitted."""
    content = path.read_bytes().decode("utf-8", errors="replace")
    if path.suffix == ".jsonl":
        lines = [_json(line) for line in content.splitlines()]
        return "".join(json.dumps(cleaned(line)) + "\n" for line in lines if line is not None)
    known = _json(content)
    if path.name == "run.json" and isinstance(known, dict):
        known |= {"argv": redacted(known["argv"])} if isinstance(known.get("argv"), list) else {}
        return json.dumps(cleaned_fields(known), indent=1) + "\n"
    return json.dumps(cleaned(known), indent=1) + "\n"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _link(source: Path, target: Path) -> None:
    """A second name for the file where the disk has such, else a copy; `entries_of` refuses what is no plain file."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)
