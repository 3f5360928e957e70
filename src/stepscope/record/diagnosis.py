"""Diagnosis of `doctor`: what can be measured here, what cannot, and the command that would enable it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError
from stepscope.privacy import clean_and_redact
from stepscope.record.device import describe_device, temperatures_and_clocks
from stepscope.record.sampler.calibration import load_calibrations, refused_calibrations
from stepscope.record.sampler.characterise import (
    SensorProfile,
    device_identity,
    load_profiles,
    measures_power,
    save_profiles,
    tells_power,
    with_profiles,
)
from stepscope.record.sensors import Survey, survey_sensors
from stepscope.record.sensors.contract import NoSensor, Target, as_seen_below

if TYPE_CHECKING:
    from stepscope.record.sampler.characterise import LoadStepTraces

_ON_MAINS = NoSensor(
    "unsupported",
    "on mains power a battery does not report what the machine draws",
    "unplug the machine: its battery then reports the power",
)
Measure = Callable[[Survey, Target], dict[str, SensorProfile]]


def diagnose(
    root: Path, simulated: str | None = None, measure: Measure | None = None
) -> tuple[dict[str, Any], dict[str, SensorProfile]]:
    """All that doctor says, as plain data, and the profiles where `measure` takes them; the process asked is this one.

    root: the top of the file system that is looked at; simulated: the board that it belongs to, if any.
    UsageError where there is no such folder.
    """
    if not root.is_dir():
        advice = "give --root the top of a saved tree, or leave it out"
        raise UsageError(f"there is no folder '{root}' to look below", advice)
    target = Target(os.getpid())
    survey = survey_sensors(root, target)
    try:
        meters = [name for name, sensor in survey.sensors.items() if tells_power(sensor)]
        silent = [name for name, sensor in survey.sensors.items() if measures_power(sensor) and name not in meters]
        profiles = {} if measure is None else measure(survey, target)
        sensor_profiles = profiles or load_profiles(device_identity(root, survey.sensors)) or {}
    finally:
        for sensor in survey.sensors.values():
            sensor.close()
    sensors = {name: with_profiles(sensor, sensor_profiles, 0) for name, sensor in survey.sensors.items()}
    channels = [
        {**asdict(c), "source": as_seen_below(root, c.source), "every_ns": sensor.every_ns}
        for sensor in sensors.values()
        for c in sensor.channels
    ]
    parts = [(name, why) for name, sensor in survey.sensors.items() for why in sensor.unread]
    missing = [
        {"sensor": name, **asdict(why), "detail": as_seen_below(root, why.detail)}
        for name, why in (*survey.missing.items(), *parts)
    ]
    missing += [{"sensor": name, **asdict(_ON_MAINS)} for name in silent]
    facts = {
        "root": str(root),
        "device": describe_device(root),
        "now": temperatures_and_clocks(root),
        "channels": clean_and_redact(channels),
        "missing": missing,
        "power": [
            {"sensor": name, "channels": [c.id for c in sensor.channels if c.quantity in ("power", "energy")]}
            for name, sensor in sensors.items()
            if name in meters
        ],
        "characterised": {name: asdict(profile) for name, profile in sensor_profiles.items()},
        "calibrated": clean_and_redact({name: asdict(entry) for name, entry in load_calibrations(root).items()}),
        "calibrations_refused": refused_calibrations(itertools.chain(*(s.channels for s in sensors.values())), root),
        "proc": (root / "proc/stat").exists(),
        "perf": _perf_event_facts(root),
        "torch": _torch(),
        "simulated": simulated and simulated.partition(",")[0],
    }
    return facts, profiles


def measure_and_save_power_sensors(
    survey: Survey, target: Target, root: Path, progress: Callable[[str], None] = lambda text: None
) -> tuple[LoadStepTraces, dict[str, SensorProfile]]:
    """Measure refresh, step and filter of the power sensors that answer, and keep that for the runs to come.

    All cores are loaded for some seconds. UsageError where no sensor of power or energy answers.
    """
    from stepscope.record.sampler.characterise import build_profiles, poll_through_load_step

    if not any(tells_power(sensor) for sensor in survey.sensors.values()):
        raise UsageError(
            "no sensor of power or energy answers here: there is nothing to characterise",
            "'stepscope doctor' says what would enable one",
        )
    observation = poll_through_load_step(survey.sensors, target.clock, progress=progress)
    profiles = build_profiles(observation)
    save_profiles(device_identity(root, survey.sensors), profiles)
    return observation, profiles


def _perf_event_facts(root: Path) -> dict[str, Any]:
    """Return whether the training process's CPU time can be had fresh at each read."""
    from stepscope.record.access.perf_event import open_task_clocks
    from stepscope.record.sensors.contract import close_files

    try:
        paranoid = int((root / "proc/sys/kernel/perf_event_paranoid").read_bytes())
    except (OSError, ValueError):
        paranoid = None
    clocks = open_task_clocks(os.getpid())
    close_files(clocks)
    too_strict = paranoid is not None and paranoid > 2
    return {
        "allowed": bool(clocks),
        "paranoid": paranoid,
        "remedy": "sudo sysctl kernel.perf_event_paranoid=2" if not clocks and too_strict else None,
    }


def _torch() -> dict[str, Any]:
    """Return the version of torch and its GPUs; `fault` where it is installed and does not work, in its own words."""
    facts: dict[str, Any] = {"version": None, "cuda": None, "devices": [], "fault": None, "remedy": None}
    try:
        import torch

        facts |= {"version": str(torch.__version__), "cuda": torch.version.cuda}
        for index in range(torch.cuda.device_count()):
            facts["devices"].append(torch.cuda.get_device_name(index))
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return {**facts, "remedy": "pip install 'stepscope[torch]'"}
        # A library that the vendor's torch needs, a wheel of another machine, a driver that is too old.
        return {**facts, "fault": (str(error).strip().partition("\n")[0] or type(error).__name__)[:300]}
    return facts
