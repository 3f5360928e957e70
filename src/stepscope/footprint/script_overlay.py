"""The files of a script that is followed, as the script sees them: none of the user's is written, moved or removed.

What it writes lies in a folder that is thrown away and is read from there; what it moves or removes stays where it is
and is not seen any more. Errors are those of the system: a parent folder that is missing, a file that is there already.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stepscope.footprint.script_paths import ScriptPaths, is_within, raise_os_error
from stepscope.footprint.script_progress import Progress

MOST_COPIED = 256 << 20  # B of a file that is written to where it is
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = getattr(os, "O_TMPFILE", 0)


class Overlay(ScriptPaths):
    """Calls that open, move, copy and remove files, as those of Python do."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        super().__init__(folder)
        self.saved: dict[str, Callable[[], Any]] = {}  # by place: how to get what was saved there
        self.saved_in = weakref.WeakKeyDictionary[io.BytesIO, Callable[[], Any]]()
        self._progress, self._open = progress, open
        self._file_count = 0
        self._began_in = self._plain["getcwd"]()

    def close(self) -> None:
        """Remove what is left of the files of tempfile, and go back to where the script began."""
        for path in self._temporary:
            with contextlib.suppress(OSError):
                self._really_remove(path)
        with contextlib.suppress(OSError):
            self._plain["chdir"](self._began_in)

    def open(self, file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        """Open a file as builtins.open does."""
        if isinstance(file, int):
            return self._open(file, mode, *more, **options)
        if options.get("opener") is not None or len(more) > 5:  # it opens by os.open
            with self._allow_own_writes():
                return self._open(file, mode, *more, **options)
        place = self.writable_path(file, mode)
        if self._too_large(place, mode):
            mode = "rb" if "b" in mode else "r"
        place = self._script_name(place, self._resolve_links(self._path(file)), file)
        return self._open(place, mode.replace("x", "w"), *more, **options)

    def open_descriptor(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file as os.open does."""
        name = self._path(path, dir_fd)
        if _UNNAMED and flags & _UNNAMED == _UNNAMED:
            with self._allow_own_writes():
                return int(self._plain["open"](self._readable_path(name, path), flags, mode))
        if flags & WRITES and sys._getframe(1).f_globals.get("__name__") == "tempfile":
            with contextlib.suppress(FileNotFoundError), self._allow_own_writes():  # in a folder of the script's
                opened = int(self._plain["open"](name, flags, mode))
                self._numbered[opened] = self._opened_as[opened] = name
                self._temporary.add(name)
                return opened
        text_mode = self._mode_of(name, flags)
        place = self.writable_path(path if dir_fd is None else name, text_mode)
        if text_mode != "r":
            flags = os.O_RDONLY if self._too_large(place, text_mode) else flags | os.O_CREAT
        opened = int(self._plain["open"](self._script_name(place, name, path), flags, mode))
        self._numbered[opened], self._opened_as[opened] = place, name
        return opened

    def _mode_of(self, name: str, flags: int) -> str:
        """Return the mode of builtins.open that comes nearest to flags."""
        if not flags & WRITES or (self._is_folder(self._resolve_links(name)) and not flags & os.O_ACCMODE):
            return "r"
        if flags & os.O_CREAT and flags & os.O_EXCL:
            return "x"
        if flags & os.O_CREAT and not self._exists_for_script(self._resolve_links(name)):
            return "w"
        return "w" if flags & os.O_TRUNC else "r+"

    def name_of(self, opened: Any) -> str:
        """Return where an open file lies."""
        name: Any = getattr(opened, "name", "")
        return self._numbered.get(name, str(name))

    def writable_path(self, file: Any, mode: str = "r") -> str:
        """Return where a file of that name lies, from now on in the folder if it is written to."""
        path = self._resolve_links(self._path(file))
        if not set(mode) & set("wax+") or (path.startswith("/dev/") and not path.startswith("/dev/shm/")):
            self._note_read(path)
            return self._readable_path(path, file)
        there, anew = self._exists_for_script(path), bool(set(mode) & set("wx"))
        if self._is_folder(path):
            raise_os_error(errno.EISDIR, file)
        if "x" in mode and there:
            raise_os_error(errno.EEXIST, file)
        self._want_parent(path, file)
        if not there and "r" in mode:
            raise_os_error(errno.ENOENT, file)
        before = self._own.get(path, path)
        if self._belongs_to_script(before) and list(self._own.values()).count(before) <= 1:
            if anew:
                self.saved.pop(before, None)
            return before
        if there and not anew and self._too_large(before, mode):
            return before
        place = self._new_path()
        if there and not anew:
            self._copy(before, place)
        self._own[path] = place
        return place

    def _new_path(self) -> str:
        self._file_count += 1
        return f"{self._folder}/{self._file_count}"

    def _too_large(self, place: str, mode: str) -> bool:
        """Return whether a file of the user's that would be written to is too large to be copied."""
        if not set(mode) & set("a+") or "w" in mode or not place.startswith("/") or self._belongs_to_script(place):
            return False
        with contextlib.suppress(OSError):
            status = self._plain["stat"](place)
            if stat.S_ISREG(status.st_mode) and status.st_size > MOST_COPIED:
                self._progress.note_missed(f"what is written to {Path(place).name}, which is too large to be copied")
                return True
        return False

    def redirect_file_argument(
        self, plain: Callable[..., Any], at: int, mode: str | None = None, name: str = ""
    ) -> Callable[..., Any]:
        """Return a call whose file, its argument `at` or of a name, lies in the folder.

        Without `mode` the next argument says it.
        """

        def call(*arguments: Any, **options: Any) -> Any:
            file = arguments[at] if len(arguments) > at else options.get(name)
            if isinstance(file, (str, bytes, os.PathLike)):
                way = str(mode or (arguments[at + 1] if len(arguments) > at + 1 else options.get("mode", "r")))
                place = self.writable_path(file, way.replace("w-", "w"))
                if len(arguments) > at:
                    arguments = (*arguments[:at], place, *arguments[at + 1 :])
                else:
                    options[name] = place
            return plain(*arguments, **options)

        return call

    def wrap_memmap(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return a maker of arrays on files that writes to none of the user's: pages are copied as they are written."""

        def make_memmap(
            kind: Any, filename: Any, dtype: Any = "uint8", mode: str = "r+", *more: Any, **options: Any
        ) -> Any:
            if mode in ("r+", "readwrite") and isinstance(filename, (str, bytes, os.PathLike)):
                mode = mode if self._belongs_to_script(self.writable_path(filename, "r+")) else "c"
            return plain(kind, filename, dtype, mode, *more, **options)

        return make_memmap

    def set_file_size(self, place: str, size: int) -> None:
        """Give a file of the script's so many bytes, which take no room on the disk."""
        if self._belongs_to_script(place):
            with contextlib.suppress(OSError):
                self._plain["truncate"](place, size)

    def remove_file(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Remove a file, or a link, as os.remove does."""
        name = self._path_of_link_itself(path, dir_fd)
        if name not in self._links and self._is_folder(name):
            raise_os_error(errno.EISDIR, path)
        if not self._exists_for_script(name):
            raise_os_error(errno.ENOENT, path)
        self._hide(name)

    def remove_folder(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Remove an empty folder as os.rmdir does."""
        name = self._path_of_link_itself(path, dir_fd)
        if name in self._links:
            raise_os_error(errno.ENOTDIR, path)
        if self.list_folder(name):
            raise_os_error(errno.ENOTEMPTY, path)
        self._hide(name)

    def remove_tree(self, path: Any, ignore_errors: bool = False, *more: Any, **options: Any) -> None:
        """Remove a folder with all in it, as shutil.rmtree does."""
        name = self._path_of_link_itself(path, options.get("dir_fd"))
        try:
            if name in self._links or stat.S_ISLNK(os.lstat(name).st_mode):
                raise OSError("Cannot call rmtree on a symbolic link")
            content = self.list_folder(name)
        except OSError as error:
            plain, handler = [*more, options.get("onerror")][0], options.get("onexc")
            if handler is not None:
                handler(os.scandir, path, error)
            elif plain is not None:
                plain(os.scandir, path, sys.exc_info())
            elif not ignore_errors:
                raise
            return
        for part in [f"{name}/{part}" for part in content] if is_within(self.current_folder(), name) else [name]:
            self._hide(part)

    def move_path(self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        """Move a file or folder, as os.replace does."""
        source, target = self._path_of_link_itself(old, src_dir_fd), self._path_of_link_itself(new, dst_dir_fd)
        folder = source not in self._links and self._is_folder(source)
        if not self._exists_for_script(source):
            raise_os_error(errno.ENOENT, old, new)
        self._want_parent(target, old, new)
        if target not in self._links and self._is_folder(target):
            if not folder:
                raise_os_error(errno.EISDIR, old, new)
            if source != target and self.list_folder(target):
                raise_os_error(errno.ENOTEMPTY, old, new)
        elif folder and self._exists_for_script(target):
            raise_os_error(errno.ENOTDIR, old, new)
        if target.startswith(f"{source}/"):
            raise_os_error(errno.EINVAL, old, new)
        if self._is_temporary(source) and self._is_temporary(target):
            with self._allow_own_writes():
                self._plain["rename"](source, target)
            if source in self.saved:
                self.saved[target] = self.saved.pop(source)
        elif source != target:
            content = list(self._paths_below(source))
            self._hide(target)
            for name, place in content:
                self._map_path(target + name, place)
            self._hide(source)

    def _paths_below(self, path: str) -> Iterator[tuple[str, str | None]]:
        """Yield what is at a name and below it: the rest of its name, and where it lies; None for a folder."""
        if path in self._links:
            yield "", f"-> {self._links[path]}"
            return
        if not self._is_folder(path):
            yield "", self._own.get(path, path)
            return
        yield "", None
        for name in self.list_folder(path):
            for below, place in self._paths_below(f"{path}/{name}"):
                yield f"/{name}{below}", place

    def _map_path(self, path: str, place: str | None) -> None:
        """Have a file from now on at a name: a folder, a link, or what lies at a place."""
        if place is None:
            self._folders.add(path)
        elif place.startswith("-> "):
            self._links[path] = place[3:]
        elif self._is_temporary(place):  # it may be removed
            self._own[path] = self._new_path()
            self._copy(place, self._own[path])
        else:
            self._own[path] = place

    def copy_file(self, old: Any, new: Any, *, follow_symlinks: bool = True) -> Any:
        """Copy a file as shutil.copyfile does; it is read from where the original is, until one of them is written."""
        source, target = self._path(old), self._resolve_links(self._path(new))
        if not follow_symlinks and source in self._links:
            self._links[target] = self._links[source]
            return new
        source = self._resolve_links(source)
        if not self._exists_for_script(source):
            raise_os_error(errno.ENOENT, old)
        self._want_parent(target, new)
        if source == target:
            raise shutil.SameFileError(f"{old!r} and {new!r} are the same file")
        for name, argument in ((source, old), (target, new)):
            if self._is_folder(name):
                raise_os_error(errno.EISDIR, argument)
        self._hide(target)
        self._map_path(target, self._own.get(source, source))
        return new

    def make_hard_link(self, old: Any, new: Any, *_more: Any, **_options: Any) -> None:
        """Give a file a second name, as os.link does; they part where one of them is written to."""
        if self._exists_for_script(self._path_of_link_itself(new)):
            raise_os_error(errno.EEXIST, old, new)
        self.copy_file(old, new)

    def make_symlink(self, text: Any, new: Any, _folder: bool = False, *, dir_fd: int | None = None) -> None:
        """Make a link as os.symlink does."""
        name = self._path_of_link_itself(new, dir_fd)
        if self._exists_for_script(name):
            raise_os_error(errno.EEXIST, text, new)
        self._want_parent(name, text, new)
        self._links[name] = os.fsdecode(text)

    def make_folder(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Make a folder as os.mkdir does."""
        name = self._path_of_link_itself(path, dir_fd)
        if self._exists_for_script(name):
            raise_os_error(errno.EEXIST, path)
        self._want_parent(name, path)
        by_tempfile = sys._getframe(1).f_globals.get("__name__") == "tempfile"
        if self._is_temporary(name) or (by_tempfile and is_within(name, str(Path(self._folder).parent))):
            with self._allow_own_writes():
                self._plain["mkdir"](name, mode)
            self._temporary |= set() if self._is_temporary(name) else {name}
        else:
            self._folders.add(name)

    def make_pipe(self, path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        """Make a named pipe as os.mkfifo does."""
        name = self._path_of_link_itself(path, dir_fd)
        if self._exists_for_script(name):
            raise_os_error(errno.EEXIST, path)
        self._want_parent(name, path)
        place = self._new_path()
        self._plain["mkfifo"](place, mode)
        self._own[name] = place

    def truncate(self, path: Any, length: int) -> None:
        """Cut a file, as os.truncate does."""
        self._plain["truncate"](path if isinstance(path, int) else self.writable_path(path, "r+"), length)

    def wrap_metadata_change(self, plain: Callable[..., Any]) -> Callable[..., None]:
        """Return a call like os.chmod or os.utime; of a file of the user's a copy is changed, of a folder nothing."""

        def call(path: Any, *more: Any, dir_fd: int | None = None, **options: Any) -> None:
            if isinstance(path, int):
                return
            name = self._resolve_links(self._path(path, dir_fd))
            if not self._exists_for_script(name):
                raise_os_error(errno.ENOENT, path)
            if not self._is_folder(name):
                place = self.writable_path(name, "r+")
                if self._belongs_to_script(place):
                    with self._allow_own_writes():
                        plain(place, *more, **options)

        return call

    def change_nothing(self, *_more: Any, **_options: Any) -> None:
        """Change nothing."""

    def _hide(self, path: str) -> None:
        """Have nothing at a name and below it; what no other name stands for goes from the folder too."""
        for link in [link for link in self._links if is_within(link, path)]:
            del self._links[link]
        places = [self._own.pop(name) for name in [name for name in self._own if is_within(name, path)]]
        for place in set(places).difference(self._own.values()):
            if str(Path(place).parent) == self._folder:
                self._plain["remove"](place)
                self.saved.pop(place, None)
        self._folders = {name for name in self._folders if not is_within(name, path)}
        if self._is_temporary(path):
            with contextlib.suppress(FileNotFoundError):  # it lay in the folder of the script's files
                self._really_remove(path)
            self._temporary.discard(path)
        elif self._exists_on_disk(path):
            self._removed.add(path)

    def _really_remove(self, path: str) -> None:
        with self._allow_own_writes():
            if not stat.S_ISDIR(self._plain["lstat"](path).st_mode):
                self._plain["remove"](path)
                return
            for name in self._plain["listdir"](path):
                self._really_remove(f"{path}/{name}")
            self._plain["rmdir"](path)

    def _copy(self, old: str, new: str) -> None:
        with self._open(old, "rb") as source, self._open(new, "wb") as target:
            shutil.copyfileobj(source, target)
        if old in self.saved:
            self.saved[new] = self.saved[old]
