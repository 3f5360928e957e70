"""The files of a script that is followed: nothing of the user's is written.

Files go into a folder that is thrown away, nothing is deleted, and what torch.save is given comes back from torch.load.
What a library writes below Python (a data base, parquet), or another program, is not seen.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import glob
import importlib
import importlib.util
import io
import os
import pathlib
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from stepscope.footprint.script_entries import Entries, Entry
from stepscope.footprint.script_progress import Progress, instead
from stepscope.footprint.script_saved import saved
from stepscope.record.dry.storage_log import SAVING

_MOST_COPIED = 256 << 20  # B of a file that is written to where it is
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SCRIPTED: Any = vars(torch.jit)["RecursiveScriptModule"]
_UNNAMED = getattr(os, "O_TMPFILE", 0)


class ScriptFiles:
    """Files that a script writes and saves while they are `kept`."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._log = progress, progress.log

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Answer the calls that open, write, move and delete files, and those that save and load."""
        with tempfile.TemporaryDirectory(prefix="stepscope-fit-") as folder, contextlib.ExitStack() as stack:
            files = _Files(Path(folder), self._progress)
            stack.callback(files.close)
            for owner, name, value in (
                *_keepers(files), (builtins, "open", files.open), (io, "open", files.open),
                (torch._C, "PyTorchFileWriter", files.elsewhere(torch._C.PyTorchFileWriter, 0, "w")),
                *_of_system(files), (os, "system", self._run),
                (shutil, "rmtree", files.gone), (shutil, "move", files.moved),
                *((shutil, name, files.copied) for name in ("copy", "copy2", "copyfile")),
                (torch, "save", functools.partial(self._save, files)),
                (torch, "load", functools.partial(self._load, files, torch.load)),
                (torch.jit, "save", files.elsewhere(torch.jit.save, 1, "w")),
                (torch.jit, "load", files.elsewhere(torch.jit.load, 0, "r")),
                (_SCRIPTED, "save", files.elsewhere(_SCRIPTED.save, 1, "w")),
                (builtins, "__import__", self._imports(files, stack, builtins.__import__)),
            ):  # fmt: skip
                stack.enter_context(instead(owner, name, value))
            if importlib.util.find_spec("safetensors") is not None:
                of_safetensors = importlib.import_module("safetensors.torch")
                stack.enter_context(instead(of_safetensors, "save_file", functools.partial(self._save, files)))
            yield

    @staticmethod
    def _imports(files: _Files, stack: contextlib.ExitStack, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return an import that watches libraries which open files below Python."""
        waiting = set(_OPENERS)

        def imported(name: str, *more: Any, **options: Any) -> Any:
            module = plain(name, *more, **options)
            watch()
            return module

        def watch() -> None:
            for library in [library for library in waiting if _is_complete(library)]:
                waiting.discard(library)
                _watch(library, files, stack)

        watch()
        return imported

    def _run(self, command: Any) -> int:
        self._progress.miss("what os.system runs: it is not run")
        return 0

    def _save(self, files: _Files, content: Any, f: Any, *_more: Any, **_options: Any) -> None:
        with self._log.scene(SAVING):
            if not hasattr(f, "write"):
                files.open(f, "wb").close()
                files.saved[files.place(f)] = saved(content)
                return
            size = sum(leaf.nbytes for leaf in tree_leaves(content) if isinstance(leaf, Tensor))
            if isinstance(f, io.BytesIO):  # it holds it all
                self._log.hold(size, "saved", f)
                return
            call = io.BytesIO()  # holds what is on its way
            self._log.hold(size, "saved", call)
            del call
            files.saved[files.name_of(f)] = saved(content)

    @staticmethod
    def _load(files: _Files, plain: Callable[..., Any], f: Any, *more: Any, **options: Any) -> Any:
        place = files.place(f) if isinstance(f, (str, os.PathLike)) else files.name_of(f)
        return files.saved[place]() if place in files.saved else plain(f, *more, **options)


