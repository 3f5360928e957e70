"""Entries of folders in which a script that is followed has written, as os.scandir gives them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ScriptDirEntry:
    """A file or folder of the script's, like an os.DirEntry; os.stat knows where it lies."""

    name: str
    path: str

    def __fspath__(self) -> str:
        """Return its path."""
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a folder."""
        return Path(self.path).is_dir() and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a file."""
        return Path(self.path).is_file() and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        """Return whether it is a link."""
        return Path(self.path).is_symlink()

    def is_junction(self) -> bool:
        """Return whether it is a junction of Windows: none is."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its size, times and mode."""
        return Path(self.path).stat(follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Return its number in the file system."""
        return self.stat().st_ino


class ScandirIterator(Iterator[Any]):
    """Entries of a folder, one by one; `with` may hold them, as it may hold what os.scandir returns."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._rest = iter(entries)

    def __next__(self) -> Any:
        """Return the next one."""
        return next(self._rest)

    def __enter__(self) -> ScandirIterator:
        """Return it: nothing is opened."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close nothing."""

    def close(self) -> None:
        """Close nothing: nothing is open."""
