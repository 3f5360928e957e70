"""The folders of experiments on disk: the request or plan, and one file for each finished point.

Of a study:
study.json           which study, with which settings, begun when, on which device, with which versions
cells/<id>.json      the result of one point: there or not there, never in part
runs/<id>/           what its process left: a run folder, and what it printed
findings.json        the findings, written at the end, with data/<figure>.parquet, figures/ and page.html

Of a sweep:
sweep.json           what is run, in which order, by which rules, with which definitions of the workloads
sources/<n>.py       the workloads' own files as they were, to show what has changed since
points/<id>.json     the result of one run: there or not there, never in part
runs/<id>/           its run folder, and what it printed
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import json
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from stepscope.analysis.result_cache import user_seal
from stepscope.analysis.results import Findings
from stepscope.errors import OutputNotWritable, RunDamaged, RunNotFound, SchemaTooNew, UsageError
from stepscope.experiments.engine.sweep_points import SweepPoint, WorkloadEntry
from stepscope.files import CHANGED, atomic_write, check_and_strip_checksum, replace_json
from stepscope.privacy import redacted_text, redacted_texts
from stepscope.runfolder.pack import disk_errors
from stepscope.runfolder.validation import Fields, FileName, IntegerRange, clean_text, parse, read_regular

STUDY_SCHEMA = 1
SWEEP_SCHEMA = 2  # since 2 a sweep may hold trainings of the user's own, whose batch is null
_REQUEST_FILE, _PLAN_FILE = "study.json", "sweep.json"
_WRITTEN_FOLDERS = frozenset({"cells", "points", "runs", "sources", "data", "figures", "pretrained"})
_MOST_LINES = 20
_LAST_CHILD_S = 1.0  # that a killed process has started, and that has not become another program yet


class ResultFolder:
    """A folder with a result for each point that has ended."""

    noun: ClassVar[str]
    results_folder: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.path = path

    def result(self, name: str) -> dict[str, Any] | None:
        """Return the result of a point; null where it has not ended, or its file is damaged or was changed."""
        return _object(self.path / self.results_folder / f"{name}.json") or None

    def results(self) -> dict[str, dict[str, Any]]:
        """Return the results of the points that have ended, by their id; a damaged file counts as none."""
        names = [path.stem for path in (self.path / self.results_folder).glob("*.json")]
        return {name: result for name in names if (result := self.result(name)) is not None}

    def store_result(self, name: str, result: Mapping[str, Any]) -> None:
        """Write a result down; once this returns, no power loss takes it away."""
        content = dict(result)
        if isinstance(content.get("reason"), str):  # the last words of a process that died
            content["reason"] = redacted_text(content["reason"])
        with self.translate_write_errors():
            replace_json(self.path / self.results_folder / f"{name}.json", content, durable=True)

    def translate_write_errors(self) -> AbstractContextManager[None]:
        """Return a context in which a disk that takes nothing is a refusal that says how to go on."""
        raise NotImplementedError

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works in this folder meanwhile; the kernel lets go of the lock however this process ends.

        RunDamaged for a folder with links, pipes or devices: what is written would go elsewhere, or wait for ever.
        """
        _refuse_links(self.path)
        with self.translate_write_errors():
            file = (self.path / ".lock").open("a")
        with file:
            if not _lock(file.fileno()):
                hint = "wait for it to end, or choose another folder: --out DIR"
                raise UsageError(f"another process is at work on the {self.noun} in '{self.path}'", hint)
            yield


def _lock(number: int) -> bool:
    """Take the lock; False where somebody has it, and not only a killed one's child on its way to another program."""
    end_s = time.monotonic() + _LAST_CHILD_S
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > end_s:
                return False
            time.sleep(0.02)


def _refuse_links(folder: Path) -> None:
    """Raise RunDamaged for a link among what is written here; folders of others' are not walked."""
    for place, folders, names in os.walk(folder):
        entries = [Path(place, name) for name in (*folders, *names)]
        if Path(place) == folder:
            folders[:] = [name for name in folders if name in _WRITTEN_FOLDERS]
        for path in entries:
            try:
                kind = path.lstat().st_mode
            except FileNotFoundError:  # of somebody who is at work here, and holds the lock
                continue
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise RunDamaged(f"'{path}' is a link, or no plain file", "choose another folder: --out DIR")


