"""The one place that formats: SI values in, text for people out. "-" means not measured."""

from __future__ import annotations

import re
from collections.abc import Sequence

NOT_MEASURED = "-"
_PREFIXES = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
_SMALL_PREFIXES = [*_PREFIXES, (1e-3, "m"), (1e-6, "u")]
_DIVIDED = {"J", "W", "V", "A", "Wh", "C"}  # units whose thousandths people use; nobody says millibyte
_SHARES = ("1", "share", "ratio")
_NO_PREFIX = {"": "", "cores": "cores", "%": "%", "degC": "°C", "°C": "°C"}
_TIME = [(3.6e12, "h"), (6e10, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")]
_ROUNDED_UP = 0.9995  # of a unit: what three digits show as 1 of it, not as 1,000 of the next smaller one


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent."""
    if value is None:
        return NOT_MEASURED
    if value == 0:
        return "0"
    magnitude = f"{value:.{digits}g}"
    if "e" not in magnitude:
        return magnitude
    return (
        f"{float(magnitude):,.0f}" if abs(value) >= 1 else f"{float(magnitude):.{digits + 6}f}".rstrip("0").rstrip(".")
    )


def si(value: float | None, unit: str, digits: int = 3) -> str:
    """A value of an SI unit with the decimal prefix that keeps it short: si(21840, "B") is "21.8 kB"."""
    if value is None:
        return NOT_MEASURED
    scale, prefix = _prefix(value, unit)
    return f"{number(value / scale, digits)} {prefix}{unit}".rstrip()


def amount(value: float | None, unit: str, digits: int = 3) -> str:
    """A value of any unit or of none: "12.1 ms", "12.5 %", "2 cores", "340 samples/s", "51 °C"."""
    if value is None:
        return NOT_MEASURED
    scale, symbol = _scale(value, unit)
    text = _digits(value / scale, unit, digits)
    return f"{text} {'core' if symbol == 'cores' and text == '1' else symbol}".rstrip()


def estimate(value: float | None, low: float | None, high: float | None, unit: str, digits: int = 3) -> str:
    """A value with its 95 % CI, all three with one prefix: "70.6 mJ [68, 73.1]"; without an interval, the value.

    An interval whose ends are written alike is not: the value is known to every digit of it.
    """
    if value is None or low is None or high is None:
        return amount(value, unit, digits)
    scale, _ = _scale(value, unit)
    first, last = (_digits(end / scale, unit, digits) for end in (low, high))
    return amount(value, unit, digits) if first == last else f"{amount(value, unit, digits)} [{first}, {last}]"


def interval(low: float | None, high: float | None, unit: str) -> str:
    """The ends of a 95 % CI in a column of their own: "[11.9, 12.4] ms"; empty where there is none.

    Of ends that are written alike there is one: "about 12.1 ms".
    """
    if low is None or high is None:
        return ""
    ends = amount(low, unit), amount(high, unit)
    if ends[0] == ends[1]:
        return f"about {ends[1]}"
    (first, _, first_unit), (last, _, last_unit) = (end.partition(" ") for end in ends)
    if first_unit == last_unit or unit == "cores" or first == "0":  # the unit once is enough
        return f"[{first}, {last}] {last_unit}".rstrip()
    return f"[{ends[0]}, {ends[1]}]"


def interval_of_value(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """The ends of a 95 % CI in the unit of the value above them: "[0.29, 1,520]"; empty as in `estimate`."""
    return estimate(value, low, high, unit).removeprefix(amount(value, unit)).strip()


def _scale(value: float, unit: str) -> tuple[float, str]:
    """What divides a value for people to read it, and the unit that it then has."""
    if unit in ("ns", "s"):
        factor = 1.0 if unit == "ns" else 1e-9
        scale, symbol = next((pair for pair in _TIME if abs(value) / factor >= _ROUNDED_UP * pair[0]), _TIME[-1])
        return scale * factor, symbol
    if unit in _SHARES:
        return 0.01, "%"
    if (("/" in unit or " " in unit) and unit not in ("B/s", "FLOP/s")) or unit in _NO_PREFIX:
        return 1.0, _NO_PREFIX.get(unit, unit)
    scale, prefix = _prefix(value, unit)
    return scale, f"{prefix}{unit}"


def _digits(value: float, unit: str, digits: int) -> str:
    if unit in _SHARES:
        return _percents(value, 1)
    return number(round(value, 2), digits) if unit == "cores" else number(value, digits)


def _percents(value: float, digits: int) -> str:
    """A percentage without its sign: so many decimals, none from 100 on, where they would be a fourth digit.

    "0" is exactly nothing.
    """
    if digits == 0 and 0 < abs(value) < 0.5:
        return f"{value:.1f}" if abs(value) >= 0.05 else "<0.1" if value > 0 else ">-0.1"
    return "0" if value == 0 else f"{value:.{0 if abs(value) >= 99.95 else digits}f}"


ROW_LABELS = {  # names of rows in tables of data, as a reader sees them
    "(between operations)": "(framework overhead)",
    "(residual)": "(unattributed)",
    "(not attributed)": "(unattributed)",
    "#stepscope.data": "(loading, outside operators)",
}


def row_label(name: str) -> str:
    """Return the name of a row of a table as a reader sees it: row_label("(residual)") is "(unattributed)"."""
    return ROW_LABELS.get(name, name)


def component_label(name: str) -> str:
    """Return the name of a component as a reader sees it; what no rail inside a total measures is "unattributed"."""
    return "unattributed" if name == "rest" else name


CATEGORY_LABELS = {
    "saved": "activations",
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "temporary": "temporaries",
    "workspace": "kernel workspace",
    "other": "other tensors",
    "empty process": "Python and torch",
    "kernels' code": "kernel code",
    "arrays that are no tensors": "arrays outside torch",
    "workers of data loaders": "DataLoader workers",
    "allocator": "allocator overhead",
}
_LEGEND = ", ".join(f"{name}: '{label}'" for name, label in CATEGORY_LABELS.items() if name.isidentifier())
CATEGORY_LEGEND = f"{{{_LEGEND}}}[datum.label] || datum.label"  # a Vega expression


def category_label(name: str) -> str:
    """Return the name of a category of memory as a reader sees it: category_label("saved") is "activations"."""
    return CATEGORY_LABELS.get(name, name)


def join_interval(low: str, high: str) -> str:
    """Return the ends of a CI as they stand behind their value: "[11.9, 12.4]"; units stay where they differ."""
    if low == high:
        return f"about {low}"
    (first, _, unit), (last, _, other) = low.partition(" "), high.partition(" ")
    return f"[{first}, {last}]" if unit == other else f"[{low}, {high}]"


def _prefix(value: float, unit: str) -> tuple[float, str]:
    """The largest prefix that leaves 1 or more, rounded; of 0 none."""
    prefixes = _SMALL_PREFIXES if unit in _DIVIDED and value else _PREFIXES
    return next(((scale, prefix) for scale, prefix in prefixes if abs(value) >= _ROUNDED_UP * scale), prefixes[-1])


def duration(ns: float | None, digits: int = 3) -> str:
    """A time span given in ns: duration(1_500_000) is "1.5 ms"."""
    if ns is None:
        return NOT_MEASURED
    for scale, unit in _TIME:
        if abs(ns) >= _ROUNDED_UP * scale or scale == 1.0:
            return f"{number(ns / scale, digits)} {unit}"
    raise AssertionError("the last unit always fits")


def bytes_(value: float | None) -> str:
    """A size in decimal bytes (1 MB = 1e6 B)."""
    return si(value, "B")


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one as a percentage: percent(0.125) is "12.5 %"."""
    return NOT_MEASURED if share is None else f"{_percents(share * 100, digits)} %"


def roughly(count: int) -> str:
    """A count that is an extrapolation, in two digits: roughly(65_516) is "66,000"."""
    return f"{int(float(f'{count:.1e}')):,}"


def plural(count: int, noun: str) -> str:
    """A count and its noun: plural(2, "step") is "2 steps"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def cut_in_the_middle(names: Sequence[str], width: int) -> list[str]:
    """Return the names in at most so many characters, cut where they still differ: "tra…h.0.attn", "tra…h.1.attn"."""
    for head in range(width // 3, -1, -1):
        short = [_cut_name(name, head, width) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    return [_cut_name(name, width // 3, width) for name in names]


def distinct_width(names: Sequence[str], least: int = 8) -> int:
    """Return the characters with which `cut_in_the_middle` leaves different names different."""
    longest = max(map(len, names), default=0)
    enough = (width for width in range(least, longest) if len(set(cut_in_the_middle(names, width))) == len(set(names)))
    return next(enough, longest)


def _cut_name(name: str, head: int, width: int) -> str:
    return name if len(name) <= width else f"{name[:head]}…{name[len(name) - max(width - 1 - head, 0) :]}"


# On the page: fixed decimals for the columns of a table, and names of strangers.

STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LONGEST = 160  # characters of a name on the page; exports have it whole
_ENDS = 24  # characters kept at either end of a long word
_LONG_WORD = re.compile(r"\S{80,}")


def milliseconds(ns: float | None) -> str:
    """A time span, given in ns, in ms with the decimals that a column can be read down by."""
    if ns is None:
        return NOT_MEASURED
    return "0" if ns == 0 else f"{ns / 1e6:,.3f}"  # a plain 0 tells nothing at all from very little


def count(value: float | None) -> str:
    """A number of things with its thousands marked; a mean of few of them with three digits."""
    if value is None:
        return NOT_MEASURED
    if value >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return number(value)


FORMULA = re.compile(r"^(?:[=+@\t\r]|-.)")  # a text that a spreadsheet takes for one


def without_formula(text: str) -> str:
    """Text of a cell of CSV; where a spreadsheet would take it for a formula, a ' goes before it."""
    return FORMULA.sub(r"'\g<0>", text)


def capitalize_first(text: str) -> str:
    """Return the text with its first letter as a capital; all others stay: "GPU memory" is no "Gpu memory"."""
    return f"{text[:1].upper()}{text[1:]}"


def escape_control_characters(text: str) -> str:
    """Text in which characters that steer a terminal or turn the direction of writing are spelt out, not obeyed."""
    return STEERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def without_long_words(text: str) -> str:
    """A sentence in which a word that is longer than any name has its middle cut."""
    return _LONG_WORD.sub(lambda match: f"{match[0][:_ENDS]}…{match[0][-_ENDS:]}", text)


def page_name(text: str) -> str:
    """The name of a module or operator as the page shows it: of a very long one the middle is cut."""
    text = row_label(text)
    if len(text) <= _LONGEST:
        return text
    half = (_LONGEST - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
