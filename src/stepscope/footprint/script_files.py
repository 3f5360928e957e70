"""The files of a script that is followed: nothing of the user's is written.

Files go into a folder that is thrown away, nothing is deleted, and what torch.save is given comes back from torch.load.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import functools
import importlib
import importlib.util
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from stepscope.footprint.script_progress import instead
from stepscope.record.dry.storage_log import SAVING, StorageLog


class ScriptFiles:
    """Files that a script writes and saves while they are `kept`."""

    def __init__(self, log: StorageLog) -> None:
        self._log = log
        self._saved: dict[str, Any] = {}

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Answer the calls that open, write, move and delete files, and those that save and load."""
        with tempfile.TemporaryDirectory(prefix="stepscope-fit-") as folder, contextlib.ExitStack() as stack:
            files = _Files(Path(folder))
            for owner, name, value in (
                (builtins, "open", files.open), (io, "open", files.open),
                *((os, name, files.gone) for name in ("remove", "unlink", "rmdir", "removedirs")),
                *((os, name, files.moved) for name in ("rename", "replace", "renames")),
                *((os, name, files.made) for name in ("mkdir", "makedirs", "chmod", "utime")),
                (os, "listdir", functools.partial(files.listed, os.listdir)),
                (shutil, "rmtree", files.gone), (shutil, "move", files.moved),
                *((shutil, name, files.copied) for name in ("copy", "copy2", "copyfile")),
                (torch, "save", self._save), (torch, "load", functools.partial(self._load, torch.load)),
            ):  # fmt: skip
                stack.enter_context(instead(owner, name, value))
            if importlib.util.find_spec("safetensors") is not None:
                stack.enter_context(instead(importlib.import_module("safetensors.torch"), "save_file", self._save))
            yield

    def _save(self, content: Any, f: Any, *_more: Any, **_options: Any) -> None:
        with self._log.scene(SAVING):
            if hasattr(f, "write"):  # a buffer holds it all
                size = sum(leaf.nbytes for leaf in tree_leaves(content) if isinstance(leaf, Tensor))
                self._log.hold(size, "saved", f if isinstance(f, io.BytesIO) else None)
            else:
                self._saved[str(Path(f).absolute())] = content

    def _load(self, plain: Callable[..., Any], f: Any, *more: Any, **options: Any) -> Any:
        path = str(Path(f).absolute()) if isinstance(f, (str, os.PathLike)) else None
        return copy.deepcopy(self._saved[path]) if path in self._saved else plain(f, *more, **options)


class _Files:
    """The script's files: what it writes lies in a folder that is thrown away, and is read from there."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._open = folder, builtins.open
        self._own: dict[str, str] = {}

    def open(self, file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        """Open a file as builtins.open does; what the script writes goes to the folder of its own files."""
        if isinstance(file, int) or os.fspath(file) in ("/dev/null", os.devnull):
            return self._open(file, mode, *more, **options)
        path = self._path(file)
        if set(mode) & set("wax+") and path not in self._own:
            self._own[path] = str(self._folder / str(len(self._own)))
            if not set(mode) & set("wx") and Path(path).exists():
                self._copy(path, self._own[path])
        if "x" in mode:
            mode = mode.replace("x", "w")
        return self._open(self._own.get(path, file), mode, *more, **options)

    def gone(self, path: Any, *_more: Any, **_options: Any) -> None:
        """Forget a file that the script has written; no file of the user's is deleted."""
        self._own.pop(self._path(path), None)

    def moved(self, old: Any, new: Any, *_more: Any, **_options: Any) -> None:
        """Move a file that the script has written; no other file is moved."""
        if self._path(old) in self._own:
            self._own[self._path(new)] = self._own.pop(self._path(old))

    def copied(self, old: Any, new: Any, *_more: Any, **_options: Any) -> None:
        """The copy is read from where the original is."""
        self._own[self._path(new)] = self._own.get(self._path(old), self._path(old))

    def made(self, *_more: Any, **_options: Any) -> None:
        """No folder is needed, and nothing is changed."""

    def listed(self, plain: Callable[..., list[Any]], path: Any = ".") -> list[Any]:
        """Return the names in a folder: those of the user's, and what the script has written there."""
        if isinstance(path, int):
            return plain(path)
        own = [Path(name).name for name in self._own if Path(name).parent == Path(self._path(path))]
        try:
            return [*plain(path), *own]
        except FileNotFoundError:
            return own

    def _copy(self, old: str, new: str) -> None:
        with self._open(old, "rb") as source, self._open(new, "wb") as target:
            target.write(source.read())

    @staticmethod
    def _path(path: Any) -> str:
        return str(Path(os.fsdecode(path)).absolute())
