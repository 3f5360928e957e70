"""What findings say of the device and of the software that they were found with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stepscope import __version__
from stepscope.record.device import describe_device


def device_name(facts: dict[str, Any] | None = None) -> str:
    """The board, else the processor, else the architecture; of this machine unless its facts are given."""
    known: dict[str, Any] = facts or describe_device()
    for named in (known.get("board"), known.get("cpu")):
        if named:
            return str(named.get("name") if isinstance(named, dict) else named)
    return platform.machine()


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    return {"stepscope": __version__, "python": platform.python_version(), "torch": torch}
