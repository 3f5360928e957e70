"""Orders of a fleet on the machine that they are for: `python -m stepscope.experiments.fleet.agent`, orders by stdin.

`work` and `schedule` are the long-lived processes: started, found again and ended by the lock of their folder. `meet`,
`start` and `stop` answer with one line of JSON: the device and its public key; the worker that runs with the
certificate of that key; whether there was one. One folder is one device, and the worker in it is of one fleet: another
fleet can neither start, change nor end it.

process.lock    held by the process as long as it lives, with its number: the kernel lets go however it ends; a
                process whose lock is gone, or another's, ends
state.json      what it has to say of itself
log.txt         what it and its libraries printed
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.errors import FleetError, StepscopeError, UsageError
from stepscope.files import read_json_object, replace_json
from stepscope.liveness import is_process_of_run_alive

AGENT = "stepscope.experiments.fleet.agent"  # the module that takes orders
_LOCK, _STATE, _LOG = "process.lock", "state.json", "log.txt"
_POLL_S = 0.05
_WATCH_S = 1.0
_LOG_LINES = 5


class NotStarted(FleetError):
    """A process of a fleet ended, or said nothing, instead of getting ready."""


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Claim this folder for this process; UsageError where another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"a process runs in '{folder}' already", "stepscope fleet down ends it") from None
        (folder / _STATE).unlink(missing_ok=True)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


async def set_event_when_unneeded(folder: Path, lives_with: Mapping[str, Any] | None, end: asyncio.Event) -> None:
    """Set `end` once nobody has a use for the process of this folder any more.

    That is: the folder has been removed, or the process that it `lives_with` (`liveness.identity`) has ended.
    """
    lock = (folder / _LOCK).stat().st_ino
    while not end.is_set():
        await asyncio.sleep(_WATCH_S)
        try:
            mine = (folder / _LOCK).stat().st_ino == lock
        except OSError:
            mine = False
        if not mine or (lives_with is not None and not is_process_of_run_alive(lives_with)):
            end.set()


def publish_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Let whoever started this process know how it stands."""
    replace_json(folder / _STATE, dict(state), durable=True)


def running_pid(folder: Path) -> int | None:
    """The number of the process of this folder; null where none lives."""
    with contextlib.suppress(FileNotFoundError), (folder / _LOCK).open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = file.read().strip()
            return int(text) if text.isdecimal() else None
    return None


def read_state(folder: Path) -> dict[str, Any]:
    """Return the last state that the process of this folder wrote; empty where there is none."""
    return read_json_object(folder / _STATE)


def start_process(module: str, orders: Mapping[str, Any], folder: Path, within_s: float) -> dict[str, Any]:
    """Start `python -m module` with its orders on stdin, apart from this process; what it says when it is ready.

    It is ready when its state has no `error`; NotStarted with its error or last words where it does not get there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOG).open("wb") as log:
        environment = {**os.environ, **orders.get("environment", {})}
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment,
        )  # fmt: skip
    threading.Thread(target=child.wait, daemon=True).start()  # reaped when it ends, if we are still there
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(json.dumps(orders).encode())
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        state = read_state(folder) if running_pid(folder) == child.pid else {}
        if state and "error" not in state:
            return state
        if child.poll() is not None:
            raise NotStarted(
                f"it ended with exit code {child.returncode}: {_last_log_lines(folder)}", _log_hint(folder)
            )
        time.sleep(_POLL_S)
    child.kill()
    child.wait()
    error = read_state(folder).get("error")
    raise NotStarted(f"it was not ready within {within_s:g} s: {error or _last_log_lines(folder)}", _log_hint(folder))


def stop_process(folder: Path, within_s: float = 10.0) -> bool:
    """End the process of this folder; whether there was one."""
    number = running_pid(folder)
    if number is None:
        return False
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, ending)
        until = time.monotonic() + within_s
        while running_pid(folder) == number and time.monotonic() < until:
            time.sleep(_POLL_S)
        if running_pid(folder) is None:
            break
    return True


def _last_log_lines(folder: Path) -> str:
    lines = (folder / _LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " / ".join(lines[-_LOG_LINES:]) or "it printed nothing"


def _log_hint(folder: Path) -> str:
    return f"all that it printed is in {folder / _LOG}"


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

    folder = Path(orders["folder"]).expanduser()
    if running_pid(folder) is not None:
        _refuse_worker_of_others(folder, orders, ("scheduler", "name"))
    return {"stopped": stop_process(folder)}


def _refuse_worker_of_others(folder: Path, orders: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise UsageError where the worker that runs in a folder differs in one of these from who orders.

    A scheduler at another address is the same one where its authority is: its fleet has moved.
    """
    from stepscope.experiments.fleet.certificates import CA

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
