"""Objects of Python that a script keeps: what a data set takes of them, and what rounds of a loop add to containers."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorConverter

from stepscope.record.fault_boundary import is_foreign

WITHIN = 2  # containers within containers that hold arrays alone: transitions of a replay buffer in a dictionary
_DEEP = 12  # objects within objects
_MANY = 1000  # objects of a container that are looked at, of more than that
_NOT_OF_DATA = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, Tensor)
_FOLLOWERS = ("stepscope.", "torch._subclasses.")  # modules whose objects follow the script
_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
_CONTAINERS = frozenset((list, dict, set, deque, defaultdict, OrderedDict, Counter))
_ROUNDED = 16  # B: Python's allocator gives multiples of it
_WHOLE_NUMBER = 32  # B of one above 256, in place of those that are made up, all of which are one object
_AHEAD = 1.125  # times what is seen: a list takes room for more


def object_bytes(data: Any, with_arrays: bool = False) -> int:
    """Return what Python's objects of a data set take, and those of containers in the script and in its module, B.

    with_arrays: as whoever pickles it takes them, arrays with their numbers too.
    """
    homes = [sys.modules.get(name) for name in {"__main__", type(data).__module__}]
    own = [
        value
        for home in homes
        if home is not None and is_foreign(getattr(home, "__file__", None) or "")
        for name, value in vars(home).items()
        if isinstance(value, (list, tuple, dict, set)) and not name.startswith("__")
    ]
    return round(_size_of_objects([data, *own], set(), _size_with_numbers if with_arrays else _size_beside_numbers))


def _size_beside_numbers(inner: Any) -> float:
    return 0 if _is_array(inner) else sys.getsizeof(inner)


def _size_with_numbers(inner: Any) -> float:
    return int(inner.nbytes) if hasattr(inner, "nbytes") else _size_beside_numbers(inner)


def _size_where_kept(inner: Any) -> float:
    if _is_array(inner):
        return 0  # is counted as such
    of_numbers = isinstance(inner, (list, tuple)) and type(next(iter(inner), None)) is int
    return -(-sys.getsizeof(inner) // _ROUNDED) * _ROUNDED + (_WHOLE_NUMBER * len(inner) if of_numbers else 0)


def _is_array(inner: Any) -> bool:
    return getattr(inner, "dtype", None) is not None


def _size_of_objects(
    several: Sequence[Any], visited: set[int], size_of: Callable[[Any], float], deep: int = 0
) -> float:
    """Return the sizes of objects and of all that they hold, B; of what an array holds, objects."""
    looked = several if len(several) <= _MANY else several[:: len(several) // _MANY]
    size = 0.0
    for inner in looked:
        if id(inner) in visited or isinstance(inner, _NOT_OF_DATA):
            continue
        visited.add(id(inner))
        size += size_of(inner)
        if deep < _DEEP and type(inner) not in _PLAIN:
            within = _objects_of(inner) if _is_array(inner) else gc.get_referents(inner)
            size += _size_of_objects(within, visited, size_of, deep + 1)
    return size * len(several) / max(1, len(looked))


def _objects_of(array: Any) -> list[Any]:
    return list(array.reshape(-1)[:: max(1, array.size // _MANY)]) if str(array.dtype) == "object" else []


def referents(kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield what objects of the collector refer to, of some kinds: also what it does not know, as arrays."""
    level = gc.get_referents(*gc.get_objects())
    for deep in range(WITHIN + 1):
        exact = {kind for kind in set(map(type, level)) if issubclass(kind, kinds)}
        yield from (inner for inner in level if type(inner) in exact)
        if deep < WITHIN:
            within = (inner for inner in level if type(inner) in (dict, tuple) and not gc.is_tracked(inner))
            level = gc.get_referents(*within)


def _containers() -> Iterator[Any]:
    """Yield the containers that the collector knows, but for those of what follows the script."""
    known, ours = gc.get_objects(), set[int]()
    followers = {kind for kind in set(map(type, known)) if str(kind.__module__).startswith(_FOLLOWERS)}
    for follower in (inner for inner in known if type(inner) in followers):
        values = list(getattr(follower, "__dict__", {}).values())
        ours.update(map(id, values))
        if isinstance(follower, FakeTensorConverter):
            ours.update(id(within) for value in values if type(value) is dict for within in value.values())
    yield from (inner for inner in known if type(inner) in _CONTAINERS and id(inner) not in ours)


class AddedObjects:
    """Objects that each of the rounds of a loop adds to lists, dictionaries, sets and queues, which it keeps."""

    def __init__(self) -> None:
        # By identities of a container, whose place another may have soon, and of its first item: at the last look.
        self.lengths: dict[tuple[int, int], int] = {}
        self._visited = set[int]()
        self._rounds: list[dict[tuple[int, int], float]] = []  # by the same: B that a round added

    def look(self) -> None:
        """Look at what there is at the end of a round."""
        lengths, added = dict[tuple[int, int], int](), dict[tuple[int, int], float]()
        for container in filter(None, _containers()):
            key, length = (id(container), id(next(iter(container)))), len(container)
            before, lengths[key] = self.lengths.get(key, length), length
            if length > before:
                with contextlib.suppress(RuntimeError):  # a thread adds to it meanwhile
                    added[key] = self._size_of_last(container, before)
        self.lengths = lengths
        self._rounds.append(added)

    def _size_of_last(self, container: Any, before: int) -> float:
        """Return what was added last to a container that had so many items, B; what earlier ones hold was there."""
        items = list(container.items() if isinstance(container, Mapping) else container)
        _size_of_objects(items[:before], self._visited, _size_where_kept)
        new = items[before:]
        return _AHEAD * _size_of_objects([new], self._visited, _size_where_kept)

    def bytes_per_round(self) -> dict[tuple[int, int], float]:
        """Return what each of the last two rounds has added to a container at most, B, by the keys of `lengths`."""
        before, last = self._rounds[-2:] if len(self._rounds) > 2 else ({}, {})
        return {key: max(before[key], last[key]) for key in before.keys() & last.keys()}
