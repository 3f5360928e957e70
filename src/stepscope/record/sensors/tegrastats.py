"""Power rails of a Jetson through NVIDIA's tegrastats, W: the way in where the INA3221 itself may not be read.

A child process prints a line an interval. Only a line that is new since the last read is a reading: a read waits an
interval for it, since neither keeps to its period so exactly that there is one each time, and no new line is NaN, never
the old value again. A line is up to one interval older than the read that takes it.

Lines of L4T 28 to JetPack 7 are read by the class of each token, never by its position.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from stepscope.record.access.child_lines import ChildLines
from stepscope.record.sensors import ina3221
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    NoSensor,
    OpenSensor,
    Target,
    no_sensor_from_error,
    rail_channel,
)

NAME = "tegrastats"
EVERY_NS = 100_000_000
FIRST_LINE_S = 2.0
MOST_WATTS = 1000.0
LOOK_EVERY = 10  # reads: is it still needed?


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """One power gauge a rail that the first line names; nothing where the rails can be read without it."""
    program = _program(root)
    if program is None:
        return NoSensor("absent", f"{root / 'usr/bin/tegrastats'}: not there (it comes with Jetson Linux)")
    if _rails_are_open(root, target):
        return NoSensor("absent", f"{program}: not needed, the INA3221 below {root} can be read itself")
    try:
        child = ChildLines([str(program), "--interval", str(EVERY_NS // 1_000_000)])
    except OSError as error:
        return no_sensor_from_error(error, program, f"sudo chmod a+rx {program}")
    first = first_line(child)
    places = rail_channels(first.rails) if first else {}
    if not places:
        complaint = child.complaint()
        child.close()
        return _no_rail(root, program, first, complaint)
    reads = 0

    def read() -> list[float]:
        nonlocal reads
        reads += 1
        if reads % LOOK_EVERY == 0 and _rails_are_open(root, target):
            raise OSError("not needed any more: the INA3221 can be read itself")
        lines = child.read_lines(EVERY_NS / 1e9)
        if not lines and child.exit_code() is not None:
            raise OSError(f"it has ended with status {child.exit_code()}: {child.complaint()}")
        return rail_watts(parse(lines[-1]), places) if lines else [NAN] * len(places)

    channels = tuple(_channel(name, program) for name in places)
    return OpenSensor(channels, read, child.close, every_ns=EVERY_NS, blocking=True)


def first_line(child: ChildLines) -> TegrastatsLine | None:
    """Wait for a line that states memory, as all do; None where none comes in time or the child ends before."""
    deadline = time.monotonic() + FIRST_LINE_S
    while (remaining_s := deadline - time.monotonic()) > 0:
        ended = child.exit_code() is not None
        for content in map(parse, child.read_lines(remaining_s)):
            if content.memory:
                return content
        if ended:
            return None
    return None


def rail_channels(rails: Sequence[Rail]) -> dict[str, tuple[str, int]]:
    """Names of the channels, and for each the rail of the line: its name, and which of those of the same name it is."""
    counts: Counter[str] = Counter()
    places: dict[str, tuple[str, int]] = {}
    for rail in rails:
        if rail.name == "NC":
            continue
        place = (rail.name, counts[rail.name])
        counts[rail.name] += 1
        places[rail.name if place[1] == 0 else f"{rail.name}#{counts[rail.name]}"] = place
    return places


def rail_watts(line: TegrastatsLine, places: dict[str, tuple[str, int]]) -> list[float]:
    """Power now of each channel, W; NaN where this line lacks the rail, or states what cannot be."""
    of_name: dict[str, list[float]] = {}
    for rail in line.rails:
        of_name.setdefault(rail.name, []).append(rail.watts[0])
    values = []
    for name, nth in places.values():
        watts = of_name.get(name, [])[nth : nth + 1] or [NAN]
        values.append(watts[0] if 0 <= watts[0] <= MOST_WATTS else NAN)
    return values


def _rails_are_open(root: Path, target: Target) -> bool:
    """Return whether the INA3221 itself can be read, so that no rail is reported twice."""
    direct = ina3221.discover(root, target)
    if isinstance(direct, NoSensor):
        return False
    direct.close()
    return True


def _no_rail(root: Path, program: Path, first: TegrastatsLine | None, complaint: str) -> NoSensor:
    if first is None:
        text = f" ({complaint})" if complaint else ""
        return NoSensor("failed", f"{program}: no line of numbers within {FIRST_LINE_S:g} s{text}")
    if not any((root / "sys/bus/i2c/drivers").glob("ina3221*/*-00*")):
        detail = f"{program}: prints no power rail, and this board has no INA3221"
        return NoSensor("unsupported", detail, "put a meter beside the board: a smart plug or an INA219")
    remedy = "sudo -E stepscope ...   (old releases print the rails for root alone)"
    return NoSensor("denied", f"{program}: prints no power rail", remedy)


def _program(root: Path) -> Path | None:
    """The program of this machine on PATH, or the one below root."""
    on_path = shutil.which("tegrastats") if root == Path("/") else None
    if on_path is not None:
        return Path(on_path)
    program = root / "usr/bin/tegrastats"
    return program if program.is_file() else None


def _channel(name: str, program: Path) -> Channel:
    return rail_channel(NAME, name, "power", str(program), rail=name.partition("#")[0], refresh_ns=EVERY_NS)


#     [stamp] RAM u/tMB (lfb NxM) [SWAP u/tMB (cached c)] [IRAM u/tkB(lfb n)] CPU [p%@MHz|off,...]
#     engine p%|p%@MHz|p%@[f,f]|@[f,f]|MHz|off ...   zone@tC[/tC] ...   rail now/avg[/third][mW] ...
#
# A rail and a zone may share a name (GPU 463/463 and GPU@30.5C on AGX Xavier). What no class fits stays in `unknown`.

OFF_C = -256.0  # printed for a thermal zone that is powered down
_BYTES = {"kB": 1024, "MB": 1024**2, "GB": 1024**3}
_POOLS = ("RAM", "SWAP", "IRAM")
_NUMBER = r"-?[0-9]{1,9}(?:\.[0-9]{1,6})?"
_STAMP = re.compile(r"([0-9]{2})-([0-9]{2})-([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2})")
_ZONE = re.compile(rf"([^@\s]+)@({_NUMBER}C(?:/{_NUMBER}C)*)")
_RAIL = re.compile(rf"{_NUMBER}(?:mW)?(?:/{_NUMBER}(?:mW)?)+|{_NUMBER}mW")
_CLOCK = re.compile(r"@?[0-9]{1,9}")
_LOAD = re.compile(r"([0-9]{1,3})%(?:@([0-9]{1,9})|@\[([0-9,]{1,99})\])?|@\[([0-9,]{1,99})\]")
_POOL = re.compile(r"([0-9]{1,9})/([0-9]{1,9})([kMG]B)(\(lfb)?")
_BLOCKS = re.compile(r"(?:([0-9]{1,9})x)?([0-9]{1,9})([kMG]B)\)")
_CORE = re.compile(r"([0-9]{1,3})%(?:@([0-9]{1,9}))?")
_CORES = re.compile(r"\[([^\[\]]*)\](?:@([0-9]{1,9}))?")
_SUPPLY = re.compile(r"(?:VDD|VIN|POM_|SYS_?[0-9]+V|NC$)")  # a lone number after such a name is power, not a clock


class Memory(NamedTuple):
    """A pool of memory, B; the largest free blocks and the cached part where they are printed."""

    name: str
    used_bytes: int
    total_bytes: int
    free_blocks: int | None = None  # how many of the largest size are free
    block_bytes: int | None = None
    cached_bytes: int | None = None


class Core(NamedTuple):
    """Busy share of a core, 0 to 1, and its clock, Hz; both None where the core is off."""

    utilisation: float | None
    frequency_hz: float | None


class Engine(NamedTuple):
    """A unit of the chip (GR3D is the GPU, EMC the memory controller): busy share, clocks of its parts, Hz, or off."""

    name: str
    utilisation: float | None
    frequencies_hz: tuple[float, ...]
    off: bool = False


class Zone(NamedTuple):
    """Temperatures of a thermal zone, degrees Celsius; None where it is off."""

    name: str
    celsius: tuple[float | None, ...]


class Rail(NamedTuple):
    """Power of a rail, W: now, the mean since tegrastats began, and under JetPack 7 a third value."""

    name: str
    watts: tuple[float, ...]


@dataclass(frozen=True)
class TegrastatsLine:
    """All that one line says, each kind in the order of the line."""

    stamp: datetime | None  # local time of the board, whole seconds
    memory: tuple[Memory, ...]
    cpus: tuple[Core, ...]
    engines: tuple[Engine, ...]
    temperatures: tuple[Zone, ...]
    rails: tuple[Rail, ...]
    unknown: tuple[str, ...]  # words that fit no class


def parse(line: str) -> TegrastatsLine:
    """Return the content of a line; unknown words are kept, and nothing is raised."""
    words = line.split()
    stamp = _parse_timestamp(words)
    parts = _LineParser(words)
    zones: list[Zone] = []
    at, last = 0 if stamp is None else 2, len(words) - 1
    if words[at : at + 1] != ["RAM"] and "RAM" in words:
        at = parts.keep(at, words.index("RAM") - at)  # what a log puts before each line
    while at <= last:  # the tokens that a line has most of come first
        word = words[at]
        if word[-1] == "C" and (zone := _zone(word)) is not None:
            zones.append(zone)
            at += 1
        elif at == last:
            at = parts.keep(at, 1)
        elif (part := _parse_rail_or_engine(word, words[at + 1])) is None:
            at = parts.parse_rare_word(at)
        elif type(part) is Rail:
            parts.rails.append(part)
            at += 2
        elif last - at > 1 and words[at + 2] in _BYTES:
            at = parts.keep(at, 3)  # an amount of something that is not known
        else:
            parts.engines.append(part)  # type: ignore[arg-type]  # the other of the two
            at += 2
    return parts.line(stamp, zones)


class _LineParser:
    """The words of a line, and what has been made of them; each method returns the place of the next word."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.memory: list[Memory] = []
        self.cpus: tuple[Core, ...] = ()
        self.engines: list[Engine] = []
        self.rails: list[Rail] = []
        self.unknown: list[str] = []

    def line(self, stamp: datetime | None, zones: list[Zone]) -> TegrastatsLine:
        """All together."""
        memory, engines, rails = tuple(self.memory), tuple(self.engines), tuple(self.rails)
        return TegrastatsLine(stamp, memory, self.cpus, engines, tuple(zones), rails, tuple(self.unknown))

    def keep(self, at: int, words: int) -> int:
        """Words of no class."""
        self.unknown += self.words[at : at + words]
        return at + words

    def parse_rare_word(self, at: int) -> int:
        """Memory, cores, the group MTS, or a word of no class."""
        name, *behind = self.words[at : at + 4]
        if name in _POOLS:
            pool, words = _parse_memory_pool(name, *behind)
            if pool is None:
                return self.keep(at, words)
            self.memory.append(pool)
            return at + words
        if behind[0][0] == "[" and name in ("CPU", "cpu") and not self.cpus:
            return self._cores(at)
        if name == "EDP" and behind[0] == "limit":
            return self._parse_current_limit(at)
        return self._parse_translator_shares(at) if name == "MTS" else self.keep(at, 1)

    def _parse_current_limit(self, at: int) -> int:
        """`EDP limit 1912` (TK1, TX1): the clock to which the supply's current holds the CPU, MHz; 0 is none."""
        part = _parse_rail_or_engine("EDP limit", self.words[at + 2]) if at + 2 < len(self.words) else None
        if not isinstance(part, Engine):
            return self.keep(at, 1)
        self.engines.append(part)
        return at + 3

    def _parse_translator_shares(self, at: int) -> int:
        """`MTS fg 1% bg 1%`: the share of a time that runs the code translator of the Denver cores."""
        names, texts = self.words[at + 1 : at + 5 : 2], self.words[at + 2 : at + 5 : 2]
        parts = [_parse_rail_or_engine(f"MTS {name}", text) for name, text in zip(names, texts, strict=False)]
        engines = [engine for engine in parts if isinstance(engine, Engine) and engine.utilisation is not None]
        if len(engines) < 2 or not set(names) <= {"fg", "bg", "bgnd"}:
            return self.keep(at, 1)
        self.engines += engines
        return at + 5

    def _cores(self, at: int) -> int:
        """The list of cores, which may hold blanks; under L4T 28 its clock stands behind it."""
        end = at + 1
        while end < len(self.words) - 1 and "]" not in self.words[end]:
            end += 1
        whole = _CORES.fullmatch("".join(self.words[at + 1 : end + 1]))
        cores = [_core(item, whole[2]) for item in whole[1].split(",")] if whole else [None]
        if None in cores:
            return self.keep(at, 1)
        self.cpus = tuple(cores)  # type: ignore[arg-type]  # no None is among them
        return end + 1


