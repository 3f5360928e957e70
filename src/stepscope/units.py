"""The one place that formats: SI values in, text for people out. "-" means not measured."""

from __future__ import annotations

NOT_MEASURED = "-"
_PREFIXES = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
_SMALL_PREFIXES = [*_PREFIXES, (1e-3, "m"), (1e-6, "u")]
_DIVIDED = {"J", "W", "V", "A", "Wh", "C"}  # units whose thousandths people use; nobody says millibyte
_TIME = [(3.6e12, "h"), (6e10, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")]


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


def si_within(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """A value with the ends of its interval, all three with one prefix: "70.6 mJ (68 to 73.1)"."""
    if value is None or low is None or high is None:
        return si(value, unit)
    scale, prefix = _prefix(value, unit)
    return f"{number(value / scale)} {prefix}{unit} ({number(low / scale)} to {number(high / scale)})"


def _prefix(value: float, unit: str) -> tuple[float, str]:
    """The largest prefix that leaves 1 or more; of 0 none."""
    known = _SMALL_PREFIXES if unit in _DIVIDED and value else _PREFIXES
    return next(((scale, prefix) for scale, prefix in known if abs(value) >= scale), known[-1])


def duration(ns: float | None, digits: int = 3) -> str:
    """A time span given in ns: duration(1_500_000) is "1.5 ms"."""
    if ns is None:
        return NOT_MEASURED
    for scale, unit in _TIME:
        if abs(ns) >= scale or scale == 1.0:
            return f"{number(ns / scale, digits)} {unit}"
    raise AssertionError("the last unit always fits")


def bytes_(value: float | None) -> str:
    """A size in decimal bytes (1 MB = 1e6 B)."""
    return si(value, "B")


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one as a percentage: percent(0.125) is "12.5 %"."""
    return NOT_MEASURED if share is None else f"{share * 100:.{digits}f} %"


def plural(count: int, noun: str) -> str:
    """A count and its noun: plural(2, "step") is "2 steps"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
