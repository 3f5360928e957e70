"""Memory of a script that is no tensor: arrays, Python's objects and imports, told by how this process grows."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from stepscope.footprint.script_objects import WITHIN, referents
from stepscope.footprint.script_progress import OWN_OF_AN_OP, Progress, resident_bytes, temporary_attribute
from stepscope.record.dry.storage_log import StorageLog
from stepscope.units import bytes_

_LARGE = 65_536  # B: smaller texts and tensors are not looked at
_SEVERAL = 3  # arrays of one size that came while it trained may be of a cache, or a replay buffer
_OWN_GROWTH = 30_000_000  # B that this process grows by until the first update, to follow it; 15 to 18 were measured
_GROWN_WHOLE = 30_000_000  # B that they may come to in rounds that were omitted
_GROWN = 1_000_000  # B of arrays that are worth a word
_OWN_TRAINING = 250_000_000  # the same where it trains for real


class ScriptMemory:
    """Memory of this process that is the script's, B: `arrays` least and most, `earlier` at most before an update."""

    def __init__(self, progress: Progress, folder: Path, fake: bool) -> None:
        self.arrays, self.earlier = (0, 0), 0
        self.mapped: tuple[int, int] | None = None  # of files since the first update, least and most, B
        self._progress, self._log, self._folder, self._fake = progress, progress.log, folder, fake
        self._files_before: frozenset[str] = frozenset()  # that were mapped
        self._before = (0, 0)  # resident bytes of this process, and the most that they had been
        self._imported = self._grown = 0  # B: of imports, and the most beside them
        self._sizes = Counter[int]()  # of arrays at the first update
        self._trained: Counter[int] | None = None  # where a loop ended last of which rounds were omitted
        self.imported = set[str]()  # modules that the script's imports brought along
        self._ops = self._most = 0  # at the first update: ops that were followed, and the most that was resident, B
        if fake:
            progress.arrays = self._array_bytes_and_count

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Note what is there before the script, once all is imported that follows it, and set it aside until its end.

        Of all objects those of the script are few: the collector and who looks for arrays need not go over the others.
        """
        own = gc.get_freeze_count() == 0  # else it is not known which ones to give back
        if own:
            gc.freeze()
        self._before = resident_bytes(), resident_bytes(at_most=True)
        self._files_before = frozenset(mapped_files())
        try:
            yield
        finally:
            if own:
                gc.unfreeze()

    def note_mapped_files(self) -> None:
        """Look at files that the script has mapped, as np.memmap does: at each update."""
        now = sum(size for path, size in mapped_files().items() if path not in self._files_before)
        least, most = self.mapped or (now, now)
        self.mapped = min(least, now), max(most, now)

    def measure_first_update(self) -> None:
        """Look at arrays and at the growth of this process: at the first update."""
        self._update_growth()  # first: to look at all arrays takes a list of all objects
        now, own = (resident_bytes(), _OWN_GROWTH) if self._fake else (resident_bytes(at_most=True), _OWN_TRAINING)
        self._sizes = _array_sizes(self._log)
        size, grown = _sum(self._sizes), now - self._before[0] - self._imported * self._fake
        touched = min(size, max(0, grown)) if now else size  # pages of np.zeros come as they are written to
        self.arrays = touched, max(size, grown - own)
        self._ops, self._most = self._log.ops, resident_bytes(at_most=True)
        if self._fake and self._grown > _OWN_GROWTH:
            self.earlier = self._grown - _OWN_GROWTH + self._log.alive_bytes()

    def _array_bytes_and_count(self) -> tuple[int, int]:
        sizes = _array_sizes(self._log)
        return _sum(sizes), sizes.total()

    def note_arrays_after_loop(self) -> None:
        """Look at what rounds of a loop have kept, at its end: what comes after came once."""
        if self._fake and self._progress.updates:
            self._trained = _array_sizes(self._log)

    def measure_later_growth(self) -> None:
        """Look at what came after the first update: what a data set caches, replays, what an evaluation computes."""
        if not (self._fake and self._progress.updates):
            return
        own = _OWN_GROWTH + OWN_OF_AN_OP * (self._log.ops - self._ops)
        most = resident_bytes(at_most=True)
        most = most if most > self._most else resident_bytes()
        sizes = _array_sizes(self._log)
        size = _sum(sizes)
        more, remaining = size - _sum(self._sizes), sizes if self._trained is None else sizes & self._trained
        cached = {size: count for size, count in (remaining - self._sizes).items() if count >= _SEVERAL}
        again = _sum(Counter(cached)) * self._progress.times
        kept_by_omitted = self._progress.arrays_kept
        again -= kept_by_omitted
        grown = max(self.arrays[1], size, most - self._before[0] - self._imported - own)
        objects = self._progress.objects_kept
        self.arrays = self.arrays[0], grown + kept_by_omitted + objects
        if objects > _GROWN_WHOLE:
            self._progress.note_missed(f"what omitted rounds add to lists and the like, {bytes_(objects)} at the most")
        if (more > _GROWN or max(again, kept_by_omitted) > _GROWN_WHOLE) and self._progress.omitted_any:
            growth = f"; followed ones made {bytes_(more)}" if more > _GROWN else ""
            limit = f", {bytes_(kept_by_omitted)} at the most" if kept_by_omitted else ""
            self._progress.note_missed(f"arrays of rounds that were omitted{limit}{growth}")
            self._progress.rest_unknown |= again > _GROWN_WHOLE

    def _update_growth(self) -> None:
        most = resident_bytes(at_most=True)
        most = most if most > self._before[1] else resident_bytes()  # the mark of what was before says nothing
        self._grown = max(self._grown, most - self._before[0] - self._imported)

    @contextlib.contextmanager
    def split_imports(self) -> Iterator[None]:
        """Tell what imports take, which is of the empty process, from what the script makes of its data."""
        running = False

        def watched(plain: Callable[..., Any], name: str, *more: Any, **options: Any) -> Any:
            nonlocal running
            if running or name in sys.modules:
                return plain(name, *more, **options)
            relative = name.startswith(".") or more[3:4] not in ((), (0,))  # of a package that is imported already
            if relative or self._is_beside(name):
                return plain(name, *more, **options)
            self._update_growth()
            running, before, modules = True, resident_bytes(), set(sys.modules)
            try:
                return plain(name, *more, **options)
            finally:
                running = False
                self._imported += max(0, resident_bytes() - before)
                by = str(more[0].get("__name__", "")) if more and isinstance(more[0], dict) else ""
                if by.partition(".")[0] not in ("torch", "stepscope"):  # what these need for themselves, any has
                    self.imported |= sys.modules.keys() - modules

        with contextlib.ExitStack() as stack:
            for owner, name in ((builtins, "__import__"), (importlib, "import_module")):
                stack.enter_context(temporary_attribute(owner, name, functools.partial(watched, getattr(owner, name))))
            yield

    def _is_beside(self, module: str) -> bool:
        """Return whether a module is the script's own: what it makes of data as it is imported is no import."""
        path = self._folder / module.partition(".")[0]
        return path.is_dir() or path.with_suffix(".py").is_file()


