"""Python processes that a training starts join its run: launchers, ranks, spawned ones. Standard library only.

The training's own environment stays as it is. A child that is a Python process gets one more folder on PYTHONPATH,
whose sitecustomize takes both back before any other code runs, and waits for torch as the script's own process does.
Children that never train are not touched further: what is imported here, each of them imports, so that it is no more
than every Python process has. Forked children are never joined.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock, get_ident
from contextlib import suppress

TYPE_CHECKING = False  # as typing has it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any

ORDERS = "STEPSCOPE_TRAINING"
PYTHONPATH = "STEPSCOPE_PYTHONPATH"  # what PYTHONPATH was
STARTUP = f"{__file__.rpartition(os.sep)[0]}{os.sep}startup"
_PYTHONS = ("python", "pypy")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "fabric", "lightning")
_environment_lock = RLock()
_lent: tuple[int, dict[str, str | None]] | None = None  # while a child starts: by which thread, and what stood there
_ENV_PLACE = 10  # of `env` among the positional arguments of Popen, behind args


def _in_child() -> None:
    global _environment_lock, _lent
    _environment_lock = RLock()  # another thread may have held it
    if _lent is not None and _lent[0] != get_ident():  # of another thread's child: this one is none of ours
        os.environ.update({name: value for name, value in _lent[1].items() if value is not None})
        for name in [name for name, value in _lent[1].items() if value is None]:
            os.environ.pop(name, None)
        _lent = None
    with suppress(Exception):  # a fault of ours: the interpreter would print it among the child's own output
        if not forked_by_server():  # a forked child is not joined, also where it imports torch itself
            sys.meta_path[:] = [
                finder for finder in sys.meta_path if not (isinstance(finder, _Finder) and finder.waits_for("torch"))
            ]


def forked_by_server() -> bool:
    """Return whether `multiprocessing`'s server has forked this child, which then is to it what a spawned one is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(f"multiprocessing{os.sep}forkserver.py"):
            return True
        frame = frame.f_back
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def join_parent_run(orders: str) -> None:
    """Join the run of the training that started this Python process, should this one train too."""

    def record(torch: ModuleType) -> None:
        from stepscope.record.processes.training import Orders, Recording

        Recording(Orders.from_json(orders)).torch_is_here(torch)

    when_imported("torch", record)
    join_children(orders)


def join_children(orders: str) -> None:
    """Let every Python process that is started from now on join, by `subprocess` and by `multiprocessing`'s spawn."""
    when_imported("subprocess", lambda module: _wrap(module.Popen, "__init__", _joining_popen, orders))
    when_imported("multiprocessing.util", lambda module: _wrap(module, "spawnv_passfds", _joining_spawn, orders))


def environment(orders: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that joins."""
    before = inherited.get("PYTHONPATH")
    joined = {**inherited, ORDERS: orders, "PYTHONPATH": os.pathsep.join(filter(None, [STARTUP, before]))}
    return joined if before is None else {**joined, PYTHONPATH: before}


def starts_joinable_python(command: Any) -> bool:
    """Return whether a command of `subprocess` starts Python, as far as its words show, and one that hears of us.

    With -I, -E or -S it looks at no PYTHONPATH, or for no sitecustomize: what we left there would stay there.
    """
    if isinstance(command, (str, bytes, os.PathLike)):
        words: Sequence[Any] = os.fsdecode(command).split()
    else:
        words = list(command)
    if not words:
        return False
    first = os.path.basename(os.fsdecode(words[0]))  # noqa: PTH119 - may be bytes of any kind
    if first in _LAUNCHERS:
        return True
    return first.startswith(_PYTHONS) and not _disables_site_hooks(words[1:])


def _disables_site_hooks(words: Sequence[Any]) -> bool:
    """Return whether one of the options before the program is -I, -E or -S, alone or among others (-Ic)."""
    valued = False
    for word in map(os.fsdecode, words):
        if valued:
            valued = False
            continue
        if not word.startswith("-") or word.startswith("--"):
            break
        for index, letter in enumerate(word[1:], 2):
            if letter in "IES":
                return True
            if letter in "cm":
                return False
            if letter in "WX":
                valued = index == len(word)
                break
    return False


def _joining_popen(plain: Callable[..., Any], orders: str) -> Callable[..., Any]:
    inheriting = _joining_spawn(plain, orders)

    def start(self: Any, args: Any, *arguments: Any, **options: Any) -> Any:
        begin = plain
        try:
            if len(arguments) <= _ENV_PLACE - 1 and starts_joinable_python(options.get("executable") or args):
                if options.get("env") is None:  # it inherits what C knows, which may be more than `os.environ` does
                    begin = inheriting
                else:
                    options["env"] = environment(orders, options["env"])
        except Exception as error:
            _raise_unless_ours(error)
        return begin(self, args, *arguments, **options)

    return start


def _joining_spawn(plain: Callable[..., Any], orders: str) -> Callable[..., Any]:
    def spawn(*args: Any, **options: Any) -> Any:
        """The child inherits this environment: it is changed for as long as the call takes, by one thread at a time."""
        with _environment_lock:
            global _lent
            before, variables = _lent, {name: os.environ.get(name) for name in (ORDERS, PYTHONPATH, "PYTHONPATH")}
            try:
                _lent = get_ident(), variables
                os.environ.update(environment(orders, os.environ))
            except Exception as error:
                _raise_unless_ours(error)
            try:
                return plain(*args, **options)
            finally:
                for name, value in variables.items():  # here: nothing of ours that it would call could fail
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value
                _lent = before

    return spawn


def _wrap(owner: Any, name: str, around: Callable[[Callable[..., Any], str], Callable[..., Any]], orders: str) -> None:
    from functools import wraps

    plain = vars(owner)[name]
    setattr(owner, name, wraps(plain)(around(plain, orders)))


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call `action` with the module once it is imported, or now where it is there; what fails in it stays there."""
    module = sys.modules.get(name)
    if module is not None:
        _run_import_action(action, module)
    else:
        sys.meta_path.insert(0, _Finder(name, action))


def _run_import_action(action: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        action(module)
    except BaseException as error:
        _raise_unless_ours(error)


def _raise_unless_ours(error: BaseException) -> None:
    from stepscope.record.fault_boundary import is_ours

    if is_ours(error):
        return
    try:
        raise error
    finally:
        del error  # its traceback has this frame


class _Finder:
    """Finds one module by whatever stands behind it, until the module is loaded: asking for it alone loads nothing."""

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self._name, self._action = name, action

    def waits_for(self, name: str) -> bool:
        """Return whether it is there for this module."""
        return self._name == name

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        if name != self._name or self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    loader: Any = _Loader(spec.loader, self)
                    spec.loader = loader
                return spec
        return None

    def loaded(self, module: ModuleType) -> None:
        """The module is there: nothing is left to find."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _run_import_action(self._action, module)


class _Loader:
    """Loads as the module's own loader does, which is in its place again afterwards."""

    def __init__(self, own: Any, finder: _Finder) -> None:
        self._own, self._finder = own, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._own.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        try:
            self._finder.loaded(module)
        except BaseException as error:
            _raise_unless_ours(error)
