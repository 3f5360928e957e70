"""A sweep on disk: its plan, written once, and one file for each run that has ended, each written as a whole.

sweep.json           what is run, in which order, by which rules, with which definitions of the workloads
sources/<n>.py       the workloads' own files as they were, to show what has changed since
points/<id>.json     what became of a run: there or not there, never in part
runs/<id>/           its run folder, and what it printed
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stepscope.errors import OutputNotWritable, RunDamaged, RunNotFound, SchemaTooNew, UsageError
from stepscope.studies.suite.grid import Entry, Point

SCHEMA = 1
_PLAN = "sweep.json"
_MOST_LINES = 20


class SweepFolder:
    """The folder of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = _read_plan(path)

    @classmethod
    def create(cls, path: Path, plan: dict[str, Any], entries: Sequence[Entry]) -> SweepFolder:
        """Begin a sweep; refused where there is one already."""
        if (path / _PLAN).exists():
            raise UsageError(
                f"'{path}' holds a sweep already", f"go on with it: stepscope suite run --resume --out {path}"
            )
        definitions = {
            entry.name: {"definition": dict(entry.definition), "about": dict(entry.about), "source": f"{place}.py"}
            for place, entry in enumerate(entries)
        }
        with writing(path, _too_full_to_begin):
            for name in ("points", "runs", "sources"):
                (path / name).mkdir(parents=True, exist_ok=True)
            for place, entry in enumerate(entries):
                (path / "sources" / f"{place}.py").write_text(entry.source, encoding="utf-8")
            write_durably(path / _PLAN, {"schema": SCHEMA, **plan, "workloads": definitions})
        return cls(path)

    @property
    def order(self) -> list[Point]:
        return [Point(**point) for point in self.plan["order"]]

    def run_folder(self, point: Point) -> Path:
        """Where the child of this run writes."""
        return self.path / "runs" / point.id

    def ended(self) -> dict[str, dict[str, Any]]:
        """What became of the runs that have ended, by the id of their point; a file that is damaged counts as none."""
        found = {}
        for path in (self.path / "points").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def end(self, point: Point, result: dict[str, Any]) -> None:
        """Write down what became of a run; once this returns, no power loss takes it away."""
        with writing(self.path):
            write_durably(self.path / "points" / f"{point.id}.json", result)

    def refuse_changes(self, entries: Sequence[Entry]) -> None:
        """UsageError with the difference where a workload is no longer the one that this sweep began with."""
        now = {entry.name: entry for entry in entries}
        said = []
        for name, kept in self.plan["workloads"].items():
            if name not in now:
                said.append(f"{name}: no longer among the workloads")
            elif json.loads(json.dumps(dict(now[name].definition))) != kept["definition"]:
                said += self._difference(name, kept, now[name])
        if said:
            lines = "\n".join(said)
            raise UsageError(
                f"a workload has changed since '{self.path}' began, so its results could not be compared:\n{lines}",
                "bring back the version that it began with, or begin a new sweep with another --out",
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else runs this sweep meanwhile; the kernel lets go of the lock however this process ends."""
        with (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(
                    f"another process is running the sweep in '{self.path}'", "wait for it to end"
                ) from None
            yield

    def _difference(self, name: str, kept: dict[str, Any], entry: Entry) -> Iterator[str]:
        before, after = kept["definition"], dict(entry.definition)
        for key in sorted({*before, *after}):
            if before.get(key) != json.loads(json.dumps(after.get(key))):
                yield f"{name}: {key}: {_short(before.get(key))} -> {_short(after.get(key))}"
        source = self.path / "sources" / kept["source"]
        old = source.read_text(encoding="utf-8") if source.exists() else ""
        lines = difflib.unified_diff(old.splitlines(), entry.source.splitlines(), "then", "now", lineterm="", n=0)
        yield from (f"  {line}" for line, _ in zip(lines, range(_MOST_LINES), strict=False))


def disk_full(path: Path) -> OutputNotWritable:
    """The refusal with which a sweep stops in its midst; what has ended stays."""
    return OutputNotWritable(
        f"the disk of '{path}' is full: the sweep has stopped, and every run that has ended is kept",
        f"make room, then: stepscope suite run --resume --out {path}",
    )


def _too_full_to_begin(path: Path) -> OutputNotWritable:
    return OutputNotWritable(f"the disk of '{path}' is full: no sweep was begun", "make room, or give another --out")


@contextlib.contextmanager
def writing(path: Path, full: Callable[[Path], OutputNotWritable] = disk_full) -> Iterator[None]:
    """A full disk, or one that takes nothing, as a refusal that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full(path) from error
        raise OutputNotWritable(
            f"cannot write the sweep in '{path}': {error.strerror or error}",
            "choose a folder that you can write: --out DIR",
        ) from error


def write_durably(path: Path, content: dict[str, Any]) -> None:
    """Replace a file as a whole and wait until the disk has it, and its name (fsync(2))."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, default=str)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads((path / _PLAN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunNotFound(f"no sweep in '{path}'", "give the folder of a sweep, see: stepscope suite list") from None
    except (OSError, ValueError) as error:
        raise RunDamaged(f"'{path / _PLAN}' cannot be read: {error}") from error
    if not isinstance(plan, dict) or not isinstance(plan.get("schema"), int):
        raise RunDamaged(f"'{path / _PLAN}' is not the plan of a sweep")
    if plan["schema"] > SCHEMA:
        raise SchemaTooNew(
            f"'{path}' has schema {plan['schema']}; this Stepscope reads up to {SCHEMA}", "update stepscope"
        )
    return plan


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