# The same few thousand tokens come again and again: keeping what they mean makes a long log three times as fast.
@lru_cache(maxsize=4096)
def _zone(word: str) -> Zone | None:
    """`GPU@30.5C`, `cpu@52.968C/52.968C`."""
    match = _ZONE.fullmatch(word)
    if match is None:
        return None
    degrees = [float(number[:-1]) for number in match[2].split("/")]
    return Zone(match[1], tuple(None if t == OFF_C else t for t in degrees))


@lru_cache(maxsize=4096)
def _parse_memory_pool(name: str, text: str, opening: str = "", amount: str = "") -> tuple[Memory | None, int]:
    """`u/tMB` and behind it `(lfb NxM)` or `(cached c)`, the bracket with or without a blank; and how many words."""
    pool = _POOL.fullmatch(text)
    if pool is None:
        return None, 1
    used, total, unit, joined = pool.groups()
    if joined:
        opening, amount = joined, opening
    size = _BLOCKS.fullmatch(amount) if opening in ("(lfb", "(cached") else None
    if size is None and joined:
        return None, 2
    scale = _BYTES[unit]
    memory = Memory(name, int(used) * scale, int(total) * scale)
    if size is None:
        return memory, 2
    count, bytes_ = int(size[1]) if size[1] else None, int(size[2]) * _BYTES[size[3]]
    lfb = opening == "(lfb"
    whole = memory._replace(**({"free_blocks": count, "block_bytes": bytes_} if lfb else {"cached_bytes": bytes_}))
    return whole, 3 if joined else 4


