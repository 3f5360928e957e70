"""The sensors: every file of this folder except contract.py is one, or has several; the folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from stepscope.record.sensors.contract import NoSensor, OpenSensor, Sensor, Target, measure_read_cost

PATIENCE_S = 3.0
NO_ANSWER = "it gave no answer within some seconds"
_GRACE_S = 0.3  # after that the next sensor is asked beside it
_SLICE_S = 0.02


@dataclass(frozen=True)
class Survey:
    """Sensors that answered and those that did not, by name."""

    sensors: dict[str, OpenSensor]
    missing: dict[str, NoSensor]
    cpu_ns: int = 0  # that asking them took


@dataclass
class Unloadable:
    """Stand-in for a sensor file that this Python cannot import (built without ctypes, say)."""

    NAME: str
    why: str

    def discover(self, root: Path, target: Target) -> NoSensor:
        """The reason, whatever the root."""
        return NoSensor("failed", self.why)


def load_sensors() -> dict[str, Sensor]:
    """Every sensor by its NAME, in the order of the names; a file that cannot be imported costs itself alone."""
    files = [info.name for info in pkgutil.iter_modules(__path__) if info.name != "contract"]
    sensors = [sensor for file in files for sensor in _load(file)]
    return {sensor.NAME: sensor for sensor in sorted(sensors, key=lambda sensor: sensor.NAME)}


def _load(file: str) -> Sequence[Sensor]:
    """The sensors of a file: its SENSORS, or itself."""
    try:
        module = importlib.import_module(f"{__name__}.{file}")
        return cast(Sequence[Sensor], getattr(module, "SENSORS", [module]))
    except Exception as error:
        return [Unloadable(file, f"{file}.py cannot be imported: {type(error).__name__}: {error}")]


def discover_sensor(sensor: Sensor, root: Path, target: Target) -> OpenSensor | NoSensor:
    """Discover one sensor; whatever it raises becomes a reason, since a sensor never ends a run."""
    try:
        answer = sensor.discover(root, target)
        return answer if isinstance(answer, NoSensor) or answer.channels else NoSensor("absent", "no channel answers")
    except Exception as error:
        return NoSensor("failed", f"{type(error).__name__}: {error}")


def with_read_cost(sensor: OpenSensor, target: Target) -> OpenSensor | NoSensor:
    """The sensor with its measured read cost in every channel, or the reason why it cannot be read."""
    try:
        cost = measure_read_cost(sensor, target.clock)
    except Exception as error:
        sensor.close()
        return NoSensor("failed", f"{type(error).__name__}: {error}")
    return replace(sensor, channels=tuple(replace(channel, read_cost_ns=cost) for channel in sensor.channels))


def survey_sensors(
    root: Path, target: Target, names: Collection[str] | None = None, patience_s: float = PATIENCE_S
) -> Survey:
    """Ask every sensor, or those named, and measure what one read costs; one that hangs holds up none of the others."""
    looks, left_s = {}, patience_s
    for name, sensor in load_sensors().items():
        if names is None or name in names:
            looks[name] = _Discovery(sensor, root, target)
            looks[name].wait(_GRACE_S)  # one after the other: side by side they would spoil the read cost
    sensors: dict[str, OpenSensor] = {}
    missing: dict[str, NoSensor] = {}
    for name, look in looks.items():
        while left_s > 0 and look.asking():
            look.wait(_SLICE_S)
            left_s -= _SLICE_S  # whatever passed: a machine that stands still is no sensor that hangs
        answer = look.answer()
        if isinstance(answer, OpenSensor):
            sensors[name] = answer
        else:
            missing[name] = answer
    return Survey(make_ids_unique(sensors), missing, sum(look.cpu_ns for look in looks.values()))


def make_ids_unique(sensors: Mapping[str, OpenSensor], used_ids: Collection[str] = ()) -> dict[str, OpenSensor]:
    """Return the sensors with ids unique over the run: where two read one rail, the later id is prefixed."""
    ids = set(used_ids)
    renamed = {}
    for name, sensor in sensors.items():
        channels = tuple(
            replace(channel, id=f"{name}.{channel.id}") if channel.id in ids else channel for channel in sensor.channels
        )
        ids.update(channel.id for channel in channels)
        renamed[name] = replace(sensor, channels=channels)
    return renamed


class _Discovery:
    """One sensor being asked, in a thread that is left behind when it gives no answer."""

    def __init__(self, sensor: Sensor, root: Path, target: Target) -> None:
        self._sensor, self._root, self._target = sensor, root, target
        self.cpu_ns = 0  # of the thread, once it has ended
        self._lock = threading.Lock()
        self._answer: OpenSensor | NoSensor | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads for this process: asked again later
            self._answer = NoSensor("failed", str(error))

    def wait(self, seconds: float) -> None:
        if self.asking():
            self._thread.join(seconds)

    def asking(self) -> bool:
        return self._thread.is_alive()

    def answer(self) -> OpenSensor | NoSensor:
        with self._lock:
            if self._answer is None:
                self._answer = NoSensor("failed", NO_ANSWER)
            return self._answer

    def _ask(self) -> None:
        answer = discover_sensor(self._sensor, self._root, self._target)
        if isinstance(answer, OpenSensor):
            answer = with_read_cost(answer, self._target)
        self.cpu_ns = time.thread_time_ns()
        with self._lock:
            late = self._answer is not None
            if not late:
                self._answer = answer
        if late and isinstance(answer, OpenSensor):
            answer.close()
