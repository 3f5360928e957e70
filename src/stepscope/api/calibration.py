"""Calibrate this device's power sensors against a meter: the minute of load, the fit, and what is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.api.requests import CalibrateRequest
from stepscope.errors import OutputNotWritable, UsageError
from stepscope.privacy import shown_command
from stepscope.record.meter_log import read_meter_csv
from stepscope.record.meters import parse_meters
from stepscope.record.sampler.calibration import (
    Calibration,
    LoadRecording,
    Readings,
    align_log_to_load,
    calibrate_channels,
    record_square,
    save_calibrations,
)
from stepscope.record.sensors import survey_sensors
from stepscope.record.sensors.contract import Channel, Meter, OpenSensor, Target


@dataclass(frozen=True)
class CalibrationOutcome:
    """Calibrations and why there is none, by channel id; where they are kept, None where they are not."""

    calibrations: Mapping[str, Calibration]
    refused: Mapping[str, str]
    path: Path | None


def calibrate(
    *,
    plug: str | None = None,
    meter_command: str | None = None,
    meter_csv: str | Path | None = None,
    seconds: float | str = 60.0,
    accuracy: float | str = 0.01,
    dry: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Compare this device's power sensors with a meter under a square load; what was kept, by channel id.

    Give one of plug ("shelly=192.168.1.20"), meter_command (prints watts) and meter_csv (the log that a meter writes
    meanwhile). seconds: of the whole; accuracy: of the meter itself, as a share; dry: keep nothing; progress: called
    with a sentence some times a second. Each calibration has gain, gain_half, shown_w, meter_w, meter_half_w (W),
    delay_ns, filter, window_ns, meter and at. All cores are loaded meanwhile. Raises UsageError where there is no
    meter or sensor, where the meter does not move or follow the load, and where no channel does.
    """
    settings = {"plug": plug, "meter_command": meter_command, "meter_csv": meter_csv, "seconds": seconds,
             "accuracy": accuracy, "dry": dry}  # fmt: skip
    request = CalibrateRequest.from_settings({name: value for name, value in settings.items() if value is not None})
    outcome = calibrate_device(request, progress or (lambda _: None))
    return {name: asdict(calibration) for name, calibration in outcome.calibrations.items()}


def calibrate_device(request: CalibrateRequest, progress: Callable[[str], None]) -> CalibrationOutcome:
    """Run the requested calibration on this machine. Raises UsageError, OutputNotWritable."""
    root = Path(os.environ.get("STEPSCOPE_ROOT") or "/")
    meters = parse_meters(
        [request.plug] if request.plug else [], [request.meter_command] if request.meter_command else []
    )
    if request.meter_csv is not None and not request.meter_csv.is_file():
        raise UsageError(f"there is no meter log '{request.meter_csv}'", "start the meter's log, then calibrate")
    target = Target(os.getpid(), meters=meters)
    survey = survey_sensors(root, target)
    try:
        theirs, channels = _split_meter_and_sensors(survey.sensors, meters)
        if meters and not theirs:
            why = "; ".join(f"{name}: {missing.detail}" for name, missing in survey.missing.items() if name in _NAMES)
            raise UsageError(f"the meter does not answer: {why or 'no power in what it says'}", "check its address")
        if not channels:
            raise UsageError(
                "no sensor of power or energy answers here: there is nothing to calibrate",
                "'stepscope doctor' says what would enable one",
            )
        recorded = record_square(survey.sensors, target, request.seconds, progress)
    finally:
        for sensor in survey.sensors.values():
            sensor.close()
    command = shown_command(request.meter_command) if request.meter_command else None
    name = request.plug or command or str(request.meter_csv)
    readings = recorded.power[theirs[0].id] if theirs else _log(request.meter_csv, recorded)
    calibrations, refused = calibrate_channels(recorded, channels, readings, name, request.accuracy)
    if not calibrations:
        raise UsageError(
            "no channel follows the load: " + "; ".join(f"{channel}: {why}" for channel, why in refused.items()),
            "close what else runs, or take longer: --seconds 120s",
        )
    return CalibrationOutcome(calibrations, refused, None if request.dry else _save(root, calibrations))


_NAMES = ("shelly", "tasmota", "android", "adb", "termux", "meter_command")


def _split_meter_and_sensors(
    sensors: Mapping[str, OpenSensor], meters: tuple[Meter, ...]
) -> tuple[list[Channel], list[Channel]]:
    """The meter's channels of power, and the channels of power and energy of the device's own sensors."""
    theirs, own, names = [], [], {meter.name for meter in meters}
    for sensor in sensors.values():
        for channel in sensor.channels:
            if channel.quantity not in ("power", "energy") or channel.kind == "estimate":
                continue
            if channel.scope.partition(":")[2] in names:
                theirs += [channel] if channel.quantity == "power" else []
            else:
                own.append(channel)
    return theirs, own


def _log(path: Path | None, recorded: LoadRecording) -> Readings:
    assert path is not None
    log = read_meter_csv(path)
    return align_log_to_load(log.t_s, log.power_w, log.clock == "unix", recorded.load, recorded.end_ns)


def _save(root: Path, calibrations: Mapping[str, Calibration]) -> Path:
    try:
        return save_calibrations(root, calibrations)
    except (OSError, RuntimeError) as error:
        raise OutputNotWritable(f"the calibration cannot be kept: {error}", "set XDG_DATA_HOME to a folder") from error
