"""The calls of a script that is followed which open, write, move and delete files, save and load: nothing is written.

They are answered by an overlay; what torch.save is given comes back from torch.load. A call of Python's that is not
answered and would write to a file of the user's ends what can be followed. What a library writes below Python (a data
base, parquet), or another program, is not seen.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import functools
import glob
import importlib
import importlib.util
import io
import os
import pathlib
import pickle
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from stepscope.footprint.script_overlay import Overlay
from stepscope.footprint.script_progress import Progress, temporary_attribute
from stepscope.footprint.script_write_guard import guard_writes
from stepscope.record.dry.storage_log import SAVING

_RECORDS = 1024  # B of a saved file beside its tensors, at the least
_SCRIPTED: Any = vars(torch.jit)["RecursiveScriptModule"]
_KEPT_WHOLE = 1024  # B: a smaller tensor keeps its numbers, as a count of steps
_PROFILE = torch.autograd.profiler.profile  # its traces are written below Python


class ScriptFiles:
    """Files that a script writes and saves while they are `kept`."""

    def __init__(self, progress: Progress, alone: bool) -> None:
        """alone: whether the script reaches nothing outside (see guarded)."""
        self._progress, self._log, self._alone = progress, progress.log, alone

    @contextlib.contextmanager
    def intercept(self) -> Iterator[Overlay]:
        """Answer the calls that open, write, move and delete files, and those that save and load."""
        with tempfile.TemporaryDirectory(prefix="stepscope-fit-") as folder, contextlib.ExitStack() as stack:
            files = Overlay(Path(folder), self._progress)
            stack.callback(files.close)
            of_system = _os_replacements(files)
            replacements: dict[int, tuple[Any, Any]] = {}  # by identity: what answers, and the call in whose place
            stack.callback(_give_back_plain_calls, replacements)
            for owner, name, value in (
                *_references_in_modules(files, of_system), *of_system, (os, "system", self._skip_os_system),
                (builtins, "open", files.open), (io, "open", files.open),
                (io, "open_code", lambda path: files.open(path, "rb")),
                (torch._C, "PyTorchFileWriter", files.redirect_file_argument(torch._C.PyTorchFileWriter, 0, "w")),
                (_PROFILE, "export_chrome_trace",
                 files.redirect_file_argument(_PROFILE.export_chrome_trace, 1, "w", "path")),
                (shutil, "rmtree", files.remove_tree), (shutil, "copyfile", files.copy_file),
                (shutil, "copystat", files.change_nothing),
                (torch, "save", functools.partial(self._save, files)),
                (torch, "load", functools.partial(_load, files, torch.load)),
                (torch, "from_file", functools.partial(_tensor_on_file, files, torch.from_file)),
                (torch.UntypedStorage, "from_file",
                 staticmethod(functools.partial(_storage_on_file, files, torch.UntypedStorage.from_file))),
                (torch.jit, "save", files.redirect_file_argument(torch.jit.save, 1, "w", "f")),
                (torch.jit, "load", files.redirect_file_argument(torch.jit.load, 0, "r", "f")),
                (_SCRIPTED, "save", files.redirect_file_argument(_SCRIPTED.save, 1, "w", "f")),
                (FakeTensor, "__reduce_ex__", self._reducer()), *self._safetensors_replacements(files),
            ):  # fmt: skip
                replacements[id(value)] = value, getattr(owner, name)
                stack.enter_context(temporary_attribute(owner, name, value))
            self._watch_imports(files, stack)
            with guard_writes(files, self._alone):
                yield files
                for name in files.larger_unread_files() if self._progress.omitted_any else ():
                    self._progress.note_missed(f"rounds that read larger files, as {name}")

    def _safetensors_replacements(self, files: Overlay) -> _Calls:
        if importlib.util.find_spec("safetensors") is None:
            return []
        of_safetensors = importlib.import_module("safetensors.torch")

        def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
            self._save(files, tensors, filename)

        def load_file(filename: Any, *more: Any, **options: Any) -> Any:
            return _load(files, plain, filename, *more, **options)

        plain = of_safetensors.load_file
        return [(of_safetensors, "save_file", save_file), (of_safetensors, "load_file", load_file)]

    @staticmethod
    def _watch_imports(files: Overlay, stack: contextlib.ExitStack) -> None:
        """Answer for libraries that open files below Python, once they are imported."""
        waiting = set(_OPENERS)

        def imported(plain: Callable[..., Any], name: str, *more: Any, **options: Any) -> Any:
            module = plain(name, *more, **options)
            if any(library in sys.modules for library in waiting):
                watch()
            return module

        def watch() -> None:
            for library in [library for library in waiting if _is_fully_imported(library)]:
                waiting.discard(library)
                _redirect_library_files(library, files, stack)

        watch()
        for owner, name in ((builtins, "__import__"), (importlib, "import_module")):
            stack.enter_context(temporary_attribute(owner, name, functools.partial(imported, getattr(owner, name))))

    def _skip_os_system(self, command: Any) -> int:
        self._progress.note_missed("what os.system runs: it is not run")
        return 0

    def _reducer(self) -> Callable[..., Any]:
        def reduce(tensor: Tensor, _protocol: int) -> Any:
            """Have pickle write sizes and types, and say that numbers would take memory."""
            self._progress.note_missed("what pickle takes of tensors")
            return _strided_sizes(tensor).new_tensor, ({},)

        return reduce

    def _save(self, files: Overlay, obj: Any, f: Any, *_more: Any, **_options: Any) -> None:
        size = sum(leaf.nbytes for leaf in tree_leaves(obj) if isinstance(leaf, Tensor))
        with self._log.scene(SAVING):
            if not hasattr(f, "write"):
                try:
                    files.open(f, "wb").close()
                except FileNotFoundError:
                    raise RuntimeError(f"Parent directory {Path(f).parent} does not exist.") from None  # torch's
                files.saved[files.writable_path(f)] = make_restorer(obj)
                files.set_file_size(files.writable_path(f), size + _RECORDS)
                return
            if isinstance(f, io.BytesIO):  # it holds it all
                self._log.add_extra_bytes(size, "saved", f)
                files.saved_in[f] = make_restorer(obj)
                return
            call = io.BytesIO()  # holds what is on its way
            self._log.add_extra_bytes(size, "saved", call)
            del call
            files.saved[files.name_of(f)] = make_restorer(obj)
            with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
                f.seek(size + _RECORDS, os.SEEK_CUR)
                f.truncate()


def _load(files: Overlay, plain: Callable[..., Any], f: Any, *more: Any, **options: Any) -> Any:
    if isinstance(f, (str, os.PathLike)):
        f = files.writable_path(f)
        restore = files.saved.get(f)
    else:
        restore = files.saved_in.get(f) if isinstance(f, io.BytesIO) else files.saved.get(files.name_of(f))
    return plain(f, *more, **options) if restore is None else restore()


def _tensor_on_file(
    files: Overlay, plain: Callable[..., Any], filename: Any, shared: bool | None = None, size: int = 0, **more: Any
) -> Tensor:
    """Return a tensor on a file as torch.from_file does, which writes to one that is shared."""
    place = files.writable_path(filename, "a" if shared else "r")
    try:
        return cast(Tensor, plain(place, shared, size, **more))
    except NotImplementedError:  # fake tensors have no files
        return torch.empty(size, **more)


def _storage_on_file(
    files: Overlay, plain: Callable[..., Any], filename: Any, shared: bool = False, nbytes: int = 0, **more: Any
) -> Any:
    return plain(files.writable_path(filename, "a" if shared else "r"), shared, more.pop("size", nbytes), **more)


_Calls = list[tuple[Any, str, Callable[..., Any]]]


def _give_back_plain_calls(replacements: dict[int, tuple[Any, Any]]) -> None:
    """Put calls of Python's and torch's back in modules that a script has imported, and which took those of its files.

    The user's process goes on with these modules, and its own files.
    """
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()) if isinstance(module, types.ModuleType) else ():
            if id(value) in replacements and replacements[id(value)][0] is value:
                vars(module)[name] = replacements[id(value)][1]


def _references_in_modules(files: Overlay, of_system: _Calls) -> _Calls:
    """Return the names by which modules that are imported keep calls of Python's, as bz2 and tarfile keep open."""
    answers = {id(getattr(owner, name)): value for owner, name, value in of_system if owner is os}
    answers[id(builtins.open)] = files.open
    modules = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and name.split(".")[0] not in _SYSTEM
    ]
    return [
        (module, name, answers[id(value)])
        for module in modules
        for name, value in list(vars(module).items())
        if id(value) in answers
    ]