@lru_cache(maxsize=16384)
def _parse_rail_or_engine(name: str, text: str) -> Rail | Engine | None:
    """A rail or an engine: what a name and the word behind it say; None where they say neither."""
    if "/" in text or text[-1] == "W":
        if name in _POOLS or not name[0].isalnum() or _RAIL.fullmatch(text) is None:
            return None
        return Rail(name, tuple([float(number) / 1000 for number in text.replace("mW", "").split("/")]))
    if "%" in text or "[" in text:
        return _engine(name, _LOAD.fullmatch(text))
    if text in ("off", "OFF"):
        return Engine(name, None, (), off=True)
    if name in _POOLS or _CLOCK.fullmatch(text) is None:
        return None
    if _SUPPLY.match(name) and text[0] != "@":
        return Rail(name, (float(text) / 1000,))
    return Engine(name, None, (float(text.lstrip("@")) * 1e6,))


def _engine(name: str, load: re.Match[str] | None) -> Engine | None:
    """`53%`, `53%@140`, `0%@[305,305]` or `@[1000,1000,1000]`: the busy share, and the clocks of its parts, MHz."""
    if load is None:
        return None
    percent, clock, clocks, clocks_alone = load.groups()
    share = None if percent is None else int(percent) / 100
    listed = (clock or clocks or clocks_alone or "").split(",")
    return Engine(name, share, tuple([float(clock) * 1e6 for clock in listed if clock]))


@lru_cache(maxsize=4096)
def _core(item: str, clock_of_all: str | None) -> Core | None:
    """`44%@1421`, `17%` or `off`; None where it is something else."""
    if item in ("off", "OFF"):
        return Core(None, None)
    match = _CORE.fullmatch(item)
    if match is None:
        return None
    clock = match[2] or clock_of_all
    return Core(int(match[1]) / 100, None if clock is None else int(clock) * 1e6)


def _parse_timestamp(words: list[str]) -> datetime | None:
    match = _STAMP.fullmatch(" ".join(words[:2])) if words and words[0][2:3] == "-" else None
    if match is None:
        return None
    month, day, year, hour, minute, second = map(int, match.groups())
    try:
        return datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
