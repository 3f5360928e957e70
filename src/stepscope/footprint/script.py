"""Follow a training script to its end on fake tensors: every phase, with loops cut to the rounds that can differ.

A loop in which the optimizer steps, or that evaluates, runs its first rounds and its last. A DataLoader hands out its
first three batches and its last, in this process whatever its workers. Nothing of the user's is written: files go into
a folder that is thrown away, nothing is deleted, and what torch.save is given comes back from torch.load.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import functools
import gc
import importlib
import importlib.util
import io
import itertools
import os
import shutil
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stepscope.errors import StepscopeError, UsageError, no_script
from stepscope.footprint.patience import MOST_S, OutOfPatience, Patience
from stepscope.footprint.real_steps import EnoughSteps, as_main, until_enough_steps
from stepscope.footprint.simulator import Loading
from stepscope.record.dry.dry_run import STEPS, DryRunStopped, number_for, quiet
from stepscope.record.dry.fake_numbers import FakeMode, arrays_of_fakes
from stepscope.record.dry.storage_log import SAVING, Rule, StorageLog, nothing_hidden

_MOST_UPDATES = 60
_TRAINED, _EVALUATED = 3, 8  # rounds of a loop, after which comes its last one
_MOST_SKIPPED = 100_000  # items of an iterator that has no last one before it was asked for all
_MOST_SKIPPING_S = 3.0  # of processor time for them
_LARGE = 65_536  # B: smaller arrays and texts are not looked at
_OWN_GROWTH = 30_000_000  # B that this process grows by until the first update, to follow it; 15 to 18 were measured
_OWN_TRAINING = 250_000_000  # the same where it trains for real
_ROUNDS, _PATIENCE = "__rounds__", "__patience__"


@dataclass(frozen=True)
class ScriptLog:
    """The log of a script; `stopped` says why fake tensors could not run it, where it was run for real instead.

    missed: what was not followed, in words. imports: modules beside torch. loading: of its data.
    """

    log: StorageLog
    stopped: str | None
    seconds: float
    missed: tuple[str, ...] = ()
    imports: frozenset[str] = frozenset()
    loading: Loading = field(default_factory=Loading)


def watch_script(target: str, arguments: Sequence[str], hidden: Rule) -> ScriptLog:
    """Run a script on fake tensors; where they stop it, for real until it made two updates. Its output goes to stderr.

    UsageError where there is no script, or where it ends without having trained anything.
    """
    if not Path(target).is_file():
        raise no_script(target)
    began = time.perf_counter()
    follower = Follower(StorageLog(hidden, value_of=_number), target, fake=True)
    stopped = None
    try:
        follower.run(arguments)
    except DryRunStopped as stop:
        stopped = str(stop)
        follower = Follower(StorageLog(nothing_hidden), target, fake=False)
        follower.run(arguments)
    return ScriptLog(
        follower.log,
        stopped,
        time.perf_counter() - began,
        tuple(follower.missed),
        _imports(Path(target)),
        follower.loading(),
    )


class Follower:
    """One run of a script, and what is seen of it."""

    def __init__(self, log: StorageLog, target: str, fake: bool) -> None:
        self.log, self.missed = log, list[str]()
        self._target, self._fake = target, fake
        self._updates = 0
        self._patience = Patience(target)
        self._loaders: dict[int, _Loader] = {}
        self._loading = Loading()
        self._saved: dict[str, Any] = {}
        self._arrays = (0, 0)
        self._before = (0, 0, 0)  # arrays, resident bytes of this process, and the most that they had been
        self._imported = self._grown = self._earlier = 0  # B: of imports, the most beside them, and with tensors

    def run(self, arguments: Sequence[str]) -> None:
        """Follow it; DryRunStopped where fake tensors cannot, before two updates were made."""
        mode: Any = FakeMode() if self._fake else contextlib.nullcontext()
        self._before = _array_bytes(self.log), _resident(), _resident(at_most=True)
        try:
            with (
                quiet(), as_main(self._target, arguments), self._own_files(), self._own_loaders(), self._own_imports(),
                until_enough_steps(self._stepped), mode, self.log, self._patience.kept(),
                arrays_of_fakes(self._looked),
            ):  # fmt: skip
                self._execute()
        except OutOfPatience as end:
            if self._updates == 0:
                raise UsageError(
                    f"'{self._target}' had made no optimizer step when {end}",
                    "give it less to do before it trains, or module:function",
                ) from end
            self._miss(f"what comes after {self._updates} updates: {end}")
        except EnoughSteps:
            pass
        except SystemExit as end:
            if end.code not in (None, 0) and self._fake:
                self._stop(f"the script left with {end.code}", end)
            if end.code not in (None, 0) and self._updates == 0:
                raise UsageError(
                    f"'{self._target}' left with {end.code} before it trained anything",
                    f"its own arguments stand behind it: stepscope fit {self._target} --epochs 1",
                ) from end
        except Exception as error:
            if not self._fake:
                at = [
                    frame.lineno
                    for frame in traceback.extract_tb(error.__traceback__)
                    if frame.filename == self._target
                ]
                where = f"line {at[-1]}: " if at else ""
                shown = f"python {self._target} shows it in full"
                if isinstance(error, EOFError):
                    shown = f"it reads standard input: stepscope fit {self._target} < FILE gives it some"
                raise StepscopeError(
                    f"'{self._target}' fails by itself: {where}{type(error).__name__}: {error}",
                    shown,
                ) from error
            self._stop(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", error)
        if self._updates == 0:
            raise UsageError(
                f"'{self._target}' ended without an optimizer step: it trains nothing that can be seen",
                "give a script that trains with torch.optim, or module:function",
            )

    def loading(self) -> Loading:
        """Return what its loaders of data and its arrays take."""
        return replace(self._loading, arrays=self._arrays, earlier=self._earlier)

    def _execute(self) -> None:
        """Run the script as `python script` would, with its loops cut."""
        source = Path(self._target).read_bytes()
        code = compile(ast.fix_missing_locations(_Loops().visit(ast.parse(source))), self._target, "exec")
        module = types.ModuleType("__main__")
        module.__dict__.update({"__file__": self._target, "__builtins__": builtins})
        module.__dict__.update({_ROUNDS: self._rounds, _PATIENCE: self._patience.check})
        plain = sys.modules["__main__"]
        sys.modules["__main__"] = module
        try:
            exec(code, module.__dict__)
        finally:
            sys.modules["__main__"] = plain

    def _looked(self) -> None:
        self.log.looks += 1

    def _miss(self, what: str) -> None:
        if what not in self.missed:
            self.missed.append(what)

    def _stop(self, reason: str, error: BaseException) -> None:
        stop = DryRunStopped(self.log.last_op, self.log.last_module, reason)
        if self._updates < STEPS:
            raise stop from error
        self._miss(f"what comes after {self._updates} updates: {stop}")

    def _stepped(self, optimizer: Any) -> bool:
        self.log.adopt_optimizer(optimizer)
        self.log.step += 1
        self._updates += 1
        if self._updates == 1:
            self._look_at_arrays()
        if not self._fake and self._updates >= STEPS:
            self._miss(f"what comes after {STEPS} updates, since fake tensors cannot run it")
            return True
        return self._exhausted()

    def _exhausted(self) -> bool:
        """Return whether it was followed for long enough; then what comes is missed."""
        if self._updates < _MOST_UPDATES and self._patience.used < MOST_S:
            return False
        self._miss(f"what comes after {self._updates} updates")
        return True

    # Loops

    def _rounds(self, iterable: Any) -> Iterator[Any]:
        """Yield the rounds of a loop that can differ: all, or where it trains or evaluates the first and the last."""
        iterator, done, trained, evaluated = iter(iterable), 0, 0, 0
        ends: list[int] = []
        for item in iterator:
            updates, looks = self._updates, self.log.evaluations
            yield item
            done += 1
            ends.append(self.log.alive_bytes())
            stepped = self._updates - updates
            trained += (_TRAINED if stepped > 1 else 1) if stepped else 0
            evaluated += self.log.evaluations > looks and not stepped
            if trained >= _TRAINED or evaluated >= _EVALUATED:
                break
        else:
            return
        last, skipped = self._last(iterable, iterator, done)
        self._keep_growing(ends, skipped)
        if last is not _NOTHING:
            yield last

    def _last(self, iterable: Any, iterator: Iterator[Any], done: int) -> tuple[Any, int]:
        """The last item of a loop, and how many before it are skipped."""
        if isinstance(iterable, (range, list, tuple)):
            left = len(iterable) - done
            return (iterable[-1], left - 1) if left > 0 else (_NOTHING, 0)
        last: Any = _NOTHING
        skipped, began = -1, time.process_time()
        for item in itertools.islice(iterator, _MOST_SKIPPED):
            last, skipped = item, skipped + 1
            if time.process_time() - began > _MOST_SKIPPING_S:
                break
        else:
            if skipped + 1 < _MOST_SKIPPED:
                return last, max(0, skipped)
        self._miss("a loop without an end in sight, beyond its first rounds")
        return last, max(0, skipped)

    def _keep_growing(self, ends: Sequence[int], skipped: int) -> None:
        """What each round keeps (outputs in a list, losses with their graphs) is kept by those that are skipped too."""
        growth = min((after - before for before, after in itertools.pairwise(ends[-3:])), default=0)
        if growth > 0 and skipped > 0:
            self.log.hold(growth * skipped, f"kept by {skipped} rounds of a loop")

    # Data

    @contextlib.contextmanager
    def _own_loaders(self) -> Iterator[None]:
        plain = DataLoader.__len__

        def length(loader: DataLoader[Any]) -> int:
            """Tell a library as many batches as it gets: it evaluates after the last. The script hears the truth."""
            whole = plain(loader)
            by_library = not isinstance(loader.dataset, IterableDataset) and _is_library(sys._getframe(1))
            return min(whole, _FIRST + 1) if by_library else whole

        batches = _instead(DataLoader, "__iter__", lambda loader: self._batches(loader))
        with batches, _instead(DataLoader, "__len__", length):
            yield

    def _batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        known = self._loaders.get(id(loader))
        if known is None:
            known = self._loaders[id(loader)] = _Loader(loader)
        known.running += 1
        try:
            yield from self._batches_of(known)
        finally:
            known.running -= not loader.persistent_workers

    def _batches_of(self, known: _Loader) -> Iterator[Any]:
        loader = known.loader
        alone, skipped = _alone(loader)
        ends: list[int] = []
        for number, batch in enumerate(iter(_iterator_of(alone))):
            ends.append(self.log.alive_bytes())
            if number == _FIRST and skipped is None:
                self._miss("a data set without a length, beyond its first batches")
                return
            if number == _FIRST:
                self._keep_growing(ends, skipped or 0)
            known.see(batch)
            self._note_workers()
            yield batch

    def _note_workers(self) -> None:
        """Keep the most of all workers that run at once, and of the batches that wait for them."""
        running = [loader for loader in self._loaders.values() if loader.running]
        before, workers = self._loading, sum(loader.workers for loader in running)
        waiting = [sum(ends) for ends in zip(*(loader.waiting for loader in running), strict=True)]
        self._loading = Loading(
            max(before.workers, workers),
            (max(before.batches[0], waiting[0]), max(before.batches[1], waiting[1])),
        )

    def _look_at_arrays(self) -> None:
        self._see_growth()  # first: to look at all arrays takes a list of all objects
        now, own = (_resident(), _OWN_GROWTH) if self._fake else (_resident(at_most=True), _OWN_TRAINING)
        size = max(0, _array_bytes(self.log) - self._before[0])
        self._arrays = size, max(size, now - self._before[1] - self._imported * self._fake - own)
        if self._fake and self._grown > _OWN_GROWTH:
            self._earlier = self._grown - _OWN_GROWTH + self.log.alive_bytes()

    def _see_growth(self) -> None:
        most = _resident(at_most=True)
        most = most if most > self._before[2] else _resident()  # the mark of what was before says nothing
        self._grown = max(self._grown, most - self._before[1] - self._imported)

    @contextlib.contextmanager
    def _own_imports(self) -> Iterator[None]:
        """Tell what imports take, which is of the empty process, from what the script makes of its data."""
        running = False

        def watched(plain: Callable[..., Any], name: str, *more: Any, **options: Any) -> Any:
            nonlocal running
            relative = name.startswith(".") or more[3:4] not in ((), (0,))  # of a package that is imported already
            if running or self._updates or relative or name in sys.modules or self._is_beside(name):
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
                stack.enter_context(_instead(owner, name, functools.partial(watched, getattr(owner, name))))
            yield

    def _is_beside(self, module: str) -> bool:
        """Return whether a module is the script's own: what it makes of data as it is imported is no import."""
        path = Path(self._target).parent / module.partition(".")[0]
        return path.is_dir() or path.with_suffix(".py").is_file()

    # Files

    @contextlib.contextmanager
    def _own_files(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="stepscope-fit-") as folder, contextlib.ExitStack() as stack:
            files = _Files(Path(folder))
            for owner, name, instead in (
                (builtins, "open", files.open), (io, "open", files.open),
                *((os, name, files.gone) for name in ("remove", "unlink", "rmdir", "removedirs")),
                *((os, name, files.moved) for name in ("rename", "replace", "renames")),
                *((os, name, files.made) for name in ("mkdir", "makedirs", "chmod", "utime")),
                (os, "listdir", functools.partial(files.listed, os.listdir)),
                (shutil, "rmtree", files.gone), (shutil, "move", files.moved),
                *((shutil, name, files.copied) for name in ("copy", "copy2", "copyfile")),
                (torch, "save", self._save), (torch, "load", functools.partial(self._load, torch.load)),
            ):  # fmt: skip
                stack.enter_context(_instead(owner, name, instead))
            if importlib.util.find_spec("safetensors") is not None:
                stack.enter_context(_instead(importlib.import_module("safetensors.torch"), "save_file", self._save))
            yield

    def _save(self, content: Any, f: Any, *_more: Any, **_options: Any) -> None:
        with self.log.scene(SAVING):
            if hasattr(f, "write"):  # a buffer holds it all
                size = sum(leaf.nbytes for leaf in tree_leaves(content) if isinstance(leaf, Tensor))
                self.log.hold(size, "saved", f if isinstance(f, io.BytesIO) else None)
            else:
                self._saved[str(Path(f).absolute())] = content

    def _load(self, plain: Callable[..., Any], f: Any, *more: Any, **options: Any) -> Any:
        path = str(Path(f).absolute()) if isinstance(f, (str, os.PathLike)) else None
        return copy.deepcopy(self._saved[path]) if path in self._saved else plain(f, *more, **options)