@contextlib.contextmanager
def count_joined_arrays(progress: Progress) -> Iterator[None]:
    """Count what numpy joins (`np.concatenate(outputs)`) with what was omitted, as that of `torch.cat` is.

    Arrays of tensors stand for more; of others there are as many as rounds that were followed.
    """
    numpy, log = sys.modules.get("numpy"), progress.log

    def omitted(arrays: Any) -> int:
        if numpy is None or not isinstance(arrays, (list, tuple)) or not arrays:
            return 0
        of_tensors = log.extra_bytes([_tensor_of(array) for array in arrays])
        if of_tensors or not isinstance(arrays[0], numpy.ndarray):
            return of_tensors
        return progress.arrays_of_rounds.get(len(arrays), 0)

    def joined(plain: Callable[..., Any], arrays: Any, *more: Any, **options: Any) -> Any:
        result, size = plain(arrays, *more, **options), omitted(arrays)
        if size:
            log.add_extra_bytes(size, f"numpy.{plain.__name__} of rounds that were omitted", result)
        return result

    with contextlib.ExitStack() as stack:
        for name in () if numpy is None else ("concatenate", "stack", "vstack", "hstack", "array", "asarray"):
            watched = functools.partial(joined, getattr(numpy, name))
            stack.enter_context(temporary_attribute(numpy, name, functools.wraps(getattr(numpy, name))(watched)))
        yield


