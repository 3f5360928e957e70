"""Small files of sysfs and proc as a whole, and the one line of an attribute that names something."""

from __future__ import annotations

import os
from pathlib import Path

# Opening a pipe that stands where a file should be would else wait for its writer, and hold up all sampling.
READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_BYTES = 1 << 20


def content(path: Path) -> bytes:
    """All that a small file holds, without waiting for more; raises OSError."""
    file = os.open(path, READ_ONLY)
    try:
        parts = [os.read(file, _MOST_BYTES)]
        while parts[-1] and sum(map(len, parts)) < _MOST_BYTES:
            parts.append(os.read(file, _MOST_BYTES))
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(file)
    return b"".join(parts)


def attribute(path: Path) -> str:
    """The line, bytes that are no text shown as such; empty where the file is not there or does not answer."""
    try:
        return content(path).decode(errors="backslashreplace").strip()
    except OSError:
        return ""