@contextlib.contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    plain = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, plain)


_NOTHING = object()
_FIRST = 3  # batches of a loader, before its last: a batch that is fetched ahead and a first state are no growth


class _Loops(ast.NodeTransformer):
    """Has each `for` go through the follower, and each `while` ask whether it may go on."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.iter = ast.copy_location(ast.Call(ast.Name(_ROUNDS, ast.Load()), [node.iter], []), node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        question = ast.Call(ast.Name(_PATIENCE, ast.Load()), [], [])
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [question, node.test]), node.test)
        return node


class _Loader:
    """A DataLoader of the script: its workers, and the batches that wait for the training."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader  # also keeps its id from being given to another
        self.workers, self._batch = loader.num_workers, 0
        self.running = 0  # iterators whose workers are there

    def see(self, batch: Any) -> None:
        """Note the size of a batch."""
        size = sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        self._batch = max(self._batch, size)

    @property
    def waiting(self) -> tuple[int, int]:
        """B in shared memory, least and most: some are taken before others are ready; the samples of one a worker."""
        if not self.workers:
            return 0, 0
        return self._batch, self.workers * ((self.loader.prefetch_factor or 2) + 2) * self._batch


def _alone(loader: DataLoader[Any]) -> tuple[DataLoader[Any], int | None]:
    """A loader of the same data without workers, of the batches that can differ, and how many it skips.

    None where the data have no length.
    """
    same = copy.copy(loader)
    same.__dict__.update(num_workers=0, timeout=0, pin_memory=False, prefetch_factor=None, _iterator=None)
    same.__dict__["persistent_workers"] = False
    if isinstance(loader.dataset, IterableDataset):
        return same, None
    with unset_fake_temporarily():
        sampler = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        chosen, count = _differing(getattr(loader, sampler))
    same.__dict__[sampler] = chosen
    return same, count - len(chosen)


