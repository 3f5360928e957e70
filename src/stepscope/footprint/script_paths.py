"""Names of files as a script that is followed sees them: of its own beside the user's, and without those it removed.

They are absolute. Errors are those of the system: a file that is gone, a folder that is none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_DIGITS = re.compile(r"\d+")
_MORE = 1_000_000  # B by which a file is larger that are worth a word
_MOST_LINKS = 40  # one after the other, as in Linux
_PLAIN = (
    "access", "chdir", "getcwd", "listdir", "lstat", "mkdir", "open", "readlink", "remove", "rename", "rmdir",
    "scandir", "stat", "symlink", "truncate", "mkfifo",
)  # fmt: skip


class ScriptPaths:
    """Files and folders by their names, each of the script's, of the user's, or gone."""

    def __init__(self, folder: Path) -> None:
        self.trusted = 0  # calls under way that are known to write none of the user's files
        self._folder = str(folder)  # what the script writes lies here
        self._plain = {name: getattr(os, name) for name in _PLAIN if hasattr(os, name)}
        self._own: dict[str, str] = {}  # where a file of the script's lies; of a copy it may be a file of the user's
        self._folders: set[str] = set()
        self._links: dict[str, str] = {}  # what they say
        self._removed: set[str] = set()  # files and folders of the user's that the script has moved or removed
        self._temporary: set[str] = set()  # real files and folders of tempfile, which removes most of them itself
        self._numbered: dict[int, str] = {}  # by descriptor: where what os.open has opened lies
        self._opened_as: dict[int, str] = {}  # and the name by which it was opened
        self._read: dict[tuple[str, str], set[str]] = {}  # names by their folder, and by what they are without numbers
        self._here = ""  # a folder of the script's that it has gone to

    def is_write_allowed(self, path: Any, dir_fd: int | None = None) -> bool:
        """Return whether a file that is written to below all this is none of the user's."""
        if self.trusted or not isinstance(path, (str, bytes)):
            return True
        name = self._path(path, None if dir_fd == -1 else dir_fd)
        return (
            self._belongs_to_script(name) or name.startswith("/dev/") or "__pycache__" in name or name.endswith(".pyc")
        )

    def _note_read(self, path: str) -> None:
        folder, name = os.path.split(path)
        self._read.setdefault((folder, _DIGITS.sub("#", name)), set()).add(name)

    def larger_unread_files(self) -> Iterator[str]:
        """Yield the largest of files whose names differ by numbers alone, where two others were read and it was not."""
        for (folder, pattern), names in self._read.items():
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                alike = (
                    [entry for entry in entries if _DIGITS.sub("#", entry.name) == pattern] if len(names) > 1 else []
                )
                sizes = {entry.name: entry.stat().st_size for entry in alike}
                largest = max(sizes, key=lambda name: sizes[name], default=pattern)
                if sizes.get(largest, 0) > max(sizes.get(name, 0) for name in names) + _MORE:
                    yield largest

    def has_written(self, path: str) -> bool:
        """Return whether a file is the script's own."""
        return self._resolve_links(self._path(path)) in self._own

    def wrap_stat(self, plain: Callable[..., Any], follow: bool = True) -> Callable[..., Any]:
        """Return a call like os.stat (or os.lstat) that knows the script's files."""

        def call(path: Any, *more: Any, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
            if isinstance(path, int) or path in ("", b""):
                return plain(path, *more)
            followed = follow and follow_symlinks
            name = self._path(path, dir_fd)
            target = None if followed else self._links.get(self._followed_to_the_last(name))
            if target is not None:
                return self._plain["lstat"](self._make_stand_in_link(target))
            place = self._readable_path(
                self._resolve_links(name) if followed else self._followed_to_the_last(name), path
            )
            place = self._script_name(place, name, path)
            return plain(place, *more) if followed or not follow else plain(place, *more, follow_symlinks=False)

        return call

    def accessible(self, path: Any, mode: int, *, dir_fd: int | None = None, **options: Any) -> bool:
        """Return whether a file may be used so, as os.access does; all may that are the script's own."""
        name = self._resolve_links(self._path(path, dir_fd))
        if name not in self._own and name not in self._folders and self._is_hidden(name):
            return False
        return bool(self._plain["access"](self._readable_path(name, path), mode, **options))

    def read_link(self, path: Any, *, dir_fd: int | None = None) -> Any:
        """Return what a link says, as os.readlink does."""
        name = self._path_of_link_itself(path, dir_fd)
        text = self._links.get(name)
        if text is None:
            return self._plain["readlink"](self._script_name(self._readable_path(name, path), name, path))
        return os.fsencode(text) if isinstance(path, bytes) else text

    def change_folder(self, path: Any) -> None:
        """Go to a folder, as os.chdir does."""
        name = "" if isinstance(path, int) else self._resolve_links(self._path(path))
        if name in self._folders:
            self._here = name
            return
        self._plain["chdir"](self._readable_path(name, path) if name else path)
        self._here = ""

    def current_folder(self) -> str:
        """Return the folder in which the script is, as os.getcwd does."""
        return self._here or str(self._plain["getcwd"]())

    def list_folder(self, path: Any = ".") -> list[Any]:
        """Return the names in a folder: those of the user's, and what the script has written there."""
        if isinstance(path, bytes):
            return [os.fsencode(name) for name in self.list_folder(os.fsdecode(path))]
        name = self._name_of_number(path) if isinstance(path, int) else self._resolve_links(self._path(path))
        own = self._own_names_in(name, path)
        if name in self._folders:
            return own
        real = self._plain["listdir"](self._script_name(name, name, path))
        return [*(inner for inner in real if self._is_of_user(name, inner, own)), *own]

    def scanned(self, path: Any = ".") -> Any:
        """Return what os.scandir says of a folder, with what the script has written there."""
        if isinstance(path, (int, bytes)):
            return self._plain["scandir"](path)
        name, folder = self._resolve_links(self._path(path)), os.fspath(path or ".")
        own = self._own_names_in(name, path)
        ours = [ScriptDirEntry(inner, str(Path(folder, inner))) for inner in own]
        if name in self._folders:
            return ScandirIterator(ours)
        with self._plain["scandir"](self._script_name(name, name, folder)) as entries:
            theirs = [entry for entry in entries if self._is_of_user(name, entry.name, own)]
        return ScandirIterator([*theirs, *ours])

    def _is_of_user(self, folder: str, name: str, own: list[str]) -> bool:
        return name not in own and str(Path(folder, name)) not in self._removed

    def _own_names_in(self, path: str, argument: Any) -> list[str]:
        """Return the names of the script's files and folders in a folder; an error where it is none."""
        if path in self._own:
            raise_os_error(errno.ENOTDIR, argument)
        if path not in self._folders and self._is_hidden(path):
            raise_os_error(errno.ENOENT, argument)
        names = (*self._own, *sorted(self._folders), *self._links)
        return list(dict.fromkeys(Path(name).name for name in names if str(Path(name).parent) == path != name))

    def _script_name(self, place: str, path: str, argument: Any) -> Any:
        """Return a place by the name that the script has for it, which errors tell, where it stands for the same."""
        same = place == path and not self._here and not isinstance(argument, int)
        return argument if same and self._path(argument) == path else place

    def _readable_path(self, path: str, argument: Any) -> str:
        """Return where a file or folder can be read; FileNotFoundError where the script has removed it."""
        if path in self._own:
            return self._own[path]
        if path in self._folders:
            return self._folder
        if self._is_hidden(path):
            raise_os_error(errno.ENOENT, argument)
        return path

    def _is_hidden(self, path: str) -> bool:
        """Return whether a file of the user's by this name would not be seen."""
        return bool(self._removed) and any(str(name) in self._removed for name in (path, *Path(path).parents))

    def _exists_for_script(self, path: str) -> bool:
        if path in self._own or path in self._folders or path in self._links:
            return True
        return not self._is_hidden(path) and self._exists_on_disk(path)

    def _is_folder(self, path: str) -> bool:
        if path in self._folders or path in self._own:
            return path in self._folders
        path = self._resolve_links(path)
        if path in self._folders:
            return True
        with contextlib.suppress(OSError):
            return not self._is_hidden(path) and stat.S_ISDIR(self._plain["stat"](path).st_mode)
        return False

    def _exists_on_disk(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            self._plain["lstat"](path)
            return True
        return False

    def _resolve_links(self, path: str) -> str:
        """Return what a name stands for, by the links that the script has made."""
        for _ in range(_MOST_LINKS):
            link = next((link for link in self._links if is_within(path, link)), None)
            if link is None:
                return path
            path = os.path.normpath(f"{Path(link).parent / self._links[link]}{path[len(link) :]}")
        return raise_os_error(errno.ELOOP, path)

    def _path_of_link_itself(self, path: Any, dir_fd: int | None = None) -> str:
        """Return the name of a file itself, or of a link: what lies in a linked folder has a name of its own."""
        return self._followed_to_the_last(self._path(path, dir_fd))

    def _followed_to_the_last(self, path: str) -> str:
        return str(Path(self._resolve_links(str(Path(path).parent)), Path(path).name))

    def _make_stand_in_link(self, text: str) -> str:
        """Return where a link that says the same lies, for those who ask what it is like."""
        link = f"{self._folder}/link{len(text)}"
        with contextlib.suppress(FileExistsError), self._allow_own_writes():
            self._plain["symlink"]("." * len(text), link)
        return link

    def _belongs_to_script(self, place: str) -> bool:
        return str(Path(place).parent) == self._folder or self._is_temporary(place)

    def _is_temporary(self, path: str) -> bool:
        """Return whether a file is, or lies in, what tempfile has made, as sockets and what C code writes."""
        return any(is_within(path, folder) for folder in self._temporary)

    @contextlib.contextmanager
    def _allow_own_writes(self) -> Iterator[None]:
        self.trusted += 1
        try:
            yield
        finally:
            self.trusted -= 1

    def _path(self, path: Any, dir_fd: int | None = None) -> str:
        text = os.fsdecode("." if path is None else path)
        if not text:
            raise_os_error(errno.ENOENT, path)
        folder = self.current_folder() if dir_fd is None else self._name_of_number(dir_fd)
        return os.path.normpath(Path(folder, text))

    def _name_of_number(self, opened: int) -> str:
        """Return the name of what a descriptor stands for, which may have been closed and opened again."""
        lies = str(self._plain["readlink"](f"/proc/self/fd/{opened}"))
        return self._opened_as[opened] if self._numbered.get(opened) == lies else lies

    def _want_parent(self, path: str, *arguments: Any) -> None:
        """Raise the system's error where the folder of a name is not there, or is none."""
        parent = str(Path(path).parent)
        if not self._is_folder(parent):
            raise_os_error(errno.ENOTDIR if self._exists_for_script(parent) else errno.ENOENT, *arguments)


def is_within(path: str, folder: str) -> bool:
    """Return whether a name is that of a folder, or below it."""
    return path == folder or path.startswith(f"{folder}/")


def raise_os_error(number: int, path: Any, other: Any = None) -> NoReturn:
    """Raise the system's error of a file."""
    raise OSError(number, os.strerror(number), path, None, other)


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


class ScandirIterator(contextlib.AbstractContextManager["ScandirIterator"], Iterator[Any]):
    """Entries of a folder, one by one; `with` may hold them, as it may hold what os.scandir returns."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._rest = iter(entries)

    def __next__(self) -> Any:
        """Return the next one."""
        return next(self._rest)

    def close(self, *_error: object) -> None:
        """Close nothing: nothing is open."""

    __exit__ = close
