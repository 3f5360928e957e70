"""Items of a loop by what can matter for memory: names, whole numbers, shapes and lengths."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

_SHORT = 16  # items: of such a sequence each that differs can be followed
_DEEP = 3  # containers within containers
_LARGER = 1.05  # times as large: less is not worth a word
_ALIKE = 0.05  # of what is live: rounds of like items that differ by more are not alike
_MOST_COMPARED = 100_000  # items of a list


@dataclass(frozen=True)
class _Part:
    """A part of an item: what must be equal, and sizes of which larger ones stand for smaller ones."""

    kind: tuple[Any, ...]
    sizes: tuple[int, ...] = ()
    number: int | None = None  # that may count rounds


def is_short(iterable: Any) -> bool:
    """Return whether a sequence has few items; a loader may have `__len__` and no length."""
    try:
        return len(iterable) <= _SHORT
    except Exception:
        return False


class FollowedItems:
    """Items of a loop that were followed. Of a `short` one any difference counts, else what is larger than before."""

    def __init__(self, short: bool) -> None:
        self._short = short
        self._followed: list[tuple[_Part, ...]] = []
        self._before: tuple[tuple[_Part, ...], ...] = ()  # the last two, followed or not

    def note_in_order(self, item: Any) -> None:
        """Note an item that was followed, one after another from the first."""
        self.note_followed(item)
        self._before = (*self._before[-1:], self._followed[-1])

    def note_followed(self, item: Any) -> None:
        """Note an item that is followed, of those that `differs` was asked of."""
        self._followed.append(tuple(_item_parts(item, self._short)))

    @property
    def sizes_of_last(self) -> list[Any]:
        """Return kinds and sizes of the item that was followed last, without its numbers."""
        return [(part.kind, part.sizes) for part in self._followed[-1]]

    def follow_largest(self, many: Sequence[Any]) -> Any:
        """Return the largest of items, which is followed: smaller ones differ no more; None of few or of none."""
        if self._short or not many:
            return None
        item = max(many, key=_size)
        self.note_followed(item)
        return item

    def differs(self, item: Any) -> bool:
        """Return whether an item is like none that was followed; a number that goes in even steps counts rounds."""
        parts = tuple(_item_parts(item, self._short))
        counted = {place for place in range(len(parts)) if self._is_round_counter(place, parts[place])}
        self._before = (*self._before[-1:], parts)
        return not any(self._stands_for(followed, parts, counted) for followed in self._followed)

    def _is_round_counter(self, place: int, part: _Part) -> bool:
        numbers = [before[place].number if place < len(before) else None for before in self._before] + [part.number]
        whole = [number for number in numbers if number is not None]
        return len(whole) == 3 and whole[2] - whole[1] == whole[1] - whole[0] != 0

    def _stands_for(self, followed: tuple[_Part, ...], new: tuple[_Part, ...], counted: set[int]) -> bool:
        return len(followed) == len(new) and all(
            index in counted or self._covers(old, part)
            for index, (old, part) in enumerate(zip(followed, new, strict=True))
        )

    def _covers(self, old: _Part, new: _Part) -> bool:
        if self._short or old.kind != new.kind:
            return old == new
        numbers = () if old.number is None or new.number is None else ((old.number, new.number),)
        return all(a >= b for a, b in (*numbers, *zip(old.sizes, new.sizes, strict=True)))


def _size(item: Any) -> int:
    return sum(math.prod(part.sizes) if part.sizes else part.number or 0 for part in _item_parts(item, short=False))


def extreme_rounds(later: range, followed: Sequence[int], numbers: Sequence[Any], most_s: float) -> list[int]:
    """Return places of those of the later rounds for which a number is larger or smaller than of all that are followed.

    numbers: pairs of a function of the round and one of the variables that it depends on, which are to be numbers too.
    """
    places, began = set[int](), time.process_time()
    for number, variables in numbers:
        with contextlib.suppress(Exception):  # a variable may have no value yet
            if not (all(map(_is_of_numbers, variables())) and type(number(followed[0])) is int):
                continue
            before, values = [number(item) for item in followed], list[int]()
            for item in itertools.islice(later, _MOST_COMPARED):
                if time.process_time() - began > most_s:
                    return sorted(places)
                values.append(number(item))
            places |= {values.index(max(values))} if values and max(values) > max(before) else set()
            places |= {values.index(min(values))} if values and min(values) < min(before) else set()
    return sorted(places)


def _is_of_numbers(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    return all(type(item) in (int, float, bool) for item in items)


class RoundLikeness:
    """Rounds of like items that took the same branches: `broken` where they differ in what they take."""

    def __init__(self) -> None:
        self.broken = False
        self._before: tuple[Any, int, int] | None = None

    def see(self, kind: Any, most: int, highest: int, makes_states: bool) -> None:
        """Compare a round with the one before it: the most that it took, and the most that was live, B.

        makes_states: whether what those before it took says nothing, and what it takes itself neither.
        """
        before, self._before = self._before, None if makes_states else (kind, most, highest)
        if makes_states:
            self.broken = False
        elif before is not None and before[0] == kind:  # gradients that add up are new in one round, live in the next
            least = min(abs(most - before[1]), abs(highest - before[2]))
            self.broken |= least > _ALIKE * max(highest, before[2])


class Picks:
    """Items that rounds pick out of lists, arrays and dictionaries by their number, against the largest that are there.

    Only sizes are kept. Numbers of which none comes twice are an order in which others are picked, or name something.
    """

    def __init__(self) -> None:
        self._looked: dict[int, tuple[int, int]] = {}  # by place: which container, of how many items
        self._compared = Counter[int]()  # by place: items that were looked at
        self._largest, self._picked = Counter[int](), Counter[int]()

    def note(self, place: int, items: Any, key: Any, otherwise: Any) -> None:
        """Note that a place in the script picks an item, or a slice; otherwise: the item where there is none."""
        values = _items_of_container(items)
        if values is None or hasattr(key, "dtype"):  # an array picks many: batches of an order
            return
        if self._looked.get(place) != (id(items), len(values)) and self._compared[place] < _MOST_COMPARED:
            self._looked[place] = id(items), len(values)
            self._compared[place] += len(values)
            if not _are_names(values):
                largest = max(map(_size_with_texts, itertools.islice(values, _MOST_COMPARED)), default=0)
                self._largest[place] = max(self._largest[place], largest)
        with contextlib.suppress(Exception):  # a key that is not there: it is the script's to fail
            picked = items.get(key, otherwise) if isinstance(items, Mapping) else values[key]
            several = picked if isinstance(key, slice) else [picked]
            self._picked[place] = max([self._picked[place], *map(_size_with_texts, several)])

    def omits_larger(self, place: int) -> bool:
        """Return whether there are larger items than those that were picked."""
        return self._largest[place] > self._picked[place] * _LARGER


def _items_of_container(items: Any) -> Sequence[Any] | None:
    """Return what a container holds, where it is one of many items; of arrays numbers that are sizes."""
    if isinstance(items, (list, tuple)):
        return items
    if isinstance(items, Mapping):
        return list(items.values())
    numbers = getattr(items, "constant", None) if isinstance(items, FakeTensor) else items
    if getattr(numbers, "ndim", 0) == 1 and "int" in str(getattr(numbers, "dtype", "")):
        with _disable_current_modes():
            return list(numbers.tolist())  # type: ignore[union-attr]
    return None


def _are_names(items: Sequence[Any]) -> bool:
    whole = all(isinstance(item, int) for item in items) and len(set(items)) == len(items)
    return whole and (len(items) > _SHORT or set(items) == set(range(len(items))))


def _size_with_texts(item: Any) -> int:
    """Return the size of an item, and the lengths of texts in it that are no names."""
    texts = (part.kind[0] for part in _item_parts(item, short=False) if len(part.kind) == 1)
    return _size(item) + sum(len(text) for text in texts if isinstance(text, str) and " " in text)


def batch_sizes(batch: Any) -> list[tuple[tuple[Any, ...], tuple[int, ...]]]:
    """Return kinds and sizes of what a batch consists of, texts by their lengths."""
    return [
        (("text",), (len(part.kind[0]),)) if part.kind and isinstance(part.kind[0], str) and len(part.kind) == 1
        else (part.kind, part.sizes)
        for part in _item_parts(batch, short=False)
    ]  # fmt: skip


def tensors_of(nest: Any, visited: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors of a batch, those that objects hold too, as a mapping of a tokenizer's or a graph."""
    visited = set() if visited is None else visited
    for leaf in tree_leaves(nest):
        if id(leaf) in visited:
            continue
        visited.add(id(leaf))
        if isinstance(leaf, Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, (nn.Module, type, Callable)):  # type: ignore[arg-type]
            yield from tensors_of(list(vars(leaf).values()), visited)