def _differing(sampler: Any) -> tuple[list[Any], int]:
    """The first, the longest and the last of what a sampler gives, and how many those are."""
    if type(sampler) is BatchSampler and hasattr(sampler.sampler, "__len__"):
        samples, size = len(sampler.sampler), int(sampler.batch_size)  # type: ignore[arg-type]
        starts = range(0, samples - size + 1 if sampler.drop_last else samples, size)
        chosen = [*starts[:_FIRST], *starts[max(_FIRST, len(starts) - 1) :]]
        return [list(range(start, min(samples, start + size))) for start in chosen], len(starts)
    every = list(sampler)
    chosen = [*every[:_FIRST], *every[max(_FIRST, len(every) - 1) :]]
    longest = max(every, key=lambda batch: len(batch) if hasattr(batch, "__len__") else 0, default=None)
    return ([*chosen[:-1], longest, chosen[-1]] if longest not in (None, *chosen) else chosen), len(every)


def _is_library(frame: types.FrameType) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in Path(frame.f_code.co_filename).parts)


def _iterator_of(loader: DataLoader[Any]) -> Any:
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    return _SingleProcessDataLoaderIter(loader)


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


def _number(tensor: Tensor) -> Any:
    """A made-up number: more than none, so that a first result is the best so far, and is saved."""
    return number_for(tensor) or (0 if tensor.dtype == torch.bool else 1)


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


def _imports(script: Path) -> frozenset[str]:
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
