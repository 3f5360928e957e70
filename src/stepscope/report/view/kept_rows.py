"""Rows of a list from one process to the next: in the user's own cache, for what lies in the folder is not trusted.

A row counts while run.json and summary.json are as they were; a file that cannot be read or written costs time alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.files import replaced

Rows = dict[str, tuple[tuple[int, ...], dict[str, Any]]]  # by the path below the folder: state of its files, facts
_FORMAT = 1
_LARGEST = 256_000_000  # bytes


def read(root: Path) -> Rows:
    """Return the rows that an earlier process kept of this folder; empty where there are none."""
    try:
        path = _path(root)
        if path.stat().st_size > _LARGEST:
            return {}
        content = json.loads(path.read_bytes())
        if content["made_by"] != [_FORMAT, __version__] or content["root"] != str(root):
            return {}
        return {key: (tuple(state), facts) for key, (state, facts) in content["rows"].items()}
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError):
        return {}


def write(root: Path, rows: Rows) -> None:
    """Keep the rows of this folder, readable by this user alone."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(root)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {"made_by": [_FORMAT, __version__], "root": str(root), "rows": rows}
        with replaced(path) as part:
            part.touch(mode=0o600)
            part.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")


def _path(root: Path) -> Path:
    """Below XDG_CACHE_HOME (freedesktop.org base directories), one file a folder; RuntimeError without a home."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = stated if stated.is_absolute() else Path.home() / ".cache"
    return cache / "stepscope" / "lists" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}.json"
