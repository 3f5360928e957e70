"""Format of values on the page: a value with its unit, a CI, and fixed decimals for the columns of a table."""

from __future__ import annotations

import re

from stepscope import units

_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LONGEST = 160  # characters of a name on the page; exports have it whole
_ENDS = 24  # characters kept at either end of a long word
_LONG_WORD = re.compile(r"\S{80,}")


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
    """A sentence in which a word that is longer than any name has its middle cut."""
    return _LONG_WORD.sub(lambda match: f"{match[0][:_ENDS]}…{match[0][-_ENDS:]}", text)


def name(text: str) -> str:
    """The name of a module or operator as the page shows it: of a very long one the middle is cut."""
    text = units.row_label(text)
    if len(text) <= _LONGEST:
        return text
    half = (_LONGEST - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
