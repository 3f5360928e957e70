"""Addresses and answers of smart plugs: Shelly (first generation and later) and Tasmota.

An answer that is no JSON, another device's JSON or half of one raises ValueError; a quantity that a plug does not
state is NaN, and a stated 0 stays 0.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAN = math.nan
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")
_PORTS = {"http": 80, "https": 443}
_WATT_HOUR_J, _WATT_MINUTE_J = 3600.0, 60.0
_MOST = {"power_w": 50_000.0, "voltage_v": 1000.0, "current_a": 200.0, "energy_j": 1e15}  # beyond: garbage


@dataclass(frozen=True)
class Address:
    """Where a plug answers."""

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
    """What a plug states: W, J since some start of its own, V, A; NaN where it does not say."""

    power_w: float
    energy_j: float
    voltage_v: float
    current_a: float


def parse_address(text: str) -> Address:
    """host, host:port, [IPv6]:port, with http:// or https:// before it or not; raises ValueError for all else."""
    scheme, found, rest = text.strip().partition("://")
    if not found:
        scheme, rest = "http", text.strip()
    if scheme.lower() not in _PORTS:
        raise ValueError(f"'{text}': a plug is reached by http or https, not by {scheme}")
    parts = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:/@?#\s\[\]]+)(?::(\d{1,5}))?/?", rest)
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
        number(stated.get(power), "power_w"),
        number(energy, "energy_j", joules),
        number(stated.get(voltage), "voltage_v"),
        number(stated.get(current), "current_a"),
    )


def number(value: object, what: str, scale: float = 1.0) -> float:
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
