"""Orders of a fleet on the machine that they are for: `python -m stepscope.experiments.fleet.agent`, orders by stdin.

`work` and `schedule` are the long-lived processes. `meet`, `start` and `stop` answer with one line of JSON: the device
and its public key; the worker that runs with the certificate of that key; whether there was one. One folder is one
device, and the worker in it is of one fleet: another fleet can neither start, change nor end it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.errors import FleetError, StepscopeError, UsageError

_WITHIN_S = 60.0  # a small board takes long to import


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
    return {**_device_description(), "public_key": public_key}


def start_worker(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Start the worker unless it runs. orders: folder, scheduler, name, board, ca and certificate (PEM), environment.

    Of a worker of this machine also lives_with, of any alone_s: see `run_worker`.
    A certificate that is new is used from the next connection on. A worker of this fleet that looks for the scheduler
    at an earlier address is started anew; UsageError where the worker of another fleet or name runs in the folder.
    """
    from stepscope.experiments.fleet.certificates import keep_certificate
    from stepscope.experiments.fleet.processes import AGENT, read_state, running_pid, start_process, stop_process

    folder = Path(orders["folder"]).expanduser()
    place = {key: orders[key] for key in ("scheduler", "name", "board")}
    running = running_pid(folder) is not None
    if running:
        _refuse_worker_of_others(folder, orders, tuple(place))
    keep_certificate(folder / "tls", orders["ca"], orders["certificate"])
    state = read_state(folder)
    if running and state.get("scheduler", place["scheduler"]) == place["scheduler"]:
        return {**state, "pid": running_pid(folder), "began": False}
    stop_process(folder)
    ends = {key: orders[key] for key in ("lives_with", "alone_s") if orders.get(key) is not None}
    work = {"do": "work", **place, "environment": orders["environment"], **ends, "folder": str(folder)}
    return {**start_process(AGENT, work, folder, _WITHIN_S), "pid": running_pid(folder), "began": True}


def stop_worker(orders: Mapping[str, Any]) -> dict[str, Any]:
    """End the worker of this folder. orders: folder, scheduler, name, ca (PEM; empty where no fleet was up yet)."""
    from stepscope.experiments.fleet.processes import running_pid, stop_process

    folder = Path(orders["folder"]).expanduser()
    if running_pid(folder) is not None:
        _refuse_worker_of_others(folder, orders, ("scheduler", "name"))
    return {"stopped": stop_process(folder)}


def _refuse_worker_of_others(folder: Path, orders: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise UsageError where the worker that runs in a folder differs in one of these from who orders.

    A scheduler at another address is the same one where its authority is: its fleet has moved.
    """
    from stepscope.experiments.fleet.certificates import CA
    from stepscope.experiments.fleet.processes import read_state

    state, authority = read_state(folder), folder / "tls" / CA
    differences = {key: state[key] for key in keys if state.get(key, orders[key]) != orders[key]}
    if authority.exists() and authority.read_text(encoding="ascii") == orders["ca"]:
        differences.pop("scheduler", None)
    if differences:
        text = ", ".join(f"{key} {value}" for key, value in differences.items())
        hint = f"end it with the hosts.toml of its fleet, stepscope fleet down, or remove '{folder}' on the device"
        raise UsageError(f"a worker runs in '{folder}' already, with {text}", hint)


def _device_description() -> dict[str, Any]:
    """Versions, and what `stepscope doctor` finds, as far as a fleet shows it."""
    from stepscope.experiments.engine.engine import installed_versions
    from stepscope.record.device import describe_device
    from stepscope.record.sampler.characterise import measures_power
    from stepscope.record.sensors import survey_sensors
    from stepscope.record.sensors.contract import Target

    survey = survey_sensors(Path("/"), Target(os.getpid()))
    power = [name for name, sensor in survey.sensors.items() if measures_power(sensor)]
    for sensor in survey.sensors.values():
        sensor.close()
    return {
        "versions": installed_versions(),
        "device": describe_device(),
        "power": power,
        "missing": list(survey.missing),
    }


if __name__ == "__main__":
    main(json.load(sys.stdin))
