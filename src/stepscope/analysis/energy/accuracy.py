"""The joules that a meter in the supply line would show: accuracy of a sensor's kind, or its calibration.

A sensor's own CI is of what that sensor shows. Its gain and offset are in no reading; they come from the data sheet of
the chip, from published measurements beside a meter, or from `stepscope calibrate` on this very device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.analysis.energy.measured_energy import Energy, sum_energies
from stepscope.analysis.energy.power_sources import PowerSource
from stepscope.analysis.energy.rails import MeasuredRail


@dataclass(frozen=True)
class Accuracy:
    """meter W = meter_w + (shown W - shown_w) / gain; halves of 95 % CIs; `share` is the meter's own, of its W."""

    gain: float
    gain_half: float
    source: str
    shown_w: float = 0.0
    meter_w: float = 0.0
    meter_half_w: float = 0.0
    share: float = 0.0

    def at_meter(self, shown_w: float) -> tuple[float, float]:
        """(W that a meter would show, half of its 95 % CI) where the sensor shows so much.

        Far below where the line was measured it would be negative: then it is 0, or up to what the sensor shows.
        """
        away = (shown_w - self.shown_w) / self.gain
        watts = max(self.meter_w + away, 0.0)
        beyond = shown_w if self.meter_w + away < 0 else 0.0
        parts = (self.meter_half_w, away * self.gain_half / self.gain, self.share * watts, beyond)
        return watts, math.hypot(*parts)


@dataclass(frozen=True)
class Chip:
    """Accuracy of a chip by its data sheet: shares of shunt, bus and resistor, and steps of its offset."""

    words: str
    share: float
    offset_steps: float  # of the channel's own step


# Data sheets of Texas Instruments, largest error at 25 degC: gain of shunt and bus voltage, shunt offset in LSB.
_CHIPS = {
    "ina3221": Chip("INA3221: 0.25 % a voltage, offset 80 uV (TI SBOS576); resistor 1 %", 0.0106, 2.0),
    "ina226": Chip("INA226: 0.1 % a voltage, offset 10 uV (TI SBOS547); resistor 1 %", 0.0101, 4.0),
}
_CHIP_OF_SENSOR = {"ina3221": "ina3221", "tegrastats": "ina3221", "jetson_stats": "ina3221"}

# nvidia-smi's power against a meter on slot and cables, (gain, offset W): Yang, Adamek and Armour, "Accurate and
# Convenient Energy Measurements for GPUs", SC24 (arXiv 2312.02741), mean over their drivers, one card of most kinds.
GPU_LINES = {
    "RTX 3090": (0.945, 3.9),
    "RTX 3070 Ti": (1.003, -4.6),
    "RTX 2080 Ti": (0.967, -5.8),
    "RTX 2060 SUPER": (0.982, 14.4),
    "GTX 1080 Ti": (0.999, -0.3),
    "GTX 1080": (1.064, -5.2),
    "GTX TITAN X": (1.010, 1.3),
    "Tesla M40": (0.971, 1.4),
    "Quadro K620": (1.160, -9.6),
    "Tesla K40m": (1.024, 0.8),
    "Tesla K80": (0.964, -6.3),
    "A100": (0.954, -1.2),
    "P100": (0.993, 0.9),
    "RTX A5000": (0.892, 11.5),
    "RTX 4090": (1.046, -22.7),
    "TITAN X (Pascal)": (1.002, -2.7),
}
_GPU_WORDS = "measured on one such card beside a meter (arXiv 2312.02741); cards of a kind: +-5 %, as NVIDIA states"
_ANY_GPU, _ANY_GPU_HALF, _ANY_OFFSET_W = 0.98, 0.1, 10.0  # what most of those 16 span
_GPU_SENSORS = ("nvml", "nvidia_smi")

_RAPL_MEASURED, _RAPL_MODELLED = 0.05, 0.15
_OLD_INTEL = re.compile(r"\bi[357]-[23]\d{3}(?!\d)|\bE[357]-\d{4}(?: v2)?(?! ?v)\b")