def _item_parts(item: Any, short: bool, depth: int = 0) -> Iterator[_Part]:
    if isinstance(item, (str, bytes, bool)) or item is None:
        yield _Part((item,))
    elif isinstance(item, int):
        yield _Part((int,), number=item)
    elif isinstance(item, (float, complex)):
        yield _Part((float, item if short else 0.0))
    elif isinstance(item, Tensor) or hasattr(item, "shape"):
        sizes = item.shape if isinstance(item.shape, (tuple, list)) else ()  # it may be a word of a configuration
        shape = tuple(int(size) for size in sizes if isinstance(size, int))
        yield _Part((type(item), str(getattr(item, "dtype", "")), len(shape)), shape)
    elif isinstance(item, (nn.Module, Callable)):  # type: ignore[arg-type]
        yield _Part((id(item),))
    elif isinstance(item, (list, tuple, set, frozenset, Mapping)):
        yield from _parts_of_many(item, short, depth)
    elif depth < _DEEP and hasattr(item, "__dict__"):
        yield _Part((type(item),))
        yield from _parts_of_many(vars(item), short, depth)
    else:
        yield _Part((type(item),))


def _parts_of_many(many: Any, short: bool, depth: int) -> Iterator[_Part]:
    plain = depth > 0 and isinstance(many, list) and all(isinstance(inner, (int, float)) for inner in many)
    if plain or len(many) > _SHORT or depth >= _DEEP:
        yield _Part((type(many), "of so many"), (len(many),))
        return
    yield _Part((type(many), len(many)))
    for inner in (part for pair in many.items() for part in pair) if isinstance(many, Mapping) else many:
        yield from _item_parts(inner, short, depth + 1)
