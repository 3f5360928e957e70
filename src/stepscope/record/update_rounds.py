"""Tell where a round of updates ends, and with it a step: of several optimizers, or of parameters updated by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Set
from typing import NamedTuple

from stepscope.clock import Clock, monotonic_ns

Ended = Callable[[int, bool], None]  # (when, in ns; known only later)
Joined = Callable[[int, tuple[int, ...]], bool]  # (first update, ends of the steps since, ns): False where too late
Alive = Callable[[Hashable], bool]
OneModel = Callable[[set[Hashable]], bool]
_Update = tuple[Hashable, bool, int]  # by which optimizer, whether it joins the one before it, when in ns
LONGEST_RHYTHM = 128  # updates of a round in which some optimizer comes more than once
UNCERTAIN = (
    "several optimizers update unevenly, and no round of their updates came twice in the same way: what is counted is "
    "updates of one of them, or of some of them together"
)
ROUNDS = (
    "optimizers update unevenly, and a step is a round of them: it ends with the one that updates least often; "
    "updates of the others alone are no steps"
)


class OptimizerRounds:
    """Calls `ended(t_ns, late)` when a round has ended; late is one that is known only by the next round's first.

    Where one optimizer updates more often than another (critics of a GAN, a delayed policy), a round is what came
    between two updates of the rarer one. That is learnt when two rounds were the same: `joined` is told that what had
    been taken for steps were these two. From then on the rarer one ends each round, however long. An update that joins
    the one before it (no gradient was computed in between) is of the same step, however seldom its optimizer comes.
    An optimizer that does not exist any more (`alive`) comes never again: its round has ended. Nor does one that
    another has followed twice: each of its updates was a step. Those that are made anew for copies of a model
    (`of_copies`) train within the rounds of one that stays, whatever their number. Of optimizers that are of one model
    (`one_model`) each update by the one that updates most is a step.
    """

    def __init__(
        self,
        ended: Ended,
        steps_per_round: int | None = None,
        clock: Clock = monotonic_ns,
        alive: Alive = lambda _: True,
        joined: Joined = lambda first_ns, ends_ns: False,
        of_copies: Set[Hashable] = frozenset(),
        one_model: OneModel = lambda _: False,
    ) -> None:
        self._ended = ended
        self._joined = joined
        self._alive = alive
        self._of_copies = of_copies
        self._one_model = one_model
        self.fixed = steps_per_round
        self._clock = clock
        self._seen: list[_Update] = []
        self.ahead = 0  # updates of the next round that were made by the time a round is known to have ended
        self._closer: Hashable = None
        self._known: set[Hashable] = set()  # optimizers of rounds that have ended
        self._history: deque[tuple[_Update, int]] = deque(maxlen=2 * LONGEST_RHYTHM)  # with `_uneven` at the time
        self._before: list[_Update] = []  # of the step that ended last
        self._rhythm: tuple[Hashable, ...] = ()
        self._uneven = 0  # times that a step shared some of its optimizers, but not all, with the one before it
        self._last: tuple[Hashable, bool] | None = None  # the optimizer that updated last, and whether with a penalty
        self._taken_over = False  # by an optimizer that updated once, when the training ended
        self.uneven_rounds = False  # of several optimizers the rarest ends a step, as was learnt

    def stepped(self, key: Hashable, joins: bool = False, penalty: bool = False) -> None:
        """An optimizer has just stepped; joins: nothing was computed since the last update.

        penalty: gradients of what is no parameter were computed for it.
        """
        now = self._clock()
        update = key, joins, now
        if self.fixed is None and self._is_other_half_of_update(key, joins, penalty):
            if not self._known:  # whether there is another optimizer is still open
                self._seen.append(update)
            return
        if self.fixed is not None:
            self._seen.append(update)
            if len(self._seen) >= self.fixed:
                self._close()
            return
        if self._rhythm:
            if joins and not self._seen:
                return
            if key in self._rhythm and len(self._seen) < 4 * len(self._rhythm) + LONGEST_RHYTHM:
                self._seen.append(update)
                if key == self._rhythm[-1]:
                    self._close()
                return
            self._rhythm = ()
            self._history.clear()
        self._history.append((update, self._uneven))
        if ends := self._rounds_of_history():
            self._apply_learnt_round(update, ends)
            return
        if joins and not self._seen and key != self._closer:
            self._known.add(key)  # it ends a step that was taken for ended
            return
        before = [entry for entry, _, _ in self._seen]
        if key in before:  # the last one before it closed the round, if none that is known to do so came
            self._closer = before[-1]
            self._close_late()
        elif key not in self._known and not all(map(self._alive, before)):
            self._close_late()
        self._seen.append(update)
        if key == self._closer:
            self._close()

    def _is_other_half_of_update(self, key: Hashable, joins: bool, penalty: bool) -> bool:
        """Return whether this is the other half of an update: one with a penalty and one without, of one of several."""
        before, self._last = self._last, (key, penalty)
        lazy = not joins and before == (key, not penalty) and self._known != {key}
        if lazy:
            self._last = None
        return lazy

    def _rounds_of_history(self) -> list[int]:
        """Return the ends of the rounds that came last, as places in the history, from the end of the one before."""
        updates = [(key, joins) for (key, joins, _), _ in self._history]
        ends = _within_which_copies_train(updates, self._of_copies)
        if ends:
            self._rhythm = tuple(key for key, _ in updates[ends[-2] + 1 :])
        elif (length := _length_of_repetition(updates)) and not self._one_model({key for key, _ in updates[-length:]}):
            last = len(updates) - 1
            ends = [last - 2 * length, last - length, last]
            self._rhythm, self.uneven_rounds = tuple(key for key, _ in updates[-length:]), True
        return ends

    def _apply_learnt_round(self, update: _Update, ends: list[int]) -> None:
        """Some rounds were the same, of which this update ends the last."""
        (_, _, first_ns), uneven = self._history[ends[0] + 1]
        self._seen.append(update)
        if self._joined(first_ns, tuple(self._history[end][0][2] for end in ends[1:])):
            self._before, self._seen, self._uneven = self._seen, [], uneven
            self._known.update(self._rhythm)
        else:
            self._close()

    def repeated(self, ended_ns: list[int]) -> None:
        """Note steps that made the same updates as the one before them, and when each ended."""
        if self.fixed is None and not self._rhythm:
            for t_ns in ended_ns[-2 * LONGEST_RHYTHM :]:
                self._history.extend(((key, joins, t_ns), self._uneven) for key, joins, _ in self._before)

    @property
    def undecided(self) -> bool:
        """Return whether an update was made that may have been the last of its step."""
        keys = {key for key, _, _ in self._seen}
        return bool(keys) and self.fixed is None and not self._rhythm and not self._known >= keys

    @property
    def uncertain(self) -> bool:
        """Return whether optimizers updated unevenly, and what a round of them is was never learnt."""
        return self.fixed is None and (self._uneven > 1 or self._taken_over)

    def finish(self, over: bool = False) -> None:
        """Evaluation began, or the training is over: an undecided round has ended with its last optimizer step."""
        if self.undecided:
            alone = len({key for key, _, _ in self._seen}) == 1 and any(map(self._alive, self._known))
            self._taken_over = over and alone
            self._closer = self._seen[-1][0]
            self._close(late=True)
        elif len(self._seen) >= len(self._rhythm) > 0:  # the rarer one comes no more
            self._rhythm = ()
            self._history.append((self._seen[-1], self._uneven))
            self._close_late()

    def _close_late(self) -> None:
        """An update has come that is of the next round; two by one optimizer in a row are no round with others."""
        (key, joins, _), _ = self._history[-1]
        takes_over = len(self._seen) > 1 and self._seen[-1][0] == key and not joins
        takes_over = takes_over and not self._one_model({key for key, _, _ in self._seen})
        starts = [n for n, (_, joins, _) in enumerate(self._seen) if n and not joins] if takes_over else []
        updates, ends = self._seen, [*starts, len(self._seen)]
        for start, end in zip([0, *starts], ends, strict=True):
            self._seen, self.ahead = updates[start:end], len(updates) - end + 1
            self._close(late=True)
        self.ahead = 0

    def _close(self, late: bool = False) -> None:
        before, now = _optimizers_with_gradients(self._before), _optimizers_with_gradients(self._seen)
        uneven = not self._rhythm and before != now and not before.isdisjoint(now)
        self._uneven += uneven and not self._one_model(before | now)
        self._before, self._seen = self._seen, []
        self._known.update(key for key, _, _ in self._before)
        self._ended(self._before[-1][2], late)


def _optimizers_with_gradients(step: list[_Update]) -> set[Hashable]:
    """Return the optimizers of a step that had gradients of their own computed."""
    return {key for key, joins, _ in step if not joins}


def _length_of_repetition(updates: list[tuple[Hashable, bool]]) -> int:
    """Return the length of what came twice, with the last update at its end, some optimizer more than once in it.

    0 where nothing did, where some optimizer is among all that updated together (then each time is a step), or where
    the last one had nothing computed for it: it takes what others have trained.
    """
    if updates[-1][1]:
        return 0
    length = next((back for back in range(1, len(updates)) if updates[-1 - back] == updates[-1]), 0)
    last = updates[-length:]
    uneven = 1 < len({key for key, _ in last}) < length and updates[-2 * length : -length] == last
    return length if uneven and not set.intersection(*_joint_optimizer_groups(last)) else 0


def _within_which_copies_train(updates: list[tuple[Hashable, bool]], of_copies: Set[Hashable]) -> list[int]:
    """Return the places of the last updates of one optimizer, between each two of which only those of copies updated.

    The first is the place before the first of these rounds; nothing where there is less than two of them.
    """
    last = updates[-1][0]
    ends, copies = [len(updates) - 1], 0
    place = len(updates) - 2
    while of_copies and last not in of_copies and place >= 0:
        key = updates[place][0]
        if key in of_copies:
            copies += 1
        elif key == last and copies:
            ends.insert(0, place)
            copies = 0
        else:
            break
        place -= 1
    if copies:
        ends.insert(0, place)
    return ends if len(ends) > 2 else []


def _joint_optimizer_groups(updates: list[tuple[Hashable, bool]]) -> list[set[Hashable]]:
    """Return the optimizers that updated with nothing computed in between; the first follow the last."""
    groups: list[set[Hashable]] = []
    waiting: set[Hashable] = set()
    for key, joins in updates:
        if not joins:
            groups.append({key})
        else:
            (groups[-1] if groups else waiting).add(key)
    if not groups:
        return [waiting]
    groups[-1] |= waiting
    return groups


class Fingerprint(NamedTuple):
    """The state of some parameters, and of their gradients."""

    values: tuple[Hashable, ...]
    gradients: tuple[Hashable, ...]
    values_are_seen: bool  # of one of them at least, so that an update shows in it
    leaves: tuple[int, ...] = ()  # which parameters
    of_data: bool = False  # a model was called with all of them
    contents: tuple[bytes | None, ...] = ()  # what their first values are
    choice: int = 0  # another number where these were chosen anew, at addresses that may be those of others


class ManualRounds:
    """Steps of a training without an optimizer: gradients are computed, and parameters updated by hand.

    A fingerprint tells the state of some parameters and of their gradients. When something else begins after a
    backward pass (a batch is fetched, a model called) and finds another one than the pass left, the step has ended.
    Where values cannot be read, some updates do not show in it until gradients are reset: those are seen when the next
    pass begins, and the step ended, late, when that something else began. Where they can, gradients that were dropped
    are no update, nor are passes of other tensors with the same values (torch.func copies). A pass that itself changed
    them (LOMO, in hooks of its gradients) is a step. Without parameters to look at (None) every pass is one.
    """

    def __init__(self, ended: Ended, clock: Clock = monotonic_ns) -> None:
        self._ended = ended
        self._clock = clock
        self._left: Fingerprint | None = None  # what the last pass left
        self._begun: Fingerprint | None = None  # what it began with
        self._boundary_ns: int | None = None
        self._open = False  # a pass was made whose step has not ended
        self.of_copies: bool | None = None  # passes were of other tensors that had the same values; None: not known
        self.passes = self.steps = 0
        self.sure = 0  # steps in which tensors that are no data changed
        self._made_anew = False  # the last step ended in new parameters, and those before it stayed as they were

    @property
    def undecided(self) -> bool:
        """Return whether a pass was made, and nothing else began since."""
        return self._open and self._boundary_ns is None

    def something_else(self, fingerprint: Fingerprint | None) -> None:
        """A batch is fetched, a model is called."""
        if not self.undecided:
            return
        now = self._clock()
        if fingerprint is None and self.of_copies is not False:  # they are gone: the next pass tells
            self._boundary_ns = now
        elif self._changed(fingerprint):
            self._end(fingerprint, now, late=False)
        else:
            self._boundary_ns = now

    def begins(self, fingerprint: Fingerprint | None) -> None:
        """A backward pass is about to begin; parameters that are found only now had nothing to be compared with."""
        if self._left is not None or fingerprint is None:
            self._end_late(fingerprint)
        self._begun = fingerprint

    def passed(self, fingerprint: Fingerprint | None) -> None:
        """Note that the update is done."""
        self.passes += 1
        self._left, self._open, self._boundary_ns = fingerprint, True, None

    def finish(self, fingerprint: Fingerprint | None) -> None:
        """The training is over; where each step makes its parameters anew, no other pass tells of the last ones."""
        if self._made_anew and self._open:
            self._end(fingerprint, self._boundary_ns or self._clock(), late=True)
        self._end_late(fingerprint)
        self._open = False

    def _end_late(self, fingerprint: Fingerprint | None) -> None:
        if self._open and self._changed(fingerprint):
            self._end(fingerprint, self._boundary_ns or self._clock(), late=True)

    def _end(self, fingerprint: Fingerprint | None, t_ns: int, late: bool) -> None:
        self._open = False
        self.steps += 1
        if fingerprint is not None and self._left is not None:
            self._made_anew = fingerprint.choice != self._left.choice
            self.sure += not fingerprint.of_data and fingerprint.leaves == self._left.leaves
        self._ended(t_ns, late)

    def _changed(self, fingerprint: Fingerprint | None) -> bool:
        if fingerprint is None or self._left is None or self._has_updated_within(self._left):
            return True
        if fingerprint.choice != self._left.choice:  # other tensors
            read = fingerprint.values_are_seen and None not in (*fingerprint.contents, *self._left.contents)
            same = read and fingerprint.contents == self._left.contents
            self.of_copies = self.of_copies or same
            return not same
        are_visible = fingerprint.values_are_seen and self._left.values_are_seen
        return fingerprint.values != self._left.values or (
            not are_visible and fingerprint.gradients != self._left.gradients
        )

    def _has_updated_within(self, left: Fingerprint) -> bool:
        """Return whether the last pass changed the parameters that it began with."""
        begun = self._begun
        if begun is None or begun.choice != left.choice:
            return False
        return begun.contents != left.contents or (None in left.contents and begun.values != left.values)
