"""Every channel that a packaged sensor makes in these tests is of a quantity that the vocabulary has, in its unit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.patience import HANG_S

from stepscope.quantities import SAMPLED, find_quantity
from stepscope.record.sensors import (
    android,
    apple,
    contract,
    load_sensors,
    meter_command,
    raspberry_pi,
    smart_plugs,
    tegrastats,
)

SENSORS = frozenset(load_sensors())
LIMITS_S = (
    (android, "TIMEOUT_S"), (raspberry_pi, "TIMEOUT_S"), (smart_plugs, "TIMEOUT_S"),
    (apple, "FIRST_BLOCK_S"), (meter_command, "FIRST_LINE_S"), (tegrastats, "FIRST_LINE_S"),
)  # fmt: skip
IN_BETWEEN = ""  # of a channel that a sensor finishes before it hands it out


@pytest.fixture(autouse=True)
def known_quantities(monkeypatch: pytest.MonkeyPatch) -> None:
    make = contract.Channel.__init__

    def checked(channel: contract.Channel, *args: Any, **stated: Any) -> None:
        make(channel, *args, **stated)
        if channel.sensor in SENSORS and channel.quantity != IN_BETWEEN:
            assert channel.quantity in SAMPLED, f"{channel.sensor}: '{channel.quantity}' has no row in quantities.py"
            assert channel.unit == find_quantity(channel.quantity).unit, (
                f"{channel.sensor}: {channel.quantity} in {channel.unit}"
            )

    monkeypatch.setattr(contract.Channel, "__init__", checked)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still is no device that is silent: a test of a limit sets its own."""
    for sensor, limit in LIMITS_S:
        monkeypatch.setattr(sensor, limit, HANG_S)
