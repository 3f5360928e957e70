"""What has been found of a power source: how it sees the past, and the clock by which it is renewed; as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepscope.analysis.attribution.calibrate import Calibration
from stepscope.analysis.attribution.sensor_model import SensorModel
from stepscope.analysis.attribution.update_clock import UpdateClock


@dataclass(frozen=True)
class Known:
    """`first`: the calibration with the readings as they came; `clock`: that was then found behind what it left.

    `last`: the calibration with the readings told by that clock; without a clock the same as `first`.
    """

    first: Calibration
    clock: UpdateClock | None
    last: Calibration


def to_json(known: Known) -> dict[str, Any]:
    """Plain numbers and lists; an infinite margin is null, which JSON has no number for."""
    clock = known.clock
    return {
        "first": _calibration_json(known.first),
        "clock": clock and {"at": clock.at.tolist(), "turns": clock.turns.tolist(), "period": clock.period},
        "last": _calibration_json(known.last),
    }


def from_json(stored: dict[str, Any]) -> Known:
    """KeyError, TypeError or ValueError where it is none of ours."""
    clock = stored["clock"]
    return Known(
        _calibration(stored["first"]),
        clock and UpdateClock(np.array(clock["at"], float), np.array(clock["turns"], float), float(clock["period"])),
        _calibration(stored["last"]),
    )


def _calibration_json(found: Calibration) -> dict[str, Any]:
    return {
        **{name: float(getattr(found, name)) for name in ("sd_centre", "sd_width", "sd_rc")},
        "margin": None if math.isinf(found.margin) else float(found.margin),
        "model": {name: None if value is None else float(value) for name, value in asdict(found.model).items()},
    }


def _calibration(stored: dict[str, Any]) -> Calibration:
    model, margin = stored["model"], stored["margin"]
    width = model["width"]
    seen = SensorModel(
        float(model["lag"]), None if width is None else float(width), float(model["rc"]), float(model["smear"])
    )
    sd_centre, sd_width, sd_rc = (float(stored[name]) for name in ("sd_centre", "sd_width", "sd_rc"))
    return Calibration(seen, sd_centre, sd_width, sd_rc, math.inf if margin is None else float(margin))
