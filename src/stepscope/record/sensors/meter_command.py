"""A command of the user's that prints readings: one that streams, or one that prints once and is run each second.

One reading a line: `<watts>`, `<unix seconds> <watts>`, or `name=value` pairs. A comma between digits is a decimal
comma, save behind unix seconds. Lines that come between two reads are averaged; the meter's own clock, where it prints
one, is a channel of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.clock import Clock
from stepscope.privacy import shown_command
from stepscope.record.access.child_lines import ChildLines
from stepscope.record.sensors.contract import NAN, Channel, Meter, NoSensor, OpenSensor, Target, make_channel

NAME = "meter_command"
EVERY_NS = 100_000_000
AGAIN_NS = 1_000_000_000  # a command that has printed and ended is run again this long after its start
FIRST_LINE_S = 2.0
STALE_NS = 3_000_000_000  # without a line for so long (and three of its own periods) there is no reading
_POWER = ("power",)  # the channel of a command that has not given a reading yet
_SHELL_SIGNS = set("|&;<>()$`*?~\n")


@dataclass
class _Command:
    """A meter's command: its running child, and what it said last."""

    meter: Meter
    argv: list[str]
    clock: Clock
    child: ChildLines
    started_ns: int
    reading: dict[str, float] = field(default_factory=dict)
    seen_ns: int = 0
    period_ns: int = 0
    why: str = ""  # the last line was no reading

    def poll(self, wait_s: float = 0.0) -> None:
        """Take the lines that have come, and start the command again when it is due."""
        self._take(self.child.read_lines(wait_s))
        if self.child.exit_code() is None:
            return
        self._take(self.child.read_lines())
        if self.child.exit_code() == 0 and self.clock() - self.started_ns >= AGAIN_NS:
            self.child.close()
            self.started_ns = self.clock()
            self.child = ChildLines(self.argv)

    def _take(self, lines: Sequence[str]) -> None:
        readings = []
        for line in filter(str.strip, lines):
            try:
                readings.append(parse_reading(line))
                self.why = ""
            except ValueError as error:
                self.why = str(error)
        now_ns = self.clock()
        if readings:
            self.reading = _combine_readings(readings)
            self.period_ns = now_ns - self.seen_ns if self.seen_ns else 0
            self.seen_ns = now_ns
        if self.why:  # what was printed last cannot be read: that is a gap, and not the value before it
            self.reading = {}

    def failure(self) -> str:
        """Return why the command gives no reading; empty while it may."""
        code = self.child.exit_code()
        if code:
            return f"'{self.meter.address}' ended with exit code {code}: {self.child.complaint() or 'it said nothing'}"
        return f"'{self.meter.address}': {self.why}" if self.why else ""

    def value(self, quantity: str) -> float:
        """The last reading while it is fresh."""
        stale = self.clock() - self.seen_ns > max(STALE_NS, 3 * self.period_ns)
        return NAN if stale else self.reading.get(quantity, NAN)


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Start every command that was named and wait for its first line; its quantities become the channels."""
    meters = [meter for meter in target.meters if meter.kind == "command"]
    if root != Path("/"):
        return NoSensor("absent", f"{root}: a saved tree runs no meter command")
    if not meters:
        return NoSensor("absent", f"{root}: no meter command was named", "--meter-command 'COMMAND THAT PRINTS WATTS'")
    commands = _start_commands(meters, target.clock)
    if isinstance(commands, NoSensor):
        return commands
    _await_first_lines(commands, target.clock)
    if not any(command.reading for command in commands):
        why = "; ".join(command.failure() or _no_answer_text(command) for command in commands)
        _close(commands)
        return NoSensor("failed", why, "run it in a terminal: it must print a line with the power in W, and flush it")
    quantities = [
        (command, quantity) for command in commands for quantity in SI if quantity in (command.reading or _POWER)
    ]
    channels = tuple(_channel(command.meter, quantity) for command, quantity in quantities)
    return OpenSensor(
        channels, _reader(commands, quantities), lambda: _close(commands), every_ns=EVERY_NS, blocking=True
    )


def _start_commands(meters: Sequence[Meter], clock: Clock) -> list[_Command] | NoSensor:
    """Every command running, or why one cannot be started, and then none runs."""
    commands: list[_Command] = []
    for meter in meters:
        try:
            argv = words(meter.address)
            commands.append(_Command(meter, argv, clock, ChildLines(argv), clock()))
        except (OSError, ValueError) as error:
            _close(commands)
            return _not_started(meter, error)
    return commands


def _reader(commands: Sequence[_Command], quantities: Sequence[tuple[_Command, str]]) -> Callable[[], list[float]]:
    def read() -> list[float]:
        for command in commands:
            command.poll()
        if all(command.child.exit_code() for command in commands):
            raise OSError("; ".join(command.failure() for command in commands))
        return [command.value(quantity) for command, quantity in quantities]

    return read


def words(command: str) -> list[str]:
    """The command as an argument list: split as a shell would, through a shell only where its signs need one.

    Raises ValueError where a quote is not closed or nothing is there.
    """
    split = shlex.split(command)
    if not split:
        raise ValueError("an empty command")
    lexer = shlex.shlex(command, posix=False)
    lexer.whitespace_split = True
    bare = [token for token in lexer if not (token[0] == token[-1] == "'")]
    return ["/bin/sh", "-c", command] if any(_SHELL_SIGNS & set(token) for token in bare) else split


def _await_first_lines(commands: Sequence[_Command], clock: Clock) -> None:
    """Wait until each command has given a reading or has ended, within a common limit; a header line may come first."""
    limit_ns = clock() + int(FIRST_LINE_S * 1e9)
    waiting = list(commands)
    while waiting and clock() < limit_ns:
        running = [
            command for command in waiting if command.child.exit_code() is None
        ]  # before its last lines are taken
        for command in waiting:
            command.poll(wait_s=0.02)
        waiting = [command for command in running if not command.reading]


def _no_answer_text(command: _Command) -> str:
    return f"'{command.meter.address}' printed nothing within {FIRST_LINE_S:g} s"


def _combine_readings(readings: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each gauge over lines that came together; of a counter the last one."""
    means: dict[str, float] = {}
    for quantity in SI:
        values = [reading[quantity] for reading in readings if quantity in reading]
        if values:
            means[quantity] = values[-1] if quantity == "energy" else sum(values) / len(values)
    return means