_SYSTEM = ("os", "posix", "io", "_io", "builtins", "importlib", "_frozen_importlib_external", "stepscope")


def _os_replacements(files: Overlay) -> _Calls:
    """Return what answers for os; Python 3.10 has calls of its own in pathlib, and from 3.13 on glob has."""
    numbers = {
        name: functools.partial(files.wrap_stat(getattr(os, name), name != "lstat")) for name in ("stat", "lstat")
    }
    for_all: dict[str, Callable[..., Any]] = {
        **numbers,
        "remove": files.remove_file, "unlink": files.remove_file, "rmdir": files.remove_folder,
        "mkdir": files.make_folder, "rename": files.move_path, "replace": files.move_path,
        "link": files.make_hard_link, "symlink": files.make_symlink, "readlink": files.read_link,
        "mkfifo": files.make_pipe, "mknod": lambda path, *_more, **_options: files.open(path, "x").close(),
        "listdir": files.list_folder, "scandir": files.scanned, "access": files.accessible, "truncate": files.truncate,
        "getcwd": files.current_folder, "chown": files.change_nothing, "lchown": files.change_nothing,
        **{name: functools.partial(files.wrap_metadata_change(getattr(os, name))) for name in ("chmod", "utime")},
    }  # fmt: skip
    of_os: dict[str, Callable[..., Any]] = {
        "open": files.open_descriptor, "chdir": files.change_folder,
        "getcwdb": lambda: os.fsencode(files.current_folder()),
        "statvfs": functools.partial(files.wrap_stat(os.statvfs)),
        **dict.fromkeys(("fchmod", "fchown", "setxattr", "removexattr"), files.change_nothing),
    }  # fmt: skip
    calls: _Calls = [(os, name, value) for name, value in {**for_all, **of_os}.items() if hasattr(os, name)]
    accessor: Any = getattr(pathlib, "_NormalAccessor", None)
    calls += [(accessor, name, value) for name, value in for_all.items() if hasattr(accessor, name)]
    calls += [(accessor, "open", files.open)] if hasattr(accessor, "open") else []
    globber = getattr(glob, "_StringGlobber", None)
    globs: dict[str, Callable[..., Any]] = {"lstat": numbers["lstat"], "scandir": files.scanned}
    return calls + [(globber, name, staticmethod(value)) for name, value in globs.items() if hasattr(globber, name)]


