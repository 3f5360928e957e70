"""The sections of the page, one file each; the folder is its own registry. docs/add-a-section.md says how to add one.

A file has TITLE (of the heading), ORDER (place on the page, ascending) and `build(run) -> Section`; where it draws,
FIGURES has the names that `stepscope figure` knows its charts by. Sections lay out what analysis computed; one that
finds nothing to show says so in its lede.
"""

from __future__ import annotations

import sys

from stepscope.plugins import Discovery, discover


def discover_sections() -> Discovery:
    """Every section of this folder and of plug-ins, and a sentence for each that could not be imported."""
    return discover(sys.modules[__name__], "stepscope.sections")
