"""The one line of a sysfs attribute that names something: name, type, label."""

from __future__ import annotations

from pathlib import Path


def attribute(path: Path) -> str:
    """The line, bytes that are no text shown as such; empty where the file is not there or does not answer."""
    try:
        return path.read_bytes().decode(errors="backslashreplace").strip()
    except OSError:
        return ""
