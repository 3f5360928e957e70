"""Memory of a script that is no tensor: arrays, Python's objects and imports, told by how this process grows."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from stepscope.footprint.script_progress import Progress, instead
from stepscope.record.dry.storage_log import StorageLog

_LARGE = 65_536  # B: smaller arrays and texts are not looked at
_OWN_GROWTH = 30_000_000  # B that this process grows by until the first update, to follow it; 15 to 18 were measured
_OWN_TRAINING = 250_000_000  # the same where it trains for real


class ScriptMemory:
    """What of this process is the script's: `arrays` least and most, `earlier` at most before the first update, B."""

    def __init__(self, progress: Progress, target: str, fake: bool) -> None:
        self.arrays, self.earlier = (0, 0), 0
        self._progress, self._log, self._target, self._fake = progress, progress.log, target, fake
        self._before = (0, 0, 0)  # arrays, resident bytes of this process, and the most that they had been
        self._imported = self._grown = 0  # B: of imports, and the most beside them

    def begin(self) -> None:
        """Note what is there before the script, once all is imported that follows it."""
        self._before = _array_bytes(self._log), _resident(), _resident(at_most=True)

    def look(self) -> None:
        """Look at arrays and at the growth of this process: at the first update."""
        self._see_growth()  # first: to look at all arrays takes a list of all objects
        now, own = (_resident(), _OWN_GROWTH) if self._fake else (_resident(at_most=True), _OWN_TRAINING)
        size = max(0, _array_bytes(self._log) - self._before[0])
        self.arrays = size, max(size, now - self._before[1] - self._imported * self._fake - own)
        if self._fake and self._grown > _OWN_GROWTH:
            self.earlier = self._grown - _OWN_GROWTH + self._log.alive_bytes()

    def _see_growth(self) -> None:
        most = _resident(at_most=True)
        most = most if most > self._before[2] else _resident()  # the mark of what was before says nothing
        self._grown = max(self._grown, most - self._before[1] - self._imported)

    @contextlib.contextmanager
    def own_imports(self) -> Iterator[None]:
        """Tell what imports take, which is of the empty process, from what the script makes of its data."""
        running = False

        def watched(plain: Callable[..., Any], name: str, *more: Any, **options: Any) -> Any:
            nonlocal running
            relative = name.startswith(".") or more[3:4] not in ((), (0,))  # of a package that is imported already
            if running or self._progress.updates or relative or name in sys.modules or self._is_beside(name):
                return plain(name, *more, **options)
            self._see_growth()
            running, before = True, _resident()
            try:
                return plain(name, *more, **options)
            finally:
                running = False
                self._imported += max(0, _resident() - before)

        with contextlib.ExitStack() as stack:
            for owner, name in ((builtins, "__import__"), (importlib, "import_module")):
                stack.enter_context(instead(owner, name, functools.partial(watched, getattr(owner, name))))
            yield

    def _is_beside(self, module: str) -> bool:
        """Return whether a module is the script's own: what it makes of data as it is imported is no import."""
        path = Path(self._target).parent / module.partition(".")[0]
        return path.is_dir() or path.with_suffix(".py").is_file()


def _resident(at_most: bool = False) -> int:
    """Resident memory of this process, now or at its highest, B; 0 where the system does not say."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    name = "VmHWM:" if at_most else "VmRSS:"
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name)), 0)


def _array_bytes(log: StorageLog) -> int:
    """Bytes in arrays of numpy, texts, and tensors with numbers that no op of the log has made."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (bytes, bytearray, Tensor, *((numpy.ndarray,) if numpy is not None else ()))
    found: dict[int, int] = {}
    twins: set[int] = set()  # numbers that fake tensors keep
    inner: Any
    for inner in gc.get_referents(*gc.get_objects()):
        if not issubclass(type(inner), kinds):  # isinstance would ask deprecated names for their class
            continue
        if isinstance(inner, (bytes, bytearray)):
            found[id(inner)] = len(inner)
        elif isinstance(inner, Tensor):
            strided = inner.device.type == "cpu" and inner.layout is torch.strided
            if isinstance(inner, FakeTensor):
                twins.update([] if inner.constant is None else [inner.constant.untyped_storage().data_ptr()])
            elif not is_lazy(inner) and strided and not log.knows(inner):
                storage = inner.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        elif inner.base is None:
            found[inner.__array_interface__["data"][0]] = int(inner.nbytes)
    return sum(size for place, size in found.items() if size >= _LARGE and place not in twins)


def imports_of_script(script: Path) -> frozenset[str]:
    """Modules beside torch and the standard library that a script and files beside it import, and what came along."""
    named: set[str] = set()
    seen: set[Path] = set()
    waiting = [script]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in _imported(file):
            own = script.parent / Path(*name.split("."))
            beside = [path for path in (own.with_suffix(".py"), own / "__init__.py") if path.is_file()]
            waiting += beside
            if not beside:
                named.add(name)
    packages = {name.partition(".")[0] for name in named} - sys.stdlib_module_names - {"torch", "stepscope"}
    return frozenset(name for name in sys.modules if name.partition(".")[0] in packages)


def _imported(file: Path) -> Iterable[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
