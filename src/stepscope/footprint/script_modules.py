"""Modules that a script has written before it imports them, as code that is generated: read from where they lie."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from stepscope.footprint.script_overlay import Overlay


class _Loader(importlib.abc.SourceLoader):
    def __init__(self, path: str, files: Overlay) -> None:
        self._file, self._files = path, files

    def get_filename(self, fullname: str) -> str:
        return self._file

    def get_data(self, path: str | bytes) -> bytes:
        with self._files.open(path, "rb") as file:
            return bytes(file.read())


class _Finder(importlib.abc.MetaPathFinder):
    """The last that is asked: of what nobody else finds."""

    def __init__(self, files: Overlay) -> None:
        self._files = files
        self.found: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for folder in sys.path if path is None else path:
            place = Path(folder or self._files.here(), fullname.rpartition(".")[2])
            for file in (place / "__init__.py", place.with_suffix(".py")):
                if self._files.has_written(str(file)):
                    self.found.append(fullname)
                    return importlib.util.spec_from_file_location(
                        fullname, file, loader=_Loader(str(file), self._files),
                        submodule_search_locations=[str(place)] if file.name == "__init__.py" else None,
                    )  # fmt: skip
        return None


@contextlib.contextmanager
def written_modules(files: Overlay) -> Iterator[None]:
    """Find them; at the end they are forgotten."""
    finder = _Finder(files)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.found:
            sys.modules.pop(name, None)
