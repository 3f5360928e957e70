"""Meters that a user names: their addresses on the command line, and the answers of smart plugs."""

from __future__ import annotations

import ipaddress
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import UnknownName, UsageError
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
    return tuple(_with_distinct_names(named))


def _plug(text: str) -> Meter:
    kind, _, address = text.strip().partition("=")
    check = _KINDS.get(kind)
    if check is None:
        raise UnknownName("kind of meter", kind, _KINDS, f"known: {', '.join(sorted(_KINDS))}; {_HINT}")
    return Meter(kind, check(address.strip()), _channel_word(f"{kind}-{address.strip()}"))


def _check_network_address(address: str) -> str:
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
    "shelly": _check_network_address,
    "tasmota": _check_network_address,
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
    return Meter("command", text, _channel_word(Path(words[0]).name))


def _channel_word(text: str) -> str:
    """Letters, digits, dot, dash and underscore alone, for the name of a channel."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "meter"


def _with_distinct_names(meters: Sequence[Meter]) -> list[Meter]:
    """Meters with distinct names: the second of a name is called name-2."""
    counts: Counter[str] = Counter()
    distinct = []
    for meter in meters:
        counts[meter.name] += 1
        name = meter.name if counts[meter.name] == 1 else f"{meter.name}-{counts[meter.name]}"
        distinct.append(Meter(meter.kind, meter.address, name))
    return distinct


# An answer that is no JSON, another device's JSON or half of one raises ValueError; a quantity that a plug does not
# state is NaN, and a stated 0 stays 0.

NAN = math.nan
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")
_PORTS = {"http": 80, "https": 443}
_WATT_HOUR_J, _WATT_MINUTE_J = 3600.0, 60.0
_MOST = {"power_w": 50_000.0, "voltage_v": 1000.0, "current_a": 200.0, "energy_j": 1e15}  # beyond: garbage


@dataclass(frozen=True)
class Address:
    """Address of a plug."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """The address as a person would type it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")


@dataclass(frozen=True)
class PlugReading:
    """Readings of a plug: W, J since some start of its own, V, A; NaN where it does not say."""

    power_w: float
    energy_j: float
    voltage_v: float
    current_a: float


def parse_address(text: str) -> Address:
    """host, host:port, [IPv6]:port, with http:// or https:// before it or not; raises ValueError for all else."""
    scheme, separator, location = text.strip().partition("://")
    if not separator:
        scheme, location = "http", text.strip()
    if scheme.lower() not in _PORTS:
        raise ValueError(f"'{text}': a plug is reached by http or https, not by {scheme}")
    parts = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:/@?#\s\[\]]+)(?::(\d{1,5}))?/?", location)
    if parts is None:
        raise ValueError(f"'{text}' is not host or host:port")
    host, port = parts[1].strip("[]"), int(parts[2] or _PORTS[scheme.lower()])
    if parts[1].startswith("["):
        ipaddress.IPv6Address(host)
    elif _HOST.fullmatch(host) is None:
        raise ValueError(f"'{text}': '{host}' is not a host name")
    if not 0 < port < 65536:
        raise ValueError(f"'{text}': port {port} does not exist")
    return Address(scheme.lower(), host, port)


def parse_shelly(text: str) -> PlugReading:
    """Switch.GetStatus or PM1.GetStatus (apower W, aenergy.total Wh), EM1.GetStatus (act_power W), or `/status`."""
    answer = _object(text)
    if "apower" in answer:
        energy = answer.get("aenergy")
        total = energy.get("total") if isinstance(energy, dict) else None
        return _reading(answer, "apower", total, _WATT_HOUR_J, "voltage", "current")
    if "act_power" in answer:
        return _reading(answer, "act_power", None, _WATT_HOUR_J, "voltage", "current")
    for name, joules in (("emeters", _WATT_HOUR_J), ("meters", _WATT_MINUTE_J)):
        meters = answer.get(name)
        if isinstance(meters, list) and meters:
            return _first_generation(meters, joules)
    raise ValueError(f"no power in this answer: it has {_names(answer)}")


def parse_tasmota(text: str) -> PlugReading:
    """`/cm?cmnd=Status%208`: StatusSNS.ENERGY with Power W, Total kWh, Voltage V, Current A."""
    answer = _object(text)
    status = answer.get("StatusSNS", answer)
    energy = status.get("ENERGY") if isinstance(status, dict) else None
    if not isinstance(energy, dict):
        raise ValueError(f"no ENERGY in this answer: it has {_names(status if isinstance(status, dict) else answer)}")
    if isinstance(energy.get("Power"), list):
        raise ValueError(f"this plug measures {len(energy['Power'])} circuits; one that measures one is needed")
    if "Power" not in energy:
        raise ValueError(f"no Power in ENERGY: it has {_names(energy)}")
    return _reading(energy, "Power", energy.get("Total"), 1000 * _WATT_HOUR_J, "Voltage", "Current")


def _first_generation(meters: list[Any], joules: float) -> PlugReading:
    """The one meter of a first generation's `/status`; one that calls itself invalid has no reading."""
    if len(meters) > 1:
        raise ValueError(f"this device measures {len(meters)} circuits; one that measures one is needed")
    meter = meters[0]
    if not isinstance(meter, dict) or "power" not in meter:
        raise ValueError("a meter without power")
    if meter.get("is_valid") is False:
        return PlugReading(NAN, NAN, NAN, NAN)
    return _reading(meter, "power", meter.get("total"), joules, "voltage", "current")


def _reading(
    stated: Mapping[str, Any], power: str, energy: object, joules: float, voltage: str, current: str
) -> PlugReading:
    return PlugReading(
        si_number(stated.get(power), "power_w"),
        si_number(energy, "energy_j", joules),
        si_number(stated.get(voltage), "voltage_v"),
        si_number(stated.get(current), "current_a"),
    )


def si_number(value: object, what: str, scale: float = 1.0) -> float:
    """A JSON number in SI units; NaN for anything else and for what no plug can measure."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NAN
    try:
        scaled = float(value) * scale
    except OverflowError:
        return NAN
    return scaled if abs(scaled) <= _MOST[what] else NAN


def _object(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        start = " ".join(text[:40].split())
        raise ValueError(f"not JSON: '{start}'" if start else "an empty answer") from error
    if not isinstance(answer, dict):
        raise ValueError("JSON, but no object")
    return answer


def _names(answer: Mapping[str, Any]) -> str:
    return ", ".join(str(name)[:20] for name in list(answer)[:6]) or "nothing"
