"""Omission by choice, from runs, stores and exports: the command line, and names of the host and its user.

An option of a command sets the environment, so that each process that records or reads for it does the same. The
writer leaves out what it is told of, the reader what an earlier run states.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

VARIABLE = "STEPSCOPE_PRIVATE"  # "argv", "names" or both with a comma; "1": both, and a folder that is closed to others
WITHHELD = "[withheld]"
_FIELDS = {"argv": ("argv", "script"), "names": ("cwd", "host")}  # of run.json and sweep.json
_HOMES = re.compile(r"(?:/var)?/(?:home|Users)/[^/\s'\":,;)\]]+|(?<![\w.~-])/root(?![\w.-])")
_NO_NAMES = {"localhost", "linux", "ubuntu", "debian", "fedora", "raspberrypi", "jetson", "nvidia", "tegra", "root"}


def withheld() -> frozenset[str]:
    """Return what is omitted: "argv", "names", both or nothing."""
    chosen = os.environ.get(VARIABLE, "")
    return frozenset(_FIELDS) if chosen == "1" else frozenset(chosen.split(",")) & frozenset(_FIELDS)


def is_closed() -> bool:
    """Return whether others may not enter a run folder."""
    return os.environ.get(VARIABLE) == "1"


def withhold(*kinds: str) -> None:
    """Leave these out too, in this process and in those that it starts."""
    if not is_closed() and kinds:
        os.environ[VARIABLE] = ",".join(sorted(withheld() | set(kinds)))


def cleaned_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a header without those that are omitted, and without names in the texts of the others."""
    kinds = withheld()
    excluded = {field for kind in kinds for field in _FIELDS[kind]}
    kept = {field: value for field, value in fields.items() if field not in excluded}
    return cleaned(kept, str(fields.get("host") or "")) if kinds else kept


def cleaned(content: Any, host: str = "") -> Any:
    """Return what JSON holds without home folders and names of host and user in its texts, where they are omitted."""
    return _cleaned(content, _names(host)) if "names" in withheld() else content


def _cleaned(content: Any, names: re.Pattern[str]) -> Any:
    if isinstance(content, str):
        return names.sub(WITHHELD, _HOMES.sub("~", content))
    if isinstance(content, Mapping):
        return {_cleaned(key, names): _cleaned(value, names) for key, value in content.items()}
    return [_cleaned(value, names) for value in content] if isinstance(content, list | tuple) else content


def _names(host: str) -> re.Pattern[str]:
    """Return the pattern of host names as whole words, and of the user's name and home as parts of a path."""
    hosts = {name for name in (host, socket.gethostname()) if len(name) > 2 and name.lower() not in _NO_NAMES}
    words = [rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in sorted(hosts)]
    home = os.environ.get("HOME", "").rstrip("/")
    if len(home) > 1 and _HOMES.sub("~", home) == home:  # a home in an unusual place
        words.append(rf"{re.escape(home)}(?=/|$)")
    if (user := _user()) and user not in _NO_NAMES:
        words.append(rf"(?<=/){re.escape(user)}(?=/|$)")
    return re.compile("|".join(words) or r"(?!)")


def _user() -> str:
    with contextlib.suppress(ImportError, KeyError, OSError):
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    return os.environ.get("USER", "")
