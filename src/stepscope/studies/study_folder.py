"""A study on disk: what was asked, and one file for each part that has been answered, each written as a whole.

study.json           which study, with which settings, begun when, on what
cells/<id>.json      one measured point of the study: there or not there, never in part
runs/                run folders of the study's own runs, where it makes any
findings.json        what was found, written at the end, with data/<figure>.parquet, figures/ and page.html
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stepscope.analysis.findings import Findings
from stepscope.errors import OutputNotWritable, RunDamaged, SchemaTooNew, UsageError
from stepscope.studies.suite.state import write_durably

SCHEMA = 1
_ASKED = "study.json"


class StudyFolder:
    """The folder of one study. Begun anew, or gone on with where the same was asked before."""

    def __init__(self, path: Path, study: str, settings: Mapping[str, Any]) -> None:
        """Begin, or go on: what has been answered is kept. UsageError where the folder holds another question."""
        self.path = path
        asked = {"schema": SCHEMA, "study": study, "settings": json.loads(json.dumps(dict(settings), default=str))}
        kept = _asked(path)
        if kept is None:
            with writing(path):
                for name in ("cells", "runs"):
                    (path / name).mkdir(parents=True, exist_ok=True)
                write_durably(path / _ASKED, {**asked, "began_unix_ms": time.time_ns() // 1_000_000})
        else:
            _refuse_another(path, kept, asked)

    def cell(self, name: str) -> dict[str, Any] | None:
        """What was found at a point; null where it has not been measured, or where its file is damaged."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.path / "cells" / f"{name}.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
        return None

    def keep(self, name: str, found: Mapping[str, Any]) -> None:
        """Write a point down; once this returns, no power loss takes it away."""
        with writing(self.path):
            write_durably(self.path / "cells" / f"{name}.json", dict(found))

    def answered(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The point as it was measured before, or measured now and kept."""
        found = self.cell(name)
        if found is None:
            found = dict(measure())
            self.keep(name, found)
        return found

    def conclude(self, findings: Findings) -> None:
        """Write the findings and the numbers behind the figures."""
        with writing(self.path):
            (self.path / "data").mkdir(exist_ok=True)
            for name, frame in findings.frames.items():
                frame.write_parquet(self.path / "data" / f"{name}.parquet")
            (self.path / "findings.json").write_text(findings.to_json(), encoding="utf-8")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works on this study meanwhile; the kernel lets go of the lock however this process ends."""
        with (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                hint = "wait for it to end, or choose another folder: --out DIR"
                raise UsageError(f"another process is at work on the study in '{self.path}'", hint) from None
            yield


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that takes nothing, as a refusal that says how to go on."""
    try:
        yield
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write the study in '{path}': {error.strerror or error}",
            "make room or choose another folder with --out DIR; the same command goes on where it stopped",
        ) from error


def _asked(path: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads((path / _ASKED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunDamaged(f"'{path / _ASKED}' cannot be read: {error}", "choose another folder: --out DIR") from error
    if not isinstance(kept, dict) or not isinstance(kept.get("schema"), int):
        raise RunDamaged(f"'{path / _ASKED}' does not say what was asked", "choose another folder: --out DIR")
    if kept["schema"] > SCHEMA:
        raise SchemaTooNew(f"'{path}' has schema {kept['schema']}; this Stepscope reads up to {SCHEMA}", "update it")
    return kept


def _refuse_another(path: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    if kept.get("study") != asked["study"]:
        said = f"'{path}' holds the study '{kept.get('study')}', not '{asked['study']}'"
        raise UsageError(said, "choose another folder: --out DIR")
    before, now = kept.get("settings", {}), asked["settings"]
    other = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if other:
        lines = "\n".join(f"  {name}: {before.get(name)} -> {now.get(name)}" for name in other)
        said = f"the study in '{path}' was begun with other settings:\n{lines}"
        raise UsageError(said, "give the same options to go on with it, or another folder: --out DIR")
