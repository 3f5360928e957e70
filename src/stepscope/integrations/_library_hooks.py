"""Somebody else's library: imported when it is used, its callbacks guarded, its calls observed during a recording."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.errors import MissingDependency
from stepscope.record.fault_boundary import Boundary, is_ours

if TYPE_CHECKING:
    from stepscope.integrations._training import TrainingRun


def import_library(module: str, extra: str) -> Any:
    """The library; MissingDependency where it is not installed or cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"{module} is needed for this and cannot be imported: {error}"
        raise MissingDependency(message, f"pip install 'stepscope[{extra}]'") from error


def version_of(library: ModuleType) -> str:
    """Return the version of the library."""
    return str(getattr(library, "__version__", "unknown"))


T = TypeVar("T")
_OPENING = ("on_train_start", "on_train_begin", "start")
_OTHERS = ("teardown", "store_init_configuration", "finish")


class Recording:
    """Base of the hooks of every library; options are those of `stepscope.profile`.

    `recording.run` is the run once the training is over, `recording.path` its folder.
    """

    def __init__(self, **options: Any) -> None:
        from stepscope.integrations._training import TrainingRun

        super().__init__()
        self.recording: TrainingRun = TrainingRun(**options)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: nothing of a training that goes on."""
        return {**vars(self), **self._idle_state()}

    def _idle_state(self) -> dict[str, Any]:
        """The attributes that a training changes, as they are before it."""
        return {}


def class_on_demand(
    hooks: type[Recording], bases: Callable[[], tuple[type, ...]], name: str = "StepscopeCallback"
) -> Callable[[str], Any]:
    """The `__getattr__` of a module that makes its one class, of the library's own kind, when it is first needed.

    The class has these hooks, guarded, and is named as if it stood in their file, for pickle.
    """

    @functools.cache
    def make() -> type:
        callback = type(name, (hooks, *bases()), {"__module__": hooks.__module__, "__doc__": hooks.__doc__})
        for hook in vars(hooks):
            if hook.startswith("on_") or hook in (*_OPENING, *_OTHERS):
                setattr(callback, hook, guard_hook(getattr(hooks, hook)))
        return callback

    def attribute_of_module(attribute: str) -> Any:
        if attribute != name:
            raise AttributeError(f"module '{hooks.__module__}' has no attribute '{attribute}'")
        return make()

    return attribute_of_module


def guard_hook(hook: Callable[..., Any]) -> Callable[..., None]:
    """A hook of a callback with a `recording`: what fails in it ends the recording and nothing else."""
    opens = hook.__name__ in _OPENING

    @functools.wraps(hook)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        self.recording.guard(hook, self, *args, opens=opens, **kwargs)

    return call


def try_call(ask: Callable[..., T], *args: Any) -> T | None:
    """Return what the trainer says of itself, which may run code of the user's; None where that fails."""
    try:
        return ask(*args)
    except BaseException as error:
        if not is_ours(error):
            raise
        return None


# A route replaces a function of the library's own class or module, is shared by all who listen, and is taken back when
# the last of them leaves. Where somebody else has wrapped it meanwhile it stays below, as a plain pass-through.

Scope = AbstractContextManager[Any]


@dataclass(frozen=True, eq=False)
class Listener:
    """Receives the calls whose first argument `concerns` it; its actions go through its boundary."""

    boundary: Boundary
    concerns: Callable[[Any], bool]
    scope: Callable[[], Scope | None] | None = None  # a range to be open around the call
    returned: Callable[[Any], None] | None = None
    raised: Callable[[BaseException], None] | None = None

    def enter(self) -> Scope | None:
        """The range around the call, entered."""
        scope = None if self.scope is None else self.scope()
        if scope is not None:
            scope.__enter__()
        return scope


class _Route:
    """One function of a library, replaced for as long as somebody listens."""

    def __init__(self, owner: Any, name: str) -> None:
        self.listeners: list[Listener] = []
        self.owner, self.name = owner, name
        self.plain = plain = vars(owner)[name]
        listeners = self.listeners

        @functools.wraps(plain)
        def routed(*args: Any, **kwargs: Any) -> Any:
            call: Callable[..., Any] = plain
            for listener in tuple(listeners) if args else ():
                if listener.boundary.call(listener.concerns, args[0]):
                    call = functools.partial(_recorded_call, listener, call)
            return call(*args, **kwargs)

        self.routed = routed

    @property
    def in_place(self) -> bool:
        """Return whether the route is still in its place."""
        return vars(self.owner).get(self.name) is self.routed


_ROUTES: dict[tuple[int, str], _Route] = {}


def listen(owner: Any, name: str, listener: Listener) -> Callable[[], None]:
    """Hear of the calls of `owner.name` from now on; returns the undo function. Without such a function: nothing."""
    if owner is None or not callable(vars(owner).get(name)):
        return lambda: None
    key = id(owner), name
    route = _ROUTES.get(key)
    if route is None or not route.in_place:
        route = _ROUTES[key] = _Route(owner, name)
        setattr(owner, name, route.routed)
    route.listeners.append(listener)

    def undo() -> None:
        if listener in route.listeners:
            route.listeners.remove(listener)
        if not route.listeners and route.in_place:
            setattr(owner, name, route.plain)
            _ROUTES.pop(key, None)

    return undo


def class_of_library(thing: Any, name: str, *packages: str) -> type | None:
    """The library's own class that has this method, which those of others reach by `super()` if at all."""
    kinds = (kind for kind in type(thing).__mro__ if kind.__module__.partition(".")[0] in packages)
    return next((kind for kind in kinds if name in vars(kind)), None)


def same_object_test(thing: Any) -> Callable[[Any], bool]:
    """Return whether another object is this very one, which is not kept alive by it."""
    reference = weakref.ref(thing)
    return lambda other: reference() is other


def _recorded_call(listener: Listener, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    scope = listener.boundary.call(listener.enter)
    try:
        result = call(*args, **kwargs)
    except BaseException as error:
        if listener.raised is not None:
            listener.boundary.call(listener.raised, error)
        raise
    finally:
        if scope is not None:
            _leave_scope(scope)
    if listener.returned is not None:
        listener.boundary.call(listener.returned, result)
    return result


def _leave_scope(scope: Scope) -> None:
    """End a range, also where the door was shut within it."""
    try:
        scope.__exit__(None, None, None)
    except BaseException as error:
        if not is_ours(error):
            raise
