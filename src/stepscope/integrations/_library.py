"""Somebody else's library, imported when it is used; what is not installed is refused with what to install."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from stepscope.errors import MissingDependency


def load(module: str, extra: str) -> Any:
    """The library; MissingDependency where it is not installed or cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"{module} is needed for this and cannot be imported: {error}"
        raise MissingDependency(message, f"pip install 'stepscope[{extra}]'") from error


def version_of(library: ModuleType) -> str:
    """What the library calls its version."""
    return str(getattr(library, "__version__", "unknown"))
