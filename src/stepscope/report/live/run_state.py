"""State of a run at this moment, with the power of the whole board."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.analysis.device import canonical_rail_name, identify, matches_pattern, rail_of
from stepscope.analysis.device.contract import is_throttling_flag
from stepscope.clock import Clock, monotonic_ns
from stepscope.quantities import find_quantity
from stepscope.report.live.growing_files import (
    Channel,
    JsonFile,
    LineTail,
    Pace,
    Readings,
    StepFollower,
    planned_steps,
    status_from_header,
)

_WARNINGS = 3
_SLEEPS_NS = 5_000_000_000  # an idle core wakes more often, for the kernel's watchdog: every 4 s
_SHARE = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
Named = tuple[str, "float | None"]


@dataclass(frozen=True)
class Now:
    """One look at a run; None is "not known", and shares are of one."""

    run: str
    name: str
    status: str
    reason: str | None
    pace: Pace
    planned: int | None
    waited_ns: int | None  # since the last step ended
    cores: tuple[Named, ...]
    accelerators: tuple[Named, ...]
    rails: tuple[Named, ...]  # W
    total_w: float | None
    resident_bytes: float | None
    available_bytes: float | None
    memory_bytes: float | None
    accelerator_memory: tuple[tuple[str, float, float | None], ...]  # used and all of it, bytes
    temperatures: tuple[Named, ...]  # degC
    clocks: tuple[Named, ...]  # Hz
    power_mode: str | None
    throttled: tuple[str, ...]  # what takes clocks away at this moment
    delayed: float | None  # share of the time in which the training thread waited for a core
    others: tuple[tuple[str, float | None, str], ...]  # label with scope, value, unit: what has no place of its own
    warnings: tuple[str, ...]
    simulated: str | None = None
    processes: bool = False  # whether `resident_bytes` is of all processes, a shared page counted in each
    other_cards: str | None = None  # what is not the training's among several GPUs, or that this is not known

    @property
    def ended(self) -> bool:
        return self.status != "running"

    @property
    def left_s(self) -> float | None:
        """Time until the planned steps are done, at the pace of the last ones."""
        if self.planned is None or self.pace.mean_ns is None or self.ended:
            return None
        return max(self.planned - self.pace.done, 0) * self.pace.mean_ns / 1e9

    @property
    def left_j(self) -> float | None:
        """Energy until then, at the power of now."""
        return None if self.left_s is None or self.total_w is None else self.left_s * self.total_w


class RunWatcher:
    """Follows one run folder; a look costs what has been appended since the last."""

    def __init__(self, run: Path, clock: Clock = monotonic_ns) -> None:
        self.path = run
        self._clock = clock
        self._header, self._device = JsonFile(run / "run.json"), JsonFile(run / "device.json")
        self._channels = JsonFile(run / "channels.json")
        self._steps, self._readings = StepFollower(run), Readings(run)
        self._events = _WarningFollower(run)
        self._total: tuple[str, ...] = ()
        self._busy: dict[str, float] = {}  # of each core, as last known
        self._unused: frozenset[str] = frozenset()  # scopes of GPUs that the training does not use

    def read_state(self) -> Now:
        """Return the state of the run now."""
        self._header.reload_if_changed()
        status = status_from_header(self._header.content, self.path)  # before the rows: none comes after its end
        described, channels = self._device.reload_if_changed(), self._channels.reload_if_changed()
        if channels:
            listed = self._channels.content.get("channels")
            self._readings.describe(listed if isinstance(listed, list) else [])
        if described or channels:
            self._total = self._find_total()
        self._readings.read_new_samples(self._clock() if status == "running" else 0)
        self._unused, other_cards = self._cards_of_others()
        return replace(self._build_state(status, self._steps.read_pace()), other_cards=other_cards)

    def close(self) -> None:
        """Close the files."""
        self._steps.close()
        self._readings.close()

    def _build_state(self, status: str, pace: Pace) -> Now:
        header, workload = self._header.content, self._header.content.get("workload")
        rails = self._rails()
        summed = [scope for scope in self._total if _card_of(scope) not in self._unused]
        watts_of_total = [watts for scope in summed if scope in rails and (watts := rails[scope][1]) is not None]
        simulated = header.get("simulated")
        return Now(
            run=str(header.get("id", self.path.name)),
            name=str(workload.get("name") if isinstance(workload, dict) else workload or self.path.name),
            status=status,
            reason=header.get("reason"),
            pace=pace,
            planned=planned_steps(header),
            waited_ns=None if pace.ended_ns is None or status != "running" else max(self._clock() - pace.ended_ns, 0),
            cores=self._cores(),
            accelerators=self._values_by_scope("utilisation"),
            rails=tuple(rails.values()),
            total_w=sum(watts_of_total) if watts_of_total and len(watts_of_total) == len(summed) else None,
            resident_bytes=self._resident(),
            processes=self._has_several_processes(),
            available_bytes=self._value_of_scope("memory_available", "system"),
            memory_bytes=self._device.content.get("memory_bytes"),
            accelerator_memory=self._accelerator_memory(),
            temperatures=self._values_by_scope("temperature"),
            clocks=(*self._values_by_scope("core_frequency"), *self._values_by_scope("frequency")),
            power_mode=self._device.content.get("power_mode"),
            throttled=tuple(
                name
                for quantity in ("throttled", "cooling_state")
                for name, state in self._values_by_scope(quantity)
                if state and is_throttling_flag(name)
            ),
            delayed=self._run_queue_share(),
            others=tuple(self._plain_quantities()),
            warnings=self._events.read_last_warnings(),
            simulated=None if simulated is None else str(simulated),
        )

    def _cards_of_others(self) -> tuple[frozenset[str], str | None]:
        """Return the scopes of GPUs that the training has no memory of, by the driver's list of processes, and a
        sentence of them; no scope where that list does not name the training, as in a container.
        """
        every = self._readings.channels
        cards = {_card_of(channel.scope) for channel in every if channel.scope.startswith("gpu:")}
        processes = len({channel.scope for channel in every if channel.scope.startswith("rank:")})
        if len(cards) <= max(processes, 1) or self._header.content.get("simulated") is not None:
            return frozenset(), None
        listed = {
            channel.scope: self._readings.value(channel)
            for channel in every
            if channel.quantity == "process_memory" and channel.scope in cards
        }
        if processes or not any(listed.values()):
            return frozenset(), f"{len(cards)} GPUs are read: which ones train is not known"
        unused = frozenset(card for card, size in listed.items() if not size)
        names = ", ".join(_scope_text(card) for card in sorted(unused))
        return unused, f"not shown, since the training has no memory of it: {names}" if unused else None

    def _has_several_processes(self) -> bool:
        """Return whether training processes are sampled each, since the watched one only launches, or is one of
        several.
        """
        return any(channel.scope.startswith("rank:") for channel in self._of_quantity("rss"))

    def _resident(self) -> float | None:
        """Resident memory of the training process, of several of all together, B."""
        watched, below = self._value_of_scope("rss", "process"), self._value_of_scope("rss", "children")
        if not self._has_several_processes():
            return watched
        return None if watched is None or below is None else watched + below

    def _run_queue_share(self) -> float | None:
        rate = self._value_of_scope("run_delay", "thread")
        return None if rate is None else min(rate / _SHARE["ns"], 1.0)

    def _cores(self) -> tuple[Named, ...]:
        """Utilisation of each core, from the time that it was busy or idle.

        The kernel books idle time when a core wakes: one whose idle time stands still sleeps, or computes all the time.
        """
        shares: dict[str, float | None] = {}
        for channel in self._readings.channels:
            if channel.quantity in ("core_busy_time", "core_idle_time") and channel.scope not in shares:
                rate = self._readings.value(channel)
                share = None if rate is None else rate / _SHARE.get(channel.unit, 1.0)
                if share is not None and channel.quantity == "core_idle_time":
                    asleep = share == 0 and channel.ns_without_growth < _SLEEPS_NS
                    share = self._busy.get(channel.scope) if asleep else 1 - share
                shares[channel.scope] = None if share is None else min(max(share, 0.0), 1.0)
        self._busy |= {scope: share for scope, share in shares.items() if share is not None}
        return tuple((_scope_text(scope), shares[scope]) for scope in sorted(shares, key=lambda s: (len(s), s)))

    def _rails(self) -> dict[str, Named]:
        """Power of each rail by its scope, W: as read, else as its energy counter grows."""
        rails: dict[str, Named] = {}
        for quantity in ("power", "energy"):
            for channel in self._of_quantity(quantity):
                if rails.get(channel.scope, ("", None))[1] is None:
                    name = str(channel.rail or _scope_text(channel.scope)) + (" (estimated)" * channel.estimated)
                    rails[channel.scope] = (name, self._readings.value(channel))
        return rails

    def _accelerator_memory(self) -> tuple[tuple[str, float, float | None], ...]:
        """Memory of each accelerator that tells what is used of it."""
        memory = []
        for channel in self._of_quantity("memory_used"):
            used = self._readings.value(channel)
            if used is not None and channel.scope.startswith("gpu"):
                memory.append((_scope_text(channel.scope), used, self._value_of_scope("memory_total", channel.scope)))
        return tuple(memory)

    def _plain_quantities(self) -> Iterator[tuple[str, float | None, str]]:
        """What sensors read that no line of the view is made for; a counter as its growth a second."""
        for channel in self._shown_channels():
            quantity = find_quantity(channel.quantity, channel.unit)
            if quantity.plain:
                label = f"{quantity.label_within} {_scope_text(channel.scope)}" + (" (estimated)" * channel.estimated)
                yield label, self._readings.value(channel), channel.shown_unit

    def _find_total(self) -> tuple[str, ...]:
        every = self._readings.channels
        channels = [channel for quantity in ("power", "energy") for channel in every if channel.quantity == quantity]
        measured = {
            (str(channel.rail or channel.scope), channel.scope) for channel in channels if not channel.estimated
        }
        total = total_scopes(sorted(measured), self._device.content, self._header.content.get("simulated"))
        inside = {channel.scope for channel in channels if channel.parent_scope in total}
        return tuple(scope for scope in total if scope not in inside)

    def _shown_channels(self) -> list[Channel]:
        return [channel for channel in self._readings.channels if _card_of(channel.scope) not in self._unused]

    def _of_quantity(self, quantity: str) -> list[Channel]:
        return [channel for channel in self._shown_channels() if channel.quantity == quantity]

    def _values_by_scope(self, quantity: str) -> tuple[Named, ...]:
        channels = {channel.scope: channel for channel in reversed(self._of_quantity(quantity))}
        return tuple((_scope_text(scope), self._readings.value(channels[scope])) for scope in sorted(channels))

    def _value_of_scope(self, quantity: str, scope: str) -> float | None:
        channels = [channel for channel in self._of_quantity(quantity) if channel.scope == scope]
        return self._readings.value(channels[0]) if channels else None


class _WarningFollower:
    """The last warnings of events.jsonl."""

    def __init__(self, run: Path) -> None:
        self._tail = LineTail(run / "events.jsonl")
        self._last: deque[str] = deque(maxlen=_WARNINGS)

    def read_last_warnings(self) -> tuple[str, ...]:
        for line in self._tail.read_new_lines():
            try:
                event: Any = json.loads(line)
            except ValueError:
                continue  # cut off by a full disk: the next line is good again
            if isinstance(event, dict):
                self._last.append(str(event.get("message") or event.get("kind") or "event"))
        return tuple(self._last)


def _card_of(scope: str) -> str:
    return scope.partition("/")[0]


def _scope_text(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return name if kind in ("rail", "rapl", "thermal", "zone", "temperature") and name else scope.replace(":", " ")


_WHOLE_BOARD = ("system", "board", "wall:*", "meter:*", "battery:*", "rapl:psys")  # hold everything; the best first


def total_scopes(rails: Collection[tuple[str, str]], device: dict[str, Any], simulated: str | None) -> tuple[str, ...]:
    """Scopes to add up, of rails as (name, scope); empty where no rail is known to hold the others."""
    board = identify(device, {name for name, _ in rails}, simulated)
    entries = {scope: rail_of(board, canonical_rail_name(board, name), scope) for name, scope in rails}
    for rule in board.totals:
        of = [[scope for scope, entry in entries.items() if entry and entry.name == name] for name in rule.of]
        if all(of):
            also = [scope for scope, entry in entries.items() if entry and entry.name in rule.also]
            return tuple(dict.fromkeys([*(scope for scopes in of for scope in scopes), *also]))
    of_kind = ([scope for _, scope in rails if matches_pattern(pattern, scope)] for pattern in _WHOLE_BOARD)
    best = next(filter(None, of_kind), [])
    return tuple(best if best and best[0].startswith("battery:") else best[:1])
