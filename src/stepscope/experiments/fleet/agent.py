"""Orders of a fleet on the machine that they are for: `python -m stepscope.experiments.fleet.agent`, orders by stdin.

`work` and `schedule` are the long-lived processes. `meet`, `start` and `stop` answer with one line of JSON: the device
and its public key; the worker that runs with the certificate of that key; whether there was one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.errors import FleetError, StepscopeError


def main(orders: Mapping[str, Any]) -> None:
    """Carry out the orders; a refusal is an answer, too."""
    if orders["do"] in ("work", "schedule"):
        _run_service(orders)
        return
    try:
        answer = _carry_out_orders(orders)
    except StepscopeError as error:
        answer = {"refused": str(error), "hint": error.hint}
    sys.stdout.write(json.dumps(answer, default=str) + "\n")


def _run_service(orders: Mapping[str, Any]) -> None:
    from stepscope.experiments.fleet.scheduler import run_scheduler
    from stepscope.experiments.fleet.worker import run_worker

    (run_worker if orders["do"] == "work" else run_scheduler)(orders)


def _carry_out_orders(orders: Mapping[str, Any]) -> dict[str, Any]:
    from stepscope.experiments.fleet.certificates import device_public_key
    from stepscope.experiments.fleet.hosts import require_libraries
    from stepscope.experiments.fleet.processes import start_worker, stop_worker

    if orders["do"] == "stop":
        return stop_worker(orders)
    if orders["version"] != __version__:
        text = f"it has Stepscope {__version__}, and the machine that starts the fleet {orders['version']}"
        hint = f"install the same there: {sys.executable} -m pip install stepscope=={orders['version']}"
        raise FleetError(text, hint)
    require_libraries()
    if orders["do"] == "start":
        return start_worker(orders)
    public_key = device_public_key(Path(orders["folder"]).expanduser() / "tls", bool(orders["rotate"]))
    return {**_about(), "public_key": public_key}


def _about() -> dict[str, Any]:
    """Versions, and what `stepscope doctor` finds, as far as a fleet shows it."""
    from stepscope.experiments.engine.engine import installed_versions
    from stepscope.record.device import describe_device
    from stepscope.record.sampler.characterise import measures_power
    from stepscope.record.sensors import survey_sensors
    from stepscope.record.sensors.contract import Target

    seen = survey_sensors(Path("/"), Target(os.getpid()))
    power = [name for name, found in seen.found.items() if measures_power(found)]
    for found in seen.found.values():
        found.close()
    return {
        "versions": installed_versions(),
        "device": describe_device(),
        "power": power,
        "missing": list(seen.missing),
    }


if __name__ == "__main__":
    main(json.load(sys.stdin))
