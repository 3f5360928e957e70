"""The sections of the page, one file each; the folder is its own registry. docs/add-a-section.md says how to add one.

A file has TITLE (of the heading), ORDER (place on the page, ascending) and `build(run) -> Section`. Sections lay out
what analysis computed; one that finds nothing to show says so in its lede.
"""

from __future__ import annotations

import sys
from types import ModuleType

from stepscope.errors import StepscopeError
from stepscope.plugins import discover


def discovered() -> tuple[ModuleType, ...]:
    """Every section of this folder and of plug-ins."""
    found = discover(sys.modules[__name__], "stepscope.sections")
    if found.warnings:
        raise StepscopeError("; ".join(found.warnings), "reinstall Stepscope, or remove the plug-in that is named")
    return found.modules
