"""Measurements of other tools become run folders: torch.profiler's JSON, and the logs of tools that read sensors.

A file says less than a recorded run, and nothing is made up: what it lacks stands in run.json (`imported`) and is
among what the run has not measured. `import_file` is the way in; docs/guide-import.md is the page for users.
"""

from __future__ import annotations

from stepscope.importers.importer import Options, import_file

__all__ = ["Options", "import_file"]
