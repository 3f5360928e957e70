"""What every study says of the machine that it ran on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from stepscope import __version__
from stepscope.record.device import describe_device


def device_name() -> str:
    """Board, else processor, else architecture."""
    facts = describe_device()
    return str(facts.get("board") or facts.get("cpu") or platform.machine())


def versions() -> dict[str, str]:
    """Of this package, Python and torch."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    return {"stepscope": __version__, "python": platform.python_version(), "torch": torch}
