"""Faults at their times: what is done to the files and to the sensor models, and undone."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from stepscope.simulate.models.contract import SensorModel
from stepscope.simulate.options import Fault
from stepscope.simulate.tree import LiveFile, Tree

_CONTENT = {"stuck": None, "empty": b"", "garbage": b"\xff\x00not a number\n"}


class Faults:
    """Begins and ends each fault once."""

    def __init__(self, faults: Sequence[Fault], tree: Tree, sensors: Sequence[SensorModel]) -> None:
        self._waiting = sorted(faults, key=lambda fault: fault.at_s)
        self._active: list[Fault] = []
        self._tree, self._sensors = tree, sensors

    def step(self, elapsed_s: float) -> None:
        """Bring faults to this moment since the board was ready."""
        while self._waiting and self._waiting[0].at_s <= elapsed_s:
            fault = self._waiting.pop(0)
            self._begin(fault)
            self._active.append(fault)
        for fault in [one for one in self._active if one.for_s is not None and one.at_s + one.for_s <= elapsed_s]:
            self._active.remove(fault)
            self._end(fault)

    def _begin(self, fault: Fault) -> None:
        if fault.kind == "renumbered":
            self._tree.renumber()
        elif fault.kind in ("reset", "plugged"):
            self._tell_sensors(fault, on=True)
        for file in self._files(fault):
            if fault.kind == "lost":
                file.remove()
            else:
                file.hold(_CONTENT[fault.kind])

    def _end(self, fault: Fault) -> None:
        self._tell_sensors(fault, on=False)
        for file in self._files(fault):
            file.release()

    def _files(self, fault: Fault) -> list[LiveFile]:
        if fault.kind != "lost" and fault.kind not in _CONTENT:
            return []
        root = self._tree.root
        return [file for file in self._tree.live if fnmatch(file.path.relative_to(root).as_posix(), fault.files)]

    def _tell_sensors(self, fault: Fault, on: bool) -> None:
        for sensor in self._sensors:
            sensor.fault(fault.kind, on)
