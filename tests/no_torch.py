"""`python -m pytest -p tests.no_torch`: an import of torch fails in this process as if it were not installed."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class NoTorch(importlib.abc.MetaPathFinder):
    """Asked before all other finders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Refuse torch and whatever lies in it."""
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None


assert "torch" not in sys.modules, "torch was imported before it could be refused"
sys.meta_path.insert(0, NoTorch())
