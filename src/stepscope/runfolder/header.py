"""The header of a run, run.json: found, checked and brought to the present schema."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from stepscope.errors import RunDamaged, RunNotFound, SchemaTooNew
from stepscope.privacy import cleaned_fields
from stepscope.runfolder import validation
from stepscope.runfolder.schema import SCHEMA
from stepscope.secrets import redacted

_MOST_PLACES = 5  # of one file that a report names


def places(name: str, dropped: list[str]) -> list[str]:
    """The file with the places in it where something was dropped, the first few of them."""
    more = [f"{name}: {len(dropped) - _MOST_PLACES:,} more"] if len(dropped) > _MOST_PLACES else []
    return [f"{name}: {where}" for where in dropped[:_MOST_PLACES]] + more


def _near(path: Path) -> str:
    """Return the run that was meant: 'last', or one of a like name in the same folder or in runs/."""
    folders = {header.parent for parent in (path.parent, path.parent / "runs") for header in parent.glob("*/run.json")}
    names = ["last", *sorted((folder.name for folder in folders), reverse=True)]
    near = difflib.get_close_matches(path.name, names, n=1) or [name for name in names if path.name in name][:1]
    return f"did you mean {near[0]}?" if near else "list the folder that you gave to --out (default: runs/)"


def _inside(path: Path) -> str:
    """Return the newest run in a folder of runs, or what a run's folder is called."""
    newest = max((header.parent for header in path.glob("*/run.json")), default=None)
    called = "runs/<stamp>-<name>-<id>" if newest is None else f"the newest here is {newest}"
    return f"give the folder of one run, {called}"


def read_header(path: Path, damaged: list[str]) -> dict[str, Any]:
    if path.is_file():
        raise RunNotFound(f"'{path}' is a file, not a run folder", "stepscope import makes a run of a profiler's file")
    if not path.is_dir():
        raise RunNotFound(f"no run folder at '{path}'", _near(path))
    try:
        content = validation.read_regular(path / "run.json", validation.MOST_BYTES)
        header, dropped = validation.parse(content, validation.RUN)
    except FileNotFoundError:
        raise RunNotFound(f"'{path}' holds no run.json", _inside(path)) from None
    except (OSError, ValueError) as error:
        raise RunDamaged(f"'{path / 'run.json'}' cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise RunDamaged(f"'{path / 'run.json'}' does not hold an object")
    damaged += sorted(places("run.json", dropped))
    return _migrated(header, path)


def _migrated(header: dict[str, Any], path: Path) -> dict[str, Any]:
    """The header as the present schema has it; a newer schema is refused."""
    schema = header.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise RunDamaged(f"'{path / 'run.json'}' states no schema")
    if schema > SCHEMA:
        raise SchemaTooNew(
            f"'{path}' has schema {schema}; this Stepscope reads up to {SCHEMA}", "pip install --upgrade stepscope"
        )
    if header.get("argv"):
        header["argv"] = redacted(header["argv"])  # an earlier version wrote what was typed
    return cleaned_fields(header)
