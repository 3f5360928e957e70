"""The JSON files of a run folder, read again when they have been replaced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class JsonFile:
    """One JSON file: its object, empty where there is none; `changed` tells whether the last `look` read it anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self.content: dict[str, Any] = {}

    def look(self) -> bool:
        """Read it if it has been replaced; True where the content is new."""
        try:
            state = self._path.stat()
            if (state.st_mtime_ns, state.st_ino) == self._seen:
                return False
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        self._seen = (state.st_mtime_ns, state.st_ino)
        self.content = content if isinstance(content, dict) else {}
        return True


def status_of(header: dict[str, Any]) -> str:
    """running, ok, failed, oom or interrupted; a running run whose trainer is gone is "interrupted"."""
    status = str(header.get("status", "interrupted"))
    return "interrupted" if status == "running" and not alive(header.get("pid")) else status


def alive(pid: object) -> bool:
    """Whether there is such a process; True where that is not known yet (no pid so far)."""
    if not isinstance(pid, int):
        return pid is None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def planned_steps(header: dict[str, Any]) -> int | None:
    """How many steps the run is going to have; None where nobody knows, as of a script."""
    workload = header.get("workload")
    stated = header.get("planned_steps") or (workload.get("steps") if isinstance(workload, dict) else None)
    if isinstance(stated, int):
        return stated
    argv = [str(word) for word in header.get("argv") or []]
    if "--" in argv:
        argv = argv[: argv.index("--")]
    for at, word in enumerate(argv):
        name, _, value = word.partition("=")
        text = value or (argv[at + 1] if at + 1 < len(argv) else "")
        if name == "--steps" and text.isdigit():
            return int(text)
    return None
