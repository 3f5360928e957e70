"""The sensors: every file of this folder except contract.py is one; the folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from stepscope.record.sensors.contract import Found, Missing, Sensor, Target, measure_read_cost


@dataclass(frozen=True)
class Survey:
    """What answered and what did not, by sensor name."""

    found: dict[str, Found]
    missing: dict[str, Missing]


def load() -> dict[str, Sensor]:
    """Every sensor file by its NAME, in order of file name."""
    files = sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name != "contract")
    modules = [cast(Sensor, importlib.import_module(f"{__name__}.{name}")) for name in files]
    return {module.NAME: module for module in modules}


def ask(sensor: Sensor, root: Path, target: Target) -> Found | Missing:
    """Discover one sensor; whatever it raises becomes a reason, since a sensor never ends a run."""
    try:
        answer = sensor.discover(root, target)
        return answer if isinstance(answer, Missing) or answer.channels else Missing("absent", "no channel answers")
    except Exception as error:
        return Missing("failed", f"{type(error).__name__}: {error}")


def with_read_cost(found: Found, target: Target) -> Found | Missing:
    """The sensor with its measured read cost in every channel, or the reason why it cannot be read."""
    try:
        cost = measure_read_cost(found, target.clock)
    except Exception as error:
        found.close()
        return Missing("failed", f"{type(error).__name__}: {error}")
    return replace(found, channels=tuple(replace(channel, read_cost_ns=cost) for channel in found.channels))


def survey(root: Path, target: Target) -> Survey:
    """Ask every sensor and measure what one read of it costs."""
    found: dict[str, Found] = {}
    missing: dict[str, Missing] = {}
    for name, sensor in load().items():
        answer = ask(sensor, root, target)
        if isinstance(answer, Found):
            answer = with_read_cost(answer, target)
        if isinstance(answer, Found):
            found[name] = answer
        else:
            missing[name] = answer
    return Survey(found, missing)
