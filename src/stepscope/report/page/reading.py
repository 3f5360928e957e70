"""How values read on the page: a value with its unit, an interval, and fixed decimals for the columns of a table."""

from __future__ import annotations

import re

from stepscope import units

_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LONGEST = 160  # characters of a name on the page; exports have it whole
_ENDS = 24  # characters kept at either end of a long word
_LONG_WORD = re.compile(r"\S{80,}")
_SHARES = ("1", "", "share", "ratio")


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, in the prefix that keeps it short."""
    if value is None:
        return units.NOT_MEASURED
    if unit == "ns":
        return units.duration(value)
    if unit == "s":
        return units.duration(value * 1e9)
    if unit == "B":
        return units.bytes_(value)
    if unit in _SHARES:
        return units.percent(value)
    if unit == "cores":
        text = units.number(value)
        return f"{text} core" if text == "1" else f"{text} cores"
    if "/" in unit or unit == "%":
        return f"{units.number(value)} {unit}"
    return units.si(value, unit)


def interval(low: float | None, high: float | None, unit: str) -> str:
    """The two ends of a 95 % interval; empty where there is none."""
    if low is None or high is None:
        return ""
    first, last = quantity(low, unit), quantity(high, unit)
    number, _, suffix = first.partition(" ")
    if suffix and (last.endswith(f" {suffix}") or unit == "cores"):
        first = number  # the unit once is enough
    return f"{first} to {last}"


def milliseconds(ns: float | None) -> str:
    """A time span, given in ns, in ms with the decimals that a column can be read down by."""
    if ns is None:
        return units.NOT_MEASURED
    return "0" if ns == 0 else f"{ns / 1e6:,.3f}"  # a plain 0 tells nothing at all from very little


def count(value: float | None) -> str:
    """A whole number with its thousands marked."""
    return units.NOT_MEASURED if value is None else f"{value:,.0f}"


def visible(text: str) -> str:
    """Text in which characters that steer a terminal or turn the direction of writing are spelt out, not obeyed."""
    return _STEERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def without_long_words(text: str) -> str:
    """A sentence in which a word that is longer than any name has its middle left out."""
    return _LONG_WORD.sub(lambda match: f"{match[0][:_ENDS]}…{match[0][-_ENDS:]}", text)


def name(text: str) -> str:
    """The name of a module or operation as the page shows it: of a very long one the middle is left out."""
    if len(text) <= _LONGEST:
        return text
    half = (_LONGEST - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
