"""Sensor model and clock of a power source that were found before, and how the cache of a run keeps them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepscope.analysis.energy.calibration import Calibration, Rival
from stepscope.analysis.energy.sensor_model import SensorModel
from stepscope.analysis.energy.update_clocks import UpdateClock
from stepscope.analysis.result_cache import ResultCache


@dataclass(frozen=True)
class SensorCalibration:
    """`first`: the calibration with the readings as they came; `clock`: that was then found behind what it left.

    `last`: the calibration with the readings told by that clock; without a clock the same as `first`.
    `place`: which of the clocks that explain the repeats, 0 for the likeliest by these; `tied`: another stands.
    """

    first: Calibration
    clock: UpdateClock | None
    last: Calibration
    place: int = 0
    tied: bool = False


def stored_calibrations(results: ResultCache, name: str) -> dict[str, SensorCalibration]:
    """Return what an earlier reader found of each channel in these very files; empty where there is none."""
    return (
        results.load(name, lambda stored: {channel: _sensor_from_json(sensor) for channel, sensor in stored.items()})
        or {}
    )


def store_calibrations(results: ResultCache, name: str, calibrations: dict[str, SensorCalibration]) -> None:
    """Keep what was found of each channel for the next reader."""
    results.store(name, {channel: _sensor_json(source) for channel, source in calibrations.items()})


def _sensor_json(sensor: SensorCalibration) -> dict[str, Any]:
    """Plain numbers and lists; an infinite margin is null, which JSON has no number for."""
    clock = sensor.clock
    return {
        "first": _calibration_json(sensor.first),
        "clock": clock and {"at": clock.at.tolist(), "turns": clock.turns.tolist(), "period": clock.period},
        "last": _calibration_json(sensor.last),
        "place": sensor.place,
        "tied": sensor.tied,
    }


def _sensor_from_json(stored: dict[str, Any]) -> SensorCalibration:
    """KeyError, TypeError or ValueError where it is none of ours."""
    clock = stored["clock"]
    return SensorCalibration(
        _calibration_from_json(stored["first"]),
        clock and UpdateClock(np.array(clock["at"], float), np.array(clock["turns"], float), float(clock["period"])),
        _calibration_from_json(stored["last"]),
        int(stored.get("place", 0)),
        bool(stored.get("tied", False)),
    )


def _calibration_json(calibration: Calibration) -> dict[str, Any]:
    return {
        **{name: float(getattr(calibration, name)) for name in ("sd_centre", "sd_width", "sd_rc")},
        "model": _model_json(calibration.model),
        "rivals": [[_model_json(rival.model), float(rival.log_odds)] for rival in calibration.rivals],
    }


def _model_json(model: SensorModel) -> dict[str, float | None]:
    return {name: None if value is None else float(value) for name, value in asdict(model).items()}


def _calibration_from_json(stored: dict[str, Any]) -> Calibration:
    sd_centre, sd_width, sd_rc = (float(stored[name]) for name in ("sd_centre", "sd_width", "sd_rc"))
    rivals = tuple(Rival(_model_from_json(model), float(odds)) for model, odds in stored["rivals"])
    return Calibration(_model_from_json(stored["model"]), sd_centre, sd_width, sd_rc, rivals)


def _model_from_json(stored: dict[str, Any]) -> SensorModel:
    width = stored["width"]
    others = {name: float(stored[name]) for name in ("lag", "rc", "smear", "hold")}
    return SensorModel(width=None if width is None else float(width), **others)
