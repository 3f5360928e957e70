"""The versions on a device, found without importing what they are of."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

from stepscope import __version__


def versions() -> dict[str, str | None]:
    """Of Stepscope, Python and what runs depend on; null is not installed."""
    found: dict[str, str | None] = {"stepscope": __version__, "python": platform.python_version()}
    for name in ("torch", "polars"):
        found[name] = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
