"""The program that is followed: a script by its path, or a module by its name, as `python` or `python -m` runs it.

Before it runs it is known by its file alone: nothing of the user's is imported to find it.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError, script_not_found_error
from stepscope.record.fault_boundary import is_foreign
from stepscope.record.processes.modules import find_module, module_file_to_follow, module_of_file, module_to_run

_LAUNCHERS = (
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner",
)  # fmt: skip


@dataclass(frozen=True)
class ScriptTarget:
    """A script or module: as it was named, its file, the folder of its own modules, and files of its packages."""

    name: str
    file: str  # absolute, and as Python writes it in tracebacks
    folder: Path
    module: str | None = None  # the full name of what runs: of a package its `__main__`
    packages: tuple[str, ...] = ()  # whose code runs before that of the module

    @property
    def words(self) -> str:
        """Return how it is named on a command line: behind `python`, and behind `stepscope fit`."""
        return shlex.join([self.name] if self.module is None else ["-m", self.name])

    def main_names(self) -> dict[str, Any]:
        """Return what `__main__` begins with; of a module its packages are imported first, as Python imports them."""
        if self.module is None:
            return {"__file__": self.file, "__builtins__": builtins}
        package = self.module.rpartition(".")[0]
        if package:
            importlib.import_module(package)
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin != self.file:
            raise ImportError(f"'{package}' has it elsewhere once it is imported: {spec and spec.origin}")
        sys.argv[0] = self.file
        return {
            "__file__": self.file, "__cached__": spec.cached, "__loader__": spec.loader, "__package__": spec.parent,
            "__spec__": spec, "__builtins__": builtins,
        }  # fmt: skip


def find_target(target: str, module: bool = False) -> ScriptTarget:
    """Return the script of this path, or the module of this name; UsageError where there is none to follow."""
    if not module:
        if not Path(target).is_file():
            raise script_not_found_error(target)
        return ScriptTarget(target, str(Path(target).absolute()), Path(target).resolve().parent)
    spec = module_to_run(target)
    if spec.name in _LAUNCHERS:
        raise UsageError(
            f"'{target}' starts the training in other processes, and fit follows one",
            "give it the training, as one of them: RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 stepscope fit train.py",
        )
    file = module_file_to_follow(spec)
    names = spec.name.split(".")
    folder = file.parents[len(names) - 1].resolve()  # a package may be a link
    packages = [find_module(".".join(names[:count])) for count in range(1, len(names))]
    files = tuple(package.origin for package in packages if package is not None and package.origin is not None)
    # Of a package that is installed, what lies beside it is no part of the user's project.
    return ScriptTarget(target, str(file), folder if is_foreign(str(file)) else Path.cwd().resolve(), spec.name, files)


def hint_of_module(file: str) -> str:
    """Return how a file is followed that imports as a module of its package does."""
    name, folder = module_of_file(Path(file))
    command = f"stepscope fit -m {shlex.quote(name)}"
    place = "" if folder == Path.cwd().resolve() else f", in the folder {folder}"
    sure = (Path(file).parent / "__init__.py").is_file()
    otherwise = "" if sure else "; or give a script beside the package that imports it and calls it"
    return f"it is a module of a package: {command}{place}{otherwise}"
