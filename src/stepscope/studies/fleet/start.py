"""Starting and ending the worker of a device, on the device itself: what `fleet up` asks for there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError
from stepscope.studies.fleet.certificates import CA, CERTIFICATE, KEY
from stepscope.studies.fleet.processes import running, start, state, stop

DEVICE = "stepscope.commands._fleet_device"  # the module that takes orders
_WITHIN_S = 60.0  # a small board takes long to import


def start_worker(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Start the worker unless it runs. orders: folder, scheduler, name, board, tls (texts or null), environment.

    One folder is one device: UsageError where the worker of another fleet or name runs in it.
    """
    folder = Path(orders["folder"]).expanduser()
    wanted = {"do": "work", **{key: orders[key] for key in ("scheduler", "name", "board", "environment")}}
    if running(folder) is not None:
        return _as_wanted(folder, wanted)
    tls = None if orders["tls"] is None else _keep(folder / "tls", orders["tls"])
    said = start(DEVICE, {**wanted, "folder": str(folder), "tls": tls}, folder, _WITHIN_S)
    return {**said, "pid": running(folder), "began": True}


def stop_worker(orders: Mapping[str, Any]) -> dict[str, Any]:
    """End the worker of this folder. orders: folder."""
    return {"stopped": stop(Path(orders["folder"]).expanduser())}


def material(folder: Path) -> dict[str, str]:
    """The texts of a host's TLS material, to be sent."""
    return {name: (folder / name).read_text(encoding="ascii") for name in (CA, CERTIFICATE, KEY)}


def _as_wanted(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    said = state(folder)
    other = {key: said[key] for key in ("scheduler", "name", "board") if said.get(key, wanted[key]) != wanted[key]}
    if other:
        what = ", ".join(f"{key} {value}" for key, value in other.items())
        raise UsageError(
            f"a worker runs in '{folder}' already, with {what}", "one device takes one worker: end that one"
        )
    return {**said, "pid": running(folder), "began": False}


def _keep(folder: Path, texts: Mapping[str, str]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CA, CERTIFICATE, KEY):
        path = folder / name
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(texts[name])
    return str(folder)