def accuracy_of(source: PowerSource, device: Mapping[str, Any]) -> Accuracy | None:
    """The accuracy of a sensor's channel; None where nothing is known of its kind, and of what is itself a meter."""
    calibration = (source.channel or {}).get("calibration")
    return _calibrated(calibration) if isinstance(calibration, dict) else accuracy_of_kind(source, device)


def accuracy_of_kind(source: PowerSource, device: Mapping[str, Any]) -> Accuracy | None:
    """The accuracy of a channel by its kind of sensor alone, whether or not it was calibrated."""
    channel = source.channel or {}
    sensor = source.sensor.partition("-")[0]
    chip = _CHIPS.get(_CHIP_OF_SENSOR.get(sensor) or _chip_named(channel))
    if chip is not None:
        if not source.step_size or source.kind != "gauge":
            return None  # its offset in W needs the shunt resistor, which nothing states
        return Accuracy(1.0, chip.share, chip.words, meter_half_w=chip.offset_steps * source.step_size)
    if sensor in _GPU_SENSORS:
        return _gpu_accuracy(device)
    if sensor in ("rapl", "rapl_perf"):
        return _rapl_accuracy(str(device.get("cpu") or ""), str(channel.get("rail") or ""))
    return None


def _calibrated(calibration: Mapping[str, Any]) -> Accuracy | None:
    try:
        numbers = [
            float(calibration[name]) for name in ("gain", "gain_half", "shown_w", "meter_w", "meter_half_w", "accuracy")
        ]
    except (KeyError, TypeError, ValueError):
        return None
    gain, half, shown_w, meter_w, level, share = numbers
    if not gain > 0:
        return None
    words = (
        f"calibrated against {calibration.get('meter')} on {str(calibration.get('at'))[:10]}, itself within {share:.1%}"
    )
    return Accuracy(gain, half, words, shown_w, meter_w, level, share)


def _chip_named(channel: Mapping[str, Any]) -> str:
    """The chip that the path or the words of a channel name, in lower case."""
    description = f"{channel.get('source')} {channel.get('sensor')} {channel.get('id')}".lower()
    return next((name for name in _CHIPS if name in description), "")


def _gpu_accuracy(device: Mapping[str, Any]) -> Accuracy:
    """Return the accuracy by GPU name; for several kinds or an unknown one, the range of all measured kinds."""
    stated = [entry for entry in device.get("accelerators") or [] if isinstance(entry, dict)]
    names = {str(entry.get("model") or entry.get("name")) for entry in stated}
    families = {family for name in names for family in GPU_LINES if _is_of_family(name, family)}
    longest = max(families, key=len, default="")
    if len(names) == 1 and longest:
        gain, offset_w = GPU_LINES[longest]
        return Accuracy(gain, 0.05 * gain, f"{longest}: {_GPU_WORDS}", shown_w=offset_w)
    words = "NVIDIA GPUs of other kinds beside a meter (arXiv 2312.02741)"
    return Accuracy(_ANY_GPU, _ANY_GPU_HALF, words, meter_half_w=_ANY_OFFSET_W)


def _is_of_family(name: str, family: str) -> bool:
    """Return whether a GPU is the desktop or server card of this name, neither a relative of it nor its mobile chip."""
    if re.search(r"\b(?:laptop|mobile|max-q)\b", name, re.IGNORECASE):
        return False
    return re.search(rf"(?<!\w){re.escape(family)}(?!\w| (?:ti|super|d)\b)", name, re.IGNORECASE) is not None


