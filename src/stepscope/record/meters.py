"""The meters that a user names on the command line, as the sensors take them."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from stepscope.errors import UnknownName, UsageError
from stepscope.record.formats.plugs import parse_address
from stepscope.record.sensors.contract import Meter

_HINT = "for example shelly=192.168.1.20, tasmota=plug.local:80, adb=SERIAL (as adb devices lists it), or termux"


def parse_meters(plugs: Sequence[str], commands: Sequence[str]) -> tuple[Meter, ...]:
    """Meters from texts such as "shelly=192.168.1.20", "adb=SERIAL", "termux", and from commands that print watts.

    Raises UsageError, with what to do, for a text that names no meter, and for one that is named twice.
    """
    named = [_plug(text) for text in plugs] + [_command(text) for text in commands]
    twice = [meter for meter, count in Counter((meter.kind, meter.address) for meter in named).items() if count > 1]
    if twice:
        raise UsageError(f"the meter {'='.join(twice[0]).rstrip('=')} is named twice", "name each meter once")
    return tuple(_distinct(named))


def _plug(text: str) -> Meter:
    kind, _, address = text.strip().partition("=")
    check = _KINDS.get(kind)
    if check is None:
        raise UnknownName("kind of meter", kind, _KINDS, f"known: {', '.join(sorted(_KINDS))}; {_HINT}")
    return Meter(kind, check(address.strip()), _word(f"{kind}-{address.strip()}"))


def _network(address: str) -> str:
    if not address:
        raise UsageError("a plug without an address", _HINT)
    try:
        parse_address(address)
    except ValueError as error:
        raise UsageError(str(error), _HINT) from error
    return address


def _serial(address: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:\-]*", address):
        raise UsageError(f"'{address}' is not the serial of a phone", "adb devices   (lists the serials that adb sees)")
    return address


def _phone_itself(address: str) -> str:
    if address:
        raise UsageError(f"termux takes no address, and got '{address}'", "name it alone: termux")
    return address


_KINDS: dict[str, Callable[[str], str]] = {
    "shelly": _network,
    "tasmota": _network,
    "adb": _serial,
    "termux": _phone_itself,
}


def _command(text: str) -> Meter:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f'the meter command "{text}" cannot be split: {error}', "close its quotes") from error
    if not words:
        raise UsageError("an empty meter command", "give a command that prints watts, one reading a line")
    return Meter("command", text, _word(Path(words[0]).name))


def _word(text: str) -> str:
    """Letters, digits, dot, dash and underscore alone, for the name of a channel."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "meter"


def _distinct(meters: Sequence[Meter]) -> list[Meter]:
    """Meters with distinct names: the second of a name is called name-2."""
    seen: Counter[str] = Counter()
    distinct = []
    for meter in meters:
        seen[meter.name] += 1
        name = meter.name if seen[meter.name] == 1 else f"{meter.name}-{seen[meter.name]}"
        distinct.append(Meter(meter.kind, meter.address, name))
    return distinct
