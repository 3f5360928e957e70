"""The live view on a terminal of any width, or as a line every few seconds, until the run has ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from stepscope.quantities import simulated_badge
from stepscope.report.live.run_state import Named, Now, RunWatcher
from stepscope.units import NOT_MEASURED, amount, bytes_, duration, number, percent, si

LOOKS_PER_S = 2.0
LINE_EVERY_S = 5.0


def watch(
    run: Path,
    console: Console,
    *,
    lines: bool = False,
    looks_per_s: float = LOOKS_PER_S,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Show a run until it has ended; returns its status. `lines`: never draw over what is on the terminal."""
    follows = RunWatcher(run)
    with contextlib.closing(follows):
        first = follows.read_state()
        if first.ended:
            _print(console, ending_of(first))
            return first.status
        if lines or not console.is_terminal:
            return _print_lines(poll_states(follows, first, LINE_EVERY_S, sleep), console)
        return _show_until_ended(poll_states(follows, first, 1 / looks_per_s, sleep), console)


def _show_until_ended(looks: Iterator[Now], console: Console) -> str:
    now = next(looks)
    with Live(Screen(now), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for later in looks:
            now = later
            live.update(Screen(now), refresh=True)
    return now.status


def _print_lines(looks: Iterator[Now], console: Console) -> str:
    status, warnings = "", tuple[str, ...]()
    for now in looks:
        for warning in now.warnings[-1:] if now.warnings != warnings else ():
            _print(console, f"! {warning}")
        status, warnings = now.status, now.warnings
        _print(console, ending_of(now) if now.ended else status_line(now))
    return status


def poll_states(follows: RunWatcher, now: Now, every_s: float, sleep: Callable[[float], None]) -> Iterator[Now]:
    """The first look and one more each period, the last when the run has ended."""
    yield now
    while not now.ended:
        sleep(every_s)
        now = follows.read_state()
        yield now


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


_LABEL, _BAR, _CELL = 9, 10, 26  # columns
_FEW_CORES = 16  # with more, a core is a single character
_STEPS_LATE = 4  # a step that takes so many times the usual is worth a word
_HOT_C = 80.0
_MUCH_DELAYED = 0.05  # of the time, in the run queue
_PLAIN, _DIM, _BOLD = Style(), Style(dim=True), Style(bold=True)
_GOOD, _BAD, _BUSY = Style(color="green"), Style(color="red", bold=True), Style(color="cyan")
_STATUS = {"running": _BUSY, "ok": _GOOD}
_FULL, _EMPTY, _LEVELS = ("█", "#"), ("░", "."), (" ▁▂▃▄▅▆▇█", " .:-=+*#@")
Piece = tuple[str, Style]


@dataclass(frozen=True)
class Screen:
    """Draws one `Now`; segments are made directly, which costs a tenth of a table's layout."""

    now: Now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        width = options.max_width
        for pieces in _lines(self.now, width, options.ascii_only):
            room = width
            for text, style in pieces:
                line = _cropped(text, room)
                room -= Text(line).cell_len
                yield Segment(line, style)
            yield Segment.line()


def _lines(now: Now, width: int, ascii_only: bool) -> Iterator[list[Piece]]:
    yield _title(now, width)
    yield _progress(now, ascii_only)
    yield _speed(now)
    yield from _shares("cores", now.cores, width, ascii_only)
    yield from _shares("GPU", now.accelerators, width, ascii_only)
    if now.other_cards is not None:
        yield [*_label(""), (now.other_cards, _DIM)]
    yield from _wrapped("power", _power(now), width)
    yield _memory(now, ascii_only)
    for name, used, whole in now.accelerator_memory:
        bar = _bar(min(used / whole, 1.0), 2 * _BAR, ascii_only) if whole else []
        limit = f" of {bytes_(whole)}" if whole else ""
        yield [*_label(""), *bar, (f"  {name} {bytes_(used)}{limit}", _PLAIN)]
    yield from _wrapped(
        "heat", [_temperature_piece(sensor) for sensor in now.temperatures if sensor[1] is not None], width
    )
    yield from _wrapped("clocks", [*clock_pieces(now)], width)
    yield from _wrapped("limits", [*slowdown_pieces(now)], width)
    quantities = [(name, value, unit) for name, value, unit in now.others if value is not None]
    yield from _wrapped("other", [(f"{name} {amount(value, unit)}", _PLAIN) for name, value, unit in quantities], width)
    for warning in now.warnings:
        yield [(f"{'!':<{_LABEL}}", _BAD), (warning, _PLAIN)]


def _title(now: Now, width: int) -> list[Piece]:
    status = now.status if not now.reason else f"{now.status}: {now.reason}"
    simulated = f"  {simulated_badge(now.simulated)}"
    room = max(width - len(status) - len(simulated) - 4, 10)
    name = f"{now.name}  {now.run}" if now.name not in now.run else now.run
    style = _STATUS.get(now.status, _BAD)
    return [(f"{_cropped(name, room)}  ", _BOLD), (status, style), (simulated, _BAD)]


def _progress(now: Now, ascii_only: bool) -> list[Piece]:
    steps = now.pace.done
    if now.planned is None:
        return [*_label("step"), (str(steps), _PLAIN), ("   how many there will be is not known", _DIM)]
    share = min(steps / now.planned, 1.0) if now.planned else 0.0
    counted = f"{steps}/{now.planned}  "
    time_left = "" if now.left_s is None else f"  {percent(share, 0)}  left {duration(now.left_s * 1e9, 2)}"
    energy = "" if now.left_j is None else f", {si(now.left_j, 'J', 2)}"
    return [*_label("step"), (counted, _PLAIN), *_bar(share, 2 * _BAR, ascii_only), (time_left + energy, _PLAIN)]


def _speed(now: Now) -> list[Piece]:
    pace = now.pace
    if pace.step_ns is None:
        return [*_label("speed"), ("no step has ended yet", _DIM)]
    rate = "" if pace.samples_per_s is None else f"  {number(pace.samples_per_s)} samples/s"
    loss = "" if pace.loss is None else f"  loss {number(pace.loss, 4)}"
    waits = now.waited_ns if not now.ended else None
    late = waits is not None and waits > max(_STEPS_LATE * pace.step_ns, 2e9)
    waited = f"  this step: {duration(waits, 2)} so far" if late else ""
    return [*_label("speed"), (f"{duration(pace.step_ns)} a step{rate}{loss}", _PLAIN), (waited, _BAD)]


def _shares(label: str, named: Sequence[Named], width: int, ascii_only: bool) -> Iterator[list[Piece]]:
    """Bars side by side, as many as fit; of many cores, a character each."""
    if len(named) > _FEW_CORES:
        levels = _LEVELS[ascii_only]
        text = "".join("?" if share is None else levels[round(share * (len(levels) - 1))] for _, share in named)
        inner = max(width - _LABEL, 8)
        for at in range(0, len(text), inner):
            yield [*_label(label if at == 0 else ""), (text[at : at + inner], _BUSY)]
        return
    beside = max((width - _LABEL) // _CELL, 1)
    for at in range(0, len(named), beside):
        line = _label(label if at == 0 else "")
        for name, share in named[at : at + beside]:
            share_text = NOT_MEASURED if share is None else percent(share, 0)
            short = name.removeprefix("core ")
            line += [
                (f"{_cropped(short, 6):<7}", _DIM),
                *_bar(share or 0.0, _BAR, ascii_only),
                (f"{share_text:>6}   ", _PLAIN),
            ]
        yield line


def _power(now: Now) -> list[Piece]:
    rails = [(f"{name} {si(watts, 'W')}", _PLAIN) for name, watts in now.rails]
    return [*([(f"total {si(now.total_w, 'W')}", _BOLD)] if now.total_w is not None else []), *rails]


def _memory(now: Now, ascii_only: bool) -> list[Piece]:
    if now.resident_bytes is None:
        return [*_label("memory"), ("not measured", _DIM)]
    line = _label("memory")
    if now.memory_bytes:
        used = now.memory_bytes - now.available_bytes if now.available_bytes is not None else now.resident_bytes
        line += [*_bar(min(used / now.memory_bytes, 1.0), 2 * _BAR, ascii_only), ("  ", _PLAIN)]
    limit = "" if not now.memory_bytes else f" of {bytes_(now.memory_bytes)}"
    free = "" if now.available_bytes is None else f", {bytes_(now.available_bytes)} available"
    whose = "all processes" if now.processes else "training process"
    return [*line, (f"{whose} {bytes_(now.resident_bytes)}{limit}{free}", _PLAIN)]


def _temperature_piece(sensor: Named) -> Piece:
    name, degrees = sensor
    assert degrees is not None
    return f"{name} {degrees:.0f} °C", _BAD if degrees >= _HOT_C else _PLAIN


def clock_pieces(now: Now) -> Iterator[Piece]:
    """Clocks, of the cores the highest and the lowest."""
    cores = [hertz for name, hertz in now.clocks if name.startswith("core ") and hertz is not None]
    if cores:
        low, high = (si(hertz, "Hz") for hertz in (min(cores), max(cores)))
        yield f"cores {high}" if low == high else f"fastest core {high}, slowest {low}", _PLAIN
    for name, hertz in now.clocks:
        if hertz is not None and not name.startswith("core "):
            yield f"{name} {si(hertz, 'Hz')}", _PLAIN


def slowdown_pieces(now: Now) -> Iterator[Piece]:
    """Power mode, what takes clocks away, and how long the training waits for a core."""
    if now.power_mode is not None:
        yield f"power mode {now.power_mode}", _PLAIN
    if now.throttled:
        yield f"throttled: {', '.join(now.throttled)}", _BAD
    if now.delayed is not None:
        yield f"waits for a core {percent(now.delayed, 0)} of the time", _BAD if now.delayed > _MUCH_DELAYED else _PLAIN


def _wrapped(label: str, pieces: Sequence[Piece], width: int) -> Iterator[list[Piece]]:
    """Pieces after each other, as many a line as fit."""
    line, used = _label(label), _LABEL
    for text, style in pieces:
        if used > _LABEL and used + len(text) > width:
            yield line
            line, used = _label(""), _LABEL
        line.append((f"{text}   ", style))
        used += len(text) + 3
    if pieces:
        yield line


def _label(text: str) -> list[Piece]:
    return [(f"{text:<{_LABEL}}", _DIM)]


def _bar(share: float, width: int, ascii_only: bool) -> list[Piece]:
    full = round(share * width)
    return [(_FULL[ascii_only] * full, _BUSY), (_EMPTY[ascii_only] * (width - full), _DIM)]


def _cropped(text: str, room: int) -> str:
    """Text that fits, without control characters: names are not ours, and a terminal obeys them."""
    plain = "".join(character if character.isprintable() else "?" for character in text)
    if len(plain) <= room and plain.isascii():
        return plain
    line = Text(plain)
    line.truncate(max(room, 0), overflow="ellipsis" if room > 1 else "crop")
    return line.plain


def status_line(now: Now) -> str:
    """Step, speed, time left, power, memory, load and heat, as far as they are known."""
    pace = now.pace
    shares = [share for _, share in now.cores if share is not None]
    hottest = max((value for _, value in now.temperatures if value is not None), default=None)
    parts = (
        now.name if now.simulated is None else f"{now.name} ({simulated_badge(now.simulated)})",
        f"step {pace.done}" + (f"/{now.planned}" if now.planned is not None else ""),
        None if pace.step_ns is None else f"{duration(pace.step_ns)} a step",
        None if pace.samples_per_s is None else f"{number(pace.samples_per_s)} samples/s",
        None if now.left_s is None else f"left {duration(now.left_s * 1e9, 2)}",
        None if now.left_j is None else f"{si(now.left_j, 'J', 2)} left",
        None if now.total_w is None else si(now.total_w, "W"),
        f"cores {percent(sum(shares) / len(shares), 0)}" if shares else None,
        None if now.resident_bytes is None else f"memory {bytes_(now.resident_bytes)}",
        None if hottest is None else f"{hottest:.0f} °C",
        *(f"{name} {amount(value, unit)}" for name, value, unit in now.others if value is not None),
    )
    text = ", ".join(part for part in parts if part is not None)
    return "".join(character if character.isprintable() else "?" for character in text)


def ending_of(now: Now) -> str:
    """Return how the run ended."""
    reason = f" ({now.reason})" if now.reason else ""
    return f"{now.run}: {now.status}{reason}"
