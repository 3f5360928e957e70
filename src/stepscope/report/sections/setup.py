"""Device, versions, settings, and the command that repeats the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from stepscope.report.page.parts import Command, Facts, Note, Part, Section
from stepscope.units import bytes_, capitalize_first, duration, number

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Reproduce"
ORDER = 90

_OF_A_BOARD = (  # facts that are read where a simulated board has its own
    "board", "compatible", "l4t", "power_mode", "at_start", "at_end", "trip_points_celsius", "gpu", "accelerators",
)  # fmt: skip
_SHORT = {"cpu": "CPU", "os": "OS", "l4t": "L4T"}
_UNKNOWN = ("cluster", 65535)  # what the kernel states where it knows none


def build(run: Run) -> Section:
    """Facts of run.json and device.json as they are, and argv as a command line."""
    argv = run.meta.get("argv")
    parts: list[Part] = []
    if isinstance(argv, list) and argv:
        parts.append(Command(shlex.join([_program_name(str(argv[0])), *map(str, argv[1:])])))
    else:
        parts.append(Note("The command line was not recorded: this run was started from Python."))
    parts.append(Facts(tuple(_setup_facts(run))))
    lede = "The same command on the same device with the same versions repeats this run."
    return Section(lede, tuple(parts), closed=True)


def _program_name(path: str) -> str:
    """The program as it is called, without the folder that it lies in on this machine."""
    name = PurePath(path).name
    return "stepscope" if name == "__main__.py" else name


def _setup_facts(run: Run) -> Iterator[tuple[str, str]]:
    meta = run.meta
    yield "Run", run.id
    yield "Status", f"{run.status} ({meta['reason']})" if meta.get("reason") else run.status
    started = (meta.get("clock") or {}).get("unix_ns")
    if started:
        yield "Started", f"{datetime.fromtimestamp(started / 1e9, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    for title in ("workload", "seed", "threads", "recorder", "sampler", "versions"):
        yield from _flatten_fact(capitalize_first(title), meta.get(title))
    for key, value in run.device.items():
        if key != "ceilings":  # "Against the machine" has what is made of them
            whose = "" if run.simulated is None else "Simulated: " if key in _OF_A_BOARD else "This machine: "
            title = _key_text(key)
            yield from _flatten_fact(
                f"{whose}{_SHORT.get(title, title if whose else capitalize_first(title))}", value, key
            )


def _flatten_fact(title: str, value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """A value as one row; of an object, its entries in one row and each inner object in a row of its own."""
    if value is None or value == []:
        return
    if not isinstance(value, dict):
        yield title, _value_text(key, value)
        return
    plain = {key: inner for key, inner in value.items() if inner not in (None, []) and not isinstance(inner, dict)}
    if plain:
        yield title, ", ".join(f"{_key_text(key)} {_value_text(key, inner)}" for key, inner in plain.items())
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flatten_fact(f"{title}, {_key_text(key)}", inner)


def _key_text(key: str) -> str:
    """A key as words, without the unit that its value is going to state."""
    return key.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")


def _value_text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        if key.endswith("shape"):
            return " × ".join(map(str, value))
        return "; ".join(_entry_text(item) if isinstance(item, dict) else _value_text("", item) for item in value)
    if isinstance(value, int | float) and key.endswith("_ns"):
        return duration(value)
    if isinstance(value, int | float) and key.endswith("bytes"):
        return bytes_(value)
    return number(value) if isinstance(value, float) else str(value)


def _entry_text(item: dict[str, Any]) -> str:
    facts = {key: inner for key, inner in item.items() if inner is not None and (key, inner) != _UNKNOWN}
    return ", ".join(f"{_key_text(key)} {_value_text(key, inner)}" for key, inner in facts.items())