def _not_started(meter: Meter, error: OSError | ValueError) -> NoSensor:
    if isinstance(error, FileNotFoundError):
        return NoSensor("failed", f"'{meter.address}': no such command", "give its full path")
    if isinstance(error, PermissionError):
        return NoSensor("denied", f"'{meter.address}': permission denied", f"chmod +x {shlex.split(meter.address)[0]}")
    return NoSensor("failed", f"'{meter.address}': {error}")


def _close(commands: Sequence[_Command]) -> None:
    for command in commands:
        command.child.close()


def _channel(meter: Meter, quantity: str) -> Channel:
    scope = f"meter:{meter.name}"
    averages = "mean of the lines printed since the last read" if quantity != "energy" else None
    return make_channel(NAME, scope, quantity, SI[quantity], shown_command(meter.address), filter=averages)


# Unit in lower case -> quantity, SI unit, factor: MW would be read as mW, but no meter of a training device is in MW.
UNITS: dict[str, tuple[str, str, float]] = {
    "w": ("power", "W", 1.0),
    "mw": ("power", "W", 1e-3),
    "uw": ("power", "W", 1e-6),
    "kw": ("power", "W", 1e3),
    "j": ("energy", "J", 1.0),
    "mj": ("energy", "J", 1e-3),
    "wh": ("energy", "J", 3600.0),
    "mwh": ("energy", "J", 3.6),
    "kwh": ("energy", "J", 3.6e6),
    "v": ("voltage", "V", 1.0),
    "mv": ("voltage", "V", 1e-3),
    "a": ("current", "A", 1.0),
    "ma": ("current", "A", 1e-3),
    "ua": ("current", "A", 1e-6),
}
_NAMES: dict[str, str] = {
    **dict.fromkeys(("power", "p", "watt", "watts", "apower"), "w"),
    **dict.fromkeys(("energy", "e", "joule", "joules"), "j"),
    **dict.fromkeys(("voltage", "volt", "volts", "u"), "v"),
    **dict.fromkeys(("current", "ampere", "amperes", "amps", "i"), "a"),
    **{unit: unit for unit in UNITS},
}
_CLOCK = ("time", "t", "timestamp", "ts", "unix")
SI = {"power": "W", "energy": "J", "voltage": "V", "current": "A", "meter_clock": "s"}
_TIME = ("meter_clock", "s", 1.0)
_MOST = 1e12
_LEAST_UNIX_S = 1e8  # a first column below is no time: 1973
_PAIR = re.compile(r"\b([A-Za-z][A-Za-z0-9_]{0,30})\s*[=:]")
_BETWEEN_PAIRS = " \t,;|()[]"
_NUMBER = re.compile(
    r"([+-]?(?:\d{1,20}(?:\.\d{0,20}|,\d{1,20})?|[.,]\d{1,20})(?:[eE][+-]?\d{1,2})?)\s*([A-Za-z]{0,3})", re.ASCII
)
_EITHER_COMMA = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)  # 1,234 is 1.234 or 1234


