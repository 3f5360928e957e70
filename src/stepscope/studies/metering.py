"""How power is to be learnt, checked before anything runs: a slip of the pen must not cost a training."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.analysis.power_model import parse_power_model
from stepscope.record.meters import parse_meters
from stepscope.record.session import Metering


def metering(
    plugs: Sequence[str] = (),
    commands: Sequence[str] = (),
    power_model: str | None = None,
    characterise: bool = True,
    dither: bool = True,
) -> Metering:
    """Meters by address, commands that print watts, a model such as cpu=2W..15W; UsageError where one cannot be."""
    if power_model is not None:
        parse_power_model(power_model)
    return Metering(parse_meters(plugs, commands), power_model, characterise, dither)