def _rapl_accuracy(cpu: str, rail: str) -> Accuracy:
    """Intel measures since Haswell (doi 10.1109/IPDPSW.2015.70); before, and AMD, model: the shares are allowances."""
    modelled = "AMD" in cpu or _OLD_INTEL.search(cpu) is not None
    if "dram" in rail:
        words = "RAPL of DRAM has an offset of its own on each system (doi 10.1145/2989081.2989088): allowance"
        return Accuracy(1.0, _RAPL_MODELLED, f"{words} {_RAPL_MODELLED:.0%}")
    share = _RAPL_MODELLED if modelled or not cpu else _RAPL_MEASURED
    how = "models power on this processor" if modelled else "measures power on Intel since Haswell"
    return Accuracy(1.0, share, f"RAPL {how} (doi 10.1109/IPDPSW.2015.70): allowance {share:.0%}")


def meter_energy(
    lines: Sequence[MeasuredRail], energies: Sequence[Energy], device: Mapping[str, Any], of_total: bool = True
) -> dict[str, Any]:
    """Return what a meter in the supply line of these lines would say, J, its 95 % CI, and from where that is known.

    meter_joules, meter_low, meter_high, meter_source; null where nothing is known of one of the sensors. The errors of
    several lines are taken to agree in sign. Each line that was calibrated beside a meter tells what that meter shows,
    of the whole device: together they do so once, of the total alone. The meter also saw the lines without a
    calibration, as they were under its load: those may take anything now, so that then the kinds of all lines count.
    """
    nothing = dict.fromkeys(("meter_joules", "meter_low", "meter_high", "meter_source"))
    accuracies = [None if line.estimated else accuracy_of(line.best, device) for line in lines]
    beside = [line.name for line, known in zip(lines, accuracies, strict=True) if not (known and known.meter_w)]
    is_calibrated, caution = len(beside) < len(lines), ""
    if is_calibrated and not of_total:
        return nothing
    if is_calibrated and beside:
        caution = f"; not by the calibration, which does not tell the power of {', '.join(beside)}"
        accuracies = [None if line.estimated else accuracy_of_kind(line.best, device) for line in lines]
    known = [
        (accuracy, energy, energy.joules, energy.watts)
        for accuracy, energy in zip(accuracies, energies, strict=True)
        if accuracy is not None and energy.joules is not None and energy.watts is not None and energy.covered_s
    ]
    if not known or len(known) < len(lines):
        return {**nothing, "meter_source": caution.removeprefix("; ") or None}
    if is_calibrated and not beside:
        known = [_merge_lines_of_one_meter([accuracy for accuracy, *_ in known], [energy for _, energy, *_ in known])]
    joules = below = above = 0.0
    for accuracy, energy, shown_j, shown_w in known:
        low, high = (shown_j if end is None else end for end in (energy.low_j, energy.high_j))
        watts, half = accuracy.at_meter(shown_w)
        systematic = half * energy.covered_s
        joules += watts * energy.covered_s
        below += math.hypot(systematic, (shown_j - low) / accuracy.gain)
        above += math.hypot(systematic, (high - shown_j) / accuracy.gain)
    ends = {"meter_low": max(joules - below, 0.0), "meter_high": joules + above}
    return {
        "meter_joules": joules,
        **ends,
        "meter_source": "; ".join(dict.fromkeys(entry[0].source for entry in known)) + caution,
    }


def _merge_lines_of_one_meter(
    calibrated: Sequence[Accuracy], energies: Sequence[Energy]
) -> tuple[Accuracy, Energy, float, float]:
    """The sum of lines that were calibrated beside the same meter, as one: it shows what they show together."""
    several = Accuracy(
        gain=sum(accuracy.gain for accuracy in calibrated),
        gain_half=sum(accuracy.gain_half for accuracy in calibrated),
        source="; ".join(dict.fromkeys(accuracy.source for accuracy in calibrated)),
        shown_w=sum(accuracy.shown_w for accuracy in calibrated),
        meter_w=sum(accuracy.meter_w for accuracy in calibrated) / len(calibrated),
        meter_half_w=max(accuracy.meter_half_w for accuracy in calibrated),
        share=max(accuracy.share for accuracy in calibrated),
    )
    summed = sum_energies(energies)
    return several, summed, summed.joules or 0.0, sum(energy.watts or 0.0 for energy in energies)