class StudyFolder(ResultFolder):
    """The folder of one study. Begun anew, or gone on with where it holds the same request."""

    noun, results_folder = "study", "cells"

    def __init__(
        self,
        path: Path,
        study: str,
        settings: Mapping[str, Any],
        sources: Mapping[str, str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin, or go on: what has ended is kept. UsageError where the folder holds another request.

        sources: what the training is by name, such as the SHA-256 of its file; another one is refused likewise.
        where: on what is measured now: device, accelerators, versions, data; others than the folder's are refused.
        """
        super().__init__(path)
        plain = redacted_texts(json.loads(json.dumps(dict(settings), default=str)))
        request = {"schema": STUDY_SCHEMA, "study": study, "settings": plain}
        stored: dict[str, Any] | None = None
        with contextlib.suppress(FileNotFoundError):
            stored = _read_head(path / _REQUEST_FILE, STUDY_SCHEMA, "does not hold a request")
        if stored is not None and self._is_begun():
            _refuse_other_request(path, stored, request)
            if stored.get("sources") or "versions" in stored:  # an earlier version did not know every training
                _refuse_other_sources(path, stored.get("sources"), sources)
            refuse_other_device(path, stored, where or {})
            return
        _refuse_links(path)  # before anything is written
        with self.translate_write_errors():
            for name in (self.results_folder, "runs"):
                (path / name).mkdir(parents=True, exist_ok=True)
            began = {"began_unix_ms": time.time_ns() // 1_000_000, "sources": dict(sources or {}), **(where or {})}
            replace_json(path / _REQUEST_FILE, {**request, **began}, durable=True)

    def _is_begun(self) -> bool:
        """Return whether there is something that could be mixed: a result, findings, or somebody who is at work."""
        if any((self.path / self.results_folder).glob("*.json")) or (self.path / "findings.json").exists():
            return True
        try:
            with self.locked():
                return False
        except UsageError:
            return True

    def store_findings(self, findings: Findings) -> None:
        """Write the findings and the numbers behind the figures."""
        with self.translate_write_errors():
            (self.path / "data").mkdir(exist_ok=True)
            for name, frame in findings.frames.items():
                with atomic_write(self.path / "data" / f"{name}.parquet", whole=True) as part, disk_errors():
                    frame.write_parquet(part)
            with atomic_write(self.path / "findings.json", durable=True) as part:
                part.write_text(findings.to_json(), encoding="utf-8")

    def translate_write_errors(self) -> AbstractContextManager[None]:
        return translate_study_write_errors(self.path)


@contextlib.contextmanager
def translate_study_write_errors(path: Path) -> Iterator[None]:
    """A disk that takes nothing, as a refusal that says how to go on."""
    try:
        yield
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write the study in '{path}': {error.strerror or error}",
            "make room or choose another folder with --out DIR; the same command goes on where it stopped",
        ) from error


def _read_head(file: Path, newest: int, none: str) -> dict[str, Any]:
    """Return the request or plan of a folder; RunDamaged where it is none, SchemaTooNew where a later version's."""
    try:
        content = _parse_json_cleaned(check_and_strip_checksum(read_regular(file, _MOST_BYTES))[0])
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise RunDamaged(f"'{file}' cannot be read: {error}", "choose another folder: --out DIR") from error
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise RunDamaged(f"'{file}' {none}", "choose another folder: --out DIR")
    if content["schema"] > newest:
        text = f"'{file.parent}' has schema {content['schema']}; this Stepscope reads up to {newest}"
        raise SchemaTooNew(text, "update stepscope")
    return content


def _refuse_other_request(path: Path, stored: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    if stored.get("study") != request["study"]:
        text = f"'{path}' holds the study '{stored.get('study')}', not '{request['study']}'"
        raise UsageError(text, "choose another folder: --out DIR")
    before, now = redacted_texts(stored.get("settings", {})), request["settings"]  # an earlier version wrote them
    other = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if other:
        lines = "\n".join(f"  {name}: {before.get(name)} -> {now.get(name)}" for name in other)
        text = f"the study in '{path}' was begun with other settings:\n{lines}"
        raise UsageError(text, "give the same options to go on with it, or another folder: --out DIR")


def _refuse_other_sources(path: Path, before: Any, now: Mapping[str, str] | None) -> None:
    """Raise UsageError for another training than the folder's own; an earlier version wrote down none."""
    if now is None or not isinstance(before, dict):
        return
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if names:
        lines = "\n".join(
            f"  {name}: {_short_value(before.get(name))} -> {_short_value(now.get(name))}" for name in names
        )
        raise UsageError(
            f"the training has changed since '{path}' began, so its results could not be mixed:\n{lines}",
            "bring back what it began with, or give another folder: --out DIR",
        )


def refuse_other_device(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError for another device, data or versions; an earlier version of Stepscope wrote down none."""
    lines = [
        f"  {name}: {_short_value(was)} -> {_short_value(is_)}" for name, was, is_ in fact_differences(before, now)
    ]
    if lines:
        raise UsageError(
            f"'{path}' began on another device, with other data or other versions, so its results could not be mixed:\n"
            + "\n".join(lines),
            "go on there with what it began with, or give another folder: --out DIR",
        )


def fact_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs of the facts that both state: its name, and how it was and is."""
    for name, value in now.items():
        previous = before.get(name)
        if isinstance(value, Mapping) and isinstance(previous, Mapping):
            yield from fact_differences(previous, value)
        elif previous is not None and previous != value:
            yield name, previous, value


class SweepFolder(ResultFolder):
    """The folder of one sweep."""

    noun, results_folder = "sweep", "points"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        file = path / _PLAN_FILE
        try:
            self.plan = _check_plan(_read_head(file, SWEEP_SCHEMA, "is not the plan of a sweep"), file)
        except FileNotFoundError:
            hint = "give the folder of a sweep, see: stepscope suite list"
            raise RunNotFound(f"no sweep in '{path}'", hint) from None

    @classmethod
    def create(cls, path: Path, plan: dict[str, Any], entries: Sequence[WorkloadEntry]) -> SweepFolder:
        """Begin a sweep; refused where there is one already."""
        if (path / _PLAN_FILE).exists():
            raise UsageError(
                f"'{path}' holds a sweep already", f"go on with it: stepscope suite run --resume --out {path}"
            )
        definitions = {
            entry.name: {"definition": dict(entry.definition), "about": dict(entry.about), "source": f"{index}.py"}
            for index, entry in enumerate(entries)
        }
        text, hint = f"the disk of '{path}' is full: no sweep was begun", "make room, or give another --out"
        with translate_sweep_write_errors(path, lambda _: OutputNotWritable(text, hint)):
            for name in ("points", "runs", "sources"):
                (path / name).mkdir(parents=True, exist_ok=True)
            for index, entry in enumerate(entries):
                (path / "sources" / f"{index}.py").write_text(entry.source, encoding="utf-8")
            stated = {"schema": SWEEP_SCHEMA, **plan, "workloads": definitions}
            replace_json(path / _PLAN_FILE, {**stated, "seal": _seal(stated)}, durable=True)
        return cls(path)

    @property
    def order(self) -> list[SweepPoint]:
        return [SweepPoint(**point) for point in self.plan["order"]]

    def result(self, name: str) -> dict[str, Any] | None:
        """Return the result of a point; null where it has not ended, or where what its file holds is none of it."""
        stated = super().result(name)
        if stated is None:
            return None
        content, _ = parse(json.dumps(stated).encode(), Fields(dict(_RESULT), ("status",)))
        point = (content or {}).get("point")
        if content is None or ("point" in stated and (point is None or SweepPoint(**{**_UNSET, **point}).id != name)):
            return None
        loss = stated.get("last_loss")  # which may be no number, and is a result then
        last_loss = {"last_loss": loss} if isinstance(loss, float) else {}
        return {
            name: value for name, value in content.items() if value is not None or name not in _NEVER_NULL
        } | last_loss

    def run_folder(self, point: SweepPoint) -> Path:
        """Return the folder that the child of this run writes to."""
        return self.path / "runs" / point.id

    def refuse_programs_of_others(self, named: Collection[str] = ()) -> None:
        """UsageError where going on would run programs of somebody else's: the plan names them, and is not ours."""
        others = [name for name in _user_program_names(self.plan) if name not in named]
        if others and (self.plan.get("seal") is None or self.plan["seal"] != _seal(self.plan)):
            text = f"the sweep in '{self.path}', which somebody else may have made, would run {', '.join(others[:3])}"
            command = shlex.join(["stepscope", "suite", "run", *others, "--resume", "--out", str(self.path)])
            raise UsageError(text, f"name what you trust: {command}")

    def refuse_changes(self, entries: Sequence[WorkloadEntry]) -> None:
        """UsageError with the difference where a workload is no longer the one that this sweep began with."""
        now = {entry.name: entry for entry in entries}
        parts = []
        for name, stored in self.plan["workloads"].items():
            if name not in now:
                parts.append(f"{name}: no longer among the workloads")
            elif json.loads(json.dumps(dict(now[name].definition))) != stored["definition"]:
                parts += self._difference(name, stored, now[name])
        if parts:
            lines = "\n".join(parts)
            raise UsageError(
                f"a workload has changed since '{self.path}' began, so its results could not be compared:\n{lines}",
                "bring back the version that it began with, or begin a new sweep with another --out",
            )

    def translate_write_errors(self) -> AbstractContextManager[None]:
        return translate_sweep_write_errors(self.path)

    def _difference(self, name: str, stored: dict[str, Any], entry: WorkloadEntry) -> Iterator[str]:
        before, after = stored["definition"], dict(entry.definition)
        for key in sorted({*before, *after}):
            if before.get(key) != json.loads(json.dumps(after.get(key))):
                yield f"{name}: {key}: {_short_value(before.get(key))} -> {_short_value(after.get(key))}"
        try:
            old = read_regular(self.path / "sources" / stored["source"], _MOST_BYTES).decode("utf-8", errors="replace")
        except OSError:
            old = ""
        lines = difflib.unified_diff(old.splitlines(), entry.source.splitlines(), "then", "now", lineterm="", n=0)
        yield from (f"  {line}" for line, _ in zip(lines, range(_MOST_LINES), strict=False))


def _user_program_names(plan: Mapping[str, Any]) -> list[str]:
    names = {*plan["workloads"], *(point["workload"] for point in plan["order"])}
    return sorted(
        name for name in names if not _WORKLOAD.fullmatch(name) or name.endswith(".py") or Path(name).is_file()
    )


def _seal(plan: Mapping[str, Any]) -> str | None:
    """Return the seal of this user for the programs of a plan; None where there are none, or no key."""
    programs = _user_program_names(plan)
    return user_seal("sweep", json.dumps(programs).encode()) if programs else None


def disk_full_error(path: Path) -> OutputNotWritable:
    """The refusal with which a sweep stops in its midst; what has ended stays."""
    return OutputNotWritable(
        f"the disk of '{path}' is full: the sweep has stopped, and every run that has ended is kept",
        f"make room, then: stepscope suite run --resume --out {path}",
    )


@contextlib.contextmanager
def translate_sweep_write_errors(
    path: Path, full: Callable[[Path], OutputNotWritable] = disk_full_error
) -> Iterator[None]:
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


_MOST_BYTES = 64_000_000  # of a file with results
_AXIS = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")  # it is part of the name of a folder
_WORKLOAD = re.compile(r"[A-Za-z0-9_.-]+")
_RULES = {
    **dict.fromkeys(("steps", "seconds", "interval", "cool_to_celsius", "memory_bytes", "tune_s")),
    **{"pause_s": 0.0, "time_limit_s": 900.0, "seed": 0},
}
_POINT = {
    **dict.fromkeys(("workload", "optimizer", "precision", "device"), str),
    "batch": IntegerRange(1, 1 << 40), "threads": IntegerRange(1, 4096), "repeat": IntegerRange(0, 1_000_000),
}  # fmt: skip
_WHOLE_POINT = Fields(_POINT, ("workload", "optimizer", "precision", "device", "repeat"))
_UNSET = {"batch": None, "threads": None}
_NEVER_NULL = {"numbers", "tune", "flags", "cooled", "versions"}
_NEEDED = ("order", "rules", "workloads")
_PLAN = {
    "order": [_WHOLE_POINT],
    "rules": dict.fromkeys(_RULES, float) | {"seed": int, "steps": int, "memory_bytes": int},
    "workloads": {...: Fields({"definition": {}, "about": {}, "source": FileName}, ("definition", "about", "source"))},
    **dict.fromkeys(("name", "created", "tier"), str), "argv": [str], "versions": {...: str},
    "device": {}, "limits": {},
}  # fmt: skip
_RESULT = {
    "point": _WHOLE_POINT, **dict.fromkeys(("status", "reason", "run"), str), "flags": [str],
    **dict.fromkeys(("wall_s", "total_s", "train_s", "flops_forward", "flops_backward"), float),
    **dict.fromkeys(("ended_unix_ms", "parameters", "steps", "warmup_steps"), int), "threads": IntegerRange(1, 4096),
    "input_shape": [int], "versions": {...: str}, "numbers": {...: {...: float}}, "data": {},
    "at_start": {}, "at_end": {},
    "tune": Fields({
        "changes": [str], "code": {...: str}, **dict.fromkeys(("checked", "answer", "failed"), str), "wall_s": float,
        **dict.fromkeys(("as_is_ms", "step_ms", "gain_percent", "gain_percent_low", "gain_percent_high"), float),
    }, ()),
    "cooled": Fields({"waited_s": float, "from_celsius": float, "to_celsius": float, "reached": bool}, ("reached",)),
}  # fmt: skip


def _parse_json_cleaned(text: bytes) -> Any:
    try:
        return _clean_texts(json.loads(text.decode("utf-8", errors="replace")))
    except RecursionError:
        raise ValueError("objects within objects without end") from None


def _clean_texts(content: Any) -> Any:
    """Return it without what charts and terminals cannot bear; numbers stay, also those that are none."""
    if isinstance(content, str):
        return clean_text(content)
    if isinstance(content, dict):
        return {clean_text(key): _clean_texts(value) for key, value in content.items()}
    return [_clean_texts(value) for value in content] if isinstance(content, list) else content


def _object(path: Path) -> dict[str, Any]:
    """Return the object of a result's file; an empty one where it cannot be read, or is not as it was written."""
    try:
        text, differs = check_and_strip_checksum(read_regular(path, _MOST_BYTES))
        content = _parse_json_cleaned(text)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and differs != CHANGED else {}


def _check_plan(plan: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a plan; RunDamaged where a part is none, or the name of a run would be that of another folder."""
    stated = {name: plan[name] for name in _PLAN if name in plan}
    content, dropped = parse(json.dumps(stated).encode(), Fields(dict(_PLAN), _NEEDED))
    if dropped:
        raise RunDamaged(f"'{path}' is not the plan of a sweep: {dropped[0] or 'a part of it is missing'}")
    for number, point in enumerate(content["order"]):
        for axis in ("optimizer", "precision", "device"):
            if _AXIS.fullmatch(point[axis]) is None:
                raise RunDamaged(f"'{path}' is not the plan of a sweep: order[{number}].{axis}")
    content["order"] = [{**_UNSET, **point} for point in content["order"]]
    content["rules"] = {name: content["rules"].get(name, default) for name, default in _RULES.items()}
    for name in ("versions", "device"):
        content[name] = content.get(name) or {}
    content["limits"] = {"memory": None, **(content.get("limits") or {})}
    return {**dict.fromkeys(("name", "created", "tier")), **plan, **content}


def _short_value(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
