"""Lines of a user's meter command: `<watts>`, `<unix seconds> <watts>`, or `name=value` pairs."""

from __future__ import annotations

import re

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
_PAIR = re.compile(r"([A-Za-z][A-Za-z_]{0,30})\s*[=:]\s*([^\s,;=:]+)")
_NUMBER = re.compile(r"([+-]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,2})?)\s*([A-Za-z]{0,3})", re.ASCII)


def parse(line: str) -> dict[str, float]:
    """Quantities of one line in SI units, with "meter_clock" (unix s) where it has a time; raises ValueError."""
    text = line.strip()
    pairs = _PAIR.findall(text)
    found = _pairs(pairs) if pairs else _bare(text)
    if not found.keys() - {"meter_clock"}:
        raise ValueError(f"'{text[:60]}' is no reading: expected <watts>, <unix seconds> <watts>, or power=<watts>")
    return found


def _bare(text: str) -> dict[str, float]:
    """One number is a power, two are a time and a power; a unit may follow the power."""
    words = re.split(r"[\s,;]+", text)
    if len(words) > 1 and re.fullmatch(r"[A-Za-z]{1,2}", words[-1]):
        words[-2:] = [words[-2] + words[-1]]  # "5.1 W"
    if len(words) > 2:
        raise ValueError(f"'{text[:60]}' has {len(words)} columns: expected <watts> or <unix seconds> <watts>")
    quantity, value = _value(words[-1])
    if len(words) == 1:
        return {quantity: value}
    return {"meter_clock": _value(words[0], "time")[1], quantity: value}


def _pairs(pairs: list[tuple[str, str]]) -> dict[str, float]:
    """The pairs whose name or unit is known; the others are left out."""
    found: dict[str, float] = {}
    for name, word in pairs:
        known = name.lower()
        if known in _CLOCK:
            found["meter_clock"] = _value(word, "time")[1]
            continue
        stem, _, suffix = known.rpartition("_")
        unit = suffix if stem and suffix in UNITS else _NAMES.get(known)
        if unit is not None:
            quantity, value = _value(word, unit)
            found[quantity] = value
    return found


def _value(word: str, unit: str = "") -> tuple[str, float]:
    """A number, with a unit of its own or in the unit given, W in the end; raises ValueError."""
    matched = _NUMBER.fullmatch(word)
    if matched is None:
        raise ValueError(f"'{word[:40]}' is no number")
    own = matched[2].lower()
    quantity, _, factor = _TIME if unit == "time" else UNITS[unit or "w"]
    if own:
        if own not in UNITS or (unit and UNITS[own][0] != quantity):
            raise ValueError(f"'{word[:40]}': '{matched[2]}' is no unit of {quantity}")
        quantity, _, factor = UNITS[own]
    value = float(matched[1]) * factor
    if not abs(value) <= _MOST:
        raise ValueError(f"'{word[:40]}' is no plausible reading")
    return quantity, value