def _tensor_of(array: Any) -> Any:
    """Return the tensor whose memory an array is of (`tensor.numpy()`), or None."""
    for _ in range(WITHIN + 2):
        array = getattr(array, "obj", array) if isinstance(array, memoryview) else getattr(array, "base", None)
        if hasattr(array, "tensor"):
            return array.tensor
    return None


_MAPPING = re.compile(r"^(\w+)-(\w+) ..(.)\S+ \S+ \S+ \d+ +(/.*)$", re.MULTILINE)


def mapped_files() -> dict[str, int]:
    """Return files that this process maps, none of whose pages are code, by path: B; none where no system says."""
    try:
        rows = _MAPPING.findall(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}
    sizes, code = Counter[str](), {path for _, _, executable, path in rows if executable == "x"}
    for begin, end, _, path in rows:
        if path not in code and not path.startswith(("/dev/", "/memfd:")):
            sizes[path] += int(end, 16) - int(begin, 16)
    return dict(sizes)


def _sum(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _array_sizes(log: StorageLog) -> Counter[int]:
    """How many arrays of numpy, texts, and tensors with numbers that no op of the log has made have so many bytes.

    Of objects that are set aside (gc.freeze) none counts that no other holds.
    """
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (bytes, bytearray, Tensor, *((numpy.ndarray,) if numpy is not None else ()))
    sizes: dict[int, int] = {}
    twins: set[int] = set()  # numbers that fake tensors keep
    inner: Any
    for inner in referents(kinds):
        if isinstance(inner, (bytes, bytearray)):
            sizes[id(inner)] = len(inner) * (len(inner) >= _LARGE)
        elif isinstance(inner, Tensor):
            strided = inner.device.type == "cpu" and inner.layout is torch.strided
            if isinstance(inner, FakeTensor):
                twins.update([] if inner.constant is None else [inner.constant.untyped_storage().data_ptr()])
            elif not is_lazy(inner) and strided and not log.knows(inner):
                storage = inner.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes() * (storage.nbytes() >= _LARGE)
        elif inner.base is None:
            sizes[inner.__array_interface__["data"][0]] = int(inner.nbytes)
    return Counter(size for place, size in sizes.items() if size and place not in twins)


def imports_of_script(
    script: Path, brought: Iterable[str] = (), folder: Path | None = None, packages: Iterable[str] = ()
) -> frozenset[str]:
    """Modules beside torch and the standard library that a script and files beside it import, and what came along.

    brought: modules that were not there before its imports, as those of torch's that not each training needs. folder:
    where its own modules are, if that is not beside it. packages: files of the packages that it is a module of.
    """
    folder = script.parent if folder is None else folder
    named: set[str] = set()
    visited: set[Path] = set()
    waiting = [script, *map(Path, packages)]
    while waiting:
        file = waiting.pop()
        if file in visited:
            continue
        visited.add(file)
        for within, name in _imported(file):
            own = (within or folder) / Path(*name.split("."))
            beside = [path for path in (own.with_suffix(".py"), own / "__init__.py") if path.is_file()]
            waiting += beside
            if not (beside or within):
                named.add(name)
    packages = {name.partition(".")[0] for name in named} - sys.stdlib_module_names - {"torch", "stepscope"}
    mine = {"__main__", "stepscope", *(path.stem for path in folder.glob("*.py"))} | sys.stdlib_module_names
    along = {name for name in brought if name.partition(".")[0] not in mine}
    return frozenset(name for name in sys.modules if name.partition(".")[0] in packages) | along


def _imported(file: Path) -> Iterable[tuple[Path | None, str]]:
    """Yield the names that a file imports, each with the folder in which a relative one is looked for."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((None, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            within = list(file.parents)[: node.level][-1] if node.level else None
            start = [node.module] if node.module else []
            names = [".".join([*start, alias.name]) for alias in node.names]
            yield from ((within, name) for name in [*start, *names])
