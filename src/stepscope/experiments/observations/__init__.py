"""The twelve observations of the 2019 paper, judged on the device at hand. A file here is an observation each.

A file without a leading underscore names its OBSERVATION; the folder is its own registry.
"""

from __future__ import annotations

import sys
from functools import cache

from stepscope.experiments.observations._contract import Observation
from stepscope.plugins import Discovery, discover

ENTRY_POINTS = "stepscope.observations"
_NOT_OBSERVATIONS = frozenset({"study", "request"})


@cache
def discovered() -> Discovery:
    """Every file of this folder and of plug-ins, and a sentence for each that could not be imported."""
    return discover(sys.modules[__name__], ENTRY_POINTS, skip=_NOT_OBSERVATIONS)


def every() -> list[Observation]:
    """All observations, in order of their numbers."""
    found = [getattr(module, "OBSERVATION", None) for module in discovered().modules]
    return sorted((each for each in found if isinstance(each, Observation)), key=lambda each: each.number)
