"""Facts that studies state: the device, the versions, and means over seeds with Student's intervals."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from stepscope import __version__
from stepscope.analysis.estimate import mean_interval
from stepscope.analysis.results import ResultTable
from stepscope.errors import UsageError
from stepscope.record.device import describe_device

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Point, Result


def device_name() -> str:
    """Board, else processor, else architecture."""
    facts = describe_device()
    return str(facts.get("board") or facts.get("cpu") or platform.machine())


def versions() -> dict[str, str]:
    """Of this package, Python and torch."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    return {"stepscope": __version__, "python": platform.python_version(), "torch": torch}


def installed_versions() -> dict[str, str | None]:
    """Of Stepscope, Python and what runs depend on; null is not installed."""
    found: dict[str, str | None] = {"stepscope": __version__, "python": platform.python_version()}
    for name in ("torch", "polars"):
        found[name] = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


SHARE = (0.0, 100.0)  # percent of samples
AMOUNT = (0.0, math.inf)  # seconds, joules
ANY = (-math.inf, math.inf)


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its 95 % CI; bounds are null with fewer than two seeds."""

    value: float
    low: float | None
    high: float | None

    @property
    def row(self) -> tuple[float | None, float | None, float | None]:
        """For three columns of a table."""
        return self.value, self.low, self.high


def mean_of(values: Sequence[float | None], factor: float = 1.0, possible: tuple[float, float] = AMOUNT) -> Mean | None:
    """Null where one of the seeds has no value: a mean over the others would be of another thing.

    Bounds beyond what is possible (more than 100 % of the images) are put at its end.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    value, low, high = mean_interval(np.array(known, dtype=np.float64) * factor)
    return Mean(value, *(None if math.isnan(bound) else float(np.clip(bound, *possible)) for bound in (low, high)))


def value_and_bounds(mean: Mean | None) -> tuple[float | None, float | None, float | None]:
    """A mean, low and high, or three times "not measured"."""
    return (None, None, None) if mean is None else mean.row


def energy_name(kind: str | None) -> str:
    """Name energy as estimated or simulated where it is: what is not measured never has the name of what is."""
    return "energy" if kind in (None, "measured") else f"{kind} energy"


def energy_notes(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what to know of the energy of these trainings: why there is none, of what it is, how much was not read."""
    kinds = {cell["energy_kind"] for cell in cells}
    if kinds == {None}:
        yield f"energy was not measured: {cells[0]['energy_note']}"
        return
    if len(kinds) > 1:
        yield "energy is excluded: it is not of one kind in all trainings"
        return
    yield f"energy: {next(iter(kinds))}, of {cells[0]['energy_note']}"
    gap = max(cell["energy_gap"] for cell in cells)
    if gap > 0:
        said = "it is counted at the mean power of the other readings; above 20 % energy is not known"
        yield f"the sensor missed up to {100 * gap:.2g} % of the time of a training: {said}"


AnySetting = TypeVar("AnySetting", bound="SettingLike")
Cell = Mapping[str, Any]  # what the training of one seed returned


class SettingLike(Protocol):
    """A setting as this file sees it: `id` is its points', `name` is for people."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


def results_by_setting(
    settings: Iterable[AnySetting], points: Sequence[Point], results: Mapping[str, Result]
) -> dict[AnySetting, list[Result]]:
    """Return the results of the points of each setting, one a seed."""
    return {setting: [results[point.id] for point in points if point.setting == setting.id] for setting in settings}


def trained_settings(
    results: Mapping[AnySetting, Sequence[Result]], noun: str, column: str
) -> tuple[dict[AnySetting, list[Cell]], list[ResultTable]]:
    """Return the cells of each setting that was trained, and a table of the failures where there are any.

    noun: what a setting is for people; column: title of the table's first. UsageError where nothing was trained.
    """
    cells = {setting: [result for result in of if result["status"] == "ok"] for setting, of in results.items()}
    failures = []
    for setting, of in results.items():
        failed = next((result for result in of if result["status"] != "ok"), None)
        if failed is not None:
            failures.append((setting.name, str(failed["status"]), str(failed["reason"])))
    if not any(cells.values()):
        raise UsageError(f"no {noun} could be trained: {failures[0][2] if failures else 'nothing was made'}")
    note = "What was not refused but failed is tried again by the same command."
    table = ResultTable("unmade", "Not trained", (column, "status", "why"), tuple(failures), note)
    return {setting: list(of) for setting, of in cells.items() if of}, [table] if failures else []
