"""Loops of a script: a `for` in which the optimizer steps, or that evaluates, runs its first rounds and its last.

Between them those of items that differ from all before are followed: another model, a larger size, a longer text. A
`while` has no last round that is known: it ends after so many updates, and what comes after it is followed.
What runs only in rounds that were omitted is followed in another pass, in a last round, as if its condition were met.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from stepscope.footprint.script_loaders import next_or_omitted
from stepscope.footprint.script_loop_items import FollowedItems, Picks, RoundLikeness, extreme_rounds, is_short
from stepscope.footprint.script_progress import Growth, Progress
from stepscope.footprint.script_rewriter import LoopRewriter
from stepscope.units import bytes_

_TRAINED, _EVALUATED = 3, 8  # rounds of a loop, after which comes its last one
_DIFFERING = 12  # items that are followed besides
_MOST_SKIPPED = 100_000  # items of an iterator that has no last one before it was asked for all
_MOST_SKIPPING_S = 3.0  # of processor time for them
_NOTHING = object()
_Variables = Sequence[Callable[[], Any]]  # that may have no value yet
_LONGEST_PATH = 10_000  # branches of a round
_VALUES = 3  # of the names in a test, between two updates
_KEPT = 1_000_000  # B that a branch keeps that are worth a word
_ASKED = 64  # rounds of a `while` after each of which the time is looked at
_UPDATES, _AGAIN = 10, 4  # of a `while` that is followed for the first time, and later
KEPT_FOR_EVER = 10_000  # B that each round keeps of a loop that may have a million


class BranchSide(NamedTuple):
    """A side of a branch that only rounds take which were omitted, and how it is named."""

    side: bool
    words: str


class Loops:
    """The loops of one script while it is followed; code that the rewriter has transformed calls its functions."""

    next_or_omitted = staticmethod(next_or_omitted)

    def __init__(
        self, progress: Progress, on_loop_end: Callable[[], None], forced: Mapping[int, BranchSide], check: Any = int
    ) -> None:
        """on_loop_end: is called where an outermost loop ends of which rounds were omitted, or of a loop within.

        forced: sides that branches take once, by number, after rounds were omitted. check: raises where time is over.
        """
        self.rewriter = LoopRewriter()
        self._check = check
        self._on_loop_end, self._open, self._shortened = on_loop_end, 0, False  # `_open`: loops
        self._progress, self._log = progress, progress.log
        self._runs = Counter[int]()  # of each loop
        self._picks = Picks()
        self._whiles: dict[int, _While] = {}
        self._shortened_loops: set[int] = set()  # loops of which rounds were omitted
        self._taken: dict[int, set[bool]] = {}
        self._path: list[tuple[int, bool]] = []  # branches in their order, of a round of an outermost loop
        # Of names in a test, some by how many updates were made. No plain dictionary: those that are empty are seen by
        # who looks for growing containers, since the collector sets aside only what it tracks.
        self._values: defaultdict[tuple[int, int], set[Any]] = defaultdict(set)
        self._entered: dict[int, tuple[int, int]] = {}  # B that were live as it was taken, and updates
        self._kept: dict[int, int] = {}  # B that it kept when it was taken last
        self._forced = dict(forced)  # that were not yet
        self.forced: dict[int, str] = {}  # that were, by number, in words
        self.unseen: dict[int, BranchSide] = {}  # by number
        self.presumed: list[str] = []  # places of assertions that failed here

    def note_missed_branches(self) -> None:
        """Note what runs only in rounds that were omitted, and what is kept by a round now and then."""
        for number, branch in enumerate(self.rewriter.branches):
            sides = self._taken.get(number, set())
            if not (self._shortened_loops.intersection(branch.loops) if branch.loops else self._counts_rounds(number)):
                continue
            if True in sides and branch.changes:
                self._progress.note_missed(f"what changes at {branch.place} each time where {branch.test}")
            if sides == {False} and branch.body:
                self._miss_side(number, True, "only where")
            if sides == {True} and branch.otherwise:
                self._miss_side(number, False, "except where")
            if sides == {True, False} and self._kept.get(number, 0) > _KEPT:
                growth = f"{bytes_(self._kept[number])} each time where {branch.test}"
                self._progress.note_missed(f"what is kept at {branch.place} in rounds that were omitted: {growth}")
        self._note_omitted_picks()

    def _note_omitted_picks(self) -> None:
        changing = {branch.place for branch in self.rewriter.branches if branch.changes}  # of which it is said
        for number, pick in enumerate(self.rewriter.picks):
            cut = sorted(self._shortened_loops.intersection(pick.loops))
            omits = self._picks.omits_larger(number) and pick.place not in changing
            if omits and (cut or self._follows_omitted_rounds(pick.flags)):
                place = f"of the loop at {self.rewriter.places[cut[0]]}" if cut else f"that pick at {pick.place}"
                self._progress.note_missed(f"rounds {place}, whose data are larger")

    def _miss_side(self, number: int, side: bool, where: str) -> None:
        branch = self.rewriter.branches[number]
        self.unseen[number] = BranchSide(side, f"what runs at {branch.place} {where} {branch.test}")
        self._progress.note_missed(self.unseen[number].words)

    def _counts_rounds(self, number: int) -> bool:
        """Return whether what a branch asks of follows from rounds of a caller, some of which are omitted."""
        if self._follows_omitted_rounds(self.rewriter.branches[number].flags):
            return True
        values = [values for (branch, _), values in self._values.items() if branch == number]
        return len(values) > 1 < len(set().union(*values)) and self._progress.omitted_any

    def _follows_omitted_rounds(self, flags: Iterable[str]) -> bool:
        return self._progress.omitted_any and self.rewriter.flags.depend_on_rounds(flags)

    def note_test(self, number: int, test: Any, *values: Any, steady: Callable[[], Any] | None = None) -> bool:
        """Note a side that is taken, and return it; `steady` looks up a part of the test that no round changes."""
        side, branch = bool(test), self.rewriter.branches[number]
        loops = branch.loops
        if not (side or steady is None or _value(steady) or self.rewriter.flags.depend_on_rounds(branch.flags)):
            return False  # it is off
        if number in self._forced and (
            self._shortened_loops.intersection(loops) if loops else self._progress.omitted_any
        ):
            side, self.forced[number] = self._forced.pop(number)
        sides = self._taken.setdefault(number, set())
        if not loops and len(sides) > 1:  # what is asked millions of times has both soon
            return side
        sides.add(side)
        if self._open and len(self._path) < _LONGEST_PATH:
            self._path.append((number, side))
        if branch.parameters:
            values_now = self._values[number, self._progress.updates]
            if len(values_now) < _VALUES:
                values_now.add(tuple(value for value in map(_value, values) if type(value) is int))
        if side and loops:
            self._entered[number] = self._alive_beside(*values), self._progress.updates
        return side

    def note_returned_test(self, number: int, answer: Any, *values: Any) -> Any:
        """Note what a function answers, where that is a side."""
        return self.note_test(number, answer, *values) if type(answer) is bool else answer

    def note_pick(self, place: int, items: Any, *key: Callable[[], Any], otherwise: Any = None) -> Any:
        """Note that an item, or with two bounds a slice, is picked of a container, and return the container."""
        pick = self.rewriter.picks[place]
        if pick.loops or self.rewriter.flags.depend_on_rounds(pick.flags):
            values = [_value(part) for part in key]
            default = None if otherwise is None else _value(otherwise)
            self._picks.note(place, items, values[0] if len(values) == 1 else slice(*values), default)
        return items

    def presume_assertion(self, place: str) -> bool:
        """Return whether an assertion that fails may hold in a training: it may count rounds or look at a loss."""
        presumed = self._progress.omitted_any or bool(self._progress.omitted_batches) or self._log.value_reads > 0
        if presumed and place not in self.presumed:
            self.presumed.append(place)
        return presumed

    def leaves(self, number: int, *values: Callable[[], Any]) -> bool:
        """Return whether a loop is left where a number says so; one that may be made up ends no training."""
        if not (self._progress.updates and self._log.value_reads and self.rewriter.trains(number)):
            return True
        return not any(isinstance(_value(value), (float, FakeTensor)) for value in values)

    def leave_branch(self, number: int, *variables: _Variables) -> None:
        """Note what a side that was taken has kept."""
        alive, updates = self._entered[number]
        if updates == self._progress.updates or number in self._kept:  # a first update makes an optimizer's state
            self._kept[number] = self._alive_beside(*variables) - alive
        else:
            self._kept[number] = 0

    def _alive_beside(self, replaced: _Variables = (), put: _Variables = ()) -> int:
        """Return what is live beside the values of variables that a branch replaces and puts nowhere, B."""
        return self._log.alive_bytes() - sum(
            {**self._storage_bytes(replaced), **dict.fromkeys(self._storage_bytes(put), 0)}.values()
        )

    def _storage_bytes(self, variables: _Variables) -> dict[int, int]:
        """Return how many bytes the storages of tensors have that variables, or containers in them, hold."""
        sizes: dict[int, int] = {}
        for variable in variables:
            with contextlib.suppress(NameError):
                for value in tree_leaves(variable()):
                    if isinstance(value, Tensor) and self._log.knows(value):
                        storage = value.untyped_storage()
                        sizes[storage._cdata] = storage.nbytes()
        return sizes

    def begin(self, number: int) -> None:
        """Note that a `while` begins."""
        earlier = self._whiles.get(number)
        most = _AGAIN if earlier is not None and earlier.last else _UPDATES
        self._whiles[number] = loop = _While(self._progress, most)
        self._progress.allowed = max(self._progress.allowed, loop.until + 6 * _UPDATES)

    def goes_on(self, number: int) -> bool:
        """Return whether a `while` may go on: to its last round that is followed, and no further."""
        loop, place = self._whiles[number], self.rewriter.places[number]
        loop.rounds += 1
        if loop.rounds % _ASKED == 1:
            self._check()
        if self._progress.updates == loop.began:
            return True
        loop.growth.note()
        if self._progress.updates < loop.until:
            return True
        if loop.last < self._progress.last_rounds:
            loop.last, self._progress.omitted_any = loop.last + 1, True
            self._shortened_loops.add(number)
            return True
        self._progress.ended_early = True
        self._progress.note_missed(f"rounds of the loop at {place} after {self._progress.updates - loop.began} updates")
        if loop.growth.bytes_per_round > KEPT_FOR_EVER:
            self._progress.note_missed(f"{bytes_(loop.growth.bytes_per_round)} that each of them keeps")
            self._progress.rest_unknown = True
        if self._open == 0:
            self._on_loop_end()
        return False

    def enumerate_items(self, plain: Any, *arguments: Any, **options: Any) -> Any:
        """Return what enumerate() gives, with the true numbers; `plain` may be a function of the script's own."""
        return (
            self._enumerate_with_omitted(*arguments, **options) if plain is enumerate else plain(*arguments, **options)
        )

    def _enumerate_with_omitted(self, iterable: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
        source = _Source(iterable, self._progress)
        for number, item in enumerate(source, start):
            yield number + source.omitted, item

    def rounds(self, iterable: Any, number: int, *numbers: Any) -> Iterator[Any]:
        """Yield the rounds of a loop that can differ: all, or where it trains or evaluates the first and the last.

        numbers: what it works out of its round, and may be sizes.
        """
        source, items = _Source(iterable, self._progress), FollowedItems(is_short(iterable))
        self._runs[number] += 1
        growth = Growth(self._progress, looks=self._runs[number] <= _TRAINED)
        trained, evaluated, many, likeness = 0, 0, False, RoundLikeness()
        idle, ops = 0, -1  # rounds before the first with an op
        self._open += 1
        try:
            for item in source:
                if growth.rounds or ops < 0:
                    updates, looks, ops = self._progress.updates, self._log.evaluations, self._log.ops
                    alive, events = self._log.alive_bytes(), len(self._log.events)
                path = len(self._path)
                self._shortened_loops.update([number] if source.omitted else [])
                yield item
                if growth.rounds == 0 and self._log.ops == ops:
                    idle += 1
                    if self._open == 1:
                        self._path.clear()
                    continue
                items.note_in_order(item)
                most = self._log.growth_since(events)
                stepped = self._progress.updates - updates
                trained += stepped > 0
                makes_states = growth.rounds == 0 or (stepped > 0 and trained == 1)
                likeness.see((items.sizes_of_last, self._path[path:]), most, alive + most, makes_states)
                growth.note()
                if self._open == 1:
                    self._path.clear()
                many |= stepped > 1  # such a round is long: the third is seen where the second kept something
                self._progress.allowed += stepped if many and trained > 1 else 0
                evaluated += self._log.evaluations > looks and not stepped
                alike = many and trained == _TRAINED - 1 and growth.last <= 0
                only_evaluates = evaluated >= _EVALUATED and (trained > 0 or not self.rewriter.trains(number))
                if alike or trained >= _TRAINED or only_evaluates:
                    break
            else:
                return
            if isinstance(iterable, range):
                yield from self._differing_rounds(iterable, growth, idle, number, numbers)
            else:
                yield from self._differing_items(iterable, source, items, growth, idle, number)
        finally:
            self._open -= 1
            self._shortened_loops.update([number] if source.omitted else [])
            self._end(number, likeness)

    def _end(self, number: int, likeness: RoundLikeness) -> None:
        if number in self._shortened_loops and likeness.broken:
            self._progress.note_missed(f"rounds of the loop at {self.rewriter.places[number]}, which are not alike")
        self._shortened |= number in self._shortened_loops
        if self._shortened and self._open == 0:
            self._shortened = False
            self._on_loop_end()

    def _differing_rounds(
        self, iterable: range, growth: Growth, idle: int, number: int, numbers: Sequence[Any]
    ) -> Iterator[int]:
        """Yield of the rest of a range the rounds whose numbers are larger or smaller than all before, and the last."""
        passed, ends = growth.rounds + idle, self._progress.last_rounds
        later, last = iterable[passed:][:-ends], iterable[passed:][-ends:]
        places = extreme_rounds(later, [*iterable[:passed], *last], numbers, _MOST_SKIPPING_S)[:_DIFFERING]
        for before, place in itertools.pairwise([-1, *places]):
            self._note_omitted_rounds(place - before - 1, growth, number)
            with self._progress.allow_extra_updates():
                yield later[place]
        self._note_omitted_rounds(len(later) - max([-1, *places]) - 1, growth, number)
        yield from last

    def _differing_items(
        self, iterable: Any, source: _Source, items: FollowedItems, growth: Growth, idle: int, number: int
    ) -> Iterator[Any]:
        """Yield of the rest the items that differ from those before, and the last."""
        waiting, largest, passed = 0, _NOTHING, growth.rounds + idle
        remaining: Iterator[Any] = source
        if isinstance(iterable, (list, tuple)):
            largest = items.follow_largest(iterable[passed:-1])
        previous, last, followed, beyond, began = _NOTHING, next(remaining, _NOTHING), 0, 0, time.process_time()
        for after in itertools.islice(remaining, _MOST_SKIPPED):
            differs = items.differs(last) or last is largest
            if differs and followed < _DIFFERING:
                self._note_omitted_rounds(waiting, growth, number)
                waiting, followed, previous = 0, followed + 1, _NOTHING
                items.note_followed(last)
                paused = time.process_time()
                with self._progress.allow_extra_updates():
                    yield last
                began += time.process_time() - paused
            else:
                waiting += 1
                beyond += differs
                previous = last
            last = after
            if time.process_time() - began > _MOST_SKIPPING_S:
                break
        if next(remaining, _NOTHING) is not _NOTHING:
            self._progress.note_missed("a loop without an end in sight, beyond its first rounds")
        if beyond:
            self._progress.note_missed(
                f"{beyond} rounds of the loop at {self.rewriter.places[number]}, whose items differ"
            )
        self._shortened_loops.update([number] if source.omitted else [])
        both = previous is not _NOTHING and self._progress.last_rounds > 1
        self._note_omitted_rounds(waiting - both, growth, number)
        yield from (item for item in ([previous, last] if both else [last]) if item is not _NOTHING)

    def _note_omitted_rounds(self, rounds: int, growth: Growth, number: int) -> None:
        if rounds > 0:
            self._shortened_loops.add(number)
            self._progress.omitted_any = True
            growth.count_skipped_rounds(rounds)


def _value(looked_up: Callable[[], Any]) -> Any:
    with contextlib.suppress(Exception):  # it may have none
        return looked_up()
    return None


class _While:
    """A `while` from when it began: after so many updates a round is its last that is followed."""

    def __init__(self, progress: Progress, most: int) -> None:
        self.began, self.until = progress.updates, progress.updates + most
        self.growth, self.rounds = Growth(progress), 0
        self.last = 0  # rounds that were followed as its last


class _Source:
    """An iterator that knows how many batches loaders omitted (`omitted`) while it was asked for items."""

    def __init__(self, iterable: Iterable[Any], progress: Progress) -> None:
        self.omitted = 0
        self._items, self._progress = iter(iterable), progress

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> Any:
        before = self._progress.omitted_batches
        item = next(self._items)
        if self._progress.omitted_batches is not before:  # zip() asks several loaders for one item
            self.omitted += max((self._progress.omitted_batches - before).values())
        return item