def _keepers(files: _Files) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the names by which modules that are imported keep Python's open, as bz2 and tarfile do."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    return [
        (module, name, files.open)
        for module in modules
        for name, value in list(vars(module).items())
        if value is builtins.open
    ]


def _of_system(files: _Files) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield what answers for os; Python 3.10 has calls of its own in pathlib, and from 3.13 on glob has."""
    scanned = functools.partial(files.scanned, os.scandir)
    yield os, "scandir", scanned
    if hasattr(pathlib, "_NormalAccessor"):
        yield pathlib._NormalAccessor, "scandir", scanned
        yield pathlib._NormalAccessor, "open", files.open
    globber = getattr(glob, "_StringGlobber", None)
    if hasattr(globber, "lstat"):
        yield globber, "lstat", staticmethod(functools.partial(files.seen, os.lstat))
    if hasattr(globber, "scandir"):
        yield globber, "scandir", staticmethod(scanned)
    for owner in (os, getattr(pathlib, "_NormalAccessor", os)):
        for names, value in (
            ("remove unlink rmdir removedirs", files.gone), ("rename replace renames", files.moved),
            ("mkdir makedirs", files.made), ("chmod chown lchown utime truncate", files.unchanged),
            ("link symlink", files.copied), ("listdir", functools.partial(files.listed, os.listdir)),
            ("stat", functools.partial(files.seen, os.stat)), ("lstat", functools.partial(files.seen, os.lstat)),
            ("open", functools.partial(files.opened, os.open)),
        ):  # fmt: skip
            for name in names.split():
                if hasattr(owner, name) and (owner is os or name != "open"):
                    yield owner, name, value


_OPENERS = {"cv2": "imwrite", "h5py": "File", "numpy": "memmap"}  # libraries, and what of each opens files


def _is_complete(library: str) -> bool:
    """Return whether a library is imported; while it is being imported, parts of it are missing."""
    module = sys.modules.get(library)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _watch(library: str, files: _Files, stack: contextlib.ExitStack) -> None:
    """Answer for a library that opens files below Python, or asks for more than a file that can be read."""
    module = sys.modules[library]
    if not hasattr(module, _OPENERS[library]):
        return  # a module of the user's that has its name
    if library == "cv2":
        stack.enter_context(instead(module, "imwrite", lambda *_given, **_options: True))
    elif library == "h5py":
        stack.enter_context(instead(module.File, "__init__", files.elsewhere(module.File.__init__, 1)))
    else:
        stack.enter_context(instead(module.memmap, "__new__", files.mapped(module.memmap.__new__)))
        table = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
        if table is not None:  # numpy.savetxt and the like open by it
            table.keys()  # fills it
            openers = {**table._file_openers, None: files.open}
            stack.enter_context(instead(table, "_file_openers", openers))


class _Files:
    """The script's files: what it writes lies in a folder that is thrown away, and is read from there."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.saved: dict[str, Callable[[], Any]] = {}  # by place: how to get what was saved there
        self._folder, self._progress, self._open, self._remove = folder, progress, builtins.open, os.remove
        self._own: dict[str, str] = {}  # where a file of the script's lies; of a copy it may be a file of the user's
        self._temporary: set[str] = set()  # real files of tempfile, which removes most of them itself
        self._numbered: dict[int, str] = {}  # by descriptor: where what os.open has opened lies
        self._folders: set[str] = set()
        self._made = 0

    def open(self, file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        """Open a file as builtins.open does; what the script writes goes to the folder of its own files."""
        if isinstance(file, int) or options.get("opener") is not None:
            return self._open(file, mode, *more, **options)
        place = self.place(file, mode)
        if "x" in mode:
            mode = mode.replace("x", "w")
        if self._too_large(place, mode):
            mode = "rb" if "b" in mode else "r"
        return self._open(place, mode, *more, **options)

    def opened(self, plain: Callable[..., int], path: Any, flags: int, *more: Any, **options: Any) -> int:
        """Open a file as os.open does."""
        unnamed = _UNNAMED and flags & _UNNAMED == _UNNAMED
        if not flags & _WRITES or unnamed or options.get("dir_fd") is not None:
            return plain(path, flags, *more, **options)
        if sys._getframe(1).f_globals.get("__name__") == "tempfile":
            with contextlib.suppress(FileNotFoundError):  # in a folder of the script's
                opened = plain(path, flags, *more, **options)
                self._numbered[opened] = self._path(path)
                self._temporary.add(self._path(path))
                return opened
        mode = "w" if flags & os.O_TRUNC else "r+"
        flags |= os.O_CREAT if Path(os.fsdecode(path)).exists() else 0
        place = self.place(path, mode)
        opened = plain(place, os.O_RDONLY if self._too_large(place, mode) else flags, *more, **options)
        self._numbered[opened] = place
        return opened

    def name_of(self, opened: Any) -> str:
        """Return where an open file lies."""
        name: Any = getattr(opened, "name", "")
        return self._numbered.get(name, str(name))

    def place(self, file: Any, mode: str = "r") -> str:
        """Return where a file of that name lies, from now on in the folder if it is written to."""
        path = self._path(file)
        before = self._own.get(path, path)
        if not set(mode) & set("wax+") or (path.startswith("/dev/") and not path.startswith("/dev/shm/")):
            return before
        anew = bool(set(mode) & set("wx"))
        if not self._is_own(before) or list(self._own.values()).count(before) > 1:
            if not anew and self._too_large(before, mode):
                return before
            place = str(self._folder / str(self._made))
            self._made += 1
            if not anew and Path(before).is_file():
                self._copy(before, place)
            self._own[path] = place
        elif anew:
            self.saved.pop(before, None)
        return self._own.get(path, path)

    def _is_own(self, place: str) -> bool:
        return Path(place).parent == self._folder or place in self._temporary

    def _too_large(self, place: str, mode: str) -> bool:
        """Return whether a file of the user's that would be written to is too large to be copied."""
        if not set(mode) & set("a+") or "w" in mode or not place.startswith("/") or self._is_own(place):
            return False
        with contextlib.suppress(OSError):
            if Path(place).is_file() and Path(place).stat().st_size > _MOST_COPIED:
                self._progress.miss(f"what is written to {Path(place).name}, which is too large to be copied")
                return True
        return False

    def elsewhere(self, plain: Callable[..., Any], at: int, mode: str | None = None) -> Callable[..., Any]:
        """Return a call whose file, its argument `at`, lies in the folder; without `mode` the next argument says it."""

        def call(*given: Any, **options: Any) -> Any:
            arguments = list(given)
            if len(arguments) > at and isinstance(arguments[at], (str, bytes, os.PathLike)):
                said = str(mode or (arguments[at + 1] if len(arguments) > at + 1 else options.get("mode", "r")))
                arguments[at] = self.place(arguments[at], said.replace("w-", "w"))
            return plain(*arguments, **options)

        return call

    def mapped(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return a maker of arrays on files that writes to none of the user's: pages are copied as they are written."""

        def made(kind: Any, filename: Any, dtype: Any = "uint8", mode: str = "r+", *more: Any, **options: Any) -> Any:
            if mode in ("r+", "readwrite") and isinstance(filename, (str, bytes, os.PathLike)):
                mode = mode if self._is_own(self.place(filename)) else "c"
            return plain(kind, filename, dtype, mode, *more, **options)

        return made

    def gone(self, path: Any, *_more: Any, **_options: Any) -> None:
        """Forget a file or folder that the script has written; no file of the user's is deleted."""
        there = Path(self._path(path))
        for name in [name for name in self._own if there in (Path(name), *Path(name).parents)]:
            del self._own[name]
        self._folders = {name for name in self._folders if there not in (Path(name), *Path(name).parents)}
        if str(there) in self._temporary:
            self._temporary.remove(str(there))
            self._remove(there)

    def moved(self, old: Any, new: Any, *_more: Any, **_options: Any) -> Any:
        """Move a file that the script has written; no other file is moved."""
        before, target = self._path(old), _target(old, new)
        if before in self._temporary:
            self.copied(old, target)
            self.gone(old)
        elif before in self._own:
            self._own[self._path(target)] = self._own.pop(before)
        return target

    def copied(self, old: Any, new: Any, *_more: Any, **_options: Any) -> Any:
        """The copy is read from where the original is, until one of them is written to."""
        before, target = self.place(old), _target(old, new)
        if before in self._temporary:  # it may be removed
            self._copy(before, self.place(target, "w"))
        else:
            self._own[self._path(target)] = before
        return target

    def close(self) -> None:
        """Remove what is left of the files of tempfile."""
        for path in self._temporary:
            with contextlib.suppress(OSError):
                self._remove(path)

    def made(self, path: Any, *_more: Any, **_options: Any) -> None:
        """No folder is needed; that it is there is remembered."""
        there = Path(self._path(path))
        self._folders.update(map(str, (there, *there.parents)))

    def unchanged(self, *_more: Any, **_options: Any) -> None:
        """Nothing is changed."""

    def seen(self, plain: Callable[..., Any], path: Any, *more: Any, **options: Any) -> Any:
        """Return what os.stat says of a file, or a folder, that the script has made."""
        if isinstance(path, int) or path == "" or options.get("dir_fd") is not None:
            return plain(path, *more, **options)
        there = self._path(path)
        if there in self._own:
            return plain(self._own[there])
        try:
            return plain(path, *more, **options)
        except FileNotFoundError:
            if there not in self._folders:
                raise
            return plain(self._folder)

    def listed(self, plain: Callable[..., list[Any]], path: Any = ".") -> list[Any]:
        """Return the names in a folder: those of the user's, and what the script has written there."""
        if isinstance(path, (int, bytes)):
            return plain(path)
        own = self._within(path)
        try:
            there = plain(path)
        except FileNotFoundError:
            if not own and self._path(path) not in self._folders:
                raise
            return own
        return [*there, *(name for name in own if name not in there)]

    def scanned(self, plain: Callable[..., Any], path: Any = ".") -> Any:
        """Return what os.scandir says of a folder, with what the script has written there."""
        if isinstance(path, (int, bytes)):
            return plain(path)
        there: Any = contextlib.nullcontext(())
        own = self._within(path)
        try:
            there = plain(path)
        except FileNotFoundError:
            if not own and self._path(path) not in self._folders:
                raise
        with there as entries:
            theirs = [entry for entry in entries if entry.name not in own]
        return Entries([*theirs, *(Entry(name, str(Path(path or ".", name))) for name in own)])

    def _within(self, path: Any) -> list[str]:
        """Return the names of the script's files and folders in a folder."""
        there = Path(self._path(path))
        inside = [
            Path(name) for name in (*self._own, *sorted(self._folders)) if Path(name).parent == there != Path(name)
        ]
        return list(dict.fromkeys(path.name for path in inside))

    def _copy(self, old: str, new: str) -> None:
        with self._open(old, "rb") as source, self._open(new, "wb") as target:
            shutil.copyfileobj(source, target)
        if old in self.saved:
            self.saved[new] = self.saved[old]

    @staticmethod
    def _path(path: Any) -> str:
        return str(Path(os.fsdecode("." if path is None else path)).absolute())


def _target(old: Any, new: Any) -> Any:
    """Return where a file is copied or moved to: into a folder, or to a name."""
    there = Path(os.fsdecode(new))
    return str(there / Path(os.fsdecode(old)).name) if there.is_dir() else new