_OPENERS = {"cv2": "imwrite", "h5py": "File", "numpy": "memmap"}  # libraries, and what of each opens files


def _is_fully_imported(library: str) -> bool:
    """Return whether a library is imported; while it is being imported, parts of it are missing."""
    module = sys.modules.get(library)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _redirect_library_files(library: str, files: Overlay, stack: contextlib.ExitStack) -> None:
    """Answer for a library that opens files below Python, or asks for more than a file that can be read."""
    module = sys.modules[library]
    if not hasattr(module, _OPENERS[library]):
        return  # a module of the user's that has its name
    if library == "cv2":
        stack.enter_context(temporary_attribute(module, "imwrite", lambda *_given, **_options: True))
    elif library == "h5py":
        stack.enter_context(
            temporary_attribute(
                module.File, "__init__", files.redirect_file_argument(module.File.__init__, 1, name="name")
            )
        )
    else:
        stack.enter_context(temporary_attribute(module.memmap, "__new__", files.wrap_memmap(module.memmap.__new__)))
        table = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
        if table is not None:  # numpy.savetxt and the like open by it
            table.keys()  # fills it
            openers = {**table._file_openers, None: files.open}
            stack.enter_context(temporary_attribute(table, "_file_openers", openers))


@dataclass(frozen=True)
class _Sizes:
    """A tensor without its storage; tensors of one storage have one again."""

    kind: type | None  # of a parameter
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    learns: bool
    storage: int
    elements: int  # of the storage

    def new_tensor(self, storages: dict[tuple[int, torch.dtype], Tensor]) -> Tensor:
        """Return a new tensor like it."""
        key = self.storage, self.dtype
        if key not in storages:
            storages[key] = torch.zeros(self.elements, dtype=self.dtype, device=self.device)
        tensor = storages[key].as_strided(self.shape, self.stride, self.offset)
        return nn.Parameter(tensor, self.learns) if self.kind is not None else tensor.requires_grad_(self.learns)


def make_restorer(content: Any) -> Callable[[], Any]:
    """Return what gives content back, with other tensors: it keeps none, but for small ones; arrays it keeps."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(content)
    except Exception:  # content that torch.save would refuse, or that __reduce__ of somebody's cannot give
        return functools.partial(copy.deepcopy, content)
    return functools.partial(_loaded, file.getvalue(), pickler.contents)


def _loaded(written: bytes, contents: list[Any]) -> Any:
    return _Unpickler(io.BytesIO(written), contents).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.contents: list[Any] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, thing: Any) -> int | None:
        if not (isinstance(thing, Tensor) or hasattr(type(thing), "__array_interface__")):
            return None
        if id(thing) not in self._places:
            self._places[id(thing)] = len(self.contents)
            self.contents.append(_sizes_of(thing) if isinstance(thing, Tensor) else thing)
        return self._places[id(thing)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, contents: list[Any]) -> None:
        super().__init__(file)
        self._contents, self._restored = contents, dict[int, Any]()
        self._storages: dict[tuple[int, torch.dtype], Tensor] = {}

    def persistent_load(self, place: Any) -> Any:
        if place not in self._restored:
            content = self._contents[place]
            restored = content.new_tensor(self._storages) if isinstance(content, _Sizes) else copy.deepcopy(content)
            self._restored[place] = restored
        return self._restored[place]


def _sizes_of(tensor: Tensor) -> _Sizes | Tensor:
    if tensor.layout is not torch.strided or tensor.nbytes <= _KEPT_WHOLE:
        return tensor.detach() if tensor.grad_fn is not None else tensor
    return _strided_sizes(tensor)


def _strided_sizes(tensor: Tensor) -> _Sizes:
    storage = tensor.untyped_storage()
    return _Sizes(
        nn.Parameter if isinstance(tensor, nn.Parameter) else None, tuple(tensor.shape), tensor.stride(),
        int(tensor.storage_offset()), tensor.dtype, tensor.device, tensor.requires_grad, storage._cdata,
        storage.nbytes() // tensor.element_size(),
    )  # fmt: skip
