"""Modules that Python runs by name, as `python -m package.module` does: where they lie, and what is wrong with a name.

Nothing is imported to find them: the code of a package runs when its module does.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.record.processes.training import add_current_folder

_MAIN = "__main__"
_MOST_NAMED = 4  # modules of a package in a hint


@contextlib.contextmanager
def current_folder_on_path() -> Iterator[None]:
    """Have the current folder first where modules are looked for, as `python -m` has, but with -P."""
    before = list(sys.path)
    add_current_folder()
    try:
        yield
    finally:
        sys.path[:] = before


def find_module(name: str) -> ModuleSpec | None:
    """Return where a module of this folder, or of what is installed, is; neither it nor its packages are imported."""
    with current_folder_on_path():
        return _find_module(name) if all(name.split(".")) else None


def module_to_run(name: str) -> ModuleSpec:
    """Return what `python -m` runs of this name, of a package its `__main__`; UsageError where it runs nothing."""
    if name.endswith((".py", ".pyc")) or "/" in name:
        plain = name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"'{name}' is a file, and -m takes a module", f"-m {plain}, or the file without -m")
    if ":" in name or not all(name.split(".")):
        hint = "leave out -m: it is a function" if ":" in name else "write it as for import: -m package.train"
        raise UsageError(f"'{name}' is no name of a module", hint)
    spec = find_module(name)
    if spec is None:
        raise UsageError(f"there is no module '{name}' here", _hint_of_missing(name))
    if spec.submodule_search_locations is not None:
        main = None if name == _MAIN or name.endswith(f".{_MAIN}") else find_module(f"{name}.{_MAIN}")
        if main is None or main.submodule_search_locations is not None:
            kind = "package without a __main__.py" if spec.loader is not None else "folder without a __main__.py"
            raise UsageError(f"'{name}' is a {kind}: python -m does not run it", _hint_of_package(name, spec))
        spec = main
    if spec.origin == "built-in" or isinstance(spec.loader, ExtensionFileLoader):
        kind = "built into Python" if spec.origin == "built-in" else "an extension without code of Python's"
        raise UsageError(f"the module '{name}' is {kind}: python -m does not run it", "name the module that trains")
    return spec


def module_file_to_follow(spec: ModuleSpec) -> Path:
    """Return the file that holds the source of a module; UsageError where it has none (an archive, bytecode)."""
    file = Path(spec.origin or "")
    if file.suffix == ".py" and file.is_file():
        return file
    raise UsageError(
        f"the module '{spec.name}' has no source file: it is {spec.origin}",
        "unpack its archive, or install its source, and put that first on PYTHONPATH",
    )


def module_of_file(file: Path) -> tuple[str, Path]:
    """Return the name that a file has as a module of its packages, and the folder in which that can be run."""
    parts, folder = [file.stem], file.resolve().parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) == 1:  # of a package without __init__.py
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts[:-1] if parts[-1] == _MAIN else parts), folder


def _find_module(name: str) -> ModuleSpec | None:
    parent, _, last = name.rpartition(".")
    folders: list[str] | None = None
    if parent and hasattr(sys.modules.get(parent), "__path__"):  # it may have added to it
        folders = list(sys.modules[parent].__path__)
    elif parent:
        package = _find_module(parent)
        if package is None or package.submodule_search_locations is None:
            return None
        folders = list(package.submodule_search_locations)
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, folders)
        except KeyError:  # a folder in a package without __init__.py, which wants its parent to be imported
            spec = ModuleSpec(name, None, is_package=True)
            places = [str(Path(folder, last)) for folder in folders or () if Path(folder, last).is_dir()]
            spec.submodule_search_locations = places
        except (AttributeError, ImportError, ValueError):  # a finder of another time; one that cannot say
            continue
        if spec is not None:
            return spec
    return None


def _modules_in(folders: list[str]) -> list[str]:
    """Return the names of what can be run in these folders: modules, and packages with a `__main__`."""
    files = [path for folder in folders for path in Path(folder).glob("*.py") if not path.name.startswith("_")]
    packages = [path.parent for folder in folders for path in Path(folder).glob(f"*/{_MAIN}.py")]
    return sorted({path.stem for path in files} | {path.name for path in packages})


def _hint_of_package(name: str, spec: ModuleSpec) -> str:
    names = [f"-m {name}.{inner}" for inner in _modules_in(list(spec.submodule_search_locations or ()))]
    named = ", ".join(names[:_MOST_NAMED])
    return f"name a module of it: {named}" if named else "name the module that trains"


def _hint_of_missing(name: str) -> str:
    """Return what to type in place of the name of a module that is not there."""
    parent, _, last = name.rpartition(".")
    spec = find_module(parent) if parent else None
    if spec is not None and spec.submodule_search_locations is None:
        return f"'{parent}' is a module and no package: -m {parent}"
    beside = _modules_in([str(Path.cwd())] if spec is None else list(spec.submodule_search_locations or ()))
    near = difflib.get_close_matches(last, beside, n=1) if spec is not None or not parent else []
    if near:
        return f"did you mean -m {f'{parent}.{near[0]}' if parent else near[0]}?"
    inside = Path("src", *name.split("."))
    if inside.with_suffix(".py").is_file() or (inside / f"{_MAIN}.py").is_file():
        return "it is below src: PYTHONPATH=src before the command"
    return f"run in the folder that holds {name.partition('.')[0]}, or have that folder on PYTHONPATH"