def parse_reading(line: str) -> dict[str, float]:
    """Quantities of one line in SI units, with "meter_clock" (unix s) where it has a time; raises ValueError."""
    text = line.strip()
    pairs = _split_named_values(text)
    values = _known_pairs(pairs) if pairs else _parse_bare_numbers(text)
    if not values.keys() - {"meter_clock"}:
        raise ValueError(f"'{text[:60]}' is not a reading: expected <watts>, <unix seconds> <watts>, or power=<watts>")
    return values


def _parse_bare_numbers(text: str) -> dict[str, float]:
    """One number is a power, two are a time and a power; a unit may follow the power."""
    words = re.split(r"[\s;]+|,\s+", text)
    if len(words) > 1 and re.fullmatch(r"[A-Za-z]{1,2}", words[-1]):
        words[-2:] = [words[-2] + words[-1]]  # "5.1 W"
    if len(words) == 1 and re.match(r"\d{9,}(\.\d*)?,", text, re.ASCII):
        words = words[0].split(",", 1)
    if len(words) > 2:
        raise ValueError(f"'{text[:60]}' has {len(words)} columns: expected <watts> or <unix seconds> <watts>")
    quantity, value = _value(words[-1])
    if len(words) == 1:
        return {quantity: value}
    t_s = _value(words[0], "time")[1]
    if t_s < _LEAST_UNIX_S:
        raise ValueError(f"'{text[:60]}' begins with no unix time: expected <watts> or <unix seconds> <watts>")
    return {"meter_clock": t_s, quantity: value}


def _split_named_values(text: str) -> list[tuple[str, str]]:
    """Names, and all that stands behind each up to the next."""
    names = list(_PAIR.finditer(text))
    ends = [*(later.start() for later in names[1:]), len(text)]
    return [(name[1], text[name.end() : end].strip(_BETWEEN_PAIRS)) for name, end in zip(names, ends, strict=False)]


def _known_pairs(pairs: list[tuple[str, str]]) -> dict[str, float]:
    """The pairs whose name or unit is known; the others are excluded."""
    values: dict[str, float] = {}
    for name, word in pairs:
        lowered = name.lower()
        if lowered in _CLOCK:
            values["meter_clock"] = _value(word, "time")[1]
            continue
        stem, _, suffix = lowered.rpartition("_")
        unit = suffix if stem and suffix in UNITS else _NAMES.get(lowered)
        if unit is not None:
            quantity, value = _value(word, unit)
            values[quantity] = value
    return values


def _value(word: str, unit: str = "") -> tuple[str, float]:
    """A number, with a unit of its own or in the unit given, W in the end; raises ValueError."""
    matched = _NUMBER.fullmatch(word)
    if matched is None:
        raise ValueError(f"'{word[:40]}' is not a number")
    if _EITHER_COMMA.fullmatch(matched[1]):
        plain = matched[1].replace(",", "")
        raise ValueError(f"'{word[:40]}' can be {matched[1].replace(',', '.')} or {plain}: print a decimal point")
    own = matched[2].lower()
    quantity, _, factor = _TIME if unit == "time" else UNITS[unit or "w"]
    if own:
        if own not in UNITS or (unit and UNITS[own][0] != quantity):
            raise ValueError(f"'{word[:40]}': '{matched[2]}' is not a unit of {quantity}")
        quantity, _, factor = UNITS[own]
    value = float(matched[1].replace(",", ".")) * factor
    if not abs(value) <= _MOST:
        raise ValueError(f"'{word[:40]}' is not a plausible reading")
    return quantity, value
