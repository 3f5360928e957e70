"""The experiment: pairs of blocks, as is and changed, in random order; time goes to what is not clear yet.

Changes that a running process can make are paired within one process. Those that a process must begin with are paired
between two, which make blocks in turns, in several such pairs: where the heap lies differs from process to process.
Winners are combined one by one as long as each makes the rest faster; at the end the training as is and the best
configuration run against each other in fresh processes.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stepscope.clock import monotonic_ns
from stepscope.errors import UsageError
from stepscope.experiments.tune.block_sizes import batches_ahead, block_size
from stepscope.experiments.tune.changes import Change, all_changes, select_changes
from stepscope.experiments.tune.device_settings import DeviceSettings
from stepscope.experiments.tune.other_load import QuietLevel
from stepscope.experiments.tune.pair_statistics import (
    FINAL,
    HOPELESS,
    LEAST_GAIN,
    LEAST_PAIRS,
    MOST_PAIRS,
    SURE,
    Arm,
    ExperimentStore,
    PowerMeter,
    TunableTraining,
    TuneRules,
    file_name,
    finish_if_clear,
    is_decided,
    non_negative_number,
    saved_bytes,
    saving,
    surely_gains,
    trimmed_mean,
    why_not_combined,
)
from stepscope.experiments.tune.process import CannotGoOn, TooShort, TrainingEnded

MOST_DRIFT = 0.05  # of the loss, in the same steps from the same state: more is not combined by itself
NO_TIME = "no time was left for it"
_LIVE, _START, _COMBINED, _LATE = 0.4, 0.68, 0.8, 0.93  # shares of the time at which a phase ends
_LATEST, _FEWEST_PAIRS = 1.3, 3  # beyond which a check that has so many pairs ends
_PROCESS_PAIRS, _BLOCK_PAIRS, _FINAL_PAIRS = 3, 4, 5
_LOSSES = 16  # steps in which losses are compared
_LONG_ENOUGH = 0.7  # of what a sensor of power needs: a shorter block is made again, with more steps
_TRIMMED = 0.2  # of the steps of a block, on each side: what preempts one is no part of the difference
_DOMINATES = 0.75  # a ratio below which what else would help could not be seen beside it
_LOADING = 0.15  # share of a step that the data takes, from which on its loader is tried first
_MOSTLY_LOADING = 0.5  # the same, from which on nothing else is tried while there is a loader to try
_ANSWER_S = 900.0  # at most, for an answer: of a training that nobody knows yet, and where something is compiled
_LEAST_ANSWER_S, _SLOWEST = 60.0, 20  # else: times what it takes as it is, beside the length of the experiment


class Tuning:
    """One experiment. `open_training(changes at start, facts)` starts a training; `apart`: in own processes.

    power: read where energy is to improve.
    """

    def __init__(
        self,
        open_training: Callable[[Sequence[Change], Mapping[str, Any]], TunableTraining],
        rules: TuneRules,
        store: ExperimentStore | None = None,
        *,
        apart: bool = True,
        power: PowerMeter | None = None,
        device: DeviceSettings | None = None,
    ) -> None:
        self._open, self.rules, self._store, self._apart = open_training, rules, store or ExperimentStore(), apart
        self.power, self._shuffle, self._device = power, random.Random(rules.seed), device or DeviceSettings()
        progress = self._store.saved.get("progress", {})
        self._spent_s = non_negative_number(progress.get("spent_s"))
        self._began_ns = monotonic_ns()
        self._trainings: list[TunableTraining] = []
        self._warm: set[tuple[int, tuple[str, ...]]] = set()
        self._altered: set[int] = set()  # processes in which changes were made
        self._compiled: set[int] = set()  # processes that begin with compiling
        self._process_pair = int(non_negative_number(progress.get("process_pairs")))
        self.facts: dict[str, Any] = {}
        self.known: dict[str, Change] = {}
        self.arms: dict[str, Arm] = {}
        self.interrupted = False
        self.ended_by = ""  # why it ended before its time
        self.failures: dict[str, int] = {}  # of the training as it is, after which it was started again
        self.step_s = math.nan
        self._steps_s: dict[tuple[str, ...], float] = {}  # of the last block with these changes
        self.restarts_s: list[float] = []  # what each start took of a script that had ended
        self.quiet = QuietLevel()
        self._fresh_losses: list[float] = []  # of the training as is, from its first step on
        self._fresh_peak: int | None = None
        self._opening_s = 0.0

    @property
    def used(self) -> float:
        """The share of the time that has been used."""
        return (self._spent_s + (monotonic_ns() - self._began_ns) / 1e9) / self.rules.seconds

    def run(self) -> None:
        """Measure until everything is clear or the time is over. Ctrl-C ends it, and what is known is kept.

        So does a training that cannot be started again, once there is a pair.
        """
        try:
            training = self._begin()
            share = self.facts.get("data_share", 0)
            if self._apart and share > _LOADING:
                training = self._measure_startup_changes(
                    training, _LIVE if share < _MOSTLY_LOADING else _COMBINED, ("loader",)
                )
            self._measure_in_process_changes(training)
            training = self._measure_startup_changes(training, _START)
            self._measure_in_process_changes(training, until=_START)
            if self.best_before_check() is None:  # what would have gone into combinations and the check at the end
                training = self._measure_startup_changes(training, _LATE)
                self._measure_in_process_changes(training, until=_LATE)
            self._combine(training)
            self._verify_best()
        except KeyboardInterrupt:
            self.interrupted = True
        except (TrainingEnded, CannotGoOn) as error:
            if not any(arm.pairs for arm in self.arms.values()):
                raise
            lost = not isinstance(error, TrainingEnded | TooShort)
            self.ended_by = str(error) if lost else f"the training could not be started again: {error}"
        finally:
            for training in list(self._trainings):
                self._close(training)
            self._store_arms()

    def best(self) -> Arm | None:
        """Return the configuration to recommend: what the search chose, unless the check at the end refutes it."""
        return None if self.refuted() else self.best_before_check()

    def refuted(self) -> Arm | None:
        """Return what the search chose where it failed in the check, was slower, saved nothing, or its loss drifts."""
        chosen, final = self.best_before_check(), self.arms.get(FINAL)
        if chosen is None or final is None or final.changes != chosen.changes:
            return None
        # what is made within a process saves memory of a step: peaks of processes do not tell that
        larger = chosen.of_process and bool(final.memory_bytes) and saving(final) <= 0
        worse = larger if self.rules.goal == "memory" else final.interval()[0] > 1
        drifts = final.drift is not None and not self.is_loss_steady(final)
        return chosen if worse or drifts or final.status == "failed" else None

    def best_before_check(self) -> Arm | None:
        """Return what the search chose: the largest of the combinations, else the best single change."""
        measured = [arm for arm in self.arms.values() if arm.status == "measured" and arm.name != FINAL]
        combined = [arm for arm in measured if len(arm.changes) > 1 and arm.over]
        if combined:
            return max(combined, key=lambda arm: len(arm.changes))
        return next((arm for arm in self.winners() if self.is_loss_steady(arm)), None)

    def winners(self) -> list[Arm]:
        """Return the single changes that surely help, by what they gain."""
        single = [arm for name, arm in self.arms.items() if name in self.known and arm.status == "measured"]
        if self.rules.goal == "memory":
            sure = [arm for arm in single if not arm.of_process or arm.process_pairs > 1]  # one may be so by chance
            helps = [arm for arm in sure if saving(arm) > LEAST_GAIN]
            return sorted(helps, key=saved_bytes, reverse=True)  # those of a step and of the process alike
        helps = [arm for arm in single if arm.interval(SURE)[2] < 1 and arm.interval()[0] < 1 - LEAST_GAIN]
        return sorted(helps, key=lambda arm: arm.interval()[0])

    def is_loss_steady(self, arm: Arm) -> bool:
        """Return whether the loss did not drift by more than MOST_DRIFT, and is known where numbers are rounded."""
        is_known = arm.drift is not None or not any(self.known[name].lossy for name in arm.changes)
        return is_known and abs(arm.drift or 0.0) <= MOST_DRIFT

    # the beginning

    def _begin(self) -> TunableTraining:
        self._store.show_progress("the training as it is", self.used)
        began_ns = monotonic_ns()
        training = self._start_training(())
        facts = self._ask(training, do="facts")
        self._store.refuse_other_training(facts)
        self.facts = facts
        settings = {"device_settings": self._device.found, "apply_power": self._device.allowed}
        self.known = all_changes({**self.facts, **settings})
        rules = self.rules
        chosen = select_changes(self.known.values(), rules.goal, rules.only, rules.without)
        self.step_s = self.facts["step_s"]
        self._fresh_losses = self._losses_with(training, ())
        first = self._ask(training, do="block", changes=[], warmup=1, steps=2)
        self._opening_s = (monotonic_ns() - began_ns) / 1e9
        self.step_s = min(first["seconds"])
        self._fresh_peak = self._ask(training, do="peak")["process_bytes"]
        self._began_ns = monotonic_ns()  # the start is none of the time: on a slow device it may take longer
        for change in chosen:
            at_start = (change.name,) if change.at_start and not (change.loader and not self._apart) else ()
            arm = Arm(change.name, (change.name,), at_start, reason=change.refused or NO_TIME)
            if at_start and not self._apart and not change.refused:
                arm.reason = "it needs a process of its own: stepscope tune SCRIPT"
            self.arms[change.name] = arm
        for name, content in self._store.saved.items():
            with contextlib.suppress(ValueError):  # of another version, damaged, or somebody else's: measured again
                arm = Arm.from_dict(content)
                if arm.changes and {*arm.changes} <= {*self.known} and file_name(arm.name) == name:
                    self.arms[arm.name] = arm
        return training

    def _start_training(self, changes: Sequence[Change]) -> TunableTraining:
        training = self._open(changes, self.facts)
        self._trainings.append(training)
        if changes:
            self._altered.add(id(training))
        if any(change.group == "compile" for change in changes):
            self._compiled.add(id(training))
        if self.facts and self._apart:
            self._ask(training, do="use", facts=self.facts)
        return training

    def _close(self, training: TunableTraining) -> None:
        self._trainings.remove(training)
        self._warm = {key for key in self._warm if key[0] != id(training)}  # another may have its number
        self._altered.discard(id(training))
        self._compiled.discard(id(training))
        training.close()

    def _ask(self, training: TunableTraining, **command: Any) -> dict[str, Any]:
        limit_s = _ANSWER_S
        if self._opening_s and not self.facts.get("compiled") and id(training) not in self._compiled:
            steps = command.get("warmup", 0) + command.get("steps", 2)
            slow_s = _SLOWEST * (self._opening_s + steps * self.step_s)
            limit_s = min(limit_s, max(_LEAST_ANSWER_S, self.rules.seconds) + slow_s)
        names = command.get("changes", [])
        writes = {path: value for name in names for path, value in self.known[name].writes.items()}
        if writes:
            command["changes"] = [name for name in names if not self.known[name].writes]
        with self._device.changed(writes):
            answer = training.ask(limit_s, **command)
        if (restart_s := answer.get("restart_s")) is not None:
            self.restarts_s.append(restart_s)
        return answer

    # changes within a process

    def _measure_in_process_changes(self, training: TunableTraining, until: float = _LIVE) -> None:
        """Pairs of each change that needs no process of its own: one while there is time, more until it is clear."""
        if not self._apart:
            until = max(until, _START)
        looked: set[str] = set()
        while True:
            open_ = [arm for arm in self._open_arms() if not arm.at_start and len(arm.changes) == 1]
            if self.used >= until:
                open_ = [arm for arm in open_ if not arm.pairs and self.used < _LATE]
            elif not open_:
                open_ = self._reopen_given_up_arms(looked)
            if not open_:
                return
            self._shuffle.shuffle(open_)
            for arm in sorted(open_, key=lambda arm: len(arm.pairs)):
                if self.used >= (until if arm.pairs else max(until, _LATE)):
                    continue
                self._store.show_progress(self.known[arm.name].title, self.used)
                with self._record_failure(arm):
                    if not arm.pairs and self.rules.goal == "memory":
                        self._measure_losses_and_memory(training, arm)
                    self._pair(training, training, arm)
                finish_if_clear(arm, self.rules.goal)
            self._store_arms()

    def _reopen_given_up_arms(self, looked: set[str]) -> list[Arm]:
        """Return what was given up after its first pairs: a burst of other load may have hit each of them.

        The others are clear by then. What is slower again stays given up, and is looked at once.
        """
        again = [self.arms[name] for name in self.known if name in self.arms and name not in looked]
        again = [arm for arm in again if arm.given_up and not arm.at_start]
        for arm in again:
            looked.add(arm.name)
            arm.over = False
        return again

    def _open_arms(self) -> list[Arm]:
        singles = [arm for arm in self.arms.values() if arm.name in self.known and not self.known[arm.name].refused]
        return [arm for arm in singles if not arm.over and arm.status != "failed" and (self._apart or not arm.at_start)]

    def _measure_losses_and_memory(self, training: TunableTraining, arm: Arm) -> None:
        """Losses and memory of a change, from the same state and in the same batches as the training as is.

        A script has other batches in each look: of two the least as is, and the most as changed.
        """
        looks = 1
        if self.facts.get("losses_known", True):
            self._store_losses(
                arm, self._losses_with(training, ()), self._losses_with(training, arm.in_process_changes)
            )
        elif self.rules.goal == "memory":
            looks = 2
        else:
            return
        self._altered.add(id(training))
        sides = [names for _ in range(looks) for names in ((), arm.in_process_changes)]
        sizes = [self._ask(training, do="memory", changes=names)["bytes"] for names in sides]
        if None not in sizes:
            arm.as_is_bytes, arm.memory_bytes = min(sizes[::2]), max(sizes[1::2])

    def _losses_with(self, training: TunableTraining, names: Sequence[str]) -> list[float]:
        if not self.facts.get("losses_known", True):
            return []
        steps = max(2, min(_LOSSES, int(2.0 / max(self.step_s, 1e-6))))
        losses: list[float] = self._ask(training, do="losses", changes=list(names), steps=steps)["losses"]
        return losses

    @staticmethod
    def _store_losses(arm: Arm, as_is: list[float], changed: list[float]) -> None:
        steps = min(len(as_is), len(changed))
        arm.as_is_losses, arm.losses = as_is[:steps], changed[:steps]
        if steps:
            before, after = (sum(losses) / steps for losses in (arm.as_is_losses, arm.losses))
            arm.drift = math.inf if not math.isfinite(after) else (after - before) / abs(before) if before else None

    def _pair(self, as_is: TunableTraining, changed: TunableTraining, arm: Arm, base: Sequence[str] = ()) -> bool:
        """A block of each in random order, after warm-up; base: what the training as is has of live changes.

        False where more other load was beside it than beside others, or its power was not read: it does not count.
        """
        sides = [(as_is, tuple(base), False), (changed, arm.in_process_changes, True)]
        self._shuffle.shuffle(sides)
        times: dict[bool, Mapping[str, Any]] = {}
        loading = {name: value for change in arm.changes for name, value in self.known[change].loader.items()}
        ahead = max(batches_ahead(self.facts, {}), batches_ahead(self.facts, loading))
        for training, names, is_changed in sides:
            times[is_changed] = self._run_block(training, names, ahead)
        if self.quiet.should_repeat_pair((times[False].get("others"), times[True].get("others"))):
            return False
        means = {side: trimmed_mean(block["seconds"], 0.0 if loading else _TRIMMED) for side, block in times.items()}
        spans = [times[side][at] for side in (False, True) for at in ("t0_ns", "t1_ns")]
        more_power = 0.0  # log ratio
        if self.power is not None:
            before, after = self.power.watts(*spans[:2]), self.power.watts(*spans[2:])
            if before is None or after is None:
                return False
            more_power = math.log(after / before)
            for other in (*self.arms.values(), arm):  # one step of a combination is none of the arms
                other.drop_blocks_below(_LONG_ENOUGH * 1e9 * self.power.block_s)
            arm.as_is_w.append(before)
            arm.changed_w.append(after)
        arm.pairs.append((math.log(means[True] / means[False]) + more_power, self._process_pair))
        arm.as_is_s.append(means[False])
        arm.changed_s.append(means[True])
        arm.blocks_ns.append((*spans, len(times[True]["seconds"])))
        arm.fastest.append(math.log(min(times[True]["seconds"]) / min(times[False]["seconds"])) + more_power)
        arm.status, arm.reason = "measured", ""
        return True

    def _run_block(
        self, training: TunableTraining, names: Sequence[str], ahead: int = 0, again: bool = False
    ) -> dict[str, Any]:
        key = (id(training), tuple(names))
        least_s = 0.0 if self.power is None else self.power.block_s
        step_s = self._steps_s.get(key[1], self.step_s) if least_s else self.step_s
        warmup, steps = block_size(self.rules.seconds, step_s, least_s, ahead, key not in self._warm)
        self._warm.add(key)
        if names:
            self._altered.add(id(training))
        answer = self._ask(training, do="block", changes=list(names), warmup=warmup, steps=steps)
        if not answer["seconds"]:
            raise TrainingEnded("the training ended before the block did")
        if why := answer.get("began_again_since"):
            self.failures[why] = self.failures.get(why, 0) + 1
        shortest_s = min(answer["seconds"])
        self.step_s = 0.8 * self.step_s + 0.2 * shortest_s
        self._steps_s[key[1]] = shortest_s
        if answer["t1_ns"] - answer["t0_ns"] < _LONG_ENOUGH * 1e9 * least_s and not again:  # they are much faster
            return self._run_block(training, names, ahead, again=True)
        return answer

    @contextlib.contextmanager
    def _record_failure(self, arm: Arm) -> Any:
        """What a change makes of a training is its result: it is told, and the others go on."""
        try:
            yield
        except CannotGoOn:
            raise
        except (TrainingEnded, UsageError) as error:
            arm.status, arm.reason, arm.over = "failed", str(error), True

    # changes that a process begins with

    def _measure_startup_changes(
        self, training: TunableTraining, until: float, groups: Sequence[str] = ()
    ) -> TunableTraining:
        """Pairs of processes for changes at start, of these groups; returns the process of the training as is."""

        def waiting() -> list[Arm]:
            open_ = [arm for arm in self._open_arms() if arm.at_start]
            return [arm for arm in open_ if not groups or self.known[arm.name].group in groups]

        for count in range(1, (_PROCESS_PAIRS if self._apart else 0) + 1):
            open_ = waiting()
            self._shuffle.shuffle(open_)
            for arm in sorted(open_, key=self._startup_order_key):
                slow = 4.0 if arm.compiles else 1.0
                share = slow * 1.3 * self._opening_s / self.rules.seconds
                if self.used + share > until:
                    continue
                self._store.show_progress(self.known[arm.name].title, self.used)
                with self._record_failure(arm):
                    self._measure_process_pair(training, arm)
                self._finish_if_processes_clear(arm)
                self._store_arms()
            if count < _PROCESS_PAIRS and waiting() and self.used + self._opening_s / self.rules.seconds < until:
                self._close(training)
                training = self._start_training(())
                self._process_pair += 1
        return training

    def _startup_order_key(self, arm: Arm) -> tuple[int, float, int]:
        """What has the fewest pairs, then what promises most; of the untried the allocator first, compiling last."""
        order = ("allocator", "instructions", "loader")
        group = self.known[arm.name].group
        last = len(order) + arm.compiles
        return len(arm.pairs), arm.interval()[0] if arm.pairs else 0.0, order.index(group) if group in order else last

    def _measure_process_pair(
        self, training: TunableTraining, arm: Arm, pairs: int = _BLOCK_PAIRS, base: Sequence[str] = ()
    ) -> None:
        other = self._start_training([self.known[name] for name in arm.at_start])
        try:
            if not arm.losses and (arm.pairs or arm.name == FINAL):  # what is given up is not looked at
                self._store_losses(arm, self._fresh_losses, self._losses_with(other, arm.in_process_changes))
                self._losses_with(training, base)  # so that it is as warm as the other
            measured = 0
            while measured < pairs and not (measured >= _FEWEST_PAIRS and self.used > _LATEST):
                measured += self._pair(training, other, arm, base)
            ended = self._ask(other, do="peak")
            if arm.compiles and ended.get("prepared_s") is not None:
                arm.compile_s = max(0.0, ended["prepared_s"] - self._ask(training, do="peak")["prepared_s"])
            as_is = self._fresh_peak
            if id(training) not in self._altered:  # after as many steps as the other
                as_is = self._ask(training, do="peak")["process_bytes"]
            arm.add_process_peak(ended["process_bytes"], as_is)
        finally:
            self._close(other)

    def _finish_if_processes_clear(self, arm: Arm) -> None:
        logs = [log for log, _ in arm.pairs]
        surely = HOPELESS if arm.process_pairs < 2 else 1 + 2 * LEAST_GAIN  # one process pair may have been unlucky
        slower = self.rules.goal != "memory" and len(logs) >= _BLOCK_PAIRS and arm.slower_by(surely)
        if slower or arm.process_pairs >= _PROCESS_PAIRS:
            arm.over = True

    # the answer

    def _combine(self, training: TunableTraining) -> None:
        """Add winners one by one to the best, as long as each surely improves it."""
        for winner in self.winners():
            if not winner.at_start and not winner.losses and winner.memory_bytes is None:
                with self._record_failure(winner):
                    self._measure_losses_and_memory(training, winner)
        if self.used <= _COMBINED:  # those that were kept are measured again
            self.arms = {name: arm for name, arm in self.arms.items() if len(arm.changes) == 1 or name == FINAL}
        current: Arm | None = None
        groups: set[str] = set()
        for winner in [*self.winners(), *([] if self.rules.goal == "memory" else self._near_winners())]:
            group = self.known[winner.name].group
            if group in groups or not self.is_loss_steady(winner) or self.used > _COMBINED:
                continue
            if current is None:
                current, groups = winner, {group}
                continue
            if winner not in self.winners() and current.interval()[0] > _DOMINATES:
                continue
            together = self._measure_combination(training, current, winner)
            if together is not None:
                current = together
                groups.add(group)

    def _near_winners(self) -> list[Arm]:
        """Return live changes that may gain, best first: a large loss as is may have hidden it; none that is slower."""
        single = [arm for name, arm in self.arms.items() if name in self.known and not arm.at_start and arm.pairs]
        winners = self.winners()
        near = [arm for arm in single if arm not in winners and not arm.interval()[1] > 1 + LEAST_GAIN]
        return sorted(near, key=lambda arm: arm.interval()[0])

    def _measure_combination(self, training: TunableTraining, current: Arm, more: Arm) -> Arm | None:
        """Measure a configuration with one more change; returns it where it is surely faster, or smaller, than without.

        Memory of a step cannot be compared with that of a process.
        """
        names = (*current.changes, *more.changes)
        arm = self.arms.setdefault(
            " + ".join(names), Arm(" + ".join(names), names, (*current.at_start, *more.at_start))
        )
        memory = self.rules.goal == "memory"
        if memory and more.of_process != current.of_process:
            arm.reason = "one saves memory of a step, the other of the process: not comparable"
            return None
        step = Arm("", names, arm.at_start)  # against the configuration without it
        self._store.show_progress(f"together: {arm.name}", self.used)
        with self._record_failure(arm):
            if not arm.at_start:
                self._measure_losses_and_memory(training, arm)
                self._pair_until_decided(training, step, current.in_process_changes)
            else:
                self._measure_against_current(training, current, step)
            arm.status, arm.reason = "measured", ""
        if arm.status == "failed":
            return None
        base, low, base_high = current.interval()
        arm.of_process, arm.base_half = step.of_process, math.log(max(base_high / base, base / low))
        arm.pairs = [(math.log(base) + log, process_pair) for log, process_pair in step.pairs]
        arm.as_is_s, arm.changed_s = [seconds / current.time_ratio for seconds in step.as_is_s], step.changed_s
        arm.as_is_w, arm.changed_w = [watts / current.power_ratio for watts in step.as_is_w], step.changed_w
        # Of what is made at start the check at the end tells.
        drifts = arm.drift is not None and not self.is_loss_steady(arm)
        arm.over = surely_gains(step, alone=more in self.winners()) and not drifts
        if arm.of_process:
            arm.memory_bytes, arm.as_is_bytes = step.memory_bytes, step.as_is_bytes
        if memory:
            arm.over = saving(arm) - saving(current) > LEAST_GAIN / 2 and not drifts
            arm.reason = "" if arm.over else f"{more.name} saves no memory beyond {current.name}"
        if drifts:
            arm.reason = f"the loss drifts by more than {100 * MOST_DRIFT:.0f} %"
        elif not arm.over and not memory:
            arm.reason = why_not_combined(step, more, current)
        return arm if arm.over else None

    def _pair_until_decided(self, training: TunableTraining, step: Arm, base: Sequence[str]) -> None:
        """Pairs of a configuration with and without one change, until they tell whether it adds something."""
        while len(step.pairs) < LEAST_PAIRS + 2 or (
            len(step.pairs) < MOST_PAIRS and self.used < _COMBINED and not is_decided(step)
        ):
            self._pair(training, training, step, base)

    def _measure_against_current(self, training: TunableTraining, current: Arm, step: Arm) -> None:
        if not current.at_start:
            self._measure_process_pair(training, step, LEAST_PAIRS, current.in_process_changes)
            return
        base = self._start_training([self.known[name] for name in current.at_start])
        try:
            if step.at_start == current.at_start:
                self._pair_until_decided(base, step, current.in_process_changes)
            else:
                self._measure_process_pair(base, step, LEAST_PAIRS, current.in_process_changes)
        finally:
            self._close(base)

    def _verify_best(self) -> None:
        """The training as is against the best configuration, in fresh processes where it has its own."""
        best = self.best_before_check()
        if best is None:
            return
        final = self.arms.setdefault(FINAL, Arm(FINAL, best.changes, best.at_start))
        if final.changes != best.changes:
            final = self.arms[FINAL] = Arm(FINAL, best.changes, best.at_start)
        if not self._apart:
            self._verify_best_in_process(final)
            return
        for training in list(self._trainings):
            self._close(training)
        share = 0.0  # of the time, that a process pair takes
        while not final.pairs or (self.used + share < 1 and final.process_pairs < 2 * _PROCESS_PAIRS):
            self._process_pair += 1
            began = self.used
            self._store.show_progress(f"as is against the best: {best.name}", min(1.0, self.used))
            training = self._start_training(())
            with self._record_failure(final):
                self._measure_process_pair(training, final, _FINAL_PAIRS)
            self._close(training)
            self._store_arms()
            share = self.used - began
            if final.status == "failed":
                return

    def _verify_best_in_process(self, final: Arm) -> None:
        training = self._trainings[0]
        while len(final.pairs) < LEAST_PAIRS or (self.used < 1 and len(final.pairs) < MOST_PAIRS):
            self._store.show_progress(f"as is against the best: {', '.join(final.changes)}", min(1.0, self.used))
            with self._record_failure(final):
                self._pair(training, training, final)
            if final.status == "failed":
                return
            if len(final.pairs) >= LEAST_PAIRS:
                finish_if_clear(final, self.rules.goal)
                if final.over:
                    return

    def _store_arms(self) -> None:
        for arm in self.arms.values():
            if arm.pairs or arm.status == "failed":
                self._store.save(file_name(arm.name), asdict(arm))
        if not self.facts:
            return
        spent = self._spent_s + (monotonic_ns() - self._began_ns) / 1e9
        self._store.save("progress", {"spent_s": spent, "process_pairs": self._process_pair + 1, "facts": self.facts})
