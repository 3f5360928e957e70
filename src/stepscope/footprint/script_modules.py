"""Modules of a script's own, which are transformed as the script is; also those that it has written by itself.

They are read from where their files lie. At the end they are forgotten, so that another pass imports them anew.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from stepscope.footprint.script_overlay import Overlay
from stepscope.record.fault_boundary import is_foreign

Transform = Callable[[bytes, str], types.CodeType]  # of a source and the path of its file


class _SourceLoader(SourceFileLoader):
    """A loader of what is transformed, which neither reads nor writes bytecode."""

    def __init__(self, fullname: str, path: str, files: Overlay, modules: UserModules) -> None:
        super().__init__(fullname, path)
        self._files, self._modules = files, modules

    def get_data(self, path: str) -> bytes:
        with self._files.open(path, "rb") as file:
            return bytes(file.read())

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return self._modules.transform(self.get_data(path), path)


class UserModules:
    """Finder of modules that are the user's, and no library's; asked before all others.

    What nobody else finds the script may have written. No bytecode is written meanwhile.
    """

    def __init__(self, transform: Transform, files: Overlay, folder: Path) -> None:
        self.transform, self._files = transform, files
        self._folder = folder  # of the script
        self._own_names: list[str] = []
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module lies; None of one that is not the script's, but another thread's beside it."""
        if threading.get_ident() != self._thread:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            spec = self._find_written_module(fullname, path)
        elif type(spec.loader) is not SourceFileLoader or not is_foreign(spec.origin):
            return None
        if spec is not None and spec.origin is not None:
            spec.loader = _SourceLoader(fullname, spec.origin, self._files, self)
            self._own_names.append(fullname)
        return spec

    def _find_written_module(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        for folder in sys.path if path is None else path:
            place = Path(folder or self._files.current_folder(), fullname.rpartition(".")[2])
            for file in (place / "__init__.py", place.with_suffix(".py")):
                if self._files.has_written(str(file)):
                    inside = [str(place)] if file.name == "__init__.py" else None
                    return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=inside)
        return None

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Find them; at the end they are forgotten, with others beside the script that it has loaded by path."""
        before = set(sys.modules)
        plain, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.dont_write_bytecode = plain
            sys.meta_path.remove(self)
            later = [name for name in list(sys.modules) if name not in before and self._is_own(name)]
            for name in dict.fromkeys([*self._own_names, *later]):
                if name in sys.modules:
                    clear_module_objects(sys.modules.pop(name))

    def _is_own(self, name: str) -> bool:
        """Return whether a module is one beside the script, or a folder of the user's that is a package."""
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        if file is None:
            return any(is_foreign(folder) for folder in getattr(module, "__path__", ()))
        return isinstance(file, str) and is_foreign(file) and self._folder in Path(file).resolve().parents


def clear_module_objects(module: types.ModuleType) -> None:
    """Let the objects of a script go; its functions and modules stay, which its threads may still use."""
    for name, value in list(vars(module).items()):
        if not name.startswith("__") and not isinstance(value, (types.ModuleType, types.FunctionType, type)):
            del vars(module)[name]
    gc.collect()
